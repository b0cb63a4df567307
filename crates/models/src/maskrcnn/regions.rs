//! Regions of a batch: those that training chooses from the proposals, and their objects.

use super::config::{Flavour, MaskRcnnOptions, TrainingOptions};
use super::rpn::Proposals;
use crate::detector::Objects;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::boxes::EncodeBoxes;
use bessemer_ir::ops::detection::matching::NEGATIVE;
use bessemer_ir::ops::detection::sample::{NEGATIVE_ROW, POSITIVE_ROW, PackRows, SampleOrder, SampleRows, Sampler};
use bessemer_ir::ops::index::Gather;
use bessemer_ir::ops::pointwise::BinaryKind;
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::ops::source::Constant;
use bessemer_ir::{DType, Graph, Shape, Value};
use bessemer_nn::loss::{WeightedRows, huber, masked_cross_entropy, sigmoid_cross_entropy, sum_all};
use bessemer_nn::{Builder, MaskedMean, Result, Streams};

/// A sampler of so many candidates, `[total, positives at most]`, and the operands of its operation: the candidates, and the step if
/// the samples are random.
pub(super) fn sample(
    b: &mut Builder,
    [total, most_positives]: [usize; 2],
    is_random: bool,
    candidates: Value,
    streams: &mut Streams,
) -> Result<(Sampler, Vec<Value>)> {
    if !is_random {
        return Ok((Sampler { total, most_positives, order: SampleOrder::First }, vec![candidates]));
    }
    let random = streams.next_stream();
    let order = SampleOrder::Random { seed: random.seed, stream: random.stream };
    Ok((Sampler { total, most_positives, order }, vec![candidates, b.micro_step()?]))
}

/// Whether each of `rows` rows is among the first `count i32[B]` of its image, `[B, rows]`, or the first `count i32[]`, `[rows]`.
fn is_before(g: &mut Graph, rows: usize, count: Value) -> Result<Value> {
    let data = (0..rows).map(|row| Scalar(row as f64)).collect();
    let numbers = g.push1(Constant { dtype: DType::I32, shape: [rows].into(), data }, &[])?;
    let count = if g.shape(count).rank() == 0 { count } else { as_column(g, count)? };
    g.binary(BinaryKind::Lt, numbers, count)
}

/// `x [B, N, ...]` with zeros behind the first `count i32[B]` rows of each image, or `[N, ...]` with zeros behind the first `count
/// i32[]`.
pub(super) fn zero_behind(g: &mut Graph, x: Value, count: Value) -> Result<Value> {
    let (axis, dims) = (g.shape(count).rank(), g.shape(x).dims().to_vec());
    let is_there = is_before(g, dims[axis], count)?;
    let shape = [&dims[..=axis], &vec![1; dims.len() - axis - 1]].concat();
    let is_there = g.reshape(is_there, Shape::new(shape))?;
    let zero = g.constant_like(x, 0.0)?;
    g.select(is_there, x, zero)
}

/// `[...]` as `[..., 1]`.
pub(super) fn as_column(g: &mut Graph, x: Value) -> Result<Value> {
    let shape = [g.shape(x).dims(), &[1]].concat();
    g.reshape(x, Shape::new(shape))
}

/// `[B, N, ...]` as `[B * N, ...]`.
pub(super) fn flat(g: &mut Graph, x: Value) -> Result<Value> {
    let dims = g.shape(x).dims();
    let shape = [&[dims[0] * dims[1]], &dims[2..]].concat();
    g.reshape(x, Shape::new(shape))
}

/// The image of each of `rows` rows of `batch` images, `i32[B * rows]`.
pub(super) fn images_of(g: &mut Graph, batch: usize, rows: usize) -> Result<Value> {
    let data = (0..batch * rows).map(|row| Scalar((row / rows) as f64)).collect();
    g.push1(Constant { dtype: DType::I32, shape: [batch * rows].into(), data }, &[])
}

