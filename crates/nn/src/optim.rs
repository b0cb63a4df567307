//! Optimizers, as nodes of the step.

use crate::Result;
use crate::builder::Builder;
use crate::init::Init;
use crate::params::{Kind, ParamLayout, ParamSpec};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, Graph, TensorType, Value};
use std::collections::HashMap;

/// Parameters without weight decay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DecayExclude {
    /// None: all are decayed.
    None,
    /// Those with `bn` in their name. The batch norms of ResNet's shortcuts are named `downsample.1`, and are decayed.
    BnSubstring,
    /// Scale and offset of every batch norm.
    #[default]
    BatchNorm,
    /// Scale and offset of every batch norm, and every bias.
    BatchNormAndBias,
}

impl DecayExclude {
    pub fn excludes(self, spec: &ParamSpec) -> bool {
        match self {
            DecayExclude::None => false,
            DecayExclude::BnSubstring => spec.name.contains("bn"),
            DecayExclude::BatchNorm => spec.kind == Kind::Norm,
            DecayExclude::BatchNormAndBias => matches!(spec.kind, Kind::Norm | Kind::Bias),
        }
    }
}

/// Stochastic gradient descent: `v = momentum * v + (g + weight_decay * w)`, `w -= lr * v`, and with Nesterov's form
/// `w -= lr * (g + weight_decay * w + momentum * v)`. PyTorch's form; TensorFlow's `MomentumOptimizer` with the decay as a
/// loss term `weight_decay / 2 * |w|^2` is the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub momentum: f64,
    pub nesterov: bool,
    pub weight_decay: f64,
    pub decay_exclude: DecayExclude,
}

impl Sgd {
    /// Replaces `param` by its next value. Keeps `v` in the state `momentum.NAME`.
    pub fn update(&self, b: &mut Builder, param: &ParamSpec, grad: Value, lr: Value) -> Result<()> {
        let mut direction = grad;
        if self.weight_decay != 0.0 && !self.decay_exclude.excludes(param) {
            let decay = b.graph.scale(param.value, self.weight_decay)?;
            direction = b.graph.add_(grad, decay)?;
        }
        if self.momentum != 0.0 {
            let name = format!("momentum.{}", param.name);
            let state = b.optimizer_state(&name, param.ty.clone(), param.layout, Kind::Optimizer)?;
            let kept = b.graph.scale(state, self.momentum)?;
            let velocity = b.graph.add_(kept, direction)?;
            b.graph.update(state, velocity)?;
            direction = if self.nesterov {
                let ahead = b.graph.scale(velocity, self.momentum)?;
                b.graph.add_(direction, ahead)?
            } else {
                velocity
            };
        }
        let change = b.graph.mul(direction, lr)?;
        let new = b.graph.sub(param.value, change)?;
        b.graph.update(param.value, new)
    }
}

/// Euclidean norm of all gradients taken together, `f32[]`.
pub fn global_norm(g: &mut Graph, grads: &[Value]) -> Result<Value> {
    let mut total = g.constant(DType::F32, [], 0.0)?;
    for &grad in grads {
        let squares = g.square(grad)?;
        let axes: Vec<usize> = (0..g.shape(grad).rank()).collect();
        let sum = g.sum(squares, &axes)?;
        total = g.add_(total, sum)?;
    }
    g.unary(UnaryKind::Sqrt, total)
}

/// Gradients times `min(1, limit / (norm + 1e-6))`, PyTorch's form.
pub fn clip_by_norm(g: &mut Graph, grads: &[Value], norm: Value, limit: f64) -> Result<Vec<Value>> {
    let stable = g.offset(norm, 1e-6)?;
    let limit = g.constant_like(norm, limit)?;
    let ratio = g.div(limit, stable)?;
    let one = g.constant_like(norm, 1.0)?;
    let factor = g.binary(BinaryKind::Min, ratio, one)?;
    grads.iter().map(|&grad| g.mul(grad, factor)).collect()
}

/// The number of steps done, `i32[]`, in the state `step`; the step adds one.
pub fn step_counter(b: &mut Builder) -> Result<Value> {
    let step = b.optimizer_state("step", TensorType::new(DType::I32, []), ParamLayout::Plain, Kind::Optimizer)?;
    let next = b.graph.offset(step, 1.0)?;
    b.graph.update(step, next)?;
    Ok(step)
}

/// Scaling of the loss, so that small gradients survive storage in `f16`. After P. Micikevicius et al., "Mixed precision
/// training" (2018), section 3.2; with growth, PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// Scale of the first step.
    pub initial: f64,
    /// Steps in a row without overflow after which the scale doubles. An overflow halves it, but not below 1. `None`: it
    /// never changes.
    pub growth_steps: Option<u64>,
}

