//! The zip archive that `torch.save` writes: entries that are stored as they are, under one folder.

use crate::error::{FileError, shown};
use rawzip::{CompressionMethod, FileReader, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(super) const PICKLE: &str = "data.pkl";
const MAX_PICKLE_BYTES: u64 = 1 << 26;
/// Versions that PyTorch reads: up to `kMaxSupportedFileFormatVersion` of `caffe2/serialize/versions.h`.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=10;

/// An open archive.
pub(super) struct Archive {
    path: PathBuf,
    zip: ZipArchive<FileReader>,
    /// By name within the folder.
    entries: BTreeMap<String, Entry>,
    folder: String,
    /// Size of the file in bytes.
    pub(super) length: u64,
}

struct Entry {
    location: ZipArchiveEntryWayfinder,
    size: u64,
    /// Why its content is not read.
    refusal: Option<&'static str>,
}

impl Archive {
    /// # Errors
    /// A file that is unreadable, no whole zip archive, or not as `torch.save` writes it.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let io_error = |source| FileError::reading(path, source);
        let damaged = |reason: String| FileError::damaged(path, reason);
        let not_whole = |error: rawzip::Error| damaged(format!("not a whole zip archive: {error}"));
        let file = File::open(path).map_err(io_error)?;
        let length = file.metadata().map_err(io_error)?.len();
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let zip = ZipArchive::from_file(file, &mut buffer).map_err(not_whole)?;
        let mut all = BTreeMap::new();
        let mut listed = zip.entries(&mut buffer);
        while let Some(header) = listed.next_entry().map_err(not_whole)? {
            let path = header.file_path();
            let name = str::from_utf8(path.as_ref()).map_err(|_| damaged("an entry's name is not UTF-8".to_owned()))?;
            let size = header.uncompressed_size_hint();
            let refusal = match () {
                () if header.flags().is_encrypted() => Some("is encrypted"),
                () if header.compression_method() != CompressionMethod::STORE => {
                    Some("is compressed; torch.save stores entries as they are")
                }
                () if header.compressed_size_hint() != size => Some("has two sizes"),
                () if size > length => Some("claims to be larger than the file"),
                () => None,
            };
            let entry = Entry { location: header.wayfinder(), size, refusal };
            if all.insert(name.to_owned(), entry).is_some() {
                return Err(damaged(format!("entry `{}` appears twice", shown(name))));
            }
        }
        let folders: Vec<&str> = all
            .keys()
            .filter_map(|name| name.strip_suffix(PICKLE)?.strip_suffix('/'))
            .filter(|folder| !folder.contains('/'))
            .collect();
        let folder = match folders[..] {
            [folder] => format!("{folder}/"),
            [] => return Err(damaged("a zip archive, but without the FOLDER/data.pkl of torch.save".to_owned())),
            _ => return Err(damaged(format!("{} entries are called data.pkl", folders.len()))),
        };
        let entries = all.into_iter().filter_map(|(name, entry)| Some((name.strip_prefix(&folder)?.to_owned(), entry)));
        let archive = Self { path: path.to_owned(), zip, entries: entries.collect(), folder, length };
        archive.check_format()?;
        Ok(archive)
    }

    fn check_format(&self) -> Result<(), FileError> {
        if self.entries.contains_key("constants.pkl") {
            let reason = "a TorchScript program, which is not run; write the weights alone: \
                          torch.save(model.state_dict(), FILE)";
            return Err(self.damaged(reason));
        }
        let small_text = |name: &str| -> Result<Option<String>, FileError> {
            if !self.entries.contains_key(name) {
                return Ok(None);
            }
            let bytes = self.read(name, 16)?;
            Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
        };
        if let Some(order) = small_text("byteorder")?
            && order != "little"
        {
            let reason = format!("entry `{}byteorder`: `{}`, only little is read", self.folder, shown(&order));
            return Err(self.damaged(reason));
        }
        match small_text("version")? {
            Some(version) if !version.parse().is_ok_and(|version| VERSIONS.contains(&version)) => {
                let (first, last) = (VERSIONS.start(), VERSIONS.end());
                let known = format!("`{}`, {first} to {last} are read", shown(&version));
                Err(self.damaged(format!("entry `{}version`: {known}", self.folder)))
            }
            _ => Ok(()),
        }
    }

    /// The pickle of the archive.
    ///
    /// # Errors
    /// As [`Archive::read`].
    pub(super) fn pickle(&self) -> Result<Vec<u8>, FileError> {
        self.read(PICKLE, MAX_PICKLE_BYTES)
    }

    /// An entry's size in bytes.
    ///
    /// # Errors
    /// There is no such entry, or it is none that is read.
    pub(super) fn size(&self, name: &str) -> Result<u64, FileError> {
        self.entry(name).map(|entry| entry.size)
    }

    /// The content of an entry of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Archive::size`]; a larger entry; one that does not lie within the file or has another checksum.
    pub(super) fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, FileError> {
        let entry = self.entry(name)?;
        if entry.size > limit {
            let reason = format!("has {} bytes, at most {limit} are read", entry.size);
            return Err(self.problem(name, &reason));
        }
        let found = self.zip.get_entry(entry.location).map_err(|error| self.problem(name, &error.to_string()))?;
        if found.compressed_data_range().1 > self.length {
            return Err(self.problem(name, "does not lie within the file"));
        }
        let mut content = Vec::with_capacity(entry.size as usize);
        let mut reader = found.verifying_reader(found.reader());
        reader.read_to_end(&mut content).map_err(|error| self.problem(name, &error.to_string()))?;
        Ok(content)
    }

    fn entry(&self, name: &str) -> Result<&Entry, FileError> {
        let entry = self.entries.get(name).ok_or_else(|| self.problem(name, "is missing"))?;
        match entry.refusal {
            Some(refusal) => Err(self.problem(name, refusal)),
            None => Ok(entry),
        }
    }

    /// What is wrong with an entry.
    pub(super) fn problem(&self, name: &str, reason: &str) -> FileError {
        self.damaged(format!("entry `{}{}`: {reason}", shown(&self.folder), shown(name)))
    }

    pub(super) fn damaged(&self, reason: impl AsRef<str>) -> FileError {
        FileError::damaged(&self.path, reason.as_ref())
    }

    /// What is wrong with a tensor.
    pub(super) fn tensor_problem(&self, tensor: &str, reason: String) -> FileError {
        FileError::Tensor { path: self.path.clone(), tensor: shown(tensor), reason }
    }
}
