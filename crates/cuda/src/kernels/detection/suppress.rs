//! Suppression. Hard: boxes lie by segments, which are the groups of an image, or the image where labels are the groups; a segment a block. Its
//! candidates, in the order of their scores, go in chunks, each one against the kept boxes, then against those of its chunk; what segments
//! keep is merged. Soft: rounds that decay the scores of a group and look for the best one, an image a block.

use super::{
    IOU, ORDERED, Work, by_blocks, by_level, check, counts, flags, float_input, float_output, floats, for_each, input,
    output, report,
};
use crate::kernels::sort::{merge, sort};
use crate::kgen::{Kernel, Operand, Parameter};
use bessemer_ir::TensorType;
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};

const THREADS: usize = 256;

/// Whether the box `at` of the image `b` is a candidate.
const CANDIDATE: &str = "\
const float* const own = boxes + (b * BOXES + at) * 4u;
const float score = scores[b * BOXES + at];
const bool is_large = !HAS_LEAST || (own[2] - own[0] >= LEAST && own[3] - own[1] >= LEAST);
const bool is_candidate = at < valid && score > FLOOR && is_large;
";

/// Leaves the keys of kept boxes, in their order. `hits` has a bit for each earlier candidate of the chunk that drops this one.
const HARD: &str = "\
__shared__ float chunk[THREADS * 4u], kept[THREADS * 4u];
__shared__ int groups[THREADS], kept_groups[THREADS];
__shared__ bool dropped[THREADS];
__shared__ u32 hits[THREADS * WORDS], chosen[WORDS], new_count;
const u32 b = blockIdx.x / SEGMENTS, t = threadIdx.x;
u64* const own_keys = (u64*)keys + blockIdx.x * LENGTH;
u32 count = 0;
for (u32 start = 0; start < LENGTH && count < MOST && own_keys[start] != ~0ull; start += THREADS) {
    const u64 key = start + t < LENGTH ? own_keys[start + t] : ~0ull;
    const u32 at = key != ~0ull ? (u32)key : 0u;
    const int group = group_of(b, at);
    float own[4];
    for (u32 c = 0; c < 4u; ++c) chunk[t * 4u + c] = own[c] = boxes[(b * BOXES + at) * 4u + c];
    groups[t] = group;
    bool is_dropped = key == ~0ull;
    for (u32 first = 0; first < count; first += THREADS) {
        if (first + t < count) {
            const u32 other = (u32)own_keys[first + t];
            for (u32 c = 0; c < 4u; ++c) kept[t * 4u + c] = boxes[(b * BOXES + other) * 4u + c];
            kept_groups[t] = group_of(b, other);
        }
        __syncthreads();
        const u32 others = first + THREADS < count ? THREADS : count - first;
        for (u32 k = 0; k < others && !is_dropped; ++k)
            is_dropped = kept_groups[k] == group && iou(kept + k * 4u, own) > LIMIT;
        __syncthreads();
    }
    __syncthreads();
    for (u32 word = 0; word < WORDS; ++word) {
        u32 bits = 0u;
        for (u32 bit = 0; bit < 32u && word * 32u + bit < t && !is_dropped; ++bit) {
            const u32 other = word * 32u + bit;
            if (groups[other] == group && iou(chunk + other * 4u, own) > LIMIT) bits |= 1u << bit;
        }
        hits[t * WORDS + word] = bits;
    }
    const u32 before = count;
    for (u32 word = 0; word < WORDS; ++word) {
        if (t / 32u == word) {
            for (u32 earlier = 0; earlier < word; ++earlier) is_dropped |= (hits[t * WORDS + earlier] & chosen[earlier]) != 0u;
            dropped[t] = is_dropped;
        }
        __syncthreads();
        if (t == 0u) {
            u32 own_bits = 0u;
            for (u32 bit = 0; bit < 32u; ++bit) {
                const u32 slot = word * 32u + bit;
                const bool is_chosen = count < MOST && !dropped[slot] && (hits[slot * WORDS + word] & own_bits) == 0u;
                own_bits |= (is_chosen ? 1u : 0u) << bit;
                count += is_chosen ? 1u : 0u;
            }
            chosen[word] = own_bits;
            new_count = count;
        }
        __syncthreads();
        count = new_count;
    }
    if ((chosen[t / 32u] >> t % 32u & 1u) != 0u) {
        u32 to = before + __popc(chosen[t / 32u] & (1u << t % 32u) - 1u);
        for (u32 word = 0; word < t / 32u; ++word) to += __popc(chosen[word]);
        own_keys[to] = key;
    }
    __syncthreads();
}
for (u32 k = count + t; k < LENGTH; k += THREADS) own_keys[k] = ~0ull;
";

