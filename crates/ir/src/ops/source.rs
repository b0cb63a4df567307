//! Values that come from no other value: inputs, constants, random numbers.

use super::{Cost, FusedOp, GradArgs, Gradient, OpError, OpRule, RecomputeCost, Scalar, Storage};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Role};
use crate::philox;
use crate::reference::Tensor;
use crate::shape::{Shape, TensorType};

/// An input of the step. Its tensor is kept by the executor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Input {
    /// Name by which executors and checkpoints address the tensor; unique in the graph.
    pub name: String,
    /// Whether the input is fed, trained or other state.
    pub role: Role,
    /// Element type and shape of the tensor, as it lies in memory.
    pub ty: TensorType,
    /// The axes of the tensor as it is known outside the step, in the order in which they lie in memory; none if that is their order.
    pub axes: Option<[usize; 4]>,
}

impl OpRule for Input {
    fn name(&self) -> &'static str {
        match self.role {
            Role::Feed => "feed",
            Role::Parameter => "parameter",
            Role::State => "state",
        }
    }

    fn attributes(&self) -> String {
        match self.axes {
            Some(axes) => format!("{}, axes={axes:?}", self.name),
            None => self.name.clone(),
        }
    }

    fn infer(&self, _inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        Ok(vec![self.ty.clone()])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(Vec::new()))
    }

    fn cost(&self, _inputs: &[&TensorType], _outputs: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn evaluate(&self, _inputs: &[&Tensor], _outputs: &[TensorType]) -> Vec<Tensor> {
        unreachable!("the interpreter holds the inputs")
    }

    fn storage(&self) -> Storage {
        Storage::Resident
    }

    fn is_source(&self) -> bool {
        true
    }
}

/// A constant: one number for every element, or all elements in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constant {
    /// Element type of the output.
    pub dtype: DType,
    /// Shape of the output.
    pub shape: Shape,
    /// One element that stands for all, or every element in row-major order.
    pub data: Vec<Scalar>,
}

impl Constant {
    /// A constant whose elements all equal `value`.
    pub fn splat(dtype: DType, shape: impl Into<Shape>, value: f64) -> Self {
        Constant { dtype, shape: shape.into(), data: vec![Scalar(value)] }
    }

    /// The number that every element equals, if there is one.
    pub fn uniform(&self) -> Option<f64> {
        let first = *self.data.first()?;
        self.data.iter().all(|&s| s == first).then_some(first.0)
    }

    /// The element at a row-major position.
    pub fn at(&self, index: usize) -> f64 {
        if self.data.len() == 1 { self.data[0].0 } else { self.data[index].0 }
    }
}

impl OpRule for Constant {
    fn name(&self) -> &'static str {
        "constant"
    }

    fn attributes(&self) -> String {
        match self.uniform() {
            Some(value) => format!("{value}"),
            None => {
                let shown: Vec<String> = self.data.iter().take(4).map(|s| s.0.to_string()).collect();
                format!("[{}{}]", shown.join(", "), if self.data.len() > 4 { ", ..." } else { "" })
            }
        }
    }

    fn infer(&self, _inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        if self.data.len() != 1 && self.data.len() != self.shape.elements() {
            return Err(OpError::Attribute(format!("{} numbers do not fill {}", self.data.len(), self.shape)));
        }
        Ok(vec![TensorType::new(self.dtype, self.shape.clone())])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(Vec::new()))
    }

    fn cost(&self, _inputs: &[&TensorType], _outputs: &[TensorType]) -> Cost {
        Cost::default()
    }

    fn evaluate(&self, _inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        vec![Tensor::from_fn(outputs[0].clone(), |i| self.at(i))]
    }

    fn storage(&self) -> Storage {
        Storage::Resident
    }

    fn is_source(&self) -> bool {
        true
    }
}

/// Distribution of [`Random`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// Uniform in `[0, 1)`.
    Uniform,
    /// Normal with mean 0 and variance 1 (Box-Muller on pairs of uniforms).
    Normal,
}

/// Random numbers from Philox4x32-10, a function of (seed, step, stream, element). Input: the step, `i32[]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Random {
    /// Distribution of each element.
    pub distribution: Distribution,
    /// Shape of the output, `f32`.
    pub shape: Shape,
    /// Seed of the random generator.
    pub seed: u64,
    /// Distinguishes the random nodes of one step.
    pub stream: u32,
}

impl OpRule for Random {
    fn name(&self) -> &'static str {
        match self.distribution {
            Distribution::Uniform => "random_uniform",
            Distribution::Normal => "random_normal",
        }
    }

    fn attributes(&self) -> String {
        format!("seed={}, stream={}", self.seed, self.stream)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [step] if step.dtype == DType::I32 && step.shape.rank() == 0 => {
                Ok(vec![TensorType::f32(self.shape.clone())])
            }
            _ => Err(OpError::operands("the step counter, i32[]")),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(10 * self.shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let step = inputs[0].data[0] as u32;
        let sample = match self.distribution {
            Distribution::Uniform => philox::uniform,
            Distribution::Normal => philox::normal,
        };
        vec![Tensor::from_fn(outputs[0].clone(), |i| f64::from(sample(self.seed, step, self.stream, i as u64)))]
    }

    fn is_source(&self) -> bool {
        true
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        match self.distribution {
            Distribution::Uniform => Some(FusedOp::Random { seed: self.seed, stream: self.stream }),
            Distribution::Normal => None,
        }
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Pass
    }
}
