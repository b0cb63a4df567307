//! Where the time of a step goes.

use bessemer_ir::plan::{kernel_name, node_cost};
use bessemer_ir::run::{Executor, KernelInfo, RunError};
use bessemer_train::events::KernelTime;
use bessemer_train::stats::median;
use std::collections::BTreeMap;

/// A kernel call of a step and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCall {
    /// Operation of the plan, e.g. `conv2d+fusion`.
    pub kind: &'static str,
    /// How it is computed, e.g. `implicit matmul + fusion`.
    pub kernel: String,
    /// Path of the model.
    pub path: String,
    /// Type of the first output.
    pub output: String,
    /// Time of the call.
    pub milliseconds: f64,
    /// FLOPs of the call, a multiply-add counted as two.
    pub flops: u64,
}

/// Billions of operations per second.
pub fn gflops(flops: u64, milliseconds: f64) -> f64 {
    flops as f64 / milliseconds.max(1e-9) / 1e6
}

/// Each kernel call of a step's last micro-batch in order, with the median of its times over `steps` steps.
///
/// # Errors
/// When a kernel fails.
pub fn profile(executor: &mut dyn Executor, steps: usize) -> Result<Vec<KernelCall>, RunError> {
    let mut runs = Vec::with_capacity(steps);
    for _ in 0..steps.max(1) {
        runs.push(executor.profile()?);
    }
    let (graph, kernels) = (&executor.plan().graph, executor.kernels());
    let call = |(index, KernelInfo { node, name, .. }): (usize, KernelInfo)| {
        let times: Vec<f64> = runs.iter().map(|run| run[index].time.as_secs_f64() * 1e3).collect();
        KernelCall {
            kind: kernel_name(graph, node),
            kernel: name,
            path: graph.path(node).to_string(),
            output: graph.node(node).outputs[0].to_string(),
            milliseconds: median(&times),
            flops: node_cost(graph, node).flops,
        }
    };
    Ok(kernels.into_iter().enumerate().map(call).collect())
}

/// The calls by kind, those that take longest first.
pub fn by_kind(calls: &[KernelCall]) -> Vec<KernelTime> {
    let mut kinds: BTreeMap<&str, KernelTime> = BTreeMap::new();
    for call in calls {
        let time = kinds.entry(call.kind).or_insert(KernelTime { kind: call.kind.to_owned(), ..KernelTime::default() });
        time.calls += 1;
        time.milliseconds += call.milliseconds;
        time.flops += call.flops;
    }
    let mut kinds: Vec<KernelTime> = kinds.into_values().collect();
    kinds.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds));
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_sums_of_calls() {
        let call = |kind, milliseconds| KernelCall {
            kind,
            kernel: String::new(),
            path: String::new(),
            output: String::new(),
            milliseconds,
            flops: 3_000_000,
        };
        let kinds = by_kind(&[call("fusion", 1.0), call("conv2d", 2.5), call("fusion", 2.0)]);
        let rate = |k: &KernelTime| gflops(k.flops, k.milliseconds);
        let summary: Vec<_> = kinds.iter().map(|k| (k.kind.as_str(), k.calls, k.milliseconds, rate(k))).collect();
        assert_eq!(summary, [("fusion", 2, 3.0, 2.0), ("conv2d", 1, 2.5, 1.2)]);
    }
}
