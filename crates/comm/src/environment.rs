//! Variables of this process that its libraries read.

#![allow(unsafe_code, reason = "a process may not change its environment while another thread reads it")]

/// Sets those variables that are not set. Returns whether it could: the environment of a process can be changed while it has one thread.
pub fn set_missing(variables: &[(&str, String)]) -> bool {
    let mut missing = variables.iter().filter(|(name, _)| std::env::var_os(name).is_none()).peekable();
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return missing.peek().is_none();
    }
    for (name, value) in missing {
        // SAFETY: this is the only thread of the process, as was just seen, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    true
}
