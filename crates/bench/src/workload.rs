//! The steps that are measured and explained: a model of the zoo, a mode and a batch size.

use bessemer_ir::{DType, Graph};
use bessemer_models::{LossOptions, Model, ModelError, ModelOptions, find};
use bessemer_nn::{DecayExclude, LossScale, Optimizer, ParamSpec, Schedule, Sgd, TrainConfig};
use serde::Serialize;
use std::str::FromStr;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Train,
    Infer,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Train => "train",
            Mode::Infer => "infer",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "train" => Ok(Mode::Train),
            "infer" => Ok(Mode::Infer),
            other => Err(format!("`{other}` is no mode; there are train and infer")),
        }
    }
}

/// A model's step before compilation.
pub struct Workload {
    pub graph: Graph,
    pub specs: Vec<ParamSpec>,
    pub options: ModelOptions,
}

/// The step of a model of the zoo at its default size. Training is by SGD with momentum and label smoothing, as in the
/// reference recipes, at a learning rate so low that no number of steps on one batch diverges; in `f16`, with the loss scaled.
///
/// # Errors
/// [`ModelError`] for an unknown model or a batch of zero.
pub fn workload(model: &str, mode: Mode, batch: usize, precision: DType) -> Result<Workload, ModelError> {
    let spec = find(model)?;
    let options = spec.options();
    let built = match mode {
        Mode::Infer => Model::infer(spec.architecture, &options, batch)?,
        Mode::Train => {
            let optimizer = Optimizer::Sgd(Sgd {
                momentum: 0.875,
                nesterov: false,
                weight_decay: 1.0 / 32768.0,
                decay_exclude: DecayExclude::BnSubstring,
            });
            let train = TrainConfig {
                loss_scale: (precision == DType::F16).then_some(LossScale { initial: 128.0, growth_steps: Some(100) }),
                ..TrainConfig::new(optimizer, Schedule::constant(0.001))
            };
            let loss = LossOptions { label_smoothing: 0.1, mixup: None };
            Model::train(spec.architecture, &options, &loss, &train, batch)?
        }
    };
    Ok(Workload { graph: built.graph, specs: built.specs, options })
}
