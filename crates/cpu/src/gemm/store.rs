//! Simple epilogues of products: a bias, the sum with another tensor, ReLU, rounding. They run as soon as a tile of C is finished,
//! while it is in the first-level cache.

use super::tile::{LINE, MAX_PANEL};
use super::tile_loop::NO_ROW;
use crate::simd::Simd;
use bessemer_ir::DType;
use std::ops::Range;

/// `y[row, col] = relu(c[row, col] + bias[col] + (addend[row, col] + addend_bias[col]))`, of which any part but `c` may be
/// missing, written as `f32` or rounded to `bf16`. Matrices are dense, with the `n` columns of C, a multiple of
/// [`STORE_COLS`].
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// `[n]` elements that are added to every row of C; `None` adds nothing.
    pub bias: Option<*const f32>,
    /// `None` adds no matrix and no `addend_bias`.
    pub addend: Option<Addend>,
    /// Whether negative results become 0.
    pub relu: bool,
    /// `[m, n]` of `f32` or `bf16`. It may be the memory of C or of the addend, if elements are of one size.
    pub output: *mut u8,
    /// Element type of the output, `f32` or `bf16`.
    pub output_type: DType,
}

/// A matrix that is added to C.
#[derive(Clone, Copy, Debug)]
pub struct Addend {
    /// `[m, n]` of `f32` or `bf16`.
    pub elements: *const u8,
    /// Element type of the matrix.
    pub dtype: DType,
    /// The `addend_bias` of [`Store`], `[n]`; `None` adds nothing.
    pub bias: Option<*const f32>,
}

/// Columns of C come in multiples of this many where they are written by a [`Store`].
pub const STORE_COLS: usize = MAX_PANEL;

// SAFETY: plain addresses; the unsafe functions that follow them state what must hold.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

/// Some rows of a tile of C. Offsets in C are positions in the other matrices.
#[derive(Clone, Copy)]
pub(super) struct FinishedRows<'a> {
    /// Offset of each row; those of [`NO_ROW`] are not wanted.
    pub c_rows: &'a [usize],
    /// The columns: the first, and how many.
    pub col: usize,
    pub width: usize,
}

impl FinishedRows<'_> {
    /// The rows that are wanted, by number, with their offsets.
    #[inline(always)]
    pub(super) fn wanted(&self) -> impl Iterator<Item = (usize, usize)> {
        self.c_rows.iter().copied().enumerate().filter(|&(_, offset)| offset != NO_ROW)
    }
}

/// Where finished rows lie.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// In a buffer: the first row, and the distance of the rows.
    Buffer { start: *const f32, pitch: usize },
    /// In C: the place to which offsets are added.
    Matrix(*const f32),
}

/// Bytes of a cache line.
const LINE_BYTES: usize = LINE * size_of::<f32>();

/// How an operand is read or written.
const NONE: u8 = 0;
const F32: u8 = 1;
const BF16: u8 = 2;

const fn form(dtype: DType) -> u8 {
    match dtype {
        DType::F32 => F32,
        DType::Bf16 => BF16,
        _ => panic!("only f32 and bf16 are stored as tiles are finished"),
    }
}

impl Store {
    /// The same for offsets in C that count from `position`, which is in column `col`.
    pub(super) fn from(&self, position: usize, col: usize) -> Store {
        let bias = |bias: Option<*const f32>| bias.map(|bias| bias.wrapping_add(col));
        let addend = self.addend.map(|addend| Addend {
            elements: addend.elements.wrapping_add(position * addend.dtype.size()),
            bias: bias(addend.bias),
            ..addend
        });
        let output = self.output.wrapping_add(position * self.output_type.size());
        Store { bias: bias(self.bias), addend, output, ..*self }
    }

