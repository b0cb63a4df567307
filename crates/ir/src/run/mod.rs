//! How compiled plans run: devices, their executors, and the state that several plans share. Everything above the backends
//! knows these traits alone.

mod collectives;
mod elements;
mod error;
mod state;

pub use collectives::{Alone, Collectives, Peers, check_ranks};
pub use elements::{constant_bytes, finite_range};
pub use error::{IndexOutOfRange, NonFinite, RunError};
pub use state::{
    BoundState, StateBinding, StateLayout, StateSnapshot, StateStore, read_f32, read_i32, write_f32, write_i32,
};

use crate::dtype::DType;
use crate::graph::NodeId;
use crate::plan::{Plan, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Name of the output, `f32[]`, that is not 0 in a step behind which no state is to be replaced before the host has seen its
/// results. Devices that run in the background heed it.
pub const HALT: &str = "halt";

/// A device that plans are compiled for and run on.
pub trait Device: Send + Sync {
    /// The target that plans for this device are compiled for.
    fn target(&self) -> &dyn Target;

    /// Kind of the device and what it can compute with.
    fn properties(&self) -> &DeviceProperties;

    /// Measures what the device can do, which takes about a second.
    fn measure_limits(&self) -> DeviceLimits;

    /// What a person should know since the last call, such as files that cannot be written or measurements that failed: the device goes on
    /// without. Whoever makes states or loads plans asks for it behind.
    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Bytes of the device's own memory that its states and plans use now; `None` for a device that computes in the host's memory.
    fn memory_in_use(&self) -> Option<u64>;

    /// Memory for state, all zero.
    ///
    /// # Errors
    /// [`RunError::Memory`].
    fn new_state(&self, layout: StateLayout) -> Result<Arc<dyn StateStore>, RunError>;

    /// Makes a plan ready to run over a store of this device. `binding` says which tensors of the store the plan's state is.
    ///
    /// # Errors
    /// A plan that was compiled for another target; state that the store does not have; no memory.
    fn load(
        &self,
        plan: Plan,
        state: &Arc<dyn StateStore>,
        binding: &StateBinding<'_>,
    ) -> Result<Box<dyn Executor>, RunError>;
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// The kind of device, such as `cpu`.
    pub kind: &'static str,
    /// Name of the product, for a device with memory of its own; `None` for the processors of this machine.
    pub product: Option<String>,
    /// Instruction sets of a processor that can be used, fastest first; empty for other devices.
    pub instruction_sets: Vec<&'static str>,
    /// The one in use.
    pub instruction_set: &'static str,
    /// Threads of the host that compute.
    pub threads: usize,
    /// What multiplies `bf16` operands, such as `AMX tiles`; `None` where they are converted first.
    pub bf16: Option<&'static str>,
}

/// Limits of a device, measured or nominal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLimits {
    /// FLOP/s of products of `f32`.
    pub fp32_flops: f64,
    /// FLOP/s of products of `f32` operands rounded to TF32, where the device has such arithmetic.
    pub tf32_flops: Option<f64>,
    /// FLOP/s of products of `bf16` added to `f32`, where the device has such arithmetic.
    pub bf16_flops: Option<f64>,
    /// FLOP/s of products of `f16` added to `f32`, where the device has such arithmetic.
    pub f16_flops: Option<f64>,
    /// Bytes read from memory a second.
    pub read_bytes: f64,
}

/// A step that was submitted and not yet collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Steps whose results an executor keeps, the last ones.
pub const KEPT_RESULTS: u64 = 4;

impl Ticket {
    /// Index of the results of this step among those that are kept, once this number of steps has been submitted.
    ///
    /// # Errors
    /// [`RunError::NoSuchStep`] if they are not kept any more, or there was no such step.
    pub fn place(self, steps: u64) -> Result<usize, RunError> {
        let (Ticket(ticket), oldest) = (self, steps.saturating_sub(KEPT_RESULTS));
        match (oldest..steps).contains(&ticket) {
            true => Ok((ticket % KEPT_RESULTS) as usize),
            false => Err(RunError::NoSuchStep { ticket, oldest }),
        }
    }
}

/// What a step gave: its outputs of one `f32` element.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepResults {
    /// By name, in the order of the plan's outputs.
    pub scalars: Vec<(String, f32)>,
}

impl StepResults {
    /// The output of one `f32` element with this name.
    ///
    /// # Errors
    /// [`RunError::NoSuchName`].
    pub fn scalar(&self, name: &str) -> Result<f32, RunError> {
        let found = self.scalars.iter().find(|(known, _)| known == name);
        let known = || self.scalars.iter().map(|(known, _)| known.as_str());
        found.map(|(_, value)| *value).ok_or_else(|| RunError::no_such_name("output of one element", name, known()))
    }
}

/// Which part of a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A micro-batch that is not the last of its step: its gradients are added to the sums of the step.
    Accumulate,
    /// The last micro-batch of a step, and the update.
    Update,
}

/// Time of one kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The node of [`Plan::graph`] that the call computes.
    pub node: NodeId,
    /// Wall-clock time of the call.
    pub time: Duration,
}

/// How a kernel call computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// The node of [`Plan::graph`] that the call computes.
    pub node: NodeId,
    /// Such as `implicit matmul + fusion`.
    pub name: String,
    /// FLOPs of convolutions and matrix products, those of attention included, that the kernel really does, a multiply-add
    /// counted as two. Algorithms with fewer multiplications count those of their products, without those of transforms.
    pub flops: u64,
}

