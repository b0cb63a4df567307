//! What a suite measures: what is chosen, or what its folder has, or the usual, in the order in which it matters.

use super::{Counts, Measurement, Priority};
use crate::compare::plan::clips;
use crate::compare::{BatchSize, CompareError, Fusion, Options, Part, Usual};
use crate::measure::Request;
use crate::peers::Peers;
use crate::workload::Mode;
use bessemer_comm::launch::{Placement, process_variables};
use bessemer_comm::mpi::MpiLibrary;
use bessemer_train::DeviceOptions;
use bessemer_train::recipe::Compute;
use bessemer_train::tasks::registry::{self, FAMILIES};
use serde::{Deserialize, Serialize};
use std::thread::available_parallelism;
use std::time::Duration;

/// What a suite is to measure; `None` is what the folder's suite has, or else the usual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Names of models; usually one of each family.
    pub models: Option<Vec<String>>,
    /// Usually both.
    pub modes: Option<Vec<Mode>>,
    /// Of all models; usually the family's, and the largest.
    pub batch_sizes: Option<Vec<BatchSize>>,
    /// As in plans; usually Bessemer and all that are installed.
    pub frameworks: Option<Vec<String>>,
    /// Usually fp32, and bf16 on processors that have it.
    pub precisions: Option<Vec<Compute>>,
    /// Numbers of ranks of this machine; usually 2, 4 and so on, as many as there are processors, where there is an MPI.
    pub ranks: Option<Vec<usize>>,
    /// Steps before the timed ones of each run, at most.
    pub warmup: Option<usize>,
    /// Timed steps of each run, at most.
    pub steps: Option<usize>,
    /// Runs of each framework, at most.
    pub repeat: Option<usize>,
    /// Time for all.
    pub budget: Option<Duration>,
}

/// A [`Choice`] with nothing open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Scope {
    pub models: Vec<String>,
    pub modes: Vec<Mode>,
    /// `None` for those of each model's family.
    pub batch_sizes: Option<Vec<BatchSize>>,
    pub frameworks: Vec<String>,
    pub precisions: Vec<Compute>,
    pub ranks: Vec<usize>,
    pub counts: Counts,
    pub seed: u64,
    pub threads: usize,
}

impl Scope {
    /// # Errors
    /// [`CompareError::OtherSuite`] where something is chosen that the suite of the folder does not have.
    pub(super) fn of(
        choice: &Choice,
        saved: Option<&Scope>,
        peers: &Peers,
        options: &Options,
        notify: &mut dyn FnMut(&str),
    ) -> Result<Self, CompareError> {
        let mut differs = Vec::new();
        let counts = saved.map(|saved| saved.counts);
        let usual = Usual::FULL;
        let scope = Self {
            models: pick("models", full_names(choice)?, saved.map(|saved| &saved.models), usual_models, &mut differs),
            modes: pick(
                "modes",
                choice.modes.clone(),
                saved.map(|saved| &saved.modes),
                || Mode::ALL.to_vec(),
                &mut differs,
            ),
            batch_sizes: pick(
                "batch sizes",
                choice.batch_sizes.clone().map(Some),
                saved.map(|saved| &saved.batch_sizes),
                || None,
                &mut differs,
            ),
            frameworks: pick(
                "frameworks",
                choice.frameworks.clone(),
                saved.map(|saved| &saved.frameworks),
                || installed(peers, notify),
                &mut differs,
            ),
            precisions: match (&choice.precisions, saved) {
                (None, None) => usual_precisions(&options.device)?,
                (chosen, saved) => {
                    pick("precisions", chosen.clone(), saved.map(|saved| &saved.precisions), Vec::new, &mut differs)
                }
            },
            ranks: pick(
                "ranks",
                choice.ranks.clone(),
                saved.map(|saved| &saved.ranks),
                || usual_ranks(notify),
                &mut differs,
            ),
            counts: Counts {
                warmup: pick(
                    "warm-up steps",
                    choice.warmup,
                    counts.map(|n| n.warmup).as_ref(),
                    || usual.warmup,
                    &mut differs,
                ),
                steps: pick("steps", choice.steps, counts.map(|n| n.steps).as_ref(), || usual.steps, &mut differs),
                repeat: pick(
                    "repeats",
                    choice.repeat,
                    counts.map(|n| n.repeat).as_ref(),
                    || usual.repeat,
                    &mut differs,
                ),
            },
            seed: pick("the seed", Some(options.seed), saved.map(|saved| &saved.seed), || 0, &mut differs),
            threads: pick(
                "threads",
                Some(options.device.threads),
                saved.map(|saved| &saved.threads),
                || 1,
                &mut differs,
            ),
        };
        match differs.is_empty() {
            true => Ok(scope),
            false => Err(CompareError::OtherSuite { folder: options.folder.clone(), differs: differs.join(", ") }),
        }
    }

