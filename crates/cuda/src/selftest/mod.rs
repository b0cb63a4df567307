//! What is checked and measured on a real device: copies, the numbers and the speed of all kernels, eager and captured,
//! and what cuBLASLt computes.

mod attention;
pub mod case;
pub mod cases;
mod convolutions;
mod copies;
mod operations;
mod plain;
mod plans;
mod products;
pub mod runner;

use crate::cubins::CubinCache;
use crate::cublaslt::CublasLt;
use crate::cudnn::Cudnn;
use crate::driver::DeviceInfo;
use crate::error::GpuError;
use crate::exec::{Check, CudaDevice, CudaOptions};
use crate::loader::{Libraries, Places};
use crate::probe::{GpuReport, probe};
use bessemer_ir::DType;
use case::Case;
use cases::{Maker, Size, makers};
use runner::{Loaded, Runner};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// What the self-test runs, and on which device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Folders of libraries that come before all others.
    pub gpu_libraries: Vec<PathBuf>,
    /// Which GPU to test, from 0.
    pub ordinal: usize,
    /// Folder of compiled kernels.
    pub cubins: PathBuf,
    /// Bytes of each copy that is measured.
    pub copy_bytes: usize,
    /// Whether kernels are measured on large tensors.
    pub speed: bool,
}

/// Result of the self-test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelfTest {
    /// Version of this program.
    pub version: String,
    /// What was found of GPUs and CUDA's libraries.
    pub gpu: GpuReport,
    /// The device that was tested; `None` if none could be opened.
    pub device: Option<DeviceInfo>,
    /// What cuDNN knows of the device, in its own JSON.
    pub cudnn_description: Option<String>,
    /// In the order in which they ran.
    pub steps: Vec<Step>,
}

/// One thing that was tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Name in reports.
    pub name: String,
    /// Whether it ran and gave the right results.
    pub passed: bool,
    /// What went wrong, in one line.
    pub problem: Option<String>,
    /// Measured values.
    pub figures: Vec<Figure>,
    /// How long it took, compiling included.
    pub seconds: f64,
}

/// A number with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of what was measured.
    pub name: String,
    /// Measured value, in `unit`.
    pub value: f64,
    /// Unit as printed, such as `GB/s`.
    pub unit: String,
}

impl Figure {
    fn new(name: impl Into<String>, value: f64, unit: &str) -> Figure {
        Figure { name: name.into(), value, unit: unit.to_owned() }
    }
}

impl SelfTest {
    /// Number of steps that failed.
    pub fn failed(&self) -> usize {
        self.steps.iter().filter(|step| !step.passed).count()
    }
}

/// A self-test that goes on.
struct Testing<'a> {
    found: SelfTest,
    notify: &'a mut dyn FnMut(&SelfTest),
}

impl Testing<'_> {
    /// Does one step; what goes wrong in it does not stop the others.
    fn step<T>(
        &mut self,
        name: impl Into<String>,
        work: impl FnOnce(&mut Vec<Figure>) -> Result<T, Failure>,
    ) -> Option<T> {
        let begun = Instant::now();
        let mut figures = Vec::new();
        let result = work(&mut figures);
        let problem = result.as_ref().err().map(|failure| failure.0.clone());
        let seconds = begun.elapsed().as_secs_f64();
        let step = Step { name: name.into(), passed: problem.is_none(), problem, figures, seconds };
        self.found.steps.push(step);
        (self.notify)(&self.found);
        result.ok()
    }
}

/// Why a step failed, in one line.
struct Failure(String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure(error.to_string().lines().collect::<Vec<_>>().join("; "))
    }
}

