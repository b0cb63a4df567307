//! The largest elements of rows: the bits of the last one by histograms, then those that are as large in the order of their
//! positions, then a sort of these.

use super::{ORDERED, Work, by_blocks, counts, flags, float_input, float_output, for_each, input, output};
use crate::kernels::sort::sort;
use crate::kgen::Operand;
use bessemer_ir::TensorType;
use bessemer_ir::ops::OpError;
use bessemer_ir::ops::index::TopK;

/// Bits of the three histograms: the lowest one, and how many.
const DIGITS: [[usize; 2]; 3] = [[21, 11], [10, 11], [0, 10]];
const BINS: usize = 1 << 11;
/// Neighbouring elements that one thread collects.
const CHUNK: usize = 128;
const THREADS: usize = 256;
/// Elements of a row that one block counts.
const PART: usize = 64 * THREADS;

/// `bounds` has for each row the bits of the last element as far as they are known, and how many elements of these bits are wanted.
/// Blocks count a part of a row each before they add what they have.
const HISTOGRAM: &str = "\
__shared__ int own_bins[BINS];
const u32 row = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) own_bins[bin] = 0;
__syncthreads();
for (u32 at = part * THREADS + threadIdx.x; at < N; at += PARTS * THREADS) {
    const u32 bits = ordered(x[row * N + at]);
    const bool is_near = IS_FIRST || (u64)bits >> (SHIFT + BITS) == (u64)(u32)bounds[2u * row] >> (SHIFT + BITS);
    if (is_near) atomicAdd(own_bins + (bits >> SHIFT) % (1u << BITS), 1);
}
__syncthreads();
for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS)
    if (own_bins[bin] != 0) atomicAdd(bins + row * BINS + bin, own_bins[bin]);
";

/// The bin in which the last wanted element of a row is goes to the bounds `next`. A block has a row, a thread neighbouring bins.
const NARROW: &str = "\
__shared__ int sums[THREADS];
const u32 row = blockIdx.x, first = threadIdx.x * OWN_BINS;
const int* const own = bins + row * BINS + first;
const int wanted = IS_FIRST ? (int)K : bounds[2u * row + 1u];
int above = 0;
for (u32 bin = 0; bin < OWN_BINS; ++bin) above += own[bin];
sums[threadIdx.x] = above;
__syncthreads();
above = 0;
for (u32 thread = threadIdx.x + 1u; thread < THREADS; ++thread) above += sums[thread];
for (u32 bin = OWN_BINS; bin-- > 0u;) {
    if (above < wanted && above + own[bin] >= wanted) {
        next[2u * row] = (int)((IS_FIRST ? 0u : (u32)bounds[2u * row]) | first + bin << SHIFT);
        next[2u * row + 1u] = wanted - above;
    }
    above += own[bin];
}
";

/// Elements of the chunk `i` above the bound of its row, and at it.
const COUNT: &str = "\
const u32 row = i / CHUNKS, start = i % CHUNKS * CHUNK, end = start + CHUNK < N ? start + CHUNK : N;
const u32 bound = (u32)bounds[2u * row];
int above = 0, equal = 0;
for (u32 at = start; at < end; ++at) {
    const u32 bits = ordered(x[row * N + at]);
    above += bits > bound;
    equal += bits == bound;
}
found[2u * i] = above;
found[2u * i + 1u] = equal;
";

/// What chunks have, as sums of the chunks before. A block has a row, a thread neighbouring chunks.
const SUM: &str = "\
__shared__ int sums[2u * THREADS];
const u32 each = (CHUNKS + THREADS - 1u) / THREADS, first = threadIdx.x * each;
const u32 end = first + each < CHUNKS ? first + each : CHUNKS;
int* const own = found + 2u * CHUNKS * blockIdx.x;
int above = 0, equal = 0;
for (u32 chunk = first; chunk < end; ++chunk) {
    above += own[2u * chunk];
    equal += own[2u * chunk + 1u];
}
sums[2u * threadIdx.x] = above;
sums[2u * threadIdx.x + 1u] = equal;
__syncthreads();
above = equal = 0;
for (u32 thread = 0; thread < threadIdx.x; ++thread) {
    above += sums[2u * thread];
    equal += sums[2u * thread + 1u];
}
for (u32 chunk = first; chunk < end; ++chunk) {
    const int own_above = own[2u * chunk], own_equal = own[2u * chunk + 1u];
    own[2u * chunk] = above;
    own[2u * chunk + 1u] = equal;
    above += own_above;
    equal += own_equal;
}
";

