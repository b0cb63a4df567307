//! Questions about a text: given on the command line, or asked one after the other.

use super::infer::{Form, Lines, progress_line};
use crate::args::Common;
use crate::failure::Usage;
use crate::output::print;
use anyhow::bail;
use bessemer_data::read_text;
use bessemer_train::tasks::family::InputKind;
use bessemer_train::tasks::infer::Predictor;
use clap::Args;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

/// What is asked about which text.
#[derive(Debug, Args)]
pub(crate) struct Questions {
    /// A question about the text; as often as needed [default: read from standard input, one a line]
    #[arg(long, value_name = "TEXT", help_heading = "Questions")]
    pub question: Vec<String>,
    /// The text that is asked about
    #[arg(long, value_name = "TEXT", conflicts_with = "file", help_heading = "Questions")]
    pub context: Option<String>,
    /// A file with the text
    #[arg(long, value_name = "FILE", help_heading = "Questions")]
    pub file: Option<PathBuf>,
}

impl Questions {
    /// An option that is given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let options = [
            ("--question", !self.question.is_empty()),
            ("--context", self.context.is_some()),
            ("--file", self.file.is_some()),
        ];
        options.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    pub(crate) fn text(&self) -> anyhow::Result<String> {
        match (&self.context, &self.file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(path)) => Ok(read_text(path)?),
            (None, None) => bail!(Usage("no text to ask about: give --context TEXT or --file FILE".to_owned())),
        }
    }
}

/// Answers questions from standard input, one a line, to its end; as JSON an object a line.
pub(super) fn converse(predictor: &mut dyn Predictor, form: Form, common: &Common) -> anyhow::Result<()> {
    let mut lines = Lines::new(form);
    let input = io::stdin().lock();
    let is_person = input.is_terminal() && io::stderr().is_terminal();
    let prompt = || {
        if is_person {
            eprint!("question: ")
        }
    };
    prompt();
    let mut asked = false;
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.map_err(|error| Usage(format!("standard input: line {number}: {error}")))?;
        if !line.trim().is_empty() {
            asked = true;
            let notify = common.notifier();
            let notify = |done: usize, all: usize| notify(&|| progress_line(InputKind::Questions, done, all));
            for answer in predictor.predict(&[line.trim().to_owned()], &notify)? {
                print(&lines.of(&answer?)?)?;
            }
        }
        prompt();
    }
    if !asked && !is_person {
        bail!(Usage("no question: give --question TEXT, or lines on standard input".to_owned()));
    }
    Ok(())
}
