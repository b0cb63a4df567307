//! Cases of the conformance suite on a device.

use bessemer_cuda::{CudaDevice, CudaTarget};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::Target;
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{Device, RunError, StateBinding, StateLayout};
use bessemer_ir::{Graph, GraphError};
use bessemer_testkit::{Backend, Refusal, Steps, Tensors};

/// A device, and of how many problems of each case it is given.
pub(crate) struct Gpu {
    pub(crate) device: CudaDevice,
    pub(crate) problems: u64,
}

impl Backend for Gpu {
    fn name(&self) -> String {
        "cuda".to_owned()
    }

    fn rules(&self) -> &Rules {
        CudaTarget.rules()
    }

    fn problems(&self) -> u64 {
        self.problems
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
        steps: Steps,
    ) -> Result<Tensors, Refusal> {
        let refusal = |error: RunError| Refusal::Failed(error.to_string());
        let plan = compile(graph, &CudaTarget, options).map_err(|error| match error {
            GraphError::Unsupported(operations) => Refusal::Unsupported(operations.list()),
            other => Refusal::Failed(other.to_string()),
        })?;
        let state = self.device.new_state(StateLayout::of_plan(&plan)).map_err(refusal)?;
        let mut executor = self.device.load(plan, &state, &StateBinding::default()).map_err(refusal)?;
        for (name, bytes) in inputs {
            match executor.has_feed(name) {
                true => executor.feed(&[(name, bytes)]).map_err(refusal)?,
                // What no kernel reads is no state of the plan.
                false if state.layout().number(name).is_ok() => state.write(name, bytes).map_err(refusal)?,
                false => (),
            }
        }
        for _ in 0..steps.steps {
            (1..steps.micro_batches).try_for_each(|_| executor.accumulate()).map_err(refusal)?;
            executor.run().map_err(refusal)?;
        }
        let output = |name: &String| Ok((name.clone(), executor.output(name).map_err(refusal)?.to_vec()));
        graph.outputs().iter().map(|(name, _)| output(name)).collect()
    }
}
