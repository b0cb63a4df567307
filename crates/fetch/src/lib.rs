//! Public data sets: where they are, downloading, checking, and unpacking to the layouts that training reads.
//!
//! [`data_sets`] is the table, [`fetch`] brings one of its entries, or any other [`DataSet`], into a folder. A file is
//! downloaded as `NAME.part`, goes on there after an interruption, is compared with its size and checksum, and is unpacked beside
//! its destination, to which only what is complete is moved.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod checksum;
mod download;
mod error;
mod sets;
mod unpack;

pub use download::{Options, Report};
pub use error::FetchError;
pub use sets::{DataSet, Kind, RemoteFile, data_sets, read_data_sets};

use error::io_error;
use std::fs;
use std::path::Path;

/// Downloads the files of a data set into `folder` and unpacks them there. Files whose content is there already are left as they
/// are; archives are removed once they are unpacked. Returns the number of files that were brought.
///
/// # Errors
/// See [`FetchError`]. What was downloaded stays, so that the same call goes on from there.
pub fn fetch(set: &DataSet, folder: &Path, options: &Options<'_>) -> Result<usize, FetchError> {
    let missing: Vec<&RemoteFile> = set.files.iter().filter(|file| !is_complete(file, folder)).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    fs::create_dir_all(folder).map_err(io_error(folder, "create the folder"))?;
    download::check_space(&missing, folder)?;
    for file in &missing {
        let path = download::download(file, folder, options)?;
        unpack::unpack(file, &path, folder, options)?;
    }
    Ok(missing.len())
}

fn is_complete(file: &RemoteFile, folder: &Path) -> bool {
    file.results().iter().all(|name| folder.join(name).exists())
}
