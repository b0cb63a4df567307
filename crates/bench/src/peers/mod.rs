//! Other frameworks that are measured beside this one: finding, installing and calling them.

mod description;
mod folders;
mod install;
pub(crate) mod load;
pub mod own;
pub mod process;
pub mod protocol;
pub(crate) mod work;

pub use folders::{Folders, PEERS_VARIABLE};
pub use install::{InstallError, install};

use description::{Description, Language};
use process::{Call, Ended, Runner};
use protocol::{Answer, Capabilities, Failure, FailureKind, Prepared, Request, VERSION};
use serde::de::DeserializeOwned;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A framework that can be asked.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name on the command line and in plan files; name of the peer's folder.
    pub name: String,
    /// Name in tables and messages.
    pub title: String,
    /// Where the framework comes from.
    pub source: String,
    /// What a reader of results should know of it; may be empty.
    pub note: String,
    /// Of what is asked, its beginning; or why it cannot be asked.
    command: Result<Vec<String>, String>,
    /// A folder that is kept between runs.
    cache: PathBuf,
}

/// The file with what a peer is.
const DESCRIPTION_FILE: &str = "peer.toml";
const ADAPTER_FILE: &str = "adapter.py";
/// How long a peer may take to say what it can do.
const DESCRIBE_LIMIT: Duration = Duration::from_secs(120);

/// Why the frameworks to compare with cannot be used.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: {problem}", path.display())]
    Description { path: PathBuf, problem: String },
    #[error("there is no framework `{name}`; there are {known}")]
    Unknown { name: String, known: String },
    #[error("{}: no Python that can be run; --python names one", path.display())]
    Python { path: PathBuf },
}

/// All frameworks: Bessemer first.
#[derive(Clone, Debug)]
pub struct Peers(Vec<Peer>);

impl Peers {
    /// Those of the folders, where `program` is this one's. With an interpreter, all peers in Python run by it; else by that of
    /// their own installation.
    ///
    /// # Errors
    /// A folder that cannot be read; a description that is not valid.
    pub fn find(folders: &Folders, program: &Path, python: Option<&Path>) -> Result<Self, PeersError> {
        let own = Peer {
            name: own::NAME.to_owned(),
            title: "Bessemer".to_owned(),
            source: String::new(),
            note: String::new(),
            command: Ok(vec![program.display().to_string(), "peer".to_owned()]),
            cache: folders.cache_of(own::NAME),
        };
        let mut peers = vec![own];
        for (folder, description) in descriptions(folders)? {
            let command = command(folders, &folder, &description, python);
            let Description { name, title, source, note, .. } = description;
            peers.push(Peer { cache: folders.cache_of(&name), name, title, source, note, command });
        }
        Ok(Self(peers))
    }

    /// All frameworks, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter()
    }

    /// # Errors
    /// There is no such framework.
    pub fn get(&self, name: &str) -> Result<&Peer, PeersError> {
        let known = || self.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.iter().find(|peer| peer.name == name);
        found.ok_or_else(|| PeersError::Unknown { name: name.to_owned(), known: known() })
    }
}

/// Folders of adapters with what their files say, by name.
fn descriptions(folders: &Folders) -> Result<Vec<(PathBuf, Description)>, PeersError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| PeersError::Io { path, source }
    };
    let root = folders.adapters().map_err(at(Path::new("the adapters")))?;
    let entries = fs::read_dir(&root).map_err(at(&root))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(at(&root))?;
    paths.sort();
    let mut found = Vec::new();
    for folder in paths {
        let path = folder.join(DESCRIPTION_FILE);
        if path.is_file() {
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            let problem = |error: toml::de::Error| error.message().to_owned();
            let description = toml::from_str(&text)
                .map_err(|error| PeersError::Description { path: path.clone(), problem: problem(error) })?;
            found.push((folder, description));
        }
    }
    Ok(found)
}

