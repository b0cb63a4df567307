//! Runs plans: every tensor at its planned place in one arena or in the state, nothing allocated while a step runs.

use crate::arena::Arena;
use crate::device::{CpuOptions, KIND};
use crate::gemm::Ctx;
use crate::kernel::{self, CallError, KernelError, Lowered, Operands};
use crate::state::CpuState;
use crate::threads::ThreadPool;
use bessemer_ir::ops::Op;
use bessemer_ir::plan::{KernelCall, KernelNode, Location, LoweredKernel, OnceCall, Plan, StateCopy, kernel_name};
use bessemer_ir::run::{
    self, Alone, BoundState, Collectives, KEPT_RESULTS, KernelInfo, KernelTime, NonFinite, Phase, RunError,
    StateBinding, StateLayout, StateStore, StepResults, Ticket, constant_bytes, finite_range,
};
use bessemer_ir::{DType, NodeId, Role, TensorType, Value};
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// A kernel with the places of its operands.
struct Call {
    node: NodeId,
    kernel: Arc<Lowered>,
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    scratch: *mut f32,
    scratch_len: usize,
    /// Memory for the packed form of an input.
    packed: *mut f32,
    packed_len: usize,
}

/// What is done before the first step.
enum LoadedOnceCall {
    Run(Box<Call>),
    /// The packing of an input of the call of this number.
    Prepack(usize),
}

impl Call {
    fn new(plan: &Plan, call: &KernelCall, kernel: Arc<Lowered>, memory: &Memory) -> Call {
        let node = plan.graph.node(call.node);
        let place = |v: Value| memory.at(plan.location(v), plan.graph.ty(v).bytes());
        let outputs = 0..node.outputs.len() as u32;
        let piece = |(offset, bytes): (usize, usize)| memory.arena.at(offset, bytes).cast();
        Call {
            node: call.node,
            kernel,
            inputs: node.inputs.iter().map(|&v| place(v).cast_const()).collect(),
            outputs: outputs.map(|output| place(Value { node: call.node, output })).collect(),
            scratch: piece(call.scratch),
            scratch_len: call.scratch.1 / 4,
            packed: piece(call.packed),
            packed_len: call.packed.1 / 4,
        }
    }

    fn operands(&self) -> Operands<'_> {
        Operands {
            inputs: &self.inputs,
            outputs: &self.outputs,
            scratch: self.scratch,
            scratch_len: self.scratch_len,
            packed: self.packed,
            packed_len: self.packed_len,
        }
    }
}

/// Where a plan's tensors lie.
struct Memory {
    arena: Arena,
    /// Addresses of the plan's state.
    state: Vec<*mut u8>,
}

impl Memory {
    /// # Panics
    /// If the run of bytes is not within the arena.
    fn at(&self, location: Location, bytes: usize) -> *mut u8 {
        match location {
            Location::Arena(offset) => self.arena.at(offset, bytes),
            Location::State(number) => self.state[number],
        }
    }

    /// # Safety
    /// A tensor of the plan, of that size; its state is locked and nobody writes it meanwhile.
    unsafe fn slice(&self, location: Location, bytes: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at(location, bytes), bytes) }
    }
}

/// A plan with its kernels and its memory. To run it, the state must be locked.
struct Program {
    plan: Plan,
    options: CpuOptions,
    pool: ThreadPool,
    collectives: Arc<dyn Collectives>,
    memory: Memory,
    calls: Vec<Call>,
    once_calls: Vec<LoadedOnceCall>,
}

/// A plan made ready to run.
pub struct Executor {
    program: Program,
    state: Arc<dyn StateStore>,
    /// Numbers in the store of the plan's state.
    state_numbers: Vec<usize>,
    /// Those of them that steps replace, and those that they do not, of which something may be packed.
    replaced: Vec<usize>,
    invariant: Vec<usize>,
    /// How often the invariant state had been replaced when what is packed of it was packed.
    invariants_of: Option<u64>,
    feeds: HashMap<String, (Location, TensorType)>,
    outputs: HashMap<String, (Location, TensorType)>,
    /// Results of the last steps, by their number modulo [`KEPT_RESULTS`].
    results: Vec<StepResults>,
    steps: u64,
}

// SAFETY: the pointers of the calls lead into the arena and the state, which move with them.
unsafe impl Send for Executor {}

