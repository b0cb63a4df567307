//! Detectors over the mock of a GPU, compared with those of the CPU on the same graphs: the boxes that they find, and steps of
//! training.

use crate::steps::{Run, compare, compare_outputs, content, in_their_own_memory};
use bessemer_ir::{DType, TensorType, philox};
use bessemer_models::{Model, efficientdet, maskrcnn};
use bessemer_nn::{Optimizer, Schedule, Sgd, TrainConfig};
use efficientdet::{DetectionOptions, DetectorOptions, LossOptions};
use maskrcnn::{Flavour, MaskRcnnOptions, ProposalOptions, TrainingOptions};

/// Pixels of the side of a canvas.
const CANVAS: f32 = 128.0;
/// Objects of each image, of at most [`MOST_OBJECTS`].
const OBJECTS: usize = 3;
const MOST_OBJECTS: usize = 6;

/// Feeds of a batch: noise with some objects, whose masks are noise too.
fn scene(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    let images = ty.shape[0];
    let draw = |i: usize| philox::uniform(11, batch as u32, name.len() as u32, i as u64);
    let floats =
        |of: &dyn Fn(usize) -> f32| -> Vec<u8> { (0..ty.shape.elements()).flat_map(|i| of(i).to_ne_bytes()).collect() };
    let integers =
        |of: &dyn Fn(usize) -> i32| -> Vec<u8> { (0..ty.shape.elements()).flat_map(|i| of(i).to_ne_bytes()).collect() };
    match name {
        "sizes" => floats(&|_| CANVAS),
        "boxes" => floats(&|i| {
            let (number, part) = (i / 4 % MOST_OBJECTS, i % 4);
            let corner = (draw(i - part + part % 2) * 80.0).floor();
            let side = 16.0 + (draw(i - part + part % 2 + 2) * 32.0).floor();
            if number >= OBJECTS { 0.0 } else { corner + if part < 2 { 0.0 } else { side } }
        }),
        "classes" => integers(&|i| if i % MOST_OBJECTS < OBJECTS { 1 + (draw(i) * 9.0) as i32 } else { 0 }),
        "count" => [OBJECTS as i32].repeat(images).iter().flat_map(|count| count.to_ne_bytes()).collect(),
        "crops" => (0..ty.shape.elements()).map(|i| if draw(i / 8) < 0.5 { 0 } else { 255 }).collect(),
        _ => content(name, ty, 256, batch),
    }
}

fn config() -> TrainConfig {
    let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
    TrainConfig { report_grad_norm: true, ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(1e-3)) }
}

fn efficientdet() -> DetectorOptions {
    DetectorOptions { max_objects: MOST_OBJECTS, ..efficientdet::find("efficientdet-tiny").unwrap().options() }
}

fn mask_rcnn(flavour: Flavour) -> MaskRcnnOptions {
    MaskRcnnOptions {
        max_objects: MOST_OBJECTS,
        crop: 28,
        width: 32,
        mask_widths: vec![16; 2],
        ..maskrcnn::find("mask-rcnn-tiny").unwrap().options(flavour)
    }
}

#[test]
fn an_efficientdet_finds_the_same() {
    for (form, detection) in [("hard", DetectionOptions::default()), ("soft", DetectionOptions::soft())] {
        let detection = DetectionOptions { candidates: 500, ..detection };
        let model = efficientdet::evaluate(&efficientdet(), &detection, &LossOptions::default(), 2).unwrap();
        compare_outputs(&format!("an_efficientdet_finds_the_same, {form}"), &model, 1e-5, &scene);
    }
}

fn training_efficientdet() -> Model {
    efficientdet::train(&efficientdet(), &LossOptions::default(), &config(), 2).unwrap()
}

#[test]
fn two_steps_of_an_efficientdet() {
    let model = training_efficientdet();
    // A bias in front of a norm has a gradient of zero, but for rounding.
    let run = Run { steps: 2, of_state: 3e-4, ..Run::DEFAULT };
    compare("two_steps_of_an_efficientdet", &model, &run, &scene);
}

#[test]
fn a_mask_rcnn_finds_the_same() {
    for flavour in [Flavour::Torchvision, Flavour::Nvidia] {
        let detection = maskrcnn::DetectionOptions::new(flavour);
        let proposals = ProposalOptions { most: 100, ..detection.proposals };
        let detection = maskrcnn::DetectionOptions { proposals, detections: 20, ..detection };
        let model = maskrcnn::detect(&mask_rcnn(flavour), &detection, 2).unwrap();
        compare_outputs(&format!("a_mask_rcnn_finds_the_same, {flavour:?}"), &model, 1e-5, &scene);
    }
}

fn training_mask_rcnn(flavour: Flavour) -> Model {
    let training = TrainingOptions::new(flavour);
    let proposals = ProposalOptions { most: 100, ..training.proposals };
    let training = TrainingOptions { proposals, region_samples: [32, 8], ..training };
    maskrcnn::train(&mask_rcnn(flavour), &training, &config(), 2).unwrap()
}

#[test]
fn two_steps_of_a_mask_rcnn() {
    // Where the input of a ReLU is zero but for rounding, its channel and all before it have another gradient.
    for (flavour, of_state) in [(Flavour::Torchvision, 1e-2), (Flavour::Nvidia, 3e-2)] {
        let model = training_mask_rcnn(flavour);
        let run = Run { steps: 2, of_state, ..Run::DEFAULT };
        compare(&format!("two_steps_of_a_mask_rcnn, {flavour:?}"), &model, &run, &scene);
    }
}

/// One step of each, of one type of elements: launches leave all memory alone that they do not write, and write all of their outputs.
#[test]
fn launches_of_detectors_touch_their_own_memory() {
    for (name, model, precision) in [
        ("an EfficientDet", training_efficientdet(), DType::Bf16),
        ("a Mask R-CNN", training_mask_rcnn(Flavour::Torchvision), DType::F32),
    ] {
        let run = Run { steps: 1, precision, ..Run::DEFAULT };
        in_their_own_memory(&format!("{name} in {precision}"), &model, &run, &scene);
    }
}
