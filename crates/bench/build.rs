//! Lists the adapters of other frameworks, so that they are compiled in.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// What all adapters share.
const COMMON: &str = "common";
/// Endings of the files that adapters consist of.
const ENDINGS: [&str; 5] = ["py", "toml", "txt", "rs", "lock"];

fn main() -> io::Result<()> {
    let folder = Path::new("../../peers").canonicalize()?;
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut files = Vec::new();
    for entry in sorted(&folder)? {
        if entry.file_name().is_some_and(|name| name == COMMON) || entry.join("peer.toml").is_file() {
            collect(&entry, &mut files)?;
        }
    }
    let mut list = String::from("&[\n");
    for path in files {
        let name = path.strip_prefix(&folder).expect("it lies in the folder").to_string_lossy().replace('\\', "/");
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("strings can be written");
    }
    list.push_str("]\n");
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("peers.rs"), list)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for path in sorted(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && name != "target" && name != "__pycache__" {
            collect(&path, files)?;
        } else if ENDINGS.iter().any(|ending| path.extension().is_some_and(|found| found == *ending)) {
            files.push(path);
        }
    }
    Ok(())
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
