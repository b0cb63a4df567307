mod coco;
mod squad;

use crate::args::Common;
use clap::{Args, Subcommand};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer score squad --data dev-v1.1.json --predictions predictions.json
  bessemer score coco --data instances_val2017.json --predictions results.json
  bessemer score coco --data instances_val2017.json --predictions results.json --kind segm --classes";

/// Score files of predictions as the official scripts do, without any model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Squad(squad::Options),
    Coco(coco::Options),
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    match &options.command {
        Command::Squad(options) => squad::run(options, common),
        Command::Coco(options) => coco::run(options, common),
    }
}
