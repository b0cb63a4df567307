use super::{command_line, seeds};
use crate::args::{Common, at_least_one, locate, model};
use crate::failure::{Usage, named};
use crate::output::print;
use crate::ranks::{RankArguments, STOPS_AND_SAVES, is_follower};
use anyhow::bail;
use bessemer_bench::show;
use bessemer_data::{Exif, OnBadSample};
use bessemer_train::recipe::{Override, StartRecipe};
use bessemer_train::tasks::Scale;
use bessemer_train::tasks::registry::{self, ZooModel};
use bessemer_train::{
    CheckpointChoice, ComputeOptions, Group, Recipe, RunDir, RunFolder, StepShare, StopSignal, TrainError,
    TrainOptions, TrainReport, as_word, find_checkpoint, train_in,
};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer train resnet50 --data imagenet/ --recipe resnet50-90e --set train.batch_size=64
  bessemer train bert-base --data text/ --recipe bert-base-phase2 --init-from runs/PHASE1
  bessemer train electra-squad --data squad/ --weights electra-base/ --seeds 5
  bessemer train resnet50 --data imagenet/ --devices 2 --split-batch
  bessemer train resnet50 --data imagenet/ --device cuda --precision fp16
  bessemer train --resume runs/resnet50-20260101-120000";

/// Train a model: from random weights, from given ones, or from where a run stopped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// A model of the zoo; may be left out where the recipe names it
    #[arg(value_parser = model)]
    pub model: Option<ZooModel>,

    /// A folder with train/CLASS/ and val/CLASS/, of prepared text, or with train-*.json and dev-*.json of SQuAD; `shapes` (drawn by the program) or `synthetic` (noise,
    /// for speed)
    #[arg(long, value_name = "DIR|shapes|synthetic", help_heading = "What to train")]
    pub data: Option<String>,
    /// A recipe by name or file [default: one that suits the model]
    #[arg(long, value_name = "NAME|FILE", help_heading = "What to train")]
    pub recipe: Option<String>,
    /// What is done with the EXIF orientation of JPEG images: apply (they are turned as it says) or ignore, as torchvision does
    /// [default: the recipe's]
    #[arg(long, value_name = "apply|ignore", help_heading = "What to train")]
    pub exif: Option<Exif>,
    /// What is done where a sample is damaged: stop, or skip it, which counts and lists it [default: the recipe's]
    #[arg(long, value_name = "stop|skip", help_heading = "What to train")]
    pub on_bad_sample: Option<OnBadSample>,
    /// Length in epochs, each a pass over the data unless train.epoch_samples says otherwise [default: the recipe's]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one,
          conflicts_with = "steps", help_heading = "What to train")]
    pub epochs: Option<usize>,
    /// Length in steps instead
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "What to train")]
    pub steps: Option<usize>,
    /// Stop after this many steps of this process, with a checkpoint; the schedule stays that of the whole run, which --resume goes on
    /// with
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, conflicts_with = "seeds",
          help_heading = "What to train")]
    pub stop_after: Option<usize>,
    /// Another value for a field of the recipe, e.g. schedule.base_lr=0.1; as often as needed
    #[arg(long = "set", value_name = "FIELD=VALUE", help_heading = "What to train")]
    pub set: Vec<Override>,
    /// Weights to start from: a .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is executed), a checkpoint, a
    /// run, a folder with config.json and model.safetensors, pytorch_model.bin or tf_model.h5, an HDF5 file of Keras, or a
    /// checkpoint of TensorFlow (its prefix, one of its files, its folder, or a SavedModel) [default: random]
    #[arg(long, value_name = "FILE|DIR", conflicts_with = "resume", help_heading = "What to train")]
    pub weights: Option<PathBuf>,
    /// A run or checkpoint to start from with its weights, moments and averages, but a schedule from step 0: the next
    /// phase of a training in several
    #[arg(long, value_name = "DIR", conflicts_with_all = ["resume", "weights"], help_heading = "What to train")]
    pub init_from: Option<PathBuf>,

    /// Checkpoint of the run that --weights or --init-from names: best (by its evaluations), latest, or the number of a step
    /// [default: for --weights best, or latest if the run was not evaluated; for --init-from latest]
    #[arg(long, value_name = "best|latest|STEP", conflicts_with = "resume", help_heading = "What to train")]
    pub checkpoint: Option<CheckpointChoice>,

    /// Train this many times, with seeds from that of the recipe on, into seed-0, seed-1 and so on of the folder, and show the mean
    /// and the standard deviation of what comes out
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, conflicts_with = "resume",
          help_heading = "What to train")]
    pub seeds: Option<usize>,

    #[command(flatten)]
    pub ranks: RankArguments,
    /// Scale weakly: each rank takes the whole step of the recipe, and all together one that is as many times as large. The learning rate
    /// follows where the recipe gives it for a number of samples (schedule.lr_per), and what is counted in steps stays. A resumed run
    /// keeps its step
    #[arg(long, conflicts_with = "split_batch", help_heading = "Several devices")]
    pub weak: bool,
    /// Cut micro-batches until there are as many for each rank, where the recipe has too few: the step stays as large, and what depends
    /// on a micro-batch, such as batch norms and means over masked words, sees less at a time. A resumed run keeps its step
    #[arg(long, help_heading = "Several devices")]
    pub split_batch: bool,

    /// Folder of the run, which must be new or empty [default: runs/MODEL-DATE-TIME]
    #[arg(long, value_name = "DIR", conflicts_with = "resume", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Continue the run in this folder from its latest checkpoint; a finished run is left as it is
    #[arg(long, value_name = "DIR", conflicts_with = "recipe", help_heading = "Output")]
    pub resume: Option<PathBuf>,
    /// Show the resolved recipe first, which recipe.toml of the run holds too
    #[arg(long, short, help_heading = "Output")]
    pub verbose: bool,
}

