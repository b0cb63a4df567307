//! Finds the GPUs and the CUDA libraries of a machine. It never fails: what is missing or broken is part of the report.

use crate::driver::{DeviceInfo, Driver};
use crate::error::GpuError;
use crate::library::functions;
use crate::loader::{Found, Libraries, LibraryPath, Places, Wanted, version_text};
use crate::nvrtc::Nvrtc;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

functions!(
    /// What is asked of libcublasLt.so here.
    CublasLtVersion {
        fn cublasLtGetVersion() -> usize;
    }
);
functions!(
    /// What is asked of libcudnn.so here.
    CudnnVersion {
        fn cudnnGetVersion() -> usize;
        fn cudnnGetCudartVersion() -> usize;
    }
);
functions!(
    /// What is asked of libnccl.so here.
    NcclVersion {
        fn ncclGetVersion(*mut i32) -> i32;
    }
);

/// GPUs and libraries of CUDA on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReport {
    /// Why no GPU can be used, or `None` where one can.
    pub no_gpu: Option<String>,
    /// `None` if no driver can be opened.
    pub driver: Option<DriverReport>,
    /// GPUs that the driver sees, by ordinal.
    pub devices: Vec<DeviceInfo>,
    /// Every library that may be used, found or not.
    pub libraries: Vec<LibraryReport>,
    /// What is there and does not work.
    pub problems: Vec<Problem>,
    /// Folders that were looked in, in this order.
    pub looked_in: Vec<LookedIn>,
}

/// The driver that was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverReport {
    /// File of the driver.
    pub path: PathBuf,
    /// Newest CUDA that it runs.
    pub cuda: String,
}

/// A library of CUDA, and whether it can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryReport {
    /// Name of the file without its version, such as `libcudnn.so`.
    pub name: String,
    /// What it is used for.
    pub purpose: String,
    /// `None` if it was not found.
    pub path: Option<PathBuf>,
    /// Which group of folders it was found in; `None` if it was not found.
    pub place: Option<LibraryPath>,
    /// Version that the opened library reports; `None` if it was not opened or reports none.
    pub version: Option<String>,
    /// Why it cannot be used; `None` if it can.
    pub problem: Option<String>,
}

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong, in one line.
    pub problem: String,
    /// What the user can do about it, in one line.
    pub action: String,
}

/// Folders that were searched for libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookedIn {
    /// Which group they are.
    pub place: LibraryPath,
    /// In the order in which they were searched.
    pub folders: Vec<PathBuf>,
}

impl GpuReport {
    /// In one line: the GPUs, or why there is none.
    pub fn summary(&self) -> String {
        if let Some(reason) = &self.no_gpu {
            return format!("no GPU: {reason}");
        }
        let device = |device: &DeviceInfo| {
            let gib = device.memory_bytes as f64 / f64::from(1 << 30);
            format!("{}: {}, {gib:.0} GiB, {}", device.ordinal, device.name, device.architecture())
        };
        self.devices.iter().map(device).collect::<Vec<_>>().join("; ")
    }
}

/// Looks for GPUs and libraries, in `named` folders first. Libraries are opened to ask for their versions, unless they do
/// not belong together.
pub fn probe(named: &[PathBuf]) -> GpuReport {
    let libraries = Libraries::find(Places::of_process(named));
    let looked_in = LibraryPath::ALL.map(|place| LookedIn { place, folders: libraries.places.of(place).to_vec() });
    let mut report = GpuReport { looked_in: looked_in.into(), ..GpuReport::default() };
    let driver = look_at_driver(&libraries, &mut report);
    let mixed = libraries.check_versions(driver).err();
    for library in Wanted::ALL.into_iter().filter(|library| *library != Wanted::Driver) {
        report.libraries.push(look_at_library(library, &libraries, mixed.is_none()));
    }
    let broken = report.libraries.iter().filter_map(|library| library.problem.clone());
    let problem = |action: &str| {
        let action = action.to_owned();
        move |problem| Problem { problem, action: action.clone() }
    };
    report.problems.extend(mixed.map(|error| error.to_string()).map(problem(ONE_SET)));
    report.problems.extend(broken.map(problem(ONE_SET)));
    report
}

const ONE_SET: &str = "name the folder of one complete set of CUDA's libraries with --gpu-libraries, or activate a Python \
                       environment that holds one";
const DRIVER: &str =
    "install or repair NVIDIA's driver; in a container, start it with its GPUs (docker run --gpus all)";

