//! Reads the fixtures.

use bessemer_ir::reference::Interpreter;
use bessemer_models::{ExternalTensor, Model, load_into};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Shape and elements.
pub(crate) struct Tensor {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(path(name)).expect("the fixture exists");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

pub(crate) fn tensors(name: &str) -> Tensors {
    let bytes = std::fs::read(path(name)).expect("the fixture exists");
    let file = SafeTensors::deserialize(&bytes).expect("the fixture is in the safetensors format");
    let read = |view: &safetensors::tensor::TensorView<'_>| -> Vec<f64> {
        let words = |size: usize| view.data().chunks_exact(size);
        match view.dtype() {
            Dtype::F32 => words(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("4 bytes")))).collect(),
            Dtype::I32 => words(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().expect("4 bytes")))).collect(),
            Dtype::U8 => view.data().iter().map(|&b| f64::from(b)).collect(),
            Dtype::I64 => words(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as f64).collect(),
            other => panic!("a fixture of {other:?}"),
        }
    };
    file.tensors()
        .into_iter()
        .map(|(name, view)| (name, Tensor { shape: view.shape().to_vec(), data: read(&view) }))
        .collect()
}

/// Gives the model the weights of a fixture.
pub(crate) fn set_weights(run: &mut Interpreter<'_>, model: &Model, weights: &Tensors) {
    let data: Vec<Vec<f32>> = weights.values().map(|t| t.data.iter().map(|&x| x as f32).collect()).collect();
    let external: Vec<ExternalTensor<'_>> = weights
        .iter()
        .zip(&data)
        .map(|((name, tensor), data)| ExternalTensor { name, shape: &tensor.shape, data })
        .collect();
    for (spec, data) in load_into(&model.specs, model.names, &external).expect("the weights fit") {
        let data: Vec<f64> = data.into_iter().map(f64::from).collect();
        run.set(&spec.name, &data);
    }
}

/// Norm below which a tensor counts as zeros, such as the gradient of what a softmax takes away again.
const NOTHING: f64 = 1e-8;

/// Asserts that `||actual - expected|| <= tolerance * ||expected||`.
pub(crate) fn assert_close(what: &str, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "size of {what}");
    let difference: f64 = actual.iter().zip(expected).map(|(a, e)| (a - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e.powi(2)).sum();
    let relative = (difference / norm.max(NOTHING * NOTHING)).sqrt();
    assert!(relative <= tolerance, "{what} deviates by {relative:e}");
}
