//! The compiled plans of ResNet-50, kept as text: a change of the compiler shows here as a change of the plan.
//! Accept an intended one with `INSTA_UPDATE=always cargo test -p bessemer-models --test plans`.

use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{NullTarget, print_plan};
use bessemer_models::{LossOptions, Model, find};
use bessemer_nn::{DecayExclude, Optimizer, Schedule, Sgd, TrainConfig};

#[test]
fn resnet50_inference() {
    let spec = find("resnet50").expect("in the zoo");
    let model = Model::infer(spec.architecture, &spec.options(), 1).expect("legal options");
    let plan = compile(&model.graph, &NullTarget, &CompileOptions::default()).expect("it compiles");
    insta::assert_snapshot!(print_plan(&plan));
}

#[test]
fn resnet50_training() {
    let spec = find("resnet50").expect("in the zoo");
    let sgd = Sgd { momentum: 0.875, nesterov: false, weight_decay: 3e-5, decay_exclude: DecayExclude::BnSubstring };
    let train = TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1));
    let loss = LossOptions { label_smoothing: 0.1, mixup: None };
    let model = Model::train(spec.architecture, &spec.options(), &loss, &train, 2).expect("legal options");
    let plan = compile(&model.graph, &NullTarget, &CompileOptions::default()).expect("it compiles");
    insta::assert_snapshot!(print_plan(&plan));
}
