//! Learning rates as functions of the step, in the graph and on the host.

use crate::Result;
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, Graph, Value};
use std::f64::consts::FRAC_PI_2;

/// When the rate changes, and from where its decay is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Every epoch. Epoch `e` of `W` warm-up epochs has `lr * (e + 1) / W`; the decay begins after them. NVIDIA's PyTorch
    /// recipes.
    Epoch,
    /// Every step. Step `s` of `W` warm-up steps has `lr * (s + 1) / W`; the decay begins after them.
    Step,
    /// Every step. Step `s` of `W` warm-up steps has `lr * s / W`; the decay runs from step 0 on, unseen during warm-up; a
    /// milestone is in force from the step after it. NVIDIA's TensorFlow 1 recipes of image classifiers, and of BERT with LAMB.
    WholeRun,
    /// Every step. Step `s` of `W` warm-up steps has `lr * s / W`; the decay begins after them. BERT with Adam, as published
    /// and in NVIDIA's TensorFlow 1 recipes; EfficientDet, with another first rate than 0.
    FromZero,
    /// Every step. Step `s` of `T` has the progress `p = (s + 1) / T`: below a share of warm-up `w`, which need not be a whole
    /// number of steps, `lr * p / w`; the decay runs over `p` from 0 on, unseen during warm-up. NVIDIA's PyTorch recipe of
    /// BERT.
    Progress,
}

/// How the rate falls after warm-up.
#[derive(Clone, Debug, PartialEq)]
pub enum Decay {
    /// Not at all.
    Constant,
    /// `end_lr + (lr - end_lr) * left^power` of the part `left` of the decay still to come; power 1 is a straight line.
    Polynomial {
        /// Exponent of the part that is left.
        power: f64,
    },
    /// Half a cosine to `end_lr` (Loshchilov, Hutter: "SGDR", 2017, without restarts).
    Cosine,
    /// Times `factor` at each of these epochs, in rising order.
    Milestones {
        /// In rising order.
        epochs: Vec<f64>,
        /// What the rate is multiplied with at each of them.
        factor: f64,
    },
}

/// Length of warm-up in a schedule that counts steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// A number of steps.
    Steps(f64),
    /// Part of the whole run.
    Share(f64),
}

/// A schedule. Step 0 is the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Rate at the end of warm-up.
    pub lr: f64,
    /// Rate from which warm-up rises in a straight line. 0 in all published recipes but EfficientDet's.
    pub warmup_lr: f64,
    /// Rate at the end of the run, of decays that lead to one.
    pub end_lr: f64,
    /// Length of the run, or of the schedule of a run that stops before its end.
    pub epochs: f64,
    /// Optimizer steps of an epoch.
    pub steps_per_epoch: u64,
    /// Length of warm-up, part of `epochs`.
    pub warmup_epochs: f64,
    /// When the rate changes.
    pub form: Form,
    /// How the rate falls after warm-up.
    pub decay: Decay,
}

/// The schedule on its own clock, which counts epochs or steps.
struct Clock {
    /// Steps of one tick.
    tick: f64,
    warmup: f64,
    /// Number of the first tick.
    first: f64,
    /// Added to the tick in warm-up.
    ahead: f64,
    decay_start: f64,
    decay_end: f64,
    /// Ticks from which each milestone is in force.
    milestones: Vec<f64>,
}

impl Clock {
    /// Ticks from the beginning of the decay to its end; not zero, even where warm-up fills the run.
    fn decay_length(&self) -> f64 {
        (self.decay_end - self.decay_start).max(1e-6)
    }
}

impl Schedule {
    /// The same rate in every step, for a run of any length.
    pub fn constant(lr: f64) -> Self {
        Schedule {
            lr,
            warmup_lr: 0.0,
            end_lr: lr,
            epochs: 1.0,
            steps_per_epoch: 1,
            warmup_epochs: 0.0,
            form: Form::Step,
            decay: Decay::Constant,
        }
    }

