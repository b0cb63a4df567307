//! Runs plans: every tensor at its planned place in one arena, nothing allocated while a step runs.

use crate::arena::Arena;
use crate::gemm::Ctx;
use crate::isa::Isa;
use crate::kernel::{self, Kernel, KernelError, KernelNode, Operands};
use crate::threads::ThreadPool;
use bessemer_ir::ops::Op;
use bessemer_ir::passes::fixed::Fixed;
use bessemer_ir::plan::{Needs, Plan, Preparation, StateCopy, Step, Target, kernel_name};
use bessemer_ir::{DType, Graph, NodeId, Role, TensorType, Value};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// How plans are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
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
        "cpu"
    }

    fn needs(&self, graph: &Graph, node: NodeId, fixed: &Fixed) -> Needs {
        kernel::lower(graph, node, fixed).map_or(Needs::default(), |kernel| kernel::needs(&*kernel, self.threads))
    }

    fn implementation(&self, graph: &Graph, node: NodeId, fixed: &Fixed) -> Option<String> {
        let name = kernel::lower(graph, node, fixed).map(|kernel| kernel.name());
        Some(name.unwrap_or_else(|reason| format!("unsupported: {reason}")))
    }
}

/// Why a plan cannot be run, or a step failed.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("the CPU backend does not support: {}", list(.0))]
    Unsupported(Vec<KernelError>),
    #[error("no memory for the plan's arena of {bytes} bytes: {source}")]
    Memory { bytes: usize, source: std::io::Error },
    #[error("the plan has no {what} named `{name}`; it has: {known}")]
    NoSuchName { what: &'static str, name: String, known: String },
    #[error("`{name}` is {ty}, which is {expected} bytes; {actual} bytes were given")]
    WrongSize { name: String, ty: TensorType, expected: usize, actual: usize },
    #[error(transparent)]
    Kernel(Box<KernelError>),
    #[error("the plan's steps take one micro-batch each: there is nothing to accumulate in")]
    NoAccumulation,
    #[error("non-finite value: {0}")]
    NonFinite(NonFinite),
}

fn list(errors: &[KernelError]) -> String {
    errors.iter().map(KernelError::to_string).collect::<Vec<_>>().join("; ")
}

/// The first node of a step that gave a value that is no number.
#[derive(Clone, Debug, PartialEq)]
pub struct NonFinite {
    pub op: String,
    pub path: String,
    /// Least and greatest finite element of each input.
    pub input_ranges: Vec<(f32, f32)>,
    /// Whether the value was there before the step: a weight or an input.
    pub is_input: bool,
}

impl std::fmt::Display for NonFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_input {
            return write!(f, "{} holds NaN or infinity before the step", self.op);
        }
        let ranges: Vec<String> = self.input_ranges.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        write!(f, "first in {} at `{}`, whose inputs lie in {}", self.op, self.path, ranges.join(", "))
    }
}

/// A kernel with the places of its operands.
struct Call {
    node: NodeId,
    kernel: Box<dyn Kernel>,
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    scratch: *mut f32,
    scratch_len: usize,
    /// Memory for an input that the kernel prepares.
    prepared: *mut f32,
    prepared_len: usize,
}

/// What is done before the first step.
enum Preparing {
    Run(Box<Call>),
    /// The call of a step of this number.
    Prepare(usize),
}

impl Call {
    fn new(plan: &Plan, step: &Step, kernel: Box<dyn Kernel>, arena: &Arena) -> Call {
        let node = plan.graph.node(step.node);
        let place = |v: Value| arena.at(plan.offset(v), plan.graph.ty(v).bytes());
        let outputs = 0..node.outputs.len() as u32;
        let piece = |(offset, bytes): (usize, usize)| arena.at(offset, bytes).cast();
        Call {
            node: step.node,
            kernel,
            inputs: node.inputs.iter().map(|&v| place(v).cast_const()).collect(),
            outputs: outputs.map(|output| place(Value { node: step.node, output })).collect(),
            scratch: piece(step.scratch),
            scratch_len: step.scratch.1 / 4,
            prepared: piece(step.prepared),
            prepared_len: step.prepared.1 / 4,
        }
    }

    fn operands(&self) -> Operands<'_> {
        Operands {
            inputs: &self.inputs,
            outputs: &self.outputs,
            scratch: self.scratch,
            scratch_len: self.scratch_len,
            prepared: self.prepared,
            prepared_len: self.prepared_len,
        }
    }
}

/// Time of one kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    pub kernel: &'static str,
    pub node: NodeId,
    pub time: Duration,
}

