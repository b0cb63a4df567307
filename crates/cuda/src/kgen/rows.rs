//! Kernels for fusions that reduce along rows: a row is held by one block, or by one warp where it is short. Where the
//! fusion sums over rows too, a block or warp goes down several rows.

use super::columns::{Sum, sums};
use super::fusions::{Launch, Launches, Operand, operands};
use super::lanes::{Lanes, MOST_LANES, There, Width, for_lanes, kind_name};
use super::parts::{Cut, finishes};
use super::{Kernel, KernelError, Parameter, c_type, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, Instr, Reg};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block of which each warp has a row of its own.
const THREADS: usize = 256;
const MOST_THREADS: usize = 1024;
/// Elements of a thread up to which what several passes read of an input is kept in registers; and vectors, where columns are summed.
const MOST_KEPT: usize = 32;
const MOST_SUMMED: usize = 4;
/// Registers of a multiprocessor, those that a thread can have at most, and those that it needs beside what it keeps.
const REGISTERS: usize = 1 << 16;
const MOST_REGISTERS: usize = 255;
const OTHER_REGISTERS: usize = 32;
/// Blocks where rows are summed, four on each multiprocessor of a large device, which all run at once: further ones would run
/// behind them. Rows that are worth a part.
const BLOCKS: usize = 4 * 132;
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
        // Threads that have several vectors have few registers left for what is computed.
        let is_long = lanes.fusion.cols > MOST_THREADS * MOST_LANES;
        let most_lanes = if is_long { most_lanes.min(lanes.least_width()) } else { most_lanes };
        let width = Width { lanes: lanes.row_width().min(most_lanes), flat: false };
        let vectors = lanes.fusion.cols / width.lanes;
        let threads = vectors.next_multiple_of(32).clamp(32, MOST_THREADS);
        let rows = if threads == 32 { THREADS / 32 } else { 1 };
        Layout { width, vectors, threads, each: vectors.div_ceil(threads), rows }
    }

    /// Whether `each` vectors are kept.
    fn keeps(&self) -> bool {
        self.each * self.width.lanes <= MOST_KEPT
    }

    /// How many inputs, and random numbers, of the row a thread has registers for.
    fn most_kept(&self) -> usize {
        let registers = (REGISTERS / (self.threads * self.rows)).min(MOST_REGISTERS);
        (registers - OTHER_REGISTERS) / (self.each * self.width.lanes)
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
    let row_of = Rows::new(lanes, &layout, &[]);
    let body = row + &layout.scratch() + &row_of.load() + &row_of.compute();
    let blocks = fusion.rows.div_ceil(layout.rows) as u32;
    Kernel::new(name, lanes.parameters(), [blocks, 1, 1], layout.block(), &indented(&body))
}

/// Runs of rows: what they are summed to, and the kernels that add that.
///
/// # Errors
/// Rows are too long: sums of columns do not fit into registers.
pub(super) fn rows_with_sums(name: &str, lanes: &Lanes<'_>) -> Result<Launches, KernelError> {
    let (fusion, layout, sums) = (lanes.fusion, Layout::of(lanes, SUMMED_LANES), sums(lanes));
    if layout.each > MOST_SUMMED {
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
    let of_rows = Rows::new(lanes, layout, sums);
    text += &of_rows.begin();
    text += "for (u32 row = first; row < end; ++row) {\n";
    text += &indented(&(of_rows.take_ahead() + &of_rows.compute()));
    text += "}\n";
    let store = |sum: &Sum| {
        let (output, lanes) = (sum.output, layout.width.lanes);
        format!("store<float, {lanes}>(partial{output} + part * {cols}u + col, total{output}[e]);\n")
    };
    text + &layout.for_vectors(&sums.iter().map(store).collect::<String>())
}

/// What is done with a row: passes of reductions, then what is stored and added to `sums`.
struct Rows<'a> {
    lanes: &'a Lanes<'a>,
    layout: &'a Layout,
    sums: &'a [Sum],
    /// Reductions of each pass.
    passes: Vec<Vec<Reg>>,
    /// Registers that each pass and the last one, which stores, compute.
    needs: Vec<BTreeSet<Reg>>,
    /// Inputs and random numbers that are in registers from the first pass on: those that several passes read, where there is room.
    kept: There,
    /// Inputs of which a row has one number.
    scalars: Vec<usize>,
}

