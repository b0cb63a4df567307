//! Installs a peer into its own virtual environment.

use super::description::{Description, Language, PythonVersion, python_version};
use super::{Folders, PeersError, descriptions};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the binary of a peer in Rust is called.
const PROGRAM: &str = "adapter";

/// Why a framework cannot be installed.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error(transparent)]
    Peers(#[from] PeersError),
    #[error("{title} cannot be installed on Python {}.{}: it is for {allowed}; --python names another", found.0, found.1)]
    PythonVersion { title: String, found: PythonVersion, allowed: String },
    #[error("{command} failed; what it said is above")]
    Command { command: String },
    #[error("{command}: {source}")]
    Initialisation { command: String, source: io::Error },
    #[error("{title} is built by `cargo`, which cannot be run: {source}; https://rustup.rs installs it")]
    NoCargo { title: String, source: io::Error },
    #[error(
        "{title} was not built; what Cargo said is above. Packages that are not on this machine yet are downloaded"
    )]
    Build { title: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("bessemer itself is there already")]
    Own,
}

/// Installs a peer, with the Python at a path if it is written in it. What the installers say goes where this program's output
/// goes. `notify` receives what is about to be done.
///
/// # Errors
/// There is no such peer, it is not for this Python, or an installer fails.
pub fn install(
    folders: &Folders,
    name: &str,
    python: &Path,
    mut notify: impl FnMut(&str),
) -> Result<PathBuf, InstallError> {
    if name == super::own::NAME {
        return Err(InstallError::Own);
    }
    let all = descriptions(folders)?;
    let known = || all.iter().map(|(_, peer)| peer.name.as_str()).collect::<Vec<_>>().join(", ");
    let unknown = || PeersError::Unknown { name: name.to_owned(), known: known() };
    let (folder, description) = all.iter().find(|(_, peer)| peer.name == name).ok_or_else(unknown)?;
    let place = folders.installation(name);
    fs::create_dir_all(&place).map_err(at(&place))?;
    match description.language {
        Language::Python => install_python(folders, folder, description, python, &mut notify)?,
        Language::Rust => build(folders, folder, description, &mut notify)?,
    }
    Ok(place)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Io { path, source }
}

fn install_python(
    folders: &Folders,
    folder: &Path,
    description: &Description,
    python: &Path,
    notify: &mut impl FnMut(&str),
) -> Result<(), InstallError> {
    check_python(description, python)?;
    let environment = folders.installation(&description.name).join("venv");
    let unfinished = folders.unfinished_of(&description.name);
    fs::write(&unfinished, "").map_err(at(&unfinished))?;
    notify(&format!("making an environment in {}", environment.display()));
    run(python.as_os_str(), &["-m".as_ref(), "venv".as_ref(), environment.as_os_str()])?;
    if let Some(requirements) = &description.requirements {
        notify(&format!("installing {}", description.title));
        let (inside, file) = (folders.python_of(&description.name), folder.join(requirements));
        let arguments = ["-m", "pip", "install", "--disable-pip-version-check", "-r"].map(OsStr::new);
        let arguments: Vec<&OsStr> = arguments.into_iter().chain([file.as_os_str()]).collect();
        if let Err(error) = run(inside.as_os_str(), &arguments) {
            // Half of an installation would look like one.
            let _ = fs::remove_dir_all(&environment);
            return Err(error);
        }
    }
    fs::remove_file(&unfinished).map_err(at(&unfinished))
}

/// # Errors
/// A Python that cannot be run, or is not one that the peer is for.
pub(super) fn check_python(description: &Description, python: &Path) -> Result<(), InstallError> {
    let found = version_of(python).ok_or_else(|| PeersError::Python { path: python.to_owned() })?;
    match &description.python {
        Some(allowed) if !allowed.allow(found) => {
            Err(InstallError::PythonVersion { title: description.title.clone(), found, allowed: allowed.to_string() })
        }
        _ => Ok(()),
    }
}

fn version_of(python: &Path) -> Option<PythonVersion> {
    let said = Command::new(python).args(["-c", "import platform; print(platform.python_version())"]).output().ok()?;
    python_version(String::from_utf8(said.stdout).ok()?.trim())
}

/// Builds a peer in Rust from the versions of its `Cargo.lock`. What Cargo compiled is kept if it fails, so that it can go on.
fn build(
    folders: &Folders,
    folder: &Path,
    description: &Description,
    notify: &mut impl FnMut(&str),
) -> Result<(), InstallError> {
    notify(&format!("building {}", description.title));
    let target = folders.installation(&description.name).join("target");
    let mut cargo = Command::new("cargo");
    // In its folder, whose `.cargo/config.toml` names the processor.
    cargo.current_dir(folder).args(["build", "--release", "--locked", "--bin", PROGRAM, "--target-dir"]).arg(&target);
    let title = || description.title.clone();
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(InstallError::Build { title: title() }),
        Err(source) => return Err(InstallError::NoCargo { title: title(), source }),
    }
    let (from, to) = (target.join("release").join(PROGRAM), folders.binary_of(&description.name));
    fs::create_dir_all(to.parent().unwrap_or(&to)).map_err(at(&to))?;
    fs::rename(&from, &to).map_err(at(&from))?;
    fs::remove_dir_all(&target).map_err(at(&target))
}

fn run(program: &OsStr, arguments: &[&OsStr]) -> Result<(), InstallError> {
    let command = || format!("{} {}", program.display(), arguments.join(OsStr::new(" ")).display());
    match Command::new(program).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(InstallError::Command { command: command() }),
        Err(source) => Err(InstallError::Initialisation { command: command(), source }),
    }
}
