//! Learning rates over a run.

use serde::{Deserialize, Serialize};

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
