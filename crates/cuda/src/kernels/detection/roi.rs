//! Features of regions, and their gradient. A plan of each region has its map, and for each axis the pixels that a bin reads and their
//! weights. The gradient is gathered: each element of a map goes through the regions that touch its stripe of lines, in their order.

use super::{Work, by_blocks, check, counts, doubles, flags, float_input, for_each, input, output, report};
use crate::kgen::{Kernel, Operand, Parameter, c_type};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiSamples};
use bessemer_ir::{DType, TensorType};

/// Words of a plan before its axes: the map, and the image.
const HEAD: usize = 2;
/// Words of an axis before its lists: the first pixel that is read, and the one behind the last.
const RANGE: usize = 2;
/// Lines of a map that have one list of regions.
const LINES: usize = 8;
/// Threads that make a list.
const LISTING: usize = 256;

/// The axis `axis` of the region `roi`, as `RoiAlign` defines it.
const AXIS: &str = "\
const u32 roi = i / 2u, axis = i % 2u;
const float* const own = boxes + roi * 4u;
const double area = ((double)own[2] - (double)own[0]) * ((double)own[3] - (double)own[1]);
const double level = floor(CANONICAL_LEVEL + log2(sqrt(area) / CANONICAL_SIZE) + LEVEL_EPS) - FIRST_LEVEL;
const u32 map = level >= (double)LEVELS - 1.0 ? LEVELS - 1u : level > 0.0 ? (u32)level : 0u;
const u32 extent = axis == 0u ? height_of(map) : width_of(map), last = extent - 1u;
const u32 bins = axis == 0u ? BINS_DOWN : BINS_ACROSS, most = axis == 0u ? MOST_DOWN : MOST_ACROSS;
const double stride = stride_of(map);
const double start = (double)own[1u - axis] / stride, end = (double)own[3u - axis] / stride;
const double side = IS_TORCH ? fmax(end - start, 1.0) : end - start;
const double bin = side / (double)bins;
u32 samples = SAMPLES;
if (IS_ADAPTIVE) samples = ceil(bin) >= (double)extent ? extent : ceil(bin) >= 1.0 ? (u32)ceil(bin) : 1u;
";

/// Samples ascend or descend, so that pixels that the bin has already are among its last two.
const PLAN: &str = "\
int* const plan = plans + roi * PLAN;
int* const range = plan + (axis == 0u ? DOWN : ACROSS);
int* const ends = range + RANGE;
int* const pixels = ends + bins;
float* const weights = (float*)(pixels + most);
if (axis == 0u) {
    plan[0] = (int)map;
    plan[1] = index;
}
u32 count = 0, low = extent, high = 0;
for (u32 b = 0; b < bins; ++b) {
    const u32 first = count;
    for (u32 sample = 0; sample < samples; ++sample) {
        double at = start + (double)b * bin + ((double)sample + 0.5) * bin / (double)samples;
        if (IS_TORCH && (at < -1.0 || at > (double)extent)) continue;
        if (IS_TORCH) at = at < 0.0 ? 0.0 : at > (double)last ? (double)last : at;
        const double below = fmax(floor(at), 0.0), share = at - below;
        const u32 pixel = below >= (double)last ? last : (u32)below, next = pixel < last ? pixel + 1u : last;
        for (u32 k = 0; k < 2u; ++k) {
            const double weight = (k == 0u ? 1.0 - share : share) / (double)samples;
            const u32 tap = k == 0u ? pixel : next;
            if (weight == 0.0) continue;
            u32 near = count < first + 2u ? first : count - 2u;
            while (near < count && pixels[near] != (int)tap) ++near;
            if (near < count) {
                weights[near] += (float)weight;
                continue;
            }
            pixels[count] = (int)tap;
            weights[count] = (float)weight;
            ++count;
            low = tap < low ? tap : low;
            high = tap + 1u > high ? tap + 1u : high;
        }
    }
    ends[b] = (int)count;
}
range[0] = (int)low;
range[1] = (int)high;
";

