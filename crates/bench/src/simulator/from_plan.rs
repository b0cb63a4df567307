//! What one rank does, from its compiled step.

use super::{Collective, DeviceDescription, StepProfile};
use crate::measure::{MeasureError, Prepared, Request};
use crate::workload::StepSettings;
use bessemer_ir::ops::collective::AllReduce;
use bessemer_ir::plan::{KernelCall, Plan, node_cost};
use bessemer_ir::run::{Alone, Collectives, Executor, RunError};
use bessemer_ir::{DType, Graph, NodeId, Op, Role, TensorType, Value};
use bessemer_nn::{Over, accumulator_name};
use bessemer_train::RankLink;
use bessemer_train::stats::median;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Micro-batches for which a step is compiled that takes only one: a step of several has the sums of gradients that are
/// reduced over ranks as values of their own, and an update behind all of them.
const LEAST_MICRO_BATCHES: u64 = 2;

/// The settings by which the step of one rank is compiled for a profile. Sums over ranks that micro-batches wait for are in the graph of
/// several ranks alone; where there are none, the graph of one rank has all that is needed, on every device.
pub(super) fn profiled(settings: StepSettings) -> StepSettings {
    let ranks = if settings.norms == Over::All || settings.means == Over::All { 2 } else { 1 };
    let own = settings.accumulation.max(LEAST_MICRO_BATCHES);
    StepSettings { ranks, accumulation: own * ranks as u64, ..settings }
}

/// A step of `micro_batches` of `batch_size` samples, given the seconds of each call of the plan. Calls that send, and those that wait,
/// take no time: what they cost is that of the collectives.
///
/// # Panics
/// If the plan was compiled for a single micro-batch, or has another number of calls.
pub fn profile_of_plan(plan: &Plan, seconds: Vec<f64>, batch_size: usize, micro_batches: u64) -> StepProfile {
    assert!(plan.accumulates(), "the plan has an accumulation phase");
    assert_eq!(plan.calls.len(), seconds.len(), "one time for each call");
    let is_sum = |call: &KernelCall| {
        matches!(plan.graph.node(call.node).op, Op::AllReduce(_) | Op::AllReduceStart(_) | Op::AllReduceWait(_))
    };
    let timed = |(call, seconds): (&KernelCall, f64)| if is_sum(call) { 0.0 } else { seconds };
    let seconds: Vec<f64> = plan.calls.iter().zip(seconds).map(timed).collect();
    let body: Vec<usize> = (0..plan.calls.len()).filter(|&index| plan.calls[index].per_micro_batch).collect();
    let earlier = micro_batches as usize - 1;
    let (sums, gradients) = (sums_of_micro_batches(plan), gradients(plan));
    let (mut calls, mut collectives, mut earlier_seconds) = (Vec::new(), Vec::new(), 0.0);
    if sums.is_empty() {
        earlier_seconds = earlier as f64 * body.iter().map(|&index| seconds[index]).sum::<f64>();
    } else {
        for micro_batch in 0..earlier {
            let place = |index: usize| micro_batch * body.len() + body.partition_point(|&call| call < index);
            let moved = |sum: &Collective| Collective { ready: place(sum.ready), needed: place(sum.needed), ..*sum };
            calls.extend(body.iter().map(|&index| seconds[index]));
            collectives.extend(sums.iter().map(moved));
        }
    }
    let before = calls.len();
    let last = |c: &Collective| Collective { ready: c.ready + before, needed: c.needed + before, ..*c };
    calls.extend(seconds);
    collectives.extend(sums.iter().chain(&gradients).map(last));
    collectives.sort_by_key(|collective| collective.ready);
    StepProfile {
        model: None,
        samples: (batch_size as u64 * micro_batches) as f64,
        earlier_seconds,
        calls,
        backward_end: gradients.last().map_or(0, |last| last.ready + 1 + before),
        collectives,
        input_rate: None,
        step_seconds: Vec::new(),
    }
}

/// The sums over ranks that each micro-batch waits for, in the order of their calls.
fn sums_of_micro_batches(plan: &Plan) -> Vec<Collective> {
    let each = plan.calls.iter().enumerate().filter(|(_, call)| call.per_micro_batch);
    let sum = |(ready, call): (usize, &KernelCall)| {
        let needed = needed_of_sum(plan, ready)?;
        let bytes = plan.graph.input_types(call.node).iter().map(|ty| ty.bytes() as u64).sum();
        Some(Collective { bytes, ready, needed, each_micro_batch: true })
    };
    each.filter_map(sum).collect()
}

