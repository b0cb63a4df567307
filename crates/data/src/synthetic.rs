use crate::augment::check_size;
use crate::detection::{AnnotatedImages, Framing, Object, ObjectMask, Objects};
use crate::{DataError, Dataset, Label, Philox, Purpose, Scratch};

const DISTINCT_SAMPLES: usize = 64;

/// Random pixels with random labels, made once from a seed. There is nothing to learn: it is for measuring speed.
///
/// 64 distinct samples are kept and repeated to the length asked for.
#[derive(Debug)]
pub struct Synthetic {
    /// Height and width.
    size: [usize; 2],
    len: usize,
    seed: u64,
    classes: Vec<String>,
    images: Vec<u8>,
    labels: Vec<u32>,
}

impl Synthetic {
    /// `len` samples `[height, width, 3]` with labels in 0..`classes`.
    pub fn new(seed: u64, len: usize, size: [u32; 2], classes: usize) -> Result<Self, DataError> {
        size.iter().try_for_each(|&side| check_size(side))?;
        let classes_u32 = u32::try_from(classes).ok().filter(|&classes| classes > 0);
        let classes_u32 = classes_u32.ok_or_else(|| DataError::option("classes", classes, "1 to 2^32 - 1"))?;
        if len == 0 {
            return Err(DataError::option("samples", len, "at least 1"));
        }
        let mut rng = Purpose::Synthetic.stream(seed, 0, 0);
        let size = size.map(|side| side as usize);
        let distinct = len.min(DISTINCT_SAMPLES);
        let mut images = vec![0; distinct * size[0] * size[1] * 3];
        rng.fill(&mut images);
        let labels = (0..distinct).map(|_| rng.below(classes_u32)).collect();
        let classes = (0..classes).map(|class| format!("synthetic-{class}")).collect();
        Ok(Self { size, len, seed, classes, images, labels })
    }
}

impl Dataset for Synthetic {
    type Target = Label;

    fn len(&self) -> usize {
        self.len
    }

    fn class_names(&self) -> &[String] {
        &self.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        self.size
    }

    fn load(&self, index: usize, _: &mut Philox, _: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        let distinct = index % self.labels.len();
        let bytes = out.len();
        out.copy_from_slice(&self.images[distinct * bytes..(distinct + 1) * bytes]);
        Ok(Label(self.labels[distinct]))
    }

    fn source(&self, index: usize) -> String {
        format!("synthetic sample {index}")
    }

    fn identity(&self) -> String {
        let Self { size: [height, width], len, seed, .. } = self;
        // As before images could be of other shapes: runs on square ones go on.
        let size = if height == width { height.to_string() } else { format!("{height}x{width}") };
        format!("synthetic:seed={seed}:len={len}:size={size}:classes={}", self.classes.len())
    }
}

/// Random pixels with random objects, for measuring the speed of detectors. There is nothing to learn.
///
/// 64 distinct images are kept and repeated to the length asked for.
#[derive(Debug)]
pub struct SyntheticObjects {
    images: Synthetic,
    /// Whether objects have masks.
    masks: bool,
}

/// Most objects of an image.
const MOST_OBJECTS: u32 = 16;

impl SyntheticObjects {
    /// `len` samples `[height, width, 3]` of 1 to 16 objects with classes in 0..`classes`, and with `masks` ellipses that fill their
    /// boxes.
    ///
    /// # Errors
    /// As [`Synthetic::new`].
    pub fn new(seed: u64, len: usize, size: [u32; 2], classes: usize, masks: bool) -> Result<Self, DataError> {
        Ok(Self { images: Synthetic::new(seed, len, size, classes)?, masks })
    }
}

/// The pixels of the ellipse that fills the box `[x1, y1, x2, y2]`.
fn ellipse([x1, y1, x2, y2]: [f64; 4]) -> ObjectMask {
    let (left, top, right, bottom) = (x1 as usize, y1 as usize, x2.ceil() as usize, y2.ceil() as usize);
    let share = |place: usize, low: f64, high: f64| (2.0 * (place as f64 + 0.5) - low - high) / (high - low);
    let is_inside = |x: usize, y: usize| share(x, x1, x2).powi(2) + share(y, y1, y2).powi(2) <= 1.0;
    let pixels = (top..bottom).flat_map(|y| (left..right).map(move |x| is_inside(x, y))).collect();
    ObjectMask { left, top, width: right - left, pixels }
}

impl AnnotatedImages for SyntheticObjects {
    fn image(&self, index: usize) -> (i32, [u32; 2]) {
        (index as i32 + 1, self.images.size.map(|side| side as u32))
    }

    fn objects(&self, index: usize) -> Result<Vec<Object>, DataError> {
        let ([rows, columns], classes) = (self.images.size.map(|side| side as f64), self.num_classes() as u32);
        let mut drawn = Purpose::Synthetic.stream(self.images.seed, 1, index as u64);
        let objects = (0..1 + drawn.below(MOST_OBJECTS)).map(|_| {
            let [x, y] = [columns, rows].map(|side| drawn.uniform(0.0, 0.9 * side));
            let [width, height] =
                [(columns, x), (rows, y)].map(|(side, start)| drawn.uniform(0.05 * side, side - start));
            let bbox = [x, y, x + width, y + height];
            Object { bbox, class: drawn.below(classes), mask: self.masks.then(|| ellipse(bbox)) }
        });
        Ok(objects.collect())
    }
}

impl Dataset for SyntheticObjects {
    type Target = Objects;

    fn len(&self) -> usize {
        self.images.len()
    }

    fn class_names(&self) -> &[String] {
        self.images.class_names()
    }

    fn image_size(&self, index: usize) -> [usize; 2] {
        self.images.image_size(index)
    }

    fn load(
        &self,
        index: usize,
        rng: &mut Philox,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Objects, DataError> {
        self.images.load(index, rng, scratch, out)?;
        let (id, size) = self.image(index);
        Ok(Objects::new(id, self.objects(index)?).place(&Framing::fit(size).place(size, rng)))
    }

    fn source(&self, index: usize) -> String {
        self.images.source(index)
    }

    fn identity(&self) -> String {
        format!("objects of {}", self.images.identity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(set: &Synthetic, index: usize) -> (Label, Vec<u8>) {
        let mut out = vec![0; 8 * 8 * 3];
        let mut rng = Purpose::Augment.stream(0, 0, 0);
        (set.load(index, &mut rng, &mut Scratch::default(), &mut out).unwrap(), out)
    }

    #[test]
    fn follows_the_seed_and_is_marked() {
        let a = Synthetic::new(1, 100, [8; 2], 10).unwrap();
        let b = Synthetic::new(2, 100, [8; 2], 10).unwrap();
        assert_eq!(load(&a, 5), load(&Synthetic::new(1, 100, [8; 2], 10).unwrap(), 5));
        assert_ne!(load(&a, 5), load(&b, 5));
        assert_ne!(load(&a, 5), load(&a, 6));
        assert!((0..100).all(|index| load(&a, index).0.0 < 10));
        assert!(a.identity().starts_with("synthetic:seed=1"));
        assert!(Synthetic::new(1, 0, [8; 2], 10).is_err());
        assert!(Synthetic::new(1, 1, [8; 2], 0).is_err());
    }
}
