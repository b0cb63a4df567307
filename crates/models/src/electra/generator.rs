//! The generator: what it thinks of hidden tokens, and samples of them.

use super::config::Network;
use super::encoder::Trunk;
use crate::bert::{states_at, token_scores};
use bessemer_ir::ops::index::{ArgMax, Gather, OneHot};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, Graph, Shape, Value};
use bessemer_nn::loss::WeightedRows;
use bessemer_nn::{Activation, Builder, LayerNorm, Linear, MaskedMean, RandomStream, Result};

/// Keeps logarithms of 0 away.
const LEAST: f64 = 1e-9;
/// What a token that is not to be drawn loses.
const DISALLOWED: f64 = 1000.0;

/// Scores `f32[B * P, V]` for the tokens at `positions i32[B, P]` of `tokens i32[B, S]`; the body's parameters are in the scope `name`.
pub(super) fn scores(
    b: &mut Builder,
    trunk: &mut Trunk,
    name: &str,
    network: &Network<'_>,
    ids: Value,
    positions: Value,
) -> Result<Value> {
    let hidden = trunk.encode(b, name, network, ids)?;
    let states = b.scope("generator_predictions", |b| {
        let chosen = states_at(&mut b.graph, hidden, positions)?;
        let dense = network.bert.active_linear(network.width(), network.embedding);
        let x = Linear::new(b, "dense", network.width(), dense)?.apply(b, chosen)?;
        let x = Activation::Gelu.apply(&mut b.graph, x)?;
        LayerNorm::new(b, "LayerNorm", network.embedding, network.bert.config.layer_norm_eps)?.apply(b, x)
    })?;
    b.scope("generator_lm_head", |b| token_scores(b, states, trunk.embeddings.table))
}

/// Where probabilities of tokens come from.
pub(super) enum Source {
    /// Their logarithms but for a constant, `f32[N, V]`.
    Scores(Value),
    /// All tokens of a vocabulary of this size are equally likely.
    Uniform { vocab_size: usize },
    /// The frequencies of the right tokens among themselves.
    Batch,
    /// Logarithms of frequencies but for a constant, `f32[V]`, the same for all positions.
    Frequencies(Value),
}

/// Probabilities of the tokens at drawn positions.
pub(super) struct MaskedTokenScores {
    pub source: Source,
    /// The right tokens, `i32[N]`.
    pub labels: Value,
    /// `f32[N]`
    pub weights: Value,
}

/// What makes the draws of a batch.
pub(super) struct TokenSampling {
    pub random: RandomStream,
    /// Distinguishes batches, `i32[]`, or where there are several groups the first of them; the next ones have the next numbers.
    pub number: Value,
    /// Parts of the batch, of equally many positions each, that are drawn for by their own numbers.
    pub groups: usize,
    /// Whether the right token is never drawn.
    pub disallow_correct: bool,
}

impl MaskedTokenScores {
    fn rows(&self, logits: Value) -> WeightedRows {
        WeightedRows { logits, labels: self.labels, weights: self.weights }
    }

    /// The sum of the weights, `f32[]`.
    pub(super) fn weight(&self, g: &mut Graph) -> Result<Value> {
        g.sum(self.weights, &[0])
    }

    /// The sum of the weights times the cross entropies of the right tokens, `f32[]`.
    pub(super) fn loss_sum(&self, g: &mut Graph) -> Result<Value> {
        match self.source {
            Source::Scores(scores) => self.rows(scores).loss_sum(g),
            Source::Uniform { vocab_size } => {
                let weight = self.weight(g)?;
                g.mul_scalar(weight, (vocab_size as f64).ln())
            }
            Source::Batch => self.loss_in_batch(g),
            Source::Frequencies(logs) => {
                let scores = self.scores_everywhere(g, logs)?;
                self.rows(scores).loss_sum(g)
            }
        }
    }

