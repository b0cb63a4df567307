use crate::args::{Common, at_least_one, output_folder};
use crate::commands::compare::interpreter;
use crate::commands::report;
use crate::output::{Table, print};
use anyhow::Context;
use bessemer_bench::compare::suite::{Cell, Choice, Counts, Outcome, Suite};
use bessemer_bench::compare::{self, BatchSize, table};
use bessemer_bench::peers::process::Runner;
use bessemer_bench::peers::{Folders, Peers};
use bessemer_bench::report::Reference;
use bessemer_bench::show;
use bessemer_bench::workload::Mode;
use bessemer_train::StopSignal;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer bench suite --dry-run                              what there is to measure, and how long it takes
  bessemer bench suite --budget 8 --out suite                 what fits into a night; the same command goes on
  bessemer bench suite --models resnet50,bert-base --precision fp32 --budget 2 --out suite
  bessemer bench suite --budget 20 --out suite                measure what was left out as well";

/// Measure everything beside the other frameworks, in one resumable run, and make a report of it
///
/// All models, training and inference, at several batch sizes up to the largest, in each precision, with and without merged
/// operations and clipped gradients, and on several ranks. What matters most is measured first. With --budget there are
/// fewer steps, then fewer repeats, and then things that are left out; a table says so beforehand.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Models [default: one of each family]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "What to measure")]
    pub models: Vec<String>,
    /// What steps do [default: train,infer]
    #[arg(long, value_name = "train|infer", value_delimiter = ',', help_heading = "What to measure")]
    pub modes: Vec<Mode>,
    /// Frameworks, as for `compare` [default: Bessemer and all that are installed]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = "What to measure")]
    pub frameworks: Vec<String>,
    /// Samples in a step, of all models; max is the largest batch that fits [default: each model's own, and max]
    #[arg(long, value_name = "N,...,max", value_delimiter = ',', help_heading = "What to measure")]
    pub batch_size: Vec<BatchSize>,
    /// Numbers of ranks on this machine; 0 for none [default: 2, 4 and so on, up to the number of processors]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "What to measure")]
    pub ranks: Vec<usize>,
    /// Hours for everything [default: as long as it takes]
    #[arg(long, value_name = "HOURS", value_parser = hours, help_heading = "Measurement")]
    pub budget: Option<Duration>,
    /// Steps that do not count, at most [default: 20]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub warmup: Option<usize>,
    /// Steps that count, at most [default: 100]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Measurement")]
    pub steps: Option<usize>,
    /// Rounds, of which the medians are the result, at most [default: 7]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Measurement")]
    pub repeat: Option<usize>,
    /// Seconds after which a process is ended
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = at_least_one, help_heading = "Measurement")]
    pub limit: usize,
    /// Seconds to wait for a quiet machine before each run
    #[arg(long, value_name = "SECONDS", default_value = "60", help_heading = "Measurement")]
    pub patience: u64,
    /// Let other frameworks run in precisions that this processor has in software alone
    #[arg(long, help_heading = "Measurement")]
    pub emulated: bool,
    /// Folder of adapters in place of those that come with the program [default: $BESSEMER_PEERS]
    #[arg(long, value_name = "DIR", help_heading = "Frameworks")]
    pub peers: Option<PathBuf>,
    /// One Python with all frameworks in place of those of `bessemer peers setup`
    #[arg(long, value_name = "FILE", help_heading = "Frameworks")]
    pub python: Option<PathBuf>,
    /// Folder for results, the report, logs and what is needed to go on
    #[arg(long, value_name = "DIR", value_parser = output_folder(), default_value = "suite", help_heading = "Output")]
    pub out: PathBuf,
    /// Put the tables of a publication beside: dlperf or dle
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub reference: Option<Reference>,
    /// Measure again what has a framework that failed
    #[arg(long, help_heading = "Output")]
    pub retry: bool,
    /// Say what would be measured, what would be left out, and how long it would take
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

