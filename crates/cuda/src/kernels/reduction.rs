//! Reductions that no fusion does, and positions of maxima.

use super::{THREADS, coordinates, for_each, position};
use crate::kgen::{Kernel, Parameter, c_type, indented, kind_name};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, Shape};

/// Elements that one thread reduces; more are divided among the threads of a block.
const FEW: usize = 64;

/// From `f32` elements to those reduced over `axes`.
pub(crate) fn reduce(kind: ReduceKind, shape: &Shape, axes: &[usize]) -> Kernel {
    let strides = shape.strides();
    let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..shape.rank()).partition(|axis| axes.contains(axis));
    let along = |axes: &[usize]| {
        let pick = |from: &[usize]| axes.iter().map(|&axis| from[axis]).collect::<Vec<usize>>();
        (pick(shape), pick(&strides))
    };
    let ((inner, inner_strides), (outer, outer_strides)) = (along(&reduced), along(&kept));
    let (count, results): (usize, usize) = (inner.iter().product(), outer.iter().product());
    let parameters =
        vec![Parameter::input("x", DType::F32, shape.elements()), Parameter::output("y", DType::F32, results)];
    let name = kind_name(kind);
    let base = |i: &str| coordinates(i, &outer) + &format!("const u32 base = {};\n", position(0, &outer_strides));
    let add = coordinates("r", &inner)
        + &format!("total = {name}::combine(total, x[base + {}]);\n", position(0, &inner_strides));
    let start = format!("float total = {name}::identity();\n");
    if count <= FEW {
        let text = base("i")
            + &start
            + &format!("for (u32 r = 0; r < {count}u; ++r) {{\n{}}}\ny[i] = total;\n", indented(&add));
        return for_each("reduce", parameters, results, &text);
    }
    let text = format!("__shared__ float scratch[{}];\n", THREADS / 32)
        + &base("blockIdx.x")
        + &start
        + &format!("for (u32 r = threadIdx.x; r < {count}u; r += {THREADS}u) {{\n{}}}\n", indented(&add))
        + &format!("total = reduce_row<{name}, {THREADS}>(total, scratch);\n")
        + "if (threadIdx.x == 0) y[blockIdx.x] = total;\n";
    Kernel::new("reduce", parameters, [results.max(1) as u32, 1, 1], [THREADS as u32, 1, 1], &indented(&text))
        .named_by_content()
}

/// From rows of floats to the column of the first largest element of each; NaN is the largest.
pub(crate) fn arg_max(ty: DType, rows: usize, cols: usize) -> Kernel {
    let parameters = vec![Parameter::input("x", ty, rows * cols), Parameter::output("y", DType::I32, rows)];
    let text = format!(
        "const {c_type}* const row = x + (u64)i * {cols}u;\n\
         u32 best = 0;\n\
         float most = to_f32(row[0]);\n\
         for (u32 col = 1; col < {cols}u; ++col) {{\n    \
         const float value = to_f32(row[col]);\n    \
         if (value > most || (value != value && most == most)) {{\n        best = col;\n        most = value;\n    }}\n}}\n\
         y[i] = (int)best;\n",
        c_type = c_type(ty)
    );
    for_each("arg_max", parameters, rows, &text)
}
