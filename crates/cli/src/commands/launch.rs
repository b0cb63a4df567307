use crate::args::{self, Common, at_least_one};
use crate::failure::{INTERRUPTED, USAGE, Usage, tell_command_line};
use crate::ranks::{MpiArgument, STOPS_AND_SAVES, Start, device_of, run_ranks};
use anyhow::bail;
use bessemer_comm::launch::{Placement, process_variables};
use bessemer_train::{RunDir, StopSignal};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer launch -n 2 -- train resnet20-cifar --data shapes --set train.accumulation=2
  bessemer launch -n 4 --mpi mpich -- train bert-base --data text/ --set train.accumulation=8 --out runs/bert
  bessemer launch -n 8 -- train bert-base --data text/ --device cuda --set train.accumulation=8
  bessemer launch -n 2 --restarts 3 -- train resnet50 --data imagenet/ --set train.accumulation=4 --out runs/resnet50";

/// Start a command on several ranks of this machine
///
/// The ranks are started by the launcher of the MPI that is found, so that none of its flags need be known; with `--device cuda` in the
/// command here, each with a GPU. On several machines use mpirun, mpiexec, srun or torchrun themselves, which `bessemer` recognises.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Number of ranks
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub ranks: usize,
    #[command(flatten)]
    pub mpi: MpiArgument,
    /// How often to resume a training run that fails; needs --out or --resume in the command
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub restarts: u32,
    /// The command with its options, such as `train resnet50 --data imagenet/`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub(crate) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    if let Some(launcher) = Placement::from_variables(&process_variables())?.launcher {
        bail!(Usage(format!(
            "this process was started by {}, which starts the ranks: leave out `launch`",
            launcher.title()
        )));
    }
    let mut command = options.command.clone();
    let resumed = resumed(&command);
    if options.restarts > 0 && resumed.is_none() {
        bail!(Usage(
            "--restarts resumes training runs: the command must be `train` with --out DIR or --resume DIR".to_owned()
        ));
    }
    // Each rank would say the same.
    if let Err(error) = args::parse(std::iter::once("bessemer".into()).chain(command.iter().cloned())) {
        let words = command.iter().map(|word| word.to_string_lossy().into_owned());
        std::process::exit(tell_command_line(&error, words).into());
    }
    let mut restarts = options.restarts;
    let stop = StopSignal::from_system(common.stop_notice(STOPS_AND_SAVES))?;
    loop {
        let start = Start { ranks: options.ranks, mpi: &options.mpi, device: device_of(&command) };
        let code = run_ranks(&start, &command, &stop, common)?;
        let may_help = ![0, i32::from(USAGE), i32::from(INTERRUPTED)].contains(&code);
        if restarts == 0 || !may_help || stop.is_raised() {
            std::process::exit(code);
        }
        restarts -= 1;
        let resumed = resumed.as_ref().filter(|resumed| RunDir::is_run(&resumed.run));
        let goes_on = if resumed.is_some() { "is resumed" } else { "starts over, as it has no run yet" };
        common.notify(&format!("the job ended with code {code}; it {goes_on}, {restarts} more restarts are left"));
        if let Some(resumed) = resumed {
            command.clone_from(&resumed.command);
        }
    }
}

/// How a job goes on.
struct Resumed {
    /// Folder of its run.
    run: PathBuf,
    command: Vec<OsString>,
}

/// The command that goes on with the run that `train` makes in a known folder.
fn resumed(command: &[OsString]) -> Option<Resumed> {
    /// Options that say how a new run begins, each with a value.
    const OF_NEW_RUNS: [&str; 4] = ["--recipe", "--weights", "--init-from", "--checkpoint"];
    let is_training = command.first().is_some_and(|name| name == "train");
    let mut run = None;
    let mut resumed = Vec::new();
    let mut rest = command.iter().map(|argument| argument.to_string_lossy().into_owned());
    while let Some(argument) = rest.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name.to_owned(), Some(value.to_owned())),
            _ => (argument.clone(), None),
        };
        match name.as_str() {
            "--out" | "--resume" => {
                let folder = value.or_else(|| rest.next())?;
                run = Some(PathBuf::from(&folder));
                resumed.extend(["--resume".to_owned(), folder]);
            }
            name if OF_NEW_RUNS.contains(&name) => drop(value.or_else(|| rest.next())),
            _ => resumed.push(argument),
        }
    }
    let command = resumed.into_iter().map(OsString::from).collect();
    run.filter(|_| is_training).map(|run| Resumed { run, command })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::path::Path;

    #[test]
    fn a_run_in_a_known_folder_can_be_resumed() {
        let of = |text: &str| {
            let resumed = resumed(&text.split(' ').map(OsString::from).collect::<Vec<_>>())?;
            assert_eq!(resumed.run, Path::new("r"));
            Some(resumed.command.join(OsStr::new(" ")).into_string().unwrap())
        };
        let expected = Some("train resnet50 --data d --resume r --set a=b".to_owned());
        assert_eq!(of("train resnet50 --data d --recipe x --out r --set a=b"), expected);
        assert_eq!(of("train resnet50 --data d --weights=w --out=r --set a=b"), expected);
        assert_eq!(of("train --resume r"), Some("train --resume r".to_owned()));
        assert_eq!(of("train resnet50 --data d"), None);
        assert_eq!(of("eval resnet50 --out d"), None);
    }
}
