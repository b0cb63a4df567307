//! Problems of a case: a graph, drawn by seed, with the content of its inputs.

use bessemer_ir::autodiff::gradients;
use bessemer_ir::ops::OpRule;
use bessemer_ir::ops::layout::Transpose;
use bessemer_ir::reference::{Interpreter, Tensor, accumulate_ranks, run_ranks};
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, GraphError, Role, TensorType, Value, philox};
use half::{bf16, f16};
use std::collections::BTreeMap;

/// Contents of inputs or outputs by name: row-major elements, each as it lies in memory.
pub type Tensors = BTreeMap<String, Vec<u8>>;

/// Elements of outputs by name, row-major.
pub(crate) type Outputs = BTreeMap<String, Vec<f64>>;

/// A source of small random numbers.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    seed: u64,
    next: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        Draw { seed, next: 0 }
    }

    /// A whole number in `low..=high`.
    pub fn int(&mut self, low: usize, high: usize) -> usize {
        self.next += 1;
        low + (philox::uniform(self.seed, 0, 77, self.next) * (high - low + 1) as f32) as usize
    }

    /// One of two.
    pub fn flip(&mut self) -> bool {
        self.int(0, 1) == 1
    }
}

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Normal random numbers.
    Normal,
    /// Whole numbers, each of `first..first + count` about as often.
    Integers {
        /// The least one.
        first: i32,
        /// How many there are.
        count: u32,
    },
}

impl Input {
    /// Elements of an input of this type, as its type holds them.
    fn draw(self, ty: &TensorType, seed: u64, stream: u32) -> Vec<f64> {
        let element = |i: usize| match self {
            Input::Normal => f64::from(philox::normal(seed, 1, stream, i as u64)),
            Input::Integers { first, count } => {
                let uniform = f64::from(philox::uniform(seed, 1, stream, i as u64));
                f64::from(first) + (uniform * f64::from(count)).floor()
            }
        };
        let elements: Vec<f64> = (0..ty.shape.elements()).map(element).collect();
        values_of(ty.dtype, &bytes_of(ty.dtype, &elements))
    }
}

/// How often a graph runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Steps, with the same feeds.
    pub steps: usize,
    /// Micro-batches of each step, with the same feeds.
    pub micro_batches: usize,
    /// Ranks, each with the same inputs.
    pub ranks: usize,
}

impl Steps {
    /// One step of one micro-batch on one rank.
    pub const ONE: Steps = Steps { steps: 1, micro_batches: 1, ranks: 1 };
}

/// A problem under construction.
#[derive(Debug)]
pub struct Problem {
    /// What the executor runs.
    pub graph: Graph,
    /// Inputs whose gradients are compared.
    differentiable: Vec<Value>,
    inputs: BTreeMap<String, Input>,
    /// Ranks whose sums the graph has.
    pub(crate) ranks: usize,
}

impl Default for Problem {
    /// An empty graph, of one rank.
    fn default() -> Self {
        Problem { graph: Graph::new(), differentiable: Vec::new(), inputs: BTreeMap::new(), ranks: 1 }
    }
}

impl Problem {
    /// A trained input of normal random numbers, `f32`, whose gradient is compared.
    ///
    /// # Errors
    /// Never for the names that it chooses.
    pub fn input(&mut self, shape: &[usize]) -> Result<Value, GraphError> {
        let name = format!("x{}", self.differentiable.len());
        let value = self.graph.input(&name, Role::Parameter, TensorType::f32(shape))?;
        self.inputs.insert(name, Input::Normal);
        self.differentiable.push(value);
        Ok(value)
    }

    /// An input without a gradient.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn feed(&mut self, name: &str, dtype: DType, shape: &[usize], input: Input) -> Result<Value, GraphError> {
        self.named(name, Role::Feed, TensorType::new(dtype, shape), input)
    }

    pub(crate) fn named(&mut self, name: &str, role: Role, ty: TensorType, input: Input) -> Result<Value, GraphError> {
        let value = self.graph.input(name, role, ty)?;
        self.inputs.insert(name.to_string(), input);
        Ok(value)
    }

    /// With the elements of its inputs.
    pub(crate) fn drawn(self, seed: u64) -> Drawn {
        let Problem { graph, inputs, ranks, .. } = self;
        let drawn = graph
            .inputs()
            .enumerate()
            .map(|(stream, (_, input))| (input.name.clone(), inputs[&input.name].draw(&input.ty, seed, stream as u32)));
        let inputs = drawn.collect();
        Drawn { graph, inputs, ranks }
    }

    /// Trained inputs, in the order of their numbers.
    pub(crate) fn parameters(&self) -> &[Value] {
        &self.differentiable
    }

    /// Row numbers of a table of at least eight rows, `i32`.
    ///
    /// # Errors
    /// When there is an input of that name.
    pub fn indices(&mut self, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
        self.feed(name, DType::I32, shape, Input::Integers { first: 0, count: 8 })
    }
}

/// Adds nodes to a problem and returns its result.
pub(crate) type Build = fn(&mut Problem, &mut Draw) -> Result<Value, GraphError>;

