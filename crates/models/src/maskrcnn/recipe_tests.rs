//! The parts of flavour `nvidia` that differ from torchvision's, against what the recipe's definitions give.

use super::config::FIRST_LEVEL;
use super::heads::Classified;
use super::regions::Regions;
use super::rpn::{self, Proposals, Scored};
use super::*;
use crate::recipe_fixtures::{Expected, borrowed, drawn, drawn_bytes, joined_gradients, results};

const BATCH: usize = 3;
const CANVAS: [usize; 2] = [64, 128];
/// Height and width of each image.
const SIZES: [f64; 6] = [64.0, 128.0, 50.0, 100.0, 64.0, 90.0];
/// Proposals of an image in the parts behind them, and classes.
const CANDIDATES: usize = 12;
const CLASSES: usize = 4;

fn options() -> MaskRcnnOptions {
    MaskRcnnOptions {
        canvas: CANVAS,
        num_classes: CLASSES,
        max_objects: 3,
        crop: 14,
        ..MaskRcnnOptions::new(Flavour::Nvidia)
    }
}

fn training() -> TrainingOptions {
    TrainingOptions {
        // All reference boxes, and all regions, fit.
        anchor_samples: [4096, 2048],
        region_samples: [CANDIDATES + 3, 8],
        random_samples: false,
        ..TrainingOptions::new(Flavour::Nvidia)
    }
}

fn expected(part: &str) -> Expected {
    Expected::new("maskrcnn", part)
}

/// Feeds of the network's outputs for reference boxes, and the numbers in them.
fn scored(b: &mut Builder) -> (Scored, Vec<(String, Vec<f64>)>) {
    let counts = options().anchors().map(|anchors| anchors.count());
    let mut inputs = Vec::new();
    let mut feed = |name: &str, seed: u32, level: usize, shape: &[usize], scale: f64| {
        let name = format!("{name}.{level}");
        let value = b.feed(&name, DType::F32, shape.to_vec()).expect("a new name");
        let mut data = drawn(seed + level as u32, shape.iter().product(), scale);
        // Some deltas are larger than boxes may grow.
        data.iter_mut().step_by(97).filter(|_| name.starts_with("deltas")).for_each(|x| *x *= 8.0);
        inputs.push((name, data));
        value
    };
    let logits = std::array::from_fn(|level| feed("logits", 10, level, &[BATCH, counts[level]], 4.0));
    let deltas = std::array::from_fn(|level| feed("deltas", 20, level, &[BATCH, counts[level], 4], 1.0));
    (Scored { logits, deltas }, inputs)
}

#[test]
fn losses_of_the_region_proposal_network() {
    let mut b = Builder::training(Ranks::default());
    let (scored, inputs) = scored(&mut b);
    let objects = Objects::feed(&mut b, BATCH, 3).expect("new names");
    let streams = &mut Streams::new(0);
    let [score_loss, box_loss] =
        rpn::losses(&mut b, &scored, &objects, &options(), &training(), streams).expect("legal");
    let outputs = [
        ("score_loss", score_loss),
        ("box_loss", box_loss),
        ("score_gradients", joined_gradients(&mut b, score_loss, &scored.logits)),
        ("box_gradients", joined_gradients(&mut b, box_loss, &scored.deltas)),
    ];
    let zeros = [0.0; 4];
    let boxes: [&[f64]; 9] = [
        &[10.0, 6.0, 41.0, 39.5],
        &[70.0, 20.0, 101.0, 49.5],
        &[9.5, 38.5, 51.5, 54.0],
        &zeros,
        &zeros,
        &zeros,
        // Both want one reference box, which has their sides: those coordinates count nowhere.
        &[19.0, 7.0, 51.0, 39.0],
        &[19.0, 7.0, 51.0, 39.0],
        &zeros,
    ];
    let mut inputs = borrowed(&inputs);
    inputs.extend([("boxes", boxes.concat()), ("classes", vec![1.0; 9]), ("count", vec![3.0, 0.0, 2.0])]);
    let expected = expected("rpn_losses");
    let anchors: Vec<f64> = options().anchors().iter().flat_map(|level| level.boxes()).flatten().collect();
    expected.assert_close("anchors", &anchors, 1e-9);
    for results in results(b, &outputs, &inputs) {
        results.assert_close(&["score_loss", "box_loss", "score_gradients"], &expected);
        results.assert_close_without_zeros("box_gradients", &expected);
    }
}

