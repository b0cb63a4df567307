//! Rows chosen by index.

use crate::gemm::Ctx;
use crate::parts::{PIECE, Shared, for_pieces};

/// An index outside its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} at position {position} is not in 0..{limit}")]
pub struct IndexOutOfRange {
    pub position: usize,
    pub index: i32,
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
    let rows = (4 * PIECE / row_bytes).max(1);
    for_pieces(ctx, out, rows * row_bytes, &|task, out| {
        for (row, &index) in out.chunks_exact_mut(row_bytes).zip(&indices[task * rows..]) {
            row.copy_from_slice(&table[index as usize * row_bytes..][..row_bytes]);
        }
    });
    Ok(())
}

/// `out` = zeros, then `out[indices[i]] += updates[i]` for rows of `width` elements, in the order of the indices.
///
/// # Errors
/// The first index that is not a row of the output.
pub fn scatter_add(
    ctx: Ctx<'_>,
    updates: &[f32],
    width: usize,
    indices: &[i32],
    out: &mut [f32],
) -> Result<(), IndexOutOfRange> {
    assert!(updates.len() == indices.len() * width, "a scatter_add got tensors of other sizes");
    if width == 0 {
        return Ok(());
    }
    let rows = out.len() / width;
    check(indices, rows)?;
    // Every task goes through all indices, so that there are not too many tasks.
    let (cols, height) = (width.min(512), (PIECE / width.min(512)).max(rows.div_ceil(64)));
    let col_tasks = width.div_ceil(cols);
    let base = &Shared(out.as_mut_ptr());
    ctx.pool.run(rows.div_ceil(height) * col_tasks, &|task, _worker| {
        let (first_row, first_col) = (task / col_tasks * height, task % col_tasks * cols);
        let len = cols.min(width - first_col);
        let own = first_row..rows.min(first_row + height);
        // SAFETY: the parts of rows lie within the output, and each belongs to one task.
        let part = |row: usize| unsafe { std::slice::from_raw_parts_mut(base.0.add(row * width + first_col), len) };
        own.clone().for_each(|row| part(row).fill(0.0));
        for (i, &index) in indices.iter().enumerate() {
            if own.contains(&(index as usize)) {
                let update = &updates[i * width + first_col..][..len];
                part(index as usize).iter_mut().zip(update).for_each(|(x, &u)| *x += u);
            }
        }
    });
    Ok(())
}
