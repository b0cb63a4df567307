//! Layers against hand-computed values and finite differences.

use super::*;
use crate::builder::Mode;
use crate::init::{Fan, Init, initialise};
use crate::params::{ParamKind, ParamSpec};
use bessemer_ir::autodiff::gradients;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, GraphError, philox};

const KAIMING: Init = Init::KaimingNormal(Fan::In);

/// Checked by hand: one channel, two pixels, 1 and 3.
fn normalised(mode: Mode, options: BatchNormOptions) -> Vec<(String, Vec<f64>)> {
    let mut b = Builder::new(mode);
    let x = b.feed("x", DType::F32, [2, 1, 1, 1]).expect("a new name");
    let bn = BatchNorm::new(&mut b, "bn", 1, BatchNormOptions { eps: 3.0, ..options }).expect("a new name");
    let y = bn.apply(&mut b, x).expect("a legal graph");
    b.graph.output("y", y);
    let mut run = Interpreter::new(&b.graph);
    run.set("x", &[1.0, 3.0]);
    run.set("bn.weight", &[10.0]);
    run.set("bn.bias", &[0.5]);
    run.set("bn.running_mean", &[-1.0]);
    run.set("bn.running_var", &[13.0]);
    run.run();
    let mut results = vec![("y".to_string(), run.output("y").data.clone())];
    for name in ["bn.running_mean", "bn.running_var"] {
        results.push((name.to_string(), run.input(name).data.clone()));
    }
    results
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-12)
}

#[test]
fn batch_norm_uses_the_batch_in_training() {
    let results = normalised(Mode::Train, BatchNormOptions::default());
    assert!(close(&results[0].1, &[-4.5, 5.5]), "{results:?}");
    assert!(close(&results[1].1, &[-0.9 + 0.1 * 2.0]), "{results:?}");
    assert!(close(&results[2].1, &[0.9 * 13.0 + 0.1 * 2.0]), "{results:?}");
}

#[test]
fn batch_norm_uses_running_statistics_in_inference() {
    let results = normalised(Mode::Infer, BatchNormOptions::default());
    assert!(close(&results[0].1, &[5.5, 10.5]), "{results:?}");
    assert!(close(&results[1].1, &[-1.0]) && close(&results[2].1, &[13.0]), "{results:?}");
}

#[test]
fn paddings() {
    assert_eq!(Padding::Symmetric.amounts([224, 224], 7, 2), [[3, 3], [3, 3]]);
    assert_eq!(Padding::Same.amounts([224, 224], 7, 2), [[2, 3], [2, 3]]);
    assert_eq!(Padding::Same.amounts([56, 55], 3, 2), [[0, 1], [1, 1]]);
    assert_eq!(Padding::Same.amounts([56, 56], 1, 2), [[0, 0], [0, 0]]);
}

