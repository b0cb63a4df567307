//! Functions of elements, reductions, integers, random numbers.

use crate::problem::{Draw, Input, Problem};
use bessemer_ir::ops::index::{ArgMax, OneHot};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, GraphError, Value};

pub(super) fn unary(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 9), d.int(1, 60)])?;
    let g = &mut p.graph;
    // Away from zero, where some of them have a pole or a kink.
    let square = g.square(x)?;
    let positive = g.add_scalar(square, 0.5)?;
    let mut total = positive;
    for kind in UnaryKind::ALL.into_iter().filter(|&k| k != UnaryKind::Floor && k != UnaryKind::Exp) {
        let y = g.unary(kind, positive)?;
        total = g.add(total, y)?;
    }
    let small = g.mul_scalar(x, 0.2)?;
    let exp = g.unary(UnaryKind::Exp, small)?;
    g.add(total, exp)
}

pub(super) fn binary(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let full = [d.int(1, 4), d.int(1, 5), d.int(1, 6), d.int(1, 30)];
    let mut some: Vec<usize> = full.to_vec();
    for size in &mut some {
        if d.flip() {
            *size = 1;
        }
    }
    let cut = d.int(0, 2);
    let (a, b) = (p.input(&full)?, p.input(&some[cut..])?);
    let g = &mut p.graph;
    let square = g.square(b)?;
    let divisor = g.add_scalar(square, 1.0)?;
    let mut total = a;
    for kind in [BinaryKind::Mul, BinaryKind::Sub, BinaryKind::Max, BinaryKind::Min, BinaryKind::Div] {
        let y = g.binary(kind, a, divisor)?;
        total = g.add(total, y)?;
    }
    let greater = g.binary(BinaryKind::Gt, a, b)?;
    g.select(greater, total, b)
}

pub(super) fn reduce(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 7), d.int(1, 9), d.int(1, 40)])?;
    let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][d.int(0, 2)];
    let axes: &[usize] = [[0].as_slice(), &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]][d.int(0, 5)];
    p.graph.reduce(kind, x, axes, d.flip())
}

pub(super) fn pixels(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 3), d.int(1, 9), d.int(1, 9), 3];
    let images = p.feed("images", DType::U8, &shape, Input::Integers { first: 0, count: 256 })?;
    let gain = p.input(&[3])?;
    let g = &mut p.graph;
    let x = g.cast(images, DType::F32)?;
    let mean = g.constant_vector(&[123.0, 116.0, 103.0])?;
    let x = g.sub(x, mean)?;
    let x = g.mul_scalar(x, 1.0 / 58.0)?;
    g.mul(x, gain)
}

/// Neighbours above 2^24, which are one number in `f32`: sums, differences, products, comparisons and selections of them.
pub(super) fn large_integers(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    const LARGE: i32 = 1 << 24;
    let shape = [d.int(1, 5), d.int(1, 300)];
    let a = p.feed("a", DType::I32, &shape, Input::Integers { first: LARGE, count: 40 })?;
    let b = p.feed("b", DType::I32, &shape[1..], Input::Integers { first: LARGE + 20, count: 40 })?;
    let g = &mut p.graph;
    let middle = g.constant(DType::I32, [], f64::from(LARGE + 21))?;
    let (sum, difference) = (g.add(a, middle)?, g.sub(a, b)?);
    let product = g.mul(a, b)?;
    let (most, least) = (g.binary(BinaryKind::Max, a, b)?, g.binary(BinaryKind::Min, a, middle)?);
    let mut chosen = least;
    for kind in BinaryKind::ALL.into_iter().filter(|kind| kind.is_comparison()) {
        let holds = g.binary(kind, a, b)?;
        let other = g.binary(kind, middle, b)?;
        let counted = g.cast(other, DType::I32)?;
        let next = g.add(chosen, counted)?;
        chosen = g.select(holds, next, chosen)?;
    }
    let terms = [sum, difference, product, most];
    terms.into_iter().try_fold(chosen, |total, term| g.add(total, term))
}

/// One number for all, which is counted up and compared as counters of steps are, and one for each row.
pub(super) fn counters(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    const LARGE: i32 = 1 << 24;
    let (rows, cols) = (d.int(1, 9), d.int(2, 300));
    let step = p.feed("step", DType::I32, &[], Input::Integers { first: LARGE, count: 4 })?;
    let by_row = p.feed("by row", DType::I32, &[rows, 1], Input::Integers { first: LARGE, count: 4 })?;
    let x = p.feed("x", DType::F32, &[rows, cols], Input::Normal)?;
    let distance = by_row_as_float(p, by_row)?;
    let g = &mut p.graph;
    let next = g.add_scalar(step, 1.0)?;
    let due = g.constant(DType::I32, [], f64::from(LARGE + 2))?;
    let is_due = g.binary(BinaryKind::Ge, next, due)?;
    let later = g.binary(BinaryKind::Lt, by_row, next)?;
    let kept = g.select(is_due, x, distance)?;
    let most = g.reduce(ReduceKind::Max, kept, &[1], true)?;
    let shifted = g.sub(kept, most)?;
    g.select(later, shifted, kept)
}

/// How far a number of each row is from 2^24, as `f32`.
fn by_row_as_float(p: &mut Problem, by_row: Value) -> Result<Value, GraphError> {
    let distance = p.graph.add_scalar(by_row, -f64::from(1 << 24))?;
    p.graph.cast(distance, DType::F32)
}

/// Floats to integers and back, beyond the range of `i32` too, and integers to floats of all sizes, which are rounded.
pub(super) fn casts(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 7), d.int(1, 70)];
    let x = p.feed("x", DType::F32, &shape, Input::Normal)?;
    let n = p.feed("n", DType::I32, &shape, Input::Integers { first: -300, count: 600 })?;
    let g = &mut p.graph;
    let scaled = g.mul_scalar(x, 2.0f64.powi(31))?;
    let whole = g.cast(scaled, DType::I32)?;
    let sum = g.binary(BinaryKind::Max, whole, n)?;
    let byte = g.cast(n, DType::U8)?;
    let truth = g.cast(n, DType::Bool)?;
    let (byte, truth) = (g.cast(byte, DType::I32)?, g.cast(truth, DType::I32)?);
    let difference = g.sub(byte, truth)?;
    let odd = g.binary(BinaryKind::Gt, n, difference)?;
    g.select(odd, sum, difference)
}

/// 1 at a place that some rows lie beyond.
pub(super) fn one_hot(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let labels = p.feed("labels", DType::I32, &[d.int(1, 9), d.int(1, 5)], Input::Integers { first: -2, count: 60 })?;
    p.graph.push1(OneHot { depth: d.int(1, 50) }, &[labels])
}

/// The first of several maxima.
pub(super) fn arg_max(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let labels = p.feed("x", DType::I32, &[d.int(1, 9), d.int(1, 90)], Input::Integers { first: -3, count: 7 })?;
    let x = p.graph.cast(labels, DType::F32)?;
    p.graph.push1(ArgMax, &[x])
}

pub(super) fn uniform(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    random(p, d, Distribution::Uniform)
}

pub(super) fn normal(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    random(p, d, Distribution::Normal)
}

fn random(p: &mut Problem, d: &mut Draw, distribution: Distribution) -> Result<Value, GraphError> {
    let step = p.feed("step", DType::I32, &[], Input::Integers { first: 0, count: 1 << 30 })?;
    let shape = [d.int(1, 9), d.int(1, 300)].into();
    p.graph.push1(Random { distribution, shape, seed: 5, stream: d.int(0, 9) as u32 }, &[step])
}
