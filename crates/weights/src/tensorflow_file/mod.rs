//! Checkpoints of TensorFlow: `PREFIX.index`, a sorted table that describes the tensors ([`table`]), and their elements in
//! `PREFIX.data-00000-of-00001` or in several such files.
//!
//! Checkpoints of TensorFlow 1 are tables of variables by name. Those of TensorFlow 2, and the variables of a SavedModel, have a
//! graph of objects besides, which says the names ([`objects`]). In both, what training keeps beside a model is left out.
//!
//! Checksums are compared, and sizes are checked against the files before memory is taken for them.

mod names;
mod objects;
mod place;
mod proto;
mod table;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "writer"))]
pub(crate) mod writer;

use crate::error::{FileError, shown};
use crate::tensor::{NamedTensor, byte_size};
use bessemer_data::tfrecord::masked_crc;
use names::named_variables;
use objects::model_variables;
pub(crate) use place::find_prefix;
use prost::Message;
use proto::{BundleEntryProto, BundleHeaderProto, TrackableObjectGraph, element};
use safetensors::Dtype;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use table::{Reader, read_table};

const OBJECT_GRAPH: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";
const MAX_INDEX_BYTES: u64 = 1 << 27;
const MAX_GRAPH_BYTES: u64 = 1 << 24;
/// As many files as their names can number.
const MAX_SHARDS: i32 = 99_999;
/// The version of bundles that is read.
const VERSION: i32 = 1;

/// Reads the variables of the model in the checkpoint `prefix`, under the names that TensorFlow gave them; with `averaged`, averages
/// take the places of the variables that have some.
///
/// # Errors
/// A file that is missing, truncated, damaged or contradictory; tensors of a type that is not read, or in parts; no averages
/// where they are asked for.
pub(crate) fn read_tensorflow_file(prefix: &Path, averaged: bool) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let bundle = Bundle::open(prefix)?;
    let chosen = bundle.choose(averaged)?;
    bundle.read_all(&chosen)
}

/// A checked index.
struct Bundle {
    prefix: PathBuf,
    index: PathBuf,
    shards: u32,
    entries: BTreeMap<String, Entry>,
}

/// Where a tensor lies.
struct Entry {
    /// As `tensorflow.DataType` numbers it.
    kind: i32,
    shape: Vec<usize>,
    shard: u32,
    offset: u64,
    size: u64,
    crc: u32,
    /// Whether it is the whole of a variable that is stored in parts.
    is_in_parts: bool,
}

/// A tensor to read: its key, and the name that it gets.
type Chosen = (String, String);

impl Bundle {
    fn open(prefix: &Path) -> Result<Self, FileError> {
        let index = with_suffix(prefix, ".index");
        let io_error = |source| FileError::reading(&index, source);
        let length = fs::metadata(&index).map_err(io_error)?.len();
        if length > MAX_INDEX_BYTES {
            let reason = format!("has {length} bytes; an index of at most {MAX_INDEX_BYTES} is read");
            return Err(FileError::damaged(&index, reason));
        }
        let bytes = fs::read(&index).map_err(io_error)?;
        let (mut shards, mut entries) = (None, BTreeMap::new());
        let described = read_table(&bytes, |key, value| {
            let Some(_) = shards else {
                if !key.is_empty() {
                    return Err("it has no header".to_owned());
                }
                shards = Some(number_of_shards(value)?);
                return Ok(());
            };
            // Parts of a variable begin with a zero.
            if key.first() == Some(&0) {
                return Ok(());
            }
            let name = str::from_utf8(key).map_err(|_| "a name is not UTF-8".to_owned())?;
            let entry = Entry::parse(value).map_err(|reason| format!("tensor `{}`: {reason}", shown(name)))?;
            entries.insert(name.to_owned(), entry);
            Ok(())
        });
        described.map_err(|reason| FileError::damaged(&index, reason))?;
        let shards = shards.ok_or_else(|| FileError::damaged(&index, "it has no header"))?;
        let bundle = Self { prefix: prefix.to_owned(), index, shards, entries };
        bundle.check_places()?;
        Ok(bundle)
    }

