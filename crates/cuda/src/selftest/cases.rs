//! Kernels of every kind that the generator makes, on shapes that reach every path of theirs, and those of single operations.

use super::case::{Case, Expected, tolerance};
use super::{attention, operations, plain};
use crate::kgen::{AdamW, KernelError, Launch, Operand, STEP_NUMBERS, Segment};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, philox};
use half::{bf16, f16};

/// How large the cases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// To compare numbers.
    Small,
    /// To measure time: some 10^8 bytes.
    Large,
}

impl Size {
    pub(super) fn pick<T>(self, small: T, large: T) -> T {
        if self == Size::Small { small } else { large }
    }
}

/// A fusion while it is written, with its inputs.
struct Program {
    size: Size,
    fusion: Fusion,
    inputs: Vec<Tensor>,
}

impl Program {
    fn new(size: Size, rows: usize, cols: usize) -> Program {
        let (loads, program, outputs) = Default::default();
        Program { size, fusion: Fusion { producer: None, rows, cols, loads, program, outputs }, inputs: Vec::new() }
    }

    fn push(&mut self, instr: Instr) -> Reg {
        self.fusion.program.push(instr);
        (self.fusion.program.len() - 1) as Reg
    }

    fn input(&mut self, index_map: IndexMap, ty: DType, f: impl FnMut(usize) -> f64) -> Reg {
        let elements = index_map.elements(self.fusion.cols);
        self.inputs.push(Tensor::from_fn(TensorType::new(ty, [elements]), f));
        self.fusion.loads.push(index_map);
        self.push(Instr::Load((self.inputs.len() - 1) as u16))
    }

    /// Standard normal numbers, others for every input; large ones repeat.
    fn normal(&mut self, index_map: IndexMap, ty: DType) -> Reg {
        const PERIOD: usize = 100_003;
        let stream = self.inputs.len() as u32;
        let elements = index_map.elements(self.fusion.cols);
        let first: Vec<f64> =
            (0..elements.min(PERIOD)).map(|i| philox::normal(1, 0, stream, i as u64).into()).collect();
        self.input(index_map, ty, |i| first[i % PERIOD])
    }

    fn full(&mut self, ty: DType) -> Reg {
        self.normal(IndexMap::full(self.fusion.rows), ty)
    }

    /// A number for each column.
    fn vector(&mut self, ty: DType) -> Reg {
        self.normal(IndexMap { row_div: 1, row_mod: 1, by_col: true }, ty)
    }

    fn constant(&mut self, x: f64) -> Reg {
        self.push(Instr::Const(Scalar(x)))
    }

    fn unary(&mut self, kind: UnaryKind, x: Reg) -> Reg {
        self.push(Instr::Unary(kind, x))
    }

    fn binary(&mut self, kind: BinaryKind, a: Reg, b: Reg) -> Reg {
        self.push(Instr::Binary(kind, a, b))
    }

    fn store(&mut self, reg: Reg, dtype: DType) {
        let ty = TensorType::new(dtype, [self.fusion.rows, self.fusion.cols]);
        self.fusion.outputs.push(FusionOutput::Store { reg, ty });
    }

    fn rows(&mut self, reg: Reg) {
        self.fusion.outputs.push(FusionOutput::Rows { reg, ty: TensorType::f32([self.fusion.rows]) });
    }

    fn sum(&mut self, reg: Reg, groups: usize) {
        self.fusion.outputs.push(FusionOutput::Sum { reg, groups, shape: [groups, self.fusion.cols].to_vec().into() });
    }

    fn case(self, name: &str) -> Result<Case, KernelError> {
        Case::fusion(name, &self.fusion, self.inputs, self.size == Size::Small)
    }
}

/// Makes one case.
pub type Maker = fn(Size) -> Result<Case, KernelError>;

