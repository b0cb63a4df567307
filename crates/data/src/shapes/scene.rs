use std::f64::consts::TAU;

use super::outline::{Point, Polygon, ShapeClass, area, bounding_box, outline, place};
use super::paint::{Canvas, Texture};
use super::raster::{Mask, rasterize};
use crate::{Image, Philox};

const PLACING_ATTEMPTS: usize = 40;
const MOST_STROKES: u32 = 7;
const NOISE: f32 = 14.0;
/// Largest number of shapes in a scene.
pub(super) const MOST_SHAPES: u32 = 8;

/// A drawn picture and what is in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// The drawn picture.
    pub picture: Image,
    /// What it shows.
    pub objects: Vec<SceneObject>,
}

/// A shape of a scene. Coordinates are pixels from the upper left corner; nothing hides it.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneObject {
    /// What it is.
    pub class: ShapeClass,
    /// Corners as `[x, y]`; filled by the even-odd rule.
    pub polygon: Vec<[f64; 2]>,
    /// Left, top, width, height.
    pub bbox: [f64; 4],
    /// Area of the polygon.
    pub area: f64,
    /// Which part of each pixel it covers.
    pub mask: Mask,
}

struct Spot {
    centre: Point,
    radius: f64,
}

/// Draws one shape of the given class, large, at any place and turn, on a plain ground, into `out` `[size, size, 3]`.
pub(super) fn draw_single(class: ShapeClass, size: usize, rng: &mut Philox, out: &mut [u8]) {
    let background = Texture::plain(rng);
    let mut canvas = Canvas::new(size, size, &background);
    let spot = random_spot(size, size, (0.36, 0.48), rng);
    draw_object(&mut canvas, class, &spot, &background, rng);
    canvas.finish(NOISE, rng, out);
}

/// Draws one to eight shapes that do not touch.
pub(super) fn draw_scene(width: usize, height: usize, rng: &mut Philox) -> Scene {
    let background = Texture::background(rng);
    let mut canvas = Canvas::new(width, height, &background);
    draw_strokes(&mut canvas, rng);
    let wanted = 1 + rng.below(MOST_SHAPES);
    let spots = separate_spots(wanted as usize, width, height, rng);
    let draw = |spot: &Spot| {
        let class = ShapeClass::ALL[rng.below(ShapeClass::ALL.len() as u32) as usize];
        draw_object(&mut canvas, class, spot, &background, rng)
    };
    let objects = spots.iter().map(draw).collect();
    let mut picture = Image::filled(width, height, [0; 3]);
    canvas.finish(NOISE, rng, &mut picture.pixels);
    Scene { picture, objects }
}

fn draw_object(
    canvas: &mut Canvas,
    class: ShapeClass,
    spot: &Spot,
    background: &Texture,
    rng: &mut Philox,
) -> SceneObject {
    let unit = outline(class, rng);
    let polygon = place(&unit, spot.centre, spot.radius, rng.uniform(0.0, TAU), rng.uniform(0.75, 1.0));
    let mask = rasterize(&polygon, canvas.width, canvas.height);
    canvas.fill(&mask, &Texture::in_contrast_to(background, rng));
    SceneObject { class, bbox: bounding_box(&polygon), area: area(&polygon), polygon, mask }
}

/// Thin strokes under the shapes, so that an edge alone says nothing about the class.
fn draw_strokes(canvas: &mut Canvas, rng: &mut Philox) {
    for _ in 0..rng.below(MOST_STROKES) {
        let mask = rasterize(&stroke(canvas.width, canvas.height, rng), canvas.width, canvas.height);
        canvas.fill(&mask, &Texture::background(rng));
    }
}

fn stroke(width: usize, height: usize, rng: &mut Philox) -> Polygon {
    let centre = [rng.uniform(0.0, width as f64), rng.uniform(0.0, height as f64)];
    let side = width.min(height) as f64;
    let (half_length, half_width) = (side * rng.uniform(0.05, 0.3), side * rng.uniform(0.006, 0.02));
    let bar = [
        [-half_length, -half_width],
        [half_length, -half_width],
        [half_length, half_width],
        [-half_length, half_width],
    ];
    place(&bar, centre, 1.0, rng.uniform(0.0, TAU), 1.0)
}

/// A circle inside the picture, its radius a fraction of the short side.
fn random_spot(width: usize, height: usize, fractions: (f64, f64), rng: &mut Philox) -> Spot {
    let radius = width.min(height) as f64 * rng.uniform(fractions.0, fractions.1);
    let centre = [rng.uniform(radius, width as f64 - radius), rng.uniform(radius, height as f64 - radius)];
    Spot { centre, radius }
}

/// Up to `wanted` circles that do not touch, at least one.
fn separate_spots(wanted: usize, width: usize, height: usize, rng: &mut Philox) -> Vec<Spot> {
    let mut spots: Vec<Spot> = Vec::new();
    for _ in 0..PLACING_ATTEMPTS {
        let spot = random_spot(width, height, (0.06, 0.24), rng);
        let apart = |other: &Spot| {
            let distance = (spot.centre[0] - other.centre[0]).hypot(spot.centre[1] - other.centre[1]);
            distance > spot.radius + other.radius + 1.0
        };
        if spots.iter().all(apart) {
            spots.push(spot);
        }
        if spots.len() == wanted {
            break;
        }
    }
    spots
}
