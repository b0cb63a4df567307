//! Simple epilogues of products: a bias, the sum with another tensor, an activation, rounding. They run as soon as a tile of C is
//! finished, while it is in the first-level cache.

use super::tile::LINE;
use super::tile_loop::NO_ROW;
use crate::number::{Number, Vector};
use crate::simd::{MOST_LANES, Simd, SimdOp};
use crate::vector;
use bessemer_ir::DType;
use std::ops::Range;

/// `y[row, col] = f(c[row, col] + bias[col] + (addend[row, col] + addend_bias[col]))`, of which any part but `c` may be
/// missing, written as `f32` or rounded to `bf16`. Matrices are dense, with the `n` columns of C.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// `[n]` elements that are added to every row of C; `None` adds nothing.
    pub bias: Option<*const f32>,
    /// `None` adds no matrix and no `addend_bias`.
    pub addend: Option<Addend>,
    /// The function `f`.
    pub activation: Activation,
    /// `[m, n]` of `f32` or `bf16`. It may be the memory of C or of the addend, if elements are of one size.
    pub output: *mut u8,
    /// Element type of the output, `f32` or `bf16`.
    pub output_type: DType,
}

/// What is done with the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// Negative ones become 0.
    Relu,
    /// `x * sigmoid(x)`.
    Swish,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    Gelu,
}

impl Activation {
    /// Whether it is one that works on its argument alone, without an [`Addend`].
    pub(crate) fn is_function(self) -> bool {
        matches!(self, Activation::Swish | Activation::Gelu)
    }
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

// SAFETY: plain addresses; the unsafe functions that follow them state what must hold.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

/// Some rows of a tile of C. Offsets in C are positions in the other matrices.
#[derive(Clone, Copy)]
pub(crate) struct FinishedRows<'a> {
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

    /// The places of elements of column `col`, by number and offset of their row. Without a branch, as loops over rows ask for it.
    #[inline(always)]
    fn elements(&self, source: Source, col: usize) -> impl Fn(usize, usize) -> *const f32 {
        let (start, pitch, mask) = match source {
            Source::Buffer { start, pitch } => (start.wrapping_add(col - self.col), pitch, 0),
            Source::Matrix(start) => (start.wrapping_add(col), 0, usize::MAX),
        };
        move |i, offset| start.wrapping_add((i * pitch).wrapping_add(offset & mask))
    }
}

/// Where finished rows lie.
#[derive(Clone, Copy)]
pub(crate) enum Source {
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

/// What activations are compiled as: a lower bound, which may be infinite, or a function.
const BOUND: u8 = 0;
const SWISH: u8 = 1;
const GELU: u8 = 2;

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
    /// Called under `S::run_op`.
    #[inline(always)]
    pub(super) unsafe fn prefetch<S: Simd>(&self, c_rows: &[usize], cols: Range<usize>) {
        // Places and sizes before the loops, which compilers do not take out of them.
        let (size, output) = (self.output_type.size(), self.output);
        let len = cols.len() * size;
        for &offset in c_rows.iter().filter(|offset| **offset != NO_ROW) {
            let output = output.wrapping_add(offset.wrapping_add(cols.start) * size);
            for line in (0..len).step_by(LINE_BYTES) {
                // SAFETY: prefetches take any address.
                unsafe { S::prefetch_write(output.wrapping_add(line).cast()) };
            }
        }
        let Some(Addend { elements, dtype, .. }) = self.addend else { return };
        let size = dtype.size();
        let len = cols.len() * size;
        for &offset in c_rows.iter().filter(|offset| **offset != NO_ROW) {
            let elements = elements.wrapping_add(offset.wrapping_add(cols.start) * size);
            for line in (0..len).step_by(LINE_BYTES) {
                // SAFETY: prefetches take any address.
                unsafe { S::prefetch(elements.wrapping_add(line).cast()) };
            }
        }
    }