#[test]
fn linear_multiplies_by_rows_of_the_weight() {
    let mut b = Builder::new(Mode::Infer);
    let x = b.feed("x", DType::F32, [1, 2]).expect("a new name");
    let layer = Linear::new(&mut b, "fc", 2, LinearOptions::uniform(2, 3)).expect("a new name");
    let y = layer.apply(&mut b, x).expect("a legal graph");
    b.graph.output("y", y);
    let mut run = Interpreter::new(&b.graph);
    run.set("x", &[1.0, 2.0]);
    run.set("fc.weight", &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    run.set("fc.bias", &[0.5, 0.0, 0.0]);
    run.run();
    assert_eq!(run.output("y").data, [1.5, 2.0, 3.0]);
}

#[test]
fn momentum_and_epsilon_are_options() {
    let results = normalised(Mode::Train, BatchNormOptions { momentum: 0.5, ..BatchNormOptions::default() });
    assert!(close(&results[1].1, &[0.5 * (2.0 - 1.0)]), "{results:?}");
    assert!(close(&results[2].1, &[0.5 * 13.0 + 0.5 * 2.0]), "{results:?}");
}

#[test]
fn a_frozen_batch_norm_trains_nothing() {
    let frozen = BatchNormOptions { frozen: true, ..BatchNormOptions::default() };
    let results = normalised(Mode::Train, frozen);
    assert_eq!(results, normalised(Mode::Infer, BatchNormOptions::default()));

    let mut b = Builder::new(Mode::Train);
    let inside = b.frozen(|b| BatchNorm::new(b, "inside", 1, BatchNormOptions::default())).expect("a new name");
    assert!(inside.is_frozen(), "a norm in a frozen scope keeps its running statistics");
    BatchNorm::new(&mut b, "frozen", 1, frozen).expect("a new name");
    let live = BatchNorm::new(&mut b, "live", 1, BatchNormOptions::default()).expect("a new name");
    assert!(!live.is_frozen() && !b.is_frozen());
    let trained = b.specs().iter().filter(|spec| spec.is_trainable()).map(|spec| spec.name.as_str());
    assert_eq!(trained.collect::<Vec<_>>(), ["live.weight", "live.bias"]);
    assert!(
        b.specs().iter().all(|spec| matches!(spec.kind, ParamKind::Norm | ParamKind::Statistic)),
        "kinds stay the same"
    );
}

#[test]
fn rows_are_normalised() {
    // Mean 3 and variance 1, with 3 added below the root; then a row of variance 9.
    let mut b = Builder::new(Mode::Train);
    let x = b.feed("x", DType::F32, [2, 2]).expect("a new name");
    let norm = LayerNorm::new(&mut b, "norm", 2, 3.0).expect("a new name");
    let y = norm.apply(&mut b, x).expect("a legal graph");
    b.graph.output("y", y);
    let mut run = Interpreter::new(&b.graph);
    run.set("x", &[2.0, 4.0, 1.0, 7.0]);
    run.set("norm.weight", &[2.0, 3.0]);
    run.set("norm.bias", &[0.5, -0.5]);
    run.run();
    let third = 3.0 / 12f64.sqrt();
    assert!(close(&run.output("y").data, &[-0.5, 1.0, 0.5 - 2.0 * third, -0.5 + 3.0 * third]));
}

/// What `build` makes of `x`, with the weights `weights`.
fn image(
    shape: [usize; 4],
    x: &[f64],
    weights: &[(&str, &[f64])],
    build: impl Fn(&mut Builder, Value) -> Value,
) -> (Vec<usize>, Vec<f64>) {
    let mut b = Builder::new(Mode::Infer);
    let input = b.feed("x", DType::F32, shape).expect("a new name");
    let y = build(&mut b, input);
    b.graph.output("y", y);
    let mut run = Interpreter::new(&b.graph);
    run.set("x", x);
    for (name, data) in weights {
        run.set(name, data);
    }
    run.run();
    (run.output("y").ty.shape.dims().to_vec(), run.output("y").data.clone())
}

#[test]
fn a_depthwise_convolution_scales_each_channel_by_its_own_weights() {
    let options = ConvOptions { groups: 2, bias: Some(Init::Zeros), ..ConvOptions::new(2, 1, KAIMING) };
    let weights: [(&str, &[f64]); 2] = [("conv.weight", &[10.0, 100.0]), ("conv.bias", &[1.0, 2.0])];
    let (shape, y) = image([1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0], &weights, |b, x| {
        let conv = Conv::new(b, "conv", 2, options).expect("a new name");
        assert_eq!(b.specs()[0].external_shape().dims(), [2, 1, 1, 1], "files hold [CO, CI / groups, K, K]");
        conv.apply(b, x).expect("it fits")
    });
    assert_eq!((shape, y), (vec![1, 1, 2, 2], vec![11.0, 202.0, 31.0, 402.0]));
}

#[test]
fn channels_are_weighted_by_the_mean_of_the_image() {
    let options = SqueezeExciteOptions { channels: 2, reduced: 1, init: KAIMING };
    let weights: [(&str, &[f64]); 4] = [
        ("se.conv_reduce.weight", &[2.0, -1.0]),
        ("se.conv_reduce.bias", &[0.5]),
        ("se.conv_expand.weight", &[1.0, -2.0]),
        ("se.conv_expand.bias", &[0.0, 3.0]),
    ];
    // Means 2 and 3: the reduced channel is swish(1.5).
    let (shape, y) = image([1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0], &weights, |b, x| {
        let layer = SqueezeExcite::new(b, "se", options).expect("a new name");
        assert_eq!(b.specs()[0].external_shape().dims(), [1, 2, 1, 1], "files hold 1x1 convolutions");
        layer.apply(b, x).expect("it fits")
    });
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let reduced = 1.5 * sigmoid(1.5);
    let gates = [sigmoid(reduced), sigmoid(3.0 - 2.0 * reduced)];
    assert_eq!(shape, [1, 1, 2, 2]);
    assert!(close(&y, &[gates[0], 2.0 * gates[1], 3.0 * gates[0], 4.0 * gates[1]]), "{y:?}");
}

#[test]
fn a_transposed_convolution_spreads_each_pixel() {
    let options =
        ConvTransposeOptions { channels: 1, kernel: 2, stride: 2, padding: 0, init: KAIMING, bias: Some(Init::Zeros) };
    // Two input channels, one output channel: `[KH, KW, CO, CI]`.
    let weights: [(&str, &[f64]); 2] =
        [("up.weight", &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0]), ("up.bias", &[0.5])];
    let (shape, y) = image([1, 1, 2, 2], &[1.0, 0.0, 0.0, 1.0], &weights, |b, x| {
        let up = ConvTranspose::new(b, "up", 2, options).expect("a new name");
        assert_eq!(b.specs()[0].external_shape().dims(), [2, 1, 2, 2], "files hold [CI, CO, K, K]");
        up.apply(b, x).expect("it fits")
    });
    assert_eq!(shape, [1, 2, 4, 1]);
    assert_eq!(y, [1.5, 2.5, 10.5, 20.5, 3.5, 4.5, 30.5, 40.5]);

    // Windows that overlap, and a border that is cut off: 3 pixels of stride 1 under a kernel of 3 give 5 less 2.
    let options = ConvTransposeOptions { kernel: 3, stride: 1, padding: 1, bias: None, ..options };
    let (shape, y) = image(
        [1, 1, 3, 1],
        &[1.0, 2.0, 3.0],
        &[("up.weight", &[0.0, 0.0, 0.0, 1.0, 10.0, 100.0, 0.0, 0.0, 0.0])],
        |b, x| ConvTranspose::new(b, "up", 1, options).and_then(|up| up.apply(b, x)).expect("it fits"),
    );
    assert_eq!((shape, y), (vec![1, 1, 3, 1], vec![10.0 + 2.0, 100.0 + 20.0 + 3.0, 200.0 + 30.0]));
}

