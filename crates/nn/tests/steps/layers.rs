//! Shared, grouped, transposed and frozen layers in a training step on the CPU.

use crate::run::{Run, assert_close, executor};
use bessemer_ir::passes::CompileOptions;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph, philox};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{
    Average, BatchNorm, BatchNormOptions, Builder, Conv, ConvOptions, ConvTranspose, ConvTransposeOptions,
    DecayExclude, Fan, Init, Mode, Optimizer, ParamSpec, Result, Schedule, Sgd, TrainConfig, initialise,
};

const KAIMING: Init = Init::KaimingNormal(Fan::In);

/// A frozen stem, a separable convolution that is applied to maps of two sizes, each with a separate norm, and a transposed
/// convolution behind the larger map.
fn network() -> Result<(Graph, Vec<ParamSpec>)> {
    let mut b = Builder::new(Mode::Train);
    let b = &mut b;
    let x = b.feed("images", DType::F32, [2, 12, 12, 3])?;
    let bias = Some(Init::Uniform { bound: 0.5 });
    let stem = b.frozen(|b| Conv::new(b, "stem", 3, ConvOptions { stride: 2, ..ConvOptions::new(16, 3, KAIMING) }))?;
    let bn = BatchNorm::new(b, "bn", 16, BatchNormOptions { frozen: true, ..BatchNormOptions::default() })?;
    let depthwise = Conv::new(b, "conv_dw", 16, ConvOptions { groups: 16, ..ConvOptions::new(16, 3, KAIMING) })?;
    let pointwise = Conv::new(b, "conv_pw", 16, ConvOptions { bias, ..ConvOptions::new(16, 1, KAIMING) })?;
    let x = stem.apply(b, x)?;
    let x = bn.apply(b, x)?;
    let large = b.graph.relu(x)?;
    let small = b.graph.slice(large, &[0; 4], &[2, 6, 6, 16], &[1, 2, 2, 1])?;
    let mut maps = Vec::new();
    for (level, map) in [large, small].into_iter().enumerate() {
        let y = b.scope(&format!("level{level}"), |b| {
            let norm = BatchNorm::new(b, "bn", 16, BatchNormOptions::default())?;
            let x = depthwise.apply(b, map)?;
            let x = pointwise.apply(b, x)?;
            let x = norm.apply(b, x)?;
            b.graph.relu(x)
        });
        maps.push(y?);
    }
    let deconv = ConvTransposeOptions { channels: 8, kernel: 2, stride: 2, padding: 0, init: KAIMING, bias };
    let up = ConvTranspose::new(b, "deconv", 16, deconv)?.apply(b, maps[0])?;
    let up = b.graph.relu(up)?;
    let squares = [b.graph.square(up)?, b.graph.square(maps[1])?];
    let means = [b.graph.mean(squares[0], &[0, 1, 2, 3])?, b.graph.mean(squares[1], &[0, 1, 2, 3])?];
    let loss = b.graph.add(means[0], means[1])?;
    let sgd = Sgd { momentum: 0.9, weight_decay: 0.01, decay_exclude: DecayExclude::None, ..Sgd::default() };
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        ..TrainConfig::new(Optimizer::Sgd(sgd), Schedule::constant(0.1))
    };
    build_train_step(b, loss, &config)?;
    Ok((b.graph.clone(), b.specs().to_vec()))
}

/// All that is kept after two steps.
fn trained(run: &mut dyn Run, specs: &[ParamSpec]) -> Vec<(String, Vec<f64>)> {
    for spec in specs {
        let data: Vec<f64> = initialise(spec, 3).into_iter().map(f64::from).collect();
        run.set(&spec.name, &data);
    }
    let images: Vec<f64> = (0..2 * 12 * 12 * 3).map(|i| philox::normal(2, 0, 0, i).into()).collect();
    run.set("images", &images);
    run.step();
    run.step();
    specs.iter().map(|spec| (spec.name.clone(), run.state(&spec.name))).collect()
}

#[test]
fn the_cpu_trains_them_as_the_interpreter_does() {
    let (graph, specs) = network().expect("a legal graph");
    let expected = trained(&mut Interpreter::new(&graph), &specs);
    let fused = CompileOptions::default();
    for (name, options) in [("fused", fused.clone()), ("op by op", CompileOptions { fuse: false, ..fused })] {
        for ((name_of, actual), (_, expected)) in
            trained(&mut executor(&graph, &options, 2), &specs).iter().zip(&expected)
        {
            assert_close(&format!("{name}: {name_of}"), actual, expected, 2e-4);
        }
    }
}

#[test]
fn frozen_layers_keep_their_weights() {
    let (graph, specs) = network().expect("a legal graph");
    let after = trained(&mut Interpreter::new(&graph), &specs);
    let frozen = ["stem.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"];
    for (spec, (_, data)) in specs.iter().zip(&after) {
        let before: Vec<f64> = initialise(spec, 3).into_iter().map(f64::from).collect();
        assert_eq!(before == *data, frozen.contains(&spec.name.as_str()), "{}", spec.name);
    }
    let kept = |prefix: &str| specs.iter().any(|spec| spec.name.starts_with(prefix));
    assert!(kept("ema.conv_dw") && !kept("ema.stem") && !kept("momentum.stem") && !kept("ema.bn."));
}
