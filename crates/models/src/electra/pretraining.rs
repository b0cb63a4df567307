//! The graphs of pre-training: a training step, an evaluation, and the forward pass of either network.

use super::config::{ElectraConfig, ElectraOptions, Generator, Network, PretrainingOptions};
use super::discriminator::{self, ReplacedTokenScores};
use super::encoder::Trunk;
use super::generator::{self, MaskedTokenScores, Source, TokenSampling};
use super::names::NAMES;
use super::replacement::{Draws, differing};
use crate::ModelError;
use crate::bert::Sequences;
use crate::model::Model;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{Builder, MaskedMean, Mode, Ranks, TrainConfig};

type Result<T> = std::result::Result<T, ModelError>;

/// A whole training step of generator and discriminator. Feeds: `input_ids`, `segment_ids`, `input_mask`, `i32[B, S]`, the text as
/// it is; `masked_lm_positions`, `i32[B, P]`, the positions drawn, with repetition or without; `masked_lm_weights`, `f32[B, P]`, 1 for
/// draws and 0 for what fills up; `masked_lm_replaced`, `i32[B, P]`, 1 where the draw hides its token from the generator. Outputs,
/// all `f32[]`: `loss`, `mlm_loss`, `disc_loss`, `mlm_accuracy`, `sampled_accuracy` (samples that are the right token),
/// `disc_accuracy`, `disc_precision`, `disc_recall`, and those of the optimizer.
///
/// # Errors
/// [`ModelError::Setting`] where a size or an option is not possible.
pub fn train(
    config: &ElectraConfig,
    sequences: Sequences,
    options: &PretrainingOptions,
    train: &TrainConfig,
) -> Result<Model> {
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
    config: &ElectraConfig,
    sequences: Sequences,
    options: &PretrainingOptions,
    ranks: Ranks,
) -> Result<(Builder, Value)> {
    let mut b = Builder::training(ranks);
    let results = results(&mut b, config, sequences, options)?;
    let loss = b.scope("loss", |b| {
        let g = &mut b.graph;
        let sums = results.verdicts.sums(g)?;
        let (mlm, weight) = (results.masked.loss_sum(g)?, results.masked.weight(g)?);
        let mlm = MaskedMean::Electra.of(b, mlm, weight)?;
        let disc = MaskedMean::Electra.of(b, sums.loss, sums.weight)?;
        b.graph.output("mlm_loss", mlm);
        b.graph.output("disc_loss", disc);
        let g = &mut b.graph;
        let [correct, sampled] = [results.masked.correct(g)?, results.sampled_correct(g)?];
        for (name, sum, weight) in [
            ("mlm_accuracy", correct, weight),
            ("sampled_accuracy", sampled, weight),
            ("disc_accuracy", sums.correct, sums.weight),
            ("disc_precision", sums.found, sums.suspected),
            ("disc_recall", sums.found, sums.replaced),
        ] {
            let share = MaskedMean::Torch.of(b, sum, weight)?;
            b.graph.output(name, share);
        }
        let disc = b.graph.mul_scalar(disc, options.discriminator_weight)?;
        b.graph.add(mlm, disc)
    })?;
    Ok((b, loss))
}

