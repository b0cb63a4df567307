//! Operations of detectors.

use super::{Layout, Translator};
use crate::OnnxError;
use crate::proto::{AttributeProto, GraphProto, TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto, element};
use bessemer_ir::ops::detection::boxes::{BoxClip, DecodeBoxes};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiBorder, RoiSamples};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress, Suppression};
use bessemer_ir::ops::index::ScatterAdd;
use bessemer_ir::ops::limited::Limited;
use bessemer_ir::reference::Tensor;
use bessemer_ir::{DType, TensorType, Value};
use std::f64::consts::LOG2_E;

/// The score of a box that is not a candidate, or no longer.
const DROPPED: f64 = f32::MIN as f64;

/// The group of each box.
struct Groups {
    /// `i32[T]`, or `i32[B, T]` if images differ.
    table: String,
    differ: bool,
}

/// What is left of the candidates of each image, best first.
struct Kept {
    /// `f32[B, M]`, [`DROPPED`] behind the last one.
    scores: String,
    /// Positions among all boxes of an image, `i64[B, M]`.
    positions: String,
}

/// Regions of all images.
struct Regions {
    /// `f32[R, 4]`
    boxes: String,
    /// Of which image each one is, `i64[R]`.
    images: String,
    /// Number of the map that each one is read from, `i64[R]`.
    level: String,
}

/// Samples of all regions along an axis of their maps.
struct Samples {
    /// Of the two pixels that a sample lies between, `i64[R, S]`.
    pixels: [String; 2],
    /// `f32[R, S]`
    weights: [String; 2],
}

