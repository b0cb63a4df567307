//! The programme's report in Markdown.

use super::{Found, Outcome, Predicted, StepsBeside};
use crate::compare::table::{HEADER, method, tables};
use crate::show;
use bessemer_train::clock::date_time;
use bessemer_train::events::BenchResult;
use serde_json::Value;

/// Kinds of kernels of a step that are listed.
const KINDS: usize = 6;

/// Of all parts that were done.
pub(super) fn markdown(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let device = outcomes.iter().find_map(device_of).unwrap_or_else(|| "a GPU".to_owned());
    let last = outcomes.iter().map(|outcome| outcome.time).fold(0.0, f64::max);
    text += &format!("# What was found on {device}\n\n");
    text += &format!(
        "Made by `bessemer gpu-selftest --programme FOLDER`, version {}; the last part ended at {}. Data is random.\n",
        env!("CARGO_PKG_VERSION"),
        date_time(last)
    );
    machine(outcomes, &mut text);
    speeds(outcomes, &mut text);
    beside(outcomes, &mut text);
    steps(outcomes, &mut text);
    self_tests(outcomes, &mut text);
    kernels(outcomes, &mut text);
    text += "\n## Parts\n\n";
    let rows = outcomes.iter().map(|outcome| {
        let result = outcome.problem.clone().unwrap_or_else(|| "done".to_owned());
        [outcome.name.clone(), result, show::seconds(outcome.seconds)]
    });
    table(&mut text, ["part", "result", "time"], rows);
    text
}

fn table<const N: usize>(text: &mut String, header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|cell| cell.replace('|', "/")).collect::<Vec<_>>().join(" | "))
    };
    *text += &line(&header.map(str::to_owned));
    *text += &line(&header.map(|_| "---".to_owned()));
    rows.into_iter().for_each(|row| *text += &line(&row));
}

fn device_of(outcome: &Outcome) -> Option<String> {
    match &outcome.found {
        Found::Speed(result, _) => Some(result.device_name.clone()),
        Found::SelfTest(test) => test["device"]["name"].as_str().map(str::to_owned),
        _ => None,
    }
}

fn machine(outcomes: &[Outcome], text: &mut String) {
    let found = outcomes.iter().find_map(|outcome| match &outcome.found {
        Found::Machine(machine) => Some(machine),
        _ => None,
    });
    let Some(found) = found else { return };
    *text += "\n## Machine\n\n";
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut rows = vec![
        ["GPU".to_owned(), word(&found["gpu"])],
        [
            "processor".to_owned(),
            format!("{}, {} threads", word(&found["machine"]["cpu"]), found["machine"]["threads"]),
        ],
        ["system".to_owned(), word(&found["machine"]["os"])],
    ];
    let libraries = found["cuda"]["libraries"].as_array().into_iter().flatten();
    rows.extend(
        libraries.filter_map(|library| Some([word(&library["name"]), library["version"].as_str()?.to_owned()])),
    );
    table(text, ["what", "found"], rows);
}

fn speeds(outcomes: &[Outcome], text: &mut String) {
    let found: Vec<(&BenchResult, &Predicted)> = outcomes
        .iter()
        .filter_map(|outcome| match &outcome.found {
            Found::Speed(result, predicted) => Some((&**result, predicted)),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return;
    }
    *text += "\n## Speed\n\n";
    let row = |(result, predicted): (&BenchResult, &Predicted)| {
        let step_s = result.step_ms.p50 / 1e3;
        let shown = predicted.seconds.map_or_else(String::new, |seconds| {
            format!(
                "{} ({} of the measured time)",
                show::significant(seconds * 1e3, 4),
                show::percent(seconds / step_s)
            )
        });
        [
            format!("{}, {}", result.model, show::work(result)),
            result.batch_size.to_string(),
            result.precision.clone(),
            format!("{} {}", show::significant(result.throughput, 4), result.unit),
            show::significant(result.step_ms.p50, 4),
            shown,
            result.fraction_of_peak.map_or_else(String::new, show::percent),
            result.peak_memory_bytes.map_or_else(String::new, show::bytes),
        ]
    };
    let header = ["work", "batch", "precision", "speed", "step, ms", "predicted, ms", "FLOPs of the peak", "memory"];
    table(text, header, found.into_iter().map(row));
}

fn beside(outcomes: &[Outcome], text: &mut String) {
    let results: Vec<BenchResult> = outcomes
        .iter()
        .flat_map(|outcome| match &outcome.found {
            Found::Beside(results) => results.clone(),
            _ => Vec::new(),
        })
        .collect();
    if results.is_empty() {
        return;
    }
    *text += "\n## Beside PyTorch\n";
    for found in tables(&results) {
        *text += &format!("\n### {}\n\n", found.title);
        table(text, HEADER, found.rows.iter().map(crate::compare::table::Row::cells));
        for (number, note) in found.notes.iter().enumerate() {
            *text += &format!("\n[{}] {note}\n", number + 1);
        }
    }
    *text += &format!("\n{}\n", method(&results));
}

fn steps(outcomes: &[Outcome], text: &mut String) {
    let found: Vec<&StepsBeside> = outcomes
        .iter()
        .flat_map(|outcome| match &outcome.found {
            Found::Steps(steps) => steps.as_slice(),
            _ => &[],
        })
        .collect();
    if found.is_empty() {
        return;
    }
    *text += "\n## Steps beside those of the processors\n\n";
    *text += "Training from the same weights on the same batches: the largest relative difference of a loss, and whether a second run \
              on the GPU had the same losses to the bit.\n\n";
    let row = |of: &StepsBeside| {
        [
            of.model.clone(),
            of.precision.clone(),
            of.steps.to_string(),
            format!("{:.1e}", of.difference),
            match of.is_repeatable {
                Some(true) => "yes",
                Some(false) => "no",
                None => "measured further algorithms",
            }
            .to_owned(),
        ]
    };
    table(text, ["model", "precision", "steps", "difference", "repeatable"], found.into_iter().map(row));
}

fn self_tests(outcomes: &[Outcome], text: &mut String) {
    for outcome in outcomes {
        let Found::SelfTest(test) = &outcome.found else { continue };
        let steps = test["steps"].as_array().map_or(&[][..], Vec::as_slice);
        let failed: Vec<&Value> = steps.iter().filter(|step| step["passed"] == false).collect();
        *text += &format!("\n## Self-test\n\n{} of {} steps passed.\n", steps.len() - failed.len(), steps.len());
        if !failed.is_empty() {
            *text += "\n";
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            table(
                text,
                ["step", "problem"],
                failed.into_iter().map(|step| [word(&step["name"]), word(&step["problem"])]),
            );
        }
    }
}

fn kernels(outcomes: &[Outcome], text: &mut String) {
    let mut rows = Vec::new();
    for outcome in outcomes {
        let Found::Speed(result, _) = &outcome.found else { continue };
        let whole: f64 = result.kernels.iter().map(|kernel| kernel.milliseconds).sum();
        for kernel in result.kernels.iter().take(KINDS) {
            rows.push([
                outcome.name.clone(),
                kernel.kind.clone(),
                kernel.calls.to_string(),
                show::significant(kernel.milliseconds, 3),
                show::percent(kernel.milliseconds / whole),
            ]);
        }
    }
    if !rows.is_empty() {
        *text += "\n## Where the time of a step goes\n\nBy events around each call, launched one by one.\n\n";
        table(text, ["step", "kernels", "calls", "ms", "of the step"], rows);
    }
}
