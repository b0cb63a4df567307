//! Attention and its gradient: in one pass by kernels of this program, on tensor cores, where operands and sizes allow that, else products of
//! matrices with regions between them.

use super::product::ProductTarget;
use super::{Lowered, Place, Unsupported, region};
use crate::kernels::MOST_ELEMENTS;
use crate::kernels::attention::{Operands, tensor_cores};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionGrad, Geometry};
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, TensorType};
use std::ops::Range;

/// Whether an attention is made of products of matrices, or its gradient is.
pub(crate) fn is_of_products(of: &Attention, types: &[&TensorType], is_gradient: bool) -> bool {
    let kernels = if is_gradient { tensor_cores::Kernels::of_gradient } else { tensor_cores::Kernels::new };
    operands(of, types).ok().and_then(kernels).is_none()
}

fn operands<'a>(attention: &'a Attention, types: &[&TensorType]) -> Result<Operands<'a>, Unsupported> {
    let sizes = attention.geometry(&types[0].shape, &types[1].shape)?;
    Ok(Operands { attention, sizes, ty: types[0].dtype })
}

/// Inputs of the node by number, then these places, then the counter, the last input, where there is one.
fn places(of: &Attention, inputs: &[usize], then: &[Place], counter: usize) -> Vec<Place> {
    let inputs = inputs.iter().map(|&input| Place::Input(input)).chain(then.iter().copied());
    inputs.chain(of.dropout.map(|_| Place::Input(counter))).collect()
}

/// # Errors
/// There are too many probabilities.
pub(super) fn forward(of: &Attention, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let own = operands(of, types)?;
    let (flops, counter) = (of.product_flops(types), types.len() - 1);
    let Some(kernels) = tensor_cores::Kernels::new(own) else {
        let name = "attention by products of matrices".to_owned();
        return Ok(Lowered { name, flops, ..Products::new(own)?.forward(counter)? });
    };
    let mut lowered = Lowered { flops, ..Lowered::named("attention") };
    let outputs: Vec<Place> = (0..2 + usize::from(of.keeps_mask())).map(Place::Output).collect();
    lowered.launch(kernels.forward(), places(of, &[0, 1, 2, 3], &outputs, counter));
    Ok(lowered)
}

/// # Errors
/// There are too many probabilities.
pub(super) fn gradient(of: &AttentionGrad, types: &[&TensorType]) -> Result<Lowered, Unsupported> {
    let own = operands(&of.attention, types)?;
    let (flops, counter, dout) = (of.product_flops(types), types.len() - 1, of.dout());
    let Some(kernels) = tensor_cores::Kernels::of_gradient(own) else {
        let name = "gradient of attention by products of matrices".to_owned();
        return Ok(Lowered { name, flops, ..Products::new(own)?.gradient(counter)? });
    };
    let mut lowered = Lowered { flops, ..Lowered::named("gradient of attention") };
    let [dq, dk, dv] = [0, 1, 2].map(Place::Output);
    let means = lowered.scratch_of(DType::F32, own.sizes.row_shape().elements());
    let rounded = kernels.rounds_gradient().then(|| lowered.scratch_of(own.ty, own.sizes.q_shape().elements()));
    let inputs = |numbers: Range<usize>| numbers.map(Place::Input);
    let of_queries: Vec<Place> = inputs(0..dout + 1).chain([dq, means]).chain(rounded).collect();
    lowered.launch(kernels.of_queries(), of_queries);
    // The log-sums, and the mask where there is one.
    let of_rows = inputs(5..dout);
    let dy = rounded.unwrap_or(Place::Input(dout));
    let of_keys: Vec<Place> = inputs(0..4).chain(of_rows).chain([means, dy, dk, dv]).collect();
    lowered.launch(kernels.of_keys(), of_keys);
    Ok(lowered)
}

/// Axes of positions and heads in each other's place.
const SWAPPED: [usize; 4] = [0, 2, 1, 3];

/// An attention as products of `f32` matrices, one for each batch item and head, with its probabilities in memory.
struct Products<'a> {
    of: Operands<'a>,
    lowered: Lowered,
}

/// `f32[B * heads, rows, columns]`, in scratch memory.
struct Matrices {
    place: Place,
    ty: TensorType,
}

impl<'a> Products<'a> {
    /// # Errors
    /// There are too many probabilities.
    fn new(of: Operands<'a>) -> Result<Self, Unsupported> {
        if of.attention.keeps_mask() {
            return Err(Unsupported::Operands { expected: "bf16 or f16, where the mask is kept", actual: of.ty });
        }
        match of.sizes.row_shape().elements() * of.sizes.keys {
            elements if elements >= MOST_ELEMENTS => Err(Unsupported::Elements { elements }),
            _ => Ok(Products { of, lowered: Lowered::default() }),
        }
    }

