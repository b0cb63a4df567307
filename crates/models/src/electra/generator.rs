//! The generator: what it thinks of hidden words, and samples of them.

use super::config::Network;
use super::encoder::Trunk;
use crate::bert::{states_at, word_scores};
use bessemer_ir::ops::index::{ArgMax, OneHot};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::ops::source::{Distribution, Random};
use bessemer_ir::{DType, Graph, Shape, Value};
use bessemer_nn::loss::WeightedRows;
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

/// Probabilities of the words at drawn places.
pub(super) struct Guesses {
    /// Their logarithms but for a constant, `f32[N, V]`; none where all words are as likely.
    pub scores: Option<Value>,
    /// `V`
    pub vocabulary: usize,
    /// The right words, `i32[N]`.
    pub labels: Value,
    /// `f32[N]`
    pub weights: Value,
}

/// What makes the draws of a batch.
pub(super) struct Draw {
    pub random: RandomStream,
    /// Tells batches apart, `i32[]`.
    pub number: Value,
    /// Whether the right word is never drawn.
    pub disallow_correct: bool,
}

impl Guesses {
    fn rows(&self, logits: Value) -> WeightedRows {
        WeightedRows { logits, labels: self.labels, weights: self.weights }
    }

    /// The sum of the weights, `f32[]`.
    pub fn weight(&self, g: &mut Graph) -> Result<Value> {
        g.sum(self.weights, &[0])
    }

    /// The sum of the weights times the cross entropies of the right words, `f32[]`.
    pub fn loss_sum(&self, g: &mut Graph) -> Result<Value> {
        if let Some(scores) = self.scores {
            return self.rows(scores).loss_sum(g);
        }
        let weight = self.weight(g)?;
        g.scale(weight, (self.vocabulary as f64).ln())
    }

    /// The sum of the weights of those places whose right word is the likeliest, `f32[]`: 0 where all are as likely.
    pub fn correct(&self, g: &mut Graph) -> Result<Value> {
        match self.scores {
            Some(scores) => self.rows(scores).correct(g),
            None => g.constant(DType::F32, [], 0.0),
        }
    }

    /// A word for each place by their probabilities, `i32[N]`.
    pub fn sample(&self, g: &mut Graph, draw: &Draw) -> Result<Value> {
        match self.scores {
            Some(scores) if draw.disallow_correct => {
                let scores = without(g, scores, self.labels)?;
                sample_by(g, scores, draw)
            }
            Some(scores) => sample_by(g, scores, draw),
            None => self.sample_evenly(g, draw),
        }
    }

    fn sample_evenly(&self, g: &mut Graph, draw: &Draw) -> Result<Value> {
        let words = self.vocabulary - usize::from(draw.disallow_correct);
        let uniform = uniforms(g, g.shape(self.labels).clone(), draw)?;
        let scaled = g.scale(uniform, words as f64)?;
        let number = g.unary(UnaryKind::Floor, scaled)?;
        // Rounding may reach the number of words itself.
        let last = g.constant_like(number, words as f64 - 1.0)?;
        let mut word = g.binary(BinaryKind::Min, number, last)?;
        if draw.disallow_correct {
            // Those from the right word on are the next ones.
            let right = g.cast(self.labels, DType::F32)?;
            let below = g.offset(right, -0.5)?;
            let is_behind = g.binary(BinaryKind::Gt, word, below)?;
            let step = g.cast(is_behind, DType::F32)?;
            word = g.add_(word, step)?;
        }
        g.cast(word, DType::I32)
    }
}

/// Numbers in `(0, 1)`.
fn uniforms(g: &mut Graph, shape: Shape, draw: &Draw) -> Result<Value> {
    let RandomStream { seed, stream } = draw.random;
    g.add1(Random { distribution: Distribution::Uniform, shape, seed, stream }, &[draw.number])
}

/// Draws a class of each row from `softmax(scores f32[N, V])`, `i32[N]`: the largest score with noise of Gumbel's distribution
/// added, `-ln(-ln(u))`.
fn sample_by(g: &mut Graph, scores: Value, draw: &Draw) -> Result<Value> {
    let mut noise = uniforms(g, g.shape(scores).clone(), draw)?;
    for _ in 0..2 {
        let positive = g.offset(noise, LEAST)?;
        let log = g.unary(UnaryKind::Log, positive)?;
        noise = g.neg(log)?;
    }
    let sum = g.add_(scores, noise)?;
    g.add1(ArgMax, &[sum])
}

/// Scores by which the class `labels i32[N]` of each row is never drawn.
fn without(g: &mut Graph, scores: Value, labels: Value) -> Result<Value> {
    let right = g.add1(OneHot { depth: g.shape(scores).cols() }, &[labels])?;
    let loss = g.scale(right, DISALLOWED)?;
    g.sub(scores, loss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::reference::Interpreter;
    use bessemer_nn::Mode;

    const ROWS: usize = 3000;
    const WORDS: usize = 5;

    /// How often each word was drawn whose scores are these, the right word being 1.
    fn shares(scores: Option<[f64; WORDS]>, disallow_correct: bool) -> [f64; WORDS] {
        let mut b = Builder::new(Mode::Infer);
        let number = b.feed("number", DType::I32, []).expect("a new name");
        let labels = b.feed("labels", DType::I32, [ROWS]).expect("a new name");
        let weights = b.feed("weights", DType::F32, [ROWS]).expect("a new name");
        let scores_fed = scores.map(|_| b.feed("scores", DType::F32, [ROWS, WORDS]).expect("a new name"));
        let guesses = Guesses { scores: scores_fed, vocabulary: WORDS, labels, weights };
        let random = RandomStream { seed: 3, stream: 0 };
        let words = guesses.sample(&mut b.graph, &Draw { random, number, disallow_correct }).expect("a legal graph");
        b.graph.output("words", words);
        let (graph, _) = b.finish();
        let mut run = Interpreter::new(&graph);
        run.set("number", &[4.0]);
        run.set("labels", &[1.0; ROWS]);
        run.set("weights", &[1.0; ROWS]);
        if let Some(scores) = scores {
            run.set("scores", &scores.repeat(ROWS));
        }
        run.run();
        let mut shares = [0.0; WORDS];
        for &word in &run.output("words").data {
            shares[word as usize] += 1.0 / ROWS as f64;
        }
        shares
    }

    fn close(shares: [f64; WORDS], wanted: [f64; WORDS]) {
        // Three deviations of the largest share's count.
        assert!(shares.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.03), "{shares:?}, not {wanted:?}");
    }

    #[test]
    fn words_come_as_often_as_their_probability() {
        let scores = [0.0, 2f64.ln(), 4f64.ln(), f64::MIN_POSITIVE.ln(), 1f64.ln()];
        close(shares(Some(scores), false), [0.125, 0.25, 0.5, 0.0, 0.125]);
        close(shares(Some(scores), true), [1.0 / 6.0, 0.0, 4.0 / 6.0, 0.0, 1.0 / 6.0]);
        close(shares(None, false), [0.2; WORDS]);
        close(shares(None, true), [0.25, 0.0, 0.25, 0.25, 0.25]);
    }
}
