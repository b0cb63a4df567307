//! Training on several devices, simulated: the time of a step from what one rank does and a description of the cluster.
//!
//! A rank has three resources: its device, which runs kernel calls one after the other; the links, on which collectives run
//! one after the other, each from the call that completes its input to the first call that needs its result; and the input,
//! which must bring the samples of a step within the step. `docs/simulator.md` has the formulas and how they compare with
//! published tables.

use bessemer_data::{plain_message, read_text};
use bessemer_ir::passes::buckets::BucketOptions;
use bessemer_train::stats::mean;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

pub mod buckets;
mod cluster;
mod fit;
mod from_plan;
mod published;
mod scaling;
pub mod validation;

pub use cluster::{Cluster, ClusterError, Collectives, DeviceDescription, Link};
pub use from_plan::{measured_step, profile_of_plan};
pub use scaling::{Scaling, ScalingRow, ScalingTable, scaling};

/// What one rank does in a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepProfile {
    /// Name of the model; `None` where it is not known.
    #[serde(default)]
    pub model: Option<String>,
    /// Samples of the rank in a step, those of all its micro-batches together.
    pub samples: f64,
    /// Seconds of the micro-batches before the last one.
    pub earlier_seconds: f64,
    /// Seconds of each kernel call of the last micro-batch and of the update, in order.
    pub calls: Vec<f64>,
    /// Number of calls up to the last gradient; those behind it are the update.
    pub backward_end: usize,
    /// In the order in which their inputs become ready.
    pub collectives: Vec<Collective>,
    /// Samples per second that the input of one node delivers; not a limit if `None`.
    pub input_rate: Option<f64>,
    /// Measured seconds of whole steps, from which the spread between ranks follows; empty for ranks that are equally fast.
    pub step_seconds: Vec<f64>,
}

/// A tensor, or a bucket of tensors, that is summed over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collective {
    /// Bytes of the tensor.
    pub bytes: u64,
    /// Number of the call that completes the input.
    pub ready: usize,
    /// Number of the first call that needs the result; the number of calls if it is needed at the end of the step.
    pub needed: usize,
    /// Whether each micro-batch has it and waits for its result, as for the moments of batch norms over all ranks. It is not packed with others.
    #[serde(default)]
    pub each_micro_batch: bool,
}

/// Ranks of a job, one for each device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ranks {
    /// Number of nodes.
    pub nodes: usize,
    /// Devices of each node.
    pub devices: usize,
}

/// Nodes of a cluster, devices of each, and messages of a rank that are on the way, at most.
const MOST_RANKS: usize = 1 << 16;

impl Ranks {
    /// One device.
    pub const ONE: Ranks = Ranks { nodes: 1, devices: 1 };

    /// Ranks of all nodes together.
    pub fn count(self) -> usize {
        self.nodes * self.devices
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nodes, self.devices)
    }
}

impl FromStr for Ranks {
    type Err = String;

    /// Nodes and ranks of each, such as `2x8`.
    fn from_str(text: &str) -> Result<Ranks, String> {
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MOST_RANKS).contains(number));
        let parts = text.split_once('x').and_then(|(nodes, devices)| Some((number(nodes)?, number(devices)?)));
        let (nodes, devices) = parts.ok_or("expected nodes x ranks of each, such as 1x2 or 2x8")?;
        Ok(Ranks { nodes, devices })
    }
}

/// The resource that limits a step: the one that is busy longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Binds {
    /// The device.
    Compute,
    /// The link between devices of a node.
    LinkInside,
    /// The link between nodes.
    LinkBetween,
    /// Loading of samples.
    Input,
}

impl Binds {
    /// In words, for tables.
    pub fn name(self) -> &'static str {
        match self {
            Binds::Compute => "compute",
            Binds::LinkInside => "link inside",
            Binds::LinkBetween => "link between",
            Binds::Input => "input",
        }
    }
}

/// A simulated step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The ranks that take part.
    pub ranks: Ranks,
    /// Seconds of the step.
    pub step_seconds: f64,
    /// Samples per second of all ranks together.
    pub throughput: f64,
    /// Throughput as a multiple of that of one rank.
    pub speed_up: f64,
    /// The same for each rank: 1 if further ranks cost nothing.
    pub efficiency: f64,
    /// Seconds by which collectives lengthen the step: waits, and kernels that run slower beside them.
    pub exposed_seconds: f64,
    /// The resource that is busy longest.
    pub binds: Binds,
}

