//! Kernels for fusions that sum over rows or take moments of them: blocks of rows beside each other, then what came of
//! the blocks, both in a fixed order.

use super::fusions::{Launch, Launches, Operand, numbers, operands};
use super::lanes::{Lanes, There, Width, for_lanes};
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, Reg};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Threads of a block.
const THREADS: usize = 256;
/// The most threads of a block along columns.
const MOST_ACROSS: usize = 32;
/// Blocks that keep a large device busy.
const BLOCKS: usize = 1024;
/// Rows of a thread that are worth a block.
const FEWEST_ROWS: usize = 8;
/// Threads of a block that puts parts together, and those of them that share a column.
const MOST_THREADS: usize = 1024;
const MOST_DOWN: usize = 32;

/// Threads of a block along columns and along rows.
#[derive(Clone, Copy)]
struct Block {
    across: usize,
    down: usize,
}

impl Block {
    /// Of a kernel whose rows have so many vectors.
    fn of_rows(vectors: usize) -> Block {
        let across = vectors.next_power_of_two().min(MOST_ACROSS);
        Block { across, down: THREADS / across }
    }

    /// Of a kernel that puts so many parts together.
    fn of_parts(parts: usize) -> Block {
        let down = parts.next_power_of_two().min(MOST_DOWN);
        Block { across: (MOST_THREADS / down).min(THREADS), down }
    }

    fn threads(self) -> [u32; 3] {
        [self.across as u32, self.down as u32, 1]
    }
}

/// A sum over rows: number of the tensor, register, runs of rows.
pub(super) struct Sum {
    pub output: usize,
    pub register: Reg,
    pub groups: usize,
}

/// MeanVar of rows: number of the mean's tensor, behind which the variance's follows, and the register.
struct MeanVar {
    output: usize,
    register: Reg,
}

/// How rows are cut: each of `groups` runs of rows into `parts` parts of at most `rows`.
pub(super) struct Cut {
    pub groups: usize,
    pub parts: usize,
    pub rows: usize,
}

impl Cut {
    /// Cuts into at most `most` parts of at least `fewest` rows. Sums of several kinds of runs are added from parts of
    /// the finest ones.
    pub(super) fn new(rows: usize, sums: &[Sum], most: usize, fewest: usize) -> Cut {
        let groups = sums.iter().fold(1, |all, sum| least_common_multiple(all, sum.groups));
        let in_group = rows / groups;
        let parts = (most / groups).clamp(1, in_group.div_ceil(fewest).max(1));
        Cut { groups, parts, rows: in_group.div_ceil(parts) }
    }

    /// Parts of all groups.
    pub(super) fn all(&self) -> usize {
        self.groups * self.parts
    }
}

/// The fusion's sums over rows.
pub(super) fn sums(lanes: &Lanes<'_>) -> Vec<Sum> {
    let sum = |(kind, output): (&FusionOutput, usize)| match *kind {
        FusionOutput::Sum { reg, groups, .. } => Some(Sum { output, register: reg, groups }),
        _ => None,
    };
    lanes.fusion.outputs.iter().zip(numbers(lanes.fusion)).filter_map(sum).collect()
}

fn moments(lanes: &Lanes<'_>) -> Vec<MeanVar> {
    let moments = |(kind, output): (&FusionOutput, usize)| match *kind {
        FusionOutput::MeanVar { reg, .. } => Some(MeanVar { output, register: reg }),
        _ => None,
    };
    lanes.fusion.outputs.iter().zip(numbers(lanes.fusion)).filter_map(moments).collect()
}

