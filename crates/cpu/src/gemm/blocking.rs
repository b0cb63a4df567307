//! How outputs are cut into blocks and tasks. Shapes alone decide wherever the order of sums depends on it.

use std::ops::Range;

use super::tile::MAX_PANEL;
use crate::simd::PanelFormat;

/// Tasks that keep a machine of many cores busy; below this number outputs are cut finer.
pub(crate) const TASKS: usize = 16;

/// Fewest steps of a split of a reduction.
const MIN_SPLIT: usize = 512;

/// Parts into which a reduction of `depth` steps is split so that a small output of that many blocks gives enough tasks.
pub(crate) fn split_count(blocks: usize, depth: usize) -> usize {
    let wanted = if blocks >= TASKS - 4 { 1 } else { TASKS.div_ceil(blocks.max(1)) };
    wanted.min(depth / MIN_SPLIT).max(1)
}

/// Rows of a block where there are enough of them, and where there are few.
const LARGE_BLOCK: usize = 112;
const SMALL_BLOCK: usize = 56;

/// Rows of large blocks are multiples of those of a tile.
const ROW_STEP: usize = 16;

/// Most rows of a block of a product with a large B, which is read once a block.
pub(crate) const LARGEST_BLOCK: usize = 448;

/// Elements of B from which it is large: it does not stay in the second-level cache.
const LARGE_B: usize = 384 * 1024;

/// Columns of a task of a block of more than [`LARGE_BLOCK`] rows: its part of C stays in the second-level cache.
const GROUP_COLS: usize = 512;

/// The rows of an output, cut into blocks of equal size; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowBlocks {
    /// Number of blocks.
    pub count: usize,
    /// Rows of each block but the last (of each matrix).
    pub rows: usize,
}

impl RowBlocks {
    pub(crate) fn new(total: usize, rows: usize) -> RowBlocks {
        RowBlocks { count: total.div_ceil(rows.max(1)), rows }
    }

    /// The rows of block `index` of an output with `total` rows.
    pub fn range(&self, index: usize, total: usize) -> Range<usize> {
        index * self.rows..total.min((index + 1) * self.rows)
    }
}

/// Row blocks of a product `[m, k] x [k, n]`.
pub(crate) fn row_blocks_for(m: usize, n: usize, k: usize) -> RowBlocks {
    let limit = match m {
        _ if n * k >= LARGE_B => LARGEST_BLOCK,
        m if m >= TASKS * LARGE_BLOCK => LARGE_BLOCK,
        _ => SMALL_BLOCK,
    };
    let count = m.div_ceil(limit).max(1);
    let rows = m.div_ceil(count);
    RowBlocks::new(m, if limit == LARGEST_BLOCK { rows.next_multiple_of(ROW_STEP) } else { rows })
}

/// Row blocks that are multiplied at once where blocks may be as large as [`LARGEST_BLOCK`], and enough of them are left for all threads:
/// windows of one block have lines in common, and what is done once for a block weighs less.
pub(crate) fn joined_blocks(blocks: RowBlocks, threads: usize) -> usize {
    (LARGEST_BLOCK / blocks.rows.max(1)).min(blocks.count / (JOINED_OF_THREAD * threads.max(1))).max(1)
}

/// Fewest joined blocks of each thread.
const JOINED_OF_THREAD: usize = 8;

/// Consecutive row blocks that tasks compute, while they ask for the memory of the next one: first long runs, which are most blocks,
/// then single ones that keep all threads busy to the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRuns {
    blocks: usize,
    long: usize,
    long_count: usize,
}

impl BlockRuns {
    /// Runs of `blocks` blocks for a number of threads.
    pub(crate) fn new(blocks: usize, threads: usize) -> BlockRuns {
        let long_count = LONG_RUNS * threads.max(1);
        match blocks * 3 / 4 / long_count {
            0 | 1 => BlockRuns { blocks, long: 1, long_count: 0 },
            long => BlockRuns { blocks, long, long_count },
        }
    }

    /// Number of runs.
    pub(crate) fn count(&self) -> usize {
        self.blocks - self.long_count * (self.long - 1)
    }

    /// The blocks of a run, each with the one after it in the run.
    pub(crate) fn blocks(&self, run: usize) -> impl Iterator<Item = (usize, Option<usize>)> {
        let range = match run < self.long_count {
            true => run * self.long..(run + 1) * self.long,
            false => {
                let block = run + self.long_count * (self.long - 1);
                block..block + 1
            }
        };
        let end = range.end;
        range.map(move |block| (block, Some(block + 1).filter(|next| *next < end)))
    }
}

/// Long runs of each thread.
const LONG_RUNS: usize = 2;

/// Columns of each task of a row block, where the `n` columns of `blocks` are cut: not at all unless there would be too few
/// tasks. `threads` are given where nothing depends on how columns are cut: then there are as many pieces as keep so many
/// equally busy, since each copies its rows of A, and as keep C in the caches.
pub(crate) fn column_groups(blocks: RowBlocks, n: usize, format: PanelFormat, threads: Option<usize>) -> RowBlocks {
    let RowBlocks { count: blocks, rows } = blocks;
    let most = n.div_ceil(2 * MAX_PANEL).max(1);
    let groups = match threads {
        None if blocks >= TASKS - 4 => 1,
        None => TASKS.div_ceil(blocks.max(1)).min(most),
        Some(threads) => {
            // Time of the busiest thread, in row blocks, with a share for copying the rows.
            let copy_share = if format == PanelFormat::Tiles { TILES_COPY_COLS / n.max(1) as f64 } else { COPY_SHARE };
            let time = |groups: usize| {
                let rounds = (blocks * groups).div_ceil(threads.max(1)) as f64;
                rounds * (1.0 / groups as f64 + copy_share)
            };
            let least = if rows > LARGE_BLOCK { n.div_ceil(GROUP_COLS) } else { 1 };
            (least..=most.min(2 * threads.max(least))).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(1)
        }
    };
    RowBlocks::new(n, n.div_ceil(groups).next_multiple_of(2 * MAX_PANEL))
}

/// Time of copying the rows of A of a block, and of an epilogue on parts of rows of C in place of whole ones, relative to that of the
/// products.
const COPY_SHARE: f64 = 0.06;

/// Columns whose products with tiles take as long as copying the rows of A.
const TILES_COPY_COLS: f64 = 64.0;

/// Cuts `0..total` into pieces of nearly equal length, at most `limit`, that are multiples of `step` but the last. At least
/// one piece.
pub(crate) fn even_chunks(total: usize, limit: usize, step: usize) -> RowBlocks {
    let count = total.div_ceil(limit).max(1);
    let length = total.div_ceil(count).next_multiple_of(step).min(limit);
    RowBlocks { count: total.div_ceil(length.max(1)).max(1), rows: length }
}

#[cfg(test)]
mod tests {
    use super::BlockRuns;

    #[test]
    fn runs_have_each_block_once() {
        for blocks in 0..200 {
            for threads in [1, 2, 7, 64] {
                let runs = BlockRuns::new(blocks, threads);
                let mut all = Vec::new();
                for run in 0..runs.count() {
                    let (own, next): (Vec<usize>, Vec<Option<usize>>) = runs.blocks(run).unzip();
                    let behind = own[1..].iter().copied().map(Some).chain([None]);
                    assert_eq!(next, behind.collect::<Vec<_>>(), "{runs:?}");
                    all.extend(own);
                }
                assert_eq!(all, (0..blocks).collect::<Vec<_>>(), "{runs:?}");
            }
        }
    }
}
