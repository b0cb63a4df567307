use crate::args::{Common, output_file};
use crate::output::{print, print_json, replace};
use anyhow::Context;
use bessemer_bench::peers::process::Runner;
use bessemer_bench::programme;
use bessemer_bench::show::{counted, seconds};
use bessemer_cuda::selftest::{Plan, run as run_plan};
use bessemer_train::{DeviceKind, StopSignal};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer gpu-selftest
  bessemer gpu-selftest --ordinal 1 --no-speed
  bessemer gpu-selftest --programme h200/                  nine minutes; the same command goes on with what is left";

/// Check a GPU and measure it: copies, the numbers and the speed of all kernels; prints JSON. With --programme also steps beside
/// those of the processors, and speeds beside predicted ones and beside PyTorch's, as a report
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "GPU")]
    pub ordinal: usize,
    /// Bytes of each copy that is measured
    #[arg(long, value_name = "N", default_value_t = 1 << 30, value_parser = bytes, help_heading = "GPU")]
    pub copy_bytes: usize,
    /// Folder of compiled kernels
    #[arg(long, value_name = "FOLDER", default_value = "cubins", help_heading = "GPU")]
    pub cubins: PathBuf,
    /// Write the JSON document to this file too, after each step: what was found is there whatever ends the test
    #[arg(long, value_name = "FILE", value_parser = output_file(), help_heading = "GPU")]
    pub out: Option<PathBuf>,
    /// Leave out the speed of kernels on large tensors
    #[arg(long, help_heading = "GPU")]
    pub no_speed: bool,
    /// Do all that is to be known of a GPU, the most important part first, into this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["copy_bytes", "cubins", "no_speed", "out"], help_heading = "Programme")]
    pub programme: Option<PathBuf>,
    /// Seconds of a call of the programme; parts for which it is too short are left to the next call
    #[arg(long, value_name = "SECONDS", default_value_t = 540, requires = "programme", help_heading = "Programme")]
    pub budget: u64,
    /// Parts of the programme that are done, such as machine,steps,resnet-50 [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "programme", help_heading = "Programme")]
    pub parts: Vec<String>,
    /// Python with PyTorch
    #[arg(long, value_name = "FILE", default_value = "python3", requires = "programme", help_heading = "Programme")]
    pub python: PathBuf,
    /// Models of the programme: the reference models, or small ones for a stand-in of a GPU
    #[arg(long, value_enum, default_value_t = Models::Reference, requires = "programme", help_heading = "Programme")]
    pub models: Models,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Models {
    Reference,
    Small,
}

fn bytes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|bytes| (1..=1 << 36).contains(bytes));
    number.ok_or_else(|| format!("a number from 1 to {}", 1u64 << 36))
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    if let Some(folder) = &options.programme {
        return run_programme(folder, options, common);
    }
    let plan = Plan {
        gpu_libraries: common.gpu_libraries.clone(),
        ordinal: options.ordinal,
        cubins: options.cubins.clone(),
        copy_bytes: options.copy_bytes,
        speed: !options.no_speed,
    };
    let mut unwritten = None;
    let test = run_plan(&plan, &mut |test| {
        let Some(step) = test.steps.last() else { return };
        let result = step.problem.as_ref().map_or_else(|| "passed".to_owned(), |problem| format!("failed: {problem}"));
        common.notify(&format!("{}: {result} in {}", step.name, seconds(step.seconds)));
        if let Some(path) = &options.out {
            let text = serde_json::to_string_pretty(test).expect("a self-test has string keys");
            unwritten = replace(path, &text).with_context(|| path.display().to_string()).err();
        }
    });
    print_json(&test)?;
    if let Some(error) = unwritten {
        return Err(error);
    }
    match test.failed() {
        0 => Ok(()),
        failed => {
            let steps = counted(test.steps.len() as u64, "step");
            anyhow::bail!("{failed} of {steps} failed; what failed has a `problem` above")
        }
    }
}

fn run_programme(folder: &Path, options: &Options, common: &Common) -> anyhow::Result<()> {
    let runner = Runner {
        program: std::env::current_exe().context("this program's own path is not known")?,
        stop: StopSignal::from_system(None)?,
    };
    let settings = programme::Options {
        folder: folder.to_owned(),
        device: DeviceKind::Cuda { index: options.ordinal },
        gpu_libraries: common.gpu_libraries.clone(),
        python: options.python.clone(),
        budget: Duration::from_secs(options.budget),
        small: options.models == Models::Small,
        parts: options.parts.clone(),
    };
    let summary = programme::run(&settings, &runner, &mut |line| common.notify(line))?;
    print(&format!("report    {}\n", summary.report.display()))?;
    if !summary.left.is_empty() {
        print(&format!("left      {}; the same command goes on with them\n", summary.left.join(", ")))?;
    }
    match summary.failed {
        0 => Ok(()),
        failed => anyhow::bail!("{failed} of {} parts failed; the report says why", summary.done),
    }
}
