//! The launches of a plan, with what bounds the time of each. No device is needed.

use super::{Family, Numbers};
use crate::cublaslt::{Epilogue, Product};
use crate::cudnn::Fusion as ConvolutionFusion;
use crate::lower::{Lowered, Place, Step, Unit, attention, units};
use bessemer_ir::ops::Op;
use bessemer_ir::ops::fusion::FusionOutput;
use bessemer_ir::plan::{KernelCall, Plan, node_cost};
use bessemer_ir::{DType, Graph, NodeId};
use std::any::Any;

/// Convolutions of fewer channels, such as those of images, are far from all limits.
const FEW_CHANNELS: usize = 8;
/// Rows of as many columns do not stay in registers as shorter ones do.
const LONG_ROW: usize = 1 << 14;

/// A launch of a kernel, or a call of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The node that it computes, or a part of it; of fusions that are launched together the first one; `None` for copies of state.
    pub node: Option<NodeId>,
    /// What kind of work it is.
    pub family: Family,
    /// In which numbers it multiplies.
    pub numbers: Numbers,
    /// FLOPs of products, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes that it reads and writes.
    pub bytes: u64,
    /// Whether it runs for each micro-batch, not once a step.
    pub per_micro_batch: bool,
}

/// The launches of a plan in order, with what is done in the pass of products where `epilogues` says so and the library is known to
/// have a way; those of several fusions together as one. A plan for another target has none.
pub fn launches(plan: &Plan, epilogues: bool) -> Vec<Launch> {
    let of_units = units(plan).into_iter().flat_map(|unit| of_unit(plan, &unit, epilogues));
    let copies = plan.copies.iter().map(|copy| Launch {
        node: None,
        family: Family::Copies,
        numbers: Numbers::F32,
        flops: 0,
        bytes: 2 * copy.bytes as u64,
        per_micro_batch: copy.per_micro_batch,
    });
    of_units.chain(copies).collect()
}

fn of_unit(plan: &Plan, unit: &Unit, epilogues: bool) -> Vec<Launch> {
    let call = &plan.calls[unit.calls.start];
    let Some(node) = Node::of(plan, call, epilogues) else { return Vec::new() };
    let Some(together) = &unit.together else {
        return node.steps().iter().map(|step| node.launch(step)).collect();
    };
    let operands = together.operands.iter().flatten();
    let of_operands: u64 = operands.map(|&value| plan.graph.ty(value).bytes() as u64).sum();
    let launch = |number: usize| {
        // Launches behind the first one add what blocks have summed.
        let bytes = if number == 0 { of_operands } else { together.bytes() as u64 };
        Launch { family: Family::Groups, numbers: Numbers::F32, flops: 0, bytes, ..node.launched() }
    };
    (0..together.kernels().len()).map(launch).collect()
}

/// What a node was lowered to; `None` in a plan for another target.
pub(super) fn lowered_of(plan: &Plan, node: NodeId) -> Option<&Lowered> {
    plan.kernels.of(node).and_then(|kernel| (&**kernel as &dyn Any).downcast_ref())
}

/// A node with its steps.
pub(super) struct Node<'a> {
    pub(super) graph: &'a Graph,
    pub(super) id: NodeId,
    pub(super) lowered: &'a Lowered,
    /// Whether products of `f32` operands round these to TF32.
    tf32: bool,
    /// The better steps that are taken, by number.
    fused: Option<usize>,
    per_micro_batch: bool,
}

impl<'a> Node<'a> {
    pub(super) fn of(plan: &'a Plan, call: &KernelCall, epilogues: bool) -> Option<Node<'a>> {
        let lowered = lowered_of(plan, call.node)?;
        let fused = lowered.expected().filter(|_| epilogues);
        let (id, tf32, per_micro_batch) = (call.node, plan.tf32, call.per_micro_batch);
        Some(Node { graph: &plan.graph, id, lowered, tf32, fused, per_micro_batch })
    }

    pub(super) fn steps(&self) -> &'a [Step] {
        self.lowered.steps_of(self.fused)
    }

    /// Whether a launch is of a fusion's own kernels, not of a copy that its product needs.
    pub(super) fn is_region(&self, step: &Step) -> bool {
        matches!(step, Step::Launch { kernel, .. } if kernel.name.starts_with("region"))
    }

    /// Whether it is an attention by products of matrices.
    pub(super) fn has_attention_of_products(&self) -> bool {
        let types = self.graph.input_types(self.id);
        match &self.graph.node(self.id).op {
            Op::Attention(of) => attention::is_of_products(of, &types, false),
            Op::AttentionGrad(grad) => attention::is_of_products(&grad.attention, &types, true),
            _ => false,
        }
    }

    /// A launch that does nothing yet.
    fn launched(&self) -> Launch {
        Launch {
            node: Some(self.id),
            family: Family::Copies,
            numbers: Numbers::F32,
            flops: 0,
            bytes: 0,
            per_micro_batch: self.per_micro_batch,
        }
    }

