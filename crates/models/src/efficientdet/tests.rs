//! Counts of parameters, arithmetic and shapes.

use super::*;
use crate::model::Summary;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::NullTarget;
use bessemer_nn::{Optimizer, Schedule, Sgd};

fn d0() -> DetectorOptions {
    DetectorOptions::new(Size::D[0])
}

#[test]
fn d0_has_the_published_counts() {
    for (num_classes, parameters) in [(90, 3_880_067), (91, 3_880_652)] {
        let options = DetectorOptions { num_classes, ..d0() };
        let model = raw_outputs(&options, 1, Mode::Infer).expect("a legal model");
        assert_eq!(Summary::of(&model).parameters, parameters, "{num_classes} classes");
    }
    let model = raw_outputs(&d0(), 1, Mode::Infer).expect("a legal model");
    let gmac = Summary::of(&model).flops_per_sample as f64 / 2e9;
    assert!((gmac - 2.492).abs() < 5e-4, "{gmac} GMAC");
}

/// Table 1 of the paper, in millions; the last ones there are of other sizes.
#[test]
fn larger_ones_have_the_published_counts() {
    let published = [3.9, 6.6, 8.1, 12.0, 20.7, 33.7, 51.9, 51.9];
    for (size, published) in Size::D.into_iter().zip(published) {
        let options = DetectorOptions { canvas: [CANVAS_MULTIPLE; 2], ..DetectorOptions::new(size) };
        let model = raw_outputs(&options, 1, Mode::Infer).expect("a legal model");
        let millions = Summary::of(&model).parameters as f64 / 1e6;
        assert!((millions - published).abs() < 0.06, "{millions} million, not {published}");
    }
}

#[test]
fn larger_ones_compile() {
    let config = TrainConfig::new(Optimizer::Sgd(Sgd::default()), Schedule::constant(0.1));
    for size in [Size::D[1], Size::D[4], Size::D[7]] {
        let options = DetectorOptions { canvas: [CANVAS_MULTIPLE; 2], ..DetectorOptions::new(size) };
        let model = train(&options, &LossOptions::default(), &config, 1).expect("a legal step");
        let plan = compile(&model.graph, &NullTarget, &CompileOptions::default()).expect("it compiles");
        assert!(plan.arena_bytes > 0 && plan.state_bytes() > 4 * 6_000_000, "{size:?}");
    }
}

#[test]
fn steps_are_legal_graphs() {
    let options = DetectorOptions { canvas: [128, 256], cells: 1, head_depth: 1, num_classes: 3, ..d0() };
    let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
    let config = TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1));
    let model = train(&options, &LossOptions::default(), &config, 2).expect("a legal step");
    let names: Vec<&str> = model.graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["cls_loss", "box_loss", "l2_loss", "loss", "lr", "halt"]);
    for detection in [DetectionOptions::default(), DetectionOptions::soft()] {
        let model = evaluate(&options, &detection, &LossOptions::default(), 2).expect("a legal step");
        let shapes: Vec<String> =
            model.graph.outputs().iter().map(|(name, v)| format!("{name} {}", model.graph.ty(*v))).collect();
        let expected = [
            "boxes f32[2, 100, 4]",
            "labels i32[2, 100]",
            "scores f32[2, 100]",
            "count i32[2]",
            "cls_loss_sum f32[2]",
            "box_loss_sum f32[2]",
            "positives i32[2]",
        ];
        assert_eq!(shapes, expected);
    }
}
