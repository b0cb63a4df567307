//! Embeddings and layers: `[B, S]` tokens to `[B, S, H]` hidden states.

use super::config::Bert;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::{DType, Value};
use bessemer_nn::{Builder, Mode, RandomStream, Result};

/// What is added to the scores of masked tokens.
const MASKED: f64 = -10_000.0;

/// The encoder under construction.
pub(super) struct Encoder<'a> {
    bert: Bert<'a>,
    /// Of the next random numbers.
    stream: u32,
}

/// What the heads read.
pub(super) struct Encoded {
    /// `f32[B, S, H]`
    pub hidden: Value,
    /// `f32[V, H]`
    pub words: Value,
}

impl<'a> Encoder<'a> {
    pub fn new(bert: Bert<'a>) -> Self {
        Encoder { bert, stream: 0 }
    }

    /// Adds the feeds `input_ids`, `segment_ids`, `input_mask`, all `i32[B, S]`, and the encoder.
    pub fn build(mut self, b: &mut Builder) -> Result<Encoded> {
        let sequences = self.bert.sequences;
        let shape = [sequences.batch, sequences.length];
        let words = b.feed("input_ids", DType::I32, shape)?;
        let types = b.feed("segment_ids", DType::I32, shape)?;
        let mask = b.feed("input_mask", DType::I32, shape)?;
        b.scope("bert", |b| {
            let (mut hidden, words) = b.scope("embeddings", |b| self.embed(b, words, types))?;
            let bias = b.scope("mask", |b| mask_bias(b, mask))?;
            for layer in 0..self.bert.config.num_hidden_layers {
                hidden = b.scope(&format!("encoder.layer.{layer}"), |b| self.layer(b, hidden, bias))?;
            }
            Ok(Encoded { hidden, words })
        })
    }

    fn next_stream(&mut self) -> RandomStream {
        self.stream += 1;
        RandomStream { seed: self.bert.options.seed, stream: self.stream - 1 }
    }

    fn hidden_dropout(&mut self, b: &mut Builder, x: Value) -> Result<Value> {
        let random = self.next_stream();
        b.dropout(x, self.bert.config.hidden_dropout_prob, random)
    }

    /// Sum of the embeddings of words, positions and types, normalised; and the table of words.
    fn embed(&mut self, b: &mut Builder, words: Value, types: Value) -> Result<(Value, Value)> {
        let (config, init) = (self.bert.config, self.bert.init());
        let (hidden, length) = (config.hidden_size, self.bert.sequences.length);
        let (words, table) = b.embedding("word_embeddings", words, [self.bert.vocabulary(), hidden], init)?;
        let positions = b.scope("position_embeddings", |b| {
            let all = b.weight("weight", [config.max_position_embeddings, hidden], init)?;
            b.graph.slice(all, &[0, 0], &[length, hidden], &[1, 1])
        })?;
        let (types, _) = b.embedding("token_type_embeddings", types, [config.type_vocab_size, hidden], init)?;
        let sum = b.graph.add_(words, types)?;
        let sum = b.graph.add_(sum, positions)?;
        let normalised = b.layer_norm("LayerNorm", sum, config.layer_norm_eps)?;
        Ok((self.hidden_dropout(b, normalised)?, table))
    }

    fn layer(&mut self, b: &mut Builder, x: Value, bias: Value) -> Result<Value> {
        let config = self.bert.config;
        let attended = b.scope("attention", |b| {
            let context = b.scope("self", |b| self.attend(b, x, bias))?;
            b.scope("output", |b| self.add_and_norm(b, context, x))
        })?;
        let wide = b.scope("intermediate", |b| {
            let layer = self.bert.active_linear(config.hidden_size, config.intermediate_size);
            let wide = b.linear("dense", attended, layer)?;
            config.hidden_act.apply(&mut b.graph, wide)
        })?;
        b.scope("output", |b| self.add_and_norm(b, wide, attended))
    }

    /// `[B, S, H]` to `[B, S, H]`, the heads side by side.
    fn attend(&mut self, b: &mut Builder, x: Value, bias: Value) -> Result<Value> {
        let config = self.bert.config;
        let layer = self.bert.linear(config.hidden_size);
        let mut inputs = vec![b.linear("query", x, layer)?, b.linear("key", x, layer)?, b.linear("value", x, layer)?];
        inputs.push(bias);
        let RandomStream { seed, stream } = self.next_stream();
        let rate = config.attention_probs_dropout_prob;
        let drops = rate > 0.0 && b.mode() == Mode::Train;
        if drops {
            inputs.push(b.micro_step()?);
        }
        let attention = Attention {
            heads: config.num_attention_heads,
            scale: Scalar(1.0 / ((config.hidden_size / config.num_attention_heads) as f64).sqrt()),
            dropout: drops.then_some(AttentionDropout { rate: Scalar(rate), seed, stream }),
        };
        Ok(b.graph.add(attention, &inputs)?[0])
    }

    /// `LayerNorm(residual + dropout(dense(x)))`
    fn add_and_norm(&mut self, b: &mut Builder, x: Value, residual: Value) -> Result<Value> {
        let config = self.bert.config;
        let dense = b.linear("dense", x, self.bert.linear(config.hidden_size))?;
        let dense = self.hidden_dropout(b, dense)?;
        let sum = b.graph.add_(dense, residual)?;
        b.layer_norm("LayerNorm", sum, config.layer_norm_eps)
    }
}

/// `i32[B, S]`, 1 for tokens and 0 for padding, to what is added to scores, `f32[B, S]`.
fn mask_bias(b: &mut Builder, mask: Value) -> Result<Value> {
    let g = &mut b.graph;
    let mask = g.cast(mask, DType::F32)?;
    let missing = g.offset(mask, -1.0)?;
    g.scale(missing, -MASKED)
}
