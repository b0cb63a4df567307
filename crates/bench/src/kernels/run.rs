//! Runs one problem again and again and takes the time.

use super::{Bound, Problem};
use crate::machine::{Limits, Machine, available_memory};
use crate::show;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::run::{Executor, KernelInfo, RunError};
use bessemer_ir::{DType, GraphError, Role, philox};
use bessemer_train::DeviceOptions;
use bessemer_train::events::StepTimes;
use bessemer_train::stats::step_times;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How problems are measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Device that the kernels run on.
    pub device: DeviceOptions,
    /// Time in which a kernel is run again and again.
    pub time: Duration,
    /// Seed of the random inputs.
    pub seed: u64,
}

/// Runs that do not count, and those that count at least and at most.
const WARMUP: usize = 2;
const MIN_RUNS: usize = 3;
const MAX_RUNS: usize = 20_000;

/// The times of a kernel that could be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Names of the kernels that ran, with their numbers of calls.
    pub kernel: String,
    /// Number of timed runs.
    pub runs: usize,
    /// Of one run, in milliseconds.
    pub ms: StepTimes,
}

/// Compiles a problem, fills its inputs with random numbers and runs it until the time is over.
///
/// # Errors
/// In words, why it cannot be run: an operation or element type without a kernel, no memory.
pub fn measure(problem: &Problem, options: &Options) -> Result<Measured, String> {
    let device = options.device.open().map_err(|error| error.to_string())?;
    let plan = compile(&problem.graph, device.target(), &CompileOptions::default()).map_err(|error| match error {
        GraphError::Unsupported(operations) => format!("no kernel for {}", operations.list()),
        other => other.to_string(),
    })?;
    let needed = plan.memory_bytes() as u64;
    let is_of_host = device.properties().product.is_none();
    if is_of_host && available_memory().is_some_and(|available| available < needed) {
        return Err(format!("{} of memory are needed", show::bytes(needed)));
    }
    let mut executor = device.load_alone(plan).map_err(|error| error.to_string())?;
    fill(&mut *executor, problem, options.seed).map_err(|error| error.to_string())?;
    let mut run = || -> Result<f64, String> {
        let start = Instant::now();
        executor.run().map_err(|error| error.to_string())?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    for _ in 0..WARMUP {
        run()?;
    }
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < MIN_RUNS || (times.len() < MAX_RUNS && start.elapsed() < options.time) {
        times.push(run()?);
    }
    Ok(Measured { kernel: counted(&executor.kernels()), runs: times.len(), ms: step_times(&times) })
}

/// Length of the random numbers with which inputs are filled over and over: a prime number, so that no two rows of a
/// tensor are equal.
const RANDOM_PERIOD: usize = 8191;

/// Fills every input but optimizer state, which is zero at first, with numbers of -0.5 to 0.5.
fn fill(executor: &mut dyn Executor, problem: &Problem, seed: u64) -> Result<(), RunError> {
    let inputs = problem.graph.inputs().map(|(_, input)| input);
    for (stream, input) in inputs.filter(|input| input.role != Role::State).enumerate() {
        let sample = |i: usize| philox::uniform(seed, 0, stream as u32, i as u64) - 0.5;
        let block: Vec<u8> = (0..RANDOM_PERIOD.min(input.ty.shape.elements()))
            .flat_map(|i| bytes_of(input.ty.dtype, sample(i)))
            .collect();
        let mut content = block.repeat(input.ty.bytes().div_ceil(block.len().max(1)));
        content.truncate(input.ty.bytes());
        match input.role {
            Role::Feed => executor.feed(&[(&input.name, &content)])?,
            _ => executor.state().write(&input.name, &content)?,
        }
    }
    Ok(())
}

/// A number in memory; of `bf16` numbers and other types that problems have, what is below their precision is cut off.
fn bytes_of(dtype: DType, x: f32) -> Vec<u8> {
    match dtype {
        DType::F32 => x.to_ne_bytes().to_vec(),
        DType::Bf16 => ((x.to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
        other => vec![0; other.size()],
    }
}

/// Names in the order in which they first occur, each once with the number of times: `reduction x2, fusion`.
fn counted(kernels: &[KernelInfo]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for KernelInfo { name, .. } in kernels {
        match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let shown = |&(name, count): &(&str, usize)| if count == 1 { name.to_string() } else { format!("{name} x{count}") };
    counts.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// A row of the results: the machine, the problem, and times or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
pub struct KernelResult {
    /// Always `bessemer`.
    pub framework: &'static str,
    /// Version of this program.
    pub framework_version: &'static str,
    /// Kind of device, such as `cpu`.
    pub device: &'static str,
    /// Product name of the device.
    pub device_name: String,
    /// Number of devices.
    pub devices: u64,
    /// Number of machines.
    pub nodes: u64,
    /// Threads that compute.
    pub threads: u64,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// Name of the model that the kernel is taken from.
    pub model: &'static str,
    /// Name of the problem, [`Problem::name`](super::Problem::name).
    pub name: String,
    /// Family of the problem, [`Problem::family`](super::Problem::family).
    pub family: String,
    /// `fp32` or `bf16`.
    pub precision: &'static str,
    /// Calls in a step of the model.
    pub calls: u64,
    /// Kernels that ran.
    pub kernel: Option<String>,
    /// Why nothing ran.
    pub error: Option<String>,
    /// Number of timed runs; 0 if nothing ran.
    pub runs: u64,
    /// Times of one run, in milliseconds; `None` if nothing ran.
    pub ms: Option<StepTimes>,
    /// Of one run.
    pub flops: u64,
    /// Bytes that one run reads and writes.
    pub bytes: u64,
    /// Rates of the fastest run, per second.
    pub gflops: Option<f64>,
    /// In GB/s; `None` if nothing ran.
    pub gbytes: Option<f64>,
    /// What limits it: `fp32` or `bf16` arithmetic, or `memory`; and the measured limit in GFLOP/s or GB/s.
    pub limit: &'static str,
    /// The measured limit, in GFLOP/s or GB/s.
    pub limit_rate: f64,
    /// Whether it is a product in an element type for which the processor has no arithmetic.
    pub emulated: bool,
    /// Of that limit, reached by the fastest run.
    pub fraction_of_peak: Option<f64>,
}

/// The row of a problem that was measured or refused.
pub fn result(
    problem: &Problem,
    outcome: &Result<Measured, String>,
    machine: &Machine,
    limits: &Limits,
    device: &DeviceOptions,
) -> KernelResult {
    let cost = problem.cost();
    let (limit, limit_rate) = limit(problem, limits);
    let measured = outcome.as_ref().ok();
    let rate = |work: u64| measured.map(|measured| work as f64 / measured.ms.min.max(1e-6) / 1e6);
    let (gflops, gbytes) = (rate(cost.flops), rate(cost.bytes));
    let reached = if problem.bound == Bound::Memory { gbytes } else { gflops };
    KernelResult {
        framework: "bessemer",
        framework_version: env!("CARGO_PKG_VERSION"),
        device: device.kind.name(),
        device_name: machine.device_name().to_owned(),
        devices: 1,
        nodes: 1,
        threads: device.threads as u64,
        isa: device.instruction_set.name(),
        model: problem.model,
        name: problem.name.clone(),
        family: problem.family.clone(),
        precision: problem.precision(),
        calls: problem.calls as u64,
        kernel: measured.map(|measured| measured.kernel.clone()),
        error: outcome.as_ref().err().cloned(),
        runs: measured.map_or(0, |measured| measured.runs as u64),
        ms: measured.map(|measured| measured.ms),
        flops: cost.flops,
        bytes: cost.bytes,
        gflops,
        gbytes,
        limit,
        limit_rate,
        emulated: problem.bound == Bound::Arithmetic && limit != problem.precision(),
        fraction_of_peak: reached.map(|reached| reached / limit_rate),
    }
}

/// Name and rate of the limit: the peak of the element type, or of `f32` where the processor has no other.
fn limit(problem: &Problem, limits: &Limits) -> (&'static str, f64) {
    match problem.bound {
        Bound::Memory => ("memory", limits.read_gbytes),
        Bound::Arithmetic => limits.peak(problem.compute()),
    }
}

impl KernelResult {
    /// Name and precision: what patterns are compared with.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.name, self.precision)
    }

    /// Whether it is a convolution or matrix product, held against the peak of arithmetic.
    pub fn is_product(&self) -> bool {
        self.limit != "memory"
    }

    /// Rate in the unit of its limit, GFLOP/s or GB/s.
    pub fn rate(&self) -> Option<f64> {
        if self.is_product() { self.gflops } else { self.gbytes }
    }
}