pub(super) fn columns(name: &str, lanes: &Lanes<'_>) -> Launches {
    let fusion = lanes.fusion;
    let (sums, moments) = (sums(lanes), moments(lanes));
    let width = Width { lanes: lanes.row_width(), flat: false };
    let block = Block::of_rows(fusion.cols / width.lanes);
    let tiles = (fusion.cols / width.lanes).div_ceil(block.across);
    let cut = Cut::new(fusion.rows, &sums, BLOCKS / tiles, FEWEST_ROWS * block.down);

    let mut parameters = lanes.parameters();
    let mut operands = operands(lanes);
    let partial = cut.all() * fusion.cols;
    let of_moments = moments.iter().flat_map(|of| [format!("means{}", of.output), format!("squares{}", of.output)]);
    let names = sums.iter().map(|sum| format!("partial{}", sum.output)).chain(of_moments);
    for (index, name) in names.enumerate() {
        parameters.push(Parameter::output(name, DType::F32, partial));
        operands.push(Operand::Scratch(index));
    }
    let blocks = [tiles as u32, cut.all() as u32, 1];
    let body = blocks_of_rows(lanes, width, block, &sums, &moments, &cut);
    let kernel = Kernel::new(name, parameters, blocks, block.threads(), &indented(&body));
    let mut launches = vec![Launch { kernel, operands }];
    launches.extend(finishes(name, fusion.cols, &sums, &cut));
    for (index, of) in moments.iter().enumerate() {
        let kernel = finish_moments(&format!("{name}_moments{}", of.output), fusion.rows, fusion.cols, &cut);
        let scratch = sums.len() + 2 * index;
        let operands = [Operand::Scratch(scratch), Operand::Scratch(scratch + 1)].into_iter();
        let operands = operands.chain([Operand::Output(of.output), Operand::Output(of.output + 1)]).collect();
        launches.push(Launch { kernel, operands });
    }
    Launches { launches, scratch: vec![partial; sums.len() + 2 * moments.len()] }
}

/// Launches that add what the parts summed, which the first scratch memories hold: one for all sums of as many runs of rows.
pub(super) fn finishes(name: &str, cols: usize, sums: &[Sum], cut: &Cut) -> Vec<Launch> {
    let mut alike: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, sum) in sums.iter().enumerate() {
        alike.entry(sum.groups).or_default().push((index, sum.output));
    }
    let launch = |(groups, sums): (usize, Vec<(usize, usize)>)| {
        let kernel = finish(&format!("{name}_sum{}", sums[0].1), cols, groups, cut.all() / groups, sums.len());
        let operands = sums.iter().flat_map(|&(index, output)| [Operand::Scratch(index), Operand::Output(output)]);
        Launch { kernel, operands: operands.collect() }
    };
    alike.into_iter().map(launch).collect()
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Each thread goes down a few columns; the threads of a column are put together through shared memory.
fn blocks_of_rows(
    lanes: &Lanes<'_>,
    width: Width,
    block: Block,
    sums: &[Sum],
    moments: &[MeanVar],
    cut: &Cut,
) -> String {
    let (fusion, lanes_wide, Block { across, down }) = (lanes.fusion, width.lanes, block);
    let (rows, cols) = (fusion.rows / cut.groups, fusion.cols);
    let mut text = format!("__shared__ float scratch[{down}][{}];\n", across * lanes_wide);
    let _ = writeln!(text, "const u32 col = (blockIdx.x * {across}u + threadIdx.x) * {lanes_wide}u;");
    let _ = writeln!(text, "const u32 group = blockIdx.y / {0}u, part = blockIdx.y % {0}u;", cut.parts);
    let _ = writeln!(text, "const u32 first = group * {rows}u + part * {}u;", cut.rows);
    let _ = writeln!(text, "const u32 last = (group + 1) * {rows}u;");
    let _ = writeln!(text, "const u32 end = first + {0}u < last ? first + {0}u : last;", cut.rows);
    for sum in sums {
        let _ = writeln!(text, "float s{}[{lanes_wide}] = {{}};", sum.output);
    }
    let mut add: String = sums.iter().map(|sum| format!("s{}[k] += r{};\n", sum.output, sum.register)).collect();
    let mut count = "";
    if !moments.is_empty() {
        let _ = writeln!(text, "__shared__ float squares[{down}][{}];\nfloat count = 0.0f;", across * lanes_wide);
        count = "count += 1.0f;\nconst float share = 1.0f / count;\n";
    }
    for MeanVar { output, register } in moments {
        let _ = writeln!(text, "float m{output}[{lanes_wide}] = {{}}, q{output}[{lanes_wide}] = {{}};");
        add += &format!("add_to_moments(m{output}[k], q{output}[k], share, r{register});\n");
    }
    let registers = sums.iter().map(|sum| sum.register).chain(moments.iter().map(|of| of.register));
    let needed = lanes.needed(lanes.stored().chain(registers));
    let (declare, fill, write) = lanes.stores(width);
    let lane = indented(&(lanes.compute(&needed, width) + &fill + &add));
    let loads = lanes.loads(&needed, width, &There::default());
    let row = [count, &loads, &declare, &for_lanes(width, &lane), &write].concat();
    let _ = writeln!(text, "if (col < {cols}u) {{");
    // Rows are loaded ahead where nothing is stored between them.
    text += if write.is_empty() { "#pragma unroll 4\n" } else { "" };
    let _ = writeln!(text, "    for (u32 row = first + threadIdx.y; row < end; row += {down}u) {{");
    text += &indented(&indented(&row));
    text += "    }\n}\n";
    text += &format!(
        "const u32 place = threadIdx.y * {across}u + threadIdx.x;\n\
         const u32 own = (blockIdx.x * {across}u + place % {across}u) * {lanes_wide}u + place / {across}u;\n\
         const bool adds = place < {}u && own < {cols}u;\n",
        across * lanes_wide
    );
    let of_threads = sums.iter().map(|sum| add_threads(sum, width, block, cols));
    let of_threads = of_threads.chain(moments.iter().map(|of| merge_threads(of, width, block, cols)));
    text + &of_threads.collect::<Vec<_>>().join("__syncthreads();\n")
}

