//! Steps of ELECTRA's pre-training that are measured.

use crate::tasks::text::{RATE, encoder_sizes, with_dropout, with_tokens};
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload};
use bessemer_models::bert::Sequences;
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, PretrainingOptions};
use bessemer_models::{Model, ModelError};
use bessemer_nn::{Adam, Optimizer, TrainConfig};
use serde_json::json;

/// Inference is the pass of the discriminator.
pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let (config, options) = networks(work)?;
    let sequences = sequences(work);
    let model = match work.mode {
        Mode::Infer => electra::infer_discriminator(&config, sequences, &ElectraOptions::default())?,
        Mode::Train => electra::train(&config, sequences, &options, &training(work))?,
    };
    let own = [
        ("masked_lm_positions", Fill::Below(sequences.length)),
        ("masked_lm_weights", Fill::One),
        ("masked_lm_replaced", Fill::One),
    ];
    Ok(Workload::new(model, Fill::Below(config.encoder.vocab_size), with_tokens(own)))
}

pub(super) fn evaluation(work: &Work<'_>) -> Result<Model, ModelError> {
    let (config, options) = networks(work)?;
    electra::evaluate(&config, sequences(work), &options)
}

pub(super) fn compared(work: &Work<'_>) -> Result<ComparedWork, ModelError> {
    let (config, _) = networks(work)?;
    let mut sizes = encoder_sizes(&config.encoder, &work.settings);
    sizes["embedding_size"] = json!(config.embedding_size);
    sizes["predictions"] = json!(work.settings.predictions);
    Ok(ComparedWork { dropout: work.settings.dropout, ..ComparedWork::new(sizes, training(work)) })
}

fn networks(work: &Work<'_>) -> Result<(ElectraConfig, PretrainingOptions), ModelError> {
    let spec = electra::find(work.model)?;
    let config = (spec.config)();
    let encoder = with_dropout(config.encoder, &work.settings);
    Ok((ElectraConfig { encoder, ..config }, PretrainingOptions::new(spec.generator_fraction)))
}

fn sequences(work: &Work<'_>) -> Sequences {
    let settings = &work.settings;
    Sequences { batch: work.batch_size, length: settings.sequence_length, predictions: settings.predictions }
}

/// By the optimizer of Google's scripts.
fn training(work: &Work<'_>) -> TrainConfig {
    TrainConfig { clip: work.clip(), ..work.train_config(Optimizer::Adam(Adam::bert(0.01)), RATE) }
}
