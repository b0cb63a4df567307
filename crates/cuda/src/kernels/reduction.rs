//! Reductions that no fusion does, and positions of maxima.

use super::copies::merged;
use super::{THREADS, coordinates, for_each, lanes_of, position};
use crate::kgen::{Kernel, Parameter, c_type, indented, kind_name};
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{DType, Shape};

/// Elements that one thread reduces; more are divided among the threads of a block.
const FEW: usize = 64;
/// Threads of a block at most.
const MOST_THREADS: usize = 1024;
/// Columns that the threads of a warp take side by side, where rows are reduced; and how many there are at least.
const COLS: usize = 32;
const LEAST_COLS: usize = 8;
/// Elements of a part of a long reduction; it is divided where fewer blocks than this would do all of it.
const PART: usize = 1 << 14;
const ENOUGH_BLOCKS: usize = 256;
/// Columns that a warp looks through alone.
const SHORT_ROW: usize = 2048;

/// Axes with the distances of their elements; neighbouring ones that lie behind each other are one.
struct Axes {
    sizes: Vec<usize>,
    strides: Vec<usize>,
}

impl Axes {
    fn of(shape: &Shape, axes: &[usize]) -> Axes {
        let pick = |from: &[usize]| axes.iter().map(|&axis| from[axis]).collect::<Vec<usize>>();
        let strides = pick(&shape.strides());
        let (sizes, [strides, _]) = merged(&pick(shape), &strides, &strides);
        Axes { sizes, strides }
    }

    fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Declares `name` as where the element number `i` of them lies.
    fn place(&self, name: &str, i: &str) -> String {
        let text = coordinates(i, &self.sizes) + &format!("{name} = {};\n", position(0, &self.strides));
        format!("u32 {name};\n{{\n{}}}\n", indented(&text))
    }

    /// The distance of elements, where it is the same for all.
    fn distance(&self) -> Option<usize> {
        if let [distance] = self.strides[..] { Some(distance) } else { None }
    }
}

/// Kernels of a reduction.
pub(crate) struct Reduction {
    /// From `x` to `y`, or to the results of parts.
    pub first: Kernel,
    /// From the results of so many parts, all of them `f32`, to `y`.
    pub second: Option<(usize, Kernel)>,
}

/// From `f32` elements to those reduced over `axes`.
pub(crate) fn reduce(kind: ReduceKind, shape: &Shape, axes: &[usize]) -> Reduction {
    let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..shape.rank()).partition(|axis| axes.contains(axis));
    let stage = Stage::new(kind, shape.elements(), Axes::of(shape, &reduced), Axes::of(shape, &kept));
    let (blocks, parts) = (stage.blocks(), stage.inner.count().div_ceil(PART));
    if stage.form == Form::Thread || blocks >= ENOUGH_BLOCKS || parts == 1 {
        return Reduction { first: stage.kernel(1), second: None };
    }
    let chunk = stage.chunk(parts.min(ENOUGH_BLOCKS.div_ceil(blocks)));
    let parts = stage.inner.count().div_ceil(chunk);
    let results = stage.outer.count();
    let partial = Shape::from([parts, results]);
    let second = Stage::new(kind, parts * results, Axes::of(&partial, &[0]), Axes::of(&partial, &[1]));
    Reduction { first: stage.kernel(parts), second: Some((parts * results, second.kernel(1))) }
}

/// What computes a result.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Thread,
    /// A block, of elements that lie behind each other; so many are moved at once.
    Row(usize),
    /// A block, wherever the elements lie.
    Any,
    /// A block computes neighbouring results, and each warp of it takes some of their elements.
    Columns,
}

/// One launch.
struct Stage {
    kind: ReduceKind,
    elements: usize,
    inner: Axes,
    outer: Axes,
    form: Form,
}

