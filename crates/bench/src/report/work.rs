//! What makes the work of a measurement another one than that of others, and the columns of a table that say so.

use crate::compare::table::label;
use crate::measure::{BUDGET_OPTION, CLIP_OPTION, INTERRUPTED_OPTION, ISA_OPTION, SYNTHETIC};
use crate::show;
use bessemer_train::events::BenchResult;
use std::collections::{BTreeMap, BTreeSet};

/// Types of numbers that compute, in the order of columns: those of 32 bits, and those of 16.
pub(super) const WIDE: [&str; 2] = ["fp32", "tf32"];
pub(super) const NARROW: [&str; 2] = ["bf16", "fp16"];

const SEQUENCE_LENGTH: &str = "sequence_length";
const ACCUMULATION: &str = "accumulation";
/// What the inference of a detector ends with, which tables say beside the model.
const OUTPUTS: &str = "outputs";

/// What was done, and on what; measurements of one work differ in the type of numbers and in their speed alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work {
    pub model: String,
    pub label: String,
    /// Of a device.
    pub batch_size: u64,
    pub devices: u64,
    sequence_length: Option<u64>,
    /// Micro-batches of each device in a step.
    accumulation: Option<u64>,
    data: String,
    device: String,
    threads: u64,
    settings: BTreeMap<String, String>,
}

impl Work {
    /// Without the instruction set, which changes nothing about the work.
    pub(super) fn of(result: &BenchResult) -> Self {
        let number = |name: &str| result.options.get(name)?.as_u64();
        let devices = devices(result);
        let of_each = |all: u64| if all.is_multiple_of(devices.max(1)) { all / devices.max(1) } else { all };
        let elsewhere = [ISA_OPTION, SEQUENCE_LENGTH, ACCUMULATION, BUDGET_OPTION, INTERRUPTED_OPTION];
        let settings = result.options.iter().filter(|(name, _)| !elsewhere.contains(&name.as_str()));
        Self {
            model: result.model.clone(),
            label: label(result),
            batch_size: result.batch_size,
            devices,
            sequence_length: sequence_length(result),
            accumulation: number(ACCUMULATION).map(of_each),
            data: result.data.clone(),
            device: result.device_name.clone(),
            threads: result.threads,
            settings: settings.map(|(name, value)| (name.clone(), value.to_string().replace('"', ""))).collect(),
        }
    }

    /// With the instruction set, for tables that have a row for each measurement.
    pub(super) fn in_full(result: &BenchResult) -> Self {
        let mut work = Self::of(result);
        let set = result.options.get(ISA_OPTION);
        work.settings.extend(set.map(|set| (ISA_OPTION.to_owned(), set.to_string().replace('"', ""))));
        work
    }

    /// The work of one of the devices.
    pub(super) fn of_one_device(&self) -> Self {
        Self { devices: 1, ..self.clone() }
    }
}

pub(super) fn devices(result: &BenchResult) -> u64 {
    result.devices * result.nodes
}

/// Tokens of a sequence, of a model of text.
pub(super) fn sequence_length(result: &BenchResult) -> Option<u64> {
    result.options.get(SEQUENCE_LENGTH)?.as_u64()
}

/// What titles say of data that are loaded; empty for random inputs.
pub(super) fn on_data(result: &BenchResult) -> String {
    match result.data.as_str() {
        SYNTHETIC | "" => String::new(),
        source => format!(" on {source}"),
    }
}

/// What stands below a table whose measurements are all on random inputs; empty otherwise.
pub(super) fn note<'a>(mut results: impl Iterator<Item = &'a BenchResult>) -> &'static str {
    if results.all(|result| result.data == SYNTHETIC) { "All on random inputs." } else { "" }
}

/// The share of the time in which steps waited for their batches; a dash where these are in memory.
pub(super) fn input_wait(result: &BenchResult) -> String {
    result.input_wait.map_or_else(|| "–".to_owned(), show::percent)
}

/// Columns that tell the rows of a table apart, each where it says something.
pub(super) struct Columns {
    device: bool,
    threads: bool,
    sequence_length: bool,
    accumulation: bool,
    data: bool,
    settings: BTreeSet<String>,
}

impl Columns {
    pub(super) fn of<'a>(works: impl IntoIterator<Item = &'a Work>) -> Self {
        let works: Vec<&Work> = works.into_iter().collect();
        let any = |is: fn(&Work) -> bool| works.iter().any(|work| is(work));
        let are_unlike = |differ: &dyn Fn(&Work, &Work) -> bool| {
            works.iter().enumerate().any(|(index, work)| works[..index].iter().any(|other| differ(work, other)))
        };
        let names: BTreeSet<&String> = works.iter().flat_map(|work| work.settings.keys()).collect();
        let says_something = |name: &str| {
            let is_unclipped = |work: &&Work| work.settings.get(name).is_some_and(|value| value == "false");
            let differ = |work: &Work, other: &Work| {
                let is_alike = work.model == other.model && work.label == other.label;
                is_alike && work.settings.get(name) != other.settings.get(name)
            };
            name != OUTPUTS && (are_unlike(&differ) || name == CLIP_OPTION && works.iter().any(is_unclipped))
        };
        Self {
            device: are_unlike(&|work, other| work.device != other.device),
            threads: are_unlike(&|work, other| work.threads != other.threads),
            sequence_length: any(|work| work.sequence_length.is_some()),
            accumulation: any(|work| work.accumulation.is_some_and(|count| count != 1)),
            data: any(|work| ![SYNTHETIC, ""].contains(&work.data.as_str())),
            settings: names.into_iter().filter(|name| says_something(name)).cloned().collect(),
        }
    }

    /// Without device and threads, for tables that have them already.
    pub(super) fn without_device(self) -> Self {
        Self { device: false, threads: false, ..self }
    }

    pub(super) fn header(&self) -> Vec<String> {
        let all = [
            (self.device, "device"),
            (self.threads, "threads"),
            (self.sequence_length, "tokens"),
            (self.accumulation, "accumulation"),
            (self.data, "data"),
            (!self.settings.is_empty(), "settings"),
        ];
        all.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, title)| title.to_owned()).collect()
    }

    /// Under [`Columns::header`].
    pub(super) fn cells(&self, work: &Work) -> Vec<String> {
        let or_dash = |text: String| if text.is_empty() { "–".to_owned() } else { text };
        let number = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
        let settings = work.settings.iter().filter(|(name, _)| self.settings.contains(*name));
        let settings: Vec<String> = settings.map(|(name, value)| format!("{name} {value}")).collect();
        let data = if work.data == SYNTHETIC { "random inputs" } else { &work.data };
        let all = [
            (self.device, work.device.clone()),
            (self.threads, work.threads.to_string()),
            (self.sequence_length, number(work.sequence_length)),
            (self.accumulation, number(work.accumulation)),
            (self.data, data.to_owned()),
            (!self.settings.is_empty(), settings.join(", ")),
        ];
        all.into_iter().filter_map(|(is_shown, text)| is_shown.then(|| or_dash(text))).collect()
    }
}
