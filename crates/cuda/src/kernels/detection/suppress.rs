//! Suppression, an image a block. Hard: sorted candidates in chunks, each candidate against the kept boxes, then against those of its
//! chunk. Soft: rounds that decay the scores of a group and look for the best one.

use super::{
    IOU, ORDERED, Work, by_blocks, check, counts, flags, float_input, float_output, floats, for_each, input, output,
    report,
};
use crate::kernels::sort::sort;
use crate::kgen::{Operand, Parameter};
use bessemer_ir::TensorType;
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};

const THREADS: usize = 256;

/// Whether the box `i`, number `at` of the image `b`, is a candidate.
const CANDIDATE: &str = "\
const u32 b = i / BOXES, at = i % BOXES;
const float* const own = boxes + i * 4u;
const float score = scores[i];
const bool is_large = !HAS_LEAST || (own[2] - own[0] >= LEAST && own[3] - own[1] >= LEAST);
const bool is_candidate = at < valid && score > FLOOR && is_large;
";

/// A chunk has a candidate for each thread. `hits` has a bit for each earlier candidate of the chunk that drops this one.
const HARD: &str = "\
__shared__ float chunk[THREADS * 4u];
__shared__ int groups[THREADS];
__shared__ bool dropped[THREADS];
__shared__ u32 hits[THREADS * WORDS], chosen[WORDS], kept;
const u32 b = blockIdx.x, t = threadIdx.x;
const u64* const own_keys = (const u64*)keys + b * BOXES;
u32 count = 0;
for (u32 start = 0; start < BOXES && count < MOST && own_keys[start] != ~0ull; start += THREADS) {
    const u64 key = start + t < BOXES ? own_keys[start + t] : ~0ull;
    const bool is_candidate = key != ~0ull;
    const u32 at = is_candidate ? (u32)key : 0u;
    const float* const own = boxes + (b * BOXES + at) * 4u;
    const int group = group_of(b, at);
    for (u32 c = 0; c < 4u; ++c) chunk[t * 4u + c] = own[c];
    groups[t] = group;
    bool is_dropped = !is_candidate;
    for (u32 k = 0; k < count && !is_dropped; ++k) {
        const u32 other = (u32)kept_boxes[b * MOST + k];
        is_dropped = group_of(b, other) == group && iou(boxes + (b * BOXES + other) * 4u, own) > LIMIT;
    }
    dropped[t] = is_dropped;
    if (t < WORDS) chosen[t] = 0u;
    __syncthreads();
    for (u32 word = 0; word < WORDS; ++word) {
        u32 bits = 0u;
        for (u32 bit = 0; bit < 32u && word * 32u + bit < t && !is_dropped; ++bit) {
            const u32 other = word * 32u + bit;
            if (groups[other] == group && iou(chunk + other * 4u, own) > LIMIT) bits |= 1u << bit;
        }
        hits[t * WORDS + word] = bits;
    }
    __syncthreads();
    if (t == 0u) {
        for (u32 own_slot = 0; own_slot < THREADS && count < MOST; ++own_slot) {
            u32 common = dropped[own_slot];
            for (u32 word = 0; word < WORDS; ++word) common |= hits[own_slot * WORDS + word] & chosen[word];
            if (common != 0u) continue;
            chosen[own_slot / 32u] |= 1u << own_slot % 32u;
            kept_boxes[b * MOST + count++] = (int)(u32)own_keys[start + own_slot];
        }
        kept = count;
    }
    __syncthreads();
    count = kept;
}
for (u32 k = t; k < MOST; k += THREADS) {
    const u32 at = k < count ? (u32)kept_boxes[b * MOST + k] : 0u;
    rows[b * MOST + k] = k < count ? (int)(at / COLUMNS) : 0;
    groups_of_rows[b * MOST + k] = k < count ? group_of(b, at) : 0;
    kept_scores[b * MOST + k] = k < count ? scores[b * BOXES + at] : 0.0f;
}
if (t == 0u) kept_counts[b] = (int)count;
";

/// `present` has the scores as they are now: none where a box is no candidate, or none any more.
const SOFT: &str = "\
__shared__ float best_scores[THREADS];
__shared__ u32 best_boxes[THREADS];
const u32 b = blockIdx.x, t = threadIdx.x;
float* const own_scores = present + b * BOXES;
const float none = NONE;
const auto comes_first = [=](float score, u32 at, float best, u32 best_at) {
    if (score != best) return score > best;
    if (score == none) return false;
    const int group = group_of(b, at), best_group = group_of(b, best_at);
    return group < best_group || (group == best_group && at < best_at);
};
u32 count = 0, picked = 0;
for (;;) {
    float best = none;
    u32 best_at = 0;
    for (u32 at = t; at < BOXES; at += THREADS) {
        float score = own_scores[at];
        if (count > 0u && score != none && group_of(b, at) == group_of(b, picked)) {
            const float common = iou(boxes + (b * BOXES + at) * 4u, boxes + (b * BOXES + picked) * 4u);
            score *= expf(-common * common / SIGMA);
            if (at == picked || !(score >= LIMIT)) score = none;
            own_scores[at] = score;
        }
        if (comes_first(score, at, best, best_at)) {
            best = score;
            best_at = at;
        }
    }
    best_scores[t] = best;
    best_boxes[t] = best_at;
    __syncthreads();
    for (u32 half = THREADS / 2u; half > 0u; half /= 2u) {
        if (t < half && comes_first(best_scores[t + half], best_boxes[t + half], best_scores[t], best_boxes[t])) {
            best_scores[t] = best_scores[t + half];
            best_boxes[t] = best_boxes[t + half];
        }
        __syncthreads();
    }
    best = best_scores[0];
    picked = best_boxes[0];
    __syncthreads();
    if (best == none) break;
    if (t == 0u) {
        rows[b * MOST + count] = (int)(picked / COLUMNS);
        groups_of_rows[b * MOST + count] = group_of(b, picked);
        kept_scores[b * MOST + count] = best;
    }
    if (++count == MOST) break;
}
for (u32 k = count + t; k < MOST; k += THREADS) {
    rows[b * MOST + k] = 0;
    groups_of_rows[b * MOST + k] = 0;
    kept_scores[b * MOST + k] = 0.0f;
}
if (t == 0u) kept_counts[b] = (int)count;
";

