//! The heads: masked tokens and following sentences.

use super::config::Bert;
use super::encoder::Encoded;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::index::Gather;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::source::Constant;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::{Builder, Init, LayerNorm, Linear, Result};

/// Results of the heads.
pub(super) struct Logits {
    /// `f32[B * P, V]`
    pub tokens: Value,
    /// `f32[B, 2]`
    pub following: Value,
}

/// Adds the feed `masked_lm_positions`, `i32[B, P]`, and both heads.
pub(super) fn build(b: &mut Builder, bert: &Bert<'_>, encoded: &Encoded) -> Result<Logits> {
    let sequences = bert.sequences;
    let positions = b.feed("masked_lm_positions", DType::I32, [sequences.batch, sequences.predictions])?;
    let first = b.scope("bert.pooler", |b| pooled(b, bert, encoded.hidden))?;
    b.scope("cls", |b| {
        let tokens = b.scope("predictions", |b| {
            let masked = states_at(&mut b.graph, encoded.hidden, positions)?;
            prediction_head(b, bert, masked, encoded.table)
        })?;
        let following = Linear::new(b, "seq_relationship", bert.config.hidden_size, bert.linear(2))?.apply(b, first)?;
        Ok(Logits { tokens, following })
    })
}

/// `[B, S, H]` to `[B, H]`: the first token's state through a layer with `tanh`.
fn pooled(b: &mut Builder, bert: &Bert<'_>, hidden: Value) -> Result<Value> {
    let width = bert.config.hidden_size;
    let first = first_states(&mut b.graph, hidden)?;
    let dense = Linear::new(b, "dense", width, bert.active_linear(width, width))?.apply(b, first)?;
    b.graph.unary(UnaryKind::Tanh, dense)
}

/// The numbers of tokens in a batch, `i32[B * P]`, for positions `i32[B, P]` in sequences of `length` tokens.
pub(crate) fn token_numbers(g: &mut Graph, positions: Value, length: usize) -> Result<Value> {
    let (batch, count) = (g.shape(positions).rows(), g.shape(positions).cols());
    let first = (0..batch).map(|item| Scalar((item * length) as f64)).collect();
    let first = g.push1(Constant { dtype: DType::I32, shape: [batch, 1].into(), data: first }, &[])?;
    let numbers = g.add(positions, first)?;
    g.reshape(numbers, [batch * count])
}

/// The states `[B, S, H]` of the tokens at positions `i32[B, P]`, `[B * P, H]`.
pub(crate) fn states_at(g: &mut Graph, hidden: Value, positions: Value) -> Result<Value> {
    let &[batch, length, width] = g.shape(hidden).dims() else { unreachable!("states are [B, S, H]") };
    let rows = g.reshape(hidden, [batch * length, width])?;
    let numbers = token_numbers(g, positions, length)?;
    g.push1(Gather::ROWS, &[rows, numbers])
}

/// The states `[B, S, H]` of the first tokens, `[B, H]`.
pub(crate) fn first_states(g: &mut Graph, hidden: Value) -> Result<Value> {
    let &[batch, _, width] = g.shape(hidden).dims() else { unreachable!("states are [B, S, H]") };
    let first = g.slice(hidden, &[0, 0, 0], &[batch, 1, width], &[1, 1, 1])?;
    g.reshape(first, [batch, width])
}

/// Scores of all tokens, `[N, E]` to `[N, V]`: products with their embeddings `[V, E]`, and `bias` in the scope of the builder.
pub(crate) fn token_scores(b: &mut Builder, states: Value, table: Value) -> Result<Value> {
    let vocabulary = b.graph.shape(table).rows();
    let bias = b.bias("bias", vocabulary, Init::Zeros)?;
    b.scope("decoder", |b| {
        let product = b.graph.push1(Matmul { trans_a: false, trans_b: true }, &[states, table])?;
        b.graph.add(product, bias)
    })
}

/// `[B * P, H]` to `[B * P, V]`, by the transpose of the token embeddings.
fn prediction_head(b: &mut Builder, bert: &Bert<'_>, masked: Value, table: Value) -> Result<Value> {
    let (config, width) = (bert.config, bert.config.hidden_size);
    let transformed = b.scope("transform", |b| {
        let mut x = Linear::new(b, "dense", width, bert.active_linear(width, width))?.apply(b, masked)?;
        if bert.options.mlm_activation {
            x = config.hidden_act.apply(&mut b.graph, x)?;
        }
        LayerNorm::new(b, "LayerNorm", width, config.layer_norm_eps)?.apply(b, x)
    })?;
    token_scores(b, transformed, table)
}
