//! The kernel workbench: every product and the main streaming kernels of the reference models, each measured alone, as
//! plans use it.
//!
//! A problem is a graph of one operation, or of the few that the compiler fuses, compiled and run as a step is: packing
//! counts.

mod attention;
mod floors;
mod pattern;
mod products;
mod run;
mod shapes;
mod streams;
mod summary;

#[cfg(test)]
mod tests;

pub use floors::{Floors, FloorsError};
pub use pattern::Pattern;
pub use run::{KernelResult, Measured, Options, measure, result};
pub use summary::{Share, summary};

use crate::workload::{Mode, workload};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::plan::node_cost;
use bessemer_ir::{Cost, DType, Graph, GraphError, Op, Role, TensorType};
use bessemer_models::ModelError;
use bessemer_train::recipe::Compute;
use std::collections::BTreeSet;

/// Which limit of the machine a kernel is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Multiply-adds a second: convolutions, matrix products and attention.
    Arithmetic,
    /// Bytes a second from memory: what passes over its operands, depthwise convolutions included.
    Memory,
}

/// One kernel, or the few of a fused chain, with shapes and element type.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Name of the model that the kernel is taken from.
    pub model: &'static str,
    /// `MODEL/LAYER SHAPES DIRECTION`; unique together with the element type.
    pub name: String,
    /// What is added up in the summary, e.g. `convolution forward`.
    pub family: String,
    /// Of the operands; vectors and statistics of `bf16` chains are `f32`.
    pub dtype: DType,
    /// Which limit of the device bounds its speed.
    pub bound: Bound,
    /// How often a step of the model calls it.
    pub calls: usize,
    /// The graph that is compiled and run.
    pub graph: Graph,
}

impl Problem {
    /// A problem of one operation on inputs of these types, the `f32` ones being of element type `dtype` instead.
    fn single(
        identity: Identity<'_>,
        op: &Op,
        inputs: &[TensorType],
        dtype: DType,
        calls: usize,
    ) -> Result<Problem, GraphError> {
        let mut graph = Graph::new();
        let mut values = Vec::with_capacity(inputs.len());
        for (index, ty) in inputs.iter().enumerate() {
            let dtype = if ty.dtype == DType::F32 { dtype } else { ty.dtype };
            let ty = TensorType::new(dtype, ty.shape.clone());
            values.push(graph.input(&format!("x{index}"), Role::Feed, ty)?);
        }
        let y = graph.at_path(identity.layer, |g| g.push1(op.clone(), &values))?;
        graph.output("y", y);
        Ok(identity.problem(dtype, calls, graph))
    }

    /// The precision of its products.
    pub(super) fn compute(&self) -> Compute {
        match self.dtype {
            DType::Bf16 => Compute::Bf16,
            DType::F16 => Compute::Fp16,
            _ => Compute::Fp32,
        }
    }

    /// Name of the precision as in `--precision`.
    pub fn precision(&self) -> &'static str {
        self.compute().name()
    }

    /// Name and precision: what patterns are compared with.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.name, self.precision())
    }

    /// Arithmetic of all operations; bytes as by the cost rule of one ideal kernel: inputs read once, results written once.
    pub fn cost(&self) -> Cost {
        let graph = &self.graph;
        let read: usize = graph.inputs().map(|(_, input)| input.ty.bytes()).sum();
        let written: usize = graph.roots().map(|value| graph.ty(value).bytes()).sum();
        let flops = graph.ids().map(|id| node_cost(graph, id).flops).sum();
        Cost { flops, bytes: (read + written) as u64 }
    }
}

/// What distinguishes one problem from another, except for its element type.
#[derive(Clone, Copy)]
struct Identity<'a> {
    model: &'static str,
    /// Place in the model, e.g. `layer2.0.conv2`.
    layer: &'a str,
    /// e.g. `[16,56,56,64]`
    shapes: &'a str,
    /// `forward` or which gradient; empty where there is but one.
    direction: &'a str,
    family: &'a str,
    bound: Bound,
}

impl Identity<'_> {
    fn problem(self, dtype: DType, calls: usize, graph: Graph) -> Problem {
        let Identity { model, layer, shapes, direction, family, bound } = self;
        Problem {
            model,
            name: format!("{model}/{layer} {shapes} {direction}").trim_end().to_string(),
            family: format!("{family} {direction}").trim_end().to_string(),
            dtype,
            bound,
            calls,
            graph,
        }
    }
}

/// Element types that are measured.
const PRECISIONS: [DType; 2] = [DType::F32, DType::Bf16];

/// Edge of the square product for which goals are stated.
const SQUARE: usize = 2048;

/// All problems.
///
/// # Errors
/// Only if a model of the zoo cannot be built.
pub fn problems() -> Result<Vec<Problem>, ModelError> {
    let large = workload("resnet50", Mode::Train, 16, DType::F32)?;
    let single = workload("resnet50", Mode::Train, 1, DType::F32)?;
    let mut problems = square()?;
    problems.extend(products::of_step("resnet50", &large.graph)?);
    problems.extend(products::of_step("resnet50", &single.graph)?);
    problems.extend(products::of_step("efficientnet-b0", &shapes::efficientnet_b0(4)?)?);
    for (sequences, length) in shapes::BERT_BATCHES {
        problems.extend(products::of_step("bert-base", &shapes::bert_base(sequences, length)?)?);
    }
    problems.extend(attention::problems()?);
    problems.extend(streams::of_resnet(&large)?);
    problems.extend(streams::of_bert()?);
    Ok(problems)
}

fn square() -> Result<Vec<Problem>, GraphError> {
    let operand = TensorType::f32([SQUARE, SQUARE]);
    let inputs = [operand.clone(), operand];
    let op = Op::from(Matmul { trans_a: false, trans_b: false });
    let identity = Identity {
        model: "goal",
        layer: "square",
        shapes: &format!("[{SQUARE},{SQUARE}]x[{SQUARE},{SQUARE}]"),
        direction: "forward",
        family: "matmul",
        bound: Bound::Arithmetic,
    };
    PRECISIONS.map(|dtype| Problem::single(identity, &op, &inputs, dtype, 1)).into_iter().collect()
}

/// The words of which names are made, shapes aside: models, layers, families, precisions.
pub fn metric_schema(problems: &[Problem]) -> BTreeSet<String> {
    let mut metric_schema = BTreeSet::new();
    for problem in problems {
        let layer = problem.name.split(['/', ' ']).nth(1).unwrap_or_default();
        metric_schema.extend([problem.model, layer, &problem.family, problem.precision()].map(str::to_string));
    }
    metric_schema
}

/// A shape as `[16,56,56,64]`.
fn brackets(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    format!("[{}]", dims.join(","))
}
