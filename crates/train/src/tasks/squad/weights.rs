//! What weights are for, and which of their tensors fine-tuning begins with.

use super::recipe::QuestionRecipe;
use crate::error::TrainError;
use crate::loaded_weights::Training;
use crate::recipe::Recipe;
use crate::tasks::InitialWeights;
use crate::tasks::electra::ElectraRecipe;
use crate::tasks::huggingface::activation_in;
use bessemer_models::electra::SpanHead;
use bessemer_nn::Activation;
use bessemer_weights::NamedTensor;
use std::path::Path;

/// How names of the encoder begin; `ElectraModel` of Hugging Face is without it.
const ENCODER: &str = "electra.";
/// What pre-training has besides, and questions do not need.
const PRE_TRAINING: [&str; 4] =
    ["generator.", "generator_predictions.", "generator_lm_head.", "discriminator_predictions."];
const PLAIN_HEAD: &str = "qa_outputs.";
const START_HEAD: &str = "start_logits.";
const IMPOSSIBLE_HEAD: &str = "answer_class.";
pub(super) const HEADS: [&str; 4] = [PLAIN_HEAD, START_HEAD, "end_logits.", IMPOSSIBLE_HEAD];

/// The head that weights have; a joint one with this beam. `None` for weights that were not trained on questions.
pub(super) fn head(tensors: &[NamedTensor<'_>], beam: usize) -> Option<SpanHead> {
    let has = |prefix: &str| tensors.iter().any(|tensor| tensor.name.starts_with(prefix));
    if has(START_HEAD) {
        return Some(SpanHead::Joint { beam, may_be_impossible: has(IMPOSSIBLE_HEAD) });
    }
    has(PLAIN_HEAD).then_some(SpanHead::Plain)
}

/// The activation that weights were trained with, where their run or folder says it.
///
/// # Errors
/// A recipe or a configuration that cannot be read.
pub(super) fn activation(weights: &Path) -> Result<Option<Activation>, TrainError> {
    match Training::of(weights)?.recipe {
        Some(recipe) => Ok(Some(activation_of(&recipe)?)),
        None => activation_in(weights),
    }
}

/// The activation of a recipe, of pre-training or of questions.
fn activation_of(recipe: &Recipe) -> Result<Activation, TrainError> {
    match recipe.own::<ElectraRecipe>() {
        Ok(own) => Ok(own.encoder.activation),
        Err(_) => Ok(recipe.own::<QuestionRecipe>()?.encoder.activation),
    }
}

/// Weights to fine-tune: the encoder of `given`, with heads for questions if it has those of the model. Other heads of the
/// model are `drawn` at random, which is reported; what pre-training has besides is left out. A tensor of the encoder that is not
/// there stays missing.
pub(super) fn initial_weights(
    given: Vec<NamedTensor<'static>>,
    drawn: Vec<NamedTensor<'static>>,
    origin: &str,
) -> InitialWeights {
    let is_bare = !given.iter().any(|tensor| tensor.name.starts_with(ENCODER));
    let is_known = |name: &str| drawn.iter().any(|tensor| tensor.name == name);
    let begins = |name: &str, prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let mut tensors: Vec<NamedTensor<'static>> = given
        .into_iter()
        .map(|tensor| match is_bare && !begins(&tensor.name, &HEADS) {
            true => NamedTensor { name: format!("{ENCODER}{}", tensor.name), ..tensor },
            false => tensor,
        })
        .filter(|tensor| !begins(&tensor.name, &PRE_TRAINING))
        .filter(|tensor| !begins(&tensor.name, &HEADS) || is_known(&tensor.name))
        .collect();
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let new: Vec<NamedTensor<'static>> =
        drawn.into_iter().filter(|tensor| begins(&tensor.name, &HEADS) && !has(&tensor.name)).collect();
    let mut names: Vec<&str> = new.iter().filter_map(|tensor| tensor.name.split('.').next()).collect();
    names.dedup();
    let notes = match names.as_slice() {
        [] => Vec::new(),
        names => vec![format!("{origin} has no {}: these heads are drawn at random", names.join(", "))],
    };
    tensors.extend(new);
    InitialWeights { tensors, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(names: &[&str], value: f32) -> Vec<NamedTensor<'static>> {
        let tensor = |name: &&str| {
            let values = [value];
            let tensor = NamedTensor::from_f32(*name, [1], &values).unwrap();
            NamedTensor { data: tensor.data.into_owned().into(), ..tensor }
        };
        names.iter().map(tensor).collect()
    }

    const MODEL: [&str; 4] =
        ["electra.embeddings.a", "electra.encoder.b", "start_logits.dense.weight", "end_logits.dense_1.weight"];

    fn begun(given: &[&str]) -> (Vec<(String, f32)>, Vec<String>) {
        let InitialWeights { tensors, notes } = initial_weights(tensors(given, 1.0), tensors(&MODEL, 2.0), "W");
        (tensors.into_iter().map(|t| (t.name.clone(), t.to_f32().unwrap()[0])).collect(), notes)
    }

    #[test]
    fn heads_that_are_not_there_are_drawn() {
        let given = ["electra.embeddings.a", "generator.encoder.b", "electra.encoder.b", "discriminator_predictions.x"];
        let (found, notes) = begun(&given);
        let expected = [(MODEL[0], 1.0), (MODEL[1], 1.0), (MODEL[2], 2.0), (MODEL[3], 2.0)];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(notes, ["W has no start_logits, end_logits: these heads are drawn at random"]);
        assert_eq!(begun(&["embeddings.a", "encoder.b"]).0, found, "an ElectraModel");
        assert_eq!(begun(&[MODEL[0], MODEL[1], "qa_outputs.weight"]).0, found, "another kind of head");
    }

    #[test]
    fn heads_that_are_there_are_kept_and_encoders_are_not_drawn() {
        let (found, notes) = begun(&[MODEL[0], MODEL[2], MODEL[3], "other"]);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [MODEL[0], MODEL[2], MODEL[3], "other"],
            "the missing and the unknown are for strict loading"
        );
        assert!(notes.is_empty() && found.iter().all(|(_, value)| *value == 1.0));
    }
}
