//! Bilinear resizing that reads two pixels along each axis however much it shrinks: TensorFlow's two forms.

use fast_image_resize::CropBox;

/// Which place of the source a pixel of the result stands for, along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PixelCentres {
    /// Pixel `i` reads at `i * scale`: `tf.compat.v1.image.resize_bilinear` without options.
    Corner,
    /// Pixel `i` reads at `(i + 0.5) * scale - 0.5`: `tf.image.resize` of TensorFlow 2, and PyTorch's `interpolate` with
    /// `align_corners=False`.
    Half,
}

/// Memory that is kept from one image to the next.
#[derive(Default)]
pub(crate) struct TwoTapBuffers {
    columns: Vec<Tap>,
    rows: Vec<Tap>,
    /// A row of the result before it is resized across, `[source columns, 3]`.
    blended: Vec<f32>,
}

/// The two source pixels of a pixel of the result, and the share of the second one.
#[derive(Clone, Copy)]
struct Tap {
    low: usize,
    high: usize,
    share: f32,
}

/// The part of an image that is resized, and how.
#[derive(Clone, Copy)]
pub(crate) struct TwoTapView {
    /// May cut pixels.
    pub window: CropBox,
    /// Whether nothing around the window is read.
    pub is_cut: bool,
    /// Which places pixels stand for.
    pub centres: PixelCentres,
    /// Whether the source is mirrored first, which is not the same as mirroring the result where pixels stand for corners.
    pub flipped: bool,
}

/// Resizes a part of `source` `[height, width, 3]` to `target` `[target_height, target_width, 3]`; pixels are rounded to the nearest.
///
/// # Panics
/// If a buffer is too small for its size, a size is zero, or the window leaves the source.
pub(crate) fn resize_two_tap(
    source: &[u8],
    [height, width]: [u32; 2],
    view: TwoTapView,
    target: &mut [u8],
    [target_height, target_width]: [u32; 2],
    buffers: &mut TwoTapBuffers,
) {
    let TwoTapView { window, is_cut, centres, flipped } = view;
    let TwoTapBuffers { columns, rows, blended } = buffers;
    let left = if flipped { f64::from(width) - window.left - window.width } else { window.left };
    let limits = |start: f64, len: f64, size: u32| match is_cut {
        true => [start, start + len - 1.0],
        false => [0.0, f64::from(size) - 1.0],
    };
    find_taps(left, window.width, limits(left, window.width, width), target_width, centres, columns);
    find_taps(window.top, window.height, limits(window.top, window.height, height), target_height, centres, rows);
    if flipped {
        let last = width as usize - 1;
        columns.iter_mut().for_each(|tap| (tap.low, tap.high) = (last - tap.low, last - tap.high));
    }
    let row_len = width as usize * 3;
    let used = used_columns(columns);
    for tap in columns.iter_mut() {
        (tap.low, tap.high) = (tap.low - used.start, tap.high - used.start);
    }
    blended.resize(used.len() * 3, 0.0);
    let part = used.start * 3..used.end * 3;
    for (row, out) in rows.iter().zip(target.chunks_exact_mut(target_width as usize * 3)) {
        let line = |y: usize| &source[y * row_len..][part.clone()];
        blend_rows(line(row.low), line(row.high), row.share, blended);
        blend_columns(blended.as_chunks::<3>().0, columns, out.as_chunks_mut::<3>().0);
    }
}

/// The taps of `count` pixels that show `len` pixels of a source axis, from `start` on, and read from the first of `limits` to the
/// second.
fn find_taps(start: f64, len: f64, limits: [f64; 2], count: u32, centres: PixelCentres, taps: &mut Vec<Tap>) {
    let scale = len / f64::from(count);
    let [first, last] = limits;
    taps.clear();
    taps.extend((0..count).map(|index| {
        let place = match centres {
            PixelCentres::Corner => start + f64::from(index) * scale,
            PixelCentres::Half => start + (f64::from(index) + 0.5) * scale - 0.5,
        };
        let place = place.clamp(first, last);
        let low = place as usize;
        Tap { low, high: (low + 1).min(last as usize), share: (place - low as f64) as f32 }
    }));
}

