//! Compiled kernels on disk, by what they were made from.

use crate::error::GpuError;
use crate::nvrtc::{Compiled, Nvrtc, OPTIONS};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// A folder of compiled kernels. Any number of processes may share it.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
}

impl CubinCache {
    /// A cache in this folder, which is created when the first kernel is stored.
    pub fn new(folder: impl Into<PathBuf>) -> CubinCache {
        CubinCache { folder: folder.into() }
    }

    /// The kernels of `text` for this architecture: those on disk if they were made from the same text by the same
    /// version of the compiler with the same options, else compiled now. The flag says which: `true` is from disk.
    ///
    /// # Errors
    /// The text does not compile, or the folder cannot be written.
    pub fn get(&self, nvrtc: &Nvrtc, name: &str, text: &str, architecture: &str) -> Result<(Compiled, bool), GpuError> {
        let key = key(text, architecture, nvrtc.version());
        let (cubin_path, log_path) = (self.folder.join(format!("{key}.cubin")), self.folder.join(format!("{key}.log")));
        if let (Ok(cubin), Ok(log)) = (std::fs::read(&cubin_path), std::fs::read_to_string(&log_path)) {
            return Ok((Compiled { cubin, log }, true));
        }
        let compiled = nvrtc.compile(name, text, architecture)?;
        std::fs::create_dir_all(&self.folder).map_err(|source| GpuError::Io { path: self.folder.clone(), source })?;
        replace(&log_path, compiled.log.as_bytes())?;
        replace(&cubin_path, &compiled.cubin)?;
        Ok((compiled, false))
    }
}

fn key(text: &str, architecture: &str, version: (i32, i32)) -> String {
    let mut hash = Sha256::new();
    for part in OPTIONS.iter().copied().chain([architecture, &format!("{}.{}", version.0, version.1), text]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Writes beside and renames, so that no one ever reads half a file.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), GpuError> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let beside = path.with_extension(format!("{}-{number}", std::process::id()));
    let written = std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|source| GpuError::Io { path: path.to_owned(), source })
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
}
