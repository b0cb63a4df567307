use crate::args::{Common, StepArguments, at_least_one, model, output_folder};
use crate::failure::Usage;
use crate::output::{Table, print};
use anyhow::Context;
use bessemer_bench::compare::{self, BatchSize, Fusion, Part, Plan, Usual, table};
use bessemer_bench::peers::process::Runner;
use bessemer_bench::peers::{Folders, Peers};
use bessemer_bench::workload::Mode;
use bessemer_train::StopSignal;
use bessemer_train::events::BenchResult;
use bessemer_train::tasks::family::InputKind;
use bessemer_train::tasks::registry::ZooModel;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer compare resnet50 --mode train --frameworks bessemer,pytorch --quick
  bessemer compare bert-base --mode infer --frameworks bessemer,onnxruntime,openvino --batch-size 1,16,max --out comparison
  bessemer compare resnet50 --mode train --frameworks bessemer,pytorch+compile --precision fp32,bf16 --fusion both
  bessemer compare resnet50 --mode train --frameworks bessemer,pytorch --batch-size 256 --precision fp16 --device cuda --python python3
  bessemer compare --plan plan.toml --out comparison             the same command goes on after an interruption";

/// Measure other frameworks beside this one: the same work in turn, a fresh process each
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A ResNet for ImageNet, a BERT, an ELECTRA with questions, an EfficientDet, or a Mask R-CNN
    #[arg(value_parser = model, required_unless_present = "plan", conflicts_with = "plan")]
    pub model: Option<ZooModel>,
    /// What a step does: train or infer
    #[arg(long, value_name = "train|infer", required_unless_present = "plan", conflicts_with = "plan")]
    pub mode: Option<Mode>,
    /// Frameworks, each in all its usual forms, or as NAME+FORM in one (see `bessemer peers list`)
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        required_unless_present = "plan",
        conflicts_with = "plan"
    )]
    pub frameworks: Vec<String>,
    /// A file with models, modes, frameworks, batch sizes, precisions and fusion (see docs/comparing.md)
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// A first look in a minute or two: few steps, two rounds, one form of each framework
    #[arg(long, help_heading = "Measurement")]
    pub quick: bool,
    /// Samples in a step; max is the largest batch that fits [default: 8, or 1 with --quick]
    #[arg(
        long,
        value_name = "N,...,max",
        value_delimiter = ',',
        conflicts_with = "plan",
        help_heading = "Measurement"
    )]
    pub batch_size: Vec<BatchSize>,
    /// Forms that merge operations, those that do not, or both [default: the usual ones]
    #[arg(long, value_name = "WHICH", value_enum, conflicts_with = "plan", help_heading = "Measurement")]
    pub fusion: Option<WhichFusion>,
    /// Steps that do not count [default: 20, or 1 with --quick]
    #[arg(long, value_name = "N", conflicts_with = "plan", help_heading = "Measurement")]
    pub warmup: Option<usize>,
    /// Steps that count [default: 100, or 4 with --quick]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "plan", help_heading = "Measurement")]
    pub steps: Option<usize>,
    /// Rounds, of which the medians are the result [default: 7, or 2 with --quick]
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "plan", help_heading = "Measurement")]
    pub repeat: Option<usize>,
    /// Seconds after which a process is ended [default: 3600, or 120 with --quick]
    #[arg(long, value_name = "SECONDS", value_parser = at_least_one, help_heading = "Measurement")]
    pub limit: Option<usize>,
    /// Seconds to wait for a quiet machine before each run [default: 60, or 2 with --quick]
    #[arg(long, value_name = "SECONDS", help_heading = "Measurement")]
    pub patience: Option<u64>,
    /// Let other frameworks run in precisions that this processor has in software alone
    #[arg(long, help_heading = "Measurement")]
    pub emulated: bool,
    #[command(flatten)]
    pub settings: StepArguments,
    /// Folder of adapters in place of those that come with the program [default: $BESSEMER_PEERS]
    #[arg(long, value_name = "DIR", help_heading = "Frameworks")]
    pub peers: Option<PathBuf>,
    /// One Python with all frameworks in place of those of `bessemer peers setup`
    #[arg(long, value_name = "FILE", help_heading = "Frameworks")]
    pub python: Option<PathBuf>,
    /// Folder for results, logs and what is needed to go on
    #[arg(long, value_name = "DIR", value_parser = output_folder(), default_value = "comparison", help_heading = "Output")]
    pub out: PathBuf,
    /// Measure again what has a framework that failed
    #[arg(long, help_heading = "Output")]
    pub retry: bool,
    /// Say what would be measured and how long it would take
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WhichFusion {
    On,
    Off,
    Both,
}