#[test]
fn layers_that_do_not_fit_say_where() {
    let apply = |inputs: usize, groups: usize| {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::F32, [1, 3, 3, 4]).expect("a new name");
        let options = ConvOptions { groups, ..ConvOptions::new(6, 1, KAIMING) };
        let conv = Conv::new(&mut b, "head", inputs, options).expect("a new name");
        b.scope("level3", |b| conv.apply(b, x)).map(|_| ()).expect_err("it does not fit").to_string()
    };
    assert!(apply(3, 1).contains("at `level3.head`"), "{}", apply(3, 1));
    assert!(apply(3, 1).contains("the input has 4 channels a group, the weights are for 3"), "{}", apply(3, 1));
    assert!(apply(4, 4).contains("4 input and 6 output channels do not split into 4 groups"), "{}", apply(4, 4));
    assert!(apply(4, 0).contains("do not split into 0 groups"), "{}", apply(4, 0));

    let mut b = Builder::new(Mode::Infer);
    Conv::new(&mut b, "head", 4, ConvOptions::new(6, 1, KAIMING)).expect("a new name");
    let again = Conv::new(&mut b, "head", 4, ConvOptions::new(6, 1, KAIMING)).map(|_| ());
    assert_eq!(again, Err(GraphError::DuplicateName("head.weight".to_string())));

    let mut b = Builder::new(Mode::Train);
    let x = b.feed("x", DType::F32, [1, 3, 3, 4]).expect("a new name");
    let norm = BatchNorm::new(&mut b, "norm", 4, BatchNormOptions::default()).expect("a new name");
    norm.apply(&mut b, x).expect("the first time");
    let again = norm.apply(&mut b, x).map(|_| ());
    assert_eq!(again, Err(GraphError::DoubleUpdate("norm.running_mean".to_string())));
}

