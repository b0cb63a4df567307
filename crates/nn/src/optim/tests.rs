use super::*;
use crate::builder::Mode;
use crate::init::Init;
use crate::schedule::Schedule;
use crate::train_step::{TrainConfig, build_train_step};
use bessemer_ir::Graph;
use bessemer_ir::reference::Interpreter;

const LR: f64 = 0.1;

/// Two parameters whose gradients are fed.
fn builder() -> (Builder, Vec<ParamSpec>, Vec<Value>) {
    let mut b = Builder::new(Mode::Train);
    b.weight("fc.weight", [1, 2], Init::Zeros).expect("a new name");
    b.norm("bn1.weight", 1, Init::Ones).expect("a new name");
    let params = b.specs().to_vec();
    let grads = params
        .iter()
        .map(|p| b.feed(&format!("grad.{}", p.name), DType::F32, p.ty.shape.clone()).expect("a new name"))
        .collect();
    (b, params, grads)
}

fn sgd_graph(sgd: &Sgd) -> Graph {
    let (mut b, params, grads) = builder();
    let lr = b.graph.constant(DType::F32, [], LR).expect("a constant");
    for (param, grad) in params.iter().zip(grads) {
        sgd.update(&mut b, param, grad, lr).expect("a legal graph");
    }
    b.finish().0
}

/// Two steps from weight 1 with gradient 2, then 3.
fn two_steps(sgd: &Sgd) -> [f64; 2] {
    let graph = sgd_graph(sgd);
    let mut run = Interpreter::new(&graph);
    run.set("fc.weight", &[1.0, 0.0]);
    run.set("bn1.weight", &[1.0]);
    for grad in [2.0, 3.0] {
        run.set("grad.fc.weight", &[grad, 0.0]);
        run.set("grad.bn1.weight", &[grad]);
        run.run();
    }
    [run.input("fc.weight").data[0], run.input("bn1.weight").data[0]]
}

const PLAIN: Sgd = Sgd {
    momentum: 0.0,
    nesterov: false,
    velocity: Velocity::Gradients,
    weight_decay: 0.0,
    decay_exclude: DecayExclude::None,
};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn plain_descent_keeps_no_state() {
    assert!(close(two_steps(&PLAIN)[0], 1.0 - LR * 5.0));
    assert!(sgd_graph(&PLAIN).find_input("momentum.fc.weight").is_none());
}

#[test]
fn momentum_and_nesterov() {
    let momentum = Sgd { momentum: 0.5, ..PLAIN };
    assert!(close(two_steps(&momentum)[0], 1.0 - LR * 2.0 - LR * (0.5 * 2.0 + 3.0)));
    let nesterov = Sgd { nesterov: true, ..momentum };
    let expected = 1.0 - LR * (2.0 + 0.5 * 2.0) - LR * (3.0 + 0.5 * (0.5 * 2.0 + 3.0));
    assert!(close(two_steps(&nesterov)[0], expected));
}

#[test]
fn decay_spares_what_is_excluded() {
    let sgd = Sgd { weight_decay: 0.5, decay_exclude: DecayExclude::BatchNorm, ..PLAIN };
    let first = 1.0 - LR * (2.0 + 0.5);
    let [decayed, spared] = two_steps(&sgd);
    assert!(close(decayed, first - LR * (3.0 + 0.5 * first)));
    assert!(close(spared, 1.0 - LR * 5.0));
}

#[test]
fn exclusion_rules() {
    let mut b = Builder::new(Mode::Train);
    b.norm("bn1.weight", 1, Init::Ones).expect("a new name");
    b.norm("downsample.1.weight", 1, Init::Ones).expect("a new name");
    b.bias("fc.bias", 1, Init::Ones).expect("a new name");
    b.weight("fc.weight", [1, 1], Init::Ones).expect("a new name");
    b.norm("output.LayerNorm.weight", 1, Init::Ones).expect("a new name");
    b.weight("layer_norm.gamma", [1, 1], Init::Ones).expect("a new name");
    for (rule, expected) in [
        (DecayExclude::None, [false; 6]),
        (DecayExclude::BnSubstring, [true, false, false, false, false, false]),
        (DecayExclude::BatchNorm, [true, true, false, false, true, false]),
        (DecayExclude::BatchNormAndBias, [true, true, true, false, true, false]),
        (DecayExclude::LayerNormAndBias, [false, false, true, false, true, true]),
    ] {
        let excluded: Vec<bool> = b.specs().iter().map(|spec| rule.excludes(spec)).collect();
        assert_eq!(excluded, expected, "{rule:?}");
    }
}

#[test]
fn clipping_limits_the_norm_of_all_gradients() {
    let (mut b, _, grads) = builder();
    let norm = global_norm(&mut b.graph, &grads).expect("a legal graph");
    let clip = Clip { limit: 1.0, form: ClipForm::PyTorch, of: ClipOf::Step };
    let factor = clip.factor(&mut b.graph, norm).expect("a legal graph");
    b.graph.output("norm", norm);
    for (name, grad) in [("fc", grads[0]), ("bn", grads[1])] {
        let clipped = b.graph.mul(grad, factor).expect("shapes agree");
        b.graph.output(name, clipped);
    }
    let mut run = Interpreter::new(&b.graph);
    run.set("grad.fc.weight", &[2.0, 3.0]);
    run.set("grad.bn1.weight", &[6.0]);
    run.run();
    assert!(close(run.output("norm").data[0], 7.0));
    assert!((run.output("fc").data[1] - 3.0 / 7.0).abs() < 1e-6);
    assert!((run.output("bn").data[0] - 6.0 / 7.0).abs() < 1e-6);
    run.set("grad.fc.weight", &[0.25, 0.0]);
    run.set("grad.bn1.weight", &[0.0]);
    run.run();
    assert_eq!(run.output("fc").data, [0.25, 0.0]);
}

