//! Reads the fixtures, and compares with them.

use bessemer_ir::Value;
use bessemer_ir::autodiff::gradients;
use bessemer_ir::reference::Interpreter;
use bessemer_models::{ExternalTensor, Model, WeightNames, load_into};
use bessemer_nn::{Builder, DecayExclude, Optimizer, ParamSpec, Schedule, Sgd, TrainConfig};
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

/// A run of a model with the weights in a folder of fixtures, and with those of the feeds there that it has.
pub(crate) fn stored_run<'a>(model: &'a Model, folder: &str) -> Interpreter<'a> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, model, &tensors(&format!("{folder}/weights.safetensors")));
    for (name, tensor) in tensors(&format!("{folder}/feeds.safetensors")) {
        if model.graph.find_input(&name).is_some() {
            run.set(&name, &tensor.data);
        }
    }
    run
}

/// Asserts the losses, within a relative tolerance, and the final weights of the steps of SGD in a folder of fixtures.
pub(crate) fn assert_sgd_steps(folder: &str, tolerance: f64, build: impl FnOnce(&TrainConfig) -> Model) {
    let expected = json(&format!("{folder}/expected.json"));
    let sgd = &expected["sgd"];
    let number = |name: &str| sgd[name].as_f64().expect("a number");
    let rule = Sgd { momentum: number("momentum"), decay_exclude: DecayExclude::None, ..Sgd::default() };
    let model = build(&TrainConfig::new(Optimizer::Sgd(rule), Schedule::constant(number("lr"))));
    let mut run = stored_run(&model, folder);
    for (step, expected) in sgd["losses"].as_array().expect("a list").iter().enumerate() {
        run.run();
        let (loss, expected) = (run.output("loss").data[0], expected.as_f64().expect("a number"));
        assert!((loss - expected).abs() < tolerance * expected, "loss {loss} of step {step}, not {expected}");
    }
    assert_kept(&model, &run, &tensors(&format!("{folder}/final_weights.safetensors")), TOLERANCE);
}

/// The fixtures are rounded to `f32`.
pub(crate) const TOLERANCE: f64 = 1e-6;

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

/// A training step's forward and backward pass; the gradients are outputs named `gradient.NAME`.
pub(crate) fn with_gradients(mut b: Builder, loss: Value, names: &'static WeightNames) -> Model {
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let values: Vec<_> = params.iter().map(|spec| spec.value).collect();
    let grads = gradients(&mut b.graph, loss, &values).expect("every parameter reaches the loss");
    b.graph.output("loss", loss);
    for (param, grad) in params.iter().zip(grads) {
        b.graph.output(&format!("gradient.{}", param.name), grad);
    }
    let (graph, specs) = b.finish();
    Model { graph, specs, names }
}

/// Asserts that the gradients of [`with_gradients`] equal those of a fixture.
pub(crate) fn assert_gradients(model: &Model, run: &Interpreter<'_>, expected: &Tensors, tolerance: f64) {
    for (name, expected) in expected {
        let param = model.specs.iter().find(|spec| spec.is_trainable() && spec.name == *name).expect("a parameter");
        let gradient = &run.output(&format!("gradient.{name}")).data;
        assert_close(name, &param.to_external(gradient), &expected.data, tolerance);
    }
}

/// Asserts that what a step keeps equals the tensors of a fixture.
pub(crate) fn assert_kept(model: &Model, run: &Interpreter<'_>, expected: &Tensors, tolerance: f64) {
    for (name, expected) in expected.iter().filter(|(name, _)| !name.ends_with("num_batches_tracked")) {
        let spec = model.specs.iter().find(|spec| spec.name == *name).expect("a tensor of the model");
        assert_close(name, &spec.to_external(&run.input(name).data), &expected.data, tolerance);
    }
}