/// A plan made ready to run.
pub struct Executor {
    plan: Plan,
    options: CpuOptions,
    pool: ThreadPool,
    arena: Arena,
    calls: Vec<Call>,
    preparing: Vec<Preparing>,
    /// Whether what is fixed was prepared since it was last written.
    is_prepared: bool,
    /// Inputs that are written before each step; nothing is prepared of them.
    feeds: HashSet<String>,
    inputs: HashMap<String, (usize, TensorType)>,
    outputs: HashMap<String, (usize, TensorType)>,
}

// SAFETY: the pointers of the calls lead into the arena that moves with them.
unsafe impl Send for Executor {}

impl Executor {
    /// Allocates the arena, zeroed, and fills constants.
    ///
    /// # Errors
    /// When operations have no kernel, listing them all; when there is no memory.
    pub fn new(plan: Plan, options: CpuOptions) -> Result<Executor, ExecutorError> {
        let mut arena =
            Arena::new(plan.arena_bytes).map_err(|source| ExecutorError::Memory { bytes: plan.arena_bytes, source })?;
        let mut unsupported = Vec::new();
        let mut lower = |step: &Step| match kernel::lower(&plan.graph, step.node, &plan.fixed) {
            Ok(kernel) => Some(Call::new(&plan, step, kernel, &arena)),
            Err(reason) => {
                unsupported.push(KernelError::unsupported(&plan.graph, step.node, reason));
                None
            }
        };
        let calls: Vec<Call> = plan.steps.iter().filter_map(&mut lower).collect();
        let preparing = plan.preparation.iter().filter_map(|preparation| match preparation {
            Preparation::Run(step) => lower(step).map(|call| Preparing::Run(Box::new(call))),
            Preparation::Prepare(number) => Some(Preparing::Prepare(*number)),
        });
        let preparing: Vec<Preparing> = preparing.collect();
        if !unsupported.is_empty() {
            return Err(ExecutorError::Unsupported(unsupported));
        }
        fill_constants(&plan, &mut arena);
        let place = |v: Value| (plan.offset(v), plan.graph.ty(v).clone());
        let inputs = plan.graph.inputs().map(|(v, input)| (input.name.clone(), place(v))).collect();
        let feeds = plan.graph.inputs().filter(|(_, input)| input.role == Role::Feed);
        let feeds = feeds.map(|(_, input)| input.name.clone()).collect();
        let result =
            |(name, v): &(String, Value)| (name.clone(), (plan.result_offset(name), plan.graph.ty(*v).clone()));
        let outputs = plan.graph.outputs().iter().map(result).collect();
        let pool = ThreadPool::new(options.threads.max(1));
        Ok(Executor { plan, options, pool, arena, calls, preparing, is_prepared: false, feeds, inputs, outputs })
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn options(&self) -> CpuOptions {
        self.options
    }

    /// How each kernel call of a step computes, in a few words, in order.
    pub fn kernel_names(&self) -> Vec<String> {
        self.calls.iter().map(|call| call.kernel.name()).collect()
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    fn find<'a>(
        map: &'a HashMap<String, (usize, TensorType)>,
        what: &'static str,
        name: &str,
    ) -> Result<&'a (usize, TensorType), ExecutorError> {
        map.get(name).ok_or_else(|| {
            let mut known: Vec<&str> = map.keys().map(String::as_str).collect();
            known.sort_unstable();
            known.truncate(12);
            ExecutorError::NoSuchName { what, name: name.to_string(), known: known.join(", ") }
        })
    }

