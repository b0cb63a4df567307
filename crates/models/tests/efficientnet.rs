//! EfficientNets: counts, feature maps, frozen parts, initial weights, stochastic depth.

use bessemer_ir::ops::Op;
use bessemer_ir::ops::pointwise::{Binary, BinaryKind};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, NodeId, philox};
use bessemer_models::efficientnet::{Backbone, Scaling, features};
use bessemer_models::{
    Architecture, BackboneOptions, InitScheme, LossOptions, Model, ModelError, ModelOptions, Summary, find,
};
use bessemer_nn::{
    BatchNormOptions, Builder, DecayExclude, Mode, Optimizer, Padding, ParamSpec, Schedule, Sgd, Streams, TrainConfig,
    initialise,
};

const NARROW: Scaling = Scaling { width: 0.125, depth: 0.3 };

fn options(backbone: Backbone) -> ModelOptions {
    let published = find("efficientnet-b0").expect("a model").options();
    ModelOptions { backbone: BackboneOptions::EfficientNet(backbone), ..published }
}

fn config() -> TrainConfig {
    let sgd = Sgd { momentum: 0.9, weight_decay: 1e-5, decay_exclude: DecayExclude::BatchNorm, ..Sgd::default() };
    TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1))
}

fn train(scaling: Scaling, options: &ModelOptions, batch: usize) -> Model {
    let architecture = Architecture::EfficientNet(scaling);
    Model::train(architecture, options, &LossOptions::default(), &config(), batch).expect("legal")
}

#[test]
fn parameters_of_b0_to_b7() {
    let expected = [5_288_548, 7_794_184, 9_109_994, 12_233_232, 19_341_616, 30_389_784, 43_040_704, 66_347_960];
    for (scaling, expected) in Scaling::B.into_iter().zip(expected) {
        let model = Model::infer(Architecture::EfficientNet(scaling), &options(Backbone::default()), 1);
        assert_eq!(Summary::of(&model.expect("legal")).parameters, expected, "{scaling:?}");
    }
}

/// The sizes of the backbone of EfficientDet-D0.
#[test]
fn levels_are_named_feature_maps() {
    let mut b = Builder::new(Mode::Infer);
    let images = b.feed("images", DType::F32, [1, 512, 512, 3]).expect("a new name");
    let norm = BatchNormOptions { eps: 1e-3, momentum: 0.01, ..BatchNormOptions::default() };
    let backbone = Backbone { padding: Padding::Same, init: InitScheme::TensorFlow, norm, ..Backbone::default() };
    let maps = features(&mut b, images, Scaling::B[0], &backbone, &mut Streams::new(0)).expect("legal");
    for (map, size, channels, path) in
        [(maps.p3, 64, 40, "blocks.2.1"), (maps.p4, 32, 112, "blocks.4.2"), (maps.p5, 16, 320, "blocks.6.0.bn3")]
    {
        assert_eq!(b.graph.shape(map).dims(), [1, size, size, channels]);
        assert_eq!(b.graph.path(map.node), path);
    }
    for (name, value) in [("p3", maps.p3), ("p4", maps.p4), ("p5", maps.p5)] {
        b.graph.output(name, value);
    }
    let (graph, specs) = b.finish();
    let summary = Summary::of(&Model { graph, specs, names: Architecture::EfficientNet(Scaling::B[0]).names() });
    assert_eq!(summary.parameters, 3_595_388);
    assert!((summary.flops_per_sample as f64 / 2e9 - 1.901).abs() < 6e-4, "{}", summary.flops_per_sample);
}

#[test]
fn frozen_parts_are_not_trained() {
    let trained = |backbone: Backbone| {
        let model = train(NARROW, &ModelOptions { image_size: [32; 2], ..options(backbone) }, 2);
        let trained = model.specs.iter().filter(|spec| spec.is_trainable());
        trained.map(|spec| spec.name.clone()).collect::<Vec<_>>()
    };
    let live = trained(Backbone::default());
    let norm = BatchNormOptions { frozen: true, ..BatchNormOptions::default() };
    let frozen = trained(Backbone { freeze_at: 3, norm, ..Backbone::default() });
    let is_trained = |name: &String| {
        let is_frozen = ["conv_stem", "blocks.0.", "blocks.1."].iter().any(|part| name.starts_with(part));
        !is_frozen && !name.contains("bn")
    };
    assert_eq!(frozen, live.into_iter().filter(is_trained).collect::<Vec<_>>());
    let head = ["conv_head.weight", "bn2.weight", "bn2.bias", "classifier.weight", "classifier.bias"];
    assert_eq!(trained(Backbone { freeze_at: 8, ..Backbone::default() }), head);
}

