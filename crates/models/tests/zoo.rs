//! Counts of the published models.

use bessemer_models::resnet::StrideIn;
use bessemer_models::{LossOptions, Model, ModelError, ModelOptions, ZOO, find};
use bessemer_nn::{Clip, ClipForm, ClipOf, DecayExclude, Kind, Optimizer, Padding, Schedule, Sgd, TrainConfig};

fn config(ema_decay: Option<f64>) -> TrainConfig {
    let decay_exclude = DecayExclude::BnSubstring;
    let sgd = Sgd { momentum: 0.875, nesterov: false, weight_decay: 5e-5, decay_exclude };
    TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        report_grad_norm: true,
        ema_decay,
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1))
    }
}

#[test]
fn parameters() {
    let expected = [
        ("resnet18", 11_689_512, 62),
        ("resnet34", 21_797_672, 110),
        ("resnet50", 25_557_032, 161),
        ("resnet101", 44_549_160, 314),
        ("resnet152", 60_192_808, 467),
        ("resnet20-cifar", 269_722, 59),
        ("resnet32-cifar", 464_154, 95),
        ("resnet44-cifar", 658_586, 131),
        ("resnet56-cifar", 853_018, 167),
        ("resnet110-cifar", 1_727_962, 329),
    ];
    let actual: Vec<_> = ZOO
        .iter()
        .map(|spec| {
            let summary = spec.summary().expect("published forms are legal");
            (spec.name, summary.parameters, summary.tensors)
        })
        .collect();
    assert_eq!(actual, expected);
}

#[test]
fn arithmetic() {
    let gmac = |name: &str| find(name).expect("a model").summary().expect("legal").flops_per_sample as f64 / 2e9;
    for (name, expected) in
        [("resnet18", 1.814), ("resnet34", 3.664), ("resnet50", 4.089), ("resnet101", 7.801), ("resnet152", 11.514)]
    {
        assert!((gmac(name) - expected).abs() < 6e-4, "{name}: {}", gmac(name));
    }
}

#[test]
fn classes_change_the_classifier_alone() {
    let spec = find("resnet50").expect("a model");
    let options = ModelOptions { num_classes: 1001, ..spec.options() };
    let model = Model::infer(spec.architecture, &options, 1).expect("legal");
    let count: usize = model.specs.iter().filter(|s| s.is_trainable()).map(|s| s.ty.shape.elements()).sum();
    assert_eq!(count, 25_559_081);
}

#[test]
fn v1_has_its_stride_in_the_first_convolution() {
    let spec = find("resnet50").expect("a model");
    let shape_at = |stride_in: StrideIn, path: &str| {
        let options = ModelOptions { stride_in, ..spec.options() };
        let model = Model::infer(spec.architecture, &options, 1).expect("legal");
        let node = model
            .graph
            .ids()
            .find(|&id| model.graph.path(id) == path && model.graph.node(id).op.rule().name().starts_with("conv"));
        model.graph.node(node.expect("the convolution")).outputs[0].shape.dims().to_vec()
    };
    assert_eq!(shape_at(StrideIn::Conv1, "layer2.0.conv1"), [1, 28, 28, 128]);
    assert_eq!(shape_at(StrideIn::Conv2, "layer2.0.conv1"), [1, 56, 56, 128]);
    assert_eq!(shape_at(StrideIn::Conv2, "layer2.0.conv2"), [1, 28, 28, 128]);
}

#[test]
fn training_steps_of_the_whole_zoo() {
    for spec in ZOO {
        for padding in [Padding::Symmetric, Padding::Same] {
            let options = ModelOptions { padding, image_size: [64, 48], ..spec.options() };
            let model = Model::train(spec.architecture, &options, &LossOptions::default(), &config(None), 2);
            let model = model.unwrap_or_else(|error| panic!("{}: {error}", spec.name));
            let trained = model.specs.iter().filter(|s| s.is_trainable()).count();
            let momenta = model.specs.iter().filter(|s| s.name.starts_with("momentum.")).count();
            assert_eq!(trained, momenta);
            for name in ["logits", "loss", "lr", "grad_norm"] {
                assert!(model.graph.find_output(name).is_some(), "{}: no output {name}", spec.name);
            }
        }
    }
}

#[test]
fn decay_by_name_spares_98_tensors_of_resnet50() {
    let spec = find("resnet50").expect("a model");
    let model = Model::infer(spec.architecture, &spec.options(), 1).expect("legal");
    let spared = |rule: DecayExclude| model.specs.iter().filter(|s| s.is_trainable() && rule.excludes(s)).count();
    assert_eq!(spared(DecayExclude::BnSubstring), 98);
    assert_eq!(spared(DecayExclude::BatchNorm), 106);
    assert_eq!(spared(DecayExclude::BatchNormAndBias), 107);
}

#[test]
fn averages_cover_the_model() {
    let spec = find("resnet20-cifar").expect("a model");
    let model = Model::train(spec.architecture, &spec.options(), &LossOptions::default(), &config(Some(0.999)), 2)
        .expect("legal");
    let of_kind = |f: &dyn Fn(Kind) -> bool| model.specs.iter().filter(|s| f(s.kind)).count();
    assert_eq!(of_kind(&|kind| kind == Kind::Average), of_kind(&Kind::is_model));
}

#[test]
fn wrong_requests() {
    let error = find("resnet51").expect_err("no such model");
    assert!(error.to_string().contains("`resnet51`") && error.to_string().contains("resnet50"), "{error}");

    let spec = find("resnet20-cifar").expect("a model");
    for options in [
        ModelOptions { num_classes: 0, ..spec.options() },
        ModelOptions { base_width: 7, ..spec.options() },
        ModelOptions { image_size: [0, 32], ..spec.options() },
    ] {
        let error = Model::infer(spec.architecture, &options, 1).expect_err("an illegal option");
        assert!(matches!(error, ModelError::Setting { .. }), "{error}");
    }
    assert!(Model::infer(spec.architecture, &spec.options(), 0).is_err());
}
