//! Steps of BERT that are measured, with the hyper-parameters of a reference recipe.

use crate::recipe::{OptimizerRule, Recipe};
use crate::setup::optimizer;
use crate::tasks::text::{RATE, encoder_sizes, with_dropout, with_tokens};
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload};
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use bessemer_models::{Model, ModelError};
use bessemer_nn::{Activation, TrainConfig};
use serde_json::json;

/// Sequences from which on the recipes of the second phase have 80 tokens to predict.
pub(super) const LONG_SEQUENCE: usize = 512;

/// The recipe whose moments and weight decay steps have.
const REFERENCE: &str = "bert-base-phase1";

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let (config, sequences) = (config(work)?, sequences(work));
    let model = match work.mode {
        Mode::Infer => bert::infer(&config, sequences, &BertOptions::default())?,
        Mode::Train => bert::train(&config, sequences, &BertOptions::default(), &training(work))?,
    };
    let own = [
        ("masked_lm_positions", Fill::Below(sequences.length)),
        ("masked_lm_weights", Fill::One),
        ("next_sentence_labels", Fill::Below(2)),
    ];
    Ok(Workload::new(model, Fill::Below(config.vocab_size), with_tokens(own)))
}

pub(super) fn evaluation(work: &Work<'_>) -> Result<Model, ModelError> {
    bert::evaluate(&config(work)?, sequences(work), &BertOptions::default())
}

pub(super) fn compared(work: &Work<'_>) -> Result<ComparedWork, ModelError> {
    let mut sizes = encoder_sizes(&config(work)?, &work.settings);
    sizes["predictions"] = json!(work.settings.predictions);
    let (training, dropout) = (training(work), work.settings.dropout);
    Ok(ComparedWork { dropout, ..ComparedWork::new(sizes, training) })
}

/// With Google's activation.
fn config(work: &Work<'_>) -> Result<BertConfig, ModelError> {
    let published = (bert::find(work.model)?.config)();
    Ok(BertConfig { hidden_act: Activation::GeluTanh, ..with_dropout(published, &work.settings) })
}

fn sequences(work: &Work<'_>) -> Sequences {
    let settings = &work.settings;
    Sequences { batch: work.batch_size, length: settings.sequence_length, predictions: settings.predictions }
}

/// By Adam with decoupled decay, which every framework has, in place of the recipe's LAMB.
fn training(work: &Work<'_>) -> TrainConfig {
    let mut reference = Recipe::load(REFERENCE, &[]).expect("a recipe of this program").optimizer;
    if let OptimizerRule::Lamb(adam, _) = reference.rule {
        reference.rule = OptimizerRule::Adamw(adam);
    }
    TrainConfig { clip: work.clip(), ..work.train_config(optimizer(&reference), RATE) }
}