/// What makes the cases of this size, so that one at a time is in memory.
pub fn makers(size: Size) -> Vec<Maker> {
    let both: [Maker; 10] = [
        |size| bias_gelu_residual(size, size.pick([60, 64], [16384, 768])),
        |size| layer_norm("layer_norm", size, size.pick([37, 768], [16384, 768])),
        |size| softmax("softmax", size, DType::F32, size.pick([9, 300], [32768, 512])),
        |size| whole_sums("whole_sums", size, size.pick(40_003, 16_000_000)),
        |size| column_sums("column_sums", size, size.pick([333, 40], [16384, 768]), [1, size.pick(3, 4)]),
        |size| column_sums("column_sums_at_once", size, size.pick([999, 40], [32 * 32 * 32, 64]), [size.pick(3, 4); 2]),
        |size| layer_norm_gradient("layer_norm_gradient", size, size.pick([37, 768], [16384, 768]), 1),
        |size| moments("moments", size, size.pick([333, 40], [256 * 28 * 28, 256]), size.pick(3, 4)),
        |size| moments("moments_at_once", size, size.pick([999, 40], [32 * 32 * 32, 64]), 1),
        |size| Ok(adamw(size.pick(3000, 8_000_000))),
    ];
    let small: [Maker; 13] = [
        |size| whole_sums("whole_sums_of_a_block", size, 1003),
        |size| column_sums("column_sums_narrow", size, [2100, 7], [1, 1]),
        |size| column_sums("column_sums_of_a_block", size, [20, 40], [1, 1]),
        flat,
        |size| one_hot_of_a_row("one_hot_of_a_row", size, 64),
        |size| one_hot_of_a_row("one_hot_of_an_odd_row", size, 33),
        row_bias,
        |size| layer_norm_gradient("layer_norm_gradient_short", size, [150, 72], 3),
        |size| layer_norm("layer_norm_short", size, [50, 64]),
        |size| softmax("softmax_long", size, DType::Bf16, [1, 8800]),
        |size| softmax("softmax_read_again", size, DType::F32, [2, 4099]),
        every_function,
        conversions,
    ];
    let more = if size == Size::Small { &small[..] } else { &[] };
    let plain = if size == Size::Small { plain::makers().to_vec() } else { Vec::new() };
    let others = attention::makers(size).into_iter().chain(operations::makers(size)).chain(plain);
    both.iter().chain(more).copied().chain(others).collect()
}

/// All small cases.
///
/// # Errors
/// The generator refuses one of them.
pub fn small_cases() -> Result<Vec<Case>, KernelError> {
    makers(Size::Small).into_iter().map(|make| make(Size::Small)).collect()
}

/// `residual + gelu(x + bias)` in its tanh form, which is what follows the first product of a feed-forward layer.
fn bias_gelu_residual(size: Size, [rows, cols]: [usize; 2]) -> Result<Case, KernelError> {
    use BinaryKind::{Add, Mul};
    let mut p = Program::new(size, rows, cols);
    let (x, bias, residual) = (p.full(DType::Bf16), p.vector(DType::F32), p.full(DType::Bf16));
    let x = p.binary(Add, x, bias);
    let (square, cubic, root, half, one) = (
        p.unary(UnaryKind::Square, x),
        p.constant(0.044715),
        p.constant(0.797_884_560_8),
        p.constant(0.5),
        p.constant(1.0),
    );
    let cubed = p.binary(Mul, square, x);
    let scaled = p.binary(Mul, cubed, cubic);
    let sum = p.binary(Add, scaled, x);
    let inner = p.binary(Mul, sum, root);
    let tanh = p.unary(UnaryKind::Tanh, inner);
    let gate = p.binary(Add, tanh, one);
    let product = p.binary(Mul, gate, x);
    let gelu = p.binary(Mul, product, half);
    let y = p.binary(Add, gelu, residual);
    p.store(y, DType::Bf16);
    p.case("bias_gelu_residual")
}

/// Elements that are no whole number of vectors, and one number for all.
fn flat(size: Size) -> Result<Case, KernelError> {
    let mut p = Program::new(size, 7, 33);
    let (x, scale) = (p.full(DType::F32), p.normal(IndexMap::SCALAR, DType::F32));
    let product = p.binary(BinaryKind::Mul, x, scale);
    let y = p.unary(UnaryKind::Relu, product);
    p.store(y, DType::F32);
    p.case("flat")
}

/// One row, whose columns differ all the same.
fn one_hot_of_a_row(name: &str, size: Size, cols: usize) -> Result<Case, KernelError> {
    let mut p = Program::new(size, 1, cols);
    let (x, class) = (p.full(DType::F32), p.input(IndexMap::SCALAR, DType::I32, |_| 29.0));
    let one_hot = p.push(Instr::OneHot(class));
    let y = p.binary(BinaryKind::Sub, x, one_hot);
    p.store(y, DType::F32);
    p.case(name)
}

