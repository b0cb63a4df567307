//! Narrow ResNets against PyTorch in `f64`: logits, loss, every gradient, running statistics, ten steps.

use crate::fixtures::{Tensors, assert_close, json, set_weights, tensors};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::reference::Interpreter;
use bessemer_models::classifier::{NAMES, forward_loss};
use bessemer_models::resnet::{Backbone, Block};
use bessemer_models::{Architecture, InputFormat, LossOptions, MixupWeight, Model, ModelOptions};
use bessemer_nn::{DecayExclude, Optimizer, Padding, ParamSpec, Schedule, Sgd, TrainConfig};

/// The fixtures are rounded to `f32`.
const TOLERANCE: f64 = 1e-6;
const BATCH: usize = 4;

struct Case {
    folder: &'static str,
    block: Block,
}

const CASES: [Case; 2] = [
    Case { folder: "resnet_bottleneck", block: Block::Bottleneck },
    Case { folder: "resnet_basic", block: Block::Basic },
];

const BOTTLENECK: &Case = &CASES[0];

impl Case {
    fn architecture(&self) -> Architecture {
        Architecture::ResNet { block: self.block, depths: [1, 2, 1, 1] }
    }

    fn options(&self, image_size: [usize; 2], padding: Padding) -> ModelOptions {
        let backbone = Backbone { padding, ..Backbone::new(8) };
        ModelOptions { image_size, input: InputFormat::Normalised, num_classes: 10, backbone }
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    fn tensors(&self, name: &str) -> Tensors {
        tensors(&self.file(&format!("{name}.safetensors")))
    }
}

/// Height and width of `[N, H, W, C]`.
fn image_size(tensors: &Tensors) -> [usize; 2] {
    [tensors["input"].shape[1], tensors["input"].shape[2]]
}

/// A training step's forward and backward pass; the gradients are outputs named `gradient.NAME`.
fn forward_backward(case: &Case, options: &ModelOptions, mixup: Option<MixupWeight>) -> Model {
    let smoothing = json(&case.file("expected.json"))["label_smoothing"].as_f64().expect("a number");
    let loss_options = LossOptions { label_smoothing: smoothing, mixup };
    let (mut b, loss) = forward_loss(case.architecture(), options, &loss_options, BATCH).expect("a legal model");
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let values: Vec<_> = params.iter().map(|spec| spec.value).collect();
    let grads = gradients(&mut b.graph, loss, &values).expect("every parameter reaches the loss");
    b.graph.output("loss", loss);
    for (param, grad) in params.iter().zip(grads) {
        b.graph.output(&format!("gradient.{}", param.name), grad);
    }
    let (graph, specs) = b.finish();
    Model { graph, specs, names: &NAMES }
}

fn interpreter<'a>(model: &'a Model, weights: &Tensors, images: &[f64], labels: Option<&[f64]>) -> Interpreter<'a> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, model, weights);
    run.set("images", images);
    if let Some(labels) = labels {
        run.set("labels", labels);
    }
    run
}

fn assert_gradients(model: &Model, run: &Interpreter<'_>, expected: &Tensors) {
    let params: Vec<&ParamSpec> = model.specs.iter().filter(|spec| spec.is_trainable()).collect();
    assert_eq!(params.len(), expected.len());
    for param in params {
        let gradient = &run.output(&format!("gradient.{}", param.name)).data;
        assert_close(&param.name, &param.to_external(gradient), &expected[&param.name].data, TOLERANCE);
    }
}

/// Asserts that what the step keeps equals the tensors of a fixture.
fn assert_kept(model: &Model, run: &Interpreter<'_>, expected: &Tensors, tolerance: f64) {
    let mut compared = 0;
    for spec in &model.specs {
        if let Some(tensor) = expected.get(&spec.name) {
            let kept = spec.to_external(&run.input(&spec.name).data);
            assert_close(&spec.name, &kept, &tensor.data, tolerance);
            compared += 1;
        }
    }
    assert_eq!(compared, expected.keys().filter(|name| !name.ends_with("num_batches_tracked")).count());
}

fn assert_logits(run: &Interpreter<'_>, expected: &Tensors, name: &str) {
    assert_close(name, &run.output("logits").data, &expected[name].data, TOLERANCE);
}

fn assert_loss(run: &Interpreter<'_>, expected: &serde_json::Value) {
    let expected = expected["loss"].as_f64().expect("a number");
    assert!((run.output("loss").data[0] - expected).abs() < 1e-10, "loss {:?}", run.output("loss").data);
}

#[test]
fn inference() {
    for case in &CASES {
        let expected = case.tensors("tensors");
        let options = case.options(image_size(&expected), Padding::Symmetric);
        let model = Model::infer(case.architecture(), &options, BATCH).expect("a legal model");
        let mut run = interpreter(&model, &case.tensors("weights"), &expected["input"].data, None);
        run.run();
        assert_logits(&run, &expected, "logits_eval");
    }
}

