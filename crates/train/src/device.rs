//! The devices there are, and the only place that constructs them: all else knows [`Device`] and the names here.

pub use bessemer_cuda::nccl::NcclSettings;

use crate::error::TrainError;
use bessemer_comm::launch::own_processors;
use bessemer_cpu::{CpuDevice, CpuOptions, Isa};
use bessemer_cuda::loader::Wanted;
use bessemer_cuda::{Check, CudaDevice, CudaOptions, CudaTarget, GpuError, replace_damaged_tuning};
use bessemer_ir::plan::Target;
use bessemer_ir::run::{Collectives, Device, Peers, RunError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// A kind of device, and which one of its kind. Written as in flags, logs and reports: `cpu`, `cuda`, `cuda:1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceKind {
    /// The processors of this machine.
    #[default]
    Cpu,
    /// A GPU of NVIDIA's.
    Cuda {
        /// Its number among those that the driver sees, from 0.
        index: usize,
    },
}

impl DeviceKind {
    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda { .. } => "cuda",
        }
    }
}

/// A name that no device has.
#[derive(Debug, thiserror::Error)]
#[error("no such device; allowed: cpu, cuda, cuda:INDEX")]
pub struct UnknownDevice;

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda { index: 0 }),
            Some(("cuda", index)) if index.bytes().all(|byte| byte.is_ascii_digit()) => {
                index.parse().map(|index| Self::Cuda { index }).map_err(|_| UnknownDevice)
            }
            _ => Err(UnknownDevice),
        }
    }
}

impl TryFrom<String> for DeviceKind {
    type Error = UnknownDevice;

    fn try_from(name: String) -> Result<Self, UnknownDevice> {
        name.parse()
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> Self {
        kind.to_string()
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu | Self::Cuda { index: 0 } => f.write_str(self.name()),
            Self::Cuda { index } => write!(f, "{}:{index}", self.name()),
        }
    }
}

/// Why a device cannot be used.
#[expect(missing_docs, reason = "the message of each variant says what it is and what its fields hold")]
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A library or the GPU is not there, or they do not fit together.
    #[error("{device} cannot be used: {source}; `bessemer doctor` says what there is")]
    Gpu { device: DeviceKind, source: GpuError },
    /// A file that was named and cannot be read.
    #[error("--tuning: {0}; name another file, which need not be there yet, on or off")]
    Tuning(GpuError),
    #[error(
        "{device} cannot be used by {ranks} ranks that add over MPI; start them with --device cuda, each of which takes a GPU"
    )]
    Ranks { device: DeviceKind, ranks: usize },
    #[error(
        "{device} is one GPU, and there are {ranks} ranks: with --device cuda each takes the GPU of its number on its machine"
    )]
    OneGpu { device: DeviceKind, ranks: usize },
    #[error(
        "the {ranks} ranks of this machine need a GPU each, and the driver sees {gpus}: start as many ranks as there are GPUs"
    )]
    TooFewGpus { ranks: usize, gpus: usize },
    #[error("cuda cannot be used by {ranks} ranks: {source}; install NCCL ({INSTALL_NCCL}), or use one rank")]
    Nccl { ranks: usize, source: GpuError },
}

/// How to get the library of sums between GPUs.
pub const INSTALL_NCCL: &str = "package libnccl2 of NVIDIA's repository, or pip install nvidia-nccl-cu12 or -cu13";

/// How the device of a rank reaches those of the others.
pub enum RankLink {
    /// There are none.
    Alone,
    /// By messages of the host.
    Messages(Arc<dyn Collectives>),
    /// By a library of the devices.
    Devices(Arc<dyn Peers>, LocalRank),
}

/// A rank among those of its machine.
#[derive(Clone, Copy, Debug)]
pub struct LocalRank {
    /// Its number, from 0.
    pub number: usize,
    /// How many there are; where the launcher does not say so, at least.
    pub count: usize,
}

/// Whether a plan cannot be run for lack of a library of the device's.
pub fn lacks_library(error: &RunError) -> bool {
    match error {
        RunError::Kernel(source) => matches!(source.downcast_ref(), Some(GpuError::NotFound { .. })),
        _ => false,
    }
}

