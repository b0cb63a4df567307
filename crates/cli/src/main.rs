//! The `bessemer` command.
#![forbid(unsafe_code)]

mod args;
mod class_table;
mod commands;
#[cfg(test)]
mod documents;
mod failure;
mod names;
mod output;
mod ranks;

use args::Cli;
use bessemer_comm::engine::has_failed;
use bessemer_comm::mpi::end_at_once;
use clap::FromArgMatches;
use clap::error::ErrorKind;
use std::process::ExitCode;

fn main() -> ExitCode {
    ranks::open_error_pipe();
    let matches = args::command().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return explain_command_line(&error),
    };
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = failure::exit_code(&error);
            ranks::tell_error(code, &failure::one_line(&error));
            if has_failed() {
                end_at_once(code);
            }
            ExitCode::from(code)
        }
    }
}

/// Help and version as they are; errors in one line.
fn explain_command_line(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { failure::USAGE } else { 0 })
        }
        _ => {
            let mut said = failure::command_line(&error.render().to_string());
            if error.kind() == ErrorKind::InvalidSubcommand && !said.contains("tip: ") {
                let names = args::subcommands_of(commands::command_line().into_iter().skip(1));
                said = said.replace("; see --help", &format!("; there are {}; see --help", names.join(", ")));
            }
            eprintln!("{said}");
            ExitCode::from(failure::USAGE)
        }
    }
}
