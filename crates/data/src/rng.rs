//! Streams of random numbers: the same for a sample whichever worker draws them, and whatever was drawn before.

use bessemer_philox::halves;

pub use bessemer_philox::Stream as Philox;

/// What a stream of random numbers is for. Streams of different purposes never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Order of the samples of an epoch.
    Shuffle = 1,
    /// Random parts, mirrors and masks of a sample.
    Augment = 2,
    /// Drawn pictures.
    Shapes = 3,
    /// Samples without files.
    Synthetic = 4,
    /// Where sequences of text begin, and static ones.
    Pairs = 5,
    /// What is drawn about static sequences once they are cut.
    Masks = 6,
    /// Sequences of text, and masks of pairs, made when they are asked for.
    Instances = 7,
    /// Which tokens of sequences for ELECTRA are to be predicted.
    Predictions = 8,
}

impl Purpose {
    /// The stream of sample `index` in `epoch`. `index` must be below 2^56.
    pub fn stream(self, seed: u64, epoch: u32, index: u64) -> Philox {
        debug_assert!(index >> 56 == 0);
        let [low, high] = halves(index);
        Philox::new(halves(seed), [low, epoch, high << 8 | self as u32])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_in_every_part_of_their_name() {
        let streams = [
            Purpose::Augment.stream(1, 2, 3),
            Purpose::Augment.stream(1 << 32, 2, 3),
            Purpose::Augment.stream(2, 2, 3),
            Purpose::Shuffle.stream(1, 2, 3),
            Purpose::Augment.stream(1, 3, 3),
            Purpose::Augment.stream(1, 2, 4),
            Purpose::Augment.stream(1, 2, 3 + (1 << 32)),
        ];
        let mut words: Vec<u64> = streams.into_iter().map(|mut stream| stream.next_u64()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 7);
    }
}
