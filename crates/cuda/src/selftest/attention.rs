//! Attention on tensor cores and its gradient, on sizes that reach every path, and on those of BERT-base.

use super::case::{Case, Expected, rounded, tolerance};
use super::cases::{Maker, Size};
use crate::kernels::attention::Operands;
use crate::kernels::attention::tensor_cores::Kernels;
use crate::kgen::{KernelError, Launch, Launches, Operand};
use bessemer_ir::ops::attention::{Attention, AttentionDropout, AttentionGrad, Geometry};
use bessemer_ir::ops::{OpRule, Scalar};
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, philox};

/// What makes the cases of this size.
pub(super) fn makers(size: Size) -> Vec<Maker> {
    // No whole number of 64, of 16 or of 4 in rows; products of one and of more steps; one tile in memory and two of them.
    let small: [Maker; 14] = [
        |_| Problem::new(DType::Bf16, [1, 2, 64, 64, 64], false).forward("attention"),
        |_| Problem::new(DType::Bf16, [1, 2, 64, 64, 64], false).gradient("attention_gradient"),
        |_| Problem::new(DType::F16, [2, 2, 37, 77, 16], true).forward("attention_odd"),
        |_| Problem::new(DType::F16, [2, 2, 37, 77, 16], true).gradient("attention_odd_gradient"),
        |_| Problem::new(DType::F16, [1, 1, 130, 200, 32], true).forward("attention_long"),
        |_| Problem::new(DType::F16, [1, 1, 130, 200, 32], true).gradient("attention_long_gradient"),
        |_| Problem::new(DType::F16, [1, 1, 130, 140, 80], true).forward("attention_deep"),
        |_| Problem::new(DType::F16, [1, 1, 130, 140, 80], true).gradient("attention_deep_gradient"),
        |_| Problem::new(DType::Bf16, [1, 1, 70, 66, 128], true).forward("attention_deepest"),
        |_| Problem::new(DType::Bf16, [1, 1, 70, 66, 128], true).gradient("attention_deepest_gradient"),
        |_| Problem::new(DType::Bf16, [2, 2, 70, 77, 64], true).narrow().forward("attention_narrow"),
        |_| Problem::new(DType::Bf16, [2, 2, 70, 77, 64], true).narrow().gradient("attention_narrow_gradient"),
        |_| Problem::new(DType::F16, [1, 1, 130, 140, 80], true).narrow().forward("attention_narrow_deep"),
        |_| Problem::new(DType::F16, [1, 1, 130, 140, 80], true).narrow().gradient("attention_narrow_deep_gradient"),
    ];
    let large: [Maker; 4] = [
        |_| Problem::large([64, 12, 128, 128, 64]).forward("attention"),
        |_| Problem::large([64, 12, 128, 128, 64]).gradient("attention_gradient"),
        |_| Problem::large([16, 12, 512, 512, 64]).forward("attention_long"),
        |_| Problem::large([16, 12, 512, 512, 64]).gradient("attention_long_gradient"),
    ];
    if size == Size::Small { small.to_vec() } else { large.to_vec() }
}

/// An attention of random operands. With dropout every third key is masked too.
struct Problem {
    attention: Attention,
    sizes: Geometry,
    ty: DType,
    is_checked: bool,
}

impl Problem {
    fn new(ty: DType, [batch, heads, queries, keys, depth]: [usize; 5], with_dropout: bool) -> Problem {
        let dropout = AttentionDropout { rate: Scalar(0.1), seed: (5 << 32) + 7, stream: 3, keeps_mask: true };
        let scale = Scalar(1.0 / (depth as f64).sqrt());
        Problem {
            attention: Attention { heads, scale, dropout: with_dropout.then_some(dropout), output: DType::F32 },
            sizes: Geometry { batch, heads, queries, keys, depth },
            ty,
            is_checked: true,
        }
    }

    /// With the output and its gradient in the type of the operands.
    fn narrow(mut self) -> Problem {
        self.attention.output = self.ty;
        self
    }

    /// As plans have it, without results of the reference.
    fn large(sizes: [usize; 5]) -> Problem {
        Problem { is_checked: false, ..Problem::new(DType::Bf16, sizes, true).narrow() }
    }

