//! Grows regions: pointwise chains with their sums, and convolutions or matmuls with what follows them.
//!
//! 1. Decide which pointwise values are stored. A value that an operation outside any region reads must be; others are
//!    recomputed wherever they are used, unless several regions would have to read more for it than the value itself.
//! 2. Each stored pointwise value and each sum over rows is a root. Roots with one domain that read a common tensor
//!    become one region where no dependency forbids it.
//! 3. A region that reads the output of a convolution or matmul, and otherwise nothing that depends on it, is run by
//!    that kernel block by block (the anchor).

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::pointwise::{Binary, BinaryKind, Cast, Unary};
use crate::ops::reduce::{Moments, Reduce, ReduceKind};
use crate::ops::region::{Access, Instr, Reg, Region, RegionOutput};
use crate::ops::{Op, Scalar};
use crate::passes::recompute::is_recomputed;
use crate::shape::Shape;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Switches of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// `false`: one region an operation, run op by op.
    pub fuse: bool,
}

/// Turns every pointwise operation and every sum over rows into part of a region.
///
/// # Errors
/// Only if the graph was malformed.
pub fn fuse(graph: &Graph, options: FuseOptions) -> Result<Graph, GraphError> {
    let prepared = prepare(graph)?;
    let mut fuser = Fuser::new(&prepared, options.fuse);
    fuser.choose_stored();
    fuser.grow();
    fuser.settle_leaves();
    if options.fuse {
        fuser.attach_anchors();
    }
    fuser.emit()
}

/// Makes broadcasts explicit that a region cannot express, and splits reductions that no kernel does at once.
fn prepare(graph: &Graph) -> Result<Graph, GraphError> {
    let mut rewriter = Rewriter::new(graph);
    for id in graph.ids() {
        let node = graph.node(id);
        let own = Value { node: id, output: 0 };
        let path = graph.path(id).to_string();
        if node.op.is_pointwise() {
            let domain = node.outputs[0].shape.clone();
            let mut inputs = Vec::new();
            for &input in &node.inputs {
                let mapped = rewriter.get(input);
                let expressible = Access::of(graph.shape(input), &domain).is_some();
                inputs.push(if expressible {
                    mapped
                } else {
                    rewriter.target().at_path(&path, |g| g.broadcast(mapped, &domain))?
                });
            }
            let value = rewriter.target().at_path(&path, |g| g.add1(node.op.clone(), &inputs))?;
            rewriter.set(own, value);
        } else if let Some((kind, runs)) = split_reduction(graph, id) {
            let mut value = rewriter.get(node.inputs[0]);
            for axes in runs {
                value = rewriter.target().at_path(&path, |g| g.reduce(kind, value, &axes, false))?;
            }
            let shape = node.outputs[0].shape.clone();
            value = rewriter.target().at_path(&path, |g| g.reshape(value, shape))?;
            rewriter.set(own, value);
        } else {
            rewriter.copy(id)?;
        }
    }
    rewriter.finish()
}

/// Reductions that do the same as the node one after the other, each over neighbouring axes, and none over all axes of a
/// tensor of several; `None` if the node is so itself. Axes are removed, the innermost first, so that the numbers of the
/// outer ones stay.
fn split_reduction(graph: &Graph, id: NodeId) -> Option<(ReduceKind, Vec<Vec<usize>>)> {
    let node = graph.node(id);
    let Op::Reduce(Reduce { kind, axes, .. }) = &node.op else { return None };
    let rank = graph.shape(node.inputs[0]).rank();
    if axes.len() == rank && rank > 1 {
        return Some((*kind, vec![(0..rank - 1).collect(), vec![0]]));
    }
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for &axis in axes.iter().rev() {
        match runs.last_mut() {
            Some(run) if run[0] == axis + 1 => run.insert(0, axis),
            _ => runs.push(vec![axis]),
        }
    }
    (runs.len() > 1).then_some((*kind, runs))
}

