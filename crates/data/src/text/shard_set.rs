use std::sync::Arc;

use super::Vocabulary;
use super::maker::Maker;
use super::store::TokenStore;
use crate::{DataError, Purpose};

/// Sequences made from token shards when they are asked for.
///
/// Where they begin is fixed: where whole documents are cut. All else is drawn again in each epoch: lengths, where the
/// first segment ends, what comes second, and masks.
pub(crate) struct ShardSet<M> {
    store: TokenStore,
    vocabulary: Arc<Vocabulary>,
    maker: M,
    seed: u64,
    starts: Vec<Start>,
}

/// A sentence of a document.
#[derive(Debug, Clone, Copy)]
struct Start {
    document: u32,
    sentence: u32,
}

impl<M: Maker> ShardSet<M> {
    /// `cut_seed` decides where sequences begin, `seed` all else.
    pub(super) fn new(store: TokenStore, vocabulary: Arc<Vocabulary>, maker: M, cut_seed: u64, seed: u64) -> Self {
        let mut starts = Vec::new();
        for document in 0..store.documents() {
            let mut rng = Purpose::Pairs.stream(cut_seed, 0, document.into());
            maker.cut(&store, document, &mut rng, |sentence, _| {
                starts.push(Start { document, sentence: sentence as u32 })
            });
        }
        Self { store, vocabulary, maker, seed, starts }
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn maker(&self) -> &M {
        &self.maker
    }

    pub(super) fn store(&self) -> &TokenStore {
        &self.store
    }

    pub(super) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Errors: tokens that cannot be read.
    pub(super) fn make(&self, epoch: u32, index: usize) -> Result<M::Made, DataError> {
        let Start { document, sentence } = self.starts[index];
        let mut rng = Purpose::Instances.stream(self.seed, epoch, index as u64);
        let plan = self.maker.plan(&self.store, document, sentence as usize, &mut rng);
        self.maker.make(&self.store, &plan, &self.vocabulary, &mut rng)
    }
}
