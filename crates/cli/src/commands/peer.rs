use crate::args::Common;
use crate::failure::Coded;
use crate::output::print;
use crate::ranks::RankArguments;
use anyhow::Context;
use bessemer_bench::measure::{self, MeasureError, Repeat};
use bessemer_bench::peers::own::{self, OwnError};
use bessemer_bench::peers::process::guard;
use bessemer_bench::peers::protocol::{MEMORY_STATUS, Prepared, UNSUPPORTED_STATUS, VERSION};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};

/// Do as a peer does: what comparisons call
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Print what Bessemer can do
    Describe,
    /// Nothing: Bessemer compiles in each process
    Prepare { request: PathBuf },
    /// Run the work of a request
    Run { request: PathBuf },
    /// Measure as `bench` does, once
    Bench {
        request: PathBuf,
        #[command(flatten)]
        ranks: RankArguments,
    },
    /// Run a program that ends when whoever called it is gone
    Guard {
        /// Processors to keep it to
        #[arg(long, value_name = "N")]
        processors: Option<usize>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    match &options.what {
        What::Describe => answer(&own::describe()?),
        What::Prepare { request } => {
            read::<bessemer_bench::peers::protocol::Request>(request)?;
            answer(&Prepared { protocol: VERSION })
        }
        What::Run { request } => match own::run(&read(request)?) {
            Ok(found) => answer(&found),
            Err(error) => Err(coded(error)),
        },
        What::Bench { request, ranks } => bench(&read(request)?, ranks, common),
        What::Guard { processors, command } => match guard(command, *processors)? {
            0 => Ok(()),
            code => std::process::exit(code.into()),
        },
    }
}

fn bench(request: &measure::Request, ranks: &RankArguments, common: &Common) -> anyhow::Result<()> {
    let group = ranks.join(&serde_json::to_string(request)?, request.device.kind, common)?;
    let leads = group.leads();
    if group.size() == 1 {
        return Repeat::here(request).map_err(|error| coded(error.into())).and_then(|repeat| answer(&repeat));
    }
    let repeat = Repeat::of_rank(request, &group);
    let left = group.leave(repeat.as_ref().err());
    match repeat.and_then(|repeat| left.map(|()| repeat)) {
        Ok(repeat) if leads => answer(&repeat),
        Ok(_) => Ok(()),
        Err(error) => Err(coded(MeasureError::from(error).into())),
    }
}

fn coded(error: OwnError) -> anyhow::Error {
    let code = match &error {
        OwnError::Measure(measure) if measure.is_out_of_memory() => MEMORY_STATUS,
        OwnError::Unsupported { .. } => UNSUPPORTED_STATUS,
        _ => return error.into(),
    };
    Coded { code, message: error.to_string() }.into()
}

fn answer(value: &impl Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string(value)? + "\n"))
}

fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}: is no request", path.display()))
}
