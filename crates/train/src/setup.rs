//! From a recipe to the options of optimizers and schedules.

use crate::error::TrainError;
use crate::recipe::{self, Compute, DecayExclude, OptimizerKind, Per, Recipe, ScheduleKind};
use bessemer_ir::DType;
use bessemer_nn::schedule::{Decay, Form};
use bessemer_nn::{LossScale, Schedule, Sgd, TrainConfig};

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
    let optimizer = &recipe.optimizer;
    let sgd = match optimizer.kind {
        OptimizerKind::Sgd => Sgd {
            momentum: optimizer.momentum,
            nesterov: optimizer.nesterov,
            weight_decay: optimizer.weight_decay,
            decay_exclude: match optimizer.decay_exclude {
                DecayExclude::None => bessemer_nn::DecayExclude::None,
                DecayExclude::BnSubstring => bessemer_nn::DecayExclude::BnSubstring,
                DecayExclude::Bn => bessemer_nn::DecayExclude::BatchNorm,
                DecayExclude::BnAndBias => bessemer_nn::DecayExclude::BatchNormAndBias,
            },
        },
    };
    Ok(TrainConfig {
        sgd,
        schedule: schedule(recipe, steps_per_epoch)?,
        clip_norm: recipe.train.clip_norm,
        report_grad_norm: true,
        ema_decay: recipe.train.ema_decay,
        loss_scale: (recipe.precision.compute == Compute::Fp16).then_some(LossScale {
            initial: recipe.precision.loss_scale,
            growth_steps: recipe.precision.loss_scale_growth_steps,
        }),
    })
}

fn schedule(recipe: &Recipe, steps_per_epoch: u64) -> Result<Schedule, TrainError> {
    let recipe::Schedule { kind, peak_lr, end_lr, per, warmup_epochs, warmup_in_decay, milestones, gamma } =
        recipe.schedule.resolve(recipe.train.batch_size);
    let steps = total_steps(recipe, steps_per_epoch)?;
    Ok(Schedule {
        lr: peak_lr,
        end_lr,
        epochs: steps as f64 / steps_per_epoch as f64,
        steps_per_epoch,
        warmup_epochs,
        form: match per {
            Per::Epoch => Form::Epoch,
            Per::Step if warmup_in_decay => Form::WholeRun,
            Per::Step => Form::Step,
        },
        decay: match kind {
            ScheduleKind::Constant => Decay::Constant,
            ScheduleKind::Linear => Decay::Linear,
            ScheduleKind::Cosine => Decay::Cosine,
            ScheduleKind::Step => {
                Decay::Milestones { epochs: milestones.iter().map(|&epoch| epoch as f64).collect(), factor: gamma }
            }
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
            let (steps_per_epoch, epochs) = (50, recipe.train.epochs.unwrap());
            let (ours, expected) =
                (schedule(&recipe, steps_per_epoch).unwrap(), recipe.schedule.resolve(recipe.train.batch_size));
            for step in 0..epochs * steps_per_epoch {
                let expected = learning_rate(&expected, step, steps_per_epoch, epochs as f64);
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
