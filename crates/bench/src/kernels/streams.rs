//! Kernels that pass over their operands: normalisations, softmax, pooling, pointwise chains, optimizer updates.

use super::shapes::{BERT_BASE, BERT_BATCHES};
use super::{Bound, Identity, PRECISIONS, Problem, brackets};
use crate::workload::Workload;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::softmax::{LogSoftmax, Softmax};
use bessemer_ir::{DType, Graph, GraphError, NodeId, Op, Role, Shape, TensorType, Value};
use bessemer_nn::optim::global_norm;
use bessemer_nn::{Builder, DecayExclude, Init, Mode, ParamSpec, Sgd};
use std::collections::BTreeMap;

/// A problem under construction: operands of one element type, arithmetic in `f32`.
struct Chain {
    graph: Graph,
    dtype: DType,
}

impl Chain {
    /// An operand of the problem's element type, converted to `f32`.
    fn operand(&mut self, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        let value = self.graph.input(name, Role::Feed, TensorType::new(self.dtype, shape))?;
        self.graph.cast(value, DType::F32)
    }

    /// A vector along the innermost axis, `f32` always.
    fn vector(&mut self, name: &str, cols: usize) -> Result<Value, GraphError> {
        self.graph.input(name, Role::Feed, TensorType::f32([cols]))
    }

    /// The result, in the problem's element type.
    fn result(&mut self, y: Value) -> Result<(), GraphError> {
        let y = self.graph.cast(y, self.dtype)?;
        self.graph.output("y", y);
        Ok(())
    }
}

type Build = fn(&mut Chain, &[usize]) -> Result<(), GraphError>;

/// Mean and variance over all axes but the channels.
fn batch_moments(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let x = c.operand("x", shape)?;
    let axes: Vec<usize> = (0..shape.len() - 1).collect();
    let (mean, variance) = c.graph.moments(x, &axes)?;
    c.graph.output("mean", mean);
    c.graph.output("variance", variance);
    Ok(())
}

/// `(x - mean) * scale + shift`
fn normalised(c: &mut Chain, shape: &[usize]) -> Result<Value, GraphError> {
    let cols = shape[shape.len() - 1];
    let x = c.operand("x", shape)?;
    let (mean, scale, shift) = (c.vector("mean", cols)?, c.vector("scale", cols)?, c.vector("shift", cols)?);
    let centred = c.graph.sub(x, mean)?;
    let scaled = c.graph.mul(centred, scale)?;
    c.graph.add(scaled, shift)
}

fn normalise_relu(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let y = normalised(c, shape)?;
    let y = c.graph.relu(y)?;
    c.result(y)
}

fn normalise_residual_relu(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let y = normalised(c, shape)?;
    let residual = c.operand("residual", shape)?;
    let y = c.graph.add(y, residual)?;
    let y = c.graph.relu(y)?;
    c.result(y)
}