    /// Asks for the memory that columns of rows at these offsets will read and write.
    ///
    /// # Safety
    /// Called under `S::vectorize`.
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&self, c_rows: &[usize], cols: Range<usize>) {
        for offset in c_rows.iter().filter(|offset| **offset != NO_ROW) {
            let at = offset.wrapping_add(cols.start);
            let output = self.output.wrapping_add(at * self.output_type.size());
            for line in (0..cols.len() * self.output_type.size()).step_by(LINE_BYTES) {
                // SAFETY: prefetches take any address.
                unsafe { S::prefetch_write(output.wrapping_add(line).cast()) };
            }
            let Some(addend) = self.addend else { continue };
            let elements = addend.elements.wrapping_add(at * addend.dtype.size());
            for line in (0..cols.len() * addend.dtype.size()).step_by(LINE_BYTES) {
                // SAFETY: prefetches take any address.
                unsafe { S::prefetch(elements.wrapping_add(line).cast()) };
            }
        }
    }

    /// Writes finished rows.
    ///
    /// # Safety
    /// The matrices are valid for the rows and columns, which nobody else uses meanwhile. Called under `S::vectorize`.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, source: Source, rows: FinishedRows<'_>) {
        let addend = self.addend.map_or(NONE, |addend| form(addend.dtype));
        // SAFETY: the caller's promises.
        unsafe {
            match (addend, form(self.output_type)) {
                (NONE, BF16) => self.write_as::<S, NONE, BF16>(source, rows),
                (NONE, _) => self.write_as::<S, NONE, F32>(source, rows),
                (BF16, BF16) => self.write_as::<S, BF16, BF16>(source, rows),
                (BF16, _) => self.write_as::<S, BF16, F32>(source, rows),
                (_, BF16) => self.write_as::<S, F32, BF16>(source, rows),
                (..) => self.write_as::<S, F32, F32>(source, rows),
            }
        }
    }

    /// # Safety
    /// As for [`write`](Self::write), with an addend and an output of these forms.
    #[inline(always)]
    unsafe fn write_as<S: Simd, const ADDEND: u8, const OUTPUT: u8>(&self, source: Source, rows: FinishedRows<'_>) {
        let floor = if self.relu { 0.0 } else { f32::NEG_INFINITY };
        for col in (rows.col..rows.col + rows.width).step_by(2 * S::LANES) {
            // SAFETY: the caller's promises; columns are a multiple of two vectors.
            unsafe {
                let floor = S::splat(floor);
                let bias = vectors::<S>(self.bias, col);
                let addend_bias = vectors::<S>(self.addend.and_then(|addend| addend.bias), col);
                for (i, offset) in rows.wanted() {
                    let at = offset.wrapping_add(col);
                    let c = match source {
                        Source::Buffer { start, pitch } => start.add(i * pitch + col - rows.col),
                        Source::Matrix(start) => start.wrapping_add(at),
                    };
                    let mut values = [S::load(c), S::load(c.add(S::LANES))];
                    for (value, bias) in values.iter_mut().zip(bias) {
                        *value = S::add(*value, bias);
                    }
                    if ADDEND != NONE {
                        let elements = self.addend.map_or(std::ptr::null(), |addend| addend.elements);
                        for (half, value) in values.iter_mut().enumerate() {
                            let at = at + half * S::LANES;
                            let x = if ADDEND == BF16 {
                                S::load_bf16(elements.cast::<u16>().add(at))
                            } else {
                                S::load(elements.cast::<f32>().add(at))
                            };
                            *value = S::add(*value, S::add(x, addend_bias[half]));
                        }
                    }
                    let [low, high] = values.map(|value| S::max(floor, value));
                    if OUTPUT == BF16 {
                        S::store_bf16(self.output.cast::<u16>().add(at), low, high);
                    } else {
                        let output = self.output.cast::<f32>().add(at);
                        S::store(output, low);
                        S::store(output.add(S::LANES), high);
                    }
                }
            }
        }
    }
}

/// Two vectors of a bias, or what changes nothing that it is added to.
///
/// # Safety
/// The columns are there. Called under `S::vectorize`.
#[inline(always)]
unsafe fn vectors<S: Simd>(bias: Option<*const f32>, col: usize) -> [S::V; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        match bias {
            None => [S::splat(-0.0); 2],
            Some(bias) => [S::load(bias.add(col)), S::load(bias.add(col + S::LANES))],
        }
    }
}