/// What is kept of the keys of an image, the box `k` of the image `b`.
const KEPT: &str = "\
const u32 b = i / MOST, k = i % MOST;
const u64* const own_keys = (const u64*)keys + b * SEGMENTS * LENGTH;
const auto is_kept = [=](u32 number) { return number < SEGMENTS * LENGTH && own_keys[number] != ~0ull; };
const u32 at = is_kept(k) ? (u32)own_keys[k] : 0u;
rows[i] = (int)(at / COLUMNS);
groups_of_rows[i] = is_kept(k) ? group_of(b, at) : 0;
kept_scores[i] = is_kept(k) ? scores[b * BOXES + at] : 0.0f;
if (k == 0u && !is_kept(0u)) kept_counts[b] = 0;
if (is_kept(k) && (k + 1u == MOST || !is_kept(k + 1u))) kept_counts[b] = (int)k + 1;
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

/// Boxes of an image by segments, all of one length, the last of them empty where a group has fewer boxes.
struct Segments {
    count: usize,
    length: usize,
    /// Text that finds the box `at` at the position `number` of the segment `segment`, and whether there is one.
    text: String,
}

impl Segments {
    fn new(groups: &BoxGroups, rows: usize, columns: usize) -> Segments {
        const EVERYWHERE: &str = "const bool is_there = true;\n";
        match groups {
            BoxGroups::One | BoxGroups::Labels => {
                Segments { count: 1, length: rows, text: format!("const u32 at = number;\n{EVERYWHERE}") }
            }
            BoxGroups::Columns => {
                let at = "const u32 at = number * COLUMNS + segment;\n";
                Segments { count: columns, length: rows, text: format!("{at}{EVERYWHERE}") }
            }
            BoxGroups::Ranges(ends) => {
                let starts = || [0].iter().chain(ends).take(ends.len());
                let longest = ends.iter().zip(starts()).map(|(end, start)| end - start).max().unwrap_or(0);
                let text = by_level("start_of", "u32", starts().map(|start| format!("{start}u")))
                    + &by_level("end_of", "u32", ends.iter().map(|end| format!("{end}u")))
                    + "const u32 at = start_of(segment) + number;\nconst bool is_there = at < end_of(segment);\n";
                Segments { count: ends.len(), length: longest, text }
            }
        }
    }
}

/// Launches a kernel that is made of these parameters, on what they stand for.
fn launch(work: &mut Work, operands: Vec<(Parameter, Operand)>, kernel: impl FnOnce(Vec<Parameter>) -> Kernel) {
    let (parameters, operands): (Vec<Parameter>, Vec<Operand>) = operands.into_iter().unzip();
    work.launch(kernel(parameters), operands);
}

