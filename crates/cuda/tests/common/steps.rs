//! Steps of models on the mock of a GPU and on the CPU.

#![allow(dead_code, reason = "each file of tests uses a part")]

use super::common::{Knobs, mock_or_skip};
use super::device::{open, options};
use bessemer_cpu::{CpuDevice, CpuOptions};
use bessemer_cuda::{Check, CudaDevice, CudaOptions, CudaTarget};
use bessemer_ir::ops::conv::Filter;
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{LoweredKernel, Refusal, Target};
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{
    Device, Executor, RunError, StateBinding, StateLayout, StateStore, Ticket, read_f32, write_i32,
};
use bessemer_ir::{DType, Graph, NodeId, Role, TensorType, philox};
use bessemer_models::Model;
use bessemer_nn::builder::MICRO_STEP;
use bessemer_nn::{STOP, initialise};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The CPU as a target of graphs that are compiled by the rules of GPUs, but for the order of weights.
pub(crate) struct CpuByRulesOfGpus(pub(crate) CpuOptions);

impl Target for CpuByRulesOfGpus {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rules(&self) -> &Rules {
        // Kernels of the CPU read weights in one order alone; that is all that makes plans different.
        const RULES: Rules = Rules { filters: Filter::Hwio, ..CudaTarget::RULES };
        &RULES
    }

    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        self.0.lower(graph, node, invariant)
    }
}

/// What goes wrong in a step before each of those that count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    Nothing,
    /// An index of the first micro-batch is out of range.
    Index,
    /// The loss of the last micro-batch is not a number.
    Loss,
}

impl Trouble {
    /// Feed that is filled with one bad number, and the number.
    fn feed(self) -> Option<(&'static str, [u8; 4])> {
        match self {
            Trouble::Nothing => None,
            Trouble::Index => Some(("input_ids", i32::to_ne_bytes(-1))),
            Trouble::Loss => Some(("masked_lm_weights", f32::to_ne_bytes(f32::NAN))),
        }
    }
}

/// What becomes of a model in some steps: the scalars of each, and all state behind the last one.
#[derive(PartialEq)]
pub(crate) struct Outcome {
    scalars: Vec<Vec<(String, f32)>>,
    state: BTreeMap<String, Vec<f32>>,
}

/// The content of a feed for a micro-batch, by its name and its type.
pub(crate) type Feed<'a> = &'a dyn Fn(&str, &TensorType, usize) -> Vec<u8>;

/// Content of a feed for a micro-batch: integers below `most`, or normal numbers.
pub(crate) fn content(name: &str, ty: &TensorType, most: usize, batch: usize) -> Vec<u8> {
    let uniform = |i: usize| philox::uniform(name.len() as u64, batch as u32, 3, i as u64);
    let of = |i: usize| match ty.dtype {
        DType::F32 if name.ends_with("weights") => 1.0f32.to_ne_bytes().to_vec(),
        DType::F32 if name == STOP => 0.0f32.to_ne_bytes().to_vec(),
        DType::F32 => philox::normal(7, batch as u32, 4, i as u64).to_ne_bytes().to_vec(),
        DType::I32 => ((uniform(i) * most as f32) as i32).to_ne_bytes().to_vec(),
        DType::U8 => vec![(uniform(i) * 256.0) as u8],
        other => panic!("a feed of {other}"),
    };
    (0..ty.shape.elements()).flat_map(of).collect()
}

/// A plan with its state, of initial content.
fn load(
    device: &dyn Device,
    target: &dyn Target,
    model: &Model,
    precision: DType,
) -> (Box<dyn Executor>, Arc<dyn StateStore>) {
    load_nudged(device, target, model, precision, 0.0)
}

/// The same, with content that is larger by a share of itself.
fn load_nudged(
    device: &dyn Device,
    target: &dyn Target,
    model: &Model,
    precision: DType,
    nudge: f32,
) -> (Box<dyn Executor>, Arc<dyn StateStore>) {
    let options = CompileOptions { precision, ..CompileOptions::default() };
    let plan = compile(&model.graph, target, &options).unwrap();
    let state = device.new_state(StateLayout::of_plan(&plan)).unwrap();
    fill(&*state, model, nudge);
    (device.load(plan, &state, &StateBinding::default()).unwrap(), state)
}

