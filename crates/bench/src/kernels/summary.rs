//! Results added up.

use super::KernelResult;
use serde::Serialize;

/// The kernels of one family and precision, each as often as its model calls it in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// Family of the problems.
    pub family: String,
    /// `fp32` or `bf16`.
    pub precision: &'static str,
    /// Kernels that were measured, and those that were not.
    pub kernels: usize,
    /// Number of kernels that were not measured.
    pub refused: usize,
    /// Time of all calls, each as long as the fastest run.
    pub ms: f64,
    /// Work of all calls over their time, of the limit; `None` if nothing was measured.
    pub fraction_of_peak: Option<f64>,
    /// Whether the processor has no arithmetic for this precision.
    pub emulated: bool,
}

/// Shares in the order in which their families first occur.
pub fn summary(results: &[KernelResult]) -> Vec<Share> {
    let mut groups: Vec<(&str, &'static str)> = Vec::new();
    for result in results {
        let group = (result.family.as_str(), result.precision);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups.into_iter().map(|(family, precision)| share(family, precision, results)).collect()
}

fn share(family: &str, precision: &'static str, results: &[KernelResult]) -> Share {
    let own = || results.iter().filter(|result| result.family == family && result.precision == precision);
    let mut share = Share {
        family: family.to_string(),
        precision,
        kernels: 0,
        refused: own().filter(|result| result.ms.is_none()).count(),
        ms: 0.0,
        fraction_of_peak: None,
        emulated: own().any(|result| result.emulated),
    };
    // Milliseconds at the limit.
    let mut least = 0.0;
    for result in own() {
        let (Some(ms), Some(fraction)) = (result.ms, result.fraction_of_peak) else { continue };
        let all_calls = ms.min * result.calls as f64;
        share.kernels += 1;
        share.ms += all_calls;
        least += all_calls * fraction;
    }
    share.fraction_of_peak = (share.ms > 0.0).then(|| least / share.ms);
    share
}
