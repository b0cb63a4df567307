//! Measures steps: warm-up steps that do not count, a timed window, repeats whose median is the result.

use crate::budget::{Budget, TRIAL_STEPS, Trial};
use crate::inputs::{Data, Inputs};
use crate::machine::{Limits, Machine, available_memory, peak_resident_bytes, reset_peak_resident};
use crate::peers::process::{Call, Runner};
use crate::peers::protocol::{Failure, FailureKind};
use crate::profile::{KernelCall, profile};
use crate::show;
use crate::workload::{Mode, StepSettings, Work, Workload};
use bessemer_comm::launch::{Placement, process_variables};
use bessemer_comm::mpi::MpiLibrary;
use bessemer_ir::passes::buckets::BucketOptions;
use bessemer_ir::passes::recompute::Recompute;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::run::{Device, Executor, RunError, StepResults, write_f32};
use bessemer_ir::{DType, Role};
use bessemer_models::ModelError;
use bessemer_nn::initialise;
use bessemer_train::device::lacks_library;
use bessemer_train::events::{BenchResult, BenchRun};
use bessemer_train::memory::{Batch, BatchTooLarge, plan_bytes};
use bessemer_train::recipe::Compute;
use bessemer_train::stats::{median, published_style, spread, step_times};
use bessemer_train::{DeviceError, DeviceKind, DeviceOptions, Group, TrainError};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

mod row;
use row::unmeasured;
pub use row::{BUDGET_OPTION, ERROR_OPTION, INTERRUPTED_OPTION, failed};
pub(crate) use row::{CLIP_OPTION, ISA_OPTION, MEANS_OPTION, NORMS_OPTION, OVERLAP_OPTION, SYNTHETIC, options_of};

/// A measurement to make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Name of the model.
    pub model: String,
    /// Whether steps train or infer.
    pub mode: Mode,
    /// Samples of a micro-batch; at least 1.
    pub batch_size: usize,
    /// Whether operations are merged into fused kernels.
    pub fuse: bool,
    /// Precision of the arithmetic.
    pub precision: Compute,
    /// Which activations the backward pass computes a second time.
    #[serde(with = "by_name")]
    pub recompute: Recompute,
    /// Passes of the compiler that are left out, see [`optional_pass_names`](bessemer_ir::passes::optional_pass_names).
    pub without: Vec<String>,
    /// Steps before the timed ones.
    pub warmup: usize,
    /// Timed steps of each repeat; at least 1.
    pub steps: usize,
    /// Number of repeats, if all are made; at least 1.
    pub repeat: usize,
    /// Time in which as many of them are made as fit; without it all are.
    pub budget: Option<Budget>,
    /// Seed of the generated inputs and initial weights.
    pub seed: u64,
    /// Sizes and options of the step.
    pub settings: StepSettings,
    /// Whether sums over ranks travel while the rest of the step is computed.
    pub overlap: bool,
    /// Device that the steps run on.
    pub device: DeviceOptions,
    /// What training steps are fed; without it inputs are random and in memory.
    #[serde(default)]
    pub data: Option<Data>,
}

/// What has a name is written by it.
mod by_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(super) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Warm-up steps, timed steps and repeats of a measurement as DLPerf makes them.
pub const DLPERF_COUNTS: (usize, usize, usize) = (20, 100, 7);

impl Request {
    /// The usual settings of a model, in fp32 on the whole device, measured as DLPerf does.
    pub fn of(model: &str, mode: Mode, batch_size: usize) -> Self {
        let (warmup, steps, repeat) = DLPERF_COUNTS;
        Self {
            model: model.to_owned(),
            mode,
            batch_size,
            fuse: true,
            precision: Compute::Fp32,
            recompute: Recompute::None,
            without: Vec::new(),
            warmup,
            steps,
            repeat,
            budget: None,
            seed: 0,
            settings: StepSettings::default(),
            overlap: true,
            device: DeviceOptions::default(),
            data: None,
        }
    }