/// Puts together the moments that the threads of each column have.
fn merge_threads(of: &MeanVar, width: Width, Block { across, down }: Block, cols: usize) -> String {
    let output = of.output;
    let at = format!("[threadIdx.y][k * {across} + threadIdx.x]");
    let put = format!("    scratch{at} = m{output}[k];\n    squares{at} = q{output}[k];\n");
    let merge = format!(
        "if (adds) {{\n    \
         const u32 rows = end > first ? end - first : 0u;\n    \
         float n = 0.0f, mean = 0.0f, total = 0.0f;\n    \
         for (u32 y = 0; y < {down}u; ++y)\n        \
         merge_moments(n, mean, total, (float)((rows + {down}u - 1u - y) / {down}u), scratch[y][place], squares[y][place]);\n    \
         means{output}[blockIdx.y * {cols}u + own] = mean;\n    \
         squares{output}[blockIdx.y * {cols}u + own] = total;\n}}\n"
    );
    format!("{}__syncthreads();\n{merge}", for_lanes(width, &put))
}

/// Adds what the threads of each column summed.
fn add_threads(sum: &Sum, width: Width, Block { across, down }: Block, cols: usize) -> String {
    let output = sum.output;
    let put = format!("    scratch[threadIdx.y][k * {across} + threadIdx.x] = s{output}[k];\n");
    let add = format!(
        "if (adds) {{\n    float total = 0.0f;\n    \
         for (u32 y = 0; y < {down}u; ++y) total += scratch[y][place];\n    \
         partial{output}[blockIdx.y * {cols}u + own] = total;\n}}\n"
    );
    format!("{}__syncthreads();\n{add}", for_lanes(width, &put))
}

