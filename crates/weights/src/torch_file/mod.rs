//! Weight files of PyTorch: what `torch.save` writes since version 1.6, usually called `.pth`, `.pt` or `.bin`.
//!
//! A zip archive of entries that are not compressed: `FOLDER/data.pkl`, a pickle that describes the tensors, and their elements in
//! `FOLDER/data/KEY`. The pickle is read by lists of opcodes and names that are allowed, and nothing in it is executed
//! ([`pickle`]). Sizes are checked against the file before memory is taken for them.

mod archive;
mod pickle;
#[cfg(test)]
mod tests;
mod view;

use crate::error::{FileError, shown};
use crate::read::head;
use crate::tensor::NamedTensor;
use archive::{Archive, PICKLE};
use pickle::{Object, Unpickled, Value, unpickle};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use view::View;

/// Where a file has averaged weights.
const AVERAGED: &str = "state_dict_ema";
/// Keys of a checkpoint under which a state dict is looked for; the first one that is there is taken.
const KEYS: [&str; 4] = [AVERAGED, "state_dict", "model_state_dict", "model"];
const EXTENSIONS: [&str; 3] = ["pth", "pt", "bin"];
const ZIP: &[u8] = b"PK\x03\x04";
/// Tensors may share storages; all of them together may have this multiple of the bytes of the file.
const MAX_SHARING: u64 = 4;
/// Keys of a file that an error lists.
const MAX_LISTED: usize = 8;

/// Which of several state dicts of a PyTorch file is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDictChoice {
    /// The PyTorch file.
    pub path: PathBuf,
    /// The key of the one that is used.
    pub key: &'static str,
    /// Those of the others.
    pub others: Vec<&'static str>,
}

impl fmt::Display for StateDictChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let averages = if self.key == AVERAGED { ", the averaged weights" } else { "" };
        write!(f, "{}: `{}`{averages} (not `{}`)", self.path.display(), self.key, self.others.join("`, `"))
    }
}

/// Which state dict is read from a path that is a PyTorch file with several; `None` for any other path.
///
/// # Errors
/// A PyTorch file that cannot be read.
pub fn state_dict_choice(path: &Path) -> Result<Option<StateDictChoice>, FileError> {
    if !path.is_file() || !is_torch_file(path)? {
        return Ok(None);
    }
    let StateDict { mut keys, .. } = StateDict::open(path, false)?;
    if keys.len() < 2 {
        return Ok(None);
    }
    Ok(Some(StateDictChoice { path: path.to_owned(), key: keys.remove(0), others: keys }))
}

/// Whether a file is one of PyTorch by its first bytes, or else by its extension.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn is_torch_file(path: &Path) -> Result<bool, FileError> {
    let head = head(path)?;
    let named = path.extension().and_then(|extension| extension.to_str());
    let is_named = named.is_some_and(|extension| EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()));
    // A safetensors header begins after the 8 bytes of its length.
    Ok(head.starts_with(ZIP) || is_legacy(&head) || (is_named && head.get(8) != Some(&b'{')))
}

/// A pickle that begins with a number of ten bytes, the magic number of files before 1.6.
fn is_legacy(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, 0x8a, 0x0a, ..])
}

/// Reads the tensors of a PyTorch file, those of its averages alone if `averaged`, in the order of its state dict.
///
/// # Errors
/// A file of an older format, truncated, compressed or contradictory, or whose pickle needs anything but tensors and plain
/// values; one without a state dict.
pub(crate) fn read_torch_file(path: &Path, averaged: bool) -> Result<Vec<NamedTensor<'static>>, FileError> {
    StateDict::open(path, averaged)?.tensors()
}

/// A checked description of the tensors of a file.
struct StateDict {
    archive: Archive,
    /// Keys that have a state dict, that of this one first; none if the file is the state dict itself.
    keys: Vec<&'static str>,
    views: Vec<(String, View)>,
}

impl StateDict {
    fn open(path: &Path, averaged: bool) -> Result<Self, FileError> {
        let head = head(path)?;
        if is_legacy(&head) {
            let reason = "written in the format of PyTorch before 1.6, which is not read; convert it with PyTorch: \
                          torch.save(torch.load(\"OLD.pth\", map_location=\"cpu\", weights_only=True), \"NEW.pth\")";
            return Err(FileError::damaged(path, reason));
        }
        if !head.starts_with(ZIP) {
            let reason = "neither a safetensors file nor what torch.save writes (a zip archive)";
            return Err(FileError::damaged(path, reason));
        }
        let archive = Archive::open(path)?;
        let bytes = archive.pickle()?;
        let pickle = unpickle(&bytes).map_err(|reason| archive.problem(PICKLE, &reason))?;
        let (keys, tensors) = choose(&pickle, averaged).map_err(|reason| archive.damaged(reason))?;
        let mut names = BTreeSet::new();
        let mut views = Vec::with_capacity(tensors.len());
        for (name, tensor) in tensors {
            if !names.insert(name) {
                return Err(archive.tensor_problem(name, "it appears twice".to_owned()));
            }
            let view = View::new(&pickle, tensor).map_err(|reason| archive.tensor_problem(name, reason))?;
            views.push((name.to_owned(), view));
        }
        let dict = Self { archive, keys, views };
        dict.check_sizes()?;
        Ok(dict)
    }

