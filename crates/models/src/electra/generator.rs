//! The generator: scores of masked words, and samples of them.

use super::config::Network;
use super::encoder::Trunk;
use crate::bert::{states_at, word_scores};
use bessemer_ir::ops::index::{ArgMax, OneHot};
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{Graph, Value};
use bessemer_nn::{Activation, Builder, RandomStream, Result};

/// Keeps logarithms of 0 away.
const LEAST: f64 = 1e-9;
/// What a word that is not to be drawn loses.
const DISALLOWED: f64 = 1000.0;

/// Scores `f32[B * P, V]` for the tokens at `places i32[B, P]` of `words i32[B, S]`; the body's parameters are in the scope `name`.
pub(super) fn scores(
    b: &mut Builder,
    trunk: &mut Trunk,
    name: &str,
    network: &Network<'_>,
    words: Value,
    places: Value,
) -> Result<Value> {
    let hidden = trunk.encode(b, name, network, words)?;
    let states = b.scope("generator_predictions", |b| {
        let chosen = states_at(&mut b.graph, hidden, places)?;
        let x = b.linear("dense", chosen, network.bert.active_linear(network.width(), network.embedding))?;
        let x = Activation::Gelu.apply(&mut b.graph, x)?;
        b.layer_norm("LayerNorm", x, network.bert.config.layer_norm_eps)
    })?;
    b.scope("generator_lm_head", |b| word_scores(b, states, trunk.embeddings.words))
}

/// Draws a class of each row from `softmax(scores f32[N, V])`, `i32[N]`: the largest score with noise of Gumbel's distribution
/// added, `-ln(-ln(u))`. `number i32[]` tells draws apart.
pub(super) fn sample(g: &mut Graph, scores: Value, random: RandomStream, number: Value) -> Result<Value> {
    let (distribution, shape) = (Distribution::Uniform, g.shape(scores).clone());
    let uniform = g.add1(Random { distribution, shape, seed: random.seed, stream: random.stream }, &[number])?;
    let mut noise = uniform;
    for _ in 0..2 {
        let positive = g.offset(noise, LEAST)?;
        let log = g.unary(UnaryKind::Log, positive)?;
        noise = g.neg(log)?;
    }
    let sum = g.add_(scores, noise)?;
    g.add1(ArgMax, &[sum])
}

/// Scores by which the class `labels i32[N]` of each row is never drawn.
pub(super) fn without(g: &mut Graph, scores: Value, labels: Value) -> Result<Value> {
    let right = g.add1(OneHot { depth: g.shape(scores).cols() }, &[labels])?;
    let loss = g.scale(right, DISALLOWED)?;
    g.sub(scores, loss)
}
