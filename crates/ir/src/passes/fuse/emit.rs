//! Writes the graph in which regions stand for what they compute.

use super::{Cluster, Fuser, value};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::region::{Access, Instr, Reg, RegType, Region, RegionOutput};
use crate::ops::{FusedOp, RowSum, Scalar};
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

impl Fuser<'_> {
    pub(super) fn emit(self) -> Result<Graph, GraphError> {
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
        let live = crate::passes::simplify::live_nodes(self.graph);
        let mut units: Vec<(Unit, NodeId, Vec<NodeId>)> = Vec::new();
        for id in self.graph.ids() {
            let inside = self.is_inner(id) || self.cluster_of.contains_key(&id);
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
        let is_input = |u: usize| matches!(units[u].0, Unit::Node(id) if self.graph.node(id).op.as_input().is_some());
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
            cluster,
            roots,
            opened,
            anchor: *anchor,
            program: Vec::new(),
            registers: HashMap::new(),
            labels: HashMap::new(),
            constants: HashMap::new(),
            loads: Vec::new(),
        };
        let mut outputs = Vec::new();
        let mut results = Vec::new();
        for &root in roots {
            let node = self.graph.node(root);
            if self.is_inner(root) {
                let (reg, ty) = (emitter.node(root), node.outputs[0].clone());
                let of_rows = self.is_of_rows(root);
                outputs.push(if of_rows { RegionOutput::Rows { reg, ty } } else { RegionOutput::Store { reg, ty } });
                results.push(value(root));
                continue;
            }
            let reg = emitter.operand(node.inputs[0], root);
            let shape = node.outputs[0].shape.clone();
            match self.row_sums[root.index()].expect("a root that regions do not compute element by element sums rows")
            {
                RowSum::Moments => {
                    outputs.push(RegionOutput::Moments { reg, shape });
                    results.extend([value(root), Value { node: root, output: 1 }]);
                }
                RowSum::Sum { groups } => {
                    outputs.push(RegionOutput::Sum { reg, groups, shape });
                    results.push(value(root));
                }
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
        inputs.extend(emitter.loads.iter().map(|&(v, _)| v));
        let loads = emitter.loads.iter().map(|&(_, access)| access).collect();
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
            self.consumers[anchor.index()].iter().any(|c| !self.is_inner(*c) && !self.cluster_of.contains_key(c));
        by_cluster || by_node || self.is_result.contains(&value(anchor))
    }
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

/// Writes the program of one region.
struct Emitter<'a, 'g> {
    fuser: &'a Fuser<'g>,
    domain: &'a Shape,
    cluster: usize,
    roots: &'a [NodeId],
    opened: &'a HashSet<NodeId>,
    anchor: Option<NodeId>,
    program: Vec<Instr>,
    registers: HashMap<Value, Reg>,
    /// Registers of labels, which are read along the rows.
    labels: HashMap<Value, Reg>,
    constants: HashMap<Instr, Reg>,
    loads: Vec<(Value, Access)>,
}

impl Emitter<'_, '_> {
    fn push(&mut self, instr: Instr) -> Reg {
        self.program.push(instr);
        (self.program.len() - 1) as Reg
    }

    /// The number of a new load.
    fn load(&mut self, v: Value, access: Access) -> u16 {
        self.loads.push((v, access));
        (self.loads.len() - 1) as u16
    }

    /// The register that holds the column of a one-hot row.
    fn label(&mut self, v: Value) -> Reg {
        if let Some(&reg) = self.labels.get(&v) {
            return reg;
        }
        let load = self.load(v, Access { row_div: 1, row_mod: self.domain.rows(), by_col: false });
        let reg = self.push(Instr::Load(load));
        self.labels.insert(v, reg);
        reg
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

    /// Whether the node rounds the anchor's output for this region alone, which reads it as it is: to hold a product in 16 bits
    /// saves memory, and this one is in none.
    fn is_excess_rounding(&self, id: NodeId) -> bool {
        let fuser = self.fuser;
        let source = fuser.graph.node(id).inputs[0];
        fuser.narrows(id)
            && self.anchor == Some(source.node)
            && !fuser.stored[id.index()]
            && !fuser.is_read_outside(source.node, self.cluster)
    }

    /// The register that holds what `reader` reads.
    fn operand(&mut self, v: Value, reader: NodeId) -> Reg {
        let id = v.node;
        if let Some(number) = self.fuser.graph.uniform(v) {
            let instr = match RegType::of(self.fuser.graph.dtype(v)) {
                RegType::F32 => Instr::Const(Scalar(number)),
                RegType::I32 => Instr::Int(number as i32),
            };
            return match self.constants.get(&instr) {
                Some(&reg) => reg,
                None => {
                    let reg = self.push(instr);
                    self.constants.insert(instr, reg);
                    reg
                }
            };
        }
        let inside = self.fuser.can_inline(id, reader)
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
        let access = Access::of(self.fuser.graph.shape(v), self.domain).expect("prepared operands are expressible");
        let load = self.load(v, access);
        let reg = self.push(Instr::Load(load));
        self.registers.insert(v, reg);
        reg
    }

    /// The register that holds the value of a node.
    fn node(&mut self, id: NodeId) -> Reg {
        if let Some(&reg) = self.registers.get(&value(id)) {
            return reg;
        }
        let node = self.fuser.graph.node(id);
        let of_integers = || self.fuser.graph.dtype(node.inputs[0]) == DType::I32;
        if node.op.cast_target() == Some(DType::F32) && !of_integers() || self.is_excess_rounding(id) {
            // Registers hold `f32`.
            return self.operand(node.inputs[0], id);
        }
        let fused = self.fuser.fused[id.index()].expect("regions compute the node");
        let regs: Vec<Reg> = match fused {
            FusedOp::OneHot => vec![self.label(node.inputs[0])],
            FusedOp::Random { .. } => Vec::new(),
            _ => node.inputs.iter().map(|&input| self.operand(input, id)).collect(),
        };
        let instr = match fused {
            FusedOp::Unary(kind) => Instr::Unary(kind, regs[0]),
            FusedOp::Binary(kind) => Instr::Binary(kind, regs[0], regs[1]),
            FusedOp::Select => Instr::Select(regs[0], regs[1], regs[2]),
            FusedOp::Cast(to) if of_integers() && !matches!(to, DType::F32 | DType::I32) => {
                Instr::Cast(to, self.push(Instr::Cast(DType::F32, regs[0])))
            }
            FusedOp::Cast(to) => Instr::Cast(to, regs[0]),
            FusedOp::RowReduce(kind) => Instr::Reduce(kind, regs[0]),
            FusedOp::OneHot => Instr::OneHot(regs[0]),
            FusedOp::Random { seed, stream } => {
                Instr::Random { seed, stream, step: self.load(node.inputs[0], Access::SCALAR) }
            }
        };
        let reg = self.push(instr);
        self.registers.insert(value(id), reg);
        reg
    }
}
