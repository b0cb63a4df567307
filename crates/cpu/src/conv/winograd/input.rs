//! The transform of the input, and of the output gradient for the gradient of the weights: from pixels of tiles to operands of
//! a product for each position.

use std::ops::Range;

use super::plan::{InputLayout, Problem, inside};
use super::points::{self, INPUTS, OUTPUTS, POSITIONS, TileSide};
use crate::gemm::{AffinePtr, LINE};
use crate::simd::{Simd, SimdOp};

/// The pixels of a tile.
#[derive(Clone)]
struct Pixels {
    /// Lines from the first pixel on, of which those outside the image are all zeros.
    lines: [*const f32; INPUTS],
    /// Distance of pixels.
    pitch: usize,
    /// The lines in the image, and the pixels of these.
    inside: [Range<usize>; 2],
}

/// Transforms some channels of some tiles.
pub(super) struct TransformInput<'a, T> {
    pub side: T,
    pub problem: &'a Problem,
    pub layout: &'a InputLayout,
    pub src: *const f32,
    /// What is done to the pixels inside the image.
    pub affine: Option<AffinePtr>,
    pub tiles: Range<usize>,
    /// Those of the layout.
    pub channels: Range<usize>,
    /// Where, in the layout, the first of the tiles goes.
    pub to: usize,
    pub dst: *mut f32,
    /// [`zeros_len`] zeros.
    pub zeros: *const f32,
}

/// Zeros that stand for a line of a tile.
pub(super) fn zeros_len(problem: &Problem) -> usize {
    INPUTS * problem.channels
}

impl<T: TileSide> SimdOp for TransformInput<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let InputLayout { chunks, tile_stride, .. } = *self.layout;
        let offsets: [usize; POSITIONS] = std::array::from_fn(|position| self.layout.offset(0, position));
        let mut pixels = self.pixels(self.tiles.start);
        for (i, tile) in self.tiles.clone().enumerate() {
            let next = self.pixels(tile + 1);
            let affine = self.affine.map(|affine| affine.of_image(self.problem.tile(tile).0));
            for chunk in 0..chunks.count {
                let range = chunks.range(chunk, self.channels.len());
                let channels = self.channels.start + range.start..self.channels.start + range.end;
                // SAFETY: the promises made for these tiles.
                unsafe {
                    let dst = self.dst.add(self.layout.offset(chunk, 0) + (self.to + i) * tile_stride);
                    transform_tile::<S, T>(self.side, &pixels, &next, affine, channels, dst, &offsets);
                }
            }
            pixels = next;
        }
    }
}

impl<T: TileSide> TransformInput<'_, T> {
    #[inline(always)]
    fn pixels(&self, tile: usize) -> Pixels {
        let Problem { input: [height, width], channels, pad, .. } = *self.problem;
        let (image, y, x) = self.problem.tile(tile);
        let (y, x) = (y as isize - pad[0], x as isize - pad[1]);
        let inside = [inside(y, height, T::PIXELS), inside(x, width, T::PIXELS)];
        let mut pixels = Pixels { lines: [self.zeros; INPUTS], pitch: channels, inside };
        for i in pixels.inside[0].clone() {
            let line = (image * height) as isize + y + i as isize;
            pixels.lines[i] = self.src.wrapping_offset((line * width as isize + x) * channels as isize);
        }
        pixels
    }
}

/// Transforms some channels of a tile to `offsets` of `dst`, and prefetches what the `next` one does not share with it.
///
/// # Safety
/// The pixels have the channels, and `dst` has room for them, rounded up to a cache line. Called under
/// `S::run_op`.
#[inline(always)]
unsafe fn transform_tile<S: Simd, T: TileSide>(
    side: T,
    pixels: &Pixels,
    next: &Pixels,
    affine: Option<AffinePtr>,
    channels: Range<usize>,
    dst: *mut f32,
    offsets: &[usize; POSITIONS],
) {
    let whole = channels.len() / S::LANES * S::LANES;
    let rest = channels.len() - whole;
    // SAFETY: the caller's promises; the buffer holds whole vectors.
    unsafe {
        for c in (0..whole).step_by(S::LANES) {
            let channel = channels.start + c;
            if c % LINE == 0 {
                for line in &next.lines[..T::PIXELS] {
                    for j in T::PIXELS - OUTPUTS..T::PIXELS {
                        S::prefetch(line.wrapping_add(j * next.pitch + channel));
                    }
                }
            }
            let affine = affine.map(|affine| affine.at(channel));
            transform_vector::<S, T>(Vector { side, pixels, affine, channel, dst: dst.add(c), offsets });
        }
        if rest > 0 {
            let mut buffer = [[[0.0; LINE]; INPUTS]; INPUTS];
            let mut copy = Pixels { pitch: LINE, ..pixels.clone() };
            for (i, line) in buffer.iter_mut().enumerate() {
                for j in pixels.inside[1].clone() {
                    let channel = channels.start + whole;
                    let src = pixels.lines[i].wrapping_add(j * pixels.pitch + channel);
                    let dst = line[j].as_mut_ptr();
                    match affine.filter(|_| pixels.inside[0].contains(&i)) {
                        None => S::copy(src, dst, rest),
                        Some(affine) => affine.at(channel).copy_f32::<S>(src, dst, rest),
                    }
                }
                copy.lines[i] = line.as_flattened().as_ptr();
            }
            transform_vector::<S, T>(Vector {
                side,
                pixels: &copy,
                affine: None,
                channel: 0,
                dst: dst.add(whole),
                offsets,
            });
        }
    }
}

/// A vector of channels of a tile.
struct Vector<'a, T> {
    side: T,
    pixels: &'a Pixels,
    /// That of these channels.
    affine: Option<AffinePtr>,
    /// The first of the channels.
    channel: usize,
    dst: *mut f32,
    offsets: &'a [usize; POSITIONS],
}

/// Transforms a vector of channels. A function of its own, because inlined into the loop over channels it keeps an
/// address for each of its loads and stores.
///
/// # Safety
/// As for [`transform_tile`]; the machine has `S`.
#[inline(never)]
unsafe fn transform_vector<S: Simd, T: TileSide>(vector: Vector<'_, T>) {
    // SAFETY: the caller's promises.
    unsafe { S::run_op(vector) }
}

impl<T: TileSide> SimdOp for Vector<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pixels = self.pixels;
        // SAFETY: the promises of `transform_vector`.
        unsafe {
            let mut columns = [[S::splat(0.0); INPUTS]; INPUTS];
            for j in 0..T::PIXELS {
                if !pixels.inside[1].contains(&j) {
                    continue;
                }
                let mut column = [S::splat(0.0); INPUTS];
                for i in 0..T::PIXELS {
                    let pixel = S::load(pixels.lines[i].wrapping_add(j * pixels.pitch + self.channel));
                    column[i] = match self.affine {
                        Some(affine) if pixels.inside[0].contains(&i) => affine.vector::<S>().apply(pixel),
                        _ => pixel,
                    };
                }
                columns[j] = self.side.transform::<S>(column);
            }
            for i in 0..INPUTS {
                let mut line = [S::splat(0.0); INPUTS];
                for j in 0..T::PIXELS {
                    line[j] = columns[j][i];
                }
                let line = self.side.transform::<S>(line);
                for j in 0..INPUTS {
                    S::store(self.dst.add(self.offsets[i * INPUTS + j]), line[j]);
                }
            }
        }
    }
}

const _: () = assert!(OUTPUTS + points::TAPS - 1 == INPUTS);
