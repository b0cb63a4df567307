//! The graphs: a training step, an evaluation, a forward pass.

use super::config::{Bert, BertConfig, BertOptions, Sequences};
use super::encoder::encode;
use super::heads::{self, Logits};
use super::names::NAMES;
use crate::ModelError;
use crate::model::Model;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::loss::WeightedRows;
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, MaskedMean, Mode, Ranks, TrainConfig};

type Result<T> = std::result::Result<T, ModelError>;

/// A whole training step. Feeds: `input_ids`, `segment_ids`, `input_mask`, `i32[B, S]`; `masked_lm_positions`, `masked_lm_ids`,
/// `i32[B, P]`; `masked_lm_weights`, `f32[B, P]`; `next_sentence_labels`, `i32[B]`, 1 where the second sentence is a random one.
/// Outputs, all `f32[]`: `loss`, `mlm_loss`, `nsp_loss`, `mlm_accuracy`, `nsp_accuracy`, and those of the optimizer.
///
/// # Errors
/// [`ModelError::Setting`] where a size or an option is not possible.
pub fn train(config: &BertConfig, sequences: Sequences, options: &BertOptions, train: &TrainConfig) -> Result<Model> {
    let (mut b, loss) = forward_loss(config, sequences, options, train.ranks)?;
    build_train_step(&mut b, loss, train)?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// The part of a training step before the backward pass, and its loss.
///
/// # Errors
/// As [`train`].
pub fn forward_loss(
    config: &BertConfig,
    sequences: Sequences,
    options: &BertOptions,
    ranks: Ranks,
) -> Result<(Builder, Value)> {
    config.check(sequences, options)?;
    let bert = Bert { config, sequences, options };
    let mut b = Builder::training(ranks);
    let (tokens, following) = scored(&mut b, &bert)?;
    let loss = b.scope("loss", |b| {
        let [token_sums, sentence_sums] = [Sums::of(&mut b.graph, &tokens)?, Sums::of(&mut b.graph, &following)?];
        let mlm = options.masked_mean.of(b, token_sums.loss, token_sums.weight)?;
        let nsp = MaskedMean::Torch.of(b, sentence_sums.loss, sentence_sums.weight)?;
        b.graph.output("mlm_loss", mlm);
        b.graph.output("nsp_loss", nsp);
        for (name, sums) in [("mlm_accuracy", token_sums), ("nsp_accuracy", sentence_sums)] {
            let accuracy = MaskedMean::Torch.of(b, sums.correct, sums.weight)?;
            b.graph.output(name, accuracy);
        }
        b.graph.add(mlm, nsp)
    })?;
    Ok((b, loss))
}

/// The forward pass without dropout, with the feeds of [`train`]. Outputs, all `f32[]` and sums over the batch: `mlm_loss_sum`,
/// `mlm_correct` and `mlm_weight` over masked tokens by their weights, `nsp_loss_sum` and `nsp_correct` over sequences, but for
/// those without a first token.
///
/// # Errors
/// As [`train`].
pub fn evaluate(config: &BertConfig, sequences: Sequences, options: &BertOptions) -> Result<Model> {
    config.check(sequences, options)?;
    let mut b = Builder::new(Mode::Infer);
    let (tokens, following) = scored(&mut b, &Bert { config, sequences, options })?;
    b.scope("loss", |b| {
        let g = &mut b.graph;
        let [tokens, following] = [Sums::of(g, &tokens)?, Sums::of(g, &following)?];
        g.output("mlm_loss_sum", tokens.loss);
        g.output("mlm_correct", tokens.correct);
        g.output("mlm_weight", tokens.weight);
        g.output("nsp_loss_sum", following.loss);
        g.output("nsp_correct", following.correct);
        Ok::<_, ModelError>(())
    })?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// The forward pass without dropout. Feeds: those of [`train`] up to `masked_lm_positions`. Outputs: `mlm_logits`,
/// `f32[B, P, V]`, and `nsp_logits`, `f32[B, 2]`.
///
/// # Errors
/// As [`train`].
pub fn infer(config: &BertConfig, sequences: Sequences, options: &BertOptions) -> Result<Model> {
    config.check(sequences, options)?;
    let bert = Bert { config, sequences, options };
    let mut b = Builder::new(Mode::Infer);
    let logits = logits(&mut b, &bert)?;
    let token_logits = b.graph.reshape(logits.tokens, [sequences.batch, sequences.predictions, bert.vocabulary()])?;
    b.graph.output("mlm_logits", token_logits);
    b.graph.output("nsp_logits", logits.following);
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

fn logits(b: &mut Builder, bert: &Bert<'_>) -> Result<Logits> {
    let encoded = encode(b, bert)?;
    Ok(heads::build(b, bert, &encoded)?)
}

/// Logits of masked tokens and of following sentences with what they should be.
fn scored(b: &mut Builder, bert: &Bert<'_>) -> Result<(WeightedRows, WeightedRows)> {
    let Sequences { batch, predictions, .. } = bert.sequences;
    let logits = logits(b, bert)?;
    let ids = b.feed("masked_lm_ids", DType::I32, [batch, predictions])?;
    let weights = b.feed("masked_lm_weights", DType::F32, [batch, predictions])?;
    let sentences = b.feed("next_sentence_labels", DType::I32, [batch])?;
    let g = &mut b.graph;
    let tokens = WeightedRows {
        logits: logits.tokens,
        labels: g.reshape(ids, [batch * predictions])?,
        weights: g.reshape(weights, [batch * predictions])?,
    };
    let weights = sequence_weights(g, bert.sequences)?;
    Ok((tokens, WeightedRows { logits: logits.following, labels: sentences, weights }))
}

/// 1 for sequences with a first token, 0 for those that only fill up a batch, `f32[B]`.
fn sequence_weights(g: &mut Graph, sequences: Sequences) -> bessemer_nn::Result<Value> {
    let mask = g.find_input("input_mask").expect("the encoder reads it");
    let first = g.slice(mask, &[0, 0], &[sequences.batch, 1], &[1, 1])?;
    let first = g.reshape(first, [sequences.batch])?;
    g.cast(first, DType::F32)
}

/// Sums over rows, `f32[]` each.
#[derive(Clone, Copy)]
struct Sums {
    loss: Value,
    correct: Value,
    weight: Value,
}

impl Sums {
    fn of(g: &mut Graph, rows: &WeightedRows) -> bessemer_nn::Result<Sums> {
        Ok(Sums { loss: rows.loss_sum(g)?, correct: rows.correct(g)?, weight: rows.weight(g)? })
    }
}
