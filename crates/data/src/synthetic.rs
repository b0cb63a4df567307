use crate::augment::check_size;
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
