//! What is known of a kind of GPU from its data sheet, and how long a step would take on it. No device is needed.

use crate::cublaslt::Product;
use crate::cudnn::MOST_WORKSPACE;
use crate::exec::{PRODUCT_WORKSPACE, bytes_of_feeds};
use crate::lower::{Fused, Lowered, Place, Step, Together, attention, units};
use bessemer_ir::ops::Op;
use bessemer_ir::plan::{Plan, node_cost};
use bessemer_ir::{DType, Graph, NodeId};
use serde::Serialize;
use std::any::Any;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Limits of a kind of GPU, by NVIDIA's data sheets, dense rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sheet {
    /// As on the command line.
    pub name: &'static str,
    /// Name of the product.
    pub product: &'static str,
    /// FLOP/s of `f32` without tensor cores.
    pub fp32_flops: f64,
    /// FLOP/s of `f32` operands rounded to TF32 on tensor cores.
    pub tf32_flops: f64,
    /// FLOP/s of 16-bit operands added to `f32` on tensor cores.
    pub half_flops: f64,
    /// Bytes a second from and to memory.
    pub memory_bytes_per_s: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// A name that no sheet has.
#[derive(Debug, thiserror::Error)]
#[error("no such sheet; there are {}", Sheet::ALL.map(|sheet| sheet.name).join(", "))]
pub struct UnknownSheet;

impl FromStr for Sheet {
    type Err = UnknownSheet;

    fn from_str(name: &str) -> Result<Self, UnknownSheet> {
        Self::ALL.into_iter().find(|sheet| sheet.name == name).ok_or(UnknownSheet)
    }
}

/// Seconds that a launch takes beside its work, replayed as a part of a graph.
const LAUNCH_S: f64 = 0.8e-6;
/// Bytes that the driver and libraries keep of a device's memory.
const RESERVED_BYTES: u64 = 1_500_000_000;

/// What kind of work a launch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Family {
    Product,
    Convolution,
    Attention,
    Region,
    Index,
    Pooling,
    Detection,
    Other,
    Copy,
}

impl Family {
    fn name(self) -> &'static str {
        match self {
            Family::Product => "matrix products",
            Family::Convolution => "convolutions",
            Family::Attention => "attention",
            Family::Region => "fusions",
            Family::Index => "gather, scatter",
            Family::Pooling => "pooling",
            Family::Detection => "boxes, regions, top-k",
            Family::Other => "reductions, random",
            Family::Copy => "copies, zeros",
        }
    }

    /// The part of a limit that launches are taken to reach; none of these is measured.
    fn efficiency(self) -> f64 {
        match self {
            Family::Product => 0.75,
            Family::Convolution => 0.60,
            Family::Attention
            | Family::Region
            | Family::Index
            | Family::Pooling
            | Family::Detection
            | Family::Other
            | Family::Copy => 0.85,
        }
    }
}

/// What the time of launches is mostly made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Products, at the rate of their numbers.
    Arithmetic,
    /// Bytes that are read and written.
    Memory,
    /// What a launch takes beside its work.
    #[default]
    Launches,
}

impl Bound {
    /// As in tables.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Arithmetic => "arithmetic",
            Bound::Memory => "memory",
            Bound::Launches => "launches",
        }
    }
}

/// Seconds of one launch, or of several, by what binds them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Time {
    arithmetic: f64,
    memory: f64,
    launches: f64,
}

impl Time {
    fn all(self) -> f64 {
        self.arithmetic + self.memory + self.launches
    }

    fn times(self, times: u64) -> Time {
        let times = times as f64;
        Time { arithmetic: self.arithmetic * times, memory: self.memory * times, launches: self.launches * times }
    }

    fn add(&mut self, other: Time) {
        self.arithmetic += other.arithmetic;
        self.memory += other.memory;
        self.launches += other.launches;
    }

    fn bound(self) -> Bound {
        let Time { arithmetic, memory, launches } = self;
        match (arithmetic.max(memory) < launches, arithmetic < memory) {
            (true, _) => Bound::Launches,
            (false, true) => Bound::Memory,
            (false, false) => Bound::Arithmetic,
        }
    }
}

/// Launches of a kind while they are counted.
#[derive(Default)]
struct Counted {
    launches: u64,
    flops: u64,
    bytes: u64,
    time: Time,
}

impl Counted {
    /// `times` launches of these FLOPs, bytes and time each.
    fn of(times: u64, flops: u64, bytes: u64, time: Time) -> Counted {
        Counted { launches: times, flops: times * flops, bytes: times * bytes, time: time.times(times) }
    }

