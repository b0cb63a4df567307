//! Copies between tensors of different layouts: one engine for transposes, slices, padding, concatenation and broadcasts.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, Shared};
use crate::simd::{Simd, SimdOp};
use crate::vector;
use bessemer_ir::DType;

/// Side of the squares that are transposed at a time.
const SQUARE: usize = 16;

/// One axis of a copy, with distances in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    src: usize,
    dst: usize,
}

/// A copy of a box of elements between two strided layouts. Sources may repeat elements, destinations do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedCopy {
    /// The axes outside the innermost two, outermost first.
    outer: Vec<Axis>,
    rows: Axis,
    cols: Axis,
    src_offset: usize,
    dst_offset: usize,
    element: usize,
}

fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

impl StridedCopy {
    /// `dims` elements, the innermost axis last, from `src_offset` to `dst_offset` on; strides in elements of `element`
    /// bytes (1, 2, 4 or 8).
    pub fn new(element: usize, dims: &[usize], src: (usize, &[usize]), dst: (usize, &[usize])) -> StridedCopy {
        assert!(matches!(element, 1 | 2 | 4 | 8), "elements of {element} bytes");
        let mut axes: Vec<Axis> = Vec::new();
        for (axis, &size) in dims.iter().enumerate() {
            let next = Axis { size, src: src.1[axis], dst: dst.1[axis] };
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.src == next.src * size && last.dst == next.dst * size => {
                    *last = Axis { size: last.size * size, ..next };
                }
                _ => axes.push(next),
            }
        }
        let single = Axis { size: 1, src: 0, dst: 0 };
        let cols = axes.pop().unwrap_or(single);
        let neighbours = axes.iter().rposition(|axis| axis.src == 1 && cols.src != 1);
        let rows = match neighbours {
            Some(axis) => axes.remove(axis),
            None => axes.pop().unwrap_or(single),
        };
        StridedCopy { outer: axes, rows, cols, src_offset: src.0, dst_offset: dst.0, element }
    }

    /// Axis `i` of the result is axis `perm[i]` of the source of shape `dims`.
    pub fn transpose(element: usize, dims: &[usize], perm: &[usize]) -> StridedCopy {
        let own = strides(dims);
        let out: Vec<usize> = perm.iter().map(|&axis| dims[axis]).collect();
        let src: Vec<usize> = perm.iter().map(|&axis| own[axis]).collect();
        StridedCopy::new(element, &out, (0, &src), (0, &strides(&out)))
    }

    /// Elements `start, start + step, ...` below `stop` along each axis of `dims`.
    pub fn slice(element: usize, dims: &[usize], start: &[usize], stop: &[usize], step: &[usize]) -> StridedCopy {
        let own = strides(dims);
        let axes = 0..dims.len();
        let out: Vec<usize> = axes.clone().map(|a| stop[a].saturating_sub(start[a]).div_ceil(step[a])).collect();
        let src: Vec<usize> = axes.clone().map(|a| own[a] * step[a]).collect();
        let first = axes.map(|a| own[a] * start[a]).sum();
        StridedCopy::new(element, &out, (first, &src), (0, &strides(&out)))
    }

    /// The elements of `dims` into a larger tensor `out`: `low` places before them along each axis and `interior` between
    /// them. The other places are not written.
    pub fn pad(element: usize, dims: &[usize], low: &[usize], interior: &[usize], out: &[usize]) -> StridedCopy {
        let whole = strides(out);
        let dst: Vec<usize> = (0..dims.len()).map(|a| whole[a] * (interior[a] + 1)).collect();
        let first = (0..dims.len()).map(|a| whole[a] * low[a]).sum();
        StridedCopy::new(element, dims, (0, &strides(dims)), (first, &dst))
    }

    /// The elements of `dims` into a tensor that has `total` along `axis`, from `start` on.
    pub fn concat(element: usize, dims: &[usize], axis: usize, start: usize, total: usize) -> StridedCopy {
        let mut out = dims.to_vec();
        out[axis] = total;
        let mut low = vec![0; dims.len()];
        low[axis] = start;
        StridedCopy::pad(element, dims, &low, &vec![0; dims.len()], &out)
    }

    /// NumPy broadcasting of `dims` to `out`.
    pub fn broadcast(element: usize, dims: &[usize], out: &[usize]) -> StridedCopy {
        let own = strides(dims);
        let missing = out.len() - dims.len();
        let stride = |axis: usize| match axis.checked_sub(missing) {
            Some(a) if dims[a] != 1 => own[a],
            _ => 0,
        };
        let src: Vec<usize> = (0..out.len()).map(stride).collect();
        StridedCopy::new(element, out, (0, &src), (0, &strides(out)))
    }

    /// # Safety
    /// Both tensors hold the elements of the copy, aligned, and do not overlap.
    pub unsafe fn run(&self, ctx: Ctx<'_>, src: *const u8, dst: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.element {
                1 => self.run_typed::<u8>(ctx, src, dst),
                2 => self.run_typed::<u16>(ctx, src, dst),
                4 => self.run_typed::<u32>(ctx, src, dst),
                _ => self.run_typed::<u64>(ctx, src, dst),
            }
        }
    }

    unsafe fn run_typed<T: Copy + Send>(&self, ctx: Ctx<'_>, src: *const u8, dst: *mut u8) {
        let outer: usize = self.outer.iter().map(|axis| axis.size).product();
        let width = self.cols.size.clamp(1, CHUNK);
        let height = (CHUNK / width).next_multiple_of(SQUARE).clamp(1, self.rows.size.max(1));
        let (down, across) = (self.rows.size.div_ceil(height), self.cols.size.div_ceil(width));
        let (src, dst) = (&Shared(src.cast_mut().cast::<T>()), &Shared(dst.cast::<T>()));
        ctx.pool.run(outer * down * across, &|task, _worker| {
            let (row, col) = (task / across % down * height, task % across * width);
            let mut from = self.src_offset + row * self.rows.src + col * self.cols.src;
            let mut to = self.dst_offset + row * self.rows.dst + col * self.cols.dst;
            let mut index = task / across / down;
            for axis in self.outer.iter().rev() {
                from += index % axis.size * axis.src;
                to += index % axis.size * axis.dst;
                index /= axis.size;
            }
            let rows = Axis { size: height.min(self.rows.size - row), ..self.rows };
            let cols = Axis { size: width.min(self.cols.size - col), ..self.cols };
            // SAFETY: the box lies within both tensors, and the boxes are disjoint in the destination.
            unsafe { copy_box(rows, cols, src.0.add(from), dst.0.add(to)) }
        });
    }
}

