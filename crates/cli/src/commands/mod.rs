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

use crate::args::{Cli, Command};
use crate::failure::Usage;
use bessemer_train::recipe::Compute;

pub(crate) fn run(cli: &Cli) -> anyhow::Result<()> {
    let common = &cli.common;
    let takes_several = match &cli.command {
        Command::Compare(_) => true,
        Command::Bench(options) => options.is_suite(),
        _ => false,
    };
    if common.precision.len() > 1 && !takes_several {
        return Err(Usage("--precision: several are for `compare` and `bench suite`".to_owned()).into());
    }
    common.check_options()?;
    if let Some(precision) = common.precisions().into_iter().find(|precision| precision.on(common.device).is_none()) {
        let allowed = Compute::all_on(common.device).map(Compute::name).collect::<Vec<_>>().join(", ");
        let (name, device) = (precision.name(), common.device);
        return Err(Usage(format!("--precision {name}: allowed on {device}: {allowed}")).into());
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

/// The command line as typed.
fn command_line() -> Vec<String> {
    std::env::args().collect()
}