impl StepProfile {
    /// A profile that a file holds as JSON.
    ///
    /// # Errors
    /// [`ClusterError`] if the file cannot be read, is not a profile, or is inconsistent.
    pub fn read(path: &Path) -> Result<StepProfile, ClusterError> {
        let invalid = |problem: String| ClusterError::Profile { path: path.to_owned(), problem };
        let not_one = |error: serde_json::Error| {
            let problem = plain_message(&error.to_string());
            invalid(format!("{problem}; expected a profile as `bench train --step-profile FILE` writes it"))
        };
        let profile: StepProfile = serde_json::from_str(&read_text(path)?).map_err(not_one)?;
        profile.check().map_err(|problem| invalid(problem.to_owned()))?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), &'static str> {
        let seconds = self.calls.iter().chain(&self.step_seconds).chain([&self.earlier_seconds]);
        let rules = [
            (self.samples.is_finite() && self.samples > 0.0, "`samples` must be above 0"),
            (!self.calls.is_empty(), "`calls` must not be empty"),
            (seconds.into_iter().all(|s| s.is_finite() && *s >= 0.0), "seconds must be at least 0"),
            (self.compute_seconds() > 0.0, "the seconds of all calls must be above 0"),
            (self.backward_end <= self.calls.len(), "`backward_end` must be at most the number of calls"),
            (self.input_rate.is_none_or(|rate| rate > 0.0), "`input_rate` must be above 0"),
            (self.collectives.is_sorted_by_key(|c| c.ready), "`collectives` must be in the order of `ready`"),
            (
                self.collectives.iter().all(|c| c.ready < c.needed && c.needed <= self.calls.len()),
                "each collective must have `ready` below `needed`, and `needed` at most the number of calls",
            ),
        ];
        rules.into_iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, problem)| Err(problem))
    }

    /// Seconds of all kernels of a step.
    pub fn compute_seconds(&self) -> f64 {
        self.earlier_seconds + self.calls.iter().sum::<f64>()
    }

    /// The same step on a device that needs `seconds` for its kernels, each call in proportion.
    ///
    /// # Panics
    /// If the calls of the profile take no time.
    #[must_use]
    pub fn scaled_to(mut self, seconds: f64) -> StepProfile {
        let factor = seconds / self.compute_seconds();
        assert!(factor.is_finite(), "a profile has calls that take time");
        self.earlier_seconds *= factor;
        self.calls.iter_mut().for_each(|call| *call *= factor);
        self
    }

    /// The same step with its collectives merged to buckets; see [`buckets`].
    #[must_use]
    pub fn with_collectives(&self, collectives: Vec<Collective>) -> StepProfile {
        StepProfile { collectives, ..self.clone() }
    }

    /// The same step where the sums of gradients are sent and waited for behind the backward pass, before anything of the update.
    #[must_use]
    pub fn without_overlap(mut self) -> StepProfile {
        let end = self.backward_end.max(1);
        for collective in self.collectives.iter_mut().filter(|collective| !collective.each_micro_batch) {
            (collective.ready, collective.needed) = (end - 1, end);
        }
        self.collectives.sort_by_key(|collective| collective.ready);
        self
    }

    /// Bytes of the sums of gradients.
    pub fn gradient_bytes(&self) -> u64 {
        self.collectives.iter().filter(|sum| !sum.each_micro_batch).map(|gradient| gradient.bytes).sum()
    }

    /// The step on several ranks, its gradients packed as the compiler packs them.
    ///
    /// # Errors
    /// [`ClusterError`] for more ranks than the cluster has devices.
    pub fn predict(&self, cluster: &Cluster, ranks: Ranks) -> Result<Outcome, ClusterError> {
        cluster.check(ranks)?;
        Ok(self.simulate_in_buckets(&self.usual_buckets(), cluster, ranks))
    }

    /// The time of the step with so many gradients in each bucket; see [`buckets`].
    fn simulate_in_buckets(&self, counts: &[usize], cluster: &Cluster, ranks: Ranks) -> Outcome {
        self.with_collectives(buckets::merged(&self.collectives, counts)).simulate(cluster, ranks)
    }

    /// How many gradients are in each bucket of the compiler.
    fn usual_buckets(&self) -> Vec<usize> {
        let BucketOptions { first_bytes, bytes, .. } = BucketOptions::default();
        buckets::counts_by_size(&self.collectives, first_bytes as u64, bytes as u64)
    }

    /// The same step with calls merged between which no collective begins or is waited for: as long, simulated faster.
    #[must_use]
    pub fn with_merged_calls(mut self) -> StepProfile {
        let ends =
            self.collectives.iter().flat_map(|c| [c.ready + 1, c.needed]).chain([self.backward_end, self.calls.len()]);
        let ends: BTreeSet<usize> = ends.filter(|&end| end > 0).collect();
        let starts = std::iter::once(&0).chain(&ends);
        let calls = starts.zip(&ends).map(|(&start, &end)| self.calls[start..end].iter().sum()).collect();
        let merged = |index: usize| ends.range(..=index).count();
        for collective in &mut self.collectives {
            (collective.ready, collective.needed) = (merged(collective.ready), merged(collective.needed));
        }
        self.backward_end = merged(self.backward_end);
        StepProfile { calls, ..self }
    }

    /// The time of the step on these ranks of a cluster.
    pub fn simulate(&self, cluster: &Cluster, ranks: Ranks) -> Outcome {
        let count = ranks.count() as f64;
        let slowest = expected_maximum(&self.step_seconds, ranks.count());
        let run = self.run(cluster, ranks, slowest);
        let single = self.compute_seconds().max(self.input_seconds(1));
        let input = self.input_seconds(ranks.devices);
        let fixed = if ranks == Ranks::ONE { 0.0 } else { cluster.fixed_seconds() };
        let step = (run.seconds + fixed).max(input);
        let compute = self.compute_seconds() * slowest;
        let busy = [
            (compute, Binds::Compute),
            (run.inside, Binds::LinkInside),
            (run.between, Binds::LinkBetween),
            (input, Binds::Input),
        ];
        let (_, binds) = busy.into_iter().reduce(|a, b| if b.0 > a.0 { b } else { a }).expect("four resources");
        let speed_up = count * single / step;
        Outcome {
            ranks,
            step_seconds: step,
            throughput: count * self.samples / step,
            speed_up,
            efficiency: speed_up / count,
            exposed_seconds: run.seconds - compute,
            binds,
        }
    }

    /// Seconds in which a node loads the samples of a step for its devices.
    fn input_seconds(&self, devices: usize) -> f64 {
        self.input_rate.map_or(0.0, |rate| devices as f64 * self.samples / rate)
    }

    /// Runs kernels and collectives, kernels being `slower` times as long as in the profile.
    fn run(&self, cluster: &Cluster, ranks: Ranks, slower: f64) -> Run {
        let mut now = self.earlier_seconds * slower;
        let mut run = Run { seconds: 0.0, inside: 0.0, between: 0.0 };
        // Collectives run one after the other: one that begins when all before have ended is busy from then on without gaps.
        let mut links_free = 0.0_f64;
        let mut running: Vec<(usize, f64)> = Vec::new();
        let mut upcoming = self.collectives.iter().peekable();
        for (index, call) in self.calls.iter().enumerate() {
            let wait = running.iter().filter(|(needed, _)| *needed <= index).map(|(_, end)| *end);
            now = wait.fold(now, f64::max);
            running.retain(|(needed, _)| *needed > index);
            now += beside(call * slower, (links_free - now).max(0.0), cluster.slow_down);
            while let Some(collective) = upcoming.next_if(|collective| collective.ready == index) {
                let time = cluster.collective(collective.bytes, ranks);
                links_free = links_free.max(now) + time.seconds;
                run.inside += time.inside;
                run.between += time.between;
                running.push((collective.needed, links_free));
            }
        }
        run.seconds = running.iter().map(|(_, end)| *end).fold(now, f64::max);
        run
    }
}

