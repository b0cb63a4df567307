//! What parts of the rows have summed is put together in a fixed order: by the last block that sums a column, or by kernels behind.

use super::columns::{MeanVar, Sum};
use super::fusions::{Launch, Operand};
use super::lanes::{Width, for_lanes};
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;
use std::collections::BTreeMap;

/// Threads of a block of a kernel that sums.
pub(super) const THREADS: usize = 256;
/// Threads of a block that does nothing but put parts together, and those of them that share a column.
const MOST_THREADS: usize = 1024;
const MOST_DOWN: usize = 32;
/// Loads of a thread of the last block up to which it takes less time than a further launch: some ten of them are under way at once.
const MOST_LOADS: usize = 64;
/// Blocks are counted by as many numbers at most.
pub(crate) const MOST_ARRIVALS: usize = 1024;

/// Threads of a block along columns and along rows.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub across: usize,
    pub down: usize,
}

impl Block {
    /// Of a kernel that puts so many parts together.
    fn of_parts(parts: usize) -> Block {
        let down = parts.next_power_of_two().min(MOST_DOWN);
        Block { across: (MOST_THREADS / down).min(THREADS), down }
    }

    pub(super) fn threads(self) -> [u32; 3] {
        [self.across as u32, self.down as u32, 1]
    }
}

/// Blocks along the second axis of a grid, at most; along the first one there may be 2^31 - 1.
const MOST_OF_SECOND_AXIS: usize = 65_535;

/// A grid of so many tiles of columns by so many runs of rows, one by one in the text's `tile` and `run`. Runs lie along the second axis,
/// so that blocks beside each other read the same rows, unless there are too many: then columns are few, as elements are less than 2^31.
pub(super) fn grid(tiles: usize, runs: usize) -> ([u32; 2], &'static str) {
    if runs <= MOST_OF_SECOND_AXIS {
        ([tiles as u32, runs as u32], "const u32 tile = blockIdx.x, run = blockIdx.y;\n")
    } else {
        ([runs as u32, tiles as u32], "const u32 tile = blockIdx.y, run = blockIdx.x;\n")
    }
}

/// How rows are cut: each of `groups` runs of rows into `parts` parts of at most `rows`.
pub(super) struct Cut {
    pub groups: usize,
    pub parts: usize,
    pub rows: usize,
}

impl Cut {
    /// Cuts into at most `most` parts of at least `fewest` rows. Sums of several kinds of runs are added from parts of
    /// the finest ones.
    pub(super) fn new(rows: usize, sums: &[Sum], most: usize, fewest: usize) -> Cut {
        let groups = sums.iter().fold(1, |all, sum| least_common_multiple(all, sum.groups));
        let in_group = rows / groups;
        let parts = (most / groups).clamp(1, in_group.div_ceil(fewest).max(1));
        Cut { groups, parts, rows: in_group.div_ceil(parts) }
    }

    /// Parts of all groups.
    pub(super) fn all(&self) -> usize {
        self.groups * self.parts
    }

