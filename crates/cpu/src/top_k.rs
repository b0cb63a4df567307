//! The largest elements of rows, by radix selection on integers in the order of the numbers.
//!
//! A row that fits a task is selected by it. A longer one is cut into chunks and parts of these. Of the maxima of the parts the
//! `k`-th largest bounds the elements wanted from below; mostly little more than these reach it. Where many do, a histogram of
//! the leading bits tells the bucket that holds the last element wanted, which is refined until little more lies in or above it.
//! What is left is collected in the order of positions and sorted.

use crate::gemm::Ctx;
use crate::parts::{Shared, for_chunks};
use crate::simd::{Simd, SimdOp};

/// Elements of a chunk.
const CHUNK: usize = 64 * 1024;

/// Buckets of a histogram, and the shifts of the keys for each refinement.
const BUCKETS: usize = 1 << 11;
const SHIFTS: [u32; 3] = [21, 10, 0];

/// Elements that are always collected rather than refined further.
const FEW: usize = 16 * 1024;

/// Elements of a part.
const PART: usize = 64;

/// Histograms that are counted in turn, so that equal neighbours do not wait for each other.
const LANES: usize = 4;

/// An integer in the order of the numbers: zeros of both signs are equal, a NaN is the least.
#[inline(always)]
fn key(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    let ordered = bits ^ ((bits as i32 >> 31) as u32 | 0x8000_0000);
    if x.is_nan() { 0 } else { ordered }
}

/// What sorts a candidate: falling keys, then rising positions.
#[inline(always)]
pub(crate) fn rank(x: f32, position: usize) -> u64 {
    u64::from(!key(x)) << 32 | position as u64
}

/// The position in a [`rank`].
#[inline(always)]
pub(crate) fn position(rank: u64) -> usize {
    (rank as u32) as usize
}

/// Moves the `count` first ranks to the front and sorts them.
pub(crate) fn sort_first(ranks: &mut [u64], count: usize) {
    if count < ranks.len() {
        ranks.select_nth_unstable(count);
    }
    ranks[..count].sort_unstable();
}

/// Sizes of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopKDesc {
    /// Rows of which the largest elements are selected.
    pub rows: usize,
    /// Sizes of the axes; the first is 1 if there is only one.
    pub sizes: [usize; 2],
    /// At most the elements of a row.
    pub k: usize,
}

/// A chunk of a long row while the row is selected.
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Chunk {
    /// Elements above the bucket.
    above: u32,
    /// Elements in the bucket that are collected.
    inside: u32,
    /// Where its elements are collected.
    start: u32,
    unused: u32,
}

impl TopKDesc {
    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }

    fn is_long(&self) -> bool {
        self.row_len() > CHUNK
    }

    fn chunks(&self) -> usize {
        self.row_len().div_ceil(CHUNK)
    }

    /// Elements that are collected at most.
    fn capacity(&self) -> usize {
        (4 * self.k).max(FEW).min(self.row_len())
    }

    fn parts(&self) -> usize {
        self.row_len().div_ceil(PART)
    }

    /// `f32` elements of scratch.
    pub fn scratch_len(&self, threads: usize) -> usize {
        match self.is_long() {
            true => 2 * self.capacity() + self.chunks() * (BUCKETS + size_of::<Chunk>() / 4) + 2 * self.parts(),
            false => 2 * self.row_len() * threads,
        }
    }
}

/// Counts keys of a chunk by their bits from a shift on, those alone that have a prefix above them.
struct Count<'a> {
    x: &'a [f32],
    shift: u32,
    /// The bits above, and by how much more they are shifted; the first histogram has none.
    prefix: Option<u32>,
    counts: &'a mut [u32],
}

impl SimdOp for Count<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut lanes = [[0u32; BUCKETS]; LANES];
        let bucket = |key: u32| (key >> self.shift) as usize % BUCKETS;
        match self.prefix {
            None => {
                let (parts, rest) = self.x.as_chunks::<LANES>();
                for part in parts {
                    for (lane, &x) in lanes.iter_mut().zip(part) {
                        lane[bucket(key(x))] += 1;
                    }
                }
                rest.iter().for_each(|&x| lanes[0][bucket(key(x))] += 1);
            }
            Some(prefix) => {
                let (shift, buckets) = (self.shift, buckets_at(self.shift));
                for (i, &x) in self.x.iter().enumerate() {
                    let key = key(x);
                    if key >> shift >> buckets.trailing_zeros() == prefix {
                        lanes[i % LANES][(key >> shift) as usize % buckets] += 1;
                    }
                }
            }
        }
        for (i, count) in self.counts.iter_mut().enumerate() {
            *count = lanes.iter().map(|lane| lane[i]).sum();
        }
    }
}