    fn damaged(&self, reason: impl Into<String>) -> FileError {
        FileError::damaged(&self.index, reason)
    }

    fn tensor_problem(&self, name: &str, reason: impl Into<String>) -> FileError {
        FileError::Tensor { path: self.index.clone(), tensor: shown(name), reason: reason.into() }
    }

    fn shard_path(&self, shard: u32) -> PathBuf {
        with_suffix(&self.prefix, &format!(".data-{shard:05}-of-{:05}", self.shards))
    }

    /// Checks that all tensors lie within files that exist, and none within another.
    fn check_places(&self) -> Result<(), FileError> {
        let mut places: Vec<(&Entry, &str)> = self.entries.iter().map(|(name, entry)| (entry, name.as_str())).collect();
        places.sort_by_key(|(entry, _)| (entry.shard, entry.offset, entry.size));
        let mut file: Option<(u32, u64)> = None;
        let mut end = 0;
        for (entry, name) in places {
            let Entry { shard, offset, size, .. } = *entry;
            let length = match file {
                Some((open, length)) if open == shard => length,
                _ => {
                    if shard >= self.shards {
                        let reason = format!("lies in file {shard}, and there are {} (counted from 0)", self.shards);
                        return Err(self.tensor_problem(name, reason));
                    }
                    end = 0;
                    let path = self.shard_path(shard);
                    let length = fs::metadata(&path).map_err(|source| FileError::reading(&path, source))?.len();
                    file = Some((shard, length));
                    length
                }
            };
            let Some(last) = offset.checked_add(size).filter(|&last| last <= length) else {
                let path = self.shard_path(shard);
                let place = format!("offset {offset}, {size} bytes");
                return Err(self.tensor_problem(
                    name,
                    format!("({place}) does not lie within the {length} bytes of {}", path.display()),
                ));
            };
            if size > 0 && offset < end {
                return Err(
                    self.tensor_problem(name, format!("begins at {offset}, within another one that ends at {end}"))
                );
            }
            end = end.max(last);
        }
        Ok(())
    }

    /// The tensors of the model.
    fn choose(&self, averaged: bool) -> Result<Vec<Chosen>, FileError> {
        let is_tensor = |name: &str| self.entries.get(name).is_some_and(Entry::is_of_model);
        let (chosen, averages) = match self.object_graph()? {
            Some(graph) => {
                let variables = model_variables(&graph).map_err(|reason| self.damaged(reason))?;
                let mut averages = 0;
                let mut chosen = Vec::with_capacity(variables.len());
                for variable in variables {
                    let average = variable.average.filter(|_| averaged);
                    averages += usize::from(average.is_some());
                    let key = average.unwrap_or(variable.key);
                    if !self.entries.contains_key(&key) {
                        return Err(self.tensor_problem(&key, "the graph of objects has it, and the index does not"));
                    }
                    if is_tensor(&key) {
                        chosen.push((key, variable.name));
                    }
                }
                (chosen, averages)
            }
            None => {
                let names: BTreeSet<&str> =
                    self.entries.keys().map(String::as_str).filter(|name| is_tensor(name)).collect();
                named_variables(&names, averaged)
            }
        };
        if averaged && averages == 0 {
            return Err(self.damaged(
                "holds no averaged weights (variables called .../ExponentialMovingAverage, or slots called average)",
            ));
        }
        if chosen.is_empty() {
            return Err(self.damaged("holds no variables of a model"));
        }
        let mut keys = BTreeSet::new();
        if let Some((key, _)) = chosen.iter().find(|(key, _)| !keys.insert(key)) {
            return Err(self.tensor_problem(key, "two variables have it"));
        }
        Ok(chosen)
    }

