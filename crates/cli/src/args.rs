//! Options that commands share, and what they may be.

use crate::commands;
use crate::failure::Usage;
use crate::names;
use crate::ranks;
use bessemer_bench::workload::{DetectorOutputs, Over, StepSettings};
use bessemer_cuda::Check;
use bessemer_ir::passes::recompute::Recompute;
use bessemer_ir::passes::{CompileOptions, optional_pass_names};
use bessemer_train::device::UnknownDevice;
use bessemer_train::recipe::Compute;
use bessemer_train::tasks::family::InputKind;
use bessemer_train::tasks::registry::{self, ZooModel};
use bessemer_train::{
    CheckpointChoice, ChosenCheckpoint, ComputeOptions, DeviceError, DeviceKind, DeviceOptions, InstructionSet,
    ProgressMode, TrainError, find_checkpoint,
};
use bessemer_weights::state_dict_choice;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer quickstart                                      the first minutes on a machine
  bessemer train resnet20-cifar --data shapes              train on pictures drawn by the program
  bessemer infer resnet50 --weights resnet50.pth photos/   say what pictures show
  bessemer bench train resnet50 --batch-size 8,16          measure";

const NOTIFY_EVERY: Duration = Duration::from_secs(5);

/// Trains, evaluates, runs and benchmarks reference deep-learning models
#[derive(Debug, Parser)]
#[command(name = "bessemer", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Quickstart(commands::quickstart::Options),
    Doctor(commands::doctor::Options),
    Models(commands::models::Options),
    Explain(commands::explain::Options),
    Train(commands::train::Options),
    Launch(commands::launch::Options),
    Eval(commands::eval::Options),
    Infer(commands::infer::Options),
    Bench(commands::bench::Options),
    Compare(commands::compare::Options),
    Peers(commands::peers::Options),
    #[command(hide = true)]
    Peer(commands::peer::Options),
    #[command(hide = true)]
    RankProbe(commands::rank_probe::Options),
    Report(commands::report::Options),
    Score(commands::score::Options),
    Data(commands::data::Options),
    Weights(commands::weights::Options),
    #[command(hide = true)]
    GpuSelftest(commands::gpu_selftest::Options),
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Device to run on: cpu, cuda (the first GPU) or cuda:INDEX [default: cpu]
    #[arg(long, global = true, value_name = "DEVICE", value_parser = device)]
    pub device: Option<DeviceKind>,
    /// Precision of stored tensors, of matrix products and of convolutions: fp32, tf32 (on GPUs: stored as fp32), bf16 or fp16, or
    /// several for `bench` and `compare` [default: the recipe's, else fp32]
    #[arg(long, global = true, value_name = "PRECISION", value_delimiter = ',', value_parser = precision)]
    pub precision: Vec<Compute>,
    /// The usual mixed precision: bf16; on GPUs fp16 with a scaled loss for models of images
    #[arg(long, global = true, conflicts_with = "precision")]
    pub amp: bool,
    /// What the backward pass computes again instead of keeping it in memory: none, pointwise or blocks
    #[arg(long, global = true, value_name = "WHAT", default_value = "none")]
    pub recompute: Recompute,
    /// Passes of the compiler to leave out, to find the one that is to blame for a wrong result, such as chain,fuse (`bessemer explain --help`
    /// lists all under --after; limits, filters, precision and buckets cannot be left out)
    #[arg(long, global = true, value_name = "PASS,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(optional_pass_names()),
          hide_possible_values = true)]
    pub without: Vec<String>,
    /// Threads that compute [default: one for each processor, shared by the ranks of a machine]
    #[arg(long, global = true, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
    /// Instruction set of the kernels [default: the best of this machine]
    #[arg(long, global = true, value_name = "NAME")]
    pub isa: Option<InstructionSet>,
    /// Folder of CUDA's libraries, looked in before the Python environment and the system; may be given several times
    #[arg(long, global = true, value_name = "FOLDER", value_parser = folder)]
    pub gpu_libraries: Vec<PathBuf>,
    /// Engines of convolutions and algorithms of products on a GPU: on measures those that it has not measured before, for at most
    /// about 30 s a plan, and keeps the fastest ones in the cache; FILE keeps them there; off takes the libraries' first proposals
    #[arg(long, global = true, value_name = "on|off|FILE", default_value = "on")]
    pub tuning: String,
    /// On a GPU, leave what follows products and convolutions (biases, activations, statistics and gradients of norms) to kernels of
    /// their own, instead of doing it in the library's pass
    #[arg(long, global = true)]
    pub no_epilogues: bool,
    /// On a GPU, launch the kernels of every step one by one instead of replaying the step as it was recorded
    #[arg(long, global = true)]
    pub eager: bool,
    /// With --eager: wait after each launch, so that an error of the GPU names the operation that met it; =memory also looks
    /// whether each one writes all of its own memory and nothing else, which is for small models
    #[arg(long, global = true, value_name = "errors|memory", num_args = 0..=1, require_equals = true, default_missing_value = "errors")]
    pub check: Option<Checked>,
    /// Seed of everything random [default: the recipe's, else 0]
    #[arg(long, global = true, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32))]
    pub seed: Option<u32>,
    /// Show no progress, but warnings
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Form of progress and errors on standard error
    #[arg(long, global = true, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Common options of commands that compute on a device; "seed" is the last one.