/// Fills in the driver and its devices. Returns the newest CUDA that it runs.
fn look_at_driver(libraries: &Libraries, report: &mut GpuReport) -> Option<i32> {
    let Some(found) = libraries.get(Wanted::Driver) else {
        let count: usize = report.looked_in.iter().map(|place| place.folders.len()).sum();
        report.no_gpu = Some(format!("there is no libcuda.so.1 (NVIDIA's driver) in the {count} folders looked in"));
        return None;
    };
    let mut version = None;
    let devices = Driver::open(&found.path).and_then(|driver| {
        version = Some(driver.version());
        (0..driver.device_count()?).map(|ordinal| driver.device(ordinal)).collect::<Result<Vec<DeviceInfo>, _>>()
    });
    report.driver = version.map(|version| DriverReport { path: found.path.clone(), cuda: version_text(version) });
    let problem = match devices {
        Ok(devices) if devices.is_empty() => Some("the driver sees none".to_owned()),
        Ok(devices) => {
            report.devices = devices;
            None
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(problem) = problem {
        report.problems.push(Problem { problem: format!("no GPU: {problem}"), action: DRIVER.to_owned() });
        report.no_gpu = Some(problem);
    }
    version
}

fn look_at_library(library: Wanted, libraries: &Libraries, open: bool) -> LibraryReport {
    let found = libraries.get(library);
    let (version, problem) = match found {
        Some(found) if open => match version(found, libraries) {
            Ok(version) => (Some(version), None),
            Err(error) => (None, Some(error.to_string())),
        },
        _ => (None, None),
    };
    LibraryReport {
        name: library.stem().to_owned(),
        purpose: library.purpose().to_owned(),
        path: found.map(|found| found.path.clone()),
        place: found.map(|found| found.place),
        version,
        problem,
    }
}

/// What the library says of itself; its file name where it has nothing to say.
fn version(found: &Found, libraries: &Libraries) -> Result<String, GpuError> {
    match found.library {
        Wanted::Nvrtc => Nvrtc::open(libraries).map(|nvrtc| format!("{}.{}", nvrtc.version().0, nvrtc.version().1)),
        Wanted::CublasLt => {
            let api = CublasLtVersion::load(&found.path)?;
            // SAFETY: takes nothing.
            Ok(dotted(unsafe { (api.cublasLtGetVersion)() }, 10_000))
        }
        Wanted::Cudnn => cudnn_version(&found.path, libraries),
        Wanted::Nccl => {
            let api = NcclVersion::load(&found.path)?;
            let mut version = 0;
            // SAFETY: the pointer is to a local number.
            match unsafe { (api.ncclGetVersion)(&mut version) } {
                0 => Ok(dotted(usize::try_from(version).unwrap_or(0), 10_000)),
                code => Err(GpuError::Call { call: "ncclGetVersion", code, meaning: "it does not say why".to_owned() }),
            }
        }
        Wanted::Driver | Wanted::NvrtcBuiltins | Wanted::Cublas => {
            let parts: Vec<String> = found.version.iter().map(u32::to_string).collect();
            Ok(parts.join("."))
        }
    }
}

/// cuDNN's file name does not contain the version of CUDA that it was made for; it does so itself.
fn cudnn_version(path: &Path, libraries: &Libraries) -> Result<String, GpuError> {
    let api = CudnnVersion::load(path)?;
    // SAFETY: takes nothing.
    let (version, cudart) = unsafe { ((api.cudnnGetVersion)(), (api.cudnnGetCudartVersion)()) };
    let other = libraries.found.iter().find(|found| found.library.follows_cuda());
    match other {
        Some(other) if cudart / 1000 != other.version[0] as usize => Err(GpuError::Mixed(format!(
            "libraries of different CUDA versions: {} is of CUDA {}, {} of CUDA {}",
            path.display(),
            cudart / 1000,
            other.path.display(),
            other.version[0]
        ))),
        _ => Ok(dotted(version, if version >= 90_000 { 10_000 } else { 1_000 })),
    }
}

/// A version whose major part is counted in `unit`s and whose minor part in hundreds: 91900 in 10,000s is 9.19.0.
fn dotted(version: usize, unit: usize) -> String {
    format!("{}.{}.{}", version / unit, version % unit / 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_they_are_published() {
        assert_eq!(dotted(91_900, 10_000), "9.19.0");
        assert_eq!(dotted(8_907, 1_000), "8.9.7");
        assert_eq!(dotted(130_100, 10_000), "13.1.0");
        assert_eq!(dotted(22_809, 10_000), "2.28.9");
    }
}
