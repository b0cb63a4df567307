use crate::error::FileError;
use crate::hdf5_file::{is_hdf5_file, read_hdf5_file};
use crate::safetensors_file::read_safetensors;
use crate::tensor::NamedTensor;
use crate::tensorflow_file::{find_prefix, read_tensorflow_file};
use crate::torch_file::{is_torch_file, read_torch_file};
use bessemer_models::tensorflow::{self, FileName, Layout};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What Hugging Face has beside weights.
pub const CONFIG_FILE: &str = "config.json";
/// Weights in a folder of Hugging Face.
pub const MODEL_FILE: &str = "model.safetensors";
/// The same as older tools of Hugging Face wrote it.
const TORCH_MODEL_FILE: &str = "pytorch_model.bin";
/// Weights in a folder of Hugging Face or NVIDIA that TensorFlow wrote.
const KERAS_MODEL_FILE: &str = "tf_model.h5";

/// The tensors of a network.
pub type Tensors = Vec<NamedTensor<'static>>;

/// How [`read_weights`] treats what it finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightOptions {
    /// Convert F16, BF16 and F64 to F32; tensors of other types stay as they are.
    pub to_f32: bool,
    /// Refuse NaN and infinities.
    pub reject_non_finite: bool,
    /// Take the averaged weights, where there are some, instead of the last ones.
    pub ema: bool,
}

/// Weights that are published as two networks, in two folders of a folder, and are one model here.
#[derive(Debug)]
pub struct JointWeights {
    /// The first one says what both share, such as the vocabulary, and may come alone.
    pub folders: [&'static str; 2],
    /// The tensors of the model from those of both networks; the path is the second one's file.
    pub join: fn(Tensors, Tensors, &Path) -> Result<Tensors, FileError>,
}

/// Reads weights from a `.safetensors` file, a PyTorch file (`.pth`, `.pt`, `.bin`; see [`state_dict_choice`](crate::state_dict_choice)),
/// an HDF5 file of Keras, a folder with `config.json` and `model.safetensors`, `pytorch_model.bin` or `tf_model.h5`, as Hugging Face has it,
/// or one with two of these, which are one of the models in `joint`; or from a checkpoint of TensorFlow: its prefix, its `.index` or one of
/// its `.data-` files, a folder with a file `checkpoint` or one index, or a SavedModel. `None` for a folder that is none of these.
///
/// Tensors that have names of TensorFlow's which the zoo knows get the names and layouts of here ([`tensorflow::read_all`]).
///
/// # Errors
/// A path where nothing is, or a file that is not whole; two networks that do not belong together; averages where there are none.
pub fn read_weights<'a>(
    path: &Path,
    joint: impl IntoIterator<Item = &'a JointWeights>,
    options: WeightOptions,
) -> Result<Option<Tensors>, FileError> {
    let in_folder = |part: &str| published(&path.join(part)).filter(|_| !options.ema);
    if let Some(file) = in_folder("") {
        return read(&file, options).map(Some);
    }
    for joint in joint {
        let [first, second] = joint.folders.map(in_folder);
        let Some(first) = first else { continue };
        let first = read(&first, options)?;
        return match second {
            Some(file) => (joint.join)(first, read(&file, options)?, &file).map(Some),
            None => Ok(Some(first)),
        };
    }
    if let Some(prefix) = find_prefix(path)? {
        return in_own_form(read_tensorflow_file(&prefix, options.ema)?, &prefix, options).map(Some);
    }
    if path.is_dir() {
        return Ok(None);
    }
    if !path.exists() {
        return Err(FileError::not_found(path, "does not exist"));
    }
    read(path, options).map(Some)
}

/// Whether TensorFlow wrote the weights that a path stands for: a checkpoint of it, or HDF5 files of Keras, alone or in folders, of which
/// there may be two for one of the models in `joint`.
///
/// # Errors
/// A path that cannot be read, or has several checkpoints without saying which.
pub fn is_tensorflow<'a>(path: &Path, joint: impl IntoIterator<Item = &'a JointWeights>) -> Result<bool, FileError> {
    let folders = [""].into_iter().chain(joint.into_iter().flat_map(|joint| joint.folders));
    if let Some(file) = folders.map(|folder| path.join(folder)).find_map(|folder| published(&folder)) {
        return is_hdf5_file(&file);
    }
    Ok(find_prefix(path)?.is_some() || path.is_file() && is_hdf5_file(path)?)
}

