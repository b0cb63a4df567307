//! Learning rates over a run.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRecipe {
    pub kind: ScheduleKind,
    /// Learning rate after warm-up, for `lr_per` samples a step if that is given, else as it is.
    pub base_lr: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_per: Option<u64>,
    /// How often the learning rate changes.
    #[serde(default)]
    pub per: Per,
    /// Length of warm-up; at most one of the three can be given.
    #[serde(default)]
    pub warmup_epochs: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// As a part of the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_fraction: Option<f64>,
    /// The TF1 form: warm-up starts from 0 and its steps count as decay, so that the learning rate drops a little where
    /// warm-up ends.
    #[serde(default)]
    pub warmup_in_decay: bool,
    /// Where `cosine`, `linear` and `polynomial` end.
    #[serde(default)]
    pub end_lr: f64,
    /// `polynomial` takes the part of the run that is left to this power.
    #[serde(default = "unit")]
    pub power: f64,
    #[serde(default)]
    pub warmup_form: WarmupForm,
    /// Epochs at which `step` multiplies the learning rate by `gamma`.
    #[serde(default)]
    pub milestones: Vec<u64>,
    #[serde(default = "super::tenth")]
    pub gamma: f64,
}

fn unit() -> f64 {
    1.0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    #[default]
    Constant,
    Linear,
    Cosine,
    Step,
    Polynomial,
}

/// Warm-up and decay of `polynomial`, at step `s` (from 0) of `T` with `W` steps of warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmupForm {
    /// `peak * s / W`; the decay begins after it. BERT as published.
    #[default]
    FromZero,
    /// `peak * (s + 1) / W`; the decay begins after it.
    FromFirst,
    /// `peak * (s + 1) / W`; the decay runs over `(s + 1) / T` from the start, unseen during warm-up. NVIDIA's recipe of
    /// BERT for PyTorch.
    Progress,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    Epoch,
    #[default]
    Step,
}

/// A learning-rate schedule for a known batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub kind: ScheduleKind,
    /// Learning rate where warm-up ends.
    pub peak_lr: f64,
    pub end_lr: f64,
    pub per: Per,
    pub warmup_epochs: f64,
    pub warmup_in_decay: bool,
    pub warmup_form: WarmupForm,
    pub power: f64,
    pub milestones: Vec<u64>,
    pub gamma: f64,
}

impl ScheduleRecipe {
    /// The schedule for `global_batch` samples a step on all devices together: `base_lr * global_batch / lr_per`; for a run of
    /// `epochs` of `steps_per_epoch`.
    pub fn resolve(&self, global_batch: u64, steps_per_epoch: u64, epochs: f64) -> Schedule {
        let scale = self.lr_per.map_or(1.0, |lr_per| global_batch as f64 / lr_per as f64);
        Schedule {
            kind: self.kind,
            peak_lr: self.base_lr * scale,
            end_lr: self.end_lr,
            per: self.per,
            warmup_epochs: match (self.warmup_steps, self.warmup_fraction) {
                (Some(steps), _) => steps as f64 / steps_per_epoch as f64,
                (None, Some(fraction)) => fraction * epochs,
                (None, None) => self.warmup_epochs,
            },
            warmup_in_decay: self.warmup_in_decay,
            warmup_form: self.warmup_form,
            power: self.power,
            milestones: self.milestones.clone(),
            gamma: self.gamma,
        }
    }
}