/// Reads a plan: taps of the bins of each axis.
const TAPS: &str = "\
const int* const plan = plans + roi * PLAN;
const int* const ends_down = plan + DOWN + RANGE;
const int* const ends_across = plan + ACROSS + RANGE;
const int* const pixels_down = ends_down + BINS_DOWN;
const int* const pixels_across = ends_across + BINS_ACROSS;
const float* const weights_down = (const float*)(pixels_down + MOST_DOWN);
const float* const weights_across = (const float*)(pixels_across + MOST_ACROSS);
";

const FEATURES: &str = "\
const u32 lane = i % VECTORS, bin = i / VECTORS % (BINS_DOWN * BINS_ACROSS), roi = i / VECTORS / (BINS_DOWN * BINS_ACROSS);
const u32 row = bin / BINS_ACROSS, col = bin % BINS_ACROSS;
float sums[LANES];
for (u32 k = 0; k < LANES; ++k) sums[k] = 0.0f;
";

const SUM_TAPS: &str = "\
const u32 level = (u32)plan[0], width = width_of(level);
const auto* const map = map_of(level) + (u32)plan[1] * height_of(level) * width * CHANNELS;
for (int y = row == 0u ? 0 : ends_down[row - 1u]; y < ends_down[row]; ++y)
    for (int x = col == 0u ? 0 : ends_across[col - 1u]; x < ends_across[col]; ++x) {
        const float weight = weights_down[y] * weights_across[x];
        float pixel[LANES];
        load<ELEMENT, LANES>(map + (((u32)pixels_down[y] * width + (u32)pixels_across[x]) * CHANNELS + lane * LANES), pixel);
        for (u32 k = 0; k < LANES; ++k) sums[k] += weight * pixel[k];
    }
store<ELEMENT, LANES>(features + i * LANES, sums);
";

/// The regions of the image and the map that touch a stripe, in their order, behind their number: a stripe a block, whose threads
/// have regions that follow each other.
const LIST: &str = "\
__shared__ u32 counts[THREADS];
const u32 image = blockIdx.x / STRIPES, line = blockIdx.x % STRIPES * LINES;
int* const list = lists + blockIdx.x * (ROIS + 1u);
const u32 each = (ROIS + THREADS - 1u) / THREADS, first = threadIdx.x * each;
const u32 end = first + each < ROIS ? first + each : ROIS;
const auto touches = [=](u32 roi) {
    const int* const plan = plans + roi * PLAN;
    if (plan[0] != (int)LEVEL || plan[1] != (int)image) return false;
    return plan[DOWN] < (int)(line + LINES) && plan[DOWN + 1u] > (int)line;
};
u32 count = 0;
for (u32 roi = first; roi < end; ++roi) count += touches(roi) ? 1u : 0u;
counts[threadIdx.x] = count;
__syncthreads();
u32 at = 1;
for (u32 thread = 0; thread < threadIdx.x; ++thread) at += counts[thread];
for (u32 roi = first; roi < end; ++roi)
    if (touches(roi)) list[at++] = (int)roi;
if (threadIdx.x == THREADS - 1u) list[0] = (int)at - 1;
";

const GATHER: &str = "\
const u32 lane = i % VECTORS, x = i / VECTORS % WIDTH, y = i / VECTORS / WIDTH % HEIGHT, image = i / VECTORS / WIDTH / HEIGHT;
const int* const list = lists + (image * STRIPES + y / LINES) * (ROIS + 1u);
float sums[LANES];
for (u32 k = 0; k < LANES; ++k) sums[k] = 0.0f;
for (int number = 1; number <= list[0]; ++number) {
    const u32 roi = (u32)list[number];
";

const SUM_BINS: &str = "\
    if ((int)y < plan[DOWN] || (int)y >= plan[DOWN + 1u] || (int)x < plan[ACROSS] || (int)x >= plan[ACROSS + 1u]) continue;
    int down = 0;
    for (u32 row = 0; row < BINS_DOWN; ++row)
        for (; down < ends_down[row]; ++down) {
            if (pixels_down[down] != (int)y) continue;
            int across = 0;
            for (u32 col = 0; col < BINS_ACROSS; ++col)
                for (; across < ends_across[col]; ++across) {
                    if (pixels_across[across] != (int)x) continue;
                    const float weight = weights_down[down] * weights_across[across];
                    float bin[LANES];
                    load<ELEMENT, LANES>(dy + (((roi * BINS_DOWN + row) * BINS_ACROSS + col) * CHANNELS + lane * LANES), bin);
                    for (u32 k = 0; k < LANES; ++k) sums[k] += weight * bin[k];
                }
        }
}
store<ELEMENT, LANES>(dx + i * LANES, sums);
";

