//! What a compiled step costs, found without running it.

use crate::gpu_targets::{GpuTarget, target_of};
use crate::workload::{Mode, StepSettings, Work, Workload};
use bessemer_cuda::sheet::{Prediction, Sheet, scratch_bytes};
use bessemer_ir::GraphError;
use bessemer_ir::passes::fuse::{NearMiss, Reason, near_misses};
use bessemer_ir::passes::{CompileOptions, PASSES, compile, run_passes};
use bessemer_ir::plan::{Plan, kernel_name, node_cost, print_graph};
use bessemer_models::ModelError;
use bessemer_train::DeviceOptions;
use serde::Serialize;
use std::collections::BTreeMap;

/// What is to be explained.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the model.
    pub model: String,
    /// Whether the step trains or infers.
    pub mode: Mode,
    /// Samples of a micro-batch; at least 1.
    pub batch_size: usize,
    /// Sizes and options of the step.
    pub settings: StepSettings,
    /// Which passes run, and with which options.
    pub compile: CompileOptions,
    /// Device that the step is compiled for.
    pub device: DeviceOptions,
    /// The kind of GPU for which the step's time is predicted, where the device is a GPU.
    pub sheet: Option<Sheet>,
    /// Bytes that a plan may use; the largest batch is the largest that fits.
    pub memory_bytes: u64,
}

/// Calls of one kind of kernel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KernelUse {
    /// Calls in one step.
    pub calls: usize,
    /// Arithmetic of all calls, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes that all calls read and write.
    pub bytes: u64,
}

/// A tensor that lives where memory is fullest.
#[derive(Clone, Debug, Serialize)]
pub struct Resident {
    /// Name of the tensor: its input, or path and operation.
    pub name: String,
    /// Size in bytes.
    pub bytes: usize,
}

/// Products that run apart from the fusion that reads them, for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct NearMisses {
    /// Name of the product's operation.
    pub op: &'static str,
    /// Why they run apart.
    pub reason: String,
    /// Number of such products.
    pub calls: usize,
    /// One of them.
    pub example: String,
}

/// The cost of a compiled step.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Name of the model.
    pub model: String,
    /// Whether the step trains or infers.
    pub mode: Mode,
    /// Samples of a micro-batch.
    pub batch_size: usize,
    /// The kind of device.
    pub device: &'static str,
    /// The rules by which the graph was compiled for it, by name.
    pub rules: BTreeMap<&'static str, String>,
    /// Whether operations are merged into fused kernels.
    pub fused: bool,
    /// Number of trained weights.
    pub parameters: u64,
    /// Bytes of the trained weights.
    pub parameter_bytes: usize,
    /// Micro-batches of a step.
    pub accumulation: u64,
    /// Arithmetic of one step, all its micro-batches together.
    pub flops: u64,
    /// Bytes that the kernels read and write in one step.
    pub bytes: u64,
    /// Calls by name of kernel.
    pub kernels: BTreeMap<&'static str, KernelUse>,
    /// What was not fused, though it nearly was.
    pub near_misses: Vec<NearMisses>,
    /// All memory of the plan, on a GPU with that of libraries, at most.
    pub peak_bytes: usize,
    /// Of which parameters, optimizer state, feeds and constants.
    pub persistent_bytes: usize,
    /// The largest tensors where memory is fullest.
    pub peak: Vec<Resident>,
    /// Bytes that a plan may use.
    pub memory_bytes: u64,
    /// The largest batch whose plan fits into `memory_bytes`; `None` if not even one sample does.
    pub largest_batch: Option<usize>,
    /// Launches and time of a step on a GPU, predicted; `None` for other devices.
    pub predicted: Option<Prediction>,
    /// The time that such a step was designed for, where there is one.
    pub target: Option<GpuTarget>,
}

/// # Errors
/// [`ModelError`] for an unknown model or a batch of zero.
pub fn explain(request: &Request) -> Result<Explanation, ModelError> {
    let plan = plan(request, request.batch_size)?;
    let accumulation = if plan.accumulates() { request.settings.accumulation } else { 1 };
    let mut kernels: BTreeMap<&'static str, KernelUse> = BTreeMap::new();
    for call in &plan.calls {
        let cost = node_cost(&plan.graph, call.node);
        let entry = kernels.entry(kernel_name(&plan.graph, call.node)).or_default();
        let calls = if call.per_micro_batch { accumulation } else { 1 };
        entry.calls += calls as usize;
        entry.flops += cost.flops * calls;
        entry.bytes += cost.bytes * calls;
    }
    Ok(Explanation {
        model: request.model.clone(),
        mode: request.mode,
        batch_size: request.batch_size,
        device: request.device.kind.name(),
        rules: request.device.target().rules().entries().into_iter().collect(),
        fused: request.compile.fuse,
        parameters: plan.parameter_bytes() as u64 / 4,
        parameter_bytes: plan.parameter_bytes(),
        accumulation,
        flops: kernels.values().map(|kernel| kernel.flops).sum(),
        bytes: kernels.values().map(|kernel| kernel.bytes).sum(),
        kernels,
        near_misses: if request.compile.fuse { grouped(&near_misses(&plan.graph)) } else { Vec::new() },
        peak_bytes: all_bytes(&plan),
        persistent_bytes: plan.state_bytes() + plan.persistent_bytes,
        peak: plan.peak.iter().take(12).map(|(name, bytes)| Resident { name: name.clone(), bytes: *bytes }).collect(),
        memory_bytes: request.memory_bytes,
        largest_batch: largest_batch(request, &plan)?,
        predicted: request.sheet.as_ref().map(|sheet| predicted(request, sheet, &plan, accumulation)),
        target: target_of(request),
    })
}

