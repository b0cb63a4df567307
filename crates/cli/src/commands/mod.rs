//! One file for each command: its options, and what it calls and prints.

mod ask;
pub(crate) mod bench;
pub(crate) mod bench_data;
pub(crate) mod bench_kernels;
pub(crate) mod bench_scaling;
pub(crate) mod bench_simulator;
mod bench_suite;
pub(crate) mod compare;
pub(crate) mod data;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod explain;
mod frames;
pub(crate) mod gpu_selftest;
pub(crate) mod infer;
pub(crate) mod launch;
pub(crate) mod models;
pub(crate) mod peer;
pub(crate) mod peers;
pub(crate) mod quickstart;
pub(crate) mod rank_probe;
pub(crate) mod report;
pub(crate) mod score;
mod seeds;
pub(crate) mod train;
pub(crate) mod weights;

use crate::args::{Cli, Command, Common};
use crate::failure::Usage;
use bessemer_bench::machine::field;
use bessemer_train::recipe::Compute;
use bessemer_train::tasks::registry::{self, ZooModel};
use std::fs;
use std::path::Path;

pub(crate) fn run(cli: &Cli) -> anyhow::Result<()> {
    let common = &cli.common;
    let takes_several = match &cli.command {
        Command::Compare(_) => true,
        Command::Bench(options) => options.takes_several_precisions(),
        _ => false,
    };
    if common.precision.len() > 1 && !takes_several {
        return Err(Usage(
            "--precision: several are for `bench train`, `bench infer`, `bench suite` and `compare`".to_owned(),
        )
        .into());
    }
    common.check_options()?;
    let common = &with_precision(common, &cli.command)?;
    if let Some(precision) =
        common.precisions().into_iter().find(|precision| precision.on(common.device_kind()).is_none())
    {
        let allowed = Compute::all_on(common.device_kind()).map(Compute::name).collect::<Vec<_>>().join(", ");
        let (name, device) = (precision.name(), common.device_kind());
        return Err(Usage(format!("--precision {name}: allowed on {device}: {allowed}")).into());
    }
    if common.device.is_none()
        && computes(&cli.command)
        && let Some(gpu) = idle_gpu(Path::new("/proc/driver/nvidia/gpus"))
    {
        common.notify(&format!(
            "note: this runs on the processors; --device cuda runs it on the GPU of this machine ({gpu})"
        ));
    }
    match &cli.command {
        Command::Quickstart(options) => quickstart::run(options, common),
        Command::Doctor(options) => doctor::run(options, common),
        Command::Models(options) => models::run(options),
        Command::Explain(options) => explain::run(options, common),
        Command::Train(options) => train::run(options, common),
        Command::Launch(options) => launch::run(options, common),
        Command::Eval(options) => eval::run(options, common),
        Command::Infer(options) => infer::run(options, common),
        Command::Bench(options) => bench::run(options, common),
        Command::Compare(options) => compare::run(options, common),
        Command::Peers(options) => peers::run(options, common),
        Command::Peer(options) => peer::run(options, common),
        Command::RankProbe(options) => rank_probe::run(options, common),
        Command::Report(options) => report::run(options),
        Command::Score(options) => score::run(options, common),
        Command::Data(options) => data::run(options, common),
        Command::Weights(options) => weights::run(options, common),
        Command::GpuSelftest(options) => gpu_selftest::run(options, common),
    }
}

/// Whether a command computes on one device, which may be a GPU.
fn computes(command: &Command) -> bool {
    match command {
        Command::Train(_) | Command::Eval(_) | Command::Infer(_) => true,
        Command::Bench(options) => options.model().is_some(),
        _ => false,
    }
}

/// The product name of a GPU by NVIDIA's driver, which has a folder for each.
fn idle_gpu(folder: &Path) -> Option<String> {
    let mut gpus = fs::read_dir(folder).ok()?.flatten();
    gpus.find_map(|gpu| field(gpu.path().join("information"), "Model"))
}

/// The command line as typed.
pub(crate) fn command_line() -> Vec<String> {
    std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect()
}

/// The common options with the precision that --amp stands for.
fn with_precision(common: &Common, command: &Command) -> anyhow::Result<Common> {
    let mut common = common.clone();
    if common.amp {
        common.amp = false;
        let model = model_of(command, &common)?;
        common.precision =
            vec![model.map_or(Compute::Bf16, |model| model.family().mixed_precision(common.device_kind()))];
    }
    Ok(common)
}

/// The model that a command is about, where it is about one.
fn model_of(command: &Command, common: &Common) -> anyhow::Result<Option<ZooModel>> {
    Ok(match command {
        Command::Train(options) => Some(registry::find(&train::recipe(options, common)?.model.name)?),
        Command::Explain(options) => Some(options.model),
        Command::Eval(options) => Some(options.model),
        Command::Infer(options) => Some(options.model),
        Command::Bench(options) => options.model(),
        Command::Compare(options) => options.model,
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_the_name_of_its_driver() {
        let folder = tempfile::TempDir::new().unwrap();
        assert_eq!(idle_gpu(&folder.path().join("absent")), None);
        assert_eq!(idle_gpu(folder.path()), None);
        let gpu = folder.path().join("0000:01:00.0");
        fs::create_dir(&gpu).unwrap();
        fs::write(gpu.join("information"), "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\n").unwrap();
        assert_eq!(idle_gpu(folder.path()).as_deref(), Some("NVIDIA H200"));
    }
}