/// Learning rate of update number `step` (from 0), in f64.
///
/// Position, warm-up `W` and length `E` are counted in epochs (`per = "epoch"`: the rate is constant within an epoch)
/// or in steps. With `p` the position:
///
/// - warm-up, `p < W`: `peak * (p + 1) / W`, or `peak * p / W` with `warmup_in_decay`;
/// - then, with `x = (p - W) / (E - W)`, or `x = p / E` with `warmup_in_decay`:
///   `linear`: `end + (peak - end) * (1 - x)`; `cosine`: `end + (peak - end) * (1 + cos(pi * x)) / 2`;
///   `step`: `peak * gamma^(milestones passed)`; `constant`: `peak`;
/// - `polynomial` counts steps as its [`WarmupForm`] says, and decays as `end + (peak - end) * (1 - x)^power`.
///
/// The forms are those of the ResNet-50 recipes in NVIDIA DeepLearningExamples (PyTorch: per epoch; TensorFlow 1: per
/// step with `warmup_in_decay`).
pub fn learning_rate(schedule: &Schedule, step: u64, steps_per_epoch: u64, total_epochs: f64) -> f64 {
    let (position, epoch) = match schedule.per {
        Per::Epoch => ((step / steps_per_epoch) as f64, 1.0),
        Per::Step => (step as f64, steps_per_epoch as f64),
    };
    let warmup = schedule.warmup_epochs * epoch;
    // Where decay is, how much of warm-up is done, and where decay starts.
    let (position, done, start) = match (schedule.kind, schedule.warmup_form) {
        (ScheduleKind::Polynomial, WarmupForm::Progress) => (position + 1.0, position + 1.0, 0.0),
        (ScheduleKind::Polynomial, WarmupForm::FromZero) => (position, position, warmup),
        _ if schedule.warmup_in_decay => (position, position, 0.0),
        _ => (position, position + 1.0, warmup),
    };
    if position < warmup {
        return schedule.peak_lr * (done / warmup).min(1.0);
    }
    let length = total_epochs * epoch - start;
    let progress = if length > 0.0 { ((position - start) / length).min(1.0) } else { 1.0 };
    let span = schedule.peak_lr - schedule.end_lr;
    match schedule.kind {
        ScheduleKind::Constant => schedule.peak_lr,
        ScheduleKind::Linear => schedule.end_lr + span * (1.0 - progress),
        ScheduleKind::Cosine => schedule.end_lr + span * 0.5 * (1.0 + (PI * progress).cos()),
        ScheduleKind::Step => {
            let passed = schedule.milestones.iter().filter(|milestone| position >= **milestone as f64 * epoch).count();
            schedule.peak_lr * schedule.gamma.powi(passed as i32)
        }
        ScheduleKind::Polynomial => schedule.end_lr + span * (1.0 - progress).powf(schedule.power),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, per: Per, warmup_epochs: f64) -> Schedule {
        Schedule {
            kind,
            peak_lr: 0.256,
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

    fn assert_close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-15 + 1e-12 * expected.abs(), "{actual} is not {expected}");
    }

    #[test]
    fn cosine_per_epoch_with_warmup() {
        let s = schedule(ScheduleKind::Cosine, Per::Epoch, 8.0);
        let lr = |step| learning_rate(&s, step, 100, 90.0);
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
        let s = Schedule { warmup_in_decay: true, ..schedule(ScheduleKind::Cosine, Per::Step, 8.0) };
        let lr = |step| learning_rate(&s, step, 100, 90.0);
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
        let s = Schedule { end_lr: 0.056, ..schedule(ScheduleKind::Cosine, Per::Step, 0.5) };
        let lr = |step| learning_rate(&s, step, 4, 2.5);
        assert_close(lr(0), 0.128);
        assert_close(lr(1), 0.256);
        assert_close(lr(2), 0.256);
        assert_close(lr(6), 0.156);
        assert_close(lr(10), 0.056);
        assert_close(lr(1000), 0.056);
    }

    #[test]
    fn milestones_linear_and_constant() {
        let s = schedule(ScheduleKind::Step, Per::Epoch, 0.0);
        for (epoch, expected) in [(0, 0.256), (29, 0.256), (30, 0.0256), (60, 0.00256), (89, 0.000256)] {
            assert_close(learning_rate(&s, epoch * 7 + 6, 7, 90.0), expected);
        }
        let s = schedule(ScheduleKind::Linear, Per::Step, 1.0);
        for (step, expected) in [(0, 0.064), (3, 0.256), (4, 0.256), (5, 0.192), (7, 0.064), (8, 0.0)] {
            assert_close(learning_rate(&s, step, 4, 2.0), expected);
        }
        let s = schedule(ScheduleKind::Constant, Per::Step, 0.0);
        assert_close(learning_rate(&s, 1_000_000, 4, 2.0), 0.256);
    }

    #[test]
    fn warmup_may_fill_the_run() {
        let s = schedule(ScheduleKind::Cosine, Per::Step, 2.0);
        assert_close(learning_rate(&s, 7, 4, 2.0), 0.256);
        assert_close(learning_rate(&s, 8, 4, 2.0), 0.0);
    }
}