/// The kernel that a plan has for a call. Its scratch is for a number of threads.
fn kernel_of(plan: &Plan, call: &KernelCall, threads: usize) -> Result<Arc<Lowered>, RunError> {
    let kernel = plan.kernels.of(call.node).map(|kernel| Arc::clone(kernel) as Arc<dyn Any + Send + Sync>);
    let lowered = kernel.and_then(|kernel| kernel.downcast::<Lowered>().ok());
    lowered.filter(|lowered| lowered.threads == threads).ok_or(RunError::ForeignPlan { device: KIND })
}

/// The store as one of processors.
fn on_cpu(state: &Arc<dyn StateStore>) -> Result<&CpuState, RunError> {
    state.as_any().downcast_ref().ok_or(RunError::ForeignState { device: KIND })
}

impl Executor {
    /// Makes a plan ready to run over a new state, all zero, that no other plan shares.
    ///
    /// # Errors
    /// When the plan was compiled for another target or number of threads; when there is no memory.
    pub fn new(plan: Plan, options: CpuOptions) -> Result<Executor, RunError> {
        let state = CpuState::new(StateLayout::of_plan(&plan))?;
        Self::over(plan, options, Arc::new(Alone::default()), Arc::new(state), &StateBinding::default())
    }

    /// Makes a plan ready to run over a store: allocates the arena, zeroed, and fills constants.
    ///
    /// # Errors
    /// As [`Executor::new`]; state that the store does not have; a plan for another number of ranks.
    pub fn over(
        plan: Plan,
        options: CpuOptions,
        collectives: Arc<dyn Collectives>,
        state: Arc<dyn StateStore>,
        binding: &StateBinding<'_>,
    ) -> Result<Executor, RunError> {
        run::check_ranks(&plan, collectives.ranks())?;
        let store = on_cpu(&state)?;
        let BoundState { numbers, replaced, invariant } = binding.bind(&plan, store.layout())?;
        let bytes = plan.arena_bytes;
        let arena = Arena::new(bytes).map_err(|source| RunError::Memory { what: "the plan's arena", bytes, source })?;
        let mut memory = Memory { arena, state: numbers.iter().map(|&number| store.address(number)).collect() };
        let threads = options.threads.max(1);
        let load = |call: &KernelCall| Ok(Call::new(&plan, call, kernel_of(&plan, call, threads)?, &memory));
        let calls = plan.calls.iter().map(load).collect::<Result<Vec<_>, RunError>>()?;
        let once = plan.once_calls.iter().map(|once| match once {
            OnceCall::Run(call) => Ok(LoadedOnceCall::Run(Box::new(load(call)?))),
            OnceCall::Prepack(number) => Ok(LoadedOnceCall::Prepack(*number)),
        });
        let once_calls = once.collect::<Result<Vec<_>, RunError>>()?;
        fill_constants(&plan, &mut memory.arena);
        let graph = &plan.graph;
        let feeds = graph.inputs().filter(|(_, input)| input.role == Role::Feed);
        let feeds = feeds.map(|(v, input)| (input.name.clone(), (plan.location(v), input.ty.clone()))).collect();
        let result = |(name, v): &(String, Value)| (name.clone(), (plan.result_location(name), graph.ty(*v).clone()));
        let outputs = graph.outputs().iter().map(result).collect();
        let is_scalar = |ty: &TensorType| ty.dtype == DType::F32 && ty.shape.elements() == 1;
        let scalars = graph.outputs().iter().filter(|(_, v)| is_scalar(graph.ty(*v)));
        let scalars = scalars.map(|(name, _)| (name.clone(), 0.0)).collect();
        let results = vec![StepResults { scalars }; KEPT_RESULTS as usize];
        let pool = ThreadPool::new(threads);
        let program = Program { plan, options, pool, collectives, memory, calls, once_calls };
        Ok(Executor {
            program,
            state,
            state_numbers: numbers,
            replaced,
            invariant,
            invariants_of: None,
            feeds,
            outputs,
            results,
            steps: 0,
        })
    }

    /// The plan that runs.
    pub fn plan(&self) -> &Plan {
        &self.program.plan
    }

    /// The state over which the plan runs.
    pub fn state(&self) -> &Arc<dyn StateStore> {
        &self.state
    }