    /// A schedule of `steps` steps that knows no epochs, with rates from `lr` to 0.
    pub fn in_steps(lr: f64, steps: u64, warmup: Warmup, form: Form, decay: Decay) -> Self {
        let epochs = steps as f64;
        let warmup_epochs = match warmup {
            Warmup::Steps(count) => count,
            Warmup::Share(share) => share * epochs,
        };
        Schedule { lr, warmup_lr: 0.0, end_lr: 0.0, epochs, steps_per_epoch: 1, warmup_epochs, form, decay }
    }

    fn clock(&self) -> Clock {
        let per_epoch = self.steps_per_epoch as f64;
        let milestones: &[f64] = match &self.decay {
            Decay::Milestones { epochs, .. } => epochs,
            _ => &[],
        };
        let steps = |epochs: f64| (epochs * per_epoch).round();
        match self.form {
            Form::Epoch => Clock {
                tick: per_epoch,
                first: 0.0,
                warmup: self.warmup_epochs,
                ahead: 1.0,
                decay_start: self.warmup_epochs,
                decay_end: self.epochs,
                milestones: milestones.to_vec(),
            },
            Form::Step => Clock {
                tick: 1.0,
                first: 0.0,
                warmup: steps(self.warmup_epochs),
                ahead: 1.0,
                decay_start: steps(self.warmup_epochs),
                decay_end: steps(self.epochs),
                milestones: milestones.iter().map(|&epochs| steps(epochs)).collect(),
            },
            Form::WholeRun => Clock {
                tick: 1.0,
                first: 0.0,
                warmup: (self.warmup_epochs * per_epoch).floor(),
                ahead: 0.0,
                decay_start: 0.0,
                decay_end: steps(self.epochs),
                milestones: milestones.iter().map(|&epochs| (epochs * per_epoch).floor() + 1.0).collect(),
            },
            Form::FromZero => Clock {
                tick: 1.0,
                first: 0.0,
                warmup: steps(self.warmup_epochs),
                ahead: 0.0,
                decay_start: steps(self.warmup_epochs),
                decay_end: steps(self.epochs),
                milestones: milestones.iter().map(|&epochs| steps(epochs)).collect(),
            },
            Form::Progress => Clock {
                tick: 1.0,
                first: 1.0,
                warmup: snapped(self.warmup_epochs * per_epoch),
                ahead: 0.0,
                decay_start: 0.0,
                decay_end: steps(self.epochs),
                milestones: milestones.iter().map(|&epochs| steps(epochs)).collect(),
            },
        }
    }

    /// Rate of a step.
    pub fn learning_rate(&self, step: u64) -> f64 {
        let clock = self.clock();
        let now = ((step as f64 + 0.5) / clock.tick).floor() + clock.first;
        if now < clock.warmup {
            let share = ((now + clock.ahead) / clock.warmup).min(1.0);
            return self.warmup_lr + (self.lr - self.warmup_lr) * share;
        }
        let left = ((clock.decay_end - now) / clock.decay_length()).clamp(0.0, 1.0);
        match &self.decay {
            Decay::Constant => self.lr,
            Decay::Polynomial { power } => self.end_lr + (self.lr - self.end_lr) * left.powf(*power),
            Decay::Cosine => self.end_lr + (self.lr - self.end_lr) * (FRAC_PI_2 * left).sin().powi(2),
            Decay::Milestones { factor, .. } => {
                let passed = clock.milestones.iter().filter(|&&milestone| now >= milestone).count();
                self.lr * factor.powi(passed as i32)
            }
        }
    }

