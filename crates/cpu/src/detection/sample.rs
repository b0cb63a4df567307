//! Samples of candidates, and lists of chosen rows. One image is the work of one thread: a pass that counts candidates of a kind, one
//! that collects those of little keys, and a selection among these.

use crate::gemm::Ctx;
use crate::parts::Shared;
use crate::random::{Stream, fill_words};
use crate::simd::{Simd, SimdOp};
use crate::top_k::{position, sort_first};
use bessemer_ir::ops::detection::matching::NEGATIVE;
use bessemer_ir::ops::detection::sample::{
    NEGATIVE_ROW, NOT_SAMPLED, PADDING_ROW, POSITIVE_ROW, SampleFill, SampleOrder, Sampler,
};
use std::ops::RangeInclusive;

/// Candidates whose keys are drawn at once.
const BLOCK: usize = 128;

/// Sizes and rules of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleDesc {
    /// Number of images.
    pub batch: usize,
    /// Candidates of an image.
    pub candidates: usize,
    /// How many are chosen, and which ones.
    pub sampler: Sampler,
}

impl SampleDesc {
    /// `f32` elements of scratch.
    pub fn scratch_len(&self, threads: usize) -> usize {
        2 * threads * self.candidates
    }

    /// Calls `f(image, ranks)` for each image, as tasks, with scratch for ranks of its candidates.
    fn for_images(&self, ctx: Ctx<'_>, scratch: &mut [f32], f: &(dyn Fn(usize, &mut [u64]) + Sync)) {
        let scratch = &mut scratch[..self.scratch_len(ctx.pool.threads())];
        let base = &Shared(bytemuck::cast_slice_mut::<f32, u64>(scratch).as_mut_ptr());
        ctx.pool.run(self.batch, &|image, worker| {
            // SAFETY: a worker uses only its own part of the memory, and runs one task at a time.
            f(image, unsafe { std::slice::from_raw_parts_mut(base.0.add(worker * self.candidates), self.candidates) });
        });
    }

    /// Moves the ranks of the chosen candidates of an image to the front, in the order in which they are chosen: the numbers of
    /// positives and negatives. Positives have a value of `least_positive` or above, negatives that below it.
    fn choose(
        &self,
        ctx: Ctx<'_>,
        step: u32,
        image: usize,
        values: &[i32],
        least_positive: i32,
        ranks: &mut [u64],
    ) -> [usize; 2] {
        let stream = match self.sampler.order {
            SampleOrder::First => None,
            SampleOrder::Random { seed, stream } => Some(Stream { seed, step, stream }),
        };
        let mut choose = |kind: RangeInclusive<i32>, most: usize, taken: usize| {
            let count = values.iter().map(|v| usize::from(kind.contains(v))).sum::<usize>();
            let wanted = most.min(count);
            let mut collect = |limit: u32| {
                let first = (image * self.candidates) as u64;
                let collect = Collect {
                    values,
                    kind: [*kind.start(), *kind.end()],
                    stream,
                    first,
                    limit,
                    ranks: &mut ranks[taken..],
                };
                // SAFETY: the kernel has no conditions.
                unsafe { collect.run_on(ctx.isa) }
            };
            // So many that there are rarely fewer than wanted.
            let share = (wanted as f64 + 2.0 * (wanted as f64).sqrt() + 2.0) / count.max(1) as f64;
            let mut collected = collect((share * f64::from(u32::MAX)) as u32);
            if collected < wanted {
                collected = collect(u32::MAX);
            }
            sort_first(&mut ranks[taken..taken + collected], wanted);
            wanted
        };
        let positives = choose(least_positive..=i32::MAX, self.sampler.most_positives, 0);
        let negative = least_positive - 1;
        [positives, choose(negative..=negative, self.sampler.total - positives, positives)]
    }
}

/// Collects ranks, key and position, of the candidates of a kind whose key is not above a limit; returns their number.
struct Collect<'a> {
    values: &'a [i32],
    /// The least and the greatest value of the kind.
    kind: [i32; 2],
    /// Where keys come from, if they are not 0.
    stream: Option<Stream>,
    /// Number of the first key in the stream.
    first: u64,
    limit: u32,
    ranks: &'a mut [u64],
}

impl SimdOp for Collect<'_> {
    type Output = usize;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> usize {
        let [least, greatest] = self.kind;
        let is_wanted = |value: i32| value >= least && value <= greatest;
        let mut count = 0;
        for (block, values) in self.values.chunks(BLOCK).enumerate() {
            if !values.iter().fold(false, |found, &value| found | is_wanted(value)) {
                continue;
            }
            let first = block * BLOCK;
            let mut keys = [0u32; BLOCK];
            if let Some(stream) = self.stream {
                fill_words(stream, self.first + first as u64, &mut keys[..values.len()]);
            }
            for (i, (&value, &key)) in values.iter().zip(&keys).enumerate() {
                if is_wanted(value) && key <= self.limit {
                    self.ranks[count] = u64::from(key) << 32 | (first + i) as u64;
                    count += 1;
                }
            }
        }
        count
    }
}