    /// Type of an input: a feed, or state by the plan's name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input_type(&self, name: &str) -> Result<&TensorType, RunError> {
        if let Some((_, ty)) = self.feeds.get(name) {
            return Ok(ty);
        }
        Ok(&self.plan().state[self.state_number(name)?].ty)
    }

    /// Number of a tensor of the plan's state.
    fn state_number(&self, name: &str) -> Result<usize, RunError> {
        let state = &self.plan().state;
        state.iter().position(|tensor| tensor.name == name).ok_or_else(|| {
            let known = state.iter().map(|tensor| tensor.name.as_str()).chain(self.feeds.keys().map(String::as_str));
            RunError::no_such_name("input", name, known)
        })
    }

    /// Content of an input, row-major.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input(&self, name: &str) -> Result<Vec<u8>, RunError> {
        if let Some((location, ty)) = self.feeds.get(name) {
            // SAFETY: a feed lies in the arena, which is borrowed.
            return Ok(unsafe { self.program.memory.slice(*location, ty.bytes()) }.to_vec());
        }
        let number = self.state_number(name)?;
        let mut content = vec![0; self.plan().state[number].ty.bytes()];
        self.state.read(self.name_in_store(number), &mut content)?;
        Ok(content)
    }

    fn name_in_store(&self, number: usize) -> &str {
        &self.state.layout().tensors()[self.state_numbers[number]].name
    }

    /// Content of an `f32` input.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn input_f32(&self, name: &str) -> Result<Vec<f32>, RunError> {
        Ok(self.input(name)?.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }

    /// Copies bytes into an input: a feed, or state by the plan's name.
    ///
    /// # Errors
    /// When there is none of that name, or it has another size.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let Some((location, ty)) = self.feeds.get(name) else {
            let number = self.state_number(name)?;
            return self.state.write(self.name_in_store(number), bytes);
        };
        if ty.bytes() != bytes.len() {
            let (expected, actual, ty) = (ty.bytes(), bytes.len(), ty.clone());
            return Err(RunError::WrongSize { name: name.to_owned(), ty, expected, actual });
        }
        let Location::Arena(offset) = *location else { unreachable!("feeds lie in the arena") };
        self.program.memory.arena.slice_mut(offset, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    /// Copies numbers into an `f32` input.
    ///
    /// # Errors
    /// When there is none of that name, or it has another size.
    pub fn write_f32(&mut self, name: &str, data: &[f32]) -> Result<(), RunError> {
        self.write(name, bytemuck::cast_slice(data))
    }

    /// Content of an output of the last step.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn output(&self, name: &str) -> Result<&[u8], RunError> {
        let known = || self.outputs.keys().map(String::as_str);
        let (location, ty) = self.outputs.get(name).ok_or_else(|| RunError::no_such_name("output", name, known()))?;
        let Location::Arena(offset) = *location else { unreachable!("results that are state are kept in the arena") };
        Ok(self.program.memory.arena.slice(offset, ty.bytes()))
    }

    /// Content of an `f32` output of the last step.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn output_f32(&self, name: &str) -> Result<&[f32], RunError> {
        Ok(bytemuck::cast_slice(self.output(name)?))
    }

    /// An `f32` output of one element.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn scalar(&self, name: &str) -> Result<f32, RunError> {
        Ok(self.output_f32(name)?[0])
    }

    /// Prepares what steps rely on, if the state of which it is made was replaced since. The state is locked.
    fn compute_invariants_locked(&mut self) -> Result<(), RunError> {
        let store = on_cpu(&self.state)?;
        let version = self.invariant.iter().map(|&number| store.version(number)).sum();
        if self.invariants_of != Some(version) {
            self.program.compute_invariants()?;
            self.invariants_of = Some(version);
        }
        Ok(())
    }

    /// Does work with the state locked.
    fn locked<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, RunError>) -> Result<T, RunError> {
        let state = Arc::clone(&self.state);
        let _access = on_cpu(&state)?.lock();
        work(self)
    }

    /// Runs calls of the program with the state locked and packed, and notes what they replace.
    fn running<T>(&mut self, work: impl FnOnce(&Program) -> Result<T, RunError>) -> Result<T, RunError> {
        self.locked(|this| {
            this.compute_invariants_locked()?;
            let result = work(&this.program);
            let store = on_cpu(&this.state)?;
            this.replaced.iter().for_each(|&number| store.changed(number));
            result
        })
    }

    /// Runs one step, or the last micro-batch of one.
    ///
    /// # Errors
    /// [`RunError::Kernel`] when a kernel met data it cannot take (an index out of range).
    pub fn run(&mut self) -> Result<(), RunError> {
        self.running(|program| program.run(Phase::Update))?;
        let slot = (self.steps % KEPT_RESULTS) as usize;
        let mut results = std::mem::take(&mut self.results[slot]);
        for (name, value) in &mut results.scalars {
            *value = self.scalar(name)?;
        }
        self.results[slot] = results;
        self.steps += 1;
        Ok(())
    }

    /// Runs a micro-batch that is not the last of its step: what was fed is added to the sums of the step. The
    /// outputs hold nothing of use until [`Executor::run`].
    ///
    /// # Errors
    /// As [`Executor::run`]; [`RunError::NoAccumulation`] when steps take one micro-batch.
    pub fn accumulate(&mut self) -> Result<(), RunError> {
        self.program.check_phase(Phase::Accumulate)?;
        self.running(|program| program.run(Phase::Accumulate))
    }

    /// Does what the steps rely on, if state was written since it was last done. [`Executor::run`] sees to it; to be called
    /// where its time is not to be part of the first step's.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn compute_invariants(&mut self) -> Result<(), RunError> {
        self.locked(Self::compute_invariants_locked)
    }

    /// Does what [`Executor::run`] or [`Executor::accumulate`] does, up to the first value that is not finite, and describes it;
    /// `None` if all are. State may be partly replaced afterwards.
    ///
    /// # Errors
    /// As [`Executor::run`].
    pub fn find_non_finite(&mut self, phase: Phase) -> Result<Option<NonFinite>, RunError> {
        self.program.check_phase(phase)?;
        match self.locked(|this| Ok(this.program.find_in_inputs()))? {
            Some(found) => Ok(Some(found)),
            None => self.running(|program| program.find_in_calls(phase)),
        }
    }
}

