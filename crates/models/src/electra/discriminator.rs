//! The discriminator: which tokens were replaced.

use super::config::Network;
use super::encoder::Trunk;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::loss::WeightedRows;
use bessemer_nn::{Builder, Linear, Result};

/// Scores `f32[B * S]` of `tokens i32[B, S]`, above 0 for those that it takes for replaced.
pub(super) fn scores(b: &mut Builder, trunk: &mut Trunk, network: &Network<'_>, ids: Value) -> Result<Value> {
    let (width, count) = (network.width(), b.graph.shape(ids).elements());
    let hidden = trunk.encode(b, "electra", network, ids)?;
    b.scope("discriminator_predictions", |b| {
        let dense = Linear::new(b, "dense", width, network.bert.active_linear(width, width))?;
        let x = dense.apply(b, hidden)?;
        let x = network.bert.config.hidden_act.apply(&mut b.graph, x)?;
        let x = Linear::new(b, "dense_prediction", width, network.bert.linear(1))?.apply(b, x)?;
        b.graph.reshape(x, [count])
    })
}

/// Scores of truth, `f32[N]`, as rows of two classes, `f32[N, 2]`: their cross entropy is the binary one of the scores.
pub(super) fn two_classes(g: &mut Graph, scores: Value) -> Result<Value> {
    let count = g.shape(scores).elements();
    let column = g.reshape(scores, [count, 1])?;
    g.pad(column, &[0, 1], &[0, 0])
}

/// Scores with what they should be.
pub(super) struct ReplacedTokenScores {
    /// `f32[N]`
    pub scores: Value,
    /// 1 for replaced tokens, `i32[N]`.
    pub labels: Value,
    /// `f32[N]`
    pub weights: Value,
}

/// Sums over tokens, `f32[]` each.
pub(super) struct VerdictSums {
    pub loss: Value,
    pub weight: Value,
    /// Words rightly taken for what they are.
    pub correct: Value,
    /// Words that were replaced.
    pub replaced: Value,
    /// Words taken for replaced.
    pub suspected: Value,
    /// Replaced tokens taken for replaced.
    pub found: Value,
}

impl ReplacedTokenScores {
    pub(super) fn sums(&self, g: &mut Graph) -> Result<VerdictSums> {
        let rows = WeightedRows { logits: two_classes(g, self.scores)?, labels: self.labels, weights: self.weights };
        let zero = g.constant_like(self.scores, 0.0)?;
        let suspicion = g.binary(BinaryKind::Gt, self.scores, zero)?;
        let suspicion = g.cast(suspicion, DType::F32)?;
        let replacement = g.cast(self.labels, DType::F32)?;
        let (suspicion, replacement) = (g.mul(suspicion, self.weights)?, g.mul(replacement, self.weights)?);
        let both = g.mul(suspicion, replacement)?;
        let (weight, found) = (rows.weight(g)?, g.sum(both, &[0])?);
        let (suspected, replaced) = (g.sum(suspicion, &[0])?, g.sum(replacement, &[0])?);
        // All but those that are in one of the sets alone.
        let twice = g.mul_scalar(found, 2.0)?;
        let either = g.add(suspected, replaced)?;
        let wrong = g.sub(either, twice)?;
        let correct = g.sub(weight, wrong)?;
        Ok(VerdictSums { loss: rows.loss_sum(g)?, weight, correct, replaced, suspected, found })
    }
}
