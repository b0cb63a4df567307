//! Convolutions that accumulate in `f32`: activations `[N, H, W, C]`, weights `[KH, KW, Cin, Cout]`, one group; more than
//! one in [`grouped`].
//!
//! All three directions are products of an implicit matrix, gathered row by row while it is packed; see
//! [`crate::gemm`].

mod data_grad;
mod depthwise;
mod gather;
pub mod grouped;
mod shifted;
pub mod winograd;

use crate::gemm::{
    Ctx, Destination, Epilogue, Input, MAX_DEPTH, Matrix, Origin, OuterProduct, Output, PanelSteps, RowBlocks,
    RowProduct, Scratch, SharedMut, TypedSlice, Weights, aligned_len, outer_scratch_len, pack_shared, pack_steps,
    packed_len, packed_start, row_blocks_for, row_scratch_len,
};
use crate::simd::PanelFormat;
use bessemer_ir::DType;
use gather::{Axis, Gather, TILE_PIXEL};

pub use depthwise::chained;

pub use data_grad::{data_grad, data_grad_row_blocks, data_grad_scratch_len, pack_data_grad, packed_data_grad_len};

/// A convolution `[n, h, w, c_in]` to `[n, oh, ow, c_out]`. Output pixel `(p, q)` reads input pixels
/// `(p * stride[0] + i * dilation[0] - pad[0], q * stride[1] + j * dilation[1] - pad[1])` for taps `i < kh`,
/// `j < kw`; those outside the image are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvDesc {
    /// Images of the batch.
    pub n: usize,
    /// Height of the input.
    pub h: usize,
    /// Width of the input.
    pub w: usize,
    /// Input channels.
    pub c_in: usize,
    /// Height of the kernel.
    pub kh: usize,
    /// Width of the kernel.
    pub kw: usize,
    /// Output channels.
    pub c_out: usize,
    /// Height of the output.
    pub oh: usize,
    /// Width of the output.
    pub ow: usize,
    /// Vertical, horizontal; at least 1.
    pub stride: [usize; 2],
    /// Vertical, horizontal; at least 1.
    pub dilation: [usize; 2],
    /// Top, left.
    pub pad: [usize; 2],
}

impl ConvDesc {
    fn input_len(&self) -> usize {
        self.input_rows() * self.c_in
    }

    fn input_rows(&self) -> usize {
        self.n * self.h * self.w
    }

    fn output_len(&self) -> usize {
        self.output_rows() * self.c_out
    }

    fn output_rows(&self) -> usize {
        self.n * self.oh * self.ow
    }

    fn weight_len(&self) -> usize {
        self.weight_rows() * self.c_out
    }

    fn weight_rows(&self) -> usize {
        self.kh * self.kw * self.c_in
    }

    /// Rows are output pixels, elements `[KH, KW, Cin]` of the input.
    ///
    /// # Panics
    /// When the input is shorter than that.
    fn gather(&self, x: &Input<'_>) -> Gather {
        let src = x.elements.checked(self.input_len(), "input");
        let affine = x.affine.map(|affine| affine.checked(self.n, self.c_in));
        Gather { src, channels: self.c_in, y: self.axis(0), x: self.axis(1), affine, line: self.kw * self.c_in }
    }

    /// Elements of a line of the kernel in rows of the implicit matrix. Lines are padded where rows can be read in the image then: to
    /// a step of tiles where they fill most of one, and to whole pairs; windows begin at whole pairs.
    fn line_len(&self, format: PanelFormat) -> usize {
        let line = self.kw * self.c_in;
        if self.kh == 1 || self.dilation[1] != 1 || !(self.stride[1] * self.c_in).is_multiple_of(2) {
            return line;
        }
        let pairs = line.next_multiple_of(2);
        match format {
            PanelFormat::Tiles if (TILE_PIXEL / 2..=TILE_PIXEL).contains(&line) => TILE_PIXEL,
            PanelFormat::Dot2 if self.kh * pairs <= 2 * MAX_DEPTH => pairs,
            _ => line,
        }
    }

    /// Steps of the reduction of the forward product.
    fn forward_steps(&self, format: PanelFormat) -> usize {
        format.steps(self.kh * self.line_len(format))
    }

    /// Packs the weights of the forward product.
    ///
    /// # Safety
    /// They are there, and `packed` has room for them.
    unsafe fn pack_weights(&self, ctx: Ctx<'_>, format: PanelFormat, w: TypedSlice<'_>, packed: SharedMut) {
        let matrix = self.weight_matrix(w);
        let (line, padded) = (self.kw * self.c_in, self.line_len(format));
        if line == padded {
            // SAFETY: the caller's promise.
            return unsafe { pack_shared(ctx, &matrix, format, packed) };
        }
        let len = format.steps(padded);
        for ky in 0..self.kh {
            let matrix = Matrix { src: matrix.src.add(ky * line * self.c_out), k: line, ..matrix };
            let steps = PanelSteps { start: ky * len, len, panel: self.kh * len };
            // SAFETY: the caller's promise.
            unsafe { pack_steps(ctx, &matrix, format, packed, steps) };
        }
    }

    /// Output positions and their taps in the input; axis 0 is vertical, 1 horizontal.
    fn axis(&self, index: usize) -> Axis {
        Axis {
            size: [self.h, self.w][index],
            grid: [self.oh, self.ow][index],
            step: self.stride[index],
            base: -(self.pad[index] as isize),
            taps: [self.kh, self.kw][index],
            tap: self.dilation[index],
        }
    }

