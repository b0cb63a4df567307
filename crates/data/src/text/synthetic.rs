use super::Instance;
use super::maker::ExampleShape;
use super::sequence::Sequence;
use crate::{DataError, Philox, Purpose};

/// Instances of random tokens, all of full length. There is nothing to learn: they are for measuring speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticText {
    /// Number of instances.
    pub len: usize,
    /// Tokens of each.
    pub sequence_length: usize,
    /// Tokens of each to predict, fewer than all.
    pub predictions: usize,
    /// Ids are below it.
    pub vocabulary_size: usize,
    /// Seed of the random tokens.
    pub seed: u64,
}

impl SyntheticText {
    /// Errors: a size out of its range.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        let Self { len, sequence_length, predictions, vocabulary_size, .. } = *self;
        let at_least = |name, value: usize, least: usize| match value >= least {
            true => Ok(()),
            false => Err(DataError::option(name, value, format!("at least {least}"))),
        };
        at_least("instances", len, 1)?;
        at_least("sequence length", sequence_length, 2)?;
        at_least("vocabulary size", vocabulary_size, 1)?;
        match (1..sequence_length).contains(&predictions) {
            true => Ok(()),
            false => Err(DataError::option("predictions", predictions, format!("1 to {}", sequence_length - 1))),
        }
    }

    pub(crate) fn shape(&self) -> ExampleShape {
        ExampleShape { sequence_length: self.sequence_length, predictions: self.predictions }
    }

    /// Two segments of one length, and the rest of their random numbers.
    fn draw(&self, index: usize) -> (Sequence, Philox) {
        let mut rng = Purpose::Synthetic.stream(self.seed, 0, index as u64);
        let tokens = (0..self.sequence_length).map(|_| rng.below(self.vocabulary_size as u32)).collect();
        let segment = |position| u8::from(position >= self.sequence_length / 2);
        (Sequence { tokens, segments: (0..self.sequence_length).map(segment).collect() }, rng)
    }

    pub(crate) fn sequence(&self, index: usize) -> Sequence {
        self.draw(index).0
    }

    pub(crate) fn instance(&self, index: usize) -> Instance {
        let (Sequence { tokens, segments }, mut rng) = self.draw(index);
        let position = |number: usize| (1 + number * (self.sequence_length - 1) / self.predictions) as u32;
        let masked = (0..self.predictions).map(|number| (position(number), rng.below(self.vocabulary_size as u32)));
        let masked = masked.collect();
        Instance { tokens, segments, masked, random_next: rng.chance(0.5) }
    }

    pub(crate) fn identity(&self) -> String {
        let Self { len, sequence_length, predictions, vocabulary_size, seed } = self;
        format!(
            "synthetic-text:seed={seed}:len={len}:sequence={sequence_length}:predictions={predictions}\
             :vocabulary={vocabulary_size}"
        )
    }
}
