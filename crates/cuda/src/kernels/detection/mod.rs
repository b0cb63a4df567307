//! Operations of object detectors, each as launches that need nothing of the host. Texts are fixed; what differs stands before them as
//! constants. Integers that threads share are changed by atomics whose order does not matter, sums of floats never are.

mod anchors;
mod boxes;
mod masks;
mod matching;
mod roi;
mod sample;
mod suppress;
mod top_k;

use super::for_each;
use super::index::{check, report};
use super::work::{Work, counts, input, output};
use crate::kgen::{Kernel, Parameter, constant, indented};
use bessemer_ir::ops::{Op, OpError};
use bessemer_ir::{DType, TensorType};

/// A block of so many threads for each of `blocks`.
fn by_blocks(name: &str, parameters: Vec<Parameter>, blocks: usize, threads: usize, body: &str) -> Kernel {
    let kernel = Kernel::new(name, parameters, [blocks as u32, 1, 1], [threads as u32, 1, 1], &indented(body));
    kernel.named_by_content()
}

fn float_input(name: &str, elements: usize) -> Parameter {
    Parameter::input(name, DType::F32, elements)
}

fn float_output(name: &str, elements: usize) -> Parameter {
    Parameter::output(name, DType::F32, elements)
}

fn flags(values: &[(&str, bool)]) -> String {
    values.iter().map(|(name, value)| format!("const bool {name} = {value};\n")).collect()
}

fn floats(values: &[(&str, f64)]) -> String {
    values.iter().map(|(name, value)| format!("const float {name} = {};\n", constant(*value as f32))).collect()
}

fn doubles(values: &[(&str, f64)]) -> String {
    values.iter().map(|(name, value)| format!("const double {name} = {value:?};\n")).collect()
}

/// `name(level)`, one of some values, of which there is at least one.
fn by_level(name: &str, result: &str, values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    let (last, others) = values.split_last().expect("there is a value");
    let choices: String =
        others.iter().enumerate().map(|(level, value)| format!("level == {level}u ? {value} : ")).collect();
    format!("const auto {name} = [=](u32 level) -> {result} {{ return {choices}{last}; }};\n")
}

/// `iou(a, b)` of two boxes; sides are larger by `EXTRA`, the union by `EPS`. Products are rounded before they are added, so that it
/// has the same bits wherever it stands.
const IOU: &str = "\
const auto iou = [=](const float* a, const float* b) {
    const float width = fminf(a[2], b[2]) - fmaxf(a[0], b[0]) + EXTRA;
    const float height = fminf(a[3], b[3]) - fmaxf(a[1], b[1]) + EXTRA;
    if (!(width > 0.0f && height > 0.0f)) return 0.0f;
    const float common = __fmul_rn(width, height);
    const float first = __fmul_rn(a[2] - a[0] + EXTRA, a[3] - a[1] + EXTRA);
    const float second = __fmul_rn(b[2] - b[0] + EXTRA, b[3] - b[1] + EXTRA);
    return common > 0.0f ? common / (first + second - common + EPS) : 0.0f;
};
";

/// `ordered(x)`: bits that are in the order of the numbers; zeros of both signs are equal, NaN is least.
const ORDERED: &str = "\
const auto ordered = [](float x) {
    if (x != x) return 0u;
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
};
";

/// Boxes of a tensor `[..., 4]`.
fn boxes_of(ty: &TensorType) -> usize {
    ty.shape.elements() / 4
}

/// Launches of an operation on operands of these types; `None` if it is none of detectors.
///
/// # Errors
/// The shapes do not fit, or are too large.
pub(crate) fn work(op: &Op, types: &[&TensorType]) -> Result<Option<Work>, OpError> {
    Ok(Some(match op {
        Op::TopK(op) => top_k::top_k(op, types[0])?,
        Op::Anchors(op) => anchors::anchors(op),
        Op::MatchBoxes(op) => matching::matches(op, types),
        Op::EncodeBoxes(op) => boxes::encode(op, types),
        Op::DecodeBoxes(op) => boxes::decode(op, types),
        Op::Suppress(op) => suppress::suppress(op, types),
        Op::SampleLabels(op) => sample::labels(op, types[0])?,
        Op::SampleRows(op) => sample::rows(op, types[0])?,
        Op::PackRows(op) => sample::pack(op, types[0]),
        Op::RoiAlign(op) => roi::align(op, types),
        Op::RoiAlignGrad(op) => roi::align_grad(op, types),
        Op::MaskTargets(op) => masks::targets(op, types),
        _ => return Ok(None),
    }))
}
