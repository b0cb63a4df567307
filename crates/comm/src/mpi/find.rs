//! Which MPI library is there, and which belongs to the launcher.

use super::Family;
use super::api::Api;
use super::transport::MpiTransport;
use crate::CommError;
use crate::launch::{Launcher, Placement, Variables};
use crate::transport::Transport;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// `MPI_MAX_LIBRARY_VERSION_STRING` of the family that has the longest.
const MAX_VERSION: usize = 8192;

/// The library that this process has opened: a second one would share symbols and state with it.
static OPENED: Mutex<Option<MpiLibrary>> = Mutex::new(None);

/// An MPI library, opened and not started. It is never closed.
#[derive(Clone)]
pub struct MpiLibrary {
    family: Family,
    path: String,
    version: String,
    library: &'static Library,
}

impl Family {
    /// File names, the most likely first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Family::OpenMpi => &["libmpi.so.40"],
            Family::Mpich => &["libmpi.so.12", "libmpich.so.12"],
            Family::StandardAbi => &["libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.so"],
        }
    }

    /// Families that can find the other ranks, the most likely first.
    fn of_launcher(variables: &Variables, launcher: Option<Launcher>) -> &'static [Family] {
        const OPEN: &[Family] = &[Family::OpenMpi, Family::StandardAbi];
        const MPICH: &[Family] = &[Family::Mpich, Family::StandardAbi];
        match launcher {
            Some(Launcher::OpenMpi) => OPEN,
            Some(Launcher::Mvapich | Launcher::Hydra | Launcher::Pals | Launcher::Pmi) => MPICH,
            // srun --mpi=pmi2
            Some(Launcher::Slurm) if variables.contains_key("PMI_RANK") => MPICH,
            _ => &[Family::OpenMpi, Family::Mpich, Family::StandardAbi],
        }
    }
}

impl MpiLibrary {
    /// Opens the library at `path`, or that of the launcher which started this process.
    ///
    /// # Errors
    /// None is found, the one at `path` is none or does not belong to the launcher, or this process has opened another.
    pub fn find(path: Option<&Path>, placement: &Placement, variables: &Variables) -> Result<MpiLibrary, CommError> {
        let families = Family::of_launcher(variables, placement.launcher);
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match (path, &*opened) {
            (Some(path), Some(first)) if *path != *first.path => {
                let reason = format!("{} was asked for, but this process has opened {}", path.display(), first.path);
                return Err(CommError::NoMpi { reason });
            }
            (_, Some(first)) => first.clone(),
            (Some(path), None) => MpiLibrary::open(&path.display().to_string())?,
            (None, None) => search(families, placement, variables)?,
        };
        if !families.contains(&found.family) {
            let launcher = placement.launcher.map_or("no launcher", Launcher::title);
            let reason = format!("{} is {}, but {launcher} started this process", found.path, found.family.name());
            return Err(CommError::NoMpi { reason });
        }
        *opened = Some(found.clone());
        Ok(found)
    }

    /// Its binary interface.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The file as it was opened: a path, or a name that the dynamic linker finds.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// First line of what it says of itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Starts MPI in this thread, which alone may use the result, and meets the other ranks. Once in a process.
    ///
    /// # Errors
    /// The launcher starts no MPI, MPI fails, or sees other ranks than the launcher.
    pub fn start(&self, placement: &Placement) -> Result<Box<dyn Transport>, CommError> {
        if let Some(launcher) = placement.launcher.filter(|launcher| !launcher.starts_mpi()) {
            return Err(CommError::NotAnMpiLauncher { launcher: launcher.title(), ranks: placement.size });
        }
        Ok(match self.family {
            Family::Mpich => {
                Box::new(MpiTransport::<i32>::start(Api::load(self.family, self.library, &self.path)?, placement)?)
            }
            Family::OpenMpi | Family::StandardAbi => {
                Box::new(MpiTransport::<usize>::start(Api::load(self.family, self.library, &self.path)?, placement)?)
            }
        })
    }