/// Columns flush left.
const TEXT_COLUMNS: usize = 1;

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let usual = if options.quick { Usual::QUICK } else { Usual::FULL };
    let groups = plan(options, common)?.groups(&usual)?;
    let program = std::env::current_exe().context("this program's own path is not known")?;
    let python = options.python.as_ref().map(|path| interpreter(path)).transpose()?;
    let peers = Peers::find(&Folders::of_user(options.peers.clone()), &program, python.as_deref())?;
    let runner = Runner { program, stop: StopSignal::from_system(None)? };
    let [limit, patience] = if options.quick { [120, 2] } else { [3600, 60] };
    let settings = compare::Options {
        folder: options.out.clone(),
        device: common.device(),
        seed: common.seed(),
        limit: Duration::from_secs(options.limit.map_or(limit, |limit| limit as u64)),
        patience: Duration::from_secs(options.patience.unwrap_or(patience)),
        emulated: options.emulated,
        one_variant: options.quick,
        retry: options.retry,
        dry_run: options.dry_run,
    };
    let results = compare::run(&groups, &peers, &runner, &settings, &mut |line| common.notify(line))?;
    if options.dry_run {
        return Ok(());
    }
    print(&text(&results))?;
    print(&format!("results   {}\n", options.out.join("results.jsonl").display()))
}

/// What the command line or the file says.
fn plan(options: &Options, common: &Common) -> anyhow::Result<Plan> {
    if let Some(path) = &options.plan {
        let StepArguments { sequence_length, predictions, dropout, no_clip, accumulation, outputs } = &options.settings;
        let is_size_given = sequence_length.is_some() || predictions.is_some();
        let is_given = is_size_given || dropout.is_some() || *no_clip || outputs.is_some();
        if is_given || *accumulation > 1 || common.precision().is_some() {
            let problem = "with --plan, settings of steps and precisions are those of the file";
            return Err(Usage(problem.to_owned()).into());
        }
        return Ok(Plan::load(path)?);
    }
    let model = options.model.context("a model is required")?;
    if options.settings.accumulation > 1 {
        return Err(Usage("--accumulation: other frameworks are compared with one batch a step".to_owned()).into());
    }
    let settings = options.settings.settings(model)?;
    let is_text = model.family().input() != InputKind::Images;
    let list = |values: &[BatchSize]| (!values.is_empty()).then(|| values.to_vec());
    let part = Part {
        models: Some(vec![model.name().to_owned()]),
        modes: options.mode.map(|mode| vec![mode]),
        frameworks: Some(options.frameworks.clone()),
        batch_sizes: list(&options.batch_size),
        precisions: Some(common.precisions()),
        fusion: options.fusion.map(|which| match which {
            WhichFusion::On => vec![Fusion::On],
            WhichFusion::Off => vec![Fusion::Off],
            WhichFusion::Both => vec![Fusion::On, Fusion::Off],
        }),
        warmup: options.warmup,
        steps: options.steps,
        repeat: options.repeat,
        sequence_length: is_text.then_some(settings.sequence_length),
        predictions: is_text.then_some(settings.predictions),
        dropout: is_text.then_some(settings.dropout),
        clip: Some(settings.clip),
        outputs: options.settings.outputs.map(|outputs| vec![outputs]),
    };
    Ok(Plan { common: part, parts: Vec::new() })
}

/// A path to a Python as it is found from everywhere.
pub(super) fn interpreter(path: &std::path::Path) -> anyhow::Result<PathBuf> {
    if path.components().count() == 1 {
        return Ok(path.to_owned());
    }
    // Links stay: an environment is known by the path of its interpreter.
    let absolute = std::path::absolute(path)?;
    if absolute.is_file() {
        Ok(absolute)
    } else {
        Err(Usage(format!("{}: there is no such file", path.display())).into())
    }
}

fn text(results: &[BenchResult]) -> String {
    let mut text = String::new();
    for group in table::tables(results) {
        let mut table = Table::new(TEXT_COLUMNS, &table::HEADER);
        group.rows.iter().for_each(|row| table.row(row.cells()));
        text += &format!("{}\n{table}", group.title);
        for (index, note) in group.notes.iter().enumerate() {
            text += &format!("[{}] {note}\n", index + 1);
        }
        text.push('\n');
    }
    text + &table::method(results) + "\n"
}