/// Hours as a number above 0.
fn hours(text: &str) -> Result<Duration, String> {
    let hours: Option<f64> = text.parse().ok().filter(|hours| *hours > 0.0 && *hours <= MOST_HOURS);
    hours
        .map(|hours| Duration::from_secs_f64(hours * 3600.0))
        .ok_or_else(|| "expected hours, such as 8 or 0.5".to_owned())
}

/// A hundred years are enough.
const MOST_HOURS: f64 = 876_000.0;

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    common.only_cpu("bench suite")?;
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let python = options.python.as_ref().map(|path| interpreter(path)).transpose()?;
    let peers = Peers::find(&Folders::of_user(options.peers.clone()), &program, python.as_deref())?;
    let runner = Runner { program, stop: StopSignal::from_system(None)? };
    let settings = compare::Options {
        folder: options.out.clone(),
        device: common.device(),
        seed: common.seed(),
        limit: Duration::from_secs(options.limit as u64),
        patience: Duration::from_secs(options.patience),
        emulated: options.emulated,
        one_variant: false,
        retry: options.retry,
        dry_run: options.dry_run,
    };
    let mut notify = |line: &str| common.notify(line);
    let suite = Suite::plan(&choice(options, common), &peers, &runner, &settings, &mut notify)?;
    print(&plan(suite.cells(), suite.budget()))?;
    if options.dry_run {
        return Ok(());
    }
    let Outcome { results, left_out } = suite.run()?;
    let mut found = Table::new(1, &table::SUMMARY_HEADER);
    table::summary(&results).into_iter().for_each(|line| found.row(line));
    print(&format!("\n{found}"))?;
    if !left_out.is_empty() {
        print(&format!("\nleft out (a larger --budget measures it): {}\n", left_out.join("; ")))?;
    }
    let [html, markdown] = ["report.html", "report.md"].map(|name| options.out.join(name));
    report::write_report(std::slice::from_ref(&options.out), options.reference, Some(&html), Some(&markdown))
}

fn choice(options: &Options, common: &Common) -> Choice {
    fn given<T: Clone>(list: &[T]) -> Option<Vec<T>> {
        (!list.is_empty()).then(|| list.to_vec())
    }
    let several = |ranks: Vec<usize>| ranks.into_iter().filter(|&count| count > 1).collect();
    Choice {
        models: given(&options.models),
        modes: given(&options.modes),
        batch_sizes: given(&options.batch_size),
        frameworks: given(&options.frameworks),
        precisions: common.precision().map(|_| common.precisions()),
        ranks: given(&options.ranks).map(several),
        warmup: options.warmup,
        steps: options.steps,
        repeat: options.repeat,
        budget: options.budget,
    }
}

/// Columns flush left.
const TEXT_COLUMNS: usize = 1;

/// What is measured, in order, and what is not.
fn plan(cells: &[Cell], budget: Option<Duration>) -> String {
    let mut table = Table::new(TEXT_COLUMNS, &["work", "processes", "steps", "repeats", "about"]);
    let (left_out, measured): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(|cell| cell.is_left_out);
    for cell in &measured {
        let Counts { warmup, steps, repeat } = cell.counts;
        let counts = [cell.processes.to_string(), format!("{warmup} + {steps}"), repeat.to_string()];
        table.row([cell.name.clone()].into_iter().chain(counts).chain([show::seconds(cell.seconds)]));
    }
    let sum = |cells: &[&Cell]| show::seconds(cells.iter().map(|cell| cell.seconds).sum());
    let of = budget.map_or_else(String::new, |budget| format!(" of {}", show::seconds(budget.as_secs_f64())));
    let mut text =
        format!("{table}\n{} of {} measured, at a guess {}{of}\n", measured.len(), cells.len(), sum(&measured));
    if !left_out.is_empty() {
        text += &format!("left out, {} more:\n", sum(&left_out));
        left_out.iter().for_each(|cell| text += &format!("  {} ({})\n", cell.name, show::seconds(cell.seconds)));
    }
    text
}
