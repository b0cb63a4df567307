//! Gives every value a location, in the state or in one arena: views, in-place writes, parts of concatenations, lifetimes, offsets.

use crate::dtype::DType;
use crate::graph::{Graph, NodeId, Value};
use crate::ops::fusion::{Fusion, FusionOutput};
use crate::ops::{Op, Storage, source};
use crate::passes::alike::{Runs, is_scalar};
use crate::passes::invariant::Invariant;
use crate::plan::{KernelCall, Kernels, Location, Needs, OnceCall, Plan, StateCopy, StateTensor};
use crate::rules::Rules;
use crate::shape::TensorType;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A run of bytes that one or more values share.
struct Buffer {
    bytes: usize,
    /// Steps (node indices) at which it is first written and last read.
    first: usize,
    last: usize,
    lifetime: Lifetime,
    name: String,
    /// In the arena; of state without meaning.
    offset: usize,
    /// The buffer that contains it, and its offset in bytes there.
    inside: Option<(usize, usize)>,
}

/// How long the content of a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    /// Between its first and its last use in a step.
    Transient,
    /// From step to step, in the arena.
    Persistent,
    /// Longer than the plan: the state tensor of this number.
    State(usize),
}

impl Buffer {
    fn location(&self) -> Location {
        match self.lifetime {
            Lifetime::State(number) => Location::State(number),
            Lifetime::Transient | Lifetime::Persistent => Location::Arena(self.offset),
        }
    }

    /// Whether the arena has memory for it between its first and its last use alone, and for no buffer around it.
    fn takes_room(&self) -> bool {
        self.lifetime == Lifetime::Transient && self.inside.is_none()
    }
}

/// Plans the memory of a graph whose order is final.
pub(crate) fn plan_memory(graph: &Graph, rules: &Rules, invariant: Invariant, kernels: Kernels) -> Plan {
    let mut planner = Planner::new(graph, rules, invariant, &kernels);
    for id in graph.ids() {
        planner.place(id);
    }
    let extras = planner.add_needs();
    planner.keep_results();
    planner.widen_lifetimes();
    planner.assign_offsets();
    planner.into_plan(&extras, kernels)
}

/// Buffers of a kernel call beside its operands.
struct Extra {
    node: NodeId,
    scratch: Option<usize>,
    packed: Option<usize>,
}

struct Planner<'a> {
    graph: &'a Graph,
    rules: &'a Rules,
    state: Vec<StateTensor>,
    invariant: Invariant,
    /// What each node's kernel needs.
    needs: Vec<Needs>,
    /// Invariant values that steps read as they are.
    kept: HashSet<Value>,
    buffers: Vec<Buffer>,
    buffer_of: HashMap<Value, usize>,
    /// Last node that reads each value, counting readers of views; `usize::MAX` for results.
    last_use: HashMap<Value, usize>,
    /// State that each value replaces.
    replaces: HashMap<Value, Value>,
    /// Concatenations that run no kernel, as their inputs are written into the buffers of their outputs.
    joined: HashSet<NodeId>,
    /// Nodes that run for every micro-batch.
    in_accumulation: Vec<bool>,
    /// Nodes that may run at one time.
    runs: Runs,
    /// Outputs that lie in the state: name, value and the buffer that keeps its content.
    kept_results: Vec<(String, Value, usize)>,
}

fn is_view(op: &Op) -> bool {
    op.rule().storage() == Storage::View
}