/// Sizes of the features of regions.
struct Sizes<'a> {
    rule: &'a RoiAlign,
    batch: usize,
    rois: usize,
    channels: usize,
    /// Height and width of each map.
    maps: Vec<[usize; 2]>,
    ty: DType,
}

/// `name(level)`, one of some values.
fn by_level(name: &str, result: &str, values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    let (last, others) = values.split_last().expect("there is a map");
    let choices: String =
        others.iter().enumerate().map(|(level, value)| format!("level == {level}u ? {value} : ")).collect();
    format!("const auto {name} = [=](u32 level) -> {result} {{ return {choices}{last}; }};\n")
}

impl Sizes<'_> {
    fn features(&self) -> usize {
        self.rois * self.rule.size[0] * self.rule.size[1] * self.channels
    }

    fn map_len(&self, map: usize) -> usize {
        self.batch * self.maps[map][0] * self.maps[map][1] * self.channels
    }

    /// Channels that a thread has, as many as a load moves well.
    fn lanes(&self) -> usize {
        [8, 4, 2].into_iter().find(|lanes| self.channels.is_multiple_of(*lanes)).unwrap_or(1)
    }

    fn most_taps(&self, axis: usize) -> usize {
        self.maps.iter().map(|map| self.rule.most_taps(axis, map[axis])).max().unwrap_or(0)
    }

    fn axis_len(&self, axis: usize) -> usize {
        RANGE + self.rule.size[axis] + 2 * self.most_taps(axis)
    }

    fn plan_len(&self) -> usize {
        HEAD + self.axis_len(0) + self.axis_len(1)
    }

    /// Constants of all texts.
    fn constants(&self) -> String {
        let [down, across] = self.rule.size;
        counts(&[("PLAN", self.plan_len()), ("DOWN", HEAD), ("ACROSS", HEAD + self.axis_len(0)), ("RANGE", RANGE)])
            + &counts(&[("BINS_DOWN", down), ("BINS_ACROSS", across), ("ROIS", self.rois)])
            + &counts(&[("MOST_DOWN", self.most_taps(0)), ("MOST_ACROSS", self.most_taps(1))])
            + &counts(&[("CHANNELS", self.channels), ("VECTORS", self.channels / self.lanes()), ("LINES", LINES)])
            + &format!("const int LANES = {};\ntypedef {} ELEMENT;\n", self.lanes(), c_type(self.ty))
    }

    fn sides(&self) -> String {
        let side = |axis: usize| self.maps.iter().map(move |map| format!("{}u", map[axis]));
        by_level("height_of", "u32", side(0)) + &by_level("width_of", "u32", side(1))
    }

    /// The plans of all regions, whose boxes and images are these inputs.
    fn plans(&self, work: &mut Work, boxes: usize) -> Operand {
        let plans = work.scratch(self.rois * self.plan_len());
        let levels = &self.rule.levels;
        let (is_adaptive, samples) = match self.rule.samples {
            RoiSamples::Fixed(samples) => (false, samples),
            RoiSamples::Adaptive => (true, 1),
        };
        let text = self.constants()
            + &self.sides()
            + &by_level("stride_of", "double", self.rule.strides.iter().map(|stride| format!("{:?}", stride.0)))
            + &counts(&[("LEVELS", self.maps.len()), ("SAMPLES", samples)])
            + &flags(&[("IS_ADAPTIVE", is_adaptive), ("IS_TORCH", self.rule.border == RoiBorder::Torch)])
            + &doubles(&[("CANONICAL_LEVEL", levels.canonical_level as f64), ("FIRST_LEVEL", levels.first as f64)])
            + &doubles(&[("CANONICAL_SIZE", levels.canonical_size.0), ("LEVEL_EPS", levels.eps.0)])
            + AXIS
            + "int index = images[roi];\n"
            + &check(self.batch, "roi", "index = 0")
            + PLAN;
        let parameters = vec![
            float_input("boxes", self.rois * 4),
            input("images", self.rois),
            output("plans", self.rois * self.plan_len()),
            report(),
        ];
        let report = work.reporting(self.batch);
        let operands = [Operand::Input(boxes), Operand::Input(boxes + 1), plans, report];
        work.launch(for_each("plan_regions", parameters, 2 * self.rois, &text), operands);
        plans
    }

    fn plans_input(&self) -> Parameter {
        input("plans", self.rois * self.plan_len())
    }
}

