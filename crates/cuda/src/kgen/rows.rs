//! Kernels for regions that reduce along rows: a row is held by one block, or by one warp where it is short.

use super::lanes::{Lanes, Width, for_lanes, kind_name};
use super::{Kernel, c_type, indented};
use bessemer_ir::ops::region::{Instr, Reg, RegionOutput};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Threads of a block of which each warp has a row of its own.
const THREADS: usize = 256;
const MOST_THREADS: usize = 1024;
/// Vectors of a thread up to which what several passes read is kept in registers.
const MOST_KEPT: usize = 4;

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
    fn of(lanes: &Lanes<'_>) -> Layout {
        let width = Width { lanes: lanes.row_width(), flat: false };
        let vectors = lanes.region.cols / width.lanes;
        let threads = vectors.next_multiple_of(32).clamp(32, MOST_THREADS);
        let rows = if threads == 32 { THREADS / 32 } else { 1 };
        Layout { width, vectors, threads, each: vectors.div_ceil(threads), rows }
    }

    /// Whether `each` vectors are kept.
    fn keeps(&self) -> bool {
        self.each <= MOST_KEPT
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
    let program = &lanes.region.program;
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

pub(super) fn rows(name: &str, lanes: &Lanes<'_>) -> Kernel {
    let (region, layout) = (lanes.region, Layout::of(lanes));
    let passes = passes(lanes);
    let last: Vec<Reg> = region.outputs.iter().map(RegionOutput::reg).collect();
    let mut needs: Vec<BTreeSet<Reg>> = passes
        .iter()
        .map(|pass| lanes.needed(pass.iter().map(|&register| operand(region.program[register as usize]))))
        .collect();
    needs.push(lanes.needed(last));
    let kept = kept(lanes, &layout, &needs);

    let mut body = head(lanes, &layout, &needs);
    for input in &kept {
        let _ = writeln!(body, "float kept{input}[{}][{}];", layout.each, layout.width.lanes);
    }
    if !kept.is_empty() {
        let load = |input: &usize| lanes.load(*input, layout.width, &format!("kept{input}[e]"));
        body += &layout.for_vectors(&kept.iter().map(load).collect::<String>());
    }
    for (pass, needed) in passes.iter().zip(&needs) {
        body += &reductions(lanes, &layout, pass, needed, &kept);
    }
    body += &outputs(lanes, &layout, &needs[passes.len()], &kept);
    let blocks = region.rows.div_ceil(layout.rows) as u32;
    let threads = [layout.threads as u32, layout.rows as u32, 1];
    Kernel::new(name, lanes.parameters(), [blocks, 1, 1], threads, &indented(&body))
}

/// Inputs that several passes read, where there is room for them.
fn kept(lanes: &Lanes<'_>, layout: &Layout, needs: &[BTreeSet<Reg>]) -> BTreeSet<usize> {
    let readers = |input: &usize| needs.iter().filter(|needed| lanes.loaded(needed).contains(input)).count();
    let inputs = (0..lanes.region.loads.len()).filter(|input| lanes.varies_by_col(*input) && readers(input) > 1);
    if layout.keeps() { inputs.collect() } else { BTreeSet::new() }
}

/// The row of the thread, the numbers that are the same in all of the row, and memory for reductions.
fn head(lanes: &Lanes<'_>, layout: &Layout, needs: &[BTreeSet<Reg>]) -> String {
    let mut text = String::new();
    if layout.rows == 1 {
        text += "const u32 row = blockIdx.x;\n";
        let _ = writeln!(text, "__shared__ float scratch[{}];", layout.threads / 32);
    } else {
        let _ = writeln!(text, "const u32 row = blockIdx.x * {}u + threadIdx.y;", layout.rows);
        if !lanes.region.rows.is_multiple_of(layout.rows) {
            let _ = writeln!(text, "if (row >= {}u) return;", lanes.region.rows);
        }
        text += "float* const scratch = nullptr;\n";
    }
    let loaded: BTreeSet<usize> = needs.iter().flat_map(|needed| lanes.loaded(needed)).collect();
    for input in loaded.into_iter().filter(|input| !lanes.varies_by_col(*input)) {
        text += &lanes.load_scalar(input);
    }
    text
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
        let Instr::Reduce(kind, operand) = lanes.region.program[register as usize] else { continue };
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

/// The last pass, which stores.
fn outputs(lanes: &Lanes<'_>, layout: &Layout, needed: &BTreeSet<Reg>, kept: &BTreeSet<usize>) -> String {
    let (declare, mut fill, mut write) = lanes.stores(layout.width);
    for (index, output) in lanes.region.outputs.iter().enumerate() {
        if let RegionOutput::Rows { reg, ty } = output {
            let store = format!("y{index}[row] = from_f32<{}>::of(r{reg});\n", c_type(ty.dtype));
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
