//! From a recipe to the options of optimizers and schedules.

use crate::error::TrainError;
use crate::recipe::{
    self, AdamFields, OptimizerRecipe, OptimizerRule, Per, Recipe, ScheduleKind, SgdFields, TrainRecipe, WarmupForm,
};
use crate::session::ComputeOptions;
use bessemer_ir::passes::CompileOptions;
use bessemer_nn::schedule::{Decay, Form};
use bessemer_nn::{
    Adam, AdamMoments, Average, Clip, ClipForm, DecayForm, Lamb, LossScale, Optimizer, Ranks, Schedule, Sgd,
    TrainConfig,
};

/// Longest run: the step counter of the compiled step is an `i32`.
const MAX_STEPS: u64 = i32::MAX as u64;

/// What a training step depends on beside the recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunShape {
    /// Updates in an epoch.
    pub steps_per_epoch: u64,
    /// The ranks that share the micro-batches of a step.
    pub ranks: Ranks,
    /// Samples of a micro-batch: those of the recipe, unless it is asked what another number would take.
    pub batch_size: usize,
}

impl RunShape {
    /// Of a process that is alone.
    pub fn alone(steps_per_epoch: u64, batch_size: usize) -> Self {
        Self { steps_per_epoch, ranks: Ranks::default(), batch_size }
    }
}

/// Steps of an epoch: those of a pass over the data, or of as many samples as the recipe says.
pub fn steps_per_epoch(recipe: &Recipe, batches: u64) -> u64 {
    let TrainRecipe { epoch_samples, accumulation, .. } = recipe.train;
    let of_pass = || (batches / accumulation).max(1);
    epoch_samples.map_or_else(of_pass, |samples| samples.div_ceil(recipe.train.step_samples()))
}

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

/// The options by which the recipe's steps are compiled: the given ones, with the recipe's precision.
///
/// # Errors
/// A precision that the kind of device does not have.
pub fn compile_options(recipe: &Recipe, compute: &ComputeOptions) -> Result<CompileOptions, TrainError> {
    let precision = recipe.precision.compute;
    let options = precision.options(compute.device.kind, compute.compile.clone());
    options.map_err(|allowed| TrainError::setting("precision.compute", precision.name(), allowed))
}

/// How the recipe's parameters are trained.
///
/// # Errors
/// As [`total_steps`].
pub fn train_config(recipe: &Recipe, shape: RunShape) -> Result<TrainConfig, TrainError> {
    let optimizer = optimizer(&recipe.optimizer);
    let train = &recipe.train;
    let is_of_tensorflow = matches!(optimizer, Optimizer::Lamb(_)) || train.clip_each_norm.is_some();
    let form = if is_of_tensorflow { ClipForm::TensorFlow } else { ClipForm::PyTorch };
    Ok(TrainConfig {
        clip_each: train.clip_each_norm,
        clip: train.clip_norm.map(|limit| Clip { limit, form, of: train.clip_of }),
        report_grad_norm: true,
        average: train.ema_decay.map(|decay| Average { decay, ramp: train.ema_ramp }),
        loss_scale: recipe.precision.loss_scaling().map(|(initial, growth_steps)| LossScale { initial, growth_steps }),
        accumulation: train.accumulation,
        ranks: Ranks { norms: train.norms_over, means: train.means_over, ..shape.ranks },
        ..TrainConfig::new(optimizer, schedule(recipe, shape.steps_per_epoch)?)
    })
}

/// The optimizer of a recipe.
pub(crate) fn optimizer(recipe: &OptimizerRecipe) -> Optimizer {
    let &OptimizerRecipe { weight_decay, decay_exclude, .. } = recipe;
    let adam = |fields: &AdamFields, decay_form| {
        Optimizer::Adam(Adam { moments: moments(fields), weight_decay, decay_form, decay_exclude })
    };
    match &recipe.rule {
        &OptimizerRule::Sgd(SgdFields { momentum, nesterov, velocity }) => {
            Optimizer::Sgd(Sgd { momentum, nesterov, velocity, weight_decay, decay_exclude })
        }
        OptimizerRule::Adam(fields) => adam(fields, DecayForm::Coupled),
        OptimizerRule::Adamw(fields) => adam(fields, DecayForm::Decoupled),
        OptimizerRule::Lamb(fields, lamb) => {
            Optimizer::Lamb(Lamb { moments: moments(fields), weight_decay, decay_exclude, trust: lamb.trust })
        }
    }
}

fn moments(fields: &AdamFields) -> AdamMoments {
    let &AdamFields { betas: [beta1, beta2], eps, eps_form, bias_correction } = fields;
    AdamMoments { beta1, beta2, eps, eps_form, bias_correction }
}

