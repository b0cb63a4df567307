//! Gradients packed to buckets: one collective for several tensors. Sums of one micro-batch are left as they are.

use super::{Cluster, Collective, Ranks, StepProfile};

/// Sizes that are tried besides those that the search finds, in bytes.
const SIZES: [u64; 7] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20, 25 << 20, 64 << 20];

/// The bucket of several collectives that follow each other: ready when the last of them is, needed when the first one is.
///
/// # Panics
/// If there are none.
fn bucket(collectives: &[Collective]) -> Collective {
    Collective {
        bytes: collectives.iter().map(|c| c.bytes).sum(),
        ready: collectives.iter().map(|c| c.ready).max().expect("one at least"),
        needed: collectives.iter().map(|c| c.needed).min().expect("one at least"),
        each_micro_batch: false,
    }
}

/// Those that may be packed.
fn gradients(collectives: &[Collective]) -> Vec<Collective> {
    collectives.iter().filter(|collective| !collective.each_micro_batch).copied().collect()
}

/// The collectives with buckets of these numbers of gradients, in the order of readiness.
///
/// # Panics
/// If the counts are not all at least 1 and together the number of gradients.
pub fn merged(collectives: &[Collective], counts: &[usize]) -> Vec<Collective> {
    let gradients = gradients(collectives);
    assert_eq!(counts.iter().sum::<usize>(), gradients.len(), "every gradient is in one bucket");
    let mut rest = &gradients[..];
    let take = |&count: &usize| {
        let (first, others) = rest.split_at(count);
        rest = others;
        bucket(first)
    };
    let buckets = counts.iter().map(take);
    let mut all: Vec<Collective> = buckets.chain(collectives.iter().filter(|c| c.each_micro_batch).copied()).collect();
    all.sort_by_key(|collective| collective.ready);
    all
}

/// Numbers of gradients of each bucket if a bucket is closed as soon as it holds `first` bytes, and the later ones `size`.
pub fn counts_by_size(collectives: &[Collective], first: u64, size: u64) -> Vec<usize> {
    let mut counts = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for collective in gradients(collectives) {
        (count, bytes) = (count + 1, bytes + collective.bytes);
        if bytes >= if counts.is_empty() { first } else { size } {
            counts.push(count);
            (count, bytes) = (0, 0);
        }
    }
    counts.extend((count > 0).then_some(count));
    counts
}

/// Numbers of gradients of each bucket for which the simulated step on `ranks` is shortest; of equally good ones the fewest
/// buckets. A bucket has tensors that follow each other in the order of readiness.
///
/// Where everything behind the backward pass waits for all gradients, as with a global norm, micro-batches wait for no sums, and
/// collectives do not slow down kernels, the result is optimal. Otherwise it is the best of that solution and of buckets of common sizes.
pub fn choose(profile: &StepProfile, cluster: &Cluster, ranks: Ranks) -> Vec<usize> {
    let (collectives, number) = (&profile.collectives, gradients(&profile.collectives).len());
    if number == 0 {
        return Vec::new();
    }
    let by_size = SIZES.map(|size| counts_by_size(collectives, size, size));
    let candidates = [earliest_end(profile, cluster, ranks), vec![number]].into_iter().chain(by_size);
    let simulated = candidates.map(|counts| {
        let seconds = profile.simulate_in_buckets(&counts, cluster, ranks).step_seconds;
        (seconds, counts)
    });
    let better = |a: (f64, Vec<usize>), b: (f64, Vec<usize>)| {
        let is_better = b.0 < a.0 || (b.0 == a.0 && b.1.len() < a.1.len());
        if is_better { b } else { a }
    };
    simulated.reduce(better).expect("several candidates").1
}

