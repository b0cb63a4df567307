//! The folder of a run.

use crate::checkpoint::{CheckpointError, CheckpointStore};
use crate::clock::{compact, unix_seconds};
use crate::recipe::{Recipe, RecipeError};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Why a folder cannot be used as the folder of a run.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("{}: holds a run already; resume it, or choose another folder", path.display())]
    Taken { path: PathBuf },
    #[error("{}: is not empty; a run needs a new or an empty folder", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{}: is not a folder; a run needs a new or an empty one", path.display())]
    NotAFolder { path: PathBuf },
    #[error("{}: another process is working in this run", path.display())]
    InUse { path: PathBuf },
    #[error("{}: not a run: {missing} is missing", path.display())]
    NotARun { path: PathBuf, missing: &'static str },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Recipe(#[from] RecipeError),
}

const RECIPE: &str = "recipe.toml";

/// A run's folder: `recipe.toml`, `events.jsonl`, `dllogger.json`, `tensorboard/`, `checkpoints/`, `curves.svg` and
/// `predictions/`.
///
/// One process has a run at a time: the value holds a lock on `recipe.toml`.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    recipe: File,
}

impl RunDir {
    /// The folder of the run whose checkpoint is `RUN/checkpoints/NAME`.
    pub fn of_checkpoint(checkpoint: &Path) -> &Path {
        checkpoint.ancestors().nth(2).unwrap_or(checkpoint)
    }

    /// Makes the folder of a new run and writes its resolved recipe there.
    ///
    /// # Errors
    /// [`RunDirError::Taken`] if the folder exists and holds anything; a folder that cannot be written.
    pub fn create(path: impl Into<PathBuf>, recipe: &Recipe) -> Result<Self, RunDirError> {
        let path = path.into();
        Self::check_free(&path)?;
        fs::create_dir_all(&path).map_err(at(&path))?;
        let recipe = write_recipe(&path, recipe)?;
        Ok(Self { path, recipe })
    }

    /// Whether a new run can be put there, before work is spent on it.
    ///
    /// # Errors
    /// [`RunDirError::Taken`] or [`RunDirError::NotEmpty`] if the folder exists and holds a run or anything else,
    /// [`RunDirError::NotAFolder`] for a file; a folder that cannot be read.
    pub fn check_free(path: &Path) -> Result<(), RunDirError> {
        let path = path.to_owned();
        match fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
            Ok(true) if Self::is_run(&path) => Err(RunDirError::Taken { path }),
            Ok(true) => Err(RunDirError::NotEmpty { path }),
            Ok(false) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotADirectory => Err(RunDirError::NotAFolder { path }),
            Err(source) => Err(RunDirError::Io { path, source }),
        }
    }

    /// Makes `PARENT/MODEL-DATE-TIME`, with a number behind it if runs start within one second.
    ///
    /// # Errors
    /// As [`RunDir::create`].
    pub fn create_named(parent: &Path, recipe: &Recipe) -> Result<Self, RunDirError> {
        let name = format!("{}-{}", recipe.model.name, compact(unix_seconds()));
        fs::create_dir_all(parent).map_err(at(parent))?;
        for number in 1_u32.. {
            let name = if number == 1 { name.clone() } else { format!("{name}-{number}") };
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self::create(path, recipe),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(RunDirError::Io { path, source }),
            }
        }
        unreachable!("the numbers do not end")
    }

    /// The folder of a run that exists, to continue it.
    ///
    /// # Errors
    /// [`RunDirError::NotARun`] if it has no recipe, [`RunDirError::InUse`] if another process has it.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, RunDirError> {
        let path = path.into();
        let recipe = open_recipe(&path)?;
        lock(&recipe, &path)?;
        Ok(Self { path, recipe })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The recipe that the run was started with.
    ///
    /// # Errors
    /// A recipe that cannot be read or is not valid.
    pub fn recipe(&self) -> Result<Recipe, RunDirError> {
        Self::recipe_of(&self.path)
    }

    /// The recipe that the run in a folder was started with. Another process may be working in the run.
    ///
    /// # Errors
    /// [`RunDirError::NotARun`] if there is none, or those of [`RunDir::recipe`].
    pub fn recipe_of(path: &Path) -> Result<Recipe, RunDirError> {
        open_recipe(path)?;
        Ok(Recipe::load(&path.join(RECIPE).to_string_lossy(), &[])?)
    }

    /// Whether the run in a folder has saved its state.
    pub fn has_checkpoint(path: &Path) -> bool {
        path.join("checkpoints/latest").is_file()
    }

    /// Whether a folder has a run.
    pub fn is_run(path: &Path) -> bool {
        path.join(RECIPE).is_file()
    }

    /// Replaces the recipe, where a resumed run was given other settings.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn set_recipe(&mut self, recipe: &Recipe) -> Result<(), RunDirError> {
        self.recipe = write_recipe(&self.path, recipe)?;
        Ok(())
    }

    /// The checkpoints of the run; cleans up after a killed writer.
    ///
    /// # Errors
    /// As [`CheckpointStore::open`].
    pub fn checkpoints(&self, keep: usize) -> Result<CheckpointStore, CheckpointError> {
        CheckpointStore::open(self.path.join("checkpoints"), keep)
    }

    /// The log of events, see [`crate::events`].
    pub fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    /// The log in DLLogger's format.
    pub fn dllogger(&self) -> PathBuf {
        self.path.join("dllogger.json")
    }

    /// The folder of TensorBoard's files.
    pub fn tensorboard(&self) -> PathBuf {
        self.path.join("tensorboard")
    }

    /// The picture of the loss, the learning rate and the metric.
    pub fn curves(&self) -> PathBuf {
        self.path.join("curves.svg")
    }

    /// Where evaluation outputs go; the folder may not exist yet.
    pub fn predictions(&self) -> PathBuf {
        self.path.join("predictions")
    }
}

