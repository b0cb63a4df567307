//! What comparisons of pre-training on text share.

use crate::common::{Pass, Result, Tensors, by_name, check, executor, expected};
use bessemer_ir::Value;
use bessemer_models::bert::{BertConfig, Sequences};
use bessemer_models::{Model, WeightNames};
use bessemer_nn::{Adam, AdamMoments, Builder, Optimizer, Schedule, TrainConfig};
use std::path::Path;

/// Largest relative distance of a loss.
const LOSS: f64 = 1e-4;
/// Largest relative distance of the loss of a step.
const STEP: f64 = 1e-3;
/// Largest relative L2 distance of a gradient.
const GRADIENT: f64 = 1e-3;

/// Compares losses and gradients of the step that `build` makes for batches of these sizes; the number of failures.
pub(crate) fn losses_and_gradients(
    dir: &Path,
    names: &WeightNames,
    build: impl FnOnce(Sequences) -> Result<(Builder, Value)>,
) -> Result<usize> {
    let feeds = by_name(&dir.join("feeds.safetensors"))?;
    let pass = Pass::of(build(sequences(&feeds))?)?;
    let named = feeds.iter().map(|(name, tensor)| (name.as_str(), tensor));
    let mut executor = executor(dir, &pass.graph, &pass.specs, names, named)?;
    executor.run()?;
    let mut failures = 0;
    for (name, loss) in expected(dir)?["losses"].as_object().ok_or("expected.json lacks losses")? {
        let loss = loss.as_f64().ok_or("a loss in expected.json is no number")?;
        failures += check(name, (f64::from(executor.scalar(name)?) / loss - 1.0).abs(), LOSS);
    }
    Ok(failures + pass.check_gradients(dir, &executor, |_| GRADIENT)?)
}

/// Compares the losses of AdamW's steps on one batch, by the training step that `build` makes; the number of failures.
pub(crate) fn steps(dir: &Path, build: impl FnOnce(Sequences, &TrainConfig) -> Result<Model>) -> Result<usize> {
    let feeds = by_name(&dir.join("feeds.safetensors"))?;
    let expected = expected(dir)?;
    let settings = &expected["adamw"];
    let number = |name: &str| settings[name].as_f64().ok_or(format!("expected.json lacks adamw.{name}"));
    let bert = Adam::bert(number("weight_decay")?);
    let moments = AdamMoments { eps: number("eps")?, bias_correction: true, ..bert.moments };
    let train = TrainConfig::new(Optimizer::Adam(Adam { moments, ..bert }), Schedule::constant(number("lr")?));
    let Model { graph, specs, names } = build(sequences(&feeds), &train)?;
    let known = feeds.iter().filter(|(name, _)| graph.find_input(name).is_some());
    let mut executor = executor(dir, &graph, &specs, names, known.map(|(name, tensor)| (name.as_str(), tensor)))?;
    let mut failures = 0;
    for (step, loss) in settings["losses"].as_array().ok_or("expected.json lacks adamw.losses")?.iter().enumerate() {
        executor.run()?;
        let loss = loss.as_f64().ok_or("a loss in expected.json is no number")?;
        failures += check(&format!("step {step}"), (f64::from(executor.scalar("loss")?) / loss - 1.0).abs(), STEP);
    }
    Ok(failures)
}

fn sequences(feeds: &Tensors) -> Sequences {
    let (tokens, words) = (&feeds["input_ids"].shape, &feeds["masked_lm_positions"].shape);
    Sequences { batch: tokens[0], length: tokens[1], predictions: words[1] }
}

/// Without dropout.
pub(crate) fn still(config: BertConfig) -> BertConfig {
    BertConfig { hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, ..config }
}
