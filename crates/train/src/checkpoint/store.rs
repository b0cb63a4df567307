use super::disk::{Disk, RealDisk};
use super::error::{CheckpointError, Damage};
use super::hashing::Hashing;
use super::manifest::{FileEntry, Manifest};
use super::{Checkpoint, EMA_FILE, MANIFEST_FILE, MODEL_FILE, OPTIMIZER_FILE};
use bessemer_data::hidden_beside;
use bessemer_weights::{FileError, NamedTensor, read_tensors, write_tensors};
use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};

const STEP_PREFIX: &str = "step-";
const LATEST: &str = "latest";
const BEST: &str = "best";
/// Begins the name of a checkpoint that is being removed; some of its files may be gone.
const REMOVING: &str = ".removing-";
/// Begins the name of a whole checkpoint that gives way to a new one of the same step.
const REPLACED: &str = ".replaced-";

/// The `checkpoints/` folder of a run. One process writes to it at a time.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    folder: PathBuf,
    keep: usize,
}

/// A checkpoint that was written and synchronised to the disk.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Size of all its files.
    pub bytes: u64,
    /// Old checkpoints that could not be removed; the new one is safe all the same.
    pub warning: Option<String>,
}

/// A whole checkpoint, and the newer ones that were passed over because they are damaged.
#[derive(Debug)]
pub struct Loaded {
    /// The newest checkpoint that is intact.
    pub checkpoint: Checkpoint<'static>,
    /// Folder of that checkpoint.
    pub path: PathBuf,
    /// Newer checkpoints that were skipped.
    pub damaged: Vec<Damage>,
}

impl CheckpointStore {
    /// Opens or creates the folder, puts back a checkpoint that a killed writer was about to replace, and removes what else
    /// killed writers left in the folder. `keep` (at least 1) is how many of the newest checkpoints survive a save; the best
    /// one always does.
    ///
    /// # Errors
    /// A folder that cannot be created, listed or cleaned.
    pub fn open(folder: impl Into<PathBuf>, keep: usize) -> Result<Self, CheckpointError> {
        let store = Self { folder: folder.into(), keep: keep.max(1) };
        fs::create_dir_all(&store.folder).map_err(|source| FileError::writing(&store.folder, source))?;
        store.restore_replaced()?;
        store.remove_leftovers()?;
        Ok(store)
    }

    /// The store of a folder that exists, without touching anything in it.
    pub(super) fn for_reading(folder: PathBuf) -> Self {
        Self { folder, keep: 1 }
    }

    /// Writes a checkpoint; on return it is durable, is the latest and, if asked, the best.
    ///
    /// # Errors
    /// A full disk or an unwritable folder; checkpoints that existed before are untouched then.
    pub fn save(&self, checkpoint: &Checkpoint<'_>, best: bool) -> Result<Saved, CheckpointError> {
        self.save_on(&RealDisk, checkpoint, best)
    }

    /// The newest whole checkpoint: the one named `latest`, else one before it. `None` if there never was any.
    ///
    /// # Errors
    /// [`CheckpointError::NoneWhole`] if all are damaged.
    pub fn load_latest(&self) -> Result<Option<Loaded>, CheckpointError> {
        let mut damaged = Vec::new();
        for path in self.candidates()? {
            match load_checkpoint(&path) {
                Ok(checkpoint) => return Ok(Some(Loaded { checkpoint, path, damaged })),
                Err(error) => damaged.push(Damage { path, reason: error.to_string() }),
            }
        }
        if damaged.is_empty() {
            return Ok(None);
        }
        Err(CheckpointError::NoneWhole { folder: self.folder.clone(), damage: damaged })
    }

    /// Folder of the best checkpoint, if one was marked.
    pub fn best(&self) -> Option<PathBuf> {
        self.pointed(BEST)
    }

    /// Folder of the latest checkpoint, whole or not.
    pub fn latest(&self) -> Option<PathBuf> {
        self.pointed(LATEST)
    }

