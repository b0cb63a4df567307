//! How long the launches of a plan would take.

use super::launches::{Node, launches, lowered_of};
use super::{Efficiency, Family, Launch, Numbers, Origin, Sheet};
use crate::cudnn::MOST_WORKSPACE;
use crate::exec::{PRODUCT_WORKSPACE, bytes_of_feeds};
use crate::lower::{Fused, Step, Together, units};
use bessemer_ir::ops::Op;
use bessemer_ir::plan::{OnceCall, Plan};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the time of launches is mostly made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
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
    /// Of a launch whose arithmetic or bytes take so many seconds.
    fn of(bound: Bound, seconds: f64, launches: f64) -> Time {
        match bound {
            Bound::Arithmetic => Time { arithmetic: seconds, memory: 0.0, launches },
            Bound::Memory | Bound::Launches => Time { arithmetic: 0.0, memory: seconds, launches },
        }
    }

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
    /// `times` launches like this one.
    fn of(times: u64, launch: &Launch, time: Time) -> Counted {
        let Launch { flops, bytes, .. } = launch;
        Counted { launches: times, flops: times * flops, bytes: times * bytes, time: time.times(times) }
    }

    fn add(&mut self, other: &Counted) {
        self.launches += other.launches;
        self.flops += other.flops;
        self.bytes += other.bytes;
        self.time.add(other.time);
    }

    fn done(&self, reached: Option<Reached>) -> FamilyUse {
        let Counted { launches, flops, bytes, time } = *self;
        FamilyUse { launches, flops, bytes, seconds: time.all(), bound: time.bound(), reached }
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
    /// What its launches are taken to reach; `None` for several kinds.
    pub reached: Option<Reached>,
}

/// The share of a limit, of arithmetic or of memory, that most of a kind's time was predicted with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reached {
    /// Above 0, at most 1.
    pub share: f64,
    /// Where it is from.
    pub origin: Origin,
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

/// What a step of a plan would take on a kind of GPU, predicted from its sheet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Name of the sheet.
    pub sheet: String,
    /// Name of the product.
    pub product: String,
    /// Where the sheet's figures are from.
    pub source: String,
    /// By kind, most time first.
    pub families: Vec<(&'static str, FamilyUse)>,
    /// Of all launches.
    pub all: FamilyUse,
    /// Seconds of their work that are predicted by an efficiency that was measured.
    pub measured_seconds: f64,
    /// Bytes of the plan's arena.
    pub arena_bytes: usize,
    /// Bytes beside arena and state: scratch memory of libraries, at most, tables of groups, messages of sums over ranks, and batches on
    /// their way.
    pub scratch_bytes: usize,
    /// Products that do more in their pass, by what they do.
    pub fused: Vec<FusedProducts>,
    /// What runs in a plain form, by reason.
    pub plain: Vec<PlainLowering>,
}

impl Sheet {
    /// Predicts a step of `micro_batches` micro-batches: for each launch the time of its arithmetic or of its bytes, each over the
    /// share of its limit that such launches reach, whichever is longer, and what a launch takes beside. With `epilogues` products
    /// and convolutions do in their pass what the libraries are known to have a way for. A plan for another target has no launches.
    pub fn predict(&self, plan: &Plan, micro_batches: u64, epilogues: bool) -> Prediction {
        let mut families: BTreeMap<Family, Counted> = BTreeMap::new();
        let mut measured_seconds = 0.0;
        for launch in launches(plan, epilogues) {
            let times = if launch.per_micro_batch { micro_batches } else { 1 };
            let (bound, seconds) = self.work(&launch);
            if self.reached(launch.family, bound).origin == Origin::Measured {
                measured_seconds += times as f64 * seconds;
            }
            let time = Time::of(bound, seconds, self.launch_seconds());
            families.entry(launch.family).or_default().add(&Counted::of(times, &launch, time));
        }
        let mut all = Counted::default();
        families.values().for_each(|family| all.add(family));
        let all = all.done(None);
        let done = |(family, used): (Family, Counted)| {
            let bound = if used.time.arithmetic > used.time.memory { Bound::Arithmetic } else { Bound::Memory };
            (family.name(), used.done(Some(self.reached(family, bound))))
        };
        let mut families: Vec<_> = families.into_iter().map(done).collect();
        families.sort_by(|(_, a), (_, b)| b.seconds.total_cmp(&a.seconds));
        let (fused, plain) = forms(plan, epilogues);
        Prediction {
            sheet: self.name.clone(),
            product: self.of.product.clone(),
            source: self.of.source.clone(),
            families,
            all,
            measured_seconds,
            arena_bytes: plan.arena_bytes,
            scratch_bytes: scratch_bytes(plan),
            fused,
            plain,
        }
    }