/// Buckets of the histogram of a shift.
fn buckets_at(shift: u32) -> usize {
    if shift == 0 { 1 << SHIFTS[1] } else { BUCKETS }
}

/// The largest key of each part of a chunk.
struct Maxima<'a> {
    x: &'a [f32],
    maxima: &'a mut [u32],
}

impl SimdOp for Maxima<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        const WIDTH: usize = 16;
        let (parts, rest) = self.x.as_chunks::<PART>();
        let (maxima, last) = self.maxima.split_at_mut(parts.len());
        for (part, maximum) in parts.iter().zip(maxima) {
            let mut most = [0u32; WIDTH];
            for lanes in part.as_chunks::<WIDTH>().0 {
                for i in 0..WIDTH {
                    let key = key(lanes[i]);
                    most[i] = if key > most[i] { key } else { most[i] };
                }
            }
            *maximum = most.into_iter().fold(0, u32::max);
        }
        for maximum in last {
            *maximum = rest.iter().map(|&x| key(x)).fold(0, u32::max);
        }
    }
}

/// The elements of a chunk whose keys, shifted, are in a bucket or above it.
struct Reached<'a> {
    x: &'a [f32],
    maxima: &'a [u32],
    shift: u32,
    bucket: u32,
}

impl<'a> Reached<'a> {
    /// The parts with such an element: their position in the chunk, the bucket of their largest element, and their elements.
    fn parts(&self) -> impl Iterator<Item = (usize, u32, &'a [f32])> {
        let parts = self.x.chunks(PART).zip(self.maxima).enumerate();
        let (shift, bucket) = (self.shift, self.bucket);
        let parts = parts.map(move |(part, (x, maximum))| (part * PART, maximum >> shift, x));
        parts.filter(move |(_, most, _)| *most >= bucket)
    }

    /// Writes the ranks of those above the bucket and of the first `inside` in it; `first` is the position of the chunk.
    fn collect(&self, first: usize, mut inside: u32, ranks: &mut [u64]) {
        let mut next = 0;
        for (start, most, x) in self.parts() {
            if most == self.bucket && inside == 0 {
                continue;
            }
            for (i, &x) in x.iter().enumerate() {
                let bucket = key(x) >> self.shift;
                let is_inside = bucket == self.bucket;
                if bucket > self.bucket || is_inside && inside > 0 {
                    inside -= u32::from(is_inside);
                    ranks[next] = rank(x, first + start + i);
                    next += 1;
                }
            }
        }
    }
}

/// Counts those above the bucket, and those in it.
struct CountReached<'a>(Reached<'a>);

impl SimdOp for CountReached<'_> {
    type Output = (u32, u32);

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> (u32, u32) {
        let Reached { shift, bucket, .. } = self.0;
        let (mut above, mut inside) = (0, 0);
        for (_, _, x) in self.0.parts() {
            for &x in x {
                let reached = key(x) >> shift;
                above += u32::from(reached > bucket);
                inside += u32::from(reached == bucket);
            }
        }
        (above, inside)
    }
}

/// A long row while it is selected.
struct Selection<'a> {
    ctx: Ctx<'a>,
    desc: &'a TopKDesc,
    x: &'a [f32],
    chunks: &'a mut [Chunk],
    maxima: &'a [u32],
}

/// What is collected of a row: elements above the bucket of a shift, and the given number of of those in it.
#[derive(Clone, Copy)]
struct Cut {
    shift: u32,
    bucket: u32,
    inside: usize,
}