/// Launches and time of a step on the GPU whose sheet a request has; `None` for other devices.
///
/// # Errors
/// As [`explain`].
pub fn predict(request: &Request) -> Result<Option<Prediction>, ModelError> {
    let Some(sheet) = &request.sheet else { return Ok(None) };
    let plan = plan(request, request.batch_size)?;
    let accumulation = if plan.accumulates() { request.settings.accumulation } else { 1 };
    Ok(Some(predicted(request, sheet, &plan, accumulation)))
}

fn predicted(request: &Request, sheet: &Sheet, plan: &Plan, accumulation: u64) -> Prediction {
    sheet.predict(plan, accumulation, !request.device.no_epilogues)
}

fn grouped(misses: &[NearMiss]) -> Vec<NearMisses> {
    let mut groups: BTreeMap<(&'static str, Reason), NearMisses> = BTreeMap::new();
    for miss in misses {
        let group = groups.entry((miss.op, miss.reason)).or_insert_with(|| NearMisses {
            op: miss.op,
            reason: miss.reason.to_string(),
            calls: 0,
            example: format!("{}, read at {}", miss.path, miss.fusion),
        });
        group.calls += 1;
    }
    groups.into_values().collect()
}

/// The graph as text after a pass, or as the model wrote it for `None`.
///
/// # Errors
/// [`ModelError`] for an unknown model or a batch of zero.
pub fn graph_after(request: &Request, pass: Option<&str>) -> Result<String, ModelError> {
    let (work, target) = (work(request, request.batch_size)?, request.device.target());
    match pass {
        None => Ok(print_graph(&work.graph)),
        Some(pass) => Ok(print_graph(&run_passes(&work.graph, target.rules(), &request.compile, Some(pass))?)),
    }
}

/// Names that [`graph_after`] knows.
pub fn pass_names() -> &'static [&'static str] {
    &PASSES
}

pub(crate) fn work(request: &Request, batch_size: usize) -> Result<Workload, ModelError> {
    let Request { model, mode, settings, compile, .. } = request;
    Work { model, mode: *mode, batch_size, precision: compile.precision, settings: *settings }.build()
}

fn plan(request: &Request, batch: usize) -> Result<Plan, ModelError> {
    Ok(compile(&work(request, batch)?.graph, &*request.device.target(), &request.compile)?)
}

/// Memory of a plan, on a GPU with that of libraries, at most.
fn all_bytes(plan: &Plan) -> usize {
    plan.memory_bytes() + scratch_bytes(plan)
}

/// The memory of a plan grows almost linearly with the batch: the line through two plans gives a guess, and the line between the
/// largest batch that fits and the smallest that does not gives the next, unless two such guesses have not halved what lies
/// between. `known` is the plan of the request's own batch.
fn largest_batch(request: &Request, known: &Plan) -> Result<Option<usize>, ModelError> {
    let limit = request.memory_bytes;
    // None where tensors of the batch have more elements than kernels of the device count.
    let bytes = |batch: usize| {
        if batch == request.batch_size {
            return Ok(Some(all_bytes(known) as u64));
        }
        match plan(request, batch) {
            Ok(plan) => Ok(Some(all_bytes(&plan) as u64)),
            Err(ModelError::Graph(GraphError::Unsupported(_))) if batch > request.batch_size => Ok(None),
            Err(error) => Err(error),
        }
    };
    search(limit, request.batch_size, bytes)
}

