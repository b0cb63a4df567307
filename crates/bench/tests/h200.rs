//! The efficiencies of the built-in sheet of an H200 are those of the profiles that were taken on one.

use bessemer_bench::workload::{Mode, Work};
use bessemer_cuda::CudaTarget;
use bessemer_cuda::sheet::{Bound, Family, Launch, Origin, Sheet, launches};
use bessemer_ir::ops::RecomputeCost;
use bessemer_ir::ops::fusion::FusionOutput;
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{LoweredKernel, Plan, Refusal, Target, kernel_name, node_cost};
use bessemer_ir::rules::Rules;
use bessemer_ir::{DType, Graph, NodeId};
use bessemer_train::tasks::registry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The target with what fusions computed again when the profiles were taken.
struct AsMeasured;

impl Target for AsMeasured {
    fn name(&self) -> &str {
        CudaTarget.name()
    }

    fn rules(&self) -> &Rules {
        const RULES: Rules = Rules { cheaper_than_memory: RecomputeCost::Arithmetic, ..CudaTarget::RULES };
        &RULES
    }

    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        CudaTarget.lower(graph, node, invariant)
    }
}

/// Milliseconds that the events around a call of a profile add: `broadcast` of BERT-base and `decode_boxes` of Mask R-CNN, which move
/// next to nothing, took 0.007.
const EVENTS_MS: f64 = 0.006;

/// By how much FLOPs of the same work may differ: a few small fusions have changed.
const SAME_WORK: f64 = 0.01;

/// By how much a share in the sheet may differ from that in the profiles.
const TOLERANCE: f64 = 0.03;

/// By how much a predicted step may differ from the measured one.
const STEP_TOLERANCE: f64 = 0.1;

