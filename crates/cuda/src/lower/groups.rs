//! Calls that are launched as one: fusions of one form, and fusions of one element, that stand behind each other in a plan.

use super::Lowered;
use crate::kgen::{Group, Kernel, Scalar, group, program};
use bessemer_ir::passes::alike::{Form, Runs, is_scalar};
use bessemer_ir::plan::{KernelCall, Location, Plan};
use bessemer_ir::{DType, NodeId, Value};
use std::any::Any;
use std::ops::Range;

/// Calls of a plan that are launched together, by number.
pub(crate) struct Unit {
    pub calls: Range<usize>,
    /// Where there are several.
    pub together: Option<Together>,
}

/// The launches for several calls, each of one fusion.
pub(crate) struct Together {
    pub form: Joint,
    /// Operands of each fusion: its inputs, then its outputs.
    pub operands: Vec<Vec<Value>>,
}

/// How fusions are launched together.
pub(crate) enum Joint {
    /// Beside each other, by a table of them.
    Group(Group),
    /// One after the other, by one thread that takes all their operands.
    Program(Kernel),
}

impl Together {
    /// Kernels of the launches, in order.
    pub(crate) fn kernels(&self) -> &[Kernel] {
        match &self.form {
            Joint::Group(group) => &group.kernels,
            Joint::Program(kernel) => std::slice::from_ref(kernel),
        }
    }

    /// Bytes of memory that the launches take beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        match &self.form {
            Joint::Group(group) => group.bytes(),
            Joint::Program(_) => 0,
        }
    }
}

/// Fusions of one element and one form that are better launched beside each other than computed one after the other.
const MANY_SCALARS: usize = 8;
/// The most operands of a program: a kernel takes 4 KB.
const MOST_OPERANDS: usize = 480;

/// The calls of a plan in order, with those together that are launched together.
pub(crate) fn units(plan: &Plan) -> Vec<Unit> {
    let runs = Runs::of(&plan.graph, &plan.invariant);
    let mut units = Vec::new();
    let mut first = 0;
    while first < plan.calls.len() {
        let (end, is_program) = unit_from(plan, &runs, first);
        let calls = first..end;
        first = end;
        let joined = &plan.calls[calls.clone()];
        let together = (calls.len() > 1).then(|| together(plan, joined, is_program));
        units.push(Unit { calls, together });
    }
    units
}

/// The calls of a plan in order, each launched alone.
pub(crate) fn units_alone(plan: &Plan) -> Vec<Unit> {
    (0..plan.calls.len()).map(|call| Unit { calls: call..call + 1, together: None }).collect()
}

/// Whether a call replaces state.
pub(crate) fn replaces_state(plan: &Plan, call: &KernelCall) -> bool {
    outputs(plan, call.node).any(|value| matches!(plan.location(value), Location::State(_)))
}

/// What a node gives.
pub(crate) fn outputs(plan: &Plan, node: NodeId) -> impl Iterator<Item = Value> {
    (0..plan.graph.node(node).outputs.len() as u32).map(move |output| Value { node, output })
}

fn operands(plan: &Plan, node: NodeId) -> Vec<Value> {
    plan.graph.node(node).inputs.iter().copied().chain(outputs(plan, node)).collect()
}

/// The call behind the last one that is launched together with the call `first`, and whether they are a program.
fn unit_from(plan: &Plan, runs: &Runs, first: usize) -> (usize, bool) {
    let end = alike_from(plan, runs, first);
    if !is_scalar(&plan.graph, plan.calls[first].node) || end - first >= MANY_SCALARS {
        return (end, false);
    }
    let mut end = first;
    let mut operands_of_all = 0;
    while end < plan.calls.len() && goes_with(plan, runs, first, end) {
        // The halt is one more.
        operands_of_all += operands(plan, plan.calls[end].node).len();
        if operands_of_all >= MOST_OPERANDS && end > first {
            break;
        }
        if end > first && alike_from(plan, runs, end) - end >= MANY_SCALARS {
            break;
        }
        end += 1;
    }
    (end.max(first + 1), true)
}

/// Whether two calls may be launched as one as far as the order of a step and the state are concerned.
fn goes_with(plan: &Plan, runs: &Runs, first: usize, other: usize) -> bool {
    let kind = |number: usize| {
        let call = &plan.calls[number];
        (call.per_micro_batch, replaces_state(plan, call), is_lowered(plan, call.node))
    };
    runs.are_of_one(plan.calls[first].node, plan.calls[other].node) && kind(first) == kind(other) && kind(first).2
}

/// The call behind the last one that computes beside the call `first` what it does for other tensors.
fn alike_from(plan: &Plan, runs: &Runs, first: usize) -> usize {
    let form = |number: usize| Form::of(&plan.graph, plan.calls[number].node);
    let Some(own) = form(first) else { return first + 1 };
    let mut touched = Touched::default();
    let mut end = first;
    while end < plan.calls.len()
        && goes_with(plan, runs, first, end)
        && form(end).as_ref() == Some(&own)
        && touched.add(plan, plan.calls[end].node)
    {
        end += 1;
    }
    end.max(first + 1)
}

/// Whether this target lowered the node.
fn is_lowered(plan: &Plan, node: NodeId) -> bool {
    plan.kernels.of(node).is_some_and(|kernel| (&**kernel as &dyn Any).is::<Lowered>())
}

/// Memory that fusions of a group touch.
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
    /// Adds what a fusion touches, unless it and those before depend on each other's order. Whether it was added.
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

fn together(plan: &Plan, calls: &[KernelCall], is_program: bool) -> Together {
    let graph = &plan.graph;
    let fusion = |call: &KernelCall| graph.node(call.node).op.as_fusion().expect("a fusion");
    let types = |call: &KernelCall| graph.input_types(call.node).iter().map(|ty| ty.dtype).collect::<Vec<DType>>();
    let form = if is_program {
        let scalars: Vec<Scalar<'_>> =
            calls.iter().map(|call| Scalar { fusion: fusion(call), inputs: types(call) }).collect();
        Joint::Program(program(&scalars).expect("each of the fusions has a kernel"))
    } else {
        let sizes: Vec<usize> = calls.iter().map(|call| fusion(call).rows * fusion(call).cols).collect();
        let (first, types) = (fusion(&calls[0]), types(&calls[0]));
        Joint::Group(group(first, &types, &sizes).expect("each of the fusions has a kernel"))
    };
    Together { form, operands: calls.iter().map(|call| operands(plan, call.node)).collect() }
}
