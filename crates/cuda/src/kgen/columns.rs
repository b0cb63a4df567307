//! Kernels for regions that sum over rows: blocks of rows are summed beside each other, then their sums, both in a fixed
//! order.

use super::lanes::{Lanes, Width, for_lanes};
use super::regions::{Launch, Launches, Operand, operands};
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::region::{Reg, RegionOutput};
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

/// A sum over rows: number of the output, register, runs of rows.
struct Sum {
    output: usize,
    register: Reg,
    groups: usize,
}

/// How rows are cut: each of `groups` runs of rows into `parts` parts of at most `rows`.
struct Cut {
    groups: usize,
    parts: usize,
    rows: usize,
}

pub(super) fn columns(name: &str, lanes: &Lanes<'_>) -> Launches {
    let region = lanes.region;
    let sums: Vec<Sum> = region
        .outputs
        .iter()
        .enumerate()
        .filter_map(|(output, kind)| match *kind {
            RegionOutput::Sum { reg, groups, .. } => Some(Sum { output, register: reg, groups }),
            _ => None,
        })
        .collect();
    let width = Width { lanes: lanes.row_width(), flat: false };
    let tiles = (region.cols / width.lanes).div_ceil(ACROSS);
    // Sums of several kinds of runs are added from parts of the finest ones.
    let groups = sums.iter().fold(1, |all, sum| least_common_multiple(all, sum.groups));
    let in_group = region.rows / groups;
    let parts = (BLOCKS / (tiles * groups)).clamp(1, in_group.div_ceil(FEWEST_ROWS).max(1));
    let cut = Cut { groups, parts, rows: in_group.div_ceil(parts) };

    let mut parameters = lanes.parameters();
    let mut operands = operands(lanes);
    let partial = groups * parts * region.cols;
    for (index, sum) in sums.iter().enumerate() {
        parameters.push(Parameter::output(format!("partial{}", sum.output), DType::F32, partial));
        operands.push(Operand::Scratch(index));
    }
    let blocks = [tiles as u32, (groups * parts) as u32, 1];
    let body = blocks_of_rows(lanes, width, &sums, &cut);
    let kernel = Kernel::new(name, parameters, blocks, [ACROSS as u32, DOWN as u32, 1], &indented(&body));
    let mut launches = vec![Launch { kernel, operands }];
    for (index, sum) in sums.iter().enumerate() {
        let kernel = finish(&format!("{name}_sum{}", sum.output), region.cols, sum.groups, groups * parts / sum.groups);
        launches.push(Launch { kernel, operands: vec![Operand::Scratch(index), Operand::Output(sum.output)] });
    }
    Launches { launches, scratch: vec![partial; sums.len()] }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Each thread goes down a few columns; the threads of a column are added through shared memory.
fn blocks_of_rows(lanes: &Lanes<'_>, width: Width, sums: &[Sum], cut: &Cut) -> String {
    let (region, lanes_wide) = (lanes.region, width.lanes);
    let (rows, cols) = (region.rows / cut.groups, region.cols);
    let mut text = format!("__shared__ float scratch[{DOWN}][{}];\n", ACROSS * lanes_wide);
    let _ = writeln!(text, "const u32 col = (blockIdx.x * {ACROSS}u + threadIdx.x) * {lanes_wide}u;");
    let _ = writeln!(text, "const u32 group = blockIdx.y / {0}u, part = blockIdx.y % {0}u;", cut.parts);
    let _ = writeln!(text, "const u32 first = group * {rows}u + part * {}u;", cut.rows);
    let _ = writeln!(text, "const u32 last = (group + 1) * {rows}u;");
    let _ = writeln!(text, "const u32 end = first + {0}u < last ? first + {0}u : last;", cut.rows);
    for sum in sums {
        let _ = writeln!(text, "float s{}[{lanes_wide}] = {{}};", sum.output);
    }
    let needed = lanes.needed(lanes.stored().chain(sums.iter().map(|sum| sum.register)));
    let add: String = sums.iter().map(|sum| format!("s{}[k] += r{};\n", sum.output, sum.register)).collect();
    let (declare, fill, write) = lanes.stores(width);
    let lane = indented(&(lanes.compute(&needed, width) + &fill + &add));
    let row = [lanes.loads(&needed, width, &BTreeSet::new()), declare, for_lanes(width, &lane), write].concat();
    let _ = writeln!(text, "if (col < {cols}u)\n    for (u32 row = first + threadIdx.y; row < end; row += {DOWN}u) {{");
    text += &indented(&indented(&row));
    text += "    }\n";
    for (index, sum) in sums.iter().enumerate() {
        if index > 0 {
            text += "__syncthreads();\n";
        }
        text += &add_threads(sum, width, cols);
    }
    text
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