    fn add(&mut self, other: &Counted) {
        self.launches += other.launches;
        self.flops += other.flops;
        self.bytes += other.bytes;
        self.time.add(other.time);
    }

    fn done(&self) -> FamilyUse {
        let Counted { launches, flops, bytes, time } = *self;
        FamilyUse { launches, flops, bytes, seconds: time.all(), bound: time.bound() }
    }
}

/// Launches of a kind in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FamilyUse {
    /// Launches.
    pub launches: u64,
    /// FLOPs of products, a multiply-add counted as two.
    pub flops: u64,
    /// Bytes that they read and write.
    pub bytes: u64,
    /// Time that they are predicted to take.
    pub seconds: f64,
    /// What most of it is made of.
    pub bound: Bound,
}

/// Nodes that run in a plainer form than is possible, for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlainLowering {
    /// What runs, and why it is not better.
    pub reason: String,
    /// Nodes.
    pub nodes: u64,
    /// Path of one of them in the model.
    pub example: String,
}

/// Nodes whose product does more in its pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FusedProducts {
    /// What is done in the pass, where the library has a way.
    pub what: &'static str,
    /// Nodes.
    pub nodes: u64,
}

/// What a step of a plan would take on a kind of GPU, predicted from its sheet; nothing of it is measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Name of the sheet.
    pub sheet: &'static str,
    /// Name of the product.
    pub product: &'static str,
    /// By kind, most time first.
    pub families: Vec<(&'static str, FamilyUse)>,
    /// Of all launches.
    pub all: FamilyUse,
    /// Bytes of the plan's arena.
    pub arena_bytes: usize,
    /// Bytes beside arena and state: scratch memory of libraries, at most, tables of groups, and batches on their way.
    pub scratch_bytes: usize,
    /// Products that do more in their pass, by what they do.
    pub fused: Vec<FusedProducts>,
    /// What runs in a plain form, by reason.
    pub plain: Vec<PlainLowering>,
}

impl Sheet {
    /// H200, H100 and A100, each as SXM module.
    pub const ALL: [Self; 3] = [
        Self {
            name: "h200",
            product: "NVIDIA H200 SXM",
            fp32_flops: 67e12,
            tf32_flops: 494.5e12,
            half_flops: 989e12,
            memory_bytes_per_s: 4.8e12,
            memory_bytes: 141_000_000_000,
        },
        Self {
            name: "h100",
            product: "NVIDIA H100 SXM 80 GB",
            fp32_flops: 67e12,
            tf32_flops: 494.5e12,
            half_flops: 989e12,
            memory_bytes_per_s: 3.35e12,
            memory_bytes: 80_000_000_000,
        },
        Self {
            name: "a100",
            product: "NVIDIA A100 SXM 80 GB",
            fp32_flops: 19.5e12,
            tf32_flops: 156e12,
            half_flops: 312e12,
            memory_bytes_per_s: 2.039e12,
            memory_bytes: 80_000_000_000,
        },
    ];

    /// Bytes of memory that are left for plans.
    pub fn free_bytes(&self) -> u64 {
        self.memory_bytes - RESERVED_BYTES
    }