    /// Declares `count` as the rows of the part with this number in its group of `in_group` rows.
    fn count(&self, part: &str, in_group: usize) -> String {
        let rows = self.rows;
        format!(
            "const u32 first = {part} * {rows}u;\n\
             const u32 count = first >= {in_group}u ? 0u : {in_group}u - first < {rows}u ? {in_group}u - first : {rows}u;\n"
        )
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Ends blocks but the last of `parts` that comes here, in the text of a kernel whose first thread has `place` 0 and comes behind all that
/// its block has written: that block can read what the others wrote. They are counted by a word of `arrivals`. One thread's fences, with
/// barriers around them, order the writes and reads of its whole block.
pub(super) fn unless_last(parts: usize, word: &str) -> String {
    let last = parts - 1;
    format!(
        "__shared__ u32 arrived;\n\
         if (place == 0) {{\n\
             __threadfence();\n\
             arrived = atomicInc((u32*)arrivals + {word}, {last}u);\n\
             __threadfence();\n\
         }}\n\
         __syncthreads();\n\
         if (arrived != {last}u) return;\n"
    )
}

/// How the last of the blocks that sum some columns puts together what all of them have.
pub(super) struct LastBlock<'a> {
    rows: usize,
    cols: usize,
    cut: &'a Cut,
    sums: &'a [Sum],
    moments: &'a [MeanVar],
    /// Columns of the block, those that a thread takes at once, and threads that share a column.
    columns: usize,
    width: Width,
    down: usize,
}

impl<'a> LastBlock<'a> {
    /// `None` where kernels behind take less time, or sums are of several kinds of runs.
    pub(super) fn of(
        [rows, cols]: [usize; 2],
        block: Block,
        width: Width,
        (sums, moments): (&'a [Sum], &'a [MeanVar]),
        cut: &'a Cut,
    ) -> Option<LastBlock<'a>> {
        let columns = block.across * width.lanes;
        let lanes = if cols.is_multiple_of(4) && columns.is_multiple_of(4) { 4 } else { 1 };
        let down = THREADS * lanes / columns;
        let is_of_all = sums.iter().all(|sum| sum.groups == cut.groups) && (moments.is_empty() || cut.groups == 1);
        let loads = cut.parts.div_ceil(down) * (sums.len() + 2 * moments.len());
        let own = LastBlock { rows, cols, cut, sums, moments, columns, width: Width { lanes, flat: false }, down };
        let are_counted = cut.parts == 1 || own.arrivals() <= MOST_ARRIVALS;
        (is_of_all && loads <= MOST_LOADS && are_counted).then_some(own)
    }

    /// Words that blocks are counted by: one for each run of rows of each tile of columns.
    pub(super) fn arrivals(&self) -> usize {
        self.cols.div_ceil(self.columns) * self.cut.groups
    }

    /// Parameters behind those of the parts, and what they are.
    pub(super) fn parameters(&self) -> Vec<(Parameter, Operand)> {
        let elements = self.cut.groups * self.cols;
        let output = |name: String, number| (Parameter::output(name, DType::F32, elements), Operand::Output(number));
        let mut all: Vec<(Parameter, Operand)> =
            self.sums.iter().map(|sum| output(format!("sum{}", sum.output), sum.output)).collect();
        for MeanVar { output: of, .. } in self.moments {
            all.extend([output(format!("mean{of}"), *of), output(format!("variance{of}"), of + 1)]);
        }
        if self.cut.parts > 1 {
            all.push((Parameter::output("arrivals", DType::I32, self.arrivals()), Operand::Arrivals));
        }
        all
    }

    /// Text behind that which stores the parts of the block, which is the `tile` of its columns, and whose threads are numbered by `place`.
    pub(super) fn text(&self) -> String {
        let LastBlock { cut, columns, width: Width { lanes, .. }, down, .. } = self;
        let across = columns / lanes;
        let word = format!("tile * {}u + group", cut.groups);
        let mut text = "__syncthreads();\n".to_owned();
        text += &match cut.parts {
            1 => String::new(),
            parts => unless_last(parts, &word),
        };
        text += &format!(
            "const u32 over = place % {across}u * {lanes}u, from = place / {across}u;\n\
             const u32 all = tile * {columns}u + over, one = tile * {columns}u + place;\n\
             __shared__ float ends[{down}][{columns}];\n"
        );
        if !self.moments.is_empty() {
            text += &format!("__shared__ float counts[{down}], middles[{down}][{columns}];\n");
        }
        let of_sums = self.sums.iter().map(|sum| self.add(sum.output));
        let puts: Vec<String> = of_sums.chain(self.moments.iter().map(|of| self.merge(of.output))).collect();
        text + &puts.join("__syncthreads();\n")
    }