/// Gives a state its initial content.
fn fill(state: &dyn StateStore, model: &Model, nudge: f32) {
    for spec in model.specs.iter().filter(|spec| state.layout().number(&spec.name).is_ok()) {
        let content = initialise(spec, 5);
        match spec.ty.dtype {
            DType::I32 => {
                let content: Vec<u8> = content.iter().flat_map(|&x| (x as i32).to_ne_bytes()).collect();
                state.write(&spec.name, &content).unwrap();
            }
            _ => {
                let content: Vec<f32> = content.iter().map(|x| x + x * nudge).collect();
                state.write(&spec.name, bytemuck::cast_slice(&content)).unwrap();
            }
        }
    }
}

fn feed_all(executor: &mut dyn Executor, model: &Model, batch: usize, feed: Feed<'_>) {
    for (_, input) in model.graph.inputs().filter(|(_, input)| input.role == Role::Feed) {
        if executor.has_feed(&input.name) {
            executor.feed(&[(&input.name, &feed(&input.name, &input.ty, batch))]).unwrap();
        }
    }
}

/// How long a model is trained, and how far devices may differ behind that.
pub(crate) struct Run {
    pub(crate) steps: usize,
    pub(crate) micro_batches: usize,
    /// Type in which tensors are stored.
    pub(crate) precision: DType,
    /// Between scalars of the first five steps, relative to themselves.
    pub(crate) of_scalars: f32,
    /// Between scalars of the steps behind those.
    pub(crate) of_later_scalars: f32,
    /// Between elements of a tensor of the state, relative to its largest one; where there is `of_gradients`, of all of the state but
    /// that as one vector, relative to its length.
    pub(crate) of_state: f32,
    /// Between what the state keeps of gradients (momenta, sums over micro-batches) as one vector, relative to its length: a multiple of
    /// what the CPU differs by from itself where parameters begin larger by [`NUDGE`] of themselves, and at least 4e-3.
    pub(crate) of_gradients: Option<f32>,
    pub(crate) trouble: Trouble,
    /// Whether products and convolutions leave what follows them to kernels.
    pub(crate) no_epilogues: bool,
    /// By which share of themselves initial parameters are larger.
    pub(crate) nudge: f32,
}

/// A rounding or two of `f32`, as sums in another order have.
const NUDGE: f32 = 2.4e-7;

impl Run {
    pub(crate) const DEFAULT: Run = Run {
        steps: 3,
        micro_batches: 1,
        precision: DType::F32,
        of_scalars: 1e-5,
        of_later_scalars: 1e-3,
        of_state: 1e-5,
        of_gradients: None,
        trouble: Trouble::Nothing,
        no_epilogues: false,
        nudge: 0.0,
    };
}

/// Steps whose scalars are compared by the closer tolerance.
const FIRST_STEPS: usize = 5;
/// How names of what is kept of gradients begin.
const GRADIENTS: [&str; 2] = ["momentum.", "accumulate."];

/// Submits a step of these micro-batches, in which something may go wrong.
fn submit(
    executor: &mut dyn Executor,
    model: &Model,
    micro_batches: &[usize],
    trouble: Trouble,
    feed: Feed<'_>,
) -> Ticket {
    for (round, &micro_batch) in micro_batches.iter().enumerate() {
        let is_last = round + 1 == micro_batches.len();
        let is_bad = if trouble == Trouble::Index { round == 0 } else { is_last };
        let bad = trouble.feed().filter(|_| is_bad);
        feed_all(executor, model, micro_batch, &|name, ty, batch| match bad {
            Some((bad, number)) if bad == name => number.repeat(ty.shape.elements()),
            _ => feed(name, ty, batch),
        });
        if !is_last {
            executor.accumulate().unwrap();
        }
    }
    executor.submit().unwrap()
}

/// Trains a model. Where a step fails before each of those that count, a device that runs in the background has another one queued
/// behind it.
fn train(device: &dyn Device, target: &dyn Target, model: &Model, run: &Run, feed: Feed<'_>) -> Outcome {
    train_rank(device, target, model, run, (0, 1), feed)
}