    /// Adds the rate of `step i32[]` to the graph, `f32[]`. Exact to rounding below 2^22 steps.
    pub fn add_to(&self, g: &mut Graph, step: Value) -> Result<Value> {
        let clock = self.clock();
        let now = tick_of(g, step, clock.tick)?;
        let now = if clock.first == 0.0 { now } else { g.add_scalar(now, clock.first)? };
        let decayed = self.decayed(g, &clock, now)?;
        if clock.warmup <= 0.0 {
            return Ok(decayed);
        }
        let ahead = g.add_scalar(now, clock.ahead)?;
        let share = g.mul_scalar(ahead, 1.0 / clock.warmup)?;
        let one = g.constant_like(now, 1.0)?;
        let share = g.binary(BinaryKind::Min, share, one)?;
        let risen = g.mul_scalar(share, self.lr - self.warmup_lr)?;
        let warming = if self.warmup_lr == 0.0 { risen } else { g.add_scalar(risen, self.warmup_lr)? };
        let warmup = g.constant_like(now, clock.warmup)?;
        let is_warmup = g.binary(BinaryKind::Lt, now, warmup)?;
        g.select(is_warmup, warming, decayed)
    }

    fn decayed(&self, g: &mut Graph, clock: &Clock, now: Value) -> Result<Value> {
        match &self.decay {
            Decay::Constant => g.constant_like(now, self.lr),
            Decay::Polynomial { power } => {
                let left = share_left(g, clock, now)?;
                let weight = if *power == 1.0 {
                    left
                } else {
                    let power = g.constant_like(left, *power)?;
                    g.binary(BinaryKind::Pow, left, power)?
                };
                self.between(g, weight)
            }
            // (1 + cos(pi t)) / 2 written as sin^2(pi (1 - t) / 2), which loses no digits near the end.
            Decay::Cosine => {
                let left = share_left(g, clock, now)?;
                let angle = g.mul_scalar(left, FRAC_PI_2)?;
                let sine = g.unary(UnaryKind::Sin, angle)?;
                let weight = g.square(sine)?;
                self.between(g, weight)
            }
            Decay::Milestones { factor, .. } => {
                let mut rate = g.constant_like(now, self.lr)?;
                for (passed, &milestone) in clock.milestones.iter().enumerate() {
                    let milestone = g.constant_like(now, milestone)?;
                    let reached = g.binary(BinaryKind::Ge, now, milestone)?;
                    let lower = g.constant_like(now, self.lr * factor.powi(passed as i32 + 1))?;
                    rate = g.select(reached, lower, rate)?;
                }
                Ok(rate)
            }
        }
    }

    /// `end_lr + (lr - end_lr) * weight`
    fn between(&self, g: &mut Graph, weight: Value) -> Result<Value> {
        let part = g.mul_scalar(weight, self.lr - self.end_lr)?;
        g.add_scalar(part, self.end_lr)
    }
}

/// `x`, or the whole number that it misses by rounding alone.
fn snapped(x: f64) -> f64 {
    if (x - x.round()).abs() < 1e-6 { x.round() } else { x }
}

/// Whole ticks of `tick` steps done before `step`, as `f32[]`. The half step keeps the floor right however the division
/// is rounded.
fn tick_of(g: &mut Graph, step: Value, tick: f64) -> Result<Value> {
    let step = g.cast(step, DType::F32)?;
    if tick == 1.0 {
        return Ok(step);
    }
    let middle = g.add_scalar(step, 0.5)?;
    let ticks = g.mul_scalar(middle, 1.0 / tick)?;
    g.unary(UnaryKind::Floor, ticks)
}