/// A plan made ready to run on a device. It allocates nothing while steps run.
///
/// A step is: for each micro-batch [`Executor::feed`], then [`Executor::accumulate`], or for the last one
/// [`Executor::submit`]; and at some later time [`Executor::collect`]. Steps run in the order of submission.
pub trait Executor: Send {
    /// The plan that runs.
    fn plan(&self) -> &Plan;

    /// The state over which the plan runs.
    fn state(&self) -> &Arc<dyn StateStore>;

    /// How each kernel call of a step computes, in order.
    fn kernels(&self) -> Vec<KernelInfo>;

    /// The algorithms that were chosen among several by measurements or by heuristics of libraries, by what they compute. Another choice
    /// gives other last bits.
    fn algorithms(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// For what a library has no algorithm, or one that could not be measured, by what was to be computed, and why.
    fn near_misses(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Whether the plan has a feed of that name.
    fn has_feed(&self, name: &str) -> bool;

    /// Copies the content of feeds, row-major, for the next micro-batch. Feeds left out keep their content. Where the executor
    /// [computes in the background](Executor::computes_in_background), the step that was submitted last keeps its own.
    ///
    /// # Errors
    /// A feed that the plan does not have, or of another size.
    fn feed(&mut self, feeds: &[(&str, &[u8])]) -> Result<(), RunError>;

    /// Whether a step may still be computed when [`Executor::submit`] returns.
    fn computes_in_background(&self) -> bool {
        false
    }

    /// Computes the invariant values and packs the invariant operands, if state was written since that was last done. Steps do
    /// it themselves; call it first where its time must not count as part of the first step.
    ///
    /// # Errors
    /// As [`Executor::submit`].
    fn compute_invariants(&mut self) -> Result<(), RunError>;

    /// Runs a micro-batch that is not the last of its step.
    ///
    /// # Errors
    /// As [`Executor::submit`]; [`RunError::NoAccumulation`] when steps take one micro-batch.
    fn accumulate(&mut self) -> Result<(), RunError>;

    /// Starts the last micro-batch of a step.
    ///
    /// # Errors
    /// [`RunError::Kernel`] when a kernel met data that it cannot take, such as an index out of range.
    fn submit(&mut self) -> Result<Ticket, RunError>;

    /// Waits for a step and gives its results.
    ///
    /// # Errors
    /// As [`Executor::submit`], for devices that run in the background: the step replaced no state behind what it met;
    /// [`RunError::Halted`] for a step that was submitted behind a step that failed, before that one was collected, and
    /// replaced no state; [`RunError::NoSuchStep`] for a step whose results are gone.
    fn collect(&mut self, ticket: Ticket) -> Result<&StepResults, RunError>;

    /// Content of an output of the step that was collected last, row-major.
    ///
    /// # Errors
    /// An output that the plan does not have.
    fn output(&self, name: &str) -> Result<&[u8], RunError>;

    /// Runs one step, the last micro-batch of one, kernel by kernel, and returns the time of each call.
    ///
    /// # Errors
    /// As [`Executor::submit`].
    fn profile(&mut self) -> Result<Vec<KernelTime>, RunError>;

    /// Runs a part of a step up to the first value that is not finite, and describes it; `None` if all are, or if all are up to the
    /// first sum over ranks that is waited for. State may be partly replaced afterwards.
    ///
    /// # Errors
    /// As [`Executor::submit`] and [`Executor::accumulate`].
    fn find_non_finite(&mut self, phase: Phase) -> Result<Option<NonFinite>, RunError>;
}

impl dyn Device + '_ {
    /// Makes a plan ready to run over a new state, all zero, that no other plan shares.
    ///
    /// # Errors
    /// As [`Device::new_state`] and [`Device::load`].
    pub fn load_alone(&self, plan: Plan) -> Result<Box<dyn Executor>, RunError> {
        let state = self.new_state(StateLayout::of_plan(&plan))?;
        self.load(plan, &state, &StateBinding::default())
    }
}

impl dyn Executor + '_ {
    /// Runs one step, the last micro-batch of one, and waits for its results.
    ///
    /// # Errors
    /// As [`Executor::submit`].
    pub fn run(&mut self) -> Result<&StepResults, RunError> {
        let ticket = self.submit()?;
        self.collect(ticket)
    }

    /// Content of an `f32` output of the step that was collected last.
    ///
    /// # Errors
    /// An output that the plan does not have, or of another type.
    pub fn output_f32(&self, name: &str) -> Result<&[f32], RunError> {
        Ok(bytemuck::cast_slice(self.typed_output(name, DType::F32)?))
    }

    /// Content of an `i32` output of the step that was collected last.
    ///
    /// # Errors
    /// An output that the plan does not have, or of another type.
    pub fn output_i32(&self, name: &str) -> Result<&[i32], RunError> {
        Ok(bytemuck::cast_slice(self.typed_output(name, DType::I32)?))
    }

    fn typed_output(&self, name: &str, expected: DType) -> Result<&[u8], RunError> {
        let bytes = self.output(name)?;
        let graph = &self.plan().graph;
        let ty = graph.find_output(name).map(|value| graph.ty(value).clone());
        match ty {
            Some(ty) if ty.dtype != expected => Err(RunError::WrongType { name: name.to_owned(), ty, expected }),
            _ => Ok(bytes),
        }
    }
}