    fn launch(&self, step: &Step) -> Launch {
        let (family, flops, bytes) = self.cost(step);
        Launch { family, numbers: self.numbers(step), flops, bytes, ..self.launched() }
    }

    /// Kind, FLOPs of products and bytes of a step.
    fn cost(&self, step: &Step) -> (Family, u64, u64) {
        let all = |places: &[Place]| places.iter().map(|place| place.bytes(self.graph, self.id) as u64).sum::<u64>();
        match step {
            Step::Product { product, x, w, y, epilogue } => {
                let places: Vec<Place> =
                    [x, w, y].into_iter().chain(epilogue.memory().map(|(place, _)| place)).copied().collect();
                let family = match epilogue {
                    Epilogue::Nothing => Family::Products,
                    Epilogue::GeluGrad { .. } | Epilogue::GeluGradBiasGrad { .. } => Family::GeluGradients,
                    _ => Family::ProductsFused,
                };
                (family, product.flops(), all(&places))
            }
            Step::Convolution { convolution, fusion, tensors, .. } => {
                let family = match fusion {
                    _ if convolution.input[3] < FEW_CHANNELS => Family::FewChannels,
                    ConvolutionFusion::Plain(_) => Family::Convolutions,
                    _ => Family::ConvolutionsFused,
                };
                (family, self.lowered.flops, all(tensors))
            }
            Step::Zero(place) => (Family::Copies, 0, all(&[*place])),
            // What ranks send each other is the simulator's to say.
            Step::Exchange { .. } | Step::Await => (Family::Copies, 0, 0),
            Step::Launch { kernel, operands } if kernel.name.starts_with("depthwise") => {
                (Family::Depthwise, self.lowered.flops, all(operands))
            }
            Step::Launch { operands, .. } => {
                let (family, flops) = (self.family(step), self.flops());
                match &self.graph.node(self.id).op {
                    // Of a table only the rows that are chosen are read.
                    Op::Gather(_) => (family, flops, node_cost(self.graph, self.id).bytes),
                    _ => (family, flops, all(operands)),
                }
            }
        }
    }

    /// FLOPs of products of one of its launches of own kernels.
    fn flops(&self) -> u64 {
        match &self.graph.node(self.id).op {
            Op::Attention(_) | Op::AttentionGrad(_) if !self.has_attention_of_products() => {
                self.lowered.flops / self.lowered.steps.len() as u64
            }
            _ => 0,
        }
    }

    /// The kind of a launch of an own kernel.
    fn family(&self, step: &Step) -> Family {
        match &self.graph.node(self.id).op {
            Op::Attention(_) => Family::Attention,
            Op::AttentionGrad(_) => Family::AttentionGradients,
            Op::Gather(_) => Family::Gather,
            Op::ScatterAdd(_) => Family::ScatterAdd,
            Op::MaxPool2d(_) | Op::AvgPool2d(_) => Family::Pooling,
            Op::MaxPool2dGrad(_) | Op::AvgPool2dGrad(_) => Family::PoolingGradients,
            Op::TopK(_) | Op::Suppress(_) | Op::SampleLabels(_) | Op::SampleRows(_) | Op::PackRows(_) => {
                Family::Selection
            }
            Op::Anchors(_) | Op::MatchBoxes(_) | Op::EncodeBoxes(_) | Op::DecodeBoxes(_) => Family::Boxes,
            Op::RoiAlign(_) | Op::RoiAlignGrad(_) | Op::MaskTargets(_) => Family::RegionFeatures,
            Op::Fusion(fusion) if self.is_region(step) => {
                let over_rows =
                    |output: &FusionOutput| matches!(output, FusionOutput::Sum { .. } | FusionOutput::MeanVar { .. });
                match (fusion.is_rowwise(), fusion.outputs.iter().any(over_rows)) {
                    (true, _) if fusion.cols >= LONG_ROW => Family::LongRows,
                    (true, _) => Family::Rows,
                    (false, true) => Family::Sums,
                    (false, false) => Family::Pointwise,
                }
            }
            Op::Reduce(_) | Op::ArgMax(_) | Op::Random(_) => Family::Reductions,
            _ => Family::Copies,
        }
    }

    /// In which numbers a step multiplies.
    fn numbers(&self, step: &Step) -> Numbers {
        let is_attention = matches!(self.graph.node(self.id).op, Op::Attention(_) | Op::AttentionGrad(_));
        match step {
            Step::Product { product: Product { inputs: ty, .. }, .. } | Step::Convolution { ty, .. } => {
                match (*ty, self.tf32) {
                    (DType::F32, false) => Numbers::F32,
                    (DType::F32, true) => Numbers::Tf32,
                    _ => Numbers::Half,
                }
            }
            Step::Launch { .. } if is_attention && !self.has_attention_of_products() => Numbers::Half,
            Step::Launch { .. } | Step::Zero(_) | Step::Exchange { .. } | Step::Await => Numbers::F32,
        }
    }
}