    /// The sum of the weights of those positions whose right token is the likeliest, `f32[]`: 0 without scores of a network.
    pub(super) fn correct(&self, g: &mut Graph) -> Result<Value> {
        match self.source {
            Source::Scores(scores) => self.rows(scores).correct(g),
            Source::Uniform { .. } | Source::Batch | Source::Frequencies(_) => g.constant(DType::F32, [], 0.0),
        }
    }

    /// A token for each place by their probabilities, `i32[N]`.
    pub(super) fn sample(&self, g: &mut Graph, draw: &TokenSampling) -> Result<Value> {
        let scores = match self.source {
            Source::Scores(scores) => scores,
            Source::Uniform { vocab_size } => return self.sample_evenly(g, vocab_size, draw),
            Source::Batch => self.scores_of_each_other(g)?,
            Source::Frequencies(logs) => self.scores_everywhere(g, logs)?,
        };
        let scores = if draw.disallow_correct { self.without_right(g, scores)? } else { scores };
        let drawn = sample_by(g, scores, draw)?;
        match self.source {
            Source::Batch => g.push1(Gather::ROWS, &[self.labels, drawn]),
            Source::Scores(_) | Source::Uniform { .. } | Source::Frequencies(_) => Ok(drawn),
        }
    }

    /// The same scores `f32[V]` for each place, `f32[N, V]`.
    fn scores_everywhere(&self, g: &mut Graph, scores: Value) -> Result<Value> {
        let (positions, vocab_size) = (g.shape(self.weights).elements(), g.shape(scores).elements());
        let row = g.reshape(scores, [1, vocab_size])?;
        g.broadcast(row, &Shape::from([positions, vocab_size]))
    }

    /// The sum of the weights times `-ln` of the share that the right token has in all right tokens, `f32[]`.
    fn loss_in_batch(&self, g: &mut Graph) -> Result<Value> {
        let same = self.same(g)?;
        let columns = g.reshape(self.weights, [1, g.shape(self.weights).elements()])?;
        let counted = g.mul(same, columns)?;
        let (times, all) = (g.sum(counted, &[1])?, self.weight(g)?);
        let share = MaskedMean::Torch.of_rank(g, times, all)?;
        // Words without a weight may have no share.
        let positive = g.add_scalar(share, LEAST)?;
        let log = g.unary(UnaryKind::Log, positive)?;
        let weighted = g.mul(log, self.weights)?;
        let sum = g.sum(weighted, &[0])?;
        g.neg(sum)
    }

    /// 1 where two positions have the same right token, else 0; `f32[N, N]`.
    fn same(&self, g: &mut Graph) -> Result<Value> {
        let count = g.shape(self.labels).elements();
        let (rows, columns) = (g.reshape(self.labels, [count, 1])?, g.reshape(self.labels, [1, count])?);
        let is_same = g.binary(BinaryKind::Eq, rows, columns)?;
        g.cast(is_same, DType::F32)
    }

    /// For each place the scores of the right tokens of all positions, `f32[N, N]`: the same for all that may be drawn.
    fn scores_of_each_other(&self, g: &mut Graph) -> Result<Value> {
        let count = g.shape(self.weights).elements();
        let columns = g.reshape(self.weights, [1, count])?;
        let missing = g.add_scalar(columns, -1.0)?;
        let scores = g.mul_scalar(missing, DISALLOWED)?;
        g.broadcast(scores, &Shape::from([count, count]))
    }

    /// Scores by which the right tokens are never drawn.
    fn without_right(&self, g: &mut Graph, scores: Value) -> Result<Value> {
        let right = match self.source {
            Source::Batch => self.same(g)?,
            Source::Scores(_) | Source::Uniform { .. } | Source::Frequencies(_) => {
                g.push1(OneHot { depth: g.shape(scores).cols() }, &[self.labels])?
            }
        };
        let loss = g.mul_scalar(right, DISALLOWED)?;
        g.sub(scores, loss)
    }