/// The weights of a folder of Hugging Face.
fn published(folder: &Path) -> Option<PathBuf> {
    let files = [MODEL_FILE, TORCH_MODEL_FILE, KERAS_MODEL_FILE].map(|name| folder.join(name));
    files.into_iter().find(|file| file.is_file()).filter(|_| folder.join(CONFIG_FILE).is_file())
}

fn read(file: &Path, options: WeightOptions) -> Result<Vec<NamedTensor<'static>>, FileError> {
    let tensors = if is_torch_file(file)? {
        read_torch_file(file, options.ema)?
    } else if options.ema {
        let allowed = "averaged weights can be chosen only from a checkpoint or run folder, or files of PyTorch or TensorFlow that have them";
        return Err(FileError::not_found(file, allowed));
    } else if is_hdf5_file(file)? {
        read_hdf5_file(file)?
    } else {
        read_safetensors(file)?
    };
    in_own_form(tensors, file, options)
}

/// The first bytes of a file, by which its format is known.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn head(file: &Path) -> Result<Vec<u8>, FileError> {
    let mut head = Vec::with_capacity(16);
    let read = File::open(file).and_then(|file| file.take(16).read_to_end(&mut head));
    read.map_err(|source| FileError::reading(file, source))?;
    Ok(head)
}

/// Tensors as they are used here: under the names of here where TensorFlow's are known, and as the options ask; `file` is where they come
/// from, for messages.
///
/// # Errors
/// A number that is not finite or that F32 cannot hold, where the options ask for that; a tensor that cannot be brought into PyTorch's
/// layout.
pub fn in_own_form(tensors: Tensors, file: &Path, options: WeightOptions) -> Result<Tensors, FileError> {
    in_own_names(tensors, file)?.into_iter().map(|tensor| prepare(tensor, file, options)).collect()
}

fn prepare(
    tensor: NamedTensor<'static>,
    file: &Path,
    options: WeightOptions,
) -> Result<NamedTensor<'static>, FileError> {
    if options.reject_non_finite
        && let Some(index) = tensor.first_non_finite()
    {
        return Err(problem(file, &tensor.name, format!("element {index} is not finite")));
    }
    if options.to_f32 && is_float(&tensor) {
        let name = tensor.name.clone();
        return tensor.into_f32().map_err(|error| problem(file, &name, error.to_string()));
    }
    Ok(tensor)
}

/// Tensors that have names of TensorFlow's under their names here, in PyTorch's layout; others as they are.
///
/// # Errors
/// A tensor to bring into PyTorch's layout whose elements are smaller than a byte, or more than its data.
fn in_own_names(tensors: Tensors, file: &Path) -> Result<Tensors, FileError> {
    let names = tensorflow::read_all(tensors.iter().map(|tensor| tensor.name.as_str()));
    let mut own = Vec::with_capacity(tensors.len());
    let mut vectors: BTreeMap<String, BTreeMap<usize, NamedTensor<'static>>> = BTreeMap::new();
    for (tensor, name) in tensors.into_iter().zip(names) {
        match name {
            None => own.push(tensor),
            Some(FileName { canonical, layout: Layout::Element(place) }) => {
                own.extend(vectors.entry(canonical).or_default().insert(place, tensor));
            }
            Some(FileName { canonical, layout }) => own.push(renamed(tensor, canonical, layout, file)?),
        }
    }
    own.extend(vectors.into_iter().flat_map(|(name, elements)| joined(name, elements)));
    Ok(own)
}

