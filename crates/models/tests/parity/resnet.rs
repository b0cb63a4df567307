//! Narrow ResNets against torchvision's.

use crate::fixtures::{TOLERANCE, assert_close, assert_gradients};
use crate::images::{BATCH, ImageCase, assert_logits, assert_loss, image_size, interpreter};
use bessemer_models::resnet::{Backbone, Block};
use bessemer_models::{Architecture, BackboneOptions, MixupWeight, Model};
use bessemer_nn::Padding;

const BOTTLENECK: ImageCase = case("resnet_bottleneck", Block::Bottleneck);
const BASIC: ImageCase = case("resnet_basic", Block::Basic);

const fn case(folder: &'static str, block: Block) -> ImageCase {
    ImageCase { folder, architecture: Architecture::ResNet { block, depths: [1, 2, 1, 1] } }
}

fn backbone(padding: Padding) -> BackboneOptions {
    BackboneOptions::ResNet(Backbone { padding, ..Backbone::new(8) })
}

#[test]
fn inference() {
    for case in [BOTTLENECK, BASIC] {
        case.check_inference(backbone(Padding::Symmetric));
    }
}

#[test]
fn one_pass() {
    for case in [BOTTLENECK, BASIC] {
        case.check_pass(backbone(Padding::Symmetric));
    }
}

#[test]
fn ten_steps() {
    for case in [BOTTLENECK, BASIC] {
        case.check_steps(backbone(Padding::Symmetric));
    }
}

#[test]
fn mixup_of_a_batch() {
    let (inputs, expected) = (BOTTLENECK.tensors("tensors"), BOTTLENECK.tensors("mixup"));
    let settings = BOTTLENECK.json("mixup");
    let options = BOTTLENECK.options(image_size(&inputs), backbone(Padding::Symmetric));
    let order: Vec<f64> =
        settings["order"].as_array().expect("a list").iter().map(|i| i.as_f64().expect("a number")).collect();
    let share = settings["lambda"].as_f64().expect("a number");
    for (weight, shares) in [(MixupWeight::Batch, vec![share]), (MixupWeight::Sample, vec![share; BATCH])] {
        let model = BOTTLENECK.forward_backward(&options, Some(weight));
        let labels = Some(&inputs["labels"].data[..]);
        let mut run = interpreter(&model, &BOTTLENECK.tensors("weights"), &inputs["input"].data, labels);
        run.set("mixup_order", &order);
        run.set("mixup_weight", &shares);
        run.run();
        assert_logits(&run, &expected, "logits_train");
        assert_loss(&run, &settings);
        for spec in model.specs.iter().filter(|spec| ["conv1.weight", "fc.weight"].contains(&spec.name.as_str())) {
            let name = format!("gradient.{}", spec.name);
            assert_close(&name, &spec.to_external(&run.output(&name).data), &expected[&name].data, 1e-6);
        }
    }
}

#[test]
fn same_padding() {
    let (even, odd) = (BOTTLENECK.tensors("same"), BOTTLENECK.tensors("tensors"));
    let report = BOTTLENECK.json("same");
    let weights = BOTTLENECK.tensors("weights");
    for (name, inputs) in [("even", &even), ("odd", &odd)] {
        let options = BOTTLENECK.options(image_size(inputs), backbone(Padding::Same));
        let model = Model::infer(BOTTLENECK.architecture, &options, BATCH).expect("a legal model");
        let mut run = interpreter(&model, &weights, &inputs["input"].data, None);
        run.run();
        assert_logits(&run, &even, &format!("logits_eval.{name}"));

        let model = BOTTLENECK.forward_backward(&options, None);
        let mut run = interpreter(&model, &weights, &inputs["input"].data, Some(&even["labels"].data));
        run.run();
        assert_logits(&run, &even, &format!("logits_train.{name}"));
        assert_loss(&run, &report[name]);
        if name == "even" {
            assert_gradients(&model, &run, &BOTTLENECK.tensors("gradients_same"), TOLERANCE);
        }
    }
}
