//! Results of comparisons as tables of text.

use super::Allowed;
use super::detections::AllowedDetections;
use super::journal::error_of;
use crate::measure::{CLIP_OPTION, ERROR_OPTION, ISA_OPTION, SYNTHETIC};
use crate::peers::load::QUIET;
use crate::peers::own;
use crate::report::fastest_other;
use crate::show;
use crate::workload::{DetectorOutputs, Mode};
use bessemer_train::events::{BenchResult, Comparison, Verdict};
use bessemer_train::recipe::Compute;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The results of one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Name of the group, as a headline.
    pub title: String,
    /// One row for each variant of a framework.
    pub rows: Vec<Row>,
    /// Footnotes; rows refer to them by number.
    pub notes: Vec<String>,
}

/// A framework's row.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub(crate) framework: String,
    pub(crate) version: String,
    pub(crate) fused: bool,
    pub(crate) batch_size: u64,
    /// Samples a second; empty where there are no figures, as are the columns below.
    pub(crate) throughput: String,
    pub(crate) spread: String,
    pub(crate) step_p50: String,
    pub(crate) step_p99: String,
    pub(crate) mfu: String,
    pub(crate) memory: String,
    /// Bessemer's speed over this one's, with the least and the largest of all rounds.
    pub(crate) ratio: String,
    pub(crate) work: &'static str,
    /// Numbers of notes, from 1.
    pub(crate) notes: Vec<usize>,
}

/// Titles of the columns.
pub const HEADER: [&str; 11] =
    ["framework", "speed", "Bessemer is", "work", "spread", "p50 ms", "p99 ms", "MFU", "memory", "batch", "fused"];

impl Row {
    /// Under [`HEADER`].
    pub fn cells(&self) -> [String; 11] {
        let marks: String = self.notes.iter().map(|note| format!(" [{note}]")).collect();
        [
            format!("{}{marks}", self.framework),
            self.throughput.clone(),
            self.ratio.clone(),
            self.work.to_owned(),
            self.spread.clone(),
            self.step_p50.clone(),
            self.step_p99.clone(),
            self.mfu.clone(),
            self.memory.clone(),
            self.batch_size.to_string(),
            if self.fused { "yes" } else { "no" }.to_owned(),
        ]
    }
}

/// A table for each group of the results, in their order.
pub fn tables(results: &[BenchResult]) -> Vec<Table> {
    groups(results).iter().map(|rows| table(rows)).collect()
}

/// The results of each group.
fn groups(results: &[BenchResult]) -> Vec<Vec<(&BenchResult, &Comparison)>> {
    let mut groups: Vec<(&str, Vec<(&BenchResult, &Comparison)>)> = Vec::new();
    for (result, comparison) in results.iter().filter_map(|result| Some((result, result.comparison.as_ref()?))) {
        match groups.iter_mut().find(|(group, _)| *group == comparison.group) {
            Some((_, rows)) => rows.push((result, comparison)),
            None => groups.push((&comparison.group, vec![(result, comparison)])),
        }
    }
    groups.into_iter().map(|(_, rows)| rows).collect()
}

/// The name of a form of a framework: `pytorch (eager)`.
pub fn label(result: &BenchResult) -> String {
    match result.comparison.as_ref().map(|comparison| comparison.variant.as_str()) {
        None | Some("") => result.framework.clone(),
        Some(variant) => format!("{} ({variant})", result.framework),
    }
}