/// Buckets whose last one ends earliest, by dynamic programming over the number of collectives that are through: one after
/// the other, each begins when its last tensor is ready and the bucket before has ended.
fn earliest_end(profile: &StepProfile, cluster: &Cluster, ranks: Ranks) -> Vec<usize> {
    let collectives = gradients(&profile.collectives);
    let mut now = profile.earlier_seconds;
    let ends: Vec<f64> = profile
        .calls
        .iter()
        .map(|call| {
            now += call;
            now
        })
        .collect();
    // Of the first `i` collectives: the earliest end, the number of buckets, and where the last bucket begins.
    let mut best: Vec<(f64, usize, usize)> = vec![(0.0, 0, 0)];
    for last in 1..=collectives.len() {
        let ready = ends[collectives[last - 1].ready];
        let mut bytes = 0;
        let mut found = (f64::INFINITY, 0, 0);
        for first in (0..last).rev() {
            bytes += collectives[first].bytes;
            let (before, buckets, _) = best[first];
            let end = before.max(ready) + cluster.collective(bytes, ranks).seconds;
            if end < found.0 || (end == found.0 && buckets + 1 < found.1) {
                found = (end, buckets + 1, first);
            }
        }
        best.push(found);
    }
    let mut counts = Vec::new();
    let mut last = collectives.len();
    while last > 0 {
        let first = best[last].2;
        counts.push(last - first);
        last = first;
    }
    counts.reverse();
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::tests::{collective, link, profile};
    use bessemer_ir::philox;

    /// All ways to cut `count` collectives into buckets.
    fn all_counts(count: usize) -> Vec<Vec<usize>> {
        if count == 0 {
            return vec![Vec::new()];
        }
        let with_first =
            |first: usize| all_counts(count - first).into_iter().map(move |rest| [vec![first], rest].concat());
        (1..=count).flat_map(with_first).collect()
    }

    #[test]
    fn buckets_are_closed_when_they_are_full() {
        let gradients: Vec<Collective> = [4, 4, 4, 9, 1, 1].iter().map(|&bytes| collective(bytes, 0, 9)).collect();
        assert_eq!(counts_by_size(&gradients, 1, 8), [1, 2, 1, 2]);
        assert_eq!(counts_by_size(&gradients, 100, 100), [6]);
        assert!(counts_by_size(&[], 1, 1).is_empty());
        let ordered = [collective(4, 1, 9), collective(5, 3, 8), collective(6, 4, 7)];
        assert_eq!(merged(&ordered, &[2, 1]), [collective(9, 3, 8), collective(6, 4, 7)]);
    }

    /// Every cut of random gradients of a step whose update waits for all of them is simulated.
    #[test]
    fn chosen_buckets_are_the_best_of_all_where_everything_waits() {
        let cluster = link(1.0, 0.4);
        let ranks = Ranks { nodes: 2, devices: 1 };
        let mut several = 0;
        for seed in 0..40 {
            let random = |index: u64| f64::from(philox::uniform(seed, 0, 0, index));
            let calls: Vec<f64> = (0..8).map(|i| random(i) + 0.1).chain([1.0]).collect();
            let bytes = |i: u64| (random(20 + i) * 1e9) as u64;
            let gradients: Vec<Collective> = (0..8).map(|i| collective(bytes(i), i as usize, 8)).collect();
            let step = profile(&calls, &gradients);
            let seconds = |counts: &[usize]| step.simulate_in_buckets(counts, &cluster, ranks).step_seconds;
            let best = all_counts(8).iter().map(|counts| seconds(counts)).fold(f64::INFINITY, f64::min);
            let chosen = choose(&step, &cluster, ranks);
            assert!((seconds(&chosen) - best).abs() < 1e-9, "{seed}: {} instead of {best}", seconds(&chosen));
            several += usize::from(chosen.len() > 1 && chosen.len() < 8);
        }
        assert!(several > 20, "most cuts are not trivial: {several}");
    }

    #[test]
    fn latency_makes_buckets_fewer_and_backward_time_makes_them_more() {
        let gradients: Vec<Collective> = (0..8).map(|i| collective(500_000_000, i, 8)).collect();
        let step = profile(&[1.0; 9], &gradients);
        let ranks = Ranks { nodes: 2, devices: 1 };
        let number = |latency| choose(&step, &link(1.0, latency), ranks).len();
        assert_eq!(number(0.0), 8, "without latency nothing is gained by waiting");
        assert_eq!(number(1000.0), 1);
        assert!(choose(&profile(&[1.0], &[]), &link(1.0, 0.0), ranks).is_empty());
    }

    #[test]
    fn chosen_buckets_are_never_worse_than_common_sizes_where_updates_follow_their_bucket() {
        let cluster = link(0.05, 0.001);
        let ranks = Ranks { nodes: 2, devices: 1 };
        let calls = [0.02; 16];
        let gradients: Vec<Collective> = (0..8).map(|i| collective(3 << 20, i, 15 - i)).collect();
        let step = profile(&calls, &gradients);
        let seconds = |counts: &[usize]| step.simulate_in_buckets(counts, &cluster, ranks).step_seconds;
        let chosen = seconds(&choose(&step, &cluster, ranks));
        for size in SIZES {
            assert!(chosen <= seconds(&counts_by_size(&gradients, size, size)));
        }
    }
}