    fn kernels(&self) -> Result<Kernels<'_>, KernelError> {
        let operands = Operands { attention: &self.attention, sizes: self.sizes, ty: self.ty };
        Kernels::new(operands).ok_or_else(|| KernelError("no attention of this type and depth".to_owned()))
    }

    /// q, k, v and bias.
    fn common(&self) -> Vec<Tensor> {
        let Geometry { batch, keys, .. } = self.sizes;
        let (q, k) = (self.sizes.q_shape(), self.sizes.k_shape());
        let is_masked = self.attention.dropout.is_some();
        let bias = |i: usize| if i % keys % 3 == 1 && is_masked { -10000.0 } else { (i % 7) as f64 / 7.0 };
        vec![
            normal(TensorType::new(self.ty, q), 0),
            normal(TensorType::new(self.ty, k.clone()), 1),
            normal(TensorType::new(self.ty, k), 2),
            rounded(Tensor::from_fn(TensorType::f32([batch, keys]), bias)),
        ]
    }

    fn counter(&self) -> Option<Tensor> {
        self.attention.dropout.map(|_| Tensor::scalar(DType::I32, 5.0))
    }

    /// What the reference gives, or zeros.
    fn evaluate(&self, op: &dyn OpRule, inputs: &[Tensor]) -> Result<Vec<Tensor>, KernelError> {
        let types: Vec<&TensorType> = inputs.iter().map(|input| &input.ty).collect();
        let outputs = op.infer(&types).map_err(|error| KernelError(error.to_string()))?;
        Ok(match self.is_checked {
            true => op.evaluate(&inputs.iter().collect::<Vec<_>>(), &outputs),
            false => outputs.into_iter().map(Tensor::zeros).collect(),
        })
    }

    /// Sums of products of rounded factors, one of which is made in the kernel.
    fn of_products(&self, after: Tensor) -> Expected {
        Expected { before: None, after, tolerance: 8.0 * tolerance(self.ty) }
    }

    fn forward(&self, name: &str) -> Result<Case, KernelError> {
        let inputs: Vec<Tensor> = self.common().into_iter().chain(self.counter()).collect();
        let mut computed = self.evaluate(&self.attention, &inputs)?.into_iter();
        let operands = (0..4).map(Operand::Input).chain((0..computed.len()).map(Operand::Output));
        let operands = operands.chain(self.counter().map(|_| Operand::Input(4))).collect();
        let launches = vec![Launch { kernel: self.kernels()?.forward(), operands }];
        let y = computed.next().map(|y| self.of_products(y));
        // The log-sums, and the mask.
        let exact = computed.map(|after| Expected { before: None, tolerance: tolerance(after.ty.dtype), after });
        let work = Launches { launches, scratch: Vec::new() };
        Ok(Case { name: name.to_owned(), work, inputs, outputs: y.into_iter().chain(exact).collect() })
    }

    fn gradient(&self, name: &str) -> Result<Case, KernelError> {
        let mut inputs = self.common();
        let forward: Vec<Tensor> = inputs.iter().cloned().chain(self.counter()).collect();
        let computed = self.evaluate(&self.attention, &forward)?;
        inputs.extend(computed.into_iter().map(rounded));
        inputs.push(normal(TensorType::new(self.attention.output, self.sizes.q_shape()), 3));
        inputs.extend(self.counter());
        let gradient = AttentionGrad { attention: self.attention };
        let (grads, dout) = (self.evaluate(&gradient, &inputs)?, gradient.dout());
        let kernels = self.kernels()?;
        let means = Operand::Scratch(0);
        let rounded_dy = kernels.rounds_gradient().then_some(Operand::Scratch(1));
        let of_queries = (0..=dout).map(Operand::Input).chain([Operand::Output(0), means]).chain(rounded_dy);
        let of_keys = (0..4).chain(5..dout).map(Operand::Input);
        let dy = rounded_dy.unwrap_or(Operand::Input(dout));
        let of_keys = of_keys.chain([means, dy, Operand::Output(1), Operand::Output(2)]);
        let launches = vec![
            Launch { kernel: kernels.of_queries(), operands: of_queries.collect() },
            Launch { kernel: kernels.of_keys(), operands: of_keys.collect() },
        ];
        let scratch = vec![self.sizes.row_shape().elements(), self.sizes.q_shape().elements().div_ceil(2)];
        let outputs = grads.into_iter().map(|grad| self.of_products(grad)).collect();
        Ok(Case { name: name.to_owned(), work: Launches { launches, scratch }, inputs, outputs })
    }
}

/// Standard normal numbers, rounded to the tensor's type; large tensors repeat them.
pub(super) fn normal(ty: TensorType, stream: u32) -> Tensor {
    const PERIOD: usize = 100_003;
    let count = ty.shape.elements().min(PERIOD);
    let first: Vec<f64> = (0..count).map(|i| philox::normal(3, 0, stream, i as u64).into()).collect();
    rounded(Tensor::from_fn(ty, |i| first[i % PERIOD]))
}
