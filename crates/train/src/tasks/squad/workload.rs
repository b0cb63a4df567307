//! Steps of answering questions that are measured, with the hyper-parameters of a reference recipe.

use super::recipe::QuestionRecipe;
use crate::recipe::{OptimizerRule, Recipe};
use crate::setup::optimizer;
use crate::tasks::text::{RATE, encoder_sizes, with_dropout, with_tokens};
use crate::workload::{ComparedWork, Fill, Mode, Work, Workload};
use bessemer_models::ModelError;
use bessemer_models::electra::{self, ElectraConfig, ElectraOptions, SpanHead, SquadOptions, squad};
use bessemer_nn::{EpsForm, RateFactors, TrainConfig};
use serde_json::json;

/// The recipe whose optimizer, rates of layers and beam steps have.
const REFERENCE: &str = "electra-squad";

fn reference() -> Recipe {
    Recipe::load(REFERENCE, &[]).expect("a recipe of this program")
}

fn own(recipe: &Recipe) -> &QuestionRecipe {
    recipe.own().expect("of this family")
}

/// Every question has an answer, which the joint head looks for, or a plain one.
pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let (config, recipe) = (config(work)?, reference());
    let head = match work.settings.plain_spans {
        true => SpanHead::Plain,
        false => SpanHead::Joint { beam: own(&recipe).squad.beam as usize, may_be_impossible: false },
    };
    let options = SquadOptions { network: ElectraOptions::default(), head };
    let (batch, length) = (work.batch_size, work.settings.sequence_length);
    let model = match work.mode {
        Mode::Infer => squad::predict(&config, batch, length, &options)?,
        Mode::Train => squad::train(&config, batch, length, &options, &training(work, &config, &recipe))?,
    };
    let own =
        [("p_mask", Fill::Zero), ("start_positions", Fill::Below(length)), ("end_positions", Fill::Below(length))];
    Ok(Workload::new(model, Fill::Below(config.encoder.vocab_size), with_tokens(own)))
}

pub(super) fn compared(work: &Work<'_>) -> Result<ComparedWork, ModelError> {
    let config = config(work)?;
    let mut sizes = encoder_sizes(&config.encoder, &work.settings);
    sizes["embedding_size"] = json!(config.embedding_size);
    let (training, dropout) = (training(work, &config, &reference()), work.settings.dropout);
    Ok(ComparedWork { dropout, ..ComparedWork::new(sizes, training) })
}

fn config(work: &Work<'_>) -> Result<ElectraConfig, ModelError> {
    let config = (electra::find_squad(work.model)?.config)();
    Ok(ElectraConfig { encoder: with_dropout(config.encoder, &work.settings), ..config })
}

/// By the recipe's optimizer, at rates that fall with the depth; with plain spans all layers at one rate, and the epsilon in the
/// place that every framework has.
fn training(work: &Work<'_>, config: &ElectraConfig, recipe: &Recipe) -> TrainConfig {
    let mut rule = recipe.optimizer.clone();
    let mut rate_factors = config.layer_rates(own(recipe).layer_rates.layer_decay);
    if work.settings.plain_spans {
        if let OptimizerRule::Adamw(adam) = &mut rule.rule {
            adam.eps_form = EpsForm::OutsideSqrt;
        }
        rate_factors = RateFactors::default();
    }
    TrainConfig { clip: work.clip(), rate_factors, ..work.train_config(optimizer(&rule), RATE) }
}