    fn sample_evenly(&self, g: &mut Graph, vocab_size: usize, draw: &TokenSampling) -> Result<Value> {
        let vocab_size = vocab_size - usize::from(draw.disallow_correct);
        let positions = g.shape(self.labels).elements() / draw.groups;
        let uniform = draw.by_group(g, |g, number, _| draw.uniforms(g, Shape::from([positions]), number))?;
        let scaled = g.mul_scalar(uniform, vocab_size as f64)?;
        let number = g.unary(UnaryKind::Floor, scaled)?;
        // Rounding may reach the number of tokens itself.
        let last = g.constant_like(number, vocab_size as f64 - 1.0)?;
        let mut word = g.binary(BinaryKind::Min, number, last)?;
        if draw.disallow_correct {
            // Those from the right token on are the next ones.
            let right = g.cast(self.labels, DType::F32)?;
            let below = g.add_scalar(right, -0.5)?;
            let is_behind = g.binary(BinaryKind::Gt, word, below)?;
            let step = g.cast(is_behind, DType::F32)?;
            word = g.add(word, step)?;
        }
        g.cast(word, DType::I32)
    }
}

impl TokenSampling {
    /// What `draw` gives for the number and the index of each group, one behind the other along the first axis.
    fn by_group(
        &self,
        g: &mut Graph,
        mut draw: impl FnMut(&mut Graph, Value, usize) -> Result<Value>,
    ) -> Result<Value> {
        let mut drawn = vec![draw(g, self.number, 0)?];
        for group in 1..self.groups {
            let number = g.add_scalar(self.number, group as f64)?;
            drawn.push(draw(g, number, group)?);
        }
        if let [all] = drawn[..] { Ok(all) } else { g.concat(&drawn, 0) }
    }

    /// Numbers in `[0, 1)`, by the number of a group.
    fn uniforms(&self, g: &mut Graph, shape: Shape, number: Value) -> Result<Value> {
        let RandomStream { seed, stream } = self.random;
        g.push1(Random { distribution: Distribution::Uniform, shape, seed, stream }, &[number])
    }
}