fn schedule(recipe: &Recipe, steps_per_epoch: u64) -> Result<Schedule, TrainError> {
    let epochs = total_steps(recipe, steps_per_epoch)? as f64 / steps_per_epoch as f64;
    let resolved = recipe.schedule.resolve(recipe.train.step_samples(), steps_per_epoch, epochs);
    let decay_epochs = recipe.schedule.epochs.map_or(epochs, |epochs| epochs as f64);
    Ok(of_resolved(&resolved, steps_per_epoch, decay_epochs))
}

/// The learning rates of a run of the given number of epochs.
///
/// Position, warm-up `W` and length `E` are counted in epochs (`per = "epoch"`: the rate is constant within an epoch)
/// or in steps. With `p` the position:
///
/// - warm-up, `p < W`: `peak * (p + 1) / W`, or `peak * p / W` with `warmup_in_decay`, or, from a `warmup_lr` above 0,
///   `warmup_lr + (peak - warmup_lr) * p / W`;
/// - then, with `x = (p - W) / (E - W)`, or `x = p / E` with `warmup_in_decay`:
///   `linear`: `end + (peak - end) * (1 - x)`; `cosine`: `end + (peak - end) * (1 + cos(pi * x)) / 2`;
///   `step`: `peak * gamma^(milestones passed)`; `constant`: `peak`;
/// - `polynomial` counts steps as its [`WarmupForm`] says, and decays as `end + (peak - end) * (1 - x)^power`.
///
/// The forms are those of the ResNet-50 recipes in NVIDIA DeepLearningExamples (PyTorch: per epoch; TensorFlow 1: per
/// step with `warmup_in_decay`).
pub(crate) fn of_resolved(resolved: &recipe::Schedule, steps_per_epoch: u64, epochs: f64) -> Schedule {
    Schedule {
        lr: resolved.peak_lr,
        warmup_lr: resolved.warmup_lr,
        end_lr: resolved.end_lr,
        epochs,
        steps_per_epoch,
        warmup_epochs: resolved.warmup_epochs,
        form: match (resolved.kind, resolved.per) {
            (ScheduleKind::Polynomial, _) => match resolved.warmup_form {
                WarmupForm::FromZero => Form::FromZero,
                WarmupForm::FromFirst => Form::Step,
                WarmupForm::Progress => Form::Progress,
            },
            (_, Per::Epoch) => Form::Epoch,
            (_, Per::Step) if resolved.warmup_in_decay => Form::WholeRun,
            (_, Per::Step) if resolved.warmup_lr > 0.0 => Form::FromZero,
            (_, Per::Step) => Form::Step,
        },
        decay: match resolved.kind {
            ScheduleKind::Constant => Decay::Constant,
            ScheduleKind::Linear => Decay::Polynomial { power: 1.0 },
            ScheduleKind::Polynomial => Decay::Polynomial { power: resolved.power },
            ScheduleKind::Cosine => Decay::Cosine,
            ScheduleKind::Step => Decay::Milestones {
                epochs: resolved.milestones.iter().map(|&epoch| epoch as f64).collect(),
                factor: resolved.gamma,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceKind, DeviceOptions};
    use bessemer_ir::DType;

    fn resolved(kind: ScheduleKind, per: Per, warmup_epochs: f64) -> recipe::Schedule {
        recipe::Schedule {
            kind,
            peak_lr: 0.256,
            warmup_lr: 0.0,
            end_lr: 0.0,
            per,
            warmup_epochs,
            warmup_in_decay: false,
            warmup_form: WarmupForm::FromZero,
            power: 1.0,
            milestones: vec![30, 60, 80],
            gamma: 0.1,
        }
    }

    fn rate(resolved: &recipe::Schedule, step: u64, steps_per_epoch: u64, epochs: f64) -> f64 {
        of_resolved(resolved, steps_per_epoch, epochs).learning_rate(step)
    }

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-15 + 1e-12 * expected.abs(), "{actual} is not {expected}");
    }

    #[test]
    fn an_epoch_is_a_pass_or_as_many_samples_as_the_recipe_says() {
        let recipe = Recipe::load("efficientdet-d0", &[]).unwrap();
        assert_eq!(steps_per_epoch(&recipe, 2931), 375, "120,000 images, 320 a step");
        assert_eq!(total_steps(&recipe, 375).unwrap(), 112_500);
        let pass = |micro_batches: u64| {
            let given = ["train.epoch_samples=", "train.accumulation=4"].map(|text| text.parse().unwrap());
            steps_per_epoch(&Recipe::load("efficientdet-d0", &given).unwrap(), micro_batches)
        };
        assert_eq!([pass(3), pass(4), pass(11)], [1, 1, 2]);
    }

    #[test]
    fn cosine_per_epoch_with_warmup() {
        let s = resolved(ScheduleKind::Cosine, Per::Epoch, 8.0);
        let lr = |step| rate(&s, step, 100, 90.0);
        assert_close(lr(0), 0.032);
        assert_close(lr(99), 0.032);
        assert_close(lr(100), 0.064);
        assert_close(lr(799), 0.256);
        assert_close(lr(800), 0.256);
        // Epoch 49 is half way between 8 and 90; the last epoch, 89, is 81/82 of the way.
        assert_close(lr(4900), 0.128);
        assert_close(lr(8999), 9.392_882_549_632_02e-5);
    }

    #[test]
    fn cosine_per_step_over_the_whole_run() {
        let s = recipe::Schedule { warmup_in_decay: true, ..resolved(ScheduleKind::Cosine, Per::Step, 8.0) };
        let lr = |step| rate(&s, step, 100, 90.0);
        assert_close(lr(0), 0.0);
        assert_close(lr(400), 0.128);
        assert_close(lr(799), 0.25568);
        // Half of 1 + cos(pi * 8 / 90): the drop where warm-up ends.
        assert_close(lr(800), 0.251_041_497_080_104_8);
        assert_close(lr(4500), 0.128);
        assert_close(lr(9000), 0.0);
    }

    #[test]
    fn cosine_per_step_ends_at_end_lr() {
        let s = recipe::Schedule { end_lr: 0.056, ..resolved(ScheduleKind::Cosine, Per::Step, 0.5) };
        let lr = |step| rate(&s, step, 4, 2.5);
        assert_close(lr(0), 0.128);
        assert_close(lr(1), 0.256);
        assert_close(lr(2), 0.256);
        assert_close(lr(6), 0.156);
        assert_close(lr(10), 0.056);
        assert_close(lr(1000), 0.056);
    }

    #[test]
    fn milestones_in_tensorflow_s_form() {
        let s = recipe::Schedule { warmup_in_decay: true, ..resolved(ScheduleKind::Step, Per::Step, 0.3) };
        let s = recipe::Schedule { milestones: vec![8, 10], ..s };
        for (step, expected) in [(0, 0.0), (15, 0.128), (30, 0.256), (800, 0.256), (801, 0.0256), (1001, 0.00256)] {
            assert_close(rate(&s, step, 100, 12.0), expected);
        }
    }

    #[test]
    fn milestones_linear_and_constant() {
        let s = resolved(ScheduleKind::Step, Per::Epoch, 0.0);
        for (epoch, expected) in [(0, 0.256), (29, 0.256), (30, 0.0256), (60, 0.00256), (89, 0.000256)] {
            assert_close(rate(&s, epoch * 7 + 6, 7, 90.0), expected);
        }
        let s = resolved(ScheduleKind::Linear, Per::Step, 1.0);
        for (step, expected) in [(0, 0.064), (3, 0.256), (4, 0.256), (5, 0.192), (7, 0.064), (8, 0.0)] {
            assert_close(rate(&s, step, 4, 2.0), expected);
        }
        let s = resolved(ScheduleKind::Constant, Per::Step, 0.0);
        assert_close(rate(&s, 1_000_000, 4, 2.0), 0.256);
    }

    #[test]
    fn warmup_may_fill_the_run() {
        let s = resolved(ScheduleKind::Cosine, Per::Step, 2.0);
        assert_close(rate(&s, 7, 4, 2.0), 0.256);
        assert_close(rate(&s, 8, 4, 2.0), 0.0);
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
    fn gpus_alone_have_tf32() {
        let recipe =
            |name: &str| Recipe::load("cifar", &[format!("precision.compute={name}").parse().unwrap()]).unwrap();
        let on = |kind, name| {
            let device = DeviceOptions { kind, ..DeviceOptions::default() };
            compile_options(&recipe(name), &ComputeOptions { device, ..ComputeOptions::default() })
        };
        let error = on(DeviceKind::Cpu, "tf32").unwrap_err().to_string();
        assert_eq!(error, "precision.compute is tf32; allowed on cpu: fp32, bf16, fp16");
        let gpu = DeviceKind::Cuda { index: 0 };
        let numbers = ["fp32", "tf32", "bf16", "fp16"].map(|name| {
            let options = on(gpu, name).unwrap();
            (options.precision, options.tf32)
        });
        assert_eq!(numbers, [(DType::F32, false), (DType::F32, true), (DType::Bf16, false), (DType::F16, false)]);
    }
}