impl Selection<'_> {
    fn chunk(&self, task: usize) -> &[f32] {
        &self.x[task * CHUNK..self.x.len().min((task + 1) * CHUNK)]
    }

    fn reached(&self, task: usize, shift: u32, bucket: u32) -> Reached<'_> {
        let maxima = &self.maxima[task * (CHUNK / PART)..];
        Reached { x: self.chunk(task), maxima, shift, bucket }
    }

    /// Cuts at the `k`-th largest maximum of the parts, if there are the given number of and few enough elements are above it.
    fn cut_by_maxima(&mut self, order: &mut [u32]) -> Option<Cut> {
        let k = self.desc.k;
        order.copy_from_slice(self.maxima);
        let last = order.len().checked_sub(k)?;
        let bucket = *order.select_nth_unstable(last).1;
        let base = &Shared(self.chunks.as_mut_ptr());
        self.ctx.pool.run(self.chunks.len(), &|task, _worker| {
            // SAFETY: the kernel has no conditions.
            let (above, inside) = unsafe { CountReached(self.reached(task, 0, bucket)).run_on(self.ctx.isa) };
            // SAFETY: each task has its own entry, and nothing else reads them meanwhile.
            unsafe { *base.0.add(task) = Chunk { above, inside, ..Chunk::default() } };
        });
        let above: usize = self.chunks.iter().map(|chunk| chunk.above as usize).sum();
        let inside: usize = self.chunks.iter().map(|chunk| chunk.inside as usize).sum();
        // Equal elements at the end are taken in order if it is they that are the last ones wanted.
        let inside = if above < k { k - above } else { inside };
        (above + inside <= self.desc.capacity()).then_some(Cut { shift: 0, bucket, inside })
    }

    /// Cuts at a bucket of histograms of ever more bits.
    fn cut_by_histograms(&mut self, histograms: &mut [u32]) -> Cut {
        self.chunks.fill(Chunk::default());
        let (mut prefix, mut above) = (None, 0);
        for shift in SHIFTS {
            let base = &Shared(histograms.as_mut_ptr());
            self.ctx.pool.run(self.chunks.len(), &|task, _worker| {
                // SAFETY: each chunk has its own histogram.
                let counts = unsafe { std::slice::from_raw_parts_mut(base.0.add(task * BUCKETS), BUCKETS) };
                // SAFETY: the kernel has no conditions.
                unsafe { Count { x: self.chunk(task), shift, prefix, counts }.run_on(self.ctx.isa) }
            });
            let mut totals = [0u32; BUCKETS];
            for counts in histograms.chunks_exact(BUCKETS) {
                totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
            }
            let mut bucket = BUCKETS - 1;
            while above + (totals[bucket] as usize) < self.desc.k {
                above += totals[bucket] as usize;
                bucket -= 1;
            }
            for (chunk, counts) in self.chunks.iter_mut().zip(histograms.chunks_exact(BUCKETS)) {
                chunk.above += counts[bucket + 1..].iter().sum::<u32>();
                chunk.inside = counts[bucket];
            }
            let inside = totals[bucket] as usize;
            let bucket = prefix.unwrap_or(0) * buckets_at(shift) as u32 + bucket as u32;
            if above + inside <= self.desc.capacity() {
                return Cut { shift, bucket, inside };
            }
            prefix = Some(bucket);
        }
        // The keys of the last bucket are equal.
        Cut { shift: 0, bucket: prefix.unwrap_or(0), inside: self.desc.k - above }
    }

    /// Collects what a cut leaves, in the order of positions; its number.
    fn collect(&mut self, cut: Cut, ranks: &mut [u64]) -> usize {
        let (mut inside, mut collected) = (cut.inside, 0);
        for chunk in self.chunks.iter_mut() {
            chunk.inside = inside.min(chunk.inside as usize) as u32;
            chunk.start = collected as u32;
            inside -= chunk.inside as usize;
            collected += (chunk.above + chunk.inside) as usize;
        }
        let base = &Shared(ranks[..collected].as_mut_ptr());
        self.ctx.pool.run(self.chunks.len(), &|task, _worker| {
            let Chunk { above, inside, start, .. } = self.chunks[task];
            let len = (above + inside) as usize;
            // SAFETY: each chunk has its own part of the list.
            let ranks = unsafe { std::slice::from_raw_parts_mut(base.0.add(start as usize), len) };
            self.reached(task, cut.shift, cut.bucket).collect(task * CHUNK, inside, ranks);
        });
        collected
    }
}