    /// Predicts a step of `micro_batches` micro-batches: for each launch the time of its arithmetic or of its bytes, whichever is
    /// longer, over the efficiency of its kind, and 0.8 us. A plan for another target has no launches.
    pub fn predict(&self, plan: &Plan, micro_batches: u64) -> Prediction {
        let mut families: BTreeMap<Family, Counted> = BTreeMap::new();
        let mut plain: BTreeMap<String, PlainLowering> = BTreeMap::new();
        let mut fused: BTreeMap<&'static str, u64> = BTreeMap::new();
        for unit in units(plan) {
            let call = &plan.calls[unit.calls.start];
            let Some(lowered) = lowered_of(plan, call.node) else { continue };
            let times = if call.per_micro_batch { micro_batches } else { 1 };
            if let Some(together) = &unit.together {
                let operands = together.operands.iter().flatten();
                let of_operands: u64 = operands.map(|&value| plan.graph.ty(value).bytes() as u64).sum();
                for (number, _) in together.kernels().iter().enumerate() {
                    // Launches behind the first one add what blocks have summed.
                    let bytes = if number == 0 { of_operands } else { together.bytes() as u64 };
                    let time = self.time(Family::Region, Arithmetic::F32, 0, bytes);
                    families.entry(Family::Region).or_default().add(&Counted::of(times, 0, bytes, time));
                }
                continue;
            }
            let node = Node { graph: &plan.graph, id: call.node, lowered, tf32: plan.tf32 };
            if let Some(Fused { what, is_expected: true, .. }) = &lowered.fused {
                *fused.entry(*what).or_default() += 1;
            }
            for step in lowered.steps_of(lowered.is_fused()) {
                let (family, flops, bytes) = node.cost(step);
                let time = self.time(family, node.arithmetic(step), flops, bytes);
                families.entry(family).or_default().add(&Counted::of(times, flops, bytes, time));
            }
            for reason in node.reasons() {
                let entry = plain.entry(reason.clone()).or_insert_with(|| PlainLowering {
                    reason,
                    nodes: 0,
                    example: plan.graph.path(call.node).to_string(),
                });
                entry.nodes += 1;
            }
        }
        for copy in &plan.copies {
            let (times, bytes) = (if copy.per_micro_batch { micro_batches } else { 1 }, 2 * copy.bytes as u64);
            let time = self.time(Family::Copy, Arithmetic::F32, 0, bytes);
            families.entry(Family::Copy).or_default().add(&Counted::of(times, 0, bytes, time));
        }
        let mut all = Counted::default();
        families.values().for_each(|family| all.add(family));
        let all = all.done();
        let mut families: Vec<_> = families.into_iter().map(|(family, used)| (family.name(), used.done())).collect();
        families.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        let (sheet, product) = (self.name, self.product);
        let plain = plain.into_values().collect();
        let fused = fused.into_iter().map(|(what, nodes)| FusedProducts { what, nodes }).collect();
        let scratch_bytes = scratch_bytes(plan);
        Prediction { sheet, product, families, all, arena_bytes: plan.arena_bytes, scratch_bytes, fused, plain }
    }

    fn time(&self, family: Family, arithmetic: Arithmetic, flops: u64, bytes: u64) -> Time {
        let rate = match arithmetic {
            Arithmetic::F32 => self.fp32_flops,
            Arithmetic::Tf32 => self.tf32_flops,
            Arithmetic::Half => self.half_flops,
        };
        let [of_flops, of_bytes] =
            [flops as f64 / rate, bytes as f64 / self.memory_bytes_per_s].map(|work| work / family.efficiency());
        match of_flops < of_bytes {
            true => Time { arithmetic: 0.0, memory: of_bytes, launches: LAUNCH_S },
            false => Time { arithmetic: of_flops, memory: 0.0, launches: LAUNCH_S },
        }
    }
}

/// Bytes that a plan takes beside its arena and its state: the largest scratch memory that a call of a library may have, tables of
/// groups, and batches on their way. Of convolutions that is the most that an engine is chosen with. 0 for a plan of another target.
pub fn scratch_bytes(plan: &Plan) -> usize {
    let of_step = |step: &Step| match step {
        Step::Product { .. } => PRODUCT_WORKSPACE,
        Step::Convolution { .. } => MOST_WORKSPACE,
        _ => 0,
    };
    let lowered = plan.calls.iter().filter_map(|call| lowered_of(plan, call.node));
    let of_libraries = lowered.flat_map(|lowered| lowered.steps_of(lowered.is_fused())).map(of_step).max().unwrap_or(0);
    let tables: usize = units(plan).iter().filter_map(|unit| unit.together.as_ref()).map(Together::bytes).sum();
    of_libraries + tables + bytes_of_feeds(plan)
}

fn lowered_of(plan: &Plan, node: NodeId) -> Option<&Lowered> {
    plan.kernels.of(node).and_then(|kernel| (&**kernel as &dyn Any).downcast_ref())
}

/// A node with its steps.
struct Node<'a> {
    graph: &'a Graph,
    id: NodeId,
    lowered: &'a Lowered,
    /// Whether products of `f32` operands round these to TF32.
    tf32: bool,
}

/// In which numbers a launch multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    F32,
    Tf32,
    Half,
}