    /// An input `[B, positions, heads * D]` of type `ty` as a matrix `[positions, D]` for each head.
    fn by_heads(&mut self, input: usize, ty: DType, positions: usize) -> Matrices {
        let Geometry { batch, heads, depth, .. } = self.of.sizes;
        let to = TensorType::f32([batch * heads, positions, depth]);
        let place = self.lowered.scratch(to.bytes());
        let from = TensorType::new(ty, [batch, positions, heads, depth]);
        self.lowered.permute_into(Place::Input(input), &from, &SWAPPED, place, DType::F32);
        Matrices { place, ty: to }
    }

    /// Queries, keys and values.
    fn operands(&mut self) -> [Matrices; 3] {
        let (ty, Geometry { queries, keys, .. }) = (self.of.ty, self.of.sizes);
        [(0, queries), (1, keys), (2, keys)].map(|(input, positions)| self.by_heads(input, ty, positions))
    }

    /// Matrices `[positions, D]` as an output `[B, positions, heads * D]`.
    fn give(&mut self, from: &Matrices, output: usize) {
        let Geometry { batch, heads, depth, .. } = self.of.sizes;
        let ty = TensorType::f32([batch, heads, from.ty.shape[1], depth]);
        let to = self.of.attention.output;
        self.lowered.permute_into(from.place, &ty, &SWAPPED, Place::Output(output), to);
    }

    fn product(&mut self, [trans_a, trans_b]: [bool; 2], a: &Matrices, b: &Matrices) -> Result<Matrices, Unsupported> {
        let (op, types) = (Matmul { trans_a, trans_b }, [&a.ty, &b.ty]);
        let of = op.geometry(&a.ty.shape, &b.ty.shape)?;
        let target = ProductTarget::F32(None);
        let (place, _) = self.lowered.matmul(&op, &types, &[a.place, b.place], target)?;
        Ok(Matrices { place, ty: TensorType::f32([of.batch, of.m, of.n]) })
    }

    /// Launches a region that may write to what it reads element by element.
    fn region(&mut self, fusion: &Fusion, inputs: &[Place], outputs: &[Place]) -> Result<(), Unsupported> {
        let mut types = vec![DType::F32; fusion.loads.len()];
        if let (Some(_), Some(counter)) = (self.of.attention.dropout, types.last_mut()) {
            *counter = DType::I32;
        }
        region::launch(&mut self.lowered, fusion, &types, inputs, outputs)
    }

    fn forward(mut self, counter: usize) -> Result<Lowered, Unsupported> {
        let [q, k, v] = self.operands();
        let p = self.product([false, true], &q, &k)?;
        let inputs = [&[p.place][..], &places(self.of.attention, &[3], &[], counter)].concat();
        self.region(&softmax(self.of.attention, self.of.sizes), &inputs, &[p.place, Place::Output(1)])?;
        let y = self.product([false, false], &p, &v)?;
        self.give(&y, 0);
        Ok(self.lowered)
    }

    fn gradient(mut self, counter: usize) -> Result<Lowered, Unsupported> {
        let [q, k, v] = self.operands();
        let dy = self.by_heads(6, self.of.attention.output, self.of.sizes.queries);
        let p = self.product([false, true], &q, &k)?;
        let ds = self.product([false, true], &dy, &v)?;
        let inputs = [&[p.place][..], &places(self.of.attention, &[3, 5], &[ds.place], counter)].concat();
        self.region(&softmax_gradient(self.of.attention, self.of.sizes), &inputs, &[p.place, ds.place])?;
        let dq = self.product([false, false], &ds, &k)?;
        let dk = self.product([true, false], &ds, &q)?;
        let dv = self.product([true, false], &p, &dy)?;
        [dq, dk, dv].iter().enumerate().for_each(|(output, gradient)| self.give(gradient, output));
        Ok(self.lowered)
    }
}

/// From products of queries and keys, and the bias, to what values are multiplied by, and the log-sums; the counter is the last input.
pub(crate) fn softmax(of: &Attention, sizes: Geometry) -> Fusion {
    let mut rows = Rows::new(of, sizes, &[]);
    let score = rows.score();
    let most = rows.push(Instr::Reduce(ReduceKind::Max, score));
    let distance = rows.binary(BinaryKind::Sub, score, most);
    let share = rows.push(Instr::Unary(UnaryKind::Exp, distance));
    let sum = rows.push(Instr::Reduce(ReduceKind::Sum, share));
    let probability = rows.binary(BinaryKind::Div, share, sum);
    let factor = rows.factor();
    let kept = rows.times(probability, factor);
    let log = rows.push(Instr::Unary(UnaryKind::Log, sum));
    let log_sum = rows.binary(BinaryKind::Add, most, log);
    let ty = TensorType::f32([rows.fusion.rows]);
    rows.storing(&[kept], [FusionOutput::Rows { reg: log_sum, ty }])
}

