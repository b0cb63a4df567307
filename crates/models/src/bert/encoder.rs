//! Embeddings and layers: `[B, S]` tokens to `[B, S, H]` hidden states.

use super::config::{Bert, Sequences};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout};
use bessemer_ir::ops::index::Gather;
use bessemer_ir::{DType, Value};
use bessemer_nn::{Builder, LayerNorm, Linear, Mode, RandomStream, Result, Streams};

/// What is added to the scores of masked tokens.
const MASKED: f64 = -10_000.0;

/// The tokens of a batch, all `i32[B, S]`.
#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    pub ids: Value,
    /// Number of the segment.
    pub types: Value,
    /// 1 for tokens, 0 for padding.
    pub mask: Value,
}

impl Tokens {
    /// Adds the feeds `input_ids`, `segment_ids`, `input_mask`.
    pub(crate) fn feed(b: &mut Builder, sequences: Sequences) -> Result<Tokens> {
        let shape = [sequences.batch, sequences.length];
        Ok(Tokens {
            ids: b.feed("input_ids", DType::I32, shape)?,
            types: b.feed("segment_ids", DType::I32, shape)?,
            mask: b.feed("input_mask", DType::I32, shape)?,
        })
    }
}

/// Tables and norm of an embedding layer, which may be used in several places.
pub(crate) struct Embeddings {
    /// `f32[V, E]`
    pub table: Value,
    /// `f32[S, E]`
    positions: Value,
    types: Value,
    norm: LayerNorm,
}

impl Embeddings {
    /// Tables of rows of `width` numbers, in the scope of the builder.
    pub(crate) fn new(b: &mut Builder, bert: &Bert<'_>, width: usize) -> Result<Self> {
        let (config, init) = (bert.config, bert.tables(width));
        let table = b.scope("word_embeddings", |b| b.weight("weight", [bert.vocabulary(), width], init.tokens))?;
        let positions = b.scope("position_embeddings", |b| {
            let all = b.weight("weight", [config.max_position_embeddings, width], init.positions)?;
            b.graph.slice(all, &[0, 0], &[bert.sequences.length, width], &[1, 1])
        })?;
        let types =
            b.scope("token_type_embeddings", |b| b.weight("weight", [config.type_vocab_size, width], init.types))?;
        let norm = LayerNorm::new(b, "LayerNorm", width, config.layer_norm_eps)?;
        Ok(Embeddings { table, positions, types, norm })
    }

    /// The sum of the embeddings of tokens, positions and types, normalised: `i32[B, S]` to `f32[B, S, E]`.
    pub(crate) fn of(&self, b: &mut Builder, ids: Value, types: Value) -> Result<Value> {
        let tokens = b.scope("word_embeddings", |b| b.graph.push1(Gather::ROWS, &[self.table, ids]))?;
        let types = b.scope("token_type_embeddings", |b| b.graph.push1(Gather::ROWS, &[self.types, types]))?;
        let sum = b.graph.add(tokens, types)?;
        let sum = b.graph.add(sum, self.positions)?;
        self.norm.apply(b, sum)
    }
}

/// What the heads read.
pub(crate) struct Encoded {
    /// `f32[B, S, H]`
    pub hidden: Value,
    /// `f32[V, H]`
    pub table: Value,
}

/// Adds the feeds of [`Tokens`] and a whole BERT without heads.
pub(super) fn encode(b: &mut Builder, bert: &Bert<'_>) -> Result<Encoded> {
    let tokens = Tokens::feed(b, bert.sequences)?;
    let mut streams = Streams::new(bert.options.seed);
    let mut encoder = Encoder::new(*bert, &mut streams);
    b.scope("bert", |b| {
        let (embedded, table) = b.scope("embeddings", |b| {
            let embeddings = Embeddings::new(b, bert, bert.config.hidden_size)?;
            let sum = embeddings.of(b, tokens.ids, tokens.types)?;
            Ok((encoder.hidden_dropout(b, sum)?, embeddings.table))
        })?;
        let bias = b.scope("mask", |b| mask_bias(b, tokens.mask))?;
        Ok(Encoded { hidden: encoder.layers(b, embedded, bias)?, table })
    })
}