const COMPUTING_WITH_SEED: [&str; 14] = [
    "device",
    "gpu_libraries",
    "tuning",
    "no_epilogues",
    "eager",
    "check",
    "precision",
    "amp",
    "without",
    "threads",
    "isa",
    "quiet",
    "log_format",
    "seed",
];

/// The same of commands that draw no random numbers.
const COMPUTING: &[&str] = COMPUTING_WITH_SEED.split_at(COMPUTING_WITH_SEED.len() - 1).0;

/// Common options that commands read, where these are not all: help shows no others.
const READ: [(&str, &[&str]); 16] = [
    ("bench data", &COMPUTING_WITH_SEED),
    ("bench kernels", &COMPUTING_WITH_SEED),
    ("bench simulator", &[]),
    ("bench suite", &["precision", "amp", "threads", "seed", "quiet", "log_format"]),
    ("compare", &["device", "gpu_libraries", "precision", "amp", "threads", "seed", "quiet", "log_format"]),
    ("data", &["threads", "seed", "quiet", "log_format"]),
    ("doctor", &["device", "gpu_libraries", "threads", "isa"]),
    ("eval", COMPUTING),
    (
        "explain",
        &["device", "gpu_libraries", "no_epilogues", "precision", "amp", "recompute", "without", "threads", "isa"],
    ),
    ("infer", COMPUTING),
    ("launch", &["quiet", "log_format"]),
    ("models", &[]),
    ("peers", &["quiet", "log_format"]),
    ("report", &[]),
    ("score", &["threads", "quiet", "log_format"]),
    ("weights", &["quiet", "log_format"]),
];

/// The command line, with the common options in the help of the commands that read them.
pub(crate) fn command() -> clap::Command {
    let mut program = Cli::command();
    program.build();
    let common = common_options();
    for (path, read) in READ {
        let names = path.split(' ');
        let found = names.fold(&mut program, |above, name| above.find_subcommand_mut(name).expect("a command"));
        hide(found, &|option| common.iter().any(|known| known == option) && !read.contains(&option));
    }
    program
}

/// Reads a command line, the program's name first.
///
/// # Errors
/// It is wrong, or asks for help.
pub(crate) fn parse(line: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = command();
    let given = command.try_get_matches_from_mut(without_help_command(line))?;
    refuse_unread(&mut command, &given)?;
    Cli::from_arg_matches(&given)
}

/// Names of the options that all commands accept.
fn common_options() -> Vec<String> {
    let common = Common::augment_args(clap::Command::new("common"));
    common.get_arguments().map(|option| option.get_id().to_string()).collect()
}

/// `bessemer help COMMAND` as `bessemer COMMAND --help`.
fn without_help_command(line: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = line.into_iter().collect();
    if words.get(1).is_some_and(|word| word == "help") {
        words.remove(1);
        words.push("--help".into());
    }
    words
}

