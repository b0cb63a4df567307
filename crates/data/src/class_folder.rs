use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::decode::read_whole;
use crate::listing::{Listing, class_names};
use crate::{DataError, Dataset, Exif, Label, Philox, Scratch, Split, Stage, Transform};

/// One split of an ImageNet-like folder: `train/CLASS/*.jpg` and `val/CLASS/*.jpg`, or with another of the
/// [endings](crate::IMAGE_ENDINGS).
///
/// Classes are the folders of `train/` in the order of their names (bytes compared), and a class's label is its place
/// in that order for both splits. Files are sorted by class, then name. Extensions are matched without regard to case;
/// other files and hidden ones are passed over. What a file holds is decided by its content, not by its extension.
#[derive(Debug)]
pub struct ClassFolder {
    split: Split,
    listing: Listing,
    /// Of each folder, where labels are not the places of folders.
    labels: Option<Labels>,
    transform: Transform,
    exif: Exif,
}

/// Labels that a model gives to classes.
#[derive(Debug)]
struct Labels {
    names: Vec<String>,
    of_folder: Vec<u32>,
}

/// Name of a folder that is none of a model's classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownClass(pub String);

impl ClassFolder {
    /// Lists the files of one split; nothing is decoded.
    ///
    /// Errors: a missing folder, `train/` or `val/`; no class folder; a class folder without images; a class of `val/`
    /// that `train/` lacks; a name that is not UTF-8; a transform out of range.
    pub fn open(root: impl AsRef<Path>, split: Split, transform: Transform) -> Result<Self, DataError> {
        transform.check()?;
        Ok(Self::new(split, Listing::open(root.as_ref(), split)?, transform))
    }

    /// Lists the files to evaluate on: `val/` of a root with `train/` as [`ClassFolder::open`] does, or `val/CLASS/` alone, or
    /// `CLASS/` in the root.
    ///
    /// Errors: as [`ClassFolder::open`], but `train/` and `val/` may be missing.
    pub fn to_evaluate(root: impl AsRef<Path>, transform: Transform) -> Result<Self, DataError> {
        transform.check()?;
        Ok(Self::new(Split::Val, Listing::to_evaluate(root.as_ref())?, transform))
    }

    fn new(split: Split, listing: Listing, transform: Transform) -> Self {
        Self { split, listing, labels: None, transform, exif: Exif::Ignore }
    }

    /// Turns the images as `exif` asks; otherwise they stay as they are stored.
    pub fn oriented(self, exif: Exif) -> Self {
        Self { exif, ..self }
    }

    /// Names of the classes to train on of a data set of folders, `None` for any other form.
    pub fn classes_in(root: impl AsRef<Path>) -> Option<Vec<String>> {
        class_names(&root.as_ref().join(Split::Train.name())).ok()
    }

    /// Labels as a model gives them that knows more classes, or in another order: the place of a folder's name in `names`.
    ///
    /// Errors: a folder that is not among the names.
    pub fn labelled_by(self, names: &[String]) -> Result<Self, UnknownClass> {
        let label = |folder: &String| names.iter().position(|name| name == folder).map(|label| label as u32);
        let labels = self.listing.classes().iter().map(|folder| label(folder).ok_or(UnknownClass(folder.clone())));
        let of_folder = labels.collect::<Result<_, _>>()?;
        Ok(Self { labels: Some(Labels { names: names.to_vec(), of_folder }), ..self })
    }

    /// Names of the folders.
    pub fn folders(&self) -> &[String] {
        self.listing.classes()
    }

    /// Path of the file of sample `index`.
    pub fn path(&self, index: usize) -> PathBuf {
        self.listing.path(index)
    }

    /// Label of sample `index`.
    pub fn label(&self, index: usize) -> u32 {
        let folder = self.listing.label(index);
        self.labels.as_ref().map_or(folder, |labels| labels.of_folder[folder as usize])
    }

    /// The split that was opened.
    pub fn split(&self) -> Split {
        self.split
    }
}

impl Dataset for ClassFolder {
    type Target = Label;

    fn len(&self) -> usize {
        self.listing.len()
    }

    fn class_names(&self) -> &[String] {
        self.labels.as_ref().map_or(self.listing.classes(), |labels| &labels.names)
    }

    fn absent_classes(&self) -> Vec<usize> {
        let present: BTreeSet<u32> = (0..self.len()).map(|index| self.label(index)).collect();
        (0..self.num_classes()).filter(|&label| !present.contains(&(label as u32))).collect()
    }

    fn image_size(&self, _: usize) -> [usize; 2] {
        [self.transform.size() as usize; 2]
    }

    fn load(&self, index: usize, rng: &mut Philox, scratch: &mut Scratch, out: &mut [u8]) -> Result<Label, DataError> {
        let path = self.path(index);
        scratch.clock.start();
        read_whole(&path, &mut scratch.file)?;
        scratch.clock.end(Stage::Read);
        let drawn = self.transform.draw_file(scratch, &[], self.exif, rng, out);
        drawn.map_err(|source| DataError::Image { path, source })?;
        Ok(Label(self.label(index)))
    }

    fn source(&self, index: usize) -> String {
        self.path(index).display().to_string()
    }

    /// A hash over class, name and size of every file, in order, and whether they are turned.
    fn identity(&self) -> String {
        format!("folder:{}:sha256:{}{}", self.split().name(), self.listing.hash(), self.exif.identity())
    }
}