    /// Seconds of a launch's arithmetic or of its bytes, whichever takes longer, beside what every launch takes.
    pub fn work(&self, launch: &Launch) -> (Bound, f64) {
        let limits = &self.of.limits;
        let rate = match launch.numbers {
            Numbers::F32 => limits.fp32_tflops,
            Numbers::Tf32 => limits.tf32_tflops,
            Numbers::Half => limits.half_tflops,
        };
        let Efficiency { arithmetic, memory } = &self.of.efficiency[&launch.family];
        let of_flops = arithmetic.map_or(0.0, |share| launch.flops as f64 / (rate.value * 1e12 * share.value));
        let of_bytes = launch.bytes as f64 / (limits.memory_gbytes_per_s.value * 1e9 * memory.value);
        if of_flops < of_bytes { (Bound::Memory, of_bytes) } else { (Bound::Arithmetic, of_flops) }
    }

    /// What launches of a kind are taken to reach of a limit: of memory, unless it is that of their arithmetic.
    pub fn reached(&self, family: Family, bound: Bound) -> Reached {
        let Efficiency { arithmetic, memory } = &self.of.efficiency[&family];
        let figure = arithmetic.filter(|_| bound == Bound::Arithmetic).unwrap_or(*memory);
        Reached { share: figure.value, origin: figure.origin }
    }

    /// Seconds that a launch takes beside its work.
    pub fn launch_seconds(&self) -> f64 {
        self.of.limits.launch_us.value * 1e-6
    }
}

/// What products do in their pass, and what runs in a plainer form than is possible.
fn forms(plan: &Plan, epilogues: bool) -> (Vec<FusedProducts>, Vec<PlainLowering>) {
    let mut plain: BTreeMap<String, PlainLowering> = BTreeMap::new();
    let mut fused: BTreeMap<&'static str, u64> = BTreeMap::new();
    for call in &plan.calls {
        let Some(node) = Node::of(plan, call, epilogues) else { continue };
        if let Some(number) = node.lowered.expected().filter(|_| epilogues) {
            *fused.entry(node.lowered.fused[number].what).or_default() += 1;
        }
        for reason in reasons(&node, epilogues) {
            let entry = plain.entry(reason.clone()).or_insert_with(|| PlainLowering {
                reason,
                nodes: 0,
                example: plan.graph.path(call.node).to_string(),
            });
            entry.nodes += 1;
        }
    }
    let fused = fused.into_iter().map(|(what, nodes)| FusedProducts { what, nodes }).collect();
    (fused, plain.into_values().collect())
}

/// Why the steps of a node are not the best that are possible.
fn reasons(node: &Node<'_>, epilogues: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let steps = &node.lowered.steps;
    let is_copy = |step: &Step| matches!(step, Step::Launch { .. }) && !node.is_region(step);
    let apart = |why: &str| format!("product to memory, then its fusion: {why}");
    match (&node.lowered.missed, node.lowered.fused.first()) {
        (Some(missed), _) => reasons.push(apart(&missed.to_string())),
        (None, Some(_)) if !epilogues => reasons.push(apart("--no-epilogues")),
        (None, Some(Fused { what, .. })) if node.lowered.expected().is_none() => {
            reasons.push(apart(&format!("{what}, if cuDNN compiles an engine that is measured to be faster")));
        }
        _ => {}
    }
    if steps.iter().any(|step| matches!(step, Step::Convolution { .. })) && steps.iter().any(is_copy) {
        reasons.push("weights or padding copied for cuDNN: their layout in memory is another one".to_owned());
    }
    let is_attention = matches!(&node.graph.node(node.id).op, Op::Attention(_) | Op::AttentionGrad(_));
    if is_attention && node.has_attention_of_products() {
        reasons.push("attention by products of matrices, with its probabilities in memory".to_owned());
    }
    reasons
}

/// Bytes that a plan takes beside its arena and its state: the largest scratch memory that a call of a library may have, those
/// that run once included, tables of groups, messages of sums over ranks, and batches on their way. Of convolutions that is the most that an
/// engine is chosen with. 0 for a plan of another target.
pub fn scratch_bytes(plan: &Plan) -> usize {
    let of_step = |step: &Step| match step {
        Step::Product { .. } => PRODUCT_WORKSPACE,
        Step::Convolution { .. } => MOST_WORKSPACE,
        _ => 0,
    };
    let once = plan.once_calls.iter().filter_map(|once| match once {
        OnceCall::Run(call) => Some(call),
        OnceCall::Prepack(_) => None,
    });
    let lowered: Vec<_> = plan.calls.iter().chain(once).filter_map(|call| lowered_of(plan, call.node)).collect();
    let steps = lowered.iter().flat_map(|lowered| lowered.steps_of(lowered.expected()));
    let of_libraries = steps.map(of_step).max().unwrap_or(0);
    let messages = lowered.iter().filter_map(|lowered| lowered.message());
    let messages: usize = messages.map(|(elements, ty)| (elements * ty.size()).next_multiple_of(plan.alignment)).sum();
    let tables: usize = units(plan).iter().filter_map(|unit| unit.together.as_ref()).map(Together::bytes).sum();
    of_libraries + tables + messages + bytes_of_feeds(plan)
}