impl run::Executor for Executor {
    fn plan(&self) -> &Plan {
        self.plan()
    }

    fn state(&self) -> &Arc<dyn StateStore> {
        &self.state
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        let graph = &self.plan().graph;
        let info = |call: &Call| KernelInfo {
            node: call.node,
            name: LoweredKernel::name(&*call.kernel),
            flops: kernel::flops(&*call.kernel.kernel, graph, call.node),
        };
        self.program.calls.iter().map(info).collect()
    }

    fn has_feed(&self, name: &str) -> bool {
        self.feeds.contains_key(name)
    }

    fn feed(&mut self, feeds: &[(&str, &[u8])]) -> Result<(), RunError> {
        feeds.iter().try_for_each(|(name, bytes)| match self.feeds.contains_key(*name) {
            true => self.write(name, bytes),
            false => Err(RunError::no_such_name("feed", name, self.feeds.keys().map(String::as_str))),
        })
    }

    fn compute_invariants(&mut self) -> Result<(), RunError> {
        self.compute_invariants()
    }

    fn accumulate(&mut self) -> Result<(), RunError> {
        self.accumulate()
    }

    fn submit(&mut self) -> Result<Ticket, RunError> {
        self.run()?;
        Ok(Ticket(self.steps - 1))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<&StepResults, RunError> {
        Ok(&self.results[ticket.place(self.steps)?])
    }

    fn output(&self, name: &str) -> Result<&[u8], RunError> {
        self.output(name)
    }

    fn profile(&mut self) -> Result<Vec<KernelTime>, RunError> {
        self.running(Program::profile)
    }

    fn find_non_finite(&mut self, phase: Phase) -> Result<Option<NonFinite>, RunError> {
        self.find_non_finite(phase)
    }
}

/// All but [`Program::check_phase`] need the state locked.
impl Program {
    /// # Errors
    /// [`RunError::NoAccumulation`].
    fn check_phase(&self, phase: Phase) -> Result<(), RunError> {
        match phase == Phase::Update || self.plan.accumulates() {
            true => Ok(()),
            false => Err(RunError::NoAccumulation),
        }
    }

    fn compute_invariants(&self) -> Result<(), RunError> {
        for once in &self.once_calls {
            match once {
                LoadedOnceCall::Run(call) => self.run_call(call)?,
                LoadedOnceCall::Prepack(number) => {
                    let call = &self.calls[*number];
                    // SAFETY: as in `run_call`.
                    unsafe { call.kernel.kernel.prepack(self.ctx(), &call.operands()) }
                }
            }
        }
        Ok(())
    }

    fn run(&self, phase: Phase) -> Result<(), RunError> {
        let is_due = |per_micro_batch: bool| per_micro_batch || phase == Phase::Update;
        for (call, _) in self.calls.iter().zip(&self.plan.calls).filter(|(_, call)| is_due(call.per_micro_batch)) {
            self.run_call(call)?;
        }
        self.replace_state(|copy| is_due(copy.per_micro_batch));
        Ok(())
    }

