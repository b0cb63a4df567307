use crate::error::io_error;
use crate::{FetchError, RemoteFile};
use bessemer_data::hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How the content of a file compares with what is known of it.
pub(crate) enum Comparison {
    Same,
    Differs {
        algorithm: &'static str,
        found: String,
        expected: String,
    },
    /// Nothing is known; this is its SHA-256.
    Unknown(String),
}

/// Compares a file with its published checksum.
pub(crate) fn compare(file: &RemoteFile, path: &Path) -> Result<Comparison, FetchError> {
    let (algorithm, found, expected) = match (&file.sha256, &file.md5) {
        (None, Some(md5)) => ("MD5", digest::<md5::Md5>(path)?, md5),
        (None, None) => return Ok(Comparison::Unknown(digest::<Sha256>(path)?)),
        (Some(sha256), _) => ("SHA-256", digest::<Sha256>(path)?, sha256),
    };
    if found == *expected {
        return Ok(Comparison::Same);
    }
    Ok(Comparison::Differs { algorithm, found, expected: expected.clone() })
}

/// In lower-case hexadecimal digits.
fn digest<D: Digest>(path: &Path) -> Result<String, FetchError> {
    let mut file = File::open(path).map_err(io_error(path, "open the file"))?;
    let mut hash = D::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(io_error(path, "read the file"))? {
            0 => return Ok(hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}
