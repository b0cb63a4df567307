//! Near misses: products whose output a fusion reads from memory, although it could have been given it in cache.

use crate::graph::{Graph, NodeId, Value};
use crate::ops::Producer;
use crate::ops::fusion::{Fusion, FusionOutput};
use std::fmt;

/// A product that runs alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    /// Path of the product in the model.
    pub path: String,
    /// Name of the product's operation.
    pub op: &'static str,
    /// Path of the fusion that reads it, the nearest one.
    pub fusion: String,
    /// Why the two could not be one kernel.
    pub reason: Reason,
}

/// Why a product and a fusion that reads it run apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The fusion reduces along rows.
    NeedsWholeRows,
    /// The fusion runs with another product.
    RunsWithAnother,
    /// The fusion has another shape than the product's output.
    OtherShape,
    /// The fusion also reads what is computed from the product's output.
    ReadsWhatFollows,
    /// Several matrices are multiplied one by one.
    IsBatched,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NeedsWholeRows => "the fusion needs whole rows",
            Reason::RunsWithAnother => "the fusion runs with another product",
            Reason::OtherShape => "the fusion has another shape",
            Reason::ReadsWhatFollows => "the fusion also reads what is computed from it",
            Reason::IsBatched => "it is a batch of products",
        })
    }
}

/// The near misses of a graph that the pass has left, in order.
pub fn near_misses(graph: &Graph) -> Vec<NearMiss> {
    let consumers = graph.consumers();
    let can_produce = |id: &NodeId| graph.node(*id).op.rule().producer(&graph.input_types(*id)) != Producer::No;
    graph
        .ids()
        .filter(can_produce)
        .filter_map(|id| {
            let fusion = |reader| fusion_of(graph, reader).filter(|fusion| !adds_whole(graph, id, fusion));
            let reader = consumers[id.index()].iter().find_map(|&c| Some((c, fusion(c)?)))?;
            Some(NearMiss {
                path: graph.path(id).to_string(),
                op: graph.node(id).op.rule().name(),
                fusion: graph.path(reader.0).to_string(),
                reason: reason(graph, id, reader),
            })
        })
        .collect()
}

fn fusion_of(graph: &Graph, id: NodeId) -> Option<&Fusion> {
    graph.node(id).op.as_fusion()
}

/// Whether the fusion takes what the product gives as one run of elements, to add it.
fn adds_whole(graph: &Graph, product: NodeId, fusion: &Fusion) -> bool {
    let cols = graph.shape(Value { node: product, output: 0 }).cols();
    cols != 1 && fusion.cols == 1 && fusion.outputs.iter().any(|output| matches!(output, FusionOutput::Sum { .. }))
}

fn reason(graph: &Graph, product: NodeId, (id, fusion): (NodeId, &Fusion)) -> Reason {
    let own = Value { node: product, output: 0 };
    let shape = graph.shape(own);
    if fusion.is_rowwise() {
        Reason::NeedsWholeRows
    } else if fusion.producer.is_some() {
        Reason::RunsWithAnother
    } else if [shape.rows(), shape.cols()] != [fusion.rows, fusion.cols] {
        Reason::OtherShape
    } else if is_made_of(graph, &graph.node(id).inputs, own) {
        Reason::ReadsWhatFollows
    } else {
        Reason::IsBatched
    }
}

/// Whether any of `values` but `value` itself is computed from it.
fn is_made_of(graph: &Graph, values: &[Value], value: Value) -> bool {
    let others = values.iter().filter(|&&other| other != value);
    graph.ancestors(others.map(|other| other.node))[value.node.index()]
}
