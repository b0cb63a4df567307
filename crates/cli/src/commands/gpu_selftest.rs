use crate::args::Common;
use crate::output::print_json;
use bessemer_cuda::selftest::{Plan, run as run_plan};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer gpu-selftest
  bessemer gpu-selftest --ordinal 1 --no-speed";

/// Check a GPU and measure it: copies, the numbers and the speed of all kernels; prints JSON
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
    /// Leave out the speed of kernels on large tensors
    #[arg(long, help_heading = "GPU")]
    pub no_speed: bool,
}

fn bytes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|bytes| (1..=1 << 36).contains(bytes));
    number.ok_or_else(|| format!("a number from 1 to {}", 1u64 << 36))
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let test = run_plan(&Plan {
        gpu_libraries: common.gpu_libraries.clone(),
        ordinal: options.ordinal,
        cubins: options.cubins.clone(),
        copy_bytes: options.copy_bytes,
        speed: !options.no_speed,
    });
    print_json(&test)?;
    match test.failed() {
        0 => Ok(()),
        failed => anyhow::bail!("{failed} of {} steps failed; they have a `problem` above", test.steps.len()),
    }
}
