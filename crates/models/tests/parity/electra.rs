//! Narrow ELECTRAs against Hugging Face's in `f64`: both networks of pre-training upon one embedding layer with the samples of the
//! same random numbers, and both heads for questions.

use crate::case::Case;
use crate::fixtures::{Tensor, Tensors};
use bessemer_models::electra::names::{join, split};
use bessemer_models::electra::{
    ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions, evaluate, forward_loss,
    infer_discriminator, infer_generator, squad, train,
};
use bessemer_nn::Ranks;

fn config(case: &Case) -> ElectraConfig {
    ElectraConfig { embedding_size: case.size("embedding_size"), encoder: case.bert() }
}

fn pretraining() -> (Case, PretrainingOptions) {
    let case = Case::open("electra_pretraining");
    let number = |name: &str| case.expected[name].as_f64().expect("a number");
    let options = PretrainingOptions {
        mask_token: number("mask_token") as u32,
        ..PretrainingOptions::new(number("generator_fraction"))
    };
    (case, options)
}

#[test]
fn one_pass_of_both_networks() {
    let (case, options) = pretraining();
    case.check_pass(forward_loss(&config(&case), case.sequences(), &options, Ranks::default()).expect("a legal model"));
}

#[test]
fn ten_steps_of_both_networks() {
    let (case, options) = pretraining();
    case.check_steps(|training| train(&config(&case), case.sequences(), &options, training).expect("a legal model"));
}

/// Tensors by the names of one file.
fn file(tensors: Vec<(String, &Tensor)>) -> Tensors {
    let copy = |tensor: &Tensor| Tensor { shape: tensor.shape.clone(), data: tensor.data.clone() };
    tensors.into_iter().map(|(name, tensor)| (name, copy(tensor))).collect()
}

#[test]
fn files_of_hugging_face() {
    let (case, options) = pretraining();
    let (config, sequences) = (config(&case), case.sequences());
    let weights = case.tensors("weights");
    let joint: Vec<(&str, &Tensor)> = weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let files = split(&joint);
    let [discriminator, generator] = [files.discriminator, files.generator].map(file);
    let names = |tensors: &Tensors| serde_json::json!(tensors.keys().collect::<Vec<_>>());
    assert_eq!(names(&discriminator), case.expected["files"]["discriminator"]);
    assert_eq!(names(&generator), case.expected["files"]["generator"]);

    let network = ElectraOptions::default();
    let single = infer_discriminator(&config, sequences, &network).expect("a legal model");
    case.check_outputs(&single, &discriminator);
    let small = config.generator(options.generator_fraction);
    let single = infer_generator(&small, sequences, &network).expect("a legal model");
    case.check_outputs(&single, &generator);

    let [first, second] =
        [&discriminator, &generator].map(|file| file.iter().map(|(name, tensor)| (name.clone(), tensor)));
    let back = file(join(first, second));
    let evaluation = evaluate(&config, sequences, &options).expect("a legal model");
    let mut run = case.interpreter(&evaluation, &back);
    run.run();
    // The discriminator's loss is that of other samples: evaluations draw by the numbers of sequences.
    let expected = case.expected["losses"]["mlm_loss"].as_f64().expect("a number");
    let loss = run.output("mlm_loss_sum").data[0] / (run.output("mlm_weight").data[0] + 1e-6);
    assert!((loss - expected).abs() < 1e-9);
    for (name, tensor) in &weights {
        assert!(back[name].data == tensor.data, "{name} comes back as it was");
    }
}

fn squad_case(folder: &'static str) -> (Case, SquadOptions) {
    let case = Case::open(folder);
    let head = match case.expected["beam"].as_u64() {
        Some(beam) => SpanHead::Joint { beam: beam as usize, may_be_impossible: true },
        None => SpanHead::Plain,
    };
    (case, SquadOptions { network: ElectraOptions::default(), head })
}

#[test]
fn questions() {
    for folder in ["electra_squad_plain", "electra_squad_joint"] {
        let (case, options) = squad_case(folder);
        let (config, sequences) = (config(&case), case.sequences());
        let (batch, length) = (sequences.batch, sequences.length);
        case.check_pass(
            squad::forward_loss(&config, batch, length, &options, Ranks::default()).expect("a legal model"),
        );
        case.check_steps(|training| squad::train(&config, batch, length, &options, training).expect("a legal model"));
        let model = squad::predict(&config, batch, length, &options).expect("a legal model");
        case.check_outputs(&model, &case.tensors("weights"));
    }
}
