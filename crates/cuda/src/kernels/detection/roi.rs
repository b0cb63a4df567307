//! Features of regions, and their gradient. A plan of each region has its map, and for each axis the pixels that a bin reads and their
//! weights. The gradient is gathered: each pixel of a map goes through the regions that touch its tile, in their order, and finds by
//! a table of each region and axis which bins read it.

use super::{Work, by_blocks, by_level, check, counts, doubles, flags, float_input, for_each, input, output, report};
use crate::kgen::{Kernel, Operand, Parameter, c_type};
use bessemer_ir::ops::detection::roi::{RoiAlign, RoiAlignGrad, RoiBorder, RoiSamples};
use bessemer_ir::{DType, TensorType};

/// Words of a plan before its axes: the map, and the image.
const HEAD: usize = 2;
/// Words of an axis before its lists: the first pixel that is read, and the one behind the last.
const RANGE: usize = 2;
/// Lines and columns of a tile of a map, which has a list of regions.
const TILE: [usize; 2] = [8, 16];
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

const FEATURES: &str = "\
const u32 lane = i % VECTORS, bin = i / VECTORS % (BINS_DOWN * BINS_ACROSS), roi = i / VECTORS / (BINS_DOWN * BINS_ACROSS);
const u32 row = bin / BINS_ACROSS, col = bin % BINS_ACROSS;
float sums[LANES];
for (u32 k = 0; k < LANES; ++k) sums[k] = 0.0f;
const int* const plan = plans + roi * PLAN;
const int* const ends_down = plan + DOWN + RANGE;
const int* const ends_across = plan + ACROSS + RANGE;
const int* const pixels_down = ends_down + BINS_DOWN;
const int* const pixels_across = ends_across + BINS_ACROSS;
const float* const weights_down = (const float*)(pixels_down + MOST_DOWN);
const float* const weights_across = (const float*)(pixels_across + MOST_ACROSS);
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

/// The bins that read the pixel `at` of an axis, with their weights, in the order of the bins: the table of a region has where those of each pixel
/// begin, then bins and weights, of one axis behind the other.
const BY_PIXELS: &str = "\
const u32 roi = i / PIXELS, own = i % PIXELS;
const bool is_down = own < PIXELS_DOWN;
const int at = (int)(is_down ? own : own - PIXELS_DOWN);
const int* const range = plans + roi * PLAN + (is_down ? DOWN : ACROSS);
const int* const ends = range + RANGE;
const int* const pixels = ends + (is_down ? BINS_DOWN : BINS_ACROSS);
const int* const weights = pixels + (is_down ? MOST_DOWN : MOST_ACROSS);
int* const table = tables + roi * TABLE;
int* const bins = table + PIXELS + (is_down ? 0u : 2u * MOST_DOWN);
const int count = ends[(is_down ? BINS_DOWN : BINS_ACROSS) - 1u];
int first = at < range[0] ? 0 : count;
if (at >= range[0] && at < range[1]) {
    first = 0;
    for (int tap = 0; tap < count; ++tap) first += pixels[tap] < at;
    int to = first;
    for (int tap = 0, bin = 0; tap < count; ++tap) {
        while (ends[bin] <= tap) ++bin;
        if (pixels[tap] != at) continue;
        bins[2 * to] = bin;
        bins[2 * to + 1] = weights[tap];
        ++to;
    }
}
table[own] = first;
";

