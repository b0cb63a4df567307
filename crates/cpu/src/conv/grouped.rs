//! Convolutions in groups: output channels of group `g` read the input channels of group `g` alone. Activations
//! `[N, H, W, C]`, weights `[KH, KW, Cin / groups, Cout]`.
//!
//! With one input and one output channel a group ("depthwise") a direct kernel computes all groups at once. Otherwise each
//! group is a convolution of its own on copies of its channels.

use super::{ConvDesc, depthwise};
use crate::gemm::{Ctx, Epilogue, Output, RowBlocks, Scratch, SharedMut, TypedSlice, aligned_len, row_blocks_for};
use crate::parts::CHUNK;
use bessemer_ir::DType;

/// A convolution in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupedDesc {
    /// Sizes, with the channels of all groups together.
    pub conv: ConvDesc,
    /// Divides the input and the output channels.
    pub groups: usize,
    /// Type of both operands.
    pub dtype: DType,
}

impl GroupedDesc {
    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.conv.input_len()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.conv.output_len()
    }

    /// Elements of the weights.
    pub fn weight_len(&self) -> usize {
        self.conv.weight_len() / self.groups
    }

    /// A short description of the algorithm.
    pub(crate) fn name(&self) -> &'static str {
        if self.is_depthwise() { "depthwise" } else { "group by group" }
    }

    /// Whether row blocks are finished one by one, so that an output may be a block for each worker.
    pub fn works_in_blocks(&self) -> bool {
        self.is_depthwise()
    }

    fn is_depthwise(&self) -> bool {
        self.groups == self.conv.c_in && self.groups == self.conv.c_out
    }

    /// # Panics
    /// Where an operand is of another type.
    fn typed<'a>(&self, operands: [TypedSlice<'a>; 2]) -> [TypedSlice<'a>; 2] {
        for operand in &operands {
            assert!(operand.dtype() == self.dtype, "an operand of {} for a product of {}", operand.dtype(), self.dtype);
        }
        operands
    }

    /// The convolution of one group.
    fn one(&self) -> ConvDesc {
        ConvDesc { c_in: self.conv.c_in / self.groups, c_out: self.conv.c_out / self.groups, ..self.conv }
    }

    fn input(&self) -> Shape {
        Shape { rows: self.conv.input_rows(), groups: self.groups, width: self.one().c_in }
    }

    fn output(&self) -> Shape {
        Shape { rows: self.conv.output_rows(), groups: self.groups, width: self.one().c_out }
    }

    fn weights(&self) -> Shape {
        Shape { rows: self.one().weight_rows(), groups: self.groups, width: self.one().c_out }
    }

    /// Scratch elements of a product that needs `own` itself.
    fn scratch_len(&self, own: usize) -> usize {
        let copies = [self.input(), self.output(), self.weights()].map(|shape| aligned_len(shape.group_len()));
        copies.iter().sum::<usize>() + aligned_len(own)
    }
}

/// The row blocks that [`forward`] delivers to its epilogue.
pub fn forward_row_blocks(d: &GroupedDesc) -> RowBlocks {
    if d.is_depthwise() { depthwise::forward_row_blocks(&d.conv) } else { row_blocks_for(d.output().rows, 1, 1) }
}

/// Scratch elements of [`forward`] with `threads` threads.
pub fn forward_scratch_len(d: &GroupedDesc, threads: usize) -> usize {
    match d.is_depthwise() {
        true => depthwise::scratch_len(&d.conv, d.dtype, d.input_len()),
        false => d.scratch_len(super::forward_scratch_len(&d.one(), threads)),
    }
}

/// As [`super::forward`], in groups.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn forward<'a>(
    ctx: Ctx<'_>,
    d: &GroupedDesc,
    x: impl Into<TypedSlice<'a>>,
    w: impl Into<TypedSlice<'a>>,
    y: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let [x, w] = d.typed([x.into(), w.into()]);
    if d.is_depthwise() {
        return depthwise::forward(ctx, &d.conv, x, w, y, scratch, epilogue);
    }
    let product = Product {
        operands: [(d.input(), x, "input"), (d.weights(), w, "weights")],
        result: (d.output(), y.checked_whole(d.output().len(), "output")),
        own_scratch: super::forward_scratch_len(&d.one(), ctx.pool.threads()),
    };
    product.run(ctx, scratch, |x, w, y, scratch| super::forward(ctx, &d.one(), x, w, Output::new(y), scratch, None));
    deliver(ctx, d.output(), forward_row_blocks(d), epilogue);
}

/// The row blocks that [`data_grad`] delivers to its epilogue; rows are input pixels.
pub fn data_grad_row_blocks(d: &GroupedDesc) -> RowBlocks {
    if d.is_depthwise() { depthwise::data_grad_row_blocks(&d.conv) } else { row_blocks_for(d.input().rows, 1, 1) }
}

/// Scratch elements of [`data_grad`] with `threads` threads.
pub fn data_grad_scratch_len(d: &GroupedDesc, threads: usize) -> usize {
    match d.is_depthwise() {
        true => depthwise::scratch_len(&d.conv, d.dtype, d.output_len()),
        false => d.scratch_len(super::data_grad_scratch_len(&d.one(), threads)),
    }
}