    /// Checks what pickle and archive say about sizes, against each other and the file.
    fn check_sizes(&self) -> Result<(), FileError> {
        let archive = &self.archive;
        let mut storages = BTreeSet::new();
        let (mut stored, mut dense) = (0_u64, 0_u64);
        for (name, view) in &self.views {
            let size = archive.size(&entry_of(view))?;
            if size != view.storage_bytes {
                let claimed = view.storage_bytes;
                let reason = format!("its storage has {size} bytes in the archive and {claimed} in the pickle");
                return Err(archive.tensor_problem(name, reason));
            }
            if view.bytes as u64 > archive.length {
                let reason = format!("its {} bytes are more than the file has ({})", view.bytes, archive.length);
                return Err(archive.tensor_problem(name, reason));
            }
            if storages.insert(&view.storage) {
                stored = stored.saturating_add(size);
            }
            dense = dense.saturating_add(view.bytes as u64);
        }
        if stored > archive.length || dense > archive.length.saturating_mul(MAX_SHARING) {
            return Err(archive.damaged(format!(
                "storages of {stored} bytes and tensors of {dense} bytes in a file of {}: entries overlap, or more than \
                 {MAX_SHARING} tensors share each storage",
                archive.length
            )));
        }
        Ok(())
    }

    /// Reads each storage once.
    fn tensors(&self) -> Result<Vec<NamedTensor<'static>>, FileError> {
        let mut users: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, (_, view)) in self.views.iter().enumerate() {
            users.entry(&view.storage).or_default().push(index);
        }
        let mut data = vec![Vec::new(); self.views.len()];
        for indices in users.into_values() {
            let view = &self.views[indices[0]].1;
            let mut storage = self.archive.read(&entry_of(view), view.storage_bytes)?;
            for (position, &index) in indices.iter().enumerate() {
                let is_last = position + 1 == indices.len();
                data[index] = self.views[index].1.gather(&mut storage, is_last);
            }
        }
        let tensors = self.views.iter().zip(data).map(|((name, view), data)| NamedTensor {
            name: name.clone(),
            dtype: view.dtype,
            shape: view.shape.clone(),
            data: Cow::Owned(data),
        });
        Ok(tensors.collect())
    }
}

fn entry_of(view: &View) -> String {
    format!("data/{}", view.storage)
}

type Tensors<'p, 'a> = Vec<(&'a str, &'p pickle::Tensor<'a>)>;

/// The state dict of a pickle, and the keys that have one, that of this one first.
fn choose<'p, 'a>(pickle: &'p Unpickled<'a>, averaged: bool) -> Result<(Vec<&'static str>, Tensors<'p, 'a>), String> {
    let Some(Object::Dict(root)) = pickle.object(pickle.root) else {
        let allowed = "the file holds no dict; a state dict is expected: torch.save(model.state_dict(), FILE)";
        return Err(allowed.to_owned());
    };
    let under = |key: &str| {
        let (_, value) = root.iter().rev().find(|(found, _)| *found == Value::Text(key))?;
        let Some(Object::Dict(entries)) = pickle.object(*value) else { return None };
        Some(tensors_of(pickle, entries)).filter(|tensors| !tensors.is_empty())
    };
    let mut found = KEYS.iter().filter_map(|&key| Some((key, under(key)?)));
    let first = found.next();
    if averaged && first.as_ref().is_none_or(|(key, _)| *key != AVERAGED) {
        return Err(format!("holds no averaged weights (`{AVERAGED}`)"));
    }
    if let Some((key, tensors)) = first {
        return Ok((std::iter::once(key).chain(found.map(|(key, _)| key)).collect(), tensors));
    }
    let tensors = tensors_of(pickle, root);
    if !tensors.is_empty() {
        return Ok((Vec::new(), tensors));
    }
    let keys = root.iter().filter_map(|(key, _)| if let Value::Text(key) = key { Some(shown(key)) } else { None });
    let mut listed: Vec<String> = keys.take(MAX_LISTED).map(|key| format!("`{key}`")).collect();
    if listed.is_empty() {
        listed.push("nothing under a name".to_owned());
    }
    let allowed = KEYS.map(|key| format!("`{key}`")).join(", ");
    Err(format!("holds no tensors by name, neither at the top nor under {allowed}; it has {}", listed.join(", ")))
}

/// The tensors of a dict; other entries are passed over.
fn tensors_of<'p, 'a>(pickle: &'p Unpickled<'a>, entries: &[(Value<'a>, Value<'a>)]) -> Tensors<'p, 'a> {
    let tensor = |&(key, value): &(Value<'a>, Value<'a>)| match (key, pickle.object(value)) {
        (Value::Text(name), Some(Object::Tensor(tensor))) => Some((name, tensor)),
        _ => None,
    };
    entries.iter().filter_map(tensor).collect()
}
