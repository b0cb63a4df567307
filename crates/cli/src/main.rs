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

use bessemer_comm::engine::has_failed;
use bessemer_comm::mpi::end_at_once;
use std::process::ExitCode;

fn main() -> ExitCode {
    ranks::open_error_pipe();
    let cli = match args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let words = commands::command_line().into_iter().skip(1);
            return ExitCode::from(failure::tell_command_line(&error, words));
        }
    };
    ranks::choose_form_of_errors(cli.common.log_format);
    match commands::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = failure::exit_code(&error);
            // Rank 0 reports the interruption of all ranks: it knows what was saved.
            if code != failure::INTERRUPTED || !ranks::is_follower() {
                ranks::tell_error(code, &failure::one_line(&error));
            }
            if has_failed() {
                end_at_once(code);
            }
            // The process that started the ranks has read the exit code; a launcher of MPI would report a failure.
            match code == failure::INTERRUPTED && ranks::is_started_here() {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(code),
            }
        }
    }
}