/// A match `i32[B, N]` of `boxes f32[B, N, 4]`, where those without area among the first `count i32[B]` are background instead of
/// ignored: reference boxes beyond the image become such proposals, and NVIDIA's recipe draws them as any other.
fn background_without_area(g: &mut Graph, matches: Value, boxes: Value, count: Value) -> Result<Value> {
    let [batch, rows] = [g.shape(matches)[0], g.shape(matches)[1]];
    let mut of_coordinates = |first: usize| g.slice(boxes, &[0, 0, first], &[batch, rows, first + 2], &[1; 3]);
    let [low, high] = [of_coordinates(0)?, of_coordinates(2)?];
    let sides = g.sub(high, low)?;
    let shorter = g.reduce(ReduceKind::Min, sides, &[2], false)?;
    let none = g.constant_like(shorter, 0.0)?;
    let has_no_area = g.binary(BinaryKind::Le, shorter, none)?;
    let background = g.constant_like(matches, f64::from(NEGATIVE))?;
    let drawn = g.select(has_no_area, background, matches)?;
    let is_proposal = is_before(g, rows, count)?;
    g.select(is_proposal, drawn, matches)
}

/// The regions that enter the losses.
pub(super) struct Regions {
    /// `f32[B, T, 4]`
    pub boxes: Value,
    /// The class of each one's object, 0 for background, `i32[B, T]`.
    pub labels: Value,
    /// The number of each one's object, -1 for background, `i32[B, T]`.
    pub numbers: Value,
    /// 1 for regions of objects, 0 for background, -1 for rows that count nowhere, `i32[B, T]`.
    pub kinds: Value,
    /// The match of all proposals and objects that regions are chosen from, `i32[B, N + G]`.
    pub matches: Value,
}

impl Regions {
    /// Chooses from the proposals and the objects themselves.
    pub(super) fn choose(
        b: &mut Builder,
        proposals: &Proposals,
        objects: &Objects,
        options: &MaskRcnnOptions,
        training: &TrainingOptions,
        streams: &mut Streams,
    ) -> Result<Self> {
        let flavour = options.flavour;
        let g = &mut b.graph;
        // Boxes without area are never chosen.
        let truths = zero_behind(g, objects.boxes, objects.count)?;
        let candidates = g.concat(&[proposals.boxes, truths], 1)?;
        let rule = flavour.match_regions(training.region_overlap);
        let mut matches = g.push(rule, &[candidates, objects.boxes, objects.count])?[0];
        if flavour == Flavour::Nvidia {
            matches = background_without_area(g, matches, candidates, proposals.count)?;
        }
        let (sampler, operands) = sample(b, training.region_samples, training.random_samples, matches, streams)?;
        let g = &mut b.graph;
        let sampled = g.push(SampleRows { sampler, fill: flavour.fill() }, &operands)?;
        let (rows, kinds) = (sampled[0], sampled[1]);
        let boxes = g.gather(candidates, rows, 1, 1)?;
        let matched = g.gather(matches, rows, 1, 1)?;
        let positive = g.constant_like(kinds, f64::from(POSITIVE_ROW))?;
        let is_positive = g.binary(BinaryKind::Eq, kinds, positive)?;
        let negative = g.constant_like(matched, f64::from(NEGATIVE))?;
        let numbers = g.select(is_positive, matched, negative)?;
        let zero = g.constant_like(numbers, 0.0)?;
        let legal = g.binary(BinaryKind::Max, numbers, zero)?;
        let labels = g.gather(objects.classes, legal, 1, 1)?;
        let labels = g.select(is_positive, labels, zero)?;
        Ok(Regions { boxes, labels, numbers, kinds, matches })
    }

