use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Characters of a name from the file that an error shows.
const MAX_SHOWN: usize = 80;

/// Text from a file as an error shows it: on one line and not long.
pub(super) fn shown(text: &str) -> String {
    let escaped = text.chars().flat_map(char::escape_debug);
    let mut short: String = escaped.take(MAX_SHOWN).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        short.push_str("...");
    }
    short
}

/// A checkpoint that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// What is wrong with it, without the path.
    pub reason: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

/// Why a checkpoint or a file of weights cannot be read or written.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
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

    #[error("{}: written in checkpoint format {found}; this program reads formats up to {supported}", path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },

    #[error("{}: no whole checkpoint is left: {}", folder.display(), join(damage))]
    NoneWhole { folder: PathBuf, damage: Vec<Damage> },

    #[error("{}: {expected}", path.display())]
    NotFound { path: PathBuf, expected: String },
}

fn join(damage: &[Damage]) -> String {
    damage.iter().map(Damage::to_string).collect::<Vec<_>>().join("; ")
}

impl CheckpointError {
    /// The reason alone, without the path that [`Damage`] names beside it.
    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    pub(super) fn writing(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::DiskFull { path, source },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory => {
                Self::NotWritable { path, source }
            }
            _ => Self::Io { path, source },
        }
    }

    pub(super) fn reading(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}
