use crate::args::{Common, StepArguments, at_least_one, model, sentence};
use crate::names;
use crate::output::{Table, print, print_json};
use bessemer_bench::explain::{Explanation, Request, explain, graph_after, pass_names};
use bessemer_bench::machine::available_memory;
use bessemer_bench::show;
use bessemer_bench::workload::Mode;
use bessemer_train::tasks::metric_schema;
use bessemer_train::tasks::registry::ZooModel;
use clap::Args;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer explain resnet50 --batch-size 32
  bessemer explain bert-base --batch-size 8 --sequence-length 512
  bessemer explain resnet20-cifar --after fuse        the graph that the pass leaves";

/// Show what a step costs without running it: kernels, FLOPs, bytes, peak memory, the largest batch that fits
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
    /// Compile op by op
    #[arg(long, help_heading = "Step")]
    pub no_fuse: bool,
    /// Print the graph after this pass instead: autodiff, simplify, fold, precision, recompute, prologue,
    /// fuse or schedule
    #[arg(long, value_name = "PASS", value_parser = pass, help_heading = "Output")]
    pub after: Option<Pass>,
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
    let known = pass_names().iter().copied();
    known.clone().find(|known| *known == name).map(Pass::Named).ok_or_else(|| {
        let all: Vec<&str> = std::iter::once(AUTODIFF).chain(known).collect();
        format!("no such pass{} there are {}", sentence(&names::hint(name, all.iter().copied())), all.join(", "))
    })
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let request = Request {
        model: options.model.name().to_owned(),
        mode: options.mode,
        batch_size: options.batch_size,
        settings: options.step.settings(options.model)?,
        compile: common.compile(!options.no_fuse),
        device: common.device(),
        memory_bytes: available_memory().unwrap_or(u64::MAX),
    };
    match options.after {
        Some(Pass::Autodiff) => print(&graph_after(&request, None)?),
        Some(Pass::Named(pass)) => print(&graph_after(&request, Some(pass))?),
        None if options.json => print_json(&explain(&request)?),
        None => print(&text(&explain(&request)?)),
    }
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
         memory  {} (parameters and state {})\n\n{memory}\n\
         largest batch in the {} that are free  {largest}\n\ncompiled for {device}: {rules}\n",
        mode.name(),
        explanation.parameters,
        show::bytes(explanation.peak_bytes as u64),
        show::bytes(explanation.persistent_bytes as u64),
        show::bytes(explanation.memory_bytes),
    )
}
