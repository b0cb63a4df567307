//! What whole models are lowered to.

use super::region::rounds_product;
use super::{CudaTarget, Lowered, Place, Step};
use crate::cudnn::{Fusion, Pass};
use crate::kgen::Parameter;
use bessemer_ir::DType;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_models::{LossOptions, Model, efficientdet, find, maskrcnn};
use bessemer_nn::{Optimizer, Schedule, Sgd, TrainConfig};
use std::any::Any;

/// Steps of training, and inference, of published sizes.
fn models() -> Vec<(&'static str, Model)> {
    let sgd = TrainConfig::new(Optimizer::Sgd(Sgd::default()), Schedule::constant(0.1));
    let resnet = find("resnet50").unwrap();
    let (architecture, options) = (resnet.architecture, resnet.options());
    let boxes = efficientdet::find("efficientdet-d0").unwrap().options();
    let flavour = maskrcnn::Flavour::Nvidia;
    let masks = maskrcnn::find("mask-rcnn").unwrap().options(flavour);
    let training = maskrcnn::TrainingOptions::new(flavour);
    let (of_boxes, of_masks) = (efficientdet::DetectionOptions::default(), maskrcnn::DetectionOptions::new(flavour));
    vec![
        ("resnet50", Model::train(architecture, &options, &LossOptions::default(), &sgd, 2).unwrap()),
        ("resnet50, inference", Model::infer(architecture, &options, 2).unwrap()),
        ("efficientdet-d0", efficientdet::train(&boxes, &efficientdet::LossOptions::default(), &sgd, 2).unwrap()),
        ("efficientdet-d0, inference", efficientdet::detect(&boxes, &of_boxes, 2).unwrap()),
        ("mask-rcnn", maskrcnn::train(&masks, &training, &sgd, 1).unwrap()),
        ("mask-rcnn, inference", maskrcnn::detect(&masks, &of_masks, 1).unwrap()),
    ]
}

/// Whether a step copies what lies there to `f32`.
fn widens(step: &Step, from: Place) -> bool {
    let Step::Launch { kernel, operands } = step else { return false };
    let to = |to: &Parameter| matches!(to, Parameter::Memory { ty: DType::F32, written: true, .. });
    kernel.name.starts_with("copy") && operands[0] == from && kernel.parameters.iter().any(to)
}

/// In 16 bits cuDNN computes all convolutions in 16 bits, and what follows them asks for no more digits.
#[test]
fn convolutions_stay_in_16_bits() {
    for (name, model) in models() {
        for precision in [DType::F16, DType::Bf16] {
            let options = CompileOptions { precision, ..CompileOptions::default() };
            let plan = compile(&model.graph, &CudaTarget, &options).unwrap();
            let mut count = 0;
            for id in plan.graph.ids() {
                let Some(kernel) = plan.kernels.of(id) else { continue };
                let lowered = (&**kernel as &dyn Any).downcast_ref::<Lowered>().unwrap();
                for step in &lowered.steps {
                    let Step::Convolution { convolution, fusion: Fusion::Plain(pass), ty, tensors } = step else {
                        continue;
                    };
                    let made = tensors.last().unwrap();
                    let what = format!("{name}: {pass:?} of {convolution} in {ty}, {}", plan.graph.node(id).op);
                    assert_eq!(*ty, precision, "{what}");
                    let fusion = plan.graph.node(id).op.as_fusion();
                    assert!(fusion.is_none_or(|fusion| rounds_product(fusion, precision)), "{what} is read in f32");
                    let is_widened = lowered.steps.iter().any(|step| widens(step, *made));
                    // Gradients of weights are small, and are brought into another order in any case.
                    assert!(!is_widened || *pass == Pass::WeightGradient, "{what} is converted to f32");
                    count += 1;
                }
            }
            println!("{name}, {precision}: {count} convolutions");
            assert!(count > 50, "{name}: {count} convolutions");
        }
    }
}
