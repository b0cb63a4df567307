//! Rows chosen by indices. An index out of range is reported, and stands for the first row, or for none.

use super::sort::sort;
use super::work::{Work, counts, input, output};
use super::{for_each, for_vectors, lanes_of};
use crate::kgen::{Kernel, Operand, Parameter, c_type, indented};
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

/// Items of a table whose indices are not sorted: each row looks at all of them.
const FEW: usize = 32;
/// Items of a part of a long row's sum.
const PART: usize = 32;

/// Declares which row of `y` the vector `v` is a part of, and of the indices' tables which one.
const ROW: &str = "\
const u32 col = v % VECTORS * LANES, row = v / VECTORS % ROWS, list = v / (VECTORS * ROWS), batch = list / OUTER;
float total[LANES];
#pragma unroll
for (int i = 0; i < LANES; ++i) total[i] = 0.0f;
";

/// `add(k)` for the item at position `k` of its table.
const ADD: &str = "\
const auto add = [&](u32 k) {
    float value[LANES];
    load<T, LANES>(updates + (list * ITEMS + k) * WIDTH + col, value);
#pragma unroll
    for (int i = 0; i < LANES; ++i) total[i] += value[i];
};
";

const ADD_FEW: &str = "\
const int* const own = indices + batch * ITEMS;
for (u32 k = 0; k < ITEMS; ++k)
    if ((u32)own[k] == row) add(k);
store<T, LANES>(y + v * LANES, total);
";

/// Sums of the parts that one row has for itself; nothing reads those of others.
const SUM_PARTS: &str = "\
const u32 col = v % VECTORS * LANES, part = v / VECTORS % PARTS, list = v / (VECTORS * PARTS);
const u64* const keys = (const u64*)sorted + list / OUTER * ITEMS + part * PART;
const u32 row = (u32)(keys[0] >> 32);
if (row >= ROWS || row != (u32)(keys[PART - 1] >> 32)) continue;
float total[LANES];
#pragma unroll
for (int i = 0; i < LANES; ++i) total[i] = 0.0f;
";

const ADD_PART: &str = "\
#pragma unroll 8
for (u32 k = 0; k < PART; ++k) add((u32)keys[k]);
store<float, LANES>(parts + v * LANES, total);
";

/// The items of a row, in the order of their positions: those before the first of its parts, the parts, those behind them.
const ADD_SORTED: &str = "\
const u64* const keys = (const u64*)sorted + batch * ITEMS;
const int* const bounds = first + batch * (ROWS + 1u) + row;
const u32 end = (u32)bounds[1];
u32 k = (u32)bounds[0];
const u32 from = (k + PART - 1u) / PART, to = end / PART;
if (PARTS > 0u && from < to) {
    for (; k < from * PART; ++k) add((u32)keys[k]);
#pragma unroll 8
    for (u32 part = from; part < to; ++part) {
        float value[LANES];
        load<float, LANES>(parts + (list * PARTS + part) * WIDTH + col, value);
#pragma unroll
        for (int i = 0; i < LANES; ++i) total[i] += value[i];
    }
    k = to * PART;
}
#pragma unroll 4
for (; k < end; ++k) add((u32)keys[k]);
store<T, LANES>(y + v * LANES, total);
";

/// Where the items of each row begin among the sorted ones of its table, and behind them where the last ones end.
const FIRST: &str = "\
const u64* const keys = (const u64*)sorted + i / (ROWS + 1u) * ITEMS;
const u64 wanted = (u64)(i % (ROWS + 1u)) << 32;
u32 low = 0, high = ITEMS;
while (low < high) {
    const u32 half = low + (high - low) / 2u;
    if (keys[half] < wanted) low = half + 1u;
    else high = half;
}
first[i] = (int)low;
";

/// Adds updates, floats, row by row into tables of zeros, each row's in the order of their positions.
pub(crate) fn scatter_add(ty: DType, of: &IndexGeometry) -> Work {
    let IndexGeometry { outer, rows, items, width, batches } = *of;
    let mut work = Work::new("scatter-add", 1);
    let bad = work.reporting(rows);
    let (updates, indices, y) = (Operand::Input(0), Operand::Input(1), Operand::Output(0));
    let (count, chosen, written) = (batches * items, of.chosen() * width, of.table_rows() * width);
    let lanes = lanes_of(ty, width);
    let sizes = [
        ("ROWS", rows),
        ("ITEMS", items),
        ("OUTER", outer),
        ("WIDTH", width),
        ("LANES", lanes),
        ("VECTORS", width / lanes),
        ("PART", PART),
        ("PARTS", if items > 2 * PART { items / PART } else { 0 }),
    ];
    let sizes = format!("typedef {} T;\n", c_type(ty)) + &counts(&sizes);
    let of_updates = Parameter::input("updates", ty, chosen);
    let of_y = Parameter::output("y", ty, written);
    if items <= FEW {
        let checked = format!(
            "if (row == 0 && col == 0 && list % OUTER == 0)\n    for (u32 k = 0; k < ITEMS; ++k) {{\n        \
             const int index = indices[batch * ITEMS + k];\n{}    }}\n",
            indented(&indented(&check(rows, "batch * ITEMS + k", "continue")))
        );
        let text = [&sizes, ROW, ADD, &checked, ADD_FEW].concat();
        let parameters = vec![of_updates, input("indices", count), of_y, report()];
        work.launch(for_vectors("scatter_few", parameters, written / lanes, &text), [updates, indices, y, bad]);
        return work;
    }
    let keys = work.scratch(2 * count);
    let text = format!(
        "const int index = indices[i];\nu64* const key = (u64*)keys + i;\n*key = ~0ull;\n{}\
         *key = (u64)(u32)index << 32 | i % {items}u;\n",
        check(rows, "i", "continue")
    );
    let parameters = vec![input("indices", count), output("keys", 2 * count), report()];
    work.launch(for_each("scatter_keys", parameters, count, &text), [indices, keys, bad]);
    let sorted = sort(&mut work, keys, batches, items);
    let bounds = batches * (rows + 1);
    let first = work.scratch(bounds);
    let parameters = vec![input("sorted", 2 * count), output("first", bounds)];
    work.launch(for_each("scatter_bounds", parameters, bounds, &(sizes.clone() + FIRST)), [sorted, first]);
    let (mut parameters, mut operands) = (vec![of_updates, input("sorted", 2 * count)], vec![updates, sorted]);
    if items > 2 * PART {
        let elements = batches * outer * (items / PART) * width;
        let parts = work.scratch(elements);
        let text = [&sizes, SUM_PARTS, ADD, ADD_PART].concat();
        let own = parameters.iter().cloned().chain([Parameter::output("parts", DType::F32, elements)]).collect();
        work.launch(for_vectors("scatter_parts", own, elements / lanes, &text), [updates, sorted, parts]);
        parameters.push(Parameter::input("parts", DType::F32, elements));
        operands.push(parts);
    }
    let text = [&sizes, ROW, ADD, ADD_SORTED].concat();
    let text = if items > 2 * PART { text } else { "const float* const parts = nullptr;\n".to_owned() + &text };
    parameters.extend([input("first", bounds), of_y]);
    operands.extend([first, y]);
    work.launch(for_vectors("scatter_add", parameters, written / lanes, &text), operands);
    work
}