/// A file of `bench --profile`, and what of it is by kernels as they still are.
struct Profile {
    file: &'static str,
    model: &'static str,
    mode: Mode,
    batch_size: usize,
    precision: DType,
    tf32: bool,
    /// Whether that program did something in the pass of products.
    epilogues: bool,
    /// Kinds of kernels whose calls are taken together.
    kinds: &'static [&'static [&'static str]],
    /// Whether a call among the longest is taken, by its path and by what computed it.
    is_taken: fn(&str, &str) -> bool,
    /// Whether all of its kernels do the same work still, so that the step's time is one to predict.
    is_whole: bool,
}

/// A profile of training of which the step, whole, is taken, and no kind of kernels.
const fn step(file: &'static str, model: &'static str, batch_size: usize, precision: DType) -> Profile {
    Profile {
        file,
        model,
        mode: Mode::Train,
        batch_size,
        precision,
        tf32: false,
        epilogues: true,
        kinds: &[],
        is_taken: |_, _| false,
        is_whole: true,
    }
}

const TEXT_KINDS: [&[&str]; 9] = [
    &["matmul", "matmul+fusion"],
    &["attention"],
    &["attention_grad"],
    &["fusion"],
    &["gather"],
    &["scatter_add"],
    &["pad"],
    &["slice"],
    &["arg_max"],
];

/// Kinds with calls of all sizes are taken where launching them one by one does not take longer than they run. That is so for small
/// convolutions, of which the longest calls are taken. The profiles of detectors are by a program with other kernels of fusions, of
/// features of regions, of depthwise convolutions, of suppression and of top-k. Norms of gradients were parts of the nodes of products then.
const PROFILES: [Profile; 10] = [
    Profile {
        file: "resnet50-train.txt",
        model: "resnet50",
        mode: Mode::Train,
        batch_size: 256,
        precision: DType::F16,
        tf32: false,
        epilogues: false,
        kinds: &[&["fusion"], &["max_pool2d"]],
        is_taken: |_, _| true,
        is_whole: true,
    },
    Profile {
        file: "resnet50-infer.txt",
        model: "resnet50",
        mode: Mode::Infer,
        batch_size: 256,
        precision: DType::F16,
        tf32: false,
        epilogues: false,
        kinds: &[],
        is_taken: |_, _| true,
        is_whole: false,
    },
    Profile {
        file: "bert-base-train.txt",
        model: "bert-base",
        mode: Mode::Train,
        batch_size: 256,
        precision: DType::Bf16,
        tf32: false,
        epilogues: true,
        kinds: TEXT_KINDS.split_at(8).0,
        is_taken: |_, how| !how.contains("attention"),
        is_whole: true,
    },
    Profile {
        file: "electra-base-train.txt",
        model: "electra-base",
        mode: Mode::Train,
        batch_size: 128,
        precision: DType::Bf16,
        tf32: false,
        epilogues: true,
        kinds: &TEXT_KINDS,
        is_taken: |_, how| !how.contains("attention"),
        is_whole: true,
    },
    Profile {
        file: "mask-rcnn-train.txt",
        model: "mask-rcnn",
        mode: Mode::Train,
        batch_size: 4,
        precision: DType::F16,
        tf32: false,
        epilogues: false,
        kinds: &[&["match_boxes", "encode_boxes", "decode_boxes"]],
        // Those of the masks' heads copied their operands first.
        is_taken: |path, how| how == "convolution by cuDNN" && !path.contains("mask"),
        is_whole: false,
    },
    Profile {
        file: "efficientdet-d0-train.txt",
        model: "efficientdet-d0",
        mode: Mode::Train,
        batch_size: 32,
        precision: DType::F16,
        tf32: false,
        epilogues: false,
        kinds: &[&["match_boxes", "encode_boxes"]],
        is_taken: |_, _| false,
        is_whole: false,
    },
    Profile { tf32: true, epilogues: false, ..step("resnet50-tf32.txt", "resnet50", 256, DType::F32) },
    Profile { kinds: &[&["max_pool2d_grad"]], ..step("resnet50-train-fused.txt", "resnet50", 256, DType::F16) },
    step("bert-base-train-tuned.txt", "bert-base", 256, DType::Bf16),
    Profile {
        // Its plan had a third more launches.
        is_whole: false,
        ..step("efficientdet-d0-train-fused.txt", "efficientdet-d0", 32, DType::F16)
    },
];

/// Calls of a profile: some kinds of kernels, or one call.
struct Line {
    name: String,
    milliseconds: f64,
    gflops: f64,
    /// As printed: a GFLOP/s has one decimal.
    gflops_error: f64,
    calls: usize,
    /// Path and output of one call, and what computed it.
    call: Option<(String, String)>,
}

impl Line {
    fn new(name: &str, calls: &str, [milliseconds, rate]: [&str; 2], call: Option<(String, String)>) -> Line {
        let [milliseconds, rate] = [milliseconds, rate].map(|text| text.parse::<f64>().unwrap());
        let [gflops, gflops_error] = [rate, 0.05].map(|rate| rate * milliseconds / 1e3);
        Line { name: name.to_owned(), milliseconds, gflops, gflops_error, calls: calls.parse().unwrap(), call }
    }
}

/// Of a type as it is printed, `f32[7, 7, 3, 64]`.
fn elements(ty: &str) -> usize {
    let sizes = ty.split_once('[').and_then(|(_, sizes)| sizes.strip_suffix(']')).expect("a type has sizes");
    sizes.split(", ").filter(|size| !size.is_empty()).map(|size| size.parse::<usize>().expect("a size")).product()
}

/// What a file of `bench --profile` says: the step, kinds of kernels and the longest calls.
fn read(file: &str) -> (f64, Vec<Line>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports/gpu/h200").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut step, mut lines) = (None, Vec::new());
    for line in text.lines() {
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&columns[..], &words[..]) {
            ([call, how, milliseconds, _, rate], _) if call.contains('[') => {
                let computed = Some(((*call).to_owned(), (*how).to_owned()));
                lines.push(Line::new(call, "1", [milliseconds, rate], computed));
            }
            (_, [kind, calls, milliseconds, _, "%", rate]) if line.starts_with("  ") => {
                lines.push(Line::new(kind, calls, [milliseconds, rate], None));
            }
            (_, [_, _, _, "yes", _, _, "%", _, "%", milliseconds, ..]) => step = milliseconds.parse().ok(),
            _ => {}
        }
    }
    (step.expect("a line with the step's time"), lines)
}

