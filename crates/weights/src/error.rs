use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Characters of a name from the file that an error shows.
const MAX_SHOWN: usize = 80;

/// Text from a file as an error shows it: on one line and not long.
pub(crate) fn shown(text: &str) -> String {
    let escaped = text.chars().flat_map(char::escape_debug);
    let mut short: String = escaped.take(MAX_SHOWN).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        short.push_str("...");
    }
    short
}

/// Why a file of weights cannot be read or written.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: the disk is full ({source}); what was written before is untouched", path.display())]
    DiskFull { path: PathBuf, source: io::Error },

    #[error("{}: the folder cannot be written ({source}); what was written before is untouched", path.display())]
    NotWritable { path: PathBuf, source: io::Error },

    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error("{}: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },

    #[error("{}: tensor `{tensor}`: {reason}", path.display())]
    Tensor { path: PathBuf, tensor: String, reason: String },

    #[error("{}: {expected}", path.display())]
    NotFound { path: PathBuf, expected: String },
}

impl FileError {
    /// A file that is not whole, or contradicts itself.
    pub fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    /// Nothing at a path, or not what is wanted.
    pub fn not_found(path: &Path, expected: impl Into<String>) -> Self {
        Self::NotFound { path: path.to_owned(), expected: expected.into() }
    }

    /// What the system says where a path is written to.
    pub fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory => {
                Self::NotWritable { path, source }
            }
            _ => Self::Io { path, source },
        }
    }

    /// What the system says where a path is read from.
    pub fn reading(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}