/// Groups of rows that a reduction sums, if a region can do it: all row axes but leading ones, none of the columns.
fn row_sum_groups(graph: &Graph, id: NodeId) -> Option<usize> {
    let node = graph.node(id);
    let (axes, kind_fits) = match &node.op {
        Op::Reduce(Reduce { kind, axes, .. }) => (axes, *kind == ReduceKind::Sum),
        Op::Moments(Moments { axes }) => (axes, true),
        _ => return None,
    };
    let input = graph.ty(*node.inputs.first()?);
    let rank = input.shape.rank();
    if !kind_fits || input.dtype != DType::F32 || rank < 2 || axes.is_empty() {
        return None;
    }
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    let trailing = sorted.iter().copied().eq(rank - 1 - sorted.len()..rank - 1);
    let groups = input.shape[..rank - 1 - sorted.len().min(rank - 1)].iter().product();
    (trailing && (groups == 1 || matches!(node.op, Op::Reduce(_)))).then_some(groups)
}

/// Roots that are computed together.
struct Cluster {
    domain: Shape,
    roots: Vec<NodeId>,
    anchor: Option<NodeId>,
    /// Values read from outside, those of the anchor aside.
    leaves: BTreeSet<Value>,
    /// Stored values that the cluster computes again and does not read.
    opened: HashSet<NodeId>,
    /// Nodes outside that must have run before.
    inputs: BTreeSet<NodeId>,
}

struct Fuser<'a> {
    graph: &'a Graph,
    fuse: bool,
    consumers: Vec<Vec<NodeId>>,
    is_result: HashSet<Value>,
    /// Pointwise nodes whose value is written to memory.
    stored: Vec<bool>,
    clusters: Vec<Cluster>,
    /// Cluster of each root and anchor.
    cluster_of: HashMap<NodeId, usize>,
}

