//! Pictures of shapes drawn from a seed: something real to learn with nothing to download.
//!
//! Colour, texture, size, place and turn are random and independent of the class; only the outline depends on it.

mod outline;
mod paint;
mod raster;
mod scene;
mod scene_set;
mod write;

pub use outline::ShapeClass;
pub use raster::Mask;
pub use scene::{Scene, SceneObject};
pub use scene_set::Scenes;
pub use write::{CocoFolder, ShapesFolder};

use crate::{DataError, Dataset, Label, Philox, Purpose, Scratch, Split};

const SMALLEST_SIDE: u32 = 16;
const LARGEST_SIDE: u32 = 4096;
/// Streams of scenes come after those of single shapes.
const SCENES: u32 = 2;

/// Pictures of one shape each, the classes in turn.
#[derive(Debug, Clone)]
pub struct Shapes {
    seed: u64,
    split: Split,
    len: usize,
    size: u32,
    classes: Vec<String>,
}

impl Shapes {
    /// Height and width where nothing else is asked for.
    pub const DEFAULT_SIZE: u32 = 64;

    /// `len` pictures `[size, size, 3]`; the same seed, split and index give the same picture.
    pub fn new(seed: u64, split: Split, len: usize, size: u32) -> Result<Self, DataError> {
        check_side(size)?;
        if len == 0 {
            return Err(DataError::option("samples", len, "at least 1"));
        }
        let classes = ShapeClass::ALL.iter().map(|class| class.name().to_owned()).collect();
        Ok(Self { seed, split, len, size, classes })
    }

    /// Only the first `count` classes, 1 to 10.
    pub fn with_classes(mut self, count: usize) -> Result<Self, DataError> {
        if !(1..=ShapeClass::ALL.len()).contains(&count) {
            return Err(DataError::option("classes of shapes", count, format!("1 to {}", ShapeClass::ALL.len())));
        }
        self.classes.truncate(count);
        Ok(self)
    }

    /// The class of picture `index`.
    pub fn class(&self, index: usize) -> ShapeClass {
        ShapeClass::ALL[index % self.classes.len()]
    }

    /// Draws picture `index` into `out` `[size, size, 3]`.
    pub fn draw(&self, index: usize, out: &mut [u8]) {
        let mut rng = Purpose::Shapes.stream(self.seed, self.split as u32, index as u64);
        scene::draw_single(self.class(index), self.size as usize, &mut rng, out);
    }
}

impl Dataset for Shapes {
    type Target = Label;

    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [self.size as usize; 2]
    }

    fn load(&self, index: usize, _: &mut Philox, _: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        self.draw(index, out);
        Ok(Label(self.class(index).label()))
    }

    fn source(&self, index: usize) -> String {
        format!("shapes {} picture {index}", self.split.name())
    }

    fn identity(&self) -> String {
        let Self { seed, split, len, size, classes } = self;
        format!("shapes:{}:seed={seed}:len={len}:size={size}:classes={}", split.name(), classes.len())
    }
}

/// Draws scene `index`: one to eight shapes with their boxes and masks. The same seed, split, index and size give the
/// same scene.
pub fn draw_scene(seed: u64, split: Split, index: usize, width: u32, height: u32) -> Result<Scene, DataError> {
    check_side(width)?;
    check_side(height)?;
    let mut rng = Purpose::Shapes.stream(seed, SCENES + split as u32, index as u64);
    Ok(scene::draw_scene(width as usize, height as usize, &mut rng))
}

fn check_side(side: u32) -> Result<(), DataError> {
    if (SMALLEST_SIDE..=LARGEST_SIDE).contains(&side) {
        return Ok(());
    }
    Err(DataError::option("image size", side, format!("{SMALLEST_SIDE} to {LARGEST_SIDE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, split: Split, index: usize) -> Vec<u8> {
        let mut out = vec![0; 32 * 32 * 3];
        Shapes::new(seed, split, 100, 32).unwrap().draw(index, &mut out);
        out
    }

    #[test]
    fn pictures_follow_seed_split_and_index() {
        let picture = drawn(1, Split::Train, 5);
        assert_eq!(picture, drawn(1, Split::Train, 5));
        assert_ne!(picture, drawn(2, Split::Train, 5));
        assert_ne!(picture, drawn(1, Split::Val, 5));
        assert_ne!(picture, drawn(1, Split::Train, 15));
    }

    #[test]
    fn classes_are_balanced() {
        let shapes = Shapes::new(0, Split::Train, 40, 32).unwrap();
        let mut counts = [0; 10];
        (0..40).for_each(|index| counts[shapes.class(index).label() as usize] += 1);
        assert_eq!(counts, [4; 10]);
        assert_eq!(shapes.class_names()[ShapeClass::Heart.label() as usize], "heart");
        let few = shapes.with_classes(3).unwrap();
        assert!((0..40).all(|index| few.class(index).label() == index as u32 % 3));
        assert_eq!(few.class_names(), ["circle", "square", "triangle"]);
        assert!(few.clone().with_classes(0).is_err() && few.with_classes(11).is_err());
    }

    #[test]
    fn scenes_hold_separate_shapes_inside_the_picture() {
        let mut most = 0;
        for index in 0..50 {
            let scene = draw_scene(3, Split::Train, index, 120, 90).unwrap();
            assert!((1..=8).contains(&scene.objects.len()));
            most = most.max(scene.objects.len());
            for object in &scene.objects {
                let [left, top, width, height] = object.bbox;
                assert!(left >= 0.0 && top >= 0.0 && left + width <= 120.0 && top + height <= 90.0);
                assert!(object.area > 0.0 && object.area < width * height + 1e-6);
            }
            for y in 0..90 {
                for x in 0..120 {
                    assert!(scene.objects.iter().filter(|object| object.mask.contains(x, y)).count() <= 1);
                }
            }
        }
        assert!(most >= 5, "{most}");
        assert_eq!(draw_scene(3, Split::Val, 1, 64, 64).unwrap(), draw_scene(3, Split::Val, 1, 64, 64).unwrap());
    }

    #[test]
    fn sizes_are_checked() {
        assert!(Shapes::new(0, Split::Train, 1, 15).is_err());
        assert!(Shapes::new(0, Split::Train, 0, 64).is_err());
        assert!(draw_scene(0, Split::Train, 0, 64, 5000).is_err());
    }
}
