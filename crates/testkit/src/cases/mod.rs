//! The cases: each operation, alone and with what surrounds it in models.

mod conv;
mod dense;
mod detection;
mod moves;
mod pointwise;

use crate::problem::{Build, Drawn};
use bessemer_ir::{DType, GraphError};
use std::fmt;

/// How results are compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compare {
    /// Each element is the reference's, rounded to its type.
    Exact,
    /// No element is further from the reference than this share of the largest one of its tensor.
    Elements(f64),
    /// The results of a problem, taken together, are no further from the reference than this share of their Euclidean norm.
    Norm(f64),
    /// The same behind a ReLU: rounding moves about as large a share of the numbers past zero as the rounding is large, and each
    /// of them changes its gradient wholly, so that the distance goes with the square root.
    NormBehindRelu(f64),
}

/// A precision in which a case runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Type in which tensors are stored.
    pub precision: DType,
    /// How its results are compared.
    pub compare: Compare,
}

/// One case: problems of random shapes and attributes.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is called in reports.
    pub name: &'static str,
    build: Build,
    /// The precisions in which it runs.
    pub runs: &'static [Run],
}

impl Case {
    /// # Errors
    /// When the case is not legal.
    pub(crate) fn draw(&self, seed: u64) -> Result<Drawn, GraphError> {
        Drawn::new(self.build, seed)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("runs", &self.runs).finish_non_exhaustive()
    }
}

const IN_F32: Run = Run { precision: DType::F32, compare: Compare::Elements(2e-5) };
/// Some units in the last of the 8 or 11 places.
const IN_BF16: Run = Run { precision: DType::Bf16, compare: Compare::Norm(1e-2) };
const IN_F16: Run = Run { precision: DType::F16, compare: Compare::Norm(1.5e-3) };

const IN_16_BITS: &[Run] = &[IN_BF16, IN_F16];

const EXACT: &[Run] = &[Run { precision: DType::F32, compare: Compare::Exact }];
const F32: &[Run] = &[IN_F32];
/// Of operands of 16 bits, to whose type the result may be rounded.
const OF_16_BITS: &[Run] = &[Run { precision: DType::F32, compare: Compare::Norm(1e-2) }];
const ALL: &[Run] = &[IN_F32, IN_BF16, IN_F16];
const ALL_BEHIND_RELU: &[Run] = &[IN_F32, BEHIND_RELU[0], BEHIND_RELU[1]];
const BEHIND_RELU: &[Run] = &[
    Run { precision: DType::Bf16, compare: Compare::NormBehindRelu(1e-2) },
    Run { precision: DType::F16, compare: Compare::NormBehindRelu(1.5e-3) },
];

const fn case(name: &'static str, build: Build, runs: &'static [Run]) -> Case {
    Case { name, build, runs }
}

/// All cases.
pub const CASES: &[Case] = &[
    case("conv2d", conv::conv2d, ALL),
    case("conv2d with norm and relu", conv::conv_norm_relu, F32),
    // With so many rows that norms do not amplify roundings.
    case("conv2d with norm and relu, many rows", conv::conv_norm_relu_of_many_rows, BEHIND_RELU),
    case("limited conv2d", conv::limited, ALL_BEHIND_RELU),
    case("depthwise conv2d", conv::depthwise, F32),
    case("depthwise conv2d with norm and relu", conv::depthwise_norm_relu, F32),
    case("inverted bottleneck with gates", conv::inverted_bottleneck, F32),
    case("depthwise conv2d that computes its input", conv::conv_then_depthwise, F32),
    case("grouped conv2d", conv::grouped, F32),
    case("grouped conv2d of 16 bits", moves::grouped_16, OF_16_BITS),
    case("conv2d 3x3 of many channels", conv::conv_by_winograd, F32),
    case("matmul", dense::matmul, ALL),
    case("matmul of batches", dense::matmul_batched, ALL),
    case("linear with bias and relu", dense::linear, ALL_BEHIND_RELU),
    case("max_pool2d", moves::max_pool, F32),
    case("avg_pool2d", moves::avg_pool, F32),
    case("upsample", moves::upsample, F32),
    case("upsample in a pyramid", moves::upsample_in_pyramid, ALL),
    case("batch norm, shortcut and relu", conv::norm_shortcut, F32),
    case("global average", conv::global_average, F32),
    case("softmax", dense::softmax, F32),
    case("log_softmax with one_hot", dense::cross_entropy, F32),
    case("layer norm", dense::layer_norm, F32),
    case("layer norm of bias, dropout and shortcut", dense::layer_norm_dropout, F32),
    case("cross-entropy of weighted rows", dense::weighted_cross_entropy, F32),
    case("linear with gelu", dense::linear_gelu, F32),
    case("unary", pointwise::unary, F32),
    case("binary with broadcasting", pointwise::binary, F32),
    case("reduce", pointwise::reduce, F32),
    case("integers above 2^24", pointwise::large_integers, EXACT),
    case("counters above 2^24", pointwise::counters, F32),
    case("casts between floats and integers", pointwise::casts, EXACT),
    case("one_hot of labels beyond the last column", pointwise::one_hot, EXACT),
    case("arg_max with ties", pointwise::arg_max, EXACT),
    case("uniform random numbers", pointwise::uniform, EXACT),
    case("normal random numbers", pointwise::normal, EXACT),
    case("slice and pad", moves::slice_pad, F32),
    case("transpose and concat", moves::transpose_concat, F32),
    case("concat of products", moves::concat_of_products, ALL),
    case("gather", moves::gather, F32),
    case("gather along an axis", moves::gather_along_axis, F32),
    case("scatter_add of repeated indices", moves::scatter_add, F32),
    case("top_k", detection::top_k, F32),
    case("top_k of equal elements", detection::top_k_positions, EXACT),
    case("anchors", detection::anchors, F32),
    case("match_boxes", detection::match_boxes, EXACT),
    case("encode_boxes", detection::encode_boxes, F32),
    case("decode_boxes", detection::decode_boxes, F32),
    case("sample_labels", detection::sample_labels, EXACT),
    case("sample_rows", detection::sample_rows, EXACT),
    case("pack_rows", detection::pack_rows, EXACT),
    case("hard suppression", detection::hard_suppression, EXACT),
    case("soft suppression", detection::soft_suppression, F32),
    case("roi_align", detection::roi_align, ALL),
    case("mask_targets", detection::mask_targets, EXACT),
    case("attention", dense::attention, ALL),
    case("attention with dropout", dense::attention_dropout, ALL),
    case("attention of one query", dense::attention_of_one_query, F32),
    case("attention over many keys", dense::attention_many_keys, ALL),
    case("attention of even heads in 16 bits", dense::attention_even_heads, IN_16_BITS),
    case("attention that gives 16 bits", dense::attention_narrow, OF_16_BITS),
    case("u8 pixels", pointwise::pixels, F32),
    case("all_reduce", moves::all_reduce, F32),
    case("all_reduce started and awaited", moves::all_reduce_in_two, F32),
];

/// Every other case, from number `half` on, so that two tests share the work of all.
pub fn half_of_cases(half: usize) -> Vec<Case> {
    CASES.iter().copied().skip(half).step_by(2).collect()
}
