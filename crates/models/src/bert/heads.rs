//! The heads: masked words and following sentences.

use super::config::Bert;
use super::encoder::Encoded;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::index::Gather;
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::source::Constant;
use bessemer_ir::{DType, Value};
use bessemer_nn::{Builder, Init, Result};

/// Results of the heads.
pub(super) struct Logits {
    /// `f32[B * P, V]`
    pub words: Value,
    /// `f32[B, 2]`
    pub following: Value,
}

/// Adds the feed `masked_lm_positions`, `i32[B, P]`, and both heads.
pub(super) fn build(b: &mut Builder, bert: &Bert<'_>, encoded: &Encoded) -> Result<Logits> {
    let sequences = bert.sequences;
    let positions = b.feed("masked_lm_positions", DType::I32, [sequences.batch, sequences.predictions])?;
    let first = b.scope("bert.pooler", |b| pooled(b, bert, encoded.hidden))?;
    b.scope("cls", |b| {
        let words = b.scope("predictions", |b| {
            let masked = masked_rows(b, bert, encoded.hidden, positions)?;
            words(b, bert, masked, encoded.words)
        })?;
        Ok(Logits { words, following: b.linear("seq_relationship", first, bert.linear(2))? })
    })
}

/// `[B, S, H]` to `[B, H]`: the first token's state through a layer with `tanh`.
fn pooled(b: &mut Builder, bert: &Bert<'_>, hidden: Value) -> Result<Value> {
    let (batch, width) = (bert.sequences.batch, bert.config.hidden_size);
    let first = b.graph.slice(hidden, &[0, 0, 0], &[batch, 1, width], &[1, 1, 1])?;
    let first = b.graph.reshape(first, [batch, width])?;
    let dense = b.linear("dense", first, bert.active_linear(width, width))?;
    b.graph.unary(UnaryKind::Tanh, dense)
}

/// The states of the masked words, `[B * P, H]`.
fn masked_rows(b: &mut Builder, bert: &Bert<'_>, hidden: Value, positions: Value) -> Result<Value> {
    let (batch, length) = (bert.sequences.batch, bert.sequences.length);
    let g = &mut b.graph;
    let rows = g.reshape(hidden, [batch * length, bert.config.hidden_size])?;
    let first = (0..batch).map(|item| Scalar((item * length) as f64)).collect();
    let first = g.add1(Constant { dtype: DType::I32, shape: [batch, 1].into(), data: first }, &[])?;
    let indices = g.add_(positions, first)?;
    let indices = g.reshape(indices, [batch * bert.sequences.predictions])?;
    g.add1(Gather, &[rows, indices])
}

/// `[B * P, H]` to `[B * P, V]`, by the transpose of the word embeddings.
fn words(b: &mut Builder, bert: &Bert<'_>, masked: Value, words: Value) -> Result<Value> {
    let (config, width) = (bert.config, bert.config.hidden_size);
    let transformed = b.scope("transform", |b| {
        let mut x = b.linear("dense", masked, bert.active_linear(width, width))?;
        if bert.options.mlm_activation {
            x = config.hidden_act.apply(&mut b.graph, x)?;
        }
        b.layer_norm("LayerNorm", x, config.layer_norm_eps)
    })?;
    let bias = b.bias("bias", bert.vocabulary(), Init::Zeros)?;
    b.scope("decoder", |b| {
        let product = b.graph.add1(Matmul { trans_a: false, trans_b: true }, &[transformed, words])?;
        b.graph.add_(product, bias)
    })
}
