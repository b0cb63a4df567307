//! Plans on a GPU: the device with its libraries and compiled kernels, state in its memory, and executors.

mod algorithms;
mod bound;
mod choices;
mod engines;
mod executor;
mod feeds;
mod footprints;
mod groups;
mod halt;
mod ledger;
pub(crate) mod measure;
mod planned;
mod prepared;
mod state;
mod sums;
mod tuning;
mod warnings;

use crate::cubins::CubinCache;
use crate::cublaslt::CublasLt;
use crate::cudnn::Cudnn;
use crate::driver::{Context, Driver, Function, Module, Stream};
use crate::error::GpuError;
use crate::kgen::{Kernel, text_of};
use crate::loader::{Libraries, Places, Wanted};
use crate::lower::{CudaTarget, KIND};
use crate::nvrtc::Nvrtc;
use algorithms::Algorithms;
use bessemer_ir::plan::{Plan, Target};
use bessemer_ir::run::{
    Device, DeviceLimits, DeviceProperties, Executor, Peers, RunError, StateBinding, StateLayout, StateStore,
};
use engines::Engines;
use executor::CudaExecutor;
pub(crate) use feeds::bytes_of_feeds;
use ledger::Ledger;
pub use ledger::OutOfMemory;
#[cfg(test)]
pub(crate) use ledger::RESERVED;
use serde::{Deserialize, Serialize};
use state::CudaState;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use sums::Sums;
pub use tuning::replace_damaged_tuning;
use tuning::{Choices, Tuning};
use warnings::Warnings;

/// Which GPU, and where what it needs is found and kept.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Folders of libraries that come before all others.
    pub gpu_libraries: Vec<PathBuf>,
    /// Number of the GPU among those that the driver sees.
    pub ordinal: usize,
    /// Folder of compiled kernels.
    pub cubins: PathBuf,
    /// Whether every step is given to the device launch by launch, and every region is launched alone. Otherwise the first one is
    /// given so; then they are recorded once and replayed as a whole.
    pub eager: bool,
    /// What is looked at behind each launch; unless it is nothing, steps are not recorded either.
    pub check: Check,
    /// File of the engines of convolutions and algorithms of products that were the fastest ones when they were measured, which plans
    /// that are loaded read and add to. `None` if nothing is measured, but the libraries' first proposals used.
    pub tuning: Option<PathBuf>,
    /// Whether products and convolutions leave what follows them to kernels of their own.
    pub no_epilogues: bool,
}

/// What is looked at behind each launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Nothing.
    #[default]
    Nothing,
    /// Whether it failed, which is waited for, so that an error names it.
    Errors,
    /// That too, and whether it touched the memory of tensors that is its own and no other ([`GpuError::Footprint`]). All of that memory is
    /// copied to the host behind each launch, and each call is run twice.
    Memory,
}

/// A GPU of NVIDIA's. Everything that its executors and states do is in the order of one stream.
pub struct CudaDevice {
    gpu: Arc<Gpu>,
    properties: DeviceProperties,
}

/// What executors and states of a device share.
struct Gpu {
    /// Of one rank among several.
    sums: Option<Sums>,
    stream: Stream,
    /// Held by whoever gives work to the stream, so that steps do not mix.
    order: Mutex<()>,
    eager: bool,
    check: Check,
    no_epilogues: bool,
    modules: Mutex<HashMap<String, Module>>,
    products: OnceLock<Arc<CublasLt>>,
    convolutions: OnceLock<Arc<Cudnn>>,
    tuning: Tuning,
    engines: Engines,
    algorithms: Algorithms,
    nvrtc: Nvrtc,
    cache: CubinCache,
    libraries: Libraries,
    ledger: Ledger,
    warnings: Warnings,
    context: Context,
}

/// Kernels that are compiled as one text.
const KERNELS_OF_A_TEXT: usize = 16;
/// What cuBLASLt may use beside its operands, as NVIDIA recommends for Hopper.
pub(crate) const PRODUCT_WORKSPACE: usize = 32 << 20;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those of the keys that the map lacks, each once, in their order.
fn missing<K: Copy + Eq + Hash, V>(map: &Mutex<HashMap<K, V>>, keys: impl IntoIterator<Item = K>) -> Vec<K> {
    let map = locked(map);
    let mut missing = Vec::new();
    for key in keys {
        if !map.contains_key(&key) && !missing.contains(&key) {
            missing.push(key);
        }
    }
    missing
}

