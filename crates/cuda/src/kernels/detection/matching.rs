//! The ground truth of each reference box.

use super::{IOU, Work, check, counts, flags, float_input, floats, for_each, input, output, report};
use crate::kgen::Operand;
use bessemer_ir::TensorType;
use bessemer_ir::ops::detection::matching::{ForcedMatch, IGNORED, MatchBoxes, NEGATIVE};

/// The box `i`, and whether it has an area.
const OWN: &str = "\
const u32 b = i / N, n = i % N;
const float* const own = boxes + (SHARED ? n : i) * 4u;
const bool has_area = own[2] > own[0] && own[3] > own[1];
";

/// The largest IoU of each ground truth and the first box that has it, as one number, are kept in `best_of`.
const BY_THRESHOLD: &str = "\
const u32 valid = (u32)index;
u32 best = 0;
float most = 0.0f;
u64* const best_of_all = (u64*)best_of + b * G;
for (u32 g = 0; g < valid; ++g) {
    const float value = iou(own, truths + (b * G + g) * 4u);
    if (value > most) {
        most = value;
        best = g;
    }
    const u64 key = (u64)__float_as_uint(value) << 32 | (0xffffffffu - n);
    if (FORCED && has_area && key > best_of_all[g]) atomicMax(best_of_all + g, key);
}
int match = IGNORED;
if (has_area && (valid == 0u || most < LOW)) match = NEGATIVE;
if (has_area && valid > 0u && (most > HIGH || (INCLUSIVE && most == HIGH))) match = (int)best;
matches[i] = match;
best_truths[i] = (int)best;
";

/// Later ground truths first, so that the first one has a box that several want.
const BEST_ONCE: &str = "\
for (u32 g = G; g-- > 0u;) {
    const u64 key = ((const u64*)best_of)[i * G + g];
    if (key != 0ull) matches[i * N + (0xffffffffu - (u32)key)] = (int)g;
}
";

const ALL_TIES: &str = "\
for (u32 g = 0; has_area && g < G; ++g) {
    const float most = __uint_as_float((u32)(((const u64*)best_of)[b * G + g] >> 32));
    if (most > 0.0f && iou(own, truths + (b * G + g) * 4u) == most) matches[i] = best_truths[i];
}
";

pub(crate) fn matches(op: &MatchBoxes, types: &[&TensorType]) -> Work {
    let mut work = Work::new("matching of boxes", 2);
    let [batch, truths] = [types[1].shape[0], types[1].shape[1]];
    let is_shared = types[0].shape.rank() == 2;
    let n = types[0].shape.elements() / 4 / if is_shared { 1 } else { batch };
    let count = batch * n;
    let constants = counts(&[("N", n), ("G", truths)])
        + &flags(&[("SHARED", is_shared)])
        + &floats(&[("EXTRA", 0.0), ("EPS", op.union_eps.0)]);
    let [boxes, gt] = [float_input("boxes", types[0].shape.elements()), float_input("truths", batch * truths * 4)];
    let best_of = work.scratch(2 * batch * truths);
    let best_truths = work.scratch(count);
    let (matches, positives) = (Operand::Output(0), Operand::Output(1));

    work.fill(best_of, 2 * batch * truths, 0);
    let text = format!("const int IGNORED = {IGNORED}, NEGATIVE = {NEGATIVE};\n")
        + &constants
        + &flags(&[("FORCED", op.forced != ForcedMatch::No), ("INCLUSIVE", op.high_inclusive)])
        + &floats(&[("LOW", op.low.0), ("HIGH", op.high.0)])
        + IOU
        + OWN
        + "int index = counts[b];\n"
        + &check(truths + 1, "b", "index = 0")
        + BY_THRESHOLD;
    let parameters = vec![
        boxes.clone(),
        gt.clone(),
        input("counts", batch),
        output("matches", count),
        output("best_truths", count),
        output("best_of", 2 * batch * truths),
        report(),
    ];
    let report = work.reporting(truths + 1);
    let inputs = [Operand::Input(0), Operand::Input(1), Operand::Input(2)];
    let operands = [&inputs[..], &[matches, best_truths, best_of, report]].concat();
    work.launch(for_each("match_by_threshold", parameters, count, &text), operands);

    let best_input = input("best_of", 2 * batch * truths);
    match op.forced {
        ForcedMatch::No => (),
        ForcedMatch::BestOnce => {
            let parameters = vec![best_input, output("matches", count)];
            let kernel = for_each("match_best_once", parameters, batch, &(constants + BEST_ONCE));
            work.launch(kernel, [best_of, matches]);
        }
        ForcedMatch::AllTies => {
            let parameters = vec![boxes, gt, best_input, input("best_truths", count), output("matches", count)];
            let kernel = for_each("match_all_ties", parameters, count, &(constants + IOU + OWN + ALL_TIES));
            work.launch(kernel, [Operand::Input(0), Operand::Input(1), best_of, best_truths, matches]);
        }
    }

    work.fill(positives, batch, 0);
    let text = format!("if (matches[i] >= 0) atomicAdd(positives + i / {n}u, 1);\n");
    let parameters = vec![input("matches", count), output("positives", batch)];
    work.launch(for_each("count_matches", parameters, count, &text), [matches, positives]);
    work
}