/// The regions of the image and the map that touch a tile, in their order, behind their number: a tile a block, whose threads
/// have regions that follow each other.
const LIST: &str = "\
__shared__ u32 counts[THREADS];
const u32 image = blockIdx.x / (TILES_DOWN * TILES_ACROSS);
const int line = (int)(blockIdx.x / TILES_ACROSS % TILES_DOWN * LINES), column = (int)(blockIdx.x % TILES_ACROSS * COLUMNS);
int* const list = lists + blockIdx.x * (ROIS + 1u);
const u32 each = (ROIS + THREADS - 1u) / THREADS, first = threadIdx.x * each;
const u32 end = first + each < ROIS ? first + each : ROIS;
const auto touches = [=](u32 roi) {
    const int* const plan = plans + roi * PLAN;
    if (plan[0] != (int)LEVEL || plan[1] != (int)image) return false;
    if (plan[DOWN] >= line + (int)LINES || plan[DOWN + 1u] <= line) return false;
    return plan[ACROSS] < column + (int)COLUMNS && plan[ACROSS + 1u] > column;
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
const int* const list = lists + ((image * TILES_DOWN + y / LINES) * TILES_ACROSS + x / COLUMNS) * (ROIS + 1u);
float sums[LANES];
for (u32 k = 0; k < LANES; ++k) sums[k] = 0.0f;
for (int number = 1; number <= list[0]; ++number) {
    const u32 roi = (u32)list[number];
    const int* const table = tables + roi * TABLE;
    const int* const across = table + PIXELS_DOWN + x;
    const int* const bins_down = table + PIXELS;
    const int* const bins_across = bins_down + 2u * MOST_DOWN;
    const int from = across[0], to = across[1], end = table[y + 1u];
    for (int down = table[y]; down < end; ++down)
        for (int at = from; at < to; ++at) {
            const float weight = ((const float*)bins_down)[2 * down + 1] * ((const float*)bins_across)[2 * at + 1];
            const u32 bin = (roi * BINS_DOWN + (u32)bins_down[2 * down]) * BINS_ACROSS + (u32)bins_across[2 * at];
            float gradient[LANES];
            load<ELEMENT, LANES>(dy + (bin * CHANNELS + lane * LANES), gradient);
            for (u32 k = 0; k < LANES; ++k) sums[k] += weight * gradient[k];
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
            + &counts(&[("CHANNELS", self.channels), ("VECTORS", self.channels / self.lanes())])
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

    /// Positions of an axis at which the bins of a pixel may begin, one more than there are pixels in the largest map.
    fn pixels(&self, axis: usize) -> usize {
        self.maps.iter().map(|map| map[axis]).max().unwrap_or(0) + 1
    }

    fn table_len(&self) -> usize {
        (0..2).map(|axis| self.pixels(axis) + 2 * self.most_taps(axis)).sum()
    }

    /// Constants of texts that know tables.
    fn table_constants(&self) -> String {
        let [down, across] = [0, 1].map(|axis| self.pixels(axis));
        counts(&[("TABLE", self.table_len()), ("PIXELS", down + across), ("PIXELS_DOWN", down)])
    }

    /// The bins that read each pixel of each region's map.
    fn tables(&self, work: &mut Work, plans: Operand) -> Operand {
        let tables = work.scratch(self.rois * self.table_len());
        let text = self.constants() + &self.table_constants() + BY_PIXELS;
        let parameters = vec![self.plans_input(), output("tables", self.rois * self.table_len())];
        let count = self.rois * (self.pixels(0) + self.pixels(1));
        work.launch(for_each("bins_by_pixels", parameters, count, &text), [plans, tables]);
        tables
    }

    /// Tiles of a map, down and across.
    fn tiles(&self, map: usize) -> [usize; 2] {
        [0, 1].map(|axis| self.maps[map][axis].div_ceil(TILE[axis]))
    }

    /// Words of the lists of a map's tiles.
    fn lists_len(&self, map: usize) -> usize {
        let [down, across] = self.tiles(map);
        self.batch * down * across * (self.rois + 1)
    }

    /// Constants of texts that know the tiles of a map.
    fn tile_constants(&self, map: usize) -> String {
        let [down, across] = self.tiles(map);
        counts(&[("TILES_DOWN", down), ("TILES_ACROSS", across), ("LINES", TILE[0]), ("COLUMNS", TILE[1])])
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
    let text =
        of.constants() + &of.sides() + &by_level("map_of", "const ELEMENT*", (0..maps.len()).map(name)) + FEATURES;
    let own = (0..maps.len()).map(|map| Parameter::input(name(map), of.ty, of.map_len(map)));
    let parameters = own.chain([of.plans_input(), Parameter::output("features", of.ty, of.features())]).collect();
    let operands: Vec<Operand> = (0..maps.len()).map(Operand::Input).chain([plans, Operand::Output(0)]).collect();
    work.launch(for_each("roi_align", parameters, of.features() / of.lanes(), &text), operands);
    work
}

/// The regions of each tile of the map `level`.
fn list(of: &Sizes<'_>, level: usize) -> Kernel {
    let [down, across] = of.tiles(level);
    let constants = of.constants() + &of.tile_constants(level) + &counts(&[("LEVEL", level), ("THREADS", LISTING)]);
    let parameters = vec![of.plans_input(), output("lists", of.lists_len(level))];
    by_blocks("list_regions", parameters, of.batch * down * across, LISTING, &(constants + LIST))
}

/// Sums of each pixel of the map `level`.
fn gather(of: &Sizes<'_>, level: usize) -> Kernel {
    let [height, width] = of.maps[level];
    let constants = of.constants() + &of.table_constants() + &of.tile_constants(level);
    let text = constants + &counts(&[("HEIGHT", height), ("WIDTH", width)]) + GATHER;
    let parameters = vec![
        Parameter::input("dy", of.ty, of.features()),
        input("tables", of.rois * of.table_len()),
        input("lists", of.lists_len(level)),
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
    let tables = of.tables(&mut work, plans);
    for level in 0..op.maps.len() {
        let lists = work.scratch(of.lists_len(level));
        work.launch(list(&of, level), [plans, lists]);
        work.launch(gather(&of, level), [Operand::Input(0), tables, lists, Operand::Output(level)]);
    }
    work
}