/// # Errors
/// A command that computes is given an option of computing that it ignores. Elsewhere they do no harm, as in scripts that set them for all
/// commands.
fn refuse_unread(command: &mut clap::Command, given: &ArgMatches) -> Result<(), clap::Error> {
    let (mut path, mut given) = (Vec::new(), given);
    while let Some((name, below)) = given.subcommand() {
        path.push(name);
        given = below;
    }
    let path = path.join(" ");
    let is_of = |known: &str| path.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    let computes = |read: &[&str]| read.contains(&"precision");
    let Some((name, read)) = READ.iter().find(|(known, read)| is_of(known) && computes(read)) else { return Ok(()) };
    let is_given = |option: &String| {
        !["quiet", "log_format", "seed"].contains(&option.as_str())
            && !read.contains(&option.as_str())
            && given.value_source(option) == Some(ValueSource::CommandLine)
    };
    match common_options().iter().find(|option| is_given(option)) {
        None => Ok(()),
        Some(option) => {
            let text = format!("--{} has no effect on `bessemer {name}`: leave it out", option.replace('_', "-"));
            Err(command.error(ErrorKind::ArgumentConflict, text))
        }
    }
}

/// Names of what can follow the longest beginning of a command line that is a command.
pub(crate) fn subcommands_of(line: impl Iterator<Item = String>) -> Vec<String> {
    let mut found = Cli::command();
    for word in line {
        match found.find_subcommand(&word) {
            Some(next) => found = next.clone(),
            None => break,
        }
    }
    found.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name().to_owned()).collect()
}

/// Leaves options out of the help of a command and of those under it.
fn hide(command: &mut clap::Command, is_hidden: &dyn Fn(&str) -> bool) {
    let all = std::mem::take(command);
    *command = all.mut_args(|option| if is_hidden(option.get_id().as_str()) { option.hide(true) } else { option });
    command.get_subcommands_mut().for_each(|below| hide(below, is_hidden));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// What is looked at behind each launch on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checked {
    Errors,
    Memory,
}

impl Common {
    /// The device that is asked for, or else the processors.
    pub(crate) fn device_kind(&self) -> DeviceKind {
        self.device.unwrap_or_default()
    }

    pub(crate) fn device(&self) -> DeviceOptions {
        let best = DeviceOptions::default();
        DeviceOptions {
            kind: self.device_kind(),
            instruction_set: self.isa.unwrap_or(best.instruction_set),
            threads: self.threads.unwrap_or(best.threads),
            gpu_libraries: self.gpu_libraries.clone(),
            tuning: self.tuning.clone().into(),
            no_epilogues: self.no_epilogues,
            eager: self.eager,
            check: match self.check {
                None => Check::Nothing,
                Some(Checked::Errors) => Check::Errors,
                Some(Checked::Memory) => Check::Memory,
            },
        }
    }

    /// How forward passes are run, with a line where the precision is emulated.
    ///
    /// # Errors
    /// As [`Common::tell_emulation`].
    pub(crate) fn compute_told(&self) -> Result<ComputeOptions, DeviceError> {
        self.tell_emulation(self.precision().unwrap_or_default())?;
        Ok(self.compute())
    }

    pub(crate) fn compute(&self) -> ComputeOptions {
        ComputeOptions { device: self.device(), compile: self.compile(true) }
    }

    pub(crate) fn compile(&self, fuse: bool) -> CompileOptions {
        let disabled = self.without.clone();
        let options = CompileOptions { fuse, recompute: self.recompute, disabled, ..CompileOptions::default() };
        let precision = self.precision().unwrap_or_default();
        precision.options(self.device_kind(), options.clone()).unwrap_or(options)
    }

    /// The precision asked for, if any.
    pub(crate) fn precision(&self) -> Option<Compute> {
        self.precision.first().copied()
    }

    /// The same options in one precision.
    pub(crate) fn at(&self, precision: Compute) -> Self {
        Self { precision: vec![precision], ..self.clone() }
    }

    /// All that are asked for, or else the usual one.
    pub(crate) fn precisions(&self) -> Vec<Compute> {
        if self.precision.is_empty() { vec![Compute::default()] } else { self.precision.clone() }
    }

    /// Says so where a precision is asked for that the device does not have.
    ///
    /// # Errors
    /// The device cannot be used.
    pub(crate) fn tell_emulation(&self, precision: Compute) -> Result<(), DeviceError> {
        let is_native = match (precision, self.device_kind()) {
            (Compute::Fp32 | Compute::Tf32, _) | (Compute::Fp16, DeviceKind::Cuda { .. }) => true,
            (Compute::Fp16, DeviceKind::Cpu) => false,
            (Compute::Bf16, _) => self.device().open()?.properties().bf16.is_some(),
        };
        if !is_native {
            let name = precision.name();
            self.notify(&format!(
                "{name} is emulated on this device: tensors are stored in 16 bits, products are computed in fp32"
            ));
        }
        Ok(())
    }

