//! What else uses the processors.

use bessemer_train::StopSignal;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Share of the processors that others may use on a quiet machine.
pub(crate) const QUIET: f64 = 0.05;
const LOOK: Duration = Duration::from_secs(1);

/// Ticks of all processors since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    busy: u64,
    all: u64,
    /// Of this process's children that have ended, and of theirs.
    children: u64,
}

impl Ticks {
    /// `None` where the system does not report it.
    pub(crate) fn now() -> Option<Ticks> {
        parse(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Share of the processors that others than children used since `before`.
    pub(crate) fn busy_since(self, before: Ticks) -> f64 {
        // The time of waiting for disks may fall: proc(5).
        let own = self.children - before.children;
        let others = self.busy.saturating_sub(before.busy).saturating_sub(own);
        others as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

/// Time given to other guests of the host (steal) is busy, too.
fn parse(system: &str, process: &str) -> Option<Ticks> {
    let fields: Vec<u64> = system.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let &[user, nice, kernel, idle, waiting, irq, soft_irq, steal, ..] = fields.as_slice() else { return None };
    let busy = user + nice + kernel + irq + soft_irq + steal;
    // proc_pid_stat(5): cutime and cstime are fields 16 and 17; the second field, in brackets, may have blanks.
    let mut after_name = process.rsplit_once(')')?.1.split_whitespace().skip(13);
    let children = after_name.next()?.parse::<u64>().ok()? + after_name.next()?.parse::<u64>().ok()?;
    Some(Ticks { busy, all: busy + idle + waiting, children })
}

/// Waits until nothing else runs, at most so long; the share of the processors that others used at the end. The load average
/// would be no help: it still counts the measurement that ended a moment ago.
pub(crate) fn wait_until_quiet(patience: Duration, stop: &StopSignal) -> Option<f64> {
    let deadline = Instant::now() + patience;
    loop {
        let look = LOOK.min(patience.max(Duration::from_millis(100)));
        let before = Ticks::now()?;
        sleep(look);
        let busy = Ticks::now()?.busy_since(before);
        if busy <= QUIET || Instant::now() >= deadline || stop.is_raised() {
            return Some(busy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_used_is_not_others() {
        let process = |children: u64| format!("7 (a (b) c) S 1 7 7 0 -1 0 1 2 3 4 50 60 {children} 5 20 0");
        let at = |user: u64, idle: u64, children: u64| {
            parse(&format!("cpu  {user} 0 10 {idle} 0 0 0 30 0 0\ncpu0 1\n"), &process(children)).unwrap()
        };
        let (before, after) = (at(100, 100, 10), at(180, 120, 70));
        assert_eq!(before, Ticks { busy: 140, all: 240, children: 15 });
        assert!((after.busy_since(before) - 0.2).abs() < 1e-12, "20 of 100 ticks");
        assert_eq!(parse("cpu 1 2", &process(1)), None);
        assert!(Ticks::now().is_some() || !cfg!(target_os = "linux"));
    }
}
