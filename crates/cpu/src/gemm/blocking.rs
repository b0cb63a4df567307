//! How outputs are cut into blocks and tasks. Shapes alone decide wherever the order of sums depends on it.

use std::ops::Range;

use super::tile::MAX_PANEL;

/// Tasks that keep a machine of many cores busy; below this number outputs are cut finer.
pub(crate) const TASKS: usize = 16;

/// Rows of a block where there are enough of them, and where there are few.
const LARGE_BLOCK: usize = 112;
const SMALL_BLOCK: usize = 56;

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

/// Row blocks of an output of `m` rows.
pub(crate) fn row_blocks_for(m: usize) -> RowBlocks {
    let limit = if m >= 3 * TASKS * LARGE_BLOCK { LARGE_BLOCK } else { SMALL_BLOCK };
    let count = m.div_ceil(limit).max(1);
    RowBlocks::new(m, m.div_ceil(count))
}

/// Columns of each task of a row block, where `blocks` row blocks have `n` columns: all of them unless there would be too few
/// tasks. `threads` are given where nothing depends on how columns are cut: then there are as many pieces as keep so many
/// equally busy, since each copies its rows of A.
pub(crate) fn column_groups(blocks: usize, n: usize, threads: Option<usize>) -> RowBlocks {
    let most = n.div_ceil(2 * MAX_PANEL).max(1);
    let groups = match threads {
        None if blocks >= TASKS - 4 => 1,
        None => TASKS.div_ceil(blocks.max(1)).min(most),
        Some(threads) => {
            // Time of the busiest thread, in row blocks, with a share for copying the rows.
            let time = |groups: usize| {
                let rounds = (blocks * groups).div_ceil(threads.max(1)) as f64;
                rounds * (1.0 / groups as f64 + COPY_SHARE)
            };
            (1..=most.min(2 * threads)).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(1)
        }
    };
    RowBlocks::new(n, n.div_ceil(groups).next_multiple_of(MAX_PANEL))
}

/// Time of copying the rows of A of a block, relative to that of its products.
const COPY_SHARE: f64 = 0.01;

/// Cuts `0..total` into pieces of nearly equal length, at most `limit`, that are multiples of `step` but the last. At least
/// one piece.
pub(crate) fn pieces(total: usize, limit: usize, step: usize) -> RowBlocks {
    let count = total.div_ceil(limit).max(1);
    let length = total.div_ceil(count).next_multiple_of(step).min(limit);
    RowBlocks { count: total.div_ceil(length.max(1)).max(1), rows: length }
}