/// An error of the device while plans are loaded or run.
fn failed(error: GpuError) -> RunError {
    RunError::Kernel(Box::new(error))
}

impl From<GpuError> for RunError {
    fn from(error: GpuError) -> RunError {
        failed(error)
    }
}

impl CudaDevice {
    /// Opens a GPU and the compiler of its kernels. Libraries of products and convolutions are opened by the first plan that
    /// needs them.
    ///
    /// # Errors
    /// The driver, the compiler or the GPU is not there, or they do not fit together; [`GpuError::Tuning`].
    pub fn open(options: &CudaOptions) -> Result<CudaDevice, GpuError> {
        Ok(Self::of(Gpu::open(options)?))
    }

    /// The device of one rank of a job, which joins those of the others by NCCL and waits for them.
    ///
    /// # Errors
    /// As [`CudaDevice::open`]; NCCL is not there or refuses; the job fails.
    pub fn of_rank(options: &CudaOptions, peers: Arc<dyn Peers>) -> Result<CudaDevice, RunError> {
        let mut gpu = Gpu::open(options)?;
        gpu.sums = Some(Sums::join(&gpu.libraries, &gpu.context, peers)?);
        Ok(Self::of(gpu))
    }

    /// Number of GPUs that the driver sees.
    ///
    /// # Errors
    /// The driver is not there, or does not work.
    pub fn count(gpu_libraries: &[PathBuf]) -> Result<usize, GpuError> {
        let libraries = Libraries::find(Places::of_process(gpu_libraries));
        Driver::open(&libraries.require(Wanted::Driver)?.path)?.device_count()
    }

    fn of(gpu: Gpu) -> CudaDevice {
        let info = gpu.context.info();
        let properties = DeviceProperties {
            kind: KIND,
            product: Some(info.name.clone()),
            instruction_sets: Vec::new(),
            instruction_set: "",
            threads: 1,
            bf16: (info.capability[0] >= 8).then_some("tensor cores"),
        };
        CudaDevice { gpu: Arc::new(gpu), properties }
    }

    /// Opens the libraries of products and convolutions, which plans open when they need them.
    ///
    /// # Errors
    /// One of them is not there, or cannot be used.
    pub fn open_libraries(&self) -> Result<(), GpuError> {
        self.gpu.context.is_alive()?;
        self.gpu.products()?;
        self.gpu.convolutions()?;
        Ok(())
    }

    /// What of the device's memory this program uses, largest first: what it is for, and bytes.
    pub fn memory(&self) -> Vec<(String, usize)> {
        self.gpu.ledger.entries()
    }
}

impl Device for CudaDevice {
    fn target(&self) -> &dyn Target {
        &CudaTarget
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn new_state(&self, layout: StateLayout) -> Result<Arc<dyn StateStore>, RunError> {
        Ok(Arc::new(CudaState::new(&self.gpu, layout)?))
    }

    fn load(
        &self,
        plan: Plan,
        state: &Arc<dyn StateStore>,
        binding: &StateBinding<'_>,
    ) -> Result<Box<dyn Executor>, RunError> {
        Ok(Box::new(CudaExecutor::new(&self.gpu, plan, Arc::clone(state), binding)?))
    }

    fn take_warnings(&self) -> Vec<String> {
        let warnings = &self.gpu.warnings;
        if let Some(error) = self.gpu.context.take_release_error() {
            warnings.add(format!("something on the GPU was not released: {error}"));
        }
        warnings.take()
    }

    fn memory_in_use(&self) -> Option<u64> {
        Some(self.memory().iter().map(|(_, bytes)| *bytes as u64).sum())
    }

    /// Not measured: what follows from the device's clocks, its multiprocessors and its memory bus.
    fn measure_limits(&self) -> DeviceLimits {
        let info = self.gpu.context.info();
        let cycles = f64::from(info.multiprocessors) * f64::from(info.clock_khz) * 1e3;
        // FLOPs of a multiprocessor in a cycle, by its cores and by its tensor cores (NVIDIA's white papers on A100 and H100).
        let (cores, tensor_cores) = match info.capability {
            [8, 0] => (128.0, 2048.0),
            [8, _] => (256.0, 1024.0),
            _ => (256.0, 4096.0),
        };
        DeviceLimits {
            fp32_flops: cycles * cores,
            // Half as many as of 16 bits (the same white papers).
            tf32_flops: self.properties.bf16.map(|_| cycles * tensor_cores / 2.0),
            bf16_flops: self.properties.bf16.map(|_| cycles * tensor_cores),
            f16_flops: Some(cycles * tensor_cores),
            read_bytes: info.memory_bytes_per_s(),
        }
    }
}

impl Gpu {
    fn open(options: &CudaOptions) -> Result<Gpu, GpuError> {
        if let Some(file) = &options.tuning {
            Choices::read(file)?;
        }
        let libraries = Libraries::find(Places::of_process(&options.gpu_libraries));
        let driver = Driver::open(&libraries.require(Wanted::Driver)?.path)?;
        libraries.check_versions(Some(driver.version()))?;
        let context = Context::new(&driver, options.ordinal)?;
        let name = format!("{}, driver {}", context.info().name, driver.version());
        Ok(Gpu {
            sums: None,
            stream: context.stream()?,
            order: Mutex::new(()),
            eager: options.eager || options.check != Check::Nothing,
            check: options.check,
            no_epilogues: options.no_epilogues,
            modules: Mutex::default(),
            products: OnceLock::new(),
            convolutions: OnceLock::new(),
            tuning: Tuning::new(options.tuning.clone(), name),
            engines: Engines::default(),
            algorithms: Algorithms::default(),
            nvrtc: Nvrtc::open(&libraries)?,
            cache: CubinCache::new(&options.cubins),
            libraries,
            ledger: Ledger::default(),
            warnings: Warnings::default(),
            context,
        })
    }

