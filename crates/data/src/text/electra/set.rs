use std::fmt;
use std::path::Path;

use crate::text::folder::{Manifest, drawn_with};
use crate::text::maker::Maker;
use crate::text::sequence::Sequence;
use crate::text::source::Source;
use crate::text::{SyntheticText, Vocabulary};
use crate::{DataError, Purpose, Split};

use super::masking::Masking;
use super::{ElectraInstance, ElectraOptions};

/// Sequences to pre-train ELECTRA on: from TFRecord files, or made on the fly from token shards. Masks are drawn again in
/// each epoch in either case.
pub struct ElectraSet {
    source: Source<ElectraOptions>,
    masking: Masking,
    /// Masks are drawn with it.
    seed: u64,
}

impl fmt::Debug for ElectraSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElectraSet").field("identity", &self.identity()).field("len", &self.len()).finish()
    }
}

impl ElectraSet {
    /// Opens a split of a folder that [`prepare`](crate::text::prepare) made: token shards, or records for ELECTRA.
    ///
    /// Without `options`, sequences have the length that was asked for at preparation. What is drawn to train is drawn
    /// with `seed`, and what is drawn to evaluate with the seed of the preparation, so that all runs see the same. Of
    /// records, segments are fixed: `options` must name their length, and say how to mask.
    ///
    /// Errors: no such folder or split; a preparation that was not completed; records for another model; damaged
    /// files; a length that does not fit; options out of range.
    pub fn open(folder: &Path, split: Split, options: Option<ElectraOptions>, seed: u64) -> Result<Self, DataError> {
        let manifest = Manifest::open(folder)?;
        let options = options.unwrap_or(ElectraOptions::prepared(manifest.format, &manifest.options.instances));
        options.check()?;
        let seed = drawn_with(&manifest, split, seed);
        let source = Source::prepared(folder, &manifest, split, Some(options), seed)?;
        Ok(Self { source, masking: options.masking(), seed })
    }

    /// Opens TFRecord files of another origin, such as those of Google's `build_pretraining_dataset.py`: all files of a
    /// folder whose names contain `tfrecord`, in the order of their names. `options` names the length of the records,
    /// and says how to mask.
    ///
    /// Errors: no such folder or files; damaged files; a first record that is no sequence of that length; options out
    /// of range.
    pub fn open_records(
        folder: &Path,
        vocabulary: &Vocabulary,
        options: ElectraOptions,
        seed: u64,
    ) -> Result<Self, DataError> {
        options.check()?;
        let source = Source::records(folder, vocabulary.len(), Some(vocabulary.specials()), Some(options))?;
        Ok(Self { source, masking: options.masking(), seed })
    }

    /// Random tokens, to measure speed: two segments of one length, 15 % of whose tokens are to be predicted, but not
    /// more than `synthetic.predictions`.
    ///
    /// Errors: a size out of its range.
    pub fn synthetic(synthetic: SyntheticText) -> Result<Self, DataError> {
        let source = Source::synthetic(synthetic)?;
        let masking = Masking { most: synthetic.predictions, ..ElectraOptions::default().masking() };
        Ok(Self { source, masking, seed: synthetic.seed })
    }

    /// Number of sequences of an epoch.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of a padded sequence, `S`.
    pub fn sequence_length(&self) -> usize {
        self.source.shape().sequence_length
    }

    /// Most tokens of a sequence to predict, `P`.
    pub fn predictions(&self) -> usize {
        self.masking.most
    }

    /// Ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.source.vocabulary_size()
    }

    /// A name that changes when the sequences or their masks change.
    pub fn identity(&self) -> String {
        let Masking { probability, most, distinct } = self.masking;
        let (source, seed) = (self.source.identity(), self.seed);
        format!("electra:{source}:mask-seed={seed}:masked={probability}:predictions={most}:distinct={distinct}")
    }

    /// Sequence `index` of an epoch, whatever was asked for before.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn instance(&self, epoch: u32, index: usize) -> Result<ElectraInstance, DataError> {
        let Sequence { tokens, segments } = self.source.sequence(epoch, index)?;
        let mut rng = Purpose::Predictions.stream(self.seed, epoch, index as u64);
        let predictions = self.masking.draw(&tokens, self.source.specials(), &mut rng);
        Ok(ElectraInstance { tokens, segments, predictions })
    }

    /// Entropy, in nats, of the distribution of the tokens that may be predicted: the loss of a generator that knows how
    /// frequent each token is and nothing else. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn unigram_entropy(&self, threads: usize) -> Result<f64, DataError> {
        self.source.unigram_entropy(threads)
    }

    /// How often each token comes that may be predicted, by its number in the vocabulary. Reads the whole set.
    ///
    /// Errors: data that cannot be read or is damaged.
    pub fn word_counts(&self, threads: usize) -> Result<Vec<u64>, DataError> {
        self.source.word_counts(threads)
    }
}
