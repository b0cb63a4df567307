//! Counts of the published models.

use bessemer_ir::DType;
use bessemer_models::resnet::{Backbone, Block, StrideIn, features};
use bessemer_models::{BackboneOptions, LossOptions, Model, ModelError, ModelOptions, ZOO, find};
use bessemer_nn::{
    Average, Builder, Clip, ClipForm, ClipOf, DecayExclude, Mode, Optimizer, Padding, ParamKind, Schedule, Sgd,
    TrainConfig,
};

fn config(ema_decay: Option<f64>) -> TrainConfig {
    let decay_exclude = DecayExclude::BnSubstring;
    let sgd = Sgd { momentum: 0.875, weight_decay: 5e-5, decay_exclude, ..Sgd::default() };
    TrainConfig {
        clip: Some(Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step }),
        report_grad_norm: true,
        average: ema_decay.map(|decay| Average { decay, ramp: false }),
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1))
    }
}

fn with_backbone(options: &ModelOptions, change: impl FnOnce(&mut Backbone)) -> ModelOptions {
    let BackboneOptions::ResNet(mut backbone) = options.backbone else { panic!("of a ResNet") };
    change(&mut backbone);
    ModelOptions { backbone: BackboneOptions::ResNet(backbone), ..options.clone() }
}

fn with_padding(options: &ModelOptions, padding: Padding) -> ModelOptions {
    let mut backbone = options.backbone;
    match &mut backbone {
        BackboneOptions::ResNet(backbone) => backbone.padding = padding,
        BackboneOptions::EfficientNet(backbone) => backbone.padding = padding,
    }
    ModelOptions { backbone, ..options.clone() }
}

#[test]
fn parameters() {
    let expected = [
        ("resnet18", 11_689_512, 62),
        ("resnet34", 21_797_672, 110),
        ("resnet50", 25_557_032, 161),
        ("resnet101", 44_549_160, 314),
        ("resnet152", 60_192_808, 467),
        ("efficientnet-b0", 5_288_548, 213),
        ("efficientnet-tiny", 202_032, 135),
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
    for (name, expected) in [
        ("resnet18", 1.814),
        ("resnet34", 3.664),
        ("resnet50", 4.089),
        ("resnet101", 7.801),
        ("resnet152", 11.514),
        ("efficientnet-b0", 0.386),
    ] {
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
        let options = with_backbone(&spec.options(), |backbone| backbone.stride_in = stride_in);
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
fn stages_are_named_feature_maps() {
    for (block, expansion) in [(Block::Basic, 1), (Block::Bottleneck, 4)] {
        let mut b = Builder::new(Mode::Infer);
        let images = b.feed("images", DType::F32, [2, 96, 64, 3]).expect("a new name");
        let features = features(&mut b, images, block, [1, 2, 1, 1], &Backbone::new(8)).expect("legal");
        let maps = [features.c2, features.c3, features.c4, features.c5];
        for (stage, map) in maps.into_iter().enumerate() {
            let stride = 4 << stage;
            assert_eq!(b.graph.shape(map).dims(), [2, 96 / stride, 64 / stride, (8 << stage) * expansion]);
            let last = if stage == 1 { 1 } else { 0 };
            assert_eq!(b.graph.path(map.node), format!("layer{}.{last}", stage + 1));
        }
    }
}

#[test]
fn frozen_parts_are_not_trained_and_keep_their_names() {
    let spec = find("resnet50").expect("a model");
    let model = |change: &dyn Fn(&mut Backbone)| {
        let options = with_backbone(&spec.options(), change);
        let loss = LossOptions::default();
        Model::train(spec.architecture, &options, &loss, &config(Some(0.99)), 2).expect("legal")
    };
    let names = |model: &Model| {
        let of_model = model.specs.iter().filter(|spec| spec.kind.is_model());
        of_model.map(|spec| (spec.name.clone(), spec.kind)).collect::<Vec<_>>()
    };
    let trained = |model: &Model| {
        let trained = model.specs.iter().filter(|spec| spec.is_trainable());
        trained.map(|spec| spec.name.clone()).collect::<Vec<_>>()
    };
    let live = model(&|_| ());
    // Stem and C2 frozen, and all norms: what detectors start from.
    let frozen = model(&|backbone| {
        backbone.freeze_at = 2;
        backbone.norm.frozen = true;
    });
    assert_eq!(names(&frozen), names(&live));
    let is_trained = |name: &String| {
        let is_frozen = ["conv1", "bn1", "layer1."].iter().any(|part| name.starts_with(part));
        !is_frozen && !name.contains("bn") && !name.contains("downsample.1")
    };
    let expected: Vec<_> = trained(&live).into_iter().filter(is_trained).collect();
    assert_eq!(trained(&frozen), expected);
    let averaged = frozen.specs.iter().filter(|spec| spec.kind == ParamKind::Average).count();
    assert_eq!(averaged, expected.len(), "averages follow what is trained alone");
    // A network whose parts are all frozen still trains its classifier.
    assert_eq!(trained(&model(&|backbone| backbone.freeze_at = 5)), ["fc.weight", "fc.bias"]);
}

#[test]
fn training_steps_of_the_whole_zoo() {
    for spec in ZOO {
        for padding in [Padding::Symmetric, Padding::Same] {
            let options = with_padding(&spec.options(), padding);
            let options = ModelOptions { image_size: [64, 48], ..options };
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
    let of_kind = |f: &dyn Fn(ParamKind) -> bool| model.specs.iter().filter(|s| f(s.kind)).count();
    assert_eq!(of_kind(&|kind| kind == ParamKind::Average), of_kind(&ParamKind::is_model));
}

#[test]
fn wrong_requests() {
    let error = find("resnet51").expect_err("no such model");
    assert!(error.to_string().contains("`resnet51`") && error.to_string().contains("resnet50"), "{error}");

    let spec = find("resnet20-cifar").expect("a model");
    for options in [
        ModelOptions { num_classes: 0, ..spec.options() },
        with_backbone(&spec.options(), |backbone| backbone.base_width = 7),
        with_backbone(&spec.options(), |backbone| backbone.freeze_at = 5),
        ModelOptions { image_size: [0, 32], ..spec.options() },
    ] {
        let error = Model::infer(spec.architecture, &options, 1).expect_err("an illegal option");
        assert!(matches!(error, ModelError::Setting { .. }), "{error}");
    }
    assert!(Model::infer(spec.architecture, &spec.options(), 0).is_err());
}