#[test]
fn initial_weights_have_the_variance_of_their_scheme() {
    let specs = |init| {
        let options = options(Backbone { init, ..Backbone::default() });
        Model::infer(Architecture::EfficientNet(Scaling::B[0]), &options, 1).expect("legal").specs
    };
    let variance = |spec: &ParamSpec| {
        let data = initialise(spec, 1);
        data.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / data.len() as f64
    };
    for (init, fans) in [
        // The outputs that an input reaches; of depthwise convolutions as many as the kernel has pixels.
        (InitScheme::Torch, [9.0 * 32.0, 25.0, 192.0, 48.0]),
        // The inputs of an output; of depthwise convolutions those of all channels.
        (InitScheme::TensorFlow, [27.0, 25.0 * 1152.0, 1152.0, 1152.0]),
    ] {
        let names = ["conv_stem", "blocks.5.1.conv_dw", "blocks.5.1.conv_pwl", "blocks.5.1.se.conv_reduce"];
        let specs = specs(init);
        for (name, fan) in names.into_iter().zip(fans) {
            let spec = specs.iter().find(|spec| spec.name == format!("{name}.weight")).expect("a weight");
            let share = variance(spec) * fan / 2.0;
            assert!((share - 1.0).abs() < 0.12, "{init:?}, {name}: {share}");
        }
        let bias = specs.iter().find(|spec| spec.name == "classifier.bias").expect("a bias");
        assert!(initialise(bias, 1).iter().all(|&x| x == 0.0));
        let weight = specs.iter().find(|spec| spec.name == "classifier.weight").expect("a weight");
        let bound = initialise(weight, 1).into_iter().map(f32::abs).fold(0.0, f32::max);
        assert!((bound * 1000f32.sqrt() - 1.0).abs() < 1e-3, "{bound}");
    }
}

#[test]
fn a_branch_can_start_at_zero() {
    let options = options(Backbone { zero_init_last_gamma: true, ..Backbone::default() });
    let model = Model::infer(Architecture::EfficientNet(Scaling::B[0]), &options, 1).expect("legal");
    let zeros = model.specs.iter().filter(|spec| spec.name.ends_with(".weight") && spec.name.contains("bn"));
    let zeros: Vec<&str> =
        zeros.filter(|spec| initialise(spec, 1).iter().all(|&x| x == 0.0)).map(|spec| spec.name.as_str()).collect();
    let expected = ["1.1", "2.1", "3.1", "3.2", "4.1", "4.2", "5.1", "5.2", "5.3"];
    assert_eq!(zeros, expected.map(|block| format!("blocks.{block}.bn3.weight")));
}

/// Outputs `logits` of the first two steps of training, with weights that no step changes.
fn two_steps(options: &ModelOptions) -> [Vec<f64>; 2] {
    let batch = 4;
    let train = TrainConfig { schedule: Schedule::constant(0.0), ..config() };
    let architecture = Architecture::EfficientNet(NARROW);
    let model = Model::train(architecture, options, &LossOptions::default(), &train, batch).expect("legal");
    let mut run = Interpreter::new(&model.graph);
    for spec in &model.specs {
        let data: Vec<f64> = initialise(spec, 4).into_iter().map(f64::from).collect();
        run.set(&spec.name, &data);
    }
    let count = batch * 32 * 32 * 3;
    let pixels: Vec<f64> = (0..count).map(|i| (255.0 * philox::uniform(1, 0, 0, i as u64)).round().into()).collect();
    run.set("images", &pixels);
    run.set("labels", &[0.0, 1.0, 2.0, 3.0]);
    std::array::from_fn(|_| {
        run.run();
        run.output("logits").data.clone()
    })
}

