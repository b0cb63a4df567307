//! Files of instances, whatever program made them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Ids, hdf5, parquet, records};
use crate::text::Instance;
use crate::text::corpus::files_of;
use crate::text::maker::ExampleShape;
use crate::text::sequence::Sequence;
use crate::{DataError, FilePosition, Split};

const EXPECTED: &str = "files of instances for BERT: HDF5, Parquet of LDDL, or TFRecords";
/// What names of such files contain.
const NAMES: [&str; 4] = [".hdf5", ".h5", ".parquet", "tfrecord"];

/// What lies in one place of a file.
pub(super) enum Found {
    Instance(Instance),
    /// Segments of which no token is masked yet.
    Pair {
        sequence: Sequence,
        random_next: bool,
    },
}

/// Takes what lies in each place of a file.
pub(super) type Each<'a> = &'a mut dyn FnMut(FilePosition, Found) -> Result<(), DataError>;

/// A file of instances.
#[derive(Debug)]
pub(super) struct SourceFile {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Hdf5,
    Parquet,
    Records { gzip: bool },
}

/// Files as they are given, and those of folders whose names say that they hold instances, by path.
///
/// Errors: an input that does not exist or cannot be read; a file of another kind; an input without a file.
pub(super) fn find(inputs: &[PathBuf]) -> Result<Vec<SourceFile>, DataError> {
    let mut files = Vec::new();
    for input in inputs {
        let before = files.len();
        files_of(input, EXPECTED, &mut |path, _| {
            let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
            if path == input || NAMES.iter().any(|part| name.contains(part)) {
                files.push(SourceFile { path: path.to_owned(), kind: kind_of(path)? });
            }
            Ok(())
        })?;
        if files.len() == before {
            let problem = format!("no file in it whose name contains `{}`", NAMES.join("`, `"));
            return Err(DataError::layout(input, problem, EXPECTED));
        }
    }
    check_splits(&files)?;
    Ok(files)
}

/// Errors: files to train on and held-out ones beside each other, as NVIDIA's scripts write them.
fn check_splits(files: &[SourceFile]) -> Result<(), DataError> {
    let of = |split| files.iter().find(|file| split_of(&file.path) == Some(split));
    match (of(Split::Train), of(Split::Val)) {
        (Some(training), Some(test)) => {
            let problem = format!("it is of the files to train on, beside a held-out one, {}", test.path.display());
            Err(DataError::layout(&training.path, problem, "those to train on alone, and the others after --val"))
        }
        _ => Ok(()),
    }
}

/// What NVIDIA's scripts say of a file by its name, `..._training_0.hdf5` or `..._test_0.hdf5`, or by that of its folder.
fn split_of(path: &Path) -> Option<Split> {
    let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
    match (name.rfind("_training_"), name.rfind("_test_")) {
        (None, None) => match path.parent()?.file_name()?.to_str()? {
            "training" => Some(Split::Train),
            "test" => Some(Split::Val),
            _ => None,
        },
        (training, test) => Some(if training > test { Split::Train } else { Split::Val }),
    }
}

/// What a file's first bytes say.
fn kind_of(path: &Path) -> Result<Kind, DataError> {
    let file = File::open(path).map_err(DataError::io(path, "open the file"))?;
    let mut start = Vec::new();
    file.take(8).read_to_end(&mut start).map_err(DataError::io(path, "read the file"))?;
    Ok(match &start[..] {
        b"\x89HDF\r\n\x1a\n" => Kind::Hdf5,
        [b'P', b'A', b'R', b'1', ..] => Kind::Parquet,
        [0x1f, 0x8b, ..] => Kind::Records { gzip: true },
        _ => Kind::Records { gzip: false },
    })
}

impl SourceFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Lengths that the file pads its instances to, where it pads them and has one.
    pub(super) fn shape(&self) -> Result<Option<ExampleShape>, DataError> {
        match self.kind {
            Kind::Hdf5 => hdf5::Arrays::open(&self.path).map(|arrays| Some(arrays.shape())),
            Kind::Parquet => Ok(None),
            Kind::Records { gzip } => records::shape(&self.path, gzip),
        }
    }

    /// Hands all that the file holds to `each`, in order.
    ///
    /// Errors: those of `each`; a file that is damaged or holds something else.
    pub(super) fn each(&self, ids: &Ids, each: Each) -> Result<(), DataError> {
        match self.kind {
            Kind::Hdf5 => hdf5::Arrays::open(&self.path)?.each(ids.vocabulary.len(), each),
            Kind::Parquet => parquet::each(&self.path, ids, each),
            Kind::Records { gzip } => records::each(&self.path, gzip, ids.vocabulary.len(), each),
        }
    }
}