impl Node<'_> {
    /// Kind, FLOPs of products and bytes of a step.
    fn cost(&self, step: &Step) -> (Family, u64, u64) {
        let all = |places: &[Place]| places.iter().map(|place| place.bytes(self.graph, self.id) as u64).sum::<u64>();
        match step {
            Step::Product { product: Product { batch, m, n, k, .. }, x, w, y, epilogue } => {
                let places: Vec<Place> = [x, w, y].into_iter().chain(epilogue.memory()).copied().collect();
                (Family::Product, (2 * batch * m * n * k) as u64, all(&places))
            }
            Step::Convolution { tensors, .. } => (Family::Convolution, self.lowered.flops, all(tensors)),
            Step::Zero(place) => (Family::Copy, 0, all(&[*place])),
            // What ranks send each other is the simulator's to say.
            Step::Exchange { .. } | Step::Await => (Family::Copy, 0, 0),
            Step::Launch { kernel, operands } if kernel.name.starts_with("depthwise") => {
                (Family::Convolution, self.lowered.flops, all(operands))
            }
            Step::Launch { operands, .. } => match &self.graph.node(self.id).op {
                // Of a table only the rows that are chosen are read.
                Op::Gather(_) => (Family::Index, 0, node_cost(self.graph, self.id).bytes),
                Op::Attention(_) | Op::AttentionGrad(_) if self.has_attention_of_products() => {
                    (Family::Attention, 0, all(operands))
                }
                Op::Attention(_) | Op::AttentionGrad(_) => {
                    let launches = self.lowered.steps.len() as u64;
                    (Family::Attention, self.lowered.flops / launches, all(operands))
                }
                Op::ScatterAdd(_) => (Family::Index, 0, all(operands)),
                Op::MaxPool2d(_) | Op::MaxPool2dGrad(_) | Op::AvgPool2d(_) | Op::AvgPool2dGrad(_) => {
                    (Family::Pooling, 0, all(operands))
                }
                Op::TopK(_)
                | Op::Anchors(_)
                | Op::MatchBoxes(_)
                | Op::EncodeBoxes(_)
                | Op::DecodeBoxes(_)
                | Op::Suppress(_)
                | Op::SampleLabels(_)
                | Op::SampleRows(_)
                | Op::PackRows(_)
                | Op::RoiAlign(_)
                | Op::RoiAlignGrad(_)
                | Op::MaskTargets(_) => (Family::Detection, 0, all(operands)),
                Op::Fusion(_) if self.is_region(step) => (Family::Region, 0, all(operands)),
                Op::Reduce(_) | Op::ArgMax(_) | Op::Random(_) => (Family::Other, 0, all(operands)),
                _ => (Family::Copy, 0, all(operands)),
            },
        }
    }

    /// Whether a launch is of a fusion's own kernels, not of a copy that its product needs.
    fn is_region(&self, step: &Step) -> bool {
        matches!(step, Step::Launch { kernel, .. } if kernel.name.starts_with("region"))
    }

    /// Whether it is an attention by products of matrices.
    fn has_attention_of_products(&self) -> bool {
        let types = self.graph.input_types(self.id);
        match &self.graph.node(self.id).op {
            Op::Attention(of) => attention::is_of_products(of, &types),
            Op::AttentionGrad(grad) => attention::is_of_products(&grad.attention, &types),
            _ => false,
        }
    }

    /// In which numbers a step multiplies.
    fn arithmetic(&self, step: &Step) -> Arithmetic {
        let is_attention = matches!(self.graph.node(self.id).op, Op::Attention(_) | Op::AttentionGrad(_));
        match step {
            Step::Product { product: Product { inputs: ty, .. }, .. } | Step::Convolution { ty, .. } => {
                match (*ty, self.tf32) {
                    (DType::F32, false) => Arithmetic::F32,
                    (DType::F32, true) => Arithmetic::Tf32,
                    _ => Arithmetic::Half,
                }
            }
            Step::Launch { .. } if is_attention && !self.has_attention_of_products() => Arithmetic::Half,
            Step::Launch { .. } | Step::Zero(_) | Step::Exchange { .. } | Step::Await => Arithmetic::F32,
        }
    }

    /// Why its steps are not the best that are possible.
    fn reasons(&self) -> Vec<String> {
        let node = self.graph.node(self.id);
        let mut reasons = Vec::new();
        let has = |wanted: fn(&Step) -> bool| self.lowered.steps.iter().any(wanted);
        if let Some(missed) = &self.lowered.missed {
            reasons.push(format!("product to memory, then its fusion: {missed}"));
        }
        if let Some(Fused { what, is_expected: false, .. }) = &self.lowered.fused {
            reasons.push(format!(
                "product to memory, then its fusion: {what}, if cuDNN compiles an engine that is measured to be faster"
            ));
        }
        if has(|step| matches!(step, Step::Convolution { .. })) && has_copies(self) {
            reasons.push("weights or padding copied for cuDNN: their layout in memory is another one".to_owned());
        }
        if matches!(&node.op, Op::Attention(_) | Op::AttentionGrad(_)) && self.has_attention_of_products() {
            reasons.push("attention by products of matrices, with its probabilities in memory".to_owned());
        }
        reasons
    }
}