#[test]
fn proposals_of_all_levels() {
    let most = 40;
    let mut b = Builder::training(Ranks::default());
    let (scored, inputs) = scored(&mut b);
    let sizes = b.feed("sizes", DType::F32, [BATCH, 2]).expect("a new name");
    let proposals = ProposalOptions { most, ..TrainingOptions::new(Flavour::Nvidia).proposals };
    let proposals = rpn::propose(&mut b, &scored, sizes, &options(), &proposals).expect("legal");
    let outputs = [("boxes", proposals.boxes), ("count", proposals.count)];
    let mut inputs = borrowed(&inputs);
    inputs.push(("sizes", SIZES.to_vec()));
    for results in results(b, &outputs, &inputs) {
        assert_eq!(results.numbers("count"), [most as f64; BATCH]);
        results.assert_close(&["boxes"], &expected("proposals"));
    }
}

/// Feeds of proposals.
fn fed_proposals(b: &mut Builder) -> Proposals {
    Proposals {
        boxes: b.feed("proposals", DType::F32, [BATCH, CANDIDATES, 4]).expect("a new name"),
        count: b.feed("proposal_count", DType::I32, [BATCH]).expect("a new name"),
    }
}

#[test]
fn regions_and_their_losses() {
    let (options, training) = (options(), training());
    let [rows, most] = training.region_samples;
    let mut b = Builder::training(Ranks::default());
    let proposals = fed_proposals(&mut b);
    let objects = Objects::feed(&mut b, BATCH, 3).expect("new names");
    let crops = b.feed("crops", DType::U8, [BATCH, 3, 14, 14]).expect("a new name");
    let logits = b.feed("logits", DType::F32, [BATCH * rows, CLASSES]).expect("a new name");
    let deltas = b.feed("deltas", DType::F32, [BATCH * rows, CLASSES, 4]).expect("a new name");
    let mask_logits = b.feed("mask_logits", DType::F32, [BATCH * most, 28, 28]).expect("a new name");
    let streams = &mut Streams::new(0);
    let regions = Regions::choose(&mut b, &proposals, &objects, &options, &training, streams).expect("legal");
    let [class_loss, box_loss] = regions.losses(&mut b, logits, deltas, &objects, Flavour::Nvidia).expect("legal");
    let packed = regions.with_objects(&mut b, most).expect("legal");
    let mask_loss = packed.mask_loss(&mut b, mask_logits, crops, &objects, Flavour::Nvidia).expect("legal");
    let outputs = [
        ("match", regions.matches),
        ("boxes", regions.boxes),
        ("labels", regions.labels),
        ("numbers", regions.numbers),
        ("class_loss", class_loss),
        ("box_loss", box_loss),
        ("class_gradients", joined_gradients(&mut b, class_loss, &[logits])),
        ("box_gradients", joined_gradients(&mut b, box_loss, &[deltas])),
        ("masks", packed.count),
        ("mask_loss", mask_loss),
        ("mask_gradients", joined_gradients(&mut b, mask_loss, &[mask_logits])),
    ];
    let zeros = [0.0; 4];
    let boxes: [&[f64]; 6] = [
        &[10.0, 6.0, 42.0, 40.0],
        &[60.0, 10.0, 120.0, 60.0],
        &[30.0, 30.0, 50.0, 44.0],
        &[5.0, 5.0, 40.0, 30.0],
        &[50.0, 8.0, 110.0, 56.0],
        &zeros,
    ];
    let expected = expected("regions");
    let inputs = [
        ("proposals", expected.numbers("proposals")),
        ("proposal_count", vec![CANDIDATES as f64; BATCH]),
        ("boxes", [&boxes.concat()[..], &[0.0; 12]].concat()),
        ("classes", vec![1.0, 3.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]),
        ("count", vec![3.0, 2.0, 0.0]),
        ("crops", drawn_bytes(35, BATCH * 3 * 14 * 14)),
        ("logits", drawn(30, BATCH * rows * CLASSES, 2.0)),
        ("deltas", drawn(31, BATCH * rows * CLASSES * 4, 2.0)),
        ("mask_logits", drawn(33, BATCH * most * 28 * 28, 2.0)),
    ];
    for results in results(b, &outputs, &inputs) {
        results.assert_equal(&["match", "labels", "numbers", "masks"], &expected);
        results.assert_close(&["boxes", "class_loss", "box_loss", "class_gradients", "mask_loss"], &expected);
        results.assert_close_without_zeros("box_gradients", &expected);
        results.assert_close_before("mask_gradients", results.numbers("masks")[0] as usize * 28 * 28, &expected);
    }
}