/// A line for each group: what was measured, Bessemer's speed, its ratio to the fastest other framework, and which that is.
pub fn summary(results: &[BenchResult]) -> Vec<[String; 4]> {
    let line = |results: Vec<(&BenchResult, &Comparison)>| {
        let title = table(&results).title;
        let results: Vec<&BenchResult> = results.into_iter().map(|(result, _)| result).collect();
        let own = results.iter().filter(|result| result.framework == own::NAME && error_of(result).is_none());
        let own = own.max_by(|a, b| a.throughput.total_cmp(&b.throughput));
        let other = fastest_other(&results);
        [
            title,
            own.map_or_else(String::new, |own| show::significant(own.throughput, 4)),
            other.map_or_else(String::new, |(_, ratio)| {
                format!("{:.2} x ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max)
            }),
            other.map_or_else(String::new, |(other, _)| label(other)),
        ]
    };
    groups(results).into_iter().map(line).collect()
}

/// Columns of [`summary`].
pub const SUMMARY_HEADER: [&str; 4] = ["work", "Bessemer", "Bessemer is", "fastest other"];

/// Columns of [`frameworks`].
pub const FRAMEWORKS_HEADER: [&str; 4] = ["framework", "version", "forms", "options"];

/// What was compared: each version of a framework with its forms, and the options that are its own.
pub fn frameworks(results: &[BenchResult]) -> Vec<[String; 4]> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for result in results.iter().filter(|result| result.comparison.is_some()) {
        let version = (result.framework.as_str(), result.framework_version.as_str());
        if !version.1.is_empty() && !found.contains(&version) {
            found.push(version);
        }
    }
    // What the work is, every framework is given.
    let of_work: BTreeSet<&String> = results
        .iter()
        .filter(|result| result.framework == own::NAME)
        .flat_map(|result| result.options.keys())
        .collect();
    let row = |(framework, version): (&str, &str)| {
        let mut forms: Vec<&str> = Vec::new();
        let mut options: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for result in results.iter().filter(|r| r.framework == framework && r.framework_version == version) {
            let Some(comparison) = &result.comparison else { continue };
            let form = comparison.variant.as_str();
            if !forms.contains(&form) {
                forms.push(form);
            }
            let is_own = |name: &String| match framework == own::NAME {
                true => name == ISA_OPTION,
                false => name != ERROR_OPTION && !of_work.contains(name),
            };
            for (name, value) in result.options.iter().filter(|(name, _)| is_own(name)) {
                options.entry(format!("{name} {value}").replace('"', "")).or_default().insert(form);
            }
        }
        let option = |(option, of): (&String, &BTreeSet<&str>)| match of.len() == forms.len() {
            true => option.clone(),
            false => format!("{option} ({})", of.iter().copied().collect::<Vec<_>>().join(", ")),
        };
        let options = options.iter().map(option).collect::<Vec<_>>().join(", ");
        [framework.to_owned(), version.to_owned(), forms.join(", "), options]
    };
    found.into_iter().map(row).collect()
}

fn table(results: &[(&BenchResult, &Comparison)]) -> Table {
    let (first, comparison) = results[0];
    let work = show::work(first);
    let batch = match comparison.largest_batch {
        true => "largest batch that fits".to_owned(),
        false => format!("batch {}", first.batch_size),
    };
    let form = form(results);
    let title = format!("{}, {work}, {batch}, {}{form}: {}", first.model, first.precision, first.unit);
    let mut notes = Vec::new();
    let rows = results.iter().map(|(result, comparison)| row(result, comparison, &mut notes)).collect();
    Table { title, rows, notes }
}

/// What a group's title says of its forms and steps, where these are not the usual ones.
fn form(results: &[(&BenchResult, &Comparison)]) -> String {
    let (first, _) = results[0];
    let measured = || results.iter().filter(|(result, _)| error_of(result).is_none());
    let has_own = measured().any(|(result, _)| result.framework == own::NAME);
    let is_unfused = has_own && measured().all(|(_, comparison)| !comparison.fused);
    let is_training = first.mode == Mode::Train.name();
    let is_unclipped = is_training && first.options.get(CLIP_OPTION).is_some_and(|clip| *clip == false);
    [(is_unfused, ", op by op"), (is_unclipped, ", without clipping")]
        .into_iter()
        .filter_map(|(is, text)| is.then_some(text))
        .collect()
}

