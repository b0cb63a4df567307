//! Grows fusions: pointwise chains with reductions along rows and sums over them, and convolutions or matmuls with what
//! follows them.
//!
//! 1. Decide which values are stored, of those that fusions compute element by element or row by row. A value that an
//!    operation outside any fusion reads must be; others are recomputed wherever they are used, unless several fusions would
//!    have to read more for it than the value itself.
//! 2. Each stored value and each sum over rows is a root. Roots with one domain that read a common tensor become one fusion
//!    where no dependency forbids it. A sum of a whole tensor, where the target adds such at once, is a root too: it shares a fusion
//!    with what is computed from elements at the same position and from single numbers alone, and with no product.
//! 3. A fusion that reads the output of a convolution or matmul, and otherwise nothing that depends on it, is run by
//!    that kernel block by block (the producer), unless it needs whole rows. A convolution or matmul that runs no fusion, and of
//!    which only a rounded form is read, writes that form.

mod canonicalise;
mod emit;
mod missed;
mod whole;

pub use missed::{NearMiss, Reason, near_misses};

use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Value};
use crate::ops::{FusedOp, Producer, RecomputeCost, RowSum};
use crate::passes::recompute::is_recomputed;
use crate::rules::Rules;
use crate::shape::Shape;
use canonicalise::{canonicalise, row_form};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Switches of the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// `false`: one fusion an operation, run op by op.
    pub fuse: bool,
}

/// Turns every pointwise operation and every sum over rows into part of a fusion.
///
/// # Errors
/// Only if the graph was malformed.
pub fn fuse(graph: &Graph, rules: &Rules, options: FuseOptions) -> Result<Graph, GraphError> {
    let canonical = canonicalise(graph, rules)?;
    let mut fuser = Fuser::new(&canonical, rules, options.fuse);
    fuser.choose_stored();
    fuser.grow();
    fuser.settle_leaves();
    if options.fuse {
        fuser.attach_producers();
        fuser.narrow_products();
    }
    fuser.emit()
}

/// How a fusion computes a node, if one can: reductions of rows that are longer than the given number of elements, or of one column, are
/// kernels of their own.
fn fused(graph: &Graph, longest_row: usize, id: NodeId) -> Option<FusedOp> {
    let fused = graph.node(id).op.rule().fused(&graph.input_types(id))?;
    let fits = || (2..=longest_row).contains(&graph.shape(graph.node(id).inputs[0]).cols());
    (!matches!(fused, FusedOp::RowReduce(_)) || fits()).then_some(fused)
}

/// For each node that fusions compute, the domain of the fusion that does: the rows that a value of one number a row is made
/// from, else its own shape.
fn domains(graph: &Graph, fused: &[Option<FusedOp>]) -> Vec<Option<Shape>> {
    let mut domains: Vec<Option<Shape>> = vec![None; graph.len()];
    for id in graph.ids() {
        let Some(fused) = fused[id.index()] else { continue };
        let node = graph.node(id);
        let shape = &node.outputs[0].shape;
        domains[id.index()] = Some(if let FusedOp::RowReduce(_) = fused {
            graph.shape(node.inputs[0]).clone()
        } else {
            let wide = node.inputs.iter().filter_map(|input| domains[input.node.index()].as_ref());
            let mut wider = wide.filter(|&domain| domain != shape && row_form(domain) == *shape);
            wider.next().filter(|_| node.op.is_pointwise()).unwrap_or(shape).clone()
        });
    }
    domains
}

/// Roots that are computed together.
struct Cluster {
    domain: Shape,
    roots: Vec<NodeId>,
    producer: Option<NodeId>,
    /// Values read from outside, those of the producer aside.
    leaves: BTreeSet<Value>,
    /// Stored values that the cluster computes again and does not read.
    recomputed: HashSet<NodeId>,
    /// Nodes outside that must have run before.
    inputs: BTreeSet<NodeId>,
    /// Whether it computes rows as a whole.
    needs_rows: bool,
    /// Whether all that it computes takes elements at the same position and single numbers.
    is_flat: bool,
    /// Whether it adds a whole tensor, which it then takes as one run of elements.
    adds_whole: bool,
}

