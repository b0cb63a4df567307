//! Kernels for fusions that reduce along rows: a row is held by one block, or by one warp where it is short. Where the
//! fusion sums over rows too, a block or warp goes down several rows.

use super::columns::{Cut, Sum, finishes, sums};
use super::fusions::{Launch, Launches, Operand, operands};
use super::lanes::{Lanes, MOST_LANES, Width, for_lanes, kind_name};
use super::{Kernel, KernelError, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, Instr, Reg};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block of which each warp has a row of its own.
const THREADS: usize = 256;
const MOST_THREADS: usize = 1024;
/// Vectors of a thread up to which what several passes read is kept in registers.
const MOST_KEPT: usize = 4;
/// Blocks that keep a large device busy, and rows that are worth a part, where rows are summed.
const BLOCKS: usize = 1024;
const FEWEST_ROWS: usize = 4;
/// Lanes of a thread that keeps sums of its columns in registers, beside what it reads.
const SUMMED_LANES: usize = 4;

/// How a row is laid on threads.
struct Layout {
    width: Width,
    /// Vectors of a row.
    vectors: usize,
    /// Threads of a row: a multiple of 32.
    threads: usize,
    /// Vectors of a thread.
    each: usize,
    /// Rows of a block.
    rows: usize,
}

impl Layout {
    fn of(lanes: &Lanes<'_>, most_lanes: usize) -> Layout {
        let width = Width { lanes: lanes.row_width().min(most_lanes), flat: false };
        let vectors = lanes.fusion.cols / width.lanes;
        let threads = vectors.next_multiple_of(32).clamp(32, MOST_THREADS);
        let rows = if threads == 32 { THREADS / 32 } else { 1 };
        Layout { width, vectors, threads, each: vectors.div_ceil(threads), rows }
    }

    /// Whether `each` vectors are kept.
    fn keeps(&self) -> bool {
        self.each <= MOST_KEPT
    }

    /// Threads of a block.
    fn block(&self) -> [u32; 3] {
        [self.threads as u32, self.rows as u32, 1]
    }

    /// Memory for reductions, which rows of one warp do not need.
    fn scratch(&self) -> String {
        match self.rows {
            1 => format!("__shared__ float scratch[{}];\n", self.threads / 32),
            _ => "float* const scratch = nullptr;\n".to_owned(),
        }
    }

    /// `body` for each vector of the thread, which begins at column `col`.
    fn for_vectors(&self, body: &str) -> String {
        let (threads, lanes) = (self.threads, self.width.lanes);
        let unroll = if self.keeps() { "#pragma unroll\n" } else { "" };
        let head = format!("{unroll}for (u32 e = 0; e < {}u; ++e) {{\n", self.each);
        let col = format!("const u32 v = threadIdx.x + e * {threads}u, col = v * {lanes}u;\n");
        let guard = if self.vectors.is_multiple_of(threads) {
            String::new()
        } else {
            format!("if (v >= {}u) break;\n", self.vectors)
        };
        head + &indented(&(col + &guard + body)) + "}\n"
    }
}

/// Reductions that can be done in one pass: those that depend on as many others before them.
fn passes(lanes: &Lanes<'_>) -> Vec<Vec<Reg>> {
    let program = &lanes.fusion.program;
    let mut depth = vec![0usize; program.len()];
    let mut passes: Vec<Vec<Reg>> = Vec::new();
    for (index, instr) in program.iter().enumerate() {
        let before = instr.operands().map(|register| depth[register as usize]).max().unwrap_or(0);
        let is_reduction = matches!(instr, Instr::Reduce(..));
        depth[index] = before + usize::from(is_reduction);
        if is_reduction {
            passes.resize_with(passes.len().max(before + 1), Vec::new);
            passes[before].push(index as Reg);
        }
    }
    passes
}

/// The operand of a reduction.
fn operand(instr: Instr) -> Reg {
    match instr {
        Instr::Reduce(_, operand) => operand,
        _ => unreachable!("passes hold reductions"),
    }
}

