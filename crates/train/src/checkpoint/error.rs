use bessemer_weights::FileError;
use std::fmt;
use std::path::PathBuf;

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

/// Why a checkpoint cannot be read or written.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    File(#[from] FileError),

    #[error("{}: written in checkpoint format {found}; this program reads formats up to {supported}", path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },

    #[error("{}: no whole checkpoint is left: {}", folder.display(), join(damage))]
    NoneWhole { folder: PathBuf, damage: Vec<Damage> },
}

fn join(damage: &[Damage]) -> String {
    damage.iter().map(Damage::to_string).collect::<Vec<_>>().join("; ")
}