    pub(crate) fn work(&self) -> Work<'_> {
        let precision = self.precision.on(self.device.kind).unwrap_or(DType::F32);
        let Self { model, mode, batch_size, settings, .. } = self;
        Work { model, mode: *mode, batch_size: *batch_size, precision, settings: *settings }
    }

    /// Micro-batches of a step of one rank.
    fn micro_batches(&self) -> usize {
        if self.mode == Mode::Train { self.settings.accumulation as usize / self.settings.ranks } else { 1 }
    }

    /// Whether its steps, of one micro-batch each, are recorded on a GPU and replayed.
    pub fn is_replayed(&self) -> bool {
        self.device.kind != DeviceKind::Cpu && !self.device.eager && self.micro_batches() == 1
    }

    /// Samples of a step of one rank.
    pub(crate) fn rank_samples(&self) -> usize {
        self.batch_size * self.micro_batches()
    }
}

/// Why a measurement cannot be made.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Batch(#[from] Box<BatchTooLarge>),
    #[error("{setting} is 0; at least 1 is needed")]
    Zero { setting: &'static str },
    #[error("out of memory: the step needs {}, {} are free", show::bytes(*needed), show::bytes(*available))]
    Memory { needed: u64, available: u64 },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Process(#[from] Failure),
    #[error(transparent)]
    Ranks(#[from] TrainError),
    #[error("a batch of {batch_size} cannot be divided among {ranks} ranks")]
    Indivisible { batch_size: usize, ranks: usize },
}

impl MeasureError {
    /// # Errors
    /// [`MeasureError::Memory`] where less than this is free.
    pub fn check_memory(needed: u64) -> Result<(), MeasureError> {
        match available_memory().filter(|available| *available < needed) {
            Some(available) => Err(MeasureError::Memory { needed, available }),
            None => Ok(()),
        }
    }

    /// Whether the measurement failed for lack of memory, so that a smaller batch may succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            MeasureError::Memory { .. }
            | MeasureError::Batch(_)
            | MeasureError::Run(RunError::Memory { .. })
            | MeasureError::Ranks(TrainError::Batch(_) | TrainError::Run(RunError::Memory { .. })) => true,
            MeasureError::Process(failure) => failure.kind == FailureKind::Memory,
            _ => false,
        }
    }

    /// Whether the device, or a library of it, is not there.
    pub fn lacks_device(&self) -> bool {
        match self {
            MeasureError::Device(_) => true,
            MeasureError::Run(error) => lacks_library(error),
            _ => false,
        }
    }

    /// Whether the user asked the measurement to stop.
    pub fn is_interrupted(&self) -> bool {
        matches!(self, MeasureError::Process(failure) if failure.kind == FailureKind::Interrupted)
    }

    /// The error of a rank, as it is told to the others.
    fn of_rank(self) -> TrainError {
        match self {
            MeasureError::Ranks(error) => error,
            MeasureError::Model(error) => error.into(),
            MeasureError::Device(error) => error.into(),
            MeasureError::Run(error) => error.into(),
            MeasureError::Batch(error) => error.into(),
            MeasureError::Memory { needed, .. } => {
                let source = ErrorKind::OutOfMemory.into();
                RunError::Memory { what: "the step", bytes: needed as usize, source }.into()
            }
            other => {
                let (name, value) = ("the measurement", "not possible".to_owned());
                TrainError::Setting { name, value, allowed: other.to_string() }
            }
        }
    }
}

/// Steps timed one by one after others that do not count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub(crate) step_ms: Vec<f64>,
    /// From the end of the warm-up to the end of the last step.
    pub(crate) window_s: f64,
    /// Of all steps, where there are any.
    pub(crate) losses: Vec<f64>,
}

