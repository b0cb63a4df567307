//! A narrow Mask R-CNN against torchvision in `f64`: maps, proposals, matches, regions, losses, every gradient, ten steps, detections.

use crate::fixtures::{
    TOLERANCE, Tensor, Tensors, assert_close, assert_gradients, assert_sgd_steps, json, stored_run, tensors,
    with_gradients,
};
use bessemer_ir::Value;
use bessemer_models::maskrcnn::{
    self, DetectionOptions, Flavour, MaskRcnnOptions, NAMES, ProposalOptions, TrainingOptions, TrainingValues,
};
use bessemer_models::resnet::Backbone;
use bessemer_nn::Ranks;

const BATCH: usize = 3;
/// Of larger tensors the fixture has every n-th element, with the least n that leaves so many.
const MOST_WRITTEN: usize = 4000;

fn options() -> MaskRcnnOptions {
    let published = MaskRcnnOptions::new(Flavour::Torchvision);
    MaskRcnnOptions {
        canvas: [128, 192],
        depths: [1; 4],
        backbone: Backbone { base_width: 4, ..published.backbone },
        width: 16,
        box_width: 20,
        mask_widths: vec![16, 12],
        num_classes: 5,
        max_objects: 6,
        crop: 28,
        ..published
    }
}

fn training() -> TrainingOptions {
    TrainingOptions {
        proposals: ProposalOptions { candidates: Some(60), most: 50 },
        anchor_samples: [5900, 2950],
        region_samples: [64, 16],
        random_samples: false,
        ..TrainingOptions::new(Flavour::Torchvision)
    }
}

fn fixture(name: &str) -> Tensors {
    tensors(&format!("maskrcnn/{name}.safetensors"))
}

fn expected() -> serde_json::Value {
    json("maskrcnn/expected.json")
}

/// The elements of a float tensor that a fixture has.
fn thinned(data: &[f64]) -> Vec<f64> {
    data.iter().step_by(data.len().div_ceil(MOST_WRITTEN)).copied().collect()
}

/// Those of `rows` rows where a condition on their index holds.
fn rows_where(data: &[f64], rows: usize, is_kept: impl Fn(usize) -> bool) -> Vec<f64> {
    let rows = data.chunks_exact(data.len() / rows).enumerate().filter(|(row, _)| is_kept(*row));
    rows.flat_map(|(_, row)| row.to_vec()).collect()
}

/// What a step computes on its way, under the names of the fixture.
fn named(values: &TrainingValues) -> Vec<(String, Value)> {
    let levels = |name: &'static str, first: usize, values: &[Value]| {
        let values = values.iter().copied().enumerate();
        values.map(|(level, value)| (format!("{name}{}", first + level), value)).collect::<Vec<_>>()
    };
    let single = [
        ("proposals", values.proposals),
        ("proposal_count", values.proposal_count),
        ("matches", values.matches),
        ("regions", values.regions),
        ("kinds", values.kinds),
        ("logits", values.logits),
        ("deltas", values.deltas),
        ("mask_logits", values.mask_logits),
        ("mask_count", values.mask_count),
    ];
    [
        levels("c", 2, &values.features),
        levels("p", 2, &values.pyramid),
        levels("objectness.", 0, &values.objectness),
        levels("anchor_deltas.", 0, &values.anchor_deltas),
        single.map(|(name, value)| (name.to_owned(), value)).to_vec(),
    ]
    .concat()
}

#[test]
fn one_pass() {
    let (mut b, values) = maskrcnn::forward(&options(), &training(), BATCH, Ranks::default()).expect("a legal model");
    let named = named(&values);
    for (name, value) in &named {
        b.graph.output(&format!("value.{name}"), *value);
    }
    let model = with_gradients(b, values.loss, &NAMES);
    let mut run = stored_run(&model, "maskrcnn");
    run.run();

    let outputs = fixture("outputs");
    let value = |name: &str| &run.output(&format!("value.{name}")).data;
    let kinds = value("kinds");
    let masks = value("mask_count")[0] as usize;
    assert_eq!(masks, kinds.iter().filter(|kind| **kind == 1.0).count());
    for (name, _) in named.iter().filter(|(name, _)| name != "mask_count") {
        let output = run.output(&format!("value.{name}"));
        let Tensor { data: expected, .. } = &outputs[name];
        match name.as_str() {
            "proposal_count" | "matches" | "kinds" => assert_eq!(output.data, *expected, "{name}"),
            // Rows of no region have no counterpart.
            "regions" => {
                let valid = |data: &[f64]| rows_where(data, kinds.len(), |row| kinds[row] >= 0.0);
                assert_close(name, &valid(&output.data), &valid(expected), TOLERANCE);
            }
            "logits" | "deltas" => {
                let actual = rows_where(&output.data, kinds.len(), |row| kinds[row] >= 0.0);
                assert_close(name, &thinned(&actual), expected, TOLERANCE);
            }
            "mask_logits" => {
                let actual = rows_where(&output.data, output.ty.shape[0], |row| row < masks);
                assert_close(name, &thinned(&actual), expected, TOLERANCE);
            }
            _ => assert_close(name, &thinned(&output.data), expected, TOLERANCE),
        }
    }
    for (name, value) in expected()["losses"].as_object().expect("losses by name") {
        let (actual, value) = (run.output(name).data[0], value.as_f64().expect("a number"));
        assert!((actual - value).abs() < 1e-8 * value, "{name} is {actual}, not {value}");
    }
    let expected = fixture("gradients");
    assert_eq!(model.specs.iter().filter(|spec| spec.is_trainable()).count(), expected.len());
    assert_gradients(&model, &run, &expected, TOLERANCE);
}

#[test]
fn ten_steps() {
    assert_sgd_steps("maskrcnn", 1e-6, |config| {
        maskrcnn::train(&options(), &training(), config, BATCH).expect("a legal model")
    });
}

#[test]
fn detections() {
    let detection = DetectionOptions {
        proposals: ProposalOptions { candidates: Some(40), most: 30 },
        score_floor: 0.2,
        detections: 20,
        ..DetectionOptions::new(Flavour::Torchvision)
    };
    let model = maskrcnn::detect(&options(), &detection, BATCH).expect("a legal model");
    let mut run = stored_run(&model, "maskrcnn");
    run.run();
    let expected = fixture("outputs");
    for name in ["count", "labels"] {
        assert_eq!(run.output(name).data, expected[&format!("detected.{name}")].data, "{name}");
    }
    for name in ["boxes", "scores", "masks"] {
        assert_close(name, &thinned(&run.output(name).data), &expected[&format!("detected.{name}")].data, TOLERANCE);
    }
}

/// Without any object all regions are background, and the loss of boxes and masks is nothing.
#[test]
fn images_without_objects() {
    let (b, values) = maskrcnn::forward(&options(), &training(), BATCH, Ranks::default()).expect("a legal model");
    let model = with_gradients(b, values.loss, &NAMES);
    let mut run = stored_run(&model, "maskrcnn");
    run.set("count", &[0.0; BATCH]);
    run.run();
    for name in ["rpn_box_loss", "box_loss", "mask_loss"] {
        assert_eq!(run.output(name).data, [0.0], "{name}");
    }
    for name in ["rpn_score_loss", "cls_loss"] {
        assert!(run.output(name).data[0] > 0.0, "{name}");
    }
    for spec in model.specs.iter().filter(|spec| spec.is_trainable()) {
        let gradient = &run.output(&format!("gradient.{}", spec.name)).data;
        assert!(gradient.iter().all(|element| element.is_finite()), "{}", spec.name);
    }
}
