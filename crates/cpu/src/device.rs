//! The processor as a device: how plans for it are compiled and loaded, and what it can do.

use crate::executor::Executor;
use crate::isa::Isa;
use crate::kernel::{self, KernelError, Lowered};
use crate::peak;
use crate::state::CpuState;
use bessemer_ir::passes::invariant::Invariant;
use bessemer_ir::plan::{LoweredKernel, Plan, Refusal, Target};
use bessemer_ir::rules::Rules;
use bessemer_ir::run::{
    self, Alone, Collectives, DeviceLimits, DeviceProperties, RunError, StateBinding, StateLayout, StateStore,
};
use bessemer_ir::{Graph, NodeId};
use std::sync::Arc;

/// The name of the kind of device.
pub(crate) const KIND: &str = "cpu";

/// Instruction set and threads that plans are compiled for and run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Instruction set of the kernels; the processor must have it.
    pub isa: Isa,
    /// Worker threads, the caller's included; at least 1.
    pub threads: usize,
}

impl Default for CpuOptions {
    /// The best instruction set and all processors.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        CpuOptions { isa: Isa::detect(), threads }
    }
}

impl Target for CpuOptions {
    fn name(&self) -> &str {
        KIND
    }

    fn rules(&self) -> &Rules {
        &Rules::DEFAULT
    }

    fn lower(
        &self,
        graph: &Graph,
        node: NodeId,
        invariant: &Invariant,
    ) -> Result<Option<Arc<dyn LoweredKernel>>, Refusal> {
        let kernel = kernel::lower(graph, node, invariant);
        let kernel = kernel.map_err(|reason| KernelError::unsupported(graph, node, reason))?;
        Ok(Some(Arc::new(Lowered { kernel, threads: self.threads.max(1) })))
    }
}

/// The processors of this machine.
#[derive(Clone)]
pub struct CpuDevice {
    options: CpuOptions,
    collectives: Arc<dyn Collectives>,
    properties: DeviceProperties,
}

impl CpuDevice {
    /// A device that computes with these options; it starts no threads.
    pub fn new(options: CpuOptions) -> Self {
        Self::of_rank(options, Arc::new(Alone::default()))
    }

    /// The device of one rank of a job.
    pub fn of_rank(options: CpuOptions, collectives: Arc<dyn Collectives>) -> Self {
        let properties = DeviceProperties {
            kind: KIND,
            product: None,
            instruction_sets: Isa::available().into_iter().map(Isa::name).collect(),
            instruction_set: options.isa.name(),
            threads: options.threads,
            bf16: peak::bf16_unit(options.isa),
        };
        Self { options, collectives, properties }
    }
}

impl run::Device for CpuDevice {
    fn target(&self) -> &dyn Target {
        &self.options
    }

    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn measure_limits(&self) -> DeviceLimits {
        peak::measure(self.options.isa, self.options.threads)
    }

    fn memory_in_use(&self) -> Option<u64> {
        None
    }

    fn new_state(&self, layout: StateLayout) -> Result<Arc<dyn StateStore>, RunError> {
        Ok(Arc::new(CpuState::new(layout)?))
    }

    fn load(
        &self,
        plan: Plan,
        state: &Arc<dyn StateStore>,
        binding: &StateBinding<'_>,
    ) -> Result<Box<dyn run::Executor>, RunError> {
        Ok(Box::new(Executor::over(plan, self.options, Arc::clone(&self.collectives), Arc::clone(state), binding)?))
    }
}