/// The forward pass without dropout, with the feeds of [`train`] and `first_example`, `i32[]`, the number of the first sequence in
/// the data set: samples are drawn by the numbers of sequences, so that they do not depend on how these are put into batches.
/// With tokens of the batch, [`Generator::Batch`], they come from the frequencies of all tokens of the data set instead, whose
/// logarithms are the feed `log_frequencies`, `f32[V]`. Outputs, all `f32[]` and sums over the batch: `mlm_loss_sum`, `mlm_correct`, `sampled_correct` and `mlm_weight` over draws;
/// `disc_loss_sum`, `disc_correct` and `disc_weight` over tokens, and the tokens that were replaced, `disc_replaced`, those taken for
/// replaced, `disc_suspected`, and those that are both, `disc_found`.
///
/// # Errors
/// As [`train`].
pub fn evaluate(config: &ElectraConfig, sequences: Sequences, options: &PretrainingOptions) -> Result<Model> {
    let mut b = Builder::new(Mode::Infer);
    let results = results(&mut b, config, sequences, options)?;
    b.scope("loss", |b| {
        let g = &mut b.graph;
        let sums = results.verdicts.sums(g)?;
        for (name, sum) in [
            ("mlm_loss_sum", results.masked.loss_sum(g)?),
            ("mlm_correct", results.masked.correct(g)?),
            ("sampled_correct", results.sampled_correct(g)?),
            ("mlm_weight", results.masked.weight(g)?),
            ("disc_loss_sum", sums.loss),
            ("disc_correct", sums.correct),
            ("disc_weight", sums.weight),
            ("disc_replaced", sums.replaced),
            ("disc_suspected", sums.suspected),
            ("disc_found", sums.found),
        ] {
            g.output(name, sum);
        }
        Ok::<_, ModelError>(())
    })?;
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// The forward pass of a discriminator, Hugging Face's `ElectraForPreTraining`. Feeds: `input_ids`, `segment_ids`, `input_mask`,
/// `i32[B, S]`. Output: `disc_logits`, `f32[B, S]`, above 0 for tokens taken for replaced.
///
/// # Errors
/// As [`train`].
pub fn infer_discriminator(config: &ElectraConfig, sequences: Sequences, options: &ElectraOptions) -> Result<Model> {
    config.check(sequences)?;
    let options = options.of_bert();
    let network = Network::new(config, sequences, &options);
    let mut b = Builder::new(Mode::Infer);
    let mut trunk = Trunk::new(&mut b, &network)?;
    let ids = trunk.tokens.ids;
    let scores = discriminator::scores(&mut b, &mut trunk, &network, ids)?;
    let scores = b.graph.reshape(scores, [sequences.batch, sequences.length])?;
    b.graph.output("disc_logits", scores);
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// The forward pass of a generator of this size, Hugging Face's `ElectraForMaskedLM`. Feeds: those of [`infer_discriminator`] and
/// `masked_lm_positions`, `i32[B, P]`. Output: `mlm_logits`, `f32[B, P, V]`.
///
/// # Errors
/// As [`train`].
pub fn infer_generator(config: &ElectraConfig, sequences: Sequences, options: &ElectraOptions) -> Result<Model> {
    config.check(sequences)?;
    let options = options.of_bert();
    let network = Network::new(config, sequences, &options);
    let Sequences { batch, predictions, .. } = sequences;
    let mut b = Builder::new(Mode::Infer);
    let mut trunk = Trunk::new(&mut b, &network)?;
    let places = b.feed("masked_lm_positions", DType::I32, [batch, predictions])?;
    let ids = trunk.tokens.ids;
    let scores = generator::scores(&mut b, &mut trunk, "electra", &network, ids, places)?;
    let scores = b.graph.reshape(scores, [batch, predictions, config.encoder.vocab_size])?;
    b.graph.output("mlm_logits", scores);
    let (graph, specs) = b.finish();
    Ok(Model { graph, specs, names: &NAMES })
}

/// What both networks say of a batch.
struct Results {
    masked: MaskedTokenScores,
    /// What the generator put in, `i32[B * P]`.
    samples: Value,
    verdicts: ReplacedTokenScores,
}

impl Results {
    /// The sum of the weights of draws whose sample is the right token, `f32[]`.
    fn sampled_correct(&self, g: &mut Graph) -> bessemer_nn::Result<Value> {
        let is_right = g.binary(BinaryKind::Eq, self.samples, self.masked.labels)?;
        let hits = g.cast(is_right, DType::F32)?;
        let weighted = g.mul(hits, self.masked.weights)?;
        g.sum(weighted, &[0])
    }
}

fn results(
    b: &mut Builder,
    config: &ElectraConfig,
    sequences: Sequences,
    options: &PretrainingOptions,
) -> Result<Results> {
    options.check(config, sequences)?;
    let (small, bert) = (config.generator(options.generator_fraction), options.network.of_bert());
    let [large, small] = [config, &small].map(|config| Network::new(config, sequences, &bert));
    let mut trunk = Trunk::new(b, &large)?;
    let ids = trunk.tokens.ids;
    let draws = b.scope("draws", |b| Draws::feed(b, sequences, &trunk.tokens))?;
    let vocab_size = config.encoder.vocab_size;
    let source = match options.generator {
        Generator::Network => {
            let hidden = b.scope("draws", |b| draws.hide(&mut b.graph, ids, options.mask_token))?;
            Source::Scores(generator::scores(b, &mut trunk, "generator", &small, hidden, draws.places)?)
        }
        Generator::Uniform => Source::Uniform { vocab_size },
        Generator::Batch => match b.mode() {
            Mode::Train => Source::Batch,
            Mode::Infer => Source::Frequencies(b.feed("log_frequencies", DType::F32, [vocab_size])?),
        },
    };
    let guesses = MaskedTokenScores { source, labels: draws.ids, weights: draws.weights };
    let random = trunk.streams().next_stream();
    let samples = b.scope("sampling", |b| {
        let (number, groups) = match b.mode() {
            Mode::Train => (b.micro_step()?, 1),
            Mode::Infer => (b.feed("first_example", DType::I32, [])?, sequences.batch),
        };
        guesses
            .sample(&mut b.graph, &TokenSampling { random, number, groups, disallow_correct: options.disallow_correct })
    })?;
    let (fake, labels) = b.scope("replacement", |b| {
        let fake = draws.replace(&mut b.graph, ids, samples)?;
        Ok::<_, ModelError>((fake, differing(&mut b.graph, fake, ids)?))
    })?;
    let verdicts = discriminator::scores(b, &mut trunk, &large, fake)?;
    let g = &mut b.graph;
    let mask = g.cast(trunk.tokens.mask, DType::F32)?;
    let weights = g.reshape(mask, [sequences.batch * sequences.length])?;
    Ok(Results { masked: guesses, samples, verdicts: ReplacedTokenScores { scores: verdicts, labels, weights } })
}