    /// # Errors
    /// Options that belong to a GPU, and to each other, without what they belong to.
    pub(crate) fn check_options(&self) -> Result<(), Usage> {
        let problem = match (self.eager, self.check.is_some(), self.device_kind()) {
            (true, _, DeviceKind::Cpu) => "--eager is for --device cuda: on cpu nothing is recorded",
            (false, true, _) => "--check is for --device cuda with --eager",
            _ => return Ok(()),
        };
        Err(Usage(problem.to_owned()))
    }

    /// # Errors
    /// Another device than the processors is asked for.
    pub(crate) fn only_cpu(&self, command: &str) -> Result<(), Usage> {
        match self.device_kind() {
            DeviceKind::Cpu => Ok(()),
            device @ DeviceKind::Cuda { .. } => Err(Usage(format!("{command} runs on cpu alone, not on {device}"))),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(0).into()
    }

    pub(crate) fn progress(&self) -> ProgressMode {
        ProgressMode::detect(self.quiet, self.log_format == LogFormat::Json)
    }

    /// Lines of progress, from any thread, but not too many.
    pub(crate) fn notifier(&self) -> impl Fn(&dyn Fn() -> String) + Sync {
        let reported = Mutex::new(Instant::now());
        move |line| {
            if let Ok(mut reported) = reported.try_lock()
                && reported.elapsed() >= NOTIFY_EVERY
            {
                *reported = Instant::now();
                self.notify(&line());
            }
        }
    }

    /// A warning or a note about results, in silence too, unless only events are wanted.
    pub(crate) fn warn(&self, line: &str) {
        if self.log_format == LogFormat::Text && !ranks::is_follower() {
            eprintln!("{line}");
        }
    }

    /// What a request to stop is answered with, where whoever asks reads this process.
    pub(crate) fn stop_notice(&self, notice: &'static str) -> Option<&'static str> {
        (self.notifies() && !ranks::is_started_here()).then_some(notice)
    }

    /// Whether lines for people are wanted, of this rank.
    fn notifies(&self) -> bool {
        !self.quiet && self.log_format == LogFormat::Text && !ranks::is_follower()
    }

    /// A line about what is being done, unless nothing or only events are wanted.
    pub(crate) fn notify(&self, line: &str) {
        if self.notifies() {
            eprintln!("{line}");
        }
    }
}

fn device(name: &str) -> Result<DeviceKind, UnknownDevice> {
    name.parse()
}

fn precision(text: &str) -> Result<Compute, String> {
    let found = Compute::ALL.into_iter().find(|compute| compute.name() == text);
    found.ok_or_else(|| "no such precision; allowed: fp32, tf32 (on GPUs), bf16, fp16".into())
}

fn threads(text: &str) -> Result<usize, String> {
    number(text, 1024)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_dir() { Ok(path) } else { Err("there is no such folder".into()) }
}

/// A file to write: it is no folder, and its folder is there.
pub(crate) fn output_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        match parent {
            _ if path.is_dir() => Err("a folder is there; name a file".to_owned()),
            Some(parent) if !parent.is_dir() => Err(format!("there is no folder {}", parent.display())),
            _ => Ok(path),
        }
    })
}

/// A folder to write, which need not be there yet: no file is in its place or above it.
pub(crate) fn output_folder() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        let file = path.ancestors().find(|above| above.is_file());
        match file {
            Some(file) => Err(format!("{} is a file; name a folder", file.display())),
            None => Ok(path),
        }
    })
}

/// Weights that a command uses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub(crate) struct WeightArguments {
    /// A .safetensors file, a PyTorch file (.pth, .pt, .bin; nothing in it is executed), a checkpoint, a run, a folder with
    /// config.json and model.safetensors, pytorch_model.bin or tf_model.h5, an HDF5 file of Keras, or a checkpoint of TensorFlow
    /// (its prefix, one of its files, its folder, or a SavedModel)
    #[arg(long, value_name = "FILE|DIR")]
    pub weights: PathBuf,
    #[command(flatten)]
    pub checkpoint: CheckpointArgument,
}

impl WeightArguments {
    /// As [`CheckpointArgument::locate`].
    pub(crate) fn locate(&self, common: &Common) -> Result<Located, TrainError> {
        self.checkpoint.locate(&self.weights, common)
    }
}

