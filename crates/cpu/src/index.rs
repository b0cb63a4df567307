//! Elements of tables chosen by index.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, Shared, for_chunks};
use bessemer_ir::ops::index::IndexGeometry;
pub use bessemer_ir::run::IndexOutOfRange;

/// Checks that all of `indices` are in `0..limit`.
pub(crate) fn check(indices: &[i32], limit: usize) -> Result<(), IndexOutOfRange> {
    refuse(indices, limit, |index| usize::try_from(index).map_or(true, |i| i >= limit))
}

/// Checks that all of `indices` are below `limit`; negative ones stand for none.
pub(crate) fn check_optional(indices: &[i32], limit: usize) -> Result<(), IndexOutOfRange> {
    refuse(indices, limit, |index| usize::try_from(index).is_ok_and(|i| i >= limit))
}

fn refuse(indices: &[i32], limit: usize, is_outside: impl Fn(i32) -> bool) -> Result<(), IndexOutOfRange> {
    match indices.iter().position(|&index| is_outside(index)) {
        None => Ok(()),
        Some(position) => Err(IndexOutOfRange { position, index: indices[position], limit }),
    }
}

/// Copies the rows that `indices` choose from a table of rows of `row_bytes` bytes.
///
/// # Errors
/// The first index that is not a row of the table.
///
/// # Panics
/// If a tensor has another size than `geometry` states.
pub fn gather(
    ctx: Ctx<'_>,
    geometry: &IndexGeometry,
    table: &[u8],
    row_bytes: usize,
    indices: &[i32],
    out: &mut [u8],
) -> Result<(), IndexOutOfRange> {
    assert!(
        table.len() == geometry.table_rows() * row_bytes
            && indices.len() == geometry.batches * geometry.items
            && out.len() == geometry.chosen() * row_bytes,
        "a gather got tensors of other sizes"
    );
    check(indices, geometry.rows)?;
    if row_bytes == 0 {
        return Ok(());
    }
    let rows = (4 * CHUNK / row_bytes).max(1);
    for_chunks(ctx, out, rows * row_bytes, &|task, out| {
        for (chosen, row) in (task * rows..).zip(out.chunks_exact_mut(row_bytes)) {
            let index = indices[geometry.index_position(chosen)] as usize;
            row.copy_from_slice(&table[geometry.table_row(chosen, index) * row_bytes..][..row_bytes]);
        }
    });
    Ok(())
}

/// Sizes of a scatter-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterDesc(pub IndexGeometry);

/// Elements of a row that a task adds to at most.
const SCATTER_COLS: usize = 512;

/// Bands of rows at most.
const MOST_BANDS: usize = 64;

impl ScatterDesc {
    /// Rows of a band: the rows of one task.
    fn band_rows(&self) -> usize {
        (CHUNK / self.0.width.clamp(1, SCATTER_COLS)).max(self.0.table_rows().div_ceil(MOST_BANDS))
    }

    fn bands(&self) -> usize {
        self.0.table_rows().div_ceil(self.band_rows())
    }

    /// `f32` elements of scratch: for each band where its list ends, and the lists.
    pub fn scratch_len(&self) -> usize {
        self.bands() + 1 + self.0.chosen()
    }

    /// Row of all tables to which update number `update` is added.
    fn target(&self, indices: &[i32], update: usize) -> usize {
        self.0.table_row(update, indices[self.0.index_position(update)] as usize)
    }
}

/// `out` = zeros, then each row of the updates, of `width` elements, is added to the row that its index chooses, in the order of
/// the updates.
///
/// # Errors
/// The first index that is not a row of the output.
///
/// # Panics
/// If a tensor has another size than `desc` states, or `scratch` is shorter than [`ScatterDesc::scratch_len`].
pub fn scatter_add(
    ctx: Ctx<'_>,
    desc: &ScatterDesc,
    updates: &[f32],
    indices: &[i32],
    out: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    let (geometry, rows, width) = (&desc.0, desc.0.table_rows(), desc.0.width);
    assert!(
        indices.len() == geometry.batches * geometry.items
            && updates.len() == geometry.chosen() * width
            && out.len() == rows * width,
        "a scatter_add got tensors of other sizes"
    );
    check(indices, geometry.rows)?;
    if width == 0 {
        return Ok(());
    }
    let height = desc.band_rows();
    let (ends, lists) = by_band(desc, indices, bytemuck::cast_slice_mut(scratch));
    let cols = width.min(SCATTER_COLS);
    let col_tasks = width.div_ceil(cols);
    let base = &Shared(out.as_mut_ptr());
    ctx.pool.run(desc.bands() * col_tasks, &|task, _worker| {
        let (band, first_col) = (task / col_tasks, task % col_tasks * cols);
        let len = cols.min(width - first_col);
        let own = band * height..rows.min((band + 1) * height);
        // SAFETY: the parts of rows lie within the output, and each belongs to one task.
        let part = |row: usize| unsafe { std::slice::from_raw_parts_mut(base.0.add(row * width + first_col), len) };
        own.clone().for_each(|row| part(row).fill(0.0));
        for &i in &lists[ends[band] as usize..ends[band + 1] as usize] {
            let update = &updates[i as usize * width + first_col..][..len];
            part(desc.target(indices, i as usize)).iter_mut().zip(update).for_each(|(x, &u)| *x += u);
        }
    });
    Ok(())
}

/// The numbers of the updates, ascending, band after band of the rows they are added to, in `scratch`: where the list of each
/// band begins, and behind the last one where it ends, then the lists.
fn by_band<'a>(desc: &ScatterDesc, indices: &[i32], scratch: &'a mut [u32]) -> (&'a [u32], &'a [u32]) {
    let (height, bands) = (desc.band_rows(), desc.bands());
    let (starts, lists) = scratch[..desc.scratch_len()].split_at_mut(bands + 1);
    let band = |update: usize| desc.target(indices, update) / height;
    starts.fill(0);
    for update in 0..desc.0.chosen() {
        starts[band(update) + 1] += 1;
    }
    for next in 1..=bands {
        starts[next] += starts[next - 1];
    }
    // Each start moves on to the end of its list, which is where the next one starts.
    for update in 0..desc.0.chosen() {
        let start = &mut starts[band(update)];
        lists[*start as usize] = update as u32;
        *start += 1;
    }
    starts.copy_within(..bands, 1);
    starts[0] = 0;
    (starts, lists)
}