    /// A loop over the parts that the thread takes.
    fn for_parts(&self, body: &str) -> String {
        let LastBlock { cols, cut, down, .. } = self;
        let head = format!("if (all < {cols}u) {{\n#pragma unroll 8\n");
        let head = head + &format!("    for (u32 part = from; part < {}u; part += {down}u) {{\n", cut.parts);
        let at = format!("const u32 at = (group * {}u + part) * {cols}u + all;\n", cut.parts);
        head + &indented(&indented(&(at + body))) + "    }\n}\n"
    }

    /// What the threads of each column have, put together by one thread for each.
    fn of_column(&self, body: &str) -> String {
        format!("__syncthreads();\nif (place < {}u && one < {}u) {{\n{}}}\n", self.columns, self.cols, indented(body))
    }

    fn add(&self, output: usize) -> String {
        let LastBlock { cols, width, down, .. } = self;
        let lanes = width.lanes;
        let load = format!("float x[{lanes}];\nload<float, {lanes}>(partial{output} + at, x);\n");
        let add = for_lanes(*width, "    total[k] += x[k];\n");
        let put = for_lanes(*width, "    ends[from][over + k] = total[k];\n");
        let end = format!(
            "float all_of_it = 0.0f;\n\
             for (u32 y = 0; y < {down}u; ++y) all_of_it += ends[y][place];\n\
             sum{output}[group * {cols}u + one] = all_of_it;\n"
        );
        let body = format!("float total[{lanes}] = {{}};\n") + &self.for_parts(&(load + &add)) + &put;
        format!("{{\n{}}}\n", indented(&(body + &self.of_column(&end))))
    }

    fn merge(&self, output: usize) -> String {
        let LastBlock { rows, cut, width, down, .. } = self;
        let lanes = width.lanes;
        let load = cut.count("part", *rows)
            + &format!(
                "float x[{lanes}], q[{lanes}];\n\
                 load<float, {lanes}>(means{output} + at, x);\n\
                 load<float, {lanes}>(squares{output} + at, q);\n"
            );
        let merge = for_lanes(*width, "    merge_moments(n[k], middle[k], total[k], (float)count, x[k], q[k]);\n");
        let put = for_lanes(*width, "    middles[from][over + k] = middle[k];\n    ends[from][over + k] = total[k];\n");
        let end = format!(
            "float n = 0.0f, middle = 0.0f, total = 0.0f;\n\
             for (u32 y = 0; y < {down}u; ++y) merge_moments(n, middle, total, counts[y], middles[y][place], ends[y][place]);\n\
             mean{output}[one] = middle;\n\
             variance{output}[one] = total / n;\n"
        );
        let declare = format!("float n[{lanes}] = {{}}, middle[{lanes}] = {{}}, total[{lanes}] = {{}};\n");
        let count = "if (over == 0) counts[from] = n[0];\n";
        let body = declare + &self.for_parts(&(load + &merge)) + count + &put;
        format!("{{\n{}}}\n", indented(&(body + &self.of_column(&end))))
    }
}

/// Launches that add what the parts summed, which the first scratch memories hold: one for all sums of as many runs of rows.
pub(super) fn finishes(name: &str, cols: usize, sums: &[Sum], cut: &Cut) -> Vec<Launch> {
    let mut alike: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    for (index, sum) in sums.iter().enumerate() {
        alike.entry(sum.groups).or_default().push((index, sum.output));
    }
    let launch = |(groups, sums): (usize, Vec<(usize, usize)>)| {
        let kernel = finish(&format!("{name}_sum{}", sums[0].1), cols, groups, cut.all() / groups, sums.len());
        let operands = sums.iter().flat_map(|&(index, output)| [Operand::Scratch(index), Operand::Output(output)]);
        Launch { kernel, operands: operands.collect() }
    };
    alike.into_iter().map(launch).collect()
}