/// Adds `parts` rows for each of `groups`: `[groups, parts, cols]` to `[groups, cols]`, for each of `sums` pairs of tensors.
fn finish(name: &str, cols: usize, groups: usize, parts: usize, sums: usize) -> Kernel {
    let block = Block::of_parts(parts);
    let Block { across, down } = block;
    let of_block = |name: &str| {
        let choose = |rest: String, sum: usize| format!("blockIdx.z == {sum}u ? {name}{sum} : {rest}");
        (0..sums - 1).rev().fold(format!("{name}{}", sums - 1), choose)
    };
    let mut body =
        format!("const float* const partial = {};\nfloat* const sum = {};\n", of_block("partial"), of_block("sum"));
    body += &format!(
        "const u32 col = blockIdx.x * {across}u + threadIdx.x;\n\
         float total = 0.0f;\n\
         if (col < {cols}u) {{\n\
         #pragma unroll 4\n    \
         for (u32 part = threadIdx.y; part < {parts}u; part += {down}u)\n        \
         total += partial[(blockIdx.y * {parts}u + part) * {cols}u + col];\n}}\n"
    );
    if down > 1 {
        body += &format!(
            "__shared__ float totals[{down}][{across}];\n\
             totals[threadIdx.y][threadIdx.x] = total;\n\
             __syncthreads();\n\
             if (threadIdx.y != 0) return;\n\
             for (u32 y = 1; y < {down}u; ++y) total += totals[y][threadIdx.x];\n"
        );
    }
    body += &format!("if (col < {cols}u) sum[blockIdx.y * {cols}u + col] = total;\n");
    let elements = groups * cols;
    let pair = |sum: usize| {
        let partial = Parameter::input(format!("partial{sum}"), DType::F32, elements * parts);
        [partial, Parameter::output(format!("sum{sum}"), DType::F32, elements)]
    };
    let parameters = (0..sums).flat_map(pair).collect();
    let blocks = [cols.div_ceil(across) as u32, groups as u32, sums as u32];
    Kernel::new(name, parameters, blocks, block.threads(), &indented(&body))
}

/// Puts together the moments of all parts: `[parts, cols]` twice to `[cols]` twice.
fn finish_moments(name: &str, rows: usize, cols: usize, cut: &Cut) -> Kernel {
    let in_group = rows / cut.groups;
    let block = Block::of_parts(cut.all());
    let Block { across, down } = block;
    let body = format!(
        "const u32 col = blockIdx.x * {across}u + threadIdx.x;\n\
         float n = 0.0f, middle = 0.0f, total = 0.0f;\n\
         if (col < {cols}u) {{\n\
         #pragma unroll 4\n    \
         for (u32 part = threadIdx.y; part < {all}u; part += {down}u) {{\n        \
         const u32 first = part % {parts}u * {rows}u;\n        \
         const u32 count = first >= {in_group}u ? 0u : {in_group}u - first < {rows}u ? {in_group}u - first : {rows}u;\n        \
         merge_moments(n, middle, total, (float)count, means[part * {cols}u + col], squares[part * {cols}u + col]);\n    }}\n}}\n\
         __shared__ float counts[{down}][{across}], middles[{down}][{across}], totals[{down}][{across}];\n\
         counts[threadIdx.y][threadIdx.x] = n;\n\
         middles[threadIdx.y][threadIdx.x] = middle;\n\
         totals[threadIdx.y][threadIdx.x] = total;\n\
         __syncthreads();\n\
         if (threadIdx.y != 0 || col >= {cols}u) return;\n\
         for (u32 y = 1; y < {down}u; ++y)\n    \
         merge_moments(n, middle, total, counts[y][threadIdx.x], middles[y][threadIdx.x], totals[y][threadIdx.x]);\n\
         mean[col] = middle;\n\
         variance[col] = total / n;\n",
        all = cut.all(),
        parts = cut.parts,
        rows = cut.rows,
    );
    let parameters = vec![
        Parameter::input("means", DType::F32, cut.all() * cols),
        Parameter::input("squares", DType::F32, cut.all() * cols),
        Parameter::output("mean", DType::F32, cols),
        Parameter::output("variance", DType::F32, cols),
    ];
    let blocks = [cols.div_ceil(across) as u32, 1, 1];
    Kernel::new(name, parameters, blocks, block.threads(), &indented(&body))
}