    /// Steps that have a checkpoint, ascending.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn steps(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut steps: Vec<u64> = self.names()?.iter().filter_map(|name| step_or_replaced(name)).collect();
        steps.sort_unstable();
        steps.dedup();
        Ok(steps)
    }

    /// The folder of the checkpoint of a step, whether it is there or not; until the next [`open`](Self::open) that is the
    /// one of a checkpoint that was moved aside, where its successor is not in place.
    pub(super) fn path_of(&self, step: u64) -> PathBuf {
        let (path, replaced) = (self.folder.join(step_name(step)), self.replaced(step));
        if !path.exists() && replaced.exists() { replaced } else { path }
    }

    /// Where the checkpoint of a step is moved to before another one takes its place.
    fn replaced(&self, step: u64) -> PathBuf {
        self.folder.join(format!("{REPLACED}{}", step_name(step)))
    }

    /// The step of a checkpoint's folder, by its name.
    pub(super) fn step_in(path: &Path) -> Option<u64> {
        step_or_replaced(path.file_name()?.to_str()?)
    }

    pub(super) fn save_on(
        &self,
        disk: &dyn Disk,
        checkpoint: &Checkpoint<'_>,
        best: bool,
    ) -> Result<Saved, CheckpointError> {
        let name = step_name(checkpoint.state.step);
        let beside = self.folder.join(format!(".writing-{name}"));
        let bytes = self.write_folder(disk, checkpoint, &beside).inspect_err(|_| {
            let _ = fs::remove_dir_all(&beside);
        })?;
        let path = self.folder.join(&name);
        self.move_into_place(disk, &beside, &path).map_err(|source| {
            let _ = fs::remove_dir_all(&beside);
            FileError::writing(&path, source)
        })?;
        if best {
            self.point(disk, BEST, &name)?;
        }
        self.point(disk, LATEST, &name)?;
        let warning = self.prune(disk).err().map(|error| format!("old checkpoints were not removed: {error}"));
        Ok(Saved { path, bytes, warning })
    }

    fn write_folder(
        &self,
        disk: &dyn Disk,
        checkpoint: &Checkpoint<'_>,
        folder: &Path,
    ) -> Result<u64, CheckpointError> {
        let writing = |path: &Path| {
            let path = path.to_owned();
            move |source| FileError::writing(&path, source)
        };
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(writing(folder))?;
        }
        fs::create_dir(folder).map_err(writing(folder))?;
        let mut files = Vec::new();
        for (name, tensors) in checkpoint.parts() {
            let path = folder.join(name);
            files.push(write_part(disk, &path, name, tensors).map_err(writing(&path))?);
        }
        let path = folder.join(MANIFEST_FILE);
        let manifest = Manifest::new(&checkpoint.state, files);
        let json = manifest.to_json();
        let write_manifest = || {
            let mut sink = disk.create(&path)?;
            sink.write_all(&json)?;
            sink.sync()
        };
        write_manifest().map_err(writing(&path))?;
        disk.sync_folder(folder).map_err(writing(folder))?;
        Ok(manifest.files.iter().map(|file| file.size).sum::<u64>() + json.len() as u64)
    }

    /// Renames a finished folder to its name. A folder of that name (from a run that went back to an earlier step) is
    /// moved aside first and removed after; it comes back if the finished one cannot be renamed.
    fn move_into_place(&self, disk: &dyn Disk, beside: &Path, path: &Path) -> io::Result<()> {
        let replaced = if path.exists() { Some(self.move_aside(disk, path, REPLACED)?) } else { None };
        disk.rename(beside, path).inspect_err(|_| {
            // If this fails too, the next `open` does it.
            let _ = replaced.as_ref().map(|old| disk.rename(old, path));
        })?;
        disk.sync_folder(&self.folder)?;
        replaced.map_or(Ok(()), |old| disk.remove_folder(&old))
    }

    fn move_aside(&self, disk: &dyn Disk, path: &Path, prefix: &str) -> io::Result<PathBuf> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let aside = self.folder.join(format!("{prefix}{name}"));
        if aside.exists() {
            fs::remove_dir_all(&aside)?;
        }
        disk.rename(path, &aside)?;
        Ok(aside)
    }

    fn point(&self, disk: &dyn Disk, pointer: &str, name: &str) -> Result<(), FileError> {
        let path = self.folder.join(pointer);
        let beside = hidden_beside(&path);
        let replace = || {
            let mut sink = disk.create(&beside)?;
            writeln!(sink, "{name}")?;
            sink.sync()?;
            drop(sink);
            disk.rename(&beside, &path)?;
            disk.sync_folder(&self.folder)
        };
        replace().map_err(|source| {
            let _ = fs::remove_file(&beside);
            FileError::writing(&path, source)
        })
    }

    fn pointed(&self, pointer: &str) -> Option<PathBuf> {
        let text = fs::read_to_string(self.folder.join(pointer)).ok()?;
        Some(self.path_of(step_of(text.strip_suffix('\n')?)?))
    }

    /// Removes all but the newest `keep`, the latest and the best.
    fn prune(&self, disk: &dyn Disk) -> Result<(), CheckpointError> {
        let kept = [self.latest(), self.best()];
        for step in self.steps()?.iter().rev().skip(self.keep) {
            let path = self.path_of(*step);
            if kept.iter().flatten().any(|other| *other == path) {
                continue;
            }
            self.move_aside(disk, &path, REMOVING)
                .and_then(|aside| disk.remove_folder(&aside))
                .map_err(|source| FileError::Io { path, source })?;
        }
        Ok(())
    }

    /// Folders to try: the latest, then those before it from new to old, then those after it.
    fn candidates(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let latest = self.latest().and_then(|path| Self::step_in(&path));
        let mut steps = self.steps()?;
        // A latest whose folder has vanished is tried too, so that its loss is reported.
        steps.extend(latest.filter(|latest| !steps.contains(latest)));
        steps.sort_by_key(|step| (latest.is_some_and(|latest| *step > latest), Reverse(*step)));
        Ok(steps.into_iter().map(|step| self.path_of(step)).collect())
    }

    /// Puts back the checkpoints that were moved aside and have no successor. They are whole: none is removed before its
    /// successor is in place.
    fn restore_replaced(&self) -> Result<(), CheckpointError> {
        for name in self.names()? {
            let Some(step) = name.strip_prefix(REPLACED).and_then(step_of) else { continue };
            let path = self.folder.join(step_name(step));
            if !path.exists() {
                fs::rename(self.replaced(step), &path).map_err(|source| FileError::writing(&path, source))?;
            }
        }
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<(), CheckpointError> {
        for name in self.names()?.iter().filter(|name| name.starts_with('.')) {
            let path = self.folder.join(name);
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|source| FileError::writing(&path, source))?;
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let list = || fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let names = list().map_err(|source| FileError::reading(&self.folder, source))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }
}