/// Pictures of the evaluation set that a run keeps with what it takes them for.
const SAMPLES: usize = 40;

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let mut recipe = recipe(options, common)?;
    if let Some(start) = start(options, common)? {
        recipe.start = start;
    }
    let group = options.ranks.join(&recipe.to_toml(), common.device_kind(), common)?;
    let recipe = match recipe_for_ranks(recipe, options, &group, common) {
        Ok(recipe) => recipe,
        Err(error) => {
            group.refuse(&error.to_string());
            return Err(error);
        }
    };
    if options.weak && options.resume.is_none() && group.leads() && recipe.schedule.lr_per.is_none() {
        common.notify("--weak: the learning rate stays, as the recipe has no schedule.lr_per");
    }
    if options.verbose {
        common.notify(&format!("resolved recipe:\n\n{}", recipe.to_toml()));
    }
    let mut compute = common.compute();
    compute.compile.buckets.overlap = options.ranks.overlap;
    let request = TrainOptions {
        compute,
        progress: common.progress(),
        stop: StopSignal::from_system(common.stop_notice(STOPS_AND_SAVES))?,
        run_steps: options.stop_after.map(|steps| steps as u64),
        command: command_line(),
        commit: option_env!("BESSEMER_COMMIT").map(str::to_owned),
        ..TrainOptions::new(recipe, folder(options))
    };
    match options.seeds {
        None => {
            let leads = group.leads();
            let trained = train_once(&request, group, common);
            if let Err(error) = &trained
                && let Some(stopped) = stopped_as_asked(&request, error)
            {
                return if leads { print(&stopped) } else { Ok(()) };
            }
            let report = trained?;
            if leads { print(&summary(&report)) } else { Ok(()) }
        }
        Some(count) => {
            let train = |request: &TrainOptions| train_once(request, Group::alone(), common);
            print(&seeds::table(&seeds::train(&request, count, train)?))
        }
    }
}

impl Options {
    fn step_share(&self) -> StepShare {
        match (self.weak, self.split_batch) {
            (true, _) => StepShare::Weak,
            (false, true) => StepShare::SplitBatch,
            (false, false) => StepShare::Recipe,
        }
    }
}

/// The recipe as the ranks of a group train it; says what of it is emulated, where that is so.
fn recipe_for_ranks(recipe: Recipe, options: &Options, group: &Group, common: &Common) -> anyhow::Result<Recipe> {
    if group.size() > 1 && options.seeds.is_some() {
        bail!(Usage("--seeds trains on one rank".to_owned()));
    }
    if group.leads() {
        common.tell_emulation(recipe.precision.compute)?;
    }
    // A run that is resumed keeps its step.
    match options.resume {
        Some(_) => Ok(recipe),
        None => Ok(recipe.shared(options.step_share(), group.size() as u64)?),
    }
}

fn train_once(request: &TrainOptions, group: Group, common: &Common) -> anyhow::Result<TrainReport> {
    let leads = group.leads();
    let report = train_in(request, group).map_err(|error| named(error, &request.recipe.model.name))?;
    if !leads {
        return Ok(report);
    }
    if report.was_finished {
        common.notify(&format!(
            "{}: the run is finished, all of its {} steps are done; nothing was changed",
            report.run.display(),
            report.steps
        ));
    } else {
        keep_samples(&report, &request.recipe, &request.compute, common);
    }
    Ok(report)
}

/// What to say where a run ended after the steps of --stop-after, and not by a signal.
fn stopped_as_asked(request: &TrainOptions, error: &anyhow::Error) -> Option<String> {
    request.run_steps.filter(|_| !request.stop.is_raised())?;
    match error.downcast_ref() {
        Some(TrainError::Interrupted { step, checkpoint }) => {
            let run = checkpoint.as_deref().map(RunDir::of_checkpoint);
            let resume = run.map_or_else(String::new, |run| format!("; go on with --resume {}", as_word(run)));
            Some(format!("stopped after step {step}, as --stop-after says{resume}\n"))
        }
        _ => None,
    }
}

