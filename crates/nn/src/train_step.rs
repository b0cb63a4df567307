//! From a loss to a whole training step.

use crate::Result;
use crate::builder::Builder;
use crate::optim::{LossScale, Sgd, average, clip_by_norm, global_norm, step_counter};
use crate::params::ParamSpec;
use crate::schedule::Schedule;
use bessemer_ir::Value;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::pointwise::BinaryKind;

/// How parameters are trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    pub sgd: Sgd,
    pub schedule: Schedule,
    /// Largest global norm of the gradients; larger ones are scaled down to it.
    pub clip_norm: Option<f64>,
    /// Whether the step has the output `grad_norm`, the global norm before clipping.
    pub report_grad_norm: bool,
    /// Decay of the moving average of the model's tensors.
    pub ema_decay: Option<f64>,
    /// Scaling of the loss, for gradients that are stored in `f16`.
    pub loss_scale: Option<LossScale>,
}

/// Completes the graph to a training step: gradients of `loss` for every parameter, the optimizer's updates and state.
/// Outputs: `loss`, `lr` (the rate of this step) and, if asked for or needed, `grad_norm` and `loss_scale`. A step whose
/// loss or norm of the gradient is not finite leaves all state as it was, but for the loss scale.
///
/// # Errors
/// If the loss is no number, an operation on the way has no gradient, or a parameter does not reach the loss.
pub fn build_sgd_step(b: &mut Builder, loss: Value, config: &TrainConfig) -> Result<()> {
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let scale = config.loss_scale.map(|scaling| scaling.current(b)).transpose()?;
    let mut grads = scaled_gradients(b, loss, scale, &params)?;
    b.scope("optimizer", |b| {
        let step = step_counter(b)?;
        let lr = config.schedule.add_to(&mut b.graph, step)?;
        b.graph.output("loss", loss);
        b.graph.output("lr", lr);
        let mut finite = is_finite(b, loss)?;
        if config.report_grad_norm || config.clip_norm.is_some() || scale.is_some() {
            let norm = global_norm(&mut b.graph, &grads)?;
            b.graph.output("grad_norm", norm);
            let norm_is_finite = is_finite(b, norm)?;
            finite = b.graph.select(finite, norm_is_finite, finite)?;
            if let Some(limit) = config.clip_norm {
                grads = clip_by_norm(&mut b.graph, &grads, norm, limit)?;
            }
        }
        for (param, &grad) in params.iter().zip(&grads) {
            b.scope(&param.name, |b| config.sgd.update(b, param, grad, lr))?;
        }
        if let Some(decay) = config.ema_decay {
            average(b, decay, step)?;
        }
        b.graph.guard_updates(finite)?;
        if let (Some(scaling), Some(scale)) = (config.loss_scale, scale) {
            b.graph.output("loss_scale", scale);
            scaling.adapt(b, scale, finite)?;
        }
        Ok(())
    })
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

/// Whether a number is neither NaN nor infinite, `bool[]`.
fn is_finite(b: &mut Builder, x: Value) -> Result<Value> {
    let nothing = b.graph.scale(x, 0.0)?;
    let zero = b.graph.constant_like(x, 0.0)?;
    b.graph.binary(BinaryKind::Eq, nothing, zero)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Mode;
    use crate::init::Init;
    use crate::optim::DecayExclude;
    use bessemer_ir::GraphError;
    use bessemer_ir::reference::Interpreter;

    fn config() -> TrainConfig {
        TrainConfig {
            sgd: Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0, decay_exclude: DecayExclude::None },
            schedule: Schedule::constant(0.05),
            clip_norm: None,
            report_grad_norm: true,
            ema_decay: Some(0.5),
            loss_scale: None,
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
        build_sgd_step(&mut b, loss, &config()).expect("a legal graph");
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
        build_sgd_step(&mut b, loss, &config()).expect("a legal graph");
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
        let loss = b.graph.add_(loss, sum).expect("two numbers");
        build_sgd_step(&mut b, loss, &config()).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("bias", &[0.0, 4.0]);
        run.run();
        assert_eq!(run.output("loss").data, [18.0]);
        assert!(!run.output("grad_norm").data[0].is_finite());
        assert_eq!((run.input("bias").data.as_slice(), run.input("step").data[0]), ([0.0, 4.0].as_slice(), 0.0));
    }

    #[test]
    fn the_loss_scale_follows_overflows() {
        let (mut b, loss) = builder();
        let scaling = LossScale { initial: 8.0, growth_steps: Some(2) };
        let config = TrainConfig { loss_scale: Some(scaling), ema_decay: None, ..config() };
        build_sgd_step(&mut b, loss, &config).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("loss_scale", &[8.0]);
        let mut scales = Vec::new();
        for bias in [3.0, 3.0, f64::INFINITY, 3.0, f64::NAN, 3.0, 3.0] {
            run.set("bias", &[bias, 4.0]);
            run.run();
            scales.push(run.output("loss_scale").data[0]);
            let stays = run.input("bias").data[1] == 4.0;
            assert_eq!(stays, !bias.is_finite(), "an overflow, and only one, keeps the weights");
            if bias.is_finite() {
                assert!((run.output("grad_norm").data[0] - 10.0).abs() < 1e-12, "the scale is taken out again");
            }
        }
        assert_eq!(scales, [8.0, 8.0, 16.0, 8.0, 8.0, 4.0, 4.0]);
        assert_eq!(run.input("loss_scale").data[0], 8.0);
    }

    #[test]
    fn parameters_that_do_nothing_are_an_error() {
        let (mut b, loss) = builder();
        b.bias("unused", 1, Init::Zeros).expect("a new name");
        let error = build_sgd_step(&mut b, loss, &config()).expect_err("a parameter does not reach the loss");
        assert_eq!(error, GraphError::Unreached(vec!["unused".to_string()]));
    }
}