/// From products of queries and keys, the bias, log-sums, and gradients of what values are multiplied by to what values are multiplied by,
/// and the gradients of the products; the counter is the last input.
pub(crate) fn softmax_gradient(of: &Attention, sizes: Geometry) -> Fusion {
    let rows = sizes.row_shape().elements();
    let by_row = IndexMap { row_div: 1, row_mod: rows, by_col: false };
    let mut rows = Rows::new(of, sizes, &[by_row, IndexMap::full(rows)]);
    let score = rows.score();
    let (log_sum, dp) = (rows.push(Instr::Load(2)), rows.push(Instr::Load(3)));
    let distance = rows.binary(BinaryKind::Sub, score, log_sum);
    let probability = rows.push(Instr::Unary(UnaryKind::Exp, distance));
    let factor = rows.factor();
    let kept = rows.times(probability, factor);
    let of_probability = rows.times(dp, factor);
    let share = rows.binary(BinaryKind::Mul, probability, of_probability);
    let mean = rows.push(Instr::Reduce(ReduceKind::Sum, share));
    let distance = rows.binary(BinaryKind::Sub, of_probability, mean);
    let scale = rows.constant(of.scale.0);
    let scaled = rows.binary(BinaryKind::Mul, probability, scale);
    let ds = rows.binary(BinaryKind::Mul, scaled, distance);
    rows.storing(&[kept, ds], [])
}

/// A region over scores, `[B * heads * Sq, Sk]`, while it is written.
struct Rows<'a> {
    of: &'a Attention,
    fusion: Fusion,
}

impl Rows<'_> {
    /// Its inputs are the products of queries and keys, the bias, then these, then the counter where there is dropout.
    fn new<'a>(of: &'a Attention, sizes: Geometry, then: &[IndexMap]) -> Rows<'a> {
        let rows = sizes.row_shape().elements();
        let bias = IndexMap { row_div: sizes.heads * sizes.queries, row_mod: sizes.batch, by_col: true };
        let counter = of.dropout.map(|_| IndexMap::SCALAR);
        let loads = [IndexMap::full(rows), bias].into_iter().chain(then.iter().copied()).chain(counter).collect();
        let (program, outputs) = Default::default();
        Rows { of, fusion: Fusion { producer: None, rows, cols: sizes.keys, loads, program, outputs } }
    }

    fn push(&mut self, instr: Instr) -> Reg {
        self.fusion.program.push(instr);
        self.fusion.program.len() as Reg - 1
    }

    fn constant(&mut self, number: f64) -> Reg {
        self.push(Instr::Const(Scalar(number)))
    }

    fn binary(&mut self, kind: BinaryKind, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Binary(kind, a, b))
    }

    /// `product * scale + bias`
    fn score(&mut self) -> Reg {
        let (product, scale) = (self.push(Instr::Load(0)), self.constant(self.of.scale.0));
        let scaled = self.binary(BinaryKind::Mul, product, scale);
        let bias = self.push(Instr::Load(1));
        self.binary(BinaryKind::Add, scaled, bias)
    }

    /// What dropout multiplies by.
    fn factor(&mut self) -> Option<Reg> {
        let dropout = self.of.dropout?;
        let step = self.fusion.loads.len() as u16 - 1;
        let drawn = self.push(Instr::Random { seed: dropout.seed, stream: dropout.stream, step });
        let rate = self.constant(f64::from(dropout.rate.0 as f32));
        let is_kept = self.binary(BinaryKind::Ge, drawn, rate);
        let (gain, nothing) = (self.constant(1.0 / (1.0 - dropout.rate.0)), self.constant(0.0));
        Some(self.push(Instr::Select(is_kept, gain, nothing)))
    }

    fn times(&mut self, a: Reg, factor: Option<Reg>) -> Reg {
        factor.map_or(a, |factor| self.binary(BinaryKind::Mul, a, factor))
    }

    /// The region with these outputs: scores of these registers, then others.
    fn storing<const N: usize>(self, scores: &[Reg], then: [FusionOutput; N]) -> Fusion {
        let ty = TensorType::f32([self.fusion.rows, self.fusion.cols]);
        let stored = scores.iter().map(|&reg| FusionOutput::Store { reg, ty: ty.clone() });
        Fusion { outputs: stored.chain(then).collect(), ..self.fusion }
    }
}
