//! The transform of the products to output pixels.

use std::ops::Range;

use super::plan::Problem;
use super::points::{self, INPUTS, OUTPUTS};
use crate::gemm::LINE;
use crate::simd::{Simd, SimdOp};

/// Transforms some columns of some tiles.
pub(super) struct TransformOutput<'a> {
    pub problem: &'a Problem,
    pub tiles: Range<usize>,
    pub cols: Range<usize>,
    /// `[positions, tiles, columns]`, with distances of positions and of tiles.
    pub products: *const f32,
    pub position_stride: usize,
    pub tile_stride: usize,
    pub dst: *mut f32,
}

impl SimdOp for TransformOutput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for (i, tile) in self.tiles.clone().enumerate() {
            // SAFETY: the promises made for these tiles.
            unsafe { self.tile::<S>(tile, self.products.add(i * self.tile_stride)) };
        }
    }
}

impl TransformOutput<'_> {
    /// The first of the columns at an image, a line and a pixel.
    #[inline(always)]
    fn pixel(&self, (image, y, x): (usize, usize, usize)) -> *mut f32 {
        let Problem { output: [height, width], cols, .. } = *self.problem;
        self.dst.wrapping_add(((image * height + y) * width + x) * cols + self.cols.start)
    }

    /// Transforms a tile, and prefetches the memory of the next one.
    ///
    /// # Safety
    /// The output has the tile's pixels, and this task writes them. Called under `S::run_op`.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, tile: usize, products: *const f32) {
        let Problem { output: [height, width], cols, .. } = *self.problem;
        let (image, y, x) = self.problem.tile(tile);
        let place = TileOrigin { size: [OUTPUTS.min(height - y), OUTPUTS.min(width - x)], pitch: [width * cols, cols] };
        let next = self.pixel(self.problem.tile(tile + 1));
        // SAFETY: the caller's promises; products are whole vectors.
        unsafe {
            let dst = self.pixel((image, y, x));
            for c in (0..self.cols.len()).step_by(S::LANES) {
                let left = self.cols.len() - c;
                if c % LINE == 0 {
                    for i in 0..OUTPUTS * OUTPUTS {
                        let offset = i / OUTPUTS * place.pitch[0] + i % OUTPUTS * place.pitch[1];
                        S::prefetch_write(next.wrapping_add(offset + c));
                    }
                }
                transform_vector::<S>(Vector {
                    products: products.add(c),
                    stride: self.position_stride,
                    dst: dst.add(c),
                    place: &place,
                    left,
                });
            }
        }
    }
}

/// Where the pixels of a tile go.
struct TileOrigin {
    /// Lines, and pixels of a line, inside the image.
    size: [usize; 2],
    /// Distances of lines and of pixels.
    pitch: [usize; 2],
}

/// A vector of columns of a tile.
struct Vector<'a> {
    products: *const f32,
    /// Distance of positions.
    stride: usize,
    dst: *mut f32,
    place: &'a TileOrigin,
    /// Columns from the first one of the vector on.
    left: usize,
}

/// Transforms a vector of columns. A function of its own, because inlined into the loop over columns it keeps an
/// address for each of its loads and stores.
///
/// # Safety
/// The products are there, `dst` has room for the columns, and the machine has `S`.
#[inline(never)]
unsafe fn transform_vector<S: Simd>(vector: Vector<'_>) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(vector) }
}

impl SimdOp for Vector<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the promises of `transform_vector`.
        unsafe {
            let mut columns = [[S::splat(0.0); OUTPUTS]; INPUTS];
            for j in 0..INPUTS {
                let mut column = [S::splat(0.0); INPUTS];
                for i in 0..INPUTS {
                    column[i] = S::load(self.products.wrapping_add((i * INPUTS + j) * self.stride));
                }
                columns[j] = points::output::<S>(column);
            }
            let mut pixels = [[S::splat(0.0); OUTPUTS]; OUTPUTS];
            for i in 0..OUTPUTS {
                let mut line = [S::splat(0.0); INPUTS];
                for j in 0..INPUTS {
                    line[j] = columns[j][i];
                }
                pixels[i] = points::output::<S>(line);
            }
            if self.left < S::LANES {
                store_some::<S>(&pixels, self.dst, self.place, self.left);
            } else if self.place.size == [OUTPUTS; 2] {
                store::<S>(&pixels, self.dst, self.place.pitch, [OUTPUTS; 2]);
            } else {
                store::<S>(&pixels, self.dst, self.place.pitch, self.place.size);
            }
        }
    }
}

/// Stores the first `size` lines and pixels, which are `pitch` apart.
///
/// # Safety
/// `dst` has room for them. Called under `S::run_op`.
#[inline(always)]
unsafe fn store<S: Simd>(pixels: &[[S::V; OUTPUTS]; OUTPUTS], dst: *mut f32, pitch: [usize; 2], size: [usize; 2]) {
    for (i, line) in pixels.iter().enumerate().take(size[0]) {
        for (j, &pixel) in line.iter().enumerate().take(size[1]) {
            // SAFETY: the caller's promise.
            unsafe { S::store(dst.add(i * pitch[0] + j * pitch[1]), pixel) };
        }
    }
}

/// Stores the first `len` lanes of the pixels inside the image.
///
/// # Safety
/// As for [`store`].
#[inline(always)]
unsafe fn store_some<S: Simd>(pixels: &[[S::V; OUTPUTS]; OUTPUTS], dst: *mut f32, place: &TileOrigin, len: usize) {
    for (i, line) in pixels.iter().enumerate().take(place.size[0]) {
        for (j, &pixel) in line.iter().enumerate().take(place.size[1]) {
            let mut buffer = [0.0; LINE];
            // SAFETY: the caller's promise; the buffer holds a vector.
            unsafe {
                S::store(buffer.as_mut_ptr(), pixel);
                S::copy(buffer.as_ptr(), dst.add(i * place.pitch[0] + j * place.pitch[1]), len);
            }
        }
    }
}
