//! Text of kernels that are written by hand, for what is no fusion: a file for each family. Sums are added in a fixed order.

pub(crate) mod attention;
pub(crate) mod collective;
pub(crate) mod copies;
pub(crate) mod depthwise;
pub(crate) mod detection;
pub(crate) mod halt;
pub(crate) mod index;
pub(crate) mod pooling;
pub(crate) mod random;
pub(crate) mod reduction;
mod sort;
pub(crate) mod work;

use crate::kgen::{Kernel, Parameter, c_type, indented};
use bessemer_ir::DType;
use std::fmt::Write;

const THREADS: usize = 256;
/// Blocks enough for any device; each thread takes as many elements as there are for it.
const MOST_BLOCKS: usize = 8192;
/// Elements that 32 bits count.
pub(crate) const MOST_ELEMENTS: usize = 1 << 31;

/// Neighbouring elements that one access moves, where rows of `cols` elements lie behind each other: at most 16 bytes.
fn lanes_of(ty: DType, cols: usize) -> usize {
    let fits = |lanes: &usize| lanes * ty.size() <= 16 && cols.is_multiple_of(*lanes);
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// `body` for each `i` of `count`, each in a thread of its own as far as there are threads.
fn for_each(name: &str, parameters: Vec<Parameter>, count: usize, body: &str) -> Kernel {
    for_all(name, parameters, ("i", count), body)
}

/// As [`for_each`], for each vector `v` of neighbouring elements.
fn for_vectors(name: &str, parameters: Vec<Parameter>, count: usize, body: &str) -> Kernel {
    for_all(name, parameters, ("v", count), body)
}

fn for_all(name: &str, parameters: Vec<Parameter>, of: (&str, usize), body: &str) -> Kernel {
    without_hash(name, parameters, of, body).named_by_content()
}

/// As [`for_all`], for a kernel whose text is still to change.
fn without_hash(name: &str, parameters: Vec<Parameter>, (i, count): (&str, usize), body: &str) -> Kernel {
    let (first, all) = (format!("blockIdx.x * {THREADS}u + threadIdx.x"), format!("gridDim.x * {THREADS}u"));
    let head = format!("for (u32 {i} = {first}; {i} < {count}u; {i} += {all}) {{\n");
    let text = indented(&(head + &indented(body) + "}\n"));
    let blocks = count.div_ceil(THREADS).clamp(1, MOST_BLOCKS) as u32;
    Kernel::new(name, parameters, [blocks, 1, 1], [THREADS as u32, 1, 1], &text)
}

/// Declares the coordinates `c0, c1, ...` of the element `i` of a row-major array of these sizes.
fn coordinates(i: &str, sizes: &[usize]) -> String {
    let mut text = String::new();
    let mut below = 1;
    for (axis, size) in sizes.iter().enumerate().rev() {
        let divided = if below == 1 { i.to_owned() } else { format!("{i} / {below}u") };
        let wrapped = if axis == 0 { divided } else { format!("{divided} % {size}u") };
        let _ = writeln!(text, "const u32 c{axis} = {wrapped};");
        below *= size.max(&1);
    }
    text
}

/// The position `first + c0 * strides[0] + ...`.
fn position(first: usize, strides: &[usize]) -> String {
    let terms = strides.iter().enumerate().filter(|(_, stride)| **stride != 0);
    terms.fold(format!("{first}u"), |text, (axis, stride)| format!("{text} + c{axis} * {stride}u"))
}

/// `x`, an element of type `from`, as one of type `to`.
fn converted(x: &str, from: DType, to: DType) -> String {
    if from == to { x.to_owned() } else { format!("from_f32<{}>::of(to_f32({x}))", c_type(to)) }
}