/// The largest batch whose bytes are within the limit, where more samples need no less; `start` is one that is cheap to look at.
fn search<E>(
    limit: u64,
    start: usize,
    mut bytes: impl FnMut(usize) -> Result<Option<u64>, E>,
) -> Result<Option<usize>, E> {
    let Some(one) = bytes(1)?.filter(|&one| one <= limit) else { return Ok(None) };
    let (mut good, mut good_bytes) = (1, one);
    let mut bad: Option<(usize, Option<u64>)> = None;
    let mut next = if start > 1 { start } else { FEW_SAMPLES };
    // How much lay between the two before the last two guesses.
    let mut gaps = [usize::MAX; 2];
    // Grows while guesses are too small.
    let mut step = 1;
    loop {
        let found = bytes(next)?;
        match found {
            Some(found) if found <= limit => (good, good_bytes) = (next, found),
            too_many => bad = Some((next, too_many)),
        }
        let (from, to) = match bad {
            // The line from one sample on.
            None if good >= MOST_SAMPLES => return Ok(Some(good)),
            None => {
                step *= 4;
                ((1, one), (good, good_bytes))
            }
            Some((bad, _)) if bad - good <= 1 => return Ok(Some(good)),
            Some((bad, Some(bad_bytes))) => ((good, good_bytes), (bad, bad_bytes)),
            Some((bad, None)) => ((good, good_bytes), (bad, u64::MAX)),
        };
        let per_sample = (to.1.saturating_sub(from.1) as f64 / (to.0 - from.0) as f64).max(1.0);
        let guess = from.0.saturating_add(((limit - from.1) as f64 / per_sample) as usize);
        let (least, most) = match bad {
            None => ((good + step / 16).clamp(good + 1, MOST_SAMPLES), MOST_SAMPLES),
            Some((bad, _)) => (good + 1, bad - 1),
        };
        let gap = most - least;
        let is_slow = bad.is_some_and(|(_, bytes)| bytes.is_none()) || gap > gaps[0] / 2;
        next = if is_slow { least.midpoint(most) } else { guess.clamp(least, most) };
        gaps = [gaps[1], gap];
    }
}

/// A second batch to look at, where the first has one sample.
const FEW_SAMPLES: usize = 9;

/// No batch is larger.
const MOST_SAMPLES: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_train::DeviceKind;

    /// What the search finds in so many looks, and the largest of all batches that fit.
    fn found(limit: u64, start: usize, bytes: &dyn Fn(usize) -> Option<u64>) -> (Option<usize>, usize) {
        let mut looks = 0;
        let look = |batch: usize| {
            looks += 1;
            Ok::<_, ()>(bytes(batch))
        };
        let found = search(limit, start, look).unwrap();
        let all = (1..).take_while(|&batch| bytes(batch).is_some_and(|bytes| bytes <= limit)).last();
        assert_eq!(found, all, "limit {limit}, start {start}");
        (found, looks)
    }

    /// Bytes that a batch takes; `None` if it has no plan.
    type Bytes<'a> = &'a dyn Fn(usize) -> Option<u64>;

    #[test]
    fn the_largest_batch_is_that_of_trying_all() {
        let affine = |batch: usize| Some(1000 + 37 * batch as u64);
        let padded = |batch: usize| Some(500 + (31 * batch as u64).next_multiple_of(256));
        let bent = |batch: usize| Some(900 + 20 * batch as u64 + 15 * (batch as u64).saturating_sub(700));
        let flat = |batch: usize| Some(2000 + 50 * batch as u64 - 20 * (batch as u64).min(600));
        let counted = |batch: usize| (batch < 1337).then_some(100 + batch as u64);
        let forms: [(Bytes<'_>, usize); 5] = [(&affine, 4), (&padded, 9), (&bent, 10), (&flat, 12), (&counted, 19)];
        for (bytes, most) in forms {
            for limit in [0, 1036, 1037, 1074, 5_000, 31_007, 60_000] {
                for start in [1, 2, 8, 64] {
                    let (found, looks) = found(limit, start, bytes);
                    assert!(looks <= most + 6, "{looks} looks for {found:?} at {limit} from {start}");
                }
            }
            assert!(found(60_000, 8, bytes).1 <= most, "{} looks", found(60_000, 8, bytes).1);
        }
    }

    #[test]
    fn a_plan_of_one_more_sample_does_not_fit() {
        for (model, device) in [("bert-tiny", DeviceKind::Cuda { index: 0 }), ("resnet20-cifar", DeviceKind::Cpu)] {
            for (memory_bytes, batch_size) in [(300_000_000, 1), (1_000_000_000, 8)] {
                let request = Request {
                    model: model.to_owned(),
                    mode: Mode::Train,
                    batch_size,
                    settings: StepSettings::default(),
                    compile: CompileOptions::default(),
                    device: DeviceOptions { kind: device, ..DeviceOptions::default() },
                    sheet: None,
                    memory_bytes,
                };
                let found = explain(&request).unwrap().largest_batch.expect("one fits");
                let bytes = |batch: usize| all_bytes(&plan(&request, batch).unwrap()) as u64;
                assert!(bytes(found) <= memory_bytes && bytes(found + 1) > memory_bytes, "{model}: {found}");
            }
        }
    }
}