/// Largest loss scale.
const MAX_LOSS_SCALE: f64 = 16_777_216.0;

impl LossScale {
    /// The scale of this step, `f32[]`, kept in the state `loss_scale`.
    pub fn current(&self, b: &mut Builder) -> Result<Value> {
        let init = Init::Constant(self.initial);
        b.scalar_state("loss_scale", init)
    }

    /// Replaces the scale for the next step by what follows from whether this one was without overflow, `bool[]`. Keeps
    /// the steps in a row without one in the state `loss_scale.good_steps`. To be called when the other updates are
    /// guarded, because it happens in any case.
    pub fn adapt(&self, b: &mut Builder, scale: Value, finite: Value) -> Result<()> {
        let Some(growth_steps) = self.growth_steps else { return Ok(()) };
        let good_steps = b.scalar_state("loss_scale.good_steps", Init::Zeros)?;
        let g = &mut b.graph;
        let (zero, one) = (g.constant_like(scale, 0.0)?, g.constant_like(scale, 1.0)?);
        let (limit, wanted) = (g.constant_like(scale, MAX_LOSS_SCALE)?, g.constant_like(scale, growth_steps as f64)?);
        let counted = g.offset(good_steps, 1.0)?;
        let grows = g.binary(BinaryKind::Ge, counted, wanted)?;
        let doubled = g.scale(scale, 2.0)?;
        let doubled = g.binary(BinaryKind::Min, doubled, limit)?;
        let halved = g.scale(scale, 0.5)?;
        let halved = g.binary(BinaryKind::Max, halved, one)?;
        let kept = g.select(grows, doubled, scale)?;
        let next = g.select(finite, kept, halved)?;
        let count = g.select(grows, zero, counted)?;
        let count = g.select(finite, count, zero)?;
        g.update(scale, next)?;
        g.update(good_steps, count)
    }
}

