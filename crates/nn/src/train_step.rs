//! From a loss to a whole training step.

use crate::Result;
use crate::builder::{Builder, MICRO_STEP};
use crate::optim::{
    Average, Clip, ClipOf, LossScale, Optimizer, accumulate, clip_each, global_norm, is_finite, step_counter,
};
use crate::params::ParamSpec;
use crate::ranks::Ranks;
use crate::schedule::Schedule;
use bessemer_ir::Value;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::run::HALT;

/// How parameters are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// The rule by which parameters change.
    pub optimizer: Optimizer,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Limit of the norm of each gradient of a step alone, before their global norm is limited.
    pub clip_each: Option<f64>,
    /// Limit of the global norm of the gradients.
    pub clip: Option<Clip>,
    /// Whether the step has the output `grad_norm`, the global norm before the step's clipping.
    pub report_grad_norm: bool,
    /// The moving average of the model's tensors.
    pub average: Option<Average>,
    /// Scaling of the loss, for gradients that are stored in `f16`.
    pub loss_scale: Option<LossScale>,
    /// Micro-batches of a step, of all ranks together, at least 1. Loss, gradients and all results that are one `f32` are means
    /// over them.
    pub accumulation: u64,
    /// The ranks that share them; their number divides that of the micro-batches.
    pub ranks: Ranks,
    /// What the learning rate is multiplied with, decay of weights included.
    pub rate_factors: RateFactors,
}

/// Parameters with a share of the learning rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateFactors(Vec<(String, f64)>);

impl RateFactors {
    /// Factors of the parameters whose names begin so; the first that fits counts.
    pub fn by_prefix(factors: Vec<(String, f64)>) -> Self {
        RateFactors(factors)
    }

    /// Of the parameter `name`: 1 where none was given.
    pub fn of(&self, name: &str) -> f64 {
        self.0.iter().find(|(prefix, _)| name.starts_with(prefix.as_str())).map_or(1.0, |&(_, factor)| factor)
    }
}

impl TrainConfig {
    /// The optimizer alone: no clipping, averages or scaling, one batch a step.
    pub fn new(optimizer: Optimizer, schedule: Schedule) -> TrainConfig {
        TrainConfig {
            optimizer,
            schedule,
            clip_each: None,
            clip: None,
            report_grad_norm: false,
            average: None,
            loss_scale: None,
            accumulation: 1,
            ranks: Ranks::default(),
            rate_factors: RateFactors::default(),
        }
    }
}

/// Completes the graph to a training step: gradients of `loss` for every parameter, the optimizer's updates and state.
/// Outputs: `loss`, `lr` (the rate of this step), [`HALT`] and, if asked for or needed, `grad_norm` and `loss_scale`. A step whose
/// loss or norm of the gradient is not finite leaves all state as it was, but for the loss scale and the number of
/// micro-batches; statistics of batch norms it keeps from those of its micro-batches whose loss was finite. It halts unless
/// its loss is finite and its loss scale can be lowered.
///
/// # Errors
/// If the loss is NaN or infinite, an operation on the way has no gradient, or a parameter does not reach the loss.
pub fn build_train_step(b: &mut Builder, loss: Value, config: &TrainConfig) -> Result<()> {
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let scale = config.loss_scale.map(|scaling| scaling.current(b)).transpose()?;
    let mut grads = scaled_gradients(b, loss, scale, &params)?;
    let mut loss = loss;
    let accumulates = config.accumulation > 1;
    b.scope("optimizer", |b| {
        let clips_each = accumulates && config.clip.is_some_and(|clip| clip.of == ClipOf::MicroBatch);
        if let Some(clip) = config.clip.filter(|_| clips_each) {
            let norm = global_norm(&mut b.graph, &grads)?;
            grads = clip.apply(&mut b.graph, norm, &grads)?;
        }
        if accumulates {
            (loss, grads) = accumulate(b, config.accumulation, config.ranks, loss, &params, &grads)?;
        }
        let step = step_counter(b)?;
        let lr = config.schedule.add_to(&mut b.graph, step)?;
        b.graph.output("loss", loss);
        b.graph.output("lr", lr);
        let loss_is_finite = is_finite(b, loss)?;
        let mut finite = loss_is_finite;
        // The norm is what sets the optimizer apart from the accumulation phase.
        if config.report_grad_norm
            || config.clip_each.is_some()
            || config.clip.is_some()
            || scale.is_some()
            || accumulates
        {
            let norm = global_norm(&mut b.graph, &grads)?;
            b.graph.output("grad_norm", norm);
            let norm_is_finite = is_finite(b, norm)?;
            finite = b.graph.select(finite, norm_is_finite, finite)?;
            let mut norm = norm;
            if let Some(limit) = config.clip_each {
                grads = clip_each(&mut b.graph, limit, &grads)?;
                norm = global_norm(&mut b.graph, &grads)?;
            }
            if let Some(clip) = config.clip.filter(|_| !clips_each) {
                grads = clip.apply(&mut b.graph, norm, &grads)?;
            }
        }
        for (param, &grad) in params.iter().zip(&grads) {
            let factor = config.rate_factors.of(&param.name);
            b.scope(&param.name, |b| {
                let lr = if factor == 1.0 { lr } else { b.graph.mul_scalar(lr, factor)? };
                config.optimizer.update(b, param, grad, lr, step)
            })?;
        }
        if let Some(average) = config.average {
            average.add_to(b, step)?;
        }
        b.graph.guard_updates(finite)?;
        let mut goes_on = finite;
        if let Some(scale) = scale {
            let one = b.graph.constant_like(scale, 1.0)?;
            let can_be_lowered = b.graph.binary(BinaryKind::Gt, scale, one)?;
            let overflows = b.graph.select(loss_is_finite, can_be_lowered, loss_is_finite)?;
            goes_on = b.graph.select(finite, finite, overflows)?;
        }
        let (zero, one) = (b.graph.constant_like(loss, 0.0)?, b.graph.constant_like(loss, 1.0)?);
        let halt = b.graph.select(goes_on, zero, one)?;
        b.graph.output(HALT, halt);
        if let (Some(scaling), Some(scale)) = (config.loss_scale, scale) {
            b.graph.output("loss_scale", scale);
            scaling.adapt(b, scale, finite)?;
        }
        let ranks = config.ranks.count as u64;
        advance_micro_step(b, ranks, config.accumulation > ranks)
    })
}

