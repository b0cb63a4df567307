//! Operations of detectors whose threads wait for each other, and what attention does between products of matrices.

use super::attention::normal;
use super::case::{Case, Expected, rounded, tolerance};
use super::cases::{Maker, Size};
use super::operations::case;
use crate::kernels::attention::Operands;
use crate::kernels::attention::rows::Kernels;
use crate::kgen::{KernelError, Launch, Operand};
use bessemer_ir::ops::attention::{Attention, AttentionDropout, AttentionGrad};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::index::TopK;
use bessemer_ir::ops::{OpRule, Scalar};
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, Op, philox};

/// What makes the cases, all of them small.
pub(super) fn makers() -> [Maker; 6] {
    [
        |_| suppression("suppression_hard", Suppression::Hard { iou: Scalar(0.5) }),
        |_| suppression("suppression_soft", Suppression::Gaussian { sigma: Scalar(0.5), floor: Scalar(0.05) }),
        |_| top_k(),
        |_| features_gradient(),
        |_| Rows::new().softmax(),
        |_| Rows::new().gradient(),
    ]
}

fn uniform(i: usize, stream: u32) -> f64 {
    philox::uniform(8, 0, stream, i as u64).into()
}

/// `count` boxes on a canvas of `canvas` pixels; few numbers, so that sides are exact.
fn boxes(shape: &[usize], canvas: f64) -> Tensor {
    Tensor::from_fn(TensorType::f32(shape), |i| {
        let start = |axis: usize| (uniform(i / 4 * 2 + axis, 0) * canvas * 0.7).floor();
        let side = |axis: usize| (4.0 + uniform(i / 4 * 2 + axis, 1) * canvas * 0.25).floor();
        if i % 4 < 2 { start(i % 2) } else { start(i % 2) + side(i % 2) }
    })
}

/// More boxes than a block has threads, of two labels.
fn suppression(name: &str, suppression: Suppression) -> Result<Case, KernelError> {
    const BOXES: usize = 300;
    let op = Suppress { groups: BoxGroups::Labels, ..Suppress::new(suppression, 60) };
    let scores = Tensor::from_fn(TensorType::f32([1, BOXES]), |i| (uniform(i, 2) * 256.0).floor() / 256.0);
    let labels = Tensor::from_fn(TensorType::new(DType::I32, [1, BOXES]), |i| (i % 2) as f64);
    case(name, Size::Small, Op::from(op), vec![boxes(&[1, BOXES, 4], 128.0), scores, labels])
}

/// Rows that two blocks count, with equal elements.
fn top_k() -> Result<Case, KernelError> {
    let x = Tensor::from_fn(TensorType::f32([1, 20_000]), |i| (uniform(i, 3) * 4096.0).floor() - 2048.0);
    case("top_k", Size::Small, Op::from(TopK { k: 3000, axes: 1 }), vec![x])
}

/// A region for each thread of a block that lists them.
fn features_gradient() -> Result<Case, KernelError> {
    const REGIONS: usize = 256;
    let roi_align = RoiAlign {
        size: [2, 2],
        samples: RoiSamples::Fixed(1),
        border: RoiBorder::Torch,
        levels: RoiLevels::standard(1e-6),
        strides: vec![Scalar(4.0)],
    };
    let dy = Tensor::from_fn(TensorType::f32([REGIONS, 2, 2, 8]), |i| (uniform(i, 4) * 16.0).floor() - 8.0);
    let images = Tensor::from_fn(TensorType::new(DType::I32, [REGIONS]), |i| (i % 2) as f64);
    let op = RoiAlignGrad { roi_align, batch: 2, maps: vec![[16, 16]] };
    case("roi_align_gradient", Size::Small, Op::from(op), vec![dy, boxes(&[REGIONS, 4], 64.0), images])
}

