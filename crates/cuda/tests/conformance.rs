//! The conformance suite over the mock of a GPU.

mod common;
#[path = "common/device.rs"]
mod device;

use bessemer_cuda::{CudaDevice, CudaTarget};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::Target;
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{Device, RunError, StateBinding, StateLayout};
use bessemer_ir::{Graph, GraphError, Op, TensorType};
use bessemer_testkit::{Backend, CASES, Case, Limit, Refusal, Tensors, check};
use common::mock_or_skip;
use device::open;

struct Gpu(CudaDevice);

impl Backend for Gpu {
    fn name(&self) -> String {
        "cuda".to_owned()
    }

    fn rules(&self) -> &Rules {
        CudaTarget.rules()
    }

    fn problems(&self) -> u64 {
        1
    }

    fn workers(&self) -> &[usize] {
        &[1]
    }

    fn run(
        &self,
        graph: &Graph,
        options: &CompileOptions,
        _workers: usize,
        inputs: &Tensors,
    ) -> Result<Tensors, Refusal> {
        let refusal = |error: RunError| Refusal::Failed(error.to_string());
        let plan = compile(graph, &CudaTarget, options).map_err(|error| match error {
            GraphError::Unsupported(operations) => Refusal::Unsupported(operations.list()),
            other => Refusal::Failed(other.to_string()),
        })?;
        let state = self.0.new_state(StateLayout::of_plan(&plan)).map_err(refusal)?;
        let mut executor = self.0.load(plan, &state, &StateBinding::default()).map_err(refusal)?;
        for (name, bytes) in inputs {
            match executor.has_feed(name) {
                true => executor.feed(&[(name, bytes)]).map_err(refusal)?,
                // What no kernel reads is no state of the plan.
                false if state.layout().number(name).is_ok() => state.write(name, bytes).map_err(refusal)?,
                false => (),
            }
        }
        executor.run().map_err(refusal)?;
        let output = |name: &String| Ok((name.clone(), executor.output(name).map_err(refusal)?.to_vec()));
        graph.outputs().iter().map(|(name, _)| output(name)).collect()
    }
}

/// What has no kernel yet.
const LIMITS: &[Limit] = &[
    Limit { what: "detection and top-k", covers: is_of_detection },
    Limit { what: "sums over ranks", covers: is_over_ranks },
];

fn is_over_ranks(op: &Op, _inputs: &[&TensorType]) -> bool {
    matches!(op, Op::AllReduce(_) | Op::AllReduceStart(_) | Op::AllReduceWait(_))
}

fn is_of_detection(op: &Op, _inputs: &[&TensorType]) -> bool {
    matches!(
        op,
        Op::TopK(_)
            | Op::Anchors(_)
            | Op::MatchBoxes(_)
            | Op::EncodeBoxes(_)
            | Op::DecodeBoxes(_)
            | Op::Suppress(_)
            | Op::SampleLabels(_)
            | Op::SampleRows(_)
            | Op::PackRows(_)
            | Op::RoiAlign(_)
            | Op::RoiAlignGrad(_)
            | Op::MaskTargets(_)
    )
}

/// Runs every other case, so that two tests share the work.
fn run_half(test: &str, half: usize) {
    let Some(folder) = mock_or_skip(test) else { return };
    let gpu = Gpu(open(folder, true).unwrap());
    let cases: Vec<Case> = CASES.iter().copied().skip(half).step_by(2).collect();
    match check(&cases, &[&gpu], LIMITS) {
        Ok(report) => println!("{report}"),
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn even_cases() {
    run_half("even_cases", 0);
}

#[test]
fn odd_cases() {
    run_half("odd_cases", 1);
}
