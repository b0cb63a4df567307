//! Operations of detectors whose threads wait for each other, and what attention does between products of matrices.

use super::attention::normal;
use super::case::Case;
use super::cases::{Maker, Size};
use super::operations::case;
use crate::kgen::KernelError;
use crate::lower::attention::{softmax, softmax_gradient};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::attention::{Attention, AttentionDropout, Geometry};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::fusion::{Fusion, IndexMap};
use bessemer_ir::ops::index::TopK;
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use bessemer_ir::{DType, Op, philox};

/// What makes the cases, all of them small.
pub(super) fn makers() -> [Maker; 6] {
    [
        |_| suppression("suppression_hard", Suppression::Hard { iou: Scalar(0.5) }, 1000, 700),
        |_| suppression("suppression_soft", Suppression::Gaussian { sigma: Scalar(0.5), floor: Scalar(0.05) }, 300, 60),
        |_| top_k(),
        |_| features_gradient(),
        |_| attention("attention_rows", softmax),
        |_| attention("attention_rows_gradient", softmax_gradient),
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

/// More boxes than a block has threads, of two labels; where many are kept, more of these too.
fn suppression(name: &str, suppression: Suppression, count: usize, most: usize) -> Result<Case, KernelError> {
    let op = Suppress { groups: BoxGroups::Labels, ..Suppress::new(suppression, most) };
    let scores = Tensor::from_fn(TensorType::f32([1, count]), |i| (uniform(i, 2) * 256.0).floor() / 256.0);
    let labels = Tensor::from_fn(TensorType::new(DType::I32, [1, count]), |i| (i % 2) as f64);
    case(name, Size::Small, Op::from(op), vec![boxes(&[1, count, 4], 128.0), scores, labels])
}

/// Rows that two blocks count, with equal elements, more than those of one thread above the last one.
fn top_k() -> Result<Case, KernelError> {
    let x = Tensor::from_fn(TensorType::f32([1, 20_000]), |i| (uniform(i, 3) * 4096.0).floor() - 2048.0);
    case("top_k", Size::Small, Op::from(TopK { k: 9000, axes: 1 }), vec![x])
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

/// Rows of no whole number of blocks, of elements that are no whole number of warps; every fifth key is masked.
fn attention(name: &str, fusion: fn(&Attention, Geometry) -> Fusion) -> Result<Case, KernelError> {
    let dropout = Some(AttentionDropout { rate: Scalar(0.1), seed: 7, stream: 3, keeps_mask: false });
    let of = Attention { heads: 3, scale: Scalar(0.25), dropout, output: DType::F32 };
    let fusion = fusion(&of, Geometry { batch: 2, heads: 3, queries: 3, keys: 70, depth: 8 });
    let input = |(stream, load): (u32, &IndexMap)| match *load {
        IndexMap::SCALAR => Tensor::scalar(DType::I32, 5.0),
        _ => normal(TensorType::f32([load.elements(fusion.cols)]), stream),
    };
    let mut inputs: Vec<Tensor> = (5..).zip(&fusion.loads).map(input).collect();
    inputs[1].data.iter_mut().skip(4).step_by(5).for_each(|bias| *bias = -10_000.0);
    Case::fusion(name, &fusion, inputs, true)
}
