//! What the machine is and what it can do.

use bessemer_ir::run::{Device, DeviceLimits};
pub use bessemer_train::machine::{available_memory, total_memory};
use bessemer_train::recipe::Compute;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The machine as `bessemer doctor` reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Product name of the processor.
    pub cpu: String,
    /// Processors that the operating system lets this process use.
    pub processors: usize,
    /// All memory of the machine.
    pub memory_bytes: u64,
    /// Name and version of the operating system.
    pub os: String,
    /// Usable here, fastest first, and the one in use.
    pub instruction_sets: Vec<String>,
    /// The instruction set in use.
    pub instruction_set: String,
    /// What multiplies operands of bf16; `None` where they are converted first, or where it was not looked at.
    #[serde(default)]
    pub bf16: Option<String>,
    /// Threads that compute.
    pub threads: usize,
    /// Product name of the GPU that steps run on; `None` where they run on the processors.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Setting of transparent big pages, e.g. `madvise`; `None` where the system has none.
    pub huge_pages: Option<String>,
}

/// Limits, measured or nominal, in units per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Arithmetic in `f32`, in GFLOP/s.
    pub fp32_gflops: f64,
    /// Products of operands rounded to TF32; `None` where the device has none.
    #[serde(default)]
    pub tf32_gflops: Option<f64>,
    /// `None` where the processor has no bf16 arithmetic.
    pub bf16_gflops: Option<f64>,
    /// `None` where the device has no f16 arithmetic.
    #[serde(default)]
    pub f16_gflops: Option<f64>,
    /// Reading from memory, in GB/s.
    pub read_gbytes: f64,
}

impl Machine {
    /// Product name of what steps run on.
    pub fn device_name(&self) -> &str {
        self.gpu.as_ref().unwrap_or(&self.cpu)
    }

    /// Describes the machine of this process as seen by `device`.
    pub fn look(device: &dyn Device) -> Machine {
        let properties = device.properties();
        Machine {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_string()),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: total_memory().unwrap_or(0),
            os: os_name(),
            instruction_sets: properties.instruction_sets.iter().map(|&name| name.to_owned()).collect(),
            instruction_set: properties.instruction_set.to_owned(),
            bf16: properties.bf16.map(str::to_owned),
            threads: properties.threads,
            gpu: properties.product.clone(),
            huge_pages: huge_pages(),
        }
    }
}

impl Limits {
    /// Measures a device for about a second.
    pub fn measure(device: &dyn Device) -> Limits {
        let DeviceLimits { fp32_flops, tf32_flops, bf16_flops, f16_flops, read_bytes } = device.measure_limits();
        Limits {
            fp32_gflops: fp32_flops / 1e9,
            tf32_gflops: tf32_flops.map(|flops| flops / 1e9),
            bf16_gflops: bf16_flops.map(|flops| flops / 1e9),
            f16_gflops: f16_flops.map(|flops| flops / 1e9),
            read_gbytes: read_bytes / 1e9,
        }
    }

    /// Arithmetic a second of products in this precision, and the name of that peak: that of `f32` where the device has no other.
    pub fn peak(&self, precision: Compute) -> (&'static str, f64) {
        let own = match precision {
            Compute::Fp32 => None,
            Compute::Tf32 => self.tf32_gflops,
            Compute::Bf16 => self.bf16_gflops,
            Compute::Fp16 => self.f16_gflops,
        };
        own.map_or((Compute::Fp32.name(), self.fp32_gflops), |gflops| (precision.name(), gflops))
    }

    /// The greater of each limit: what others do to a shared machine only makes a measured limit smaller.
    #[must_use]
    pub fn greater(self, other: Limits) -> Limits {
        let of_two = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        Limits {
            fp32_gflops: self.fp32_gflops.max(other.fp32_gflops),
            tf32_gflops: of_two(self.tf32_gflops, other.tf32_gflops),
            bf16_gflops: of_two(self.bf16_gflops, other.bf16_gflops),
            f16_gflops: of_two(self.f16_gflops, other.f16_gflops),
            read_gbytes: self.read_gbytes.max(other.read_gbytes),
        }
    }
}

/// Makes [`peak_resident_bytes`] forget what was before; `false` where the system cannot.
pub fn reset_peak_resident() -> bool {
    // "5" is the request to set the high-water mark back (proc_pid_clear_refs(5)).
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The most memory this process has held since [`reset_peak_resident`], if the system reports it.
pub fn peak_resident_bytes() -> Option<u64> {
    kilobytes(&field("/proc/self/status", "VmHWM")?)
}

/// The memory that this process holds, if the system reports it.
pub fn resident_bytes() -> Option<u64> {
    kilobytes(&field("/proc/self/status", "VmRSS")?)
}

fn kilobytes(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb * 1024)
}

/// The value of the first line `name: value` of a file.
pub fn field(path: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_string())
}

fn os_name() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").map(|s| s.trim().to_string()).unwrap_or_default();
    format!("{} {kernel}", std::env::consts::OS).trim().to_string()
}

/// The word in brackets of the system's setting.
fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let start = text.find('[')? + 1;
    let end = text[start..].find(']')? + start;
    Some(text[start..end].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greater_limits_count_one_by_one() {
        let low = Limits { fp32_gflops: 1.0, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 9.0 };
        let high =
            Limits { fp32_gflops: 2.0, tf32_gflops: None, bf16_gflops: Some(3.0), f16_gflops: None, read_gbytes: 8.0 };
        let greater = Limits { read_gbytes: 9.0, ..high };
        assert_eq!((low.greater(high), high.greater(low)), (greater, greater));
        assert_eq!(high.greater(Limits { bf16_gflops: Some(4.0), ..low }).bf16_gflops, Some(4.0));
    }

    #[test]
    fn products_are_held_against_the_peak_of_their_type_where_there_is_one() {
        let peaks = |limits: Limits| Compute::ALL.map(|precision| limits.peak(precision));
        let none =
            Limits { fp32_gflops: 1.0, tf32_gflops: None, bf16_gflops: None, f16_gflops: None, read_gbytes: 9.0 };
        let one = Limits { bf16_gflops: Some(3.0), ..none };
        let both = Limits { f16_gflops: Some(4.0), ..one };
        assert_eq!(peaks(none), [("fp32", 1.0); 4]);
        assert_eq!(peaks(one), [("fp32", 1.0), ("fp32", 1.0), ("bf16", 3.0), ("fp32", 1.0)]);
        assert_eq!(peaks(both), [("fp32", 1.0), ("fp32", 1.0), ("bf16", 3.0), ("fp16", 4.0)]);
        let tf32 = Limits { tf32_gflops: Some(2.0), ..both };
        assert_eq!(tf32.peak(Compute::Tf32), ("tf32", 2.0));
        assert_eq!(both.greater(tf32), tf32);
        assert_eq!(both.greater(one).f16_gflops, Some(4.0));
    }
}
