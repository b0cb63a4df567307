//! From a loss to a whole training step.

use crate::Result;
use crate::builder::Builder;
use crate::optim::{Sgd, average, clip_by_norm, global_norm, step_counter};
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
}

/// Completes the graph to a training step: gradients of `loss` for every parameter, the optimizer's updates and state.
/// Outputs: `loss`, `lr` (the rate of this step) and, if asked for, `grad_norm`. A step whose loss is not finite leaves
/// all state as it was.
///
/// # Errors
/// If the loss is no number, an operation on the way has no gradient, or a parameter does not reach the loss.
pub fn build_sgd_step(b: &mut Builder, loss: Value, config: &TrainConfig) -> Result<()> {
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let values: Vec<Value> = params.iter().map(|spec| spec.value).collect();
    let mut grads = gradients(&mut b.graph, loss, &values)?;
    b.scope("optimizer", |b| {
        let step = step_counter(b)?;
        let lr = config.schedule.add_to(&mut b.graph, step)?;
        b.graph.output("loss", loss);
        b.graph.output("lr", lr);
        if config.report_grad_norm || config.clip_norm.is_some() {
            let norm = global_norm(&mut b.graph, &grads)?;
            if config.report_grad_norm {
                b.graph.output("grad_norm", norm);
            }
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
        keep_state_unless_finite(b, loss)
    })
}

/// A step whose loss is NaN or infinite changes nothing, so that it can be examined and the state saved.
fn keep_state_unless_finite(b: &mut Builder, loss: Value) -> Result<()> {
    let nothing = b.graph.scale(loss, 0.0)?;
    let zero = b.graph.constant_like(loss, 0.0)?;
    let finite = b.graph.binary(BinaryKind::Eq, nothing, zero)?;
    b.graph.guard_updates(finite)
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
    fn parameters_that_do_nothing_are_an_error() {
        let (mut b, loss) = builder();
        b.bias("unused", 1, Init::Zeros).expect("a new name");
        let error = build_sgd_step(&mut b, loss, &config()).expect_err("a parameter does not reach the loss");
        assert_eq!(error, GraphError::Unreached(vec!["unused".to_string()]));
    }
}
