//! From fusions to kernels.

use super::columns::{columns, sums};
use super::lanes::{Lanes, There, Width, for_lanes};
use super::rows::{rows, rows_with_sums};
use super::totals::{adds_whole, totals};
use super::{Kernel, KernelError, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{Fusion, FusionOutput};
use std::fmt::Write;

/// What a parameter of a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// Input of the fusion, by number.
    Input(usize),
    /// Tensor that the fusion gives, by number.
    Output(usize),
    /// Memory that is used between the launches, by number.
    Scratch(usize),
    /// Words that count blocks: 0 before and behind each launch.
    Arrivals,
}

/// One launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The kernel that runs.
    pub kernel: Kernel,
    /// What each parameter of the kernel is, in order.
    pub operands: Vec<Operand>,
}

/// Launches that compute a fusion, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Kernels in the order in which they run.
    pub launches: Vec<Launch>,
    /// `f32` elements of each scratch memory.
    pub scratch: Vec<usize>,
}

/// Kernels for a fusion whose inputs have these types. `name` is that of the first; others are named after it.
///
/// Inputs and outputs may be the same memory where each element is read and written by the same instruction stream: an
/// output that has all elements over an input that has them too.
///
/// # Errors
/// The fusion has a producer, moments beside reductions along rows, or sums over very long rows beside such reductions.
pub fn fusion(name: &str, fusion: &Fusion, inputs: &[DType]) -> Result<Launches, KernelError> {
    let lanes = Lanes::new(fusion, inputs)?;
    let has_sums = fusion.outputs.iter().any(|output| matches!(output, FusionOutput::Sum { .. }));
    let has_moments = fusion.outputs.iter().any(|output| matches!(output, FusionOutput::MeanVar { .. }));
    match (fusion.is_rowwise(), has_sums, has_moments) {
        (true, _, true) => Err(KernelError("it has moments over rows and reductions along them".to_owned())),
        (true, true, false) => rows_with_sums(name, &lanes),
        (true, false, false) => Ok(single(rows(name, &lanes), &lanes)),
        (false, true, false) if adds_whole(&lanes) => Ok(totals(name, &lanes)),
        (false, false, false) => Ok(single(pointwise(name, &lanes), &lanes)),
        (false, _, _) => Ok(columns(name, &lanes)),
    }
}

/// One launch, which takes all inputs and all outputs.
fn single(kernel: Kernel, lanes: &Lanes<'_>) -> Launches {
    Launches { launches: vec![Launch { kernel, operands: operands(lanes) }], scratch: Vec::new() }
}

/// Inputs, then the outputs that are neither sums nor moments.
pub(super) fn operands(lanes: &Lanes<'_>) -> Vec<Operand> {
    let inputs = (0..lanes.fusion.loads.len()).map(Operand::Input);
    let is_there = |output: &FusionOutput| matches!(output, FusionOutput::Store { .. } | FusionOutput::Rows { .. });
    let outputs = lanes.fusion.outputs.iter().zip(numbers(lanes.fusion)).filter(|(output, _)| is_there(output));
    inputs.chain(outputs.map(|(_, number)| Operand::Output(number))).collect()
}

/// Number of the first tensor of each of the fusion's outputs: moments have two.
pub(super) fn numbers(fusion: &Fusion) -> impl Iterator<Item = usize> {
    fusion.outputs.iter().scan(0, |next, output| {
        let number = *next;
        *next += output.types().len();
        Some(number)
    })
}

/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// Blocks enough for any device; each thread takes as many vectors as there are for it.
const MOST_BLOCKS: usize = 8192;

/// Every vector of elements alone.
fn pointwise(name: &str, lanes: &Lanes<'_>) -> Kernel {
    let (rows, cols) = (lanes.fusion.rows, lanes.fusion.cols);
    let width = lanes.width();
    let (vectors, rest) = (rows * cols / width.lanes, rows * cols % width.lanes);
    let mut body = String::new();
    let position = if width.flat {
        format!("const u32 at = v * {}u;\n", width.lanes)
    } else {
        let vectors = cols / width.lanes;
        format!("const u32 row = v / {vectors}u, col = v % {vectors}u * {}u;\n", width.lanes)
    };
    let _ = writeln!(
        body,
        "for (u32 v = blockIdx.x * {THREADS}u + threadIdx.x; v < {vectors}u; v += gridDim.x * {THREADS}u) {{"
    );
    body += &indented(&(position + &elements(lanes, width)));
    body += "}\n";
    if rest != 0 {
        let single = Width { lanes: 1, flat: true };
        let _ = writeln!(body, "if (blockIdx.x == 0 && threadIdx.x < {rest}) {{");
        let position = format!("const u32 at = {}u + threadIdx.x;\n", vectors * width.lanes);
        body += &indented(&(position + &elements(lanes, single)));
        body += "}\n";
    }
    let blocks = vectors.div_ceil(THREADS).clamp(1, MOST_BLOCKS) as u32;
    Kernel::new(name, lanes.parameters(), [blocks, 1, 1], [THREADS as u32, 1, 1], &indented(&body))
}

/// Loads, arithmetic and stores of one vector, whose elements are added to the totals of the fusion's sums, `total0, total1, ...` by the
/// numbers of their outputs.
pub(super) fn elements(lanes: &Lanes<'_>, width: Width) -> String {
    let sums = sums(lanes);
    let needed = lanes.needed(lanes.stored().chain(sums.iter().map(|sum| sum.register)));
    let (declare, fill, write) = lanes.stores(width);
    let add: String = sums.iter().map(|sum| format!("total{} += r{};\n", sum.output, sum.register)).collect();
    let arithmetic = indented(&(lanes.compute(&needed, width) + &fill + &add));
    [lanes.loads(&needed, width, &There::default()), declare, for_lanes(width, &arithmetic), write].concat()
}
