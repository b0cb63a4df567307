//! Writes the graph in which fusions stand for what they compute.

use super::{Cluster, Fuser, value};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, NodeId, Rewriter, Value};
use crate::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg, RegType};
use crate::ops::{FusedOp, RowSum, Scalar};
use crate::shape::Shape;
use std::collections::{HashMap, HashSet};

impl Fuser<'_> {
    pub(super) fn emit(self) -> Result<Graph, GraphError> {
        let compiled: Vec<CompiledFusion> = (0..self.clusters.len()).map(|c| self.compile(c)).collect();
        let mut rewriter = Rewriter::new(self.graph);
        for unit in self.unit_order(&compiled) {
            match unit {
                Unit::Node(id) => rewriter.copy(id)?,
                Unit::Cluster(cluster) => {
                    let fusion = &compiled[cluster];
                    let inputs: Vec<Value> = fusion.inputs.iter().map(|&v| rewriter.get(v)).collect();
                    let path =
                        self.graph.path(self.clusters[cluster].producer.unwrap_or(self.clusters[cluster].roots[0]));
                    let outputs = rewriter.target().at_path(path, |g| g.push(fusion.fusion.clone(), &inputs))?;
                    for (&source, &target) in fusion.results.iter().zip(&outputs) {
                        rewriter.set(source, target);
                    }
                }
            }
        }
        rewriter.finish()
    }

    /// Nodes and clusters in the order of the graph, each preceded by what it reads and was not there yet.
    fn unit_order(&self, compiled: &[CompiledFusion]) -> Vec<Unit> {
        let live = crate::passes::simplify::live_nodes(self.graph);
        let mut units: Vec<(Unit, NodeId, Vec<NodeId>)> = Vec::new();
        for id in self.graph.ids() {
            let inside = self.is_inner(id) || self.cluster_of[id.index()].is_some();
            if live[id.index()] && !inside {
                units.push((Unit::Node(id), id, self.graph.node(id).inputs.iter().map(|v| v.node).collect()));
            }
        }
        for (index, fusion) in compiled.iter().enumerate() {
            let first = *self.clusters[index].roots.iter().min().expect("a cluster has roots");
            let place = self.clusters[index].producer.unwrap_or(first);
            units.push((Unit::Cluster(index), place, fusion.inputs.iter().map(|v| v.node).collect()));
        }
        let provider: HashMap<NodeId, usize> = units
            .iter()
            .enumerate()
            .flat_map(|(u, (unit, place, _))| match *unit {
                Unit::Node(_) => vec![(*place, u)],
                Unit::Cluster(c) => {
                    self.clusters[c].roots.iter().copied().chain(self.clusters[c].producer).map(|n| (n, u)).collect()
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

    fn compile(&self, cluster: usize) -> CompiledFusion {
        let Cluster { domain, roots, producer, recomputed, adds_whole, .. } = &self.clusters[cluster];
        let one_run = Shape::from([domain.elements(), 1]);
        let domain = if *adds_whole { &one_run } else { domain };
        let mut emitter = Emitter {
            fuser: self,
            domain,
            cluster,
            roots,
            recomputed,
            is_one_run: *adds_whole,
            producer: *producer,
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
                outputs.push(if of_rows { FusionOutput::Rows { reg, ty } } else { FusionOutput::Store { reg, ty } });
                results.push(value(root));
                continue;
            }
            let reg = emitter.operand(node.inputs[0], root);
            let shape = node.outputs[0].shape.clone();
            match self.row_sums[root.index()].expect("a root that fusions do not compute element by element sums rows")
            {
                RowSum::MeanVar => {
                    outputs.push(FusionOutput::MeanVar { reg, shape });
                    results.extend([value(root), Value { node: root, output: 1 }]);
                }
                RowSum::Sum { groups } => {
                    outputs.push(FusionOutput::Sum { reg, groups, shape });
                    results.push(value(root));
                }
            }
        }
        let mut inputs = Vec::new();
        if let Some(producer) = *producer {
            let node = self.graph.node(producer);
            inputs.extend(&node.inputs);
            if self.is_read_outside(producer, cluster) {
                let reg = emitter.producer_register();
                outputs.push(FusionOutput::Store { reg, ty: node.outputs[0].clone() });
                results.push(value(producer));
            }
        }
        inputs.extend(emitter.loads.iter().map(|&(v, _)| v));
        let loads = emitter.loads.iter().map(|&(_, index_map)| index_map).collect();
        let fusion = Fusion {
            producer: producer.map(|id| Box::new(self.graph.node(id).op.clone())),
            rows: domain.rows(),
            cols: domain.cols(),
            loads,
            program: emitter.program,
            outputs,
        };
        CompiledFusion { fusion, inputs, results }
    }

    /// Whether anything but the cluster needs the producer's own output.
    fn is_read_outside(&self, producer: NodeId, cluster: usize) -> bool {
        let by_cluster = self.clusters.iter().enumerate().any(|(index, other)| {
            (index != cluster && other.leaves.contains(&value(producer)))
                || other.producer.is_some_and(|n| self.graph.node(n).inputs.contains(&value(producer)))
        });
        let by_node =
            self.consumers[producer.index()].iter().any(|c| !self.is_inner(*c) && self.cluster_of[c.index()].is_none());
        by_cluster || by_node || self.is_result.contains(&value(producer))
    }
}

struct CompiledFusion {
    fusion: Fusion,
    inputs: Vec<Value>,
    /// Values of the graph that the fusion's outputs are, in order.
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

/// Writes the program of one fusion.
struct Emitter<'a, 'g> {
    fuser: &'a Fuser<'g>,
    domain: &'a Shape,
    cluster: usize,
    roots: &'a [NodeId],
    recomputed: &'a HashSet<NodeId>,
    /// Whether the domain is a tensor as one run of elements.
    is_one_run: bool,
    producer: Option<NodeId>,
    program: Vec<Instr>,
    registers: HashMap<Value, Reg>,
    /// Registers of labels, which are read along the rows.
    labels: HashMap<Value, Reg>,
    constants: HashMap<Instr, Reg>,
    loads: Vec<(Value, IndexMap)>,
}

impl Emitter<'_, '_> {
    fn push(&mut self, instr: Instr) -> Reg {
        self.program.push(instr);
        (self.program.len() - 1) as Reg
    }

    /// The number of a new load.
    fn load(&mut self, v: Value, index_map: IndexMap) -> u16 {
        self.loads.push((v, index_map));
        (self.loads.len() - 1) as u16
    }

    /// The register that holds the column of a one-hot row.
    fn label(&mut self, v: Value) -> Reg {
        if let Some(&reg) = self.labels.get(&v) {
            return reg;
        }
        let load = self.load(v, IndexMap { row_div: 1, row_mod: self.domain.rows(), by_col: false });
        let reg = self.push(Instr::Load(load));
        self.labels.insert(v, reg);
        reg
    }

    fn producer_register(&mut self) -> Reg {
        let producer = value(self.producer.expect("only asked for with a producer"));
        if let Some(&reg) = self.registers.get(&producer) {
            return reg;
        }
        let reg = self.push(Instr::Producer);
        self.registers.insert(producer, reg);
        reg
    }

    /// Whether the node rounds the producer's output for this fusion alone, which reads it as it is: to hold a product in 16 bits
    /// saves memory, and this one is in none.
    fn is_excess_rounding(&self, id: NodeId) -> bool {
        let fuser = self.fuser;
        let source = fuser.graph.node(id).inputs[0];
        fuser.narrows(id)
            && self.producer == Some(source.node)
            && !fuser.gives_16_bits(source.node)
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
            && (!self.fuser.stored[id.index()] || self.roots.contains(&id) || self.recomputed.contains(&id));
        if inside {
            return self.node(id);
        }
        if self.producer == Some(id) {
            return self.producer_register();
        }
        if let Some(&reg) = self.registers.get(&v) {
            return reg;
        }
        let shape = self.fuser.graph.shape(v);
        let index_map = match (self.is_one_run, shape.elements()) {
            (true, 1) => Some(IndexMap::SCALAR),
            (true, elements) => (elements == self.domain.elements()).then(|| IndexMap::full(elements)),
            (false, _) => IndexMap::of(shape, self.domain),
        };
        let index_map = index_map.expect("operands of a canonical graph are expressible");
        let load = self.load(v, index_map);
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
        let fused = self.fuser.fused[id.index()].expect("fusions compute the node");
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
                Instr::Random { seed, stream, step: self.load(node.inputs[0], IndexMap::SCALAR) }
            }
        };
        let reg = self.push(instr);
        self.registers.insert(value(id), reg);
        reg
    }
}
