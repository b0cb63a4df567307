//! Regions that compute the same for other tensors, such as the updates of an optimizer: they may run as one.

use crate::dtype::DType;
use crate::graph::{Graph, NodeId};
use crate::ops::fusion::{FusionOutput, IndexMap, Instr, Reg};

/// What a region computes for an element, whatever tensors it reads and writes and however many elements they have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    /// Type of each input, and whether it has one element for each of the region's, or one for all.
    loads: Vec<(DType, bool)>,
    program: Vec<Instr>,
    /// What is stored of each element, and its type.
    stores: Vec<(Reg, DType)>,
}

impl Form {
    /// The form of a node. `None` for what is no region, and for regions behind a product, with reductions or sums, with other
    /// ways to read their inputs, or whose results depend on the column.
    pub fn of(graph: &Graph, id: NodeId) -> Option<Form> {
        let fusion = graph.node(id).op.as_fusion().filter(|fusion| fusion.producer.is_none())?;
        if fusion.is_rowwise() || fusion.program.iter().any(|instr| matches!(instr, Instr::OneHot(_))) {
            return None;
        }
        let load = |(index_map, ty): (&IndexMap, DType)| {
            let is_full = index_map.is_full(fusion.rows);
            (is_full || *index_map == IndexMap::SCALAR).then_some((ty, is_full))
        };
        let store = |output: &FusionOutput| match output {
            FusionOutput::Store { reg, ty } => Some((*reg, ty.dtype)),
            FusionOutput::Rows { .. } | FusionOutput::Sum { .. } | FusionOutput::MeanVar { .. } => None,
        };
        let types = graph.input_types(id).into_iter().map(|ty| ty.dtype);
        Some(Form {
            loads: fusion.loads.iter().zip(types).map(load).collect::<Option<_>>()?,
            program: fusion.program.clone(),
            stores: fusion.outputs.iter().map(store).collect::<Option<_>>()?,
        })
    }
}
