//! Operations on each element alone, with NumPy broadcasting between operands.

use super::{Cost, FusedOp, GradArgs, Gradient, Op, OpError, OpRule, RecomputeCost};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::shape::{Shape, TensorType};

/// Functions of one float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnaryKind {
    /// `-x`
    Neg,
    /// `|x|`
    Abs,
    /// `e^x`
    Exp,
    /// Natural logarithm.
    Log,
    /// Square root; NaN for negative `x`.
    Sqrt,
    /// `1 / sqrt(x)`
    Rsqrt,
    /// `1 / x`
    Recip,
    /// `x * x`
    Square,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Gauss error function.
    Erf,
    /// Sine of `x` in radians.
    Sin,
    /// Cosine of `x` in radians.
    Cos,
    /// The largest integer not above `x`.
    Floor,
}

impl UnaryKind {
    /// All functions, each once.
    pub const ALL: [UnaryKind; 15] = [
        UnaryKind::Neg,
        UnaryKind::Abs,
        UnaryKind::Exp,
        UnaryKind::Log,
        UnaryKind::Sqrt,
        UnaryKind::Rsqrt,
        UnaryKind::Recip,
        UnaryKind::Square,
        UnaryKind::Relu,
        UnaryKind::Sigmoid,
        UnaryKind::Tanh,
        UnaryKind::Erf,
        UnaryKind::Sin,
        UnaryKind::Cos,
        UnaryKind::Floor,
    ];

    /// Name in printed graphs, plans and profiles.
    pub fn name(self) -> &'static str {
        match self {
            UnaryKind::Neg => "neg",
            UnaryKind::Abs => "abs",
            UnaryKind::Exp => "exp",
            UnaryKind::Log => "log",
            UnaryKind::Sqrt => "sqrt",
            UnaryKind::Rsqrt => "rsqrt",
            UnaryKind::Recip => "recip",
            UnaryKind::Square => "square",
            UnaryKind::Relu => "relu",
            UnaryKind::Sigmoid => "sigmoid",
            UnaryKind::Tanh => "tanh",
            UnaryKind::Erf => "erf",
            UnaryKind::Sin => "sin",
            UnaryKind::Cos => "cos",
            UnaryKind::Floor => "floor",
        }
    }

    /// The function in `f64`, as the reference kernels compute it.
    pub fn apply(self, x: f64) -> f64 {
        match self {
            UnaryKind::Neg => -x,
            UnaryKind::Abs => x.abs(),
            UnaryKind::Exp => x.exp(),
            UnaryKind::Log => x.ln(),
            UnaryKind::Sqrt => x.sqrt(),
            UnaryKind::Rsqrt => 1.0 / x.sqrt(),
            UnaryKind::Recip => 1.0 / x,
            UnaryKind::Square => x * x,
            // A NaN stays one, so that it is found where it arose.
            UnaryKind::Relu => {
                if x < 0.0 {
                    0.0
                } else {
                    x
                }
            }
            UnaryKind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            UnaryKind::Tanh => x.tanh(),
            UnaryKind::Erf => erf(x),
            UnaryKind::Sin => x.sin(),
            UnaryKind::Cos => x.cos(),
            UnaryKind::Floor => x.floor(),
        }
    }

    /// Whether a kernel computes it by a polynomial or a division and not by one cheap instruction.
    pub fn is_costly_function(self) -> bool {
        !matches!(self, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Square | UnaryKind::Relu | UnaryKind::Floor)
    }
}

/// Error function to full `f64` precision: its Maclaurin series near zero, the continued fraction of `erfc` elsewhere
/// (Abramowitz and Stegun 7.1.5, 7.1.14).
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a > 6.0 {
        return 1.0f64.copysign(x);
    }
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs().max(1e-300) {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        return (sum * std::f64::consts::FRAC_2_SQRT_PI).copysign(x);
    }
    let mut fraction = 0.0;
    for k in (1..=60).rev() {
        fraction = f64::from(k) / 2.0 / (a + fraction);
    }
    let erfc = (-a * a).exp() / (a + fraction) / std::f64::consts::PI.sqrt();
    (1.0 - erfc).copysign(x)
}

