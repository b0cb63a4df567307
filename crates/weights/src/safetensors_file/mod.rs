//! Reading and writing safetensors as streams, so that weights are never held twice.
//!
//! Layout: header length (`u64`, little-endian), header (JSON), then the tensors' bytes without gaps.
//! Reading is strict: offsets must cover the data exactly, and every error names the file and the tensor. The header may hold texts
//! beside the tensors (`__metadata__`); one of them, under the name of this program, is what it says of the weights.

#[cfg(test)]
mod tests;

use crate::error::FileError;
use crate::publish::publish_file;
use crate::tensor::{NamedTensor, byte_size};
use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Error as _, MapAccess, Visitor};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

const MAX_HEADER_BYTES: u64 = 100_000_000;
const METADATA_KEY: &str = "__metadata__";
/// The name of this program's text in the metadata.
const NOTE_KEY: &str = "bessemer";
/// What Hugging Face's library asks of a file that has metadata at all.
const FORMAT: (&str, &str) = ("format", "pt");

/// Reads all tensors of a safetensors file, in the order in which they lie.
///
/// # Errors
/// An unreadable, truncated or contradictory file; nothing is returned of a file that is not whole.
pub fn read_safetensors(path: &Path) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let io_error = |source| FileError::reading(path, source);
    let file = File::open(path).map_err(io_error)?;
    let length = file.metadata().map_err(io_error)?.len();
    read_tensors(BufReader::new(file), length, path)
}