/// `group_of(b, at)`: the group of the box `at` of the image `b`.
fn group_of(groups: &BoxGroups) -> String {
    let group = match groups {
        BoxGroups::One => "0".to_owned(),
        BoxGroups::Ranges(ends) => {
            let passed: Vec<String> = ends.iter().map(|end| format!("(at >= {end}u)")).collect();
            passed.join(" + ")
        }
        BoxGroups::Labels => "labels[b * BOXES + at]".to_owned(),
        BoxGroups::Columns => "(int)(at % COLUMNS)".to_owned(),
    };
    format!("const auto group_of = [=](u32 b, u32 at) -> int {{ return {group}; }};\n")
}

pub(crate) fn suppress(op: &Suppress, types: &[&TensorType]) -> Work {
    let mut work = Work::new("suppression by images", 4);
    let (batch, rows, columns) = (types[0].shape[0], types[0].shape[1], op.columns(types[0]));
    let (boxes, most) = (rows * columns, op.max_outputs);
    let (is_soft, limit, sigma) = match op.suppression {
        Suppression::Hard { iou } => (false, iou.0, 1.0),
        Suppression::Gaussian { sigma, floor } => (true, floor.0, sigma.0),
    };
    let constants = counts(&[("BOXES", boxes), ("COLUMNS", columns), ("MOST", most), ("THREADS", THREADS)])
        + &counts(&[("WORDS", THREADS / 32)])
        + &floats(&[("EXTRA", op.extra()), ("EPS", 0.0), ("LIMIT", limit), ("SIGMA", sigma)])
        + &floats(&[("NONE", f64::NEG_INFINITY)]);
    let boxes_input = || float_input("boxes", batch * boxes * 4);
    let scores_input = || float_input("scores", batch * boxes);
    let scores = Operand::Input(1);

    // Candidates: keys in the order of their scores, or scores.
    let candidates = work.scratch(batch * boxes * if is_soft { 1 } else { 2 });
    let (mut parameters, mut operands) = (vec![boxes_input(), scores_input()], vec![Operand::Input(0), scores]);
    let mut valid = "const u32 valid = BOXES;\n".to_owned();
    if let Some(count_input) = op.count_input(types.len()) {
        parameters.extend([input("counts", batch), report()]);
        operands.extend([Operand::Input(count_input), work.reporting(rows + 1)]);
        valid = "int index = counts[i / BOXES];\n".to_owned()
            + &check(rows + 1, "i / BOXES", "index = 0")
            + "const u32 valid = (u32)index * COLUMNS;\n";
    }
    let least = op.min_size.map_or(0.0, |least| least.0);
    let floor = op.score_floor.map_or(f64::NEG_INFINITY, |floor| floor.0);
    let text = constants.clone()
        + &flags(&[("HAS_LEAST", op.min_size.is_some())])
        + &floats(&[("LEAST", least), ("FLOOR", floor)])
        + ORDERED
        + &valid
        + CANDIDATE;
    operands.push(candidates);
    if is_soft {
        parameters.push(float_output("present", batch * boxes));
        let text = text + "present[i] = is_candidate ? score : NONE;\n";
        work.launch(for_each("suppression_scores", parameters, batch * boxes, &text), operands);
    } else {
        parameters.push(output("keys", batch * boxes * 2));
        let text = text + "((u64*)keys)[i] = is_candidate ? (u64)~ordered(score) << 32 | at : ~0ull;\n";
        work.launch(for_each("suppression_keys", parameters, batch * boxes, &text), operands);
    }

    let (mut parameters, mut operands): (Vec<Parameter>, _) = (vec![boxes_input()], vec![Operand::Input(0)]);
    if op.groups == BoxGroups::Labels {
        parameters.push(input("labels", batch * boxes));
        operands.push(Operand::Input(2));
    }
    if is_soft {
        parameters.push(float_output("present", batch * boxes));
        operands.push(candidates);
    } else {
        let sorted = sort(&mut work, candidates, batch, boxes);
        let kept = work.scratch(batch * most);
        parameters.extend([scores_input(), input("keys", batch * boxes * 2), output("kept_boxes", batch * most)]);
        operands.extend([scores, sorted, kept]);
    }
    parameters.extend(["rows", "groups_of_rows"].map(|name| output(name, batch * most)));
    parameters.extend([float_output("kept_scores", batch * most), output("kept_counts", batch)]);
    operands.extend((0..4).map(Operand::Output));
    let text = constants + IOU + &group_of(&op.groups) + if is_soft { SOFT } else { HARD };
    work.launch(by_blocks("suppress", parameters, batch, THREADS, &text), operands);
    work
}
