//! What several tests share.

#![allow(dead_code, unreachable_pub, reason = "no test needs all of it")]

use bessemer_comm::reduce::{Reduction, Wire};
use bessemer_philox::{Stream, halves};

/// Elements of a rank: any bits of finite numbers, zeros of both signs, infinities, NaN.
pub fn elements(seed: u64, rank: usize, length: usize) -> Vec<f32> {
    let mut stream = Stream::new(halves(seed), [rank as u32, 1, 0]);
    let mut element = || match stream.below(8) {
        0 => 0.0,
        1 | 2 => -0.0,
        3 => [f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, -1e-40, f32::NAN][stream.below(5) as usize],
        4 => Some(f32::from_bits(stream.next_u32())).filter(|value| value.is_finite()).unwrap_or(-0.0),
        _ => stream.uniform(-4.0, 4.0) as f32,
    };
    (0..length).map(|_| element()).collect()
}

/// All-reduces under way at the same time: lengths, some below a chunk, some of several megabytes.
pub const BUCKETS: [(usize, Wire, Reduction); 8] = [
    (1, Wire::F32, Reduction::Sum),
    (0, Wire::F32, Reduction::Sum),
    (63, Wire::Bf16, Reduction::Sum),
    (257, Wire::F16, Reduction::Sum),
    (1000, Wire::F32, Reduction::Max),
    (70_001, Wire::Bf16, Reduction::Sum),
    (200_000, Wire::F32, Reduction::Sum),
    (1_500_000, Wire::F32, Reduction::Sum),
];

/// FNV-1a of the bits.
pub fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
