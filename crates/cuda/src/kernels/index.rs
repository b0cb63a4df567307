//! Rows chosen by indices. An index out of range is reported, and stands for the first row, or for none.

use super::for_each;
use crate::kgen::{Kernel, Parameter};
use bessemer_ir::DType;
use bessemer_ir::ops::index::IndexGeometry;

/// `i32` words of the report of a call, two for each kind of index: as one number of 64 bits all ones, or the position of the first
/// index that is out of range, and below it the index.
pub(crate) const REPORT_WORDS: usize = 4;

pub(super) fn report() -> Parameter {
    Parameter::output("report", DType::I32, REPORT_WORDS)
}

/// Reports the index at a position and goes on with `otherwise` where it is out of range.
pub(super) fn check(rows: usize, position: &str, otherwise: &str) -> String {
    format!(
        "if ((u32)index >= {rows}u) {{\n    \
         atomicMin((u64*)report, (u64)({position}) << 32 | (u32)index);\n    {otherwise};\n}}\n"
    )
}

/// From a table of elements of any type and indices to the chosen rows.
pub(crate) fn gather(ty: DType, of: &IndexGeometry) -> Kernel {
    let IndexGeometry { outer, rows, items, width, .. } = *of;
    let elements = of.chosen() * width;
    let parameters = vec![
        Parameter::input("table", ty, of.table_rows() * width),
        Parameter::input("indices", DType::I32, of.batches * items),
        Parameter::output("y", ty, elements),
        report(),
    ];
    let (chosen, at) = (format!("const u32 chosen = i / {width}u, col = i % {width}u;\n"), position_of(outer, items));
    let text = chosen
        + &at
        + "int index = indices[at];\n"
        + &check(rows, "at", "index = 0")
        + &format!("y[i] = table[(chosen / {items}u * {rows}u + (u32)index) * {width}u + col];\n");
    for_each("gather", parameters, elements, &text)
}

/// Where the index of the row `chosen` stands.
fn position_of(outer: usize, items: usize) -> String {
    format!("const u32 at = chosen / {}u * {items}u + chosen % {items}u;\n", outer * items)
}

/// Chains equal indices: `first` is 1 where an index stands for the first time in its batch, `next` is where it stands again, or
/// -1. Every pair of indices of a batch is compared.
pub(crate) fn chains(of: &IndexGeometry) -> Kernel {
    let IndexGeometry { rows, items, batches, .. } = *of;
    let count = batches * items;
    let parameters = vec![
        Parameter::input("indices", DType::I32, count),
        Parameter::output("first", DType::I32, count),
        Parameter::output("next", DType::I32, count),
        report(),
    ];
    let text = format!(
        "const u32 start = i / {items}u * {items}u;\n\
         const int index = indices[i];\n\
         first[i] = 0;\n\
         next[i] = -1;\n\
         {}\
         bool is_first = true;\n\
         for (u32 k = start; k < i && is_first; ++k) is_first = indices[k] != index;\n\
         first[i] = is_first;\n\
         for (u32 k = i + 1; k < start + {items}u; ++k)\n    \
         if (indices[k] == index) {{\n        next[i] = (int)k;\n        break;\n    }}\n",
        check(rows, "i", "continue")
    );
    for_each("chains", parameters, count, &text)
}

/// Adds updates, floats, row by row along the chains, in the order of the updates, into a table of zeros.
pub(crate) fn add_chains(ty: DType, of: &IndexGeometry) -> Kernel {
    let IndexGeometry { outer, rows, items, width, batches } = *of;
    let (count, elements) = (batches * items, of.chosen() * width);
    let parameters = vec![
        Parameter::input("updates", ty, elements),
        Parameter::input("indices", DType::I32, count),
        Parameter::input("first", DType::I32, count),
        Parameter::input("next", DType::I32, count),
        Parameter::output("y", ty, of.table_rows() * width),
    ];
    let text = format!(
        "const u32 chosen = i / {width}u, col = i % {width}u;\n\
         {at}\
         if (!first[at]) continue;\n\
         const u32 list = chosen / {items}u;\n\
         float total = 0.0f;\n\
         for (int k = (int)at; k >= 0; k = next[k])\n    \
         total += to_f32(updates[(list * {items}u + (u32)k % {items}u) * {width}u + col]);\n\
         y[(list * {rows}u + (u32)indices[at]) * {width}u + col] = {total};\n",
        at = position_of(outer, items),
        total = super::converted("total", DType::F32, ty),
    );
    for_each("add_chains", parameters, elements, &text)
}
