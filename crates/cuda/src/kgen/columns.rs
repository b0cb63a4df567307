//! Kernels for fusions that sum over rows or take moments of them: blocks of rows beside each other, then what came of
//! the blocks, both in a fixed order.

use super::fusions::{Launch, Launches, Operand, numbers, operands};
use super::lanes::{Lanes, There, Width, for_lanes};
use super::parts::{Block, Cut, LastBlock, THREADS, finish_moments, finishes, grid};
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, Reg};
use std::fmt::Write;

/// The most threads of a block along columns: of large tensors, and of others, whose rows are cut so that a block reads whole lines of the
/// caches, and has few enough columns for the last one to put all parts together.
const MOST_ACROSS: usize = 32;
const MOST_ACROSS_SMALL: usize = 8;
/// Elements of a small tensor: what is read in some 10 us, which is what two launches take.
const SMALL: usize = 1 << 24;
/// Blocks that keep a large device busy.
const BLOCKS: usize = 1024;
/// Rows of a thread that are worth a block.
const FEWEST_ROWS: usize = 8;

/// Threads of a block of a kernel for rows of so many vectors.
fn block_of_rows(vectors: usize, elements: usize) -> Block {
    let most = if elements > SMALL { MOST_ACROSS } else { MOST_ACROSS_SMALL };
    let across = vectors.next_power_of_two().min(most);
    Block { across, down: THREADS / across }
}

/// A sum over rows: number of the tensor, register, runs of rows.
pub(super) struct Sum {
    pub output: usize,
    pub register: Reg,
    pub groups: usize,
}

/// MeanVar of rows: number of the mean's tensor, behind which the variance's follows, and the register.
pub(super) struct MeanVar {
    pub output: usize,
    register: Reg,
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
    let block = block_of_rows(fusion.cols / width.lanes, fusion.rows * fusion.cols);
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
    let ([x, y], places) = grid(tiles, cut.all());
    let mut body = places.to_owned() + &blocks_of_rows(lanes, width, block, &sums, &moments, &cut);
    let scratch = vec![partial; sums.len() + 2 * moments.len()];
    let last = LastBlock::of([fusion.rows, fusion.cols], block, width, (&sums, &moments), &cut);
    if let Some(last) = &last {
        body += &last.text();
        let (more, of_them): (Vec<Parameter>, Vec<Operand>) = last.parameters().into_iter().unzip();
        parameters.extend(more);
        operands.extend(of_them);
    }
    let kernel = Kernel::new(name, parameters, [x, y, 1], block.threads(), &indented(&body));
    let mut launches = vec![Launch { kernel, operands }];
    if last.is_some() {
        return Launches { launches, scratch };
    }
    launches.extend(finishes(name, fusion.cols, &sums, &cut));
    for (index, of) in moments.iter().enumerate() {
        let kernel = finish_moments(&format!("{name}_moments{}", of.output), fusion.rows, fusion.cols, &cut);
        let means = sums.len() + 2 * index;
        let operands = [Operand::Scratch(means), Operand::Scratch(means + 1)].into_iter();
        let operands = operands.chain([Operand::Output(of.output), Operand::Output(of.output + 1)]).collect();
        launches.push(Launch { kernel, operands });
    }
    Launches { launches, scratch }
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
    let _ = writeln!(text, "const u32 col = (tile * {across}u + threadIdx.x) * {lanes_wide}u;");
    let _ = writeln!(text, "const u32 group = run / {0}u, part = run % {0}u;", cut.parts);
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
         const u32 own = (tile * {across}u + place % {across}u) * {lanes_wide}u + place / {across}u;\n\
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
         means{output}[run * {cols}u + own] = mean;\n    \
         squares{output}[run * {cols}u + own] = total;\n}}\n"
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
         partial{output}[run * {cols}u + own] = total;\n}}\n"
    );
    format!("{}__syncthreads();\n{add}", for_lanes(width, &put))
}