    fn open(path: &str) -> Result<MpiLibrary, CommError> {
        // SAFETY: initialisers of MPI libraries may run in any thread at any time. Symbols are global, as Open MPI's plugins
        // look for those of the library.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            CommError::NoMpi { reason: if cause.contains(path) { cause } else { format!("{path}: {cause}") } }
        })?;
        let version = version(&library).unwrap_or_default();
        let family = match version.as_str() {
            _ if has_standard_abi(&library) => Family::StandardAbi,
            text if text.contains("Open MPI") => Family::OpenMpi,
            text if ["MPICH", "MVAPICH", "Intel(R) MPI"].iter().any(|name| text.contains(name)) => Family::Mpich,
            _ => {
                return Err(CommError::NoMpi {
                    reason: format!("{path} is no MPI that this program knows: {version:?}"),
                });
            }
        };
        let version = version.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(MpiLibrary { family, path: path.to_owned(), version, library: Box::leak(Box::new(library)) })
    }
}

/// The first library that opens and has the interface that its name says. Those beside a launcher come before those that the dynamic
/// linker finds, as they are of its version.
fn search(families: &[Family], placement: &Placement, variables: &Variables) -> Result<MpiLibrary, CommError> {
    let folders = library_folders(variables);
    let mut problems = Vec::new();
    for &family in families {
        for file in family.files() {
            let beside = folders.iter().map(|folder| folder.join(file)).filter(|path| path.exists());
            for path in beside.chain([PathBuf::from(file)]) {
                match MpiLibrary::open(&path.display().to_string()) {
                    Ok(found) if found.family == family => return Ok(found),
                    Ok(found) => problems.push(format!("{} is {}", found.path, found.family.name())),
                    Err(error) => problems.push(error.to_string()),
                }
            }
        }
    }
    let started = placement.launcher.map_or("this process was started alone".to_owned(), |launcher| {
        format!("{} started this process", launcher.title())
    });
    let packages = match families[0] {
        Family::Mpich => "mpich",
        _ if families.contains(&Family::Mpich) => "openmpi-bin or mpich",
        _ => "openmpi-bin",
    };
    Err(CommError::NoMpi {
        reason: format!(
            "{started}, and no library of {} can be opened; install it (package {packages} on Debian and Ubuntu) or give its path \
             ({})",
            families[0].name(),
            problems.join("; ")
        ),
    })
}

/// `lib` folders of installations whose launcher is on the search path.
fn library_folders(variables: &Variables) -> Vec<PathBuf> {
    let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
    let launchers = std::env::split_paths(path).flat_map(|folder| ["mpirun", "mpiexec"].map(|name| folder.join(name)));
    let mut folders = Vec::new();
    for launcher in launchers.filter_map(|launcher| launcher.canonicalize().ok()) {
        if let Some(root) = launcher.parent().and_then(Path::parent) {
            folders.extend(["lib", "lib64"].map(|name| root.join(name)));
        }
    }
    folders.dedup();
    folders
}

/// Whether the handles are those of the standard ABI; a library with others says -1.
fn has_standard_abi(library: &Library) -> bool {
    type GetVersion = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    // SAFETY: the type is that of the function in MPI 5.0.
    let Ok(get_version) = (unsafe { library.get::<GetVersion>("MPI_Abi_get_version") }) else { return false };
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: it may be called before MPI is started, and writes two local numbers.
    let code = unsafe { get_version(&raw mut major, &raw mut minor) };
    code == 0 && major >= 1
}

/// What the library says of itself.
fn version(library: &Library) -> Option<String> {
    type GetVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: the type is that of the function in MPI 3.0.
    let get_version = unsafe { library.get::<GetVersion>("MPI_Get_library_version") }.ok()?;
    let mut text: [c_char; MAX_VERSION + 1] = [0; MAX_VERSION + 1];
    let mut length = 0;
    // SAFETY: it may be called before MPI is started, and writes at most the longest version with its zero.
    let code = unsafe { get_version(text.as_mut_ptr(), &raw mut length) };
    // SAFETY: the last element is zero whatever was written.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    (code == 0).then(|| text.to_string_lossy().into_owned())
}