fn value(node: NodeId) -> Value {
    Value { node, output: 0 }
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph, fuse: bool) -> Self {
        Fuser {
            graph,
            fuse,
            consumers: graph.consumers(),
            is_result: graph.roots().collect(),
            stored: vec![false; graph.len()],
            clusters: Vec::new(),
            cluster_of: HashMap::new(),
        }
    }

    fn is_pointwise(&self, id: NodeId) -> bool {
        self.graph.node(id).op.is_pointwise()
    }

    /// Whether the node is computed by a region of its own or with others.
    fn is_root(&self, id: NodeId) -> bool {
        self.stored[id.index()] || row_sum_groups(self.graph, id).is_some()
    }

    /// Domain of the region that computes a root.
    fn domain(&self, root: NodeId) -> &Shape {
        let node = self.graph.node(root);
        if node.op.is_pointwise() { &node.outputs[0].shape } else { self.graph.shape(node.inputs[0]) }
    }

    /// Whether `consumer` computes, in a region over the domain of `producer`, from the value of `producer`.
    fn can_inline(&self, producer: NodeId, consumer: NodeId) -> bool {
        let shape = self.graph.shape(value(producer));
        (self.is_pointwise(consumer) || row_sum_groups(self.graph, consumer).is_some())
            && self.domain(consumer) == shape
    }

    fn must_store(&self, id: NodeId) -> bool {
        !self.fuse
            || self.is_result.contains(&value(id))
            || self.consumers[id.index()].iter().any(|&c| !self.can_inline(id, c))
    }

    fn choose_stored(&mut self) {
        let order: Vec<NodeId> = self.graph.ids().filter(|&id| self.is_pointwise(id)).collect();
        for &id in &order {
            self.stored[id.index()] = self.must_store(id);
        }
        if !self.fuse {
            return;
        }
        let mut users: HashMap<NodeId, BTreeSet<NodeId>> = HashMap::new();
        for &id in order.iter().rev() {
            let mut roots = BTreeSet::new();
            for &consumer in &self.consumers[id.index()] {
                if self.is_root(consumer) {
                    roots.insert(consumer);
                } else if let Some(behind) = users.get(&consumer) {
                    roots.extend(behind);
                }
            }
            let pays = self.narrows(id) || self.is_worth_storing(id);
            if !self.stored[id.index()] && roots.len() > 1 && pays && self.regions(&roots) > 1 {
                self.stored[id.index()] = true;
            }
            users.insert(id, roots);
        }
    }

    /// Whether the value is a rounded form that takes less memory than what it is made of.
    fn narrows(&self, id: NodeId) -> bool {
        let input = self.graph.node(id).inputs[0];
        matches!(self.graph.node(id).op, Op::Cast(Cast { to }) if to.size() < self.graph.dtype(input).size())
    }

    /// Whether recomputing the value costs a region more than reading it back.
    fn is_worth_storing(&self, id: NodeId) -> bool {
        let expression = self.expression(&[id], &|_| false);
        let expensive = expression.inner.iter().any(|&n| match self.graph.node(n).op {
            Op::Unary(Unary(kind)) => kind.is_expensive(),
            Op::Binary(Binary(kind)) => matches!(kind, BinaryKind::Pow | BinaryKind::Div),
            _ => false,
        });
        expensive || self.full_leaves(&expression, self.graph.shape(value(id))).len() > 2
    }

    /// Lower bound of the number of regions that can hold `roots`: the longest chain of dependencies among them.
    fn regions(&self, roots: &BTreeSet<NodeId>) -> usize {
        let mut depth: Vec<(NodeId, usize)> = Vec::new();
        for &root in roots {
            let below = depth.iter().filter(|&&(earlier, _)| self.depends(root, earlier)).map(|&(_, d)| d).max();
            depth.push((root, below.unwrap_or(0) + 1));
        }
        depth.iter().map(|&(_, d)| d).max().unwrap_or(0)
    }

    /// Whether `node` depends on `on` in the graph as it was before fusing.
    fn depends(&self, node: NodeId, on: NodeId) -> bool {
        let mut stack = vec![node];
        let mut seen = HashSet::new();
        while let Some(id) = stack.pop() {
            if id == on {
                return true;
            }
            stack.extend(self.graph.node(id).inputs.iter().map(|v| v.node).filter(|&n| n >= on && seen.insert(n)));
        }
        false
    }

    /// The pointwise nodes that compute `roots` from stored values; `inline` opens stored ones too.
    fn expression(&self, roots: &[NodeId], inline: &dyn Fn(NodeId) -> bool) -> Expression {
        let mut expression = Expression::default();
        let mut stack: Vec<NodeId> = Vec::new();
        for &root in roots {
            if self.is_pointwise(root) {
                stack.push(root);
            } else {
                let input = self.graph.node(root).inputs[0];
                self.enter(input, root, roots, inline, &mut stack, &mut expression);
            }
        }
        while let Some(id) = stack.pop() {
            if !expression.inner.insert(id) {
                continue;
            }
            for &input in &self.graph.node(id).inputs {
                self.enter(input, id, roots, inline, &mut stack, &mut expression);
            }
        }
        expression
    }

    fn enter(
        &self,
        input: Value,
        reader: NodeId,
        roots: &[NodeId],
        inline: &dyn Fn(NodeId) -> bool,
        stack: &mut Vec<NodeId>,
        expression: &mut Expression,
    ) {
        let id = input.node;
        let opens = self.is_pointwise(id)
            && self.can_inline(id, reader)
            && (!self.stored[id.index()] || roots.contains(&id) || inline(id));
        if opens {
            stack.push(id);
        } else if !is_splat(self.graph, input) {
            expression.leaves.insert(input);
        }
    }

    /// Leaves with one element for each of the domain's.
    fn full_leaves(&self, expression: &Expression, domain: &Shape) -> BTreeSet<Value> {
        expression.leaves.iter().copied().filter(|&v| self.graph.shape(v).elements() == domain.elements()).collect()
    }

    /// The expression of a cluster, with stored values opened that cost no further tensor to recompute.
    fn cluster_expression(&self, roots: &[NodeId], domain: &Shape) -> (Expression, HashSet<NodeId>) {
        let mut opened: HashSet<NodeId> = HashSet::new();
        loop {
            let expression = self.expression(roots, &|id| opened.contains(&id));
            let full = self.full_leaves(&expression, domain);
            let next = full.iter().find(|leaf| {
                let id = leaf.node;
                if !self.fuse || !self.is_pointwise(id) || domain.rank() < 2 || opened.contains(&id) {
                    return false;
                }
                let inner = self.expression(&[id], &|n| opened.contains(&n));
                let cheap = !inner
                    .inner
                    .iter()
                    .any(|&n| matches!(self.graph.node(n).op, Op::Unary(Unary(kind)) if kind.is_expensive()));
                let leaves = self.full_leaves(&inner, domain);
                cheap && leaves.iter().all(|l| full.contains(l) && l != *leaf)
            });
            match next {
                Some(leaf) => opened.insert(leaf.node),
                None => return (expression, opened),
            };
        }
    }

    fn grow(&mut self) {
        let roots: Vec<NodeId> = self.graph.ids().filter(|&id| self.is_root(id)).collect();
        let mut readers: HashMap<Value, Vec<usize>> = HashMap::new();
        for root in roots {
            let domain = self.domain(root).clone();
            let expression = self.expression(&[root], &|_| false);
            let full = self.full_leaves(&expression, &domain);
            let candidates: BTreeSet<usize> = if self.fuse && domain.elements() > 1 {
                full.iter()
                    .flat_map(|leaf| {
                        let shared = readers.get(leaf).into_iter().flatten().copied();
                        shared.chain(self.cluster_of.get(&leaf.node).copied())
                    })
                    .filter(|&c| self.clusters[c].domain == domain && self.is_of_one_time(c, root))
                    .collect()
            } else {
                BTreeSet::new()
            };
            let home = candidates.into_iter().rev().find(|&c| self.can_join(root, &expression, c));
            let index = home.unwrap_or(self.clusters.len());
            if home.is_none() {
                self.clusters.push(Cluster {
                    domain,
                    roots: Vec::new(),
                    anchor: None,
                    leaves: BTreeSet::new(),
                    opened: HashSet::new(),
                    inputs: BTreeSet::new(),
                });
            }
            let cluster = &mut self.clusters[index];
            cluster.inputs.extend(expression.leaves.iter().map(|v| v.node).filter(|n| !cluster.roots.contains(n)));
            cluster.roots.push(root);
            self.cluster_of.insert(root, index);
            for leaf in full {
                readers.entry(leaf).or_default().push(index);
            }
        }
    }

    /// Whether a root is computed a second time just as the cluster is, or just as little.
    fn is_of_one_time(&self, cluster: usize, root: NodeId) -> bool {
        is_recomputed(self.graph, root) == is_recomputed(self.graph, self.clusters[cluster].roots[0])
    }

    /// Whether `root` may be computed with the cluster: it reads the pointwise roots as they are computed, and nothing
    /// else that is computed from the cluster.
    fn can_join(&self, root: NodeId, expression: &Expression, cluster: usize) -> bool {
        let Cluster { roots, domain, .. } = &self.clusters[cluster];
        let read_as_computed = |leaf: &Value| {
            roots.contains(&leaf.node) && self.is_pointwise(leaf.node) && self.can_inline(leaf.node, root)
        };
        let finished: Vec<NodeId> =
            expression.leaves.iter().filter(|leaf| !read_as_computed(leaf)).map(|leaf| leaf.node).collect();
        debug_assert_eq!(self.domain(root), domain);
        !self.depends_on_unit(finished, |id| self.cluster_of.get(&id) == Some(&cluster))
    }

    /// Whether any of `from` is, or is computed from, a node that `is_target` holds for; clusters count as one node.
    fn depends_on_unit(&self, from: Vec<NodeId>, is_target: impl Fn(NodeId) -> bool) -> bool {
        let mut stack = from;
        let mut seen: HashSet<NodeId> = HashSet::new();
        while let Some(id) = stack.pop() {
            if is_target(id) {
                return true;
            }
            if !seen.insert(id) {
                continue;
            }
            match self.cluster_of.get(&id) {
                Some(&c) => stack.extend(&self.clusters[c].inputs),
                None => stack.extend(self.graph.node(id).inputs.iter().map(|v| v.node)),
            }
        }
        false
    }

    fn settle_leaves(&mut self) {
        for index in 0..self.clusters.len() {
            let cluster = &self.clusters[index];
            let (expression, opened) = self.cluster_expression(&cluster.roots, &cluster.domain);
            let inputs = expression.leaves.iter().map(|v| v.node).collect();
            let cluster = &mut self.clusters[index];
            (cluster.leaves, cluster.opened, cluster.inputs) = (expression.leaves, opened, inputs);
        }
    }

    fn attach_anchors(&mut self) {
        for index in 0..self.clusters.len() {
            let cluster = &self.clusters[index];
            let anchor = cluster.leaves.iter().copied().find(|&leaf| {
                let others = cluster.leaves.iter().map(|v| v.node).filter(|&n| n != leaf.node).collect();
                self.is_anchor(leaf, &cluster.domain)
                    && !self.cluster_of.contains_key(&leaf.node)
                    && !self.depends_on_unit(others, |id| id == leaf.node)
            });
            if let Some(anchor) = anchor {
                self.cluster_of.insert(anchor.node, index);
                let cluster = &mut self.clusters[index];
                cluster.anchor = Some(anchor.node);
                cluster.leaves.remove(&anchor);
                cluster.inputs.remove(&anchor.node);
                cluster.inputs.extend(self.graph.node(anchor.node).inputs.iter().map(|v| v.node));
            }
        }
    }

    /// Whether a value is the output of a kernel that can run a region on the blocks it finishes.
    fn is_anchor(&self, leaf: Value, domain: &Shape) -> bool {
        let ty = self.graph.ty(leaf);
        let fits = ty.dtype == DType::F32 && ty.shape == *domain;
        let kind = match &self.graph.node(leaf.node).op {
            Op::Conv2d(_) | Op::Conv2dDataGrad(_) => true,
            Op::Matmul(_) => ty.shape.rank() == 2,
            _ => false,
        };
        fits && kind
    }

    fn emit(self) -> Result<Graph, GraphError> {
        let compiled: Vec<CompiledRegion> = (0..self.clusters.len()).map(|c| self.compile(c)).collect();
        let mut rewriter = Rewriter::new(self.graph);
        for unit in self.unit_order(&compiled) {
            match unit {
                Unit::Node(id) => rewriter.copy(id)?,
                Unit::Cluster(cluster) => {
                    let region = &compiled[cluster];
                    let inputs: Vec<Value> = region.inputs.iter().map(|&v| rewriter.get(v)).collect();
                    let path =
                        self.graph.path(self.clusters[cluster].anchor.unwrap_or(self.clusters[cluster].roots[0]));
                    let outputs = rewriter.target().at_path(path, |g| g.add(region.region.clone(), &inputs))?;
                    for (&source, &target) in region.results.iter().zip(&outputs) {
                        rewriter.set(source, target);
                    }
                }
            }
        }
        rewriter.finish()
    }

    /// Nodes and clusters in the order of the graph, each preceded by what it reads and was not there yet.
    fn unit_order(&self, compiled: &[CompiledRegion]) -> Vec<Unit> {
        let live = super::simplify::live_nodes(self.graph);
        let mut units: Vec<(Unit, NodeId, Vec<NodeId>)> = Vec::new();
        for id in self.graph.ids() {
            let inside = self.is_pointwise(id) || self.cluster_of.contains_key(&id);
            if live[id.index()] && !inside {
                units.push((Unit::Node(id), id, self.graph.node(id).inputs.iter().map(|v| v.node).collect()));
            }
        }
        for (index, region) in compiled.iter().enumerate() {
            let first = *self.clusters[index].roots.iter().min().expect("a cluster has roots");
            let place = self.clusters[index].anchor.unwrap_or(first);
            units.push((Unit::Cluster(index), place, region.inputs.iter().map(|v| v.node).collect()));
        }
        let provider: HashMap<NodeId, usize> = units
            .iter()
            .enumerate()
            .flat_map(|(u, (unit, place, _))| match *unit {
                Unit::Node(_) => vec![(*place, u)],
                Unit::Cluster(c) => {
                    self.clusters[c].roots.iter().copied().chain(self.clusters[c].anchor).map(|n| (n, u)).collect()
                }
            })
            .collect();
        let mut by_place: Vec<usize> = (0..units.len()).collect();
        // Inputs come first, so that they keep their order.
        let is_input =
            |u: usize| matches!(units[u].0, Unit::Node(id) if matches!(self.graph.node(id).op, Op::Input(_)));
        by_place.sort_by_key(|&u| (!is_input(u), units[u].1, u));
        let mut state = vec![Visit::Unseen; units.len()];
        let mut order = Vec::with_capacity(units.len());
        for first in by_place {
            let mut stack = vec![first];
            while let Some(&u) = stack.last() {
                match state[u] {
                    Visit::Unseen => {
                        state[u] = Visit::Open;
                        for input in units[u].2.iter().map(|n| provider[n]) {
                            assert!(state[input] != Visit::Open, "fusing made a cycle");
                            if state[input] == Visit::Unseen {
                                stack.push(input);
                            }
                        }
                    }
                    Visit::Open => {
                        state[u] = Visit::Done;
                        order.push(units[u].0);
                        stack.pop();
                    }
                    Visit::Done => {
                        stack.pop();
                    }
                }
            }
        }
        order
    }

    fn compile(&self, cluster: usize) -> CompiledRegion {
        let Cluster { domain, roots, anchor, opened, .. } = &self.clusters[cluster];
        let mut emitter = Emitter {
            fuser: self,
            domain,
            roots,
            opened,
            anchor: *anchor,
            program: Vec::new(),
            registers: HashMap::new(),
            constants: BTreeMap::new(),
            loads: Vec::new(),
        };
        let mut outputs = Vec::new();
        let mut results = Vec::new();
        for &root in roots {
            let node = self.graph.node(root);
            if self.is_pointwise(root) {
                let reg = emitter.node(root);
                outputs.push(RegionOutput::Store { reg, ty: node.outputs[0].clone() });
                results.push(value(root));
                continue;
            }
            let reg = emitter.operand(node.inputs[0], root);
            let shape = node.outputs[0].shape.clone();
            if let Op::Moments(_) = node.op {
                outputs.push(RegionOutput::Moments { reg, shape });
                results.extend([value(root), Value { node: root, output: 1 }]);
            } else {
                let groups = row_sum_groups(self.graph, root).expect("a root that is no pointwise node sums rows");
                outputs.push(RegionOutput::Sum { reg, groups, shape });
                results.push(value(root));
            }
        }
        let mut inputs = Vec::new();
        if let Some(anchor) = *anchor {
            let node = self.graph.node(anchor);
            inputs.extend(&node.inputs);
            if self.is_read_outside(anchor, cluster) {
                let reg = emitter.anchor_register();
                outputs.push(RegionOutput::Store { reg, ty: node.outputs[0].clone() });
                results.push(value(anchor));
            }
        }
        inputs.extend(&emitter.loads);
        let loads = emitter.loads.iter().map(|&v| emitter.access(v)).collect();
        let region = Region {
            anchor: anchor.map(|id| Box::new(self.graph.node(id).op.clone())),
            rows: domain.rows(),
            cols: domain.cols(),
            loads,
            program: emitter.program,
            outputs,
        };
        CompiledRegion { region, inputs, results }
    }

    /// Whether anything but the cluster needs the anchor's own output.
    fn is_read_outside(&self, anchor: NodeId, cluster: usize) -> bool {
        let by_cluster = self.clusters.iter().enumerate().any(|(index, other)| {
            (index != cluster && other.leaves.contains(&value(anchor)))
                || other.anchor.is_some_and(|n| self.graph.node(n).inputs.contains(&value(anchor)))
        });
        let by_node =
            self.consumers[anchor.index()].iter().any(|c| !self.is_pointwise(*c) && !self.cluster_of.contains_key(c));
        by_cluster || by_node || self.is_result.contains(&value(anchor))
    }
}