unsafe fn copy_box<T: Copy>(rows: Axis, cols: Axis, src: *const T, dst: *mut T) {
    // SAFETY: the caller's promise: both sides hold the box.
    unsafe {
        if cols.src == 1 && cols.dst == 1 {
            for row in 0..rows.size {
                std::ptr::copy_nonoverlapping(src.add(row * rows.src), dst.add(row * rows.dst), cols.size);
            }
        } else if rows.src == 1 {
            for row in (0..rows.size).step_by(SQUARE) {
                for col in (0..cols.size).step_by(SQUARE) {
                    let (src, dst) = (src.add(row + col * cols.src), dst.add(row * rows.dst + col * cols.dst));
                    let part = |axis: Axis, start: usize| Axis { size: SQUARE.min(axis.size - start), ..axis };
                    let (rows, cols) = (part(rows, row), part(cols, col));
                    if cols.dst == 1 && rows.size == SQUARE && cols.size == SQUARE {
                        transpose_square(cols.src, src, rows.dst, dst);
                    } else {
                        copy_elements(rows, cols, src, dst);
                    }
                }
            }
        } else {
            copy_elements(rows, cols, src, dst);
        }
    }
}

/// Transposes a square of which both sides have neighbouring elements, the source's rows being `src_stride` apart.
#[inline(always)]
unsafe fn transpose_square<T: Copy>(src_stride: usize, src: *const T, dst_stride: usize, dst: *mut T) {
    // SAFETY: the caller's promise: both sides hold the square.
    unsafe {
        let square: [[T; SQUARE]; SQUARE] =
            std::array::from_fn(|col| src.add(col * src_stride).cast::<[T; SQUARE]>().read_unaligned());
        for row in 0..SQUARE {
            let line: [T; SQUARE] = square.map(|across| across[row]);
            dst.add(row * dst_stride).cast::<[T; SQUARE]>().write_unaligned(line);
        }
    }
}

