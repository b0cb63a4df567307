use std::sync::Arc;

use super::pairs::{cut_document, pair_at};
use super::store::TokenStore;
use super::{Instance, InstanceOptions, Vocabulary};
use crate::{DataError, Philox, Purpose};

/// Instances made from token shards when they are asked for.
///
/// Where instances begin is fixed: where whole documents, cut into pairs, are cut. All else is drawn anew in each
/// epoch: lengths, where the first segment ends, whether and which other document comes second, and masks.
pub(crate) struct ShardSet {
    store: TokenStore,
    vocabulary: Arc<Vocabulary>,
    options: InstanceOptions,
    seed: u64,
    starts: Vec<Start>,
}

/// A sentence of a document.
#[derive(Debug, Clone, Copy)]
struct Start {
    document: u32,
    sentence: u32,
}

impl ShardSet {
    /// `cut_seed` decides where instances begin, `seed` all else.
    pub fn new(
        store: TokenStore,
        vocabulary: Arc<Vocabulary>,
        options: InstanceOptions,
        cut_seed: u64,
        seed: u64,
    ) -> Self {
        let mut starts = Vec::new();
        for document in 0..store.documents() {
            let mut rng = Philox::new(cut_seed, Purpose::Pairs, 0, document.into());
            let start = |sentence, _| starts.push(Start { document, sentence: sentence as u32 });
            cut_document(&store, document, options.pair_length(), &mut rng, start);
        }
        Self { store, vocabulary, options, seed, starts }
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn options(&self) -> &InstanceOptions {
        &self.options
    }

    pub fn store(&self) -> &TokenStore {
        &self.store
    }

    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Errors: tokens that cannot be read.
    pub fn instance(&self, epoch: u32, index: usize) -> Result<Instance, DataError> {
        let Start { document, sentence } = self.starts[index];
        let mut rng = Philox::new(self.seed, Purpose::Instances, epoch, index as u64);
        let pair = pair_at(&self.store, document, sentence as usize, self.options.pair_length(), &mut rng);
        Instance::make(&self.store, &pair, self.options.masking(), &self.vocabulary, &mut rng)
    }
}
