//! Fusions that may run as one: those that compute the same for other tensors, such as the updates of an optimizer, and those of one
//! element, which compute one number from others.

use super::invariant::Invariant;
use crate::dtype::DType;
use crate::graph::{Graph, NodeId};
use crate::ops::Storage;
use crate::ops::fusion::{FusionOutput, IndexMap, Instr, Reg};
use std::ops::Range;

/// What a fusion computes for an element, whatever tensors it reads and writes and however many elements they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Type of each input, and whether it has one element for each of the fusion's, or one for all.
    loads: Vec<(DType, bool)>,
    program: Vec<Instr>,
    outputs: Vec<FormOutput>,
}

/// What becomes of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FormOutput {
    /// It is stored for each element, in this type.
    Store(Reg, DType),
    /// All elements are added to one number.
    Sum(Reg),
}

impl Form {
    /// The form of a node. `None` for what is no fusion, and for fusions behind a product, with reductions along rows or sums of several
    /// columns, with other ways to read their inputs, or whose results depend on the column.
    pub fn of(graph: &Graph, id: NodeId) -> Option<Form> {
        let fusion = graph.node(id).op.as_fusion().filter(|fusion| fusion.producer.is_none())?;
        if fusion.is_rowwise() || fusion.program.iter().any(|instr| matches!(instr, Instr::OneHot(_))) {
            return None;
        }
        let load = |(index_map, ty): (&IndexMap, DType)| {
            let is_full = index_map.is_full(fusion.rows);
            (is_full || *index_map == IndexMap::SCALAR).then_some((ty, is_full))
        };
        let output = |output: &FusionOutput| match output {
            FusionOutput::Store { reg, ty } => Some(FormOutput::Store(*reg, ty.dtype)),
            FusionOutput::Sum { reg, groups: 1, .. } if fusion.cols == 1 => Some(FormOutput::Sum(*reg)),
            FusionOutput::Rows { .. } | FusionOutput::Sum { .. } | FusionOutput::MeanVar { .. } => None,
        };
        let types = graph.input_types(id).into_iter().map(|ty| ty.dtype);
        Some(Form {
            loads: fusion.loads.iter().zip(types).map(load).collect::<Option<_>>()?,
            program: fusion.program.clone(),
            outputs: fusion.outputs.iter().map(output).collect::<Option<_>>()?,
        })
    }

    /// Whether it adds all elements of a tensor.
    pub fn adds(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, FormOutput::Sum(_)))
    }
}

/// Whether a node is a fusion of one element.
pub fn is_scalar(graph: &Graph, id: NodeId) -> bool {
    let has_one = graph.node(id).op.as_fusion().is_some_and(|fusion| fusion.rows * fusion.cols == 1);
    has_one && Form::of(graph, id).is_some_and(|form| !form.adds())
}

/// Which nodes of a graph whose order is final may run as one: neighbours among the nodes that kernels compute in every step, all of one
/// part of a step, that have one form and do not read each other's results, or that have one element each.
#[derive(Clone, Debug)]
pub struct Runs {
    /// For each node the first and the last one of its run, which may be itself.
    spans: Vec<Range<usize>>,
}

impl Runs {
    /// Finds the runs.
    pub fn of(graph: &Graph, invariant: &Invariant) -> Runs {
        let in_accumulation = graph.accumulation_phase();
        let mut spans: Vec<Range<usize>> = (0..graph.len()).map(|index| index..index).collect();
        let mut run: Vec<NodeId> = Vec::new();
        let mut kind = Kind::Alone;
        let is_called =
            |id: &NodeId| graph.node(*id).op.rule().storage() == Storage::Computed && !invariant.runs_once(graph, *id);
        for id in graph.ids().filter(is_called) {
            let own = Kind::of(graph, id);
            let is_next =
                run.first().is_some_and(|first| in_accumulation[first.index()] == in_accumulation[id.index()])
                    && match &own {
                        Kind::Alone => false,
                        Kind::Scalar => kind == own,
                        Kind::Alike(_) => kind == own && !reads_any(graph, id, &run),
                    };
            if !is_next {
                run.clear();
                kind = own;
            }
            run.push(id);
            let span = run[0].index()..id.index();
            run.iter().for_each(|other| spans[other.index()] = span.clone());
        }
        Runs { spans }
    }

    /// Each node by itself.
    pub(crate) fn none(graph: &Graph) -> Runs {
        Runs { spans: (0..graph.len()).map(|index| index..index).collect() }
    }

    /// Index of the first and of the last node of a node's run.
    pub(crate) fn span(&self, index: usize) -> (usize, usize) {
        (self.spans[index].start, self.spans[index].end)
    }

    /// Whether two nodes are of one run.
    pub fn are_of_one(&self, a: NodeId, b: NodeId) -> bool {
        self.spans[a.index()] == self.spans[b.index()]
    }
}

/// Why a node may run with its neighbours.
#[derive(PartialEq, Eq)]
enum Kind {
    Alone,
    Alike(Form),
    Scalar,
}

impl Kind {
    fn of(graph: &Graph, id: NodeId) -> Kind {
        match Form::of(graph, id) {
            Some(_) if is_scalar(graph, id) => Kind::Scalar,
            Some(form) => Kind::Alike(form),
            None => Kind::Alone,
        }
    }
}

/// Whether a node reads a result of one of `others`, which are in order, or a view of it.
fn reads_any(graph: &Graph, id: NodeId, others: &[NodeId]) -> bool {
    graph.node(id).inputs.iter().any(|input| others.binary_search(&viewed(graph, input.node)).is_ok())
}

/// The node whose result a node is a view of; itself, where it is none.
pub fn viewed(graph: &Graph, mut id: NodeId) -> NodeId {
    while graph.node(id).op.rule().storage() == Storage::View {
        id = graph.node(id).inputs[0].node;
    }
    id
}