/// The beginning of a peer's command, or why there is none.
fn command(
    folders: &Folders,
    folder: &Path,
    description: &Description,
    python: Option<&Path>,
) -> Result<Vec<String>, String> {
    let name = &description.name;
    let missing = || match folders.unfinished_of(name).is_file() {
        true => format!("its installation was cut short: `bessemer peers setup {name}` installs it again"),
        false => format!("`bessemer peers setup {name}` installs it"),
    };
    let text = |path: &Path| path.display().to_string();
    match description.language {
        Language::Python => {
            let installed = folders.python_of(&description.name);
            let python = match python {
                Some(python) => python,
                None if installed.is_file() && !folders.unfinished_of(name).is_file() => &installed,
                None => return Err(missing()),
            };
            Ok(vec![text(python), text(&folder.join(ADAPTER_FILE))])
        }
        Language::Rust => {
            let built = folders.binary_of(&description.name);
            if built.is_file() { Ok(vec![text(&built)]) } else { Err(missing()) }
        }
    }
}

impl Peer {
    /// Why it cannot be asked.
    pub fn missing(&self) -> Option<&str> {
        self.command.as_ref().err().map(String::as_str)
    }

    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// What it can do. The output goes to files in `logs`.
    ///
    /// # Errors
    /// It is not installed, fails, or answers with something else.
    pub fn describe(&self, runner: &Runner, logs: &Path) -> Result<Capabilities, Failure> {
        let log = logs.join(format!("{}-describe", self.name));
        let ended = self.call(runner, &["describe".to_owned()], None, DESCRIBE_LIMIT, &log)?;
        let capabilities: Capabilities = parsed(&ended.answer)?;
        check_version(capabilities.protocol)?;
        if capabilities.variants.iter().any(|variant| variant.default) {
            Ok(capabilities)
        } else {
            Err(Failure::new(FailureKind::Invalid, "it has no default variant"))
        }
    }

    /// Lets it compile and convert what it needs, outside measurements.
    ///
    /// # Errors
    /// It fails, or takes longer than the limit.
    pub fn prepare(&self, runner: &Runner, request: &Request, log: &Path, limit: Duration) -> Result<(), Failure> {
        let ended = self.ask(runner, "prepare", request, log, limit)?;
        check_version(parsed::<Prepared>(&ended.answer)?.protocol)
    }

    /// Runs it in a fresh process.
    ///
    /// # Errors
    /// It fails, takes too long, or gives an answer that cannot be.
    pub fn run(
        &self,
        runner: &Runner,
        request: &Request,
        log: &Path,
        limit: Duration,
    ) -> Result<(Answer, Ended), Failure> {
        let ended = self.ask(runner, "run", request, log, limit)?;
        let answer: Answer = parsed(&ended.answer)?;
        check_version(answer.protocol)?;
        match answer.problem(request, ended.wall_s) {
            Some(problem) => Err(Failure::new(FailureKind::Invalid, problem)),
            None => Ok((answer, ended)),
        }
    }

    fn ask(
        &self,
        runner: &Runner,
        word: &str,
        request: &Request,
        log: &Path,
        limit: Duration,
    ) -> Result<Ended, Failure> {
        let path = log.with_extension("json");
        let text = serde_json::to_string_pretty(request).expect("requests have string keys");
        let written = fs::create_dir_all(&self.cache).and_then(|()| fs::write(&path, text));
        written.map_err(|error| Failure::new(FailureKind::Failed, error.to_string()))?;
        let arguments = [word.to_owned(), path.display().to_string()];
        self.call(runner, &arguments, Some(request.threads), limit, log)
    }

    fn call(
        &self,
        runner: &Runner,
        arguments: &[String],
        processors: Option<usize>,
        limit: Duration,
        log: &Path,
    ) -> Result<Ended, Failure> {
        let mut command = self.command.clone().map_err(|reason| Failure::new(FailureKind::NotInstalled, reason))?;
        command.extend_from_slice(arguments);
        runner.call(&Call { command: &command, processors, limit, log })
    }
}

fn parsed<T: DeserializeOwned>(answer: &str) -> Result<T, Failure> {
    serde_json::from_str(answer).map_err(|error| Failure::new(FailureKind::Invalid, error.to_string()))
}

fn check_version(protocol: u32) -> Result<(), Failure> {
    if protocol == VERSION {
        return Ok(());
    }
    let problem = format!("it speaks version {protocol} of the protocol, this program version {VERSION}");
    Err(Failure::new(FailureKind::Invalid, problem))
}
