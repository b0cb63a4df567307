//! Options that commands share, and what they may be.

use crate::commands;
use crate::names;
use bessemer_cpu::{CpuOptions, Isa};
use bessemer_models::{ModelSpec, ZOO};
use bessemer_train::{ComputeOptions, ProgressMode};
use clap::{Args, Parser, Subcommand, ValueEnum};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer quickstart                                   the first minutes on a machine
  bessemer train resnet20-cifar --data shapes                 train on pictures drawn by the program
  bessemer bench train resnet50 --batch-size 8,16       measure";

/// Trains, evaluates, runs and benchmarks reference deep-learning models
#[derive(Debug, Parser)]
#[command(name = "bessemer", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Quickstart(commands::quickstart::Options),
    Doctor(commands::doctor::Options),
    Models(commands::models::Options),
    Explain(commands::explain::Options),
    Train(commands::train::Options),
    Eval(commands::eval::Options),
    Infer(commands::infer::Options),
    Bench(commands::bench::Options),
    Report(commands::report::Options),
    Data(commands::data::Options),
    Weights(commands::weights::Options),
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Device to run on: cpu
    #[arg(long, global = true, value_name = "DEVICE", default_value = "cpu", value_parser = device)]
    pub device: Device,
    /// Precision of the arithmetic: fp32
    #[arg(long, global = true, value_name = "PRECISION", value_parser = precision)]
    pub precision: Option<Precision>,
    /// Threads that compute [default: one for each processor]
    #[arg(long, global = true, value_name = "N", allow_negative_numbers = true, value_parser = threads)]
    pub threads: Option<usize>,
    /// Instruction set of the kernels [default: the best of this machine]
    #[arg(long, global = true, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Seed of everything random [default: the recipe's, else 0]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u32))]
    pub seed: Option<u32>,
    /// Show no progress
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Form of the progress on standard error
    #[arg(long, global = true, value_name = "FORM", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Where kernels run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
}

/// In what numbers kernels compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Fp32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Common {
    pub fn cpu(&self) -> CpuOptions {
        let Device::Cpu = self.device;
        let best = CpuOptions::default();
        CpuOptions { isa: self.isa.unwrap_or(best.isa), threads: self.threads.unwrap_or(best.threads) }
    }

    pub fn compute(&self) -> ComputeOptions {
        ComputeOptions { cpu: self.cpu(), ..ComputeOptions::default() }
    }

    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(0).into()
    }

    pub fn progress(&self) -> ProgressMode {
        ProgressMode::detect(self.quiet, self.log_format == LogFormat::Json)
    }

    /// A line about what is being done, unless nothing or only events are wanted.
    pub fn tell(&self, line: &str) {
        if !self.quiet && self.log_format == LogFormat::Text {
            eprintln!("{line}");
        }
    }
}

impl Precision {
    /// Name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
        }
    }
}

fn device(text: &str) -> Result<Device, String> {
    match text.split(':').next() {
        Some("cpu") if text == "cpu" => Ok(Device::Cpu),
        Some("cuda") => Err("there is no GPU backend in this version; allowed: cpu".into()),
        _ => Err("unknown device; allowed: cpu".into()),
    }
}

fn precision(text: &str) -> Result<Precision, String> {
    match text {
        "fp32" => Ok(Precision::Fp32),
        _ => Err("not a precision of the CPU backend in this version; allowed: fp32".into()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    number(text, 1024)
}

/// A number of at least 1, such as a batch size.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    number(text, 1 << 30)
}

fn number(text: &str, most: usize) -> Result<usize, String> {
    let value = text.parse().ok().filter(|value| (1..=most).contains(value));
    value.ok_or_else(|| format!("expected a whole number of 1 to {most}"))
}

/// A model of the zoo by its name.
pub fn model(name: &str) -> Result<&'static ModelSpec, String> {
    let names = || ZOO.iter().map(|spec| spec.name);
    ZOO.iter().find(|spec| spec.name == name).ok_or_else(|| {
        let known = names().collect::<Vec<_>>().join(", ");
        format!("no such model{} there are {known}", sentence(&names::hint(name, names())))
    })
}

/// A hint, or what stands in for it, before more words.
pub fn sentence(hint: &str) -> String {
    if hint.is_empty() { ";".to_owned() } else { hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_not_there_is_refused() {
        assert!(device("cuda:1").unwrap_err().contains("allowed: cpu"));
        assert!(device("cpu:1").is_err() && device("tpu").is_err());
        assert!(precision("bf16").unwrap_err().contains("allowed: fp32"));
        assert!(threads("0").is_err() && threads("-2").is_err() && threads("x").is_err());
        assert_eq!(threads("3"), Ok(3));
    }

    #[test]
    fn models_have_hints() {
        assert_eq!(model("resnet50").unwrap().name, "resnet50");
        let error = model("resnet5").unwrap_err();
        assert!(error.starts_with("no such model; did you mean `resnet50`? there are resnet18, "), "{error}");
        assert!(model("transformer").unwrap_err().starts_with("no such model; there are resnet18"));
    }
}