    /// Number of ranks that add.
    fn ranks(&self) -> usize {
        self.sums.as_ref().map_or(1, Sums::ranks)
    }

    /// Keeps everyone else from giving work to the stream until the guard is dropped.
    fn lock(&self) -> MutexGuard<'_, ()> {
        locked(&self.order)
    }

    /// Compiles and loads what is not loaded yet of these kernels, by name.
    fn compile(&self, kernels: &BTreeMap<&str, &Kernel>) -> Result<(), GpuError> {
        let missing: Vec<&Kernel> = {
            let modules = locked(&self.modules);
            kernels.iter().filter(|(name, _)| !modules.contains_key(**name)).map(|(_, kernel)| *kernel).collect()
        };
        let texts: Vec<&[&Kernel]> = missing.chunks(KERNELS_OF_A_TEXT).collect();
        let architecture = self.context.info().architecture();
        let compile = |text: &[&Kernel]| {
            let compiled = self.cache.get(&self.nvrtc, "plan", &text_of(text.iter().copied()), &architecture);
            compiled.map(|(compiled, _)| compiled.cubin)
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(texts.len());
        let next = AtomicUsize::new(0);
        let work = || {
            let mine = std::iter::from_fn(|| texts.get(next.fetch_add(1, Ordering::Relaxed)));
            mine.map(|text| Ok((*text, compile(text)?))).collect::<Result<Vec<_>, GpuError>>()
        };
        let compiled: Vec<_> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            running.into_iter().map(|one| one.join().expect("a compiler does not panic")).collect()
        });
        for of_worker in compiled {
            for (text, cubin) in of_worker? {
                let module = self.context.module(&cubin)?;
                let mut modules = locked(&self.modules);
                modules.extend(text.iter().map(|kernel| (kernel.name.clone(), module.clone())));
            }
        }
        if let Some(error) = self.cache.take_failure() {
            self.warnings.add(format!("compiled kernels are not kept: {error}"));
        }
        Ok(())
    }

    /// A kernel that was compiled before.
    fn function(&self, kernel: &Kernel) -> Result<Function, GpuError> {
        let module = locked(&self.modules).get(&kernel.name).cloned().expect("all kernels of a plan were compiled");
        module.function(kernel)
    }

    fn products(&self) -> Result<Arc<CublasLt>, GpuError> {
        if self.products.get().is_none() {
            let _ = self.products.set(CublasLt::open(&self.libraries, &self.context)?);
        }
        Ok(Arc::clone(self.products.get().expect("it was just set")))
    }

    fn convolutions(&self) -> Result<&Arc<Cudnn>, GpuError> {
        if self.convolutions.get().is_none() {
            let _ = self.convolutions.set(Cudnn::open(&self.libraries, &self.context)?);
        }
        Ok(self.convolutions.get().expect("it was just set"))
    }
}