/// What a region computes: pointwise nodes inside, values read.
#[derive(Default)]
struct Expression {
    inner: BTreeSet<NodeId>,
    leaves: BTreeSet<Value>,
}

struct CompiledRegion {
    region: Region,
    inputs: Vec<Value>,
    /// Values of the graph that the region's outputs are, in order.
    results: Vec<Value>,
}

#[derive(Clone, Copy)]
enum Unit {
    Node(NodeId),
    Cluster(usize),
}

/// State of a depth-first search.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Unseen,
    Open,
    Done,
}

fn is_splat(graph: &Graph, value: Value) -> bool {
    splat(graph, value).is_some()
}

fn splat(graph: &Graph, value: Value) -> Option<f64> {
    match &graph.node(value.node).op {
        Op::Constant(c) => c.uniform(),
        _ => None,
    }
}

/// Writes the program of one region.
struct Emitter<'a, 'g> {
    fuser: &'a Fuser<'g>,
    domain: &'a Shape,
    roots: &'a [NodeId],
    opened: &'a HashSet<NodeId>,
    anchor: Option<NodeId>,
    program: Vec<Instr>,
    registers: HashMap<Value, Reg>,
    constants: BTreeMap<u64, Reg>,
    loads: Vec<Value>,
}

impl Emitter<'_, '_> {
    fn push(&mut self, instr: Instr) -> Reg {
        self.program.push(instr);
        (self.program.len() - 1) as Reg
    }