/// The same as number `rank` of `ranks`, which share the micro-batches of each step.
pub(crate) fn train_rank(
    device: &dyn Device,
    target: &dyn Target,
    model: &Model,
    run: &Run,
    (rank, ranks): (usize, usize),
    feed: Feed<'_>,
) -> Outcome {
    let (mut executor, state) = load_nudged(device, target, model, run.precision, run.nudge);
    if state.layout().number(MICRO_STEP).is_ok() {
        write_i32(&*state, MICRO_STEP, &[rank as i32]).unwrap();
    }
    let executor = &mut *executor;
    let mut scalars = Vec::new();
    for step in 0..run.steps {
        let all = step * run.micro_batches..(step + 1) * run.micro_batches;
        let micro_batches: Vec<usize> = all.skip(rank).step_by(ranks).collect();
        let submit = |executor: &mut dyn Executor, trouble| submit(executor, model, &micro_batches, trouble, feed);
        if run.trouble != Trouble::Nothing {
            let bad = submit(executor, run.trouble);
            let behind = (device.properties().kind == "cuda").then(|| submit(executor, Trouble::Nothing));
            match executor.collect(bad) {
                Ok(results) => assert!(results.scalar("loss").unwrap().is_nan()),
                Err(error) => assert!(error.to_string().contains("index -1 at position 0 is not in"), "{error}"),
            }
            if let Some(behind) = behind {
                let error = executor.collect(behind).unwrap_err();
                let expected = RunError::Halted { step: behind.0, failed: bad.0 };
                assert_eq!(error.to_string(), expected.to_string());
            }
        }
        let ticket = submit(executor, Trouble::Nothing);
        scalars.push(executor.collect(ticket).unwrap().scalars.clone());
    }
    Outcome { scalars, state: floats_of(&*state) }
}

/// The tensors of floats of a state.
fn floats_of(state: &dyn StateStore) -> BTreeMap<String, Vec<f32>> {
    let floats = state.layout().tensors().iter().filter(|tensor| tensor.ty.dtype == DType::F32);
    floats.map(|tensor| (tensor.name.clone(), read_f32(state, &tensor.name).unwrap())).collect()
}

/// What is known behind each step of training: its scalars, and the state.
pub(crate) type History = Vec<(Vec<(String, f32)>, BTreeMap<String, Vec<f32>>)>;

/// Trains on the GPU, launch by launch and recorded, which make the same bits, and on the CPU. `None` where there is no mock.
pub(crate) fn histories(test: &str, model: &Model, run: &Run, feed: Feed<'_>) -> Option<[History; 2]> {
    let folder = mock_or_skip(test)?;
    let train = |device: &dyn Device, target: &dyn Target| {
        let (mut executor, state) = load(device, target, model, run.precision);
        let step = |step| {
            let ticket = submit(&mut *executor, model, &[step], Trouble::Nothing, feed);
            let scalars = executor.collect(ticket).unwrap().scalars.clone();
            (scalars, floats_of(&*state))
        };
        (0..run.steps).map(step).collect::<History>()
    };
    let on_gpu = |eager| {
        let gpu = open(folder, eager).unwrap();
        train(&gpu, gpu.target())
    };
    let history = on_gpu(false);
    let as_bits = |history: &History| format!("{history:?}");
    assert!(as_bits(&history) == as_bits(&on_gpu(true)), "{test}: steps that are replayed differ");
    let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
    Some([history, train(&CpuDevice::new(cpu), &CpuByRulesOfGpus(cpu))])
}

/// Trains for four steps from the initial state on, as many as an executor keeps the results of, each on another batch. All are submitted
/// before the first is collected.
fn train_in_flight(executor: &mut dyn Executor, model: &Model, feed: Feed<'_>) -> Outcome {
    let state = Arc::clone(executor.state());
    fill(&*state, model, 0.0);
    let tickets = [0, 1, 2, 3].map(|batch| {
        feed_all(executor, model, batch, feed);
        executor.submit().unwrap()
    });
    let scalars = tickets.map(|ticket| executor.collect(ticket).unwrap().scalars.clone()).to_vec();
    Outcome { scalars, state: floats_of(&*state) }
}

/// Trains while what waits in streams is done in random orders of those that are allowed, by these seeds, which changes no bit: steps that
/// are launched and, unless all are to be, recorded and replayed.
pub(crate) fn in_random_orders(
    test: &str,
    model: &Model,
    precision: DType,
    (seeds, eager): (Range<i64>, bool),
    feed: Feed<'_>,
) {
    let Some(folder) = mock_or_skip(test) else { return };
    let (knobs, gpu) = (Knobs::open(folder), open(folder, eager).unwrap());
    let load = || load(&gpu, gpu.target(), model, precision).0;
    let expected = train_in_flight(&mut *load(), model, feed);
    let mut executor = load();
    for seed in seeds {
        knobs.set("seed", seed);
        let outcome = train_in_flight(&mut *executor, model, feed);
        knobs.set("seed", 0);
        assert!(outcome == expected, "{test}: seed {seed} gives other bits");
    }
    drop(executor);
    assert_eq!(gpu.memory(), [], "{test}: memory is released");
}

