//! A network's weights in a PyTorch file load strictly and are those of a safetensors file.

use bessemer_train::checkpoint::load_weights;
use bessemer_train::tasks::classification::Classifier;
use bessemer_train::{ConvertOptions, WhichWeights, convert_weights};
use bessemer_weights::{NamedTensor, WeightOptions, read_safetensors, write_safetensors};
use std::path::Path;
use tempfile::TempDir;

/// Element `i` of the storage that the tensors of the file are views of.
fn element(i: usize) -> f32 {
    ((i * 7919) % 1024 + 1) as f32 / 1024.0
}

#[test]
fn a_resnet_loads_as_from_safetensors() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/tests/fixtures/torch_files/resnet20.pth");
    let to_f32 = WeightOptions { to_f32: true, ..WeightOptions::default() };
    let tensors = load_weights(&file, to_f32).unwrap();
    assert_eq!(tensors.len(), 116);
    let values: Vec<(usize, Vec<f32>)> = tensors
        .iter()
        .enumerate()
        .filter(|(_, tensor)| !tensor.name.ends_with("num_batches_tracked"))
        .map(|(index, tensor)| (index, (0..tensor.shape.iter().product()).map(|i| element(61 * index + i)).collect()))
        .collect();
    let expected: Vec<NamedTensor<'_>> = values
        .iter()
        .map(|(index, values)| NamedTensor::from_f32(&tensors[*index].name, &*tensors[*index].shape, values).unwrap())
        .collect();

    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    write_safetensors(&path("expected.safetensors"), &expected).unwrap();
    let options = ConvertOptions::default();
    for (from, to) in [(file.as_path(), "a"), (&path("expected.safetensors"), "b")] {
        let converted = convert_weights(from, &path(to), &options).unwrap();
        assert_eq!((converted.model, converted.tensors), ("resnet20-cifar", 97));
    }
    assert_eq!(read_safetensors(&path("a")).unwrap(), read_safetensors(&path("b")).unwrap());
    assert_eq!(read_safetensors(&path("a")).unwrap(), read_safetensors(&path("expected.safetensors")).unwrap());

    let classifier = Classifier::load("resnet20-cifar", &file, WhichWeights::default()).unwrap();
    assert_eq!(classifier.num_classes(), 10);
    classifier.session(1, &Default::default()).unwrap();
}
