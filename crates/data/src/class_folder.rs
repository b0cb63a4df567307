use std::path::{Path, PathBuf};

use crate::decode::decode_file;
use crate::listing::Listing;
use crate::{DataError, Dataset, Label, Philox, Scratch, Split, Transform};

/// One split of an ImageNet-like folder: `train/CLASS/*.{jpg,jpeg,png}` and `val/CLASS/*.{jpg,jpeg,png}`.
///
/// Classes are the folders of `train/` in the order of their names (bytes compared), and a class's label is its place
/// in that order for both splits. Files are sorted by class, then name. Extensions are matched without regard to case;
/// other files and hidden ones are passed over. What a file holds is decided by its content, not by its extension.
#[derive(Debug)]
pub struct ClassFolder {
    listing: Listing,
    transform: Transform,
}

impl ClassFolder {
    /// Lists the files of one split; nothing is decoded.
    ///
    /// Errors: a missing folder, `train/` or `val/`; no class folder; a class folder without images; a class of `val/`
    /// that `train/` lacks; a name that is not UTF-8; a transform out of range.
    pub fn open(root: impl AsRef<Path>, split: Split, transform: Transform) -> Result<Self, DataError> {
        transform.check()?;
        Ok(Self { listing: Listing::open(root.as_ref(), split)?, transform })
    }

    /// Path of the file of sample `index`.
    pub fn path(&self, index: usize) -> PathBuf {
        self.listing.path(index)
    }

    /// Label of sample `index`.
    pub fn label(&self, index: usize) -> u32 {
        self.listing.label(index)
    }

    /// The split that was opened.
    pub fn split(&self) -> Split {
        self.listing.split()
    }
}

impl Dataset for ClassFolder {
    type Target = Label;

    fn len(&self) -> usize {
        self.listing.len()
    }

    fn class_names(&self) -> &[String] {
        self.listing.classes()
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [self.transform.size() as usize; 2]
    }

    fn load(&self, index: usize, rng: &mut Philox, scratch: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        let info = decode_file(&self.path(index), &mut scratch.file, &mut scratch.pixels)?;
        let size = [info.height, info.width];
        self.transform.place(size, rng).draw(&scratch.pixels, size, &mut scratch.resize, out);
        Ok(Label(self.label(index)))
    }

    fn source(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    /// A hash over class, name and size of every file, in order.
    fn identity(&self) -> String {
        format!("folder:{}:sha256:{}", self.split().name(), self.listing.hash())
    }
}