    /// Type of an input: a feed, parameter or state.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input_type(&self, name: &str) -> Result<&TensorType, ExecutorError> {
        Self::find(&self.inputs, "input", name).map(|(_, ty)| ty)
    }

    /// Whether the plan has an input of that name.
    pub fn has_input(&self, name: &str) -> bool {
        self.inputs.contains_key(name)
    }

    /// Content of an input, row-major.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input(&self, name: &str) -> Result<&[u8], ExecutorError> {
        let (offset, ty) = Self::find(&self.inputs, "input", name)?;
        Ok(self.arena.slice(*offset, ty.bytes()))
    }

    /// Memory of an input, to be filled in place.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input_mut(&mut self, name: &str) -> Result<&mut [u8], ExecutorError> {
        let (offset, ty) = Self::find(&self.inputs, "input", name)?;
        self.is_prepared &= self.feeds.contains(name);
        Ok(self.arena.slice_mut(*offset, ty.bytes()))
    }

    /// Copies bytes into an input.
    ///
    /// # Errors
    /// When there is none of that name, or it has another size.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExecutorError> {
        let (_, ty) = Self::find(&self.inputs, "input", name)?;
        if ty.bytes() != bytes.len() {
            let (expected, actual, ty) = (ty.bytes(), bytes.len(), ty.clone());
            return Err(ExecutorError::WrongSize { name: name.to_string(), ty, expected, actual });
        }
        self.input_mut(name)?.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies numbers into an `f32` input.
    ///
    /// # Errors
    /// When there is none of that name, or it has another size.
    pub fn write_f32(&mut self, name: &str, data: &[f32]) -> Result<(), ExecutorError> {
        self.write(name, bytemuck::cast_slice(data))
    }

    /// Content of an `f32` input.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input_f32(&self, name: &str) -> Result<&[f32], ExecutorError> {
        Ok(bytemuck::cast_slice(self.input(name)?))
    }

    /// Content of an output of the last step.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn output(&self, name: &str) -> Result<&[u8], ExecutorError> {
        let (offset, ty) = Self::find(&self.outputs, "output", name)?;
        Ok(self.arena.slice(*offset, ty.bytes()))
    }

    /// Content of an `f32` output of the last step.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn output_f32(&self, name: &str) -> Result<&[f32], ExecutorError> {
        Ok(bytemuck::cast_slice(self.output(name)?))
    }

    /// An `f32` output of one element.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn scalar(&self, name: &str) -> Result<f32, ExecutorError> {
        Ok(self.output_f32(name)?[0])
    }

    /// Runs one step, or the last micro-batch of one.
    ///
    /// # Errors
    /// [`ExecutorError::Kernel`] when a kernel met data it cannot take (an index out of range).
    pub fn run(&mut self) -> Result<(), ExecutorError> {
        self.prepare()?;
        for index in 0..self.calls.len() {
            self.call(index)?;
        }
        self.replace_state(|_| true);
        Ok(())
    }

    /// Runs a micro-batch that is not the last of its step: what was fed is added to the sums of the step. The
    /// outputs hold nothing of use until [`Executor::run`].
    ///
    /// # Errors
    /// As [`Executor::run`]; [`ExecutorError::NoAccumulation`] when steps take one micro-batch.
    pub fn accumulate(&mut self) -> Result<(), ExecutorError> {
        if !self.plan.accumulates() {
            return Err(ExecutorError::NoAccumulation);
        }
        self.prepare()?;
        for (call, _) in self.calls.iter().zip(&self.plan.steps).filter(|(_, step)| step.in_body) {
            self.run_call(call)?;
        }
        self.replace_state(|copy| copy.in_body);
        Ok(())
    }

    /// Runs one step and returns the time of each kernel call.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn run_timed(&mut self) -> Result<Vec<KernelTime>, ExecutorError> {
        self.prepare()?;
        let mut times = Vec::with_capacity(self.calls.len());
        for index in 0..self.calls.len() {
            let start = Instant::now();
            self.call(index)?;
            let node = self.calls[index].node;
            times.push(KernelTime { kernel: kernel_name(&self.plan.graph, node), node, time: start.elapsed() });
        }
        self.replace_state(|_| true);
        Ok(times)
    }

    /// Does what [`Executor::run`] does, up to the first value that is not finite, and describes it; `None` if all are. State may
    /// be partly replaced afterwards.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn find_non_finite(&mut self) -> Result<Option<NonFinite>, ExecutorError> {
        let found = self.find_in_calls(|_| true)?;
        self.replace_state(|_| found.is_none());
        Ok(found)
    }

    /// As [`Executor::find_non_finite`], for what [`Executor::accumulate`] does: a micro-batch that is not the last of its step.
    ///
    /// # Errors
    /// As [`Executor::accumulate`].
    pub fn find_non_finite_accumulating(&mut self) -> Result<Option<NonFinite>, ExecutorError> {
        if !self.plan.accumulates() {
            return Err(ExecutorError::NoAccumulation);
        }
        let found = self.find_in_calls(|step| step.in_body)?;
        self.replace_state(|copy| copy.in_body && found.is_none());
        Ok(found)
    }

    fn find_in_calls(&mut self, is_due: impl Fn(&Step) -> bool) -> Result<Option<NonFinite>, ExecutorError> {
        let graph = &self.plan.graph;
        // The sums of a step whose loss was not finite say no more than that.
        for (value, input) in graph.inputs().filter(|&(value, _)| !graph.is_repeated(value)) {
            if input.ty.dtype.is_float() && !self.range(value).1 {
                let (op, path) = (input.name.clone(), graph.path(value.node).to_string());
                return Ok(Some(NonFinite { op, path, input_ranges: Vec::new(), is_input: true }));
            }
        }
        self.prepare()?;
        for index in (0..self.calls.len()).filter(|&index| is_due(&self.plan.steps[index])) {
            let id = self.calls[index].node;
            let graph = &self.plan.graph;
            let inputs = graph.node(id).inputs.iter().filter(|&&v| graph.dtype(v).is_float());
            let input_ranges = inputs.map(|&v| self.range(v).0).collect();
            self.run_call(&self.calls[index])?;
            let graph = &self.plan.graph;
            let node = graph.node(id);
            let outputs = (0..node.outputs.len() as u32).map(|output| Value { node: id, output });
            for value in outputs.filter(|&v| graph.dtype(v).is_float()) {
                if !self.range(value).1 {
                    let (op, path) = (kernel_name(graph, id).to_string(), graph.path(id).to_string());
                    return Ok(Some(NonFinite { op, path, input_ranges, is_input: false }));
                }
            }
        }
        Ok(None)
    }

    /// Least and greatest finite element of a tensor of floats, and whether all are finite.
    fn range(&self, value: Value) -> ((f32, f32), bool) {
        let ty = self.plan.graph.ty(value);
        let bytes = self.arena.slice(self.plan.offset(value), ty.bytes());
        match ty.dtype {
            DType::Bf16 => range(bytemuck::cast_slice(bytes).iter().map(|&x| half::bf16::from_bits(x).to_f32())),
            DType::F16 => range(bytemuck::cast_slice(bytes).iter().map(|&x| half::f16::from_bits(x).to_f32())),
            _ => range(bytemuck::cast_slice::<u8, f32>(bytes).iter().copied()),
        }
    }

    /// Does what the steps rely on, if state was written since it was last done. [`Executor::run`] sees to it; to be called
    /// where its time is not to be part of the first step's.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn prepare(&mut self) -> Result<(), ExecutorError> {
        if self.is_prepared {
            return Ok(());
        }
        for preparing in &self.preparing {
            match preparing {
                Preparing::Run(call) => self.run_call(call)?,
                Preparing::Prepare(number) => {
                    let call = &self.calls[*number];
                    // SAFETY: as in `run_call`.
                    unsafe { call.kernel.prepare(self.ctx(), &call.operands()) }
                }
            }
        }
        self.is_prepared = true;
        Ok(())
    }

    fn ctx(&self) -> Ctx<'_> {
        Ctx { isa: self.options.isa, pool: &self.pool }
    }

    fn call(&mut self, index: usize) -> Result<(), ExecutorError> {
        self.run_call(&self.calls[index])
    }

    fn run_call(&self, call: &Call) -> Result<(), ExecutorError> {
        // SAFETY: the planner gave each value alive its own bytes, of the sizes that the kernel was lowered for, and
        // the callers borrow `self` exclusively.
        unsafe { call.kernel.run(self.ctx(), &call.operands()) }.map_err(|problem| {
            let node = KernelNode::of(&self.plan.graph, call.node);
            ExecutorError::Kernel(Box::new(KernelError::Index { node, problem }))
        })
    }

    fn replace_state(&mut self, is_due: impl Fn(&StateCopy) -> bool) {
        for copy in self.plan.copies.iter().filter(|copy| is_due(copy)) {
            let from = self.arena.at(copy.from, copy.bytes);
            let to = self.arena.at(copy.to, copy.bytes);
            // SAFETY: two buffers of that size that the planner keeps apart.
            unsafe { std::ptr::copy_nonoverlapping(from, to, copy.bytes) };
        }
    }
}

