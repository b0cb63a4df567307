//! What is known of a plan's calls before memory is given out: how each is done, and what that needs.

use super::algorithms::Multiplication;
use super::bound::{BoundStep, Call, REPORT_BYTES, Report, Shared};
use super::engines::Work;
use super::groups::Placed;
use super::sums::Sums;
use super::{Gpu, PRODUCT_WORKSPACE};
use crate::cublaslt::Operands;
use crate::driver::Block;
use crate::error::GpuError;
use crate::kgen::Kernel;
use crate::lower::{Fused, KIND, Lowered, Place, Step, launched_bytes, message_of};
use bessemer_ir::plan::{KernelCall, Plan};
use bessemer_ir::run::RunError;
use bessemer_ir::{DType, NodeId, Value};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// What of a call, or of several that are launched as one, is known before memory is given out.
pub(super) struct Planned<'a> {
    /// The first one.
    pub(super) call: &'a KernelCall,
    nodes: Vec<NodeId>,
    lowered: Arc<Lowered>,
    /// Where there are several.
    together: Option<Placed>,
    /// The better steps that are taken, by number, which the library has a way for.
    pub(super) fused: Option<usize>,
    /// Number of its report, where it has one.
    pub(super) report: Option<usize>,
    /// Where it replaces state and steps can halt: the kernels of its launches, in order, which take the halt last; and whether
    /// the reports are looked at first.
    pub(super) guarded: Option<(Vec<Kernel>, bool)>,
}

/// What the plan has for a call.
pub(super) fn lowered_of(plan: &Plan, call: &KernelCall) -> Result<Arc<Lowered>, RunError> {
    let kernel = plan.kernels.of(call.node).map(|kernel| Arc::clone(kernel) as Arc<dyn Any + Send + Sync>);
    kernel.and_then(|kernel| kernel.downcast::<Lowered>().ok()).ok_or(RunError::ForeignPlan { device: KIND })
}

pub(super) fn convolutions_of(steps: &[Step], tf32: bool) -> impl Iterator<Item = Work> {
    steps.iter().filter_map(move |step| match *step {
        Step::Convolution { convolution, fusion, ty, .. } => Some(Work::new(convolution, fusion, ty, tf32)),
        _ => None,
    })
}

/// Whether better steps of a call are preferred to others: all of their products and convolutions to those of the others.
fn prefers(gpu: &Gpu, plan: &Plan, node: NodeId, fused: &Fused, others: &[Step]) -> bool {
    let bytes = |steps| launched_bytes(&plan.graph, node, steps) as f64;
    let saved = (bytes(others) - bytes(&fused.steps)).max(0.0) / gpu.context.info().memory_bytes_per_s();
    let saved = Duration::from_secs_f64(saved);
    let products = |steps| Multiplication::all(steps, plan.tf32);
    let mut products = products(&fused.steps).zip(products(others));
    let convolutions = |steps| convolutions_of(steps, plan.tf32);
    let mut convolutions = convolutions(&fused.steps).zip(convolutions(others));
    products.all(|(own, other)| gpu.algorithms.prefers(&own, &other, saved, fused.is_expected))
        && convolutions.all(|(own, other)| gpu.engines.prefers(&own, &other, saved))
}

/// The better steps of a call that are taken, by number: from those that do least in a pass on, each that is preferred to what was taken
/// before.
fn chosen(gpu: &Gpu, plan: &Plan, node: NodeId, lowered: &Lowered) -> Option<usize> {
    let all = if gpu.no_epilogues { &[][..] } else { &lowered.fused[..] };
    all.iter().enumerate().rev().fold(None, |taken, (number, fused)| {
        let is_preferred = prefers(gpu, plan, node, fused, lowered.steps_of(taken));
        if is_preferred { Some(number) } else { taken }
    })
}

