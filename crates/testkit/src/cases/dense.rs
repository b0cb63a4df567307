//! Matrix products, norms and softmax over rows, attention.

use crate::problem::{Draw, Problem};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::index::OneHot;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::source::{Constant, Distribution, Random};
use bessemer_ir::{DType, GraphError, Value};

pub(super) fn matmul(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (m, k, n) = (d.int(1, 90), d.int(1, 300), d.int(1, 90));
    let op = Matmul { trans_a: d.flip(), trans_b: d.flip() };
    let a = p.input(&if op.trans_a { [k, m] } else { [m, k] })?;
    let b = p.input(&if op.trans_b { [n, k] } else { [k, n] })?;
    p.graph.push1(op, &[a, b])
}

pub(super) fn matmul_batched(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, m, k, n) = (d.int(1, 7), d.int(1, 40), d.int(1, 70), d.int(1, 40));
    let op = Matmul { trans_a: d.flip(), trans_b: d.flip() };
    let a = p.input(&if op.trans_a { [batch, k, m] } else { [batch, m, k] })?;
    let b = p.input(&if op.trans_b { [batch, n, k] } else { [batch, k, n] })?;
    p.graph.push1(op, &[a, b])
}

pub(super) fn linear(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (m, k, n) = (d.int(1, 60), d.int(1, 200), d.int(1, 90));
    let (x, w, bias) = (p.input(&[m, k])?, p.input(&[n, k])?, p.input(&[n])?);
    let y = p.graph.push1(Matmul { trans_a: false, trans_b: true }, &[x, w])?;
    let y = p.graph.add(y, bias)?;
    p.graph.relu(y)
}

pub(super) fn linear_gelu(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, seq, inner, cols) = (d.int(1, 3), d.int(1, 40), d.int(1, 50), d.int(1, 80));
    let (x, w, bias) = (p.input(&[n, seq, inner])?, p.input(&[cols, inner])?, p.input(&[cols])?);
    let g = &mut p.graph;
    let y = g.push1(Matmul { trans_a: false, trans_b: true }, &[x, w])?;
    let y = g.add(y, bias)?;
    let scaled = g.mul_scalar(y, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.unary(UnaryKind::Erf, scaled)?;
    let above = g.add_scalar(erf, 1.0)?;
    let half = g.mul_scalar(y, 0.5)?;
    g.mul(half, above)
}

/// Over the innermost axis, scaled and shifted.
fn normalised(p: &mut Problem, x: Value) -> Result<Value, GraphError> {
    let cols = p.graph.shape(x).cols();
    let (gamma, beta) = (p.input(&[cols])?, p.input(&[cols])?);
    let g = &mut p.graph;
    let axis = g.shape(x).rank() - 1;
    let (mean, variance) = g.moments(x, &[axis])?;
    let mut kept = g.shape(x).dims().to_vec();
    kept[axis] = 1;
    let stable = g.add_scalar(variance, 0.1)?;
    let inverse = g.rsqrt(stable)?;
    let (mean, inverse) = (g.reshape(mean, kept.clone())?, g.reshape(inverse, kept)?);
    let centred = g.sub(x, mean)?;
    let scaled = g.mul(centred, inverse)?;
    let scaled = g.mul(scaled, gamma)?;
    g.add(scaled, beta)
}

pub(super) fn layer_norm(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 4), d.int(1, 9), d.int(2, 200)])?;
    normalised(p, x)
}

pub(super) fn layer_norm_dropout(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (rows, inner, cols) = (d.int(1, 70), d.int(1, 40), d.int(2, 90));
    let (x, w) = (p.input(&[rows, inner])?, p.input(&[inner, cols])?);
    let (bias, shortcut) = (p.input(&[cols])?, p.input(&[rows, cols])?);
    let step = p.indices("step", &[])?;
    let g = &mut p.graph;
    let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w])?;
    let y = g.add(y, bias)?;
    let uniform = Random { distribution: Distribution::Uniform, shape: [rows, cols].into(), seed: 11, stream: 4 };
    let uniform = g.push1(uniform, &[step])?;
    let rate = g.constant(DType::F32, [], 0.25)?;
    let kept = g.binary(BinaryKind::Ge, uniform, rate)?;
    let scaled = g.mul_scalar(y, 1.0 / 0.75)?;
    let zero = g.constant_like(scaled, 0.0)?;
    let dropped = g.select(kept, scaled, zero)?;
    let sum = g.add(dropped, shortcut)?;
    let y = normalised(p, sum)?;
    p.graph.relu(y)
}

pub(super) fn softmax(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let x = p.input(&[d.int(1, 9), d.int(1, 300)])?;
    p.graph.softmax(x)
}

pub(super) fn cross_entropy(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, classes) = (d.int(1, 9), d.int(8, 300));
    let x = p.input(&[n, classes])?;
    let labels = p.indices("labels", &[n])?;
    let log = p.graph.log_softmax(x)?;
    let target = p.graph.push1(OneHot { depth: classes }, &[labels])?;
    p.graph.mul(log, target)
}

