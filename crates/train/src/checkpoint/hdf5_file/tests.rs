//! Files that Keras wrote give the tensors that PyTorch has; damaged ones give one error and nothing else.

use crate::checkpoint::{NamedTensor, WeightOptions, is_tensorflow, load_weights};
use std::fs;
use std::path::{Path, PathBuf};

/// What `peers/tensorflow/make_keras_fixtures.py` wrote.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keras_files").join(name)
}

fn load(path: &Path) -> Vec<NamedTensor<'static>> {
    let mut tensors = load_weights(path, WeightOptions::default()).unwrap();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

#[test]
fn they_are_files_of_tensorflow() {
    for path in ["nvidia", "nvidia/generator", "huggingface/discriminator/tf_model.h5"] {
        assert!(is_tensorflow(&fixture(path)).unwrap(), "{path}");
    }
    for path in ["expected", "expected/generator", "expected/generator/model.safetensors"] {
        assert!(!is_tensorflow(&fixture(path)).unwrap(), "{path}");
    }
}

/// In one file, in a folder with its configuration, and as the two networks of one model.
#[test]
fn tensors_are_those_of_pytorch() {
    let discriminator = load(&fixture("expected/discriminator"));
    assert_eq!(discriminator.len(), 27);
    let joint = load(&fixture("expected"));
    assert_eq!(joint.len(), 27 + 21);
    for suite in ["huggingface", "nvidia"] {
        let folder = fixture(suite);
        assert_eq!(load(&folder.join("discriminator/tf_model.h5")), discriminator, "{suite}");
        assert_eq!(load(&folder.join("discriminator")), discriminator, "{suite}");
        assert_eq!(load(&folder), joint, "{suite}");
    }
    assert_eq!(load(&fixture("huggingface/generator")), load(&fixture("expected/generator")));
}

#[test]
fn averages_are_not_known() {
    let options = WeightOptions { ema: true, ..WeightOptions::default() };
    let error = load_weights(&fixture("nvidia/discriminator/tf_model.h5"), options).unwrap_err().to_string();
    assert!(error.contains("averaged weights"), "{error}");
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tf_model.h5");
    let attempt = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let result = load_weights(&path, WeightOptions::default());
        result.map_err(|error| {
            let text = error.to_string();
            assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
            text
        })
    };
    let good = fs::read(fixture("nvidia/discriminator/tf_model.h5")).unwrap();
    let whole = attempt(&good).unwrap();
    for length in (0..good.len()).step_by(401) {
        assert!(attempt(&good[..length]).is_err(), "{length} bytes of {}", good.len());
    }
    let truncated = attempt(&good[..good.len() - 1]).unwrap_err();
    assert!(truncated.contains(&format!("truncated: {} of {} bytes", good.len() - 1, good.len())), "{truncated}");
    let mut noticed = 0;
    for at in (0..good.len()).step_by(53) {
        let mut bytes = good.clone();
        bytes[at] ^= 0x41;
        match attempt(&bytes) {
            Ok(tensors) => assert!(tensors.len() <= whole.len(), "byte {at}"),
            Err(_) => noticed += 1,
        }
    }
    assert!(noticed > 50, "{noticed}");

    // Arrays without layers.
    let instances = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/tests/fixtures/instances/nvidia.hdf5");
    let error = attempt(&fs::read(instances).unwrap()).unwrap_err();
    assert!(error.contains("no variables in groups of layers"), "{error}");
}
