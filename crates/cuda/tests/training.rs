//! Steps of training of whole models over the mock of a GPU, compared with those of the CPU on the same graphs.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/steps.rs"]
mod steps;

use bessemer_ir::{DType, TensorType};
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::electra::{ElectraConfig, PretrainingOptions};
use bessemer_models::{LossOptions, Model, bert, electra, find};
use bessemer_nn::{Adam, Average, Clip, ClipForm, ClipOf, DecayExclude, Lamb, Optimizer, Schedule, Sgd, TrainConfig};
use steps::{Feed, Run, Trouble, compare, content, in_random_orders, launches, on_gpu};

fn resnet() -> Model {
    let spec = find("resnet20-cifar").unwrap();
    let options = bessemer_models::ModelOptions { image_size: [16, 16], ..spec.options() };
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        report_grad_norm: true,
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.01))
    };
    Model::train(spec.architecture, &options, &LossOptions::default(), &config, 4).unwrap()
}

fn pictures(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    content(name, ty, 10, batch)
}

#[test]
fn three_steps_of_a_resnet() {
    compare("three_steps_of_a_resnet", &resnet(), &Run::DEFAULT, &pictures);
}

/// Sums that differ in their last digit are now and then rounded to different neighbours, of which `bf16` has 8 binary places and
/// `f16` 11, and elements near zero then pass a ReLU or not: of 64 of them that a gradient is summed over, one or two.
#[test]
fn a_step_of_a_resnet_in_16_bits() {
    for (precision, of_scalars, of_state) in [(DType::Bf16, 1e-2, 0.5), (DType::F16, 1e-3, 0.4)] {
        let run = Run { steps: 1, precision, of_scalars, of_state, ..Run::DEFAULT };
        compare(&format!("a_step_of_a_resnet_in_16_bits, {precision}"), &resnet(), &run, &pictures);
    }
}

fn bert(layers: usize) -> Model {
    let config =
        BertConfig { vocab_size: 500, num_hidden_layers: layers, max_position_embeddings: 32, ..BertConfig::tiny() };
    let sequences = Sequences { batch: 2, length: 16, predictions: 3 };
    let train = TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        accumulation: 2,
        ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3))
    };
    bert::train(&config, sequences, &BertOptions::default(), &train).unwrap()
}

/// Feeds of a BERT.
fn sequences(name: &str, ty: &TensorType, batch: usize) -> Vec<u8> {
    let most = match name {
        "segment_ids" | "next_sentence_labels" => 2,
        "masked_lm_positions" => 16,
        // A mask of ones and zeros.
        "input_mask" => 2,
        _ => 500,
    };
    content(name, ty, most, batch)
}

#[test]
fn three_steps_of_a_bert_of_two_micro_batches() {
    // LAMB divides gradients by their own size, so that roundings of the smallest ones show in biases, which begin at zero. Two
    // instruction sets of the CPU differ by 1.2e-5.
    let run = Run { micro_batches: 2, of_state: 5e-5, ..Run::DEFAULT };
    compare("three_steps_of_a_bert_of_two_micro_batches", &bert(2), &run, &sequences);
}

/// Biases are zero at first, and are added in the pass of products from the second step on. LAMB divides gradients by their own size, so
/// that roundings of those that are nearly zero show in biases.
#[test]
fn two_steps_of_a_bert_in_16_bits() {
    for precision in [DType::Bf16, DType::F16] {
        let run = Run { steps: 2, micro_batches: 2, precision, of_scalars: 2e-3, of_state: 0.5, ..Run::DEFAULT };
        compare(&format!("two_steps_of_a_bert_in_16_bits, {precision}"), &bert(1), &run, &sequences);
    }
}

/// Behind steps that fail, and others that are queued behind those, training goes on as on the CPU. A step with an index out of
/// range is as if it had not been, to the bit.
#[test]
fn steps_of_a_bert_between_steps_that_fail() {
    let test = "steps_of_a_bert_between_steps_that_fail";
    let model = bert(1);
    // One layer, whose biases have the smallest gradients.
    let with = |trouble| Run { micro_batches: 2, of_state: 2e-4, trouble, ..Run::DEFAULT };
    let undisturbed = compare(test, &model, &with(Trouble::Nothing), &sequences);
    let behind_indices = on_gpu(test, &model, &with(Trouble::Index), &sequences);
    assert!(undisturbed == behind_indices, "something is left of the steps that failed");
    compare(test, &model, &with(Trouble::Loss), &sequences);
}

/// Updates of weights and statistics, casts of weights, squares of gradients: that states are the same to the bit is seen by all tests that compare
/// recorded steps with those that are not.
#[test]
fn regions_alike_are_launched_as_one() {
    let test = "regions_alike_are_launched_as_one";
    let check = |model: &Model, precision, feed: Feed<'_>, expected: [i64; 2]| {
        if let Some(found) = launches(test, model, precision, feed) {
            assert_eq!(found, expected, "{precision}");
        }
    };
    check(&resnet(), DType::F32, &pictures, [466, 375]);
    check(&resnet(), DType::Bf16, &pictures, [486, 377]);
    check(&bert(2), DType::F32, &sequences, [417, 335]);
    check(&bert(2), DType::Bf16, &sequences, [446, 348]);
}

fn electra() -> Model {
    let mini = ElectraConfig::mini();
    let encoder = BertConfig { vocab_size: 500, num_hidden_layers: 2, max_position_embeddings: 32, ..mini.encoder };
    let config = ElectraConfig { encoder, ..mini };
    let sequences = Sequences { batch: 1, length: 16, predictions: 3 };
    let train = TrainConfig::new(Optimizer::Adam(Adam::bert(0.01)), Schedule::constant(1e-3));
    electra::train(&config, sequences, &PretrainingOptions::new(0.25), &train).unwrap()
}

#[test]
fn steps_of_models_in_random_orders() {
    in_random_orders("ResNet-20 in random orders", &resnet(), DType::F32, &pictures);
    in_random_orders("BERT in random orders", &bert(2), DType::Bf16, &sequences);
    in_random_orders("ELECTRA in random orders", &electra(), DType::Bf16, &sequences);
}
