//! The compiled plans of the reference models, kept as text: a change of the compiler shows here as a change of the plan.
//! Models of text have two layers; all others are alike. Accept an intended change with
//! `INSTA_UPDATE=always cargo test --profile checked -p bessemer-models --test plans`.

use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{NullTarget, print_plan};
use bessemer_models::bert::{self, BertConfig, BertOptions, Sequences};
use bessemer_models::electra::{
    self, ElectraConfig, ElectraOptions, PretrainingOptions, SpanHead, SquadOptions, squad,
};
use bessemer_models::{LossOptions, Model, find};
use bessemer_nn::{Adam, Clip, ClipForm, ClipOf, DecayExclude, Optimizer, Schedule, Sgd, TrainConfig};

const SEQUENCES: Sequences = Sequences { batch: 2, length: 128, predictions: 20 };

/// The plan of a model without the list of its weights and state, and the size of its arena.
fn plan(model: &Model) -> String {
    let plan = compile(&model.graph, &NullTarget, &CompileOptions::default()).expect("it compiles");
    let text = print_plan(&plan);
    let is_listed = |line: &str| !line.starts_with("parameter(") && !line.starts_with("state(");
    let mut lines: Vec<&str> = text.lines().filter(|line| is_listed(line)).collect();
    let (state, arena, persistent) = (plan.state_bytes(), plan.arena_bytes, plan.persistent_bytes);
    let arena = format!("state {state} bytes, arena {arena} bytes, of which {persistent} persistent");
    lines.push(&arena);
    lines.join("\n")
}

fn electra() -> ElectraConfig {
    let tiny = ElectraConfig::tiny();
    ElectraConfig { encoder: BertConfig { num_hidden_layers: 2, ..tiny.encoder }, ..tiny }
}

fn squad_options() -> SquadOptions {
    let head = SpanHead::Joint { beam: 5, may_be_impossible: false };
    SquadOptions { network: ElectraOptions::default(), head }
}

/// Adam with gradients clipped to a global norm, as the models of text are trained.
fn adam(rule: Adam) -> TrainConfig {
    let clip = Clip { limit: 1.0, form: ClipForm::TensorFlow, of: ClipOf::Step };
    TrainConfig { clip: Some(clip), ..TrainConfig::new(Optimizer::Adam(rule), Schedule::constant(1e-4)) }
}

#[test]
fn resnet50_inference() {
    let spec = find("resnet50").expect("in the zoo");
    let model = Model::infer(spec.architecture, &spec.options(), 1).expect("legal options");
    insta::assert_snapshot!(plan(&model));
}

#[test]
fn resnet50_training() {
    let spec = find("resnet50").expect("in the zoo");
    let sgd = Sgd { momentum: 0.875, weight_decay: 3e-5, decay_exclude: DecayExclude::BnSubstring, ..Sgd::default() };
    let train = TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1));
    let loss = LossOptions { label_smoothing: 0.1, mixup: None };
    let model = Model::train(spec.architecture, &spec.options(), &loss, &train, 2).expect("legal options");
    insta::assert_snapshot!(plan(&model));
}

#[test]
fn bert_training() {
    let model = bert::train(&BertConfig::tiny(), SEQUENCES, &BertOptions::default(), &adam(Adam::bert(0.01)));
    insta::assert_snapshot!(plan(&model.expect("legal options")));
}

#[test]
fn electra_pretraining() {
    let options = PretrainingOptions::new(0.5);
    let model = electra::train(&electra(), SEQUENCES, &options, &adam(Adam::bert(0.01)));
    insta::assert_snapshot!(plan(&model.expect("legal options")));
}

#[test]
fn electra_squad_training() {
    let config = electra();
    let train = TrainConfig { rate_factors: config.layer_rates(0.8), ..adam(Adam::electra(0.01)) };
    let model = squad::train(&config, SEQUENCES.batch, SEQUENCES.length, &squad_options(), &train);
    insta::assert_snapshot!(plan(&model.expect("legal options")));
}

#[test]
fn electra_squad_inference() {
    let model = squad::predict(&electra(), SEQUENCES.batch, SEQUENCES.length, &squad_options());
    insta::assert_snapshot!(plan(&model.expect("legal options")));
}
