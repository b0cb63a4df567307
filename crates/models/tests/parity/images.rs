//! Narrow image classifiers against PyTorch in `f64`: logits, loss, every gradient, running statistics, ten steps.

use crate::fixtures::{
    TOLERANCE, Tensors, assert_close, assert_gradients, assert_kept, json, set_weights, tensors, with_gradients,
};
use bessemer_ir::reference::Interpreter;
use bessemer_models::classifier::forward_loss;
use bessemer_models::{Architecture, BackboneOptions, InputFormat, LossOptions, MixupWeight, Model, ModelOptions};
use bessemer_nn::{DecayExclude, Optimizer, Ranks, Schedule, Sgd, TrainConfig};

pub(crate) const BATCH: usize = 4;

/// A folder of fixtures and the network that it is of.
pub(crate) struct ImageCase {
    pub folder: &'static str,
    pub architecture: Architecture,
}

impl ImageCase {
    pub(crate) fn options(&self, image_size: [usize; 2], backbone: BackboneOptions) -> ModelOptions {
        ModelOptions { image_size, input: InputFormat::Normalised, num_classes: 10, backbone, dropout: 0.0, seed: 0 }
    }

    pub(crate) fn json(&self, name: &str) -> serde_json::Value {
        json(&format!("{}/{name}.json", self.folder))
    }

    pub(crate) fn tensors(&self, name: &str) -> Tensors {
        tensors(&format!("{}/{name}.safetensors", self.folder))
    }

    /// Asserts the logits of a forward pass on the stored images.
    pub(crate) fn check_inference(&self, backbone: BackboneOptions) {
        let expected = self.tensors("tensors");
        let run_on = self.options(image_size(&expected), backbone);
        let model = Model::infer(self.architecture, &run_on, BATCH).expect("a legal model");
        let mut run = interpreter(&model, &self.tensors("weights"), &expected["input"].data, None);
        run.run();
        assert_logits(&run, &expected, "logits_eval");
    }

    /// Asserts logits, loss, every gradient and the running statistics of one pass of training.
    pub(crate) fn check_pass(&self, backbone: BackboneOptions) {
        let expected = self.tensors("tensors");
        let model = self.forward_backward(&self.options(image_size(&expected), backbone), None);
        let labels = Some(&expected["labels"].data[..]);
        let mut run = interpreter(&model, &self.tensors("weights"), &expected["input"].data, labels);
        run.run();
        assert_logits(&run, &expected, "logits_train");
        assert_loss(&run, &self.json("expected"));
        let gradients = self.tensors("gradients");
        assert_eq!(model.specs.iter().filter(|spec| spec.is_trainable()).count(), gradients.len());
        assert_gradients(&model, &run, &gradients, TOLERANCE);
        assert_kept(&model, &run, &self.tensors("statistics_after_one_step"), TOLERANCE);
    }

    /// Asserts the losses of ten steps of SGD, and the stored ones of the weights after them.
    pub(crate) fn check_steps(&self, backbone: BackboneOptions) {
        let expected = self.json("expected");
        let sgd = &expected["sgd"];
        let number = |name: &str| sgd[name].as_f64().expect("a number");
        let optimizer = Optimizer::Sgd(Sgd {
            momentum: number("momentum"),
            weight_decay: number("weight_decay"),
            decay_exclude: DecayExclude::BnSubstring,
            ..Sgd::default()
        });
        let config = TrainConfig::new(optimizer, Schedule::constant(number("lr")));
        let inputs = self.tensors("tensors");
        let options = self.options(image_size(&inputs), backbone);
        let loss = LossOptions { label_smoothing: self.label_smoothing(), mixup: None };
        let model = Model::train(self.architecture, &options, &loss, &config, BATCH).expect("a legal model");

        let not_decayed: Vec<&str> =
            model.specs.iter().filter(|s| s.is_trainable() && s.name.contains("bn")).map(|s| s.name.as_str()).collect();
        assert_eq!(sgd["not_decayed"], serde_json::json!(not_decayed));

        let labels = Some(&inputs["labels"].data[..]);
        let mut run = interpreter(&model, &self.tensors("weights"), &inputs["input"].data, labels);
        for (step, expected) in sgd["losses"].as_array().expect("a list").iter().enumerate() {
            run.run();
            let (loss, expected) = (run.output("loss").data[0], expected.as_f64().expect("a number"));
            assert!((loss - expected).abs() < 1e-8 * expected, "loss {loss} of step {step}, not {expected}");
        }
        assert_kept(&model, &run, &self.tensors("final_weights"), TOLERANCE);
    }

    fn label_smoothing(&self) -> f64 {
        self.json("expected")["label_smoothing"].as_f64().expect("a number")
    }

    /// A training step's forward and backward pass; the gradients are outputs named `gradient.NAME`.
    pub(crate) fn forward_backward(&self, options: &ModelOptions, mixup: Option<MixupWeight>) -> Model {
        let loss_options = LossOptions { label_smoothing: self.label_smoothing(), mixup };
        let (b, loss) =
            forward_loss(self.architecture, options, &loss_options, BATCH, Ranks::default()).expect("a legal model");
        with_gradients(b, loss, self.architecture.names())
    }
}

/// Height and width of `[N, H, W, C]`.
pub(crate) fn image_size(tensors: &Tensors) -> [usize; 2] {
    [tensors["input"].shape[1], tensors["input"].shape[2]]
}

pub(crate) fn interpreter<'a>(
    model: &'a Model,
    weights: &Tensors,
    images: &[f64],
    labels: Option<&[f64]>,
) -> Interpreter<'a> {
    let mut run = Interpreter::new(&model.graph);
    set_weights(&mut run, model, weights);
    run.set("images", images);
    if let Some(labels) = labels {
        run.set("labels", labels);
    }
    run
}

pub(crate) fn assert_logits(run: &Interpreter<'_>, expected: &Tensors, name: &str) {
    assert_close(name, &run.output("logits").data, &expected[name].data, TOLERANCE);
}

pub(crate) fn assert_loss(run: &Interpreter<'_>, expected: &serde_json::Value) {
    let expected = expected["loss"].as_f64().expect("a number");
    assert!((run.output("loss").data[0] - expected).abs() < 1e-10, "loss {:?}", run.output("loss").data);
}