/// Adds `parts` rows for each of `groups`: `[groups, parts, cols]` to `[groups, cols]`, for each of `sums` pairs of tensors.
fn finish(name: &str, cols: usize, groups: usize, parts: usize, sums: usize) -> Kernel {
    let block = Block::of_parts(parts);
    let Block { across, down } = block;
    let of_block = |name: &str| {
        let choose = |rest: String, sum: usize| format!("blockIdx.z == {sum}u ? {name}{sum} : {rest}");
        (0..sums - 1).rev().fold(format!("{name}{}", sums - 1), choose)
    };
    let ([x, y], places) = grid(cols.div_ceil(across), groups);
    let mut body = places.to_owned();
    body +=
        &format!("const float* const partial = {};\nfloat* const sum = {};\n", of_block("partial"), of_block("sum"));
    body += &format!(
        "const u32 col = tile * {across}u + threadIdx.x;\n\
         float total = 0.0f;\n\
         if (col < {cols}u) {{\n\
         #pragma unroll 4\n    \
         for (u32 part = threadIdx.y; part < {parts}u; part += {down}u)\n        \
         total += partial[(run * {parts}u + part) * {cols}u + col];\n}}\n"
    );
    if down > 1 {
        body += &format!(
            "__shared__ float totals[{down}][{across}];\n\
             totals[threadIdx.y][threadIdx.x] = total;\n\
             __syncthreads();\n\
             if (threadIdx.y != 0) return;\n\
             for (u32 y = 1; y < {down}u; ++y) total += totals[y][threadIdx.x];\n"
        );
    }
    body += &format!("if (col < {cols}u) sum[run * {cols}u + col] = total;\n");
    let elements = groups * cols;
    let pair = |sum: usize| {
        let partial = Parameter::input(format!("partial{sum}"), DType::F32, elements * parts);
        [partial, Parameter::output(format!("sum{sum}"), DType::F32, elements)]
    };
    let parameters = (0..sums).flat_map(pair).collect();
    Kernel::new(name, parameters, [x, y, sums as u32], block.threads(), &indented(&body))
}

/// Puts together the moments of all parts: `[parts, cols]` twice to `[cols]` twice.
pub(super) fn finish_moments(name: &str, rows: usize, cols: usize, cut: &Cut) -> Kernel {
    let block = Block::of_parts(cut.all());
    let Block { across, down } = block;
    let body = format!(
        "const u32 col = blockIdx.x * {across}u + threadIdx.x;\n\
         float n = 0.0f, middle = 0.0f, total = 0.0f;\n\
         if (col < {cols}u) {{\n\
         #pragma unroll 4\n    \
         for (u32 part = threadIdx.y; part < {all}u; part += {down}u) {{\n        \
{count}        \
         merge_moments(n, middle, total, (float)count, means[part * {cols}u + col], squares[part * {cols}u + col]);\n    }}\n}}\n\
         __shared__ float counts[{down}][{across}], middles[{down}][{across}], totals[{down}][{across}];\n\
         counts[threadIdx.y][threadIdx.x] = n;\n\
         middles[threadIdx.y][threadIdx.x] = middle;\n\
         totals[threadIdx.y][threadIdx.x] = total;\n\
         __syncthreads();\n\
         if (threadIdx.y != 0 || col >= {cols}u) return;\n\
         for (u32 y = 1; y < {down}u; ++y)\n    \
         merge_moments(n, middle, total, counts[y][threadIdx.x], middles[y][threadIdx.x], totals[y][threadIdx.x]);\n\
         mean[col] = middle;\n\
         variance[col] = total / n;\n",
        all = cut.all(),
        count = indented(&indented(&cut.count(&format!("part % {}u", cut.parts), rows / cut.groups))),
    );
    let parameters = vec![
        Parameter::input("means", DType::F32, cut.all() * cols),
        Parameter::input("squares", DType::F32, cut.all() * cols),
        Parameter::output("mean", DType::F32, cols),
        Parameter::output("variance", DType::F32, cols),
    ];
    let blocks = [cols.div_ceil(across) as u32, 1, 1];
    Kernel::new(name, parameters, blocks, block.threads(), &indented(&body))
}