fn runs_kernel(op: &Op) -> bool {
    op.rule().storage() == Storage::Computed
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, rules: &'a Rules, invariant: Invariant, kernels: &Kernels) -> Self {
        let needs_of = |id| kernels.of(id).map(|kernel| kernel.needs()).unwrap_or_default();
        let needs: Vec<Needs> = graph.ids().map(needs_of).collect();
        let mut last_use: HashMap<Value, usize> = HashMap::new();
        let mut kept = HashSet::new();
        let mut note = |value: Value, at: usize, keep: bool| {
            let mut value = value;
            loop {
                let last = last_use.entry(value).or_insert(at);
                *last = (*last).max(at);
                if keep && invariant.is_invariant(value.node) {
                    kept.insert(value);
                }
                if !is_view(&graph.node(value.node).op) {
                    break;
                }
                value = graph.node(value.node).inputs[0];
            }
        };
        for id in graph.ids() {
            for (index, &input) in graph.node(id).inputs.iter().enumerate() {
                if needs[id.index()].packed.is_some_and(|p| p.input == index) {
                    // It is packed as soon as it is there.
                    note(input, input.node.index(), false);
                } else {
                    note(input, id.index(), !invariant.is_invariant(id));
                }
            }
        }
        for root in graph.roots() {
            note(root, usize::MAX, true);
        }
        let runs = if rules.alike_regions_together { Runs::of(graph, &invariant) } else { Runs::none(graph) };
        let replaces = graph.updates().iter().map(|&(state, new)| (new, state)).collect();
        Planner {
            graph,
            rules,
            state: Vec::new(),
            invariant,
            needs,
            kept,
            buffers: Vec::new(),
            buffer_of: HashMap::new(),
            last_use,
            replaces,
            joined: HashSet::new(),
            in_accumulation: graph.accumulation_phase(),
            runs,
            kept_results: Vec::new(),
        }
    }

    fn new_buffer(&mut self, bytes: usize, first: usize, last: usize, lifetime: Lifetime, name: String) -> usize {
        self.buffers.push(Buffer { bytes, first, last, lifetime, name, offset: 0, inside: None });
        self.buffers.len() - 1
    }

    /// The lifetime of a node's output, for outputs that share no buffer.
    fn lifetime(&mut self, value: Value) -> Lifetime {
        match &self.graph.node(value.node).op {
            Op::Input(input) if input.role.is_persistent() => {
                let source::Input { name, ty, axes, .. } = input.clone();
                self.state.push(StateTensor { name, ty, axes });
                Lifetime::State(self.state.len() - 1)
            }
            Op::Input(_) | Op::Constant(_) => Lifetime::Persistent,
            _ if self.kept.contains(&value) => Lifetime::Persistent,
            _ => Lifetime::Transient,
        }
    }

    /// Gives the outputs of a node their buffers.
    fn place(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        for output in 0..node.outputs.len() as u32 {
            let value = Value { node: id, output };
            let buffer = if is_view(&node.op) {
                self.buffer_of[&node.inputs[0]]
            } else if let Some(shared) = self.state_in_place(value).or_else(|| self.input_in_place(value)) {
                shared
            } else {
                let (lifetime, ty) = (self.lifetime(value), &node.outputs[output as usize]);
                let name = format!("{} {} {ty}", self.graph.path(id), node.op.rule().name());
                self.new_buffer(ty.bytes(), id.index(), id.index(), lifetime, name)
            };
            let last = self.last_use.get(&value).copied().unwrap_or(id.index());
            self.buffers[buffer].last = self.buffers[buffer].last.max(last);
            self.buffer_of.insert(value, buffer);
        }
        self.join(id);
    }

    /// Assigns the inputs of a concatenation to consecutive parts of its output's buffer, if no two of them share a buffer. What is computed
    /// once keeps its kernel call, behind which its result is packed.
    fn join(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&input| self.graph.ty(input)).collect();
        if !node.op.rule().joins_inputs(&types) || self.invariant.is_invariant(id) {
            return;
        }
        let value = Value { node: id, output: 0 };
        let whole = self.buffer_of[&value];
        let is_dense = |buffer: usize, ty: &TensorType| {
            let Buffer { bytes, lifetime, .. } = self.buffers[buffer];
            lifetime == Lifetime::Transient && bytes == ty.bytes()
        };
        if !is_dense(whole, self.graph.ty(value)) {
            return;
        }
        let mut parts = Vec::new();
        let mut start = 0usize;
        for (&input, ty) in node.inputs.iter().zip(types) {
            let part = self.buffer_of[&input];
            let is_taken = self.buffers[part].inside.is_some() || parts.iter().any(|&(other, _)| other == part);
            if !is_dense(part, ty) || is_taken || !start.is_multiple_of(self.rules.alignment) {
                return;
            }
            parts.push((part, start));
            start += ty.bytes();
        }
        self.joined.insert(id);
        for (part, start) in parts {
            let Buffer { first, last, .. } = self.buffers[part];
            self.buffers[part].inside = Some((whole, start));
            let whole = &mut self.buffers[whole];
            (whole.first, whole.last) = (whole.first.min(first), whole.last.max(last));
        }
    }

    /// The outermost buffer that contains a buffer, which may be itself, and the offset in bytes there.
    fn whole_of(&self, buffer: usize) -> (usize, usize) {
        let (mut whole, mut start) = (buffer, 0);
        while let Some((outer, offset)) = self.buffers[whole].inside {
            (whole, start) = (outer, start + offset);
        }
        (whole, start)
    }

    /// The state's own buffer for a value that replaces it, if nobody reads the old content later, neither in this
    /// micro-batch nor in the next one, and this node, if it reads it, reads each element just before it writes it.
    fn state_in_place(&self, value: Value) -> Option<usize> {
        let state = *self.replaces.get(&value)?;
        if self.in_accumulation[value.node.index()] && !self.graph.is_per_micro_batch(state) {
            return None;
        }
        let fusion = self.graph.node(value.node).op.as_fusion()?;
        let reads = self.last_use.get(&state).copied();
        let free = match reads {
            None => true,
            Some(last) if last < value.node.index() => true,
            Some(last) => last == value.node.index() && self.reads_in_place(value, state),
        };
        (free && !self.is_raw_target(fusion, value)).then(|| self.buffer_of[&state])
    }

    /// The buffer of an input of a fusion that dies here and that the output can overwrite element by element.
    fn input_in_place(&self, value: Value) -> Option<usize> {
        let node = self.graph.node(value.node);
        let fusion = node.op.as_fusion()?;
        if self.is_raw_target(fusion, value) || self.kept.contains(&value) || self.is_in_program(value.node) {
            return None;
        }
        let taken =
            |buffer: usize| (0..value.output).any(|o| self.buffer_of[&Value { node: value.node, output: o }] == buffer);
        node.inputs[fusion.producer_inputs()..].iter().find_map(|&input| {
            let buffer = *self.buffer_of.get(&input)?;
            let Buffer { last, lifetime, inside, .. } = self.buffers[buffer];
            let dies = last == value.node.index() && lifetime == Lifetime::Transient && inside.is_none();
            let same_size = self.graph.ty(input).bytes() == self.graph.ty(value).bytes()
                && self.buffers[buffer].bytes == self.graph.ty(value).bytes();
            (dies && same_size && !taken(buffer) && self.reads_in_place(value, input)).then_some(buffer)
        })
    }

    /// Whether the node may run in one kernel with others of one element, behind which all values are still there.
    fn is_in_program(&self, node: NodeId) -> bool {
        let (first, last) = self.runs.span(node.index());
        first != last && is_scalar(self.graph, node)
    }

    /// Whether the node reads `input` nowhere but at the element of `value` that it then writes, in elements of the same size.
    fn reads_in_place(&self, value: Value, input: Value) -> bool {
        let node = self.graph.node(value.node);
        let whole = |value: &Value| self.whole_of(self.buffer_of[value]).0;
        let mut of_buffer = node.inputs.iter().enumerate().filter(|(_, v)| whole(v) == whole(&input));
        !self.needs[value.node.index()].apart
            && self.graph.dtype(input).size() == self.graph.dtype(value).size()
            && of_buffer.all(|(index, _)| node.op.rule().may_overwrite(value.output as usize, index))
    }

    /// Whether the producer's kernel writes its output, block by block, into this output before the program runs.
    fn is_raw_target(&self, fusion: &Fusion, value: Value) -> bool {
        raw_target(fusion, self.graph, value.node) == Some(value.output as usize)
    }

    /// Adds the buffers that kernels need beside their operands.
    fn add_needs(&mut self) -> Vec<Extra> {
        let mut extras = Vec::new();
        for id in self.graph.ids().filter(|&id| runs_kernel(&self.graph.node(id).op)) {
            if self.joined.contains(&id) {
                continue;
            }
            let (at, Needs { scratch, packed, .. }) = (id.index(), self.needs[id.index()]);
            let name =
                |what: &str| format!("{} {what} of {}", self.graph.path(id), self.graph.node(id).op.rule().name());
            let (scratch_name, prepared_name) = (name("scratch"), name("packed input"));
            let scratch = (scratch > 0).then(|| self.new_buffer(scratch, at, at, Lifetime::Transient, scratch_name));
            let packed = packed.map(|p| self.new_buffer(p.bytes, at, at, Lifetime::Persistent, prepared_name));
            extras.push(Extra { node: id, scratch, packed });
        }
        extras
    }

    /// Lets what nodes that may run at one time read and write live as long as all of these run.
    fn widen_lifetimes(&mut self) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.lifetime == Lifetime::Transient) {
            buffer.first = self.runs.span(buffer.first).0;
            if buffer.last != usize::MAX {
                buffer.last = self.runs.span(buffer.last).1;
            }
        }
    }

    /// Gives results that lie in the state, which changes when the step ends or when another plan runs, a place of their own.
    fn keep_results(&mut self) {
        for (name, value) in self.graph.outputs() {
            let mut source = *value;
            while is_view(&self.graph.node(source.node).op) {
                source = self.graph.node(source.node).inputs[0];
            }
            if matches!(self.buffers[self.buffer_of[&source]].lifetime, Lifetime::State(_)) {
                let (bytes, title) = (self.graph.ty(*value).bytes(), format!("result {name}"));
                let buffer = self.new_buffer(bytes, usize::MAX, usize::MAX, Lifetime::Persistent, title);
                self.kept_results.push((name.clone(), source, buffer));
            }
        }
    }

    /// Persistent buffers first, in order; then transient ones, largest first, each at the lowest offset that is free
    /// throughout its life.
    fn assign_offsets(&mut self) {
        let align = |x: usize| x.next_multiple_of(self.rules.alignment);
        let mut end = 0;
        for buffer in self.buffers.iter_mut().filter(|b| b.lifetime == Lifetime::Persistent) {
            buffer.offset = end;
            end = align(end + buffer.bytes);
        }
        let mut order: Vec<usize> = (0..self.buffers.len()).filter(|&b| self.buffers[b].takes_room()).collect();
        order.sort_by_key(|&b| (std::cmp::Reverse(self.buffers[b].bytes), self.buffers[b].first, b));
        let mut placed: Vec<usize> = Vec::new();
        for &index in &order {
            let buffer = &self.buffers[index];
            let mut neighbours: Vec<(usize, usize)> = placed
                .iter()
                .map(|&p| &self.buffers[p])
                .filter(|p| p.first <= buffer.last && buffer.first <= p.last)
                .map(|p| (p.offset, align(p.offset + p.bytes)))
                .collect();
            neighbours.sort_unstable();
            let mut offset = end;
            for (start, stop) in neighbours {
                if offset + buffer.bytes <= start {
                    break;
                }
                offset = offset.max(stop);
            }
            self.buffers[index].offset = offset;
            placed.push(index);
        }
        for part in 0..self.buffers.len() {
            if self.buffers[part].inside.is_some() {
                let (whole, start) = self.whole_of(part);
                self.buffers[part].offset = self.buffers[whole].offset + start;
            }
        }
    }

    fn into_plan(self, extras: &[Extra], kernels: Kernels) -> Plan {
        let alignment = self.rules.alignment;
        let end = |b: &Buffer| (b.offset + b.bytes).next_multiple_of(alignment);
        let ends =
            |of: &[Lifetime]| self.buffers.iter().filter(|b| of.contains(&b.lifetime)).map(end).max().unwrap_or(0);
        let persistent_bytes = ends(&[Lifetime::Persistent]);
        let arena_bytes = ends(&[Lifetime::Persistent, Lifetime::Transient]);
        let at = |buffer: Option<usize>| buffer.map(|b| (self.buffers[b].offset, self.buffers[b].bytes));
        let call = |e: &Extra| KernelCall {
            node: e.node,
            scratch: at(e.scratch).unwrap_or((0, 0)),
            packed: at(e.packed).unwrap_or((0, 0)),
            per_micro_batch: self.in_accumulation[e.node.index()],
        };
        let runs_once = |e: &&Extra| self.invariant.runs_once(self.graph, e.node);
        let calls: Vec<KernelCall> = extras.iter().filter(|e| !runs_once(e)).map(call).collect();
        let once_calls = self.once_calls(extras.iter().filter(runs_once).map(call), &calls);
        let locations: BTreeMap<Value, Location> =
            self.buffer_of.iter().map(|(&value, &buffer)| (value, self.buffers[buffer].location())).collect();
        let kept = self.kept_results.iter().map(|(_, state, buffer)| StateCopy {
            from: locations[state],
            to: self.buffers[*buffer].location(),
            bytes: self.buffers[*buffer].bytes,
            per_micro_batch: false,
        });
        let moved = self.graph.updates().iter().filter(|(state, new)| locations[state] != locations[new]);
        let replaced = moved.map(|&(state, new)| StateCopy {
            from: locations[&new],
            to: locations[&state],
            bytes: self.graph.ty(state).bytes(),
            per_micro_batch: self.graph.is_per_micro_batch(state),
        });
        let copies = kept.chain(replaced).collect();
        let kept_results =
            self.kept_results.iter().map(|(name, _, buffer)| (name.clone(), self.buffers[*buffer].offset)).collect();
        let peak = self.peak();
        let graph = self.graph.clone();
        let Self { invariant, state, .. } = self;
        Plan {
            graph,
            invariant,
            kernels,
            tf32: false,
            once_calls,
            calls,
            copies,
            state,
            locations,
            kept_results,
            alignment,
            persistent_bytes,
            arena_bytes,
            peak,
        }
    }

    /// The calls of invariant nodes in order, each followed by the kernels that prepack its result.
    fn once_calls(&self, once: impl Iterator<Item = KernelCall>, calls: &[KernelCall]) -> Vec<OnceCall> {
        let mut waiting: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (number, call) in calls.iter().enumerate() {
            if let Some(packed) = self.needs[call.node.index()].packed {
                let mut source = self.graph.node(call.node).inputs[packed.input].node;
                while is_view(&self.graph.node(source).op) {
                    source = self.graph.node(source).inputs[0].node;
                }
                waiting.entry(source).or_default().push(number);
            }
        }
        let once: Vec<KernelCall> = once.collect();
        let is_computed = |source: &NodeId| once.iter().any(|call| call.node == *source);
        let mut list: Vec<OnceCall> = waiting
            .iter()
            .filter(|(source, _)| !is_computed(source))
            .flat_map(|(_, numbers)| numbers.iter().map(|&n| OnceCall::Prepack(n)))
            .collect();
        for call in once {
            list.push(OnceCall::Run(call));
            list.extend(waiting.get(&call.node).into_iter().flatten().map(|&n| OnceCall::Prepack(n)));
        }
        list
    }

    /// The transient buffers that live at the fullest moment.
    fn peak(&self) -> Vec<(String, usize)> {
        let mut change: BTreeMap<usize, i64> = BTreeMap::new();
        for buffer in self.buffers.iter().filter(|b| b.takes_room()) {
            *change.entry(buffer.first).or_default() += buffer.bytes as i64;
            *change.entry(buffer.last.saturating_add(1)).or_default() -= buffer.bytes as i64;
        }
        let (mut live, mut best) = (0, (0, 0));
        for (&at, &delta) in &change {
            live += delta;
            if live > best.0 {
                best = (live, at);
            }
        }
        let mut list: Vec<(String, usize)> = self
            .buffers
            .iter()
            .filter(|b| b.takes_room() && b.first <= best.1 && best.1 <= b.last)
            .map(|b| (b.name.trim().to_string(), b.bytes))
            .collect();
        list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        list
    }
}

/// The `f32` output of the node into which the producer's kernel writes: the one that stores it unchanged, else the first
/// store, which the program then overwrites; none that replaces state, whose old content the program may read.
pub fn raw_target(fusion: &Fusion, graph: &Graph, node: NodeId) -> Option<usize> {
    fusion.producer.as_ref()?;
    let is_f32 = |o: &FusionOutput| matches!(o, FusionOutput::Store { ty, .. } if ty.dtype == DType::F32);
    let unchanged = fusion.stores_producer().filter(|&index| is_f32(&fusion.outputs[index]));
    let is_free = |index: &usize| {
        let value = Value { node, output: fusion.node_output(*index) as u32 };
        is_f32(&fusion.outputs[*index]) && graph.updates().iter().all(|&(_, new)| new != value)
    };
    let store = unchanged.or_else(|| (0..fusion.outputs.len()).find(is_free))?;
    let output = fusion.node_output(store);
    debug_assert!(output < graph.node(node).outputs.len());
    Some(output)
}
