//! A narrow EfficientDet against the `effdet` package in `f64`: outputs of all levels, detections, losses, every gradient, running
//! statistics, ten steps.

use crate::fixtures::{
    TOLERANCE, Tensors, assert_close, assert_gradients, assert_kept, assert_sgd_steps, json, stored_run, tensors,
    with_gradients,
};
use bessemer_models::efficientdet::{self, DetectionOptions, DetectorOptions, LossOptions, NAMES, Size};
use bessemer_models::efficientnet::Scaling;
use bessemer_nn::{Mode, Ranks};

/// A batch norm takes the shift ahead of it away again: what is left of its gradient is a small difference of large numbers.
const GRADIENT_TOLERANCE: f64 = 1e-5;
const BATCH: usize = 3;

/// Without decay, which the package leaves to its optimizer.
const LOSS: LossOptions = LossOptions { alpha: 0.25, gamma: 1.5, delta: 0.1, box_weight: 50.0, l2: 0.0 };

fn options() -> DetectorOptions {
    let published = DetectorOptions::new(Size::D[0]);
    DetectorOptions {
        canvas: [128; 2],
        backbone: Scaling { width: 0.125, depth: 0.3 },
        width: 16,
        cells: 2,
        head_depth: 2,
        num_classes: 5,
        max_objects: 6,
        ..published
    }
}

fn fixture(name: &str) -> Tensors {
    tensors(&format!("efficientdet/{name}.safetensors"))
}

fn expected() -> serde_json::Value {
    json("efficientdet/expected.json")
}

#[test]
fn outputs_of_all_levels() {
    let model = efficientdet::raw_outputs(&options(), BATCH, Mode::Infer).expect("a legal model");
    let mut run = stored_run(&model, "efficientdet");
    run.run();
    let expected = fixture("outputs");
    for (name, _) in model.graph.outputs() {
        assert_eq!(run.output(name).ty.shape.dims(), expected[name].shape, "{name}");
        assert_close(name, &run.output(name).data, &expected[name].data, TOLERANCE);
    }
}

/// The package gives boxes, score and class from 1 in one row, in `f32`.
#[test]
fn detections() {
    let sizes = expected();
    let size = |name: &str| sizes[name].as_u64().expect("a size") as usize;
    let detection = DetectionOptions {
        candidates: size("candidates"),
        detections: size("detections"),
        ..DetectionOptions::default()
    };
    let model = efficientdet::detect(&options(), &detection, BATCH).expect("a legal model");
    let mut run = stored_run(&model, "efficientdet");
    run.run();
    let expected = &fixture("outputs")["detections"].data;
    let (boxes, scores, labels) = (run.output("boxes"), run.output("scores"), run.output("labels"));
    assert_eq!(run.output("count").data, [detection.detections as f64; BATCH]);
    for (row, expected) in expected.chunks_exact(6).enumerate() {
        let close = |actual: f64, expected: f64| (actual - expected).abs() < 1e-4 * expected.abs().max(1.0);
        assert!((0..4).all(|i| close(boxes.data[4 * row + i], expected[i])), "row {row}: {expected:?}");
        assert!(close(scores.data[row], expected[4]), "row {row}: {} is not {}", scores.data[row], expected[4]);
        assert_eq!(labels.data[row] + 1.0, expected[5], "row {row}");
    }
}

#[test]
fn one_pass() {
    let (b, loss) = efficientdet::forward_loss(&options(), &LOSS, BATCH, Ranks::default()).expect("a legal model");
    let model = with_gradients(b, loss, &NAMES);
    let mut run = stored_run(&model, "efficientdet");
    run.run();
    for (name, value) in expected()["losses"].as_object().expect("losses by name") {
        let (actual, value) = (run.output(name).data[0], value.as_f64().expect("a number"));
        assert!((actual - value).abs() < 1e-9 * value, "{name} is {actual}, not {value}");
    }
    let expected = fixture("gradients");
    assert_eq!(model.specs.iter().filter(|spec| spec.is_trainable()).count(), expected.len());
    assert_gradients(&model, &run, &expected, GRADIENT_TOLERANCE);
    assert_kept(&model, &run, &fixture("statistics_after_one_step"), TOLERANCE);
}

#[test]
fn losses_of_images() {
    let detection = DetectionOptions { candidates: 10, ..DetectionOptions::default() };
    let model = efficientdet::evaluate(&options(), &detection, &LOSS, BATCH).expect("a legal model");
    let mut run = stored_run(&model, "efficientdet");
    run.run();
    let positives = expected()["positives"].as_array().expect("a list").clone();
    let positives: Vec<f64> = positives.iter().map(|count| count.as_f64().expect("a count")).collect();
    assert_eq!(run.output("positives").data, positives);
    let boxes = &run.output("box_loss_sum").data;
    assert!(boxes[0] > 0.0 && boxes[1] == 0.0 && boxes[2] > 0.0, "no box, no loss: {boxes:?}");
}

#[test]
fn ten_steps() {
    assert_sgd_steps("efficientdet", 1e-7, |config| {
        efficientdet::train(&options(), &LOSS, config, BATCH).expect("a legal model")
    });
}
