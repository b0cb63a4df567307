//! The devices there are, and the only place that constructs them: all else knows [`Device`] and the names here.

use bessemer_comm::launch::own_processors;
use bessemer_cpu::{CpuDevice, CpuOptions, Isa};
use bessemer_ir::run::{Alone, Collectives, Device};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A kind of device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The processors of this machine.
    #[default]
    Cpu,
}

impl DeviceKind {
    /// All kinds that this program can run on.
    pub const ALL: [Self; 1] = [Self::Cpu];

    /// The name in flags, logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
        }
    }
}

/// A name that no device has.
#[derive(Debug, thiserror::Error)]
#[error("no such device; allowed: {}", DeviceKind::ALL.map(DeviceKind::name).join(", "))]
pub struct UnknownDevice;

impl FromStr for DeviceKind {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or(UnknownDevice)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// The device that steps run on, and how it is used. Of a processor the instruction set decides results, the number of threads
/// does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// Which kind of device.
    pub kind: DeviceKind,
    /// Instruction set of the kernels on a processor.
    pub instruction_set: InstructionSet,
    /// Threads of the host that compute, the caller's included; at least 1.
    pub threads: usize,
}

impl Default for DeviceOptions {
    /// The processors of this machine, all of them or the share of a rank, with their best instructions.
    fn default() -> Self {
        let CpuOptions { isa, .. } = CpuOptions::default();
        Self { kind: DeviceKind::Cpu, instruction_set: InstructionSet(isa), threads: own_processors() }
    }
}

impl DeviceOptions {
    /// The device of a process that is alone.
    pub fn open(&self) -> Arc<dyn Device> {
        self.open_rank(Arc::new(Alone::default()))
    }

    /// The device of one rank of a job.
    pub fn open_rank(&self, collectives: Arc<dyn Collectives>) -> Arc<dyn Device> {
        match self.kind {
            DeviceKind::Cpu => {
                let options = CpuOptions { isa: self.instruction_set.0, threads: self.threads };
                Arc::new(CpuDevice::of_rank(options, collectives))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        assert_eq!("cpu".parse::<DeviceKind>().unwrap(), DeviceKind::Cpu);
        let error = "tpu".parse::<DeviceKind>().unwrap_err().to_string();
        assert_eq!(error, "no such device; allowed: cpu");
        let options = DeviceOptions { threads: 3, ..DeviceOptions::default() };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(serde_json::from_str::<DeviceOptions>(&text).unwrap(), options);
        assert_eq!(options.open().properties().threads, 3);
        assert_eq!(options.open().properties().kind, options.kind.name());
    }
}
