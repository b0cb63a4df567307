//! The products of a pass, one for each position.

use std::ops::Range;

use super::plan::{InputLayout, MAX_TILES, Problem};
use super::points::POSITIONS;
use crate::gemm::{ALayout, MAX_PANEL, MemoryBlock, OperandRows, Prefetch, TileLoop, panel};
use crate::simd::{Simd, SimdOp};

/// Multiplies the transformed input of some tiles with some columns of the transformed weights.
pub(super) struct Multiply<'a> {
    pub problem: &'a Problem,
    pub layout: &'a InputLayout,
    pub tiles: usize,
    /// Starts at a panel.
    pub cols: Range<usize>,
    pub input: *const f32,
    pub weights: *const f32,
    /// `[positions, tiles, columns]`, whole panels of columns, with this distance of positions.
    pub products: *mut f32,
    pub position_stride: usize,
}

/// Elements of a row of products of some columns.
pub(super) fn products_row(cols: &Range<usize>) -> usize {
    cols.len().next_multiple_of(MAX_PANEL)
}

impl SimdOp for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Problem { channels, .. } = *self.problem;
        let mut rows = [0; MAX_TILES];
        for (tile, row) in rows.iter_mut().enumerate() {
            *row = tile * products_row(&self.cols);
        }
        let weights = |chunk: usize, position: usize| {
            let start = position * self.problem.weights_stride() + self.cols.start * channels;
            self.weights.wrapping_add(start + chunk * self.layout.chunks.rows * panel::<S>())
        };
        let mut prefetch = Prefetch::new([MemoryBlock::EMPTY; 2]);
        for position in 0..POSITIONS {
            for chunk in 0..self.layout.chunks.count {
                let last = chunk + 1 == self.layout.chunks.count;
                // SAFETY: the promises made for these tiles and columns; whole panels of products fit their rows.
                unsafe {
                    let tile_loop = TileLoop {
                        layout: ALayout::Rows,
                        depth: self.layout.chunks.range(chunk, channels).len(),
                        a: OperandRows::packed(self.input.add(self.layout.offset(chunk, position))),
                        a_tile: 0,
                        b: weights(chunk, position),
                        b_panel: channels * panel::<S>(),
                        cols: self.cols.len().next_multiple_of(panel::<S>()),
                        c: self.products.add(position * self.position_stride),
                        c_rows: &rows[..self.tiles],
                        accumulate: chunk > 0,
                        stream_b: true,
                        b_next: if last { weights(0, position + 1) } else { weights(chunk + 1, position) },
                    };
                    tile_loop.run::<S>(&mut prefetch);
                }
            }
        }
    }
}
