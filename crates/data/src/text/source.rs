//! Where sequences come from, whatever they are for.

use std::path::Path;
use std::sync::Arc;

use super::folder::{Format, Manifest, record_files};
use super::maker::{ExampleShape, Maker};
use super::record_set::RecordSet;
use super::shard_set::ShardSet;
use super::store::TokenStore;
use super::{Specials, SyntheticText};
use crate::{DataError, Split, hex};

/// Sequences of one kind: made once, in TFRecord files, on the fly from token shards, or of random tokens.
pub(crate) struct Source<M: Maker> {
    kind: Kind<M>,
    /// Those of the vocabulary, where it is known.
    specials: Option<Specials>,
}

enum Kind<M: Maker> {
    Records(RecordSet<M::Made>),
    Shards(ShardSet<M>),
    Synthetic(SyntheticText),
}

impl<M: Maker> Source<M> {
    /// A split of a prepared folder. Shards are made into sequences by `options`, or as was asked for at preparation,
    /// and drawn with `seed`; records must have the lengths of `options`.
    ///
    /// Errors: no such split; records of another kind; damaged files; lengths that do not fit; options out of range.
    pub(super) fn prepared(
        folder: &Path,
        manifest: &Manifest,
        split: Split,
        options: Option<M>,
        seed: u64,
    ) -> Result<Self, DataError> {
        let vocabulary = Arc::new(manifest.vocabulary(folder)?);
        let files = manifest.part_files(folder, split)?;
        let specials = Some(vocabulary.specials());
        if manifest.format == Format::Shards {
            let options = options.unwrap_or(M::prepared(manifest.format, &manifest.options.instances));
            options.check()?;
            let store = TokenStore::open(&files, vocabulary.hash())?;
            require_documents::<M>(&store, &folder.join(split.name()))?;
            let set = ShardSet::new(store, vocabulary, options, manifest.options.seed, seed);
            return Ok(Self { kind: Kind::Shards(set), specials });
        }
        if manifest.format != M::RECORDS {
            let expected = format!("token shards, or {}", M::RECORDS.what());
            return Err(DataError::layout(folder, manifest.format.what(), expected));
        }
        let set = RecordSet::open(&files, vocabulary.len())?;
        require_lengths(folder, set.shape(), options)?;
        Ok(Self { kind: Kind::Records(set), specials })
    }

    /// All TFRecord files of a folder of another origin. The first record decides the lengths, which must be those of
    /// `options`.
    ///
    /// Errors: no such folder or files; damaged files; a first record of another kind or length.
    pub(super) fn records(
        folder: &Path,
        vocabulary_size: usize,
        specials: Option<Specials>,
        options: Option<M>,
    ) -> Result<Self, DataError> {
        let set = RecordSet::open(&record_files(folder)?, vocabulary_size)?;
        require_lengths(folder, set.shape(), options)?;
        Ok(Self { kind: Kind::Records(set), specials })
    }

    /// Random tokens.
    ///
    /// Errors: a size out of its range.
    pub(super) fn synthetic(text: SyntheticText) -> Result<Self, DataError> {
        text.check()?;
        Ok(Self { kind: Kind::Synthetic(text), specials: None })
    }

    /// Sequences of an epoch.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Records(set) => set.len(),
            Kind::Shards(set) => set.len(),
            Kind::Synthetic(text) => text.len,
        }
    }

    pub(super) fn shape(&self) -> ExampleShape {
        match &self.kind {
            Kind::Records(set) => set.shape(),
            Kind::Shards(set) => set.maker().shape(),
            Kind::Synthetic(text) => text.shape(),
        }
    }

    /// Whether sequences are made again in each epoch.
    pub(super) fn is_made_anew(&self) -> bool {
        matches!(self.kind, Kind::Shards(_))
    }

    pub(super) fn vocabulary_size(&self) -> usize {
        match &self.kind {
            Kind::Records(set) => set.vocabulary_size(),
            Kind::Shards(set) => set.vocabulary().len(),
            Kind::Synthetic(text) => text.vocabulary_size,
        }
    }

    /// Special tokens; none are known of random tokens.
    pub(super) fn specials(&self) -> Option<Specials> {
        self.specials
    }

    /// A name that changes when the sequences change.
    pub(super) fn identity(&self) -> String {
        match &self.kind {
            Kind::Records(set) => format!("text-tfrecord:{}", hex(&set.hash())),
            Kind::Shards(set) => {
                let (hash, options) = (hex(&set.store().hash()), set.maker().identity());
                format!("text-shards:{hash}:seed={}:{options}", set.seed())
            }
            Kind::Synthetic(text) => text.identity(),
        }
    }

    /// Sequence `index` of an epoch, whatever was asked for before.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub(super) fn sequence(&self, epoch: u32, index: usize) -> Result<M::Made, DataError> {
        match &self.kind {
            Kind::Records(set) => set.record(index),
            Kind::Shards(set) => set.make(epoch, index),
            Kind::Synthetic(text) => Ok(M::synthetic(text, index)),
        }
    }

    /// How often each token is to be predicted or, where each is as likely to be, how often it comes.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub(super) fn word_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        let mut counts = match &self.kind {
            Kind::Records(set) => set.word_counts(threads)?,
            Kind::Shards(set) => set.store().token_counts(set.vocabulary().len(), threads)?,
            Kind::Synthetic(text) => vec![1; text.vocabulary_size],
        };
        if let Some(specials) = self.specials {
            (0..).zip(&mut counts).filter(|(id, _)| specials.is_structure(*id)).for_each(|(_, count)| *count = 0);
        }
        Ok(counts)
    }

    /// Entropy, in nats, of the distribution of [`Self::word_counts`].
    ///
    /// Errors: data that cannot be read or is damaged.
    pub(super) fn unigram_entropy(&self, threads: usize) -> Result<f64, DataError> {
        Ok(entropy(&self.word_counts(threads)?))
    }
}

fn require_lengths<M: Maker>(folder: &Path, found: ExampleShape, options: Option<M>) -> Result<(), DataError> {
    match options.map(|options| options.shape()) {
        Some(asked) if asked != found => {
            Err(DataError::layout(folder, format!("records of {found}"), asked.to_string()))
        }
        _ => Ok(()),
    }
}

/// Errors: fewer documents than sequences are made of.
pub(crate) fn require_documents<M: Maker>(store: &TokenStore, place: &Path) -> Result<(), DataError> {
    let (least, expected) = M::LEAST_DOCUMENTS;
    match store.documents() {
        found if found >= least => Ok(()),
        found => Err(DataError::layout(place, format!("documents with text: {found}"), expected)),
    }
}

/// Entropy in nats of the distribution of counts, 0 for no counts.
fn entropy(counts: &[u64]) -> f64 {
    let total = counts.iter().sum::<u64>() as f64;
    let part = |&count: &u64| count as f64 / total * (total / count as f64).ln();
    counts.iter().filter(|&&count| count > 0).map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_known_distributions() {
        assert!((entropy(&[5; 8]) - 8_f64.ln()).abs() < 1e-12);
        assert_eq!(entropy(&[0, 3, 0]), 0.0);
        assert_eq!(entropy(&[]), 0.0);
        assert!((entropy(&[1, 3]) - (0.25 * 4_f64.ln() + 0.75 * (4.0_f64 / 3.0).ln())).abs() < 1e-12);
    }
}
