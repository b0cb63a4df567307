//! Rows of chroma at the resolution of luma, and their conversion to RGB.

/// Blends a row with a neighbour, of which a quarter is taken.
#[inline(always)]
pub(super) fn blend(near: &[u8], far: &[u8], out: &mut [u8]) {
    for ((out, &near), &far) in out.iter_mut().zip(near).zip(far) {
        *out = blended(near, far);
    }
}

/// Doubles a row: each sample becomes two, which hold a quarter of its neighbours to the left and to the right. `out` has twice the length
/// of `row`, which is not empty.
#[inline(always)]
pub(super) fn double(row: &[u8], out: &mut [u8]) {
    let pairs = out.as_chunks_mut::<2>().0;
    let (Some(&first), Some(&last)) = (row.first(), row.last()) else { return };
    let end = row.len() - 1;
    let inner = &mut pairs[..end + 1];
    for index in 1..end {
        inner[index] = [blended(row[index], row[index - 1]), blended(row[index], row[index + 1])];
    }
    inner[0] = [first, blended(first, row[end.min(1)])];
    let left = if end == 0 { first } else { blended(last, row[end - 1]) };
    inner[end] = [left, if end == 0 { inner[0][1] } else { last }];
}

#[inline(always)]
fn blended(near: u8, far: u8) -> u8 {
    ((u16::from(near) * 3 + u16::from(far) + 2) >> 2) as u8
}

const BITS: u32 = 14;
const ROUNDING: i32 = (1 << (BITS - 1)) - 1;

/// YCbCr to RGB by BT.601 at full range (JFIF 1.02), with factors of 14 bits.
#[inline(always)]
pub(super) fn convert(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((out, &y), &cb), &cr) in out.as_chunks_mut::<3>().0.iter_mut().zip(y).zip(cb).zip(cr) {
        let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
        let add = |colour: i32| (y + ((colour + ROUNDING) >> BITS)).clamp(0, 255) as u8;
        *out = [add(cr * 22970), add(cr * -11700 + cb * -5638), add(cb * 29032)];
    }
}

/// Grey to RGB.
#[inline(always)]
pub(super) fn repeat(y: &[u8], out: &mut [u8]) {
    for (out, &y) in out.as_chunks_mut::<3>().0.iter_mut().zip(y) {
        *out = [y; 3];
    }
}
