//! Counts of parameters, arithmetic and shapes.

use super::*;
use crate::model::Summary;
use bessemer_nn::{Optimizer, ParamKind, Schedule, Sgd};

fn published(flavour: Flavour) -> MaskRcnnOptions {
    MaskRcnnOptions::new(flavour)
}

/// A canvas, proposals and samples that are small.
fn small(flavour: Flavour) -> (MaskRcnnOptions, TrainingOptions) {
    let proposals = ProposalOptions { candidates: Some(20), most: 30 };
    let options = MaskRcnnOptions {
        canvas: [64, 96],
        depths: [1; 4],
        backbone: resnet::Backbone { base_width: 4, ..published(flavour).backbone },
        width: 8,
        box_width: 8,
        mask_widths: vec![8],
        num_classes: 3,
        max_objects: 5,
        crop: 28,
        ..published(flavour)
    };
    (options, TrainingOptions { proposals, region_samples: [16, 4], ..TrainingOptions::new(flavour) })
}

#[test]
fn the_published_network_has_the_published_counts() {
    for flavour in [Flavour::Torchvision, Flavour::Nvidia] {
        let mut options = published(flavour);
        options.backbone.freeze_at = 0;
        let model = detect(&options, &DetectionOptions::new(flavour), 1).expect("a legal model");
        assert_eq!((Summary::of(&model).parameters, trained(&model)), (44_454_513, 44_401_393));
        let norms = model.specs.iter().filter(|spec| spec.kind == ParamKind::Norm);
        assert_eq!(norms.map(|spec| spec.ty.shape.elements()).sum::<usize>(), 53_120);
    }
    let boxes: usize = published(Flavour::Nvidia).anchors().iter().map(|level| level.count()).sum();
    assert_eq!(boxes, 279_279);
}

/// Numbers that training changes.
fn trained(model: &Model) -> usize {
    model.specs.iter().filter(|spec| spec.is_trainable()).map(|spec| spec.ty.shape.elements()).sum()
}

/// The stem and C2 without their norms: 225,344 less 2 * (64 + 3 * (64 + 64 + 256) + 256).
#[test]
fn the_stem_and_the_first_stage_are_not_trained() {
    let model = detect(&published(Flavour::Nvidia), &DetectionOptions::new(Flavour::Nvidia), 1).expect("a legal model");
    assert_eq!(trained(&model), 44_401_393 - (225_344 - 2_944));
}

#[test]
fn steps_are_legal_graphs() {
    for flavour in [Flavour::Torchvision, Flavour::Nvidia] {
        let (options, training) = small(flavour);
        let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
        let config = TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1));
        let model = train(&options, &training, &config, 2).expect("a legal step");
        let names: Vec<&str> = model.graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
        let parts = ["rpn_score_loss", "rpn_box_loss", "cls_loss", "box_loss", "mask_loss", "l2_loss"];
        assert_eq!(names, [&parts[..], &["loss", "lr", "halt"]].concat());
        let model = detect(&options, &DetectionOptions::new(flavour), 2).expect("a legal step");
        let shapes: Vec<String> =
            model.graph.outputs().iter().map(|(name, v)| format!("{name} {}", model.graph.ty(*v))).collect();
        let expected = [
            "boxes f32[2, 100, 4]",
            "labels i32[2, 100]",
            "scores f32[2, 100]",
            "count i32[2]",
            "masks f32[2, 100, 28, 28]",
        ];
        assert_eq!(shapes, expected);
    }
}

#[test]
fn settings_are_checked() {
    let (options, training) = small(Flavour::Torchvision);
    let message = |options: &MaskRcnnOptions, training: &TrainingOptions| {
        forward(options, training, 1, Ranks::default()).expect_err("a setting is wrong").to_string()
    };
    let canvas = MaskRcnnOptions { canvas: [64, 100], ..options.clone() };
    assert_eq!(
        message(&canvas, &training),
        "canvas width is 100; it must be a multiple of 32, the coarsest stride of the backbone"
    );
    let samples = TrainingOptions { region_samples: [16, 17], ..training };
    assert_eq!(
        message(&options, &samples),
        "region_samples is 16 with 17 objects; there must be at least one object, and no more objects than samples"
    );
    let background = MaskRcnnOptions { num_classes: 1, ..options };
    assert!(message(&background, &training).starts_with("num_classes is 1; it must be at least 2"));
}