/// Of some rows of a table, by weight.
pub(super) fn weighted_cross_entropy(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, classes) = (d.int(1, 12), d.int(8, 400));
    let (x, weights) = (p.input(&[n, classes])?, p.input(&[n])?);
    let labels = p.indices("labels", &[n])?;
    let g = &mut p.graph;
    let log = g.log_softmax(x)?;
    let target = g.push1(OneHot { depth: classes }, &[labels])?;
    let picked = g.mul(log, target)?;
    let picked = g.sum(picked, &[1])?;
    g.mul(picked, weights)
}

pub(super) fn attention(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 70), d.int(1, 70)];
    attention_of(p, d, lengths, None)
}

pub(super) fn attention_dropout(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 70), d.int(1, 70)];
    let rate = Scalar([0.1, 0.5][d.int(0, 1)]);
    attention_of(p, d, lengths, Some(AttentionDropout { rate, seed: 11, stream: 3, keeps_mask: false }))
}

/// Of one head of one item, so that its statistics are one number.
pub(super) fn attention_of_one_query(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let dropout = AttentionDropout { rate: Scalar(0.25), seed: 15, stream: 7, keeps_mask: false };
    let dropout = d.flip().then_some(dropout);
    let (keys, depth) = (d.int(2, 40), d.int(1, 40));
    attention_of_heads(p, d, [1, keys], [1, 1, depth], dropout, DType::F32)
}

/// With keys that are worked on in several pieces, and queries as well.
pub(super) fn attention_many_keys(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 150), d.int(250, 530)];
    let dropout = AttentionDropout { rate: Scalar(0.25), seed: 12, stream: 4, keeps_mask: false };
    let dropout = d.flip().then_some(dropout);
    attention_of(p, d, lengths, dropout)
}

/// With heads of whole multiples of 16.
pub(super) fn attention_even_heads(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let lengths = [d.int(1, 140), d.int(1, 140)];
    let dropout = AttentionDropout { rate: Scalar(0.1), seed: 13, stream: 5, keeps_mask: false };
    let dropout = d.flip().then_some(dropout);
    let sizes = [d.int(1, 2), d.int(1, 3), 16 * d.int(1, 8)];
    attention_of_heads(p, d, lengths, sizes, dropout, DType::F32)
}

/// With operands, output and gradients of 16 bits, and with the mask of dropout kept where heads are a multiple of 16.
pub(super) fn attention_narrow(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (lengths, ty) = ([d.int(1, 140), d.int(1, 140)], [DType::Bf16, DType::F16][d.int(0, 1)]);
    let with_dropout = d.flip();
    let depth = [19, 16 * d.int(1, 8)][d.int(0, 1)];
    let dropout = AttentionDropout { rate: Scalar(0.1), seed: 14, stream: 6, keeps_mask: depth.is_multiple_of(16) };
    let dropout = with_dropout.then_some(dropout);
    let sizes = [d.int(1, 2), d.int(1, 3), depth];
    let out = attention_of_heads(p, d, lengths, sizes, dropout, ty)?;
    p.graph.cast(out, DType::F32)
}

/// Attention of numbers of queries and keys, of which some are masked.
fn attention_of(
    p: &mut Problem,
    d: &mut Draw,
    [queries, keys]: [usize; 2],
    dropout: Option<AttentionDropout>,
) -> Result<Value, GraphError> {
    let (batch, heads) = (d.int(1, 2), if queries * keys > 5000 { d.int(1, 2) } else { d.int(1, 12) });
    let depth = [8, 16, 19, 64, 128][d.int(0, if heads > 4 { 2 } else { 4 })];
    attention_of_heads(p, d, [queries, keys], [batch, heads, depth], dropout, DType::F32)
}

fn attention_of_heads(
    p: &mut Problem,
    d: &mut Draw,
    [queries, keys]: [usize; 2],
    [batch, heads, depth]: [usize; 3],
    dropout: Option<AttentionDropout>,
    ty: DType,
) -> Result<Value, GraphError> {
    let width = heads * depth;
    let inputs = [queries, keys, keys].map(|length| {
        let x = p.input(&[batch, length, width])?;
        p.graph.cast(x, ty)
    });
    let [q, k, v] = inputs;
    let masked = d.flip();
    let bias = |i: usize| if i % keys % 3 == 1 && masked { -10000.0 } else { (i % 7) as f64 / 7.0 };
    let data = (0..batch * keys).map(|i| Scalar(bias(i))).collect();
    let bias = p.graph.push1(Constant { dtype: DType::F32, shape: [batch, keys].into(), data }, &[])?;
    let mut inputs = vec![q?, k?, v?, bias];
    if dropout.is_some() {
        inputs.push(p.indices("counter", &[])?);
    }
    p.graph.push1(Attention { heads, scale: Scalar(1.0 / (depth as f64).sqrt()), dropout, output: ty }, &inputs)
}
