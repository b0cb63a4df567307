//! Steps of several micro-batches.

use crate::run::{Run, assert_close, compiled, executor};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{NullTarget, print_plan};
use bessemer_ir::reference::Interpreter;
use bessemer_ir::run::Phase;
use bessemer_ir::{DType, Graph, Op, Value, philox};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{
    Adam, Average, BatchNorm, BatchNormOptions, Builder, Clip, ClipForm, ClipOf, Conv, ConvOptions, DecayExclude, Fan,
    Init, Lamb, Linear, LinearOptions, LossScale, Optimizer, ParamSpec, Schedule, Sgd, Targets, TrainConfig,
    initialise, loss,
};

pub(crate) const SAMPLES: usize = 12;
const SIZE: usize = 6;
const CHANNELS: usize = 3;
const CLASSES: usize = 4;

/// Largest difference of an element relative to the largest one of its tensor, between a batch and its micro-batches.
const EXACT: f64 = 1e-9;
const SINGLE: f64 = 1e-4;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norm {
    Without,
    Batch,
}

/// A convolution, a hidden layer and a classifier. The step also reports the mean logit, and counts its micro-batches.
pub(crate) fn network(batch: usize, norm: Norm, config: &TrainConfig) -> (Graph, Vec<ParamSpec>) {
    let mut b = Builder::training(config.ranks);
    b.micro_step().expect("a new name");
    let x = b.feed("images", DType::F32, [batch, SIZE, SIZE, CHANNELS]).expect("a new name");
    let labels = b.feed("labels", DType::I32, [batch]).expect("a new name");
    let init = Init::KaimingNormal(Fan::Out);
    let conv = ConvOptions { stride: 2, ..ConvOptions::new(8, 3, init) };
    let mut y = Conv::new(&mut b, "conv", CHANNELS, conv).and_then(|conv| conv.apply(&mut b, x)).expect("it fits");
    if norm == Norm::Batch {
        let norm = BatchNorm::new(&mut b, "norm", 8, BatchNormOptions::default()).expect("a new name");
        y = norm.apply(&mut b, y).expect("it fits");
    }
    let y = b.graph.relu(y).expect("a float");
    let y = b.graph.mean(y, &[1, 2]).expect("two axes");
    let hidden = linear(&mut b, "hidden", y, LinearOptions::uniform(8, 16));
    let hidden = b.graph.relu(hidden).expect("a float");
    let logits = linear(&mut b, "fc", hidden, LinearOptions::uniform(16, CLASSES));
    let mean = b.graph.mean(logits, &[0, 1]).expect("two axes");
    b.graph.output("logits", logits);
    b.graph.output("mean_logit", mean);
    let loss = loss::cross_entropy(&mut b.graph, logits, &Targets::new(labels), 0.0).expect("it fits");
    build_train_step(&mut b, loss, config).expect("a legal graph");
    b.finish()
}

fn linear(b: &mut Builder, name: &str, x: Value, options: LinearOptions) -> Value {
    let inputs = b.graph.shape(x).cols();
    Linear::new(b, name, inputs, options).and_then(|layer| layer.apply(b, x)).expect("it fits")
}

fn sgd() -> Optimizer {
    Optimizer::Sgd(Sgd { momentum: 0.9, weight_decay: 0.01, decay_exclude: DecayExclude::None, ..Sgd::default() })
}

pub(crate) fn configs() -> [TrainConfig; 3] {
    let clip = |form| Some(Clip { limit: 0.05, form, of: ClipOf::Step });
    [
        TrainConfig::new(sgd(), Schedule::constant(0.1)),
        TrainConfig {
            clip: clip(ClipForm::TensorFlow),
            ..TrainConfig::new(Optimizer::Lamb(Lamb::nvidia(0.01)), Schedule::constant(0.02))
        },
        TrainConfig {
            clip: clip(ClipForm::PyTorch),
            average: Some(Average { decay: 0.9, ramp: false }),
            loss_scale: Some(LossScale { initial: 64.0, growth_steps: Some(2) }),
            ..TrainConfig::new(Optimizer::Adam(Adam::bert(0.01)), Schedule::constant(0.02))
        },
    ]
}

pub(crate) fn start(run: &mut dyn Run, specs: &[ParamSpec]) {
    for spec in specs {
        let data: Vec<f64> = initialise(spec, 7).iter().map(|&x| x.into()).collect();
        run.set(&spec.name, &data);
    }
}

/// Feeds the samples `from..from + count` of a step.
pub(crate) fn feed(run: &mut dyn Run, step: usize, from: usize, count: usize) {
    let pixels = SIZE * SIZE * CHANNELS;
    let image = |i: usize| f64::from(philox::normal(5, step as u32, 0, (from * pixels + i) as u64));
    run.set("images", &(0..count * pixels).map(image).collect::<Vec<_>>());
    run.set("labels", &(0..count).map(|i| ((from + i + step) % CLASSES) as f64).collect::<Vec<_>>());
}

