//! Calls that are launched as one: regions of one form that stand behind each other in a plan.

use super::{Lowered, Place, Step};
use crate::kgen::{Cut, Kernel, group};
use bessemer_ir::passes::alike::Form;
use bessemer_ir::plan::{KernelCall, Location, Plan};
use bessemer_ir::{DType, NodeId, Value};
use std::any::Any;
use std::ops::Range;

/// Calls of a plan that are launched together, by number.
pub(crate) struct Unit {
    pub calls: Range<usize>,
    /// Where there are several.
    pub group: Option<Group>,
}

/// One launch for several calls, each of one region.
pub(crate) struct Group {
    /// Takes the table of the regions.
    pub kernel: Kernel,
    pub cut: Cut,
    /// Operands of each region: its inputs, then its outputs.
    pub operands: Vec<Vec<Value>>,
}

/// The calls of a plan in order, with those together that are launched together.
pub(crate) fn units(plan: &Plan) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut first = 0;
    while first < plan.calls.len() {
        let calls = first..run_from(plan, first);
        first = calls.end;
        let group = (calls.len() > 1).then(|| group_of(plan, &plan.calls[calls.clone()]));
        units.push(Unit { calls, group });
    }
    units
}

/// The calls of a plan in order, each launched alone.
pub(crate) fn units_alone(plan: &Plan) -> Vec<Unit> {
    (0..plan.calls.len()).map(|call| Unit { calls: call..call + 1, group: None }).collect()
}

/// Whether a call replaces state.
pub(crate) fn replaces_state(plan: &Plan, call: &KernelCall) -> bool {
    outputs(plan, call.node).any(|value| matches!(plan.location(value), Location::State(_)))
}

fn outputs(plan: &Plan, node: NodeId) -> impl Iterator<Item = Value> {
    (0..plan.graph.node(node).outputs.len() as u32).map(move |output| Value { node, output })
}

/// The call behind the last one that is launched together with the call `first`.
fn run_from(plan: &Plan, first: usize) -> usize {
    let call = |number: usize| &plan.calls[number];
    let form = |number: usize| is_region(plan, call(number).node).then(|| Form::of(&plan.graph, call(number).node))?;
    let Some(own) = form(first) else { return first + 1 };
    let kind = |number: usize| (call(number).per_micro_batch, replaces_state(plan, call(number)));
    let mut touched = Touched::default();
    let mut end = first;
    while end < plan.calls.len()
        && kind(end) == kind(first)
        && form(end).as_ref() == Some(&own)
        && touched.add(plan, call(end).node)
    {
        end += 1;
    }
    end
}

/// Whether a node is one launch, of a region that takes its inputs and outputs in order.
fn is_region(plan: &Plan, node: NodeId) -> bool {
    let kernel = plan.kernels.of(node).and_then(|kernel| (&**kernel as &dyn Any).downcast_ref::<Lowered>());
    let Some([Step::Launch { operands, .. }]) = kernel.map(|lowered| &lowered.steps[..]) else { return false };
    let inputs = (0..plan.graph.node(node).inputs.len()).map(Place::Input);
    let outputs = (0..plan.graph.node(node).outputs.len()).map(Place::Output);
    operands.iter().copied().eq(inputs.chain(outputs))
}

/// Memory that regions of a group touch.
#[derive(Default)]
struct Touched {
    read: Vec<Memory>,
    written: Vec<Memory>,
}

/// Bytes of the arena, or of a tensor of the state, whose number it is then.
#[derive(Clone)]
struct Memory {
    state: Option<usize>,
    bytes: Range<usize>,
}

impl Memory {
    fn of(plan: &Plan, value: Value) -> Memory {
        let bytes = plan.graph.ty(value).bytes();
        match plan.location(value) {
            Location::Arena(offset) => Memory { state: None, bytes: offset..offset + bytes },
            Location::State(number) => Memory { state: Some(number), bytes: 0..bytes },
        }
    }

    fn overlaps(&self, other: &Memory) -> bool {
        self.state == other.state && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

impl Touched {
    /// Adds what a region touches, unless it and those before depend on each other's order. Whether it was added.
    fn add(&mut self, plan: &Plan, node: NodeId) -> bool {
        let read: Vec<Memory> = plan.graph.node(node).inputs.iter().map(|&value| Memory::of(plan, value)).collect();
        let written: Vec<Memory> = outputs(plan, node).map(|value| Memory::of(plan, value)).collect();
        let meet =
            |one: &[Memory], other: &[Memory]| one.iter().any(|one| other.iter().any(|other| one.overlaps(other)));
        if meet(&written, &self.read) || meet(&written, &self.written) || meet(&read, &self.written) {
            return false;
        }
        self.read.extend(read);
        self.written.extend(written);
        true
    }
}

fn group_of(plan: &Plan, calls: &[KernelCall]) -> Group {
    let graph = &plan.graph;
    let fusion = |call: &KernelCall| graph.node(call.node).op.as_fusion().expect("a region");
    let sizes: Vec<usize> = calls.iter().map(|call| fusion(call).rows * fusion(call).cols).collect();
    let types: Vec<DType> = graph.input_types(calls[0].node).iter().map(|ty| ty.dtype).collect();
    let (kernel, cut) = group(fusion(&calls[0]), &types, &sizes).expect("each of the regions has a kernel");
    let operands =
        |call: &KernelCall| graph.node(call.node).inputs.iter().copied().chain(outputs(plan, call.node)).collect();
    Group { kernel, cut, operands: calls.iter().map(operands).collect() }
}