/// The checkpoint in a checkpoint folder, or the newest whole one of a run folder.
///
/// # Errors
/// A path that is neither; a checkpoint that is damaged.
pub fn load_newest(path: &Path) -> Result<Checkpoint<'static>, CheckpointError> {
    if path.join(MANIFEST_FILE).exists() {
        return load_checkpoint(path);
    }
    let folder = path.join("checkpoints");
    let loaded = if folder.is_dir() { CheckpointStore::for_reading(folder).load_latest()? } else { None };
    let expected = "expected a checkpoint folder (with manifest.json) or a run folder with checkpoints in it";
    loaded.map(|loaded| loaded.checkpoint).ok_or_else(|| FileError::not_found(path, expected).into())
}

/// Loads one checkpoint folder after verifying size and checksum of each file.
///
/// # Errors
/// Anything missing, truncated or changed, named by file; nothing is returned of a checkpoint that is not whole.
pub fn load_checkpoint(folder: &Path) -> Result<Checkpoint<'static>, CheckpointError> {
    let manifest = read_manifest(folder)?;
    Ok(Checkpoint {
        model: read_part(folder, &manifest, MODEL_FILE)?,
        optimizer: read_part(folder, &manifest, OPTIMIZER_FILE)?,
        ema: has_part(&manifest, EMA_FILE).then(|| read_part(folder, &manifest, EMA_FILE)).transpose()?,
        state: manifest.state,
    })
}

pub(super) fn read_manifest(folder: &Path) -> Result<Manifest, CheckpointError> {
    let path = folder.join(MANIFEST_FILE);
    let bytes = fs::read(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => FileError::damaged(&path, "the file is missing"),
        _ => FileError::reading(&path, source),
    })?;
    Manifest::parse(&bytes, &path)
}

pub(super) fn has_part(manifest: &Manifest, name: &str) -> bool {
    manifest.files.iter().any(|file| file.name == name)
}

/// Reads one file of a checkpoint, verifying it against the manifest.
pub(super) fn read_part(
    folder: &Path,
    manifest: &Manifest,
    name: &str,
) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let path = folder.join(name);
    let damaged = |reason: String| FileError::damaged(&path, reason);
    let entry = manifest.files.iter().find(|file| file.name == name);
    let entry = entry.ok_or_else(|| damaged("the manifest does not list this file".to_owned()))?;
    let file = File::open(&path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => damaged("the file is missing".to_owned()),
        _ => FileError::reading(&path, source),
    })?;
    let size = file.metadata().map_err(|source| FileError::reading(&path, source))?.len();
    if size != entry.size {
        return Err(damaged(format!("{size} bytes, the manifest says {}", entry.size)));
    }
    let mut reader = Hashing::new(BufReader::new(file));
    let tensors = read_tensors(&mut reader, size, &path)?;
    let (_, sha256) = reader.finish();
    if sha256 != entry.sha256 {
        return Err(damaged(format!("SHA-256 is {sha256}, the manifest says {}", entry.sha256)));
    }
    Ok(tensors)
}

fn write_part(disk: &dyn Disk, path: &Path, name: &str, tensors: &[NamedTensor<'_>]) -> io::Result<FileEntry> {
    let mut writer = Hashing::new(disk.create(path)?);
    write_tensors(tensors, None, &mut writer)?;
    writer.inner.sync()?;
    let (size, sha256) = writer.finish();
    Ok(FileEntry { name: name.to_owned(), size, sha256 })
}

fn step_name(step: u64) -> String {
    format!("{STEP_PREFIX}{step:06}")
}

/// The step of a folder name that [`step_name`] could have written.
fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP_PREFIX)?.parse().ok()?;
    (step_name(step) == name).then_some(step)
}

/// The step of a checkpoint's folder, moved aside or not.
fn step_or_replaced(name: &str) -> Option<u64> {
    step_of(name.strip_prefix(REPLACED).unwrap_or(name))
}