impl<'a> Planned<'a> {
    pub(super) fn new(
        gpu: &Gpu,
        plan: &Plan,
        calls: &'a [KernelCall],
        together: Option<Placed>,
        reports: &mut Vec<Report>,
    ) -> Result<Planned<'a>, RunError> {
        let call = &calls[0];
        let lowered = lowered_of(plan, call)?;
        let fused = chosen(gpu, plan, call.node, &lowered);
        let limits = &lowered.index_limits;
        let report = (!limits.is_empty()).then(|| {
            reports.push(Report { node: call.node, limits: limits.clone() });
            reports.len() - 1
        });
        let nodes = calls.iter().map(|call| call.node).collect();
        Ok(Planned { call, nodes, lowered, together, fused, report, guarded: None })
    }

    /// Whether the better steps replace nothing but sums over the micro-batches of a step, which the next step starts over.
    pub(super) fn replaces_sums(&self) -> bool {
        self.call.per_micro_batch && self.fused.is_some_and(|number| self.lowered.fused[number].starts_over())
    }

    fn steps(&self) -> &[Step] {
        self.lowered.steps_of(self.fused)
    }

    /// Kernels of its launches as they were lowered, and whether they may be guarded: those that set the halt may not.
    fn own_kernels(&self) -> impl Iterator<Item = (&Kernel, bool)> {
        let alone = self.steps().iter().filter(|_| self.together.is_none()).filter_map(|step| match step {
            Step::Launch { kernel, operands } => Some((kernel, !operands.contains(&Place::Halt))),
            _ => None,
        });
        let together = self.together.iter().flat_map(Placed::kernels);
        together.map(|kernel| (kernel, true)).chain(alone)
    }

    pub(super) fn guardable_kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.own_kernels().filter_map(|(kernel, may_be_guarded)| may_be_guarded.then_some(kernel))
    }

    /// Kernels that it launches.
    pub(super) fn kernels(&self) -> impl Iterator<Item = (&str, &Kernel)> {
        let guarded = self.guarded.iter().flat_map(|(kernels, _)| kernels);
        let own = self.own_kernels().filter(|(_, may_be_guarded)| self.guarded.is_none() || !may_be_guarded);
        guarded.chain(own.map(|(kernel, _)| kernel)).map(|kernel| (kernel.name.as_str(), kernel))
    }

    /// The message that it sends: its node, bytes and type of elements.
    pub(super) fn message(&self) -> Option<(NodeId, usize, DType)> {
        self.lowered.message().map(|(elements, ty)| (self.call.node, elements * ty.size(), ty))
    }

    /// Bytes that its calls of libraries need.
    pub(super) fn workspace(&self, gpu: &Gpu, tf32: bool) -> usize {
        let has_products = self.steps().iter().any(|step| matches!(step, Step::Product { .. }));
        let of_products = if has_products { PRODUCT_WORKSPACE } else { 0 };
        let convolutions = convolutions_of(self.steps(), tf32).map(|work| gpu.engines.plan(&work).workspace);
        convolutions.max().unwrap_or(0).max(of_products)
    }

    pub(super) fn bind(self, shared: &Shared<'_>) -> Result<Call, GpuError> {
        let Planned { call, nodes, lowered, together, fused, report, guarded } = self;
        let Shared { gpu, plan, memory, workspace, .. } = shared;
        let node = plan.graph.node(call.node);
        let exchange = || &shared.exchanges[&message_of(&plan.graph, call.node)];
        let place = |place: &Place| match *place {
            Place::Input(input) => memory.value(plan, node.inputs[input]),
            Place::Output(output) => memory.value(plan, Value { node: call.node, output: output as u32 }),
            Place::Scratch { offset, bytes } => memory.scratch(call.scratch.0 + offset, bytes),
            Place::Arrivals => Ok(shared.arrivals.clone()),
            Place::Report => shared.reports.part(report.unwrap_or(0) * REPORT_BYTES, REPORT_BYTES),
            Place::Message { .. } => Ok(exchange().message().clone()),
            Place::Lost => Ok(gpu.sums.as_ref().map_or_else(|| shared.halt.clone(), Sums::lost)),
            Place::Halt => Ok(shared.halt.clone()),
        };
        let own = together.map(|together| together.bind(shared, guarded.as_ref().map(|(kernels, _)| &kernels[..])));
        let (mut kernels, looks) = match guarded {
            Some((kernels, looks)) => (Some(kernels.into_iter()), looks),
            None => (None, false),
        };
        let bind = |step: &Step| match step {
            Step::Launch { kernel, operands } => {
                let mut blocks = operands.iter().map(place).collect::<Result<Vec<Block>, GpuError>>()?;
                let guarded = kernels.as_mut().filter(|_| !operands.contains(&Place::Halt));
                let guarded = guarded.map(|kernels| kernels.next().expect("a kernel for each launch"));
                if guarded.is_some() {
                    blocks.push(shared.halt.clone());
                }
                shared.launch(guarded.as_ref().unwrap_or(kernel), blocks)
            }
            Step::Product { product, x, w, y, epilogue } => {
                let (x, w, y) = (place(x)?, place(w)?, place(y)?);
                let operands = Operands { x: &x, w: &w, y: &y, workspace };
                let multiplication = Multiplication::new(product, epilogue, plan.tf32);
                let algorithm = gpu.algorithms.get(&multiplication).into_iter().collect();
                let (product, epilogue) = (multiplication.product, epilogue.with(place)?);
                Ok(BoundStep::Product(gpu.products()?.prepare_by(algorithm, product, operands, epilogue)?))
            }
            &Step::Convolution { convolution, fusion, ty, ref tensors } => {
                let work = Work::new(convolution, fusion, ty, plan.tf32);
                let blocks = tensors.iter().map(place).collect::<Result<Vec<Block>, GpuError>>()?;
                Ok(BoundStep::Convolution(gpu.engines.plan(&work).bind_in_order(&blocks, workspace)?))
            }
            Step::Zero(at) => Ok(BoundStep::Zero(place(at)?)),
            Step::Exchange { .. } => Ok(BoundStep::Exchange(exchange().clone())),
            Step::Await => Ok(BoundStep::Await(exchange().clone())),
        };
        let own = match own {
            Some(steps) => steps?,
            None => lowered.steps_of(fused).iter().map(bind).collect::<Result<Vec<_>, GpuError>>()?,
        };
        let look = if looks { shared.look()? } else { None };
        let steps = look.into_iter().chain(own).collect();
        Ok(Call { nodes, per_micro_batch: call.per_micro_batch, lowered, fused, steps })
    }
}
