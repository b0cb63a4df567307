use crate::text::folder::Format;
use crate::text::instance::{check_length, check_masked, check_share};
use crate::text::maker::{ExampleShape, Maker};
use crate::text::sequence::Sequence;
use crate::text::store::TokenStore;
use crate::text::{InstanceOptions, SyntheticText, Vocabulary};
use crate::{DataError, Philox};

use super::masking::Masking;
use super::segments::{Run, SegmentLength};

/// How sequences to pre-train ELECTRA on are made from documents, and masked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElectraOptions {
    /// Tokens of a sequence, special ones included.
    pub sequence_length: usize,
    /// Share of the tokens of a sequence to predict.
    pub masked_lm_probability: f64,
    /// Share of sequences that aim at a random shorter length.
    pub short_sequence_probability: f64,
    /// Share of sequences that are to have one segment.
    pub single_segment_probability: f64,
    /// Whether a sequence predicts a position once at most; as published, positions are drawn independently, and some
    /// come twice.
    pub distinct: bool,
}

impl Default for ElectraOptions {
    /// Those of the first phase: 128 tokens, 19 predictions.
    fn default() -> Self {
        Self {
            sequence_length: 128,
            masked_lm_probability: 0.15,
            short_sequence_probability: 0.05,
            single_segment_probability: 0.1,
            distinct: false,
        }
    }
}

impl ElectraOptions {
    /// Most tokens of a sequence to predict, `int((masked_lm_probability + 0.005) * sequence_length)`, at least one.
    pub fn predictions(&self) -> usize {
        (((self.masked_lm_probability + 0.005) * self.sequence_length as f64) as usize).max(1)
    }

    /// Errors: a setting out of its range.
    pub fn check(&self) -> Result<(), DataError> {
        check_length(self.sequence_length)?;
        check_masked(self.masked_lm_probability)?;
        check_share("short-sequence probability", self.short_sequence_probability)?;
        check_share("single-segment probability", self.single_segment_probability)
    }

    pub(crate) fn masking(&self) -> Masking {
        Masking { probability: self.masked_lm_probability, most: self.predictions(), distinct: self.distinct }
    }

    fn length(&self) -> SegmentLength {
        SegmentLength {
            most: self.sequence_length as u32,
            short_probability: self.short_sequence_probability,
            single_probability: self.single_segment_probability,
        }
    }
}

impl Maker for ElectraOptions {
    type Plan = Run;
    type Made = Sequence;
    const RECORDS: Format = Format::ElectraTfrecord;
    const LEAST_DOCUMENTS: (u32, &'static str) = (1, "at least 1 in each split");

    /// Token shards are prepared for BERT as well, whose share of short sequences is another one.
    fn prepared(format: Format, instances: &InstanceOptions) -> Self {
        let default = Self { sequence_length: instances.sequence_length, ..Self::default() };
        match format {
            Format::Shards | Format::Tfrecord => default,
            Format::ElectraTfrecord => {
                Self { short_sequence_probability: instances.short_sequence_probability, ..default }
            }
        }
    }

    fn check(&self) -> Result<(), DataError> {
        self.check()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { sequence_length: self.sequence_length, predictions: 0 }
    }

    fn identity(&self) -> String {
        let Self { sequence_length, short_sequence_probability, single_segment_probability, .. } = self;
        format!("sequence={sequence_length}:short={short_sequence_probability}:single={single_segment_probability}")
    }

    fn cut(&self, store: &TokenStore, document: u32, rng: &mut Philox, each: impl FnMut(usize, Run)) {
        self.length().cut_document(store, document, rng, each);
    }

    fn plan(&self, store: &TokenStore, document: u32, sentence: usize, rng: &mut Philox) -> Run {
        self.length().run_at(store, document, sentence, rng)
    }

    fn make(
        &self,
        store: &TokenStore,
        run: &Run,
        vocabulary: &Vocabulary,
        rng: &mut Philox,
    ) -> Result<Sequence, DataError> {
        let segments = self.length().segments(store, run, rng);
        Sequence::read(store, &segments.first, &segments.second, vocabulary.specials())
    }

    fn synthetic(text: &SyntheticText, index: usize) -> Sequence {
        text.sequence(index)
    }
}