/// Counts the micro-batches of all ranks, if anything in the graph reads the counter. That of rank `r` begins `r` later than that of
/// rank 0, so that each micro-batch has the same number wherever it runs.
fn advance_micro_step(b: &mut Builder, ranks: u64, accumulates: bool) -> Result<()> {
    const END: f64 = 16_777_216.0;
    let g = &mut b.graph;
    let Some(counter) = g.find_input(MICRO_STEP) else { return Ok(()) };
    let end = g.constant_like(counter, END)?;
    let next = g.add_scalar(counter, ranks as f64)?;
    let is_end = g.binary(BinaryKind::Ge, next, end)?;
    let from_zero = g.add_scalar(next, -END)?;
    let next = g.select(is_end, from_zero, next)?;
    if accumulates { g.update_each_micro_batch(counter, next) } else { g.update(counter, next) }
}

/// Gradients of the loss for each parameter, computed from the loss times `scale` if there is one.
fn scaled_gradients(b: &mut Builder, loss: Value, scale: Option<Value>, params: &[ParamSpec]) -> Result<Vec<Value>> {
    let values: Vec<Value> = params.iter().map(|spec| spec.value).collect();
    let Some(scale) = scale else { return gradients(&mut b.graph, loss, &values) };
    let scaled = b.graph.mul(loss, scale)?;
    let grads = gradients(&mut b.graph, scaled, &values)?;
    let g = &mut b.graph;
    let one = g.constant_like(scale, 1.0)?;
    let inverse = g.div(one, scale)?;
    grads.into_iter().map(|grad| g.mul(grad, inverse)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Mode;
    use crate::init::Init;
    use crate::optim::{DecayExclude, Sgd};
    use bessemer_ir::GraphError;
    use bessemer_ir::reference::Interpreter;

    fn config() -> TrainConfig {
        let sgd = Sgd { momentum: 0.9, decay_exclude: DecayExclude::None, ..Sgd::default() };
        TrainConfig {
            report_grad_norm: true,
            average: Some(Average { decay: 0.5, ramp: false }),
            ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.05))
        }
    }

    /// The loss is the sum of squares of a bias of two elements.
    fn builder() -> (Builder, Value) {
        let mut b = Builder::new(Mode::Train);
        let bias = b.bias("bias", 2, Init::Zeros).expect("a new name");
        let square = b.graph.square(bias).expect("a float");
        let loss = b.graph.sum(square, &[0]).expect("one axis");
        (b, loss)
    }

    #[test]
    fn a_step_descends() {
        let (mut b, loss) = builder();
        build_train_step(&mut b, loss, &config()).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("bias", &[3.0, 4.0]);
        run.run();
        assert_eq!(run.output("loss").data, [25.0]);
        assert!((run.output("grad_norm").data[0] - 10.0).abs() < 1e-12);
        assert!((run.output("lr").data[0] - 0.05).abs() < 1e-12);
        assert!((run.input("bias").data[0] - (3.0 - 0.05 * 6.0)).abs() < 1e-12);
        let names: Vec<&str> = b.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["bias", "step", "momentum.bias", "ema.bias"]);
    }

    #[test]
    fn a_loss_that_is_no_number_changes_nothing() {
        let (mut b, loss) = builder();
        build_train_step(&mut b, loss, &config()).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("bias", &[f64::INFINITY, 4.0]);
        run.run();
        assert_eq!(run.input("bias").data, [f64::INFINITY, 4.0]);
        assert_eq!(run.input("step").data, [0.0]);
    }

    #[test]
    fn a_gradient_that_is_no_number_changes_nothing() {
        let (mut b, loss) = builder();
        let bias = b.specs()[0].value;
        // Its square root has the gradient 1 / 0 at zero.
        let root = b.graph.unary(bessemer_ir::ops::pointwise::UnaryKind::Sqrt, bias).expect("a float");
        let sum = b.graph.sum(root, &[0]).expect("one axis");
        let loss = b.graph.add(loss, sum).expect("two numbers");
        build_train_step(&mut b, loss, &config()).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("bias", &[0.0, 4.0]);
        run.run();
        assert_eq!(run.output("loss").data, [18.0]);
        assert!(!run.output("grad_norm").data[0].is_finite());
        assert_eq!(run.output(HALT).data, [1.0]);
        assert_eq!((run.input("bias").data.as_slice(), run.input("step").data[0]), ([0.0, 4.0].as_slice(), 0.0));
    }

    #[test]
    fn the_loss_scale_follows_overflows() {
        let (mut b, loss) = builder();
        let scaling = LossScale { initial: 8.0, growth_steps: Some(2) };
        let config = TrainConfig { loss_scale: Some(scaling), average: None, ..config() };
        build_train_step(&mut b, loss, &config).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("loss_scale", &[8.0]);
        let (mut scales, mut halts) = (Vec::new(), Vec::new());
        for bias in [3.0, 3.0, f64::INFINITY, 3.0, f64::NAN, 3.0, 3.0] {
            run.set("bias", &[bias, 4.0]);
            run.run();
            scales.push(run.output("loss_scale").data[0]);
            halts.push(run.output(HALT).data[0]);
            let stays = run.input("bias").data[1] == 4.0;
            assert_eq!(stays, !bias.is_finite(), "an overflow, and only one, keeps the weights");
            if bias.is_finite() {
                assert!((run.output("grad_norm").data[0] - 10.0).abs() < 1e-12, "the scale is taken out again");
            }
        }
        assert_eq!(scales, [8.0, 8.0, 16.0, 8.0, 8.0, 4.0, 4.0]);
        assert_eq!(run.input("loss_scale").data[0], 8.0);
        assert_eq!(
            halts,
            [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
            "the losses with infinity and NaN are not finite themselves"
        );
    }

    #[test]
    fn factors_scale_rate_and_decay() {
        let mut b = Builder::new(Mode::Train);
        let biases = ["deep.bias", "shallow.bias"].map(|name| b.bias(name, 1, Init::Zeros).expect("a new name"));
        let squares = biases.map(|bias| b.graph.square(bias).expect("a float"));
        let sum = b.graph.add(squares[0], squares[1]).expect("two numbers");
        let loss = b.graph.sum(sum, &[0]).expect("one axis");
        let sgd = Sgd { weight_decay: 0.5, decay_exclude: DecayExclude::None, ..Sgd::default() };
        let rate_factors = RateFactors::by_prefix(vec![("deep.".to_string(), 0.25), ("deep.bias".to_string(), 9.0)]);
        let config = TrainConfig { rate_factors, ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1)) };
        build_train_step(&mut b, loss, &config).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        for (name, rate) in [("deep.bias", 0.025), ("shallow.bias", 0.1)] {
            run.set("deep.bias", &[2.0]);
            run.set("shallow.bias", &[2.0]);
            run.run();
            let (actual, expected) = (run.input(name).data[0], 2.0 - rate * (4.0 + 0.5 * 2.0));
            assert!((actual - expected).abs() < 1e-12, "{name} is {actual}, not {expected}");
        }
    }

    #[test]
    fn parameters_that_do_nothing_are_an_error() {
        let (mut b, loss) = builder();
        b.bias("unused", 1, Init::Zeros).expect("a new name");
        let error = build_train_step(&mut b, loss, &config()).expect_err("a parameter does not reach the loss");
        assert_eq!(error, GraphError::Unreached(vec!["unused".to_string()]));
    }
}
