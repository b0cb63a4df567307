//! Sorting of keys of 64 bits: runs by rank, then runs merged two by two. No thread waits for another one.

use super::for_each;
use super::work::{Work, counts, input, output};
use crate::kgen::Operand;

/// Keys that one thread compares its own with.
const RUN: usize = 128;

/// Where the key `i` stands in its segment.
const OWN: &str = "\
const u64* const from = (const u64*)keys + i / N * N;
u64* const to = (u64*)sorted + i / N * N;
const u32 at = i % N;
const u64 key = from[at];
";

const BY_RANK: &str = "\
const u32 start = at / RUN * RUN, end = start + RUN < N ? start + RUN : N;
u32 rank = start;
for (u32 j = start; j < end; ++j) rank += from[j] < key || (from[j] == key && j < at);
to[rank] = key;
";

const MERGED: &str = "\
const u32 start = at / (2u * RUN) * (2u * RUN);
const u32 middle = start + RUN < N ? start + RUN : N, end = middle + RUN < N ? middle + RUN : N;
const bool is_first = at < middle;
const u32 other = is_first ? middle : start;
u32 low = other, high = is_first ? end : middle;
while (low < high) {
    const u32 half = low + (high - low) / 2u;
    if (from[half] < key || (!is_first && from[half] == key)) low = half + 1u;
    else high = half;
}
to[start + (at - (is_first ? start : middle)) + (low - other)] = key;
";

/// Sorts segments of `n` keys, each of two words, in rising order, where the first memory is; gives the memory that holds them.
pub(super) fn sort(work: &mut Work, keys: Operand, segments: usize, n: usize) -> Operand {
    let mut passes = Passes::new(work, keys, segments * n, n);
    passes.pass("sort_runs", RUN, BY_RANK);
    passes.merge(RUN)
}

/// As [`sort`], where each run of `run` keys is in order.
pub(super) fn merge(work: &mut Work, keys: Operand, segments: usize, n: usize, run: usize) -> Operand {
    Passes::new(work, keys, segments * n, n).merge(run)
}

/// Passes over keys, from one memory to the other.
struct Passes<'a> {
    work: &'a mut Work,
    from: Operand,
    to: Option<Operand>,
    count: usize,
    n: usize,
}

impl Passes<'_> {
    fn new(work: &mut Work, from: Operand, count: usize, n: usize) -> Passes<'_> {
        Passes { work, from, to: None, count, n }
    }

    fn pass(&mut self, name: &str, run: usize, text: &str) {
        let to = self.to.unwrap_or_else(|| self.work.scratch(2 * self.count));
        let text = counts(&[("N", self.n), ("RUN", run)]) + OWN + text;
        let parameters = vec![input("keys", 2 * self.count), output("sorted", 2 * self.count)];
        self.work.launch(for_each(name, parameters, self.count, &text), [self.from, to]);
        (self.from, self.to) = (to, Some(self.from));
    }

    fn merge(mut self, mut run: usize) -> Operand {
        while run < self.n {
            self.pass("merge_runs", run, MERGED);
            run *= 2;
        }
        self.from
    }
}