fn add_relu(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let (a, b) = (c.operand("a", shape)?, c.operand("b", shape)?);
    let sum = c.graph.add(a, b)?;
    let y = c.graph.relu(sum)?;
    c.result(y)
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`
fn gelu(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let x = c.operand("x", shape)?;
    let g = &mut c.graph;
    let scaled = g.mul_scalar(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.unary(UnaryKind::Erf, scaled)?;
    let gate = g.add_scalar(erf, 1.0)?;
    let half = g.mul_scalar(x, 0.5)?;
    let y = g.mul(half, gate)?;
    c.result(y)
}

/// `(x - mean) * rsqrt(variance + 1e-12) * scale + shift`, mean and variance of each row.
fn layer_norm(c: &mut Chain, shape: &[usize]) -> Result<(), GraphError> {
    let cols = shape[shape.len() - 1];
    let x = c.operand("x", shape)?;
    let (scale, shift) = (c.vector("scale", cols)?, c.vector("shift", cols)?);
    let g = &mut c.graph;
    let mean = row_mean(g, x)?;
    let centred = g.sub(x, mean)?;
    let squares = g.square(centred)?;
    let variance = row_mean(g, squares)?;
    let stable = g.add_scalar(variance, 1e-12)?;
    let factor = g.rsqrt(stable)?;
    let y = g.mul(centred, factor)?;
    let y = g.mul(y, scale)?;
    let y = g.add(y, shift)?;
    c.result(y)
}

/// Mean over the innermost axis, which is kept with size 1.
fn row_mean(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let (axis, cols) = (g.shape(x).rank() - 1, g.shape(x).cols());
    let sum = g.reduce(ReduceKind::Sum, x, &[axis], true)?;
    g.mul_scalar(sum, 1.0 / cols as f64)
}

/// The chain in each precision.
fn chain(
    model: &'static str,
    layer: &str,
    family: &str,
    shape: &[usize],
    calls: usize,
    build: Build,
) -> Result<Vec<Problem>, GraphError> {
    let shapes = &brackets(shape);
    let identity = Identity { model, layer, shapes, direction: "", family, bound: Bound::Memory };
    let mut problems = Vec::new();
    for dtype in PRECISIONS {
        let mut chain = Chain { graph: Graph::new(), dtype };
        build(&mut chain, shape)?;
        problems.push(identity.problem(dtype, calls, chain.graph));
    }
    Ok(problems)
}

/// Element types in which an operation with one operand is measured: those in which steps have it. Softmax reads `f32` always.
fn precisions(op: &Op) -> &'static [DType] {
    match op {
        Op::Softmax(_) | Op::LogSoftmax(_) => &[DType::F32],
        _ => &PRECISIONS,
    }
}

/// An operation with one operand in each precision that it is run in.
fn single(
    model: &'static str,
    layer: &str,
    family: &str,
    (op, shape): (&Op, &Shape),
    calls: usize,
) -> Result<Vec<Problem>, GraphError> {
    let shapes = &brackets(shape);
    let identity = Identity { model, layer, shapes, direction: "", family, bound: Bound::Memory };
    let inputs = [TensorType::f32(shape.dims())];
    precisions(op).iter().map(|&dtype| Problem::single(identity, op, &inputs, dtype, calls)).collect()
}

/// Streaming kernels of a training step of ResNet-50.
pub(super) fn of_resnet(work: &Workload) -> Result<Vec<Problem>, GraphError> {
    const MODEL: &str = "resnet50";
    let graph = &work.graph;
    let mut problems = Vec::new();
    let norms: Vec<NodeId> = graph.ids().filter(|&id| matches!(graph.node(id).op, Op::MeanVar(_))).collect();
    let counted = |wanted: &dyn Fn(&str) -> bool| {
        let mut counts: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for &id in norms.iter().filter(|&&id| wanted(graph.path(id))) {
            *counts.entry(graph.shape(graph.node(id).inputs[0]).to_vec()).or_default() += 1;
        }
        counts.into_iter().rev()
    };
    // The last norm of a block has the shortcut added; a shortcut's own norm is part of that sum.
    let ends_block = |path: &str| path.ends_with("bn3");
    for (shape, calls) in counted(&|_| true) {
        problems.extend(chain(MODEL, "moments", "batch norm", &shape, calls, batch_moments)?);
    }
    for (shape, calls) in counted(&|path| !ends_block(path) && !path.contains("downsample")) {
        problems.extend(chain(MODEL, "normalise+relu", "batch norm", &shape, calls, normalise_relu)?);
    }
    for (shape, calls) in counted(&ends_block) {
        let layer = "normalise+residual+relu";
        problems.extend(chain(MODEL, layer, "batch norm", &shape, calls, normalise_residual_relu)?);
        problems.extend(chain(MODEL, "add+relu", "pointwise", &shape, calls, add_relu)?);
    }
    for id in graph.ids() {
        let node = graph.node(id);
        let (layer, family) = match node.op {
            Op::MaxPool2d(_) => ("max-pool", "pooling"),
            Op::LogSoftmax(_) => ("log-softmax", "softmax"),
            _ => continue,
        };
        problems.extend(single(MODEL, layer, family, (&node.op, graph.shape(node.inputs[0])), 1)?);
    }
    problems.extend([sgd(&work.specs)?, norm_of_gradients(&work.specs)?]);
    Ok(problems)
}

/// SGD with momentum and weight decay for all parameters, as at the end of a step.
fn sgd(specs: &[ParamSpec]) -> Result<Problem, GraphError> {
    let rule =
        Sgd { momentum: 0.875, weight_decay: 1.0 / 32768.0, decay_exclude: DecayExclude::BatchNorm, ..Sgd::default() };
    let mut b = Builder::new(Mode::Train);
    let lr = b.feed("lr", DType::F32, [])?;
    for spec in specs.iter().filter(|spec| spec.is_trainable()) {
        b.weight(&spec.name, spec.ty.shape.clone(), Init::Zeros)?;
        let grad = b.feed(&format!("grad.{}", spec.name), DType::F32, spec.ty.shape.clone())?;
        let own = b.specs().last().expect("the weight was declared").clone();
        rule.update(&mut b, &own, grad, lr)?;
    }
    Ok(optimizer("sgd-momentum", specs, b.finish().0))
}

fn norm_of_gradients(specs: &[ParamSpec]) -> Result<Problem, GraphError> {
    let mut graph = Graph::new();
    let trained = specs.iter().filter(|spec| spec.is_trainable());
    let grads =
        trained.map(|spec| graph.input(&spec.name, Role::Feed, spec.ty.clone())).collect::<Result<Vec<_>, _>>()?;
    let norm = global_norm(&mut graph, &grads)?;
    graph.output("norm", norm);
    Ok(optimizer("global-norm", specs, graph))
}

fn optimizer(layer: &str, specs: &[ParamSpec], graph: Graph) -> Problem {
    let trained: Vec<&ParamSpec> = specs.iter().filter(|spec| spec.is_trainable()).collect();
    let elements: usize = trained.iter().map(|spec| spec.ty.shape.elements()).sum();
    let shapes = &format!("[{elements}] in {} tensors", trained.len());
    let identity =
        Identity { model: "resnet50", layer, shapes, direction: "", family: "optimizer", bound: Bound::Memory };
    identity.problem(DType::F32, 1, graph)
}

/// Streaming kernels of a pre-training step of BERT-base.
pub(super) fn of_bert() -> Result<Vec<Problem>, GraphError> {
    const MODEL: &str = "bert-base";
    let bert = BERT_BASE;
    let mut problems = Vec::new();
    for (sequences, length) in BERT_BATCHES {
        let tokens = sequences * length;
        // Two in a layer and one after the embedding.
        let norms = 2 * bert.layers + 1;
        problems.extend(chain(MODEL, "layer-norm", "layer norm", &[tokens, bert.hidden], norms, layer_norm)?);
        problems.extend(chain(MODEL, "gelu", "pointwise", &[tokens, bert.inner], bert.layers, gelu)?);
        let scores = Shape::from([sequences, bert.heads, length, length]);
        problems.extend(single(MODEL, "softmax", "softmax", (&Softmax.into(), &scores), bert.layers)?);
        let words = Shape::from([sequences * bert.predictions, bert.vocabulary]);
        problems.extend(single(MODEL, "log-softmax", "softmax", (&LogSoftmax.into(), &words), 1)?);
    }
    Ok(problems)
}
