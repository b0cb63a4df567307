//! Masks that regions are to predict, an element a thread. Targets are decided by a threshold: all is in double precision, and products
//! are rounded before they are added, as on other devices.

use super::{Work, check, counts, doubles, flags, float_input, float_output, for_each, input, report};
use crate::kgen::{Operand, Parameter};
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::{DType, TensorType};

/// The crop that the region `p` is read from.
const CROP: &str = "\
const u32 col = i % SIZE, row = i / SIZE % SIZE, p = i / SIZE / SIZE;
";

/// Its ground truth; one that is out of range is the second thing to report.
const NUMBER: &str = "\
const int image = index;
int number = numbers[p];
if (number >= (int)TRUTHS) {
    atomicMin((u64*)report + 1, (u64)p << 32 | (u32)number);
    number = -1;
}
";

const TARGET: &str = "\
if (number < 0) {
    masks[i] = 0.0f;
    continue;
}
const u32 own_truth = (u32)image * TRUTHS + (u32)number;
const float* const region = regions + p * 4u;
const float* const truth = truths + own_truth * 4u;
const u8* const crop = crops + own_truth * CROP * CROP;
const double extent = (double)(CROP + 2u * BORDER);
const auto position = [=](u32 axis, u32 bin) {
    const double from = truth[1u - axis], region_from = region[1u - axis];
    const double scale = (double)CROP / ((double)truth[3u - axis] - from + 1e-8);
    const double start = __dmul_rn(region_from - from, scale) + (double)BORDER;
    const double side = __dmul_rn((double)region[3u - axis] - region_from, scale) / (double)SIZE;
    return start + __dmul_rn((double)bin, side) + 0.5 * side;
};
const double down = position(0u, row), across = position(1u, col);
const auto pixel_of = [=](double below) { return below >= extent - 1.0 ? (u32)extent - 1u : (u32)below; };
const double above = fmax(floor(down), 0.0), left = fmax(floor(across), 0.0);
const u32 y = pixel_of(above), x = pixel_of(left), last = (u32)extent - 1u;
const auto pixel = [=](u32 at_y, u32 at_x) {
    const u32 own_y = at_y - BORDER, own_x = at_x - BORDER;
    return own_y < CROP && own_x < CROP ? (double)crop[own_y * CROP + own_x] : 0.0;
};
const double to_right = across - left, to_below = down - above;
const auto line = [=](u32 at_y) {
    return __dmul_rn(1.0 - to_right, pixel(at_y, x)) + __dmul_rn(to_right, pixel(at_y, x < last ? x + 1u : last));
};
const double mean = __dmul_rn(1.0 - to_below, line(y)) + __dmul_rn(to_below, line(y < last ? y + 1u : last));
const double share = mean / 255.0;
masks[i] = HAS_THRESHOLD ? (share >= THRESHOLD ? 1.0f : 0.0f) : (float)share;
";

pub(crate) fn targets(op: &MaskTargets, types: &[&TensorType]) -> Work {
    let mut work = Work::new("masks of regions", 1);
    let (crops, regions) = (types[0], types[2].shape[0]);
    let (batch, truths, elements) = (crops.shape[0], crops.shape[1], regions * op.size * op.size);
    let text = counts(&[("SIZE", op.size), ("BORDER", op.border), ("TRUTHS", truths), ("CROP", crops.shape[2])])
        + &flags(&[("HAS_THRESHOLD", op.threshold.is_some())])
        + &doubles(&[("THRESHOLD", op.threshold.map_or(0.0, |threshold| threshold.0))])
        + CROP
        + "int index = images[p];\n"
        + &check(batch, "p", "index = 0")
        + NUMBER
        + TARGET;
    let parameters = vec![
        Parameter::input("crops", DType::U8, crops.shape.elements()),
        float_input("truths", batch * truths * 4),
        float_input("regions", regions * 4),
        input("images", regions),
        input("numbers", regions),
        float_output("masks", elements),
        report(),
    ];
    work.reporting(batch);
    let reports = work.reporting(truths);
    let operands = (0..5).map(Operand::Input).chain([Operand::Output(0), reports]).collect::<Vec<_>>();
    work.launch(for_each("mask_targets", parameters, elements, &text), operands);
    work
}
