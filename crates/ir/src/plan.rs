//! The result of compiling: kernel calls in order, with the location of every operand and their cost.

use crate::graph::{Graph, NodeId, Role, Value};
use crate::ops::Cost;
use crate::ops::conv::indices;
use crate::passes::invariant::Invariant;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

mod kernels;
mod text;
pub use kernels::{KernelNode, Kernels, LoweredKernel, Refusal, UnsupportedOps};
pub use text::{print_graph, print_memory, print_plan};

/// What the planner must know of the device that will run the plan.
pub trait Target {
    /// Name of the target, e.g. `cpu`.
    fn name(&self) -> &str;

    /// What passes may do to a graph that this target runs.
    fn rules(&self) -> &Rules;

    /// Chooses the kernel that runs a node; `None` on a target without kernels.
    ///
    /// # Errors
    /// Why there is none for this operation, or for these operands.
    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal>;
}

/// Memory of a kernel beside its operands, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Used while the kernel runs.
    pub scratch: usize,
    /// Holds one of the inputs, an invariant one, in a form that the kernel makes once before the first step.
    pub packed: Option<Packed>,
    /// Whether it may still read inputs when it writes outputs elsewhere, so that none of these may lie where an input is.
    pub apart: bool,
}

/// An input that a kernel prepacks, and the size of the packed form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Position of the input among the node's operands.
    pub input: usize,
    /// Size of the packed form in bytes.
    pub bytes: usize,
}

/// The null executor's target: plans and costs without any device.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullTarget;

impl Target for NullTarget {
    fn name(&self) -> &str {
        "null"
    }

    fn rules(&self) -> &Rules {
        &Rules::DEFAULT
    }

    fn lower(
        &self,
        _graph: &Graph,
        _node: NodeId,
        _invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        Ok(None)
    }
}

/// One kernel call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCall {
    /// The node of [`Plan::graph`] that the call computes.
    pub node: NodeId,
    /// Offset and size in bytes of the kernel's scratch memory in the arena.
    pub scratch: (usize, usize),
    /// Offset and size in bytes of the memory for a packed input.
    pub packed: (usize, usize),
    /// Whether the call belongs to the accumulation phase, which runs for every micro-batch.
    pub per_micro_batch: bool,
}

/// Work that is done once, before the first step and again when state was written from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceCall {
    /// A kernel call whose results every step reads.
    Run(KernelCall),
    /// The kernel of the call of this number prepacks its invariant input.
    Prepack(usize),
}

/// Where a value lies while a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// At this byte offset of the plan's arena.
    Arena(usize),
    /// In the state tensor of this number of [`Plan::state`].
    State(usize),
}

/// A state tensor that a plan reads or replaces: a parameter, optimizer state, an average or a running statistic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// Name of the input in the graph, as in checkpoints.
    pub name: String,
    /// Element type and shape of the tensor, as it lies in memory.
    pub ty: TensorType,
    /// The axes of the tensor as it is read and written from outside, in the order in which they lie in memory; none if that is their
    /// order.
    pub axes: Option<[usize; 4]>,
}

impl StateTensor {
    /// A tensor that is known outside by this type, as it lies by the rules of a target.
    pub fn new(name: &str, ty: &TensorType, rules: &Rules) -> StateTensor {
        let axes = rules.axes_of_state(ty);
        let ty = axes.map_or_else(|| ty.clone(), |axes| TensorType::new(ty.dtype, axes.map(|axis| ty.shape[axis])));
        StateTensor { name: name.to_owned(), ty, axes }
    }

    /// The content as it lies in memory, from that of the tensor as it is known outside, row-major; elements are of any size.
    pub fn to_memory<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let Some(axes) = self.axes else { return Cow::Borrowed(bytes) };
        let mut there = vec![0; bytes.len()];
        copy_elements(&self.ty.shape, axes, bytes, &mut there, |inside, outside| [outside, inside]);
        Cow::Owned(there)
    }

    /// What [`StateTensor::to_memory`] was given, from what it gave.
    pub fn from_memory(&self, bytes: &mut [u8]) {
        let Some(axes) = self.axes else { return };
        let there = bytes.to_vec();
        copy_elements(&self.ty.shape, axes, &there, bytes, |inside, outside| [inside, outside]);
    }
}

/// Copies elements between a tensor of a shape and the one whose axes it has in the order `axes`: `positions` has that in `from` and that in
/// `to`, of the element's positions in these two.
fn copy_elements(
    shape: &Shape,
    axes: [usize; 4],
    from: &[u8],
    to: &mut [u8],
    positions: impl Fn(usize, usize) -> [usize; 2],
) {
    let size = from.len() / shape.elements();
    if size == 4 {
        let (from, to) = (from.as_chunks::<4>().0, to.as_chunks_mut::<4>().0);
        for_each_pair(shape, axes, |inside, outside| {
            let [own, other] = positions(inside, outside);
            to[other] = from[own];
        });
    } else {
        let of = |element: usize| element * size..(element + 1) * size;
        for_each_pair(shape, axes, |inside, outside| {
            let [own, other] = positions(inside, outside);
            to[of(other)].copy_from_slice(&from[of(own)]);
        });
    }
}

