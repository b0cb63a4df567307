//! The HDF5 files in which Keras keeps weights (`tf_model.h5`): a group for each layer, and in it the arrays of its variables, whose paths
//! are the names that TensorFlow gave them. A whole model has these groups in `model_weights`.

#[cfg(test)]
mod tests;

use crate::error::{FileError, shown};
use crate::read::head;
use crate::tensor::NamedTensor;
use bessemer_data::{MOST_HDF5_COMPRESSION, open_hdf5};
use hdf5_reader::group::Group;
use hdf5_reader::{Dataset, Datatype};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const MAGIC: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
/// The groups of a whole model: that of the layers, beside that of what its optimizer keeps.
const LAYERS: &str = "model_weights";
/// What ends the name of a variable: the number of the operation's output.
const OUTPUT: &str = ":0";
/// Groups within groups; names of TensorFlow have about ten parts.
const MAX_DEPTH: usize = 32;
/// Groups and arrays on all paths: a group that is linked from several is visited by each path to it.
const MAX_MEMBERS: usize = 1 << 16;

/// # Errors
/// A file that cannot be read.
pub(crate) fn is_hdf5_file(path: &Path) -> Result<bool, FileError> {
    Ok(head(path)?.starts_with(&MAGIC))
}

/// Reads the variables of all layers, under the names that TensorFlow gave them. A variable that several layers share is stored by each,
/// and returned once.
///
/// # Errors
/// A file that is truncated, damaged or holds no variables; elements that are no numbers; one name for different variables.
pub(crate) fn read_hdf5_file(path: &Path) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let damaged = |reason: String| FileError::damaged(path, reason);
    let file = open_hdf5(path).map_err(damaged)?;
    let mut layers = file.root_group().map_err(|error| damaged(error.to_string()))?;
    let (groups, _) = layers.member_names().map_err(|error| damaged(error.to_string()))?;
    if groups.iter().any(|name| name == LAYERS) {
        layers = layers.group(LAYERS).map_err(|error| damaged(error.to_string()))?;
    }
    let bytes = fs::metadata(path).map_err(|source| FileError::reading(path, source))?.len();
    let mut found = Found { path, limits: Limits::new(bytes), tensors: BTreeMap::new() };
    for layer in layers.groups().map_err(|error| damaged(error.to_string()))? {
        found.collect(&layer, "", MAX_DEPTH)?;
    }
    match found.tensors.is_empty() {
        false => Ok(found.tensors.into_values().collect()),
        true => Err(damaged("holds no variables in groups of layers, as Keras writes them".to_owned())),
    }
}

struct Found<'a> {
    path: &'a Path,
    limits: Limits,
    tensors: BTreeMap<String, NamedTensor<'static>>,
}

impl Found<'_> {
    /// Reads what lies in a group, whose name within its layer is `scope`.
    fn collect(&mut self, group: &Group, scope: &str, depth: usize) -> Result<(), FileError> {
        let damaged = |reason: String| FileError::damaged(self.path, reason);
        let (groups, arrays) =
            group.members().map_err(|error| damaged(format!("group `{}`: {error}", shown(scope))))?;
        if depth == 0 && !groups.is_empty() {
            return Err(damaged(format!("group `{}` lies within {MAX_DEPTH} others", shown(scope))));
        }
        self.limits.count(groups.len() + arrays.len()).map_err(damaged)?;
        for array in arrays {
            let name = format!("{scope}{}", array.name().strip_suffix(OUTPUT).unwrap_or(array.name()));
            let tensor = read(&array, &name, &mut self.limits).map_err(|reason| self.problem(&name, reason))?;
            if self.tensors.get(&name).is_some_and(|before| *before != tensor) {
                return Err(self.problem(&name, "two layers store different variables of that name".to_owned()));
            }
            self.tensors.insert(name, tensor);
        }
        groups.iter().try_for_each(|inner| self.collect(inner, &format!("{scope}{}/", inner.name()), depth - 1))
    }

    fn problem(&self, tensor: &str, reason: String) -> FileError {
        FileError::Tensor { path: self.path.to_owned(), tensor: shown(tensor), reason }
    }
}

/// What is still to be visited and read, at most. Groups and arrays may be linked from several places, and a small file may have more paths
/// than can be followed.
struct Limits {
    file_bytes: u64,
    members: usize,
    /// Bytes of arrays that lie in the file as they are.
    stored: u64,
    /// Bytes of arrays in chunks, which may be compressed.
    unpacked: u64,
}

impl Limits {
    fn new(file_bytes: u64) -> Self {
        let unpacked = file_bytes.saturating_mul(MOST_HDF5_COMPRESSION as u64);
        Self { file_bytes, members: MAX_MEMBERS, stored: file_bytes, unpacked }
    }

    /// Takes the members of a group.
    fn count(&mut self, members: usize) -> Result<(), String> {
        let left = self.members.checked_sub(members);
        self.members = left.ok_or_else(|| {
            format!("paths within it lead to more than {MAX_MEMBERS} groups and arrays, of which some may be the same")
        })?;
        Ok(())
    }

    /// Takes an array, in chunks or not.
    fn take(&mut self, bytes: usize, in_chunks: bool) -> Result<(), String> {
        let left = if in_chunks { &mut self.unpacked } else { &mut self.stored };
        let rest = left.checked_sub(bytes as u64);
        *left = rest.ok_or_else(|| {
            let file_bytes = self.file_bytes;
            format!(
                "its {bytes} bytes do not lie within the {file_bytes} of the file, beside those of the arrays before it"
            )
        })?;
        Ok(())
    }
}

/// Reads an array, for which the file must have room.
fn read(array: &Dataset, name: &str, limits: &mut Limits) -> Result<NamedTensor<'static>, String> {
    let dtype = dtype(array.dtype()).ok_or("has elements that are neither integers nor floating-point numbers")?;
    let shape: Result<Vec<usize>, _> = array.shape().iter().map(|&size| usize::try_from(size)).collect();
    let shape = shape.map_err(|_| format!("its shape {:?} is impossible", array.shape()))?;
    let bytes = array.raw_byte_len().map_err(|error| error.to_string())?;
    limits.take(bytes, array.chunks().is_some())?;
    let data = array.read_native_bytes().map_err(|error| error.to_string())?;
    NamedTensor::new(name, dtype, shape, data).map_err(|error| error.to_string())
}

fn dtype(found: &Datatype) -> Option<Dtype> {
    match *found {
        Datatype::FloatingPoint { size: 2, .. } => Some(Dtype::F16),
        Datatype::FloatingPoint { size: 4, .. } => Some(Dtype::F32),
        Datatype::FloatingPoint { size: 8, .. } => Some(Dtype::F64),
        Datatype::FixedPoint { size, signed, .. } => match (size, signed) {
            (1, true) => Some(Dtype::I8),
            (1, false) => Some(Dtype::U8),
            (2, true) => Some(Dtype::I16),
            (2, false) => Some(Dtype::U16),
            (4, true) => Some(Dtype::I32),
            (4, false) => Some(Dtype::U32),
            (8, true) => Some(Dtype::I64),
            (8, false) => Some(Dtype::U64),
            _ => None,
        },
        _ => None,
    }
}