/// Which checkpoint of a run a command uses.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgument {
    /// Checkpoint of a run: best (by its evaluations), latest, or the number of a step [default: best, or latest if the run
    /// was not evaluated]
    #[arg(long, value_name = "best|latest|STEP", help_heading = "Input")]
    pub checkpoint: Option<CheckpointChoice>,
}

/// Where weights are, and the checkpoint if they are those of a run.
pub(crate) struct Located {
    pub path: PathBuf,
    pub chosen: Option<ChosenCheckpoint>,
}

impl CheckpointArgument {
    /// The weights of a path: of a run the checkpoint that is asked for, of a PyTorch file one of its state dicts, with a line
    /// that says which one it is.
    ///
    /// # Errors
    /// A checkpoint that is not there, or asked for where the path is no run; a PyTorch file that cannot be read.
    pub(crate) fn locate(&self, path: &Path, common: &Common) -> Result<Located, TrainError> {
        locate(path, self.checkpoint, common)
    }
}

/// As [`CheckpointArgument::locate`].
pub(crate) fn locate(path: &Path, choice: Option<CheckpointChoice>, common: &Common) -> Result<Located, TrainError> {
    let chosen = find_checkpoint(path, choice)?;
    if let Some(chosen) = &chosen {
        common.notify(&format!("weights: {chosen}"));
    }
    if let Some(choice) = state_dict_choice(path)? {
        common.notify(&format!("weights: {choice}"));
    }
    Ok(Located { path: chosen.as_ref().map_or_else(|| path.to_owned(), |chosen| chosen.path.clone()), chosen })
}

/// Settings of a step that is measured or explained.
#[derive(Debug, Args)]
pub(crate) struct StepArguments {
    /// Tokens of a sequence, for models of text [default: 128, or 384 for questions]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Step")]
    pub sequence_length: Option<usize>,
    /// Words to predict in a sequence, for models that are pre-trained on text [default: 20, or 80 in sequences of 512 and
    /// more; for ELECTRA 15.5 % of the tokens]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Step")]
    pub predictions: Option<usize>,
    /// Dropout in training, for models of text [default: 0.1]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true, value_parser = rate, help_heading = "Step")]
    pub dropout: Option<f64>,
    /// Train without clipping gradients, for models of text
    #[arg(long, help_heading = "Step")]
    pub no_clip: bool,
    /// Micro-batches of a training step
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = at_least_one,
          help_heading = "Step")]
    pub accumulation: usize,
    /// What the inference of a detector ends with: detections, or the outputs of the network, without suppression [default:
    /// detections; compare measures both]
    #[arg(long, value_name = "detections|network", help_heading = "Step")]
    pub outputs: Option<DetectorOutputs>,
}

impl StepArguments {
    /// # Errors
    /// Settings that the model does not have.
    pub(crate) fn settings(&self, model: ZooModel) -> Result<StepSettings, Usage> {
        let given = [
            ("--sequence-length", self.sequence_length.is_some()),
            ("--predictions", self.predictions.is_some()),
            ("--dropout", self.dropout.is_some()),
            ("--no-clip", self.no_clip),
        ];
        let (input, name) = (model.family().input(), model.name());
        let is_text = input != InputKind::Images;
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given && !is_text) {
            return Err(Usage(format!("{option} is for models of text; {name} takes images")));
        }
        if self.predictions.is_some() && input == InputKind::Questions {
            return Err(Usage(format!("--predictions is for models that are pre-trained; {name} answers questions")));
        }
        let ends = model.family().outputs();
        if let Some(outputs) = self.outputs.filter(|outputs| !ends.contains(outputs)) {
            return Err(Usage(match ends {
                [] => format!("--outputs is for models that detect objects; {name} has outputs of one kind"),
                [first, ..] => format!("{name} ends with {}, not with the {}", first.name(), outputs.name()),
            }));
        }
        let usual = model.family().usual_step(self.sequence_length);
        Ok(StepSettings {
            predictions: self.predictions.unwrap_or(usual.predictions),
            dropout: self.dropout.unwrap_or(usual.dropout),
            clip: !self.no_clip,
            accumulation: self.accumulation as u64,
            outputs: self.outputs.unwrap_or(usual.outputs),
            ..usual
        })
    }
}

