//! Detectors: reference boxes, matches, codes, suppression and largest elements.
//!
//! Boxes that are matched or suppressed hard have small integer coordinates, so that every quotient of areas is rounded alike in
//! all precisions: equal IoUs are equal, and others are far apart.

use crate::problem::{Draw, Input, Problem};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_ir::ops::detection::boxes::{AxisOrder, BoxClip, BoxCode, DecodeBoxes, EncodeBoxes};
use bessemer_ir::ops::detection::masks::MaskTargets;
use bessemer_ir::ops::detection::matching::{ForcedMatch, MatchBoxes};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiBorder, RoiLevels, RoiSamples};
use bessemer_ir::ops::detection::sample::{PackRows, SampleFill, SampleLabels, SampleOrder, SampleRows, Sampler};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::{DType, GraphError, Value};

/// Boxes `[...shape, 4]` of integer coordinates, some without area.
fn integer_boxes(p: &mut Problem, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
    let corners = [shape, &[2]].concat();
    let integers = |first, count| Input::Integers { first, count };
    let low = p.feed(&format!("{name} corner"), DType::I32, &corners, integers(-2, 12))?;
    let size = p.feed(&format!("{name} size"), DType::I32, &corners, integers(0, 13))?;
    boxes_of(p, low, size)
}

/// Boxes from their first corners and their sizes.
fn boxes_of(p: &mut Problem, low: Value, size: Value) -> Result<Value, GraphError> {
    let g = &mut p.graph;
    let (low, size) = (g.cast(low, DType::F32)?, g.cast(size, DType::F32)?);
    let high = g.add(low, size)?;
    g.concat(&[low, high], g.shape(low).rank() - 1)
}

/// Boxes `[...shape, 4]` with real coordinates, all of some area.
fn real_boxes(p: &mut Problem, name: &str, shape: &[usize]) -> Result<Value, GraphError> {
    let corners = [shape, &[2]].concat();
    let low = p.feed(&format!("{name} corner"), DType::F32, &corners, Input::Normal)?;
    let size = p.feed(&format!("{name} size"), DType::F32, &corners, Input::Normal)?;
    let size = p.graph.square(size)?;
    let size = p.graph.add_scalar(size, 0.5)?;
    boxes_of(p, low, size)
}

/// All values in one tensor, integers as `f32`.
fn joined(p: &mut Problem, values: &[Value]) -> Result<Value, GraphError> {
    let g = &mut p.graph;
    let flat = values.iter().map(|&value| {
        let elements = g.shape(value).elements();
        let value = g.cast(value, DType::F32)?;
        g.reshape(value, [elements])
    });
    let flat = flat.collect::<Result<Vec<_>, _>>()?;
    g.concat(&flat, 0)
}

pub(super) fn anchors(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let mut level = |stride: f64| AnchorLevel {
        grid: [d.int(1, 9), d.int(1, 9)],
        stride: [Scalar(stride), Scalar(stride / 3.0)],
        boxes: (0..d.int(1, 9)).map(|i| [-2.0, -3.5, 1.0 + i as f64, stride].map(|x| Scalar(x * 1.26))).collect(),
    };
    let levels = vec![level(8.0), level(16.0)];
    let placement = if d.flip() { AnchorPlacement::Centre } else { AnchorPlacement::Corner };
    let anchors = p.graph.push1(Anchors { levels, placement }, &[])?;
    let factor = p.feed("factor", DType::F32, &[], Input::Normal)?;
    p.graph.mul(anchors, factor)
}

/// Of more boxes than a task has, with none to all of the ground truths valid.
fn matched(p: &mut Problem, d: &mut Draw) -> Result<[Value; 4], GraphError> {
    let (batch, n, truths) = (d.int(1, 3), d.int(1, 600), d.int(1, 9));
    let shape: &[usize] = if d.flip() { &[n] } else { &[batch, n] };
    let boxes = integer_boxes(p, "box", shape)?;
    let gt = integer_boxes(p, "truth", &[batch, truths])?;
    let counts = Input::Integers { first: 0, count: truths as u32 + 1 };
    let counts = p.feed("counts", DType::I32, &[batch], counts)?;
    let (low, high) = [(0.5, 0.5), (0.3, 0.7), (0.25, 0.6)][d.int(0, 2)];
    let op = MatchBoxes {
        low: Scalar(low),
        high: Scalar(high),
        high_inclusive: d.flip(),
        forced: [ForcedMatch::No, ForcedMatch::BestOnce, ForcedMatch::AllTies][d.int(0, 2)],
        union_eps: Scalar(if d.flip() { 0.0 } else { 0.5 }),
    };
    let outputs = p.graph.push(op, &[boxes, gt, counts])?;
    Ok([boxes, gt, outputs[0], outputs[1]])
}

pub(super) fn match_boxes(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let [_, _, matches, positives] = matched(p, d)?;
    joined(p, &[matches, positives])
}

