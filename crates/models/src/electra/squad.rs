//! The graphs of answering questions by spans of a text, SQuAD: a training step and the prediction.

use super::config::{ElectraConfig, ElectraOptions, Network};
use super::discriminator::two_classes;
use super::encoder::Trunk;
use super::names::NAMES;
use super::span_head::{JointHead, largest, plain};
use crate::ModelError;
use crate::bert::{Sequences, setting_error};
use crate::model::Model;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::loss::{WeightedRows, masked_cross_entropy};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, MaskedMean, Mode, Ranks, TrainConfig};

type Result<T> = std::result::Result<T, ModelError>;

/// How the answer is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanHead {
    /// First and last token by one layer, each for itself: Hugging Face's `ElectraForQuestionAnswering`.
    Plain,
    /// The last token by the first, as in XLNet.
    Joint {
        /// First tokens of a prediction, and last ones for each.
        beam: usize,
        /// Whether there may be no answer (SQuAD 2.0), which a separate head predicts.
        may_be_impossible: bool,
    },
}

/// Variants of answering questions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SquadOptions {
    /// Seed and initial weights.
    pub network: ElectraOptions,
    /// How the answer is found.
    pub head: SpanHead,
}

/// A whole training step. Feeds: `input_ids`, `segment_ids`, `input_mask`, `i32[B, S]`; `start_positions`, `end_positions`, `i32[B]`,
/// the first and last token of the answer, which do not count where they are `S` or more; with the joint head also `p_mask`,
/// `f32[B, S]`, 1 for tokens that cannot be in an answer; and `is_impossible`, `f32[B]`, 1 where there is none, if there may be none.
/// Outputs, all `f32[]`: `loss`, `start_loss`, `end_loss`, `impossible_loss` if there may be no answer, and those of the optimizer.
///
/// # Errors
/// [`ModelError::Setting`] where a size or an option is not possible.
pub fn train(
    config: &ElectraConfig,
    batch: usize,
    length: usize,
    options: &SquadOptions,
    train: &TrainConfig,
) -> Result<Model> {
    let (mut b, loss) = forward_loss(config, batch, length, options, train.ranks)?;
    build_train_step(&mut b, loss, train)?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// The part of a training step before the backward pass, and its loss: `(CE_start + CE_end) / 2`, and half the binary cross entropy
/// of there being no answer.
///
/// # Errors
/// As [`train`].
pub fn forward_loss(
    config: &ElectraConfig,
    batch: usize,
    length: usize,
    options: &SquadOptions,
    ranks: Ranks,
) -> Result<(Builder, Value)> {
    let sequences = check(config, batch, length, options)?;
    let bert = options.network.of_bert();
    let network = Network::new(config, sequences, &bert);
    let mut b = Builder::training(ranks);
    let hidden = hidden(&mut b, &network)?;
    let [first, last] = ["start_positions", "end_positions"].map(|name| b.feed(name, DType::I32, [batch]));
    let [first, last] = [first?, last?];
    let scores = match options.head {
        SpanHead::Plain => {
            let [starts, ends] = plain(&mut b, &network, hidden)?;
            Scores { starts, ends, impossible: None }
        }
        SpanHead::Joint { may_be_impossible, .. } => {
            let head = joint_head(&mut b, &network, hidden)?;
            Scores::by_starts(&mut b, &head, first, may_be_impossible)?
        }
    };
    let loss = b.scope("loss", |b| scores.loss(b, first, last))?;
    Ok((b, loss))
}

/// What a training step compares with the answer.
struct Scores {
    /// `f32[B, S]`
    starts: Value,
    /// `f32[B, S]`
    ends: Value,
    /// `f32[B]`
    impossible: Option<Value>,
}

impl Scores {
    /// Those of the joint head, which reads the first tokens `i32[B]`.
    fn by_starts(
        b: &mut Builder,
        head: &JointHead<'_>,
        first: Value,
        may_be_impossible: bool,
    ) -> bessemer_nn::Result<Scores> {
        let starts = head.starts(b)?;
        let g = &mut b.graph;
        let (batch, length) = (g.shape(starts).rows(), g.shape(starts).cols());
        let place = clipped(g, first, length - 1)?;
        let place = g.reshape(place, [batch, 1])?;
        let states = head.states(g, place)?;
        let ends = head.ends(b, states)?;
        let ends = b.graph.reshape(ends, [batch, length])?;
        let state = b.graph.reshape(states, [batch, head.network.width()])?;
        let impossible = may_be_impossible.then(|| head.impossible(b, state)).transpose()?;
        Ok(Scores { starts, ends, impossible })
    }

    /// The loss, and its parts as outputs.
    fn loss(&self, b: &mut Builder, first: Value, last: Value) -> bessemer_nn::Result<Value> {
        let start = position_loss(b, self.starts, first)?;
        let end = position_loss(b, self.ends, last)?;
        b.graph.output("start_loss", start);
        b.graph.output("end_loss", end);
        let both = b.graph.add(start, end)?;
        let mut sum = both;
        if let Some(scores) = self.impossible {
            let impossible = impossible_loss(b, scores)?;
            b.graph.output("impossible_loss", impossible);
            sum = b.graph.add(both, impossible)?;
        }
        b.graph.mul_scalar(sum, 0.5)
    }
}

/// The prediction. Feeds: those of [`train`] up to `input_mask`, and `p_mask` with the joint head. Outputs of the plain head:
/// `start_logits` and `end_logits`, `f32[B, S]`. Outputs of the joint head with a beam of `K`, most probable first: the first tokens,
/// `start_indices`, `i32[B, K]`, with the logarithms of their probabilities, `start_log_probs`, `f32[B, K]`; for each of them the last
/// tokens, `end_indices`, `i32[B, K, K]`, and `end_log_probs`, `f32[B, K, K]`; and `impossible_logits`, `f32[B]`, above 0 where there
/// is no answer, if there may be none.
///
/// # Errors
/// As [`train`].
pub fn predict(config: &ElectraConfig, batch: usize, length: usize, options: &SquadOptions) -> Result<Model> {
    let sequences = check(config, batch, length, options)?;
    let bert = options.network.of_bert();
    let network = Network::new(config, sequences, &bert);
    let mut b = Builder::new(Mode::Infer);
    let hidden = hidden(&mut b, &network)?;
    match options.head {
        SpanHead::Plain => {
            let [starts, ends] = plain(&mut b, &network, hidden)?;
            b.graph.output("start_logits", starts);
            b.graph.output("end_logits", ends);
        }
        SpanHead::Joint { beam, may_be_impossible } => {
            let head = joint_head(&mut b, &network, hidden)?;
            search(&mut b, &head, beam, may_be_impossible)?;
        }
    }
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// Adds the outputs of the joint head's prediction.
fn search(b: &mut Builder, head: &JointHead<'_>, beam: usize, may_be_impossible: bool) -> bessemer_nn::Result<()> {
    let scores = head.starts(b)?;
    let g = &mut b.graph;
    let (batch, length) = (g.shape(scores).rows(), g.shape(scores).cols());
    let starts = g.log_softmax(scores)?;
    let [start_values, start_places] = largest(g, starts, beam)?;
    let states = head.states(g, start_places)?;
    let ends = head.ends(b, states)?;
    let g = &mut b.graph;
    let ends = g.log_softmax(ends)?;
    let ends = g.reshape(ends, [batch * beam, length])?;
    let [end_values, end_places] = largest(g, ends, beam)?;
    let end_values = g.reshape(end_values, [batch, beam, beam])?;
    let end_places = g.reshape(end_places, [batch, beam, beam])?;
    for (name, value) in [
        ("start_log_probs", start_values),
        ("start_indices", start_places),
        ("end_log_probs", end_values),
        ("end_indices", end_places),
    ] {
        g.output(name, value);
    }
    if may_be_impossible {
        let state = head.expected_state(g, scores)?;
        let impossible = head.impossible(b, state)?;
        b.graph.output("impossible_logits", impossible);
    }
    Ok(())
}

fn check(config: &ElectraConfig, batch: usize, length: usize, options: &SquadOptions) -> Result<Sequences> {
    let sequences = Sequences { batch, length, predictions: 1 };
    config.check(sequences)?;
    match options.head {
        SpanHead::Joint { beam, .. } if beam == 0 || beam > length => {
            Err(setting_error("beam", beam, "it must be at least 1 and at most the sequence_length"))
        }
        _ => Ok(sequences),
    }
}

fn hidden(b: &mut Builder, network: &Network<'_>) -> bessemer_nn::Result<Value> {
    let mut trunk = Trunk::new(b, network)?;
    let ids = trunk.tokens.ids;
    trunk.encode(b, "electra", network, ids)
}

/// Adds the feed `p_mask`.
fn joint_head<'a>(b: &mut Builder, network: &'a Network<'a>, hidden: Value) -> bessemer_nn::Result<JointHead<'a>> {
    let Sequences { batch, length, .. } = network.bert.sequences;
    Ok(JointHead { network, hidden, excluded: b.feed("p_mask", DType::F32, [batch, length])? })
}

/// `positions i32[...]`, at least 0 and at most `most`.
fn clipped(g: &mut Graph, positions: Value, most: usize) -> bessemer_nn::Result<Value> {
    let (zero, most) = (g.constant_like(positions, 0.0)?, g.constant_like(positions, most as f64)?);
    let positions = g.binary(BinaryKind::Max, positions, zero)?;
    g.binary(BinaryKind::Min, positions, most)
}

/// Mean cross entropy of `positions i32[B]` under `scores f32[B, S]`, over those below `S`; `f32[]`.
fn position_loss(b: &mut Builder, scores: Value, positions: Value) -> bessemer_nn::Result<Value> {
    let g = &mut b.graph;
    let length = g.shape(scores).cols();
    let labels = clipped(g, positions, length)?;
    let end = g.constant_like(labels, length as f64)?;
    let is_inside = g.binary(BinaryKind::Lt, labels, end)?;
    let weights = g.cast(is_inside, DType::F32)?;
    masked_cross_entropy(b, &WeightedRows { logits: scores, labels, weights }, MaskedMean::Torch)
}

/// Adds the feed `is_impossible`; the mean binary cross entropy of `scores f32[B]`.
fn impossible_loss(b: &mut Builder, scores: Value) -> bessemer_nn::Result<Value> {
    let batch = b.graph.shape(scores).elements();
    let truth = b.feed("is_impossible", DType::F32, [batch])?;
    let g = &mut b.graph;
    let rows = WeightedRows {
        logits: two_classes(g, scores)?,
        labels: g.cast(truth, DType::I32)?,
        weights: g.constant(DType::F32, [batch], 1.0)?,
    };
    masked_cross_entropy(b, &rows, MaskedMean::Torch)
}
