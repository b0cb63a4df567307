//! From runs to `bench` events.

use super::entrants::Entrant;
use super::journal::{Run, State};
use super::{BatchSize, Group};
use crate::machine::Machine;
use crate::measure::{ERROR_OPTION, SYNTHETIC, summarise};
use crate::peers::own;
use bessemer_train::DeviceKind;
use bessemer_train::events::{BenchResult, BenchRun, Comparison, Ratio, Verdict, WorkCheck};
use bessemer_train::stats::median;
use bessemer_train::tasks;
use serde_json::Value;
use std::collections::BTreeMap;

/// An entrant with all that is known of it.
pub(super) struct Measured {
    pub entrant: Entrant,
    pub state: State,
    pub batch_size: usize,
}

impl Measured {
    fn rate(&self, run: &Run) -> f64 {
        run.answer.throughput(self.batch_size)
    }
}

/// A result for each entrant.
pub(super) fn results(
    group: &Group,
    key: &str,
    measured: &[Measured],
    device: DeviceKind,
    machine: &Machine,
    peak_flops: f64,
    flops_per_sample: f64,
) -> Vec<BenchResult> {
    let of_own = |form: &dyn Fn(&Measured) -> bool| {
        measured.iter().position(|one| one.entrant.is_own() && one.state.failed.is_none() && form(one))
    };
    let base = of_own(&|one| one.entrant.variant == own::FUSED).or_else(|| of_own(&|_| true));
    let one = |(index, one): (usize, &Measured)| {
        let others = base.filter(|base| *base != index).map(|base| &measured[base]);
        let mut result = row(group, key, one, device, machine);
        result.comparison.as_mut().expect("rows of comparisons have one").ratio =
            others.and_then(|base| ratio(base, one));
        if one.state.failed.is_none() {
            fill(&mut result, one, peak_flops, flops_per_sample);
        }
        result
    };
    measured.iter().enumerate().map(one).collect()
}

/// The row without figures.
fn row(group: &Group, key: &str, measured: &Measured, device: DeviceKind, machine: &Machine) -> BenchResult {
    let Measured { entrant, state, batch_size } = measured;
    let last = state.runs.last();
    let mut options: BTreeMap<String, Value> = last.map(|run| run.answer.options.clone()).unwrap_or_default();
    for (name, value) in crate::measure::options_of(&group.model, group.mode, &group.settings) {
        options.entry(name).or_insert(value);
    }
    if let Some(failure) = &state.failed {
        options.insert(ERROR_OPTION.to_owned(), failure.to_string().into());
    }
    BenchResult {
        framework: entrant.framework.clone(),
        framework_version: last.map_or_else(|| entrant.version.clone(), |run| run.answer.version.clone()),
        model: group.model.clone(),
        mode: group.mode.name().to_owned(),
        precision: group.precision.name().to_owned(),
        device: device.to_string(),
        device_name: machine.device_name().to_owned(),
        devices: 1,
        nodes: 1,
        threads: machine.threads as u64,
        batch_size: *batch_size as u64,
        data: SYNTHETIC.to_owned(),
        options,
        warmup: group.warmup as u64,
        steps: group.steps as u64,
        repeat: group.repeat as u64,
        unit: tasks::metric_schema(&group.model).unit.to_owned(),
        comparison: Some(Comparison {
            group: key.to_owned(),
            variant: entrant.variant.clone(),
            fused: entrant.fused,
            largest_batch: group.batch_size == BatchSize::Largest,
            work: state.check.clone().unwrap_or_default(),
            ratio: None,
        }),
        ..BenchResult::default()
    }
}

