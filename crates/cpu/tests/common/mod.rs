//! Random numbers and an epilogue that counts, for the kernel tests.

pub(crate) mod convolution;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use bessemer_cpu::gemm::{Epilogue, RowBlocks};

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// Numbers in -1..1.
    pub(crate) fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }
}

/// Counts how often each element of an output is delivered, and checks the row blocks.
pub(crate) struct Coverage {
    counts: Vec<AtomicU32>,
    rows: usize,
    columns: usize,
    blocks: RowBlocks,
}

impl Coverage {
    pub(crate) fn new(rows: usize, columns: usize, blocks: RowBlocks) -> Coverage {
        Coverage { counts: (0..rows * columns).map(|_| AtomicU32::new(0)).collect(), rows, columns, blocks }
    }

    pub(crate) fn assert_once(&self) {
        assert!(self.counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}

impl Epilogue for Coverage {
    fn block(&self, _worker: usize, block: usize, rows: Range<usize>, cols: Range<usize>) {
        assert!(block < self.blocks.count, "block {block} of {}", self.blocks.count);
        assert!(rows.end <= self.rows && rows.len() <= self.blocks.rows, "rows {rows:?}");
        assert!(
            cols.start.is_multiple_of(16) && (cols.end.is_multiple_of(16) || cols.end == self.columns),
            "cols {cols:?}"
        );
        for row in rows {
            for col in cols.clone() {
                self.counts[row * self.columns + col].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Asserts that `got` is `expected` up to the rounding of sums of `terms` products of numbers below 1.
pub(crate) fn assert_close(got: &[f32], expected: &[f64], terms: usize, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let tolerance = 1e-6 * (terms as f64).sqrt().max(1.0) * 4.0;
    for (i, (&x, &y)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(x) - y).abs() <= tolerance, "{what}: element {i} is {x}, expected {y}");
    }
}
