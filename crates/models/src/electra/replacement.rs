//! Words that are hidden from the generator, and those that it puts in their place.

use crate::bert::{Sequences, Tokens, token_numbers};
use bessemer_ir::ops::index::{Gather, ScatterAdd};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::{Builder, Result};

/// The positions that were drawn in a batch. A place may be drawn more than once.
pub(super) struct Draws {
    /// `i32[B, P]`
    pub places: Value,
    /// The same as numbers of tokens in the batch, `i32[B * P]`.
    tokens: Value,
    /// 1 for draws, 0 for what fills up; `f32[B * P]`.
    pub weights: Value,
    /// 1 where a draw hides its token, `f32[B * P]`.
    hides: Value,
    /// The tokens there, `i32[B * P]`.
    pub ids: Value,
    /// How often each token was drawn, `f32[B * S]`.
    counts: Value,
}

impl Draws {
    /// Adds the feeds `masked_lm_positions`, `i32[B, P]`, `masked_lm_weights`, `f32[B, P]`, and `masked_lm_replaced`, `i32[B, P]`.
    pub(super) fn feed(b: &mut Builder, sequences: Sequences, batch: &Tokens) -> Result<Self> {
        let shape = [sequences.batch, sequences.predictions];
        let places = b.feed("masked_lm_positions", DType::I32, shape)?;
        let weights = b.feed("masked_lm_weights", DType::F32, shape)?;
        let hides = b.feed("masked_lm_replaced", DType::I32, shape)?;
        let (g, count) = (&mut b.graph, sequences.batch * sequences.predictions);
        let tokens = token_numbers(g, places, sequences.length)?;
        let weights = g.reshape(weights, [count])?;
        let hides = g.cast(hides, DType::F32)?;
        let hides = g.reshape(hides, [count])?;
        let rows = sequences.batch * sequences.length;
        let ids = g.reshape(batch.ids, [rows])?;
        Ok(Draws {
            places,
            tokens,
            weights,
            hides: g.mul(hides, weights)?,
            ids: g.push1(Gather::ROWS, &[ids, tokens])?,
            counts: g.push1(ScatterAdd::to_rows(rows), &[weights, tokens])?,
        })
    }

    /// `tokens i32[B, S]` with `mask_token` in place of the hidden ones.
    pub(super) fn hide(&self, g: &mut Graph, ids: Value, mask_token: u32) -> Result<Value> {
        let marks = self.scattered(g, ids, self.hides)?;
        let is_hidden = is_positive(g, marks)?;
        let mask = g.constant_like(ids, f64::from(mask_token))?;
        g.select(is_hidden, mask, ids)
    }

    /// `tokens i32[B, S]` with the `samples i32[B * P]` in their positions. Where a place was drawn more than once, it gets the mean
    /// of its samples, rounded down.
    pub(super) fn replace(&self, g: &mut Graph, ids: Value, samples: Value) -> Result<Value> {
        let samples = g.cast(samples, DType::F32)?;
        let samples = g.mul(samples, self.weights)?;
        let sums = self.scattered(g, ids, samples)?;
        let counts = g.reshape(self.counts, g.shape(ids).clone())?;
        let one = g.constant_like(counts, 1.0)?;
        let divisor = g.binary(BinaryKind::Max, counts, one)?;
        // The half keeps whole quotients from being rounded to less.
        let sums = g.add_scalar(sums, 0.5)?;
        let mean = g.div(sums, divisor)?;
        let mean = g.unary(UnaryKind::Floor, mean)?;
        let mean = g.cast(mean, DType::I32)?;
        let is_drawn = is_positive(g, counts)?;
        g.select(is_drawn, mean, ids)
    }

    /// The sums of what the draws give to each token, in the shape of `like`.
    fn scattered(&self, g: &mut Graph, like: Value, values: Value) -> Result<Value> {
        let shape = g.shape(like).clone();
        let sums = g.push1(ScatterAdd::to_rows(shape.elements()), &[values, self.tokens])?;
        g.reshape(sums, shape)
    }
}

fn is_positive(g: &mut Graph, x: Value) -> Result<Value> {
    let zero = g.constant_like(x, 0.0)?;
    g.binary(BinaryKind::Gt, x, zero)
}

/// 1 where tokens differ, 0 where they are the same; `i32[B * S]`.
pub(super) fn differing(g: &mut Graph, a: Value, b: Value) -> Result<Value> {
    let is_same = g.binary(BinaryKind::Eq, a, b)?;
    let (zero, one) = (g.constant(DType::I32, [], 0.0)?, g.constant(DType::I32, [], 1.0)?);
    let differs = g.select(is_same, zero, one)?;
    g.reshape(differs, [g.shape(a).elements()])
}