impl<'a> Rows<'a> {
    fn new(lanes: &'a Lanes<'a>, layout: &'a Layout, sums: &'a [Sum]) -> Rows<'a> {
        let (fusion, passes) = (lanes.fusion, passes(lanes));
        let mut needs: Vec<BTreeSet<Reg>> = passes
            .iter()
            .map(|pass| lanes.needed(pass.iter().map(|&register| operand(fusion.program[register as usize]))))
            .collect();
        needs.push(lanes.needed(fusion.outputs.iter().map(FusionOutput::reg)));
        let mut kept = There::default();
        if layout.keeps() {
            let readers = |input: &usize| needs.iter().filter(|needed| lanes.loaded(needed).contains(input)).count();
            let inputs = (0..fusion.loads.len()).filter(|input| lanes.varies_by_col(*input) && readers(input) > 1);
            let (of_rows, shared): (Vec<_>, Vec<_>) = inputs.partition(|input| lanes.varies_by_row(*input));
            let of_all: BTreeSet<Reg> = needs.iter().flatten().copied().collect();
            let readers = |register: &Reg| needs.iter().filter(|needed| needed.contains(register)).count();
            kept.drawn = lanes.drawn(&of_all, layout.width);
            kept.drawn.retain(|register| readers(register) > 1);
            // What all rows share is near already.
            let room = layout.most_kept().saturating_sub(kept.drawn.len());
            kept.inputs = of_rows.into_iter().chain(shared).take(room).collect();
        }
        let loaded: BTreeSet<usize> = needs.iter().flat_map(|needed| lanes.loaded(needed)).collect();
        let scalars = loaded.into_iter().filter(|input| !lanes.varies_by_col(*input)).collect();
        Rows { lanes, layout, sums, passes, needs, kept, scalars }
    }

    /// An array for the vectors of the thread.
    fn array(&self, name: &str) -> String {
        format!("float {name}[{}][{}];\n", self.layout.each, self.layout.width.lanes)
    }

    /// Moves these kept inputs to arrays whose names begin with `to`.
    fn load_vectors(&self, inputs: &[usize], to: &str) -> String {
        let load = |input: &usize| self.lanes.load(*input, self.layout.width, &format!("{to}{input}[e]"));
        let loads: String = inputs.iter().map(load).collect();
        if inputs.is_empty() { loads } else { self.layout.for_vectors(&loads) }
    }

    fn load_scalars(&self, inputs: &[usize]) -> String {
        let scalar = |input: &usize| format!("const float a{input} = {};\n", self.lanes.scalar(*input));
        inputs.iter().map(scalar).collect()
    }

    /// Numbers and vectors of `row`.
    fn load(&self) -> String {
        let inputs: Vec<usize> = self.kept.inputs.iter().copied().collect();
        let mut text = self.load_scalars(&self.scalars);
        text += &inputs.iter().map(|input| self.array(&format!("kept{input}"))).collect::<String>();
        text + &self.load_vectors(&inputs, "kept")
    }

    /// Those of these inputs that each row has its own of, or those that all rows share.
    fn of_rows<'i>(&self, inputs: impl IntoIterator<Item = &'i usize>, varies_by_row: bool) -> Vec<usize> {
        let inputs = inputs.into_iter().copied();
        inputs.filter(|input| self.lanes.varies_by_row(*input) == varies_by_row).collect()
    }

    /// Before a run of rows: what all rows share, and the first row, which lies ahead.
    fn begin(&self) -> String {
        let [shared, own] = [false, true].map(|varies_by_row| self.of_rows(&self.kept.inputs, varies_by_row));
        let [shared_scalars, scalars] = [false, true].map(|varies_by_row| self.of_rows(&self.scalars, varies_by_row));
        let mut text = self.load_scalars(&shared_scalars);
        text += &shared.iter().map(|input| self.array(&format!("kept{input}"))).collect::<String>();
        text += &self.load_vectors(&shared, "kept");
        text += &own.iter().map(|input| self.array(&format!("ahead{input}"))).collect::<String>();
        text += &scalars.iter().map(|input| format!("float ahead{input};\n")).collect::<String>();
        let scalar = |input: &usize| format!("ahead{input} = {};\n", self.lanes.scalar(*input));
        let fetch: String = scalars.iter().map(scalar).collect();
        let fetch = indented(&(fetch + &self.load_vectors(&own, "ahead")));
        text + &format!("const auto fetch = [&](u32 row) {{\n{fetch}}};\nif (first < end) fetch(first);\n")
    }

    /// What was loaded ahead becomes what is worked on, and the row behind it is loaded.
    fn take_ahead(&self) -> String {
        let scalar = |input: &usize| format!("const float a{input} = ahead{input};\n");
        let mut text: String = self.of_rows(&self.scalars, true).iter().map(scalar).collect();
        let own = self.of_rows(&self.kept.inputs, true);
        text += &own.iter().map(|input| self.array(&format!("kept{input}"))).collect::<String>();
        let take: String = own.iter().map(|input| format!("kept{input}[e][k] = ahead{input}[e][k];\n")).collect();
        if !own.is_empty() {
            text += &self.layout.for_vectors(&for_lanes(self.layout.width, &indented(&take)));
        }
        text + "if (row + 1 < end) fetch(row + 1);\n"
    }

    /// Passes over the row.
    fn compute(&self) -> String {
        let drawn = || self.kept.drawn.iter();
        let mut body: String = drawn().map(|register| self.array(&format!("drawn{register}"))).collect();
        let draw = |register: &Reg| self.lanes.draw(*register, self.layout.width, &format!("drawn{register}[e]"));
        if !self.kept.drawn.is_empty() {
            body += &self.layout.for_vectors(&drawn().map(draw).collect::<String>());
        }
        for (pass, needed) in self.passes.iter().zip(&self.needs) {
            body += &self.reductions(pass, needed);
        }
        body + &self.outputs(&self.needs[self.passes.len()])
    }

    /// What the pass loads and draws of a vector: what is kept is named as the rest is.
    fn loads(&self, needed: &BTreeSet<Reg>) -> String {
        let (loaded, lanes) = (self.lanes.loaded(needed), self.layout.width.lanes);
        let mut text = String::new();
        for input in loaded.intersection(&self.kept.inputs) {
            let _ = writeln!(text, "const float (&a{input})[{lanes}] = kept{input}[e];");
        }
        for register in needed.intersection(&self.kept.drawn) {
            let _ = writeln!(text, "const float (&random{register})[{lanes}] = drawn{register}[e];");
        }
        let inputs = self.kept.inputs.iter().chain(&self.scalars).copied().collect();
        let there = There { inputs, drawn: self.kept.drawn.clone() };
        text + &self.lanes.loads(needed, self.layout.width, &there)
    }

    /// One pass over the row, after which the reductions `pass` are `r{register}`.
    fn reductions(&self, pass: &[Reg], needed: &BTreeSet<Reg>) -> String {
        let Rows { lanes, layout, .. } = self;
        let (mut before, mut each, mut after) = (String::new(), String::new(), String::new());
        for &register in pass {
            let Instr::Reduce(kind, operand) = lanes.fusion.program[register as usize] else { continue };
            let kind = kind_name(kind);
            let _ = writeln!(before, "float s{register} = {kind}::identity();");
            let _ = writeln!(each, "s{register} = {kind}::combine(s{register}, r{operand});");
            let _ = writeln!(
                after,
                "const float r{register} = reduce_row<{kind}, {}>(s{register}, scratch);",
                layout.threads
            );
        }
        let lane = indented(&(lanes.compute(needed, layout.width) + &each));
        let vector = self.loads(needed) + &for_lanes(layout.width, &lane);
        before + &layout.for_vectors(&vector) + &after
    }

    /// The last pass, which stores and sums.
    fn outputs(&self, needed: &BTreeSet<Reg>) -> String {
        let Rows { lanes, layout, sums, .. } = self;
        let (declare, mut fill, mut write) = lanes.stores(layout.width);
        fill +=
            &sums.iter().map(|sum| format!("total{}[e][k] += r{};\n", sum.output, sum.register)).collect::<String>();
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
        let vector = self.loads(needed) + &declare + &for_lanes(layout.width, &lane) + &write;
        layout.for_vectors(&vector)
    }
}
