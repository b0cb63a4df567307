use std::f64::consts::TAU;

use super::raster::Mask;
use crate::Philox;

type Colour = [f32; 3];

const GRID: usize = 6;
const LEAST_CONTRAST: f32 = 90.0;
const CONTRAST_ATTEMPTS: usize = 20;

/// A surface: two colours mixed by smooth blotches and stripes.
pub(super) struct Texture {
    colours: [Colour; 2],
    blotches: [[f32; GRID]; GRID],
    wave: [f32; 3],
    stripes: f32,
}

fn near(main: Colour, rng: &mut Philox) -> Colour {
    main.map(|value| (value + rng.uniform(-35.0, 35.0) as f32).clamp(0.0, 255.0))
}

impl Texture {
    /// Any two colours.
    pub(super) fn background(rng: &mut Philox) -> Self {
        let colours = [colour(rng), colour(rng)];
        Self::new(colours, rng)
    }

    /// Two colours near each other.
    pub(super) fn plain(rng: &mut Philox) -> Self {
        let main = colour(rng);
        Self::new([main, near(main, rng)], rng)
    }

    /// Two colours near each other and far from those of `other`.
    pub(super) fn in_contrast_to(other: &Self, rng: &mut Philox) -> Self {
        let mut main = colour(rng);
        for _ in 0..CONTRAST_ATTEMPTS {
            if other.colours.iter().all(|&taken| distance(main, taken) >= LEAST_CONTRAST) {
                break;
            }
            main = colour(rng);
        }
        Self::new([main, near(main, rng)], rng)
    }

    fn new(colours: [Colour; 2], rng: &mut Philox) -> Self {
        let mut blotches = [[0.0; GRID]; GRID];
        for value in blotches.iter_mut().flatten() {
            *value = rng.next_f64() as f32;
        }
        let (sin, cos) = rng.uniform(0.0, TAU).sin_cos();
        let frequency = rng.uniform(10.0, 50.0);
        let wave = [frequency * cos, frequency * sin, rng.uniform(0.0, TAU)].map(|value| value as f32);
        let stripes = if rng.chance(0.5) { rng.uniform(0.1, 0.4) as f32 } else { 0.0 };
        Self { colours, blotches, wave, stripes }
    }

    /// The colour at `x` and `y`, both 0 to 1.
    fn at(&self, x: f32, y: f32) -> Colour {
        let wave = (self.wave[0] * x + self.wave[1] * y + self.wave[2]).sin();
        let mix = (self.blotch(x, y) + self.stripes * wave).clamp(0.0, 1.0);
        blend(self.colours[0], self.colours[1], mix)
    }

    fn blotch(&self, x: f32, y: f32) -> f32 {
        let cell = |v: f32| {
            let scaled = v.clamp(0.0, 1.0) * (GRID - 1) as f32;
            let low = (scaled as usize).min(GRID - 2);
            (low, scaled - low as f32)
        };
        let ((column, across), (row, down)) = (cell(x), cell(y));
        let lerp = |a: f32, b: f32, t: f32| a + (b - a) * t;
        let along = |row: usize| lerp(self.blotches[row][column], self.blotches[row][column + 1], across);
        lerp(along(row), along(row + 1), down)
    }
}

/// A picture being painted, in floating point, `[height, width]`.
pub(super) struct Canvas {
    pub(super) width: usize,
    pub(super) height: usize,
    pixels: Vec<Colour>,
}

impl Canvas {
    pub(super) fn new(width: usize, height: usize, background: &Texture) -> Self {
        let at = |i: usize| background.at((i % width) as f32 / width as f32, (i / width) as f32 / height as f32);
        Self { width, height, pixels: (0..width * height).map(at).collect() }
    }

    /// Paints the texture where the mask covers.
    pub(super) fn fill(&mut self, mask: &Mask, texture: &Texture) {
        for (row, line) in mask.coverage.chunks_exact(mask.width.max(1)).enumerate() {
            let y = mask.top + row;
            for (column, &coverage) in line.iter().enumerate().filter(|&(_, &coverage)| coverage > 0.0) {
                let x = mask.left + column;
                let colour = texture.at(x as f32 / self.width as f32, y as f32 / self.height as f32);
                let pixel = &mut self.pixels[y * self.width + x];
                *pixel = blend(*pixel, colour, coverage.min(1.0));
            }
        }
    }

    /// Writes the picture with noise of up to `noise` levels to `out` `[height, width, 3]`.
    pub(super) fn finish(&self, noise: f32, rng: &mut Philox, out: &mut [u8]) {
        for (target, pixel) in out.as_chunks_mut::<3>().0.iter_mut().zip(&self.pixels) {
            let random = rng.next_u32().to_le_bytes();
            for channel in 0..3 {
                let offset = (f32::from(random[channel]) / 127.5 - 1.0) * noise;
                target[channel] = (pixel[channel] + offset).round().clamp(0.0, 255.0) as u8;
            }
        }
    }
}

fn colour(rng: &mut Philox) -> Colour {
    [(); 3].map(|()| rng.uniform(10.0, 245.0) as f32)
}

fn blend(a: Colour, b: Colour, share: f32) -> Colour {
    std::array::from_fn(|channel| a[channel] + (b[channel] - a[channel]) * share)
}

fn distance(a: Colour, b: Colour) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}
