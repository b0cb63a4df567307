//! What a compiled step costs, found without running it.

use crate::gpu_targets::{GpuTarget, target_of};
use crate::workload::{Mode, StepSettings, Work, Workload};
use bessemer_cuda::sheet::{Prediction, Sheet};
use bessemer_cuda::too_many_elements;
use bessemer_ir::GraphError;
use bessemer_ir::passes::fuse::{NearMiss, Reason, near_misses};
use bessemer_ir::passes::{CompileOptions, compile, run_passes};
use bessemer_ir::plan::{Plan, kernel_name, node_cost, print_graph};
use bessemer_models::ModelError;
use bessemer_train::DeviceOptions;
use bessemer_train::memory::{Need, largest_batch, plan_bytes};
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
        peak_bytes: plan_bytes(&plan) as usize,
        persistent_bytes: plan.state_bytes() + plan.persistent_bytes,
        peak: plan.peak.iter().take(12).map(|(name, bytes)| Resident { name: name.clone(), bytes: *bytes }).collect(),
        memory_bytes: request.memory_bytes,
        largest_batch: largest_batch_of(request, &plan)?,
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

/// The graph as text after a pass, one of [`pass_names`](bessemer_ir::passes::pass_names), or as the model wrote it for `None`.
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

pub(crate) fn work(request: &Request, batch_size: usize) -> Result<Workload, ModelError> {
    let Request { model, mode, settings, compile, .. } = request;
    Work { model, mode: *mode, batch_size, precision: compile.precision, settings: *settings }.build()
}

fn plan(request: &Request, batch: usize) -> Result<Plan, ModelError> {
    Ok(compile(&work(request, batch)?.graph, &*request.device.target(), &request.compile)?)
}

/// The largest batch whose plan fits into the memory of a request. `known` is the plan of its own batch.
fn largest_batch_of(request: &Request, known: &Plan) -> Result<Option<usize>, ModelError> {
    let limit = request.memory_bytes;
    let need = |batch: usize| {
        if batch == request.batch_size {
            return Ok(Need::Bytes(plan_bytes(known)));
        }
        match plan(request, batch) {
            Ok(plan) => Ok(Need::Bytes(plan_bytes(&plan))),
            Err(ModelError::Graph(GraphError::Unsupported(operations))) if batch > request.batch_size => {
                Ok(Need::NoPlan { times: too_many_elements(&operations) })
            }
            Err(ModelError::Graph(GraphError::Op(_))) if batch > request.batch_size => Ok(Need::NoPlan { times: None }),
            Err(error) => Err(error),
        }
    };
    largest_batch(limit, request.batch_size, 0.0, need)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_train::DeviceKind;

    fn request(model: &str, mode: Mode, batch_size: usize, device: DeviceKind, memory_bytes: u64) -> Request {
        Request {
            model: model.to_owned(),
            mode,
            batch_size,
            settings: StepSettings::default(),
            compile: CompileOptions::default(),
            device: DeviceOptions { kind: device, ..DeviceOptions::default() },
            sheet: None,
            memory_bytes,
        }
    }

    /// Suppression is refused before memory that has no end is used up.
    #[test]
    fn a_batch_that_an_operation_refuses_is_one_that_is_too_large() {
        let request = request("efficientdet-d0", Mode::Infer, 1, DeviceKind::Cpu, 20_000_000_000);
        let found = explain(&request).unwrap().largest_batch.expect("one fits");
        assert!((20..2000).contains(&found), "{found}");
        let beyond = Request { memory_bytes: u64::MAX, ..request };
        let found = explain(&beyond).unwrap().largest_batch.expect("one fits");
        assert!(plan(&beyond, found).is_ok() && plan(&beyond, found + 1).is_err(), "{found}");
    }

    #[test]
    fn a_plan_of_one_more_sample_does_not_fit() {
        for (model, device) in [("bert-tiny", DeviceKind::Cuda { index: 0 }), ("resnet20-cifar", DeviceKind::Cpu)] {
            for (memory_bytes, batch_size) in [(300_000_000, 1), (1_000_000_000, 8)] {
                let request = request(model, Mode::Train, batch_size, device, memory_bytes);
                let found = explain(&request).unwrap().largest_batch.expect("one fits");
                let bytes = |batch: usize| plan_bytes(&plan(&request, batch).unwrap());
                assert!(bytes(found) <= memory_bytes && bytes(found + 1) > memory_bytes, "{model}: {found}");
            }
        }
    }
}