/// Trains while it is looked at behind each launch whether it touched its own memory and no other.
pub(crate) fn in_their_own_memory(test: &str, model: &Model, run: &Run, feed: Feed<'_>) {
    let Some(folder) = mock_or_skip(test) else { return };
    let options = CudaOptions { no_epilogues: run.no_epilogues, check: Check::Memory, ..options(folder, true) };
    let gpu = CudaDevice::open(&options).unwrap();
    train(&gpu, gpu.target(), model, run, feed);
    println!("{test}: each launch touches its own memory");
}

/// The outputs of one run without training.
fn infer(device: &dyn Device, target: &dyn Target, model: &Model, feed: Feed<'_>) -> BTreeMap<String, Vec<u8>> {
    let (mut executor, _state) = load(device, target, model, DType::F32);
    feed_all(&mut *executor, model, 0, feed);
    executor.run().unwrap();
    let outputs = model.graph.outputs().iter();
    outputs.map(|(name, _)| (name.clone(), executor.output(name).unwrap().to_vec())).collect()
}

/// Runs inference on both devices and compares: integers are equal, floats differ by at most `allowed` of the largest of a tensor.
pub(crate) fn compare_outputs(test: &str, model: &Model, allowed: f32, feed: Feed<'_>) {
    let Some(folder) = mock_or_skip(test) else { return };
    let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
    let expected = infer(&CpuDevice::new(cpu), &CpuByRulesOfGpus(cpu), model, feed);
    let gpu = open(folder, true).unwrap();
    let actual = infer(&gpu, gpu.target(), model, feed);
    assert_eq!(gpu.memory(), [], "{test}: memory is released");
    let mut worst = Worst::default();
    for (name, value) in model.graph.outputs() {
        let (expected, actual) = (&expected[name], &actual[name]);
        if model.graph.dtype(*value) != DType::F32 {
            assert!(expected == actual, "{test}: {name} is another one");
            continue;
        }
        let float = |bytes: &[u8]| f32::from_ne_bytes(bytes.try_into().unwrap());
        let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(float).collect::<Vec<f32>>();
        let (expected, actual) = (floats(expected), floats(actual));
        let largest = expected.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
        assert_eq!(expected.len(), actual.len());
        for (x, y) in expected.iter().zip(&actual) {
            worst.note((x - y).abs() / largest, || name.clone());
        }
    }
    worst.check(test, allowed);
}

/// The largest difference that was seen, and of what.
#[derive(Default)]
pub(crate) struct Worst(f32, String);

impl Worst {
    pub(crate) fn note(&mut self, error: f32, what: impl FnOnce() -> String) {
        // An error that is NaN is the worst.
        if !matches!(error.partial_cmp(&self.0), Some(Ordering::Less | Ordering::Equal)) {
            *self = Worst(error, what());
        }
    }

    pub(crate) fn check(&self, test: &str, allowed: f32) {
        println!("{test}: {} differs by {:.1e}, {allowed:.0e} are allowed", self.1, self.0);
        assert!(self.0 <= allowed, "{test}: {} differs by {:.1e}, {allowed:.0e} are allowed", self.1, self.0);
    }
}

/// Trains on the GPU, launch by launch and recorded, which make the same bits. `None` where there is no mock.
pub(crate) fn on_gpu(test: &str, model: &Model, run: &Run, feed: Feed<'_>) -> Option<Outcome> {
    let folder = mock_or_skip(test)?;
    let train = |eager| {
        let gpu = CudaDevice::open(&CudaOptions { no_epilogues: run.no_epilogues, ..options(folder, eager) }).unwrap();
        let outcome = train(&gpu, gpu.target(), model, run, feed);
        assert_eq!(gpu.memory(), [], "{test}: memory is released");
        outcome
    };
    let outcome = train(false);
    assert!(outcome == train(true), "{test}: steps that are replayed differ from those that are launched");
    Some(outcome)
}

/// How many kernels the first step of training launches, with each region alone as when launches are not recorded, and with those
/// together that may be. `None` where there is no mock.
pub(crate) fn launches(test: &str, model: &Model, precision: DType, feed: Feed<'_>) -> Option<[i64; 2]> {
    let folder = mock_or_skip(test)?;
    let knobs = Knobs::open(folder);
    Some([true, false].map(|eager| {
        let gpu = open(folder, eager).unwrap();
        let (mut executor, _state) = load(&gpu, gpu.target(), model, precision);
        feed_all(&mut *executor, model, 0, feed);
        let before = knobs.get("launches");
        executor.run().unwrap();
        knobs.get("launches") - before
    }))
}