const COLLECT: &str = "\
const u32 row = i / CHUNKS, start = i % CHUNKS * CHUNK, end = start + CHUNK < N ? start + CHUNK : N;
const u32 bound = (u32)bounds[2u * row], wanted = (u32)bounds[2u * row + 1u];
u32 above = (u32)found[2u * i], equal = (u32)found[2u * i + 1u];
for (u32 at = start; at < end; ++at) {
    const u32 bits = ordered(x[row * N + at]);
    const u64 key = (u64)~bits << 32 | at;
    if (bits > bound) ((u64*)keys)[row * K + above++] = key;
    if (bits == bound && equal < wanted) ((u64*)keys)[row * K + K - wanted + equal++] = key;
}
";

const CHOSEN: &str = "\
const u32 at = (u32)((const u64*)keys)[i];
values[i] = x[i / K * N + at];
";

/// # Errors
/// The shape does not fit.
pub(crate) fn top_k(op: &TopK, x: &TensorType) -> Result<Work, OpError> {
    let (rows, [height, width]) = op.geometry(&x.shape)?;
    let (n, k) = (height * width, op.k);
    let mut work = Work::new("top-k", 1 + op.axes);
    let (elements, chunks, parts) = (rows * n, n.div_ceil(CHUNK), n.div_ceil(PART));
    let [bins, found, keys] = [rows * BINS, rows * chunks * 2, rows * k * 2].map(|words| work.scratch(words));
    let [mut bounds, mut next] = [(); 2].map(|()| work.scratch(rows * 2));
    let x = Operand::Input(0);
    let x_input = || float_input("x", elements);
    let constants = counts(&[("N", n), ("K", k), ("BINS", BINS), ("CHUNK", CHUNK), ("CHUNKS", chunks)])
        + &counts(&[("THREADS", THREADS), ("PARTS", parts), ("OWN_BINS", BINS / THREADS)])
        + ORDERED;

    for [shift, bits] in DIGITS {
        let own =
            counts(&[("SHIFT", shift), ("BITS", bits)]) + &flags(&[("IS_FIRST", shift == DIGITS[0][0])]) + &constants;
        work.fill(bins, rows * BINS, 0);
        let parameters = vec![x_input(), input("bounds", rows * 2), output("bins", rows * BINS)];
        let histogram = by_blocks("histogram", parameters, rows * parts, THREADS, &(own.clone() + HISTOGRAM));
        work.launch(histogram, [x, bounds, bins]);
        let parameters = vec![input("bins", rows * BINS), input("bounds", rows * 2), output("next", rows * 2)];
        work.launch(by_blocks("narrow", parameters, rows, THREADS, &(own + NARROW)), [bins, bounds, next]);
        (bounds, next) = (next, bounds);
    }
    let bounds_input = || input("bounds", rows * 2);
    let parameters = vec![x_input(), bounds_input(), output("found", rows * chunks * 2)];
    let count = for_each("count_largest", parameters, rows * chunks, &(constants.clone() + COUNT));
    work.launch(count, [x, bounds, found]);
    let parameters = vec![output("found", rows * chunks * 2)];
    work.launch(by_blocks("sum_largest", parameters, rows, THREADS, &(constants.clone() + SUM)), [found]);
    let parameters = vec![x_input(), bounds_input(), input("found", rows * chunks * 2), output("keys", rows * k * 2)];
    let collect = for_each("collect_largest", parameters, rows * chunks, &(constants.clone() + COLLECT));
    work.launch(collect, [x, bounds, found, keys]);
    let sorted = sort(&mut work, keys, rows, k);

    let positions = match op.axes {
        1 => "positions[i] = (int)at;\n".to_owned(),
        _ => format!("positions[i] = (int)(at / {width}u);\ninner[i] = (int)(at % {width}u);\n"),
    };
    let mut parameters = vec![x_input(), input("keys", rows * k * 2), float_output("values", rows * k)];
    parameters.extend(["positions", "inner"].into_iter().take(op.axes).map(|name| output(name, rows * k)));
    let operands: Vec<Operand> = [x, sorted].into_iter().chain((0..=op.axes).map(Operand::Output)).collect();
    work.launch(for_each("largest", parameters, rows * k, &(constants + CHOSEN + &positions)), operands);
    Ok(work)
}