/// How a training step that several ranks share depends on all of them.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SharedStep {
    /// Whose samples batch norms take mean and variance of, as train.norms_over: rank or all [default: rank]
    #[arg(long, value_name = "rank|all", value_parser = over, help_heading = "Several devices")]
    pub norms_over: Option<Over>,
    /// Whose weights losses are divided by, as train.means_over: rank or all [default: rank]
    #[arg(long, value_name = "rank|all", value_parser = over, help_heading = "Several devices")]
    pub means_over: Option<Over>,
    /// Whether gradients travel while the rest of the step is computed: on, or off, which changes no result [default: on]
    #[arg(long, value_name = "on|off", value_parser = switch, help_heading = "Several devices")]
    pub overlap: Option<bool>,
}

impl SharedStep {
    /// # Errors
    /// An option that is given where there are no ranks; `needed` names what it is for.
    pub(crate) fn refuse(&self, needed: &str) -> Result<(), Usage> {
        let given = [
            ("--norms-over", self.norms_over.is_some()),
            ("--means-over", self.means_over.is_some()),
            ("--overlap", self.overlap.is_some()),
        ];
        let given = given.into_iter().find(|(_, given)| *given);
        given.map_or(Ok(()), |(option, _)| Err(Usage(format!("{option} is for {needed}"))))
    }

    /// A step with these options.
    pub(crate) fn settings(&self, settings: StepSettings) -> StepSettings {
        let (norms, means) = (self.norms_over.unwrap_or_default(), self.means_over.unwrap_or_default());
        StepSettings { norms, means, ..settings }
    }

    /// Whether gradients travel while the rest of the step is computed.
    pub(crate) fn overlaps(&self) -> bool {
        self.overlap.unwrap_or(true)
    }
}

fn over(text: &str) -> Result<Over, String> {
    match text {
        "rank" => Ok(Over::Rank),
        "all" => Ok(Over::All),
        _ => Err("allowed: rank, all".to_owned()),
    }
}

/// `on` or `off`.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("allowed: on, off".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or_else(|| "expected a number of 0 to below 1".to_owned())
}

/// A number of at least 1, such as a batch size.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    number(text, 1 << 30)
}

fn number(text: &str, most: usize) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| (1..=most).contains(value));
    value.ok_or_else(|| format!("expected a whole number of 1 to {most}"))
}

/// A model of the zoo by its name, or by the short name of a reference model.
pub(crate) fn model(name: &str) -> Result<ZooModel, String> {
    let names = || registry::all().map(|model| model.name());
    registry::find(name).map_err(|_| {
        if Path::new(name).exists() {
            return "that is a path; the name of a model comes here, and weights behind --weights".to_owned();
        }
        let known = names().collect::<Vec<_>>().join(", ");
        format!("no such model{} there are {known}", sentence(&names::hint(name, names())))
    })
}

/// A hint, or what stands in for it, before more words.
pub(crate) fn sentence(hint: &str) -> String {
    if hint.is_empty() { ";".to_owned() } else { hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_a_command_too() {
        let help = |line: &str| {
            let error = parse(line.split(' ').map(OsString::from)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{line}");
            error.to_string()
        };
        for (asked, same) in [("x help", "x --help"), ("x help data shapes", "x data shapes --help")] {
            assert_eq!(help(asked), help(same));
        }
        let unknown = parse(["x", "help", "trian"].map(OsString::from)).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::InvalidSubcommand);
    }

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_not_there_is_refused() {
        assert_eq!(device("cuda:1").ok(), Some(DeviceKind::Cuda { index: 1 }));
        assert!(device("cpu:1").is_err() && device("tpu").is_err());
        assert!(precision("f32").unwrap_err().contains("allowed: fp32, tf32 (on GPUs), bf16, fp16"));
        assert_eq!(precision("tf32"), Ok(Compute::Tf32));
        assert!(threads("0").is_err() && threads("-2").is_err() && threads("x").is_err());
        assert_eq!(threads("3"), Ok(3));
    }

    #[test]
    fn models_have_hints() {
        assert_eq!(model("resnet50").unwrap().name(), "resnet50");
        assert_eq!(model("electra-squad").unwrap().name(), "electra-base-squad");
        let error = model("resnet5").unwrap_err();
        assert!(error.starts_with("no such model; did you mean `resnet50`? there are resnet18, "), "{error}");
        assert!(model("transformer").unwrap_err().starts_with("no such model; there are resnet18"));
    }
}