impl Timed {
    /// Calls `step` with 0, 1 and so on.
    ///
    /// # Errors
    /// The first of a step.
    pub fn window<E>(
        warmup: usize,
        steps: usize,
        mut step: impl FnMut(usize) -> Result<Option<f64>, E>,
    ) -> Result<Timed, E> {
        let mut timed = Timed::default();
        for index in 0..warmup {
            timed.losses.extend(step(index)?);
        }
        let start = Instant::now();
        for index in 0..steps {
            let begin = Instant::now();
            timed.losses.extend(step(warmup + index)?);
            timed.step_ms.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        timed.window_s = start.elapsed().as_secs_f64();
        Ok(timed)
    }
}

/// A step ready for its weights, if there is memory for it.
pub(crate) fn compiled(
    work: &Workload,
    device: &dyn Device,
    options: &CompileOptions,
) -> Result<Box<dyn Executor>, MeasureError> {
    let plan = compile(&work.graph, device.target(), options).map_err(ModelError::from)?;
    if device.properties().product.is_none() {
        MeasureError::check_memory(plan.memory_bytes() as u64)?;
    }
    Ok(device.load_alone(plan)?)
}

/// A step with weights as the model initialises them and random feeds.
pub(crate) fn drawn(
    work: &Workload,
    device: &dyn Device,
    options: &CompileOptions,
    seed: u64,
) -> Result<Box<dyn Executor>, MeasureError> {
    let mut executor = compiled(work, device, options)?;
    for spec in work.specs.iter().filter(|spec| spec.ty.dtype == DType::F32) {
        write_f32(&**executor.state(), &spec.name, &initialise(spec, seed))?;
    }
    for (_, input) in work.graph.inputs().filter(|(_, input)| input.role == Role::Feed) {
        executor.feed(&[(&input.name, &work.content(input, seed))])?;
    }
    executor.compute_invariants()?;
    Ok(executor)
}

/// Runs a step; the loss when training.
pub(crate) fn run_step(executor: &mut dyn Executor, mode: Mode) -> Result<Option<f64>, MeasureError> {
    loss_of(executor.run()?, mode)
}

/// The loss of a training step.
pub(crate) fn loss_of(results: &StepResults, mode: Mode) -> Result<Option<f64>, MeasureError> {
    match mode {
        Mode::Train => Ok(Some(f64::from(results.scalar("loss")?))),
        Mode::Infer => Ok(None),
    }
}

/// A model's compiled step with random weights, and random input or that of a data set, ready to run.
pub struct Prepared {
    executor: Box<dyn Executor>,
    inputs: Option<Inputs>,
    mode: Mode,
    batch_size: usize,
    micro_batches: usize,
    /// FLOPs of convolutions and matrix products of one micro-batch.
    model_flops: u64,
}

impl Request {
    /// Looks whether there are kernels for the step on a device that does not have those of all operations, without the device.
    ///
    /// # Errors
    /// [`MeasureError::Model`]: operations without a kernel, an unknown model.
    pub fn check_kernels(&self) -> Result<(), MeasureError> {
        match self.device.kind {
            DeviceKind::Cpu => Ok(()),
            DeviceKind::Cuda { .. } => {
                let work = self.work().build()?;
                let compiled = compile(&work.graph, &*self.device.target(), &self.compile_options());
                compiled.map(drop).map_err(|error| ModelError::from(error).into())
            }
        }
    }

    /// The error of a step that found no memory, with the largest batch that has it.
    fn explained(&self, error: MeasureError, device: &dyn Device) -> MeasureError {
        let MeasureError::Run(error) = error else { return error };
        let batch = Batch { size: self.batch_size, setting: "--batch-size" };
        let explained = batch.explained(error, device, |batch_size| {
            let work = Work { batch_size, ..self.work() }.build().ok()?;
            Some(plan_bytes(&compile(&work.graph, device.target(), &self.compile_options()).ok()?))
        });
        explained.map_or_else(MeasureError::Run, MeasureError::Batch)
    }

    fn compile_options(&self) -> CompileOptions {
        let buckets = BucketOptions { overlap: self.overlap, ..BucketOptions::default() };
        let (precision, tf32) = (self.work().precision, self.precision == Compute::Tf32);
        CompileOptions {
            fuse: self.fuse,
            precision,
            tf32,
            recompute: self.recompute,
            disabled: self.without.clone(),
            buckets,
        }
    }
}

impl Prepared {
    /// Compiles the step and fills its inputs: weights as the model initialises them, feeds at random until batches come.
    ///
    /// # Errors
    /// An unknown model, a batch of zero, no memory; data that cannot be used.
    pub fn new(request: &Request) -> Result<Prepared, MeasureError> {
        Prepared::on(request, &*request.device.open()?)
    }

    pub(crate) fn on(request: &Request, device: &dyn Device) -> Result<Prepared, MeasureError> {
        let work = request.work().build()?;
        let model_flops = bessemer_models::flops(&work.graph);
        let executor = drawn(&work, device, &request.compile_options(), request.seed);
        let executor = executor.map_err(|error| request.explained(error, device))?;
        let (mode, batch_size, micro_batches) = (request.mode, request.batch_size, request.micro_batches());
        let inputs = request.data.as_ref().map(|data| Inputs::open(data, request)).transpose()?;
        Ok(Prepared { executor, inputs, mode, batch_size, micro_batches, model_flops })
    }