/// Draws a class of each row from `softmax(scores f32[N, V])`, `i32[N]`: the largest score with noise of Gumbel's distribution
/// added, `-ln(-ln(u))`.
fn sample_by(g: &mut Graph, scores: Value, draw: &TokenSampling) -> Result<Value> {
    let (rows, columns) = (g.shape(scores).rows() / draw.groups, g.shape(scores).cols());
    draw.by_group(g, |g, number, group| {
        let scores = match draw.groups {
            1 => scores,
            _ => g.slice(scores, &[group * rows, 0], &[(group + 1) * rows, columns], &[1, 1])?,
        };
        let mut noise = draw.uniforms(g, Shape::from([rows, columns]), number)?;
        for _ in 0..2 {
            let positive = g.add_scalar(noise, LEAST)?;
            let log = g.unary(UnaryKind::Log, positive)?;
            noise = g.neg(log)?;
        }
        let sum = g.add(scores, noise)?;
        g.push1(ArgMax, &[sum])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::reference::Interpreter;
    use bessemer_nn::Mode;

    const ROWS: usize = 2000;
    const WORDS: usize = 5;

    enum Of {
        Scores([f64; WORDS]),
        Uniform,
        Batch,
        Frequencies([f64; WORDS]),
    }

    /// How often each token was drawn. The right token is 1, but for draws of the batch: 0, 1, 1 in turn, and 4 which is not of it.
    fn shares(of: Of, disallow_correct: bool) -> [f64; WORDS] {
        let one = shares_in_groups(&of, disallow_correct, 1);
        let groups = shares_in_groups(&of, disallow_correct, 4);
        assert!(one != groups && one.iter().zip(groups).all(|(a, b)| (a - b).abs() < 0.05), "{one:?} {groups:?}");
        one
    }

    fn shares_in_groups(of: &Of, disallow_correct: bool, groups: usize) -> [f64; WORDS] {
        let mut b = Builder::new(Mode::Infer);
        let number = b.feed("number", DType::I32, []).expect("a new name");
        let labels = b.feed("labels", DType::I32, [ROWS]).expect("a new name");
        let weights = b.feed("weights", DType::F32, [ROWS]).expect("a new name");
        let source = match of {
            Of::Scores(_) => Source::Scores(b.feed("scores", DType::F32, [ROWS, WORDS]).expect("a new name")),
            Of::Uniform => Source::Uniform { vocab_size: WORDS },
            Of::Batch => Source::Batch,
            Of::Frequencies(_) => Source::Frequencies(b.feed("scores", DType::F32, [WORDS]).expect("a new name")),
        };
        let guesses = MaskedTokenScores { source, labels, weights };
        let random = RandomStream { seed: 3, stream: 0 };
        let samples = guesses
            .sample(&mut b.graph, &TokenSampling { random, number, groups, disallow_correct })
            .expect("a legal graph");
        b.graph.output("samples", samples);
        let loss = guesses.loss_sum(&mut b.graph).expect("a legal graph");
        b.graph.output("loss", loss);
        let (graph, _) = b.finish();
        let mut run = Interpreter::new(&graph);
        run.set("number", &[4.0]);
        let (labels, weights) = match of {
            Of::Scores(_) | Of::Uniform | Of::Frequencies(_) => (vec![1.0; ROWS], vec![1.0; ROWS]),
            Of::Batch => ([0.0, 1.0, 1.0, 4.0].repeat(ROWS / 4), [1.0, 1.0, 1.0, 0.0].repeat(ROWS / 4)),
        };
        run.set("labels", &labels);
        run.set("weights", &weights);
        let wanted = match of {
            Of::Scores(scores) | Of::Frequencies(scores) => {
                let rows = if matches!(of, Of::Scores(_)) { ROWS } else { 1 };
                run.set("scores", &scores.repeat(rows));
                scores.iter().map(|score| score.exp()).sum::<f64>().ln() - scores[1]
            }
            Of::Uniform => (WORDS as f64).ln(),
            Of::Batch => 1.5f64.ln() * 2.0 / 3.0 + 3f64.ln() / 3.0,
        };
        run.run();
        let loss = run.output("loss").data[0] / weights.iter().sum::<f64>();
        assert!((loss - wanted).abs() < 1e-6, "{loss}, not {wanted}");
        let mut shares = [0.0; WORDS];
        for &word in &run.output("samples").data {
            shares[word as usize] += 1.0 / ROWS as f64;
        }
        shares
    }

    fn close(shares: [f64; WORDS], wanted: [f64; WORDS]) {
        // Three deviations of the largest share's count.
        assert!(shares.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.03), "{shares:?}, not {wanted:?}");
    }

    #[test]
    fn tokens_come_as_often_as_their_probability() {
        let scores = [0.0, 2f64.ln(), 4f64.ln(), f64::MIN_POSITIVE.ln(), 1f64.ln()];
        close(shares(Of::Scores(scores), false), [0.125, 0.25, 0.5, 0.0, 0.125]);
        close(shares(Of::Scores(scores), true), [1.0 / 6.0, 0.0, 4.0 / 6.0, 0.0, 1.0 / 6.0]);
        close(shares(Of::Frequencies(scores), false), [0.125, 0.25, 0.5, 0.0, 0.125]);
        close(shares(Of::Frequencies(scores), true), [1.0 / 6.0, 0.0, 4.0 / 6.0, 0.0, 1.0 / 6.0]);
        close(shares(Of::Uniform, false), [0.2; WORDS]);
        close(shares(Of::Uniform, true), [0.25, 0.0, 0.25, 0.25, 0.25]);
        close(shares(Of::Batch, false), [1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0, 0.0]);
        // A quarter of the positions has another right token than those that are drawn.
        close(shares(Of::Batch, true), [0.5 + 0.25 / 3.0, 0.25 + 0.5 / 3.0, 0.0, 0.0, 0.0]);
    }
}