/// Labels of the chosen candidates of `labels` `[B, N]`, and [`NOT_SAMPLED`] for the others; `step` keys random numbers.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`SampleDesc::scratch_len`].
pub fn sample_labels(
    ctx: Ctx<'_>,
    desc: &SampleDesc,
    step: u32,
    labels: &[i32],
    sampled: &mut [i32],
    scratch: &mut [f32],
) {
    let n = desc.candidates;
    assert!(labels.len() == desc.batch * n && sampled.len() == labels.len(), "a sample got tensors of other sizes");
    let base = &Shared(sampled.as_mut_ptr());
    desc.for_images(ctx, scratch, &|image, ranks| {
        let labels = &labels[image * n..][..n];
        // SAFETY: each image has its own part.
        let sampled = unsafe { std::slice::from_raw_parts_mut(base.0.add(image * n), n) };
        let [positives, negatives] = desc.choose(ctx, step, image, labels, 1, ranks);
        sampled.fill(NOT_SAMPLED);
        ranks[..positives + negatives].iter().for_each(|&rank| sampled[position(rank)] = labels[position(rank)]);
    });
}

/// Rows of the chosen candidates of `matches` `[B, N]`: `rows` and `kinds` `[B, total]`, `counts` `[B, 2]`; `step` keys random
/// numbers.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`SampleDesc::scratch_len`].
pub fn sample_rows(
    ctx: Ctx<'_>,
    desc: &SampleDesc,
    fill: SampleFill,
    step: u32,
    matches: &[i32],
    [rows, kinds, counts]: [&mut [i32]; 3],
    scratch: &mut [f32],
) {
    let (n, total) = (desc.candidates, desc.sampler.total);
    assert!(
        matches.len() == desc.batch * n
            && [rows.len(), kinds.len()] == [desc.batch * total; 2]
            && counts.len() == desc.batch * 2,
        "a sample got tensors of other sizes"
    );
    let (rows, kinds) = (&Shared(rows.as_mut_ptr()), &Shared(kinds.as_mut_ptr()));
    let counts = &Shared(counts.as_mut_ptr());
    desc.for_images(ctx, scratch, &|image, ranks| {
        let matches = &matches[image * n..][..n];
        // SAFETY: each image has its own part of all.
        let (rows, kinds, counts) = unsafe {
            (
                std::slice::from_raw_parts_mut(rows.0.add(image * total), total),
                std::slice::from_raw_parts_mut(kinds.0.add(image * total), total),
                std::slice::from_raw_parts_mut(counts.0.add(image * 2), 2),
            )
        };
        let chosen: usize = desc.choose(ctx, step, image, matches, NEGATIVE + 1, ranks).into_iter().sum();
        let chosen = &mut ranks[..chosen];
        let mut filled = 0;
        let mut put = |row: usize| {
            rows[filled] = row as i32;
            kinds[filled] = if matches[row] > NEGATIVE { POSITIVE_ROW } else { NEGATIVE_ROW };
            filled += 1;
        };
        chosen.iter().for_each(|&rank| put(position(rank)));
        if fill == SampleFill::Rest {
            chosen.sort_unstable_by_key(|&rank| position(rank));
            let mut next = chosen.iter().map(|&rank| position(rank)).peekable();
            let is_rest = |row: &usize| next.next_if_eq(row).is_none();
            (0..n).filter(is_rest).take(total - chosen.len()).for_each(put);
        }
        rows[filled..].fill(0);
        kinds[filled..].fill(PADDING_ROW);
        let count = |kind: i32| kinds.iter().map(|&k| i32::from(k == kind)).sum();
        counts.copy_from_slice(&[count(POSITIVE_ROW), count(NEGATIVE_ROW)]);
    });
}

/// The rows of all images of `columns` each whose flag is above 0: `images` and `rows`, of equal length; returns their number.
pub fn pack_rows(columns: usize, flags: &[i32], images: &mut [i32], rows: &mut [i32]) -> i32 {
    let chosen = (0..flags.len()).filter(|&row| flags[row] > 0);
    let mut count = 0;
    for ((image, slot), row) in images.iter_mut().zip(rows.iter_mut()).zip(chosen) {
        (*image, *slot) = ((row / columns) as i32, row as i32);
        count += 1;
    }
    images[count..].fill(0);
    rows[count..].fill(0);
    count as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::threads::ThreadPool;
    use bessemer_ir::ops::Op;
    use bessemer_ir::ops::detection::sample::SampleLabels;
    use bessemer_ir::reference::Tensor;
    use bessemer_ir::{DType, TensorType};

    /// Now and then fewer keys than wanted are below the limit of the first pass.
    #[test]
    fn little_keys_are_found_in_any_step() {
        let desc = SampleDesc {
            batch: 2,
            candidates: 500,
            sampler: Sampler { total: 5, most_positives: 2, order: SampleOrder::Random { seed: 3, stream: 1 } },
        };
        let labels: Vec<i32> = (0..1000).map(|i| i32::from(i % 10 == 0)).collect();
        let integers = |shape: &[usize], data: &[i32]| {
            Tensor::new(TensorType::new(DType::I32, shape), data.iter().map(|&x| f64::from(x)).collect())
        };
        let op = Op::from(SampleLabels { sampler: desc.sampler });
        let pool = ThreadPool::new(1);
        let mut scratch = vec![f32::NAN; desc.scratch_len(1)];
        for step in 0..200 {
            let inputs = [integers(&[2, 500], &labels), integers(&[], &[step])];
            let expected = op.rule().evaluate(&[&inputs[0], &inputs[1]], &[inputs[0].ty.clone()]).remove(0);
            let mut sampled = vec![7; 1000];
            let ctx = Ctx::alone(Isa::detect(), &pool);
            sample_labels(ctx, &desc, step as u32, &labels, &mut sampled, &mut scratch);
            assert_eq!(integers(&[2, 500], &sampled), expected, "step {step}");
        }
    }
}