/// Each row alone.
pub(super) fn rows(name: &str, lanes: &Lanes<'_>) -> Kernel {
    let (fusion, layout) = (lanes.fusion, Layout::of(lanes, MOST_LANES));
    let row = if layout.rows == 1 {
        "const u32 row = blockIdx.x;\n".to_owned()
    } else {
        let row = format!("const u32 row = blockIdx.x * {}u + threadIdx.y;\n", layout.rows);
        let guard = format!("if (row >= {}u) return;\n", fusion.rows);
        if fusion.rows.is_multiple_of(layout.rows) { row } else { row + &guard }
    };
    let body = row + &layout.scratch() + &one_row(lanes, &layout, &[]);
    let blocks = fusion.rows.div_ceil(layout.rows) as u32;
    Kernel::new(name, lanes.parameters(), [blocks, 1, 1], layout.block(), &indented(&body))
}

/// Runs of rows: what they are summed to, and the kernels that add that.
///
/// # Errors
/// Rows are too long: sums of columns do not fit into registers.
pub(super) fn rows_with_sums(name: &str, lanes: &Lanes<'_>) -> Result<Launches, KernelError> {
    let (fusion, layout, sums) = (lanes.fusion, Layout::of(lanes, SUMMED_LANES), sums(lanes));
    if !layout.keeps() {
        let problem = format!("rows of {} are too long to be summed while they are reduced", fusion.cols);
        return Err(KernelError(problem));
    }
    let cut = Cut::new(fusion.rows, &sums, BLOCKS * layout.rows, FEWEST_ROWS);
    let (mut parameters, mut operands) = (lanes.parameters(), operands(lanes));
    let partial = cut.all() * fusion.cols;
    for (index, sum) in sums.iter().enumerate() {
        parameters.push(Parameter::output(format!("partial{}", sum.output), DType::F32, partial));
        operands.push(Operand::Scratch(index));
    }
    let body = runs_of_rows(lanes, &layout, &sums, &cut);
    let blocks = cut.all().div_ceil(layout.rows) as u32;
    let kernel = Kernel::new(name, parameters, [blocks, 1, 1], layout.block(), &indented(&body));
    let mut launches = vec![Launch { kernel, operands }];
    launches.extend(finishes(name, fusion.cols, &sums, &cut));
    Ok(Launches { launches, scratch: vec![partial; sums.len()] })
}

/// Each block, or warp of it, goes down its run of rows, and keeps the sums of its columns.
fn runs_of_rows(lanes: &Lanes<'_>, layout: &Layout, sums: &[Sum], cut: &Cut) -> String {
    let (rows, cols) = (lanes.fusion.rows / cut.groups, lanes.fusion.cols);
    let mut text = if layout.rows == 1 {
        "const u32 part = blockIdx.x;\n".to_owned()
    } else {
        let part = format!("const u32 part = blockIdx.x * {}u + threadIdx.y;\n", layout.rows);
        part + &format!("if (part >= {}u) return;\n", cut.all())
    };
    text += &layout.scratch();
    let _ = writeln!(
        text,
        "const u32 group = part / {0}u, first = group * {rows}u + part % {0}u * {1}u;",
        cut.parts, cut.rows
    );
    let _ = writeln!(text, "const u32 last = (group + 1) * {rows}u;");
    let _ = writeln!(text, "const u32 end = first + {0}u < last ? first + {0}u : last;", cut.rows);
    for sum in sums {
        let _ = writeln!(text, "float total{}[{}][{}] = {{}};", sum.output, layout.each, layout.width.lanes);
    }
    text += "for (u32 row = first; row < end; ++row) {\n";
    text += &indented(&one_row(lanes, layout, sums));
    text += "}\n";
    let store = |sum: &Sum| {
        let (output, lanes) = (sum.output, layout.width.lanes);
        format!("store<float, {lanes}>(partial{output} + part * {cols}u + col, total{output}[e]);\n")
    };
    text + &layout.for_vectors(&sums.iter().map(store).collect::<String>())
}

/// Everything of `row`: passes of reductions, then what is stored and added to `sums`.
fn one_row(lanes: &Lanes<'_>, layout: &Layout, sums: &[Sum]) -> String {
    let fusion = lanes.fusion;
    let passes = passes(lanes);
    let last: Vec<Reg> = fusion.outputs.iter().map(FusionOutput::reg).collect();
    let mut needs: Vec<BTreeSet<Reg>> = passes
        .iter()
        .map(|pass| lanes.needed(pass.iter().map(|&register| operand(fusion.program[register as usize]))))
        .collect();
    needs.push(lanes.needed(last));
    let kept = kept(lanes, layout, &needs);

    let mut body = scalars(lanes, &needs);
    for input in &kept {
        let _ = writeln!(body, "float kept{input}[{}][{}];", layout.each, layout.width.lanes);
    }
    if !kept.is_empty() {
        let load = |input: &usize| lanes.load(*input, layout.width, &format!("kept{input}[e]"));
        body += &layout.for_vectors(&kept.iter().map(load).collect::<String>());
    }
    for (pass, needed) in passes.iter().zip(&needs) {
        body += &reductions(lanes, layout, pass, needed, &kept);
    }
    body + &outputs(lanes, layout, &needs[passes.len()], &kept, sums)
}