/// Trains on both devices and compares. What the GPU made.
pub(crate) fn compare(test: &str, model: &Model, run: &Run, feed: Feed<'_>) -> Option<Outcome> {
    let actual = on_gpu(test, model, run, feed)?;
    let cpu = CpuOptions { threads: 1, ..CpuOptions::default() };
    let on_cpu = |run: &Run| train(&CpuDevice::new(cpu), &CpuByRulesOfGpus(cpu), model, run, feed);
    let expected = on_cpu(run);
    let allowed = run.of_gradients.map(|factor| {
        let noise = expected.distance(&on_cpu(&Run { nudge: NUDGE, ..*run })).relative();
        println!("{test}: what is kept of gradients differs by {noise:.1e} on the CPU where parameters are nudged");
        (factor * noise).max(4e-3)
    });
    expected.agrees(test, &actual, &Run { of_gradients: allowed, ..*run }, |_| true);
    Some(actual)
}

impl Outcome {
    /// Whether scalars, and tensors of the state that count, have the same bits.
    pub(crate) fn is_as(&self, other: &Outcome, counts: impl Fn(&str) -> bool) -> bool {
        let state = |outcome: &Outcome| {
            let counted = outcome.state.iter().filter(|(name, _)| counts(name));
            counted.map(|(name, content)| (name.clone(), content.clone())).collect::<Vec<_>>()
        };
        self.scalars == other.scalars && state(self) == state(other)
    }

    /// Compares scalars, and each tensor of the state that counts, relative to its largest element.
    pub(crate) fn agrees(&self, test: &str, actual: &Outcome, run: &Run, counts: impl Fn(&str) -> bool) {
        let (mut scalars, mut later, mut tensors) = (Worst::default(), Worst::default(), Worst::default());
        for (step, (expected, actual)) in self.scalars.iter().zip(&actual.scalars).enumerate() {
            // Several ranks also tell each other of a wish to stop.
            let actual = actual.iter().filter(|(name, _)| name != STOP);
            assert!(expected.iter().map(|(name, _)| name).eq(actual.clone().map(|(name, _)| name)));
            let worst = if step < FIRST_STEPS { &mut scalars } else { &mut later };
            for ((name, x), (_, y)) in expected.iter().zip(actual) {
                worst.note((x - y).abs() / x.abs().max(1e-3), || format!("{name} of step {step}, {y} for {x},"));
            }
        }
        let counted = |outcome: &Outcome| outcome.state.keys().filter(|name| counts(name)).cloned().collect::<Vec<_>>();
        assert_eq!(counted(self), counted(actual));
        let mut others = Distance::default();
        for (name, x) in self.state.iter().filter(|(name, _)| counts(name)) {
            let y = &actual.state[name];
            if run.of_gradients.is_some() {
                if !is_gradient(name) {
                    others.add(x, y);
                }
                continue;
            }
            let largest = x.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
            for (x, y) in x.iter().zip(y) {
                tensors.note((x - y).abs() / largest, || name.clone());
            }
        }
        scalars.check(test, run.of_scalars);
        later.check(test, run.of_later_scalars);
        tensors.check(test, run.of_state);
        if let Some(allowed) = run.of_gradients {
            self.distance(actual).check(test, "what is kept of gradients", allowed);
            others.check(test, "all other state", run.of_state);
        }
    }

    /// Between what both keep of gradients.
    fn distance(&self, other: &Outcome) -> Distance {
        let mut distance = Distance::default();
        let kept = self.state.iter().filter(|(name, _)| is_gradient(name));
        kept.for_each(|(name, x)| distance.add(x, &other.state[name]));
        distance
    }
}

fn is_gradient(name: &str) -> bool {
    GRADIENTS.iter().any(|gradients| name.starts_with(gradients))
}

/// Between two vectors, relative to the length of the first one.
#[derive(Default)]
struct Distance {
    difference: f64,
    length: f64,
}

impl Distance {
    /// Elements of both.
    fn add(&mut self, x: &[f32], y: &[f32]) {
        self.difference += x.iter().zip(y).map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>();
        self.length += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    }

    fn relative(&self) -> f32 {
        (self.difference / self.length).sqrt() as f32
    }

    fn check(&self, test: &str, what: &str, allowed: f32) {
        assert!(self.length > 0.0, "{test}: there is no {what}");
        Worst(self.relative(), what.to_owned()).check(test, allowed);
    }
}