/// Calls `f` with the position of each element in a tensor of a shape and in the one whose axes it has in the order `axes`: some of the first
/// axis beside each other, which are neighbours in the other tensor where that axis is its last one.
fn for_each_pair(shape: &Shape, axes: [usize; 4], mut f: impl FnMut(usize, usize)) {
    const BESIDE: usize = 16;
    let mut sizes = [0; 4];
    axes.iter().zip(shape.dims()).for_each(|(&axis, &size)| sizes[axis] = size);
    let (inside, outside) = (shape.strides(), Shape::from(sizes).strides());
    let outside = axes.map(|axis| outside[axis]);
    for first in (0..shape[0]).step_by(BESIDE) {
        for [i, j] in indices([shape[1], shape[2]]) {
            let from = |strides: &[usize]| first * strides[0] + i * strides[1] + j * strides[2];
            let (own, other) = (from(&inside), from(&outside));
            for column in 0..shape[3] {
                for beside in 0..BESIDE.min(shape[0] - first) {
                    f(own + beside * inside[0] + column, other + beside * outside[0] + column * outside[3]);
                }
            }
        }
    }
}

/// A copy at the end of the step: of results that lie in the state, and of replacements of state that could not be written in
/// place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCopy {
    /// Where the bytes are read.
    pub from: Location,
    /// Where the bytes are written.
    pub to: Location,
    /// Number of bytes that are copied.
    pub bytes: usize,
    /// Whether it is done after every micro-batch.
    pub per_micro_batch: bool,
}

/// A compiled step. The calls and copies of the accumulation phase, in their order, are what runs for a micro-batch that is not
/// the last of its step.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The graph after all passes; calls and locations refer to its nodes.
    pub graph: Graph,
    /// Which values are computed once and not in every step.
    pub invariant: Invariant,
    /// What runs each call.
    pub kernels: Kernels,
    /// Whether products of `f32` operands may round these to TF32.
    pub tf32: bool,
    /// Work before the first step, in order.
    pub once_calls: Vec<OnceCall>,
    /// Kernel calls of a step, in order.
    pub calls: Vec<KernelCall>,
    /// Copies at the end of a step, in order.
    pub copies: Vec<StateCopy>,
    /// The state that the step reads or replaces, in the order of the graph's inputs. It lies outside the arena, in a
    /// [`StateStore`](crate::run::StateStore) that several plans may share.
    pub state: Vec<StateTensor>,
    /// Location of each value; views share that of what they view.
    pub(crate) locations: BTreeMap<Value, Location>,
    /// Byte offset in the arena of the copies of results that lie in the state, by name; of state that the step replaces,
    /// as it was before.
    pub(crate) kept_results: BTreeMap<String, usize>,
    /// Alignment of every tensor, in bytes.
    pub alignment: usize,
    /// Bytes at the start of the arena that live from step to step: feeds, constants and what was packed of them and of
    /// state.
    pub persistent_bytes: usize,
    /// All bytes of the arena.
    pub arena_bytes: usize,
    /// What lives where the transient part is fullest: name and bytes, largest first.
    pub peak: Vec<(String, usize)>,
}

impl Plan {
    /// Location of a value.
    ///
    /// # Panics
    /// If the value belongs to another graph.
    pub fn location(&self, value: Value) -> Location {
        self.locations[&value]
    }

    /// Location of a result of the step.
    ///
    /// # Panics
    /// If the graph has no such output.
    pub fn result_location(&self, name: &str) -> Location {
        let kept = self.kept_results.get(name).map(|&offset| Location::Arena(offset));
        kept.unwrap_or_else(|| self.location(self.graph.find_output(name).expect("an output of the graph")))
    }

    /// Bytes of the state that the step reads or replaces, laid out with the plan's alignment.
    pub fn state_bytes(&self) -> usize {
        self.state.iter().map(|tensor| tensor.ty.bytes().next_multiple_of(self.alignment)).sum()
    }

    /// Bytes of arena and state together: all memory that the plan needs where it shares its state with no other.
    pub fn memory_bytes(&self) -> usize {
        self.arena_bytes + self.state_bytes()
    }

    /// Whether a step may take several micro-batches.
    pub fn accumulates(&self) -> bool {
        self.calls.iter().any(|call| call.per_micro_batch)
    }

    /// Arithmetic and bytes of both phases, each run once: all of a step that takes one micro-batch. One of `n` costs
    /// `n - 1` times [`Plan::body_cost`] more.
    pub fn cost(&self) -> Cost {
        self.calls.iter().map(|call| node_cost(&self.graph, call.node)).sum()
    }

    /// Arithmetic and bytes that each further micro-batch of a step adds.
    pub fn body_cost(&self) -> Cost {
        self.calls.iter().filter(|call| call.per_micro_batch).map(|call| node_cost(&self.graph, call.node)).sum()
    }

    /// Bytes of parameters, without optimizer state.
    pub fn parameter_bytes(&self) -> usize {
        let parameters = self.graph.inputs().filter(|(_, i)| i.role == Role::Parameter);
        parameters.map(|(_, i)| i.ty.bytes()).sum()
    }

    /// Kernel calls by name of their operation.
    pub fn kernel_counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.calls {
            *counts.entry(kernel_name(&self.graph, call.node)).or_insert(0) += 1;
        }
        counts
    }
}

/// Name of the kernel that runs a node: for fusions with a producer, the producer's.
pub fn kernel_name(graph: &Graph, node: NodeId) -> &'static str {
    graph.node(node).op.rule().kernel_name()
}

/// Arithmetic and bytes of one node.
pub fn node_cost(graph: &Graph, node: NodeId) -> Cost {
    graph.node(node).op.rule().cost(&graph.input_types(node), &graph.node(node).outputs)
}
