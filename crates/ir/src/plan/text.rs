//! Graphs and plans as text, the same for the same plan, so that two versions can be compared line by line.

use super::{KernelCall, Location, OnceCall, Plan, node_cost};
use crate::graph::{Graph, NodeId, Value};
use crate::ops::Op;
use std::fmt::{Display, Write};

/// A graph as text, one node a line.
pub fn print_graph(graph: &Graph) -> String {
    let mut text = String::new();
    for id in graph.ids() {
        let node = node_line(graph, id, &Numbered);
        match graph.path(id) {
            "" => line(&mut text, node),
            path => line(&mut text, format_args!("{node}  # {path}")),
        }
    }
    end_of_step(&mut text, graph, &Numbered);
    text
}

/// A plan as text: its inputs and constants, then one kernel call a line in the order in which they run, with operands,
/// types, how its kernel computes where the target has kernels, and the cost. Sizes and offsets in memory are in
/// [`print_memory`].
pub fn print_plan(plan: &Plan) -> String {
    let graph = &plan.graph;
    let mut text = String::new();
    if plan.tf32 {
        line(&mut text, format_args!("products of f32 operands in TF32"));
    }
    for id in graph.ids() {
        let node = graph.node(id);
        if let Some(input) = node.op.as_input() {
            line(&mut text, format_args!("{} : {}", node.op, input.ty));
        }
        if let Some(constant) = node.op.as_constant().filter(|constant| constant.uniform().is_none()) {
            let elements: Vec<String> = constant.data.iter().map(|element| element.0.to_string()).collect();
            line(&mut text, format_args!("%{} = constant [{}] : {}", id.0, elements.join(", "), node.outputs[0]));
        }
    }
    let call_line = |call: &KernelCall| {
        let cost = node_cost(graph, call.node);
        let kernel = plan.kernels.of(call.node).map(|kernel| kernel.name()).unwrap_or_default();
        let operation = node_line(graph, call.node, &Named);
        let notes = [graph.path(call.node).to_string(), kernel, format!("{} FLOP, {} bytes", cost.flops, cost.bytes)];
        let notes: Vec<String> = notes.into_iter().filter(|note| !note.is_empty()).collect();
        format!("{operation}  # {}", notes.join("; "))
    };
    for once in &plan.once_calls {
        match once {
            OnceCall::Run(call) => line(&mut text, format_args!("once {}", call_line(call))),
            OnceCall::Prepack(number) => {
                line(&mut text, format_args!("once prepack the weights of %{}", plan.calls[*number].node.0));
            }
        }
    }
    let accumulates = plan.accumulates();
    for call in &plan.calls {
        let phase = match (accumulates, call.per_micro_batch) {
            (false, _) => "",
            (true, true) => "accumulate ",
            (true, false) => "update ",
        };
        line(&mut text, format_args!("{phase}{}", call_line(call)));
    }
    end_of_step(&mut text, graph, &Named);
    let cost = plan.cost();
    line(&mut text, format_args!("{} calls, {} FLOP, {} bytes", plan.calls.len(), cost.flops, cost.bytes));
    text
}

/// The memory of a plan as text, sizes and offsets in bytes: each value with its offset, scratch memory and packed weights
/// of each call, copies at the end of the step, and the whole arena.
pub fn print_memory(plan: &Plan) -> String {
    let mut text = String::new();
    let at = |location: Location| match location {
        Location::Arena(offset) => offset.to_string(),
        Location::State(number) => format!("state {}", plan.state[number].name),
    };
    for (&value, &location) in &plan.locations {
        let (name, bytes) = (Named.of(&plan.graph, value), plan.graph.ty(value).bytes());
        line(&mut text, format_args!("{name} at {}, {bytes}", at(location)));
    }
    let once = plan.once_calls.iter().filter_map(|once| match once {
        OnceCall::Run(call) => Some(call),
        OnceCall::Prepack(_) => None,
    });
    for call in once.chain(&plan.calls) {
        for (what, (offset, bytes)) in [("scratch", call.scratch), ("packed weights", call.packed)] {
            if bytes > 0 {
                line(&mut text, format_args!("{what} of %{} at {offset}, {bytes}", call.node.0));
            }
        }
    }
    for (name, offset) in &plan.kept_results {
        line(&mut text, format_args!("result {name} at {offset}"));
    }
    for copy in &plan.copies {
        let when = if copy.per_micro_batch { " each micro-batch" } else { "" };
        line(&mut text, format_args!("copy{when} {} from {} to {}", copy.bytes, at(copy.from), at(copy.to)));
    }
    let Plan { arena_bytes, persistent_bytes, .. } = plan;
    line(
        &mut text,
        format_args!("state {}, arena {arena_bytes}, of which {persistent_bytes} persistent", plan.state_bytes()),
    );
    text
}

/// How operands are written.
trait Operands {
    fn of(&self, graph: &Graph, value: Value) -> String;
}

/// By the number of the node that computes them.
struct Numbered;

/// Inputs by their name, uniform constants by their value, everything else by number.
struct Named;

impl Operands for Numbered {
    fn of(&self, _graph: &Graph, value: Value) -> String {
        match value.output {
            0 => format!("%{}", value.node.0),
            output => format!("%{}.{output}", value.node.0),
        }
    }
}

impl Operands for Named {
    fn of(&self, graph: &Graph, value: Value) -> String {
        match &graph.node(value.node).op {
            Op::Input(input) => input.name.clone(),
            Op::Constant(constant) => match constant.uniform() {
                Some(element) => format!("{element}:{}", graph.ty(value)),
                None => Numbered.of(graph, value),
            },
            Op::Reshape(reshape) => {
                format!("{}:{}", self.of(graph, graph.node(value.node).inputs[0]), reshape.shape)
            }
            _ => Numbered.of(graph, value),
        }
    }
}

/// `%number = operation operands : types`
fn node_line(graph: &Graph, id: NodeId, operands: &dyn Operands) -> String {
    let node = graph.node(id);
    let types: Vec<String> = node.outputs.iter().map(|ty| ty.to_string()).collect();
    let mut text = format!("%{} = {}", id.0, node.op);
    for &input in &node.inputs {
        text += " ";
        text += &operands.of(graph, input);
    }
    text += " : ";
    text + &types.join(", ")
}

/// Results and replacements of state.
fn end_of_step(text: &mut String, graph: &Graph, operands: &dyn Operands) {
    for (name, value) in graph.outputs() {
        line(text, format_args!("output {name} = {}", operands.of(graph, *value)));
    }
    for &(state, new) in graph.updates() {
        let when = if graph.is_per_micro_batch(state) { " each micro-batch" } else { "" };
        line(text, format_args!("update{when} {} = {}", graph.node(state.node).op, operands.of(graph, new)));
    }
}

fn line(text: &mut String, content: impl Display) {
    writeln!(text, "{content}").expect("writing to a string");
}