/// Inputs that several passes read, where there is room for them.
fn kept(lanes: &Lanes<'_>, layout: &Layout, needs: &[BTreeSet<Reg>]) -> BTreeSet<usize> {
    let readers = |input: &usize| needs.iter().filter(|needed| lanes.loaded(needed).contains(input)).count();
    let inputs = (0..lanes.fusion.loads.len()).filter(|input| lanes.varies_by_col(*input) && readers(input) > 1);
    if layout.keeps() { inputs.collect() } else { BTreeSet::new() }
}

/// The numbers that are the same in all of the row.
fn scalars(lanes: &Lanes<'_>, needs: &[BTreeSet<Reg>]) -> String {
    let loaded: BTreeSet<usize> = needs.iter().flat_map(|needed| lanes.loaded(needed)).collect();
    loaded.into_iter().filter(|input| !lanes.varies_by_col(*input)).map(|input| lanes.load_scalar(input)).collect()
}

/// What the pass loads of a vector: inputs that are kept are named as the others are.
fn loads(lanes: &Lanes<'_>, layout: &Layout, needed: &BTreeSet<Reg>, kept: &BTreeSet<usize>) -> String {
    let loaded = lanes.loaded(needed);
    let mut text = String::new();
    for input in loaded.intersection(kept) {
        let _ = writeln!(text, "const float (&a{input})[{}] = kept{input}[e];", layout.width.lanes);
    }
    let scalars = loaded.iter().copied().filter(|input| !lanes.varies_by_col(*input));
    let there: BTreeSet<usize> = kept.iter().copied().chain(scalars).collect();
    text + &lanes.loads(needed, layout.width, &there)
}

/// One pass over the row, after which the reductions `pass` are `r{register}`.
fn reductions(
    lanes: &Lanes<'_>,
    layout: &Layout,
    pass: &[Reg],
    needed: &BTreeSet<Reg>,
    kept: &BTreeSet<usize>,
) -> String {
    let (mut before, mut each, mut after) = (String::new(), String::new(), String::new());
    for &register in pass {
        let Instr::Reduce(kind, operand) = lanes.fusion.program[register as usize] else { continue };
        let kind = kind_name(kind);
        let _ = writeln!(before, "float s{register} = {kind}::identity();");
        let _ = writeln!(each, "s{register} = {kind}::combine(s{register}, r{operand});");
        let _ =
            writeln!(after, "const float r{register} = reduce_row<{kind}, {}>(s{register}, scratch);", layout.threads);
    }
    let lane = indented(&(lanes.compute(needed, layout.width) + &each));
    let vector = loads(lanes, layout, needed, kept) + &for_lanes(layout.width, &lane);
    before + &layout.for_vectors(&vector) + &after
}

/// The last pass, which stores and sums.
fn outputs(lanes: &Lanes<'_>, layout: &Layout, needed: &BTreeSet<Reg>, kept: &BTreeSet<usize>, sums: &[Sum]) -> String {
    let (declare, mut fill, mut write) = lanes.stores(layout.width);
    fill += &sums.iter().map(|sum| format!("total{}[e][k] += r{};\n", sum.output, sum.register)).collect::<String>();
    for (index, output) in lanes.fusion.outputs.iter().enumerate() {
        if let FusionOutput::Rows { reg, ty } = output {
            let store = match ty.dtype {
                DType::I32 => format!("y{index}[row] = r{reg};\n"),
                other => format!("y{index}[row] = from_f32<{}>::of(r{reg});\n", c_type(other)),
            };
            fill += &format!("if (col + k == 0) {store}");
        }
    }
    if declare.is_empty() {
        write.clear();
    }
    let lane = indented(&(lanes.compute(needed, layout.width) + &fill));
    let vector = loads(lanes, layout, needed, kept) + &declare + &for_lanes(layout.width, &lane) + &write;
    layout.for_vectors(&vector)
}
