//! Random numbers in sequence.

use crate::{below, block};

/// A sequence of 2^32 blocks of four words, of which nothing but its key and its name decide.
#[derive(Debug, Clone)]
pub struct Stream {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Stream {
    /// The stream of a key with this name: the last three words of the counter.
    pub fn new(key: [u32; 2], name: [u32; 3]) -> Self {
        let [a, b, c] = name;
        Self { key, counter: [0, a, b, c], block: [0; 4], used: 4 }
    }

    /// Uniform over all 32-bit words.
    pub fn next_u32(&mut self) -> u32 {
        if self.used == 4 {
            self.block = block(self.counter, self.key);
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

    /// Uniform in `[0, 1)` with 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next_f64()
    }

    /// Uniform in `0..bound` without bias.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u32) -> u32 {
        below(bound, || self.next_u32())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(name: u32) -> Stream {
        Stream::new([7, 0], [name, 0, 2])
    }

    #[test]
    fn streams_differ_in_every_part_of_their_name() {
        let streams = [
            Stream::new([1, 0], [3, 2, 1]),
            Stream::new([0, 1], [3, 2, 1]),
            Stream::new([2, 0], [3, 2, 1]),
            Stream::new([1, 0], [4, 2, 1]),
            Stream::new([1, 0], [3, 3, 1]),
            Stream::new([1, 0], [3, 2, 2]),
        ];
        let mut words: Vec<u64> = streams.into_iter().map(|mut stream| stream.next_u64()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 6);
    }

    #[test]
    fn below_is_uniform_and_bounded() {
        let mut rng = stream(0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[rng.below(6) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn floats_fill_the_unit_interval() {
        let mut rng = stream(1);
        let values: Vec<f64> = (0..10_000).map(|_| rng.next_f64()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }

    #[test]
    fn shuffle_permutes() {
        let mut items: Vec<u32> = (0..100).collect();
        stream(0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