/// The plan for such a step by the present program, and its launches.
struct Planned {
    plan: Plan,
    launches: Vec<Launch>,
}

impl Planned {
    fn of(profile: &Profile) -> Planned {
        let Profile { model, mode, batch_size, precision, tf32, .. } = *profile;
        let settings = registry::find(model).unwrap().family().usual_step(None);
        let work = Work { model, mode, batch_size, precision, settings }.build().unwrap();
        let options = CompileOptions { precision, tf32, ..CompileOptions::default() };
        let plan = compile(&work.graph, &AsMeasured, &options).unwrap();
        let launches = launches(&plan, profile.epilogues);
        Planned { plan, launches }
    }

    /// The launches of nodes, if these have as many FLOPs as a line of a profile, or none and are as many.
    fn same_work(&self, line: &Line, nodes: &BTreeSet<NodeId>) -> Option<Observed> {
        let flops: u64 = nodes.iter().map(|&node| node_cost(&self.plan.graph, node).flops).sum();
        let gflops = flops as f64 / 1e9;
        let is_as_much = (gflops - line.gflops).abs() <= SAME_WORK * gflops + line.gflops_error;
        let is_same = is_as_much && (flops > 0 || nodes.len() == line.calls);
        let own = self.launches.iter().filter(|launch| launch.node.is_some_and(|node| nodes.contains(&node)));
        let launches: Vec<Launch> = own.copied().collect();
        let timed: BTreeSet<Option<NodeId>> = launches.iter().map(|launch| launch.node).collect();
        let milliseconds = line.milliseconds - EVENTS_MS * timed.len() as f64;
        let apart = nodes.iter().map(|&node| finished_apart(&self.plan.graph, node)).sum();
        is_same.then(|| Observed { name: line.name.clone(), milliseconds, launches, apart })
    }

    fn nodes(&self, is_own: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
        self.plan.calls.iter().map(|call| call.node).filter(|&node| is_own(node)).collect()
    }

    /// Of the kinds that a profile is taken for, and of those of its longest calls.
    fn observed(&self, profile: &Profile, lines: &[Line]) -> Vec<Observed> {
        let graph = &self.plan.graph;
        let mut observed = Vec::new();
        for kinds in profile.kinds {
            let own = lines.iter().filter(|line| line.call.is_none() && kinds.contains(&line.name.as_str()));
            let mut all = Line::new(&kinds.join(", "), "0", ["0"; 2], None);
            for line in own {
                all.milliseconds += line.milliseconds;
                all.gflops += line.gflops;
                all.gflops_error += line.gflops_error;
                all.calls += line.calls;
            }
            let nodes = self.nodes(|node| kinds.contains(&kernel_name(graph, node)));
            let found = self.same_work(&all, &nodes);
            observed.push(found.unwrap_or_else(|| panic!("{}: {kinds:?} do other work", profile.file)));
        }
        for line in lines {
            let Some((call, how)) = line.call.as_ref().filter(|(path, how)| (profile.is_taken)(path, how)) else {
                continue;
            };
            // Gradients of weights were f32, with their axes in another order.
            let (path, ty) = call.split_once(' ').expect("a path and a type");
            let is_own =
                |node| graph.path(node) == path && graph.node(node).outputs[0].shape.elements() == elements(ty);
            let nodes = self.nodes(is_own);
            let found = nodes.into_iter().find_map(|node| self.same_work(line, &BTreeSet::from([node])));
            observed.push(found.unwrap_or_else(|| panic!("{}: {call}, by {how}, does other work", profile.file)));
        }
        observed
    }
}

/// Launches, and the time that they took without the events around them.
struct Observed {
    name: String,
    milliseconds: f64,
    launches: Vec<Launch>,
    /// Launches that there were beside these.
    apart: usize,
}