fn renamed(
    tensor: NamedTensor<'static>,
    name: String,
    layout: Layout,
    file: &Path,
) -> Result<NamedTensor<'static>, FileError> {
    if layout == Layout::Torch {
        return Ok(NamedTensor { name, ..tensor });
    }
    let (dtype, bits) = (tensor.dtype, tensor.dtype.bitsize());
    if !bits.is_multiple_of(8) {
        let allowed = "kernels of TensorFlow can have elements of whole bytes";
        return Err(problem(file, &tensor.name, format!("has elements of {dtype:?}, {bits} bits each; {allowed}")));
    }
    match layout.to_torch(&tensor.shape, bits / 8, &tensor.data) {
        Some((shape, data)) => Ok(NamedTensor { name, shape, data: Cow::Owned(data), ..tensor }),
        None => {
            let (shape, bytes) = (&tensor.shape, tensor.data.len());
            let reason =
                format!("{dtype:?} of shape {shape:?} cannot be put into PyTorch's layout, with {bytes} bytes");
            Err(problem(file, &tensor.name, reason))
        }
    }
}

/// The vector of some numbers, by their places in it; what is no vector stays as it is.
fn joined(name: String, elements: BTreeMap<usize, NamedTensor<'static>>) -> Vec<NamedTensor<'static>> {
    let dtype = elements.values().next().map(|first| first.dtype);
    let is_vector = elements
        .iter()
        .enumerate()
        .all(|(place, (number, element))| place == *number && element.shape.is_empty() && Some(element.dtype) == dtype);
    match dtype {
        Some(dtype) if is_vector => {
            let data: Vec<u8> = elements.values().flat_map(|element| element.data.iter().copied()).collect();
            vec![NamedTensor { name, dtype, shape: vec![elements.len()], data: Cow::Owned(data) }]
        }
        _ => elements.into_values().collect(),
    }
}

fn is_float(tensor: &NamedTensor<'_>) -> bool {
    use crate::Dtype::{BF16, F16, F32, F64};
    matches!(tensor.dtype, F16 | BF16 | F32 | F64)
}

fn problem(file: &Path, tensor: &str, reason: String) -> FileError {
    FileError::Tensor { path: file.to_owned(), tensor: tensor.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::load_weights;
    use crate::{Dtype, write_safetensors};

    fn number(name: &str, value: f32) -> NamedTensor<'static> {
        NamedTensor::new(name, Dtype::F32, [], value.to_le_bytes().to_vec()).unwrap()
    }

    fn own_form(tensors: Tensors) -> Tensors {
        in_own_names(tensors, Path::new("file")).unwrap()
    }

    #[test]
    fn kernels_that_have_no_layout_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let refused = |dtype, shape: &[usize], bytes: usize| {
            let name = "resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel";
            let tensor = NamedTensor::new(name, dtype, shape, vec![0; bytes]).unwrap();
            write_safetensors(&path, &[tensor]).unwrap();
            let error = load_weights(&path, WeightOptions::default()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{}: tensor `{name}`: ", path.display())), "{error}");
            error
        };
        assert!(refused(Dtype::F4, &[4, 2], 4).contains("has elements of F4, 4 bits each"));
        assert!(refused(Dtype::F6_E2M3, &[4, 2], 6).contains("has elements of F6_E2M3, 6 bits each"));
        let large = refused(Dtype::F32, &[0, 1, 1 << 40, 1 << 40], 0);
        assert!(large.contains("F32 of shape [0, 1, 1099511627776, 1099511627776]"), "{large}");
    }

    #[test]
    fn weights_of_a_sum_become_a_vector() {
        let node = |variable: &str, value| number(&format!("fpn_cells/cell_1/fnode4/{variable}"), value);
        let tensors = vec![node("WSM_2", 3.0), node("WSM", 1.0), number("other", 7.0), node("WSM_1", 2.0)];
        let found = own_form(tensors);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], number("other", 7.0));
        let NamedTensor { name, shape, .. } = &found[1];
        assert_eq!((name.as_str(), shape.as_slice()), ("fpn.cell.1.fnode.4.combine.edge_weights", [3].as_slice()));
        assert_eq!(found[1].to_f32().unwrap(), [1.0, 2.0, 3.0]);

        // One that is missing, and one that is there twice: they keep their names, under which no model has them.
        assert_eq!(own_form(vec![node("WSM", 1.0), node("WSM_2", 3.0)]).len(), 2);
        let twice = own_form(vec![node("WSM", 1.0), node("WSM_0", 5.0)]);
        assert!(twice.iter().any(|tensor| tensor.name.ends_with("/WSM")), "{twice:?}");
    }
}
