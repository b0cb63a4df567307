use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a data set, and where.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The system refused to read a file or folder.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// A file or folder could not be made, written, renamed or removed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Write { path: PathBuf, action: &'static str, source: io::Error },

    /// A file or folder is not what the data set's layout asks for.
    #[error("{}: {problem}; expected {expected}", path.display())]
    Layout { path: PathBuf, problem: String, expected: String },

    /// A place in a file is not what the file's format asks for.
    #[error("{}: {place}: {problem}; expected {expected}", path.display())]
    Content { path: PathBuf, place: FilePosition, problem: String, expected: String },

    /// An image file is damaged or of an unsupported kind.
    #[error("{}: {source}", path.display())]
    Image { path: PathBuf, source: DecodeError },

    /// A setting is outside its range.
    #[error("{name} is {value}, expected {expected}")]
    Option { name: &'static str, value: String, expected: String },

    /// Bad samples are skipped, and every sample is bad.
    #[error("none of the {samples} samples can be read; the last one failed with: {last}")]
    NothingReadable { samples: usize, last: Box<DataError> },

    /// The making of a data set was stopped on request.
    #[error("{}: stopped before the data set was complete", path.display())]
    Stopped { path: PathBuf },

    /// Loading a sample panicked, which is a defect of this program or of a decoder it uses.
    #[error("sample {index}: loading it panicked: {message}")]
    Panicked { index: usize, message: String },
}

/// Where in a file something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePosition {
    /// Counted from 1.
    Line(usize),
    /// Offset from the start of the file.
    Byte(u64),
    /// A row of a table, counted from 1.
    Row(usize),
    /// A record.
    Record {
        /// Counted from 1.
        number: usize,
        /// Offset of its first byte from the start of the file, or of what a compressed file unpacks to.
        byte: u64,
    },
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Record { number, byte } => write!(f, "record {number} at byte {byte}"),
        }
    }
}

impl DataError {
    /// Whether a sample is damaged.
    pub fn is_of_sample(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::Content { .. })
    }

    /// Whether the data or the settings are to blame, and not the disk, a stop or a defect of this program.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Write { .. } | Self::Stopped { .. } | Self::Panicked { .. } => false,
            Self::NothingReadable { last, .. } => last.is_usage(),
            Self::Io { .. } | Self::Layout { .. } | Self::Content { .. } | Self::Image { .. } | Self::Option { .. } => {
                true
            }
        }
    }

    /// Of reading.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), action, source: of_reading(source) }
    }

    /// Of making, writing, renaming and removing.
    pub(crate) fn writing(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { path: path.to_owned(), action, source }
    }

    pub(crate) fn layout(path: &Path, problem: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Layout { path: path.to_owned(), problem: problem.into(), expected: expected.into() }
    }

    pub(crate) fn content(
        path: &Path,
        place: FilePosition,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Content { path: path.to_owned(), place, problem: problem.into(), expected: expected.into() }
    }

    pub(crate) fn option(name: &'static str, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::Option { name, value: value.to_string(), expected: expected.into() }
    }
}

/// An error of reading, in plain words where it is that a folder stands where a file is expected.
fn of_reading(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::IsADirectory => io::Error::new(error.kind(), "it is a folder; a file is expected"),
        _ => error,
    }
}

/// Why the bytes of an image cannot be decoded.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "not an image: the file starts with {start}; expected JPEG (FF D8 FF), PNG (89 50 4E 47), WebP (RIFF....WEBP) or BMP (BM)"
    )]
    UnknownFormat { start: String },

    #[error("the image is {width}x{height}; expected sides of 1 to {max_side} and at most {max_pixels} pixels")]
    Dimensions { width: u64, height: u64, max_side: u32, max_pixels: u64 },

    #[error("truncated {format}: the file ends at byte {length}; expected {expected} before its end")]
    Truncated { format: &'static str, length: usize, expected: &'static str },

    #[error("damaged {format}{}: {reason}; expected {expected}", at(*offset))]
    Damaged { format: &'static str, offset: Option<u64>, reason: String, expected: &'static str },
}

fn at(offset: Option<u64>) -> String {
    offset.map(|offset| format!(" near byte {offset}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coco::ResultsWriter;
    use crate::record_shards::ShardWriter;
    use crate::squad::Predictions;
    use crate::text::Vocabulary;
    use crate::{FileFormat, Image};

    /// Whether the error of this result is one of usage.
    fn is_usage<T>(result: Result<T, DataError>) -> bool {
        result.map(|_| ()).expect_err("it is refused").is_usage()
    }

    #[test]
    fn failures_to_write_are_no_usage() {
        let folder = tempfile::tempdir().unwrap();
        let (file, missing) = (folder.path().join("file"), folder.path().join("missing/file"));
        std::fs::write(&file, "").unwrap();
        assert!(is_usage(Image::read(&missing)) && is_usage(Vocabulary::open(&missing)));
        assert!(is_usage(Image::read(&file)), "a damaged picture");

        assert!(!is_usage(Image::filled(1, 1, [0; 3]).write(&missing, FileFormat::Png)));
        assert!(!is_usage(ResultsWriter::create(&missing)));
        assert!(!is_usage(ShardWriter::create(missing)));
        assert!(!is_usage(Predictions { questions: Vec::new() }.write(&file)));
    }

    #[test]
    fn a_folder_in_place_of_a_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = crate::read_text(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with(": cannot read the file: it is a folder; a file is expected"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_no_usage() {
        let full = Path::new("/dev/full");
        assert!(!is_usage(ResultsWriter::create(full).unwrap().finish()));
        assert!(!is_usage(ShardWriter::create(full.to_owned()).and_then(|mut shard| {
            shard.add(&[0; 10])?;
            shard.finish()
        })));
    }
}