#[test]
fn features_of_regions() {
    // Of all levels, at their limits, without area, before the first pixel and beyond the last.
    let boxes: [[f64; 4]; 12] = [
        [4.0, 4.0, 40.0, 36.0],
        [0.0, 0.0, 112.0, 112.0],
        [10.0, 5.0, 122.0, 116.5],
        [0.0, 0.0, 224.0, 224.0],
        [-30.0, -20.0, 330.0, 300.0],
        [-60.0, 0.0, 420.0, 470.0],
        [0.0, 0.0, 448.0, 448.0],
        [-200.0, -100.0, 760.0, 860.0],
        [20.0, 20.0, 20.0, 40.0],
        [-9.0, -7.0, 6.0, 9.0],
        [110.0, 50.0, 140.0, 70.0],
        [3.5, 2.25, 90.0, 60.0],
    ];
    let mut b = Builder::training(Ranks::default());
    let (mut operands, mut inputs) = (Vec::new(), Vec::new());
    for level in FIRST_LEVEL..FIRST_LEVEL + 5 {
        let (name, shape) = (format!("map.{level}"), [2, CANVAS[0] >> level, CANVAS[1] >> level, 3]);
        operands.push(b.feed(&name, DType::F32, shape).expect("a new name"));
        inputs.push((name, drawn(40 + level as u32, shape.iter().product(), 1.0)));
    }
    operands.push(b.feed("regions", DType::F32, [boxes.len(), 4]).expect("a new name"));
    operands.push(b.feed("image", DType::I32, [boxes.len()]).expect("a new name"));
    let outputs = [("features_7", 7), ("features_14", 14)]
        .map(|(name, size)| (name, b.graph.push1(Flavour::Nvidia.roi_align(size), &operands).expect("legal")));
    let mut inputs = borrowed(&inputs);
    inputs.push(("regions", boxes.concat()));
    inputs.push(("image", (0..boxes.len()).map(|number| (number % 2) as f64).collect()));
    for results in results(b, &outputs, &inputs) {
        results.assert_close(&["features_7", "features_14"], &expected("aligned"));
    }
}

#[test]
fn detections_of_all_classes() {
    let detection = DetectionOptions { detections: 20, ..DetectionOptions::new(Flavour::Nvidia) };
    let mut b = Builder::new(Mode::Infer);
    let proposals = fed_proposals(&mut b);
    let sizes = b.feed("sizes", DType::F32, [BATCH, 2]).expect("a new name");
    let logits = b.feed("logits", DType::F32, [BATCH * CANDIDATES, CLASSES]).expect("a new name");
    let deltas = b.feed("deltas", DType::F32, [BATCH * CANDIDATES, CLASSES, 4]).expect("a new name");
    let classified = Classified { logits, deltas };
    let chosen = detect::choose(&mut b, classified, &proposals, sizes, &options(), &detection).expect("legal");
    let outputs =
        [("boxes", chosen.boxes), ("scores", chosen.scores), ("labels", chosen.labels), ("count", chosen.count)];
    let inputs = [
        ("proposals", expected("regions").numbers("proposals")),
        ("proposal_count", vec![CANDIDATES as f64; BATCH]),
        ("sizes", SIZES.to_vec()),
        ("logits", drawn(50, BATCH * CANDIDATES * CLASSES, 2.0)),
        ("deltas", drawn(51, BATCH * CANDIDATES * CLASSES * 4, 4.0)),
    ];
    let expected = expected("detections");
    for results in results(b, &outputs, &inputs) {
        assert_eq!(results.numbers("count"), [20.0; BATCH]);
        results.assert_equal(&["labels"], &expected);
        results.assert_close(&["boxes", "scores"], &expected);
    }
}

/// Proposals without area are background; rows behind the last proposal, and those of no object, are nothing.
#[test]
fn only_proposals_are_background_without_area() {
    let counts = [2.0, 0.0, 12.0];
    let mut b = Builder::training(Ranks::default());
    let proposals = fed_proposals(&mut b);
    let objects = Objects::feed(&mut b, BATCH, 3).expect("new names");
    let streams = &mut Streams::new(0);
    let regions = Regions::choose(&mut b, &proposals, &objects, &options(), &training(), streams).expect("legal");
    let inputs = [
        ("proposals", vec![0.0; BATCH * CANDIDATES * 4]),
        ("proposal_count", counts.to_vec()),
        ("boxes", vec![0.0; BATCH * 3 * 4]),
        ("classes", vec![0.0; BATCH * 3]),
        ("count", vec![0.0; BATCH]),
    ];
    let match_of = |count: f64| (0..CANDIDATES + 3).map(move |row| if (row as f64) < count { -1.0 } else { -2.0 });
    let expected: Vec<f64> = counts.into_iter().flat_map(match_of).collect();
    for results in results(b, &[("match", regions.matches)], &inputs) {
        assert_eq!(results.numbers("match"), expected);
    }
}
