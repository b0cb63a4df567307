use std::fmt;
use std::path::Path;

use super::folder::{Manifest, drawn_with};
use super::source::Source;
use super::{Instance, InstanceOptions, SyntheticText};
use crate::{DataError, Split};

/// Instances to pre-train BERT on: made once, in TFRecord files, or on the fly from token shards.
pub struct PretrainingSet {
    source: Source<InstanceOptions>,
}

impl fmt::Debug for PretrainingSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PretrainingSet").field("identity", &self.identity()).field("len", &self.len()).finish()
    }
}

impl PretrainingSet {
    /// Opens a split of a folder that [`prepare`](super::prepare) made.
    ///
    /// Shards are made into instances by `options`, or as was asked for at preparation. Those to train on are drawn
    /// with `seed`; those to evaluate on with the seed of the preparation, so that all runs see the same. TFRecord
    /// files hold their instances: `options`, if given, must name their lengths, and `seed` is not used.
    ///
    /// Errors: no such folder or split; a preparation that was not completed; records for another model; damaged
    /// files; lengths that do not fit.
    pub fn open(folder: &Path, split: Split, options: Option<InstanceOptions>, seed: u64) -> Result<Self, DataError> {
        let manifest = Manifest::open(folder)?;
        let seed = drawn_with(&manifest, split, seed);
        Ok(Self { source: Source::prepared(folder, &manifest, split, options, seed)? })
    }

    /// Opens TFRecord files of another origin, such as those of Google's `create_pretraining_data.py`: all files of a
    /// folder whose names contain `tfrecord`, in the order of their names. The first record decides the lengths.
    ///
    /// Errors: no such folder or files; damaged files; a first record that is no instance.
    pub fn open_records(folder: &Path, vocabulary_size: usize) -> Result<Self, DataError> {
        Ok(Self { source: Source::records(folder, vocabulary_size, None, None)? })
    }

    /// Random tokens, to measure speed.
    ///
    /// Errors: a size out of its range.
    pub fn synthetic(synthetic: SyntheticText) -> Result<Self, DataError> {
        Ok(Self { source: Source::synthetic(synthetic)? })
    }

    /// Number of instances of an epoch.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether there is no instance.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of a padded sequence, `S`.
    pub fn sequence_length(&self) -> usize {
        self.source.shape().sequence_length
    }

    /// Most tokens of a sequence to predict, `P`.
    pub fn predictions(&self) -> usize {
        self.source.shape().predictions
    }

    /// Whether sequences and their masks are made again in each epoch.
    pub fn is_made_anew(&self) -> bool {
        self.source.is_made_anew()
    }

    /// Ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.source.vocabulary_size()
    }

    /// A name that changes when the instances change.
    pub fn identity(&self) -> String {
        self.source.identity()
    }

    /// Instance `index` of an epoch, whatever was asked for before.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn instance(&self, epoch: u32, index: usize) -> Result<Instance, DataError> {
        self.source.sequence(epoch, index)
    }

    /// Entropy, in nats, of the distribution of the tokens to predict: the loss of a model that knows how frequent each
    /// token is and nothing else. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn unigram_entropy(&self, threads: usize) -> Result<f64, DataError> {
        self.source.unigram_entropy(threads)
    }

    /// How often each token is to be predicted, by its number in the vocabulary; for shards, how often it comes, as each
    /// is as likely to be masked. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn word_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        self.source.word_counts(threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
