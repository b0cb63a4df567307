use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{DataError, Dataset, Label, Normalization, Philox, Scratch, hex};

const IMAGES: &str = "images_u8_nhwc.bin";
const LABELS: &str = "labels_u8.bin";
const DESCRIPTION: &str = "expected.json";

/// A small evaluation set kept in three files: `images_u8_nhwc.bin` u8 `[N, H, W, 3]`, `labels_u8.bin` u8 `[N]` and
/// `expected.json` with `images` (the shape), `classes` (names in label order), `mean` and `std`.
#[derive(Debug)]
pub struct CifarBin {
    root: PathBuf,
    description: Description,
    images: Vec<u8>,
    labels: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct Description {
    images: [usize; 4],
    classes: Vec<String>,
    mean: [f32; 3],
    std: [f32; 3],
}

impl CifarBin {
    /// Reads and checks the three files.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, DataError> {
        let root = root.into();
        let description = read_description(&root.join(DESCRIPTION))?;
        let [count, height, width, _] = description.images;
        let bytes = [height, width, 3].into_iter().try_fold(count, usize::checked_mul).ok_or_else(|| {
            let problem = format!("images is {:?}", description.images);
            DataError::layout(&root.join(DESCRIPTION), problem, format!("at most {} bytes of pixels", usize::MAX))
        })?;
        let images = read_exactly(&root.join(IMAGES), bytes)?;
        let labels = read_exactly(&root.join(LABELS), count)?;
        let classes = description.classes.len();
        if let Some(offset) = labels.iter().position(|&label| usize::from(label) >= classes) {
            let problem = format!("label {} at byte {offset}", labels[offset]);
            return Err(DataError::layout(&root.join(LABELS), problem, format!("labels below {classes}")));
        }
        Ok(Self { root, description, images, labels })
    }

    /// How pixels are to be normalised.
    pub fn normalization(&self) -> Normalization {
        Normalization { mean: self.description.mean, std: self.description.std }
    }
}

impl Dataset for CifarBin {
    type Target = Label;

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn class_names(&self) -> &[String] {
        &self.description.classes
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        let [_, height, width, _] = self.description.images;
        [height, width]
    }

    fn load(&self, index: usize, _: &mut Philox, _: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        let bytes = out.len();
        out.copy_from_slice(&self.images[index * bytes..(index + 1) * bytes]);
        Ok(Label(self.labels[index].into()))
    }

    fn source(&self, index: usize) -> String {
        format!("{} record {index}", self.root.join(IMAGES).display())
    }

    /// SHA-256 over images and labels.
    fn identity(&self) -> String {
        let hash = Sha256::new().chain_update(&self.images).chain_update(&self.labels).finalize();
        format!("cifar-bin:sha256:{}", hex(&hash))
    }
}

fn read_description(path: &Path) -> Result<Description, DataError> {
    let text = fs::read(path).map_err(DataError::io(path, "read the file"))?;
    let description: Description = serde_json::from_slice(&text).map_err(|error| {
        DataError::layout(path, error.to_string(), "JSON with images [N, H, W, 3], classes, mean [3] and std [3]")
    })?;
    let [count, height, width, channels] = description.images;
    if count == 0 || !(1..=4096).contains(&height) || !(1..=4096).contains(&width) || channels != 3 {
        let problem = format!("images is {:?}", description.images);
        return Err(DataError::layout(path, problem, "[N, H, W, 3] with N at least 1, H and W 1 to 4096"));
    }
    if description.std.iter().any(|&std| !(std.is_finite() && std > 0.0)) {
        return Err(DataError::layout(path, format!("std is {:?}", description.std), "three numbers above 0"));
    }
    Ok(description)
}

fn read_exactly(path: &Path, expected: usize) -> Result<Vec<u8>, DataError> {
    let bytes = fs::read(path).map_err(DataError::io(path, "read the file"))?;
    if bytes.len() != expected {
        let expected = format!("{expected} bytes, as {DESCRIPTION} says");
        return Err(DataError::layout(path, format!("{} bytes", bytes.len()), expected));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    fn write(root: &Path, images: &[u8], labels: &[u8], json: &str) {
        fs::write(root.join(IMAGES), images).unwrap();
        fs::write(root.join(LABELS), labels).unwrap();
        fs::write(root.join(DESCRIPTION), json).unwrap();
    }

    const JSON: &str =
        r#"{"images":[2,1,2,3],"classes":["a","b"],"mean":[0.5,0.4,0.3],"std":[0.1,0.2,0.3],"accuracy":1}"#;

    #[test]
    fn reads_records() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &(0..12).collect::<Vec<u8>>(), &[1, 0], JSON);
        let set = CifarBin::open(root.path()).unwrap();
        assert_eq!((set.len(), set.num_classes(), set.image_size(0)), (2, 2, [1, 2]));
        assert_eq!(set.normalization().std, [0.1, 0.2, 0.3]);
        let mut out = [0; 6];
        let mut rng = Purpose::Augment.stream(0, 0, 0);
        let label = set.load(1, &mut rng, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!((label, out), (Label(0), [6, 7, 8, 9, 10, 11]));
    }

    #[test]
    fn names_what_is_wrong() {
        let root = tempfile::tempdir().unwrap();
        let message = || CifarBin::open(root.path()).unwrap_err().to_string();
        assert!(message().contains("expected.json: cannot read the file"));
        write(root.path(), &[0; 11], &[1, 0], JSON);
        assert!(message().contains("images_u8_nhwc.bin: 11 bytes; expected 12 bytes"));
        write(root.path(), &[0; 12], &[1, 2], JSON);
        assert!(message().contains("labels_u8.bin: label 2 at byte 1; expected labels below 2"));
        write(root.path(), &[0; 12], &[1, 0], "{}");
        assert!(message().contains("missing field `images`"));
        write(root.path(), &[0; 12], &[1, 0], &JSON.replace("[2,1,2,3]", "[2,1,2,4]"));
        assert!(message().contains("expected [N, H, W, 3]"));
        write(root.path(), &[], &[], &JSON.replace("[2,1,2,3]", "[6148914691236517206,1,1,3]"));
        let text = message();
        assert!(text.contains("expected.json: images is [6148914691236517206, 1, 1, 3]"), "{text}");
    }
}
