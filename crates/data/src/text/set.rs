use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::example::ExampleShape;
use super::folder::{Format, Manifest, record_files};
use super::record_set::RecordSet;
use super::shard_set::ShardSet;
use super::store::TokenStore;
use super::{Instance, InstanceOptions, SyntheticText};
use crate::dataset::hex;
use crate::{DataError, Split};

/// Instances to pre-train BERT on: made once, in TFRecord files, or on the fly from token shards.
pub struct PretrainingSet {
    source: Source,
}

impl fmt::Debug for PretrainingSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PretrainingSet").field("identity", &self.identity()).field("len", &self.len()).finish()
    }
}

enum Source {
    Records(RecordSet),
    Shards(ShardSet),
    Synthetic(SyntheticText),
}

impl PretrainingSet {
    /// Opens a split of a folder that [`prepare`](super::prepare) made.
    ///
    /// Shards are made into instances by `options`, or as was asked for at preparation. Those to train on are drawn
    /// with `seed`; those to evaluate on with the seed of the preparation, so that all runs see the same. TFRecord
    /// files hold their instances: `options`, if given, must name their lengths, and `seed` is not used.
    ///
    /// Errors: no such folder or split; a preparation that was not completed; damaged files; lengths that do not fit.
    pub fn open(folder: &Path, split: Split, options: Option<InstanceOptions>, seed: u64) -> Result<Self, DataError> {
        Self::of_manifest(folder, &Manifest::open(folder)?, split, options, seed)
    }

    pub(crate) fn of_manifest(
        folder: &Path,
        manifest: &Manifest,
        split: Split,
        options: Option<InstanceOptions>,
        seed: u64,
    ) -> Result<Self, DataError> {
        let vocabulary = Arc::new(manifest.vocabulary(folder)?);
        let files = manifest.part_files(folder, split)?;
        match manifest.format {
            Format::Tfrecord => {
                let set = RecordSet::open(&files, vocabulary.len())?;
                require_lengths(folder, set.shape(), options)?;
                Ok(Self { source: Source::Records(set) })
            }
            Format::Shards => {
                let options = options.unwrap_or(manifest.options.instances);
                options.check()?;
                let store = TokenStore::open(&files, vocabulary.hash())?;
                require_documents(&store, &folder.join(split.name()))?;
                let cut_seed = manifest.options.seed;
                let seed = if split == Split::Train { seed } else { cut_seed };
                Ok(Self { source: Source::Shards(ShardSet::new(store, vocabulary, options, cut_seed, seed)) })
            }
        }
    }

    /// Opens TFRecord files of another origin, such as those of Google's `create_pretraining_data.py`: all files of a
    /// folder whose names contain `tfrecord`, in the order of their names. The first record decides the lengths.
    ///
    /// Errors: no such folder or files; damaged files; a first record that is no instance.
    pub fn open_records(folder: &Path, vocabulary_size: usize) -> Result<Self, DataError> {
        let files = record_files(folder)?;
        Ok(Self { source: Source::Records(RecordSet::open(&files, vocabulary_size)?) })
    }

    /// Random tokens, to measure speed.
    ///
    /// Errors: a size out of its range.
    pub fn synthetic(synthetic: SyntheticText) -> Result<Self, DataError> {
        let SyntheticText { len, sequence_length, predictions, vocabulary_size, .. } = synthetic;
        let at_least = |name, value: usize, least: usize| match value >= least {
            true => Ok(()),
            false => Err(DataError::option(name, value, format!("at least {least}"))),
        };
        at_least("instances", len, 1)?;
        at_least("sequence length", sequence_length, 2)?;
        at_least("vocabulary size", vocabulary_size, 1)?;
        if !(1..sequence_length).contains(&predictions) {
            return Err(DataError::option("predictions", predictions, format!("1 to {}", sequence_length - 1)));
        }
        Ok(Self { source: Source::Synthetic(synthetic) })
    }

    /// Number of instances of an epoch.
    pub fn len(&self) -> usize {
        match &self.source {
            Source::Records(set) => set.len(),
            Source::Shards(set) => set.len(),
            Source::Synthetic(set) => set.len,
        }
    }

    /// Whether there is no instance.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of a padded sequence, `S`.
    pub fn sequence_length(&self) -> usize {
        match &self.source {
            Source::Records(set) => set.shape().sequence_length,
            Source::Shards(set) => set.options().sequence_length,
            Source::Synthetic(set) => set.sequence_length,
        }
    }

    /// Most tokens of a sequence to predict, `P`.
    pub fn predictions(&self) -> usize {
        match &self.source {
            Source::Records(set) => set.shape().predictions,
            Source::Shards(set) => set.options().max_predictions,
            Source::Synthetic(set) => set.predictions,
        }
    }

