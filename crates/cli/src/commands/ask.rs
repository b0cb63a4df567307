//! Questions about a text: given on the command line, or asked one after the other.

use super::infer;
use crate::args::Common;
use crate::failure::Usage;
use crate::output::{Table, print};
use anyhow::bail;
use bessemer_bench::show;
use bessemer_train::tasks::squad::{Answered, AskOptions, Reader};
use clap::Args;
use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

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

    fn text(&self) -> anyhow::Result<String> {
        match (&self.context, &self.file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(path)) => fs::read_to_string(path)
                .map_err(|error| Usage(format!("{}: cannot read the text: {error}", path.display())).into()),
            (None, None) => bail!(Usage("no text to ask about: give --context TEXT or --file FILE".to_owned())),
        }
    }
}

pub(super) fn run(options: &infer::Options, weights: &Path, common: &Common) -> anyhow::Result<()> {
    let text = options.questions.text()?;
    let settings = AskOptions {
        compute: common.compute_told(),
        top_k: options.top,
        vocab: options.vocab.clone(),
        ..AskOptions::default()
    };
    let mut reader = Reader::open(options.model.name(), weights, &settings)?;
    let questions: Vec<&str> = options.questions.question.iter().map(String::as_str).collect();
    if questions.is_empty() {
        return converse(&mut reader, &text, options.json, common);
    }
    let tell = common.teller();
    let tell = |done: usize, all: usize| tell(&|| windows_line(done, all));
    infer::show_each(reader.ask(&text, &questions, &tell)?, options.json, |answers| answers.iter().map(shown).collect())
}

/// Answers questions from standard input, one a line, to its end; as JSON an object a line.
fn converse(reader: &mut Reader, text: &str, json: bool, common: &Common) -> anyhow::Result<()> {
    let input = io::stdin().lock();
    let is_person = input.is_terminal() && io::stderr().is_terminal();
    let prompt = || {
        if is_person {
            eprint!("question: ")
        }
    };
    prompt();
    for (number, line) in (1..).zip(input.lines()) {
        let line = line.map_err(|error| Usage(format!("standard input: line {number}: {error}")))?;
        if !line.trim().is_empty() {
            let tell = common.teller();
            let tell = |done: usize, all: usize| tell(&|| windows_line(done, all));
            for answer in reader.ask(text, &[line.trim()], &tell)? {
                let answer = answer?;
                print(&if json { serde_json::to_string(&answer)? + "\n" } else { shown(&answer) })?;
            }
        }
        prompt();
    }
    Ok(())
}

fn windows_line(done: usize, all: usize) -> String {
    format!("read {done} of {all} windows of the text")
}

/// What stands for an empty answer.
const NO_ANSWER: &str = "(no answer)";

fn shown(answered: &Answered) -> String {
    let mut table = Table::new(1, &[]);
    let name = |text: &str| if text.is_empty() { NO_ANSWER.to_owned() } else { text.to_owned() };
    for candidate in &answered.candidates {
        table.row([format!("  {}", name(&candidate.text)), show::percent(candidate.probability)]);
    }
    let score = answered.no_answer_score.map_or_else(String::new, |score| format!("  (score of no answer {score:.2})"));
    format!("{}\n{}{score}\n{table}", answered.question, name(&answered.answer))
}
