//! Reference boxes, their match with ground truths, box codes, samples, suppression, and the largest elements.

use super::{CallError, Kernel, Operands, Unsupported};
use crate::detection::boxes::{self, CodeDesc, DecodeDesc};
use crate::detection::matching::{self, MatchDesc};
use crate::detection::sample::{self, SampleDesc};
use crate::detection::suppress::{self, SuppressDesc, SuppressInputs, SuppressOutputs};
use crate::gemm::Ctx;
use crate::top_k::{self, TopKDesc};
use bessemer_ir::TensorType;
use bessemer_ir::ops::detection::anchors::Anchors;
use bessemer_ir::ops::detection::boxes::{BoxClip, DecodeBoxes, EncodeBoxes};
use bessemer_ir::ops::detection::matching::MatchBoxes;
use bessemer_ir::ops::detection::sample::{PackRows, SampleFill, SampleLabels, SampleOrder, SampleRows, Sampler};
use bessemer_ir::ops::detection::suppress::{BoxGroups, Suppress};
use bessemer_ir::ops::index::TopK;

pub(super) fn anchors(op: &Anchors) -> Box<dyn Kernel> {
    Box::new(Grid(op.boxes().flatten().map(|coordinate| coordinate as f32).collect()))
}

pub(super) fn match_boxes(op: &MatchBoxes, types: &[&TensorType]) -> Box<dyn Kernel> {
    let (boxes, truths) = (&types[0].shape, &types[1].shape);
    Box::new(Match(MatchDesc {
        batch: truths[0],
        boxes: boxes[boxes.rank() - 2],
        shared: boxes.rank() == 2,
        truths: truths[1],
        low: op.low.0 as f32,
        high: op.high.0 as f32,
        high_inclusive: op.high_inclusive,
        forced: op.forced,
        union_eps: op.union_eps.0 as f32,
    }))
}

pub(super) fn encode(op: &EncodeBoxes, types: &[&TensorType]) -> Box<dyn Kernel> {
    let (gt, matches) = (&types[1].shape, &types[2].shape);
    let desc = CodeDesc::new(&op.code, matches[1], 1, types[0].shape.rank() == 2);
    Box::new(Encode { desc, truths: gt[1], references: types[0].shape.elements(), batch: gt[0] })
}

pub(super) fn decode(op: &DecodeBoxes, types: &[&TensorType]) -> Box<dyn Kernel> {
    let codes = &types[0].shape;
    let columns = if codes.rank() == 4 { codes[2] } else { 1 };
    let desc = DecodeDesc {
        code: CodeDesc::new(&op.code, codes[1], columns, types[1].shape.rank() == 2),
        max_growth: op.max_growth.map_or(f32::INFINITY, |most| most.0 as f32),
        clip_margin: op.clip_margin() as f32,
    };
    let sizes = (op.clip != BoxClip::No).then_some(2 * codes[0]);
    Box::new(Decode { desc, codes: codes.elements(), references: types[1].shape.elements(), sizes })
}

pub(super) fn suppress(op: &Suppress, types: &[&TensorType]) -> Box<dyn Kernel> {
    let boxes = &types[0].shape;
    let desc = SuppressDesc { batch: boxes[0], rows: boxes[1], columns: op.columns(types[0]), rule: op.clone() };
    Box::new(Suppression { desc, count_input: op.count_input(types.len()) })
}

fn sample_desc(sampler: Sampler, types: &[&TensorType]) -> SampleDesc {
    let candidates = &types[0].shape;
    SampleDesc { batch: candidates[0], candidates: candidates[1], sampler }
}

pub(super) fn sample_labels(op: &SampleLabels, types: &[&TensorType]) -> Box<dyn Kernel> {
    Box::new(LabelSample(sample_desc(op.sampler, types)))
}

pub(super) fn sample_rows(op: &SampleRows, types: &[&TensorType]) -> Box<dyn Kernel> {
    Box::new(RowSample { desc: sample_desc(op.sampler, types), fill: op.fill })
}

pub(super) fn pack_rows(op: &PackRows, types: &[&TensorType]) -> Box<dyn Kernel> {
    let flags = &types[0].shape;
    Box::new(Pack { flags: flags.elements(), columns: flags[1], capacity: op.capacity })
}

/// # Errors
/// What does not fit.
pub(super) fn top_k(op: &TopK, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    let (rows, sizes) = op.geometry(&types[0].shape)?;
    Ok(Box::new(Largest { desc: TopKDesc { rows, sizes, k: op.k }, axes: op.axes }))
}

/// The boxes themselves.
struct Grid(Vec<f32>);

impl Kernel for Grid {
    fn name(&self) -> String {
        "anchors".to_string()
    }

    unsafe fn run(&self, _ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe { operands.output::<f32>(self.0.len()).copy_from_slice(&self.0) };
        Ok(())
    }
}

struct Match(MatchDesc);

impl Kernel for Match {
    fn name(&self) -> String {
        "match by blocks of boxes".to_string()
    }

    fn scratch_len(&self, _threads: usize) -> usize {
        self.0.scratch_len()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.0;
        // SAFETY: the caller's promise.
        unsafe {
            let (boxes, truths) = (operands.floats(0, d.boxes_len()), operands.floats(1, d.batch * d.truths * 4));
            let (matches, positives) = (operands.output_at(0, d.batch * d.boxes), operands.output_at(1, d.batch));
            let counts = operands.input(2, d.batch);
            matching::match_boxes(ctx, d, boxes, truths, counts, matches, positives, operands.scratch())?;
        }
        Ok(())
    }
}