/// Vector instructions of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionSet(Isa);

impl InstructionSet {
    /// The fastest of this machine.
    pub fn best() -> Self {
        Self(Isa::detect())
    }

    /// Those for which there are kernels, whether or not this machine can run them: plans can be made for each.
    pub fn all() -> impl Iterator<Item = Self> {
        Isa::ALL.into_iter().map(Self)
    }

    /// The name in flags, logs and reports, such as `avx512`.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Whether vectors are of plain Rust, which every processor can run, several times slower.
    pub fn is_portable(self) -> bool {
        self.0 == Isa::Portable
    }
}

impl FromStr for InstructionSet {
    type Err = <Isa as FromStr>::Err;

    /// # Errors
    /// A name of none that this machine can run; the error lists those.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        name.parse().map(Self)
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for InstructionSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for InstructionSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How a GPU's convolutions get their engines. Written as in flags: `on`, `off`, or the name of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Tuning {
    /// The fastest ones that were measured, kept in this program's cache.
    #[default]
    On,
    /// The library's first proposals.
    Off,
    /// The fastest ones that were measured, kept in a file.
    File(PathBuf),
}

impl Tuning {
    fn file(&self) -> Option<PathBuf> {
        match self {
            Self::On => Some(cache_folder().join("tuning").join("engines.json")),
            Self::Off => None,
            Self::File(path) => Some(path.clone()),
        }
    }
}

impl From<String> for Tuning {
    fn from(text: String) -> Self {
        match text.as_str() {
            "on" => Self::On,
            "off" => Self::Off,
            _ => Self::File(text.into()),
        }
    }
}

impl From<Tuning> for String {
    fn from(tuning: Tuning) -> Self {
        match tuning {
            Tuning::On => "on".to_owned(),
            Tuning::Off => "off".to_owned(),
            Tuning::File(path) => path.to_string_lossy().into_owned(),
        }
    }
}

/// The device that steps run on, and how it is used. Of a processor the instruction set decides results, the number of threads
/// does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// Which device.
    pub kind: DeviceKind,
    /// Instruction set of the kernels on a processor.
    pub instruction_set: InstructionSet,
    /// Threads of the host that compute, the caller's included; at least 1.
    pub threads: usize,
    /// Folders of a GPU's libraries that come before all others.
    #[serde(default)]
    pub gpu_libraries: Vec<PathBuf>,
    /// How a GPU's convolutions get their engines.
    #[serde(default)]
    pub tuning: Tuning,
    /// Whether a GPU's products and convolutions leave what follows them to kernels of their own.
    #[serde(default)]
    pub no_epilogues: bool,
    /// Whether a GPU is given steps launch by launch, instead of as they were recorded.
    #[serde(default)]
    pub eager: bool,
    /// What is looked at behind each launch of a GPU; unless it is nothing, steps are not recorded.
    #[serde(default)]
    pub check: Check,
}

impl Default for DeviceOptions {
    /// The processors of this machine, all of them or the share of a rank, with their best instructions.
    fn default() -> Self {
        let CpuOptions { isa, .. } = CpuOptions::default();
        Self {
            kind: DeviceKind::Cpu,
            instruction_set: InstructionSet(isa),
            threads: own_processors(),
            gpu_libraries: Vec::new(),
            tuning: Tuning::On,
            no_epilogues: false,
            eager: false,
            check: Check::Nothing,
        }
    }
}

impl DeviceOptions {
    /// The device of a process that is alone.
    ///
    /// # Errors
    /// [`DeviceError::Gpu`].
    pub fn open(&self) -> Result<Arc<dyn Device>, DeviceError> {
        match self.kind {
            DeviceKind::Cpu => Ok(Arc::new(CpuDevice::new(self.of_cpu()))),
            DeviceKind::Cuda { index } => Ok(Arc::new(self.open_gpu(index)?)),
        }
    }

