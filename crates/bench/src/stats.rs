//! Statistics of step times, in the definitions that published tables use.

use bessemer_train::events::{PublishedStyle, StepTimes};

/// Quantile `q` of `sorted` by linear interpolation (Hyndman and Fan's type 7, NumPy's default); 0 for no data.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let position = q * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

pub fn mean(data: &[f64]) -> f64 {
    if data.is_empty() { 0.0 } else { data.iter().sum::<f64>() / data.len() as f64 }
}

pub fn median(data: &[f64]) -> f64 {
    quantile(&sorted(data), 0.5)
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

/// Two figures that published tables call a 90 % latency and that are no quantiles: the mean of the fastest 90 %, and
/// the mean plus 1.645 standard errors (of the population).
pub fn published_style(milliseconds: &[f64]) -> PublishedStyle {
    let sorted = sorted(milliseconds);
    let n = sorted.len() as f64;
    let fastest = &sorted[..(sorted.len() * 9).div_ceil(10)];
    let average = mean(&sorted);
    let variance = mean(&sorted.iter().map(|x| (x - average).powi(2)).collect::<Vec<_>>());
    PublishedStyle {
        mean_fastest_90_ms: mean(fastest),
        ci_90_ms: average + if n > 0.0 { 1.645 * (variance / n).sqrt() } else { 0.0 },
    }
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
    }

    #[test]
    fn published_definitions() {
        let data: Vec<f64> = (1..=10).map(f64::from).collect();
        let style = published_style(&data);
        assert_eq!(style.mean_fastest_90_ms, 5.0);
        assert!((style.ci_90_ms - (5.5 + 1.645 * (8.25f64 / 10.0).sqrt())).abs() < 1e-12);
    }
}
