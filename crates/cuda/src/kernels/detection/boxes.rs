//! Codes of boxes, a box a thread.

use super::{Work, boxes_of, counts, flags, float_input, float_output, floats, for_each, input, report};
use crate::kgen::Operand;
use bessemer_ir::TensorType;
use bessemer_ir::ops::detection::boxes::{BoxClip, BoxCode, DecodeBoxes, EncodeBoxes};

/// Constants of a code: what is added to sides, and for each axis its channel and its weights.
fn constants(code: &BoxCode) -> String {
    let weights = code.weights.map(|weight| weight.0);
    counts(&[("CHANNEL0", code.channel(0)), ("CHANNEL1", code.channel(1))])
        + &floats(&[("EXTRA", code.extra()), ("EPS", code.eps.0)])
        + &floats(&[("SHIFT0", weights[0]), ("SHIFT1", weights[1]), ("SIDE0", weights[2]), ("SIDE1", weights[3])])
}

const ENCODE: &str = "\
const int match = matches[i];
if (match >= (int)G) atomicMin((u64*)report, (u64)i << 32 | (u32)match);
if (match < 0 || match >= (int)G) {
    for (u32 c = 0; c < 4u; ++c) codes[i * 4u + c] = 0.0f;
    continue;
}
const float* const from = boxes + (SHARED ? i % N : i) * 4u;
const float* const to = truths + (i / N * G + (u32)match) * 4u;
const auto encode = [=](u32 axis, u32 channel, float shift, float side) {
    const float from_side = from[axis + 2u] - from[axis] + EXTRA, to_side = to[axis + 2u] - to[axis] + EXTRA;
    const float distance = (to[axis] + 0.5f * to_side) - (from[axis] + 0.5f * from_side);
    codes[i * 4u + channel] = shift * distance / (from_side + EPS);
    codes[i * 4u + channel + 2u] = side * logf((to_side + EPS) / (from_side + EPS));
};
encode(0u, CHANNEL0, SHIFT0, SIDE0);
encode(1u, CHANNEL1, SHIFT1, SIDE1);
";

pub(crate) fn encode(op: &EncodeBoxes, types: &[&TensorType]) -> Work {
    let mut work = Work::new("box codes", 1);
    let (truths, count, n) = (types[1].shape[1], types[2].shape.elements(), types[2].shape[1]);
    let text = counts(&[("N", n), ("G", truths)])
        + &flags(&[("SHARED", types[0].shape.rank() == 2)])
        + &constants(&op.code)
        + ENCODE;
    let parameters = vec![
        float_input("boxes", types[0].shape.elements()),
        float_input("truths", types[1].shape.elements()),
        input("matches", count),
        float_output("codes", count * 4),
        report(),
    ];
    let report = work.reporting(truths);
    let operands = [Operand::Input(0), Operand::Input(1), Operand::Input(2), Operand::Output(0), report];
    work.launch(for_each("encode_boxes", parameters, count, &text), operands);
    work
}

const DECODE: &str = "\
const float* const code = codes + i * 4u;
const float* const from = boxes + i / COLUMNS % REFERENCES * 4u;
const auto decode = [=](u32 axis, u32 channel, float shift, float side) {
    const float from_side = from[axis + 2u] - from[axis] + EXTRA;
    float growth = code[channel + 2u] / side;
    if (growth > MOST) growth = MOST;
    const float centre = code[channel] / shift * from_side + (from[axis] + 0.5f * from_side);
    const float half = expf(growth) * from_side * 0.5f;
    float low = centre - half, high = centre + half - EXTRA;
    if (CLIPPED) {
        const float limit = sizes[i / COLUMNS / N * 2u + 1u - axis] - MARGIN;
        low = fminf(fmaxf(low, 0.0f), limit);
        high = fminf(fmaxf(high, 0.0f), limit);
    }
    decoded[i * 4u + axis] = low;
    decoded[i * 4u + axis + 2u] = high;
};
decode(0u, CHANNEL0, SHIFT0, SIDE0);
decode(1u, CHANNEL1, SHIFT1, SIDE1);
";

pub(crate) fn decode(op: &DecodeBoxes, types: &[&TensorType]) -> Work {
    let mut work = Work::new("boxes of codes", 1);
    let (codes, is_clipped) = (types[0], op.clip != BoxClip::No);
    let (count, columns) = (boxes_of(codes), if codes.shape.rank() == 4 { codes.shape[2] } else { 1 });
    let text = counts(&[("N", codes.shape[1]), ("COLUMNS", columns), ("REFERENCES", boxes_of(types[1]))])
        + &flags(&[("CLIPPED", is_clipped)])
        + &floats(&[("MOST", op.max_growth.map_or(f64::INFINITY, |most| most.0)), ("MARGIN", op.clip_margin())])
        + &constants(&op.code)
        + if is_clipped { "" } else { "const float* const sizes = nullptr;\n" }
        + DECODE;
    let mut parameters = vec![float_input("codes", count * 4), float_input("boxes", types[1].shape.elements())];
    let mut operands = vec![Operand::Input(0), Operand::Input(1)];
    if is_clipped {
        parameters.push(float_input("sizes", types[2].shape.elements()));
        operands.push(Operand::Input(2));
    }
    parameters.push(float_output("decoded", count * 4));
    operands.push(Operand::Output(0));
    work.launch(for_each("decode_boxes", parameters, count, &text), operands);
    work
}
