//! Folders in which CUDA's libraries may lie: those that were named, those of the active Python environment, the system's.

use super::{Found, Wanted};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Folders where drivers and toolkits are installed, beside those that the dynamic linker is configured with.
const SYSTEM: [&str; 12] = [
    "/usr/local/cuda/lib64",
    "/usr/local/cuda/targets/x86_64-linux/lib",
    "/usr/local/cuda/targets/sbsa-linux/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/opt/cuda/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
];

/// Where a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LibraryPath {
    /// In a folder that the user named on the command line.
    Named,
    /// In a package of the active Python environment.
    Python,
    /// In a folder of the system or of the dynamic linker.
    System,
}

impl LibraryPath {
    /// All groups of folders, in the order in which they are searched.
    pub const ALL: [LibraryPath; 3] = [LibraryPath::Named, LibraryPath::Python, LibraryPath::System];

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            LibraryPath::Named => "folders named by --gpu-libraries",
            LibraryPath::Python => "the Python environment",
            LibraryPath::System => "the system",
        }
    }
}

/// Folders to look in, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Folders that the user named on the command line.
    pub named: Vec<PathBuf>,
    /// Folders of NVIDIA's packages in the active Python environment.
    pub python: Vec<PathBuf>,
    /// Folders of the dynamic linker and the usual places of CUDA.
    pub system: Vec<PathBuf>,
}

impl Places {
    /// Those of this process, with `named` ones before all others. Only folders that exist are listed.
    pub fn of_process(named: &[PathBuf]) -> Places {
        let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let path = |name: &str| std::env::var_os(name).map(|all| std::env::split_paths(&all).collect::<Vec<_>>());
        let mut prefixes: Vec<PathBuf> =
            [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")].into_iter().flatten().collect();
        prefixes.extend(python_prefixes(&path("PATH").unwrap_or_default()));
        let mut system = path("LD_LIBRARY_PATH").unwrap_or_default();
        system.extend(linker_folders(Path::new("/etc/ld.so.conf.d")));
        system.extend(SYSTEM.iter().map(PathBuf::from));
        Places {
            named: existing(named.to_vec()),
            python: existing(prefixes.iter().flat_map(|prefix| package_folders(prefix)).collect()),
            system: existing(system),
        }
    }

    /// The folders of one group.
    pub fn of(&self, place: LibraryPath) -> &[PathBuf] {
        match place {
            LibraryPath::Named => &self.named,
            LibraryPath::Python => &self.python,
            LibraryPath::System => &self.system,
        }
    }

    /// The newest version in the first place that has the library.
    pub fn find(&self, library: Wanted) -> Option<Found> {
        LibraryPath::ALL.into_iter().find_map(|place| {
            let in_folder = |folder: &PathBuf| newest(library, folder, place);
            let found: Vec<Found> = self.of(place).iter().filter_map(in_folder).collect();
            let newest = found.iter().map(|found| found.version.clone()).max();
            found.into_iter().find(|found| Some(&found.version) == newest.as_ref())
        })
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folders = |paths: &[PathBuf]| match paths {
            [] => "no folder".to_owned(),
            paths => paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
        };
        let places = LibraryPath::ALL.map(|place| format!("{} ({})", place.name(), folders(self.of(place))));
        f.write_str(&places.join("; "))
    }
}

fn newest(library: Wanted, folder: &Path, place: LibraryPath) -> Option<Found> {
    let version_of = |path: PathBuf| {
        let version = library.version_in(path.file_name()?.to_str()?)?;
        Some(Found { library, path, version, place })
    };
    entries(folder).into_iter().filter_map(version_of).max_by(|a, b| a.version.cmp(&b.version))
}

/// `PREFIX` of each `PREFIX/bin/python3` in `path`: as it is named, which is right for virtual environments, then where
/// it leads to.
fn python_prefixes(path: &[PathBuf]) -> Vec<PathBuf> {
    let pythons = path.iter().flat_map(|folder| ["python3", "python"].map(|name| folder.join(name)));
    let Some(python) = pythons.into_iter().find(|python| python.exists()) else { return Vec::new() };
    let prefix = |python: &Path| Some(python.parent()?.parent()?.to_owned());
    let real = std::fs::canonicalize(&python).ok();
    [prefix(&python), real.as_deref().and_then(prefix)].into_iter().flatten().collect()
}

/// `nvidia/*/lib` of the packages of the Python installed at `prefix`.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let libs = ["lib", "lib64", "local/lib"].map(|lib| prefix.join(lib));
    let versions = libs.iter().flat_map(|lib| entries(lib)).filter(|folder| name_starts_with(folder, "python3"));
    let packages = versions.flat_map(|version| ["site-packages", "dist-packages"].map(|name| version.join(name)));
    packages.flat_map(|packages| entries(&packages.join("nvidia"))).map(|package| package.join("lib")).collect()
}

