//! Kernels for fusions that add all elements of tensors: each block adds a run of elements, then what the blocks have is added, both in
//! a fixed order, which is the same for a fusion that is launched alone and for one of a group.

use super::columns::{Sum, sums};
use super::fusions::{Launch, Launches, Operand, THREADS, elements, operands};
use super::lanes::{Lanes, Width};
use super::parts::unless_last;
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::fusion::{FusionOutput, IndexMap};
use std::fmt::Write;

/// Vectors of a thread in fusions that add, and in others.
const ADDED_VECTORS: usize = 8;
const VECTORS: usize = 4;

/// Whether all sums of the fusion are of all elements, which it counts through without rows.
pub(super) fn adds_whole(lanes: &Lanes<'_>) -> bool {
    let fusion = lanes.fusion;
    let of_all = |output: &FusionOutput| !matches!(output, FusionOutput::Sum { groups, .. } if *groups != 1);
    let is_flat = |index_map: &IndexMap| index_map.is_full(fusion.rows) || *index_map == IndexMap::SCALAR;
    fusion.cols == 1 && fusion.outputs.iter().all(of_all) && fusion.loads.iter().all(is_flat) && lanes.width().flat
}

/// How elements are cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Elements that a thread computes at once.
    lanes: usize,
    /// Vectors of a thread, where there are so many.
    vectors: usize,
}

impl Cut {
    pub(super) fn of(lanes: &Lanes<'_>) -> Cut {
        let vectors = if sums(lanes).is_empty() { VECTORS } else { ADDED_VECTORS };
        Cut { lanes: lanes.width().lanes, vectors }
    }

    /// Blocks of a fusion of so many elements.
    pub(super) fn blocks(self, elements: usize) -> usize {
        (elements / self.lanes).div_ceil(THREADS * self.vectors).max(1)
    }
}

/// What block number `block` does with its run of the `elements` elements. Totals are stored where `to` says for the number of the
/// sum.
pub(super) fn block_of_elements(lanes: &Lanes<'_>, to: impl Fn(usize) -> String) -> String {
    let (width, sums) = (lanes.width(), sums(lanes));
    let all = THREADS * Cut::of(lanes).vectors;
    let mut body: String = sums.iter().map(|sum| format!("float total{} = 0.0f;\n", sum.output)).collect();
    let _ = write!(
        body,
        "const u32 vectors = elements / {0}u, rest = elements % {0}u;\n\
         const u32 begin = block * {all}u, end = begin + {all}u < vectors ? begin + {all}u : vectors;\n\
         for (u32 v = begin + threadIdx.x; v < end; v += {THREADS}u) {{\n",
        width.lanes
    );
    let at = format!("const u32 at = v * {}u;\n", width.lanes);
    body += &indented(&(at + &elements(lanes, width)));
    body += "}\n";
    if width.lanes > 1 {
        body += "if (block == 0 && threadIdx.x < rest) {\n";
        let at = format!("const u32 at = vectors * {}u + threadIdx.x;\n", width.lanes);
        body += &indented(&(at + &elements(lanes, Width { lanes: 1, flat: true })));
        body += "}\n";
    }
    if !sums.is_empty() {
        let _ = writeln!(body, "__shared__ float scratch[{}];", THREADS / 32);
    }
    for (number, Sum { output, .. }) in sums.iter().enumerate() {
        let _ = write!(
            body,
            "total{output} = reduce_row<sum_of, {THREADS}>(total{output}, scratch);\n\
             if (threadIdx.x == 0) {} = total{output};\n",
            to(number)
        );
    }
    body
}

/// Adds `parts` numbers that lie behind each other at `partial`, and stores the sum where `to` says.
pub(super) fn add_parts(to: &str) -> String {
    format!(
        "__shared__ float scratch[{}];\n\
         float total = 0.0f;\n\
         for (u32 part = threadIdx.x; part < parts; part += {THREADS}u) total += partial[part];\n\
         total = reduce_row<sum_of, {THREADS}>(total, scratch);\n\
         if (threadIdx.x == 0) {to} = total;\n",
        THREADS / 32
    )
}

/// A fusion alone.
pub(super) fn totals(name: &str, lanes: &Lanes<'_>) -> Launches {
    let (sums, all) = (sums(lanes), lanes.fusion.rows);
    let parts = Cut::of(lanes).blocks(all);
    let is_whole = parts == 1;
    let (mut parameters, mut operands) = (lanes.parameters(), operands(lanes));
    let total = |number: usize| Parameter::output(format!("sum{number}"), DType::F32, 1);
    for (number, sum) in sums.iter().enumerate() {
        if !is_whole {
            parameters.push(Parameter::output(format!("partial{number}"), DType::F32, parts));
            operands.push(Operand::Scratch(number));
        }
        parameters.push(total(number));
        operands.push(Operand::Output(sum.output));
    }
    let to = |number: usize| if is_whole { format!("sum{number}[0]") } else { format!("partial{number}[block]") };
    let mut body = format!("const u32 elements = {all}u, block = blockIdx.x;\n") + &block_of_elements(lanes, to);
    if !is_whole {
        parameters.push(Parameter::output("arrivals", DType::I32, 1));
        operands.push(Operand::Arrivals);
        body += &format!("const u32 place = threadIdx.x, parts = {parts}u;\n");
        // The first thread has stored the sums of its block.
        body += &unless_last(parts, "0");
        for number in 0..sums.len() {
            let add =
                format!("const float* const partial = partial{number};\n") + &add_parts(&format!("sum{number}[0]"));
            body += &format!("{{\n{}}}\n", indented(&add));
        }
    }
    let kernel = Kernel::new(name, parameters, [parts as u32, 1, 1], [THREADS as u32, 1, 1], &indented(&body));
    let scratch = if is_whole { Vec::new() } else { vec![parts; sums.len()] };
    Launches { launches: vec![Launch { kernel, operands }], scratch }
}