/// A head of separable convolutions for three feature maps: weights are shared, each map has a separate norm.
fn shared_head(b: &mut Builder) -> Value {
    let levels = [[6, 5], [3, 3], [2, 1]];
    let maps = levels
        .map(|[height, width]| b.feed(&format!("p{height}"), DType::F32, [2, height, width, 4]).expect("a new name"));
    let bias = Some(Init::Uniform { bound: 0.5 });
    let head = b.scope("head", |b| {
        let depthwise = ConvOptions { groups: 4, ..ConvOptions::new(4, 3, KAIMING) };
        let pointwise = ConvOptions { bias, ..ConvOptions::new(4, 1, KAIMING) };
        (
            Conv::new(b, "conv_dw", 4, depthwise).expect("a new name"),
            Conv::new(b, "conv_pw", 4, pointwise).expect("a new name"),
        )
    });
    let mut sums = Vec::new();
    for (level, map) in maps.into_iter().enumerate() {
        let y = b.scope(&format!("level{level}"), |b| {
            let norm = BatchNorm::new(b, "bn", 4, BatchNormOptions::default())?;
            let x = head.0.apply(b, map)?;
            let x = head.1.apply(b, x)?;
            let x = b.graph.square(x)?;
            let x = norm.apply(b, x)?;
            let y = b.graph.square(x)?;
            let y = b.graph.mul(y, x)?;
            b.graph.sum(y, &[0, 1, 2, 3])
        });
        sums.push(y.expect("it fits"));
    }
    sums.into_iter().reduce(|a, y| b.graph.add(a, y).expect("scalars")).expect("three levels")
}

/// An inverted residual: a depthwise convolution, squeeze-and-excitation and a projection.
fn squeezed_block(b: &mut Builder) -> Value {
    let x = b.feed("p3", DType::F32, [2, 3, 4, 4]).expect("a new name");
    let depthwise = ConvOptions { groups: 4, ..ConvOptions::new(4, 3, KAIMING) };
    let se = SqueezeExciteOptions { channels: 4, reduced: 2, init: KAIMING };
    let y = Conv::new(b, "conv_dw", 4, depthwise).and_then(|conv| conv.apply(b, x)).expect("it fits");
    let y = b.swish(y).expect("a float");
    let y = SqueezeExcite::new(b, "se", se).and_then(|layer| layer.apply(b, y)).expect("it fits");
    let project = ConvOptions::new(4, 1, KAIMING);
    let y = Conv::new(b, "conv_pwl", 4, project).and_then(|conv| conv.apply(b, y)).expect("it fits");
    let y = b.graph.add(x, y).and_then(|sum| b.graph.mul(sum, y)).expect("floats");
    b.graph.sum(y, &[0, 1, 2, 3]).expect("four axes")
}

/// A mask head: a convolution, a transposed one, and a predictor.
fn upsampling_head(b: &mut Builder) -> Value {
    let x = b.feed("rois", DType::F32, [2, 3, 4, 3]).expect("a new name");
    let bias = Some(Init::Uniform { bound: 0.5 });
    let deconv = ConvTransposeOptions { channels: 2, kernel: 3, stride: 2, padding: 1, init: KAIMING, bias };
    let conv = Conv::new(b, "conv", 3, ConvOptions { bias, ..ConvOptions::new(4, 3, KAIMING) });
    let x = conv.and_then(|conv| conv.apply(b, x)).expect("it fits");
    let x = ConvTranspose::new(b, "deconv", 4, deconv).and_then(|deconv| deconv.apply(b, x)).expect("it fits");
    assert_eq!(b.graph.shape(x).dims(), [2, 5, 7, 2]);
    let y = b.graph.square(x).and_then(|y| b.graph.mul(y, x)).expect("a float");
    b.graph.sum(y, &[0, 1, 2, 3]).expect("four axes")
}