    /// Writes finished rows. Not inlined, so that it does not compete for registers with the loop that calls it.
    ///
    /// # Safety
    /// The matrices are valid for the rows and columns, which nobody else uses meanwhile. The machine has `S`.
    pub(crate) unsafe fn write<S: Simd>(&self, source: Source, rows: FinishedRows<'_>) {
        // SAFETY: the caller's promises.
        unsafe { S::run_op(WriteRows { store: self, source, rows }) }
    }

    /// # Safety
    /// As for [`write`](Self::write), with an addend and an output of these forms, and an activation that is compiled as this.
    #[inline(always)]
    unsafe fn write_as<S: Simd, const ADDEND: u8, const OUTPUT: u8, const ACTIVATION: u8>(
        &self,
        source: Source,
        rows: FinishedRows<'_>,
    ) {
        let end = rows.col + rows.width;
        let mut col = rows.col;
        // SAFETY: the caller's promises.
        unsafe {
            while col + 2 * S::LANES <= end {
                self.write_vectors::<S, ADDEND, OUTPUT, ACTIVATION, 2>(source, rows, col);
                col += 2 * S::LANES;
            }
            while col < end {
                let len = S::LANES.min(end - col);
                match len == S::LANES {
                    true => self.write_vectors::<S, ADDEND, OUTPUT, ACTIVATION, 1>(source, rows, col),
                    false => self.write_some::<S, ADDEND, OUTPUT, ACTIVATION>(source, rows, col, len),
                }
                col += len;
            }
        }
    }

    /// Fewer columns than a vector has, by way of copies in whole vectors.
    ///
    /// # Safety
    /// As for [`write_as`](Self::write_as); the columns are there.
    #[inline(always)]
    unsafe fn write_some<S: Simd, const ADDEND: u8, const OUTPUT: u8, const ACTIVATION: u8>(
        &self,
        source: Source,
        rows: FinishedRows<'_>,
        col: usize,
        len: usize,
    ) {
        let mut copies = [[0.0f32; MOST_LANES]; 5];
        let [bias, addend_bias, addend, sums, output] = copies.each_mut().map(|copy| copy.as_mut_ptr());
        let one = FinishedRows { c_rows: &[0], col: 0, width: S::LANES };
        // SAFETY: the caller's promises; the copies have room for a vector.
        unsafe {
            let copied = |from: Option<*const f32>, to: *mut f32| {
                from.map(|from| {
                    to.copy_from_nonoverlapping(from.add(col), len);
                    to.cast_const()
                })
            };
            let whole = Store {
                bias: copied(self.bias, bias),
                addend: self.addend.map(|own| Addend {
                    elements: addend.cast_const().cast(),
                    bias: copied(own.bias, addend_bias),
                    ..own
                }),
                output: output.cast(),
                ..*self
            };
            let elements = rows.elements(source, col);
            for (i, offset) in rows.wanted() {
                let at = offset.wrapping_add(col);
                sums.copy_from_nonoverlapping(elements(i, offset), len);
                if let Some(own) = self.addend {
                    let size = own.dtype.size();
                    addend.cast::<u8>().copy_from_nonoverlapping(own.elements.add(at * size), len * size);
                }
                let from = Source::Buffer { start: sums, pitch: 0 };
                whole.write_vectors::<S, ADDEND, OUTPUT, ACTIVATION, 1>(from, one, 0);
                let size = self.output_type.size();
                self.output.add(at * size).copy_from_nonoverlapping(output.cast(), len * size);
            }
        }
    }