    fn profile(&self) -> Result<Vec<KernelTime>, RunError> {
        let mut times = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let start = Instant::now();
            self.run_call(call)?;
            times.push(KernelTime { node: call.node, time: start.elapsed() });
        }
        self.replace_state(|_| true);
        Ok(times)
    }

    /// The first input of the step that is not finite.
    fn find_in_inputs(&self) -> Option<NonFinite> {
        let graph = &self.plan.graph;
        // The sums of a step whose loss was not finite say no more than that.
        let mut inputs = graph.inputs().filter(|&(value, _)| !graph.is_per_micro_batch(value));
        let found = inputs.find(|(value, input)| input.ty.dtype.is_float() && !self.range(*value).1);
        found.map(|(value, input)| NonFinite {
            op: input.name.clone(),
            path: graph.path(value.node).to_string(),
            input_ranges: Vec::new(),
            is_input: true,
        })
    }

    fn find_in_calls(&self, phase: Phase) -> Result<Option<NonFinite>, RunError> {
        let graph = &self.plan.graph;
        let is_due = |per_micro_batch: bool| per_micro_batch || phase == Phase::Update;
        for (call, _) in self.calls.iter().zip(&self.plan.calls).filter(|(_, call)| is_due(call.per_micro_batch)) {
            let node = graph.node(call.node);
            match node.op {
                // The other ranks need not search as far, and do not answer.
                Op::AllReduceStart(_) => continue,
                Op::AllReduce(_) | Op::AllReduceWait(_) => return Ok(None),
                _ => {}
            }
            let inputs = node.inputs.iter().filter(|&&v| graph.dtype(v).is_float());
            let input_ranges = inputs.map(|&v| self.range(v).0).collect();
            self.run_call(call)?;
            let mut outputs = (0..node.outputs.len() as u32).map(|output| Value { node: call.node, output });
            if outputs.any(|v| graph.dtype(v).is_float() && !self.range(v).1) {
                let (op, path) = (kernel_name(graph, call.node).to_string(), graph.path(call.node).to_string());
                return Ok(Some(NonFinite { op, path, input_ranges, is_input: false }));
            }
        }
        self.replace_state(|copy| is_due(copy.per_micro_batch));
        Ok(None)
    }

    /// Least and greatest finite element of a tensor of floats, and whether all are finite.
    fn range(&self, value: Value) -> ((f32, f32), bool) {
        let ty = self.plan.graph.ty(value);
        // SAFETY: a tensor of the plan; the state is locked and no kernel runs.
        let bytes = unsafe { self.memory.slice(self.plan.location(value), ty.bytes()) };
        finite_range(ty.dtype, bytes)
    }

    fn ctx(&self) -> Ctx<'_> {
        Ctx { isa: self.options.isa, pool: &self.pool, collectives: &*self.collectives }
    }

    fn run_call(&self, call: &Call) -> Result<(), RunError> {
        // SAFETY: the planner gave each value alive its own bytes, of the sizes that the kernel was lowered for, and
        // the executor that runs is borrowed exclusively, with its state locked.
        unsafe { call.kernel.kernel.run(self.ctx(), &call.operands()) }.map_err(|error| match error {
            CallError::Index(problem) => {
                let node = KernelNode::of(&self.plan.graph, call.node);
                RunError::Kernel(Box::new(KernelError::Index { node, problem }))
            }
            CallError::Ranks(error) => error,
        })
    }

    fn replace_state(&self, is_due: impl Fn(&StateCopy) -> bool) {
        for copy in self.plan.copies.iter().filter(|copy| is_due(copy)) {
            let from = self.memory.at(copy.from, copy.bytes);
            let to = self.memory.at(copy.to, copy.bytes);
            // SAFETY: two buffers of that size that the planner keeps apart; as for `run_call`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, copy.bytes) };
        }
    }
}

fn fill_constants(plan: &Plan, arena: &mut Arena) {
    for id in plan.graph.ids() {
        let Op::Constant(constant) = &plan.graph.node(id).op else { continue };
        let Location::Arena(offset) = plan.location(Value { node: id, output: 0 }) else {
            unreachable!("constants lie in the arena")
        };
        let bytes = constant_bytes(constant);
        arena.slice_mut(offset, bytes.len()).copy_from_slice(&bytes);
    }
}