/// A number for each row, and for each of several runs of rows, where columns are no whole number of vectors.
fn row_bias(size: Size) -> Result<Case, KernelError> {
    let mut p = Program::new(size, 12, 7);
    let x = p.full(DType::F16);
    let per_row = p.normal(IndexMap { row_div: 1, row_mod: 12, by_col: false }, DType::F32);
    let per_run = p.normal(IndexMap { row_div: 3, row_mod: 2, by_col: true }, DType::F16);
    let sum = p.binary(BinaryKind::Add, x, per_row);
    let y = p.binary(BinaryKind::Mul, sum, per_run);
    p.store(y, DType::F16);
    p.case("row_bias")
}

/// Layer norm with its mean and its reciprocal deviation.
fn layer_norm(name: &str, size: Size, [rows, cols]: [usize; 2]) -> Result<Case, KernelError> {
    use BinaryKind::{Add, Mul, Sub};
    let mut p = Program::new(size, rows, cols);
    let (x, scale, shift) = (p.full(DType::Bf16), p.vector(DType::F32), p.vector(DType::F32));
    let (share, eps) = (p.constant(1.0 / cols as f64), p.constant(1e-5));
    let sum = p.push(Instr::Reduce(ReduceKind::Sum, x));
    let mean = p.binary(Mul, sum, share);
    let centred = p.binary(Sub, x, mean);
    let square = p.unary(UnaryKind::Square, centred);
    let squares = p.push(Instr::Reduce(ReduceKind::Sum, square));
    let variance = p.binary(Mul, squares, share);
    let guarded = p.binary(Add, variance, eps);
    let deviation = p.unary(UnaryKind::Rsqrt, guarded);
    let normal = p.binary(Mul, centred, deviation);
    let scaled = p.binary(Mul, normal, scale);
    let y = p.binary(Add, scaled, shift);
    p.store(y, DType::Bf16);
    p.rows(mean);
    p.rows(deviation);
    p.case(name)
}

/// A tensor times a number, in `f16`, the sum of its squares and that of its elements.
fn whole_sums(name: &str, size: Size, elements: usize) -> Result<Case, KernelError> {
    let mut p = Program::new(size, elements, 1);
    let x = p.full(DType::F32);
    let factor = p.input(IndexMap::SCALAR, DType::F32, |_| 0.75);
    let scaled = p.binary(BinaryKind::Mul, x, factor);
    let square = p.unary(UnaryKind::Square, scaled);
    p.store(scaled, DType::F16);
    p.sum(square, 1);
    p.sum(scaled, 1);
    p.case(name)
}

/// Gradients of layer norm: of its input along rows, of scale and shift over them, the latter for each of `groups` runs.
fn layer_norm_gradient(name: &str, size: Size, [rows, cols]: [usize; 2], groups: usize) -> Result<Case, KernelError> {
    use BinaryKind::{Mul, Sub};
    let mut p = Program::new(size, rows, cols);
    let (x, dy, scale) = (p.full(DType::Bf16), p.full(DType::Bf16), p.vector(DType::F32));
    let of_row = IndexMap { row_div: 1, row_mod: rows, by_col: false };
    let (mean, deviation) = (p.normal(of_row, DType::F32), p.normal(of_row, DType::F32));
    let share = p.constant(1.0 / cols as f64);
    let centred = p.binary(Sub, x, mean);
    let normal = p.binary(Mul, centred, deviation);
    let scaled = p.binary(Mul, dy, scale);
    let along = p.binary(Mul, scaled, normal);
    let sum = p.push(Instr::Reduce(ReduceKind::Sum, scaled));
    let sum_along = p.push(Instr::Reduce(ReduceKind::Sum, along));
    let (first, second) = (p.binary(Mul, sum, share), p.binary(Mul, sum_along, share));
    let part = p.binary(Mul, normal, second);
    let rest = p.binary(Sub, scaled, first);
    let rest = p.binary(Sub, rest, part);
    let dx = p.binary(Mul, rest, deviation);
    let dscale = p.binary(Mul, dy, normal);
    p.store(dx, DType::Bf16);
    p.sum(dscale, 1);
    p.rows(first);
    p.sum(dy, groups);
    p.case(name)
}