    /// Everything, in the order in which it matters.
    pub(super) fn works(&self, device: &DeviceOptions) -> Result<Vec<(Priority, Measurement)>, CompareError> {
        let mut works = Vec::new();
        let mut add = |priority: Priority, part: Part| -> Result<(), CompareError> {
            let groups = part.groups(&Usual::FULL)?.into_iter();
            works.extend(groups.map(|group| (priority, Measurement::Compared(Box::new(group)))));
            Ok(())
        };
        let each = || self.models.iter().flat_map(|model| self.modes.iter().map(move |&mode| (model, mode)));
        for &precision in &self.precisions {
            for (model, mode) in each() {
                add(Priority::First, self.part(model, mode, precision, &self.batches(model, mode)?[..1]))?;
            }
        }
        for (priority, is_largest) in [(Priority::OtherBatches, false), (Priority::LargestBatch, true)] {
            for &precision in &self.precisions {
                for (model, mode) in each() {
                    let others = self.batches(model, mode)?.split_off(1);
                    let others: Vec<BatchSize> =
                        others.into_iter().filter(|size| (*size == BatchSize::Largest) == is_largest).collect();
                    if !others.is_empty() {
                        add(priority, self.part(model, mode, precision, &others))?;
                    }
                }
            }
        }
        let precision = self.precisions.first().copied().unwrap_or_default();
        for (model, mode) in each() {
            let usual = self.part(model, mode, precision, &self.batches(model, mode)?[..1]);
            add(Priority::OtherForms, Part { fusion: Some(vec![Fusion::Off]), ..usual })?;
        }
        for (model, mode) in each().filter(|(model, mode)| clips(model, *mode)) {
            let usual = self.part(model, mode, precision, &self.batches(model, mode)?[..1]);
            add(Priority::OtherForms, Part { clip: Some(false), ..usual })?;
        }
        if !self.ranks.is_empty() && self.modes.contains(&Mode::Train) {
            for model in &self.models {
                // A largest batch is of one device alone.
                if let BatchSize::Of(batch_size) = self.batches(model, Mode::Train)?[0] {
                    works.push((Priority::SeveralRanks, self.on_ranks(model, batch_size, precision, device)?));
                }
            }
        }
        Ok(works)
    }

    fn part(&self, model: &str, mode: Mode, precision: Compute, batch_sizes: &[BatchSize]) -> Part {
        let Counts { warmup, steps, repeat } = self.counts;
        Part {
            models: Some(vec![model.to_owned()]),
            modes: Some(vec![mode]),
            frameworks: Some(self.frameworks.clone()),
            batch_sizes: Some(batch_sizes.to_vec()),
            precisions: Some(vec![precision]),
            warmup: Some(warmup),
            steps: Some(steps),
            repeat: Some(repeat),
            ..Part::default()
        }
    }

    /// At least one.
    fn batches(&self, model: &str, mode: Mode) -> Result<Vec<BatchSize>, CompareError> {
        let of_family = || {
            let benchmark = registry::find(model)?.family().benchmark();
            let sizes = benchmark.batches(mode).iter().map(|&size| BatchSize::Of(size));
            Ok(sizes.chain([BatchSize::Largest]).collect())
        };
        self.batch_sizes.clone().filter(|sizes| !sizes.is_empty()).map_or_else(of_family, Ok)
    }

    fn on_ranks(
        &self,
        model: &str,
        batch_size: usize,
        precision: Compute,
        device: &DeviceOptions,
    ) -> Result<Measurement, CompareError> {
        let most = self.ranks.iter().copied().max().unwrap_or(1);
        let Counts { warmup, steps, repeat } = self.counts;
        let request = Request {
            precision,
            warmup,
            steps,
            repeat,
            seed: self.seed,
            settings: registry::find(model)?.family().usual_step(None),
            // Ranks are equal devices, however many there are.
            device: DeviceOptions { threads: (self.threads / most).max(1), ..device.clone() },
            ..Request::of(model, Mode::Train, batch_size)
        };
        Ok(Measurement::Scaling(Box::new(request), self.ranks.clone()))
    }
}

/// What is chosen, or else what the folder has, or else the usual.
pub(super) fn pick<T: Clone + PartialEq>(
    name: &'static str,
    chosen: Option<T>,
    saved: Option<&T>,
    usual: impl FnOnce() -> T,
    differs: &mut Vec<&'static str>,
) -> T {
    match (chosen, saved) {
        (Some(chosen), Some(saved)) if chosen != *saved => {
            differs.push(name);
            chosen
        }
        (Some(chosen), _) => chosen,
        (None, Some(saved)) => saved.clone(),
        (None, None) => usual(),
    }
}

fn full_names(choice: &Choice) -> Result<Option<Vec<String>>, CompareError> {
    let full = |name: &String| Ok(registry::find(name)?.name().to_owned());
    choice.models.as_ref().map(|names| names.iter().map(full).collect()).transpose()
}

pub(super) fn usual_models() -> Vec<String> {
    let compared = FAMILIES.iter().filter(|family| family.compared().is_some());
    compared.map(|family| family.benchmark().model.to_owned()).collect()
}

/// Those of which the device has arithmetic.
fn usual_precisions(device: &DeviceOptions) -> Result<Vec<Compute>, CompareError> {
    let has_bf16 = device.open()?.properties().bf16.is_some();
    Ok([Compute::Fp32].into_iter().chain(has_bf16.then_some(Compute::Bf16)).collect())
}

/// All frameworks that can be asked, Bessemer first.
fn installed(peers: &Peers, notify: &mut dyn FnMut(&str)) -> Vec<String> {
    let names: Vec<String> =
        peers.iter().filter(|peer| peer.missing().is_none()).map(|peer| peer.name.clone()).collect();
    if names.len() == 1 {
        notify("no other framework is installed (`bessemer peers setup NAME`): Bessemer is measured alone");
    }
    names
}

fn usual_ranks(notify: &mut dyn FnMut(&str)) -> Vec<usize> {
    let variables = process_variables();
    let found = Placement::from_variables(&variables)
        .is_ok_and(|placement| MpiLibrary::find(None, &placement, &variables).is_ok());
    if !found {
        notify("there is no MPI: nothing is measured on several ranks");
        return Vec::new();
    }
    let processors = available_parallelism().map_or(1, usize::from);
    (1..).map(|power| 1 << power).take_while(|&ranks| ranks <= processors).collect()
}
