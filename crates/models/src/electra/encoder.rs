//! From tokens to hidden states: embeddings, which several encoders may share, and BERT's layers.

use super::config::Network;
use crate::bert::{Embeddings, Encoder, Tokens, mask_bias};
use bessemer_ir::Value;
use bessemer_nn::{Builder, Linear, Result, Streams};

/// What all encoders of a graph have in common.
pub(super) struct Trunk {
    pub tokens: Tokens,
    pub embeddings: Embeddings,
    /// What is added to scores of attention, `f32[B, S]`.
    bias: Value,
    streams: Streams,
}

impl Trunk {
    /// Adds the feeds `input_ids`, `segment_ids`, `input_mask`, all `i32[B, S]`, and the tables of embeddings.
    pub(super) fn new(b: &mut Builder, network: &Network<'_>) -> Result<Self> {
        let bert = &network.bert;
        let tokens = Tokens::feed(b, bert.sequences)?;
        let embeddings = b.scope("electra.embeddings", |b| Embeddings::new(b, bert, network.embedding))?;
        let bias = b.scope("mask", |b| mask_bias(b, tokens.mask))?;
        Ok(Trunk { tokens, embeddings, bias, streams: Streams::new(bert.options.seed) })
    }

    /// Hidden states `f32[B, S, H]` of `tokens i32[B, S]`; the network's parameters are in the scope `name`.
    pub(super) fn encode(&mut self, b: &mut Builder, name: &str, network: &Network<'_>, ids: Value) -> Result<Value> {
        let mut encoder = Encoder::new(network.bert, &mut self.streams);
        b.scope(name, |b| {
            let mut x = b.scope("embeddings", |b| {
                let sum = self.embeddings.of(b, ids, self.tokens.types)?;
                encoder.hidden_dropout(b, sum)
            })?;
            if network.embedding != network.width() {
                let options = network.bert.linear(network.width());
                x = Linear::new(b, "embeddings_project", network.embedding, options)?.apply(b, x)?;
            }
            encoder.layers(b, x, self.bias)
        })
    }

    pub(super) fn streams(&mut self) -> &mut Streams {
        &mut self.streams
    }
}