    /// Runs one step; the loss when training.
    ///
    /// # Errors
    /// When a kernel fails, or a batch cannot be loaded or is not of the step's sizes.
    pub fn step(&mut self) -> Result<Option<f64>, MeasureError> {
        for micro_batch in 0..self.micro_batches {
            if let Some(inputs) = &mut self.inputs {
                inputs.feed(&mut *self.executor)?;
            }
            if micro_batch + 1 < self.micro_batches {
                self.executor.accumulate()?;
            }
        }
        run_step(&mut *self.executor, self.mode)
    }

    /// See [`profile`].
    ///
    /// # Errors
    /// When a kernel fails.
    pub fn profile(&mut self, steps: usize) -> Result<Vec<KernelCall>, MeasureError> {
        Ok(profile(&mut *self.executor, steps)?)
    }

    /// Time that steps waited for their batches since the last call; `None` where inputs are in memory.
    fn take_input_wait(&mut self) -> Option<Duration> {
        self.inputs.as_mut().map(Inputs::take_waited)
    }

    pub(crate) fn executor(&mut self) -> &mut dyn Executor {
        &mut *self.executor
    }

    /// FLOPs of the model for one sample.
    pub fn flops_per_sample(&self) -> f64 {
        self.model_flops as f64 / self.batch_size as f64
    }

    /// FLOPs that kernels do for one sample.
    pub fn hardware_flops_per_sample(&self) -> f64 {
        let flops: u64 = self.executor.kernels().iter().map(|kernel| kernel.flops).sum();
        flops as f64 / self.batch_size as f64
    }
}

/// One repeat.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    pub(crate) timed: Timed,
    /// Seconds of the timed steps in which they waited for their batches.
    #[serde(default)]
    pub(crate) input_wait_s: Option<f64>,
    pub(crate) flops_per_sample: f64,
    pub(crate) hardware_flops_per_sample: f64,
    /// What states and plans use of the memory of a device that has its own; else the most memory that the process held
    /// meanwhile, if the system reports it.
    pub(crate) peak_memory_bytes: Option<u64>,
    /// Of all ranks, in their order; a process that is alone is one.
    pub(crate) ranks: Vec<RankTimes>,
    /// What carried messages between ranks; `None` where there is one.
    pub(crate) transport: Option<String>,
}

/// The timed steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankTimes {
    /// Name of its machine.
    pub(crate) host: String,
    /// Seconds of all of them.
    pub(crate) window_s: f64,
    /// Seconds of them for which it waited for sums over ranks.
    pub(crate) waited_s: f64,
}

impl Repeat {
    /// Measures in this process.
    ///
    /// # Errors
    /// As [`Prepared::new`] and [`Prepared::step`].
    pub fn here(request: &Request) -> Result<Repeat, MeasureError> {
        Self::beside(request, &Group::alone())
    }

    /// Measures in this process, a rank, while the others do the same; rank 0 gets the times of all. They communicate if the
    /// request is for several ranks, else they only begin the timed steps together.
    ///
    /// # Errors
    /// [`TrainError`] of this rank or another.
    pub fn of_rank(request: &Request, group: &Group) -> Result<Repeat, TrainError> {
        let own = Self::beside(request, group).map_err(MeasureError::of_rank)?;
        let all = group.gather(own.clone())?;
        let transport = if group.size() > 1 { Some(transport(request)?) } else { None };
        let ranks = all.iter().flat_map(|repeat| repeat.ranks.clone()).collect();
        let peak_memory_bytes = all.iter().map(|repeat| repeat.peak_memory_bytes).max().flatten();
        Ok(Repeat { ranks, peak_memory_bytes, transport, ..own })
    }

