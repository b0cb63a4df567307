//! Kernels for fusions that sum over rows or take moments of them: blocks of rows beside each other, then what came of
//! the blocks, both in a fixed order.

use super::fusions::{Launch, Launches, Operand, numbers, operands};
use super::lanes::{Lanes, Width, for_lanes};
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, Reg};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block along columns and along rows.
const ACROSS: usize = 32;
const DOWN: usize = 8;
/// Blocks that keep a large device busy.
const BLOCKS: usize = 1024;
/// Rows that are worth a block.
const FEWEST_ROWS: usize = 8 * DOWN;
/// Threads of the kernel that adds the blocks' sums.
const THREADS: usize = 256;

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
    let tiles = (fusion.cols / width.lanes).div_ceil(ACROSS);
    let cut = Cut::new(fusion.rows, &sums, BLOCKS / tiles, FEWEST_ROWS);

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
    let body = blocks_of_rows(lanes, width, &sums, &moments, &cut);
    let kernel = Kernel::new(name, parameters, blocks, [ACROSS as u32, DOWN as u32, 1], &indented(&body));
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

/// Launches that add what the parts summed, which the first scratch memories hold.
pub(super) fn finishes(name: &str, cols: usize, sums: &[Sum], cut: &Cut) -> Vec<Launch> {
    let one = |(index, sum): (usize, &Sum)| {
        let kernel = finish(&format!("{name}_sum{}", sum.output), cols, sum.groups, cut.all() / sum.groups);
        Launch { kernel, operands: vec![Operand::Scratch(index), Operand::Output(sum.output)] }
    };
    sums.iter().enumerate().map(one).collect()
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Each thread goes down a few columns; the threads of a column are put together through shared memory.
fn blocks_of_rows(lanes: &Lanes<'_>, width: Width, sums: &[Sum], moments: &[MeanVar], cut: &Cut) -> String {
    let (fusion, lanes_wide) = (lanes.fusion, width.lanes);
    let (rows, cols) = (fusion.rows / cut.groups, fusion.cols);
    let mut text = format!("__shared__ float scratch[{DOWN}][{}];\n", ACROSS * lanes_wide);
    let _ = writeln!(text, "const u32 col = (blockIdx.x * {ACROSS}u + threadIdx.x) * {lanes_wide}u;");
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
        let _ = writeln!(text, "__shared__ float squares[{DOWN}][{}];\nfloat count = 0.0f;", ACROSS * lanes_wide);
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
    let loads = lanes.loads(&needed, width, &BTreeSet::new());
    let row = [count, &loads, &declare, &for_lanes(width, &lane), &write].concat();
    let _ = writeln!(text, "if (col < {cols}u)\n    for (u32 row = first + threadIdx.y; row < end; row += {DOWN}u) {{");
    text += &indented(&indented(&row));
    text += "    }\n";
    let of_threads = sums.iter().map(|sum| add_threads(sum, width, cols));
    let of_threads = of_threads.chain(moments.iter().map(|of| merge_threads(of, width, cols)));
    text + &of_threads.collect::<Vec<_>>().join("__syncthreads();\n")
}

/// Puts together the moments that the threads of each column have.
fn merge_threads(of: &MeanVar, width: Width, cols: usize) -> String {
    let output = of.output;
    let at = format!("[k * {ACROSS} + threadIdx.x]");
    let put = format!("    scratch[threadIdx.y]{at} = m{output}[k];\n    squares[threadIdx.y]{at} = q{output}[k];\n");
    let merge = format!(
        "    float n = 0.0f, mean = 0.0f, total = 0.0f;\n    \
         for (u32 y = 0; y < {DOWN}u; ++y)\n        \
         merge_moments(n, mean, total, (float)((rows + {DOWN}u - 1u - y) / {DOWN}u), scratch[y]{at}, squares[y]{at});\n    \
         means{output}[blockIdx.y * {cols}u + col + k] = mean;\n    \
         squares{output}[blockIdx.y * {cols}u + col + k] = total;\n"
    );
    let merge = for_lanes(width, &merge);
    let rows = "const u32 rows = end > first ? end - first : 0u;\n";
    let merge = format!("if (threadIdx.y == 0 && col < {cols}u) {{\n{}}}\n", indented(&(rows.to_owned() + &merge)));
    format!("{}__syncthreads();\n{merge}", for_lanes(width, &put))
}

/// Adds what the threads of each column summed.
fn add_threads(sum: &Sum, width: Width, cols: usize) -> String {
    let output = sum.output;
    let put = format!("    scratch[threadIdx.y][k * {ACROSS} + threadIdx.x] = s{output}[k];\n");
    let add = format!(
        "    float total = 0.0f;\n    for (int y = 0; y < {DOWN}; ++y) total += scratch[y][k * {ACROSS} + threadIdx.x];\n    \
         partial{output}[blockIdx.y * {cols}u + col + k] = total;\n"
    );
    let add = format!("if (threadIdx.y == 0 && col < {cols}u) {{\n{}}}\n", indented(&for_lanes(width, &add)));
    format!("{}__syncthreads();\n{add}", for_lanes(width, &put))
}

/// Adds `parts` rows for each of `groups`: `[groups, parts, cols]` to `[groups, cols]`.
fn finish(name: &str, cols: usize, groups: usize, parts: usize) -> Kernel {
    let elements = groups * cols;
    let body = format!(
        "const u32 i = blockIdx.x * {THREADS}u + threadIdx.x;\n\
         if (i >= {elements}u) return;\n\
         const u32 group = i / {cols}u, col = i % {cols}u;\n\
         float total = 0.0f;\n\
         for (u32 part = 0; part < {parts}u; ++part) total += partial[(group * {parts}u + part) * {cols}u + col];\n\
         sum[i] = total;\n"
    );
    let parameters =
        vec![Parameter::input("partial", DType::F32, elements * parts), Parameter::output("sum", DType::F32, elements)];
    let blocks = [elements.div_ceil(THREADS) as u32, 1, 1];
    Kernel::new(name, parameters, blocks, [THREADS as u32, 1, 1], &indented(&body))
}

/// Puts together the moments of all parts: `[parts, cols]` twice to `[cols]` twice.
fn finish_moments(name: &str, rows: usize, cols: usize, cut: &Cut) -> Kernel {
    let in_group = rows / cut.groups;
    let body = format!(
        "const u32 col = blockIdx.x * {THREADS}u + threadIdx.x;\n\
         if (col >= {cols}u) return;\n\
         float n = 0.0f, middle = 0.0f, total = 0.0f;\n\
         for (u32 part = 0; part < {all}u; ++part) {{\n\
         \x20   const u32 first = part % {parts}u * {rows}u;\n\
         \x20   const u32 count = first >= {in_group}u ? 0u : {in_group}u - first < {rows}u ? {in_group}u - first : {rows}u;\n\
         \x20   merge_moments(n, middle, total, (float)count, means[part * {cols}u + col], squares[part * {cols}u + col]);\n\
         }}\n\
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
    let blocks = [cols.div_ceil(THREADS) as u32, 1, 1];
    Kernel::new(name, parameters, blocks, [THREADS as u32, 1, 1], &indented(&body))
}
