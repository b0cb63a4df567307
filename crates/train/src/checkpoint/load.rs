use super::choice::find_checkpoint;
use super::error::CheckpointError;
use super::store::{has_part, read_manifest, read_part};
use super::{EMA_FILE, MANIFEST_FILE, MODEL_FILE};
use crate::tasks::registry;
use bessemer_weights::{FileError, Tensors, WeightOptions, in_own_form, read_weights};
use std::path::{Path, PathBuf};

/// Loads weights from a checkpoint folder, a run folder (see [`find_checkpoint`]), or what [`read_weights`] reads: a file of another
/// program, or a folder of such, also with the two networks of a model that is published as two.
///
/// # Errors
/// A path that is none of these, or a file that is not whole; two networks that do not belong together.
pub fn load_weights(path: &Path, options: WeightOptions) -> Result<Tensors, CheckpointError> {
    if let Some(tensors) = read_weights(path, registry::joint_weights(), options)? {
        return Ok(tensors);
    }
    let folder = checkpoint_folder(path)?;
    let manifest = read_manifest(&folder)?;
    let name = if options.ema { EMA_FILE } else { MODEL_FILE };
    if options.ema && !has_part(&manifest, name) {
        let missing = "holds no averaged weights; the run did not set train.ema_decay";
        return Err(FileError::not_found(&folder, missing).into());
    }
    let tensors = read_part(&folder, &manifest, name)?;
    Ok(in_own_form(tensors, &folder.join(name), options)?)
}

/// Whether TensorFlow wrote the weights that a path stands for (see [`bessemer_weights::is_tensorflow`]).
///
/// # Errors
/// A path that cannot be read, or has several checkpoints without saying which.
pub(crate) fn is_tensorflow(path: &Path) -> Result<bool, FileError> {
    bessemer_weights::is_tensorflow(path, registry::joint_weights())
}

fn checkpoint_folder(path: &Path) -> Result<PathBuf, CheckpointError> {
    if path.join(MANIFEST_FILE).exists() {
        return Ok(path.to_owned());
    }
    let expected = "expected a checkpoint folder (with manifest.json), a run folder with checkpoints in it, a folder with \
                    config.json and model.safetensors, pytorch_model.bin or tf_model.h5, or with two such folders, discriminator and \
                    generator, \
                    or a checkpoint of TensorFlow (a file called checkpoint, one .index, or saved_model.pb and variables/)";
    let chosen = find_checkpoint(path, None)?;
    chosen.map(|chosen| chosen.path).ok_or_else(|| FileError::not_found(path, expected).into())
}