/// Mean and variance over rows, which batch norm needs, of numbers that lie far from 0, beside those of their squares, a
/// sum for each of `groups` runs of rows and a store.
fn moments(name: &str, size: Size, [rows, cols]: [usize; 2], groups: usize) -> Result<Case, KernelError> {
    let mut p = Program::new(size, rows, cols);
    let (x, far) = (p.full(DType::F32), p.constant(100.0));
    let x = p.binary(BinaryKind::Add, x, far);
    let (square, negative) = (p.unary(UnaryKind::Square, x), p.unary(UnaryKind::Neg, x));
    let moments = |p: &mut Program, reg| {
        p.fusion.outputs.push(FusionOutput::MeanVar { reg, shape: [p.fusion.cols].to_vec().into() });
    };
    p.store(negative, DType::Bf16);
    moments(&mut p, x);
    p.sum(x, groups);
    moments(&mut p, square);
    p.case(name)
}

fn softmax(name: &str, size: Size, ty: DType, [rows, cols]: [usize; 2]) -> Result<Case, KernelError> {
    let mut p = Program::new(size, rows, cols);
    let x = p.full(ty);
    let most = p.push(Instr::Reduce(ReduceKind::Max, x));
    let below = p.binary(BinaryKind::Sub, x, most);
    let power = p.unary(UnaryKind::Exp, below);
    let sum = p.push(Instr::Reduce(ReduceKind::Sum, power));
    let y = p.binary(BinaryKind::Div, power, sum);
    p.store(y, ty);
    p.case(name)
}

/// Sums of a gradient and of its product with another tensor, for each of so many runs of rows, and a store.
fn column_sums(name: &str, size: Size, [rows, cols]: [usize; 2], groups: [usize; 2]) -> Result<Case, KernelError> {
    let mut p = Program::new(size, rows, cols);
    let (x, dy) = (p.full(DType::Bf16), p.full(DType::Bf16));
    let product = p.binary(BinaryKind::Mul, x, dy);
    p.sum(dy, groups[0]);
    p.sum(product, groups[1]);
    p.store(product, DType::F32);
    p.case(name)
}

/// Every function of the intermediate representation, each stored.
fn every_function(size: Size) -> Result<Case, KernelError> {
    let mut p = Program::new(size, 4, 24);
    let all = IndexMap::full(4);
    let x = p.full(DType::F32);
    let positive = p.input(all, DType::F32, |i| 0.25 + i as f64 / 16.0);
    let class = p.input(IndexMap { row_div: 1, row_mod: 4, by_col: false }, DType::I32, |i| (5 * i) as f64);
    let bytes = p.input(all, DType::U8, |i| i as f64);
    let step = p.input(IndexMap::SCALAR, DType::I32, |_| 3.0);
    for kind in UnaryKind::ALL {
        let needs_positive = matches!(kind, UnaryKind::Log | UnaryKind::Sqrt | UnaryKind::Rsqrt | UnaryKind::Recip);
        let y = p.unary(kind, if needs_positive { positive } else { x });
        p.store(y, DType::F32);
    }
    for kind in BinaryKind::ALL {
        let y = if kind == BinaryKind::Pow { p.binary(kind, positive, x) } else { p.binary(kind, x, bytes) };
        p.store(y, if kind.is_comparison() { DType::Bool } else { DType::F32 });
    }
    let greater = p.binary(BinaryKind::Gt, x, bytes);
    let infinite = p.constant(f64::INFINITY);
    let select = p.push(Instr::Select(greater, x, infinite));
    let one_hot = p.push(Instr::OneHot(class));
    let random = p.push(Instr::Random { seed: 0x1_0000_0007, stream: 9, step: 4 });
    let truncated = p.push(Instr::Cast(DType::I32, x));
    let as_float = p.push(Instr::Cast(DType::F32, truncated));
    let truth = p.push(Instr::Cast(DType::Bool, as_float));
    let counted = p.binary(BinaryKind::Add, step, truncated);
    // Neighbours that are one number in `f32`.
    let large = p.input(all, DType::I32, |i| f64::from((1 << 24) + (i % 5) as i32));
    let middle = p.push(Instr::Int((1 << 24) + 2));
    for kind in BinaryKind::ALL.into_iter().filter(|kind| kind.is_of_integers()) {
        let y = p.binary(kind, large, middle);
        p.store(y, if kind.is_comparison() { DType::Bool } else { DType::I32 });
    }
    for (register, ty) in [(select, DType::F32), (one_hot, DType::U8), (random, DType::F32), (truth, DType::Bool)] {
        p.store(register, ty);
    }
    p.store(counted, DType::I32);
    p.case("every_function")
}

