//! How long steps take on each rank, apart from waiting for the others: a rank that is slow slows all.

use crate::events::{RankTimes, RanksInfo};

/// Steps after which ranks tell each other how long theirs took.
const WINDOW: u64 = 50;
/// A rank is slow if its time exceeds the median of all ranks by this factor.
const SLOW: f64 = 1.2;

/// Share of the time that steps wait for their batches from which loading, not the model, decides how fast training is.
pub const INPUT_BOUND: f64 = 0.05;

/// Times of the steps since ranks told each other last.
#[derive(Default)]
pub(crate) struct Pace {
    steps: u64,
    sum: RankTimes,
}

impl Pace {
    /// Adds the times of a step. Returns the means of this rank's steps each time that enough are done.
    pub(crate) fn add(&mut self, step: RankTimes) -> Option<(u64, RankTimes)> {
        self.steps += 1;
        self.sum.data_s += step.data_s;
        self.sum.compute_s += step.compute_s;
        self.sum.comm_s += step.comm_s;
        if self.steps < WINDOW {
            return None;
        }
        let Pace { steps, sum } = std::mem::take(self);
        let mean = |seconds: f64| seconds / steps as f64;
        let own = RankTimes { data_s: mean(sum.data_s), compute_s: mean(sum.compute_s), comm_s: mean(sum.comm_s) };
        Some((steps, own))
    }
}

impl RankTimes {
    /// What is to be said where steps wait for data. `processors` load them beside what computes.
    pub(crate) fn input_warning(&self, processors: usize) -> Option<String> {
        let (step_s, data_s) = (self.data_s + self.compute_s + self.comm_s, self.data_s);
        let share = data_s / step_s;
        (share >= INPUT_BOUND).then(|| {
            let times = step_s / (step_s - data_s);
            format!(
                "training is input-bound: steps wait {:.0} % of their time for data, {data_s:.3} of {step_s:.3} s; loading would have to be {times:.1} \
                 times as fast as it is on these {processors} processors (`bessemer bench data` shows what takes the time)",
                100.0 * share
            )
        })
    }

    /// Seconds of a step in which the rank did not wait for others.
    pub fn own_s(&self) -> f64 {
        self.data_s + self.compute_s
    }
}

impl RanksInfo {
    /// What is to be said of the slowest rank, if the others wait for it.
    pub(crate) fn warning(&self, hosts: &[String]) -> Option<String> {
        let slowest = (0..self.ranks.len()).max_by(|&a, &b| self.ranks[a].own_s().total_cmp(&self.ranks[b].own_s()))?;
        let mut sorted: Vec<f64> = self.ranks.iter().map(RankTimes::own_s).collect();
        sorted.sort_by(f64::total_cmp);
        // The lower one: of two ranks that of the faster.
        let median = sorted[(sorted.len() - 1) / 2];
        let RankTimes { data_s, compute_s, .. } = self.ranks[slowest];
        let host = hosts.get(slowest).map_or(String::new(), |host| format!(" (host {host})"));
        (self.ranks[slowest].own_s() > SLOW * median).then(|| {
            format!(
                "rank {slowest}{host} is slow: {:.1} times the median over {} steps, {data_s:.3} s for data and {compute_s:.3} s \
                 computing a step; the others wait for it",
                (data_s + compute_s) / median,
                self.steps
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(own: &[(f64, f64)]) -> RanksInfo {
        let ranks = own.iter().map(|&(data_s, compute_s)| RankTimes { data_s, compute_s, comm_s: 9.0 });
        RanksInfo { steps: 50, ranks: ranks.collect() }
    }

    #[test]
    fn steps_that_wait_for_data_are_input_bound() {
        let times = |data_s, compute_s| RankTimes { data_s, compute_s, comm_s: 0.1 };
        assert_eq!(times(0.04, 0.9).input_warning(2), None);
        let said = times(0.5, 0.4).input_warning(16).unwrap();
        assert!(said.contains("wait 50 % of their time for data, 0.500 of 1.000 s"), "{said}");
        assert!(said.contains("2.0 times as fast as it is on these 16 processors"), "{said}");
    }

    #[test]
    fn the_slowest_rank_is_named_where_others_wait_for_it() {
        let hosts = ["a", "a", "b", "b"].map(str::to_owned);
        assert_eq!(times(&[(0.1, 0.9), (0.1, 1.0), (0.0, 1.05), (0.0, 1.1)]).warning(&hosts), None);
        assert_eq!(
            times(&[(0.1, 0.9), (0.1, 1.0), (2.0, 1.0), (0.0, 1.0)]).warning(&hosts).unwrap(),
            "rank 2 (host b) is slow: 3.0 times the median over 50 steps, 2.000 s for data and 1.000 s computing a step; the \
             others wait for it"
        );
        assert!(times(&[(0.0, 1.3), (0.0, 1.0)]).warning(&hosts).unwrap().starts_with("rank 0 (host a) is slow: 1.3"));
    }
}
