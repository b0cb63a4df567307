use crate::output::{Table, print, print_json};
use bessemer_bench::show;
use bessemer_bench::simulator::validation::{Prediction, SetReport, validate};
use clap::Args;

const EXAMPLES: &str = "\
EXAMPLES:
  bessemer bench simulator                    published rows, predictions and errors, by sets
  bessemer bench simulator --summary          the errors of each set
  bessemer bench simulator --json";

/// Hold the simulator of distributed training against published tables
///
/// Some rows of DLPerf and of NVIDIA's DeepLearningExamples calibrate a few parameters, the others are predicted; beside
/// each prediction stands that of a predictor without a model. Nothing is measured on this machine: the result is the same
/// on all. `bessemer explain MODEL --cluster NAME` simulates a model.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Leave out the single rows
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub summary: bool,
    /// Print JSON instead of tables
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let sets = validate()?;
    if options.json {
        return print_json(&sets);
    }
    let rows: String = if options.summary { String::new() } else { sets.iter().map(rows).collect() };
    print(&format!("{rows}{}", summary(&sets)))
}

fn summary(sets: &[SetReport]) -> Table {
    let header = ["set", "goal", "rows", "median", "goal", "worst", "goal", "null median", "null worst"];
    let mut table = Table::new(2, &header);
    for report in sets {
        let met = if report.is_met() { "met" } else { "missed" };
        let limits = [(report.median, report.goal_median), (report.worst, report.goal_worst)];
        let null = [report.null_median, report.null_worst];
        let head = [report.set.to_owned(), met.to_owned(), report.predictions.len().to_string()];
        let figures = limits.into_iter().flat_map(|(error, goal)| [error, goal]).chain(null).map(show::percent);
        table.row(head.into_iter().chain(figures));
    }
    table
}

fn rows(report: &SetReport) -> String {
    let header =
        ["name", "model", "precision", "binds", "batch", "devices", "predicted", "published", "error", "null error"];
    let mut table = Table::new(4, &header);
    for prediction in &report.predictions {
        let Prediction { name, model, precision, binds, batch_size, devices, .. } = prediction;
        let length = prediction.sequence_length.map_or_else(String::new, |length| format!(", {length} tokens"));
        table.row([
            name.clone(),
            format!("{model}{length}"),
            (*precision).to_owned(),
            binds.name().to_owned(),
            batch_size.to_string(),
            devices.to_string(),
            show::significant(prediction.predicted, 4),
            show::significant(prediction.published, 4),
            signed(prediction.error),
            signed(prediction.null_error),
        ]);
    }
    let SetReport { set, rows_are, calibrated_on, null_predictor, .. } = report;
    format!("{set}: {rows_are}\ncalibrated on: {calibrated_on}; null predictor: {null_predictor}\n\n{table}\n")
}

fn signed(error: f64) -> String {
    format!("{:+.1} %", 100.0 * error)
}