/// Of the call of a sum over ranks, or of its start: the first call that needs the result. `None` for other calls.
fn needed_of_sum(plan: &Plan, index: usize) -> Option<usize> {
    let node = plan.calls[index].node;
    match plan.graph.node(node).op {
        Op::AllReduce(_) => Some(index + 1),
        Op::AllReduceStart(_) => {
            let waits = |call: &KernelCall| plan.graph.node(call.node).inputs.iter().any(|input| input.node == node);
            plan.calls.iter().position(waits)
        }
        _ => None,
    }
}

/// The gradients of all parameters, in the order in which they are ready.
///
/// A gradient is the sum over micro-batches that the accumulation phase leaves; the first call of the update that reads it
/// needs the sum over ranks, or sends it.
fn gradients(plan: &Plan) -> Vec<Collective> {
    let graph = &plan.graph;
    let call_of: HashMap<NodeId, usize> =
        plan.calls.iter().enumerate().map(|(index, call)| (call.node, index)).collect();
    let parameters = graph.inputs().filter(|(_, input)| input.role == Role::Parameter);
    let sums = parameters.filter_map(|(_, input)| graph.find_input(&accumulator_name(&input.name)));
    let replaced = |state: Value| graph.updates().iter().find(|(known, _)| *known == state).map(|&(_, new)| new);
    let mut found: Vec<Collective> = sums
        .filter_map(replaced)
        .map(|sum| {
            let made = source(graph, &call_of, sum);
            let reads = |index: &usize| {
                let inputs = &graph.node(plan.calls[*index].node).inputs;
                inputs.iter().any(|input| source(graph, &call_of, *input) == made)
            };
            let update = (0..plan.calls.len()).filter(|&index| !plan.calls[index].per_micro_batch);
            Collective {
                bytes: graph.ty(sum).bytes() as u64,
                ready: call_of[&made.node],
                needed: update
                    .clone()
                    .find(reads)
                    .map_or(plan.calls.len(), |reader| needed_of_sum(plan, reader).unwrap_or(reader)),
                each_micro_batch: false,
            }
        })
        .collect();
    found.sort_by_key(|gradient| gradient.ready);
    found
}

/// The value of a kernel call that `value` is, or is a view of.
fn source(graph: &Graph, call_of: &HashMap<NodeId, usize>, mut value: Value) -> Value {
    while !call_of.contains_key(&value.node)
        && let Some(&viewed) = graph.node(value.node).inputs.first()
    {
        value = viewed;
    }
    value
}

/// Seconds of each call of a plan by the roofline of a device: the greater of arithmetic at its peak and bytes at its
/// bandwidth (Williams, Waterman, Patterson 2009, Roofline). What a device needs at least.
pub(super) fn roofline(plan: &Plan, device: &DeviceDescription) -> Vec<f64> {
    let graph = &plan.graph;
    let seconds = |call: &KernelCall| {
        let cost = node_cost(graph, call.node);
        let is_half = |ty: &&TensorType| matches!(ty.dtype, DType::F16 | DType::Bf16);
        let half = graph.input_types(call.node).iter().any(is_half);
        let tflops = if half { device.half_tflops } else { device.fp32_tflops };
        (cost.flops as f64 / (tflops * 1e12)).max(cost.bytes as f64 / (device.memory_gbytes * 1e9))
    };
    plan.calls.iter().map(seconds).collect()
}

/// The step of a request, measured over `steps` steps; see [`StepProfile`].
///
/// # Errors
/// As [`Prepared::new`], and when a kernel fails.
pub fn measured_step(request: &Request, steps: usize) -> Result<StepProfile, MeasureError> {
    let settings = profiled(request.settings);
    let collectives = OneForAll { ranks: settings.ranks, sent: Alone::default() };
    let device = request.device.open_rank(RankLink::Messages(Arc::new(collectives)))?;
    let mut prepared = Prepared::on(&Request { settings, ..request.clone() }, &*device)?;
    let profile = measured_profile(prepared.executor(), steps, request.batch_size, request.settings.accumulation)?;
    let profile = StepProfile { model: Some(request.model.clone()), ..profile };
    Ok(if request.overlap { profile } else { profile.without_overlap() })
}