fn fill(result: &mut BenchResult, measured: &Measured, peak_flops: f64, flops_per_sample: f64) {
    let runs = &measured.state.runs;
    let middle = |of: &dyn Fn(&Run) -> Option<u64>| {
        let values: Vec<f64> = runs.iter().filter_map(|run| of(run).map(|bytes| bytes as f64)).collect();
        (!values.is_empty()).then(|| median(&values) as u64)
    };
    let run = |run: &Run| BenchRun {
        throughput: measured.rate(run),
        step_ms: run.answer.step_ms.clone(),
        round: Some(run.round),
        wall_s: Some(run.wall_s),
        busy_before: run.busy_before,
        others_busy: run.others_busy,
    };
    result.runs = runs.iter().map(run).collect();
    summarise(result);
    result.peak_memory_bytes = middle(&|run| run.answer.peak_memory_bytes);
    result.kernels = runs.last().map(|run| run.answer.kernels.clone()).unwrap_or_default();
    result.import_memory_bytes = middle(&|run| run.answer.import_memory_bytes);
    result.flops_per_sample = Some(flops_per_sample);
    result.fraction_of_peak = (peak_flops > 0.0).then(|| flops_per_sample * result.throughput / peak_flops);
    let losses = runs.last().map(|run| run.answer.losses.as_slice()).unwrap_or_default();
    result.loss_first = losses.first().copied();
    result.loss_last = losses.last().copied();
}

/// The base's speed over this one's in each round that has both; `None` where they did not do the same work.
fn ratio(base: &Measured, one: &Measured) -> Option<Ratio> {
    let is_same = |check: &Option<WorkCheck>| check.as_ref().is_some_and(|check| check.verdict == Verdict::Same);
    if one.state.failed.is_some() || !is_same(&one.state.check) || !is_same(&base.state.check) {
        return None;
    }
    let of_round = |run: &Run| {
        let theirs = one.state.runs.iter().find(|other| other.round == run.round)?;
        Some(base.rate(run) / one.rate(theirs))
    };
    let ratios: Vec<f64> = base.state.runs.iter().filter_map(of_round).collect();
    let fold = |start: f64, of: fn(f64, f64) -> f64| ratios.iter().copied().fold(start, of);
    (!ratios.is_empty()).then(|| Ratio {
        median: median(&ratios),
        min: fold(f64::INFINITY, f64::min),
        max: fold(0.0, f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::protocol::Answer;

    fn measured(framework: &str, rates: &[f64], verdict: Verdict) -> Measured {
        let run = |(index, rate): (usize, &f64)| Run {
            round: index as u64 + 1,
            answer: Answer {
                protocol: 1,
                framework: framework.into(),
                version: "1".into(),
                options: BTreeMap::new(),
                step_ms: vec![1000.0 / rate],
                window_s: 1.0 / rate,
                losses: Vec::new(),
                peak_memory_bytes: None,
                import_memory_bytes: None,
                kernels: Vec::new(),
            },
            wall_s: 2.0,
            busy_before: None,
            others_busy: None,
        };
        let check = WorkCheck { verdict, ..WorkCheck::default() };
        let state = State { check: Some(check), runs: rates.iter().enumerate().map(run).collect(), ..State::default() };
        let (variant, version) = (own::FUSED.to_owned(), String::new());
        let entrant = Entrant { framework: framework.into(), version, variant, fused: true, excluded: None };
        Measured { entrant, state, batch_size: 1 }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let base = measured("bessemer", &[10.0, 5.0, 20.0], Verdict::Same);
        // The machine was slow in the second round, for both.
        let peer = measured("x", &[5.0, 2.5, 8.0], Verdict::Same);
        let found = ratio(&base, &peer).unwrap();
        assert_eq!((found.median, found.min, found.max), (2.0, 2.0, 2.5));
        assert_eq!(ratio(&base, &measured("x", &[5.0], Verdict::Different)), None);
        assert_eq!(ratio(&base, &measured("x", &[5.0], Verdict::Unchecked)), None);
        let late = Measured {
            state: State { runs: peer.state.runs[1..2].to_vec(), ..peer.state.clone() },
            ..measured("x", &[], Verdict::Same)
        };
        assert_eq!(ratio(&base, &late).unwrap().median, 2.0);
    }
}
