use crate::{FileError, Tensors, WeightOptions, read_weights};
use std::path::Path;

/// Reads what is weights of one network.
pub(crate) fn load_weights(path: &Path, options: WeightOptions) -> Result<Tensors, FileError> {
    read_weights(path, [], options).map(|found| found.expect("a path of weights"))
}