    fn weight_matrix(&self, w: TypedSlice<'_>) -> Matrix {
        let src = w.checked(self.weight_len(), "weights");
        Matrix { src, ld: self.c_out, transposed: false, k: self.weight_rows(), n: self.c_out }
    }
}

/// The row blocks that [`forward`] delivers to its epilogue.
pub fn forward_row_blocks(d: &ConvDesc) -> RowBlocks {
    row_blocks_for(d.output_rows(), d.c_out, d.weight_rows())
}

/// Elements of the weights that [`pack_forward`] packs.
pub fn packed_forward_len(d: &ConvDesc) -> usize {
    packed_len(d.weight_rows(), d.c_out)
}

/// Packs the weights of `d` for [`forward`] on `ctx.isa`. Products are fastest where `packed` lies on a cache line.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn pack_forward(ctx: Ctx<'_>, d: &ConvDesc, w: TypedSlice<'_>, packed: &mut [f32]) {
    let packed = Output::new(packed).checked_whole(packed_forward_len(d), "packed weights");
    let format = ctx.panel_format(w.dtype(), w.dtype());
    // SAFETY: lengths were checked.
    unsafe { d.pack_weights(ctx, format, w, packed) };
}

/// Scratch elements of [`forward`] with `threads` threads.
pub fn forward_scratch_len(d: &ConvDesc, threads: usize) -> usize {
    aligned_len(packed_forward_len(d)) + row_scratch_len(threads)
}

/// Output `y` of input `x` and weights `w`. `scratch` has at least [`forward_scratch_len`] elements; its content
/// is neither read nor kept.
///
/// # Panics
/// When an operand is shorter than `d` needs.
pub fn forward<'a>(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: impl Into<Input<'a>>,
    w: impl Into<Weights<'a>>,
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let x = x.into();
    let dtype = x.elements.dtype();
    let format = x.panel_format(ctx, dtype);
    let source = &Gather { line: d.line_len(format), ..d.gather(&x) };
    let c = y.checked(d.output_len(), forward_row_blocks(d).rows * d.c_out, "output");
    let mut scratch = Scratch::new(scratch, forward_scratch_len(d, ctx.pool.threads()));
    let packed = match w.into() {
        Weights::Packed(packed) => packed_start(packed, packed_forward_len(d), "weights"),
        Weights::Plain(w) => {
            assert!(dtype == w.dtype(), "input and weights are of {dtype} and {}", w.dtype());
            let packed = scratch.take(packed_forward_len(d));
            // SAFETY: the weights' extent was checked, and the packed piece belongs to this call.
            unsafe { d.pack_weights(ctx, format, w, packed) };
            packed
        }
    };
    if d.output_len() == 0 {
        return;
    }
    let (m, n, k) = (d.output_rows(), d.c_out, d.forward_steps(format));
    let product = RowProduct { source, packed: packed.0, format, m, n, k, c, ldc: n, accumulate: false };
    // SAFETY: extents were checked above, and the weights are packed for this instruction set.
    unsafe { product.run(ctx, scratch, Origin::FIRST, epilogue) };
}

/// Scratch elements of [`weight_grad`] of operands of type `dtype` with `threads` threads.
pub fn weight_grad_scratch_len(d: &ConvDesc, dtype: DType, threads: usize) -> usize {
    let shifted = if dtype == DType::Bf16 && PanelFormat::has_tiles() && shifted::applies(d) {
        shifted::scratch_len(d, threads)
    } else {
        0
    };
    shifted.max(outer_scratch_len(d.weight_rows(), d.c_out, d.output_rows(), threads))
}

/// Gradient `dw` of the weights from input `x` and output gradient `dy`. `scratch` has at least
/// [`weight_grad_scratch_len`] elements; its content is neither read nor kept.
///
/// # Panics
/// When an operand is shorter than `d` needs.
pub fn weight_grad<'a>(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: impl Into<Input<'a>>,
    dy: impl Into<TypedSlice<'a>>,
    dw: Output<'_>,
    scratch: &mut [f32],
) {
    let (x, dy) = (x.into(), dy.into());
    let scratch = Scratch::new(scratch, weight_grad_scratch_len(d, dy.dtype(), ctx.pool.threads()));
    let format = x.panel_format(ctx, dy.dtype());
    let (rows, dy) = (d.output_rows(), dy.checked(d.output_len(), "output gradient"));
    if format == PanelFormat::Tiles && shifted::applies(d) {
        let x = x.elements.checked(d.input_len(), "input");
        let dw = dw.checked_whole(d.weight_len(), "weight gradient");
        // SAFETY: extents were checked.
        return unsafe { shifted::weight_grad(ctx, d, x, dy, dw, scratch) };
    }
    let product = OuterProduct {
        source: &d.gather(&x),
        b: Matrix { src: dy, ld: d.c_out, transposed: false, k: rows, n: d.c_out },
        format,
        m: d.weight_rows(),
        depth: format.steps(rows),
        c: Destination::whole(dw.checked_whole(d.weight_len(), "weight gradient")),
        ldc: d.c_out,
        accumulate: false,
    };
    if d.weight_len() > 0 {
        // SAFETY: extents were checked above.
        unsafe { product.run(ctx, scratch, Origin::FIRST, None) };
    }
}
