use crate::args::{Common, SharedStep, StepArguments, at_least_one, model, sentence};
use crate::failure::{Usage, named};
use crate::names;
use crate::output::{Table, print, print_json};
use bessemer_bench::explain::{Explanation, Request, explain, graph_after};
use bessemer_bench::machine::available_memory;
use bessemer_bench::show;
use bessemer_bench::simulator::{Scaling, ScalingRow, ScalingTable, StepProfile, scaling};
use bessemer_bench::workload::Mode;
use bessemer_cuda::sheet::{FamilyUse, FusedProducts, PlainLowering, Prediction, Reached, Sheet};
use bessemer_ir::passes::pass_names;
use bessemer_train::DeviceKind;
use bessemer_train::tasks::registry::ZooModel;
use bessemer_train::tasks::{MetricSchema, metric_schema};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer explain resnet50 --batch-size 32
  bessemer explain bert-base --batch-size 64 --sequence-length 512 --precision bf16 --device cuda --sheet h100      for a GPU, which need not be there
  bessemer explain bert-base --device cuda --sheet a100 --print-sheet > mine.toml      what is known of a GPU, as a file to edit, for --sheet mine.toml
  bessemer explain resnet20-cifar --after fuse        the graph that the pass leaves
  bessemer explain bert-base --batch-size 32 --cluster v100x8-ib100      training on several devices, simulated
  bessemer explain resnet50 --batch-size 4 --cluster h200x8 --nodes 2,4 --norms-over all --overlap off";

/// Show what a step costs without running it: kernels, FLOPs, bytes, peak memory, the largest batch that fits; or how it
/// scales over a cluster
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A model of the zoo
    #[arg(value_parser = model)]
    pub model: ZooModel,
    /// What the step does: train or infer
    #[arg(long, default_value = "train", help_heading = "Step")]
    pub mode: Mode,
    /// Samples in a step, or in a micro-batch of it
    #[arg(long, value_name = "N", default_value = "8", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Step")]
    pub batch_size: usize,
    #[command(flatten)]
    pub step: StepArguments,
    #[command(flatten)]
    pub shared: SharedStep,
    /// Compile op by op
    #[arg(long, help_heading = "Step")]
    pub no_fuse: bool,
    /// Print the graph after this pass instead: autodiff, simplify, fold, precision, widen, limits, recompute, masks,
    /// filters, prologue, chain, fuse, factors, buckets or schedule
    #[arg(long, value_name = "PASS", value_parser = pass, help_heading = "Output")]
    pub after: Option<Pass>,
    /// Simulate training on a cluster instead, each rank on its own batch: h200x8, a100x8, v100x8, v100x8-ib100, v100x16,
    /// cpu-1g, or a TOML file
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "after", help_heading = "Cluster")]
    pub cluster: Option<String>,
    /// Numbers of nodes [default: powers of two up to those of the cluster]
    #[arg(long, value_name = "N,...", value_delimiter = ',', allow_negative_numbers = true, value_parser = at_least_one,
          requires = "cluster", help_heading = "Cluster")]
    pub nodes: Vec<usize>,
    /// Times of kernels as measured by bench train --step-profile [default: an estimate by the limits of the device]
    #[arg(long, value_name = "FILE", requires = "cluster", help_heading = "Cluster")]
    pub profile: Option<PathBuf>,
    /// Samples per second that the input of a node delivers [default: no limit]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = input_rate, requires = "cluster",
          help_heading = "Cluster")]
    pub input_rate: Option<f64>,
    /// The GPU for which the time of a step is predicted: h200, h100, a100, or a TOML file [default: h200, where --device is
    /// a GPU]
    #[arg(long, value_name = "NAME|FILE", conflicts_with_all = ["cluster", "after"], help_heading = "Output")]
    pub sheet: Option<String>,
    /// Print that description of a GPU instead, to begin one of another GPU from
    #[arg(long, conflicts_with_all = ["cluster", "after", "json"], help_heading = "Output")]
    pub print_sheet: bool,
    /// Print JSON instead of tables
    #[arg(long, conflicts_with = "after", help_heading = "Output")]
    pub json: bool,
}

/// A stage of the graph; the first is the graph as it was built, with its backward half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    Autodiff,
    Named(&'static str),
}

const AUTODIFF: &str = "autodiff";