impl Stage {
    fn new(kind: ReduceKind, elements: usize, inner: Axes, outer: Axes) -> Stage {
        let count = inner.count();
        let columns = outer.sizes.last().copied().filter(|_| outer.strides.last() == Some(&1)).unwrap_or(1);
        let form = if count <= FEW {
            Form::Thread
        } else if columns >= LEAST_COLS {
            Form::Columns
        } else if inner.distance() == Some(1) {
            let aligned = |lanes: &usize| outer.strides.iter().all(|stride| stride.is_multiple_of(*lanes));
            Form::Row(
                [lanes_of(DType::F32, count), 2]
                    .into_iter()
                    .find(|lanes| count.is_multiple_of(*lanes) && aligned(lanes))
                    .unwrap_or(1),
            )
        } else {
            Form::Any
        };
        Stage { kind, elements, inner, outer, form }
    }

    /// Blocks along the results.
    fn blocks(&self) -> usize {
        match self.form {
            Form::Columns => {
                let columns = self.outer.sizes.last().copied().unwrap_or(1);
                self.outer.count() / columns.max(1) * columns.div_ceil(COLS)
            }
            Form::Thread | Form::Row(_) | Form::Any => self.outer.count(),
        }
    }

    /// Elements of each of so many parts.
    fn chunk(&self, parts: usize) -> usize {
        self.inner.count().div_ceil(parts).next_multiple_of(4)
    }

    /// From `x` to `y`: of each part all results.
    fn kernel(&self, parts: usize) -> Kernel {
        let Stage { kind, elements, inner, outer, form } = self;
        let (count, results, name) = (inner.count(), outer.count(), kind_name(*kind));
        let parameters =
            vec![Parameter::input("x", DType::F32, *elements), Parameter::output("y", DType::F32, parts * results)];
        let add = inner.place("at", "r") + &format!("total = {name}::combine(total, x[base + at]);\n");
        let start = format!("float total = {name}::identity();\n");
        if *form == Form::Thread {
            let text = outer.place("base", "i")
                + &start
                + &format!("for (u32 r = 0; r < {count}u; ++r) {{\n{}}}\ny[i] = total;\n", indented(&add));
            return for_each("reduce", parameters, results, &text);
        }
        let (blocks, chunk) = (self.blocks(), if parts == 1 { count } else { self.chunk(parts) });
        let of_part = format!(
            "const u32 part = blockIdx.x / {blocks}u, block = blockIdx.x % {blocks}u;\n\
             const u32 begin = part * {chunk}u, end = begin + {chunk}u < {count}u ? begin + {chunk}u : {count}u;\n"
        );
        let (threads, text) = match *form {
            Form::Columns => (THREADS, of_part + &self.columns(&start, &add)),
            Form::Row(_) | Form::Any | Form::Thread => {
                let (lanes, add) = match *form {
                    Form::Row(lanes) => {
                        let add = format!(
                            "float value[{lanes}];\nload<float, {lanes}>(x + base + r, value);\n#pragma unroll\n\
                             for (int k = 0; k < {lanes}; ++k) total = {name}::combine(total, value[k]);\n"
                        );
                        (lanes, add)
                    }
                    _ => (1, add),
                };
                let threads = (chunk / lanes).next_multiple_of(32).clamp(32, MOST_THREADS);
                let text = format!("__shared__ float scratch[{}];\n", threads / 32)
                    + &of_part
                    + &outer.place("base", "block")
                    + &start
                    + &format!(
                        "for (u32 r = begin + threadIdx.x * {lanes}u; r < end; r += {}u) {{\n{}}}\n",
                        threads * lanes,
                        indented(&add)
                    )
                    + &format!("total = reduce_row<{name}, {threads}>(total, scratch);\n")
                    + &format!("if (threadIdx.x == 0) y[part * {results}u + block] = total;\n");
                (threads, text)
            }
        };
        let blocks = [(blocks * parts).max(1) as u32, 1, 1];
        Kernel::new("reduce", parameters, blocks, [threads as u32, 1, 1], &indented(&text)).named_by_content()
    }

