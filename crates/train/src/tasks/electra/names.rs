//! The two networks of Hugging Face that an ELECTRA in pre-training is.

use super::model::Networks;
use crate::error::TrainError;
use crate::tasks::huggingface::{Description, VocabularyPart, write_folder};
use bessemer_models::electra::names::{self, Split};
use bessemer_models::electra::{ElectraConfig, Generator};
use bessemer_weights::{FileError, JointWeights, NamedTensor, Tensors};
use std::path::Path;

const DISCRIMINATOR: &str = "discriminator";
const GENERATOR: &str = "generator";

/// How both are read.
pub(super) static JOINT: JointWeights = JointWeights { folders: [DISCRIMINATOR, GENERATOR], join };

/// # Errors
/// A generator with other embeddings than the discriminator's.
fn join(discriminator: Tensors, generator: Tensors, file: &Path) -> Result<Tensors, FileError> {
    let differs = |tensor: &&NamedTensor<'static>| {
        names::is_common(&tensor.name) && discriminator.iter().any(|d| d.name == tensor.name && d != *tensor)
    };
    if let Some(tensor) = generator.iter().find(differs) {
        let reason = "differs from the discriminator's; both must come from one pre-training".to_owned();
        return Err(FileError::Tensor { path: file.to_owned(), tensor: tensor.name.clone(), reason });
    }
    let named = |tensors: Tensors| tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor));
    let tensors = names::join(named(discriminator), named(generator)).into_iter();
    Ok(tensors.map(|(name, tensor)| NamedTensor { name, ..tensor }).collect())
}

/// The description of a network for a folder; `class` is its name at Hugging Face.
pub(crate) fn description(config: &ElectraConfig, class: &str) -> Description {
    Description::new(&config.encoder, "electra", class).with("embedding_size", config.embedding_size)
}

/// Writes a folder with two: the discriminator, and the generator if it is a network.
pub(super) fn write_folders(
    networks: &Networks,
    output: &Path,
    tensors: &[NamedTensor<'static>],
    vocabulary: &VocabularyPart,
) -> Result<(), TrainError> {
    let Networks { config, options } = networks;
    let named: Vec<(&str, &NamedTensor<'static>)> =
        tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let Split { discriminator, generator } = names::split(&named);
    let mut parts = vec![(DISCRIMINATOR, description(config, "ElectraForPreTraining"), discriminator)];
    if options.generator == Generator::Network {
        let small = config.generator(options.generator_fraction);
        parts.push((GENERATOR, description(&small, "ElectraForMaskedLM"), generator));
    }
    for (name, description, tensors) in parts {
        let renamed = tensors.into_iter().map(|(name, tensor)| NamedTensor { name, ..tensor.clone() });
        write_folder(&output.join(name), &description, &renamed.collect::<Vec<_>>(), vocabulary)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{is_tensorflow, load_weights};
    use bessemer_weights::WeightOptions;

    #[test]
    fn two_networks_in_folders_are_one_model() {
        // What `peers/tensorflow/make_keras_fixtures.py` wrote.
        let folder = |suite: &str| {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/tests/fixtures/keras_files").join(suite)
        };
        let load = |suite: &str| {
            let mut tensors = load_weights(&folder(suite), WeightOptions::default()).unwrap();
            tensors.sort_by(|a, b| a.name.cmp(&b.name));
            tensors
        };
        let joint = load("expected");
        assert_eq!(joint.len(), 27 + 21);
        assert!(!is_tensorflow(&folder("expected")).unwrap());
        for suite in ["huggingface", "nvidia"] {
            assert_eq!(load(suite), joint, "{suite}");
            assert!(is_tensorflow(&folder(suite)).unwrap(), "{suite}");
        }
    }
}