    /// The device of one rank of a job: of GPUs, the one of its number among the ranks of its machine.
    ///
    /// # Errors
    /// [`DeviceError`]; those of the job, while GPUs join.
    pub fn open_rank(&self, link: RankLink) -> Result<Arc<dyn Device>, TrainError> {
        let device = self.kind;
        match (device, link) {
            (DeviceKind::Cpu, RankLink::Messages(collectives)) => {
                Ok(Arc::new(CpuDevice::of_rank(self.of_cpu(), collectives)))
            }
            (DeviceKind::Cuda { .. }, RankLink::Messages(collectives)) => {
                Err(DeviceError::Ranks { device, ranks: collectives.ranks() }.into())
            }
            (DeviceKind::Cuda { index: 0 }, RankLink::Devices(peers, local)) => {
                Ok(Arc::new(self.open_gpu_of_rank(peers, local)?))
            }
            (DeviceKind::Cuda { .. }, RankLink::Devices(peers, _)) => {
                Err(DeviceError::OneGpu { device, ranks: peers.ranks() }.into())
            }
            (_, RankLink::Alone) | (DeviceKind::Cpu, RankLink::Devices(..)) => Ok(self.open()?),
        }
    }

    /// What plans for the device are compiled for. The device need not be there.
    pub fn target(&self) -> Box<dyn Target> {
        match self.kind {
            DeviceKind::Cpu => Box::new(self.of_cpu()),
            DeviceKind::Cuda { .. } => Box::new(CudaTarget),
        }
    }

    /// Opens the device with all libraries that plans may need, to see that it can be used.
    ///
    /// # Errors
    /// [`DeviceError::Gpu`].
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.kind {
            DeviceKind::Cpu => Ok(()),
            DeviceKind::Cuda { index } => {
                let opened = self.open_gpu(index)?.open_libraries();
                opened.map_err(|source| DeviceError::Gpu { device: self.kind, source })
            }
        }
    }

    fn of_cpu(&self) -> CpuOptions {
        CpuOptions { isa: self.instruction_set.0, threads: self.threads }
    }

    /// What opens a GPU. A damaged file of measurements in this program's cache is replaced by an empty one; where that is not possible,
    /// nothing is measured.
    fn of_gpu(&self, ordinal: usize) -> CudaOptions {
        let (gpu_libraries, cubins) = (self.gpu_libraries.clone(), cache_folder().join("cubins"));
        let (eager, check, no_epilogues) = (self.eager, self.check, self.no_epilogues);
        let mut tuning = self.tuning.file();
        if let (Tuning::On, Some(file)) = (&self.tuning, &tuning) {
            match replace_damaged_tuning(file) {
                Ok(None) => {}
                Ok(Some(damaged)) => eprintln!("warning: {damaged}; an empty file replaces it"),
                Err(error) => {
                    let path = file.display();
                    eprintln!(
                        "warning: {path} cannot be read, nor replaced: {error}; engines and algorithms are not measured"
                    );
                    tuning = None;
                }
            }
        }
        CudaOptions { gpu_libraries, ordinal, cubins, eager, check, tuning, no_epilogues }
    }

    fn open_gpu(&self, ordinal: usize) -> Result<CudaDevice, DeviceError> {
        CudaDevice::open(&self.of_gpu(ordinal)).map_err(|error| self.unusable(error))
    }

    fn unusable(&self, source: GpuError) -> DeviceError {
        match source {
            GpuError::Tuning { .. } => DeviceError::Tuning(source),
            source => DeviceError::Gpu { device: self.kind, source },
        }
    }

    fn open_gpu_of_rank(&self, peers: Arc<dyn Peers>, local: LocalRank) -> Result<CudaDevice, TrainError> {
        let unusable = |source| self.unusable(source);
        let (ranks, gpus) = (peers.ranks(), CudaDevice::count(&self.gpu_libraries).map_err(unusable)?);
        // A launcher may have left each rank one GPU of its own.
        let is_chosen = gpus == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
        if local.count > gpus && !is_chosen {
            return Err(DeviceError::TooFewGpus { ranks: local.count, gpus }.into());
        }
        let options = self.of_gpu(if is_chosen { 0 } else { local.number });
        CudaDevice::of_rank(&options, peers).map_err(|error| {
            let source = match error {
                RunError::Kernel(source) => source.downcast(),
                error => return error.into(),
            };
            match source {
                Ok(source) if is_of_nccl(&source) => DeviceError::Nccl { ranks, source: *source }.into(),
                Ok(source) => unusable(*source).into(),
                Err(source) => RunError::Kernel(source).into(),
            }
        })
    }
}