/// Least and greatest finite element, and whether all are finite.
fn range(data: impl Iterator<Item = f32>) -> ((f32, f32), bool) {
    let mut finite = true;
    let mut bounds = (f32::INFINITY, f32::NEG_INFINITY);
    for x in data {
        if x.is_finite() {
            bounds = (bounds.0.min(x), bounds.1.max(x));
        } else {
            finite = false;
        }
    }
    (bounds, finite)
}

fn fill_constants(plan: &Plan, arena: &mut Arena) {
    for id in plan.graph.ids() {
        let Op::Constant(constant) = &plan.graph.node(id).op else { continue };
        let value = Value { node: id, output: 0 };
        let ty = plan.graph.ty(value);
        let bytes = arena.slice_mut(plan.offset(value), ty.bytes());
        for (index, element) in bytes.chunks_exact_mut(ty.dtype.size()).enumerate() {
            let x = constant.at(index);
            match ty.dtype {
                DType::F32 => element.copy_from_slice(&(x as f32).to_ne_bytes()),
                DType::I32 => element.copy_from_slice(&(x as i32).to_ne_bytes()),
                DType::Bf16 => element.copy_from_slice(&half::bf16::from_f64(x).to_ne_bytes()),
                DType::F16 => element.copy_from_slice(&half::f16::from_f64(x).to_ne_bytes()),
                DType::U8 => element[0] = x as u8,
                DType::Bool => element[0] = u8::from(x != 0.0),
            }
        }
    }
}