    /// One or two vectors of each row from a column on.
    ///
    /// # Safety
    /// As for [`write_as`](Self::write_as); the columns are there.
    #[inline(always)]
    unsafe fn write_vectors<S: Simd, const ADDEND: u8, const OUTPUT: u8, const ACTIVATION: u8, const VECTORS: usize>(
        &self,
        source: Source,
        rows: FinishedRows<'_>,
        col: usize,
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            let floor = S::splat(if self.activation == Activation::Relu { 0.0 } else { f32::NEG_INFINITY });
            let bias = vectors::<S, VECTORS>(self.bias, col);
            let addend_bias = vectors::<S, VECTORS>(self.addend.and_then(|addend| addend.bias), col);
            let elements = rows.elements(source, col);
            for (i, offset) in rows.wanted() {
                let at = offset.wrapping_add(col);
                let c = elements(i, offset);
                let mut values = [floor; VECTORS];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = S::add(S::load(c.add(v * S::LANES)), bias[v]);
                    if ADDEND != NONE {
                        let elements = self.addend.map_or(std::ptr::null(), |addend| addend.elements);
                        let at = at + v * S::LANES;
                        let x = if ADDEND == BF16 {
                            S::load_bf16(elements.cast::<u16>().add(at))
                        } else {
                            S::load(elements.cast::<f32>().add(at))
                        };
                        *value = S::add(*value, S::add(x, addend_bias[v]));
                    }
                    let x = Vector::<S>::new(*value);
                    *value = match ACTIVATION {
                        SWISH => x.times(vector::sigmoid(x)).get(),
                        GELU => vector::gelu(x).get(),
                        _ => S::max(floor, *value),
                    };
                }
                if OUTPUT == BF16 {
                    let output = self.output.cast::<u16>().add(at);
                    let mut pair = [0; 2 * MOST_LANES];
                    let target = if VECTORS == 2 { output } else { pair.as_mut_ptr() };
                    S::store_bf16(target, values[0], values[VECTORS - 1]);
                    if VECTORS == 1 {
                        S::copy_16(pair.as_ptr(), output, S::LANES);
                    }
                } else {
                    let output = self.output.cast::<f32>().add(at);
                    for (v, &value) in values.iter().enumerate() {
                        S::store(output.add(v * S::LANES), value);
                    }
                }
            }
        }
    }
}

/// [`Store::write`], compiled for an instruction set.
struct WriteRows<'a> {
    store: &'a Store,
    source: Source,
    rows: FinishedRows<'a>,
}

impl SimdOp for WriteRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let WriteRows { store, source, rows } = self;
        let addend = store.addend.map_or(NONE, |addend| form(addend.dtype));
        let activation = match store.activation {
            Activation::None | Activation::Relu => BOUND,
            Activation::Swish => SWISH,
            Activation::Gelu => GELU,
        };
        // SAFETY: the promises of `write`.
        unsafe {
            match (addend, form(store.output_type), activation) {
                (_, BF16, SWISH) => store.write_as::<S, NONE, BF16, SWISH>(source, rows),
                (_, _, SWISH) => store.write_as::<S, NONE, F32, SWISH>(source, rows),
                (_, BF16, GELU) => store.write_as::<S, NONE, BF16, GELU>(source, rows),
                (_, _, GELU) => store.write_as::<S, NONE, F32, GELU>(source, rows),
                (NONE, BF16, _) => store.write_as::<S, NONE, BF16, BOUND>(source, rows),
                (NONE, ..) => store.write_as::<S, NONE, F32, BOUND>(source, rows),
                (BF16, BF16, _) => store.write_as::<S, BF16, BF16, BOUND>(source, rows),
                (BF16, ..) => store.write_as::<S, BF16, F32, BOUND>(source, rows),
                (_, BF16, _) => store.write_as::<S, F32, BF16, BOUND>(source, rows),
                (..) => store.write_as::<S, F32, F32, BOUND>(source, rows),
            }
        }
    }
}

/// Vectors of a bias, or what changes nothing that it is added to.
///
/// # Safety
/// The columns are there. Called under `S::run_op`.
#[inline(always)]
unsafe fn vectors<S: Simd, const VECTORS: usize>(bias: Option<*const f32>, col: usize) -> [S::V; VECTORS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [S::splat(-0.0); VECTORS];
        if let Some(bias) = bias {
            for (v, vector) in vectors.iter_mut().enumerate() {
                *vector = S::load(bias.add(col + v * S::LANES));
            }
        }
        vectors
    }
}
