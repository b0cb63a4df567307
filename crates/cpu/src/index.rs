//! Rows chosen by index.

use crate::gemm::Ctx;
use crate::parts::{CHUNK, Shared, for_chunks};

/// An index outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} at position {position} is not in 0..{limit}")]
pub struct IndexOutOfRange {
    /// Where the index stands in the list of indices.
    pub position: usize,
    /// The index itself.
    pub index: i32,
    /// Number of rows of the table.
    pub limit: usize,
}

fn check(indices: &[i32], limit: usize) -> Result<(), IndexOutOfRange> {
    let outside = |&index: &i32| usize::try_from(index).map_or(true, |i| i >= limit);
    match indices.iter().position(outside) {
        None => Ok(()),
        Some(position) => Err(IndexOutOfRange { position, index: indices[position], limit }),
    }
}

/// Copies rows `indices` of a table of rows of `row_bytes` bytes: `out[i] = table[indices[i]]`.
///
/// # Errors
/// The first index that is not a row of the table.
pub fn gather(
    ctx: Ctx<'_>,
    table: &[u8],
    row_bytes: usize,
    indices: &[i32],
    out: &mut [u8],
) -> Result<(), IndexOutOfRange> {
    assert!(out.len() == indices.len() * row_bytes, "a gather got tensors of other sizes");
    if row_bytes == 0 {
        return Ok(());
    }
    check(indices, table.len() / row_bytes)?;
    let rows = (4 * CHUNK / row_bytes).max(1);
    for_chunks(ctx, out, rows * row_bytes, &|task, out| {
        for (row, &index) in out.chunks_exact_mut(row_bytes).zip(&indices[task * rows..]) {
            row.copy_from_slice(&table[index as usize * row_bytes..][..row_bytes]);
        }
    });
    Ok(())
}

/// Sizes of a scatter-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterDesc {
    /// Rows of the output.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Number of indices: rows of the updates.
    pub indices: usize,
}

/// Elements of a row that a task adds to at most.
const SCATTER_COLS: usize = 512;

/// Bands of rows at most.
const MOST_BANDS: usize = 64;

impl ScatterDesc {
    /// Rows of a band: the rows of one task.
    fn band_rows(&self) -> usize {
        (CHUNK / self.width.clamp(1, SCATTER_COLS)).max(self.rows.div_ceil(MOST_BANDS))
    }

    fn bands(&self) -> usize {
        self.rows.div_ceil(self.band_rows())
    }

    /// `f32` elements of scratch: for each band where its list ends, and the lists.
    pub fn scratch_len(&self) -> usize {
        self.bands() + 1 + self.indices
    }
}

/// `out` = zeros, then `out[indices[i]] += updates[i]` for rows of `width` elements, in the order of the indices.
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
    let ScatterDesc { rows, width, .. } = *desc;
    assert!(
        indices.len() == desc.indices && updates.len() == indices.len() * width && out.len() == rows * width,
        "a scatter_add got tensors of other sizes"
    );
    check(indices, rows)?;
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
            part(indices[i as usize] as usize).iter_mut().zip(update).for_each(|(x, &u)| *x += u);
        }
    });
    Ok(())
}

/// The positions of `indices`, ascending, band after band of the rows they point to, in `scratch`: where the list of each band
/// begins, and behind the last one where it ends, then the lists.
fn by_band<'a>(desc: &ScatterDesc, indices: &[i32], scratch: &'a mut [u32]) -> (&'a [u32], &'a [u32]) {
    let (height, bands) = (desc.band_rows(), desc.bands());
    let (starts, lists) = scratch[..desc.scratch_len()].split_at_mut(bands + 1);
    let band = |index: i32| index as usize / height;
    starts.fill(0);
    for &index in indices {
        starts[band(index) + 1] += 1;
    }
    for next in 1..=bands {
        starts[next] += starts[next - 1];
    }
    // Each start moves on to the end of its list, which is where the next one starts.
    for (position, &index) in indices.iter().enumerate() {
        let start = &mut starts[band(index)];
        lists[*start as usize] = position as u32;
        *start += 1;
    }
    starts.copy_within(..bands, 1);
    starts[0] = 0;
    (starts, lists)
}