    /// The graph that a checkpoint of TensorFlow 2 has.
    fn object_graph(&self) -> Result<Option<TrackableObjectGraph>, FileError> {
        let Some(entry) = self.entries.get(OBJECT_GRAPH) else { return Ok(None) };
        let problem = |reason: &str| self.tensor_problem(OBJECT_GRAPH, reason);
        if entry.kind != element::STRING || !entry.shape.is_empty() {
            return Err(problem("is no single string"));
        }
        if entry.size > MAX_GRAPH_BYTES {
            return Err(problem(&format!("has {} bytes, at most {MAX_GRAPH_BYTES} are read", entry.size)));
        }
        let mut file = None;
        let bytes = self.bytes(entry, &mut file).map_err(|(path, source)| FileError::reading(&path, source))?;
        let text = single_string(&bytes, entry.crc).map_err(|reason| problem(&reason))?;
        TrackableObjectGraph::decode(text).map(Some).map_err(|error| problem(&format!("is damaged: {error}")))
    }

    /// Reads tensors in the order in which they lie; they are returned in that of `chosen`.
    fn read_all(&self, chosen: &[Chosen]) -> Result<Vec<NamedTensor<'static>>, FileError> {
        let mut order: Vec<usize> = (0..chosen.len()).collect();
        let place = |index: &usize| self.entries.get(&chosen[*index].0).map(|entry| (entry.shard, entry.offset));
        order.sort_by_key(place);
        let mut tensors: Vec<Option<NamedTensor<'static>>> = vec![None; chosen.len()];
        let mut file = None;
        for index in order {
            let (key, name) = &chosen[index];
            let entry = &self.entries[key];
            if entry.is_in_parts {
                return Err(self.tensor_problem(key, "is stored in parts (a partitioned variable), which are not read"));
            }
            let Some(dtype) = dtype(entry.kind) else {
                let allowed = "bool, integers of 8 to 64 bits, half, bfloat16, float and double are read";
                return Err(
                    self.tensor_problem(key, format!("has elements of TensorFlow's type {}; {allowed}", entry.kind))
                );
            };
            let data = self.bytes(entry, &mut file).map_err(|(path, source)| FileError::reading(&path, source))?;
            let (found, stated) = (masked_crc(&data), entry.crc);
            if found != stated {
                let path = self.shard_path(entry.shard);
                let reason =
                    format!("has the checksum {found:08x} and should have {stated:08x}, in {}", path.display());
                return Err(self.tensor_problem(key, reason));
            }
            let (name, shape) = (name.clone(), entry.shape.clone());
            tensors[index] = Some(NamedTensor { name, dtype, shape, data: Cow::Owned(data) });
        }
        Ok(tensors.into_iter().flatten().collect())
    }

    /// The bytes of a tensor, from the file that is open if it is the right one.
    fn bytes(&self, entry: &Entry, open: &mut Option<(u32, File)>) -> Result<Vec<u8>, (PathBuf, std::io::Error)> {
        let path = self.shard_path(entry.shard);
        let read = || {
            let file = match open {
                Some((shard, file)) if *shard == entry.shard => file,
                open => &mut open.insert((entry.shard, File::open(&path)?)).1,
            };
            file.seek(SeekFrom::Start(entry.offset))?;
            let mut data = vec![0; entry.size as usize];
            file.read_exact(&mut data)?;
            Ok(data)
        };
        read().map_err(|source| (path.clone(), source))
    }
}

