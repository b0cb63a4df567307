use super::Instance;
use crate::{Philox, Purpose};

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
    pub seed: u64,
}

impl SyntheticText {
    pub(crate) fn instance(&self, index: usize) -> Instance {
        let mut rng = Philox::new(self.seed, Purpose::Synthetic, 0, index as u64);
        let (length, vocabulary) = (self.sequence_length, self.vocabulary_size as u32);
        let tokens = (0..length).map(|_| rng.below(vocabulary)).collect();
        let segments = (0..length).map(|position| u8::from(position >= length / 2)).collect();
        let position = |number: usize| (1 + number * (length - 1) / self.predictions) as u32;
        let masked = (0..self.predictions).map(|number| (position(number), rng.below(vocabulary))).collect();
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