/// Functions of two floats, and comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryKind {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`; not for integers.
    Div,
    /// The larger operand.
    Max,
    /// The smaller operand.
    Min,
    /// `a` to the power of `b`; not for integers.
    Pow,
    /// `a == b`
    Eq,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
}

impl BinaryKind {
    /// All functions, each once.
    pub const ALL: [BinaryKind; 12] = [
        BinaryKind::Add,
        BinaryKind::Sub,
        BinaryKind::Mul,
        BinaryKind::Div,
        BinaryKind::Max,
        BinaryKind::Min,
        BinaryKind::Pow,
        BinaryKind::Eq,
        BinaryKind::Lt,
        BinaryKind::Le,
        BinaryKind::Gt,
        BinaryKind::Ge,
    ];

    /// Name in printed graphs, plans and profiles.
    pub fn name(self) -> &'static str {
        match self {
            BinaryKind::Add => "add",
            BinaryKind::Sub => "sub",
            BinaryKind::Mul => "mul",
            BinaryKind::Div => "div",
            BinaryKind::Max => "max",
            BinaryKind::Min => "min",
            BinaryKind::Pow => "pow",
            BinaryKind::Eq => "eq",
            BinaryKind::Lt => "lt",
            BinaryKind::Le => "le",
            BinaryKind::Gt => "gt",
            BinaryKind::Ge => "ge",
        }
    }

    /// Whether the result is a truth value.
    pub fn is_comparison(self) -> bool {
        matches!(self, BinaryKind::Eq | BinaryKind::Lt | BinaryKind::Le | BinaryKind::Gt | BinaryKind::Ge)
    }

    /// Whether the operands may be exchanged.
    pub(crate) fn is_commutative(self) -> bool {
        matches!(self, BinaryKind::Add | BinaryKind::Mul | BinaryKind::Max | BinaryKind::Min | BinaryKind::Eq)
    }

    /// The function in `f64`, as the reference kernels compute it: comparisons give 1 or 0, and the maximum and minimum
    /// of NaN and `x` are `x`.
    pub fn apply(self, a: f64, b: f64) -> f64 {
        let truth = |t: bool| f64::from(u8::from(t));
        match self {
            BinaryKind::Add => a + b,
            BinaryKind::Sub => a - b,
            BinaryKind::Mul => a * b,
            BinaryKind::Div => a / b,
            BinaryKind::Max => a.max(b),
            BinaryKind::Min => a.min(b),
            BinaryKind::Pow => a.powf(b),
            BinaryKind::Eq => truth(a == b),
            BinaryKind::Lt => truth(a < b),
            BinaryKind::Le => truth(a <= b),
            BinaryKind::Gt => truth(a > b),
            BinaryKind::Ge => truth(a >= b),
        }
    }

    /// Whether it is defined for `i32`: all but quotients and powers.
    pub fn is_of_integers(self) -> bool {
        !matches!(self, BinaryKind::Div | BinaryKind::Pow)
    }

    /// The function of two `i32`, modulo 2^32; comparisons give 1 or 0.
    ///
    /// # Panics
    /// If [`BinaryKind::is_of_integers`] is false.
    pub fn apply_i32(self, a: i32, b: i32) -> i32 {
        match self {
            BinaryKind::Add => a.wrapping_add(b),
            BinaryKind::Sub => a.wrapping_sub(b),
            BinaryKind::Mul => a.wrapping_mul(b),
            BinaryKind::Max => a.max(b),
            BinaryKind::Min => a.min(b),
            BinaryKind::Eq => i32::from(a == b),
            BinaryKind::Lt => i32::from(a < b),
            BinaryKind::Le => i32::from(a <= b),
            BinaryKind::Gt => i32::from(a > b),
            BinaryKind::Ge => i32::from(a >= b),
            BinaryKind::Div | BinaryKind::Pow => panic!("integers have no {}", self.name()),
        }
    }

    /// The same of two elements of a type, in the reference kernels.
    pub(crate) fn apply_to(self, dtype: DType, a: f64, b: f64) -> f64 {
        match dtype {
            DType::I32 => f64::from(self.apply_i32(a as i32, b as i32)),
            _ => self.apply(a, b),
        }
    }
}

