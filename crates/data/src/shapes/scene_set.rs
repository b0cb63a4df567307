//! Drawn scenes as a data set of images with objects.

use super::{Scene, SceneObject, ShapeClass, check_side, draw_scene};
use crate::detection::{AnnotatedImages, Framing, Object, ObjectMask, Objects};
use crate::{DataError, Dataset, Philox, Scratch, Split};

/// Scenes of one to eight shapes with their boxes and masks. Ids of images count from 1, as in the files of a
/// [`CocoFolder`](super::CocoFolder).
#[derive(Debug, Clone)]
pub struct Scenes {
    seed: u64,
    split: Split,
    len: usize,
    /// Height and width before framing.
    size: [u32; 2],
    framing: Framing,
    classes: Vec<String>,
}

impl Scenes {
    /// `len` scenes of `[height, width]` that are then framed; the same seed, split, index and size give the same scene.
    ///
    /// # Errors
    /// A size or a setting of the framing outside its range; no scenes.
    pub fn new(seed: u64, split: Split, len: usize, size: [u32; 2], framing: Framing) -> Result<Self, DataError> {
        size.iter().try_for_each(|&side| check_side(side))?;
        framing.check()?;
        if !(1..=i32::MAX as usize).contains(&len) {
            return Err(DataError::option("samples", len, format!("1 to {}", i32::MAX)));
        }
        let classes = ShapeClass::ALL.iter().map(|class| class.name().to_owned()).collect();
        Ok(Self { seed, split, len, size, framing, classes })
    }

    fn scene(&self, index: usize) -> Result<Scene, DataError> {
        let [height, width] = self.size;
        draw_scene(self.seed, self.split, index, width, height)
    }
}

/// The objects of a scene as those of an image.
fn objects_of(scene: &Scene) -> Vec<Object> {
    let object = |object: &SceneObject| {
        let [left, top, width, height] = object.bbox;
        let bbox = [left, top, left + width, top + height];
        Object { bbox, class: object.class.label(), mask: Some(ObjectMask::from(&object.mask)) }
    };
    scene.objects.iter().map(object).collect()
}

impl AnnotatedImages for Scenes {
    fn image(&self, index: usize) -> (i32, [u32; 2]) {
        (index as i32 + 1, self.size)
    }

    fn objects(&self, index: usize) -> Result<Vec<Object>, DataError> {
        Ok(objects_of(&self.scene(index)?))
    }
}

impl Dataset for Scenes {
    type Target = Objects;

    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        self.framing.canvas(self.size).map(|side| side as usize)
    }

    fn load(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Objects, DataError> {
        let scene = self.scene(index)?;
        let placement = self.framing.place(self.size, rng);
        placement.draw(&scene.picture.pixels, self.size, &mut scratch.resize, out);
        Ok(Objects::new(self.image(index).0, objects_of(&scene)).place(&placement))
    }

    fn source(&self, index: usize) -> String {
        format!("scenes {} picture {index}", self.split.name())
    }

    fn identity(&self) -> String {
        let Self { seed, split, len, size: [height, width], .. } = self;
        format!("scenes:{}:seed={seed}:len={len}:size={height}x{width}", split.name())
    }
}
