use crate::args::Common;
use crate::failure::Usage;
use crate::output::{Table, print, print_json};
use anyhow::bail;
use bessemer_data::squad::{Question, SquadSet, Version, read_no_answer_probabilities, read_predictions};
use bessemer_metrics::MetricError;
use bessemer_metrics::squad::{
    Gold, NoAnswerProbabilities, Predicted, ScoresV1, ScoresV2, Shares, score_v1, score_v2, unknown_questions,
};
use clap::Args;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer score squad --data dev-v1.1.json --predictions predictions.json
  bessemer score squad --data dev-v2.0.json --predictions predictions.json --na-prob null_odds.json --json
  bessemer score squad --data dev-v2.0.json --predictions predictions.json --na-prob null_odds.json --na-share 0.33";

/// Exact match and F1 of answers to the questions of SQuAD 1.1 or 2.0
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The questions with their right answers, as dev-v1.1.json or dev-v2.0.json
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub data: PathBuf,
    /// The answers: {"id": "text"}
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub predictions: PathBuf,
    /// How likely each question has no answer (2.0): {"id": number}
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub na_prob: Option<PathBuf>,
    /// The number above which an answer counts as not given
    #[arg(
        long,
        value_name = "P",
        default_value = "1.0",
        allow_negative_numbers = true,
        requires = "na_prob",
        help_heading = "Input"
    )]
    pub na_prob_thresh: f64,
    /// The share of the questions, from 0 to 1, that count as not answered, those with the greatest numbers: the same for
    /// models that answer more or less readily
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = share,
        allow_negative_numbers = true,
        requires = "na_prob",
        conflicts_with = "na_prob_thresh",
        help_heading = "Input"
    )]
    pub na_share: Option<f64>,
    /// Print JSON with all digits instead of a table, under the names of the official scripts
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(super) fn run(options: &Options, common: &Common) -> anyhow::Result<()> {
    let set = SquadSet::open(&options.data)?;
    let predictions = read_predictions(&options.predictions)?;
    let predicted: Predicted<'_> = predictions.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    let gold: Vec<Gold<'_>> = set.questions().iter().map(gold).collect();
    tell_misplaced(&set, &options.data, common);
    tell_unknown(&gold, predicted.keys().copied(), &options.predictions, common);
    match set.version() {
        Version::V1 => {
            if options.na_prob.is_some() {
                bail!(Usage(format!("--na-prob is for SQuAD 2.0, and {} is of 1.1", options.data.display())));
            }
            let scores = score_v1(&gold, &predicted).map_err(|error| usage(options, &error))?;
            tell_missing(scores.missing, &options.predictions, common);
            if options.json { print_json(&json_v1(&scores)) } else { print(&text_v1(&scores)) }
        }
        Version::V2 => {
            let probabilities = options.na_prob.as_deref().map(read_no_answer_probabilities).transpose()?;
            let by_question: Option<Vec<(&str, f64)>> =
                probabilities.as_ref().map(|entries| entries.iter().map(|(id, p)| (id.as_str(), *p)).collect());
            let ids = || by_question.iter().flatten().map(|&(id, _)| id);
            let unknown = options.na_prob.as_deref().map(|path| tell_unknown(&gold, ids(), path, common));
            let threshold = match options.na_share {
                None => options.na_prob_thresh,
                Some(share) => {
                    let unknown: HashSet<&str> = unknown.into_iter().flatten().collect();
                    let known = by_question.iter().flatten().filter(|(id, _)| !unknown.contains(id));
                    let threshold = threshold_of(share, known.map(|&(_, p)| p).collect());
                    common.notify(&format!("threshold {threshold}"));
                    threshold
                }
            };
            let no_answer = by_question.as_deref().map(|by_question| NoAnswerProbabilities { by_question, threshold });
            let scores = score_v2(&gold, &predicted, no_answer).map_err(|error| usage(options, &error))?;
            tell_missing(scores.missing, &options.predictions, common);
            if options.json { print_json(&json_v2(&scores)) } else { print(&text_v2(&scores)) }
        }
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

/// The number above which there are so many, or fewer where some are equal.
fn threshold_of(share: f64, mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(|a, b| b.total_cmp(a));
    let above = (share * numbers.len() as f64).round() as usize;
    numbers.get(above).copied().unwrap_or(f64::NEG_INFINITY)
}

fn gold(question: &Question) -> Gold<'_> {
    Gold { id: &question.id, answers: question.answers.iter().map(|answer| answer.text.as_str()).collect() }
}

/// What the metric refuses is in one of the files.
fn usage(options: &Options, error: &MetricError) -> Usage {
    let files = [Some(&options.data), Some(&options.predictions), options.na_prob.as_ref()];
    let names: Vec<String> = files.into_iter().flatten().map(|path| path.display().to_string()).collect();
    Usage(format!("{error} ({})", names.join(", ")))
}

fn tell_misplaced(set: &SquadSet, data: &Path, common: &Common) {
    if let Some(first) = set.misplaced().first() {
        common.warn(&format!(
            "warning: {}: {} of the answers are not at their answer_start, such as {}: `{}` at {}",
            data.display(),
            set.misplaced().len(),
            first.place,
            first.text,
            first.start
        ));
    }
}

fn tell_missing(missing: usize, predictions: &Path, common: &Common) {
    if missing > 0 {
        let path = predictions.display();
        common.warn(&format!("warning: {path}: {missing} of the questions have no prediction, which counts as wrong"));
    }
}

/// Says how many entries of a file are for questions that the data do not have; these are returned.
fn tell_unknown<'a>(
    gold: &[Gold<'_>],
    ids: impl Iterator<Item = &'a str>,
    path: &Path,
    common: &Common,
) -> Vec<&'a str> {
    let unknown = unknown_questions(gold, ids);
    if let Some(first) = unknown.first() {
        let (path, count) = (path.display(), unknown.len());
        common.warn(&format!(
            "warning: {path}: {count} of the entries are for questions that the data do not have, such as `{first}`; they \
             count for nothing"
        ));
    }
    unknown
}

