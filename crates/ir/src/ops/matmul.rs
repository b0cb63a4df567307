//! Matrix multiplication.

use super::{
    Cost, GradArgs, Gradient, LowResult, MixedPrecision, OpError, OpRule, Producer, float_inputs, product_like,
};
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// `batch` independent products of an `m` by `k` with a `k` by `n` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of independent products.
    pub batch: usize,
    /// Rows of the first matrix and of the result.
    pub m: usize,
    /// Columns of the first matrix and rows of the second: the axis that is summed.
    pub k: usize,
    /// Columns of the second matrix and of the result.
    pub n: usize,
}

/// Matrix product over the two innermost axes. Inputs: a `[.., m, k]`, b `[.., k, n]` with equal leading axes; or b of
/// rank 2 and a of a higher one, of which all axes but the innermost then count as rows. Output `f32[.., m, n]`; operands of 16 bits are multiplied
/// exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// a is `[.., k, m]`.
    pub trans_a: bool,
    /// b is `[.., n, k]`.
    pub trans_b: bool,
}

impl Matmul {
    /// Sizes for operands of these shapes. Where b is shared by all of a, the leading axes of a are part of `m`.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, a: &Shape, b: &Shape) -> Result<Geometry, OpError> {
        if a.rank() < 2 || b.rank() < 2 {
            return Err(OpError::Sizes("both operands must have at least two axes".to_string()));
        }
        let (m, k) = matrix(a, self.trans_a);
        let (b_k, n) = matrix(b, self.trans_b);
        if k != b_k {
            return Err(OpError::Sizes(format!("the inner sizes differ: {k} and {b_k}")));
        }
        let (a_batch, b_batch) = (&a[..a.rank() - 2], &b[..b.rank() - 2]);
        let batch: usize = a_batch.iter().product();
        if is_shared(a, b) {
            return match self.trans_a {
                true => Err(OpError::Attribute("a of a higher rank than b must not be transposed".to_string())),
                false => Ok(Geometry { batch: 1, m: batch * m, k, n }),
            };
        }
        if a_batch != b_batch {
            return Err(OpError::Sizes(format!("the leading axes differ: {a_batch:?} and {b_batch:?}")));
        }
        Ok(Geometry { batch, m, k, n })
    }

    fn of_a(&self, g: &mut Graph, a: Value, b: Value, dy: Value) -> Result<Value, GraphError> {
        if self.trans_a {
            product_like(g, Matmul { trans_a: self.trans_b, trans_b: true }, [b, dy], &[], a)
        } else {
            product_like(g, Matmul { trans_a: false, trans_b: !self.trans_b }, [dy, b], &[], a)
        }
    }

    fn of_b(&self, g: &mut Graph, a: Value, b: Value, dy: Value) -> Result<Value, GraphError> {
        if self.trans_b {
            product_like(g, Matmul { trans_a: true, trans_b: self.trans_a }, [dy, a], &[], b)
        } else {
            product_like(g, Matmul { trans_a: !self.trans_a, trans_b: false }, [a, dy], &[], b)
        }
    }
}

/// Rows and columns of the matrices of a tensor once transposed as asked.
fn matrix(shape: &Shape, transposed: bool) -> (usize, usize) {
    let (outer, inner) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
    if transposed { (inner, outer) } else { (outer, inner) }
}

/// Whether the one matrix b serves all matrices of a.
fn is_shared(a: &Shape, b: &Shape) -> bool {
    b.rank() == 2 && a.rank() > 2
}

fn rows_by_cols(g: &mut Graph, x: Value) -> Result<Value, GraphError> {
    let (rows, cols) = (g.shape(x).rows(), g.shape(x).cols());
    g.reshape(x, [rows, cols])
}

impl OpRule for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn attributes(&self) -> String {
        match (self.trans_a, self.trans_b) {
            (false, false) => "",
            (true, false) => "trans_a",
            (false, true) => "trans_b",
            (true, true) => "trans_a, trans_b",
        }
        .to_string()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [a, b] = float_inputs(inputs, "two operands")?;
        let n = self.geometry(&a.shape, &b.shape)?.n;
        let (m, _) = matrix(&a.shape, self.trans_a);
        let mut dims = a.shape[..a.shape.rank() - 2].to_vec();
        dims.extend([m, n]);
        Ok(vec![TensorType::f32(dims)])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None; 2])) };
        let (a, b) = (args.inputs[0], args.inputs[1]);
        let da = args.wanted[0].then(|| self.of_a(g, a, b, dy)).transpose()?;
        let mut db = None;
        if args.wanted[1] {
            let shared = is_shared(g.shape(a), g.shape(b));
            let (a, dy) = if shared { (rows_by_cols(g, a)?, rows_by_cols(g, dy)?) } else { (a, dy) };
            db = Some(self.of_b(g, a, b, dy)?);
        }
        Ok(Gradient::Inputs(vec![da, db]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let Geometry { batch, m, k, n } =
            self.geometry(&inputs[0].shape, &inputs[1].shape).expect("the node was accepted with these shapes");
        Cost::streaming(2 * (batch * m) as u64 * (k * n) as u64, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (a, b) = (inputs[0], inputs[1]);
        let Geometry { batch: _, m, k, n } =
            self.geometry(&a.ty.shape, &b.ty.shape).expect("the node was accepted with these shapes");
        let a_at =
            |batch: usize, i: usize, l: usize| a.data[batch * m * k + if self.trans_a { l * m + i } else { i * k + l }];
        let b_at =
            |batch: usize, l: usize, j: usize| b.data[batch * k * n + if self.trans_b { j * k + l } else { l * n + j }];
        vec![Tensor::from_fn(outputs[0].clone(), |index| {
            let (batch, i, j) = (index / (m * n), index / n % m, index % n);
            (0..k).map(|l| a_at(batch, i, l) * b_at(batch, l, j)).sum()
        })]
    }

    fn producer(&self, inputs: &[&TensorType]) -> Producer {
        if inputs[1].shape.rank() == 2 { Producer::Yes } else { Producer::Batched }
    }

    fn scales_with_weight_columns(&self, inputs: &[&TensorType]) -> bool {
        !self.trans_b && inputs[1].shape.rank() == 2
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.cost(inputs, &[]).flops
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(2, LowResult::RoundedWithWeights)
    }

    fn fused_kernel_name(&self) -> &'static str {
        "matmul+fusion"
    }
}
