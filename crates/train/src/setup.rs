//! From a recipe to the options of optimizers and schedules.

use crate::error::TrainError;
use crate::recipe::{
    self, Compute, DecayExclude, EpsForm, OptimizerKind, OptimizerRecipe, Per, Recipe, ScheduleKind, Trust, WarmupForm,
};
use bessemer_ir::DType;
use bessemer_nn::schedule::{Decay, Form};
use bessemer_nn::{Adam, Clip, ClipForm, DecayForm, Lamb, LossScale, Moments, Optimizer, Schedule, Sgd, TrainConfig};

/// Longest run: the step counter of the compiled step is an `i32`.
const MAX_STEPS: u64 = i32::MAX as u64;

/// Steps of the whole run.
///
/// # Errors
/// A run that is too long to be counted.
pub fn total_steps(recipe: &Recipe, steps_per_epoch: u64) -> Result<u64, TrainError> {
    let epochs = recipe.train.epochs.unwrap_or(0);
    let steps = recipe.train.steps.unwrap_or_else(|| epochs.saturating_mul(steps_per_epoch));
    if steps > MAX_STEPS {
        return Err(TrainError::setting("the number of steps", steps, format!("at most {MAX_STEPS} are possible")));
    }
    Ok(steps)
}

/// The type in which the recipe's tensors are stored.
///
/// # Errors
/// A precision that CPUs do not have.
pub fn precision(recipe: &Recipe) -> Result<DType, TrainError> {
    let compute = recipe.precision.compute;
    compute.on_cpu().ok_or_else(|| {
        TrainError::setting("precision.compute", compute.name(), "on CPUs it must be fp32, bf16 or fp16")
    })
}

/// How the recipe's parameters are trained.
///
/// # Errors
/// As [`total_steps`].
pub fn train_config(recipe: &Recipe, steps_per_epoch: u64) -> Result<TrainConfig, TrainError> {
    let optimizer = optimizer(&recipe.optimizer);
    let form = if matches!(optimizer, Optimizer::Lamb(_)) { ClipForm::TensorFlow } else { ClipForm::PyTorch };
    Ok(TrainConfig {
        clip: recipe.train.clip_norm.map(|limit| Clip { limit, form }),
        report_grad_norm: true,
        ema_decay: recipe.train.ema_decay,
        loss_scale: (recipe.precision.compute == Compute::Fp16).then_some(LossScale {
            initial: recipe.precision.loss_scale,
            growth_steps: recipe.precision.loss_scale_growth_steps,
        }),
        accumulation: recipe.train.accumulation,
        ..TrainConfig::new(optimizer, schedule(recipe, steps_per_epoch)?)
    })
}

fn optimizer(recipe: &OptimizerRecipe) -> Optimizer {
    let weight_decay = recipe.weight_decay;
    let decay_exclude = match recipe.decay_exclude {
        DecayExclude::None => bessemer_nn::DecayExclude::None,
        DecayExclude::BnSubstring => bessemer_nn::DecayExclude::BnSubstring,
        DecayExclude::Bn => bessemer_nn::DecayExclude::BatchNorm,
        DecayExclude::BnAndBias => bessemer_nn::DecayExclude::BatchNormAndBias,
        DecayExclude::LayerNormAndBias => bessemer_nn::DecayExclude::LayerNormAndBias,
    };
    let &OptimizerRecipe { betas: [beta1, beta2], eps, bias_correction, .. } = recipe;
    let eps_form = match recipe.eps_form {
        EpsForm::PastRoot => bessemer_nn::EpsForm::PastRoot,
        EpsForm::InRoot => bessemer_nn::EpsForm::InRoot,
        EpsForm::BeforeCorrection => bessemer_nn::EpsForm::BeforeCorrection,
    };
    let moments = Moments { beta1, beta2, eps, eps_form, bias_correction };
    let adam = |decay_form| Optimizer::Adam(Adam { moments, weight_decay, decay_form, decay_exclude });
    match recipe.kind {
        OptimizerKind::Sgd => {
            let &OptimizerRecipe { momentum, nesterov, .. } = recipe;
            Optimizer::Sgd(Sgd { momentum, nesterov, weight_decay, decay_exclude })
        }
        OptimizerKind::Adam => adam(DecayForm::Coupled),
        OptimizerKind::Adamw => adam(DecayForm::Decoupled),
        OptimizerKind::Lamb => {
            let trust = match recipe.trust {
                Trust::Decayed => bessemer_nn::optim::Trust::Decayed,
                Trust::All => bessemer_nn::optim::Trust::All,
            };
            Optimizer::Lamb(Lamb { moments, weight_decay, decay_exclude, trust })
        }
    }
}