/// The ranks of the `k` largest elements of a long row, sorted.
fn select_long<'a>(ctx: Ctx<'_>, desc: &TopKDesc, x: &[f32], scratch: &'a mut [f32]) -> &'a [u64] {
    let (ranks, scratch) = scratch.split_at_mut(2 * desc.capacity());
    let (histograms, scratch) = scratch.split_at_mut(desc.chunks() * BUCKETS);
    let (chunks, scratch) = scratch.split_at_mut(desc.chunks() * size_of::<Chunk>() / 4);
    let (maxima, order) = scratch.split_at_mut(desc.parts());
    let ranks: &mut [u64] = bytemuck::cast_slice_mut(ranks);
    let maxima: &mut [u32] = bytemuck::cast_slice_mut(maxima);
    for_chunks(ctx, maxima, CHUNK / PART, &|task, maxima| {
        let x = &x[task * CHUNK..x.len().min((task + 1) * CHUNK)];
        // SAFETY: the kernel has no conditions.
        unsafe { Maxima { x, maxima }.run_on(ctx.isa) }
    });
    let mut selection = Selection { ctx, desc, x, chunks: bytemuck::cast_slice_mut(chunks), maxima };
    let cut = selection.cut_by_maxima(bytemuck::cast_slice_mut(&mut order[..desc.parts()]));
    let cut = cut.unwrap_or_else(|| selection.cut_by_histograms(bytemuck::cast_slice_mut(histograms)));
    let collected = selection.collect(cut, ranks);
    sort_first(&mut ranks[..collected], desc.k);
    &ranks[..desc.k]
}

/// Writes the elements of a row that `ranks` name.
struct Outputs<'a> {
    values: &'a mut [f32],
    /// Along the first axis, if there are two, and along the last.
    positions: [&'a mut [i32]; 2],
}

impl Outputs<'_> {
    fn write(&mut self, desc: &TopKDesc, x: &[f32], ranks: &[u64]) {
        let [first, last] = &mut self.positions;
        for (i, &rank) in ranks.iter().enumerate() {
            let position = position(rank);
            self.values[i] = x[position];
            last[i] = (position % desc.sizes[1]) as i32;
            if let Some(first) = first.get_mut(i) {
                *first = (position / desc.sizes[1]) as i32;
            }
        }
    }
}

/// The `k` largest elements of each row of `x`, in falling order, equal ones by position and NaN last: `values` `[rows, k]` and
/// positions along the first axis (none, if there is only one) and along the last.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`TopKDesc::scratch_len`].
pub fn top_k(
    ctx: Ctx<'_>,
    desc: &TopKDesc,
    x: &[f32],
    values: &mut [f32],
    positions: [&mut [i32]; 2],
    scratch: &mut [f32],
) {
    let (len, k) = (desc.row_len(), desc.k);
    let [first, last] = positions;
    assert!(
        x.len() == desc.rows * len
            && values.len() == desc.rows * k
            && last.len() == values.len()
            && (first.is_empty() || first.len() == values.len()),
        "a top_k got tensors of other sizes"
    );
    let own_first = if first.is_empty() { 0 } else { k };
    let bases = (&Shared(values.as_mut_ptr()), &Shared(first.as_mut_ptr()), &Shared(last.as_mut_ptr()));
    // SAFETY: who calls has a row for itself.
    let outputs = |row: usize| unsafe {
        Outputs {
            values: std::slice::from_raw_parts_mut(bases.0.0.add(row * k), k),
            positions: [
                std::slice::from_raw_parts_mut(bases.1.0.add(row * own_first), own_first),
                std::slice::from_raw_parts_mut(bases.2.0.add(row * k), k),
            ],
        }
    };
    let row_of = |row: usize| &x[row * len..][..len];
    if desc.is_long() {
        for row in 0..desc.rows {
            let ranks = select_long(ctx, desc, row_of(row), scratch);
            outputs(row).write(desc, row_of(row), ranks);
        }
        return;
    }
    let scratch = &mut scratch[..desc.scratch_len(ctx.pool.threads())];
    let base = &Shared(bytemuck::cast_slice_mut::<f32, u64>(scratch).as_mut_ptr());
    ctx.pool.run(desc.rows, &|row, worker| {
        // SAFETY: a worker uses only its own part of the memory, and runs one task at a time.
        let ranks = unsafe { std::slice::from_raw_parts_mut(base.0.add(worker * len), len) };
        for (i, (slot, &x)) in ranks.iter_mut().zip(row_of(row)).enumerate() {
            *slot = rank(x, i);
        }
        sort_first(ranks, k);
        outputs(row).write(desc, row_of(row), &ranks[..k]);
    });
}