fn has_copies(node: &Node<'_>) -> bool {
    node.lowered.steps.iter().any(|step| matches!(step, Step::Launch { .. }) && !node.is_region(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaTarget;
    use bessemer_ir::ops::conv::Conv2d;
    use bessemer_ir::ops::matmul::Matmul;
    use bessemer_ir::ops::reduce::MeanVar;
    use bessemer_ir::passes::{CompileOptions, compile};
    use bessemer_ir::{Role, TensorType};

    /// One product of `[m, k]` and `[k, n]`, doubled.
    fn plan(dtype: DType, tf32: bool) -> Plan {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::new(dtype, [512, 256])).unwrap();
        let w = g.input("w", Role::Feed, TensorType::new(dtype, [256, 1024])).unwrap();
        let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
        let y = g.add(y, y).unwrap();
        g.output("y", y);
        compile(&g, &CudaTarget, &CompileOptions { tf32, ..CompileOptions::default() }).unwrap()
    }

    #[test]
    fn a_launch_takes_the_longer_of_its_two_limits() {
        let sheet: Sheet = "h200".parse().unwrap();
        let (flops, product_bytes) = (2 * 512 * 256 * 1024, 4 * (512 * 256 + 256 * 1024 + 512 * 1024));
        let prediction = sheet.predict(&plan(DType::F32, false), 3);
        assert_eq!(prediction.families.len(), 2, "{prediction:?}");
        let family = |name: &str| prediction.families.iter().find(|(known, _)| *known == name).unwrap().1;
        let products = family("matrix products");
        assert_eq!((products.launches, products.flops, products.bytes), (1, flops, product_bytes));
        let seconds = flops as f64 / 67e12 / 0.75 + 0.8e-6;
        assert!((products.seconds - seconds).abs() < 1e-12, "{} {seconds}", products.seconds);
        let fusions = family("fusions");
        assert_eq!((fusions.launches, fusions.flops, fusions.bytes), (1, 0, 2 * 4 * 512 * 1024));
        let seconds = 2.0 * 4.0 * 512.0 * 1024.0 / 4.8e12 / 0.85 + 0.8e-6;
        assert!((fusions.seconds - seconds).abs() < 1e-12, "{} {seconds}", fusions.seconds);
        assert!((prediction.all.seconds - products.seconds - fusions.seconds).abs() < 1e-12);
        let bounds = [products.bound, fusions.bound, prediction.all.bound];
        assert_eq!(bounds, [Bound::Arithmetic, Bound::Memory, Bound::Arithmetic]);
        let half = sheet.predict(&plan(DType::Bf16, false), 1);
        let bounds: Vec<_> = half.families.iter().map(|(name, family)| (*name, family.bound)).collect();
        assert_eq!(bounds, [("fusions", Bound::Memory), ("matrix products", Bound::Memory)]);
        assert_eq!(Time { arithmetic: 1.0, memory: 2.0, launches: 3.0 }.bound(), Bound::Launches);
        let batches = 3 * 4 * (512 * 256 + 256 * 1024);
        let scratch = [batches, batches / 2].map(|batches| PRODUCT_WORKSPACE + batches);
        assert_eq!([prediction.scratch_bytes, half.scratch_bytes], scratch);
        let of_products = |tf32| {
            let prediction = sheet.predict(&plan(DType::F32, tf32), 1);
            prediction.families.iter().find(|(known, _)| *known == "matrix products").unwrap().1.seconds
        };
        assert_eq!(of_products(false), products.seconds);
        let seconds = (flops as f64 / 494.5e12).max(product_bytes as f64 / 4.8e12) / 0.75 + 0.8e-6;
        assert!((of_products(true) - seconds).abs() < 1e-12, "{} {seconds}", of_products(true));
        assert_eq!((prediction.plain.len(), &prediction.fused[..]), (1, &[][..]));
        assert_eq!(prediction.plain[0].reason, "product to memory, then its fusion: cuBLASLt has no such function");
    }

    /// A bias that is added in the product's pass: of 16 bits it is rounded before.
    #[test]
    fn products_with_biases_are_one_launch() {
        for (dtype, launches) in [(DType::F32, 1), (DType::Bf16, 2)] {
            let mut g = Graph::new();
            let mut feed = |name: &str, dtype, shape: [usize; 2]| {
                g.input(name, Role::Feed, TensorType::new(dtype, shape)).unwrap()
            };
            let (x, w, bias) =
                (feed("x", dtype, [512, 256]), feed("w", dtype, [256, 64]), feed("bias", DType::F32, [1, 64]));
            let y = g.push1(Matmul { trans_a: false, trans_b: false }, &[x, w]).unwrap();
            let y = g.add(y, bias).unwrap();
            let y = g.cast(y, dtype).unwrap();
            g.output("y", y);
            let plan = compile(&g, &CudaTarget, &CompileOptions::default()).unwrap();
            let prediction = "h200".parse::<Sheet>().unwrap().predict(&plan, 1);
            assert_eq!(prediction.fused, [FusedProducts { what: "bias", nodes: 1 }]);
            assert_eq!((prediction.all.launches, &prediction.plain[..]), (launches, &[][..]), "{dtype}");
        }
    }

    /// A convolution of 16 bits with moments of its result, or with a bias.
    fn convolution(dtype: DType, moments: bool) -> Prediction {
        let mut g = Graph::new();
        let x = g.input("x", Role::Feed, TensorType::new(dtype, [8, 28, 28, 64])).unwrap();
        let w = g.input("w", Role::Feed, TensorType::new(dtype, [3, 3, 64, 32])).unwrap();
        let y = g.push1(Conv2d::new([1, 1], [[1, 1], [1, 1]]), &[x, w]).unwrap();
        if moments {
            let y = g.cast(y, dtype).unwrap();
            g.output("y", y);
            let wide = g.cast(y, DType::F32).unwrap();
            let moments = g.push(Op::from(MeanVar { axes: vec![0, 1, 2] }), &[wide]).unwrap();
            g.output("mean", moments[0]);
            g.output("variance", moments[1]);
        } else {
            let bias = g.input("bias", Role::Feed, TensorType::f32([32])).unwrap();
            let y = g.add(y, bias).unwrap();
            let y = g.cast(y, dtype).unwrap();
            g.output("y", y);
        }
        let plan = compile(&g, &CudaTarget, &CompileOptions::default()).unwrap();
        "h200".parse::<Sheet>().unwrap().predict(&plan, 1)
    }

    /// Statistics that are known to have an engine move no more than the convolution, its sums, and what is made of them. What may be
    /// fused is predicted in its plain form, and listed.
    #[test]
    fn what_convolutions_do_in_their_pass_is_predicted_where_an_engine_is_known() {
        let (x, w, y) = (8 * 28 * 28 * 64 * 2, 3 * 3 * 64 * 32 * 2, 8 * 28 * 28 * 32 * 2);
        let bytes = |prediction: &Prediction, name: &str| {
            prediction.families.iter().find(|(known, _)| *known == name).map_or(0, |(_, family)| family.bytes)
        };
        let fused = convolution(DType::F16, true);
        assert_eq!(fused.fused, [FusedProducts { what: "statistics", nodes: 1 }]);
        assert_eq!(bytes(&fused, "convolutions"), x + w + y + 2 * 32 * 4);
        assert_eq!(bytes(&fused, "fusions"), 4 * 32 * 4);
        assert!(fused.plain.iter().all(|plain| plain.reason.starts_with("weights")), "{:?}", fused.plain);
        for (dtype, moments, what) in
            [(DType::Bf16, true, "statistics"), (DType::F16, false, "shift"), (DType::F32, false, "")]
        {
            let plain = convolution(dtype, moments);
            assert_eq!((&plain.fused[..], plain.plain.len()), (&[][..], 2), "{dtype}");
            assert!(bytes(&plain, "fusions") > y, "{dtype}");
            let reason = match dtype {
                DType::F32 => "with convolutions cuDNN fuses in 16 bits here".to_owned(),
                _ => format!("{what}, if cuDNN compiles an engine that is measured to be faster"),
            };
            assert_eq!(plain.plain[0].reason, format!("product to memory, then its fusion: {reason}"));
        }
    }

    #[test]
    fn sheets_differ() {
        let plan = plan(DType::F32, false);
        let seconds = Sheet::ALL.map(|sheet| sheet.predict(&plan, 1).all.seconds);
        assert!(seconds[0] < seconds[1] && seconds[1] < seconds[2], "{seconds:?}");
        assert_eq!("b200".parse::<Sheet>().unwrap_err().to_string(), "no such sheet; there are h200, h100, a100");
    }
}
