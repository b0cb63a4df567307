//! Counter-based random numbers: the same for a sample whichever worker draws them, and whatever was drawn before.

/// What a stream of random numbers is for. Streams of different purposes never share numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    Shuffle = 1,
    Augment = 2,
    Shapes = 3,
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

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
///
/// A stream is named by (seed, purpose, epoch, index) and holds 2^32 blocks of four words.
#[derive(Debug, Clone)]
pub struct Philox {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Philox {
    /// The stream of sample `index` in `epoch`. `index` must be below 2^56.
    pub fn new(seed: u64, purpose: Purpose, epoch: u32, index: u64) -> Self {
        debug_assert!(index >> 56 == 0);
        let high = ((index >> 32) as u32) << 8 | purpose as u32;
        Self { key: split(seed), counter: [0, index as u32, epoch, high], block: [0; 4], used: 4 }
    }

    /// Uniform over all 32-bit words.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32_10(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.used = 0;
        }
        let word = self.block[self.used];
        self.used += 1;
        word
    }

    /// Uniform over all 64-bit words.
    pub fn next_u64(&mut self) -> u64 {
        u64::from(self.next_u32()) | u64::from(self.next_u32()) << 32
    }

    /// Uniform in [0, 1) with 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next_f64()
    }

    /// Uniform in 0..bound without bias (Lemire, "Fast random integer generation in an interval", 2019).
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        assert!(bound > 0, "a random number below 0 was asked for");
        let rejected_below = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= rejected_below {
                return (product >> 32) as u32;
            }
        }
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.next_f64() < probability
    }

    /// Fills `out` with uniform bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(4) {
            chunk.copy_from_slice(&self.next_u32().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Uniform permutation of `items` (Fisher-Yates).
    ///
    /// # Panics
    /// If there are 2^32 items or more.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        assert!(u32::try_from(items.len()).is_ok(), "too many items to shuffle");
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

fn split(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let [low0, high0] = split(u64::from(MULTIPLIERS[0]) * u64::from(counter[0]));
        let [low1, high1] = split(u64::from(MULTIPLIERS[1]) * u64::from(counter[2]));
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 library, `tests/kat_vectors`.
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32_10([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32_10([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32_10([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn streams_differ_in_every_part_of_their_name() {
        let first = |mut rng: Philox| rng.next_u64();
        let streams = [
            Philox::new(1, Purpose::Augment, 2, 3),
            Philox::new(1 << 32, Purpose::Augment, 2, 3),
            Philox::new(2, Purpose::Augment, 2, 3),
            Philox::new(1, Purpose::Shuffle, 2, 3),
            Philox::new(1, Purpose::Augment, 3, 3),
            Philox::new(1, Purpose::Augment, 2, 4),
            Philox::new(1, Purpose::Augment, 2, 3 + (1 << 32)),
        ];
        let mut words: Vec<u64> = streams.into_iter().map(first).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 7);
    }

    #[test]
    fn below_is_uniform_and_bounded() {
        let mut rng = Philox::new(7, Purpose::Augment, 0, 0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn floats_fill_the_unit_interval() {
        let mut rng = Philox::new(7, Purpose::Augment, 0, 1);
        let values: Vec<f64> = (0..10_000).map(|_| rng.next_f64()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn shuffle_permutes() {
        let mut items: Vec<u32> = (0..100).collect();
        Philox::new(7, Purpose::Shuffle, 0, 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