struct Fuser<'a> {
    graph: &'a Graph,
    fuse: bool,
    products_give_16_bits: bool,
    /// The costliest operations that are cheaper than memory.
    cheap: RecomputeCost,
    consumers: Vec<Vec<NodeId>>,
    is_result: HashSet<Value>,
    /// How fusions compute each node, if they do.
    fused: Vec<Option<FusedOp>>,
    /// The reduction over rows that fusions do for each node, if they do.
    row_sums: Vec<Option<RowSum>>,
    /// Whether each node is a sum of a whole tensor that a fusion computes.
    is_whole_sum: Vec<bool>,
    /// Of each node that fusions compute.
    domains: Vec<Option<Shape>>,
    /// Nodes that run for every micro-batch of a step, and not once.
    in_accumulation: Vec<bool>,
    /// Nodes that fusions compute and write to memory.
    stored: Vec<bool>,
    clusters: Vec<Cluster>,
    /// Cluster of each node, of those that are roots and producers.
    cluster_of: Vec<Option<usize>>,
}

fn value(node: NodeId) -> Value {
    Value { node, output: 0 }
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph, rules: &Rules, fuse: bool) -> Self {
        let fused: Vec<Option<FusedOp>> = graph.ids().map(|id| fused(graph, rules.longest_row, id)).collect();
        let is_whole_sum: Vec<bool> =
            graph.ids().map(|id| rules.sums_of_whole_tensors && whole::is_whole_sum(graph, id)).collect();
        let row_sum = |id: NodeId| match is_whole_sum[id.index()] {
            true => Some(RowSum::Sum { groups: 1 }),
            false => graph.node(id).op.rule().row_sum(&graph.input_types(id)),
        };
        Fuser {
            graph,
            fuse,
            products_give_16_bits: rules.products_give_16_bits,
            cheap: rules.cheaper_than_memory,
            consumers: graph.consumers(),
            is_result: graph.roots().collect(),
            domains: domains(graph, &fused),
            fused,
            row_sums: graph.ids().map(row_sum).collect(),
            is_whole_sum,
            in_accumulation: graph.accumulation_phase(),
            stored: vec![false; graph.len()],
            clusters: Vec::new(),
            cluster_of: vec![None; graph.len()],
        }
    }

    /// Whether fusions compute the node's value from values at the same row.
    fn is_inner(&self, id: NodeId) -> bool {
        self.domains[id.index()].is_some()
    }

    /// Whether the node's value is one number for each row of its domain of several columns.
    fn is_of_rows(&self, id: NodeId) -> bool {
        self.domains[id.index()].as_ref().is_some_and(|domain| domain != self.graph.shape(value(id)))
    }

    /// Whether the node is computed by a separate fusion or with others.
    fn is_root(&self, id: NodeId) -> bool {
        self.stored[id.index()] || self.row_sums[id.index()].is_some()
    }

    /// Domain of the fusion that computes a root.
    fn domain(&self, root: NodeId) -> &Shape {
        let of_sum = || self.graph.shape(self.graph.node(root).inputs[0]);
        self.domains[root.index()].as_ref().unwrap_or_else(of_sum)
    }

    /// Whether `consumer` computes, in a fusion over the domain of `producer`, from the value of `producer`.
    fn can_inline(&self, producer: NodeId, consumer: NodeId) -> bool {
        let sums_rows = || self.row_sums[consumer.index()].is_some() && !self.is_of_rows(producer);
        self.is_inner(producer)
            && self.is_of_same_phase(producer, consumer)
            && (self.is_inner(consumer) || sums_rows())
            && !self.is_random(consumer)
            && self.domain(consumer) == self.domain(producer)
    }

    /// Whether both run for every micro-batch of a step, or both once. Work that is done once is not done in a fusion that is run more
    /// often; and what follows the sums of a step is the same whether one rank takes all micro-batches or several share them.
    fn is_of_same_phase(&self, a: NodeId, b: NodeId) -> bool {
        self.in_accumulation[a.index()] == self.in_accumulation[b.index()]
    }

    /// Whether the node's values are random numbers, which depend on the step alone.
    fn is_random(&self, id: NodeId) -> bool {
        matches!(self.fused[id.index()], Some(FusedOp::Random { .. }))
    }

    fn must_store(&self, id: NodeId) -> bool {
        !self.fuse
            || self.is_result.contains(&value(id))
            || self.consumers[id.index()].iter().any(|&c| !self.can_inline(id, c))
    }

    fn choose_stored(&mut self) {
        let mut chosen_before: BTreeSet<NodeId> = BTreeSet::new();
        loop {
            let chosen = self.store_what_pays(&chosen_before);
            let earlier = self.store_earlier(&chosen);
            if earlier.is_empty() {
                return;
            }
            chosen_before.extend(earlier);
        }
    }

    /// Decides for each value whether it is stored, those of `chosen_before` in any case. Returns those that need not be, but pay.
    fn store_what_pays(&mut self, chosen_before: &BTreeSet<NodeId>) -> Vec<NodeId> {
        let order: Vec<NodeId> = self.graph.ids().filter(|&id| self.is_inner(id)).collect();
        for &id in &order {
            self.stored[id.index()] = self.must_store(id) || chosen_before.contains(&id);
        }
        let mut chosen: Vec<NodeId> = Vec::new();
        if !self.fuse {
            return chosen;
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
            let pays = || self.is_of_rows(id) || self.narrows(id) || self.should_store(id, &roots);
            if !self.stored[id.index()] && !self.widens(id) && roots.len() > 1 && self.fusions(&roots) > 1 && pays() {
                self.stored[id.index()] = true;
                chosen.push(id);
            }
            users.insert(id, roots);
        }
        chosen
    }

    /// Values to be stored in place of several of `chosen` that are made at expense, and are cheap to compute from them.
    fn store_earlier(&mut self, chosen: &[NodeId]) -> Vec<NodeId> {
        chosen.iter().for_each(|id| self.stored[id.index()] = false);
        let mut made_of: BTreeMap<NodeId, BTreeSet<NodeId>> = BTreeMap::new();
        for &id in chosen.iter().filter(|&&id| !self.is_of_rows(id) && !self.narrows(id) && !self.is_row(id)) {
            let expression = self.expression_from_rows(&[id]);
            if self.has_costly_arithmetic(&expression) {
                made_of.insert(id, expression.inner);
            }
        }
        let candidates: BTreeSet<NodeId> = made_of.values().flatten().copied().collect();
        let mut earlier = Vec::new();
        for candidate in candidates.into_iter().rev() {
            if self.is_of_rows(candidate) || chosen.contains(&candidate) {
                continue;
            }
            self.stored[candidate.index()] = true;
            let replaced: Vec<NodeId> = made_of
                .iter()
                .filter(|&(&id, inner)| inner.contains(&candidate) && !self.recompute_exceeds_load(id))
                .map(|(&id, _)| id)
                .collect();
            let bytes = |id: NodeId| self.graph.ty(value(id)).bytes();
            if replaced.iter().map(|&id| bytes(id)).sum::<usize>() > bytes(candidate) {
                replaced.iter().for_each(|id| {
                    made_of.remove(id);
                });
                earlier.push(candidate);
            } else {
                self.stored[candidate.index()] = false;
            }
        }
        chosen.iter().for_each(|id| self.stored[id.index()] = true);
        earlier
    }

    /// Whether the node's value is a single row.
    fn is_row(&self, id: NodeId) -> bool {
        self.graph.shape(value(id)).rows() == 1
    }

    /// Whether the value is a rounded form that takes less memory than what it is made of.
    fn narrows(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.op.cast_target().is_some_and(|to| to.size() < self.graph.dtype(node.inputs[0]).size())
    }

    /// Whether the value is a wider form of a value in memory, which loads give as well.
    fn widens(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        node.op.cast_target() == Some(DType::F32) && self.graph.dtype(node.inputs[0]).size() < DType::F32.size()
    }

    fn recompute_cost(&self, id: NodeId) -> RecomputeCost {
        self.graph.node(id).op.rule().recompute_cost()
    }

    /// Whether the node costs more than to read its value. Numbers of rows are few.
    fn is_costly(&self, id: NodeId) -> bool {
        let cost = self.recompute_cost(id);
        cost > self.cheap && !(cost == RecomputeCost::Function && self.is_of_rows(id))
    }

    /// Whether it does by more than a division.
    fn is_costly_function(&self, id: NodeId) -> bool {
        self.is_costly(id) && self.recompute_cost(id) > RecomputeCost::Division
    }

    /// What computes the roots from stored values and from numbers for each row, which can be stored for next to nothing.
    fn expression_from_rows(&self, roots: &[NodeId]) -> Expression {
        self.expression(roots, &|n| if self.is_of_rows(n) { Inner::Read } else { Inner::IfNotStored })
    }

    /// Whether computing the value costs more than reading it.
    fn recompute_exceeds_load(&self, id: NodeId) -> bool {
        let expression = self.expression_from_rows(&[id]);
        self.has_costly_arithmetic(&expression) || self.full_leaves(&expression, self.graph.shape(value(id))).len() > 2
    }

    /// Whether there is more in it than cheap operations.
    fn has_costly_arithmetic(&self, expression: &Expression) -> bool {
        expression.inner.iter().any(|&n| self.is_costly(n))
    }

    /// Whether recomputing the value costs the fusions of `roots` more than reading it back. What they read in any case costs
    /// nothing, and the memory of more than a row is worth more than arithmetic.
    fn should_store(&self, id: NodeId, roots: &BTreeSet<NodeId>) -> bool {
        if !self.recompute_exceeds_load(id) {
            return false;
        }
        let shape = self.graph.shape(value(id));
        if self.is_row(id) {
            return true;
        }
        let own = self.full_leaves(&self.expression_from_rows(&[id]), shape);
        !roots.iter().all(|&root| {
            let rest = self.expression(&[root], &|n| match n {
                n if n == id || self.is_of_rows(n) => Inner::Read,
                _ => Inner::IfNotStored,
            });
            own.is_subset(&self.full_leaves(&rest, shape))
        })
    }

    /// Lower bound of the number of fusions that can hold `roots`: the longest chain of dependencies among them.
    fn fusions(&self, roots: &BTreeSet<NodeId>) -> usize {
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
        let mut seen = vec![false; (node.index() + 1).saturating_sub(on.index())];
        while let Some(id) = stack.pop() {
            if id == on {
                return true;
            }
            let inputs = self.graph.node(id).inputs.iter().map(|v| v.node);
            stack.extend(inputs.filter(|&n| n >= on && !std::mem::replace(&mut seen[n.index() - on.index()], true)));
        }
        false
    }

    /// The nodes that compute `roots` from stored values, and from others as `inner` says.
    fn expression(&self, roots: &[NodeId], inner: &dyn Fn(NodeId) -> Inner) -> Expression {
        let mut expression = Expression::default();
        let mut stack: Vec<NodeId> = Vec::new();
        for &root in roots {
            if self.is_inner(root) {
                stack.push(root);
            } else {
                let input = self.graph.node(root).inputs[0];
                self.enter(input, root, roots, inner, &mut stack, &mut expression);
            }
        }
        while let Some(id) = stack.pop() {
            if !expression.inner.insert(id) {
                continue;
            }
            for &input in &self.graph.node(id).inputs {
                self.enter(input, id, roots, inner, &mut stack, &mut expression);
            }
        }
        expression
    }

    fn enter(
        &self,
        input: Value,
        reader: NodeId,
        roots: &[NodeId],
        inner: &dyn Fn(NodeId) -> Inner,
        stack: &mut Vec<NodeId>,
        expression: &mut Expression,
    ) {
        let id = input.node;
        let computed = || match inner(id) {
            Inner::Computed => true,
            Inner::IfNotStored => !self.stored[id.index()] || roots.contains(&id),
            Inner::Read => false,
        };
        if self.can_inline(id, reader) && computed() {
            stack.push(id);
        } else if self.graph.uniform(input).is_none() || self.is_random(reader) {
            expression.leaves.insert(input);
        }
    }

    /// Leaves with one element for each of the domain's.
    fn full_leaves(&self, expression: &Expression, domain: &Shape) -> BTreeSet<Value> {
        expression.leaves.iter().copied().filter(|&v| self.graph.shape(v).elements() == domain.elements()).collect()
    }

    /// Whether an expression takes elements at the same position of the domain and single numbers alone.
    fn is_flat(&self, expression: &Expression, domain: &Shape) -> bool {
        let is_full_or_one = |leaf: &Value| [1, domain.elements()].contains(&self.graph.shape(*leaf).elements());
        let takes_rows = |id: NodeId| {
            self.is_of_rows(id) || matches!(self.fused[id.index()], Some(FusedOp::RowReduce(_) | FusedOp::OneHot))
        };
        expression.leaves.iter().all(is_full_or_one) && !expression.inner.iter().any(|&id| takes_rows(id))
    }

    /// The expression of a cluster, with stored values recomputed that cost no further tensor to recompute.
    fn cluster_expression(&self, roots: &[NodeId], domain: &Shape) -> (Expression, HashSet<NodeId>) {
        let adds_whole = roots.iter().any(|root| self.is_whole_sum[root.index()]);
        let mut recomputed: HashSet<NodeId> = HashSet::new();
        loop {
            let inner = |id: NodeId| if recomputed.contains(&id) { Inner::Computed } else { Inner::IfNotStored };
            let expression = self.expression(roots, &inner);
            let full = self.full_leaves(&expression, domain);
            let next = full.iter().find(|leaf| {
                let id = leaf.node;
                if !self.fuse || !self.is_inner(id) || domain.rank() < 2 || recomputed.contains(&id) {
                    return false;
                }
                let inner = self.expression(&[id], &inner);
                let cheap = !inner.inner.iter().any(|&n| self.is_costly_function(n));
                let leaves = self.full_leaves(&inner, domain);
                cheap
                    && leaves.iter().all(|l| full.contains(l) && l != *leaf)
                    && (!adds_whole || self.is_flat(&inner, domain))
            });
            match next {
                Some(leaf) => recomputed.insert(leaf.node),
                None => return (expression, recomputed),
            };
        }
    }

    fn grow(&mut self) {
        let roots: Vec<NodeId> = self.graph.ids().filter(|&id| self.is_root(id)).collect();
        let mut readers: HashMap<Value, Vec<usize>> = HashMap::new();
        for root in roots {
            let domain = self.domain(root).clone();
            let expression = self.expression(&[root], &|_| Inner::IfNotStored);
            let full = self.full_leaves(&expression, &domain);
            let adds_whole = self.is_whole_sum[root.index()];
            let is_of_elements = self.is_inner(root) && !self.is_of_rows(root);
            let is_flat = (adds_whole || is_of_elements) && self.is_flat(&expression, &domain);
            let candidates: BTreeSet<usize> = if self.fuse && domain.elements() > 1 {
                let sharing = full.iter().flat_map(|leaf| readers.get(leaf).into_iter().flatten().copied());
                sharing
                    .chain(expression.leaves.iter().filter_map(|leaf| self.cluster_of[leaf.node.index()]))
                    .filter(|&c| self.clusters[c].domain == domain && self.is_of_same_pass(c, root))
                    .filter(|&c| {
                        let cluster = &self.clusters[c];
                        !(adds_whole || cluster.adds_whole) || is_flat && cluster.is_flat
                    })
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
                    producer: None,
                    leaves: BTreeSet::new(),
                    recomputed: HashSet::new(),
                    inputs: BTreeSet::new(),
                    needs_rows: false,
                    is_flat: true,
                    adds_whole: false,
                });
            }
            let cluster = &mut self.clusters[index];
            cluster.is_flat &= is_flat;
            cluster.adds_whole |= adds_whole;
            cluster.inputs.extend(expression.leaves.iter().map(|v| v.node).filter(|n| !cluster.roots.contains(n)));
            cluster.roots.push(root);
            self.cluster_of[root.index()] = Some(index);
            for leaf in full {
                readers.entry(leaf).or_default().push(index);
            }
        }
    }

    /// Whether a root is computed a second time just as the cluster is, or just as little, and as often in a step.
    fn is_of_same_pass(&self, cluster: usize, root: NodeId) -> bool {
        let other = self.clusters[cluster].roots[0];
        is_recomputed(self.graph, root) == is_recomputed(self.graph, other) && self.is_of_same_phase(root, other)
    }

    /// Whether `root` may be computed with the cluster: it reads roots as they are computed, sums over rows aside, and nothing
    /// else that is computed from the cluster.
    fn can_join(&self, root: NodeId, expression: &Expression, cluster: usize) -> bool {
        let Cluster { roots, domain, .. } = &self.clusters[cluster];
        let read_as_computed = |leaf: &Value| roots.contains(&leaf.node) && self.can_inline(leaf.node, root);
        let finished: Vec<NodeId> =
            expression.leaves.iter().filter(|leaf| !read_as_computed(leaf)).map(|leaf| leaf.node).collect();
        debug_assert_eq!(self.domain(root), domain);
        !self.depends_on_unit(finished, |id| self.cluster_of[id.index()] == Some(cluster))
    }

    /// Whether any of `from` is, or is computed from, a node that `is_target` holds for; clusters count as one node.
    fn depends_on_unit(&self, from: Vec<NodeId>, is_target: impl Fn(NodeId) -> bool) -> bool {
        let mut stack = from;
        let mut seen = vec![false; self.graph.len()];
        let mut is_seen_cluster = vec![false; self.clusters.len()];
        while let Some(id) = stack.pop() {
            if is_target(id) {
                return true;
            }
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            match self.cluster_of[id.index()] {
                Some(c) if std::mem::replace(&mut is_seen_cluster[c], true) => {}
                Some(c) => stack.extend(&self.clusters[c].inputs),
                None => stack.extend(self.graph.node(id).inputs.iter().map(|v| v.node)),
            }
        }
        false
    }

    fn settle_leaves(&mut self) {
        for index in 0..self.clusters.len() {
            let cluster = &self.clusters[index];
            let (expression, recomputed) = self.cluster_expression(&cluster.roots, &cluster.domain);
            let inputs = expression.leaves.iter().map(|v| v.node).collect();
            let needs_rows = expression.inner.iter().any(|&n| self.is_of_rows(n));
            let cluster = &mut self.clusters[index];
            cluster.needs_rows = needs_rows;
            (cluster.leaves, cluster.recomputed, cluster.inputs) = (expression.leaves, recomputed, inputs);
        }
    }

    fn attach_producers(&mut self) {
        for index in 0..self.clusters.len() {
            let cluster = &self.clusters[index];
            if cluster.needs_rows || cluster.adds_whole {
                continue;
            }
            let producer = cluster.leaves.iter().copied().find(|&leaf| {
                let others = cluster.leaves.iter().map(|v| v.node).filter(|&n| n != leaf.node).collect();
                self.is_producer(leaf, &cluster.domain)
                    && self.is_of_same_phase(leaf.node, cluster.roots[0])
                    && self.cluster_of[leaf.node.index()].is_none()
                    && !self.depends_on_unit(others, |id| id == leaf.node)
            });
            if let Some(producer) = producer {
                self.cluster_of[producer.node.index()] = Some(index);
                let cluster = &mut self.clusters[index];
                cluster.producer = Some(producer.node);
                cluster.leaves.remove(&producer);
                cluster.inputs.remove(&producer.node);
                cluster.inputs.extend(self.graph.node(producer.node).inputs.iter().map(|v| v.node));
            }
        }
    }

    /// Lets convolutions and matmuls that run no fusion, and are only read in a rounded form, write that form: fusions read it, and one
    /// that stored it does so no more.
    fn narrow_products(&mut self) {
        for product in self.graph.ids() {
            let raw = value(product);
            let [cast] = self.consumers[product.index()][..] else { continue };
            let reads_raw = |cluster: &Cluster| cluster.leaves.contains(&raw);
            if self.cluster_of[product.index()].is_some()
                || self.is_result.contains(&raw)
                || !self.narrows(cast)
                || self.cluster_of[cast.index()].is_some_and(|home| self.clusters[home].roots == [cast])
                || !self.is_producer(raw, self.graph.shape(raw))
                || !self.clusters.iter().any(reads_raw)
            {
                continue;
            }
            self.stored[cast.index()] = true;
            for cluster in self.clusters.iter_mut().filter(|cluster| reads_raw(cluster)) {
                cluster.roots.retain(|&root| root != cast);
                cluster.leaves.remove(&raw);
                cluster.leaves.insert(value(cast));
                cluster.inputs.remove(&product);
                cluster.inputs.insert(cast);
            }
            for id in [product, cast] {
                self.cluster_of[id.index()] = Some(self.clusters.len());
            }
            self.clusters.push(Cluster {
                domain: self.graph.shape(raw).clone(),
                roots: vec![cast],
                producer: Some(product),
                leaves: BTreeSet::new(),
                recomputed: HashSet::new(),
                inputs: self.graph.node(product).inputs.iter().map(|v| v.node).collect(),
                needs_rows: false,
                is_flat: true,
                adds_whole: false,
            });
        }
    }

    /// Whether the kernel of a product gives no more than the 16 bits of its operands.
    fn gives_16_bits(&self, product: NodeId) -> bool {
        let node = self.graph.node(product);
        self.products_give_16_bits && node.op.product().is_some() && self.graph.dtype(node.inputs[0]).size() == 2
    }

    /// Whether a value is the output of a kernel that can run a fusion on the blocks it finishes.
    fn is_producer(&self, leaf: Value, domain: &Shape) -> bool {
        let ty = self.graph.ty(leaf);
        let fits = ty.dtype == DType::F32 && ty.shape == *domain;
        let producer = || self.graph.node(leaf.node).op.rule().producer(&self.graph.input_types(leaf.node));
        fits && producer() == Producer::Yes
    }
}

/// Whether a value that a fusion could compute is computed in it.
#[derive(Clone, Copy)]
enum Inner {
    Computed,
    IfNotStored,
    Read,
}

/// What a fusion computes: nodes inside, values read.
#[derive(Default)]
struct Expression {
    inner: BTreeSet<NodeId>,
    leaves: BTreeSet<Value>,
}
