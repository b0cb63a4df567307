use crate::augment::check_size;
use crate::detection::{Framing, Object, Objects};
use crate::{DataError, Dataset, Label, Philox, Purpose, Scratch};

const DISTINCT_SAMPLES: usize = 64;

/// Random pixels with random labels, made once from a seed. There is nothing to learn: it is for measuring speed.
///
/// 64 distinct samples are kept and repeated to the length asked for.
#[derive(Debug)]
pub struct Synthetic {
    size: usize,
    len: usize,
    seed: u64,
    classes: Vec<String>,
    images: Vec<u8>,
    labels: Vec<u32>,
}

impl Synthetic {
    /// `len` samples `[size, size, 3]` with labels in 0..`classes`.
    pub fn new(seed: u64, len: usize, size: u32, classes: usize) -> Result<Self, DataError> {
        check_size(size)?;
        let classes_u32 = u32::try_from(classes).ok().filter(|&classes| classes > 0);
        let classes_u32 = classes_u32.ok_or_else(|| DataError::option("classes", classes, "1 to 2^32 - 1"))?;
        if len == 0 {
            return Err(DataError::option("samples", len, "at least 1"));
        }
        let mut rng = Purpose::Synthetic.stream(seed, 0, 0);
        let size = size as usize;
        let distinct = len.min(DISTINCT_SAMPLES);
        let mut images = vec![0; distinct * size * size * 3];
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
        [self.size, self.size]
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
        let Self { size, len, seed, .. } = self;
        format!("synthetic:seed={seed}:len={len}:size={size}:classes={}", self.classes.len())
    }
}

/// Random pixels with random boxes, for measuring the speed of detectors. There is nothing to learn.
///
/// 64 distinct images are kept and repeated to the length asked for.
#[derive(Debug)]
pub struct SyntheticObjects {
    images: Synthetic,
}

/// Most objects of an image.
const MOST_OBJECTS: u32 = 16;

impl SyntheticObjects {
    /// `len` samples `[size, size, 3]` of 1 to 16 objects with classes in 0..`classes`.
    ///
    /// # Errors
    /// As [`Synthetic::new`].
    pub fn new(seed: u64, len: usize, size: u32, classes: usize) -> Result<Self, DataError> {
        Ok(Self { images: Synthetic::new(seed, len, size, classes)? })
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
        let (size, classes) = (self.images.size as f64, self.num_classes() as u32);
        let mut drawn = Purpose::Synthetic.stream(self.images.seed, 1, index as u64);
        let objects = (0..1 + drawn.below(MOST_OBJECTS)).map(|_| {
            let [x, y] = [0, 1].map(|_| drawn.uniform(0.0, 0.9 * size));
            let [width, height] = [x, y].map(|start| drawn.uniform(0.05 * size, size - start));
            Object { bbox: [x, y, x + width, y + height], class: drawn.below(classes), mask: None }
        });
        let side = self.images.size as u32;
        let placement = Framing::fit([side; 2]).place([side; 2], rng);
        Ok(Objects::new(index as i32 + 1, objects.collect()).place(&placement))
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
        let a = Synthetic::new(1, 100, 8, 10).unwrap();
        let b = Synthetic::new(2, 100, 8, 10).unwrap();
        assert_eq!(load(&a, 5), load(&Synthetic::new(1, 100, 8, 10).unwrap(), 5));
        assert_ne!(load(&a, 5), load(&b, 5));
        assert_ne!(load(&a, 5), load(&a, 6));
        assert!((0..100).all(|index| load(&a, index).0.0 < 10));
        assert!(a.identity().starts_with("synthetic:seed=1"));
        assert!(Synthetic::new(1, 0, 8, 10).is_err());
        assert!(Synthetic::new(1, 1, 8, 0).is_err());
    }
}