    /// The losses of classes and of boxes, `f32[]` each, of `logits f32[B * T, K]` and `deltas f32[B * T, K, 4]`.
    pub(super) fn losses(
        &self,
        b: &mut Builder,
        logits: Value,
        deltas: Value,
        objects: &Objects,
        flavour: Flavour,
    ) -> Result<[Value; 2]> {
        let g = &mut b.graph;
        let [kinds, labels] = [flat(g, self.kinds)?, flat(g, self.labels)?];
        let mut of_kinds = |operator: BinaryKind, kind: i32| {
            let kind = g.constant_like(kinds, f64::from(kind))?;
            let holds = g.binary(operator, kinds, kind)?;
            Ok((holds, g.cast(holds, DType::F32)?))
        };
        let (_, weights) = of_kinds(BinaryKind::Ge, NEGATIVE_ROW)?;
        let (is_positive, positives) = of_kinds(BinaryKind::Eq, POSITIVE_ROW)?;
        let class_loss = masked_cross_entropy(b, &WeightedRows { logits, labels, weights }, MaskedMean::Torch)?;

        let g = &mut b.graph;
        let codes = g.push1(EncodeBoxes { code: flavour.region_code() }, &[self.boxes, objects.boxes, self.numbers])?;
        let codes = flat(g, codes)?;
        let deltas = g.gather(deltas, labels, 1, 1)?;
        let delta = match flavour {
            Flavour::Torchvision => 1.0 / 9.0,
            Flavour::Nvidia => 1.0,
        };
        let loss = huber(g, deltas, codes, delta)?;
        let zero = g.constant_like(loss, 0.0)?;
        let is_positive = as_column(g, is_positive)?;
        let loss = g.select(is_positive, loss, zero)?;
        let loss = sum_all(g, loss)?;
        let (factor, counted) = match flavour {
            Flavour::Torchvision => (1.0 / delta, weights),
            Flavour::Nvidia => (0.25, positives),
        };
        let loss = g.mul_scalar(loss, factor)?;
        let counted = sum_all(g, counted)?;
        Ok([class_loss, MaskedMean::Torch.of(b, loss, counted)?])
    }

    /// The first `most` regions of each image that have an object, in one list of as many rows as there may be.
    pub(super) fn with_objects(&self, b: &mut Builder, most: usize) -> Result<Packed> {
        let g = &mut b.graph;
        let batch = g.shape(self.kinds)[0];
        let flags = g.slice(self.kinds, &[0, 0], &[batch, most], &[1, 1])?;
        let packed = g.push(PackRows { capacity: batch * most }, &[flags])?;
        let (image, row, count) = (packed[0], packed[1], packed[2]);
        let mut of_rows = |x: Value, last: &[usize]| {
            let start = vec![0; 2 + last.len()];
            let first = g.slice(x, &start, &[&[batch, most], last].concat(), &vec![1; start.len()])?;
            let first = flat(g, first)?;
            g.push1(Gather::ROWS, &[first, row])
        };
        let boxes = of_rows(self.boxes, &[4])?;
        let [labels, numbers] = [of_rows(self.labels, &[])?, of_rows(self.numbers, &[])?];
        Ok(Packed { boxes, labels, numbers, image, count })
    }
}

/// Regions of objects of all images, one after the other, and other rows behind the last one.
pub(super) struct Packed {
    /// `f32[P, 4]`
    pub boxes: Value,
    /// `i32[P]`
    pub labels: Value,
    /// `i32[P]`
    pub numbers: Value,
    /// `i32[P]`
    pub image: Value,
    /// `i32[]`
    pub count: Value,
}

impl Packed {
    /// The mean loss of the pixels of all masks, `f32[]`, of the logits of each one's class, `f32[P, M, M]`.
    pub(super) fn mask_loss(
        &self,
        b: &mut Builder,
        logits: Value,
        crops: Value,
        objects: &Objects,
        flavour: Flavour,
    ) -> Result<Value> {
        let g = &mut b.graph;
        let operands = [crops, objects.boxes, self.boxes, self.image, self.numbers];
        let targets = g.push1(flavour.mask_targets(), &operands)?;
        let entropy = sigmoid_cross_entropy(g, logits, targets)?;
        let pixels = g.shape(entropy).elements() / g.shape(entropy)[0];
        let entropy = zero_behind(g, entropy, self.count)?;
        let sum = sum_all(g, entropy)?;
        let count = g.cast(self.count, DType::F32)?;
        let count = g.mul_scalar(count, pixels as f64)?;
        MaskedMean::Torch.of(b, sum, count)
    }
}