/// Keeps a moving average of every tensor of the model in the state `ema.NAME`:
/// `ema = decay * ema + (1 - decay) * new`. In step 0 the tensor's content before the step takes the place of `ema`. To be
/// called when all updates are in the graph.
pub fn average(b: &mut Builder, decay: f64, step: Value) -> Result<()> {
    let replaced: HashMap<Value, Value> = b.graph.updates().iter().copied().collect();
    let zero = b.graph.constant_like(step, 0.0)?;
    let first = b.graph.binary(BinaryKind::Eq, step, zero)?;
    let tensors: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.kind.is_model()).cloned().collect();
    for spec in tensors {
        let name = format!("ema.{}", spec.name);
        let state = b.optimizer_state(&name, spec.ty.clone(), spec.layout, Kind::Average)?;
        let new = replaced.get(&spec.value).copied().unwrap_or(spec.value);
        let g = &mut b.graph;
        let old = g.select(first, spec.value, state)?;
        let kept = g.scale(old, decay)?;
        let added = g.scale(new, 1.0 - decay)?;
        let moved = g.add_(kept, added)?;
        g.update(state, moved)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Mode;
    use crate::init::Init;
    use bessemer_ir::reference::Interpreter;

    const LR: f64 = 0.1;

    /// Two parameters whose gradients are fed.
    fn builder() -> (Builder, Vec<ParamSpec>, Vec<Value>) {
        let mut b = Builder::new(Mode::Train);
        b.weight("fc.weight", [1, 2], Init::Zeros).expect("a new name");
        b.norm("bn1.weight", 1, Init::Ones).expect("a new name");
        let params = b.specs().to_vec();
        let grads = params
            .iter()
            .map(|p| b.feed(&format!("grad.{}", p.name), DType::F32, p.ty.shape.clone()).expect("a new name"))
            .collect();
        (b, params, grads)
    }

    fn sgd_graph(sgd: &Sgd) -> Graph {
        let (mut b, params, grads) = builder();
        let lr = b.graph.constant(DType::F32, [], LR).expect("a constant");
        for (param, grad) in params.iter().zip(grads) {
            sgd.update(&mut b, param, grad, lr).expect("a legal graph");
        }
        b.finish().0
    }

    /// Two steps from weight 1 with gradient 2, then 3.
    fn two_steps(sgd: &Sgd) -> [f64; 2] {
        let graph = sgd_graph(sgd);
        let mut run = Interpreter::new(&graph);
        run.set("fc.weight", &[1.0, 0.0]);
        run.set("bn1.weight", &[1.0]);
        for grad in [2.0, 3.0] {
            run.set("grad.fc.weight", &[grad, 0.0]);
            run.set("grad.bn1.weight", &[grad]);
            run.run();
        }
        [run.input("fc.weight").data[0], run.input("bn1.weight").data[0]]
    }

    const PLAIN: Sgd = Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0, decay_exclude: DecayExclude::None };

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn plain_descent_keeps_no_state() {
        assert!(close(two_steps(&PLAIN)[0], 1.0 - LR * 5.0));
        assert!(sgd_graph(&PLAIN).find_input("momentum.fc.weight").is_none());
    }

    #[test]
    fn momentum_and_nesterov() {
        let momentum = Sgd { momentum: 0.5, ..PLAIN };
        assert!(close(two_steps(&momentum)[0], 1.0 - LR * 2.0 - LR * (0.5 * 2.0 + 3.0)));
        let nesterov = Sgd { nesterov: true, ..momentum };
        let expected = 1.0 - LR * (2.0 + 0.5 * 2.0) - LR * (3.0 + 0.5 * (0.5 * 2.0 + 3.0));
        assert!(close(two_steps(&nesterov)[0], expected));
    }

    #[test]
    fn decay_spares_what_is_excluded() {
        let sgd = Sgd { weight_decay: 0.5, decay_exclude: DecayExclude::BatchNorm, ..PLAIN };
        let first = 1.0 - LR * (2.0 + 0.5);
        let [decayed, spared] = two_steps(&sgd);
        assert!(close(decayed, first - LR * (3.0 + 0.5 * first)));
        assert!(close(spared, 1.0 - LR * 5.0));
    }

    #[test]
    fn exclusion_rules() {
        let mut b = Builder::new(Mode::Train);
        b.norm("bn1.weight", 1, Init::Ones).expect("a new name");
        b.norm("downsample.1.weight", 1, Init::Ones).expect("a new name");
        b.bias("fc.bias", 1, Init::Ones).expect("a new name");
        b.weight("fc.weight", [1, 1], Init::Ones).expect("a new name");
        for (rule, expected) in [
            (DecayExclude::None, [false, false, false, false]),
            (DecayExclude::BnSubstring, [true, false, false, false]),
            (DecayExclude::BatchNorm, [true, true, false, false]),
            (DecayExclude::BatchNormAndBias, [true, true, true, false]),
        ] {
            let excluded: Vec<bool> = b.specs().iter().map(|spec| rule.excludes(spec)).collect();
            assert_eq!(excluded, expected, "{rule:?}");
        }
    }

    #[test]
    fn clipping_limits_the_norm_of_all_gradients() {
        let (mut b, _, grads) = builder();
        let norm = global_norm(&mut b.graph, &grads).expect("a legal graph");
        let clipped = clip_by_norm(&mut b.graph, &grads, norm, 1.0).expect("a legal graph");
        b.graph.output("norm", norm);
        b.graph.output("fc", clipped[0]);
        b.graph.output("bn", clipped[1]);
        let mut run = Interpreter::new(&b.graph);
        run.set("grad.fc.weight", &[2.0, 3.0]);
        run.set("grad.bn1.weight", &[6.0]);
        run.run();
        assert!(close(run.output("norm").data[0], 7.0));
        assert!((run.output("fc").data[1] - 3.0 / 7.0).abs() < 1e-6);
        assert!((run.output("bn").data[0] - 6.0 / 7.0).abs() < 1e-6);
        run.set("grad.fc.weight", &[0.25, 0.0]);
        run.set("grad.bn1.weight", &[0.0]);
        run.run();
        assert_eq!(run.output("fc").data, [0.25, 0.0]);
    }

    #[test]
    fn averages_start_from_the_first_content() {
        let (mut b, params, grads) = builder();
        let step = step_counter(&mut b).expect("a new name");
        let lr = b.graph.constant(DType::F32, [], LR).expect("a constant");
        PLAIN.update(&mut b, &params[0], grads[0], lr).expect("a legal graph");
        average(&mut b, 0.75, step).expect("a legal graph");
        let mut run = Interpreter::new(&b.graph);
        run.set("fc.weight", &[1.0, -1.0]);
        run.set("bn1.weight", &[5.0]);
        run.set("grad.fc.weight", &[4.0, 0.0]);
        run.run();
        run.run();
        assert_eq!(run.input("step").data, [2.0]);
        let first = 0.75 * 1.0 + 0.25 * 0.6;
        assert!(close(run.input("ema.fc.weight").data[0], 0.75 * first + 0.25 * 0.2));
        assert_eq!(run.input("ema.bn1.weight").data, [5.0]);
    }
}
