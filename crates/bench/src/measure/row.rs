//! The result of a measurement before anything is measured: what was asked for.

use super::{MeasureError, Request};
use crate::machine::Machine;
use crate::workload::{Mode, StepSettings};
use bessemer_nn::Over;
use bessemer_train::events::BenchResult;
use bessemer_train::tasks::{metric_schema, registry};
use serde_json::Value;
use std::collections::BTreeMap;

/// The row of a configuration that could not be measured: no throughput, and the reason as option `error`.
pub fn failed(request: &Request, machine: &Machine, error: &MeasureError) -> BenchResult {
    let mut result = unmeasured(request, machine);
    result.options.insert(ERROR_OPTION.to_string(), error.to_string().into());
    result
}

/// Name of the option with the seconds of the [`Budget`](crate::budget::Budget), of results that have one.
pub const BUDGET_OPTION: &str = "budget_s";

/// Name of the option of results that were cut short, with the repeats before that.
pub const INTERRUPTED_OPTION: &str = "interrupted";

/// Name of the option that says whether gradients are clipped, of models that can.
pub(crate) const CLIP_OPTION: &str = "clip";

/// Name of the option that says by which instructions of a processor was computed.
pub(crate) const ISA_OPTION: &str = "isa";

/// What the data of a result are called that are random numbers in memory.
pub(crate) const SYNTHETIC: &str = "synthetic";

/// Name of the option in which [`failed`] puts the reason.
pub const ERROR_OPTION: &str = "error";

pub(super) fn unmeasured(request: &Request, machine: &Machine) -> BenchResult {
    BenchResult {
        framework: "bessemer".to_string(),
        framework_version: env!("CARGO_PKG_VERSION").to_string(),
        model: request.model.clone(),
        mode: request.mode.name().to_string(),
        precision: request.precision.name().to_string(),
        device: request.device.kind.to_string(),
        device_name: machine.device_name().to_owned(),
        devices: 1,
        nodes: 1,
        threads: request.device.threads as u64,
        batch_size: request.batch_size as u64,
        data: request.data.as_ref().map_or(SYNTHETIC, |data| &data.source).to_owned(),
        options: options(request),
        warmup: request.warmup as u64,
        steps: request.steps as u64,
        repeat: request.repeat as u64,
        unit: metric_schema(&request.model).unit.to_string(),
        ..BenchResult::default()
    }
}

fn options(request: &Request) -> BTreeMap<String, Value> {
    let common = [
        ("fuse", request.fuse.into()),
        ("recompute", request.recompute.name().into()),
        (ISA_OPTION, request.device.instruction_set.name().into()),
    ];
    let common = common.into_iter().map(|(name, value)| (name.to_string(), value));
    let loading = request.data.iter().flat_map(|data| {
        let set = (!data.set.is_empty()).then(|| ("set".to_owned(), data.set.join(" ").into()));
        [("workers".to_owned(), data.workers.into())].into_iter().chain(set)
    });
    let own = options_of(&request.model, request.mode, &request.settings);
    common.chain(loading).chain(own).chain(options_of_ranks(request)).collect()
}

/// What ranks do in another way than the usual one.
fn options_of_ranks(request: &Request) -> impl Iterator<Item = (String, Value)> {
    let StepSettings { norms, means, .. } = request.settings;
    let over = |over: Over| (over != Over::Rank).then(|| "all".into());
    let overlap = (!request.overlap).then_some(false.into());
    let options = [(NORMS_OPTION, over(norms)), (MEANS_OPTION, over(means)), (OVERLAP_OPTION, overlap)];
    options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)))
}

/// Names of the options that say what is taken over all ranks, where something is, and that sums are waited for where they begin.
pub(crate) const NORMS_OPTION: &str = "norms_over";
pub(crate) const MEANS_OPTION: &str = "means_over";
pub(crate) const OVERLAP_OPTION: &str = "overlap";

/// Those of the settings that a model has.
pub(crate) fn options_of(model: &str, mode: Mode, settings: &StepSettings) -> Vec<(String, Value)> {
    let own = registry::find(model).map_or_else(|_| Vec::new(), |model| model.family().step_settings(mode, settings));
    own.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}