/// Folders that files of the dynamic linker's configuration list, one a line.
fn linker_folders(configuration: &Path) -> Vec<PathBuf> {
    let texts = entries(configuration).into_iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let folders = texts.flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>());
    folders.filter(|line| line.starts_with('/')).map(PathBuf::from).collect()
}

/// Content of a folder in the order of names; nothing where there is none.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_starts_with(path: &Path, start: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
}

/// Folders that exist, each once, links resolved.
fn existing(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut kept: Vec<PathBuf> = Vec::new();
    for folder in folders.iter().filter_map(|folder| std::fs::canonicalize(folder).ok()).filter(|path| path.is_dir()) {
        if !kept.contains(&folder) {
            kept.push(folder);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::Libraries;

    /// An empty file at `path` below `root`, and its folder.
    fn put(root: &Path, path: &str) -> PathBuf {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        file.parent().unwrap().to_owned()
    }

    #[test]
    fn named_folders_come_before_python_before_the_system() {
        let root = tempfile::tempdir().unwrap();
        let system = put(root.path(), "system/libnvrtc.so.13");
        let python = put(root.path(), "python/libnvrtc.so.12");
        let named = put(root.path(), "named/libnvrtc.so.11");
        let mut places = Places { named: vec![named], python: vec![python], system: vec![system] };
        let found = |places: &Places| places.find(Wanted::Nvrtc).unwrap();
        assert_eq!((found(&places).version, found(&places).place), (vec![11], LibraryPath::Named));
        places.named.clear();
        assert_eq!((found(&places).version, found(&places).place), (vec![12], LibraryPath::Python));
        places.python.clear();
        assert_eq!((found(&places).version, found(&places).place), (vec![13], LibraryPath::System));
        assert_eq!(places.find(Wanted::Cudnn), None);
    }

    #[test]
    fn of_several_versions_in_a_place_the_newest_counts() {
        let root = tempfile::tempdir().unwrap();
        let old = put(root.path(), "a/libcublas.so.9");
        let new = put(root.path(), "b/libcublas.so.13");
        put(root.path(), "b/libcublas.so.12");
        let places = Places { system: vec![old, new], ..Places::default() };
        assert!(places.find(Wanted::Cublas).unwrap().path.ends_with("b/libcublas.so.13"));
    }

    #[test]
    fn packages_of_a_python_environment_are_found() {
        let root = tempfile::tempdir().unwrap();
        let lib = put(root.path(), "lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let cudnn = put(root.path(), "lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9");
        put(root.path(), "bin/python3");
        let prefixes = python_prefixes(&[root.path().join("nothing"), root.path().join("bin")]);
        assert_eq!(prefixes[0], root.path());
        assert_eq!(package_folders(&prefixes[0]), [lib, cudnn]);
    }

    #[test]
    fn mixed_major_versions_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = put(root.path(), "libnvrtc.so.13");
        put(root.path(), "libcudnn.so.9");
        let places = Places { named: vec![folder], ..Places::default() };
        let check = |driver| Libraries::find(places.clone()).check_versions(driver);
        assert!(check(Some(13000)).is_ok() && check(Some(14000)).is_ok() && check(None).is_ok());
        let old_driver = check(Some(12080)).unwrap_err().to_string();
        assert!(old_driver.contains("the driver runs CUDA up to 12.8") && old_driver.contains("is of CUDA 13"));
        put(root.path(), "libcublasLt.so.12");
        let mixed = check(Some(13000)).unwrap_err().to_string();
        assert!(
            mixed.contains("libnvrtc.so.13 is of CUDA 13") && mixed.contains("libcublasLt.so.12 of CUDA 12"),
            "{mixed}"
        );
    }

    #[test]
    fn configuration_of_the_linker_is_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("nvidia.conf"), "# a comment\n/usr/local/nvidia/lib64\n\n").unwrap();
        assert_eq!(linker_folders(root.path()), [PathBuf::from("/usr/local/nvidia/lib64")]);
    }
}