impl Translator<'_> {
    pub(super) fn decode_boxes(&mut self, op: &DecodeBoxes, operands: &[Value]) -> Result<(), OnnxError> {
        let rank = self.graphs[0].shape(operands[0]).rank();
        let codes = self.plain(operands[0])?;
        let codes: [String; 4] = self.columns(&codes, rank - 1);
        let mut reference = self.plain(operands[1])?;
        let mut last = self.graphs[0].shape(operands[1]).rank() - 1;
        if rank == 4 {
            reference = self.unsqueezed(reference, &[last]);
            last += 1;
        }
        let reference: [String; 4] = self.columns(&reference, last);
        let mut decoded = [const { String::new() }; 4];
        for axis in 0..2 {
            let [low, high] = [&reference[axis], &reference[axis + 2]];
            let side = self.op("Sub", &[high, low]);
            let side = self.plus(side, op.code.extra())?;
            let half = self.times(side.clone(), 0.5)?;
            let centre = self.op("Add", &[low, &half]);
            let channel = op.code.channel(axis);
            let shift = self.times(codes[channel].clone(), 1.0 / op.code.weights[axis].0)?;
            let shift = self.op("Mul", &[&shift, &side]);
            let centre = self.op("Add", &[&centre, &shift]);
            let mut growth = self.times(codes[channel + 2].clone(), 1.0 / op.code.weights[axis + 2].0)?;
            if let Some(most) = op.max_growth {
                let most = self.scalar(DType::F32, most.0)?;
                growth = self.op("Min", &[&growth, &most]);
            }
            let growth = self.op("Exp", &[&growth]);
            let half = self.op("Mul", &[&growth, &half]);
            decoded[axis] = self.op("Sub", &[&centre, &half]);
            let end = self.op("Add", &[&centre, &half]);
            decoded[axis + 2] = self.plus(end, -op.code.extra())?;
        }
        if op.clip != BoxClip::No {
            let sizes = self.plain(operands[2])?;
            let sizes: [String; 2] = self.columns(&sizes, 1);
            let zero = self.scalar(DType::F32, 0.0)?;
            for (i, coordinate) in decoded.iter_mut().enumerate() {
                let most = self.unsqueezed(sizes[1 - i % 2].clone(), &(1..rank - 1).collect::<Vec<_>>());
                let most = self.plus(most, -op.clip_margin())?;
                let inside = self.op("Max", &[coordinate, &zero]);
                *coordinate = self.op("Min", &[&inside, &most]);
            }
        }
        let boxes = self.push("Concat", &decoded, vec![AttributeProto::int("axis", rank - 1)]);
        self.set_output(0, boxes, Layout::Plain);
        Ok(())
    }

    pub(super) fn suppress(&mut self, op: &Suppress, operands: &[Value]) -> Result<(), OnnxError> {
        let graph = self.graphs[0];
        let (rows, columns) = (graph.shape(operands[0])[1], op.columns(graph.ty(operands[0])));
        let boxes = self.plain(operands[0])?;
        let scores = self.candidates(op, &boxes, operands)?;
        let groups = match &op.groups {
            BoxGroups::Labels => Groups { table: self.plain(operands[2])?, differ: true },
            own => {
                let group = |i: usize| match own {
                    BoxGroups::Ranges(ends) => ends.iter().filter(|&&end| end <= i).count(),
                    _ => i % columns,
                };
                let ty = TensorType::new(DType::I32, [rows * columns]);
                let table = self.tensor(&Tensor::from_fn(ty, |i| group(i) as f64), "groups")?;
                Groups { table, differ: false }
            }
        };
        let kept = match op.suppression {
            Suppression::Hard { iou } => self.kept_by_threshold(op, iou.0, boxes, &scores, &groups, [rows, columns])?,
            Suppression::Gaussian { sigma, floor } => {
                self.kept_by_decay(op, [sigma.0, floor.0], &boxes, &scores, &groups, rows * columns)?
            }
        };
        let dropped = self.scalar(DType::F32, DROPPED)?;
        let is_there = self.op("Greater", &[&kept.scores, &dropped]);
        let (zero, first) = (self.scalar(DType::F32, 0.0)?, self.integers(&[0]));
        let scores = self.op("Where", &[&is_there, &kept.scores, &zero]);
        let positions = self.op("Where", &[&is_there, &kept.positions, &first]);
        let columns = self.sizes(&[columns]);
        let row = self.op("Div", &[&positions, &columns]);
        let row = self.cast(row, element::INT32);
        let group = self.group_of(&groups, &positions);
        let none = self.scalar(DType::I32, 0.0)?;
        let group = self.op("Where", &[&is_there, &group, &none]);
        let number = self.cast(is_there, element::INT32);
        let axes = self.integers(&[1]);
        let number = self.push("ReduceSum", &[number, axes], vec![AttributeProto::int("keepdims", 0)]);
        for (output, name) in [row, group, scores, number].into_iter().enumerate() {
            self.set_output(output, name, Layout::Plain);
        }
        Ok(())
    }

    /// The scores, [`DROPPED`] for boxes that are no candidates.
    fn candidates(&mut self, op: &Suppress, boxes: &str, operands: &[Value]) -> Result<String, OnnxError> {
        let shape = self.graphs[0].shape(operands[1]);
        let scores = self.plain(operands[1])?;
        let mut conditions = Vec::new();
        if let Some(floor) = op.score_floor {
            let floor = self.scalar(DType::F32, floor.0)?;
            conditions.push(self.op("Greater", &[&scores, &floor]));
        }
        if let Some(least) = op.min_size {
            let [x1, y1, x2, y2]: [String; 4] = self.columns(boxes, shape.rank());
            let (width, height) = (self.op("Sub", &[&x2, &x1]), self.op("Sub", &[&y2, &y1]));
            let side = self.op("Min", &[&width, &height]);
            let (axis, least) = (self.sizes(&[shape.rank()]), self.scalar(DType::F32, least.0)?);
            let side = self.op("Squeeze", &[&side, &axis]);
            conditions.push(self.op("GreaterOrEqual", &[&side, &least]));
        }
        if let Some(input) = op.count_input(operands.len()) {
            let inner = vec![1; shape.rank() - 2];
            let ty = TensorType::new(DType::I32, [&[shape[1]], inner.as_slice()].concat());
            let rows = self.tensor(&Tensor::from_fn(ty, |row| row as f64), "rows")?;
            let count = self.plain(operands[input])?;
            let count = self.unsqueezed(count, &(1..shape.rank()).collect::<Vec<_>>());
            conditions.push(self.op("Less", &[&rows, &count]));
        }
        let all = conditions.into_iter().reduce(|a, b| self.op("And", &[&a, &b]));
        let Some(all) = all else { return Ok(scores) };
        let dropped = self.scalar(DType::F32, DROPPED)?;
        Ok(self.op("Where", &[&all, &scores, &dropped]))
    }

    /// The group of the boxes at `positions i64[B, M]`, `i32[B, M]`.
    fn group_of(&mut self, groups: &Groups, positions: &str) -> String {
        if groups.differ { self.elements(&groups.table, positions) } else { self.rows(&groups.table, positions) }
    }

    /// Of each image the elements of `x [B, N]` at `positions i64[B, M]`.
    fn elements(&mut self, x: &str, positions: &str) -> String {
        let inputs = [x.to_owned(), positions.to_owned()];
        self.push("GatherElements", &inputs, vec![AttributeProto::int("axis", 1)])
    }

    /// Suppression by a threshold, with a class for each group.
    fn kept_by_threshold(
        &mut self,
        op: &Suppress,
        iou: f64,
        mut boxes: String,
        scores: &str,
        groups: &Groups,
        [rows, columns]: [usize; 2],
    ) -> Result<Kept, OnnxError> {
        let dropped = self.scalar(DType::F32, DROPPED)?;
        if op.legacy {
            let more = Tensor::new(TensorType::f32([4]), vec![0.0, 0.0, 1.0, 1.0]);
            let more = self.tensor(&more, "pixel")?;
            boxes = self.op("Add", &[&boxes, &more]);
        }
        let scores = match &op.groups {
            BoxGroups::One => self.unsqueezed(scores.to_owned(), &[1]),
            // Each column of an image goes for an image.
            BoxGroups::Columns => {
                boxes = self.transposed(boxes, &[0, 2, 1, 3]);
                let shape = self.integers(&[-1, rows as i64, 4]);
                boxes = self.op("Reshape", &[&boxes, &shape]);
                let scores = self.transposed(scores.to_owned(), &[0, 2, 1]);
                let shape = self.integers(&[-1, 1, rows as i64]);
                self.op("Reshape", &[&scores, &shape])
            }
            BoxGroups::Ranges(ends) => {
                let ty = TensorType::new(DType::I32, [ends.len(), 1]);
                let numbers = self.tensor(&Tensor::from_fn(ty, |group| group as f64), "groups")?;
                let is_member = self.op("Equal", &[&groups.table, &numbers]);
                let scores = self.unsqueezed(scores.to_owned(), &[1]);
                self.op("Where", &[&is_member, &scores, &dropped])
            }
            BoxGroups::Labels => {
                let keep = vec![AttributeProto::int("keepdims", 0)];
                let last = self.push("ReduceMax", std::slice::from_ref(&groups.table), keep);
                let (zero, one) = (self.scalar(DType::I32, 0.0)?, self.scalar(DType::I32, 1.0)?);
                let end = self.op("Add", &[&last, &one]);
                let numbers = self.op("Range", &[&zero, &end, &one]);
                let numbers = self.unsqueezed(numbers, &[1]);
                let labels = self.unsqueezed(groups.table.clone(), &[1]);
                let is_member = self.op("Equal", &[&labels, &numbers]);
                let scores = self.unsqueezed(scores.to_owned(), &[1]);
                self.op("Where", &[&is_member, &scores, &dropped])
            }
        };
        let (most, iou) = (self.sizes(&[op.max_outputs]), self.scalar(DType::F32, iou)?);
        let chosen = self.op("NonMaxSuppression", &[&boxes, &scores, &most, &iou, &dropped]);
        let shape = self.op("Shape", &[&scores]);
        let zeros = self.op("ConstantOfShape", &[&shape]);
        let (zero, one) = (self.scalar(DType::F32, 0.0)?, self.scalar(DType::F32, 1.0)?);
        let number = self.leading(&chosen);
        let ones = self.op("Expand", &[&one, &number]);
        let marks = self.op("ScatterND", &[&zeros, &chosen, &ones]);
        let is_kept = self.op("Greater", &[&marks, &zero]);
        let left = self.op("Where", &[&is_kept, &scores, &dropped]);
        let left = if op.groups == BoxGroups::Columns {
            let shape = self.integers(&[-1, columns as i64, rows as i64]);
            let left = self.op("Reshape", &[&left, &shape]);
            let left = self.transposed(left, &[0, 2, 1]);
            let shape = self.integers(&[-1, (rows * columns) as i64]);
            self.op("Reshape", &[&left, &shape])
        } else {
            let attributes = vec![AttributeProto::ints("axes", &[1]), AttributeProto::int("keepdims", 0)];
            self.push("ReduceMax", &[left], attributes)
        };
        let left = self.with_more_columns(left, op.max_outputs.saturating_sub(rows * columns), &dropped);
        let (scores, positions) = (self.fresh("TopK"), self.fresh("TopK"));
        let outputs = vec![scores.clone(), positions.clone()];
        self.push_named("TopK", &[left, most], outputs, vec![AttributeProto::int("axis", 1)]);
        Ok(Kept { scores, positions })
    }

    /// Suppression by decay, one box after the other, in a loop.
    fn kept_by_decay(
        &mut self,
        op: &Suppress,
        [sigma, floor]: [f64; 2],
        boxes: &str,
        scores: &str,
        groups: &Groups,
        total: usize,
    ) -> Result<Kept, OnnxError> {
        let most = op.max_outputs.min(total);
        let (shape, of_boxes) = (self.integers(&[-1, total as i64]), self.integers(&[-1, total as i64, 4]));
        let scores = self.op("Reshape", &[scores, &shape]);
        let boxes = self.op("Reshape", &[boxes, &of_boxes]);
        let columns: [String; 4] = self.columns(&boxes, 2);
        let corners = columns.map(|column| self.op("Reshape", &[&column, &shape]));
        let width = self.side(&corners[0], &corners[2], op.extra())?;
        let height = self.side(&corners[1], &corners[3], op.extra())?;
        let area = self.op("Mul", &[&width, &height]);

        let numbers = TensorType::new(DType::I32, [total]);
        let numbers = self.tensor(&Tensor::from_fn(numbers, |i| i as f64), "positions")?;
        // Equal scores: by group, then by position.
        let factor = self.scalar(DType::I32, total as f64)?;
        let rank = self.op("Mul", &[&groups.table, &factor]);
        let rank = self.op("Add", &[&rank, &numbers]);
        let last = self.scalar(DType::I32, f64::from(i32::MAX))?;
        let numbers = self.cast(numbers, element::INT64);
        let (zero, dropped) = (self.scalar(DType::F32, 0.0)?, self.scalar(DType::F32, DROPPED)?);
        let (rate, floor) = (self.scalar(DType::F32, -1.0 / sigma)?, self.scalar(DType::F32, floor)?);
        let axis = self.integers(&[1]);
        let trips = self.whole(most);

        let before = std::mem::take(&mut self.file.node);
        let [turn, goes_on, present] = ["turn", "goes_on", "scores"].map(|what| self.fresh(what));
        let along = |keep| vec![AttributeProto::ints("axes", &[1]), AttributeProto::int("keepdims", keep)];
        let best = self.push("ReduceMax", std::slice::from_ref(&present), along(1));
        let is_best = self.op("Equal", &[&present, &best]);
        let own_rank = self.op("Where", &[&is_best, &rank, &last]);
        let attributes = vec![AttributeProto::int("axis", 1), AttributeProto::int("keepdims", 1)];
        let position = self.push("ArgMin", &[own_rank], attributes);
        let mut inner = Vec::with_capacity(2);
        for axis in 0..2 {
            let (low, high) = (self.elements(&corners[axis], &position), self.elements(&corners[axis + 2], &position));
            let low = self.op("Max", &[&corners[axis], &low]);
            let high = self.op("Min", &[&corners[axis + 2], &high]);
            let side = self.side(&low, &high, op.extra())?;
            inner.push(self.op("Max", &[&side, &zero]));
        }
        let inner = self.op("Mul", &[&inner[0], &inner[1]]);
        let own_area = self.elements(&area, &position);
        let union = self.op("Add", &[&area, &own_area]);
        let union = self.op("Sub", &[&union, &inner]);
        let iou = self.op("Div", &[&inner, &union]);
        let overlaps = self.op("Greater", &[&inner, &zero]);
        let iou = self.op("Where", &[&overlaps, &iou, &zero]);
        let exponent = self.op("Mul", &[&iou, &iou]);
        let exponent = self.op("Mul", &[&exponent, &rate]);
        let decay = self.op("Exp", &[&exponent]);
        let decayed = self.op("Mul", &[&present, &decay]);
        let is_low = self.op("Less", &[&decayed, &floor]);
        let decayed = self.op("Where", &[&is_low, &dropped, &decayed]);
        let group = self.group_of(groups, &position);
        let is_near = self.op("Equal", &[&groups.table, &group]);
        let next = self.op("Where", &[&is_near, &decayed, &present]);
        let is_chosen = self.op("Equal", &[&numbers, &position]);
        let next = self.op("Where", &[&is_chosen, &dropped, &next]);
        let still = self.op("Identity", &[&goes_on]);
        let position = self.op("Squeeze", &[&position, &axis]);
        let best = self.op("Squeeze", &[&best, &axis]);
        let body = GraphProto {
            name: self.fresh("body"),
            node: std::mem::replace(&mut self.file.node, before),
            input: vec![
                scalar(&turn, element::INT64),
                scalar(&goes_on, element::BOOL),
                untied(&present, element::FLOAT),
            ],
            output: vec![
                scalar(&still, element::BOOL),
                untied(&next, element::FLOAT),
                untied(&position, element::INT64),
                untied(&best, element::FLOAT),
            ],
            ..GraphProto::default()
        };
        let [rest, positions, bests] = ["scores", "positions", "bests"].map(|what| self.fresh(what));
        let outputs = vec![rest, positions.clone(), bests.clone()];
        self.push_named("Loop", &[trips, String::new(), scores], outputs, vec![AttributeProto::graph("body", body)]);
        let more = op.max_outputs - most;
        let (positions, bests) = (self.transposed(positions, &[1, 0]), self.transposed(bests, &[1, 0]));
        let none = self.integers(&[0]);
        let positions = self.with_more_columns(positions, more, &none);
        Ok(Kept { scores: self.with_more_columns(bests, more, &dropped), positions })
    }

    /// `[B, N]` with some columns of one value behind.
    fn with_more_columns(&mut self, x: String, columns: usize, value: &str) -> String {
        if columns == 0 {
            return x;
        }
        let pads = self.sizes(&[0, 0, 0, columns]);
        self.op("Pad", &[&x, &pads, value])
    }

    /// `high - low + extra`
    fn side(&mut self, low: &str, high: &str, extra: f64) -> Result<String, OnnxError> {
        let side = self.op("Sub", &[high, low]);
        self.plus(side, extra)
    }

    /// The flagged rows of all images in one list.
    pub(super) fn pack_rows(&mut self, flags: Value) -> Result<(), OnnxError> {
        let rows = self.graphs[0].shape(flags)[1];
        let flags = self.plain(flags)?;
        let (rest, zero) = (self.integers(&[-1]), self.scalar(DType::I32, 0.0)?);
        let flags = self.op("Reshape", &[&flags, &rest]);
        let is_flagged = self.op("Greater", &[&flags, &zero]);
        let found = self.positions(&is_flagged);
        let capacity = self.dims(Value { node: self.id, output: 0 })?;
        let (capacity, none) = (self.shape(&capacity), self.integers(&[0]));
        let padding = self.op("Expand", &[&none, &capacity]);
        let list = self.push("Concat", &[found.clone(), padding], vec![AttributeProto::int("axis", 0)]);
        let list = self.op("Slice", &[&list, &none, &capacity, &none]);
        let number = self.leading(&found);
        let number = self.op("Min", &[&number, &capacity]);
        let number = self.op("Squeeze", &[&number, &none]);
        let rows = self.sizes(&[rows]);
        let image = self.op("Div", &[&list, &rows]);
        for (output, name) in [image, list, number].into_iter().enumerate() {
            let name = self.cast(name, element::INT32);
            self.set_output(output, name, Layout::Plain);
        }
        Ok(())
    }

    /// Where a list of flags is true, `i64[N]`.
    fn positions(&mut self, flags: &str) -> String {
        let (found, axis) = (self.op("NonZero", &[flags]), self.integers(&[0]));
        self.op("Squeeze", &[&found, &axis])
    }

    pub(super) fn scatter_add(&mut self, op: &ScatterAdd, operands: &[Value]) -> Result<(), OnnxError> {
        let dtype = self.graphs[0].dtype(operands[0]);
        if (op.batch, op.axis, dtype) != (0, 0, DType::F32) {
            return Err(self.no_form("only rows of floats are added up"));
        }
        let shape = self.dims(Value { node: self.id, output: 0 })?;
        let shape = self.shape(&shape);
        let zeros = self.op("ConstantOfShape", &[&shape]);
        let (updates, indices) = (self.plain(operands[0])?, self.plain(operands[1])?);
        let indices = self.unsqueezed(indices, &[self.graphs[0].shape(operands[1]).rank()]);
        let indices = self.cast(indices, element::INT64);
        let y = self.push("ScatterND", &[zeros, indices, updates], vec![AttributeProto::text("reduction", "add")]);
        self.set_output(0, y, Layout::Plain);
        Ok(())
    }

    /// A convolution of the first items of a batch alone, with zeros behind them.
    pub(super) fn limited(&mut self, op: &Limited, operands: &[Value]) -> Result<(), OnnxError> {
        let (x, count) = (self.named(operands[0], Layout::ChannelsFirst)?, self.plain(operands[2])?);
        let count = self.cast(count, element::INT64);
        let (one, first) = (self.integers(&[1]), self.integers(&[0]));
        let count = self.op("Reshape", &[&count, &one]);
        let some = self.op("Slice", &[&x, &first, &count, &first]);
        let y = self.convolution(&op.op, some, operands)?;
        let all = self.leading(&x);
        let missing = self.op("Sub", &[&all, &count]);
        let (before, after) = (self.integers(&[0; 4]), self.integers(&[0; 3]));
        let pads = self.push("Concat", &[before, missing, after], vec![AttributeProto::int("axis", 0)]);
        let y = self.op("Pad", &[&y, &pads]);
        self.set_output(0, y, Layout::ChannelsFirst);
        Ok(())
    }

    pub(super) fn roi_align(&mut self, op: &RoiAlign, operands: &[Value]) -> Result<(), OnnxError> {
        let (maps, rois) = operands.split_at(op.strides.len());
        let (boxes, images) = (self.plain(rois[0])?, self.plain(rois[1])?);
        let images = self.cast(images, element::INT64);
        let level = self.levels(op, &boxes)?;
        let regions = Regions { boxes, images, level };
        match (op.border, op.samples) {
            (RoiBorder::Torch, _) => self.regions_by_level(op, maps, &regions),
            (RoiBorder::Clamp, RoiSamples::Fixed(samples)) => self.regions_by_samples(op, maps, &regions, samples),
            (RoiBorder::Clamp, RoiSamples::Adaptive) => Err(self.no_form("the number of samples depends on the boxes")),
        }
    }

    /// [`Regions::level`]
    fn levels(&mut self, op: &RoiAlign, boxes: &str) -> Result<String, OnnxError> {
        let wide = self.cast(boxes.to_owned(), element::DOUBLE);
        let [x1, y1, x2, y2]: [String; 4] = self.columns(&wide, 1);
        let (width, height) = (self.op("Sub", &[&x2, &x1]), self.op("Sub", &[&y2, &y1]));
        let area = self.op("Mul", &[&width, &height]);
        let zero = self.doubles(&[0.0], &[]);
        let area = self.op("Max", &[&area, &zero]);
        let side = self.op("Sqrt", &[&area]);
        let levels = &op.levels;
        let size = self.doubles(&[levels.canonical_size.0], &[]);
        let relative = self.op("Div", &[&side, &size]);
        let logarithm = self.op("Log", &[&relative]);
        let factor = self.doubles(&[LOG2_E], &[]);
        let logarithm = self.op("Mul", &[&logarithm, &factor]);
        let canonical = self.doubles(&[levels.canonical_level as f64 + levels.eps.0], &[]);
        let level = self.op("Add", &[&logarithm, &canonical]);
        let level = self.op("Floor", &[&level]);
        let first = self.doubles(&[levels.first as f64], &[]);
        let level = self.op("Sub", &[&level, &first]);
        let level = self.op("Max", &[&level, &zero]);
        let last = self.doubles(&[(op.strides.len() - 1) as f64], &[]);
        let level = self.op("Min", &[&level, &last]);
        let level = self.cast(level, element::INT64);
        let axis = self.integers(&[1]);
        Ok(self.op("Squeeze", &[&level, &axis]))
    }

    /// Features by ONNX's own operation: the regions of each map together, and then in their order again.
    fn regions_by_level(&mut self, op: &RoiAlign, maps: &[Value], regions: &Regions) -> Result<(), OnnxError> {
        let samples = match op.samples {
            RoiSamples::Fixed(samples) => samples,
            RoiSamples::Adaptive => 0,
        };
        let (mut features, mut order) = (Vec::new(), Vec::new());
        for (number, (&map, stride)) in maps.iter().zip(&op.strides).enumerate() {
            let own = self.sizes(&[number]);
            let is_own = self.op("Equal", &[&regions.level, &own]);
            let own = self.positions(&is_own);
            let boxes = self.rows(&regions.boxes, &own);
            let images = self.rows(&regions.images, &own);
            let map = self.named(map, Layout::ChannelsFirst)?;
            let attributes = vec![
                AttributeProto::int("output_height", op.size[0]),
                AttributeProto::int("output_width", op.size[1]),
                AttributeProto::int("sampling_ratio", samples),
                AttributeProto::float("spatial_scale", 1.0 / stride.0),
                AttributeProto::text("coordinate_transformation_mode", "output_half_pixel"),
            ];
            features.push(self.push("RoiAlign", &[map, boxes, images], attributes));
            order.push(own);
        }
        let first = || vec![AttributeProto::int("axis", 0)];
        let features = self.push("Concat", &features, first());
        let order = self.push("Concat", &order, first());
        let (axis, number) = (self.integers(&[0]), self.leading(&order));
        let number = self.op("Squeeze", &[&number, &axis]);
        let (zero, one) = (self.whole(0), self.whole(1));
        let places = self.op("Range", &[&zero, &number, &one]);
        let back = self.push("ScatterElements", &[order.clone(), order, places], first());
        let y = self.rows(&features, &back);
        self.set_output(0, y, Layout::ChannelsFirst);
        Ok(())
    }

    /// Features sample by sample, from the maps as one table of pixels.
    fn regions_by_samples(
        &mut self,
        op: &RoiAlign,
        maps: &[Value],
        regions: &Regions,
        samples: usize,
    ) -> Result<(), OnnxError> {
        let graph = self.graphs[0];
        let channels = graph.shape(maps[0])[3];
        let sides: Vec<[usize; 2]> = maps.iter().map(|&map| [graph.shape(map)[1], graph.shape(map)[2]]).collect();
        let pixels_of = |[height, width]: [usize; 2]| height * width;
        let before = |level: usize| sides[..level].iter().copied().map(pixels_of).sum::<usize>();
        let of_levels = |of: &dyn Fn(usize) -> usize| (0..sides.len()).map(of).collect::<Vec<_>>();

        let shape = self.integers(&[-1, channels as i64]);
        let mut tables = Vec::with_capacity(maps.len());
        for &map in maps {
            let map = self.plain(map)?;
            tables.push(self.op("Reshape", &[&map, &shape]));
        }
        let table = self.push("Concat", &tables, vec![AttributeProto::int("axis", 0)]);
        let mut of_regions = |numbers: Vec<usize>| {
            let numbers = self.sizes(&numbers);
            self.rows(&numbers, &regions.level)
        };
        let first = of_regions(of_levels(&before));
        let pixels = of_regions(of_levels(&|level| pixels_of(sides[level])));
        let heights = of_regions(of_levels(&|level| sides[level][0]));
        let widths = of_regions(of_levels(&|level| sides[level][1]));
        let batch = self.batch();
        let first = self.op("Mul", &[&first, &batch]);
        let own = self.op("Mul", &[&regions.images, &pixels]);
        let base = self.op("Add", &[&first, &own]);

        let strides: Vec<f64> = op.strides.iter().map(|stride| stride.0).collect();
        let strides = self.doubles(&strides, &[strides.len()]);
        let stride = self.rows(&strides, &regions.level);
        let stride = self.unsqueezed(stride, &[1]);
        let wide = self.cast(regions.boxes.clone(), element::DOUBLE);
        let wide = self.op("Div", &[&wide, &stride]);
        let [x1, y1, x2, y2]: [String; 4] = self.columns(&wide, 1);
        let y = self.samples(&y1, &y2, op.size[0], samples, &heights)?;
        let x = self.samples(&x1, &x2, op.size[1], samples, &widths)?;
        let (base, widths) = (self.unsqueezed(base, &[1]), self.unsqueezed(widths, &[1]));
        let mut sum: Option<String> = None;
        for i in 0..2 {
            let line = self.op("Mul", &[&y.pixels[i], &widths]);
            let line = self.op("Add", &[&line, &base]);
            let (line, down) = (self.unsqueezed(line, &[2]), self.unsqueezed(y.weights[i].clone(), &[2, 3]));
            for j in 0..2 {
                let (column, across) =
                    (self.unsqueezed(x.pixels[j].clone(), &[1]), self.unsqueezed(x.weights[j].clone(), &[1, 3]));
                let places = self.op("Add", &[&line, &column]);
                let found = self.rows(&table, &places);
                let weight = self.op("Mul", &[&down, &across]);
                let part = self.op("Mul", &[&found, &weight]);
                sum = Some(match sum {
                    Some(sum) => self.op("Add", &[&sum, &part]),
                    None => part,
                });
            }
        }
        let mut features = sum.expect("four corners");
        if samples > 1 {
            let [height, width, samples, channels] = [op.size[0], op.size[1], samples, channels].map(|n| n as i64);
            let shape = self.integers(&[-1, height, samples, width, samples, channels]);
            features = self.op("Reshape", &[&features, &shape]);
            let attributes = vec![AttributeProto::ints("axes", &[2, 4]), AttributeProto::int("keepdims", 0)];
            features = self.push("ReduceMean", &[features], attributes);
        }
        self.set_output(0, features, Layout::Plain);
        Ok(())
    }

    /// The samples of `bins` bins from `low f64[R, 1]` to `high`, on maps of so many `pixels i64[R]`.
    fn samples(
        &mut self,
        low: &str,
        high: &str,
        bins: usize,
        samples: usize,
        pixels: &str,
    ) -> Result<Samples, OnnxError> {
        let side = self.op("Sub", &[high, low]);
        let place = |j: usize| (j / samples) as f64 + ((j % samples) as f64 + 0.5) / samples as f64;
        let places: Vec<f64> = (0..bins * samples).map(|j| place(j) / bins as f64).collect();
        let places = self.doubles(&places, &[places.len()]);
        let at = self.op("Mul", &[&side, &places]);
        let at = self.op("Add", &[&at, low]);
        let (down, zero) = (self.op("Floor", &[&at]), self.doubles(&[0.0], &[]));
        let down = self.op("Max", &[&down, &zero]);
        let above = self.op("Sub", &[&at, &down]);
        let above = self.cast(above, element::FLOAT);
        let one = self.scalar(DType::F32, 1.0)?;
        let below = self.op("Sub", &[&one, &above]);
        let (first, next) = (self.cast(down, element::INT64), self.integers(&[1]));
        let last = self.op("Sub", &[pixels, &next]);
        let last = self.unsqueezed(last, &[1]);
        let second = self.op("Add", &[&first, &next]);
        let pixels = [first, second].map(|pixel| self.op("Min", &[&pixel, &last]));
        Ok(Samples { pixels, weights: [below, above] })
    }

    /// The rows of a table at `positions`, of any shape.
    fn rows(&mut self, table: &str, positions: &str) -> String {
        let inputs = [table.to_owned(), positions.to_owned()];
        self.push("Gather", &inputs, vec![AttributeProto::int("axis", 0)])
    }

    /// The columns of an axis, which stays with size 1.
    fn columns<const N: usize>(&mut self, x: &str, axis: usize) -> [String; N] {
        let outputs: [String; N] = std::array::from_fn(|_| self.fresh("Split"));
        let sizes = self.integers(&[1; N]);
        let axis = vec![AttributeProto::int("axis", axis)];
        self.push_named("Split", &[x.to_owned(), sizes], outputs.to_vec(), axis);
        outputs
    }

    fn plus(&mut self, x: String, number: f64) -> Result<String, OnnxError> {
        if number == 0.0 {
            return Ok(x);
        }
        let number = self.scalar(DType::F32, number)?;
        Ok(self.op("Add", &[&x, &number]))
    }

    fn times(&mut self, x: String, number: f64) -> Result<String, OnnxError> {
        if number == 1.0 {
            return Ok(x);
        }
        let number = self.scalar(DType::F32, number)?;
        Ok(self.op("Mul", &[&x, &number]))
    }

    /// `i64[]`
    fn whole(&mut self, number: usize) -> String {
        let name = self.fresh("whole");
        self.initializer(name.clone(), element::INT64, &[], (number as i64).to_le_bytes().to_vec());
        name
    }

    fn doubles(&mut self, numbers: &[f64], dims: &[usize]) -> String {
        let name = self.fresh("doubles");
        let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.initializer(name.clone(), element::DOUBLE, dims, data);
        name
    }
}

/// A value of a loop, of any shape.
fn untied(name: &str, elem_type: i32) -> ValueInfoProto {
    let tensor_type = Some(TensorTypeProto { elem_type, shape: None });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

/// A value of a loop without axes.
fn scalar(name: &str, elem_type: i32) -> ValueInfoProto {
    let tensor_type = Some(TensorTypeProto { elem_type, shape: Some(TensorShapeProto { dim: Vec::new() }) });
    ValueInfoProto { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}
