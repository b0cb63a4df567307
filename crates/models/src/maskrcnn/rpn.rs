//! The region proposal network (Ren et al. 2015, arXiv:1506.01497): one head for all maps of the pyramid, its proposals and losses.

use super::config::{Flavour, LEVELS, MaskRcnnOptions, ProposalOptions, TrainingOptions};
use super::regions::{as_column, sample, zero_behind};
use crate::detector::{Objects, total};
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::Anchors;
use bessemer_ir::ops::detection::boxes::EncodeBoxes;
use bessemer_ir::ops::detection::sample::SampleLabels;
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, Value};
use bessemer_nn::loss::{huber, huber_of_targets, sigmoid_cross_entropy, sum_all};
use bessemer_nn::{Builder, Conv, ConvOptions, Init, MaskedMean, Result, Streams};

/// Error of a coordinate from which its loss grows in a straight line.
const DELTA: f64 = 1.0 / 9.0;

/// What the network says of each reference box, by level.
pub(super) struct Scored {
    /// `f32[B, N]`
    pub logits: [Value; LEVELS],
    /// `f32[B, N, 4]`
    pub deltas: [Value; LEVELS],
}

/// The head on the maps of the pyramid, P2 to P6.
pub(super) fn score(b: &mut Builder, maps: &[Value], options: &MaskRcnnOptions) -> Result<Scored> {
    let normal = Init::Normal { std: 0.01 };
    let conv = |channels, kernel| ConvOptions { bias: Some(Init::Zeros), ..ConvOptions::new(channels, kernel, normal) };
    let anchors = options.anchors.aspects.len();
    b.scope("rpn.head", |b| {
        let shared = b.scope("conv.0", |b| Conv::new(b, "0", options.width, conv(options.width, 3)))?;
        let logits = Conv::new(b, "cls_logits", options.width, conv(anchors, 1))?;
        let deltas = Conv::new(b, "bbox_pred", options.width, conv(4 * anchors, 1))?;
        let on_level = |(level, &map): (usize, &Value)| {
            b.scope(&format!("level.{level}"), |b| {
                let x = b.scope("conv.0", |b| shared.apply(b, map))?;
                let x = b.graph.relu(x)?;
                let [logits, deltas] = [logits.apply(b, x)?, deltas.apply(b, x)?];
                let g = &mut b.graph;
                let shape = g.shape(logits);
                let (batch, boxes) = (shape[0], shape.elements() / shape[0]);
                let [logits, deltas] = [g.cast(logits, DType::F32)?, g.cast(deltas, DType::F32)?];
                Ok((g.reshape(logits, [batch, boxes])?, g.reshape(deltas, [batch, boxes, 4])?))
            })
        };
        let (logits, deltas): (Vec<_>, Vec<_>) =
            maps.iter().enumerate().map(on_level).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let by_level = |values: Vec<Value>| values.try_into().expect("a map for each level");
        Ok(Scored { logits: by_level(logits), deltas: by_level(deltas) })
    })
}

/// Boxes that may hold an object.
pub(super) struct Proposals {
    /// `f32[B, N, 4]`, zeros behind the last one.
    pub boxes: Value,
    /// `i32[B]`
    pub count: Value,
}

/// The best boxes of all levels that do not overlap too much.
pub(super) fn propose(
    b: &mut Builder,
    scored: &Scored,
    sizes: Value,
    options: &MaskRcnnOptions,
    proposals: &ProposalOptions,
) -> Result<Proposals> {
    b.scope("rpn.proposals", |b| {
        let g = &mut b.graph;
        let (mut best, mut codes, mut anchors, mut ends) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (level, own_anchors) in options.anchors().into_iter().enumerate() {
            let (mut logits, mut deltas) = (scored.logits[level], scored.deltas[level]);
            let batch = g.shape(logits)[0];
            let boxes = g.push1(own_anchors, &[])?;
            let count = g.shape(boxes)[0];
            let k = proposals.candidates.map_or(count, |most| most.min(count));
            anchors.push(if k < count {
                let top = g.top_k(logits, k, 1)?;
                logits = top[0];
                deltas = g.gather(deltas, top[1], 1, 1)?;
                g.gather(boxes, top[1], 0, 0)?
            } else {
                g.broadcast(boxes, &[batch, count, 4].into())?
            });
            best.push(logits);
            codes.push(deltas);
            ends.push(ends.last().unwrap_or(&0) + k);
        }
        let [best, codes, anchors] = [g.concat(&best, 1)?, g.concat(&codes, 1)?, g.concat(&anchors, 1)?];
        let boxes = g.push1(options.flavour.decode_anchors(), &[codes, anchors, sizes])?;
        let scores = g.unary(UnaryKind::Sigmoid, best)?;
        let [min_size, _] = options.flavour.least_sides();
        let rule = Suppression::Hard { iou: Scalar(options.proposal_overlap) };
        let most = proposals.most.min(ends[LEVELS - 1]);
        let rule = Suppress { groups: BoxGroups::Ranges(ends), min_size, ..Suppress::new(rule, most) };
        let kept = g.push(rule, &[boxes, scores])?;
        let boxes = g.gather(boxes, kept[0], 1, 1)?;
        Ok(Proposals { boxes: zero_behind(g, boxes, kept[3])?, count: kept[3] })
    })
}