#[test]
fn one_pass() {
    for case in &CASES {
        let expected = case.tensors("tensors");
        let model = forward_backward(case, &case.options(image_size(&expected), Padding::Symmetric), None);
        let labels = Some(&expected["labels"].data[..]);
        let mut run = interpreter(&model, &case.tensors("weights"), &expected["input"].data, labels);
        run.run();
        assert_logits(&run, &expected, "logits_train");
        assert_loss(&run, &json(&case.file("expected.json")));
        assert_gradients(&model, &run, &case.tensors("gradients"));
        assert_kept(&model, &run, &case.tensors("statistics_after_one_step"), TOLERANCE);
    }
}

#[test]
fn ten_steps() {
    for case in &CASES {
        let expected = json(&case.file("expected.json"));
        let sgd = &expected["sgd"];
        let number = |name: &str| sgd[name].as_f64().expect("a number");
        let optimizer = Optimizer::Sgd(Sgd {
            momentum: number("momentum"),
            nesterov: false,
            weight_decay: number("weight_decay"),
            decay_exclude: DecayExclude::BnSubstring,
        });
        let config = TrainConfig::new(optimizer, Schedule::constant(number("lr")));
        let inputs = case.tensors("tensors");
        let options = case.options(image_size(&inputs), Padding::Symmetric);
        let smoothing = expected["label_smoothing"].as_f64().expect("a number");
        let loss = LossOptions { label_smoothing: smoothing, mixup: None };
        let model = Model::train(case.architecture(), &options, &loss, &config, BATCH).expect("a legal model");

        let not_decayed: Vec<&str> =
            model.specs.iter().filter(|s| s.is_trainable() && s.name.contains("bn")).map(|s| s.name.as_str()).collect();
        assert_eq!(sgd["not_decayed"], serde_json::json!(not_decayed));

        let labels = Some(&inputs["labels"].data[..]);
        let mut run = interpreter(&model, &case.tensors("weights"), &inputs["input"].data, labels);
        for (step, expected) in sgd["losses"].as_array().expect("a list").iter().enumerate() {
            run.run();
            let (loss, expected) = (run.output("loss").data[0], expected.as_f64().expect("a number"));
            assert!((loss - expected).abs() < 1e-8 * expected, "loss {loss} of step {step}, not {expected}");
        }
        assert_kept(&model, &run, &case.tensors("final_weights"), TOLERANCE);
    }
}

#[test]
fn mixup_of_a_batch() {
    let (inputs, expected) = (BOTTLENECK.tensors("tensors"), BOTTLENECK.tensors("mixup"));
    let settings = json(&BOTTLENECK.file("mixup.json"));
    let options = BOTTLENECK.options(image_size(&inputs), Padding::Symmetric);
    let order: Vec<f64> =
        settings["order"].as_array().expect("a list").iter().map(|i| i.as_f64().expect("a number")).collect();
    let share = settings["lambda"].as_f64().expect("a number");
    for (weight, shares) in [(MixupWeight::Batch, vec![share]), (MixupWeight::Sample, vec![share; BATCH])] {
        let model = forward_backward(BOTTLENECK, &options, Some(weight));
        let labels = Some(&inputs["labels"].data[..]);
        let mut run = interpreter(&model, &BOTTLENECK.tensors("weights"), &inputs["input"].data, labels);
        run.set("mixup_order", &order);
        run.set("mixup_weight", &shares);
        run.run();
        assert_logits(&run, &expected, "logits_train");
        assert_loss(&run, &settings);
        for spec in model.specs.iter().filter(|spec| ["conv1.weight", "fc.weight"].contains(&spec.name.as_str())) {
            let name = format!("gradient.{}", spec.name);
            assert_close(&name, &spec.to_external(&run.output(&name).data), &expected[&name].data, TOLERANCE);
        }
    }
}

#[test]
fn same_padding() {
    let (even, odd) = (BOTTLENECK.tensors("same"), BOTTLENECK.tensors("tensors"));
    let report = json(&BOTTLENECK.file("same.json"));
    let weights = BOTTLENECK.tensors("weights");
    for (name, inputs) in [("even", &even), ("odd", &odd)] {
        let options = BOTTLENECK.options(image_size(inputs), Padding::Same);
        let model = Model::infer(BOTTLENECK.architecture(), &options, BATCH).expect("a legal model");
        let mut run = interpreter(&model, &weights, &inputs["input"].data, None);
        run.run();
        assert_logits(&run, &even, &format!("logits_eval.{name}"));

        let model = forward_backward(BOTTLENECK, &options, None);
        let mut run = interpreter(&model, &weights, &inputs["input"].data, Some(&even["labels"].data));
        run.run();
        assert_logits(&run, &even, &format!("logits_train.{name}"));
        assert_loss(&run, &report[name]);
        if name == "even" {
            assert_gradients(&model, &run, &BOTTLENECK.tensors("gradients_same"));
        }
    }
}
