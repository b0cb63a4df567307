//! Operations that move elements: each is a copy from one arrangement to another.

use super::{Lowered, Place, Step};
use crate::kernels::copies::{Arrangement, copy};
use bessemer_ir::ops::layout::{Broadcast, Concat, Pad, Slice, Transpose};
use bessemer_ir::ops::pool::Upsample;
use bessemer_ir::{DType, Shape, TensorType};

fn dense(ty: &TensorType) -> Arrangement {
    Arrangement::dense(ty.dtype, &ty.shape)
}

fn one(sizes: &[usize], from: &Arrangement, to: &Arrangement) -> Lowered {
    Lowered::one("strided copy", 1, copy(sizes, from, to))
}

/// The elements of a tensor with its axes in the order `perm`.
fn permuted(ty: &TensorType, perm: &[usize]) -> (Shape, Arrangement) {
    let (shape, from) = (&ty.shape, dense(ty));
    let sizes: Vec<usize> = perm.iter().map(|&axis| shape[axis]).collect();
    let strides = perm.iter().map(|&axis| from.strides[axis]).collect();
    (sizes.into(), Arrangement { strides, ..from })
}

pub(super) fn transpose(op: &Transpose, types: &[&TensorType]) -> Lowered {
    let (sizes, from) = permuted(types[0], &op.perm);
    one(&sizes, &from, &Arrangement::dense(from.ty, &sizes))
}

pub(super) fn slice(op: &Slice, types: &[&TensorType], output: &TensorType) -> Lowered {
    let from = dense(types[0]);
    let first = op.start.iter().zip(&from.strides).map(|(start, stride)| start * stride).sum();
    let strides = op.step.iter().zip(&from.strides).map(|(step, stride)| step * stride).collect();
    one(&output.shape, &Arrangement { first, strides, ..from }, &dense(output))
}

pub(super) fn broadcast(op: &Broadcast, types: &[&TensorType]) -> Lowered {
    let (from, to) = (dense(types[0]), Arrangement::dense(types[0].dtype, &op.shape));
    let missing = op.shape.rank() - types[0].shape.rank();
    let stride = |axis: usize| match axis.checked_sub(missing) {
        Some(own) if types[0].shape[own] != 1 => from.strides[own],
        _ => 0,
    };
    let strides = (0..op.shape.rank()).map(stride).collect();
    one(&op.shape, &Arrangement { strides, ..from }, &to)
}

pub(super) fn pad(op: &Pad, types: &[&TensorType], output: &TensorType) -> Lowered {
    let to = dense(output);
    let first = op.low.iter().zip(&to.strides).map(|(low, stride)| low * stride).sum();
    let strides = op.interior.iter().zip(&to.strides).map(|(between, stride)| (between + 1) * stride).collect();
    let mut lowered = Lowered::named("strided copy into zeros");
    lowered.steps.push(Step::Zero(Place::Output(0)));
    let kernel = copy(&types[0].shape, &dense(types[0]), &Arrangement { first, strides, ..to });
    lowered.launch(kernel, [Place::Input(0), Place::Output(0)]);
    lowered
}

pub(super) fn concat(op: &Concat, types: &[&TensorType], output: &TensorType) -> Lowered {
    let mut lowered = Lowered::named("strided copies");
    let mut start = 0;
    for (number, part) in types.iter().enumerate() {
        let to = dense(output);
        let kernel = copy(&part.shape, &dense(part), &Arrangement { first: start * to.strides[op.axis], ..to });
        lowered.launch(kernel, [Place::Input(number), Place::Output(0)]);
        start += part.shape[op.axis];
    }
    lowered
}

pub(super) fn upsample(op: &Upsample, types: &[&TensorType], output: &TensorType) -> Lowered {
    let (from, to) = (dense(types[0]), dense(output));
    let (shape, [down, across]) = (&types[0].shape, op.factors);
    let sizes = [shape[0], shape[1], down, shape[2], across, shape[3]];
    let x = &from.strides;
    let strides = vec![x[0], x[1], 0, x[2], 0, x[3]];
    let split = Shape::from(sizes);
    one(&sizes, &Arrangement { strides, ..from }, &Arrangement { strides: split.strides(), ..to })
}

impl Lowered {
    /// The tensor with its axes in the order `perm`, in scratch memory.
    pub(super) fn permute(&mut self, from: Place, ty: &TensorType, perm: &[usize]) -> Place {
        let to = self.scratch(ty.bytes());
        self.permute_into(from, ty, perm, to, ty.dtype);
        to
    }

    /// As [`Lowered::permute`], into memory of elements of type `to_type`.
    pub(super) fn permute_into(&mut self, from: Place, ty: &TensorType, perm: &[usize], to: Place, to_type: DType) {
        let (sizes, arrangement) = permuted(ty, perm);
        self.launch(copy(&sizes, &arrangement, &Arrangement::dense(to_type, &sizes)), [from, to]);
    }

    /// An image `[N, H, W, C]` with zeros around it, in scratch memory.
    pub(super) fn padded(&mut self, from: Place, ty: &TensorType, padded: [usize; 4], low: [usize; 2]) -> Place {
        let to = TensorType::new(ty.dtype, padded);
        let place = self.scratch(to.bytes());
        self.steps.push(Step::Zero(place));
        self.launch(copy(&ty.shape, &dense(ty), &inside(&to, low)), [from, place]);
        place
    }

    /// The image of this type that [`Lowered::padded`] puts zeros around.
    pub(super) fn unpadded(&mut self, from: Place, padded: &TensorType, low: [usize; 2], to: Place, ty: &TensorType) {
        self.launch(copy(&ty.shape, &inside(padded, low), &dense(ty)), [from, to]);
    }
}

/// The inner part of an image, which begins at a row and a column.
fn inside(ty: &TensorType, low: [usize; 2]) -> Arrangement {
    let all = dense(ty);
    Arrangement { first: low[0] * all.strides[1] + low[1] * all.strides[2], ..all }
}
