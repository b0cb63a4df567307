//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

/// Factors of the first and the third word in a round.
pub const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by from round to round.
pub const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

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

fn words(seed: u64, step: u32, stream: u32, block_index: u64) -> [u32; 4] {
    let counter = [block_index as u32, (block_index >> 32) as u32, step, stream];
    block(counter, [seed as u32, (seed >> 32) as u32])
}

/// Uniform number in `[0, 1)` with 24 random bits.
fn unit(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Element `index` of the uniform stream: in `[0, 1)`.
pub fn uniform(seed: u64, step: u32, stream: u32, index: u64) -> f32 {
    unit(words(seed, step, stream, index / 4)[(index % 4) as usize])
}

/// Element `index` of the standard normal stream (Box-Muller).
pub fn normal(seed: u64, step: u32, stream: u32, index: u64) -> f32 {
    let w = words(seed, step, stream, index / 4);
    let pair = (index % 4 / 2) as usize * 2;
    let radius = (-2.0 * (1.0 - f64::from(unit(w[pair]))).ln()).sqrt();
    let angle = std::f64::consts::TAU * f64::from(unit(w[pair + 1]));
    (radius * if index.is_multiple_of(2) { angle.cos() } else { angle.sin() }) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution.
    #[test]
    fn known_answers() {
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn moments_of_the_streams() {
        let n = 40_000u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| f64::from(uniform(7, 1, 2, i))) - 0.5).abs() < 0.01);
        assert!(mean(&|i| f64::from(normal(7, 1, 2, i))).abs() < 0.02);
        assert!((mean(&|i| f64::from(normal(7, 1, 2, i)).powi(2)) - 1.0).abs() < 0.03);
    }
}
