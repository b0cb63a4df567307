//! Operations that read or give positions.

use super::{Cost, FusedOp, GradArgs, Gradient, MixedPrecision, OpError, OpRule, RecomputeCost};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::TensorType;

/// An index as a row number.
///
/// # Panics
/// If it is outside `0..rows`.
fn row(index: f64, rows: usize) -> usize {
    assert!((0.0..rows as f64).contains(&index), "index {index} is outside 0..{rows}");
    index as usize
}

/// Rows of a table. Inputs: table `[V, ...]`, indices `i32[...I]` in `0..V`; output `[...I, ...]`. An index outside is an
/// error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather;

impl OpRule for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [table, indices] = inputs else { return Err(OpError::operands("a table and indices")) };
        if table.shape.rank() == 0 || indices.dtype != DType::I32 {
            return Err(OpError::operands("a table of at least one axis and i32 indices"));
        }
        let dims = [indices.shape.dims(), &table.shape[1..]].concat();
        Ok(vec![TensorType::new(table.dtype, dims)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 2])) };
        let rows = g.shape(args.inputs[0])[0];
        let dtable = args.wanted[0].then(|| g.push1(ScatterAdd { rows }, &[dy, args.inputs[1]])).transpose()?;
        Ok(Gradient::Inputs(vec![dtable, None]))
    }

    /// Only the rows asked for are read.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost { flops: 0, bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as u64 }
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (table, indices) = (inputs[0], inputs[1]);
        let rows = table.ty.shape[0];
        let width: usize = table.ty.shape[1..].iter().product();
        let data = indices.data.iter().flat_map(|&i| &table.data[row(i, rows) * width..][..width]);
        vec![Tensor::new(outputs[0].clone(), data.copied().collect())]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::MOVES
    }
}

/// Adds rows to a table of zeros. Inputs: updates `[...I, ...]`, indices `i32[...I]` in `0..rows`; output `[rows, ...]`. An
/// index outside is an error when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScatterAdd {
    /// Rows of the output table.
    pub rows: usize,
}

impl OpRule for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn attributes(&self) -> String {
        format!("rows={}", self.rows)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [updates, indices] = inputs else { return Err(OpError::operands("updates and indices")) };
        if updates.dtype == DType::Bool || indices.dtype != DType::I32 {
            return Err(OpError::operands("updates that are numbers, and i32 indices"));
        }
        let Some(row) = updates.shape.strip_prefix(indices.shape.dims()) else {
            return Err(OpError::Sizes("the leading axes of the updates must be those of the indices".to_string()));
        };
        Ok(vec![TensorType::new(updates.dtype, [&[self.rows], row].concat())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 2])) };
        let dupdates = args.wanted[0].then(|| g.push1(Gather, &[dy, args.inputs[1]])).transpose()?;
        Ok(Gradient::Inputs(vec![dupdates, None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (updates, indices) = (inputs[0], inputs[1]);
        let mut table = Tensor::zeros(outputs[0].clone());
        let width: usize = outputs[0].shape[1..].iter().product();
        for (from, &index) in indices.data.iter().enumerate() {
            let to = row(index, self.rows);
            for i in 0..width {
                table.data[to * width + i] += updates.data[from * width + i];
            }
        }
        vec![table]
    }
}

/// `i32[...]` to `f32[..., depth]`: 1 at the index and 0 elsewhere; zeros alone where the index is outside `0..depth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OneHot {
    /// Size of the innermost axis of the output: the number of classes.
    pub depth: usize,
}

impl OpRule for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn attributes(&self) -> String {
        format!("depth={}", self.depth)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        match inputs {
            [x] if x.dtype == DType::I32 => Ok(vec![TensorType::f32([x.shape.dims(), &[self.depth]].concat())]),
            _ => Err(OpError::operands("one i32 tensor")),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::Inputs(vec![None]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let at = |i: usize| inputs[0].data[i / self.depth] == (i % self.depth) as f64;
        vec![Tensor::from_fn(outputs[0].clone(), |i| f64::from(u8::from(at(i))))]
    }

    fn fused(&self, _inputs: &[&TensorType]) -> Option<FusedOp> {
        Some(FusedOp::OneHot)
    }

    fn recompute_cost(&self) -> RecomputeCost {
        RecomputeCost::Arithmetic
    }
}

/// Position of the first maximum along the innermost axis, which is removed: `[..., C]` to `i32[...]`. A NaN counts as
/// the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArgMax;

impl OpRule for ArgMax {
    fn name(&self) -> &'static str {
        "arg_max"
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = inputs else { return Err(OpError::operands("one tensor")) };
        match x.shape.split_last() {
            Some((&cols, outer)) if cols > 0 && x.dtype != DType::Bool => Ok(vec![TensorType::new(DType::I32, outer)]),
            _ => Err(OpError::operands("a tensor of numbers with an innermost axis that is not empty")),
        }
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(inputs[0].shape.elements() as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let first_max = |row: &[f64]| {
            let larger = |best: usize, i: usize| {
                let better = row[i] > row[best] || (row[i].is_nan() && !row[best].is_nan());
                if better { i } else { best }
            };
            (1..row.len()).fold(0, larger) as f64
        };
        let data = inputs[0].data.chunks(inputs[0].ty.shape.cols()).map(first_max).collect();
        vec![Tensor::new(outputs[0].clone(), data)]
    }
}
