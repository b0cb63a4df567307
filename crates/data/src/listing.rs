//! Files of an ImageNet-like folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::decode::has_image_ending;
use crate::{DataError, IMAGE_ENDINGS, Split, hex};

const LAYOUT: &str = "train/CLASS/*.jpg and val/CLASS/*.jpg (or .jpeg, .png, .webp, .bmp)";

/// The image files of one split, by class, then name.
#[derive(Debug)]
pub(crate) struct Listing {
    /// That of the classes.
    folder: PathBuf,
    classes: Vec<String>,
    files: Vec<ImageFile>,
}

#[derive(Debug)]
struct ImageFile {
    class: u32,
    name: OsString,
    bytes: u64,
}

impl Listing {
    pub(crate) fn open(root: &Path, split: Split) -> Result<Self, DataError> {
        for folder in [root.to_owned(), root.join(Split::Train.name()), root.join(Split::Val.name())] {
            require_folder(&folder)?;
        }
        let classes = class_names(&root.join(Split::Train.name()))?;
        let present = match split {
            Split::Train => classes.clone(),
            Split::Val => val_classes(root, &classes)?,
        };
        let mut files = Vec::new();
        for class in present {
            let label = classes.binary_search(&class).expect("every class of a split is known") as u32;
            list_images(&root.join(split.name()).join(class), label, &mut files)?;
        }
        Ok(Self { folder: root.join(split.name()), classes, files })
    }

    /// The files to evaluate on: as [`Listing::open`] for `val`, but `train/` may be missing, and the folders of the classes may
    /// lie in the root itself.
    pub(crate) fn to_evaluate(root: &Path) -> Result<Self, DataError> {
        require_folder(root)?;
        let [train, val] = [Split::Train, Split::Val].map(|split| root.join(split.name()));
        if train.is_dir() {
            return Self::open(root, Split::Val);
        }
        let folder = if val.is_dir() { val } else { root.to_owned() };
        let classes = class_names(&folder)?;
        let mut files = Vec::new();
        for (label, class) in classes.iter().enumerate() {
            list_images(&folder.join(class), label as u32, &mut files)?;
        }
        Ok(Self { folder, classes, files })
    }

    pub(crate) fn classes(&self) -> &[String] {
        &self.classes
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn label(&self, index: usize) -> u32 {
        self.files[index].class
    }

    pub(crate) fn path(&self, index: usize) -> PathBuf {
        let file = &self.files[index];
        self.folder.join(&self.classes[file.class as usize]).join(&file.name)
    }

    /// Number of pictures beside the folders of the classes, which are of no class and are not read.
    pub(crate) fn pictures_of_no_class(&self) -> Result<usize, DataError> {
        let entries = visible_entries(&self.folder)?;
        let is_picture = |name: &&OsString| has_image_ending(Path::new(name)) && self.folder.join(name).is_file();
        Ok(entries.iter().filter(is_picture).count())
    }

    /// SHA-256 over class, name and size of every file, in order.
    pub(crate) fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        for file in &self.files {
            hasher.update(&self.classes[file.class as usize]);
            hasher.update(b"/");
            hasher.update(file.name.as_encoded_bytes());
            hasher.update(b"\0");
            hasher.update(file.bytes.to_le_bytes());
        }
        hex(&hasher.finalize())
    }
}

fn require_folder(path: &Path) -> Result<(), DataError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(DataError::layout(path, "is not a folder", format!("a folder in {LAYOUT}"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(DataError::layout(path, "no such folder", format!("a data set laid out as {LAYOUT}")))
        }
        Err(source) => Err(DataError::Io { path: path.to_owned(), action: "look at the folder", source }),
    }
}

pub(crate) fn class_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let mut names = Vec::new();
    for name in visible_entries(folder)? {
        let path = folder.join(&name);
        if !fs::metadata(&path).map_err(DataError::io(&path, "look at the file"))?.is_dir() {
            continue;
        }
        let name = name.into_string().map_err(|_| DataError::layout(&path, "the name is not UTF-8", "a UTF-8 name"))?;
        names.push(name);
    }
    if names.is_empty() {
        return Err(DataError::layout(folder, "no class folder in it", format!("a folder for each class: {LAYOUT}")));
    }
    names.sort_unstable();
    Ok(names)
}

fn val_classes(root: &Path, train_classes: &[String]) -> Result<Vec<String>, DataError> {
    let folder = root.join(Split::Val.name());
    let names = class_names(&folder)?;
    match names.iter().find(|&name| train_classes.binary_search(name).is_err()) {
        None => Ok(names),
        Some(unknown) => {
            let expected = format!("one of the {} classes of train/", train_classes.len());
            Err(DataError::layout(&folder.join(unknown), "train/ has no such class", expected))
        }
    }
}

fn list_images(folder: &Path, class: u32, files: &mut Vec<ImageFile>) -> Result<(), DataError> {
    let start = files.len();
    for name in visible_entries(folder)? {
        if !has_image_ending(Path::new(&name)) {
            continue;
        }
        let path = folder.join(&name);
        let metadata = fs::metadata(&path).map_err(DataError::io(&path, "look at the file"))?;
        if !metadata.is_file() {
            return Err(DataError::layout(&path, "is not a file", "an image file"));
        }
        files.push(ImageFile { class, name, bytes: metadata.len() });
    }
    if files.len() == start {
        let expected = format!("at least one file for each class that ends in {}", IMAGE_ENDINGS.join(", "));
        return Err(DataError::layout(folder, "no images in it", expected));
    }
    files[start..].sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

fn visible_entries(folder: &Path) -> Result<Vec<OsString>, DataError> {
    let entries = fs::read_dir(folder).map_err(DataError::io(folder, "list the folder"))?;
    let names: Result<Vec<OsString>, _> = entries.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let mut names = names.map_err(DataError::io(folder, "list the folder"))?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
    Ok(names)
}