/// A simulated run of kernels and collectives, and the seconds for which each link is busy.
struct Run {
    seconds: f64,
    inside: f64,
    between: f64,
}

/// Seconds of a kernel of `work` seconds that begins beside collectives which go on for `busy` seconds, and is slowed down by
/// the factor `1 + slow_down` until they end.
fn beside(work: f64, busy: f64, slow_down: f64) -> f64 {
    let slowed = work * (1.0 + slow_down);
    if slowed <= busy { slowed } else { work + busy * slow_down / (1.0 + slow_down) }
}

/// The expected maximum of `draws` independent draws from a measured sample, as a multiple of its mean; 1 without a sample.
///
/// Of `n` sorted values the i-th is the maximum with probability `(i/n)^draws - ((i-1)/n)^draws` (David, Nagaraja 2003, Order
/// Statistics, section 2.1, for the empirical distribution).
pub fn expected_maximum(sample: &[f64], draws: usize) -> f64 {
    if sample.is_empty() {
        return 1.0;
    }
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = |count: usize| (count as f64 / sorted.len() as f64).powi(draws as i32);
    let maximum: f64 = sorted.iter().enumerate().map(|(i, value)| value * (share(i + 1) - share(i))).sum();
    maximum / mean(sample)
}

#[cfg(test)]
mod tests;
