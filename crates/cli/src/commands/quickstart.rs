use super::command_line;
use crate::args::{Common, output_folder};
use crate::output::print;
use anyhow::bail;
use bessemer_bench::quickstart::{self, TARGET_ACCURACY};
use bessemer_bench::show;
use bessemer_train::StopSignal;
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer quickstart
  bessemer quickstart --out /tmp/runs --quiet";

/// See it work: look at this machine, train a small model, measure a large one, write a report with pictures
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Folder in which the folder of results is made
    #[arg(long, value_name = "DIR", value_parser = output_folder(), default_value = "runs", help_heading = "Output")]
    pub out: PathBuf,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    common.only_cpu("quickstart")?;
    let request = quickstart::Options {
        parent: options.out.clone(),
        compute: common.compute(),
        seed: common.seed(),
        progress: common.progress(),
        stop: StopSignal::from_system(None)?,
        command: command_line(),
    };
    let outcome = quickstart::run(&request, |line| common.notify(line))?;
    let right = outcome.samples.iter().filter(|sample| sample.is_right()).count();
    print(&format!(
        "accuracy  {} of pictures not trained on ({right} of {} in the report)\ntime      {}\nreport    {}\n",
        show::percent(outcome.accuracy),
        outcome.samples.len(),
        show::seconds(outcome.seconds),
        outcome.report.display()
    ))?;
    if !outcome.reached_target() {
        let (accuracy, target) = (show::percent(outcome.accuracy), show::percent(TARGET_ACCURACY));
        bail!("the model reached {accuracy}, at least {target} was expected; the report has its curves");
    }
    Ok(())
}