/// One rank that stands for all: the others are as if they sent the same.
struct OneForAll {
    ranks: usize,
    sent: Alone,
}

impl Collectives for OneForAll {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn start(&self, op: &AllReduce, tensors: &[&[f32]]) -> Result<i32, RunError> {
        self.sent.start(op, tensors)
    }

    fn wait(&self, number: i32, tensors: &mut [&mut [f32]]) -> Result<(), RunError> {
        self.sent.wait(number, tensors)?;
        let scale = |sum: &mut f32| *sum *= self.ranks as f32;
        tensors.iter_mut().for_each(|tensor| tensor.iter_mut().for_each(scale));
        Ok(())
    }
}

/// A step as `executor` runs it: the median time of each call over `steps` steps, and the spread of whole steps.
///
/// # Errors
/// When a kernel fails.
///
/// # Panics
/// As [`profile_of_plan`].
fn measured_profile(
    executor: &mut dyn Executor,
    steps: usize,
    batch_size: usize,
    micro_batches: u64,
) -> Result<StepProfile, RunError> {
    let mut runs: Vec<Vec<f64>> = Vec::with_capacity(steps);
    for _ in 0..steps.max(1) {
        runs.push(executor.profile()?.iter().map(|call| Duration::as_secs_f64(&call.time)).collect());
    }
    let of_call = |index: usize| median(&runs.iter().map(|run| run[index]).collect::<Vec<f64>>());
    let seconds = (0..runs[0].len()).map(of_call).collect();
    let step_seconds = runs.iter().map(|run| run.iter().sum()).collect();
    Ok(StepProfile { step_seconds, ..profile_of_plan(executor.plan(), seconds, batch_size, micro_batches) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Mode, Work};
    use bessemer_ir::passes::{CompileOptions, compile};
    use bessemer_ir::plan::NullTarget;
    use bessemer_train::DeviceOptions;

    fn work(model: &str, settings: StepSettings) -> Work<'_> {
        Work { model, mode: Mode::Train, batch_size: 4, precision: DType::F32, settings: profiled(settings) }
    }

    fn plan_of(model: &str, settings: StepSettings) -> Plan {
        compile(&work(model, settings).build().unwrap().graph, &NullTarget, &CompileOptions::default()).unwrap()
    }

    fn plan(model: &str) -> Plan {
        plan_of(model, StepSettings::default())
    }

    #[test]
    fn every_parameter_has_one_gradient_between_backward_pass_and_update() {
        for model in ["resnet20-cifar", "bert-tiny", "electra-tiny", "efficientdet-tiny"] {
            let plan = plan(model);
            let calls = plan.calls.len();
            let profile = profile_of_plan(&plan, vec![1.0; calls], 4, 1);
            let parameters = plan.graph.inputs().filter(|(_, input)| input.role == Role::Parameter);
            let sizes: Vec<u64> = parameters.map(|(_, input)| input.ty.bytes() as u64).collect();
            let gradients = &profile.collectives;
            assert_eq!(gradients.iter().map(|g| g.bytes).sum::<u64>(), sizes.iter().sum::<u64>(), "{model}");
            assert_eq!(gradients.len(), sizes.len(), "{model}");
            assert!(gradients.is_sorted_by_key(|g| g.ready), "{model}");
            for gradient in gradients {
                assert!(plan.calls[gradient.ready].per_micro_batch, "{model}");
                assert!(!plan.calls[gradient.needed].per_micro_batch, "{model}: {gradient:?} of {calls}");
                assert!(gradient.needed >= profile.backward_end, "{model}: {gradient:?}, {}", profile.backward_end);
            }
            let [first, .., last] = &gradients[..] else { panic!("{model} has several parameters") };
            assert!(first.ready < profile.backward_end * 3 / 4 && last.ready + 1 == profile.backward_end, "{model}");
            assert!(profile.check().is_ok(), "{model}");
        }
    }

    #[test]
    fn further_micro_batches_repeat_the_accumulation_phase() {
        let plan = plan("bert-tiny");
        let seconds: Vec<f64> = plan.calls.iter().map(|call| if call.per_micro_batch { 1.0 } else { 0.5 }).collect();
        let body = plan.calls.iter().filter(|call| call.per_micro_batch).count() as f64;
        let profile = |micro_batches| profile_of_plan(&plan, seconds.clone(), 4, micro_batches);
        assert_eq!((profile(1).earlier_seconds, profile(1).samples), (0.0, 4.0));
        assert_eq!((profile(3).earlier_seconds, profile(3).samples), (2.0 * body, 12.0));
    }

    #[test]
    fn micro_batches_wait_for_sums_of_norms_and_weights() {
        let of = |model: &str, norms: Over, means: Over, micro_batches: u64| {
            let plan = plan_of(model, StepSettings { norms, means, ..StepSettings::default() });
            let body = plan.calls.iter().filter(|call| call.per_micro_batch).count();
            (profile_of_plan(&plan, vec![1.0; plan.calls.len()], 4, micro_batches), body)
        };
        let sums = |profile: &StepProfile| {
            profile.collectives.iter().filter(|sum| sum.each_micro_batch).copied().collect::<Vec<_>>()
        };
        let (usual, _) = of("resnet20-cifar", Over::Rank, Over::All, 1);
        let (norms, body) = of("resnet20-cifar", Over::All, Over::Rank, 1);
        assert!(sums(&usual).is_empty() && norms.check().is_ok());
        // The gradients are the same; of each of 19 norms travel two vectors forward and two back, one element for each channel.
        assert_eq!(usual.gradient_bytes(), norms.gradient_bytes());
        let channels = 16 * 7 + 32 * 6 + 64 * 6;
        assert_eq!(sums(&norms).len(), 4 * 19);
        assert_eq!(sums(&norms).iter().map(|sum| sum.bytes).sum::<u64>(), 4 * 4 * channels);
        assert!(sums(&norms).iter().all(|sum| sum.needed <= norms.backward_end));
        // Calls that send or wait take no time here.
        assert!(norms.calls.iter().filter(|seconds| **seconds == 0.0).count() >= 2 * 4 * 19);
        let (three, _) = of("resnet20-cifar", Over::All, Over::Rank, 3);
        assert!(three.check().is_ok() && three.earlier_seconds == 0.0);
        assert_eq!(sums(&three).len(), 3 * 4 * 19);
        assert_eq!(three.calls.len(), norms.calls.len() + 2 * body);
        assert_eq!(three.backward_end, norms.backward_end + 2 * body);
        assert_eq!(three.gradient_bytes(), norms.gradient_bytes());
        // Two numbers, of masked words and of sentences that have a label, in one message.
        let (means, _) = of("bert-tiny", Over::Rank, Over::All, 1);
        assert_eq!(sums(&means).iter().map(|sum| sum.bytes).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn the_roofline_is_the_greater_of_arithmetic_and_memory() {
        let plan = plan("bert-tiny");
        let device = |tflops, gbytes| DeviceDescription {
            name: String::new(),
            fp32_tflops: tflops,
            half_tflops: 1e9,
            memory_gbytes: gbytes,
        };
        let total = |tflops, gbytes| roofline(&plan, &device(tflops, gbytes)).iter().sum::<f64>();
        let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-6;
        assert!(near(total(1e-3, 1e12), plan.cost().flops as f64 / 1e9));
        assert!(near(total(1e12, 1.0), plan.cost().bytes as f64 / 1e9));
        assert!(total(1e-3, 1.0) > total(1e-3, 1e12).max(total(1e12, 1.0)));
    }

    #[test]
    fn a_measured_profile_has_the_times_of_the_executor() {
        let work = work("bert-tiny", StepSettings::default()).build().unwrap();
        let options = CompileOptions::default();
        let mut executor =
            crate::measure::drawn(&work, &*DeviceOptions::default().open().unwrap(), &options, 0).unwrap();
        let profile = measured_profile(&mut *executor, 3, 4, 2).unwrap();
        assert_eq!((profile.calls.len(), profile.step_seconds.len()), (executor.plan().calls.len(), 3));
        assert!(profile.earlier_seconds > 0.0 && profile.samples == 8.0 && profile.check().is_ok());
        let settings = StepSettings { norms: Over::All, ..StepSettings::default() };
        let request = Request { settings, overlap: false, ..Request::of("resnet20-cifar", Mode::Train, 2) };
        let profile = measured_step(&request, 2).unwrap();
        assert!(profile.check().is_ok() && profile.collectives.iter().any(|sum| sum.each_micro_batch));
        let gradients = profile.collectives.iter().filter(|sum| !sum.each_micro_batch);
        assert!(gradients.into_iter().all(|sum| sum.needed == profile.backward_end), "nothing overlaps");
    }
}