/// Part of the decay still to come, in `[0, 1]`.
fn share_left(g: &mut Graph, clock: &Clock, now: Value) -> Result<Value> {
    let end = g.constant_like(now, clock.decay_end)?;
    let ticks = g.sub(end, now)?;
    let share = g.mul_scalar(ticks, 1.0 / clock.decay_length())?;
    let zero = g.constant_like(now, 0.0)?;
    let one = g.constant_like(now, 1.0)?;
    let share = g.binary(BinaryKind::Max, share, zero)?;
    g.binary(BinaryKind::Min, share, one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Mode};
    use bessemer_ir::reference::Interpreter;
    use std::f64::consts::PI;

    fn schedule(form: Form, decay: Decay) -> Schedule {
        Schedule {
            lr: 0.8,
            warmup_lr: 0.0,
            end_lr: 0.01,
            epochs: 6.0,
            steps_per_epoch: 7,
            warmup_epochs: 2.0,
            form,
            decay,
        }
    }

    fn all() -> Vec<Schedule> {
        let decays = [
            Decay::Constant,
            Decay::Polynomial { power: 1.0 },
            Decay::Polynomial { power: 0.5 },
            Decay::Cosine,
            Decay::Milestones { epochs: vec![3.0, 4.5, 5.0], factor: 0.1 },
        ];
        [Form::Epoch, Form::Step, Form::WholeRun, Form::FromZero, Form::Progress]
            .into_iter()
            .flat_map(|form| decays.iter().map(move |decay| schedule(form, decay.clone())))
            .chain([Schedule::constant(0.3)])
            .chain([Schedule { warmup_lr: 0.05, ..schedule(Form::FromZero, Decay::Cosine) }])
            .chain([Schedule { warmup_epochs: 0.0, ..schedule(Form::Epoch, Decay::Cosine) }])
            .chain([Schedule { warmup_epochs: 6.0, ..schedule(Form::Step, Decay::Cosine) }])
            .chain([Schedule { warmup_epochs: 1.23, ..schedule(Form::Progress, Decay::Polynomial { power: 0.5 }) }])
            .collect()
    }

    #[test]
    fn graph_and_host_agree() {
        for schedule in all() {
            let mut b = Builder::new(Mode::Train);
            let step = b.feed("step", DType::I32, []).expect("a new name");
            let lr = schedule.add_to(&mut b.graph, step).expect("a legal graph");
            b.graph.output("lr", lr);
            let mut run = Interpreter::new(&b.graph);
            for step in 0..50 {
                run.set("step", &[step as f64]);
                run.run();
                let (graph, host) = (run.output("lr").data[0], schedule.learning_rate(step));
                assert!((graph - host).abs() < 1e-12, "{schedule:?} at {step}: {graph} and {host}");
            }
        }
    }

    #[test]
    fn cosine_by_step() {
        let schedule = schedule(Form::Step, Decay::Cosine);
        for step in 0..14 {
            assert!((schedule.learning_rate(step) - 0.8 * (step + 1) as f64 / 14.0).abs() < 1e-12);
        }
        for step in 14..42 {
            let cosine = (1.0 + (PI * (step - 14) as f64 / 28.0).cos()) / 2.0;
            assert!((schedule.learning_rate(step) - (0.01 + 0.79 * cosine)).abs() < 1e-12);
        }
        assert_eq!(schedule.learning_rate(1000), 0.01);
    }

    /// EfficientDet's: `init + s / W * (lr - init)`, then half a cosine over the rest.
    #[test]
    fn warm_up_from_a_rate() {
        let schedule = Schedule { warmup_lr: 0.1, end_lr: 0.0, ..schedule(Form::FromZero, Decay::Cosine) };
        for step in 0..14 {
            assert!((schedule.learning_rate(step) - (0.1 + 0.7 * step as f64 / 14.0)).abs() < 1e-12);
        }
        for step in 14..42 {
            let cosine = (1.0 + (PI * (step - 14) as f64 / 28.0).cos()) / 2.0;
            assert!((schedule.learning_rate(step) - 0.8 * cosine).abs() < 1e-12);
        }
    }

    #[test]
    fn milestones_by_step() {
        let schedule = schedule(Form::Step, Decay::Milestones { epochs: vec![3.0, 4.5], factor: 0.1 });
        for (step, rate) in [(14, 0.8), (20, 0.8), (21, 0.08), (31, 0.08), (32, 0.008)] {
            assert!((schedule.learning_rate(step) - rate).abs() < 1e-12, "step {step}");
        }
    }

    #[test]
    fn half_an_epoch_of_warm_up_by_epoch_does_not_overshoot() {
        let schedule = Schedule { warmup_epochs: 0.5, ..schedule(Form::Epoch, Decay::Constant) };
        assert_eq!(schedule.learning_rate(0), 0.8);
    }
}