fn json_v1(scores: &ScoresV1) -> Value {
    let ScoresV1 { all: Shares { exact, f1, total, .. }, missing, unknown } = scores;
    json!({"exact_match": exact, "f1": f1, "total": total, "missing": missing, "unknown": unknown})
}

fn json_v2(scores: &ScoresV2) -> Value {
    let ScoresV2 { all, has_answer, no_answer, best, missing, unknown } = scores;
    let mut json = json!({"exact": all.exact, "f1": all.f1, "total": all.total});
    for (group, shares) in [("HasAns", has_answer), ("NoAns", no_answer)] {
        if let Some(Shares { exact, f1, total, .. }) = shares {
            json[format!("{group}_exact")] = json!(exact);
            json[format!("{group}_f1")] = json!(f1);
            json[format!("{group}_total")] = json!(total);
        }
    }
    if let Some(best) = best {
        json["best_exact"] = json!(best.exact);
        json["best_exact_thresh"] = json!(best.exact_threshold);
        json["best_f1"] = json!(best.f1);
        json["best_f1_thresh"] = json!(best.f1_threshold);
    }
    json["missing"] = json!(missing);
    json["unknown"] = json!(unknown);
    json
}

fn text_v1(scores: &ScoresV1) -> String {
    let mut table = Table::new(1, &["SQuAD 1.1", "questions", "exact match", "F1"]);
    table.row(cells("all", &scores.all));
    table.to_string()
}

fn text_v2(scores: &ScoresV2) -> String {
    let mut table = Table::new(1, &["SQuAD 2.0", "questions", "exact match", "F1"]);
    table.row(cells("all", &scores.all));
    for (name, shares) in [("with an answer", &scores.has_answer), ("without one", &scores.no_answer)] {
        if let Some(shares) = shares {
            table.row(cells(name, shares));
        }
    }
    let mut text = table.to_string();
    if let Some(best) = &scores.best {
        text += &format!("best exact match {:.3} at threshold {}\n", best.exact, best.exact_threshold);
        text += &format!("best F1 {:.3} at threshold {}\n", best.f1, best.f1_threshold);
    }
    text
}

fn cells(name: &str, shares: &Shares) -> [String; 4] {
    [name.to_owned(), shares.total.to_string(), format!("{:.3}", shares.exact), format!("{:.3}", shares.f1)]
}
