//! Random numbers that are functions of a counter and a key: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
//! numbers: as easy as 1, 2, 3", SC '11). They are the same on every device, with any number of threads, and wherever a run is
//! resumed.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod stream;

pub use stream::Stream;

/// Factors of the first and the third word in a round.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by from round to round.
pub const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Rounds of a block.
pub const ROUNDS: usize = 10;

/// One block: four random words from a counter and a key.
pub fn block(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut c, mut k) = (counter, key);
    for round in 0..ROUNDS {
        if round > 0 {
            k = [k[0].wrapping_add(WEYL[0]), k[1].wrapping_add(WEYL[1])];
        }
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
        c = [(p1 >> 32) as u32 ^ c[1] ^ k[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ k[1], p0 as u32];
    }
    c
}

/// The low and the high half of a word of 64 bits, as a key of a seed.
pub fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

fn words(seed: u64, step: u32, stream: u32, block_index: u64) -> [u32; 4] {
    let [low, high] = halves(block_index);
    block([low, high, step, stream], halves(seed))
}

/// Element `index` of the stream of random words.
pub fn word(seed: u64, step: u32, stream: u32, index: u64) -> u32 {
    words(seed, step, stream, index / 4)[(index % 4) as usize]
}

/// Uniform number in `[0, 1)` with 24 random bits.
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Element `index` of the uniform stream: in `[0, 1)`.
pub fn uniform(seed: u64, step: u32, stream: u32, index: u64) -> f32 {
    unit(word(seed, step, stream, index))
}

/// Element `index` of the standard normal stream (Box-Muller).
pub fn normal(seed: u64, step: u32, stream: u32, index: u64) -> f32 {
    let w = words(seed, step, stream, index / 4);
    let pair = (index % 4 / 2) as usize * 2;
    let radius = (-2.0 * (1.0 - f64::from(unit(w[pair]))).ln()).sqrt();
    let angle = std::f64::consts::TAU * f64::from(unit(w[pair + 1]));
    (radius * if index.is_multiple_of(2) { angle.cos() } else { angle.sin() }) as f32
}

/// Uniform in `0..bound` without bias, from uniform words of 32 bits (Lemire 2019, "Fast random integer generation in an
/// interval").
///
/// # Panics
/// If `bound` is zero.
pub fn below(bound: u32, mut next_word: impl FnMut() -> u32) -> u32 {
    assert!(bound > 0, "a random number below 0 was asked for");
    let rejected_below = bound.wrapping_neg() % bound;
    loop {
        let product = u64::from(next_word()) * u64::from(bound);
        if product as u32 >= rejected_below {
            return (product >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 library, `tests/kat_vectors`.
    #[test]
    fn known_answers() {
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn moments_of_the_streams() {
        let n = 40_000u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| f64::from(uniform(7, 1, 2, i))) - 0.5).abs() < 0.01);
        assert!(mean(&|i| f64::from(normal(7, 1, 2, i))).abs() < 0.02);
        assert!((mean(&|i| f64::from(normal(7, 1, 2, i)).powi(2)) - 1.0).abs() < 0.03);
    }

    #[test]
    fn words_that_would_be_a_bias_are_rejected() {
        // 2^32 = 4 * (2^30 - 1) + 4: words whose product has a low half below 4 are left out.
        let bound = (1 << 30) - 1;
        let mut words = [0_u32, 1 << 31].into_iter();
        assert_eq!(below(bound, || words.next().expect("the second word is taken")), bound / 2);
        assert_eq!(below(1, || 0xFFFF_FFFF), 0);
    }
}
