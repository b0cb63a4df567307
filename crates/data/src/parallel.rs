//! Independent pieces of work on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// `work(0)`, `work(1)`, ... up to `count`, in that order, computed on up to `threads` threads.
///
/// Each thread makes a state of its own with `start` and hands it to every piece of work it takes.
pub(crate) fn map_with<S, T: Send>(
    count: usize,
    threads: usize,
    start: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, usize) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    let run = || {
        let mut state = start();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = work(&mut state, index);
            results.lock().expect("no thread panics while it holds the lock").push((index, result));
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.max(1)) {
            scope.spawn(run);
        }
    });
    let mut results = results.into_inner().expect("every thread ended well");
    results.sort_unstable_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// `work(0)`, `work(1)`, ... up to `count`, computed on up to `threads` threads: all results in that order, or the first error. After
/// an error no further piece is begun.
pub fn try_map<T: Send, E: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let failed = AtomicUsize::new(usize::MAX);
    let guarded = |index| {
        if failed.load(Ordering::Relaxed) < index {
            return None;
        }
        let result = work(index);
        if result.is_err() {
            failed.fetch_min(index, Ordering::Relaxed);
        }
        Some(result)
    };
    map_with(count, threads, || (), |(), index| guarded(index)).into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whatever_the_threads() {
        for threads in [1, 3, 50] {
            assert_eq!(map_with(20, threads, || 1, |one, index| index + *one), (1..21).collect::<Vec<_>>());
        }
        assert!(map_with(0, 2, || (), |(), index| index).is_empty());
    }

    #[test]
    fn the_first_error_counts() {
        let work = |index: usize| if index % 4 == 3 { Err(index) } else { Ok(index) };
        for threads in [1, 2, 8] {
            assert_eq!(try_map(30, threads, work), Err(3));
        }
        assert_eq!(try_map(3, 2, work), Ok(vec![0, 1, 2]));
    }
}
