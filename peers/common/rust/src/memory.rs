//! Memory of this process.

use std::fs;

/// Bytes that are resident.
pub(crate) fn resident_bytes() -> Option<u64> {
    figure("VmRSS:")
}

/// The largest number of resident bytes so far.
pub(crate) fn peak_bytes() -> Option<u64> {
    figure("VmHWM:")
}

/// A figure of proc_pid_status(5), which are in KiB.
fn figure(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}