/// Writes a safetensors file; `path` holds either its old content or all of the new.
///
/// # Errors
/// A tensor named twice; an unwritable folder or a full disk.
pub fn write_safetensors(path: &Path, tensors: &[NamedTensor<'_>]) -> Result<(), FileError> {
    publish_file(path, |sink| write_tensors(tensors, None, sink))
}

/// [`write_safetensors`] with a text that [`note_of_safetensors`] finds.
///
/// # Errors
/// As [`write_safetensors`].
pub fn write_safetensors_with_note(path: &Path, tensors: &[NamedTensor<'_>], note: &str) -> Result<(), FileError> {
    publish_file(path, |sink| write_tensors(tensors, Some(note), sink))
}

/// The text that this program has put beside the tensors; `None` for a file without one. A file whose header cannot be read has none
/// either: reading its tensors gives the error.
///
/// # Errors
/// A file that cannot be read.
pub fn note_of_safetensors(path: &Path) -> Result<Option<String>, FileError> {
    let io_error = |source| FileError::reading(path, source);
    let file = File::open(path).map_err(io_error)?;
    let length = file.metadata().map_err(io_error)?.len();
    let header = read_header(&mut BufReader::new(file), length, path);
    Ok(header.ok().and_then(|(_, mut header)| header.metadata.remove(NOTE_KEY)))
}

/// Writes what a safetensors file holds: the tensors, largest element type first so that every one is aligned, then by name, and a text
/// that [`note_of_safetensors`] finds.
///
/// # Errors
/// A tensor named twice; a failure to write.
pub fn write_tensors(tensors: &[NamedTensor<'_>], note: Option<&str>, sink: &mut dyn Write) -> io::Result<()> {
    let mut ordered: Vec<&NamedTensor<'_>> = tensors.iter().collect();
    ordered.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let header = encode_header(&ordered, note)?;
    sink.write_all(&(header.len() as u64).to_le_bytes())?;
    sink.write_all(&header)?;
    ordered.iter().try_for_each(|tensor| sink.write_all(&tensor.data))
}

fn encode_header(ordered: &[&NamedTensor<'_>], note: Option<&str>) -> io::Result<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut start = 0;
    let mut infos = Vec::with_capacity(ordered.len());
    for tensor in ordered {
        if !names.insert(tensor.name.as_str()) || tensor.name == METADATA_KEY {
            return Err(io::Error::other(format!("tensor name `{}` is taken", tensor.name)));
        }
        let end = start + tensor.data.len();
        let info = TensorInfo { dtype: tensor.dtype, shape: tensor.shape.clone(), data_offsets: (start, end) };
        infos.push((tensor.name.clone(), info));
        start = end;
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    if let Some(note) = note {
        header = with_texts(&header, &BTreeMap::from([(NOTE_KEY, note), FORMAT]))?;
    }
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// A header with texts in it. The library would write several in a random order, and the same weights would make different files.
fn with_texts(header: &[u8], texts: &BTreeMap<&str, &str>) -> io::Result<Vec<u8>> {
    let mut whole = format!("{{\"{METADATA_KEY}\":{}", serde_json::to_string(texts)?).into_bytes();
    if header != b"{}" {
        whole.push(b',');
    }
    whole.extend(&header[1..]);
    Ok(whole)
}

/// Reads the tensors of a stream of exactly `length` bytes, as a safetensors file holds them; `path` is where it comes from, for messages.
///
/// # Errors
/// As [`read_safetensors`].
pub fn read_tensors(mut reader: impl Read, length: u64, path: &Path) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let (_, layout) = read_layout(&mut reader, length, path)?;
    layout.into_iter().map(|(name, info)| read_tensor(&mut reader, name, info, path)).collect()
}

/// Reads what stands before the data of `length` bytes: where these begin, and the tensors in the order in which they lie.
pub(crate) fn read_layout(
    reader: &mut impl Read,
    length: u64,
    path: &Path,
) -> Result<(u64, Vec<(String, TensorInfo)>), FileError> {
    let (start, header) = read_header(reader, length, path)?;
    Ok((start, check_layout(header.infos, length - start, path)?))
}

/// Where the data begin, and what stands before them.
fn read_header(reader: &mut impl Read, length: u64, path: &Path) -> Result<(u64, Header), FileError> {
    let damaged = |reason: String| FileError::damaged(path, reason);
    let header_length = read_header_length(reader, length).map_err(damaged)?;
    let mut bytes = vec![0; header_length as usize];
    reader.read_exact(&mut bytes).map_err(|error| damaged(format!("header: {error}")))?;
    let header = parse_header(&bytes).map_err(|error| damaged(format!("header is not valid: {error}")))?;
    Ok((8 + header_length, header))
}

fn read_header_length(reader: &mut impl Read, length: u64) -> Result<u64, String> {
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes).map_err(|_| format!("{length} bytes are too few for a safetensors file"))?;
    let header_length = u64::from_le_bytes(bytes);
    let available = length.saturating_sub(8).min(MAX_HEADER_BYTES);
    if header_length > available {
        if let Some(kind) = other_kind(&bytes) {
            return Err(format!(
                "that is {kind}; weights come as a safetensors file, one of PyTorch, an HDF5 file of Keras or a checkpoint of TensorFlow"
            ));
        }
        return Err(format!(
            "not a safetensors file, or truncated: the header claims {header_length} bytes, at most {available} are possible"
        ));
    }
    Ok(header_length)
}

/// What a file that begins so is, where that is no safetensors file.
fn other_kind(head: &[u8; 8]) -> Option<&'static str> {
    match head {
        [0x08, 1..=20, 0x12, ..] => Some("an ONNX file"),
        [b'G', b'G', b'U', b'F', ..] => Some("a GGUF file"),
        [0x89, b'P', b'N', b'G', ..] | [0xff, 0xd8, 0xff, ..] => Some("a picture"),
        [0x1f, 0x8b, ..] => Some("a gzip archive"),
        [b'<', ..] => Some("a web page"),
        [b'{' | b'[', ..] => Some("a JSON file"),
        [b'v', b'e', b'r', b's', b'i', b'o', b'n', b' '] => Some("a pointer of Git LFS to a file that was not fetched"),
        _ => None,
    }
}

/// Tensors sorted by offset, after checking that they tile `data_length` bytes exactly.
fn check_layout(
    infos: Vec<(String, TensorInfo)>,
    data_length: u64,
    path: &Path,
) -> Result<Vec<(String, TensorInfo)>, FileError> {
    let mut sorted = infos;
    sorted.sort_by_key(|(_, info)| info.data_offsets);
    let mut expected_start = 0;
    for (name, info) in &sorted {
        let (start, end) = info.data_offsets;
        let problem = |reason: String| FileError::Tensor { path: path.to_owned(), tensor: name.clone(), reason };
        if start != expected_start {
            let relation = if start < expected_start { "overlap the tensor before" } else { "leave a gap before" };
            return Err(problem(format!("offsets [{start}, {end}) {relation} (expected start {expected_start})")));
        }
        if end < start || end as u64 > data_length {
            return Err(problem(format!("offsets [{start}, {end}) do not lie within the {data_length} bytes of data")));
        }
        let size = byte_size(info.dtype, &info.shape);
        if size != Some(end - start) {
            let size = size.map_or("an impossible number of".to_owned(), |bytes| bytes.to_string());
            return Err(problem(format!(
                "{:?} of shape {:?} needs {size} bytes, the offsets give {}",
                info.dtype,
                info.shape,
                end - start
            )));
        }
        expected_start = end;
    }
    if expected_start as u64 != data_length {
        return Err(FileError::damaged(
            path,
            format!("the tensors take {expected_start} bytes, the file holds {data_length}"),
        ));
    }
    Ok(sorted)
}

/// Reads a tensor where its data begin.
pub(crate) fn read_tensor(
    reader: &mut impl Read,
    name: String,
    info: TensorInfo,
    path: &Path,
) -> Result<NamedTensor<'static>, FileError> {
    let (start, end) = info.data_offsets;
    let mut data = vec![0; end - start];
    match reader.read_exact(&mut data) {
        Ok(()) => Ok(NamedTensor { name, dtype: info.dtype, shape: info.shape, data: Cow::Owned(data) }),
        Err(error) => {
            Err(FileError::Tensor { path: path.to_owned(), tensor: name, reason: format!("truncated: {error}") })
        }
    }
}

/// What stands before the data.
#[derive(Default)]
struct Header {
    metadata: BTreeMap<String, String>,
    infos: Vec<(String, TensorInfo)>,
}

fn parse_header(bytes: &[u8]) -> Result<Header, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let header = serde::Deserializer::deserialize_map(&mut deserializer, HeaderVisitor)?;
    deserializer.end()?;
    Ok(header)
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut names = BTreeSet::new();
        let mut header = Header::default();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` appears twice")));
            }
            if name == METADATA_KEY {
                header.metadata = map.next_value()?;
                continue;
            }
            let info = map.next_value().map_err(|error| A::Error::custom(format!("tensor `{name}`: {error}")))?;
            header.infos.push((name, info));
        }
        Ok(header)
    }
}