/// Whether NCCL is not there.
fn is_of_nccl(error: &GpuError) -> bool {
    matches!(error, GpuError::NotFound { library, .. } if *library == Wanted::Nccl.stem())
}

/// This program's folder of the XDG Base Directory Specification for what can be made again.
pub(crate) fn cache_folder() -> PathBuf {
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| ".".into())).join(".cache");
    given.unwrap_or_else(usual).join("bessemer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::ops::collective::AllReduce;

    #[test]
    fn devices_have_names() {
        for (name, kind) in [
            ("cpu", DeviceKind::Cpu),
            ("cuda", DeviceKind::Cuda { index: 0 }),
            ("cuda:1", DeviceKind::Cuda { index: 1 }),
            ("cuda:12", DeviceKind::Cuda { index: 12 }),
        ] {
            assert_eq!(name.parse::<DeviceKind>().unwrap(), kind);
            assert_eq!(kind.to_string(), name);
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        }
        assert_eq!("cuda:0".parse::<DeviceKind>().unwrap(), DeviceKind::Cuda { index: 0 });
        for name in ["tpu", "cpu:1", "cuda:", "cuda:x", "cuda:+1", "cuda:-1", "CUDA", ""] {
            let error = name.parse::<DeviceKind>().unwrap_err().to_string();
            assert_eq!(error, "no such device; allowed: cpu, cuda, cuda:INDEX");
        }
    }

    #[test]
    fn options_are_written_and_read() {
        let options = DeviceOptions { threads: 3, ..DeviceOptions::default() };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<DeviceOptions>(&text).unwrap(), options);
        let without_gpus = text.replace(
            ",\"gpu_libraries\":[],\"tuning\":\"on\",\"no_epilogues\":false,\"eager\":false,\"check\":\"nothing\"",
            "",
        );
        assert_ne!(without_gpus, text);
        assert_eq!(serde_json::from_str::<DeviceOptions>(&without_gpus).unwrap(), options);
        for (text, tuning) in [("off", Tuning::Off), ("fast.json", Tuning::File("fast.json".into()))] {
            assert_eq!(Tuning::from(text.to_owned()), tuning);
            assert_eq!(serde_json::to_string(&tuning).unwrap(), format!("\"{text}\""));
        }
        let device = options.open().unwrap();
        assert_eq!(device.properties().threads, 3);
        assert_eq!(device.properties().kind, options.kind.name());
        assert_eq!(device.target().name(), options.target().name());
    }

    /// A job of two ranks, of which nothing is sent.
    struct TwoRanks;

    impl Collectives for TwoRanks {
        fn ranks(&self) -> usize {
            2
        }

        fn start(&self, _: &AllReduce, _: &[&[f32]]) -> Result<i32, RunError> {
            unreachable!("nothing runs")
        }

        fn wait(&self, _: i32, _: &mut [&mut [f32]]) -> Result<(), RunError> {
            unreachable!("nothing runs")
        }
    }

    #[test]
    fn gpus_do_not_add_by_messages() {
        let options = DeviceOptions { kind: DeviceKind::Cuda { index: 1 }, ..DeviceOptions::default() };
        let error = options.open_rank(RankLink::Messages(Arc::new(TwoRanks))).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.starts_with("cuda:1 cannot be used by 2 ranks")));
        assert_eq!(options.target().name(), options.kind.name());
    }

    #[test]
    fn a_gpu_that_is_not_there_is_one_error() {
        let folder = tempfile::TempDir::new().unwrap();
        std::fs::write(folder.path().join("libcuda.so.1"), "broken").unwrap();
        let gpu_libraries = vec![folder.path().to_owned()];
        let options = DeviceOptions { kind: DeviceKind::Cuda { index: 0 }, gpu_libraries, ..DeviceOptions::default() };
        for error in [options.open().err(), options.check().err()] {
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with("cuda cannot be used: ") && error.contains("libcuda.so.1 cannot be opened"));
        }
    }
}