fn pass(name: &str) -> Result<Pass, String> {
    if name == AUTODIFF {
        return Ok(Pass::Autodiff);
    }
    let known = pass_names();
    known.clone().find(|known| *known == name).map(Pass::Named).ok_or_else(|| {
        let all: Vec<&str> = std::iter::once(AUTODIFF).chain(known).collect();
        format!("no such pass{} there are {}", sentence(&names::hint(name, all.iter().copied())), all.join(", "))
    })
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let name = options.model.name();
    let sheet = match common.device_kind() {
        DeviceKind::Cuda { .. } => Some(Sheet::find(options.sheet.as_deref().unwrap_or(Sheet::DEFAULT))?),
        DeviceKind::Cpu => None,
    };
    let given = [("--sheet", options.sheet.is_some()), ("--print-sheet", options.print_sheet)];
    if let (None, Some((option, _))) = (&sheet, given.into_iter().find(|(_, given)| *given)) {
        return Err(Usage(format!("{option} is for --device cuda")).into());
    }
    if let Some(sheet) = sheet.as_ref().filter(|_| options.print_sheet) {
        return print(&sheet.text);
    }
    if options.cluster.is_none() {
        options.shared.refuse("--cluster")?;
    }
    if options.profile.is_some() && (options.shared.norms_over.is_some() || options.shared.means_over.is_some()) {
        let problem =
            "--norms-over and --means-over were options of bench train --step-profile, which wrote the profile";
        return Err(Usage(problem.to_owned()).into());
    }
    let mut compile = common.compile(!options.no_fuse);
    compile.buckets.overlap = options.shared.overlaps();
    let request = Request {
        model: options.model.name().to_owned(),
        mode: options.mode,
        batch_size: options.batch_size,
        settings: options.shared.settings(options.step.settings(options.model)?),
        compile,
        device: common.device(),
        memory_bytes: sheet.as_ref().map_or_else(|| available_memory().unwrap_or(u64::MAX), Sheet::free_bytes),
        sheet,
    };
    if let Some(cluster) = &options.cluster {
        return scale(options, request, cluster).map_err(|error| named(error, name));
    }
    match options.after {
        Some(Pass::Autodiff) => print(&graph_after(&request, None)?),
        Some(Pass::Named(pass)) => print(&graph_after(&request, Some(pass))?),
        None => {
            let explanation = explain(&request).map_err(|error| named(error, name))?;
            if options.json { print_json(&explanation) } else { print(&text(&explanation)) }
        }
    }
}