/// The shape that two operands are expanded to.
fn common_shape(a: &Shape, b: &Shape) -> Result<Shape, OpError> {
    Shape::broadcast(a, b).ok_or_else(|| OpError::Broadcast(a.clone(), b.clone()))
}

/// A function of one float tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unary(pub UnaryKind);

impl OpRule for Unary {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![(*x).clone()]),
            _ => Err(OpError::operands("one float tensor")),
        }
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let (x, y) = (args.inputs[0], args.outputs[0]);
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let dx = match self.0 {
            UnaryKind::Neg => g.neg(dy)?,
            UnaryKind::Abs => {
                let zero = g.constant_like(x, 0.0)?;
                let (positive, negated) = (g.binary(BinaryKind::Ge, x, zero)?, g.neg(dy)?);
                g.select(positive, dy, negated)?
            }
            UnaryKind::Exp => g.mul(dy, y)?,
            UnaryKind::Log => g.div(dy, x)?,
            UnaryKind::Sqrt => {
                let double = g.mul_scalar(y, 2.0)?;
                g.div(dy, double)?
            }
            UnaryKind::Rsqrt => {
                let square = g.square(y)?;
                let cube = g.mul(square, y)?;
                let slope = g.mul_scalar(cube, -0.5)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Recip => {
                let square = g.square(y)?;
                let slope = g.neg(square)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Square => {
                let slope = g.mul_scalar(x, 2.0)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Relu => {
                let zero = g.constant_like(y, 0.0)?;
                let positive = g.binary(BinaryKind::Gt, y, zero)?;
                let nothing = g.constant_like(dy, 0.0)?;
                g.select(positive, dy, nothing)?
            }
            UnaryKind::Sigmoid => {
                let one = g.constant_like(y, 1.0)?;
                let rest = g.sub(one, y)?;
                let slope = g.mul(y, rest)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Tanh => {
                let one = g.constant_like(y, 1.0)?;
                let square = g.square(y)?;
                let slope = g.sub(one, square)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Erf => {
                let square = g.square(x)?;
                let exponent = g.neg(square)?;
                let bell = g.unary(UnaryKind::Exp, exponent)?;
                let slope = g.mul_scalar(bell, std::f64::consts::FRAC_2_SQRT_PI)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Sin => {
                let slope = g.unary(UnaryKind::Cos, x)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Cos => {
                let sine = g.unary(UnaryKind::Sin, x)?;
                let slope = g.neg(sine)?;
                g.mul(dy, slope)?
            }
            UnaryKind::Floor => return Ok(Gradient::NotDifferentiable),
        };
        Ok(Gradient::Inputs(vec![Some(dx)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::from_fn(outputs[0].clone(), |i| self.0.apply(inputs[0].data[i]))]
    }

    fn is_pointwise(&self) -> bool {
        true
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::Unary(self.0))
    }

    fn recompute_cost(&self) -> RecomputeCost {
        if self.0.is_costly_function() { RecomputeCost::Function } else { RecomputeCost::Arithmetic }
    }

    fn simplify(&self, g: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        let inner = g.node(inputs[0].node);
        let is_undone = self.0 == UnaryKind::Neg && inner.op == Op::Unary(Unary(UnaryKind::Neg));
        Ok(is_undone.then(|| inner.inputs[0]))
    }
}

/// A function of two tensors of one element type that broadcast to one shape. Comparisons give `bool`. Integers have no quotients
/// and powers; sums, differences and products of `i32` are modulo 2^32, and there are none of `u8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Binary(pub BinaryKind);

impl OpRule for Binary {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [a, b] = inputs else { return Err(OpError::operands("two tensors")) };
        if a.dtype != b.dtype || a.dtype == DType::Bool {
            return Err(OpError::operands("two number tensors of one element type"));
        }
        if a.dtype == DType::I32 && !self.0.is_of_integers() {
            return Err(OpError::operands("two float tensors"));
        }
        if a.dtype == DType::U8 && !self.0.is_comparison() {
            return Err(OpError::operands("two tensors of floats or of i32"));
        }
        let shape = common_shape(&a.shape, &b.shape)?;
        let dtype = if self.0.is_comparison() { DType::Bool } else { a.dtype };
        Ok(vec![TensorType::new(dtype, shape)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let (a, b, y) = (args.inputs[0], args.inputs[1], args.outputs[0]);
        if self.0.is_comparison() {
            return Ok(Gradient::NotDifferentiable);
        }
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None, None])) };
        let of_a = |g: &mut Graph| -> Result<Value, GraphError> {
            match self.0 {
                BinaryKind::Add | BinaryKind::Sub => Ok(dy),
                BinaryKind::Mul => g.mul(dy, b),
                BinaryKind::Div => g.div(dy, b),
                BinaryKind::Max => masked(g, BinaryKind::Ge, a, b, dy),
                BinaryKind::Min => masked(g, BinaryKind::Le, a, b, dy),
                BinaryKind::Pow => {
                    let one = g.constant_like(b, 1.0)?;
                    let exponent = g.sub(b, one)?;
                    let power = g.binary(BinaryKind::Pow, a, exponent)?;
                    let slope = g.mul(power, b)?;
                    g.mul(dy, slope)
                }
                _ => unreachable!("comparisons returned above"),
            }
        };
        let of_b = |g: &mut Graph| -> Result<Value, GraphError> {
            match self.0 {
                BinaryKind::Add => Ok(dy),
                BinaryKind::Sub => g.neg(dy),
                BinaryKind::Mul => g.mul(dy, a),
                BinaryKind::Div => {
                    let ratio = g.div(y, b)?;
                    let slope = g.neg(ratio)?;
                    g.mul(dy, slope)
                }
                BinaryKind::Max => masked(g, BinaryKind::Lt, a, b, dy),
                BinaryKind::Min => masked(g, BinaryKind::Gt, a, b, dy),
                BinaryKind::Pow => {
                    let log = g.unary(UnaryKind::Log, a)?;
                    let slope = g.mul(y, log)?;
                    g.mul(dy, slope)
                }
                _ => unreachable!("comparisons returned above"),
            }
        };
        let mut grads = vec![None, None];
        if args.wanted[0] {
            let full = of_a(g)?;
            grads[0] = Some(g.sum_to(full, &g.shape(a).clone())?);
        }
        if args.wanted[1] {
            let full = of_b(g)?;
            grads[1] = Some(g.sum_to(full, &g.shape(b).clone())?);
        }
        Ok(Gradient::Inputs(grads))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (a, b) = (inputs[0], inputs[1]);
        let shape = outputs[0].shape.clone();
        vec![Tensor::from_fn(outputs[0].clone(), |i| {
            self.0.apply_to(a.ty.dtype, a.data[a.broadcast_index(&shape, i)], b.data[b.broadcast_index(&shape, i)])
        })]
    }

    fn is_pointwise(&self) -> bool {
        true
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::Binary(self.0))
    }

    fn recompute_cost(&self) -> RecomputeCost {
        match self.0 {
            BinaryKind::Div | BinaryKind::Pow => RecomputeCost::Division,
            _ => RecomputeCost::Arithmetic,
        }
    }

    /// `x + 0`, `x - 0`, `x * 1`, `x / 1`, where the other operand does not widen the shape.
    fn simplify(&self, g: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        let (a, b) = (inputs[0], inputs[1]);
        let keeps = |x: Value, other: Value| g.shape(other).broadcasts_to(g.shape(x));
        let neutral = match self.0 {
            BinaryKind::Add | BinaryKind::Sub => 0.0,
            BinaryKind::Mul | BinaryKind::Div => 1.0,
            _ => return Ok(None),
        };
        if g.uniform(b) == Some(neutral) && keeps(a, b) {
            return Ok(Some(a));
        }
        let exchanged = self.0.is_commutative() && g.uniform(a) == Some(neutral) && keeps(b, a);
        Ok(exchanged.then_some(b))
    }
}

/// `dy` where `a` compares so to `b`, zero elsewhere.
fn masked(g: &mut Graph, kind: BinaryKind, a: Value, b: Value, dy: Value) -> Result<Value, GraphError> {
    let mask = g.binary(kind, a, b)?;
    let nothing = g.constant_like(dy, 0.0)?;
    g.select(mask, dy, nothing)
}

/// `condition ? a : b`, all three broadcast to one shape. Inputs: `bool`, and two tensors of one element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Select;

impl OpRule for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [condition, a, b] = inputs else { return Err(OpError::operands("a condition and two tensors")) };
        if condition.dtype != DType::Bool || a.dtype != b.dtype {
            return Err(OpError::operands("a bool condition and two tensors of one element type"));
        }
        let shape = common_shape(&common_shape(&a.shape, &b.shape)?, &condition.shape)?;
        Ok(vec![TensorType::new(a.dtype, shape)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 3])) };
        let condition = args.inputs[0];
        let nothing = g.constant_like(dy, 0.0)?;
        let mut grads = vec![None; 3];
        if args.wanted[1] {
            let full = g.select(condition, dy, nothing)?;
            grads[1] = Some(g.sum_to(full, &g.shape(args.inputs[1]).clone())?);
        }
        if args.wanted[2] {
            let full = g.select(condition, nothing, dy)?;
            grads[2] = Some(g.sum_to(full, &g.shape(args.inputs[2]).clone())?);
        }
        Ok(Gradient::Inputs(grads))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(outputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let shape = outputs[0].shape.clone();
        let at = |t: &Tensor, i: usize| t.data[t.broadcast_index(&shape, i)];
        vec![Tensor::from_fn(outputs[0].clone(), |i| {
            if at(inputs[0], i) != 0.0 { at(inputs[1], i) } else { at(inputs[2], i) }
        })]
    }

    fn is_pointwise(&self) -> bool {
        true
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::Select)
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Arithmetic
    }
}