/// Roundings to 16 bits, bit for bit, at the edges of their types.
fn conversions(size: Size) -> Result<Case, KernelError> {
    const EDGES: [f32; 16] = [
        0.0,
        -0.0,
        1.0,
        1.003_906_3,
        1.000_488_3,
        1.001_464_8,
        65504.0,
        65519.0,
        65520.0,
        6.1e-5,
        6.0e-8,
        2.9e-8,
        3.0e-8,
        3.4e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
    ];
    let mut p = Program::new(size, 2, 16);
    let x = p.input(IndexMap::full(2), DType::F32, |i| f64::from(EDGES[i % 16]) * if i < 16 { 1.0 } else { -1.0 });
    let in_f16 = p.push(Instr::Cast(DType::F16, x));
    for (register, ty) in [(x, DType::Bf16), (x, DType::F16), (in_f16, DType::F32)] {
        p.store(register, ty);
    }
    let mut case = p.case("conversions")?;
    let x: Vec<f32> = case.inputs[0].data.iter().map(|&x| x as f32).collect();
    let to_f16 = |x: &f32| f64::from(f16::from_f32(*x));
    case.outputs[0].after.data = x.iter().map(|x| f64::from(bf16::from_f32(*x))).collect();
    case.outputs[1].after.data = x.iter().map(to_f16).collect();
    case.outputs[2].after.data = x.iter().map(to_f16).collect();
    for output in &mut case.outputs {
        output.tolerance = 0.0;
    }
    Ok(case)
}

/// One update of two tensors, of which the second one decays.
fn adamw(elements: usize) -> Case {
    let update = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-6 };
    let segments = [Segment { elements: elements / 3, decay: 0.0 }, Segment { elements, decay: 0.01 }];
    let flat = AdamW::flat_elements(&segments);
    let decays = AdamW::decays(&segments);
    let (lr, correct1, correct2, scale) = (1e-2, 1.0 / (1.0 - 0.9f64.powi(3)), 1.0 / (1.0 - 0.999f64.powi(3)), 0.125);
    let normal = |stream: u32| move |i: usize| f64::from(philox::normal(2, 0, stream, i as u64));
    let f32s = |f: &dyn Fn(usize) -> f64| (0..flat).map(|i| f64::from(f(i) as f32)).collect::<Vec<f64>>();
    let (w, m, v) = (f32s(&normal(0)), f32s(&|i| 0.1 * normal(1)(i)), f32s(&|i| 0.01 * normal(2)(i).powi(2)));
    let grads: Vec<f64> = (0..flat).map(|i| f64::from(bf16::from_f64(8.0 * normal(3)(i)))).collect();
    let (beta1, beta2, eps) = (f64::from(update.beta1), f64::from(update.beta2), f64::from(update.eps));
    let mut after = [w.clone(), m.clone(), v.clone()];
    for i in 0..flat {
        let grad = grads[i] * scale;
        after[1][i] = beta1 * m[i] + (1.0 - beta1) * grad;
        after[2][i] = beta2 * v[i] + (1.0 - beta2) * grad * grad;
        let direction = after[1][i] * correct1 / ((after[2][i] * correct2).sqrt() + eps);
        after[0][i] = w[i] - lr * (direction + f64::from(decays[i / AdamW::ALIGNMENT]) * w[i]);
    }
    let [weights, first, second] = after;
    let kernel = update.kernel("adamw", flat, DType::Bf16, DType::Bf16);
    let inputs = vec![
        Tensor::new(TensorType::new(DType::Bf16, [flat]), grads),
        Tensor::new(TensorType::f32([decays.len()]), decays.iter().map(|&decay| decay.into()).collect()),
        Tensor::new(TensorType::f32([STEP_NUMBERS]), vec![lr, correct1, correct2, scale]),
        Tensor::scalar(DType::I32, 0.0),
    ];
    let expected = |dtype, before, after| Expected {
        before,
        after: Tensor::new(TensorType::new(dtype, [flat]), after),
        tolerance: tolerance(dtype),
    };
    let outputs = vec![
        expected(DType::F32, Some(w), weights.clone()),
        expected(DType::Bf16, None, weights),
        expected(DType::F32, Some(m), first),
        expected(DType::F32, Some(v), second),
    ];
    let operands = (0..4).map(Operand::Output).chain((0..4).map(Operand::Input)).collect();
    Case::launch("adamw", Launch { kernel, operands }, inputs, outputs)
}