/// Runs everything; `notify` receives what is found so far when a step is over, which is the last one in it.
pub fn run(plan: &Plan, notify: &mut dyn FnMut(&SelfTest)) -> SelfTest {
    let gpu = probe(&plan.gpu_libraries);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let found = SelfTest { version, gpu, device: None, cudnn_description: None, steps: Vec::new() };
    let mut test = Testing { found, notify };
    let libraries = Libraries::find(Places::of_process(&plan.gpu_libraries));
    let made =
        test.step("device and compiler", |_| Ok(Runner::new(&libraries, plan.ordinal, CubinCache::new(&plan.cubins))?));
    let Some(runner) = made else { return test.found };
    test.found.device = Some(runner.context.info().clone());
    test.step("copies", |figures| Ok(copies::measure(&runner, plan.copy_bytes, figures)?));
    for make in makers(Size::Small) {
        kernel(&mut test, &runner, make, Size::Small);
    }
    if plan.speed {
        for make in makers(Size::Large) {
            kernel(&mut test, &runner, make, Size::Large);
        }
    }
    let library = || CublasLt::open(&libraries, &runner.context);
    test.step("cuBLASLt: what it computes", |figures| {
        products::meanings(&runner, library()?, plan.copy_bytes, figures)
    });
    if plan.speed {
        test.step("cuBLASLt: speed", |figures| products::speed(&runner, &library()?, figures));
    }
    executor(&mut test, plan);
    // Engines that compile take a second each.
    cudnn(&mut test, &libraries, &runner, plan.speed);
    test.step("everything is released", |_| {
        runner.context.synchronize()?;
        runner.context.take_release_error().map_or(Ok(()), |error| Err(error.into()))
    });
    test.found
}

/// Convolutions, and what cuDNN knows of the device.
fn cudnn(test: &mut Testing<'_>, libraries: &Libraries, runner: &Runner, speed: bool) {
    let Some(library) = test.step("cuDNN", |_| Ok(Cudnn::open(libraries, &runner.context)?)) else { return };
    test.found.cudnn_description = test.step("cuDNN: device description", |_| Ok(library.device_description()?.json));
    test.step("cuDNN: what it computes", |figures| convolutions::compare(runner, &library, figures));
    let timed = convolutions::timed(speed);
    test.step("cuDNN: speed", |figures| convolutions::speed(runner, &library, &timed, figures));
}

/// Whole plans by the executor.
fn executor(test: &mut Testing<'_>, plan: &Plan) {
    let Plan { gpu_libraries, ordinal, cubins, .. } = plan;
    let options = CudaOptions {
        gpu_libraries: gpu_libraries.clone(),
        ordinal: *ordinal,
        cubins: cubins.clone(),
        eager: false,
        tuning: None,
        check: Check::Nothing,
        no_epilogues: false,
    };
    let Some(device) = test.step("executor", |_| Ok(CudaDevice::open(&options)?)) else { return };
    let Some(cases) = test.step("executor: graphs", |_| Ok(plans::cases()?)) else { return };
    for case in cases {
        for precision in [DType::F32, DType::Bf16, DType::F16] {
            let name = format!("executor: a step of {}, {precision}", case.name);
            test.step(name, |figures| case.run(&device, precision, figures));
        }
    }
}

/// One kernel: its numbers where it is small, its speed where it is large.
fn kernel(test: &mut Testing<'_>, runner: &Runner, make: Maker, size: Size) {
    let what = if size == Size::Small { "numbers" } else { "speed" };
    let case = match make(size) {
        Ok(case) => case,
        Err(error) => {
            test.step::<()>(what, |_| Err(error.into()));
            return;
        }
    };
    test.step(format!("{what}: {}", case.name), |figures| {
        let loaded = runner.load(&case)?;
        for used in &loaded.resources {
            figures.push(Figure::new("registers", used.registers.into(), ""));
            figures.push(Figure::new("spilled", used.spill_bytes.into(), "bytes"));
        }
        if size == Size::Small { numbers(&case, &loaded, figures) } else { Ok(speed(&case, &loaded, figures)?) }
    });
}

/// Compares the numbers, launched and replayed.
fn numbers(case: &Case, loaded: &Loaded<'_>, figures: &mut Vec<Figure>) -> Result<(), Failure> {
    loaded.launch()?;
    let launched = case.error(&loaded.outputs()?);
    figures.push(Figure::new("error", launched.0, "of what is allowed"));
    loaded.reset()?;
    loaded.replay()?;
    let replayed = case.error(&loaded.outputs()?);
    match (launched.1, replayed.1) {
        (Some(words), _) => Err(Failure(words)),
        (None, Some(words)) => Err(Failure(format!("replayed from a graph: {words}"))),
        (None, None) => Ok(()),
    }
}

/// Replays of a graph, timed on the device.
fn speed(case: &Case, loaded: &Loaded<'_>, figures: &mut Vec<Figure>) -> Result<(), GpuError> {
    const REPLAYS: usize = 50;
    let seconds = loaded.time(REPLAYS)?.as_secs_f64();
    figures.push(Figure::new("time", seconds * 1e6, "us"));
    figures.push(Figure::new("bytes", case.bytes() as f64 / seconds / 1e9, "GB/s"));
    Ok(())
}