fn schedule(recipe: &Recipe, steps_per_epoch: u64) -> Result<Schedule, TrainError> {
    let steps = total_steps(recipe, steps_per_epoch)?;
    let epochs = steps as f64 / steps_per_epoch as f64;
    let recipe::Schedule { kind, peak_lr, end_lr, per, warmup_epochs, warmup_in_decay, warmup_form, .. } =
        recipe.schedule.resolve(recipe.train.step_samples(), steps_per_epoch, epochs);
    Ok(Schedule {
        lr: peak_lr,
        end_lr,
        epochs,
        steps_per_epoch,
        warmup_epochs,
        form: match (kind, per) {
            (ScheduleKind::Polynomial, _) => match warmup_form {
                WarmupForm::FromZero => Form::FromZero,
                WarmupForm::FromFirst => Form::Step,
                WarmupForm::Progress => Form::Progress,
            },
            (_, Per::Epoch) => Form::Epoch,
            (_, Per::Step) if warmup_in_decay => Form::WholeRun,
            (_, Per::Step) => Form::Step,
        },
        decay: match kind {
            ScheduleKind::Constant => Decay::Constant,
            ScheduleKind::Linear => Decay::Polynomial { power: 1.0 },
            ScheduleKind::Polynomial => Decay::Polynomial { power: recipe.schedule.power },
            ScheduleKind::Cosine => Decay::Cosine,
            ScheduleKind::Step => Decay::Milestones {
                epochs: recipe.schedule.milestones.iter().map(|&epoch| epoch as f64).collect(),
                factor: recipe.schedule.gamma,
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{builtin_names, learning_rate};

    #[test]
    fn every_recipe_has_its_learning_rate() {
        for name in builtin_names() {
            let recipe = Recipe::load(name, &[]).unwrap();
            let steps_per_epoch = 50;
            let steps = total_steps(&recipe, steps_per_epoch).unwrap();
            let epochs = steps as f64 / steps_per_epoch as f64;
            let ours = schedule(&recipe, steps_per_epoch).unwrap();
            let expected = recipe.schedule.resolve(recipe.train.step_samples(), steps_per_epoch, epochs);
            for step in 0..steps {
                let expected = learning_rate(&expected, step, steps_per_epoch, epochs);
                let lr = ours.learning_rate(step);
                assert!((lr - expected).abs() < 1e-9, "{name}: step {step} has {lr}, not {expected}");
            }
        }
    }

    #[test]
    fn lengths_are_epochs_or_steps() {
        let recipe = Recipe::load("cifar", &["train.epochs=3".parse().unwrap()]).unwrap();
        assert_eq!(total_steps(&recipe, 7).unwrap(), 21);
        let recipe = Recipe::load("cifar", &["train.steps=5".parse().unwrap()]).unwrap();
        assert_eq!(total_steps(&recipe, 7).unwrap(), 5);
        let recipe = Recipe::load("cifar", &["train.steps=3000000000".parse().unwrap()]).unwrap();
        assert!(total_steps(&recipe, 7).is_err());
    }

    #[test]
    fn cpus_have_no_tf32() {
        let recipe = Recipe::load("cifar", &["precision.compute=tf32".parse().unwrap()]).unwrap();
        let error = precision(&recipe).unwrap_err().to_string();
        assert_eq!(error, "precision.compute is tf32; on CPUs it must be fp32, bf16 or fp16");
    }
}
