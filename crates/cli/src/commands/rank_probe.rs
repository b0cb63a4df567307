use crate::args::Common;
use crate::output::print_json;
use crate::ranks::RankArguments;
use bessemer_bench::doctor::RankLink;
use bessemer_train::DeviceKind;
use clap::Args;

/// Measure the link between two ranks that a launcher has started; `doctor` calls it
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub ranks: RankArguments,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let group = options.ranks.join("probe", DeviceKind::Cpu, common)?;
    let link = group.probe_link();
    let left = group.leave(link.as_ref().err());
    let link = link?;
    left?;
    match link {
        Some(link) => print_json(&RankLink { latency_s: link.latency, bytes_per_s: link.bandwidth }),
        None => Ok(()),
    }
}