    /// What a block does of neighbouring results.
    fn columns(&self, start: &str, add: &str) -> String {
        let (name, results, warps) = (kind_name(self.kind), self.outer.count(), THREADS / COLS);
        let cols = self.outer.sizes.last().copied().unwrap_or(1);
        let last = self.outer.sizes.len() - 1;
        let above = Axes { sizes: self.outer.sizes[..last].to_vec(), strides: self.outer.strides[..last].to_vec() };
        let each = cols.div_ceil(COLS);
        format!(
            "__shared__ float scratch[{THREADS}];\n\
             const u32 above = block / {each}u, col = block % {each}u * {COLS}u + threadIdx.x % {COLS}u;\n\
             const u32 warp = threadIdx.x / {COLS}u;\n"
        ) + &above.place("base", "above")
            + "base += col;\n"
            + start
            + &format!(
                "if (col < {cols}u)\n    for (u32 r = begin + warp; r < end; r += {warps}u) {{\n{}    }}\n",
                indented(&indented(add))
            )
            + &format!(
                "scratch[threadIdx.x] = total;\n\
                 __syncthreads();\n\
                 if (warp == 0 && col < {cols}u) {{\n    \
                 for (u32 k = 1; k < {warps}u; ++k) total = {name}::combine(total, scratch[k * {COLS}u + threadIdx.x]);\n    \
                 y[part * {results}u + above * {cols}u + col] = total;\n}}\n"
            )
    }
}

/// `best`: of the elements that the thread sees, in rising order of their columns, the first largest one, NaN being the largest. As
/// a number of 64 bits, above the element in the order of the numbers, below it the column, the lower the larger: the largest of
/// them is the first largest element of all.
const BEST: &str = "\
u64 best = 0;
if (place != NOTHING) {
    const u32 bits = __float_as_uint(most + 0.0f);
    const u32 ordered = most != most ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    best = (u64)ordered << 32 | (u32)~place;
}
#pragma unroll
for (int distance = 16; distance > 0; distance /= 2) {
    const u64 other = __shfl_xor_sync(0xffffffffu, best, distance);
    if (other > best) best = other;
}
";

/// From rows of floats to the column of the first largest element of each; NaN is the largest.
pub(crate) fn arg_max(ty: DType, rows: usize, cols: usize) -> Kernel {
    let parameters = vec![Parameter::input("x", ty, rows * cols), Parameter::output("y", DType::I32, rows)];
    let (lanes, c_type) = (lanes_of(ty, cols), c_type(ty));
    let look = |threads: usize, thread: &str| {
        format!(
            "const u32 NOTHING = 0xffffffffu;\n\
             float most = 0.0f;\n\
             u32 place = NOTHING;\n\
             for (u32 col = {thread} * {lanes}u; col < {cols}u; col += {step}u) {{\n    \
             float value[{lanes}];\n    \
             load<{c_type}, {lanes}>(x + row * {cols}u + col, value);\n\
             #pragma unroll\n    \
             for (int k = 0; k < {lanes}; ++k)\n        \
             if (place == NOTHING || value[k] > most || (value[k] != value[k] && most == most)) {{\n            \
             most = value[k];\n            place = col + k;\n        }}\n}}\n{BEST}",
            step = threads * lanes
        )
    };
    if cols <= SHORT_ROW {
        let warps = THREADS / 32;
        let text = format!("const u32 row = blockIdx.x * {warps}u + threadIdx.x / 32u;\nif (row >= {rows}u) return;\n")
            + &look(32, "threadIdx.x % 32u")
            + "if (threadIdx.x % 32u == 0) y[row] = (int)~(u32)best;\n";
        let blocks = rows.div_ceil(warps).max(1) as u32;
        return Kernel::new("arg_max", parameters, [blocks, 1, 1], [THREADS as u32, 1, 1], &indented(&text))
            .named_by_content();
    }
    let threads = MOST_THREADS / 2;
    let text = format!("__shared__ u64 scratch[{}];\nconst u32 row = blockIdx.x;\n", threads / 32)
        + &look(threads, "threadIdx.x")
        + &format!(
            "if (threadIdx.x % 32u == 0) scratch[threadIdx.x / 32u] = best;\n\
             __syncthreads();\n\
             if (threadIdx.x == 0) {{\n    \
             for (u32 warp = 1; warp < {}u; ++warp) best = scratch[warp] > best ? scratch[warp] : best;\n    \
             y[row] = (int)~(u32)best;\n}}\n",
            threads / 32
        );
    Kernel::new("arg_max", parameters, [rows.max(1) as u32, 1, 1], [threads as u32, 1, 1], &indented(&text))
        .named_by_content()
}