/// By how many launches a fusion has fewer than when the profiles were taken, where each sum over rows was finished by a launch; now one
/// finishes all sums of as many runs of rows.
fn finished_apart(graph: &Graph, node: NodeId) -> usize {
    let Some(fusion) = graph.node(node).op.as_fusion().filter(|fusion| fusion.cols > 1) else { return 0 };
    let groups = fusion.outputs.iter().filter_map(|output| match output {
        FusionOutput::Sum { groups, .. } => Some(*groups),
        _ => None,
    });
    let groups: Vec<usize> = groups.collect();
    groups.len() - groups.iter().collect::<BTreeSet<_>>().len()
}

impl Observed {
    /// What most of the time is predicted for, the time of that work at its whole limit, and the time that it took if all else took
    /// what is predicted.
    fn share(&self, sheet: &Sheet) -> ((Family, Bound), [f64; 2]) {
        let mut parts: BTreeMap<(Family, Bound), f64> = BTreeMap::new();
        for launch in &self.launches {
            let (bound, seconds) = sheet.work(launch);
            *parts.entry((launch.family, bound)).or_default() += seconds * 1e3;
        }
        let all: f64 = parts.values().sum();
        let (&key, &own) = parts.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap();
        let launched = (self.launches.len() + self.apart) as f64 * sheet.launch_seconds() * 1e3;
        let rest = all - own + launched;
        (key, [own * sheet.reached(key.0, key.1).share, self.milliseconds - rest])
    }
}

/// What the sheet says is measured is what the profiles give, and the other way round. Each line of a profile is one of the kind that
/// most of its time is predicted for, less what the sheet says of all else.
#[test]
fn efficiencies_of_the_h200_are_those_of_its_profiles() {
    let sheet = Sheet::usual();
    let mut pooled: BTreeMap<(Family, Bound), [f64; 2]> = BTreeMap::new();
    for profile in &PROFILES {
        let (_, lines) = read(profile.file);
        for observed in Planned::of(profile).observed(profile, &lines) {
            let (key, [at_limit, taken]) = observed.share(&sheet);
            println!("{:?} {}: {} {:.3}", key, profile.file, observed.name, at_limit / taken);
            let sums = pooled.entry(key).or_default();
            *sums = [sums[0] + at_limit, sums[1] + taken];
        }
    }
    for family in Family::ALL {
        for bound in [Bound::Arithmetic, Bound::Memory] {
            let in_sheet = sheet.reached(family, bound);
            if bound == Bound::Arithmetic && in_sheet == sheet.reached(family, Bound::Memory) {
                // It has no products.
                continue;
            }
            let Some([at_limit, taken]) = pooled.get(&(family, bound)) else {
                assert_ne!(in_sheet.origin, Origin::Measured, "{family:?}, {bound:?}: no profile has it");
                continue;
            };
            let share = at_limit / taken;
            println!("{family:?}, {bound:?}: {share:.3}, in the sheet {}", in_sheet.share);
            assert_eq!(in_sheet.origin, Origin::Measured, "{family:?}, {bound:?}");
            assert!((in_sheet.share / share - 1.0).abs() < TOLERANCE, "{family:?}, {bound:?}: {share}, {in_sheet:?}");
        }
    }
}

/// Steps whose kernels, all together, still do the same work.
#[test]
fn steps_of_the_h200_are_predicted() {
    let sheet = Sheet::usual();
    for profile in PROFILES.iter().filter(|profile| profile.is_whole) {
        let (measured, _) = read(profile.file);
        let predicted = sheet.predict(&Planned::of(profile).plan, 1, profile.epilogues);
        let milliseconds = predicted.all.seconds * 1e3;
        let ratio = milliseconds / measured;
        println!("{}: {milliseconds:.1} ms predicted, {measured:.1} measured", profile.file);
        assert!((ratio - 1.0).abs() < STEP_TOLERANCE, "{}: {ratio}", profile.file);
    }
}