/// As [`super::data_grad`], in groups.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn data_grad<'a>(
    ctx: Ctx<'_>,
    d: &GroupedDesc,
    dy: impl Into<TypedSlice<'a>>,
    w: impl Into<TypedSlice<'a>>,
    dx: Output<'_>,
    scratch: &mut [f32],
    epilogue: Option<&dyn Epilogue>,
) {
    let [dy, w] = d.typed([dy.into(), w.into()]);
    if d.is_depthwise() {
        return depthwise::data_grad(ctx, &d.conv, dy, w, dx, scratch, epilogue);
    }
    let product = Product {
        operands: [(d.output(), dy, "output gradient"), (d.weights(), w, "weights")],
        result: (d.input(), dx.checked_whole(d.input().len(), "input gradient")),
        own_scratch: super::data_grad_scratch_len(&d.one(), ctx.pool.threads()),
    };
    product
        .run(ctx, scratch, |dy, w, dx, scratch| super::data_grad(ctx, &d.one(), dy, w, Output::new(dx), scratch, None));
    deliver(ctx, d.input(), data_grad_row_blocks(d), epilogue);
}

/// Scratch elements of [`weight_grad`] with `threads` threads.
pub fn weight_grad_scratch_len(d: &GroupedDesc, threads: usize) -> usize {
    if d.is_depthwise() {
        depthwise::weight_grad_scratch_len(&d.conv, d.dtype)
    } else {
        d.scratch_len(super::weight_grad_scratch_len(&d.one(), DType::F32, threads))
    }
}

/// As [`super::weight_grad`], in groups.
///
/// # Panics
/// When a slice is shorter than `d` needs.
pub fn weight_grad<'a>(
    ctx: Ctx<'_>,
    d: &GroupedDesc,
    x: impl Into<TypedSlice<'a>>,
    dy: impl Into<TypedSlice<'a>>,
    dw: Output<'_>,
    scratch: &mut [f32],
) {
    let [x, dy] = d.typed([x.into(), dy.into()]);
    if d.is_depthwise() {
        return depthwise::weight_grad(ctx, &d.conv, x, dy, dw, scratch);
    }
    let product = Product {
        operands: [(d.input(), x, "input"), (d.output(), dy, "output gradient")],
        result: (d.weights(), dw.checked_whole(d.weights().len(), "weight gradient")),
        own_scratch: super::weight_grad_scratch_len(&d.one(), DType::F32, ctx.pool.threads()),
    };
    product.run(ctx, scratch, |x, dy, dw, scratch| super::weight_grad(ctx, &d.one(), x, dy, Output::new(dw), scratch));
}

/// The shape `[rows, groups, width]` of a tensor.
#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    groups: usize,
    width: usize,
}

impl Shape {
    fn len(&self) -> usize {
        self.rows * self.groups * self.width
    }

    /// Elements of one group.
    fn group_len(&self) -> usize {
        self.rows * self.width
    }

    /// Calls `f(position in the tensor, position in a dense copy of the group)` for the rows of a group, in tasks.
    fn for_rows(&self, ctx: Ctx<'_>, group: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        let rows = (CHUNK / self.width.max(1)).max(1);
        ctx.pool.run(self.rows.div_ceil(rows), &|task, _worker| {
            for row in task * rows..self.rows.min((task + 1) * rows) {
                f((row * self.groups + group) * self.width, row * self.width);
            }
        });
    }
}

/// A product of tensors in groups.
struct Product<'a> {
    /// Shape, elements, and name for errors.
    operands: [(Shape, TypedSlice<'a>, &'static str); 2],
    result: (Shape, SharedMut),
    /// Scratch elements of the product of one group.
    own_scratch: usize,
}

impl Product<'_> {
    /// Calls `multiply(operand, operand, result, scratch)` for each group with dense copies as `f32`.
    fn run(&self, ctx: Ctx<'_>, scratch: &mut [f32], multiply: impl Fn(&[f32], &[f32], &mut [f32], &mut [f32])) {
        let (shape, result) = self.result;
        let mut scratch = Scratch::new(scratch, 0);
        let mut piece = |len: usize| {
            let piece = scratch.take(len);
            // SAFETY: pieces of the scratch do not overlap.
            unsafe { std::slice::from_raw_parts_mut(piece.0, len) }
        };
        let [a, b] = self.operands.map(|(shape, ..)| piece(shape.group_len()));
        let (c, own) = (piece(shape.group_len()), piece(self.own_scratch));
        for group in 0..shape.groups {
            for ((shape, operand, name), dense) in self.operands.iter().zip([&mut *a, &mut *b]) {
                let (operand, dense) = (operand.checked(shape.len(), name), SharedMut(dense.as_mut_ptr()));
                shape.for_rows(ctx, group, &|from, to| {
                    // SAFETY: both sides have the row; the rows of the copy are written once each.
                    unsafe {
                        operand.add(from).widen(std::slice::from_raw_parts_mut(dense.add(to).0, shape.width));
                    }
                });
            }
            multiply(a, b, c, own);
            shape.for_rows(ctx, group, &|to, from| {
                // SAFETY: as above.
                unsafe { result.add(to).0.copy_from_nonoverlapping(c[from..].as_ptr(), shape.width) }
            });
        }
    }
}

/// Delivers a finished result to an epilogue.
fn deliver(ctx: Ctx<'_>, shape: Shape, blocks: RowBlocks, epilogue: Option<&dyn Epilogue>) {
    let Some(epilogue) = epilogue else { return };
    ctx.pool.run(blocks.count, &|block, worker| {
        epilogue.block(worker, block, blocks.range(block, shape.rows), 0..shape.groups * shape.width);
    });
}