struct Encode {
    desc: CodeDesc,
    truths: usize,
    /// Elements of the reference boxes.
    references: usize,
    batch: usize,
}

impl Kernel for Encode {
    fn name(&self) -> String {
        "box codes".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let rows = self.batch * self.desc.boxes;
        // SAFETY: the caller's promise.
        unsafe {
            let (references, gt) =
                (operands.floats(0, self.references), operands.floats(1, self.batch * self.truths * 4));
            let (matches, codes) = (operands.input(2, rows), operands.output(4 * rows));
            boxes::encode(ctx, &self.desc, self.truths, references, gt, matches, codes)?;
        }
        Ok(())
    }
}

struct Decode {
    desc: DecodeDesc,
    /// Elements of the codes, the reference boxes and the sizes of images.
    codes: usize,
    references: usize,
    sizes: Option<usize>,
}

impl Kernel for Decode {
    fn name(&self) -> String {
        "boxes of codes".to_string()
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let (codes, references) = (operands.floats(0, self.codes), operands.floats(1, self.references));
            let sizes = self.sizes.map(|len| operands.floats(2, len));
            boxes::decode(ctx, &self.desc, references, codes, sizes, operands.output(self.codes));
        }
        Ok(())
    }
}

struct Suppression {
    desc: SuppressDesc,
    count_input: Option<usize>,
}

impl Kernel for Suppression {
    fn name(&self) -> String {
        "suppression by images".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        let (rows, kept) = (d.batch * d.rows * d.columns, d.batch * d.rule.max_outputs);
        // SAFETY: the caller's promise.
        unsafe {
            let inputs = SuppressInputs {
                boxes: operands.floats(0, 4 * rows),
                scores: operands.floats(1, rows),
                labels: (d.rule.groups == BoxGroups::Labels).then(|| operands.input(2, rows)),
                counts: self.count_input.map(|input| operands.input(input, d.batch)),
            };
            let outputs = SuppressOutputs {
                rows: operands.output_at(0, kept),
                groups: operands.output_at(1, kept),
                scores: operands.output_at(2, kept),
                counts: operands.output_at(3, d.batch),
            };
            suppress::suppress(ctx, d, inputs, outputs, operands.scratch())?;
        }
        Ok(())
    }
}

/// # Safety
/// As for [`Kernel::run`].
unsafe fn step_of(desc: &SampleDesc, operands: &Operands<'_>) -> u32 {
    match desc.sampler.order {
        SampleOrder::First => 0,
        // SAFETY: the caller's promise; random orders come with a step.
        SampleOrder::Random { .. } => unsafe { operands.input::<i32>(1, 1)[0] as u32 },
    }
}

struct LabelSample(SampleDesc);

impl Kernel for LabelSample {
    fn name(&self) -> String {
        "sample by images".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.0.scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.0;
        let len = d.batch * d.candidates;
        // SAFETY: the caller's promise.
        unsafe {
            let (step, labels) = (step_of(d, operands), operands.input(0, len));
            sample::sample_labels(ctx, d, step, labels, operands.output(len), operands.scratch());
        }
        Ok(())
    }
}

struct RowSample {
    desc: SampleDesc,
    fill: SampleFill,
}

impl Kernel for RowSample {
    fn name(&self) -> String {
        "sample by images".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        let rows = d.batch * d.sampler.total;
        // SAFETY: the caller's promise.
        unsafe {
            let (step, matches) = (step_of(d, operands), operands.input(0, d.batch * d.candidates));
            let outputs =
                [operands.output_at(0, rows), operands.output_at(1, rows), operands.output_at(2, 2 * d.batch)];
            sample::sample_rows(ctx, d, self.fill, step, matches, outputs, operands.scratch());
        }
        Ok(())
    }
}

struct Pack {
    /// Elements of the flags, and of those of an image.
    flags: usize,
    columns: usize,
    capacity: usize,
}

impl Kernel for Pack {
    fn name(&self) -> String {
        "list of chosen rows".to_string()
    }

    unsafe fn run(&self, _ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        // SAFETY: the caller's promise.
        unsafe {
            let (images, rows) = (operands.output_at(0, self.capacity), operands.output_at(1, self.capacity));
            let count = sample::pack_rows(self.columns, operands.input(0, self.flags), images, rows);
            operands.output_at(2, 1)[0] = count;
        }
        Ok(())
    }
}

struct Largest {
    desc: TopKDesc,
    axes: usize,
}

impl Kernel for Largest {
    fn name(&self) -> String {
        "radix selection".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.scratch_len(threads)
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let d = &self.desc;
        let len = d.rows * d.k;
        // SAFETY: the caller's promise.
        unsafe {
            let x = operands.floats(0, d.rows * d.row_len());
            let (first, last) = match self.axes {
                1 => (&mut [][..], operands.output_at(1, len)),
                _ => (operands.output_at(1, len), operands.output_at(2, len)),
            };
            top_k::top_k(ctx, d, x, operands.output(len), [first, last], operands.scratch());
        }
        Ok(())
    }
}