#[inline(always)]
unsafe fn copy_elements<T: Copy>(rows: Axis, cols: Axis, src: *const T, dst: *mut T) {
    for row in 0..rows.size {
        for col in 0..cols.size {
            // SAFETY: the caller's promise: both sides hold the box.
            unsafe { *dst.add(row * rows.dst + col * cols.dst) = *src.add(row * rows.src + col * cols.src) };
        }
    }
}

/// Images whose pixels are repeated along height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// Rows of all images.
    pub rows: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Bytes of a pixel.
    pub pixel_bytes: usize,
    /// How often along height and width.
    pub factors: [usize; 2],
}

impl Repeat {
    /// Bytes of all images.
    pub fn input_bytes(&self) -> usize {
        self.rows * self.width * self.pixel_bytes
    }

    /// Bytes of all images after repetition.
    pub fn output_bytes(&self) -> usize {
        self.input_bytes() * self.factors[0] * self.factors[1]
    }

    /// # Panics
    /// If a tensor has another size.
    pub fn run(&self, ctx: Ctx<'_>, src: &[u8], dst: &mut [u8]) {
        let Repeat { width, pixel_bytes, factors: [down, across], .. } = *self;
        assert!(
            src.len() == self.input_bytes() && dst.len() == self.output_bytes(),
            "an upsampling got tensors of other sizes"
        );
        if dst.is_empty() {
            return;
        }
        let (from, to) = (width * pixel_bytes, width * across * pixel_bytes);
        let rows = (4 * CHUNK / (down * to)).max(1);
        crate::parts::for_chunks(ctx, dst, rows * down * to, &|task, dst| {
            for (row, dst) in dst.chunks_exact_mut(down * to).enumerate() {
                let src = &src[(task * rows + row) * from..][..from];
                let (first, others) = dst.split_at_mut(to);
                for (pixel, copies) in src.chunks_exact(pixel_bytes).zip(first.chunks_exact_mut(across * pixel_bytes)) {
                    copies.chunks_exact_mut(pixel_bytes).for_each(|copy| copy.copy_from_slice(pixel));
                }
                others.chunks_exact_mut(to).for_each(|copy| copy.copy_from_slice(first));
            }
        });
    }
}

/// Zeros.
pub fn zero(ctx: Ctx<'_>, bytes: &mut [u8]) {
    crate::parts::for_chunks(ctx, bytes, 4 * CHUNK, &|_, piece| piece.fill(0));
}

/// Elements of one type to another, through `f32`.
struct Convert {
    from: DType,
    to: DType,
    src: *const u8,
    dst: *mut u8,
    len: usize,
}

impl SimdOp for Convert {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut buffer = [0.0; 512];
        for start in (0..self.len).step_by(buffer.len()) {
            let values = &mut buffer[..512.min(self.len - start)];
            // SAFETY: the promise of `convert`.
            unsafe {
                vector::widen(self.from, self.src.add(start * self.from.size()), values);
                vector::narrow(self.to, values, self.dst.add(start * self.to.size()));
            }
        }
    }
}

/// Converts `len` elements; floats are rounded to nearest, to integers by truncation and saturation, to truth values by
/// comparison with zero. Equal types are copied.
///
/// # Safety
/// Both sides hold `len` elements, aligned, and do not overlap.
pub unsafe fn convert(ctx: Ctx<'_>, len: usize, from: DType, src: *const u8, to: DType, dst: *mut u8) {
    let (src, dst) = (&Shared(src.cast_mut()), &Shared(dst));
    ctx.pool.run(len.div_ceil(CHUNK), &|task, _worker| {
        let start = task * CHUNK;
        let len = CHUNK.min(len - start);
        // SAFETY: the caller's promise; the pieces are disjoint.
        unsafe {
            let (src, dst) = (src.0.add(start * from.size()), dst.0.add(start * to.size()));
            if from == to {
                std::ptr::copy_nonoverlapping(src, dst, len * from.size());
            } else {
                Convert { from, to, src, dst, len }.run_on(ctx.isa);
            }
        }
    });
}
