//! Numbers and names as people read them.

use crate::workload::DetectorOutputs;
use bessemer_train::events::BenchResult;
pub use bessemer_train::quantities::{bytes, counted, scaled, significant};

/// What a result's mode is in titles.
fn mode(name: &str) -> &'static str {
    if name == "train" { "training" } else { "inference" }
}

/// What the inference of a detector ends with.
pub fn outputs(outputs: DetectorOutputs) -> &'static str {
    match outputs {
        DetectorOutputs::Detections => "detections",
        DetectorOutputs::Network => "the outputs of the network, without suppression",
    }
}

/// What inference ended with, of a detector.
pub fn outputs_of(result: &BenchResult) -> Option<DetectorOutputs> {
    result.options.get("outputs")?.as_str()?.parse().ok()
}

/// What a result's steps do, in titles: training, inference, and what the inference of a detector ends with.
pub fn work(result: &BenchResult) -> String {
    let end = outputs_of(result).map_or_else(String::new, |end| format!(" to {}", outputs(end)));
    format!("{}{end}", mode(&result.mode))
}

/// A fraction as `61.2 %`.
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// Seconds as `0.4 s`, `42 s`, `3 min 20 s`, `5 h 07 min`.
pub fn seconds(value: f64) -> String {
    let whole = value.round() as u64;
    match whole {
        0..10 => format!("{value:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times() {
        assert_eq!(percent(0.6125), "61.3 %");
        assert_eq!(seconds(0.44), "0.4 s");
        assert_eq!(seconds(200.0), "3 min 20 s");
        assert_eq!(seconds(18_420.0), "5 h 07 min");
    }
}
