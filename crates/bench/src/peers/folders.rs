//! Where adapters, installations and caches are.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// Names another folder of adapters.
pub const PEERS_VARIABLE: &str = "BESSEMER_PEERS";

/// Path and content of each file of the adapters.
const ADAPTERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/peers.rs"));

/// The folders of this program beside its own.
#[derive(Clone, Debug)]
pub struct Folders {
    /// Adapters in place of those that are compiled in.
    adapters: Option<PathBuf>,
    /// Installations.
    data: PathBuf,
    cache: PathBuf,
}

impl Folders {
    /// By the XDG Base Directory Specification, and adapters from a folder if one is given here or by [`PEERS_VARIABLE`].
    pub fn of_user(adapters: Option<PathBuf>) -> Self {
        let home = PathBuf::from(env::var_os("HOME").unwrap_or_else(|| ".".into()));
        let base = |variable: &str, usual: &str| {
            let given = env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            given.unwrap_or_else(|| home.join(usual)).join("bessemer")
        };
        let adapters = adapters.or_else(|| env::var_os(PEERS_VARIABLE).map(PathBuf::from));
        Self {
            // Adapters run wherever a comparison lets them.
            adapters: adapters.map(|path| std::path::absolute(&path).unwrap_or(path)),
            data: base("XDG_DATA_HOME", ".local/share").join("peers"),
            cache: base("XDG_CACHE_HOME", ".cache").join("peers"),
        }
    }

    /// The folder with a folder of each adapter. Those that are compiled in are written to the cache, once for each content.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn adapters(&self) -> io::Result<PathBuf> {
        if let Some(folder) = &self.adapters {
            return Ok(folder.clone());
        }
        let mut hasher = DefaultHasher::new();
        ADAPTERS.hash(&mut hasher);
        let folder = self.cache.join(format!("adapters-{:016x}", hasher.finish()));
        if !folder.is_dir() {
            let beside = self.cache.join(format!("adapters-{}.new", std::process::id()));
            unpack(&beside)?;
            // Another process may have been faster: its folder is the same.
            if fs::rename(&beside, &folder).is_err() && !folder.is_dir() {
                return Err(io::Error::other(format!("{}: cannot be made", folder.display())));
            }
        }
        Ok(folder)
    }

    /// The folder of an installation.
    pub fn installation(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// The Python of an installation.
    pub fn python_of(&self, name: &str) -> PathBuf {
        self.installation(name).join("venv/bin/python")
    }

    /// A file that is there while packages are being installed, and afterwards if that was cut short.
    pub fn unfinished_of(&self, name: &str) -> PathBuf {
        self.installation(name).join("unfinished")
    }

    /// The program of an installation of a peer in Rust.
    pub fn binary_of(&self, name: &str) -> PathBuf {
        self.installation(name).join("bin/adapter")
    }

    pub(crate) fn cache_of(&self, name: &str) -> PathBuf {
        self.cache.join(name)
    }
}

fn unpack(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, content) in ADAPTERS {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(path, content)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn adapters_that_are_compiled_in_are_unpacked_once() {
        let home = TempDir::new().unwrap();
        let folders =
            Folders { adapters: None, data: home.path().join("data"), cache: home.path().join("cache/peers") };
        let first = folders.adapters().unwrap();
        for (name, content) in ADAPTERS {
            assert_eq!(fs::read_to_string(first.join(name)).unwrap(), *content);
        }
        assert!(ADAPTERS.iter().any(|(name, _)| name.starts_with("common/")), "{}", ADAPTERS.len());
        fs::write(first.join("mark"), "").unwrap();
        assert_eq!(folders.adapters().unwrap(), first);
        assert!(first.join("mark").is_file(), "it is not written again");
        let given = Folders { adapters: Some("x".into()), ..folders };
        assert_eq!(given.adapters().unwrap(), Path::new("x"));
    }
}
