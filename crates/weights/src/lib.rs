//! Files of weights: safetensors, read and written; those of PyTorch, the HDF5 files of Keras and the checkpoints of TensorFlow, read.
//!
//! [`read_weights`] knows a file by its content. Every reader checks sizes against the file before it takes memory for them, and says what
//! is wrong with a file in one [`FileError`] that names it; nothing in a file is executed.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod hdf5_file;
mod publish;
mod read;
mod safetensors_file;
mod tensor;
mod tensor_file;
mod tensorflow_file;
#[cfg(test)]
mod testing;
mod torch_file;

pub use error::FileError;
pub use publish::publish_file;
pub use read::{
    CONFIG_FILE, JointWeights, MODEL_FILE, Tensors, WeightOptions, in_own_form, is_tensorflow, read_weights,
};
pub use safetensors::Dtype;
pub use safetensors_file::{
    note_of_safetensors, read_safetensors, read_tensors, write_safetensors, write_safetensors_with_note, write_tensors,
};
pub use tensor::{NamedTensor, TensorError};
pub use tensor_file::TensorFile;
#[cfg(any(test, feature = "writer"))]
pub use tensorflow_file::writer::write_tensorflow_checkpoint;
pub use torch_file::{StateDictChoice, state_dict_choice};

const _: () =
    assert!(cfg!(target_endian = "little"), "safetensors are little-endian and are written as they lie in memory");
