//! Statistics of step times, in the definitions that published tables use.

use crate::events::{PublishedStyle, StepTimes};

/// Quantile `q` of `sorted` by linear interpolation (Hyndman and Fan's type 7, NumPy's default); 0 for no data.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let position = q * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// Arithmetic mean; 0 for no data.
pub fn mean(data: &[f64]) -> f64 {
    if data.is_empty() { 0.0 } else { data.iter().sum::<f64>() / data.len() as f64 }
}

/// Standard deviation of a sample: divided by one less than there are; 0 for a single number.
pub fn sample_deviation(data: &[f64]) -> f64 {
    let average = mean(data);
    let squares: f64 = data.iter().map(|value| (value - average).powi(2)).sum();
    (squares / (data.len().max(2) - 1) as f64).sqrt()
}

/// The middle of data; 0 for no data.
pub fn median(data: &[f64]) -> f64 {
    quantile(&sorted(data), 0.5)
}

/// `(max - min) / median`; 0 for no data.
pub fn spread(data: &[f64]) -> f64 {
    let sorted = sorted(data);
    match (sorted.first(), sorted.last()) {
        (Some(least), Some(most)) => (most - least) / quantile(&sorted, 0.5),
        _ => 0.0,
    }
}

fn sorted(data: &[f64]) -> Vec<f64> {
    let mut sorted = data.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Summary of step times in milliseconds.
pub fn step_times(milliseconds: &[f64]) -> StepTimes {
    let sorted = sorted(milliseconds);
    StepTimes {
        mean: mean(&sorted),
        p50: quantile(&sorted, 0.5),
        p90: quantile(&sorted, 0.9),
        p95: quantile(&sorted, 0.95),
        p99: quantile(&sorted, 0.99),
        min: sorted.first().copied().unwrap_or(0.0),
        max: sorted.last().copied().unwrap_or(0.0),
    }
}

/// The figures that published tables call latencies of 90, 95 and 99 %, see [`PublishedStyle`].
pub fn published_style(milliseconds: &[f64]) -> PublishedStyle {
    let all = sorted(milliseconds);
    let but_two = &all[..all.len().saturating_sub(2)];
    let fastest_but_two = |percent| (!but_two.is_empty()).then(|| mean_fastest(but_two, percent));
    let average = mean(&all);
    let variance = mean(&all.iter().map(|x| (x - average).powi(2)).collect::<Vec<_>>());
    let error = if all.is_empty() { 0.0 } else { (variance / all.len() as f64).sqrt() };
    PublishedStyle {
        mean_fastest_90_ms: mean_fastest(&all, 90),
        mean_fastest_95_ms: mean_fastest(&all, 95),
        mean_fastest_99_ms: mean_fastest(&all, 99),
        mean_fastest_90_but_two_ms: fastest_but_two(90),
        mean_fastest_95_but_two_ms: fastest_but_two(95),
        mean_fastest_99_but_two_ms: fastest_but_two(99),
        ci_90_ms: average + 1.645 * error,
        ci_95_ms: average + 1.96 * error,
        ci_99_ms: average + 2.576 * error,
    }
}

/// Mean of the first `percent` of `sorted`, of whole times and at least one.
fn mean_fastest(sorted: &[f64], percent: usize) -> f64 {
    let count = (sorted.len() * percent / 100).max(1).min(sorted.len());
    mean(&sorted[..count])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate() {
        let data = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&data), 2.5);
        let times = step_times(&data);
        assert_eq!((times.min, times.max, times.mean), (1.0, 4.0, 2.5));
        assert!((times.p90 - 3.7).abs() < 1e-12);
        assert_eq!(median(&[]), 0.0);
        assert_eq!((spread(&[2.0, 1.0, 4.0]), spread(&[])), (1.5, 0.0));
    }

    #[test]
    fn published_definitions() {
        let data: Vec<f64> = (1..=10).map(f64::from).collect();
        let style = published_style(&data);
        assert_eq!(style.mean_fastest_90_ms, 5.0);
        assert_eq!((style.mean_fastest_95_ms, style.mean_fastest_99_ms), (5.0, 5.0));
        // Of the eight fastest: 7.2 of them, 7.6 of them and 7.92 of them, each rounded down.
        assert_eq!([style.mean_fastest_90_but_two_ms, style.mean_fastest_99_but_two_ms], [Some(4.0); 2]);
        assert_eq!(published_style(&[3.0]).mean_fastest_90_ms, 3.0);
        let but_two = |times: &[f64]| published_style(times).mean_fastest_90_but_two_ms;
        assert_eq!([&[3.0][..], &[3.0, 4.0], &[5.0, 3.0, 4.0]].map(but_two), [None, None, Some(3.0)]);
        for (figure, z) in [(style.ci_90_ms, 1.645), (style.ci_95_ms, 1.96), (style.ci_99_ms, 2.576)] {
            assert!((figure - (5.5 + z * (8.25f64 / 10.0).sqrt())).abs() < 1e-12);
        }
        let data: Vec<f64> = (1..=100).map(f64::from).collect();
        let style = published_style(&data);
        assert_eq!([style.mean_fastest_90_ms, style.mean_fastest_95_ms, style.mean_fastest_99_ms], [45.5, 48.0, 50.0]);
        assert_eq!([style.mean_fastest_90_but_two_ms, style.mean_fastest_95_but_two_ms], [Some(44.5), Some(47.0)]);
        assert_eq!(published_style(&[]), PublishedStyle::default());
    }

    #[test]
    fn deviations_are_of_samples() {
        // Five published runs of SQuAD 1.1.
        let exact = [86.99, 86.81, 86.95, 87.10, 87.26];
        assert!((mean(&exact) - 87.022).abs() < 1e-9 && (sample_deviation(&exact) - 0.168).abs() < 1e-3);
        assert_eq!(sample_deviation(&[3.0]), 0.0);
    }
}
