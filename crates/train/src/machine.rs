//! What a run says about the machine it runs on.

use crate::events::Machine;
use std::fs;

/// Describes this machine; what the system does not report is left empty.
pub fn describe_machine(isa: &str) -> Machine {
    Machine {
        hostname: first_line("/proc/sys/kernel/hostname")
            .or_else(|| std::env::var("COMPUTERNAME").ok())
            .unwrap_or_default(),
        os: format!("{} {}", std::env::consts::OS, first_line("/proc/sys/kernel/osrelease").unwrap_or_default())
            .trim_end()
            .to_owned(),
        cpu: value_in("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from) as u64,
        isa: isa.to_owned(),
        memory_bytes: total_memory(),
    }
}

fn first_line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(str::to_owned)
}

/// The value of the first line `key : value`.
fn value_in(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// All memory of the machine in bytes; `None` where the system does not say.
pub fn total_memory() -> Option<u64> {
    memory("MemTotal")
}

/// Bytes that programs can still take without others being moved out; `None` where the system does not say.
pub fn available_memory() -> Option<u64> {
    memory("MemAvailable")
}

fn memory(key: &str) -> Option<u64> {
    let kibibytes: u64 = value_in("/proc/meminfo", key)?.strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_known() {
        let machine = describe_machine("portable");
        assert!(machine.cores >= 1 && !machine.os.is_empty() && !machine.cpu.is_empty());
        assert_eq!(machine.isa, "portable");
        if cfg!(target_os = "linux") {
            assert!(machine.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
            assert!(available_memory().is_some_and(|bytes| Some(bytes) < machine.memory_bytes));
        }
    }
}