/// Rows of scores: of an attention whose keys and values are unit vectors, so that its queries are the products of queries and keys,
/// and its output the probabilities.
struct Rows {
    attention: Attention,
    /// Queries, keys, values, bias, counter.
    inputs: [Tensor; 5],
    /// Probabilities, and log-sums.
    outputs: [Tensor; 2],
}

impl Rows {
    const KEYS: usize = 70;

    /// Rows that are no whole number of blocks, of elements that are no whole number of warps; every fifth key is masked.
    fn new() -> Rows {
        let dropout = Some(AttentionDropout { rate: Scalar(0.1), seed: 7, stream: 3 });
        let attention = Attention { heads: 1, scale: Scalar(0.25), dropout, output: DType::F32 };
        let keys = Rows::KEYS;
        let queries = normal(TensorType::f32([2, 9, keys]), 5);
        let unit = |i: usize| f64::from(u8::from(i / keys % keys == i % keys));
        let [k, v] = [0, 1].map(|_| Tensor::from_fn(TensorType::f32([2, keys, keys]), unit));
        let bias = |i: usize| if i % 5 == 4 { -10_000.0 } else { (i % 7) as f64 / 7.0 };
        let bias = rounded(Tensor::from_fn(TensorType::f32([2, keys]), bias));
        let inputs = [queries, k, v, bias, Tensor::scalar(DType::I32, 5.0)];
        let of_all = inputs.each_ref();
        let outputs = evaluate(&attention, &of_all);
        Rows { attention, inputs, outputs: outputs.try_into().expect("probabilities and log-sums") }
    }

    fn kernels(&self) -> Kernels<'_> {
        let shape = |input: usize| &self.inputs[input].ty.shape;
        let sizes = self.attention.geometry(shape(0), shape(1)).expect("shapes that fit");
        Kernels(Operands { attention: &self.attention, sizes, ty: DType::F32 })
    }

    fn softmax(&self) -> Result<Case, KernelError> {
        let [queries, _, _, bias, counter] = self.inputs.clone();
        let [probabilities, log_sums] = self.outputs.clone();
        let operands = vec![Operand::Output(0), Operand::Input(0), Operand::Output(1), Operand::Input(1)];
        let outputs = vec![in_place(queries, probabilities), expected(None, log_sums)];
        Ok(Case::launch(
            "attention_rows",
            Launch { kernel: self.kernels().softmax(), operands },
            vec![bias, counter],
            outputs,
        ))
    }

    fn gradient(&self) -> Result<Case, KernelError> {
        let [queries, k, v, bias, counter] = self.inputs.clone();
        let [probabilities, log_sums] = self.outputs.clone();
        let log_sums = rounded(log_sums);
        let dy = normal(queries.ty.clone(), 9);
        let grad = AttentionGrad { attention: self.attention };
        let of_all = [&queries, &k, &v, &bias, &probabilities, &log_sums, &dy, &counter];
        let of_products = evaluate(&grad, &of_all).swap_remove(0);
        let operands =
            [Operand::Output(0), Operand::Input(0), Operand::Input(1), Operand::Output(1), Operand::Input(2)];
        let outputs = vec![in_place(queries, probabilities), in_place(dy, of_products)];
        let launch = Launch { kernel: self.kernels().gradient(), operands: operands.to_vec() };
        Ok(Case::launch("attention_rows_gradient", launch, vec![bias, log_sums, counter], outputs))
    }
}

fn evaluate(op: &dyn OpRule, inputs: &[&Tensor]) -> Vec<Tensor> {
    let types: Vec<&TensorType> = inputs.iter().map(|input| &input.ty).collect();
    op.evaluate(inputs, &op.infer(&types).expect("operands that fit"))
}

/// Sums of exponentials.
fn expected(before: Option<Vec<f64>>, after: Tensor) -> Expected {
    Expected { before, after, tolerance: 8.0 * tolerance(DType::F32) }
}

fn in_place(before: Tensor, after: Tensor) -> Expected {
    expected(Some(before.data), after)
}
