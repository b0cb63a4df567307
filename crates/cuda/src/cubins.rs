//! Compiled kernels on disk, by what they were made from.

use crate::error::GpuError;
use crate::nvrtc::{Compiled, Nvrtc, OPTIONS};
use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A folder of compiled kernels. Any number of processes may share it.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
    /// Why a kernel was not kept, of the first one that was not.
    failure: Arc<Mutex<Option<GpuError>>>,
}

impl CubinCache {
    /// A cache in this folder, which is created when the first kernel is stored.
    pub fn new(folder: impl Into<PathBuf>) -> CubinCache {
        CubinCache { folder: folder.into(), failure: Arc::default() }
    }

    /// The kernels of `text` for this architecture: those on disk if they are whole and were made from the same text by the same
    /// version of the compiler with the same options, else compiled now. The flag says which: `true` is from disk. What cannot
    /// be kept is compiled all the same; [`CubinCache::take_failure`] then says why.
    ///
    /// # Errors
    /// The text does not compile.
    pub fn get(&self, nvrtc: &Nvrtc, name: &str, text: &str, architecture: &str) -> Result<(Compiled, bool), GpuError> {
        let key = key(text, architecture, nvrtc.version());
        let (cubin_path, log_path) = (self.folder.join(format!("{key}.cubin")), self.folder.join(format!("{key}.log")));
        if let (Ok(cubin), Ok(log)) = (std::fs::read(&cubin_path), std::fs::read_to_string(&log_path))
            && is_whole(&cubin)
        {
            return Ok((Compiled { cubin, log }, true));
        }
        let compiled = nvrtc.compile(name, text, architecture)?;
        let made = std::fs::create_dir_all(&self.folder);
        let made = made.map_err(|source| GpuError::Io { path: self.folder.clone(), source });
        let kept = made.and_then(|()| replace(&log_path, compiled.log.as_bytes()));
        if let Err(error) = kept.and_then(|()| replace(&cubin_path, &compiled.cubin)) {
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        Ok((compiled, false))
    }

    /// Why a kernel was not kept since the last call, if one was not.
    pub fn take_failure(&self) -> Option<GpuError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether these bytes are an ELF image of 64 bits, little endian, with all that its headers speak of (System V ABI, "Object Files").
fn is_whole(image: &[u8]) -> bool {
    /// Bytes of the header, and the offsets in it of the tables of segments and of sections and of the sizes of their entries.
    const HEADER: usize = 64;
    const TABLES: [(usize, usize); 2] = [(32, 54), (40, 58)];
    /// A section that takes no bytes of the file, and bytes of a section's entry.
    const NO_BITS: u64 = 8;
    const SECTION: usize = 64;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let bytes = image.get(at..at.checked_add(bytes)?)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    };
    let lies_within = |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= image.len() as u64);
    let tables = || {
        let table = |&(at, sizes): &(usize, usize)| Some((number(at, 8)?, number(sizes, 2)?, number(sizes + 2, 2)?));
        TABLES.iter().map(table).collect::<Option<Vec<_>>>()
    };
    let section = |at: usize| {
        let [kind, offset, bytes] = [(4, 4), (24, 8), (32, 8)].map(|(field, width)| number(at + field, width));
        Some(kind? == NO_BITS || lies_within(offset?, bytes?))
    };
    let Some(tables) = tables().filter(|_| image.len() >= HEADER && image.starts_with(b"\x7fELF\x02\x01")) else {
        return false;
    };
    let (sections, size, count) = tables[1];
    tables.iter().all(|&(offset, size, count)| lies_within(offset, size * count))
        && count > 0
        && size == SECTION as u64
        && (0..count as usize).all(|index| section(sections as usize + index * SECTION).unwrap_or(false))
}

fn key(text: &str, architecture: &str, version: (i32, i32)) -> String {
    let mut hash = Sha256::new();
    for part in OPTIONS.iter().copied().chain([architecture, &format!("{}.{}", version.0, version.1), text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes beside and renames, so that no one ever reads half a file. The name beside is random: numbers of processes are not, where
/// containers share a folder.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), GpuError> {
    let beside = path.with_extension(format!("{:016x}", RandomState::new().hash_one(bytes.len())));
    let write = || {
        OpenOptions::new().write(true).create_new(true).open(&beside)?.write_all(bytes)?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|source| {
        // What is left of it, if anything is, would never be found again.
        let _ = std::fs::remove_file(&beside);
        GpuError::Io { path: path.to_owned(), source }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_text_architecture_and_compiler() {
        let keys = [
            key("a", "sm_80", (13, 0)),
            key("b", "sm_80", (13, 0)),
            key("a", "sm_90a", (13, 0)),
            key("a", "sm_80", (13, 1)),
            key("a", "sm_80", (12, 0)),
        ];
        assert_eq!(keys[0], key("a", "sm_80", (13, 0)));
        let different: std::collections::BTreeSet<&String> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.cubin");
        std::fs::create_dir_all(path.join("in the way")).unwrap();
        let message = replace(&path, b"text").unwrap_err().to_string();
        assert!(message.starts_with(&path.display().to_string()), "{message}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
