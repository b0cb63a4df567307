//! Heads that find the answer to a question in a text: its first and last token, and whether there is one.

use super::config::Network;
use crate::bert::{first_states, states_at};
use bessemer_ir::ops::index::{ArgMax, OneHot};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{Graph, Value};
use bessemer_nn::{Builder, Init, LayerNorm, Linear, Result};

/// What tokens that cannot be in an answer lose.
const EXCLUDED: f64 = 1e30;

/// Scores of the first and of the last token, `f32[B, S]` each, by one layer.
pub(super) fn plain(b: &mut Builder, network: &Network<'_>, hidden: Value) -> Result<[Value; 2]> {
    let scores = Linear::new(b, "qa_outputs", network.width(), network.bert.linear(2))?.apply(b, hidden)?;
    let g = &mut b.graph;
    let &[batch, length, _] = g.shape(scores).dims() else { unreachable!("states are [B, S, H]") };
    let mut column = |index: usize| {
        let column = g.slice(scores, &[0, 0, index], &[batch, length, index + 1], &[1, 1, 1])?;
        g.reshape(column, [batch, length])
    };
    Ok([column(0)?, column(1)?])
}

/// The head in which the last token is chosen by the first (Yang et al.: "XLNet", 2019), upon `hidden f32[B, S, H]`.
#[derive(Clone, Copy)]
pub(super) struct JointHead<'a> {
    pub network: &'a Network<'a>,
    pub hidden: Value,
    /// 1 for tokens that cannot be in an answer, `f32[B, S]`.
    pub excluded: Value,
}

impl JointHead<'_> {
    /// Scores of the first token, `f32[B, S]`.
    pub(super) fn starts(&self, b: &mut Builder) -> Result<Value> {
        let scores = b.scope("start_logits", |b| {
            Linear::new(b, "dense", self.network.width(), self.network.bert.linear(1))?.apply(b, self.hidden)
        })?;
        let scores = b.graph.reshape(scores, b.graph.shape(self.excluded).clone())?;
        without(&mut b.graph, scores, self.excluded)
    }

    /// Scores of the last token for each of `K` first tokens with these states `f32[B, K, H]`; `f32[B, K, S]`.
    pub(super) fn ends(&self, b: &mut Builder, starts: Value) -> Result<Value> {
        let &[batch, length, width] = b.graph.shape(self.hidden).dims() else { unreachable!("states are [B, S, H]") };
        let count = b.graph.shape(starts)[1];
        let bert = &self.network.bert;
        let scores = b.scope("end_logits", |b| {
            let both = b.scope("dense_0", |b| {
                let weight = b.weight("weight", [width, 2 * width], bert.init())?;
                let bias = b.bias("bias", width, Init::Zeros)?;
                let g = &mut b.graph;
                let of_token = product_with_columns(g, self.hidden, weight, 0)?;
                let of_token = g.add(of_token, bias)?;
                let of_token = g.reshape(of_token, [batch, 1, length, width])?;
                let of_start = product_with_columns(g, starts, weight, width)?;
                let of_start = g.reshape(of_start, [batch, count, 1, width])?;
                g.add(of_token, of_start)
            })?;
            let bent = b.graph.unary(UnaryKind::Tanh, both)?;
            let normalised = LayerNorm::new(b, "LayerNorm", width, bert.config.layer_norm_eps)?.apply(b, bent)?;
            Linear::new(b, "dense_1", width, bert.linear(1))?.apply(b, normalised)
        })?;
        let g = &mut b.graph;
        let scores = g.reshape(scores, [batch, count, length])?;
        let excluded = g.reshape(self.excluded, [batch, 1, length])?;
        without(g, scores, excluded)
    }

    /// Scores of there being no answer, `f32[B]`, by states of the first token of the answer, `f32[B, H]`.
    pub(super) fn impossible(&self, b: &mut Builder, start: Value) -> Result<Value> {
        let &[batch, _, width] = b.graph.shape(self.hidden).dims() else { unreachable!("states are [B, S, H]") };
        let first = first_states(&mut b.graph, self.hidden)?;
        let both = b.graph.concat(&[start, first], 1)?;
        let bert = &self.network.bert;
        b.scope("answer_class", |b| {
            let x = Linear::new(b, "dense_0", 2 * width, bert.linear(width))?.apply(b, both)?;
            let x = b.graph.unary(UnaryKind::Tanh, x)?;
            let weight = b.scope("dense_1", |b| b.weight("weight", [1, width], bert.init()))?;
            let scores = b.graph.push1(Matmul { trans_a: false, trans_b: true }, &[x, weight])?;
            b.graph.reshape(scores, [batch])
        })
    }

    /// The states of the tokens at `positions i32[B, K]`, `f32[B, K, H]`.
    pub(super) fn states(&self, g: &mut Graph, places: Value) -> Result<Value> {
        let &[batch, _, width] = g.shape(self.hidden).dims() else { unreachable!("states are [B, S, H]") };
        let count = g.shape(places).cols();
        let states = states_at(g, self.hidden, places)?;
        g.reshape(states, [batch, count, width])
    }

    /// The mean of all states by the probabilities that `starts f32[B, S]` give, `f32[B, H]`.
    pub(super) fn expected_state(&self, g: &mut Graph, starts: Value) -> Result<Value> {
        let &[batch, length, width] = g.shape(self.hidden).dims() else { unreachable!("states are [B, S, H]") };
        let shares = g.softmax(starts)?;
        let shares = g.reshape(shares, [batch, 1, length])?;
        let mean = g.push1(Matmul { trans_a: false, trans_b: false }, &[shares, self.hidden])?;
        g.reshape(mean, [batch, width])
    }
}

/// `x [..., H]` times the transpose of `H` columns of `weight [out, in]`, from column `first` on.
fn product_with_columns(g: &mut Graph, x: Value, weight: Value, first: usize) -> Result<Value> {
    let (rows, width) = (g.shape(weight).rows(), g.shape(x).cols());
    let columns = g.slice(weight, &[0, first], &[rows, first + width], &[1, 1])?;
    g.push1(Matmul { trans_a: false, trans_b: true }, &[x, columns])
}

/// `scores`, and -1e30 where `excluded` is 1.
fn without(g: &mut Graph, scores: Value, excluded: Value) -> Result<Value> {
    let less = g.neg(excluded)?;
    let kept = g.add_scalar(less, 1.0)?;
    let kept = g.mul(scores, kept)?;
    let loss = g.mul_scalar(excluded, EXCLUDED)?;
    g.sub(kept, loss)
}

/// The `count` largest numbers of each row of `x f32[N, S]` in falling order, `f32[N, count]`, and their positions, `i32[N, count]`;
/// of equal ones the first comes first.
pub(super) fn largest(g: &mut Graph, mut x: Value, count: usize) -> Result<[Value; 2]> {
    let (rows, cols) = (g.shape(x).rows(), g.shape(x).cols());
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let place = g.push1(ArgMax, &[x])?;
        values.push(g.reduce(ReduceKind::Max, x, &[1], true)?);
        places.push(g.reshape(place, [rows, 1])?);
        let mark = g.push1(OneHot { depth: cols }, &[place])?;
        let (zero, least) = (g.constant_like(mark, 0.0)?, g.constant_like(x, f64::from(f32::MIN))?);
        let is_taken = g.binary(BinaryKind::Gt, mark, zero)?;
        x = g.select(is_taken, least, x)?;
    }
    Ok([g.concat(&values, 1)?, g.concat(&places, 1)?])
}