#[test]
fn stochastic_depth_and_dropout_follow_seed_and_step() {
    let options = |drop_path, dropout, seed| {
        let options = options(Backbone { drop_path, ..Backbone::default() });
        ModelOptions { image_size: [32; 2], num_classes: 10, dropout, seed, ..options }
    };
    let [first, second] = two_steps(&options(0.0, 0.0, 1));
    assert_eq!(first, second, "without either, training is the same in each step");
    assert!(train(NARROW, &options(0.0, 0.0, 1), 4).specs.iter().all(|spec| spec.name != "micro_step"));
    for (drop_path, dropout) in [(0.8, 0.0), (0.0, 0.5)] {
        let [dropped, next] = two_steps(&options(drop_path, dropout, 1));
        assert_ne!(dropped, first);
        assert_ne!(dropped, next);
        assert_eq!(dropped, two_steps(&options(drop_path, dropout, 1))[0]);
        assert_ne!(dropped, two_steps(&options(drop_path, dropout, 2))[0]);
    }
    let inference = |drop_path, dropout| {
        let model = Model::infer(Architecture::EfficientNet(NARROW), &options(drop_path, dropout, 1), 4);
        model.expect("legal").graph.len()
    };
    assert_eq!(inference(0.0, 0.0), inference(0.8, 0.5));
}

/// Positions count all blocks, as in timm.
#[test]
fn later_blocks_are_dropped_more_often() {
    let backbone = Backbone { drop_path: 0.2, ..Backbone::default() };
    let graph = train(Scaling::B[0], &options(backbone), 2).graph;
    let limit = |id: NodeId| {
        let path = graph.path(id).strip_suffix(".drop_path")?;
        let node = graph.node(id);
        let is_limit = node.op == Op::from(Binary(BinaryKind::Ge));
        is_limit.then(|| (path.to_string(), graph.uniform(node.inputs[1]).expect("a constant")))
    };
    let limits: Vec<(String, f64)> = graph.ids().filter_map(limit).collect();
    // The blocks with a shortcut, and their positions among 16.
    let expected = [
        ("1.1", 2),
        ("2.1", 4),
        ("3.1", 6),
        ("3.2", 7),
        ("4.1", 9),
        ("4.2", 10),
        ("5.1", 12),
        ("5.2", 13),
        ("5.3", 14),
    ];
    assert_eq!(limits.len(), expected.len());
    for ((path, limit), (block, position)) in limits.iter().zip(expected) {
        assert_eq!(*path, format!("blocks.{block}"));
        assert!((limit - 0.2 * f64::from(position) / 16.0).abs() < 1e-7, "{path}: {limit}");
    }
}

#[test]
fn wrong_requests() {
    let b0 = find("efficientnet-b0").expect("a model");
    let wrong = |scaling: Scaling, backbone: Backbone| {
        let model = Model::infer(Architecture::EfficientNet(scaling), &options(backbone), 1);
        let error = model.map(|_| ()).expect_err("an illegal option");
        assert!(matches!(error, ModelError::Setting { .. }), "{error}");
        error.to_string()
    };
    let good = Backbone::default();
    for drop_path in [1.0, -0.1, f64::NAN] {
        let error = wrong(Scaling::B[0], Backbone { drop_path, ..good });
        assert_eq!(error, format!("drop_path is {drop_path}; it must be at least 0 and below 1"));
    }
    assert!(wrong(Scaling::B[0], Backbone { freeze_at: 9, ..good }).contains("at most 8"));
    for factor in [0.0, f64::NAN, 17.0] {
        assert!(wrong(Scaling { width: factor, depth: 1.0 }, good).contains("width is"));
        assert!(wrong(Scaling { width: 1.0, depth: factor }, good).contains("depth is"));
    }
    let error = Model::infer(find("resnet18").expect("a model").architecture, &b0.options(), 1).map(|_| ());
    assert!(error.expect_err("another network's options").to_string().contains("the kind of the architecture"));
    let dropped = ModelOptions { dropout: 1.0, ..b0.options() };
    assert!(Model::infer(b0.architecture, &dropped, 1).is_err());
}