/// Conversion to another element type; to integers by truncation and saturation, to `bool` by comparison with zero. From `i32` to a
/// 16-bit float it goes by way of `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    /// Element type of the output.
    pub to: DType,
}

impl Cast {
    /// The element that the reference kernels make of `x`.
    pub(crate) fn apply(self, x: f64) -> f64 {
        match self.to {
            DType::I32 => f64::from(x as i32),
            DType::U8 => f64::from(x as u8),
            DType::Bool => f64::from(u8::from(x != 0.0)),
            DType::F32 | DType::Bf16 | DType::F16 => x,
        }
    }
}

impl OpRule for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn attributes(&self) -> String {
        self.to.to_string()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] => Ok(vec![TensorType::new(self.to, x.shape.clone())]),
            _ => Err(OpError::operands("one tensor")),
        }
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let from = g.dtype(args.inputs[0]);
        match args.grads[0] {
            Some(dy) if from.is_float() && self.to.is_float() => Ok(Gradient::Inputs(vec![Some(g.cast(dy, from)?)])),
            _ => Ok(Gradient::Inputs(vec![None])),
        }
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::from_fn(outputs[0].clone(), |i| self.apply(inputs[0].data[i]))]
    }

    fn is_pointwise(&self) -> bool {
        true
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::Cast(self.to))
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Arithmetic
    }

    /// `x` for a conversion of `x` to its own type, directly or by way of `f32`, which holds all floats.
    fn simplify(&self, g: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        let (x, to) = (inputs[0], self.to);
        if g.dtype(x) == to {
            return Ok(Some(x));
        }
        let inner = g.node(x.node);
        let is_undone = inner.op.cast_target() == Some(DType::F32) && to.is_float() && g.dtype(inner.inputs[0]) == to;
        Ok(is_undone.then(|| inner.inputs[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_known_values() {
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (3.0, 0.999_977_909_503_001_4)]
        {
            assert!((erf(x) - expected).abs() < 1e-14, "erf({x})");
            assert!((erf(-x) + expected).abs() < 1e-14, "erf(-{x})");
        }
    }
}
