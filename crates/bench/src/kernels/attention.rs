//! The attention of BERT-base and of ELECTRA-base, forward and gradient.

use super::shapes::{BERT_BASE, Bert};
use super::{Bound, Identity, PRECISIONS, Problem};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout, AttentionGrad};
use bessemer_ir::{DType, Graph, GraphError, Op, Role, TensorType};

/// Sequences that attend to themselves in one call.
struct Batch {
    model: &'static str,
    sequences: usize,
    length: usize,
    /// Dropout of the probabilities.
    dropout: Option<f64>,
    has_gradient: bool,
}

/// Both phases of pre-training, the first one also with the dropout of the recipe, and one question that is answered.
const BATCHES: [Batch; 4] = [
    Batch { model: "bert-base", sequences: 16, length: 128, dropout: None, has_gradient: true },
    Batch { model: "bert-base", sequences: 16, length: 128, dropout: Some(0.1), has_gradient: true },
    Batch { model: "bert-base", sequences: 2, length: 512, dropout: None, has_gradient: true },
    Batch { model: "electra-base", sequences: 1, length: 384, dropout: None, has_gradient: false },
];

/// Each batch in all precisions.
pub(super) fn problems() -> Result<Vec<Problem>, GraphError> {
    let mut problems = Vec::new();
    for batch in &BATCHES {
        for dtype in PRECISIONS {
            problems.extend(batch.problems(dtype)?);
        }
    }
    Ok(problems)
}

impl Batch {
    fn problems(&self, dtype: DType) -> Result<Vec<Problem>, GraphError> {
        let Batch { model, sequences, length, .. } = *self;
        // Those of ELECTRA-base are the same.
        let Bert { layers, hidden, heads, .. } = BERT_BASE;
        let depth = hidden / heads;
        let dropout =
            self.dropout.map(|rate| AttentionDropout { rate: Scalar(rate), seed: 0, stream: 0, keeps_mask: false });
        let attention = Attention { heads, scale: Scalar(1.0 / (depth as f64).sqrt()), dropout, output: DType::F32 };
        let rows = TensorType::new(dtype, [sequences, length, hidden]);
        let bias = TensorType::f32([sequences, length]);
        let log_sums = TensorType::f32([sequences, heads, length]);
        let out = TensorType::f32([sequences, length, hidden]);
        let operands = [rows.clone(), rows.clone(), rows, bias];
        let saved = [out.clone(), log_sums, out];
        let counter = vec![TensorType::new(DType::I32, []); usize::from(dropout.is_some())];
        let rate = self.dropout.map_or(String::new(), |rate| format!(" dropout {rate}"));
        let shapes = &format!("[{sequences},{length}] {heads} heads of {depth}{rate}");
        let problem = |direction, op: Op, inputs: &[TensorType]| {
            let (layer, family) = ("attention", "attention");
            let identity = Identity { model, layer, shapes, direction, family, bound: Bound::Arithmetic };
            Ok::<_, GraphError>(identity.problem(dtype, layers, graph(op, inputs)?))
        };
        let mut problems = vec![problem("forward", attention.into(), &[&operands[..], &counter].concat())?];
        if self.has_gradient {
            let inputs = [&operands[..], &saved, &counter].concat();
            problems.push(problem("gradient", AttentionGrad { attention }.into(), &inputs)?);
        }
        Ok(problems)
    }
}

/// One operation on inputs of these types, all of whose outputs are wanted.
fn graph(op: Op, inputs: &[TensorType]) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut values = Vec::with_capacity(inputs.len());
    for (index, ty) in inputs.iter().enumerate() {
        values.push(graph.input(&format!("x{index}"), Role::Feed, ty.clone())?);
    }
    for (index, y) in graph.push(op, &values)?.into_iter().enumerate() {
        graph.output(&format!("y{index}"), y);
    }
    Ok(graph)
}