fn row(result: &BenchResult, comparison: &Comparison, notes: &mut Vec<String>) -> Row {
    let mut marks = Vec::new();
    let mut mark = |note: String| {
        let number = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
            notes.push(note);
            notes.len() - 1
        });
        marks.push(number + 1);
    };
    let mut row = Row {
        framework: label(result),
        version: result.framework_version.clone(),
        fused: comparison.fused,
        batch_size: result.batch_size,
        work: match comparison.work.verdict {
            Verdict::Same => "the same",
            Verdict::Different => "not the same",
            Verdict::Unchecked => "not checked",
        },
        ..Row::default()
    };
    if let Some(error) = error_of(result) {
        mark(error.to_owned());
        row.work = "";
        row.notes = marks;
        return row;
    }
    if let Some(note) = &comparison.work.note {
        mark(note.clone());
    }
    let busiest = result.runs.iter().filter_map(|run| run.others_busy).fold(0.0, f64::max);
    if busiest > QUIET {
        mark(format!("not a quiet machine: others used up to {} of the processors meanwhile", show::percent(busiest)));
    }
    row.throughput = show::significant(result.throughput, 4);
    row.spread = show::percent(result.spread);
    row.step_p50 = show::significant(result.step_ms.p50, 4);
    row.step_p99 = show::significant(result.step_ms.p99, 4);
    row.mfu = result.fraction_of_peak.map_or_else(String::new, show::percent);
    row.memory = result.peak_memory_bytes.map_or_else(String::new, show::bytes);
    if let Some(ratio) = comparison.ratio {
        row.ratio = match result.runs.len() {
            0 | 1 => format!("{:.2} x", ratio.median),
            _ => format!("{:.2} x ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max),
        };
    }
    row.notes = marks;
    row
}

/// How figures come about, with the distances that the check allows.
pub fn method(results: &[BenchResult]) -> String {
    let compared: Vec<&BenchResult> = results.iter().filter(|result| result.comparison.is_some()).collect();
    if compared.is_empty() {
        return String::new();
    }
    let between = |count: fn(&BenchResult) -> u64| {
        let counts = || compared.iter().map(|&result| count(result));
        match (counts().min().unwrap_or_default(), counts().max().unwrap_or_default()) {
            (least, most) if least == most => format!("{most}"),
            (least, most) => format!("{least} to {most}"),
        }
    };
    let allowed = |precision: Compute| {
        let Allowed { first, later, outputs, .. } = Allowed::of(precision);
        format!("{first:.0e}, {later:.0e} and {outputs:.0e}")
    };
    let with_detections = compared.iter().any(|result| show::outputs_of(result) == Some(DetectorOutputs::Detections));
    let with_masks =
        compared.iter().any(|result| result.comparison.as_ref().is_some_and(|compared| compared.work.masks.is_some()));
    let detections = |precision: Compute| {
        let AllowedDetections { scores, overlap, alone, masks } = Allowed::of(precision).detections;
        let [overlap, alone, masks] = [overlap, alone, masks].map(show::percent);
        let masks = if with_masks { format!(", whose masks overlap by {masks} on average") } else { String::new() };
        format!("sorted scores {scores:.0e} (relative L2), and {alone} without a partner of {overlap} overlap{masks}")
    };
    let with_network = compared.iter().any(|result| show::outputs_of(result) == Some(DetectorOutputs::Network));
    let network = match with_network {
        true => {
            let [exact, rounded] = [Compute::Fp32, Compute::Bf16].map(|precision| Allowed::of(precision).network);
            format!(" Outputs of a detector's network, about their mean: {exact:.0e}; in 16 bits {rounded:.0e}.")
        }
        false => String::new(),
    };
    let detections = match with_detections {
        true => format!(
            " Of detections, as sets: in fp32 {}; in 16 bits {}.",
            detections(Compute::Fp32),
            detections(Compute::Bf16)
        ),
        false => String::new(),
    };
    let is_random = compared.iter().all(|result| result.data == SYNTHETIC);
    let inputs = if is_random { " Inputs are random numbers, drawn before the first step." } else { "" };
    format!(
        "A fresh process each, in turn, {} threads; {} steps after {} that do not count, {} rounds. Speeds are medians over rounds, \
         spread is (largest - least) / median, ratios are Bessemer's speed over the other's within one round: above 1 Bessemer is \
         faster.{inputs} The same work: from the same weights on the same batches, without dropout, the first loss, the losses after up \
         to three updates, and outputs (relative L2) are within {} of Bessemer's in fp32, within {} in 16 bits.{network}{detections} What \
         is not the same work gets no ratio.",
        between(|result| result.threads),
        between(|result| result.steps),
        between(|result| result.warmup),
        between(|result| result.repeat),
        allowed(Compute::Fp32),
        allowed(Compute::Bf16),
    )
}
