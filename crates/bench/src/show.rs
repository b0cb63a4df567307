//! Numbers and names as people read them.

use crate::workload::DetectorOutputs;
use bessemer_train::events::BenchResult;

/// Bytes with a decimal unit: `512 B`, `1.5 GB`.
pub fn bytes(value: u64) -> String {
    if value < 1000 { format!("{value} B") } else { format!("{}B", scaled(value as f64)) }
}

/// A large number with a decimal prefix: `25.6 M`, `8.18 G`.
pub fn scaled(value: f64) -> String {
    const PREFIXES: [&str; 6] = ["", "k", "M", "G", "T", "P"];
    let (mut value, mut prefix) = (value, 0);
    while value.abs() >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    format!("{} {}", significant(value, 3), PREFIXES[prefix])
}

/// A number with `digits` significant digits, without an exponent.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let decimals = |x: f64| (digits - 1 - x.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let shown = format!("{value:.*}", decimals(value));
    // Rounding may add a digit before the point: 0.9999 is 1.00.
    let rounded: f64 = shown.parse().unwrap_or(value);
    if rounded == 0.0 { shown } else { format!("{value:.*}", decimals(rounded)) }
}

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
    fn sizes_and_counts() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1_536_000_000), "1.54 GB");
        assert_eq!(bytes(999_900), "1.00 MB");
        assert_eq!(scaled(25_557_032.0), "25.6 M");
        assert_eq!(scaled(12.0), "12.0 ");
    }

    #[test]
    fn digits_and_times() {
        assert_eq!(significant(1234.5, 3), "1234");
        assert_eq!(significant(0.012_345, 3), "0.0123");
        assert_eq!(significant(0.0, 3), "0");
        assert_eq!(percent(0.6125), "61.3 %");
        assert_eq!(seconds(0.44), "0.4 s");
        assert_eq!(seconds(200.0), "3 min 20 s");
        assert_eq!(seconds(18_420.0), "5 h 07 min");
    }
}
