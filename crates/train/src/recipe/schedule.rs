//! Learning rates over a run.

use super::section::{Range, section};
use super::{COUNT, EPOCHS};
use serde::{Deserialize, Serialize};

section! {
    /// The learning rate over a run.
    pub struct ScheduleRecipe {
        /// How the learning rate falls after warm-up.
        pub kind: ScheduleKind;
        /// Learning rate after warm-up, for `lr_per` samples a step if that is given, else as it is.
        pub base_lr: f64 => Range::above(0.0, 1000.0);
        /// Samples of a step that `base_lr` is meant for; the learning rate scales with the samples of a step.
        pub lr_per: Option<u64> => Range::closed(1.0, 1e6);
        /// How often the learning rate changes.
        pub per: Per = Per::Step;
        /// Length of warm-up; at most one of the three can be given.
        pub warmup_epochs: f64 = 0.0 => Range::closed(0.0, EPOCHS);
        /// Length of warm-up in updates.
        pub warmup_steps: Option<u64> => Range::closed(0.0, COUNT);
        /// As a part of the whole run.
        pub warmup_fraction: Option<f64> => Range::closed(0.0, 1.0);
        /// Learning rate at which warm-up begins; above 0 it counts steps from 0.
        pub warmup_lr: f64 = 0.0 => Range::closed(0.0, 1000.0);
        /// TensorFlow's form: warm-up starts from 0 and its steps count as decay, so that the learning rate drops a little where
        /// warm-up ends; a milestone is in force from the step after it.
        pub warmup_in_decay: bool = false;
        /// Epochs over which the learning rate decays, if it is not the whole run: a run that stops before its schedule ends.
        pub epochs: Option<u64> => Range::closed(1.0, EPOCHS);
        /// Where `cosine`, `linear` and `polynomial` end.
        pub end_lr: f64 = 0.0 => Range::closed(0.0, 1000.0);
        /// `polynomial` takes the part of the run that is left to this power; no other kind has it.
        pub power: Option<f64> => Range::above(0.0, 100.0);
        /// How `polynomial` warms up; no other kind has it.
        pub warmup_form: Option<WarmupForm>;
        /// Epochs at which `step` multiplies the learning rate by `gamma`.
        pub milestones: Vec<u64> = Vec::new() => Range::closed(1.0, EPOCHS);
        /// Factor of the learning rate at each milestone.
        pub gamma: f64 = 0.1 => Range::above(0.0, 1.0);
    }
}

/// How the learning rate falls after warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Stays at its peak.
    #[default]
    Constant,
    /// Falls linearly to `end_lr`.
    Linear,
    /// Falls by half a cosine to `end_lr`.
    Cosine,
    /// Is multiplied by `gamma` at each milestone.
    Step,
    /// Falls by a power of the remaining share of the run to `end_lr`.
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

/// How often the learning rate changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Once in an epoch.
    Epoch,
    /// In every step.
    #[default]
    Step,
}

/// A learning-rate schedule for a known batch size.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// How the learning rate falls after warm-up.
    pub kind: ScheduleKind,
    /// Learning rate where warm-up ends.
    pub peak_lr: f64,
    /// Learning rate where warm-up begins.
    pub warmup_lr: f64,
    /// Learning rate at the end of the run.
    pub end_lr: f64,
    /// How often the learning rate changes.
    pub per: Per,
    /// Epochs in which the learning rate rises; 0 for none.
    pub warmup_epochs: f64,
    /// Whether the decay is counted from the start of the run and not from the end of warm-up.
    pub warmup_in_decay: bool,
    /// Form of warm-up and decay; only valid for [`ScheduleKind::Polynomial`].
    pub warmup_form: WarmupForm,
    /// Exponent of [`ScheduleKind::Polynomial`].
    pub power: f64,
    /// Epochs at which [`ScheduleKind::Step`] multiplies by `gamma`.
    pub milestones: Vec<u64>,
    /// Factor of [`ScheduleKind::Step`].
    pub gamma: f64,
}

impl ScheduleRecipe {
    /// Makes the form of `polynomial` explicit.
    pub(super) fn resolve_form(&mut self) {
        if self.kind == ScheduleKind::Polynomial {
            self.power.get_or_insert(1.0);
            self.warmup_form.get_or_insert_default();
        }
    }

    /// The learning rate after warm-up for `global_batch` samples a step on all devices together: `base_lr * global_batch / lr_per`.
    pub(crate) fn peak_lr(&self, global_batch: u64) -> f64 {
        self.base_lr * self.lr_per.map_or(1.0, |lr_per| global_batch as f64 / lr_per as f64)
    }

    /// The schedule for `global_batch` samples a step on all devices together and a run of `epochs` of `steps_per_epoch`.
    pub fn resolve(&self, global_batch: u64, steps_per_epoch: u64, epochs: f64) -> Schedule {
        Schedule {
            kind: self.kind,
            peak_lr: self.peak_lr(global_batch),
            warmup_lr: self.warmup_lr,
            end_lr: self.end_lr,
            per: self.per,
            warmup_epochs: match (self.warmup_steps, self.warmup_fraction) {
                (Some(steps), _) => steps as f64 / steps_per_epoch as f64,
                (None, Some(fraction)) => fraction * epochs,
                (None, None) => self.warmup_epochs,
            },
            warmup_in_decay: self.warmup_in_decay,
            warmup_form: self.warmup_form.unwrap_or_default(),
            power: self.power.unwrap_or(1.0),
            milestones: self.milestones.clone(),
            gamma: self.gamma,
        }
    }
}