impl Entry {
    /// # Errors
    /// A description that is damaged or contradictory, in words.
    fn parse(value: &[u8]) -> Result<Self, String> {
        let entry = BundleEntryProto::decode(value).map_err(|error| format!("its description is damaged: {error}"))?;
        let BundleEntryProto { dtype: kind, shape, shard_id, offset, size, crc32c: crc, slices } = entry;
        let shape = shape.unwrap_or_default();
        if shape.unknown_rank {
            return Err("its shape is unknown".to_owned());
        }
        let dims: Vec<i64> = shape.dim.iter().map(|dim| dim.size).collect();
        let sizes: Option<Vec<usize>> = dims.iter().map(|&size| usize::try_from(size).ok()).collect();
        let shape = sizes.ok_or_else(|| format!("its shape {dims:?} is impossible"))?;
        let [shard, offset, size] = [i64::from(shard_id), offset, size].map(u64::try_from);
        let (Ok(shard), Ok(offset), Ok(size)) = (shard, offset, size) else {
            return Err("its place has negative numbers".to_owned());
        };
        let is_in_parts = !slices.is_empty();
        if let Some(dtype) = dtype(kind).filter(|_| !is_in_parts) {
            let needed = byte_size(dtype, &shape);
            if needed.map(|bytes| bytes as u64) != Some(size) {
                let needed = needed.map_or("an impossible number of".to_owned(), |bytes| bytes.to_string());
                return Err(format!("{dtype:?} of shape {shape:?} needs {needed} bytes, and it has {size}"));
            }
        }
        Ok(Self { kind, shape, shard: shard as u32, offset, size, crc, is_in_parts })
    }

    /// Whether it can be a tensor of a model: no text, no state of a data set, and no single integer, which is a count or a switch.
    fn is_of_model(&self) -> bool {
        let is_float = [element::FLOAT, element::DOUBLE, element::HALF, element::BFLOAT16].contains(&self.kind);
        let is_opaque = [element::STRING, element::RESOURCE, element::VARIANT].contains(&self.kind);
        !is_opaque && (is_float || !self.shape.is_empty())
    }
}

/// The number of files of elements, from the header of an index.
fn number_of_shards(header: &[u8]) -> Result<u32, String> {
    let header = BundleHeaderProto::decode(header).map_err(|error| format!("its header is damaged: {error}"))?;
    let BundleHeaderProto { num_shards, endianness, version } = header;
    let needed = version.unwrap_or_default().min_consumer;
    if endianness != 0 {
        return Err("it was written on a big-endian machine; little-endian checkpoints are read".to_owned());
    }
    if needed > VERSION {
        return Err(format!("it needs a reader of version {needed}; version {VERSION} is read"));
    }
    match num_shards {
        1..=MAX_SHARDS => Ok(num_shards as u32),
        _ => Err(format!("it says that it has {num_shards} files of elements; 1 to {MAX_SHARDS} are possible")),
    }
}

/// The element of a tensor of one string: its length as a varint, the checksum of the length, its bytes.
fn single_string(bytes: &[u8], crc: u32) -> Result<&[u8], String> {
    let mut reader = Reader(bytes);
    let (Some(length), Some(length_crc)) = (reader.varint(), reader.word()) else {
        return Err("is truncated".to_owned());
    };
    let text = reader.0;
    let Some(short) = u32::try_from(length).ok().filter(|&length| length as usize == text.len()) else {
        return Err(format!("has {} bytes of text, and says that they are {length}", text.len()));
    };
    let short = short.to_le_bytes();
    let whole = [&short[..], &length_crc.to_le_bytes(), text].concat();
    for (part, found, stated) in
        [("its length", masked_crc(&short), length_crc), ("the whole", masked_crc(&whole), crc)]
    {
        if found != stated {
            return Err(format!("{part} has the checksum {found:08x} and should have {stated:08x}"));
        }
    }
    Ok(text)
}

fn dtype(kind: i32) -> Option<Dtype> {
    Some(match kind {
        element::FLOAT => Dtype::F32,
        element::DOUBLE => Dtype::F64,
        element::INT32 => Dtype::I32,
        element::UINT8 => Dtype::U8,
        element::INT16 => Dtype::I16,
        element::INT8 => Dtype::I8,
        element::INT64 => Dtype::I64,
        element::BOOL => Dtype::BOOL,
        element::BFLOAT16 => Dtype::BF16,
        element::UINT16 => Dtype::U16,
        element::HALF => Dtype::F16,
        element::UINT32 => Dtype::U32,
        element::UINT64 => Dtype::U64,
        _ => return None,
    })
}

fn with_suffix(prefix: &Path, suffix: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}
