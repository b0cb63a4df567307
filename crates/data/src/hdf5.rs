//! Opening HDF5 files.

use std::fs;
use std::path::Path;

use hdf5_reader::{Hdf5File, OpenOptions};

/// As many times larger than its compressed form something in an HDF5 file can be (`deflate`).
pub const MOST_HDF5_COMPRESSION: usize = 1032;

/// Opens an HDF5 file, none of whose arrays is read.
///
/// # Errors
/// What is wrong, in words: a file that cannot be read, is none of HDF5, is damaged, or shorter than it says.
pub fn open_hdf5(path: &Path) -> Result<Hdf5File, String> {
    let bytes = fs::metadata(path).map_err(|error| error.to_string())?.len();
    let most = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_mul(MOST_HDF5_COMPRESSION);
    let options = OpenOptions::default().with_max_read_bytes(most);
    let file = Hdf5File::open_with_options(path, options).map_err(|error| error.to_string())?;
    match file.superblock().eof_address {
        end if end > bytes => Err(format!("truncated: {bytes} of {end} bytes are there")),
        _ => Ok(file),
    }
}