/// A step over all samples, in `micro_batches` of equal size.
pub(crate) fn step(run: &mut dyn Run, number: usize, micro_batches: usize) {
    let size = SAMPLES / micro_batches;
    for index in 0..micro_batches {
        feed(run, number, index * size, size);
        if index + 1 < micro_batches { run.accumulate() } else { run.step() }
    }
}

/// What is to be the same: all that is kept, but for what counts micro-batches, and results.
pub(crate) fn outcome(run: &dyn Run, specs: &[ParamSpec]) -> Vec<(String, Vec<f64>)> {
    let is_shared = |name: &str| !name.starts_with("accumulate") && name != "micro_step";
    let kept = specs.iter().filter(|spec| is_shared(&spec.name)).map(|spec| (spec.name.clone(), run.state(&spec.name)));
    let results = ["loss", "lr", "grad_norm", "mean_logit"].map(|name| (name.to_string(), vec![run.output(name)]));
    kept.chain(results).collect()
}

fn assert_same(what: &str, actual: &[(String, Vec<f64>)], expected: &[(String, Vec<f64>)], tolerance: f64) {
    for ((name, a), (other, e)) in actual.iter().zip(expected) {
        assert_eq!(name, other);
        assert_close(&format!("{what}: {name}"), a, e, tolerance);
    }
    assert_eq!(actual.len(), expected.len(), "{what}");
}

pub(crate) fn of_accumulation(config: &TrainConfig, count: usize) -> TrainConfig {
    TrainConfig { accumulation: count as u64, report_grad_norm: true, ..config.clone() }
}

#[test]
fn micro_batches_make_the_step_of_the_whole_batch() {
    for config in configs() {
        let (graph, specs) = network(SAMPLES, Norm::Without, &of_accumulation(&config, 1));
        let mut whole = Interpreter::new(&graph);
        start(&mut whole, &specs);
        let expected: Vec<_> = (0..3)
            .map(|number| {
                step(&mut whole, number, 1);
                outcome(&whole, &specs)
            })
            .collect();
        for count in [2, 3] {
            let (graph, specs) = network(SAMPLES / count, Norm::Without, &of_accumulation(&config, count));
            let fused = CompileOptions::default();
            let runs: [(&str, Box<dyn Run>, f64); 4] = [
                ("interpreter", Box::new(Interpreter::new(&graph)), EXACT),
                ("fused", Box::new(executor(&graph, &fused, 2)), SINGLE),
                ("op by op", Box::new(executor(&graph, &CompileOptions { fuse: false, ..fused.clone() }, 2)), SINGLE),
                (
                    "as written",
                    Box::new(executor(&graph, &CompileOptions { disabled: vec!["schedule".into()], ..fused }, 1)),
                    SINGLE,
                ),
            ];
            for (name, mut run, tolerance) in runs {
                start(&mut *run, &specs);
                for (number, expected) in expected.iter().enumerate() {
                    step(&mut *run, number, count);
                    let what = format!("{:?}, {name}, {count} micro-batches, step {number}", config.optimizer);
                    assert_same(&what, &outcome(&*run, &specs), expected, tolerance);
                    assert_eq!(run.state("micro_step"), [(count * (number + 1)) as f64], "{what}");
                }
            }
        }
    }
}

#[test]
fn each_micro_batch_can_be_clipped_for_itself() {
    let plain = Sgd { decay_exclude: DecayExclude::None, ..Sgd::default() };
    let clip = Clip { limit: 0.05, form: ClipForm::TensorFlow, of: ClipOf::MicroBatch };
    let config = TrainConfig { clip: Some(clip), ..TrainConfig::new(Optimizer::Sgd(plain), Schedule::constant(1.0)) };
    let (graph, specs) = network(SAMPLES / 2, Norm::Without, &of_accumulation(&config, 1));
    let [first, second] = [0, 1].map(|index| {
        let mut run = Interpreter::new(&graph);
        start(&mut run, &specs);
        feed(&mut run, 0, index * SAMPLES / 2, SAMPLES / 2);
        run.step();
        assert!(Run::output(&run, "grad_norm") > clip.limit, "there is something to clip");
        Run::state(&run, "hidden.weight")
    });
    let (graph, specs) = network(SAMPLES / 2, Norm::Without, &of_accumulation(&config, 2));
    let fused = CompileOptions::default();
    let runs: [(&str, Box<dyn Run>, f64); 2] = [
        ("interpreter", Box::new(Interpreter::new(&graph)), EXACT),
        ("fused", Box::new(executor(&graph, &fused, 2)), SINGLE),
    ];
    for (name, mut run, tolerance) in runs {
        start(&mut *run, &specs);
        step(&mut *run, 0, 2);
        let mean: Vec<f64> = first.iter().zip(&second).map(|(a, b)| (a + b) / 2.0).collect();
        assert_close(name, &run.state("hidden.weight"), &mean, tolerance);
        assert!(run.output("grad_norm") <= clip.limit * 1.001, "{name}: means of what was clipped");
    }
}

