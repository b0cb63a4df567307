use bessemer_data::DataError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a data set cannot be fetched.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The system refused an operation on a file or folder.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },

    /// A table of data sets is not of the form it should be.
    #[error("{}: {problem}", path.display())]
    Table { path: PathBuf, problem: String },

    /// No space is left on the disk.
    #[error("{}: no space is left on the disk; what was downloaded stays, and the same command goes on", path.display())]
    Full { path: PathBuf },

    /// There is less space than what is known to come.
    #[error("{}: {free} MB are free, {needed} MB are needed to download and unpack", folder.display())]
    Space { folder: PathBuf, free: u64, needed: u64 },

    /// The server refuses the file.
    #[error("{url}: the server answers with status {status}; `--from` takes the address of a mirror")]
    Refused { url: String, status: u16 },

    /// The server gives another size than the one that is known.
    #[error("{url}: the server has {found} bytes, expected {expected}")]
    Size { url: String, found: u64, expected: u64 },

    /// The processor lacks instructions that encrypted connections need.
    #[error(
        "{url}: https is not possible on this processor (it needs an x86-64 with AES, ADX and AVX2, or aarch64 with AES); `--from` takes the http:// address of a mirror"
    )]
    NoHttps { url: String },

    /// A file of certificates to trust cannot be used.
    #[error("{}: {problem}; expected a file of certificates in PEM form (SSL_CERT_FILE)", path.display())]
    Certificates { path: PathBuf, problem: String },

    /// The server's certificate is not trusted.
    #[error(
        "{url}: the certificate of the server is not trusted: {reason}; SSL_CERT_FILE may name a file of certificates to trust instead of Mozilla's roots"
    )]
    Untrusted { url: String, reason: String },

    /// No connection, or it broke again and again.
    #[error("{url}: {reason}, {attempts} times; what was downloaded stays, and the same command goes on")]
    Connection { url: String, reason: String, attempts: u32 },

    /// The content is not the published one.
    #[error("{}: {algorithm} is {found}, expected {expected}; the file is kept as {}", path.display(), bad.display())]
    Checksum { path: PathBuf, bad: PathBuf, algorithm: &'static str, found: String, expected: String },

    /// An archive is damaged, or names what it must not.
    #[error("{}: {problem}; the file is kept as {}", path.display(), bad.display())]
    Archive { path: PathBuf, bad: PathBuf, problem: String },

    /// It was stopped on request.
    #[error("{}: stopped; the same command goes on from here", path.display())]
    Stopped { path: PathBuf },

    /// A picture cannot be written.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl FetchError {
    /// Whether the caller can put it right, and not time or another disk.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Data(error) => error.is_usage(),
            _ => !matches!(self, Self::Io { .. } | Self::Full { .. } | Self::Connection { .. } | Self::Stopped { .. }),
        }
    }
}

pub(crate) fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> FetchError {
    move |source| match source.kind() {
        io::ErrorKind::StorageFull => FetchError::Full { path: path.to_owned() },
        _ => FetchError::Io { path: path.to_owned(), action, source },
    }
}