/// What the run begins with by the command line.
fn start(options: &Options, common: &Common) -> anyhow::Result<Option<StartRecipe>> {
    let choice = options.checkpoint;
    Ok(match (&options.weights, &options.init_from) {
        (Some(weights), _) => Some(StartRecipe::weights(as_text(locate(weights, choice, common)?.path)?)),
        (None, Some(file)) if file.is_file() => {
            bail!(Usage(format!("--init-from takes a run or a checkpoint; --weights {} takes a file", file.display())))
        }
        (None, Some(run)) => {
            let is_run = find_checkpoint(run, None).map_err(TrainError::from)?.is_some();
            let usual = is_run.then_some(CheckpointChoice::Latest);
            Some(StartRecipe::init_from(as_text(locate(run, choice.or(usual), common)?.path)?))
        }
        (None, None) if choice.is_some() => {
            bail!(Usage("--checkpoint is for the run that --weights or --init-from names".to_owned()))
        }
        (None, None) => None,
    })
}

/// A path that recipes can hold.
fn as_text(path: PathBuf) -> Result<String, Usage> {
    path.into_os_string().into_string().map_err(|path| Usage(format!("{}: the path is not UTF-8", path.display())))
}

fn folder(options: &Options) -> RunFolder {
    match (&options.resume, &options.out) {
        (Some(run), _) => RunFolder::Resume(run.clone()),
        (None, Some(out)) => RunFolder::New(out.clone()),
        (None, None) => RunFolder::NewIn("runs".into()),
    }
}

/// The recipe that is asked for, with the options of the command line over it.
pub(crate) fn recipe(options: &Options, common: &Common) -> anyhow::Result<Recipe> {
    let mut overrides = Vec::new();
    if let (None, None, Some(model), Some(data)) = (&options.resume, &options.recipe, options.model, &options.data) {
        overrides.extend(model.family().fields_of_data(data));
    }
    overrides.extend(options.model.map(|model| Override::new("model.name", model.name())));
    overrides.extend(options.data.as_ref().map(|data| Override::new("data.source", data.as_str())));
    overrides.extend(options.exif.map(|exif| Override::new("data.exif", exif.name())));
    overrides.extend(options.on_bad_sample.map(|choice| Override::new("loader.on_bad_sample", choice.name())));
    overrides.extend(options.epochs.map(|epochs| Override::new("train.epochs", epochs as i64)));
    overrides.extend(options.steps.map(|steps| Override::new("train.steps", steps as i64)));
    overrides.extend(common.seed.map(|seed| Override::new("train.seed", i64::from(seed))));
    overrides.extend(common.precision().map(|precision| Override::new("precision.compute", precision.name())));
    // A step that was made for its ranks stays, whatever it was made of.
    let keeps_step = options.resume.is_some() && options.step_share() != StepShare::Recipe;
    let (left_out, set): (Vec<_>, Vec<_>) =
        options.set.iter().cloned().partition(|field| keeps_step && field.is_of_step());
    if !left_out.is_empty() && !is_follower() {
        common.notify("sizes of steps given by --set are left out: a resumed run keeps its step");
    }
    overrides.extend(set);
    let base = match &options.resume {
        Some(run) => return Ok(RunDir::recipe_of(run)?.with_overrides(&overrides)?),
        None => base_recipe(options)?,
    };
    Ok(Recipe::load(&base, &overrides)?)
}

/// Name or file of the recipe to begin with.
fn base_recipe(options: &Options) -> Result<String, Usage> {
    match (&options.recipe, options.model) {
        (Some(recipe), _) => Ok(recipe.clone()),
        (None, Some(model)) => Ok(model.family().default_recipe(model.name(), options.data.as_deref()).to_owned()),
        (None, None) => Err(Usage("no model: give MODEL, --recipe NAME|FILE or --resume DIR".to_owned())),
    }
}

/// The run is complete without them: a failure is only reported.
fn keep_samples(report: &TrainReport, recipe: &Recipe, compute: &ComputeOptions, common: &Common) {
    let keep = || -> Result<_, TrainError> {
        let run = RunDir::open(&report.run)?;
        registry::find(&recipe.model.name)?.family().keep_samples(&run, SAMPLES, compute)
    };
    if let Err(error) = keep() {
        common.warn(&format!("warning: no samples of predictions: {error}"));
    }
}

fn summary(report: &TrainReport) -> String {
    let value = |(name, value): (&String, &f64)| match report.metric_schema.scale(name) {
        Scale::Fraction => show::percent(*value),
        Scale::Plain => format!("{value:.4}"),
    };
    let throughput = format!("{} {}", show::significant(report.throughput, 3), report.metric_schema.unit);
    let head =
        [("run", report.run.display().to_string()), ("steps", report.steps.to_string()), ("throughput", throughput)];
    let metrics = report.metrics.iter().map(|metric| (metric.0.as_str(), value(metric)));
    let left_out = (report.skipped > 0).then(|| {
        ("left out", format!("{}, listed in events.jsonl", show::counted(report.skipped as u64, "bad sample")))
    });
    let rows: Vec<(&str, String)> = head.into_iter().chain(metrics).chain(left_out).collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}