fn input_rate(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

/// Simulates training on a cluster.
fn scale(options: &Options, request: Request, cluster: &str) -> anyhow::Result<()> {
    if options.mode != Mode::Train {
        return Err(Usage("--cluster simulates training; --mode must be train".to_owned()).into());
    }
    let profile = options.profile.as_deref().map(StepProfile::read).transpose()?;
    let (cluster, nodes) = (cluster.to_owned(), options.nodes.clone());
    let table = scaling(&Scaling { request, cluster, nodes, profile, input_rate: options.input_rate })?;
    if options.json { print_json(&table) } else { print(&scaling_text(&table)) }
}

fn scaling_text(table: &ScalingTable) -> String {
    let MetricSchema { samples, unit, .. } = metric_schema(&table.model);
    let header = [
        "nodes x devices",
        "binds",
        "step ms",
        unit,
        "speed-up",
        "efficiency",
        "exposed ms",
        "of step",
        "buckets",
        "best ms",
    ];
    let mut rows = Table::new(2, &header);
    for ScalingRow { outcome, buckets, shortest_seconds } in &table.rows {
        rows.row([
            format!("{} x {}", outcome.ranks.nodes, outcome.ranks.devices),
            outcome.binds.name().to_owned(),
            show::significant(outcome.step_seconds * 1e3, 4),
            show::significant(outcome.throughput, 4),
            format!("{:.2}", outcome.speed_up),
            show::percent(outcome.efficiency),
            show::significant(outcome.exposed_seconds * 1e3, 3),
            show::percent(outcome.exposed_seconds / outcome.step_seconds),
            buckets.to_string(),
            show::significant(shortest_seconds * 1e3, 4),
        ]);
    }
    let kernels = match &table.estimated_for {
        Some(device) => format!("kernels by the roofline of {device}, which real ones do not reach"),
        None => "kernels as measured".to_owned(),
    };
    let sums = match table.micro_batch_sums {
        0 => String::new(),
        sums => format!(", {sums} sums that micro-batches wait for"),
    };
    let overlap = if table.overlap { "" } else { ", without overlap" };
    format!(
        "{}, simulated training of {} {samples} a rank, gradients of {}{sums}{overlap}\n{}: {}\n{kernels}\n\n{rows}",
        table.model,
        table.samples,
        show::bytes(table.gradient_bytes),
        table.cluster,
        table.description,
    )
}

/// The launches of a step on a GPU, and why they are not better ones.
fn predicted_text(prediction: &Prediction) -> String {
    let Prediction { sheet, product, source, families, all, arena_bytes, scratch_bytes, fused, plain, .. } = prediction;
    let measured = prediction.measured_seconds / all.seconds.max(f64::MIN_POSITIVE);
    let mut launches = Table::new(3, &["predicted", "mostly", "at", "launches", "GFLOP", "MB", "ms"]);
    let row = |name: &str, FamilyUse { launches, flops, bytes, seconds, bound, reached }: FamilyUse| {
        let [gflop, mb] = [flops as f64 / 1e9, bytes as f64 / 1e6];
        let at = reached.map(|Reached { share, origin }| format!("{}, {}", show::percent(share), origin.name()));
        [
            name.to_owned(),
            bound.name().to_owned(),
            at.unwrap_or_default(),
            launches.to_string(),
            format!("{gflop:.3}"),
            format!("{mb:.1}"),
            format!("{:.3}", seconds * 1e3),
        ]
    };
    families.iter().for_each(|(name, family)| launches.row(row(name, *family)));
    launches.row(row("all", *all));
    let mut with = Table::new(1, &["in a product's pass", "nodes"]);
    fused.iter().for_each(|FusedProducts { what, nodes }| with.row([(*what).to_owned(), nodes.to_string()]));
    let with = if fused.is_empty() { String::new() } else { format!("{with}\n") };
    let mut slow = Table::new(2, &["in a plain form", "for example", "nodes"]);
    for PlainLowering { reason, nodes, example } in plain {
        slow.row([reason.clone(), example.clone(), nodes.to_string()]);
    }
    let slow = if plain.is_empty() { String::new() } else { format!("{slow}\n") };
    format!(
        "a step on {product}, predicted: {} ms, {} of that by efficiencies that were measured; arena {}, beside it at most {}\n\
         sheet {sheet}: {source}\n\n{launches}\n{with}{slow}",
        show::significant(all.seconds * 1e3, 3),
        show::percent(measured),
        show::bytes(*arena_bytes as u64),
        show::bytes(*scratch_bytes as u64),
    )
}

/// What such a step was designed for, beside what is predicted.
fn target_text(explanation: &Explanation) -> String {
    let (Some(target), Some(predicted)) = (&explanation.target, &explanation.predicted) else { return String::new() };
    let samples = metric_schema(&explanation.model).samples;
    let batch = explanation.batch_size as f64 * explanation.accumulation as f64;
    format!(
        "designed for {} ms with {} {samples}, {} a second (at least {}, aim {}), an estimate; predicted here: {} a second\n\n",
        show::significant(target.milliseconds, 3),
        target.batch_size,
        show::significant(target.throughput(), 3),
        target.least,
        target.aim,
        show::significant(batch / predicted.all.seconds, 3),
    )
}

fn text(explanation: &Explanation) -> String {
    let mut kernels = Table::new(1, &["kernel", "calls", "GFLOP", "MB"]);
    let row = |name: &str, calls: usize, flops: u64, bytes: u64| {
        [name.to_owned(), calls.to_string(), format!("{:.3}", flops as f64 / 1e9), format!("{:.1}", bytes as f64 / 1e6)]
    };
    let mut uses: Vec<_> = explanation.kernels.iter().collect();
    uses.sort_by_key(|(name, kernel)| (std::cmp::Reverse(kernel.flops), **name));
    for (name, kernel) in &uses {
        kernels.row(row(name, kernel.calls, kernel.flops, kernel.bytes));
    }
    let calls = uses.iter().map(|(_, kernel)| kernel.calls).sum();
    kernels.row(row("all", calls, explanation.flops, explanation.bytes));

    let mut missed = Table::new(3, &["nearly fused", "because", "for example", "calls"]);
    for near in &explanation.near_misses {
        missed.row([near.op.to_owned(), near.reason.clone(), near.example.clone(), near.calls.to_string()]);
    }
    let missed = if explanation.near_misses.is_empty() { String::new() } else { format!("{missed}\n") };

    let mut memory = Table::new(1, &["at the fullest moment", "MB"]);
    for resident in &explanation.peak {
        memory.row([resident.name.clone(), format!("{:.1}", resident.bytes as f64 / 1e6)]);
    }
    let Explanation { model, mode, batch_size, accumulation, device, .. } = explanation;
    let predicted = explanation.predicted.as_ref().map_or_else(String::new, predicted_text);
    let target = target_text(explanation);
    let memory_of = match &explanation.predicted {
        Some(Prediction { product, .. }) => format!("that {product} has for plans"),
        None => "that are free".to_owned(),
    };
    let rules: Vec<String> = explanation.rules.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let rules = rules.join("; ");
    let samples = metric_schema(model).samples;
    let times = if *accumulation > 1 { format!("{accumulation} times ") } else { String::new() };
    let fused = if explanation.fused { "fused" } else { "op by op" };
    let largest = match explanation.largest_batch {
        Some(batch) => format!("{batch} {}", metric_schema(&explanation.model).samples),
        None => "none, not even a single one".to_owned(),
    };
    format!(
        "{model}, {} of {times}{batch_size} {samples}, {fused}: {} parameters\n\n{kernels}\n{missed}\
         {target}{predicted}memory  {} (parameters and state {})\n\n{memory}\n\
         largest batch in the {} {memory_of}  {largest}\n\ncompiled for {device}: {rules}\n",
        mode.name(),
        explanation.parameters,
        show::bytes(explanation.peak_bytes as u64),
        show::bytes(explanation.persistent_bytes as u64),
        show::bytes(explanation.memory_bytes),
    )
}
