//! Files that Keras wrote give the tensors that PyTorch has; damaged ones give one error and nothing else.

use super::{Limits, MAX_MEMBERS};
use crate::testing::load_weights;
use crate::{FileError, JointWeights, NamedTensor, Tensors, WeightOptions, is_tensorflow, read_weights};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of the head of a file of the oldest format, and of each group of [`ladder`].
const HEAD: u64 = 96;
const GROUP: u64 = 64;

/// What `peers/tensorflow/make_keras_fixtures.py` wrote.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keras_files").join(name)
}

fn load(path: &Path) -> Vec<NamedTensor<'static>> {
    sorted(load_weights(path, WeightOptions::default()).unwrap())
}

fn sorted(mut tensors: Vec<NamedTensor<'static>>) -> Vec<NamedTensor<'static>> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

/// Two networks of which the second one's tensors follow the first one's.
static JOINT: JointWeights = JointWeights { folders: ["discriminator", "generator"], join };

fn join(mut first: Tensors, second: Tensors, _: &Path) -> Result<Tensors, FileError> {
    first.extend(second);
    Ok(first)
}

#[test]
fn they_are_files_of_tensorflow() {
    for path in ["nvidia", "nvidia/generator", "huggingface/discriminator/tf_model.h5"] {
        assert!(is_tensorflow(&fixture(path), [&JOINT]).unwrap(), "{path}");
    }
    for path in ["expected", "expected/generator", "expected/generator/model.safetensors"] {
        assert!(!is_tensorflow(&fixture(path), [&JOINT]).unwrap(), "{path}");
    }
}

/// In one file, in a folder with its configuration, and as the two networks of one model.
#[test]
fn tensors_are_those_of_pytorch() {
    let discriminator = load(&fixture("expected/discriminator"));
    assert_eq!(discriminator.len(), 27);
    for suite in ["huggingface", "nvidia"] {
        let folder = fixture(suite);
        assert_eq!(load(&folder.join("discriminator/tf_model.h5")), discriminator, "{suite}");
        assert_eq!(load(&folder.join("discriminator")), discriminator, "{suite}");
        let joint = read_weights(&folder, [&JOINT], WeightOptions::default()).unwrap().unwrap();
        assert_eq!(sorted(joint), sorted([&*discriminator, &*load(&folder.join("generator"))].concat()), "{suite}");
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

/// A file of `groups` groups, each of which links twice to the next: to the last lead 2^(groups - 1) paths.
fn ladder(groups: u64) -> Vec<u8> {
    let address = |group: u64| (HEAD + group * GROUP).to_le_bytes();
    let mut file = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0\0\0\0\0".to_vec();
    file.extend([0_u64.to_le_bytes(), [0xff; 8], address(groups + 1), [0xff; 8]].concat());
    file.extend([0_u64.to_le_bytes(), address(0), [0; 8], [0; 8], [0; 8]].concat());
    for group in 0..=groups {
        // What is behind the last one is an object of no kind.
        let links: u8 = if group < groups { 2 } else { 0 };
        file.extend([1, 0, links, 0, 1, 0, 0, 0, links * 24, 0, 0, 0, 0, 0, 0, 0]);
        for name in &b"ab"[..usize::from(links)] {
            file.extend([6, 0, 16, 0, 0, 0, 0, 0, 1, 0, 1, *name]);
            file.extend(address(group + 1));
            file.extend([0; 4]);
        }
        file.resize((HEAD + (group + 1) * GROUP) as usize, 0);
    }
    file
}

#[test]
fn groups_with_very_many_paths_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tf_model.h5");
    let attempt = |groups: u64| {
        fs::write(&path, ladder(groups)).unwrap();
        load_weights(&path, WeightOptions::default()).unwrap_err().to_string()
    };
    let few = attempt(8);
    assert!(few.contains("no variables in groups of layers"), "{few}");
    let many = attempt(30);
    assert!(many.contains("paths within it lead to more than 65536 groups and arrays"), "{many}");
}

#[test]
fn members_and_bytes_have_limits() {
    let mut limits = Limits::new(100);
    assert_eq!((limits.count(MAX_MEMBERS - 1), limits.count(1)), (Ok(()), Ok(())));
    assert!(limits.count(1).unwrap_err().contains("more than 65536"));
    assert_eq!((limits.take(60, false), limits.take(40, false)), (Ok(()), Ok(())));
    let reason = limits.take(1, false).unwrap_err();
    assert!(reason.starts_with("its 1 bytes do not lie within the 100 of the file"), "{reason}");
    assert_eq!(limits.take(103_200, true), Ok(()), "what is compressed may be this much larger");
    assert!(limits.take(1, true).is_err());
    assert!(Limits::new(u64::MAX).take(usize::MAX, true).is_ok());
}
