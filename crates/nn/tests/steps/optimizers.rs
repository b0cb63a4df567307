//! Optimizers and schedules against `../fixtures/optimizers.py`, an implementation in NumPy and float64: ten steps of given
//! gradients, through the reference interpreter and on the CPU.

use crate::run::{Run, assert_close, executor};
use bessemer_ir::passes::CompileOptions;
use bessemer_ir::reference::Interpreter;
use bessemer_ir::{DType, Graph, Value};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{
    Adam, AdamMoments, Builder, Clip, ClipForm, ClipOf, Decay, DecayExclude, DecayForm, EpsForm, Form, Init, Lamb,
    Mode, Optimizer, Schedule, TrainConfig, Trust, Warmup,
};

use serde_json::Value as Json;

/// Largest error of an element relative to the largest one of its tensor, of the interpreter and of the CPU.
const EXACT: f64 = 1e-10;
const SINGLE: f64 = 1e-6;

fn fixture() -> Json {
    serde_json::from_str(include_str!("../fixtures/optimizers.json")).expect("the fixture is JSON")
}

fn list(json: &Json) -> &[Json] {
    json.as_array().expect("a list")
}

fn number(json: &Json) -> f64 {
    json.as_f64().expect("a number")
}

fn numbers(json: &Json) -> Vec<f64> {
    list(json).iter().map(number).collect()
}

fn named(json: &Json) -> impl Iterator<Item = (&str, Vec<f64>)> {
    json.as_object().expect("tensors by name").iter().map(|(name, data)| (name.as_str(), numbers(data)))
}

fn moments(case: &Json) -> AdamMoments {
    AdamMoments {
        beta1: number(&case["beta1"]),
        beta2: number(&case["beta2"]),
        eps: number(&case["eps"]),
        eps_form: match case["eps_form"].as_str().expect("a form") {
            "in-root" => EpsForm::InsideSqrt,
            "before-correction" => EpsForm::BeforeCorrection,
            _ => EpsForm::OutsideSqrt,
        },
        bias_correction: case["bias_correction"] == true,
    }
}

fn config(case: &Json) -> TrainConfig {
    let (moments, weight_decay) = (moments(case), number(&case["weight_decay"]));
    let decay_exclude = DecayExclude::LayerNormAndBias;
    let optimizer = if case["optimizer"] == "lamb" {
        let trust = if case["trust"] == "all" { Trust::All } else { Trust::Decayed };
        Optimizer::Lamb(Lamb { moments, weight_decay, decay_exclude, trust })
    } else {
        let decay_form = if case["decay"] == "coupled" { DecayForm::Coupled } else { DecayForm::Decoupled };
        Optimizer::Adam(Adam { moments, weight_decay, decay_form, decay_exclude })
    };
    let clip = case["clip"].as_object().map(|clip| Clip {
        limit: number(&clip["limit"]),
        form: if clip["form"] == "pytorch" { ClipForm::PyTorch } else { ClipForm::TensorFlow },
        of: ClipOf::Step,
    });
    let schedule = Schedule::constant(number(&case["lr"]));
    TrainConfig { clip, report_grad_norm: true, ..TrainConfig::new(optimizer, schedule) }
}

/// A step whose gradients are fed: the loss is the sum of products of parameters and feeds.
fn step_of_given_gradients(fixture: &Json, config: &TrainConfig) -> Graph {
    let mut b = Builder::new(Mode::Train);
    let mut loss: Option<Value> = None;
    for (name, shape) in named(&fixture["shapes"]) {
        let shape: Vec<usize> = shape.into_iter().map(|extent| extent as usize).collect();
        let param = b.weight(name, shape.clone(), Init::Zeros).expect("a new name");
        let grad = b.feed(&format!("grad.{name}"), DType::F32, shape.clone()).expect("a new name");
        let g = &mut b.graph;
        let product = g.mul(param, grad).expect("shapes agree");
        let sum = g.sum(product, &(0..shape.len()).collect::<Vec<_>>()).expect("all axes");
        loss = Some(loss.map_or(sum, |loss| g.add(loss, sum).expect("two numbers")));
    }
    build_train_step(&mut b, loss.expect("there are parameters"), config).expect("a legal graph");
    b.finish().0
}

fn ten_steps(what: &str, run: &mut dyn Run, fixture: &Json, case: &Json, tolerance: f64) {
    for (name, data) in named(&fixture["weights"]) {
        run.set(name, &data);
    }
    for (step, gradients) in list(&fixture["gradients"]).iter().enumerate() {
        for (name, data) in named(gradients) {
            run.set(&format!("grad.{name}"), &data);
        }
        run.step();
        let norm = number(&case["grad_norm"][step]);
        assert_close(&format!("{what}: norm of step {step}"), &[run.output("grad_norm")], &[norm], tolerance);
        for (name, expected) in named(&case["weights"][step]) {
            assert_close(&format!("{what}: {name} after step {step}"), &run.state(name), &expected, tolerance);
        }
    }
    for prefix in ["exp_avg", "exp_avg_sq"] {
        for (name, expected) in named(&case[prefix]) {
            let name = format!("{prefix}.{name}");
            assert_close(&format!("{what}: {name}"), &run.state(&name), &expected, tolerance);
        }
    }
}

#[test]
fn ten_steps_of_every_optimizer() {
    let fixture = fixture();
    let cases = list(&fixture["cases"]);
    assert_eq!(cases.len(), 12);
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let graph = step_of_given_gradients(&fixture, &config(case));
        ten_steps(name, &mut Interpreter::new(&graph), &fixture, case, EXACT);
        for fuse in [true, false] {
            let mut run = executor(&graph, &CompileOptions { fuse, ..CompileOptions::default() }, 2);
            ten_steps(&format!("{name}, fuse {fuse}"), &mut run, &fixture, case, SINGLE);
        }
    }
}

#[test]
fn published_settings_are_those_of_the_cases() {
    let fixture = fixture();
    let case = |name: &str| list(&fixture["cases"]).iter().find(|case| case["name"] == name).expect("the case");
    for (name, optimizer) in [
        ("bert adam", Optimizer::Adam(Adam::bert(0.01))),
        ("adam of electra", Optimizer::Adam(Adam::electra(0.01))),
        ("lamb of electra", Optimizer::Lamb(Lamb::electra(0.01))),
        ("lamb of nvidia", Optimizer::Lamb(Lamb::nvidia(0.01))),
        ("lamb of tensorflow", Optimizer::Lamb(Lamb::tensorflow(0.01))),
    ] {
        assert_eq!(config(case(name)).optimizer, optimizer, "{name}");
    }
}

#[test]
fn learning_rates_of_every_step() {
    for case in list(&fixture()["schedules"]) {
        let name = case["name"].as_str().expect("a name");
        let form = match case["form"].as_str().expect("a form") {
            "progress" => Form::Progress,
            "from-zero" => Form::FromZero,
            _ => Form::WholeRun,
        };
        let warmup = number(&case["warmup"]);
        let warmup = if form == Form::Progress { Warmup::Share(warmup) } else { Warmup::Steps(warmup) };
        let decay = Decay::Polynomial { power: number(&case["power"]) };
        let schedule = Schedule::in_steps(number(&case["lr"]), number(&case["steps"]) as u64, warmup, form, decay);
        for (step, expected) in numbers(&case["rates"]).into_iter().enumerate() {
            let rate = schedule.learning_rate(step as u64);
            assert!((rate - expected).abs() <= 1e-10 * schedule.lr, "{name}: step {step} has {rate}, not {expected}");
        }
    }
}
