//! Names and ids of what is written for pictures, so that no file takes the place of another one.

use crate::error::TrainError;
use crate::tasks::EachInput;
use crate::tasks::infer::JPEG_QUALITY;
use bessemer_data::FileFormat;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A picture with the name and the id that its results have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedPicture {
    pub path: PathBuf,
    /// Name of what is written, without the extension. No other picture has it, in whatever case.
    pub stem: String,
    /// No other picture has it.
    pub id: i64,
}

impl NamedPicture {
    /// Names each picture like its file, and `NAME-2`, `NAME-3` and so on where a picture before it has that name. Its id is
    /// the name of the file if that is a number that no picture before it has; the others get their number among the
    /// inputs, from 1, or the next free one.
    pub(super) fn all(files: EachInput<PathBuf>) -> EachInput<Self> {
        let (mut stems, mut ids) = (BTreeSet::new(), BTreeSet::new());
        let mut named = |path: PathBuf| {
            let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
            let id = stem.parse::<i64>().ok().filter(|&id| ids.insert(id));
            let stem = free_stem(&stem, &mut stems);
            (path, stem, id)
        };
        let named: EachInput<_> = files.into_iter().map(|file| file.map(&mut named)).collect();
        let numbered = (1_i64..).zip(named).map(|(number, named)| {
            let (path, stem, id) = named?;
            let next = || (number..).find(|&id| ids.insert(id)).expect("there are more ids than pictures");
            Ok(Self { path, stem, id: id.unwrap_or_else(next) })
        });
        numbered.collect()
    }

    /// Name and format of the file of the picture, drawn in: PNG for a PNG, and JPEG for all others.
    pub(super) fn file(&self) -> (String, FileFormat) {
        let ending = self.path.extension().unwrap_or_default().to_string_lossy();
        let (ending, format) = match ending.to_lowercase().as_str() {
            "png" => (&*ending, FileFormat::Png),
            "jpg" | "jpeg" => (&*ending, FileFormat::Jpeg(JPEG_QUALITY)),
            _ => ("jpg", FileFormat::Jpeg(JPEG_QUALITY)),
        };
        (format!("{}.{ending}", self.stem), format)
    }
}

/// The name, or the first of `NAME-2`, `NAME-3` and so on that is not taken, which it then is.
fn free_stem(stem: &str, taken: &mut BTreeSet<String>) -> String {
    let others = (2_u64..).map(|number| format!("{stem}-{number}"));
    let mut names = std::iter::once(stem.to_owned()).chain(others);
    names.find(|name| taken.insert(name.to_lowercase())).expect("there are more names than pictures")
}

/// The files of pictures, none of which may be overwritten.
#[derive(Debug, Default)]
pub(super) struct Originals(BTreeSet<PathBuf>);

impl Originals {
    pub(super) fn of<'a>(pictures: impl Iterator<Item = &'a NamedPicture>) -> Self {
        Self(pictures.filter_map(|picture| fs::canonicalize(&picture.path).ok()).collect())
    }

    /// # Errors
    /// A file `name` in `folder` that is one of the pictures; `what` says what the folder is for.
    pub(super) fn check(&self, what: &'static str, folder: &Path, name: &str) -> Result<(), TrainError> {
        let path = folder.join(name);
        if !fs::canonicalize(&path).is_ok_and(|path| self.0.contains(&path)) {
            return Ok(());
        }
        let allowed = format!("the input {} would be overwritten; name another folder", path.display());
        Err(TrainError::setting(what, folder.display(), allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(files: &[&str]) -> Vec<(String, i64)> {
        let pictures = NamedPicture::all(files.iter().map(|file| Ok(PathBuf::from(file))).collect());
        pictures.into_iter().map(|picture| picture.unwrap()).map(|picture| (picture.file().0, picture.id)).collect()
    }

    #[test]
    fn names_and_ids_are_unique() {
        let expect = |files: &[&str], expected: &[(&str, i64)]| {
            let expected: Vec<_> = expected.iter().map(|&(name, id)| (name.to_owned(), id)).collect();
            assert_eq!(named(files), expected, "{files:?}");
        };
        expect(&["a/1.jpg", "b/1.jpg", "c/01.png"], &[("1.jpg", 1), ("1-2.jpg", 2), ("01.png", 3)]);
        expect(&["dog.jpg", "1.jpg"], &[("dog.jpg", 2), ("1.jpg", 1)]);
        expect(&["cat.jpg", "cat.png", "Cat.jpeg"], &[("cat.jpg", 1), ("cat-2.png", 2), ("Cat-3.jpeg", 3)]);
        expect(&["a/x.jpg", "b/x.jpg", "x-2.jpg"], &[("x.jpg", 1), ("x-2.jpg", 2), ("x-2-2.jpg", 3)]);
        expect(&["7.jpg", "2.jpg", "x.jpg", "y.jpg"], &[("7.jpg", 7), ("2.jpg", 2), ("x.jpg", 3), ("y.jpg", 4)]);
    }

    #[test]
    fn a_bad_input_has_a_number() {
        let bad = || Err(TrainError::setting("the input", "x", "nothing is there"));
        let pictures = NamedPicture::all(vec![bad(), Ok("a.jpg".into())]);
        assert!(pictures[0].is_err() && pictures[1].as_ref().unwrap().id == 2);
    }

    #[test]
    fn the_extension_is_that_of_the_format() {
        let named = named(&["a.webp", "b.BMP", "c.JPEG", "d.PNG", "e"]);
        let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.jpg", "b.jpg", "c.JPEG", "d.PNG", "e.jpg"]);
    }
}