fn code(d: &mut Draw) -> BoxCode {
    let weights = [[1.0; 4], [10.0, 10.0, 5.0, 5.0], [2.0, 3.0, 4.0, 5.0]][d.int(0, 2)];
    BoxCode {
        order: if d.flip() { AxisOrder::Xy } else { AxisOrder::Yx },
        weights: weights.map(Scalar),
        legacy: d.flip(),
        eps: Scalar(1e-3),
    }
}

pub(super) fn encode_boxes(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let [boxes, gt, matches, _] = matched(p, d)?;
    p.graph.push1(EncodeBoxes { code: code(d) }, &[boxes, gt, matches])
}

pub(super) fn decode_boxes(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, n, columns) = (d.int(1, 3), d.int(1, 900), d.int(1, 4));
    let shape: &[usize] = if columns == 1 { &[batch, n, 4] } else { &[batch, n, columns, 4] };
    let codes = p.feed("codes", DType::F32, shape, Input::Normal)?;
    let boxes: &[usize] = if d.flip() { &[n] } else { &[batch, n] };
    let boxes = real_boxes(p, "box", boxes)?;
    let clip = [BoxClip::No, BoxClip::Size, BoxClip::SizeMinusOne][d.int(0, 2)];
    let max_growth = d.flip().then_some(Scalar(0.1));
    let op = DecodeBoxes { code: code(d), max_growth, clip };
    if clip == BoxClip::No {
        return p.graph.push1(op, &[codes, boxes]);
    }
    let sizes = p.feed("sizes", DType::I32, &[batch, 2], Input::Integers { first: 1, count: 4 })?;
    let sizes = p.graph.cast(sizes, DType::F32)?;
    p.graph.push1(op, &[codes, boxes, sizes])
}

/// A sampler, and its inputs: candidates of a few values from `first` on, rare ones among many or all alike, and the step.
fn sampled(p: &mut Problem, d: &mut Draw, first: i32) -> Result<(Sampler, Vec<Value>), GraphError> {
    let (batch, n) = (d.int(1, 3), [1, 20, 150, 3000][d.int(0, 3)]);
    let count = [2, 3, 4][d.int(0, 2)];
    let mut inputs = vec![p.feed("candidates", DType::I32, &[batch, n], Input::Integers { first, count })?];
    let total = d.int(1, 60);
    let order = match d.int(0, 2) {
        0 => SampleOrder::First,
        _ => {
            inputs.push(p.feed("step", DType::I32, &[], Input::Integers { first: 1, count: 100 })?);
            SampleOrder::Random { seed: 0x1234_5678_9ABC, stream: d.int(0, 9) as u32 }
        }
    };
    Ok((Sampler { total, most_positives: d.int(0, total), order }, inputs))
}

pub(super) fn sample_labels(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (sampler, inputs) = sampled(p, d, -1)?;
    p.graph.push1(SampleLabels { sampler }, &inputs)
}

pub(super) fn sample_rows(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (sampler, inputs) = sampled(p, d, -2)?;
    let fill = if d.flip() { SampleFill::Rest } else { SampleFill::Padding };
    let outputs = p.graph.push(SampleRows { sampler, fill }, &inputs)?;
    joined(p, &outputs)
}

pub(super) fn pack_rows(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let shape = [d.int(1, 4), d.int(1, 50)];
    let flags = p.feed("flags", DType::I32, &shape, Input::Integers { first: -1, count: 3 })?;
    let outputs = p.graph.push(PackRows { capacity: d.int(1, 60) }, &[flags])?;
    joined(p, &outputs)
}

/// Inputs and attributes of a suppression: boxes of a shape, scores, and what else there is.
fn suppression(
    p: &mut Problem,
    d: &mut Draw,
    suppression: Suppression,
    [n, columns]: [usize; 2],
) -> Result<(Suppress, Vec<usize>, Vec<Value>), GraphError> {
    let batch = d.int(1, 3);
    let mut op = Suppress::new(suppression, d.int(1, 40));
    let labels = Input::Integers { first: -1, count: 4 };
    let mut shape = vec![batch, n];
    let mut more = Vec::new();
    match d.int(0, 3) {
        0 => {}
        1 => op.groups = BoxGroups::Ranges(vec![n / 3, n / 2, n]),
        2 => {
            op.groups = BoxGroups::Labels;
            more.push(p.feed("labels", DType::I32, &shape, labels)?);
        }
        _ => {
            op.groups = BoxGroups::Columns;
            shape.push(columns);
        }
    }
    op.legacy = d.flip();
    op.min_size = d.flip().then_some(Scalar(1.0));
    if d.flip() {
        more.push(p.feed("counts", DType::I32, &[batch], Input::Integers { first: 0, count: n as u32 + 1 })?);
    }
    Ok((op, shape, more))
}