#[test]
fn averages_start_from_the_first_content() {
    let (mut b, params, grads) = builder();
    let step = step_counter(&mut b).expect("a new name");
    let lr = b.graph.constant(DType::F32, [], LR).expect("a constant");
    PLAIN.update(&mut b, &params[0], grads[0], lr).expect("a legal graph");
    Average { decay: 0.75, ramp: false }.add_to(&mut b, step).expect("a legal graph");
    let mut run = Interpreter::new(&b.graph);
    run.set("fc.weight", &[1.0, -1.0]);
    run.set("grad.fc.weight", &[4.0, 0.0]);
    run.run();
    run.run();
    assert_eq!(run.input("step").data, [2.0]);
    let first = 0.75 * 1.0 + 0.25 * 0.6;
    assert!(close(run.input("ema.fc.weight").data[0], 0.75 * first + 0.25 * 0.2));
    assert_eq!(b.graph.find_input("ema.bn1.weight"), None, "the step leaves this weight as it is");
}

/// TensorFlow's `min(decay, (1 + t) / (10 + t))` after the `t`-th step.
#[test]
fn the_decay_of_averages_rises() {
    let (mut b, params, grads) = builder();
    let step = step_counter(&mut b).expect("a new name");
    let lr = b.graph.constant(DType::F32, [], LR).expect("a constant");
    PLAIN.update(&mut b, &params[0], grads[0], lr).expect("a legal graph");
    Average { decay: 0.25, ramp: true }.add_to(&mut b, step).expect("a legal graph");
    let mut run = Interpreter::new(&b.graph);
    run.set("fc.weight", &[1.0, -1.0]);
    run.set("grad.fc.weight", &[4.0, 0.0]);
    let (mut weight, mut expected) = (1.0, 1.0);
    for t in 1..4 {
        run.run();
        weight -= LR * 4.0;
        let decay = f64::min(0.25, (1 + t) as f64 / (10 + t) as f64);
        expected = decay * expected + (1.0 - decay) * weight;
        assert!(close(run.input("ema.fc.weight").data[0], expected), "step {t}");
    }
}

/// `v = momentum * v - lr * g; w += v`: the rate of a step stays in what is kept of it.
#[test]
fn velocities_of_changes_keep_their_rate() {
    let constant = Sgd { momentum: 0.5, velocity: Velocity::Changes, ..PLAIN };
    assert!(close(two_steps(&constant)[0], two_steps(&Sgd { velocity: Velocity::Gradients, ..constant })[0]));
    let nesterov = Sgd { nesterov: true, ..constant };
    assert!(close(two_steps(&nesterov)[0], two_steps(&Sgd { velocity: Velocity::Gradients, ..nesterov })[0]));
    let (mut b, params, grads) = builder();
    let lr = b.feed("lr", DType::F32, []).expect("a new name");
    constant.update(&mut b, &params[0], grads[0], lr).expect("a legal graph");
    let mut run = Interpreter::new(&b.graph);
    run.set("fc.weight", &[1.0, 0.0]);
    run.set("grad.fc.weight", &[2.0, 0.0]);
    for rate in [0.5, 0.125] {
        run.set("lr", &[rate]);
        run.run();
    }
    let first = -0.5 * 2.0;
    assert!(close(run.input("fc.weight").data[0], 1.0 + first + (0.5 * first - 0.125 * 2.0)));
}

/// TensorFlow's `clip_by_norm` of each gradient alone.
#[test]
fn each_gradient_is_limited_alone() {
    let (mut b, _, grads) = builder();
    let clipped = clip_each(&mut b.graph, 5.0, &grads).expect("a legal graph");
    for (name, grad) in [("fc", clipped[0]), ("bn", clipped[1])] {
        b.graph.output(name, grad);
    }
    let mut run = Interpreter::new(&b.graph);
    run.set("grad.fc.weight", &[6.0, 8.0]);
    run.set("grad.bn1.weight", &[4.0]);
    run.run();
    assert_eq!(
        (run.output("fc").data.as_slice(), run.output("bn").data.as_slice()),
        ([3.0, 4.0].as_slice(), [4.0].as_slice())
    );
}

#[test]
fn a_phase_starts_counters_anew() {
    let mut b = Builder::new(Mode::Train);
    let bias = b.bias("bias", 1, Init::Zeros).expect("a new name");
    b.micro_step().expect("a new name");
    let square = b.graph.square(bias).expect("a float");
    let loss = b.graph.sum(square, &[0]).expect("one axis");
    let config = TrainConfig {
        average: Some(Average { decay: 0.9, ramp: false }),
        loss_scale: Some(LossScale { initial: 8.0, growth_steps: Some(2) }),
        accumulation: 2,
        ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(0.1))
    };
    build_train_step(&mut b, loss, &config).expect("a legal graph");
    let names = |reset: bool| -> Vec<&str> {
        b.specs().iter().filter(|spec| is_reset_by_phase(spec) == reset).map(|spec| spec.name.as_str()).collect()
    };
    assert_eq!(names(false), ["bias", "exp_avg.bias", "exp_avg_sq.bias", "ema.bias"]);
    let counters = ["micro_step", "loss_scale", "accumulated", "accumulate.output.loss", "accumulate.bias", "step"];
    assert_eq!(names(true), [counters.as_slice(), &["loss_scale.good_steps"]].concat());
}