#[test]
fn statistics_are_those_of_each_micro_batch() {
    for config in configs() {
        let (graph, specs) = network(SAMPLES / 3, Norm::Batch, &of_accumulation(&config, 3));
        let fused = CompileOptions::default();
        let as_written = CompileOptions { disabled: vec!["schedule".into()], ..fused.clone() };
        let mut reference = Interpreter::new(&graph);
        let mut one = executor(&graph, &fused, 1);
        let mut two = executor(&graph, &fused, 2);
        let mut copying = executor(&graph, &CompileOptions { fuse: false, ..as_written }, 1);
        let runs: [&mut dyn Run; 4] = [&mut reference, &mut one, &mut two, &mut copying];
        for run in runs {
            start(run, &specs);
            (0..3).for_each(|number| step(run, number, 3));
        }
        let expected = outcome(&reference, &specs);
        assert_same("fused", &outcome(&two, &specs), &expected, 1e-4);
        assert_same("op by op, as written", &outcome(&copying, &specs), &expected, 1e-4);
        assert_eq!(outcome(&one, &specs), outcome(&two, &specs), "one and two threads");
    }
    // The same batch twice, from a mean of zero.
    let (graph, specs) = network(SAMPLES / 3, Norm::Batch, &of_accumulation(&configs()[0], 3));
    let mut run = Interpreter::new(&graph);
    start(&mut run, &specs);
    feed(&mut run, 0, 0, SAMPLES / 3);
    run.accumulate();
    let first = run.state("norm.running_mean");
    run.accumulate();
    let second = run.state("norm.running_mean");
    let momentum = BatchNormOptions::default().momentum;
    for (first, second) in first.iter().zip(&second) {
        assert!((second - first * (2.0 - momentum)).abs() < 1e-9, "{first}, then {second}");
    }
}

#[test]
fn a_micro_batch_that_is_no_number_skips_its_step_alone() {
    for (config, norm) in configs().into_iter().zip([Norm::Batch, Norm::Without, Norm::Without]) {
        let (graph, specs) = network(SAMPLES / 3, norm, &of_accumulation(&config, 3));
        for bad in 0..3 {
            let mut run = executor(&graph, &CompileOptions::default(), 2);
            start(&mut run, &specs);
            step(&mut run, 0, 3);
            let before = outcome(&run, &specs);
            for index in 0..3 {
                feed(&mut run, 1, index * 4, 4);
                if index == bad {
                    run.set("images", &[f64::NAN; 4 * SIZE * SIZE * CHANNELS]);
                }
                if index < 2 { run.accumulate() } else { run.step() }
            }
            assert!(run.output("loss").is_nan());
            let is_kept =
                |name: &str| !name.contains("running") && !name.starts_with("loss_scale") && name.contains('.');
            for ((name, old), (_, new)) in
                before.iter().zip(outcome(&run, &specs)).filter(|((name, _), _)| is_kept(name))
            {
                assert_eq!(*old, new, "{name} with micro-batch {bad} bad");
            }
            assert_eq!(run.state("step"), [1.0]);
            step(&mut run, 2, 3);
            assert!(outcome(&run, &specs).iter().all(|(_, data)| data.iter().all(|x| x.is_finite())), "it recovers");
            assert_eq!((run.state("step"), run.state("micro_step")), (vec![2.0], vec![9.0]));
        }
    }
}

#[test]
fn the_search_for_a_bad_number_looks_at_what_is_fed() {
    let (graph, specs) = network(SAMPLES / 2, Norm::Batch, &of_accumulation(&configs()[0], 2));
    let mut executor = compiled(&graph, &CompileOptions::default(), 2);
    start(&mut executor, &specs);
    executor.write_f32("images", &[f32::NAN; SAMPLES / 2 * SIZE * SIZE * CHANNELS]).expect("a feed");
    executor.accumulate().expect("it runs");
    feed(&mut executor, 0, 0, SAMPLES / 2);
    executor.run().expect("it runs");
    assert!(executor.scalar("loss").expect("an output").is_nan());
    assert_eq!(executor.find_non_finite(Phase::Update).expect("it runs"), None, "the last micro-batch was a good one");
    executor.write_f32("images", &[f32::NAN; SAMPLES / 2 * SIZE * SIZE * CHANNELS]).expect("a feed");
    let found = executor.find_non_finite(Phase::Update).expect("it runs").expect("a bad number");
    assert_eq!(found.op, "images");
}