fn set_all(run: &mut Interpreter<'_>, b: &Builder) {
    for spec in b.specs() {
        let data: Vec<f64> = initialise(spec, 4).into_iter().map(f64::from).collect();
        run.set(&spec.name, &data);
    }
    for (stream, name) in ["p6", "p3", "p2", "rois"].into_iter().enumerate() {
        let Some(input) = b.graph.find_input(name) else { continue };
        let count = b.graph.shape(input).elements();
        let data: Vec<f64> = (0..count).map(|i| philox::normal(1, 0, stream as u32, i as u64).into()).collect();
        run.set(name, &data);
    }
}

/// Compares the gradient of every parameter with central differences.
fn check_gradients(build: impl Fn(&mut Builder) -> Value) -> Vec<ParamSpec> {
    let mut b = Builder::new(Mode::Train);
    let loss = build(&mut b);
    b.graph.output("loss", loss);
    let params: Vec<ParamSpec> = b.specs().iter().filter(|spec| spec.is_trainable()).cloned().collect();
    let values: Vec<Value> = params.iter().map(|spec| spec.value).collect();
    let grads = gradients(&mut b.graph, loss, &values).expect("every layer has a gradient");
    for (spec, grad) in params.iter().zip(grads) {
        b.graph.output(&format!("grad.{}", spec.name), grad);
    }
    let at = |name: &str, element: usize, shift: f64| {
        let mut run = Interpreter::new(&b.graph);
        set_all(&mut run, &b);
        let mut data = run.input(name).data.clone();
        data[element] += shift;
        run.set(name, &data);
        run.run();
        run
    };
    for spec in &params {
        let step = 1e-4;
        let gradient = at(&spec.name, 0, 0.0).output(&format!("grad.{}", spec.name)).data.clone();
        assert!(gradient.iter().any(|x| x.abs() > 1e-3), "{}: the gradient is zero", spec.name);
        for element in [0, gradient.len() / 2, gradient.len() - 1] {
            let loss = |shift: f64| at(&spec.name, element, shift).output("loss").data[0];
            let difference = (loss(step) - loss(-step)) / (2.0 * step);
            let error = (gradient[element] - difference).abs();
            assert!(
                error < 1e-5 * difference.abs().max(1.0),
                "{} [{element}]: {}, not {difference}",
                spec.name,
                gradient[element]
            );
        }
    }
    params
}

#[test]
fn one_head_serves_several_maps() {
    let params = check_gradients(shared_head);
    let names: Vec<&str> = params.iter().map(|spec| spec.name.as_str()).collect();
    let own = (0..3).flat_map(|level| [format!("level{level}.bn.weight"), format!("level{level}.bn.bias")]);
    let expected = ["head.conv_dw.weight", "head.conv_pw.weight", "head.conv_pw.bias"].map(str::to_string);
    assert_eq!(names, expected.into_iter().chain(own).collect::<Vec<_>>());
}

#[test]
fn gradients_flow_through_transposed_convolutions() {
    let params = check_gradients(upsampling_head);
    let names: Vec<&str> = params.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["conv.weight", "conv.bias", "deconv.weight", "deconv.bias"]);
}

#[test]
fn gradients_flow_through_squeeze_and_excitation() {
    let params = check_gradients(squeezed_block);
    let names: Vec<&str> = params.iter().map(|spec| spec.name.as_str()).collect();
    let se = ["conv_reduce.weight", "conv_reduce.bias", "conv_expand.weight", "conv_expand.bias"];
    let se = se.map(|name| format!("se.{name}"));
    assert_eq!(names[1..5], se.each_ref().map(String::as_str));
    assert_eq!([names[0], names[5]], ["conv_dw.weight", "conv_pwl.weight"]);
}