    /// Whether sequences and their masks are made anew in each epoch.
    pub fn is_made_anew(&self) -> bool {
        matches!(self.source, Source::Shards(_))
    }

    /// Ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        match &self.source {
            Source::Records(set) => set.vocabulary_size(),
            Source::Shards(set) => set.vocabulary().len(),
            Source::Synthetic(set) => set.vocabulary_size,
        }
    }

    /// A name that changes when the instances change.
    pub fn identity(&self) -> String {
        match &self.source {
            Source::Records(set) => format!("text-tfrecord:{}", hex(&set.hash())),
            Source::Shards(set) => {
                let InstanceOptions {
                    sequence_length,
                    max_predictions,
                    masked_lm_probability,
                    short_sequence_probability,
                    whole_words,
                } = set.options();
                format!(
                    "text-shards:{}:seed={}:sequence={sequence_length}:predictions={max_predictions}\
                     :masked={masked_lm_probability}:short={short_sequence_probability}:whole-words={whole_words}",
                    hex(&set.store().hash()),
                    set.seed(),
                )
            }
            Source::Synthetic(set) => set.identity(),
        }
    }

    /// Instance `index` of an epoch, whatever was asked for before.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn instance(&self, epoch: u32, index: usize) -> Result<Instance, DataError> {
        match &self.source {
            Source::Records(set) => set.instance(index),
            Source::Shards(set) => set.instance(epoch, index),
            Source::Synthetic(set) => Ok(set.instance(index)),
        }
    }

    /// Entropy, in nats, of the distribution of the tokens to predict: the loss of a model that knows how frequent each
    /// token is and nothing else. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn unigram_entropy(&self, threads: usize) -> Result<f64, DataError> {
        Ok(entropy(&self.word_counts(threads)?))
    }

    /// How often each token is to be predicted, by its number in the vocabulary; for shards, how often it comes, as each is as
    /// likely to be masked. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn word_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        Ok(match &self.source {
            Source::Records(set) => set.target_counts(threads)?,
            Source::Shards(set) => {
                let vocabulary = set.vocabulary();
                let mut counts = set.store().token_counts(vocabulary.len(), threads)?;
                (0..)
                    .zip(&mut counts)
                    .filter(|(id, _)| vocabulary.specials().is_structure(*id))
                    .for_each(|(_, n)| *n = 0);
                counts
            }
            Source::Synthetic(set) => vec![1; set.vocabulary_size],
        })
    }
}

fn require_lengths(folder: &Path, found: ExampleShape, options: Option<InstanceOptions>) -> Result<(), DataError> {
    let tell = |shape: ExampleShape| format!("{} tokens with {} predictions", shape.sequence_length, shape.predictions);
    match options.map(|options| options.shape()) {
        Some(asked) if asked != found => {
            Err(DataError::layout(folder, format!("records of {}", tell(found)), tell(asked)))
        }
        _ => Ok(()),
    }
}

/// A random second segment needs another document.
pub(crate) fn require_documents(store: &TokenStore, place: &Path) -> Result<(), DataError> {
    if store.documents() >= 2 {
        return Ok(());
    }
    let problem = format!("documents with text: {}", store.documents());
    let expected = "at least 2 in each split, as second segments are taken from other documents";
    Err(DataError::layout(place, problem, expected))
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

    #[test]
    fn synthetic_instances_have_the_shape_asked_for() {
        let sizes = SyntheticText { len: 9, sequence_length: 16, predictions: 15, vocabulary_size: 40, seed: 3 };
        let set = PretrainingSet::synthetic(sizes).unwrap();
        assert_eq!((set.len(), set.sequence_length(), set.predictions()), (9, 16, 15));
        for index in 0..9 {
            let instance = set.instance(index as u32, index).unwrap();
            assert_eq!(instance, set.instance(0, index).unwrap());
            assert!(instance.tokens.len() == 16 && instance.tokens.iter().all(|&id| id < 40));
            assert!(instance.masked.is_sorted_by(|a, b| a.0 < b.0) && instance.masked.len() == 15);
            assert!(instance.masked.iter().all(|&(position, id)| position < 16 && id < 40));
        }
        assert_ne!(set.instance(0, 1).unwrap(), set.instance(0, 2).unwrap());
        assert!((set.unigram_entropy(1).unwrap() - 40_f64.ln()).abs() < 1e-12);
        for wrong in [
            SyntheticText { len: 0, ..sizes },
            SyntheticText { predictions: 16, ..sizes },
            SyntheticText { predictions: 0, ..sizes },
            SyntheticText { vocabulary_size: 0, ..sizes },
            SyntheticText { sequence_length: 1, ..sizes },
        ] {
            assert!(PretrainingSet::synthetic(wrong).is_err(), "{wrong:?}");
        }
    }
}