/// Layers under construction, in the scope of the builder.
pub(crate) struct Encoder<'a> {
    bert: Bert<'a>,
    streams: &'a mut Streams,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(bert: Bert<'a>, streams: &'a mut Streams) -> Self {
        Encoder { bert, streams }
    }

    /// All layers: `[B, S, H]` to `[B, S, H]`, with the bias of [`mask_bias`].
    pub(crate) fn layers(&mut self, b: &mut Builder, mut hidden: Value, bias: Value) -> Result<Value> {
        for layer in 0..self.bert.config.num_hidden_layers {
            hidden = b.scope(&format!("encoder.layer.{layer}"), |b| self.layer(b, hidden, bias))?;
        }
        Ok(hidden)
    }

    pub(crate) fn hidden_dropout(&mut self, b: &mut Builder, x: Value) -> Result<Value> {
        let random = self.streams.next_stream();
        b.dropout(x, self.bert.config.hidden_dropout_prob, random)
    }

    fn layer(&mut self, b: &mut Builder, x: Value, bias: Value) -> Result<Value> {
        let config = self.bert.config;
        let attended = b.scope("attention", |b| {
            let context = b.scope("self", |b| self.attend(b, x, bias))?;
            b.scope("output", |b| self.add_and_norm(b, context, x))
        })?;
        let wide = b.scope("intermediate", |b| {
            let layer = self.bert.active_linear(config.hidden_size, config.intermediate_size);
            let wide = Linear::new(b, "dense", config.hidden_size, layer)?.apply(b, attended)?;
            config.hidden_act.apply(&mut b.graph, wide)
        })?;
        b.scope("output", |b| self.add_and_norm(b, wide, attended))
    }

    /// `[B, S, H]` to `[B, S, H]`, the heads side by side.
    fn attend(&mut self, b: &mut Builder, x: Value, bias: Value) -> Result<Value> {
        let config = self.bert.config;
        let (comparing, layer) = (self.bert.comparing(config.hidden_size), self.bert.linear(config.hidden_size));
        let mut inputs = Vec::new();
        for (name, options) in [("query", comparing), ("key", comparing), ("value", layer)] {
            inputs.push(Linear::new(b, name, config.hidden_size, options)?.apply(b, x)?);
        }
        inputs.push(bias);
        let RandomStream { seed, stream } = self.streams.next_stream();
        let rate = config.attention_probs_dropout_prob;
        let drops = rate > 0.0 && b.mode() == Mode::Train;
        if drops {
            inputs.push(b.micro_step()?);
        }
        let attention = Attention {
            heads: config.num_attention_heads,
            scale: Scalar(1.0 / ((config.hidden_size / config.num_attention_heads) as f64).sqrt()),
            dropout: drops.then_some(AttentionDropout { rate: Scalar(rate), seed, stream, keeps_mask: false }),
            output: DType::F32,
        };
        Ok(b.graph.push(attention, &inputs)?[0])
    }

    /// `LayerNorm(residual + dropout(dense(x)))`
    fn add_and_norm(&mut self, b: &mut Builder, x: Value, residual: Value) -> Result<Value> {
        let config = self.bert.config;
        let inputs = b.graph.shape(x).cols();
        let dense = Linear::new(b, "dense", inputs, self.bert.linear(config.hidden_size))?.apply(b, x)?;
        let dense = self.hidden_dropout(b, dense)?;
        let sum = b.graph.add(dense, residual)?;
        LayerNorm::new(b, "LayerNorm", config.hidden_size, config.layer_norm_eps)?.apply(b, sum)
    }
}

/// `i32[B, S]`, 1 for tokens and 0 for padding, to what is added to scores, `f32[B, S]`.
pub(crate) fn mask_bias(b: &mut Builder, mask: Value) -> Result<Value> {
    let g = &mut b.graph;
    let mask = g.cast(mask, DType::F32)?;
    let missing = g.add_scalar(mask, -1.0)?;
    g.mul_scalar(missing, -MASKED)
}
