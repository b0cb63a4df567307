//! Convolutions in `f32`: activations `[N, H, W, C]`, weights `[KH, KW, Cin, Cout]`, one group.
//!
//! All three directions are products of an implicit matrix, gathered row by row while it is packed; see
//! [`crate::gemm`].

mod data_grad;
mod gather;
pub mod winograd;

use crate::gemm::{
    Ctx, Epilogue, GemmDesc, Matrix, Origin, OuterProduct, Output, PackedB, RowBlocks, RowProduct, Scratch,
    aligned_len, outer_scratch_len, pack_shared, packed_len, row_blocks_for, row_scratch_len,
};
use gather::{Axis, Gather};

pub use data_grad::{data_grad, data_grad_row_blocks, data_grad_scratch_len};

/// A convolution `[n, h, w, c_in]` to `[n, oh, ow, c_out]`. Output pixel `(p, q)` reads input pixels
/// `(p * stride[0] + i * dilation[0] - pad[0], q * stride[1] + j * dilation[1] - pad[1])` for taps `i < kh`,
/// `j < kw`; those outside the image are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvDesc {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub c_in: usize,
    pub kh: usize,
    pub kw: usize,
    pub c_out: usize,
    pub oh: usize,
    pub ow: usize,
    /// Vertical, horizontal; at least 1.
    pub stride: [usize; 2],
    /// Vertical, horizontal; at least 1.
    pub dilation: [usize; 2],
    /// Top, left.
    pub pad: [usize; 2],
}

impl ConvDesc {
    /// Multiply-adds of the forward product and of each gradient, taps on padding included.
    pub fn macs(&self) -> usize {
        self.output_rows() * self.weight_rows() * self.c_out
    }

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
    fn gather(&self, x: &[f32]) -> Gather {
        assert!(x.len() >= self.input_len(), "input has {} elements, {} are needed", x.len(), self.input_len());
        let axis = |axis: usize, size, grid, taps| Axis {
            size,
            grid,
            step: self.stride[axis],
            base: -(self.pad[axis] as isize),
            taps,
            tap: self.dilation[axis],
        };
        Gather {
            src: x.as_ptr(),
            channels: self.c_in,
            y: axis(0, self.h, self.oh, self.kh),
            x: axis(1, self.w, self.ow, self.kw),
        }
    }

    fn weight_matrix(&self, w: &[f32]) -> Matrix {
        assert!(w.len() >= self.weight_len(), "weights have {} elements, {} are needed", w.len(), self.weight_len());
        Matrix { src: w.as_ptr(), ld: self.c_out, transposed: false, n: self.c_out }
    }
}

/// The row blocks that [`forward`] and [`forward_packed`] deliver to their epilogue.
pub fn forward_row_blocks(d: &ConvDesc) -> RowBlocks {
    row_blocks_for(d.output_rows())
}

/// Scratch elements of [`forward`] with `threads` threads.
pub fn forward_scratch_len(d: &ConvDesc, threads: usize) -> usize {
    aligned_len(packed_len(d.weight_rows(), d.c_out)) + row_scratch_len(threads)
}

/// Output `y` of input `x` and weights `w`. `scratch` has at least [`forward_scratch_len`] elements; its content
/// is neither read nor kept.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn forward(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: &[f32],
    w: &[f32],
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let k = d.weight_rows();
    let matrix = d.weight_matrix(w);
    let mut scratch = Scratch::new(scratch, forward_scratch_len(d, ctx.pool.threads()));
    let packed = scratch.take(packed_len(k, d.c_out));
    // SAFETY: the weights' extent was checked, and the packed piece belongs to this call.
    unsafe { pack_shared(ctx, &matrix, k, packed, 0..k) };
    forward_product(ctx, d, x, packed.0, y, scratch, epilogue);
}

/// Packs the weights of `d` for [`forward_packed`] on `ctx.isa`.
///
/// # Panics
/// When `w` is shorter than `d` needs.
pub fn pack_forward(ctx: Ctx<'_>, d: &ConvDesc, w: &[f32]) -> PackedB {
    PackedB::new(ctx, &GemmDesc::new(d.output_rows(), d.c_out, d.weight_rows()), w)
}

/// Scratch elements of [`forward_packed`] with `threads` threads.
pub fn forward_packed_scratch_len(_d: &ConvDesc, threads: usize) -> usize {
    row_scratch_len(threads)
}

/// As [`forward`], with weights packed before.
///
/// # Panics
/// When a slice is shorter than `d` needs, or `w` was packed for another shape or instruction set.
pub fn forward_packed(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: &[f32],
    w: &PackedB,
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let packed = w.checked(ctx.isa, d.weight_rows(), d.c_out);
    let scratch = Scratch::new(scratch, forward_packed_scratch_len(d, ctx.pool.threads()));
    forward_product(ctx, d, x, packed, y, scratch, epilogue);
}

fn forward_product(
    ctx: Ctx<'_>,
    d: &ConvDesc,
    x: &[f32],
    packed: *const f32,
    y: Output<'_>,
    scratch: Scratch,
    epilogue: Option<&dyn Epilogue>,
) {
    let source = &d.gather(x);
    let c = y.checked(d.output_len(), "output");
    if d.output_len() == 0 {
        return;
    }
    let product = RowProduct {
        source,
        packed,
        m: d.output_rows(),
        n: d.c_out,
        k: d.weight_rows(),
        c,
        ldc: d.c_out,
        accumulate: false,
    };
    // SAFETY: extents were checked above, and the weights are packed for this instruction set.
    unsafe { product.run(ctx, scratch, Origin { block: 0, row: 0 }, epilogue) };
}

/// Scratch elements of [`weight_grad`] with `threads` threads.
pub fn weight_grad_scratch_len(d: &ConvDesc, threads: usize) -> usize {
    outer_scratch_len(d.weight_rows(), d.c_out, d.output_rows(), threads)
}

/// Gradient `dw` of the weights from input `x` and output gradient `dy`. `scratch` has at least
/// [`weight_grad_scratch_len`] elements; its content is neither read nor kept.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn weight_grad(ctx: Ctx<'_>, d: &ConvDesc, x: &[f32], dy: &[f32], dw: Output<'_>, scratch: &mut [f32]) {
    assert!(dy.len() >= d.output_len(), "output gradient has {} elements, {} are needed", dy.len(), d.output_len());
    let scratch = Scratch::new(scratch, weight_grad_scratch_len(d, ctx.pool.threads()));
    let product = OuterProduct {
        source: &d.gather(x),
        b: Matrix { src: dy.as_ptr(), ld: d.c_out, transposed: false, n: d.c_out },
        m: d.weight_rows(),
        depth: d.output_rows(),
        c: dw.checked(d.weight_len(), "weight gradient"),
        ldc: d.c_out,
        accumulate: false,
    };
    if d.weight_len() > 0 {
        // SAFETY: extents were checked above.
        unsafe { product.run(ctx, scratch, Origin { block: 0, row: 0 }, None) };
    }
}