/// A graph with outputs, `y` and the gradient of each trained input, and the elements of its inputs.
pub(crate) struct Drawn {
    pub graph: Graph,
    pub inputs: BTreeMap<String, Vec<f64>>,
    pub ranks: usize,
}

impl Drawn {
    /// # Errors
    /// When the case is not legal.
    pub(crate) fn new(build: Build, seed: u64) -> Result<Drawn, GraphError> {
        let mut p = Problem::default();
        let y = build(&mut p, &mut Draw::new(seed))?;
        p.graph.output("y", y);
        if !p.differentiable.is_empty() {
            add_gradients(&mut p, y)?;
        }
        Ok(p.drawn(seed))
    }

    /// The same graph on other elements.
    pub(crate) fn with_inputs(&self, inputs: BTreeMap<String, Vec<f64>>) -> Drawn {
        Drawn { graph: self.graph.clone(), inputs, ranks: self.ranks }
    }

    /// Inputs as they lie in memory.
    pub(crate) fn inputs(&self) -> Tensors {
        let bytes = |name: &String| {
            bytes_of(self.graph.dtype(self.graph.find_input(name).expect("its own")), &self.inputs[name])
        };
        self.inputs.keys().map(|name| (name.clone(), bytes(name))).collect()
    }

    /// What the reference makes of it in one step.
    pub(crate) fn expected(&self) -> Outputs {
        self.expected_of(&self.graph, &Rules::DEFAULT, Steps { ranks: self.ranks, ..Steps::ONE })
    }

    /// What the reference makes of it in the last of some steps, once passes have rewritten it to `graph` by these rules.
    pub(crate) fn expected_of(&self, graph: &Graph, rules: &Rules, steps: Steps) -> Outputs {
        let rank = || {
            let mut interpreter = Interpreter::new(graph);
            for (_, input) in graph.inputs() {
                let elements = &self.inputs[&input.name];
                let own = self.graph.ty(self.graph.find_input(&input.name).expect("passes add no inputs"));
                match rules.axes_of_state(own).filter(|_| input.role.is_persistent()) {
                    Some(axes) => interpreter.set(&input.name, &transposed(elements, own, axes)),
                    None => interpreter.set(&input.name, elements),
                }
            }
            interpreter
        };
        let mut ranks: Vec<Interpreter<'_>> = (0..steps.ranks).map(|_| rank()).collect();
        for _ in 0..steps.steps {
            (1..steps.micro_batches).for_each(|_| accumulate_ranks(&mut ranks));
            run_ranks(&mut ranks);
        }
        let interpreter = &ranks[0];
        graph.outputs().iter().map(|(name, _)| (name.clone(), interpreter.output(name).data.clone())).collect()
    }
}

/// The elements of a tensor whose axes get another order.
fn transposed(elements: &[f64], ty: &TensorType, axes: [usize; 4]) -> Vec<f64> {
    let op = Transpose { perm: axes.to_vec() };
    let outputs = op.infer(&[ty]).expect("state of a filter's shape has four axes");
    op.evaluate(&[&Tensor::new(ty.clone(), elements.to_vec())], &outputs).remove(0).data
}

/// Gradients of a weighted sum of `y`.
fn add_gradients(p: &mut Problem, y: Value) -> Result<(), GraphError> {
    let shape = p.graph.shape(y).clone();
    let weights = p.feed("weights", DType::F32, &shape, Input::Normal)?;
    let g = &mut p.graph;
    let product = g.mul(y, weights)?;
    let axes: Vec<usize> = (0..shape.rank()).collect();
    let loss = if axes.is_empty() { product } else { g.sum(product, &axes)? };
    for (index, grad) in gradients(g, loss, &p.differentiable)?.into_iter().enumerate() {
        g.output(&format!("gradient of x{index}"), grad);
    }
    Ok(())
}

/// Elements of a type as they lie in memory.
pub fn bytes_of(dtype: DType, elements: &[f64]) -> Vec<u8> {
    let bytes = |x: f64| match dtype {
        DType::F32 => (x as f32).to_ne_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(x).to_ne_bytes().to_vec(),
        DType::F16 => f16::from_f64(x).to_ne_bytes().to_vec(),
        DType::I32 => (x as i32).to_ne_bytes().to_vec(),
        DType::U8 => vec![x as u8],
        DType::Bool => vec![u8::from(x != 0.0)],
    };
    elements.iter().flat_map(|&x| bytes(x)).collect()
}

/// Elements of a type from memory.
///
/// # Panics
/// If the bytes are not whole elements.
pub fn values_of(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    assert!(bytes.len().is_multiple_of(dtype.size()), "{} bytes are no elements of {dtype}", bytes.len());
    let value = |element: &[u8]| match *element {
        [a, b, c, d] if dtype == DType::I32 => f64::from(i32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d] => f64::from(f32::from_ne_bytes([a, b, c, d])),
        [a, b] if dtype == DType::Bf16 => bf16::from_ne_bytes([a, b]).to_f64(),
        [a, b] => f16::from_ne_bytes([a, b]).to_f64(),
        _ => f64::from(element[0]),
    };
    bytes.chunks_exact(dtype.size()).map(value).collect()
}
