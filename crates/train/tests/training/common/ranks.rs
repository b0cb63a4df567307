//! Ranks as threads of one process, which exchange messages through memory.

use bessemer_comm::launch::{Placement, Rendezvous};
use bessemer_comm::memory::shuffled_ranks;
use bessemer_ir::ops::collective::Wire;
use bessemer_train::{Group, GroupOptions, TrainError, TrainOptions, TrainReport, train_in};
use std::sync::Mutex;

/// How a run ended on a rank.
pub(crate) type End = Result<TrainReport, TrainError>;

/// Runs one thread a rank, whose messages arrive in an order that depends on `seed`.
pub(crate) fn train_ranks(count: usize, seed: u64, options: impl Fn(usize) -> TrainOptions + Sync) -> Vec<End> {
    train_by_wire(Wire::F32, count, seed, options)
}

pub(crate) fn train_by_wire(
    wire: Wire,
    count: usize,
    seed: u64,
    options: impl Fn(usize) -> TrainOptions + Sync,
) -> Vec<End> {
    let job = |rank: usize| options(rank).recipe.to_toml();
    let ends = try_in_group(count, seed, (wire, 1), job, |rank, group| train_in(&options(rank), group));
    ends.into_iter().map(|end| end.and_then(|result| result)).collect()
}

/// The same for ranks that all join.
pub(crate) fn in_group<T: Send>(
    count: usize,
    wire: Wire,
    verify_every: u64,
    job: impl Fn(usize) -> String + Sync,
    run: impl Fn(usize, Group) -> T + Sync,
) -> Vec<T> {
    let ends = try_in_group(count, 1, (wire, verify_every), job, run);
    ends.into_iter().map(|end| end.unwrap()).collect()
}

/// Runs each rank in a thread, if it joins, as a member of a job.
pub(crate) fn try_in_group<T: Send>(
    count: usize,
    seed: u64,
    (wire, verify_every): (Wire, u64),
    job: impl Fn(usize) -> String + Sync,
    run: impl Fn(usize, Group) -> T + Sync,
) -> Vec<Result<T, TrainError>> {
    let ends = Mutex::new(shuffled_ranks(count, seed).into_iter().map(Some).collect::<Vec<_>>());
    let rank = |rank: usize| {
        let end = ends.lock().unwrap()[rank].take().unwrap();
        let placement = Placement { rank, size: count, rendezvous: Some(Rendezvous::Mpi), ..Placement::alone() };
        let group = GroupOptions { verify_every, wire, ..GroupOptions::default() };
        let group = Group::over(Box::new(move || Ok(Box::new(end))), &placement, &job(rank), group, |_| ())?;
        Ok(run(rank, group))
    };
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || rank(number))).collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All end well, and alike.
pub(crate) fn trained(count: usize, options: impl Fn(usize) -> TrainOptions + Sync) -> TrainReport {
    let mut reports: Vec<TrainReport> =
        train_ranks(count, count as u64, options).into_iter().map(|report| report.unwrap()).collect();
    for report in &reports {
        assert_eq!(
            (report.steps, &report.metrics, &report.best),
            (reports[0].steps, &reports[0].metrics, &reports[0].best)
        );
    }
    reports.swap_remove(0)
}