    fn beside(request: &Request, group: &Group) -> Result<Repeat, MeasureError> {
        let knows_peak = reset_peak_resident();
        let device = request.device.open_rank(group.link()).map_err(|error| match error {
            TrainError::Device(error) => MeasureError::Device(error),
            error => error.into(),
        })?;
        let mut prepared = Prepared::on(request, &*device)?;
        let warmup = Timed::window(request.warmup, 0, |_| prepared.step())?;
        group.any(false)?;
        group.take_waited();
        prepared.take_input_wait();
        let timed = Timed::window(0, request.steps, |_| prepared.step())?;
        let waited_s = group.take_waited().as_secs_f64();
        let host = group.hosts().get(group.rank()).cloned().unwrap_or_default();
        Ok(Repeat {
            ranks: vec![RankTimes { host, window_s: timed.window_s, waited_s }],
            timed: Timed { losses: [warmup.losses, timed.losses].concat(), ..timed },
            input_wait_s: prepared.take_input_wait().map(|time| time.as_secs_f64()),
            flops_per_sample: prepared.flops_per_sample(),
            hardware_flops_per_sample: prepared.hardware_flops_per_sample(),
            peak_memory_bytes: device.memory_in_use().or_else(|| knows_peak.then(peak_resident_bytes).flatten()),
            transport: None,
        })
    }

    /// Samples a second of all ranks together.
    pub(crate) fn throughput(&self, request: &Request) -> f64 {
        let samples = (request.rank_samples() * request.steps) as f64;
        self.ranks.iter().map(|rank| samples / rank.window_s).sum()
    }

    /// Measures in a fresh process, which gets `options` behind the request; what it says goes to files at `log`.
    ///
    /// # Errors
    /// The process fails.
    pub fn in_process(
        request: &Request,
        runner: &Runner,
        options: &[String],
        log: &Path,
    ) -> Result<Repeat, MeasureError> {
        let path = log.with_extension("json");
        let text = serde_json::to_string(request).expect("requests have string keys");
        let io_failure = |error: std::io::Error| Failure::new(FailureKind::Failed, error.to_string());
        fs::write(&path, text).map_err(io_failure)?;
        let command = [runner.program.as_os_str(), "peer".as_ref(), "bench".as_ref(), path.as_os_str()];
        let command = command.map(|word| word.to_string_lossy().into_owned());
        let command: Vec<String> = command.into_iter().chain(options.iter().cloned()).collect();
        let call = Call { command: &command, processors: None, limit: LIMIT, log };
        let ended = runner.call(&call)?;
        let invalid = |error: serde_json::Error| Failure::new(FailureKind::Invalid, error.to_string());
        Ok(serde_json::from_str(&ended.answer).map_err(invalid)?)
    }
}

/// What carries sums between ranks.
fn transport(request: &Request) -> Result<String, TrainError> {
    if let DeviceKind::Cuda { .. } = request.device.kind {
        return Ok("NCCL".to_owned());
    }
    let variables = process_variables();
    Ok(MpiLibrary::find(None, &Placement::from_variables(&variables)?, &variables)?.version().to_owned())
}

/// A measurement of one's own may take as long as it takes.
const LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// What a measurement tells on its way.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// What fits into the time.
    Fitted(&'a Request),
    /// A repeat is made.
    Repeat {
        /// What is measured, with the counts that fit.
        request: &'a Request,
        /// Its number, from 1.
        number: usize,
        /// Samples a second.
        throughput: f64,
        /// Time that the repeats after it will take.
        left: Duration,
    },
}

/// A trial, and the request with the counts that fit behind it: none if it took all the time.
fn try_few_steps(
    request: &Request,
    budget: Budget,
    once: &mut impl FnMut(&Request) -> Result<Repeat, MeasureError>,
) -> Result<(Repeat, Option<Request>), MeasureError> {
    let start = Instant::now();
    let repeat = once(&Budget::trial(request))?;
    let (taken_s, step_ms) = (start.elapsed().as_secs_f64(), &repeat.timed.step_ms);
    let step_s = step_ms.iter().sum::<f64>() / 1e3 / step_ms.len().max(1) as f64;
    let start_s = (taken_s - (TRIAL_STEPS.0 + TRIAL_STEPS.1) as f64 * step_s).max(0.0);
    let left_s = budget.time.as_secs_f64() - taken_s;
    let fitted = budget.fit(request, Trial { start_s, step_s, left_s });
    Ok((repeat, fitted))
}

