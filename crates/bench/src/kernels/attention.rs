//! The attention of BERT-base, forward and gradient.

use super::shapes::{BERT_BASE, Bert};
use super::{Bound, Identity, Problem};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionGrad};
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType};

const MODEL: &str = "bert-base";
/// Sequences of a batch and their length: the lengths of both phases of pre-training.
const BATCHES: [(usize, usize); 2] = [(16, 128), (2, 512)];

/// Both directions for each batch, in `f32`, without dropout.
pub(super) fn of_bert() -> Result<Vec<Problem>, GraphError> {
    let mut problems = Vec::new();
    for (sequences, length) in BATCHES {
        problems.extend(of_batch(sequences, length)?);
    }
    Ok(problems)
}

fn of_batch(sequences: usize, length: usize) -> Result<[Problem; 2], GraphError> {
    let Bert { layers, hidden, heads, .. } = BERT_BASE;
    let depth = hidden / heads;
    let attention = Attention { heads, scale: Scalar(1.0 / (depth as f64).sqrt()), dropout: None };
    let rows = TensorType::f32([sequences, length, hidden]);
    let bias = TensorType::f32([sequences, length]);
    let log_sums = TensorType::f32([sequences, heads, length]);
    let operands = [rows.clone(), rows.clone(), rows.clone(), bias];
    let saved = [rows.clone(), log_sums, rows];
    let shapes = &format!("[{sequences},{length}] {heads} heads of {depth}");
    let problem = |direction, op: Op, inputs: &[TensorType]| {
        let (layer, family) = ("attention", "attention");
        let identity = Identity { model: MODEL, layer, shapes, direction, family, bound: Bound::Arithmetic };
        Ok::<_, GraphError>(identity.problem(DType::F32, layers, graph(op, inputs)?))
    };
    let gradient = AttentionGrad { attention };
    Ok([
        problem("forward", attention.into(), &operands)?,
        problem("gradient", gradient.into(), &[&operands[..], &saved[..]].concat())?,
    ])
}

/// One operation on inputs of these types, all of whose outputs are wanted.
fn graph(op: Op, inputs: &[TensorType]) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut values = Vec::with_capacity(inputs.len());
    for (index, ty) in inputs.iter().enumerate() {
        values.push(graph.input(&format!("x{index}"), Role::Feed, ty.clone())?);
    }
    for (index, y) in graph.add(op, &values)?.into_iter().enumerate() {
        graph.output(&format!("y{index}"), y);
    }
    Ok(graph)
}