pub(crate) fn suppress(op: &Suppress, types: &[&TensorType]) -> Work {
    let mut work = Work::new("suppression by images", 4);
    let (batch, rows, columns) = (types[0].shape[0], types[0].shape[1], op.columns(types[0]));
    let (boxes, most) = (rows * columns, op.max_outputs);
    let (is_soft, limit, sigma) = match op.suppression {
        Suppression::Hard { iou } => (false, iou.0, 1.0),
        Suppression::Gaussian { sigma, floor } => (true, floor.0, sigma.0),
    };
    let segments = Segments::new(&op.groups, rows, columns);
    let keys = batch * segments.count * segments.length;
    let constants = counts(&[("BOXES", boxes), ("COLUMNS", columns), ("MOST", most), ("THREADS", THREADS)])
        + &counts(&[("SEGMENTS", segments.count), ("LENGTH", segments.length), ("WORDS", THREADS / 32)])
        + &floats(&[("EXTRA", op.extra()), ("EPS", 0.0), ("LIMIT", limit), ("SIGMA", sigma)])
        + &floats(&[("NONE", f64::NEG_INFINITY)]);
    let boxes_of = || (float_input("boxes", batch * boxes * 4), Operand::Input(0));
    let scores = || (float_input("scores", batch * boxes), Operand::Input(1));
    let labels = || (op.groups == BoxGroups::Labels).then(|| (input("labels", batch * boxes), Operand::Input(2)));
    let results = || {
        let [rows, groups] = ["rows", "groups_of_rows"].map(|name| output(name, batch * most));
        let all = [rows, groups, float_output("kept_scores", batch * most), output("kept_counts", batch)];
        all.into_iter().zip((0..4).map(Operand::Output))
    };

    // Candidates: keys in the order of their scores, or scores.
    let mut operands = vec![boxes_of(), scores()];
    let mut valid = "const u32 valid = BOXES;\n".to_owned();
    if let Some(count_input) = op.count_input(types.len()) {
        operands.push((input("counts", batch), Operand::Input(count_input)));
        operands.push((report(), work.reporting(rows + 1)));
        valid = "int index = counts[b];\n".to_owned()
            + &check(rows + 1, "b", "index = 0")
            + "const u32 valid = (u32)index * COLUMNS;\n";
    }
    let least = op.min_size.map_or(0.0, |least| least.0);
    let floor = op.score_floor.map_or(f64::NEG_INFINITY, |floor| floor.0);
    let head = constants.clone()
        + &flags(&[("HAS_LEAST", op.min_size.is_some())])
        + &floats(&[("LEAST", least), ("FLOOR", floor)])
        + ORDERED;
    if is_soft {
        let candidates = work.scratch(batch * boxes);
        let present = || (float_output("present", batch * boxes), candidates);
        operands.push(present());
        let text = head + "const u32 b = i / BOXES, at = i % BOXES;\n" + &valid + CANDIDATE;
        let text = text + "present[i] = is_candidate ? score : NONE;\n";
        let make = |parameters| for_each("suppression_scores", parameters, batch * boxes, &text);
        launch(&mut work, operands, make);
        let operands = [boxes_of()].into_iter().chain(labels()).chain([present()]).chain(results()).collect();
        let text = constants + IOU + &group_of(&op.groups) + SOFT;
        launch(&mut work, operands, |parameters| by_blocks("suppress", parameters, batch, THREADS, &text));
        return work;
    }
    let candidates = work.scratch(2 * keys);
    operands.push((output("keys", 2 * keys), candidates));
    let text = head
        + "const u32 number = i % LENGTH, segment = i / LENGTH % SEGMENTS, b = i / LENGTH / SEGMENTS;\n"
        + &valid
        + &segments.text
        + "((u64*)keys)[i] = ~0ull;\nif (!is_there) continue;\n"
        + CANDIDATE
        + "if (is_candidate) ((u64*)keys)[i] = (u64)~ordered(score) << 32 | at;\n";
    launch(&mut work, operands, |parameters| for_each("suppression_keys", parameters, keys, &text));
    let sorted = sort(&mut work, candidates, batch * segments.count, segments.length);

    let operands = [boxes_of()].into_iter().chain(labels()).chain([(output("keys", 2 * keys), sorted)]).collect();
    // Boxes of a segment are of one group, unless labels are the groups.
    let label = if op.groups == BoxGroups::Labels { group_of(&op.groups) } else { group_of(&BoxGroups::One) };
    let text = constants.clone() + IOU + &label + HARD;
    let blocks = batch * segments.count;
    launch(&mut work, operands, |parameters| by_blocks("suppress", parameters, blocks, THREADS, &text));
    let merged = merge(&mut work, sorted, batch, segments.count * segments.length, segments.length);

    let keys_of = (input("keys", 2 * keys), merged);
    let operands = [scores(), keys_of].into_iter().chain(labels()).chain(results()).collect();
    let text = constants + &group_of(&op.groups) + KEPT;
    launch(&mut work, operands, |parameters| for_each("kept_boxes", parameters, batch * most, &text));
    work
}