pub(super) fn hard_suppression(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let rule = Suppression::Hard { iou: Scalar([0.3, 0.5, 0.7][d.int(0, 2)]) };
    // Once more candidates than are sorted first.
    let sizes = [if d.int(0, 3) == 0 { 1500 } else { d.int(1, 90) }, d.int(1, 3)];
    let (mut op, shape, more) = suppression(p, d, rule, sizes)?;
    let boxes = integer_boxes(p, "box", &shape)?;
    let scores = p.feed("scores", DType::I32, &shape, Input::Integers { first: 0, count: 50 })?;
    let scores = p.graph.cast(scores, DType::F32)?;
    op.score_floor = d.flip().then_some(Scalar(5.0));
    let outputs = p.graph.push(op, &[&[boxes, scores], &more[..]].concat())?;
    joined(p, &outputs)
}

pub(super) fn soft_suppression(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let rule = Suppression::Gaussian { sigma: Scalar(0.5), floor: Scalar([0.001, 0.2][d.int(0, 1)]) };
    let sizes = [d.int(1, 90), d.int(1, 3)];
    let (mut op, shape, more) = suppression(p, d, rule, sizes)?;
    let boxes = real_boxes(p, "box", &shape)?;
    let scores = p.feed("scores", DType::F32, &shape, Input::Normal)?;
    let scores = p.graph.unary(bessemer_ir::ops::pointwise::UnaryKind::Sigmoid, scores)?;
    op.score_floor = d.flip().then_some(Scalar(0.3));
    let outputs = p.graph.push(op, &[&[boxes, scores], &more[..]].concat())?;
    // Positions differ by 1, so that scores are compared as finely as these.
    let scores = p.graph.mul_scalar(outputs[2], 100.0)?;
    joined(p, &[outputs[0], outputs[1], scores, outputs[3]])
}

pub(super) fn top_k(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (n, m) = (d.int(1, 40), d.int(1, 40));
    let axes = d.int(1, 2);
    let x = p.input(&[d.int(1, 3), n, m])?;
    let k = d.int(1, if axes == 1 { m } else { n * m });
    Ok(p.graph.top_k(x, k, axes)?[0])
}

/// With many equal elements, in rows of one and of several tasks.
pub(super) fn top_k_positions(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (rows, n, m) = [(3, 7, 30), (2, 200, 400), (1, 1, 150_000)][d.int(0, 2)];
    let range = [2, 50, 1 << 20][d.int(0, 2)];
    let x = p.feed("x", DType::I32, &[rows, n, m], Input::Integers { first: -(range as i32) / 2, count: range })?;
    let x = p.graph.cast(x, DType::F32)?;
    let k = [1, m.min(20), n * m / 2][d.int(0, 2)];
    let outputs = p.graph.top_k(x, k.max(1), 2)?;
    joined(p, &outputs)
}

/// Boxes `[count, 4]` whose coordinates are multiples of 3/4, some without area, and the image of each one.
fn regions(p: &mut Problem, batch: usize, count: usize) -> Result<[Value; 2], GraphError> {
    let boxes = integer_boxes(p, "region", &[count])?;
    let images = p.feed("images", DType::I32, &[count], Input::Integers { first: 0, count: batch as u32 })?;
    Ok([p.graph.mul_scalar(boxes, 0.75)?, images])
}

pub(super) fn roi_align(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, channels) = (d.int(1, 2), d.int(1, 100));
    let maps = (0..d.int(1, 3)).map(|level| p.input(&[batch, (d.int(8, 12) >> level).max(1), 12 >> level, channels]));
    let maps = maps.collect::<Result<Vec<_>, _>>()?;
    let count = d.int(1, 40);
    let regions = regions(p, batch, count)?;
    let op = RoiAlign {
        size: [d.int(1, 7), d.int(1, 7)],
        samples: [RoiSamples::Fixed(1), RoiSamples::Fixed(2), RoiSamples::Adaptive][d.int(0, 2)],
        border: if d.flip() { RoiBorder::Torch } else { RoiBorder::Clamp },
        levels: RoiLevels { canonical_size: Scalar(4.0), canonical_level: 3, eps: Scalar(1e-6), first: 2 },
        strides: (0..maps.len()).map(|level| Scalar((1 << level) as f64)).collect(),
    };
    p.graph.push1(op, &[&maps[..], &regions].concat())
}

pub(super) fn mask_targets(p: &mut Problem, d: &mut Draw) -> Result<Value, GraphError> {
    let (batch, truths, crop) = (d.int(1, 3), d.int(1, 4), d.int(1, 20));
    let range = [2, 256][d.int(0, 1)];
    let crops = p.feed("crops", DType::U8, &[batch, truths, crop, crop], Input::Integers { first: 0, count: range })?;
    let gt = integer_boxes(p, "truth", &[batch, truths])?;
    let count = d.int(1, 30);
    let [boxes, images] = regions(p, batch, count)?;
    let numbers = Input::Integers { first: -1, count: truths as u32 + 1 };
    let numbers = p.feed("numbers", DType::I32, &[count], numbers)?;
    let threshold = d.flip().then_some(Scalar(if range == 2 { 0.5 / 255.0 } else { 0.5 }));
    let op = MaskTargets { size: d.int(1, 28), border: d.int(0, 2), threshold };
    p.graph.push1(op, &[crops, gt, boxes, images, numbers])
}