    fn access(&self, v: Value) -> Access {
        Access::of(self.fuser.graph.shape(v), self.domain).expect("prepared operands are expressible")
    }

    fn anchor_register(&mut self) -> Reg {
        let anchor = value(self.anchor.expect("only asked for with an anchor"));
        if let Some(&reg) = self.registers.get(&anchor) {
            return reg;
        }
        let reg = self.push(Instr::Anchor);
        self.registers.insert(anchor, reg);
        reg
    }

    /// The register that holds what `reader` reads.
    fn operand(&mut self, v: Value, reader: NodeId) -> Reg {
        let id = v.node;
        if let Some(number) = splat(self.fuser.graph, v) {
            if let Some(&reg) = self.constants.get(&number.to_bits()) {
                return reg;
            }
            let reg = self.push(Instr::Const(Scalar(number)));
            self.constants.insert(number.to_bits(), reg);
            return reg;
        }
        let inside = self.fuser.is_pointwise(id)
            && self.fuser.can_inline(id, reader)
            && (!self.fuser.stored[id.index()] || self.roots.contains(&id) || self.opened.contains(&id));
        if inside {
            return self.node(id);
        }
        if self.anchor == Some(id) {
            return self.anchor_register();
        }
        if let Some(&reg) = self.registers.get(&v) {
            return reg;
        }
        let reg = self.push(Instr::Load(self.loads.len() as u16));
        self.loads.push(v);
        self.registers.insert(v, reg);
        reg
    }

    /// The register that holds the value of a pointwise node.
    fn node(&mut self, id: NodeId) -> Reg {
        if let Some(&reg) = self.registers.get(&value(id)) {
            return reg;
        }
        let node = self.fuser.graph.node(id);
        if let Op::Cast(Cast { to: DType::F32 }) = node.op {
            // Registers hold `f32`.
            return self.operand(node.inputs[0], id);
        }
        let regs: Vec<Reg> = node.inputs.iter().map(|&input| self.operand(input, id)).collect();
        let instr = match node.op {
            Op::Unary(Unary(kind)) => Instr::Unary(kind, regs[0]),
            Op::Binary(Binary(kind)) => Instr::Binary(kind, regs[0], regs[1]),
            Op::Select(_) => Instr::Select(regs[0], regs[1], regs[2]),
            Op::Cast(Cast { to }) => Instr::Cast(to, regs[0]),
            ref other => unreachable!("{other} is not pointwise"),
        };
        let reg = self.push(instr);
        self.registers.insert(value(id), reg);
        reg
    }
}