pub(crate) fn align(op: &RoiAlign, types: &[&TensorType]) -> Work {
    let (maps, boxes) = types.split_at(op.strides.len());
    let of = Sizes {
        rule: op,
        batch: maps[0].shape[0],
        rois: boxes[0].shape[0],
        channels: maps[0].shape[3],
        maps: maps.iter().map(|map| [map.shape[1], map.shape[2]]).collect(),
        ty: maps[0].dtype,
    };
    let mut work = Work::new("features of regions", 1);
    let plans = of.plans(&mut work, maps.len());
    let name = |map: usize| format!("map{map}");
    let text = of.constants()
        + &of.sides()
        + &by_level("map_of", "const ELEMENT*", (0..maps.len()).map(name))
        + FEATURES
        + TAPS
        + SUM_TAPS;
    let own = (0..maps.len()).map(|map| Parameter::input(name(map), of.ty, of.map_len(map)));
    let parameters = own.chain([of.plans_input(), Parameter::output("features", of.ty, of.features())]).collect();
    let operands: Vec<Operand> = (0..maps.len()).map(Operand::Input).chain([plans, Operand::Output(0)]).collect();
    work.launch(for_each("roi_align", parameters, of.features() / of.lanes(), &text), operands);
    work
}

/// Where elements of the map `level` look for their regions.
fn gather(of: &Sizes<'_>, level: usize, stripes: usize) -> Kernel {
    let [height, width] = of.maps[level];
    let text = of.constants()
        + &counts(&[("HEIGHT", height), ("WIDTH", width), ("STRIPES", stripes)])
        + GATHER
        + TAPS
        + SUM_BINS;
    let parameters = vec![
        Parameter::input("dy", of.ty, of.features()),
        of.plans_input(),
        input("lists", of.batch * stripes * (of.rois + 1)),
        Parameter::output("dx", of.ty, of.map_len(level)),
    ];
    for_each("roi_align_grad", parameters, of.map_len(level) / of.lanes(), &text)
}

pub(crate) fn align_grad(op: &RoiAlignGrad, types: &[&TensorType]) -> Work {
    let dy = types[0];
    let of = Sizes {
        rule: &op.roi_align,
        batch: op.batch,
        rois: dy.shape[0],
        channels: dy.shape[3],
        maps: op.maps.clone(),
        ty: dy.dtype,
    };
    let mut work = Work::new("gradient of features of regions", op.maps.len());
    let plans = of.plans(&mut work, 1);
    for level in 0..op.maps.len() {
        let stripes = op.maps[level][0].div_ceil(LINES);
        let words = of.batch * stripes * (of.rois + 1);
        let lists = work.scratch(words);
        let text = of.constants() + &counts(&[("STRIPES", stripes), ("LEVEL", level), ("THREADS", LISTING)]) + LIST;
        let parameters = vec![of.plans_input(), output("lists", words)];
        work.launch(by_blocks("list_regions", parameters, of.batch * stripes, LISTING, &text), [plans, lists]);
        work.launch(gather(&of, level, stripes), [Operand::Input(0), plans, lists, Operand::Output(level)]);
    }
    work
}