#[test]
fn a_bad_micro_batch_is_found_by_going_through_its_step_again() {
    let (graph, specs) = network(SAMPLES / 3, Norm::Batch, &of_accumulation(&configs()[0], 3));
    let [mut executor, mut plain] = [(); 2].map(|()| compiled(&graph, &CompileOptions::default(), 2));
    start(&mut executor, &specs);
    start(&mut plain, &specs);
    for index in 0..2 {
        feed(&mut executor, 0, index * 4, 4);
        feed(&mut plain, 0, index * 4, 4);
        assert_eq!(executor.find_non_finite(Phase::Accumulate).expect("it runs"), None);
        plain.accumulate().expect("it runs");
    }
    feed(&mut executor, 0, 8, 4);
    feed(&mut plain, 0, 8, 4);
    assert_eq!(executor.find_non_finite(Phase::Update).expect("it runs"), None);
    plain.run().expect("it runs");
    for spec in &specs {
        let state = |executor: &bessemer_cpu::Executor| executor.input(&spec.name).expect("state").to_vec();
        assert_eq!(state(&executor), state(&plain), "a search that finds nothing is a step: {}", spec.name);
    }
    executor.write_f32("images", &[f32::NAN; SAMPLES / 3 * SIZE * SIZE * CHANNELS]).expect("a feed");
    let found = executor.find_non_finite(Phase::Accumulate).expect("it runs").expect("a bad number");
    assert_eq!(found.op, "images");
}

#[test]
fn an_overflow_in_a_micro_batch_lowers_the_loss_scale() {
    let scaling = LossScale { initial: 16_777_216.0, growth_steps: Some(100) };
    let config = TrainConfig { loss_scale: Some(scaling), ..TrainConfig::new(sgd(), Schedule::constant(0.1)) };
    let (graph, specs) = network(SAMPLES / 3, Norm::Without, &of_accumulation(&config, 3));
    let mut run = executor(&graph, &CompileOptions { precision: DType::F16, ..CompileOptions::default() }, 2);
    start(&mut run, &specs);
    let weights = run.state("fc.weight");
    step(&mut run, 0, 3);
    assert!(run.output("loss").is_finite() && !run.output("grad_norm").is_finite());
    assert_eq!((run.state("step"), run.state("fc.weight")), (vec![0.0], weights));
    assert_eq!(run.state("loss_scale"), [8_388_608.0]);
    (0..20).for_each(|number| step(&mut run, number, 3));
    assert!(run.state("step")[0] > 0.0 && run.output("grad_norm").is_finite());
}

#[test]
fn the_optimizer_is_not_part_of_the_body() {
    for config in configs() {
        let (graph, _) = network(SAMPLES / 2, Norm::Without, &of_accumulation(&config, 2));
        let plan = compile(&graph, &NullTarget, &CompileOptions::default()).expect("it compiles");
        let accumulation: Vec<_> = plan.calls.iter().filter(|call| call.per_micro_batch).collect();
        assert!(accumulation.len() < plan.calls.len(), "{}", print_plan(&plan));
        for call in accumulation {
            for input in &plan.graph.node(call.node).inputs {
                let Op::Input(input) = &plan.graph.node(input.node).op else { continue };
                let is_moment = ["momentum.", "exp_avg.", "exp_avg_sq."].iter().any(|p| input.name.starts_with(p));
                assert!(!is_moment, "the accumulation phase reads {}:\n{}", input.name, print_plan(&plan));
            }
        }
        assert!(plan.copies.iter().all(|copy| copy.bytes <= 16), "sums are kept in place: {:?}", plan.copies);
    }
}

#[test]
fn one_batch_a_step_has_no_body() {
    let (graph, _) = network(SAMPLES, Norm::Batch, &of_accumulation(&configs()[0], 1));
    let mut executor = compiled(&graph, &CompileOptions::default(), 1);
    let error = executor.accumulate().expect_err("there is nothing to accumulate");
    assert_eq!(error.to_string(), "the plan's steps take one micro-batch each: there is nothing to accumulate in");
}

#[test]
fn the_number_of_micro_batches_begins_again_where_f32_ends() {
    for count in [1, 2] {
        let (graph, specs) = network(SAMPLES / count, Norm::Without, &of_accumulation(&configs()[0], count));
        let mut run = executor(&graph, &CompileOptions::default(), 1);
        start(&mut run, &specs);
        run.set("micro_step", &[16_777_215.0 - count as f64]);
        step(&mut run, 0, count);
        assert_eq!(run.state("micro_step"), [16_777_215.0]);
        step(&mut run, 1, count);
        assert_eq!(run.state("micro_step"), [count as f64 - 1.0]);
    }
}
