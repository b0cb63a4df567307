//! Steps of training of whole models over the mock of a GPU, compared with those of the CPU on the same graphs.

mod common;
#[path = "common/device.rs"]
mod device;
#[path = "common/steps.rs"]
mod steps;

use bessemer_ir::TensorType;
use bessemer_models::bert::{BertConfig, BertOptions, Sequences};
use bessemer_models::{LossOptions, Model, bert, find};
use bessemer_nn::{Average, Clip, ClipForm, ClipOf, DecayExclude, Lamb, Optimizer, Schedule, Sgd, TrainConfig};
use steps::{Run, compare, content};

#[test]
fn three_steps_of_a_resnet() {
    let spec = find("resnet20-cifar").unwrap();
    let options = bessemer_models::ModelOptions { image_size: [16, 16], ..spec.options() };
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-4, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        report_grad_norm: true,
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.01))
    };
    let model = Model::train(spec.architecture, &options, &LossOptions::default(), &config, 4).unwrap();
    compare("three_steps_of_a_resnet", &model, &Run::DEFAULT, &|name, ty, batch| content(name, ty, 10, batch));
}

#[test]
fn three_steps_of_a_bert_of_two_micro_batches() {
    let config =
        BertConfig { vocab_size: 500, num_hidden_layers: 2, max_position_embeddings: 32, ..BertConfig::tiny() };
    let sequences = Sequences { batch: 2, length: 16, predictions: 3 };
    let train = TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        accumulation: 2,
        ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(1e-3))
    };
    let model = bert::train(&config, sequences, &BertOptions::default(), &train).unwrap();
    let most = |name: &str| match name {
        "segment_ids" | "next_sentence_labels" => 2,
        "masked_lm_positions" => 16,
        // A mask of ones and zeros.
        "input_mask" => 2,
        _ => 500,
    };
    // LAMB divides gradients by their own size, so that roundings of the smallest ones show in biases, which begin at zero. Two
    // instruction sets of the CPU differ by 1.2e-5.
    let run = Run { micro_batches: 2, of_state: 5e-5, ..Run::DEFAULT };
    let feed = |name: &str, ty: &TensorType, batch| content(name, ty, most(name), batch);
    compare("three_steps_of_a_bert_of_two_micro_batches", &model, &run, &feed);
}