/// Replaces the recipe at once by a file that is locked already.
fn write_recipe(folder: &Path, recipe: &Recipe) -> Result<File, RunDirError> {
    let beside = folder.join("recipe.toml.new");
    let mut file = File::create(&beside).map_err(at(&beside))?;
    lock(&file, folder)?;
    let written = file.write_all(recipe.to_toml().as_bytes()).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(&beside, folder.join(RECIPE))).map_err(at(&beside))?;
    Ok(file)
}

fn lock(file: &File, folder: &Path) -> Result<(), RunDirError> {
    match lock_file(file) {
        Ok(true) => Ok(()),
        Ok(false) => Err(RunDirError::InUse { path: folder.to_owned() }),
        Err(source) => Err(at(folder)(source)),
    }
}

/// Locks an open file until it is closed; whether no other process had. File systems without locks are used without.
///
/// # Errors
/// The system's.
pub fn lock_file(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn open_recipe(path: &Path) -> Result<File, RunDirError> {
    File::open(path.join(RECIPE)).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            RunDirError::NotARun { path: path.to_owned(), missing: RECIPE }
        }
        _ => at(path)(source),
    })
}

fn at(path: &Path) -> impl Fn(io::Error) -> RunDirError {
    let path = path.to_owned();
    move |source| RunDirError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn a_run_is_never_overwritten() {
        let parent = TempDir::new().unwrap();
        let recipe = Recipe::load("cifar", &[]).unwrap();
        let run = RunDir::create(parent.path().join("a/b"), &recipe).unwrap();
        assert_eq!(run.recipe().unwrap(), recipe);
        assert!(matches!(RunDir::create(run.path(), &recipe), Err(RunDirError::Taken { .. })));
        let error = RunDir::open(parent.path()).unwrap_err().to_string();
        assert!(error.ends_with("not a run: recipe.toml is missing"), "{error}");
    }

    #[test]
    fn one_process_at_a_time() {
        let parent = TempDir::new().unwrap();
        let recipe = Recipe::load("cifar", &[]).unwrap();
        let mut run = RunDir::create(parent.path(), &recipe).unwrap();
        assert!(matches!(RunDir::open(parent.path()), Err(RunDirError::InUse { .. })));
        run.set_recipe(&recipe).unwrap();
        assert!(matches!(RunDir::open(parent.path()), Err(RunDirError::InUse { .. })));
        drop(run);
        RunDir::open(parent.path()).unwrap();
    }

    #[test]
    fn default_names_are_model_and_time() {
        let parent = TempDir::new().unwrap();
        let recipe = Recipe::load("resnet50-90e", &[]).unwrap();
        let names: Vec<String> = (0..3)
            .map(|_| RunDir::create_named(&parent.path().join("runs"), &recipe).unwrap())
            .map(|run| run.path().file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        for name in &names {
            let digits = name.strip_prefix("resnet50-").unwrap().replace('-', "");
            assert!(digits.len() >= 14 && digits.bytes().all(|b| b.is_ascii_digit()), "{name}");
        }
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
    }

    #[test]
    fn the_recipe_can_be_replaced() {
        let parent = TempDir::new().unwrap();
        let recipe = Recipe::load("cifar", &[]).unwrap();
        let mut run = RunDir::create(parent.path(), &recipe).unwrap();
        let longer = recipe.with_overrides(&["train.epochs=300".parse().unwrap()]).unwrap();
        run.set_recipe(&longer).unwrap();
        assert_eq!(run.recipe().unwrap(), longer);
    }
}
