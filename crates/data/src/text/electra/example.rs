//! Sequences as `tf.train.Example` messages with the features of Google's ELECTRA.

use crate::text::example::POSITIONS;
use crate::text::features::{self, INPUT_IDS};
use crate::text::maker::{ExampleShape, Record};
use crate::text::sequence::Sequence;
use crate::tf_example::{self, Features, Flaw, flaw};

impl Record for Sequence {
    const EXPECTED: &'static str = "the three features of ELECTRA's pre-training";

    fn shape(payload: &[u8]) -> Result<ExampleShape, Flaw> {
        let mut features = Features::parse(payload, Self::EXPECTED)?;
        Ok(ExampleShape { sequence_length: features.ints(&INPUT_IDS)?.len(), predictions: 0 })
    }

    /// There must be a token, and no masks: these would be of BERT, and in the tokens already.
    fn decode(payload: &[u8], shape: ExampleShape, vocabulary_size: usize) -> Result<Self, Flaw> {
        let mut features = Features::parse(payload, Self::EXPECTED)?;
        if features.has(POSITIONS[0]) {
            return Err(flaw(format!("feature `{}`: words are masked already", POSITIONS[0]), Self::EXPECTED));
        }
        let sequence = features.sequence(shape.sequence_length, vocabulary_size)?;
        match sequence.tokens.is_empty() {
            true => Err(flaw("`input_mask` has no ones", "one or more")),
            false => Ok(sequence),
        }
    }

    fn encode(&self, shape: ExampleShape) -> Vec<u8> {
        tf_example::encode(features::of_sequence(&self.tokens, &self.segments, shape.sequence_length))
    }

    fn words(&self) -> impl Iterator<Item = u32> {
        self.tokens.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::features::integers;
    use crate::tf_example::encode;
    use crate::tf_example::proto::{FloatList, Kind};

    const SHAPE: ExampleShape = ExampleShape { sequence_length: 8, predictions: 0 };
    const NAMES: [&str; 3] = ["input_ids", "input_mask", "segment_ids"];

    fn sequence() -> Sequence {
        Sequence { tokens: vec![2, 6, 3, 300, 3], segments: vec![0, 0, 0, 1, 1] }
    }

    /// The message of the sequence with one feature changed, or without it.
    fn changed(name: &'static str, kind: Option<Kind>) -> Vec<u8> {
        let Sequence { tokens, segments } = sequence();
        let kept = features::of_sequence(&tokens, &segments, 8).into_iter().filter(|(kept, _)| *kept != name);
        encode(kept.chain(kind.map(|kind| (name, kind))))
    }

    fn ints(values: &[i64]) -> Option<Kind> {
        Some(integers(values.iter().copied(), values.len()))
    }

    #[test]
    fn sequences_come_back() {
        let payload = sequence().encode(SHAPE);
        assert_eq!(Sequence::shape(&payload), Ok(SHAPE));
        assert_eq!(Sequence::decode(&payload, SHAPE, 301), Ok(sequence()));
        let mut found = Features::parse(&payload, "").unwrap();
        assert_eq!(found.ints(&[NAMES[0]]), Ok(vec![2, 6, 3, 300, 3, 0, 0, 0]));
        assert_eq!(found.ints(&[NAMES[1]]), Ok(vec![1, 1, 1, 1, 1, 0, 0, 0]));
        assert_eq!(found.ints(&[NAMES[2]]), Ok(vec![0, 0, 0, 1, 1, 0, 0, 0]));
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        let check = |payload: &[u8], expected: &str| {
            let found = Sequence::decode(payload, SHAPE, 301).unwrap_err().problem;
            assert!(found.contains(expected), "{found}");
        };
        for name in NAMES {
            check(&changed(name, None), &format!("no feature `{name}`"));
            check(&changed(name, ints(&[1; 7])), &format!("`{name}` has 7 values"));
            check(&changed(name, ints(&[-1; 8])), &format!("`{name}` has -1"));
            let floats = Kind::Float(FloatList { value: vec![1.0; 8] });
            check(&changed(name, Some(floats)), &format!("`{name}` is no list of integers"));
        }
        check(&changed("input_ids", ints(&[301; 8])), "`input_ids` has 301");
        check(&changed("segment_ids", ints(&[2; 8])), "`segment_ids` has 2");
        check(&changed("input_mask", ints(&[1, 0, 1, 0, 0, 0, 0, 0])), "other values than ones, then zeros");
        check(&changed("input_mask", ints(&[0; 8])), "`input_mask` has no ones");
        check(&changed("masked_lm_positions", ints(&[1])), "words are masked already");
        check(b"\xff\xff\xff", "not a tf.train.Example: ");
    }
}
