//! A narrow EfficientNet against timm's.

use crate::fixtures::{TOLERANCE, assert_gradients};
use crate::images::{BATCH, ImageCase, assert_logits, assert_loss, image_size, interpreter};
use bessemer_models::efficientnet::{Backbone, Scaling};
use bessemer_models::{Architecture, BackboneOptions, Model};
use bessemer_nn::{BatchNormOptions, Padding};

const CASE: ImageCase = ImageCase {
    folder: "efficientnet",
    architecture: Architecture::EfficientNet(Scaling { width: 0.125, depth: 0.3 }),
};

fn symmetric() -> BackboneOptions {
    BackboneOptions::EfficientNet(Backbone::default())
}

#[test]
fn inference() {
    CASE.check_inference(symmetric());
}

#[test]
fn one_pass() {
    CASE.check_pass(symmetric());
}

#[test]
fn ten_steps() {
    CASE.check_steps(symmetric());
}

#[test]
fn same_padding() {
    let (inputs, expected, weights) = (CASE.tensors("tensors"), CASE.tensors("same"), CASE.tensors("weights"));
    let report = CASE.json("same");
    let eps = report["bn_eps"].as_f64().expect("a number");
    let norm = BatchNormOptions { eps, ..BatchNormOptions::default() };
    let same = BackboneOptions::EfficientNet(Backbone { padding: Padding::Same, norm, ..Backbone::default() });
    let options = CASE.options(image_size(&inputs), same);
    let images = &inputs["input"].data;

    let model = Model::infer(CASE.architecture, &options, BATCH).expect("a legal model");
    let mut run = interpreter(&model, &weights, images, None);
    run.run();
    assert_logits(&run, &expected, "logits_eval");

    let model = CASE.forward_backward(&options, None);
    let mut run = interpreter(&model, &weights, images, Some(&inputs["labels"].data));
    run.run();
    assert_logits(&run, &expected, "logits_train");
    assert_loss(&run, &report);
    assert_gradients(&model, &run, &CASE.tensors("gradients_same"), TOLERANCE);
}