/// Columns of the source that any tap reads.
fn used_columns(taps: &[Tap]) -> std::ops::Range<usize> {
    let ends = || taps.iter().flat_map(|tap| [tap.low, tap.high]);
    ends().min().unwrap_or(0)..ends().max().map_or(0, |last| last + 1)
}

fn blend_rows(low: &[u8], high: &[u8], share: f32, out: &mut [f32]) {
    for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
        let (low, high) = (f32::from(low), f32::from(high));
        *out = low + (high - low) * share;
    }
}

fn blend_columns(line: &[[f32; 3]], taps: &[Tap], out: &mut [[u8; 3]]) {
    for (out, tap) in out.iter_mut().zip(taps) {
        let (low, high) = (line[tap.low], line[tap.high]);
        for channel in 0..3 {
            out[channel] = (low[channel] + (high[channel] - low[channel]) * tap.share + 0.5) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Fixture {
        size: [u32; 2],
        pixels: Vec<u8>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        rule: String,
        scaled: [u32; 2],
        offset: [u32; 2],
        shown: [u32; 2],
        flipped: bool,
        expected: Vec<f64>,
    }

    /// The fixture holds a statement of TensorFlow 1's rule and PyTorch's `interpolate`, before rounding.
    #[test]
    fn equals_tensorflow_1_and_pytorch() {
        let text = include_str!("../tests/fixtures/detection/resize.json");
        let Fixture { size, pixels, cases } = serde_json::from_str(text).unwrap();
        let mut buffers = TwoTapBuffers::default();
        for Case { rule, scaled, offset, shown, flipped, expected } in &cases {
            let centres = if rule == "legacy" { PixelCentres::Corner } else { PixelCentres::Half };
            let step = [0, 1].map(|axis| f64::from(size[axis]) / f64::from(scaled[axis]));
            let left = if *flipped { scaled[1] - shown[1] - offset[1] } else { offset[1] };
            let window = CropBox {
                left: f64::from(left) * step[1],
                top: f64::from(offset[0]) * step[0],
                width: f64::from(shown[1]) * step[1],
                height: f64::from(shown[0]) * step[0],
            };
            let mut out = vec![0; (shown[0] * shown[1] * 3) as usize];
            let view = TwoTapView { window, is_cut: false, centres, flipped: *flipped };
            resize_two_tap(&pixels, size, view, &mut out, *shown, &mut buffers);
            for (index, (&found, expected)) in out.iter().zip(expected).enumerate() {
                let difference = (f64::from(found) - expected).abs();
                assert!(difference <= 0.502, "{rule} {scaled:?} {offset:?}, {index}: {found}, not {expected}");
            }
            assert_eq!(out.len(), expected.len());
        }
        assert_eq!(cases.len(), 18);
    }

    #[test]
    fn a_part_that_is_cut_out_is_resized_as_an_image_of_its_own() {
        let (size, part, target) = ([9, 11], [4, 5], [7, 3]);
        let pixels: Vec<u8> = (0..9 * 11 * 3).map(|i| (i * 37 % 251) as u8).collect();
        let [left, top] = [3, 2];
        let rows = (0..part[0]).map(|y| ((top + y) * size[1] + left) as usize * 3);
        let alone: Vec<u8> = rows.flat_map(|start| pixels[start..][..part[1] as usize * 3].to_vec()).collect();
        for (centres, flipped) in
            [PixelCentres::Corner, PixelCentres::Half].into_iter().flat_map(|c| [(c, false), (c, true)])
        {
            let resized = |source: &[u8], of, [left, top]: [u32; 2], is_cut| {
                let [height, width] = part.map(f64::from);
                let window = CropBox { left: f64::from(left), top: f64::from(top), width, height };
                let mut out = vec![0; 7 * 3 * 3];
                let view = TwoTapView { window, is_cut, centres, flipped };
                resize_two_tap(source, of, view, &mut out, target, &mut TwoTapBuffers::default());
                out
            };
            assert_eq!(resized(&pixels, size, [left, top], true), resized(&alone, part, [0, 0], false));
            assert_ne!(resized(&pixels, size, [left, top], false), resized(&alone, part, [0, 0], false));
        }
    }
}
