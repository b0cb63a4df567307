use crate::error::FileError;
use bessemer_data::{NewFile, hidden_beside};
use std::io::{self, Write};
use std::path::Path;

/// Replaces the file at `path` by what `write` produces, which is durable then, or leaves it as it was.
///
/// # Errors
/// What `write` returns; an unwritable folder or a full disk.
pub fn publish_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), FileError> {
    let written = NewFile::create(path, &hidden_beside(path)).and_then(|mut file| {
        write(&mut file)?;
        file.place_durably()
    });
    written.map(drop).map_err(|source| FileError::writing(path, source))
}