/// Measures one configuration by repeats as `once` makes them, and the limits of the machine once more after them: `limits`
/// become the greater ones. With a budget, a trial tells how many steps and repeats fit into it; they are those of the result.
/// If a repeat is interrupted, the result has those before it, and [`INTERRUPTED_OPTION`].
///
/// # Errors
/// [`MeasureError`]; an interruption before the first repeat is made.
pub fn measure(
    request: &Request,
    machine: &Machine,
    limits: &mut Limits,
    mut once: impl FnMut(&Request) -> Result<Repeat, MeasureError>,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<BenchResult, MeasureError> {
    for (setting, value) in [("steps", request.steps), ("repeat", request.repeat)] {
        if value == 0 {
            return Err(MeasureError::Zero { setting });
        }
    }
    // What is not possible is found out before anything runs.
    request.work().build()?;
    let tried = request.budget.map(|budget| try_few_steps(request, budget, &mut once)).transpose()?;
    let (mut trial, fitted) = match tried {
        Some((repeat, None)) => (Some(repeat), Some(Budget::trial(request))),
        Some((_, fitted)) => (None, fitted),
        None => (None, None),
    };
    if let Some(fitted) = &fitted {
        progress(Progress::Fitted(fitted));
    }
    let budget = request.budget;
    let request = fitted.as_ref().unwrap_or(request);
    let mut result = unmeasured(request, machine);
    if let Some(budget) = budget {
        result.options.insert(BUDGET_OPTION.to_owned(), budget.time.as_secs_f64().into());
    }
    let (mut ranks, mut window_s, mut input_wait_s) = (1, 0.0, None);
    let start = Instant::now();
    for number in 1..=request.repeat {
        let made = match trial.take().map_or_else(|| once(request), Ok) {
            Err(error) if error.is_interrupted() && number > 1 => {
                result.options.insert(INTERRUPTED_OPTION.to_owned(), true.into());
                break;
            }
            made => made?,
        };
        let throughput = made.throughput(request);
        ranks = made.ranks.len();
        let left = start.elapsed().mul_f64((request.repeat - number) as f64 / number as f64);
        progress(Progress::Repeat { request, number, throughput, left });
        window_s += made.timed.window_s;
        input_wait_s = made.input_wait_s.map(|waited| waited + input_wait_s.unwrap_or(0.0));
        let Repeat { timed, flops_per_sample, hardware_flops_per_sample, peak_memory_bytes, .. } = made;
        result.flops_per_sample = Some(flops_per_sample);
        result.hardware_flops_per_sample = Some(hardware_flops_per_sample);
        result.peak_memory_bytes = result.peak_memory_bytes.max(peak_memory_bytes);
        result.loss_first = timed.losses.first().copied();
        result.loss_last = timed.losses.last().copied();
        result.runs.push(BenchRun { throughput, step_ms: timed.step_ms, ..BenchRun::default() });
    }
    result.repeat = result.runs.len() as u64;
    result.input_wait = input_wait_s.map(|waited| waited / window_s);
    summarise(&mut result);
    *limits = limits.greater(Limits::measure(&*request.device.open()?));
    let peak = limits.peak(request.precision).1 * 1e9 * ranks as f64;
    result.fraction_of_peak = result.flops_per_sample.map(|flops| flops * result.throughput / peak);
    result.hardware_fraction_of_peak = result.hardware_flops_per_sample.map(|flops| flops * result.throughput / peak);
    Ok(result)
}

/// Fills in what follows from the runs of a result: speed, spread and times of steps.
pub(crate) fn summarise(result: &mut BenchResult) {
    let rates: Vec<f64> = result.runs.iter().map(|run| run.throughput).collect();
    let times: Vec<f64> = result.runs.iter().flat_map(|run| run.step_ms.iter().copied()).collect();
    result.throughput = median(&rates);
    result.spread = spread(&rates);
    result.step_ms = step_times(&times);
    result.published_style = published_style(&times);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn request(steps: usize) -> Request {
        Request { warmup: 1, steps, repeat: 2, seed: 1, ..Request::of("resnet20-cifar", Mode::Train, 2) }
    }

    #[test]
    fn a_step_is_measured() {
        let machine = Machine::look(&*DeviceOptions::default().open().unwrap());
        let mut limits =
            Limits { fp32_gflops: 1e-3, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 1e6 };
        let result = measure(&request(2), &machine, &mut limits, Repeat::here, |_| {}).expect("a small model runs");
        assert!(limits.fp32_gflops > 0.1 && limits.read_gbytes == 1e6, "the greater ones: {limits:?}");
        assert_eq!((result.runs.len(), result.steps), (2, 2));
        assert!(result.throughput > 0.0 && result.step_ms.min > 0.0 && result.spread >= 0.0);
        let (flops, fraction) = (result.flops_per_sample.expect("known"), result.fraction_of_peak.expect("known"));
        assert!((fraction - flops * result.throughput / (limits.fp32_gflops * 1e9)).abs() < 1e-12);
        assert!(result.loss_first.expect("training has a loss") > result.loss_last.expect("training has a loss"));
        assert!(matches!(
            measure(&request(0), &machine, &mut limits, Repeat::here, |_| {}),
            Err(MeasureError::Zero { setting: "steps" })
        ));
    }

    #[test]
    fn counts_fit_into_the_budget() {
        let machine = Machine::look(&*DeviceOptions::default().open().unwrap());
        let mut limits =
            Limits { fp32_gflops: 1.0, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 1.0 };
        let mut measured = |time: Duration| {
            let budget = Budget { time, keeps_warmup: true, keeps_steps: false, keeps_repeat: false };
            let request = Request { budget: Some(budget), ..request(4) };
            let mut fitted = None;
            let progress = |progress: Progress<'_>| {
                if let Progress::Fitted(request) = progress {
                    fitted = Some((request.warmup, request.steps, request.repeat));
                }
            };
            let result = measure(&request, &machine, &mut limits, Repeat::here, progress).expect("a small model runs");
            let made = (result.warmup as usize, result.steps as usize, result.runs.len());
            assert!(fitted == Some(made) && result.runs.iter().all(|run| run.step_ms.len() == made.1), "{made:?}");
            (made, result.options[BUDGET_OPTION].as_f64())
        };
        assert_eq!(measured(Duration::from_nanos(1)), ((1, 2, 1), Some(1e-9)), "the trial is the result");
        assert_eq!(measured(Duration::from_secs(3600)), ((1, 4, 2), Some(3600.0)));
    }

    #[test]
    fn what_was_made_before_an_interruption_counts() {
        let machine = Machine::look(&*DeviceOptions::default().open().unwrap());
        let mut limits =
            Limits { fp32_gflops: 1.0, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 1.0 };
        let mut measured = |repeats: usize| {
            let mut made = 0;
            let once = |request: &Request| {
                made += 1;
                let interrupted = || MeasureError::Process(Failure::new(FailureKind::Interrupted, ""));
                if made > repeats { Err(interrupted()) } else { Repeat::here(request) }
            };
            measure(&Request { repeat: 3, ..request(1) }, &machine, &mut limits, once, |_| {})
        };
        let result = measured(2).expect("two repeats");
        assert_eq!((result.repeat, &result.options[INTERRUPTED_OPTION]), (2, &Value::from(true)));
        assert!(result.throughput > 0.0 && !measured(3).expect("all").options.contains_key(INTERRUPTED_OPTION));
        assert!(measured(0).is_err());
    }

    #[test]
    fn what_is_computed_again_counts_again() {
        let flops = |mode: Mode, recompute: Recompute| {
            let request = Request { mode, recompute, precision: Compute::Bf16, repeat: 1, ..request(1) };
            let prepared = Prepared::new(&request).expect("a small model");
            (prepared.flops_per_sample(), prepared.hardware_flops_per_sample())
        };
        let (model, hardware) = flops(Mode::Infer, Recompute::None);
        assert_eq!(model, hardware, "products of 16 bits are computed directly");
        let (model, hardware) = flops(Mode::Train, Recompute::None);
        assert_eq!(model, hardware);
        let (model, hardware) = flops(Mode::Train, Recompute::Blocks);
        assert!(hardware > 1.1 * model, "{hardware} and {model}");
    }

    #[test]
    fn what_does_not_fit_is_a_row() {
        let huge = Request { batch_size: 1 << 24, ..request(1) };
        let error = Prepared::new(&huge).err().expect("nobody has so much memory");
        assert!(error.is_out_of_memory(), "{error}");
        let row = failed(&huge, &Machine::look(&*huge.device.open().unwrap()), &error);
        assert_eq!((row.throughput, row.batch_size), (0.0, 1 << 24));
        assert!(row.options[ERROR_OPTION].as_str().expect("text").contains("out of memory"));
    }
}