/// The losses of scores and of boxes, `f32[]` each.
pub(super) fn losses(
    b: &mut Builder,
    scored: &Scored,
    objects: &Objects,
    options: &MaskRcnnOptions,
    training: &TrainingOptions,
    streams: &mut Streams,
) -> Result<[Value; 2]> {
    let flavour = options.flavour;
    let levels = options.anchors();
    let counts: Vec<usize> = levels.iter().map(Anchors::count).collect();
    let placement = levels[0].placement;
    let anchors = Anchors { levels: levels.into_iter().flat_map(|level| level.levels).collect(), placement };
    let g = &mut b.graph;
    let anchors = g.push1(anchors, &[])?;
    let matches = g.push(flavour.match_anchors(training.anchor_overlaps), &[anchors, objects.boxes, objects.count])?[0];
    let codes = g.push1(EncodeBoxes { code: flavour.anchor_code() }, &[anchors, objects.boxes, matches])?;
    let labels = g.add_scalar(matches, 1.0)?;
    let (sampler, operands) = sample(b, training.anchor_samples, training.random_samples, labels, streams)?;
    let g = &mut b.graph;
    let labels = g.push1(SampleLabels { sampler }, &operands)?;
    let (batch, zero) = (g.shape(labels)[0], g.constant_like(labels, 0.0)?);
    let is_sampled = g.binary(BinaryKind::Ge, labels, zero)?;
    let sampled = g.cast(is_sampled, DType::F32)?;
    let sampled = sum_all(g, sampled)?;
    let no_loss = g.constant(DType::F32, [], 0.0)?;
    let (mut scores, mut boxes, mut start) = (Vec::new(), Vec::new(), 0);
    for (level, count) in counts.into_iter().enumerate() {
        let stop = start + count;
        let g = &mut b.graph;
        let labels = g.slice(labels, &[0, start], &[batch, stop], &[1, 1])?;
        let codes = g.slice(codes, &[0, start, 0], &[batch, stop, 4], &[1, 1, 1])?;
        start = stop;
        let is_sampled = g.binary(BinaryKind::Ge, labels, zero)?;
        let is_positive = g.binary(BinaryKind::Gt, labels, zero)?;
        let targets = g.cast(is_positive, DType::F32)?;
        let entropy = sigmoid_cross_entropy(g, scored.logits[level], targets)?;
        let entropy = g.select(is_sampled, entropy, no_loss)?;
        scores.push(sum_all(g, entropy)?);
        boxes.push(match flavour {
            Flavour::Torchvision => {
                let loss = huber(g, scored.deltas[level], codes, DELTA)?;
                let is_positive = as_column(g, is_positive)?;
                let loss = g.select(is_positive, loss, no_loss)?;
                sum_all(g, loss)?
            }
            // All matched boxes, the mean over the coordinates of the level.
            Flavour::Nvidia => {
                let loss = huber_of_targets(g, scored.deltas[level], codes, DELTA)?;
                let loss = sum_all(g, loss)?;
                let size = g.unary(UnaryKind::Abs, codes)?;
                let is_counted = g.binary(BinaryKind::Gt, size, no_loss)?;
                let number = g.cast(is_counted, DType::F32)?;
                let number = sum_all(g, number)?;
                MaskedMean::Torch.of(b, loss, number)?
            }
        });
    }
    let [scores, boxes] = [total(b, scores)?, total(b, boxes)?];
    match flavour {
        Flavour::Torchvision => {
            let boxes = b.graph.mul_scalar(boxes, 1.0 / DELTA)?;
            Ok([MaskedMean::Torch.of(b, scores, sampled)?, MaskedMean::Torch.of(b, boxes, sampled)?])
        }
        Flavour::Nvidia => {
            let most = (batch * training.anchor_samples[0]) as f64;
            Ok([b.graph.mul_scalar(scores, 1.0 / most)?, boxes])
        }
    }
}
