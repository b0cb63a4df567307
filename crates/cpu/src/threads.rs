//! A fork-join thread pool for kernels: no allocation per call, dynamic assignment of numbered tasks.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Work of one [`ThreadPool::run`] call: `f(task, worker)`.
type Work<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Rounds of `spin_loop` before an idle worker sleeps.
const SPINS: u32 = 2000;

/// `state`: number of workers inside the current job in the low bits, then `OPEN`, then the job's epoch.
const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;

/// Keeps a counter that all workers write off the cache lines of its neighbours.
#[repr(align(128))]
struct Padded<T>(T);

struct Job {
    work: *const Work<'static>,
    tasks: usize,
}

struct Shared {
    state: Padded<AtomicU64>,
    next: Padded<AtomicUsize>,
    job: UnsafeCell<Job>,
    busy: AtomicBool,
    shutdown: AtomicBool,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while no worker is inside and `OPEN` is clear, and read only by workers that
// entered through `state` afterwards; everything else is atomic or locked.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only followed during the `run` call that set it.
unsafe impl Send for Shared {}

impl Shared {
    /// Runs tasks of the current job until none is left.
    fn drain(&self, work: &Work<'_>, tasks: usize, worker: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.0.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                work(task, worker);
            }
        }));
        if let Err(payload) = outcome {
            self.next.0.store(tasks, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// Waits for a job newer than `seen`; the state word to enter it with, or `None` at shutdown.
    fn wait_for_job(&self, seen: u64) -> Option<u64> {
        let ready = || {
            let state = self.state.0.load(Ordering::SeqCst);
            (state & OPEN != 0 && state / EPOCH != seen).then_some(state)
        };
        for _ in 0..SPINS {
            if let Some(state) = ready() {
                return Some(state);
            }
            if self.shutdown.load(Ordering::Relaxed) {
                return None;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let found = loop {
            if let Some(state) = ready() {
                break Some(state);
            }
            if self.shutdown.load(Ordering::SeqCst) {
                break None;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        found
    }

    fn worker_loop(&self, worker: usize) {
        let mut seen = 0;
        while let Some(state) = self.wait_for_job(seen) {
            if self.state.0.compare_exchange(state, state + 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = state / EPOCH;
            // SAFETY: the worker is counted inside an open job, so `run` neither writes `job` nor returns (and
            // with it ends the life of the work) before the worker leaves.
            let (work, tasks) = unsafe {
                let job = &*self.job.get();
                (&*job.work, job.tasks)
            };
            self.drain(work, tasks, worker);
            self.state.0.fetch_sub(1, Ordering::Release);
        }
    }

    fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    /// Closes the current job and waits until every worker has left it.
    fn close(&self) {
        self.state.0.fetch_and(!OPEN, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.state.0.load(Ordering::Acquire) & (OPEN - 1) != 0 {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

/// A fixed set of threads that run numbered tasks together with the caller.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller of [`run`](Self::run) included. Returns once all of them have started: a
    /// thread allocates memory while it starts.
    ///
    /// # Panics
    /// When `threads` is 0 or above 65535, or when the system refuses a thread.
    pub fn new(threads: usize) -> ThreadPool {
        assert!((1..OPEN as usize).contains(&threads), "a thread pool has 1 to 65535 threads, not {threads}");
        let idle: *const Work<'static> = &|_, _| {};
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { work: idle, tasks: 0 }),
            busy: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let started = Arc::new(Barrier::new(threads));
        let spawn = |worker: usize| {
            let (shared, started) = (Arc::clone(&shared), Arc::clone(&started));
            std::thread::Builder::new()
                .name(format!("kernel-{worker}"))
                .spawn(move || {
                    started.wait();
                    shared.worker_loop(worker);
                })
                .unwrap_or_else(|error| panic!("cannot start kernel thread {worker}: {error}"))
        };
        let workers = (1..threads).map(spawn).collect();
        started.wait();
        ThreadPool { shared, workers }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(task, worker)` once for each task in `0..tasks` and returns when all are done. `worker` is below
    /// [`threads`](Self::threads) and no two calls run at once with the same `worker`; the caller is worker 0.
    ///
    /// A call made from inside a task, or while another thread uses the pool, runs its tasks on its own thread.
    ///
    /// # Panics
    /// With the first panic of a task; tasks not yet started are then skipped.
    pub fn run(&self, tasks: usize, f: &Work<'_>) {
        let shared = &*self.shared;
        if tasks <= 1 || self.workers.is_empty() || shared.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(|task| f(task, 0));
            return;
        }
        // SAFETY: only the lifetime changes. The pointer is followed by workers inside the job, and `close`
        // below waits for all of them before `f` can go away.
        let work = unsafe { std::mem::transmute::<*const Work<'_>, *const Work<'static>>(f) };
        // SAFETY: `busy` admits one caller, and between jobs no worker is inside.
        unsafe { *shared.job.get() = Job { work, tasks } };
        shared.next.0.store(0, Ordering::Relaxed);
        let epoch = shared.state.0.load(Ordering::Relaxed) / EPOCH + 1;
        shared.state.0.store(epoch * EPOCH + OPEN, Ordering::SeqCst);
        shared.wake_sleepers();
        shared.drain(f, tasks, 0);
        shared.close();
        let payload = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        shared.busy.store(false, Ordering::Release);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        drop(self.shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so joining it cannot fail.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_task_runs_once_with_a_valid_worker() {
        let pool = ThreadPool::new(3);
        for tasks in [0, 1, 2, 7, 100] {
            for round in 0..200 {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(worker < 3);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{tasks} tasks, round {round}");
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = ThreadPool::new(2);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            let both = Barrier::new(2);
            pool.run(2, &|_, _| {
                both.wait();
            });
        }
    }

    #[test]
    fn panic_reaches_the_caller_and_the_pool_survives() {
        let pool = ThreadPool::new(2);
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task, _| assert_ne!(task, 3, "task three"))));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn nested_run_completes() {
        let pool = ThreadPool::new(2);
        let done = AtomicUsize::new(0);
        pool.run(4, &|_, _| {
            pool.run(5, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            })
        });
        assert_eq!(done.load(Ordering::Relaxed), 20);
    }
}
