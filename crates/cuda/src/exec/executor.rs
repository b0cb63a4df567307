//! Runs plans: every tensor at its planned place in one arena or in the state, all work on one stream, in the order of the plan.

use super::algorithms::Multiplication;
use super::bound::{BoundStep, Call, Memory, REPORT_BYTES, Report, Shared};
use super::feeds::Feeds;
use super::footprints::Watch;
use super::groups::shares;
use super::halt::HALT_BYTES;
use super::ledger::Allocation;
use super::planned::{Planned, convolutions_of};
use super::prepared::Prepared;
use super::state::CudaState;
use super::sums::{Exchange, Sums};
use super::{Check, Gpu, failed};
use crate::driver::{Arena, Block, Event, Graph, Pinned};
use crate::error::GpuError;
use crate::kgen::MOST_ARRIVALS;
use crate::lower::{KIND, outputs};
use bessemer_ir::ops::Op;
use bessemer_ir::passes::alike::viewed;
use bessemer_ir::plan::{KernelNode, Plan, StateCopy, kernel_name};
use bessemer_ir::run::{
    BoundState, Executor, IndexOutOfRange, KEPT_RESULTS, KernelInfo, KernelTime, NonFinite, Phase, RunError,
    StateBinding, StateStore, StepResults, Ticket, check_ranks, constant_bytes, finite_range,
};
use bessemer_ir::{DType, NodeId, TensorType, Value};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::iter;
use std::sync::Arc;

/// What the memory of a plan is listed as.
const ARENA: &str = "the plan's arena";
/// Where results of a step go: memory of the host, and when they are there.
struct Slot {
    memory: Pinned,
    arrived: Event,
    results: StepResults,
}

/// An output of the plan.
struct Tensor {
    block: Block,
    /// What was read of it since the last step, in words so that elements of all types are aligned.
    read: OnceCell<Vec<u64>>,
}

/// A part of a step as the device replays it.
enum Recorded {
    Not,
    /// It ran once, so that nothing is loaded or set up by running it.
    Ran,
    As(Graph),
}

/// A plan made ready to run.
pub(super) struct CudaExecutor {
    plan: Plan,
    calls: Vec<Call>,
    once_calls: Vec<Call>,
    copies: Vec<(StateCopy, BoundStep)>,
    /// Between the calls of a part of a step and its copies, and behind the last copy of a step.
    look: Option<BoundStep>,
    end: Option<BoundStep>,
    memory: Memory,
    /// Where it is checked what launches do with memory.
    watch: Option<Watch>,
    state: Arc<dyn StateStore>,
    /// Numbers in the store of the state that steps replace, and of that which they do not.
    replaced: Vec<usize>,
    invariant: Vec<usize>,
    /// How often the invariant state had been replaced when the invariant values were computed.
    invariants_of: Option<u64>,
    feeds: Feeds,
    outputs: HashMap<String, Tensor>,
    reports: Vec<Report>,
    /// Reports, the halt, then the outputs of one `f32`.
    gathered: Block,
    /// The number, from 1, of the step behind which the halt was ended last.
    resumed_behind: u64,
    scalars: Vec<(Block, Block)>,
    slots: Vec<Slot>,
    steps: u64,
    /// Steps that are known to be over.
    over: u64,
    /// Micro-batches that are not the last of their step, and those that are.
    recorded: [Recorded; 2],
    gpu: Arc<Gpu>,
    /// Reports, scalars and counters of blocks, scratch memory of libraries, and tables of groups.
    _small: [Allocation; 3],
    /// Messages of sums over ranks.
    _messages: Option<Allocation>,
}

fn on_gpu(state: &Arc<dyn StateStore>) -> Result<&CudaState, RunError> {
    state.as_any().downcast_ref().ok_or(RunError::ForeignState { device: KIND })
}

impl CudaExecutor {
    /// Compiles what the plan needs, allocates the arena, zeroed, and fills in constants.
    ///
    /// # Errors
    /// A plan for another target or number of ranks; state that the store does not have, or of another device; no memory; a kernel
    /// that does not compile, or a convolution that cuDNN has no engine for.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: Plan,
        state: Arc<dyn StateStore>,
        binding: &StateBinding<'_>,
    ) -> Result<CudaExecutor, RunError> {
        gpu.context.is_alive()?;
        check_ranks(&plan, gpu.ranks())?;
        let store = on_gpu(&state)?;
        if !store.is_of(gpu) {
            return Err(RunError::ForeignState { device: KIND });
        }
        let BoundState { numbers, replaced, invariant } = binding.bind(&plan, store.layout())?;
        // A plan that does not fit is refused before engines are measured and kernels compiled for it.
        drop(gpu.ledger.allocate(&gpu.context, ARENA, plan.arena_bytes)?);
        let Prepared { once_calls, calls, reports, halting, table_bytes } = Prepared::new(gpu, &plan)?;

        let all = || once_calls.iter().chain(&calls);
        let allocate = |what, bytes| gpu.ledger.allocate(&gpu.context, what, bytes);
        let arena = allocate(ARENA, plan.arena_bytes)?;
        let workspace =
            allocate("scratch memory of libraries", all().map(|one| one.workspace(gpu, plan.tf32)).max().unwrap_or(0))?;
        let tables = allocate("tables of groups", table_bytes)?;
        let sent: Vec<(NodeId, usize, DType)> = all().filter_map(Planned::message).collect();
        let bytes = sent.iter().map(|(_, bytes, _)| bytes.next_multiple_of(plan.alignment)).sum();
        let messages = (bytes > 0).then(|| allocate("messages of sums over ranks", bytes)).transpose()?;
        let names = plan.graph.outputs().iter().filter(|(_, v)| is_scalar(plan.graph.ty(*v)));
        let names: Vec<&String> = names.map(|(name, _)| name).collect();
        let scalars_at = reports.len() * REPORT_BYTES + HALT_BYTES;
        let gathered_bytes = scalars_at + names.len() * 4;
        let arrivals_at = gathered_bytes.next_multiple_of(Arena::ALIGNMENT);
        let small = allocate("results of steps", arrivals_at + ARRIVALS_BYTES)?;
        let state_blocks = numbers.iter().map(|&number| store.block(number)).collect::<Result<_, _>>()?;
        let memory = Memory { arena, state: state_blocks };

        let gathered = small.block(0, gathered_bytes).map_err(failed)?;
        let shared = || -> Result<Shared<'_>, GpuError> {
            Ok(Shared {
                gpu,
                plan: &plan,
                memory: &memory,
                tables: &tables,
                halting: halting.as_ref(),
                reports: gathered.part(0, reports.len() * REPORT_BYTES)?,
                halt: gathered.part(reports.len() * REPORT_BYTES, HALT_BYTES)?,
                arrivals: small.block(arrivals_at, ARRIVALS_BYTES)?,
                workspace: workspace.all()?,
                exchanges: Exchange::all(&gpu.context, &sent, messages.as_ref(), plan.alignment)?,
            })
        };
        let shared = shared().map_err(failed)?;
        let bind = |planned: Vec<Planned<'_>>| {
            planned.into_iter().map(|one| one.bind(&shared)).collect::<Result<Vec<Call>, GpuError>>()
        };
        let once_calls = bind(once_calls).map_err(failed)?;
        let calls = bind(calls).map_err(failed)?;
        let copies = shared.copies().map_err(failed)?;
        let watch = || Ok(Watch::new(memory.arena.all()?, store.all()?, shared.halt.clone()));
        let watch = (gpu.check == Check::Memory).then(watch).transpose().map_err(failed)?;
        let look = shared.look().map_err(failed)?;
        let end = shared.end().map_err(failed)?;
        let scalars = names.iter().enumerate().map(|(index, name)| {
            let to = gathered.part(scalars_at + index * 4, 4)?;
            Ok((memory.at(plan.result_location(name), 4)?, to))
        });
        let scalars = scalars.collect::<Result<Vec<_>, GpuError>>().map_err(failed)?;
        let slot = |_| {
            let scalars = names.iter().map(|name| ((*name).clone(), 0.0)).collect();
            let (memory, arrived) = (gpu.context.pinned(gathered.bytes())?, gpu.context.event()?);
            Ok(Slot { memory, arrived, results: StepResults { scalars } })
        };
        let slots = (0..KEPT_RESULTS).map(slot).collect::<Result<Vec<_>, GpuError>>().map_err(failed)?;
        let prepared = {
            let _order = gpu.lock();
            prepare_memory(&shared, &gathered)
        };
        prepared.map_err(failed)?;

        let graph = &plan.graph;
        let feeds = Feeds::new(gpu, &plan, &memory)?;
        let output = |(name, v): &(String, Value)| {
            let block = memory.at(plan.result_location(name), graph.ty(*v).bytes())?;
            Ok((name.clone(), Tensor { block, read: OnceCell::new() }))
        };
        let outputs = graph.outputs().iter().map(output).collect::<Result<_, GpuError>>().map_err(failed)?;
        Ok(CudaExecutor {
            calls,
            once_calls,
            copies,
            look,
            end,
            memory,
            watch,
            state,
            replaced,
            invariant,
            invariants_of: None,
            feeds,
            outputs,
            reports,
            gathered,
            resumed_behind: 0,
            scalars,
            slots,
            steps: 0,
            over: 0,
            recorded: [Recorded::Not, Recorded::Not],
            gpu: Arc::clone(gpu),
            _small: [small, workspace, tables],
            _messages: messages,
            plan,
        })
    }

    /// Gives work to the stream with the invariant values computed, and notes what it replaces.
    fn running<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, RunError>) -> Result<T, RunError> {
        let gpu = Arc::clone(&self.gpu);
        gpu.with_ranks(|| self.running_alone(work))
    }

    /// The same for a micro-batch, with what was fed for it.
    fn running_fed<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, RunError>) -> Result<T, RunError> {
        self.running(|this| {
            this.feeds.take(&this.gpu.stream).map_err(failed)?;
            this.forget_memory();
            work(this)
        })
    }

    fn running_alone<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, RunError>) -> Result<T, RunError> {
        self.gpu.context.is_alive()?;
        self.note_steps(self.steps);
        let state = Arc::clone(&self.state);
        let store = on_gpu(&state)?;
        let gpu = Arc::clone(&self.gpu);
        let _order = gpu.lock();
        self.forget_memory();
        self.outputs.values_mut().for_each(|output| output.read = OnceCell::new());
        let version = self.invariant.iter().map(|&number| store.version(number)).sum();
        if self.invariants_of != Some(version) {
            self.once_calls.iter().try_for_each(|call| self.launch(call)).map_err(failed)?;
            self.invariants_of = Some(version);
        }
        let result = work(self);
        self.replaced.iter().for_each(|&number| store.changed(number));
        result
    }

    /// Others than launches change the memory that is watched.
    fn forget_memory(&self) {
        self.watch.iter().for_each(Watch::forget);
    }

    /// Tells the device's errors which steps may be on it, up to this one.
    fn note_steps(&self, last: u64) {
        let hint = if self.gpu.check == Check::Nothing { " (`--eager --check` names the call)" } else { "" };
        self.gpu.context.note(match self.over {
            first if first >= last => format!(", in step {last}{hint}"),
            first => format!(", in one of steps {first} to {last}{hint}"),
        });
    }

    fn launch(&self, call: &Call) -> Result<(), GpuError> {
        let node = || KernelNode::of(&self.plan.graph, call.nodes[0]);
        let named = |error| match error {
            GpuError::Call { .. } => GpuError::Given { operation: node().to_string(), cause: Box::new(error) },
            error => error,
        };
        if self.gpu.check == Check::Nothing {
            return call.steps.iter().try_for_each(|step| self.give(step)).map_err(named);
        }
        let node = node();
        self.gpu.context.note(format!(", in step {} at {node}", self.steps));
        let steps: Vec<&BoundStep> = call.steps.iter().collect();
        // Sums over ranks can be made only once.
        let is_sum = steps.iter().any(|step| matches!(step, BoundStep::Exchange(_)));
        let outputs = call.nodes.iter().filter(|_| !is_sum).flat_map(|&node| outputs(&self.plan, node));
        let outputs = outputs.map(|value| self.memory.value(&self.plan, value));
        self.give_checked(&node, &steps, &outputs.collect::<Result<Vec<_>, GpuError>>()?).map_err(named)
    }

    /// Gives steps that belong together to the stream and, where memory is checked, looks at what they do with it; `outputs` are
    /// what they must write all of.
    fn give_checked(&self, what: &dyn Display, steps: &[&BoundStep], outputs: &[Block]) -> Result<(), GpuError> {
        match &self.watch {
            Some(watch) => watch.check(&self.gpu.stream, what, steps, outputs, |step| self.give(step)),
            None => steps.iter().try_for_each(|step| self.give(step)),
        }
    }

    /// Gives a step to the stream; where everything is checked, waits for it.
    fn give(&self, step: &BoundStep) -> Result<(), GpuError> {
        let given = self.give_alone(step);
        if given.is_ok() && self.gpu.check != Check::Nothing {
            return self.gpu.stream.synchronize();
        }
        // A library says no more than that it failed, which may be because the device did before.
        if given.is_err() && matches!(step, BoundStep::Product(_) | BoundStep::Convolution(_)) {
            let _ = self.gpu.context.synchronize();
            self.gpu.context.is_alive()?;
        }
        given
    }

    fn give_alone(&self, step: &BoundStep) -> Result<(), GpuError> {
        let stream = &self.gpu.stream;
        match step {
            BoundStep::Launch(function, blocks) => stream.launch(function, blocks),
            BoundStep::Group { function, arguments, kept } => {
                kept.iter().for_each(|block| stream.keep_block(block));
                stream.launch(function, arguments)
            }
            BoundStep::Product(prepared) => prepared.launch(stream, 0),
            BoundStep::Convolution(bound) => bound.launch(stream),
            BoundStep::Zero(block) => stream.fill(block, 0),
            BoundStep::Copy(from, to) => stream.copy(from, to),
            BoundStep::Exchange(exchange) => self.gpu.sums.as_ref().map_or(Ok(()), |sums| sums.start(stream, exchange)),
            BoundStep::Await(exchange) => exchange.wait(stream),
        }
    }

    /// Calls of a part of a step.
    fn due(&self, phase: Phase) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(move |call| call.per_micro_batch || phase == Phase::Update)
    }

    /// Copies at the end of a part of a step.
    fn replace_state(&self, phase: Phase) -> Result<(), GpuError> {
        if self.gpu.check != Check::Nothing {
            self.gpu.context.note(format!(", in step {} at its end", self.steps));
        }
        self.look.iter().try_for_each(|step| self.give(step))?;
        let mut due = self.copies.iter().filter(|(copy, _)| copy.per_micro_batch || phase == Phase::Update);
        due.try_for_each(|(copy, step)| {
            let to = self.memory.at(copy.to, copy.bytes)?;
            self.give_checked(&"a copy at the end of a step", &[step], &[to])
        })
    }

    fn launch_all(&self, phase: Phase) -> Result<(), GpuError> {
        self.due(phase).try_for_each(|call| self.launch(call))?;
        self.replace_state(phase)?;
        let end = self.end.iter().filter(|_| phase == Phase::Update);
        end.into_iter().try_for_each(|step| self.give(step))
    }

    /// Runs a part of a step: launch by launch, or as it was recorded.
    fn run(&mut self, phase: Phase) -> Result<(), GpuError> {
        let number = usize::from(phase == Phase::Update);
        if let Recorded::Ran = self.recorded[number] {
            let graph = self.gpu.stream.capture(|| self.launch_all(phase))?;
            self.recorded[number] = Recorded::As(graph);
        }
        if let Some(sums) = &self.gpu.sums {
            let begun = self.due(phase).flat_map(|call| &call.steps);
            sums.peers().begun(begun.filter(|step| matches!(step, BoundStep::Exchange(_))).count() as u32);
        }
        match &self.recorded[number] {
            Recorded::As(graph) => graph.launch(&self.gpu.stream),
            Recorded::Not | Recorded::Ran => {
                self.launch_all(phase)?;
                if !self.gpu.eager {
                    self.recorded[number] = Recorded::Ran;
                }
                Ok(())
            }
        }
    }

    fn check_phase(&self, phase: Phase) -> Result<(), RunError> {
        match phase == Phase::Update || self.plan.accumulates() {
            true => Ok(()),
            false => Err(RunError::NoAccumulation),
        }
    }

    /// The error of the first call in the order of the plan whose report says so.
    fn check_reports(&self, gathered: &[u8]) -> Result<(), RunError> {
        let words = |report: &[u8]| -> Vec<u64> {
            report.as_chunks::<8>().0.iter().map(|&word| u64::from_ne_bytes(word)).collect()
        };
        let found = self.reports.iter().zip(gathered.chunks_exact(REPORT_BYTES)).find_map(|(report, bytes)| {
            let mut known = report.limits.iter().zip(words(bytes));
            known.find(|(_, word)| *word != u64::MAX).map(|(&limit, word)| (report.node, limit, word))
        });
        let Some((node, limit, word)) = found else { return Ok(()) };
        let problem = IndexOutOfRange { position: (word >> 32) as usize, index: word as i32, limit };
        let node = KernelNode::of(&self.plan.graph, node);
        Err(RunError::Kernel(Box::new(IndexError { node, problem })))
    }

    /// Lets steps that are submitted from now on replace state.
    fn resume(&self) -> Result<(), GpuError> {
        let reports = self.reports.len() * REPORT_BYTES;
        let _order = self.gpu.lock();
        self.gpu.stream.fill(&self.gathered.part(0, reports)?, 0xff)?;
        self.gpu.stream.fill(&self.gathered.part(reports, 4)?, 0)
    }

    /// Least and greatest finite element of a tensor of floats, and whether all are finite.
    fn range(&self, value: Value) -> Result<((f32, f32), bool), RunError> {
        let block = self.memory.value(&self.plan, value).map_err(failed)?;
        let words = download(&self.gpu, &block).map_err(failed)?;
        Ok(finite_range(self.plan.graph.dtype(value), &bytemuck::cast_slice(&words)[..block.bytes()]))
    }

    /// The first input of the step that is not finite.
    fn find_in_inputs(&self) -> Result<Option<NonFinite>, RunError> {
        let graph = &self.plan.graph;
        // The sums of a step whose loss was not finite say no more than that.
        for (value, input) in graph.inputs().filter(|&(value, _)| !graph.is_per_micro_batch(value)) {
            if input.ty.dtype.is_float() && !self.range(value)?.1 {
                let (op, path) = (input.name.clone(), graph.path(value.node).to_string());
                return Ok(Some(NonFinite { op, path, input_ranges: Vec::new(), is_input: true }));
            }
        }
        Ok(None)
    }

    fn find_in_calls(&self, phase: Phase) -> Result<Option<NonFinite>, RunError> {
        let graph = &self.plan.graph;
        for call in self.due(phase) {
            match graph.node(call.nodes[0]).op {
                // The other ranks need not search as far, and do not answer.
                Op::AllReduceStart(_) => continue,
                Op::AllReduce(_) | Op::AllReduceWait(_) => return Ok(None),
                _ => {}
            }
            let inputs = |node: NodeId| graph.node(node).inputs.iter().copied().filter(|&v| graph.dtype(v).is_float());
            // What a program computes of what it has computed is there behind it.
            let is_own = |v: Value| call.nodes.contains(&viewed(graph, v.node));
            let mut ranges = HashMap::new();
            for v in call.nodes.iter().flat_map(|&node| inputs(node)).filter(|&v| !is_own(v)) {
                ranges.insert(v, self.range(v)?.0);
            }
            self.launch(call).map_err(failed)?;
            for &node in &call.nodes {
                let input_ranges = inputs(node).map(|v| match ranges.get(&v) {
                    Some(range) => Ok(*range),
                    None => Ok(self.range(v)?.0),
                });
                let input_ranges = input_ranges.collect::<Result<Vec<_>, RunError>>()?;
                for output in 0..graph.node(node).outputs.len() as u32 {
                    let value = Value { node, output };
                    if graph.dtype(value).is_float() && !self.range(value)?.1 {
                        let (op, path) = (kernel_name(graph, node).to_string(), graph.path(node).to_string());
                        return Ok(Some(NonFinite { op, path, input_ranges, is_input: false }));
                    }
                }
            }
        }
        self.replace_state(phase).map_err(failed)?;
        Ok(None)
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // What NCCL recorded must not be released behind a communicator that was aborted.
        if self.gpu.sums.as_ref().is_some_and(Sums::has_failed) {
            std::mem::forget(std::mem::replace(&mut self.recorded, [Recorded::Not, Recorded::Not]));
        }
    }
}

/// An index out of range, and the operation that met it.
#[derive(Debug, thiserror::Error)]
#[error("{node}: {problem}")]
struct IndexError {
    node: KernelNode,
    problem: IndexOutOfRange,
}

fn is_scalar(ty: &TensorType) -> bool {
    ty.dtype == DType::F32 && ty.shape.elements() == 1
}

/// Bytes of the words that count blocks.
const ARRIVALS_BYTES: usize = 4 * MOST_ARRIVALS;

/// Zeros, constants, and reports that say nothing.
fn prepare_memory(shared: &Shared<'_>, gathered: &Block) -> Result<(), GpuError> {
    let Shared { gpu, plan, memory, .. } = shared;
    gpu.stream.fill(&memory.arena.all()?, 0)?;
    gpu.stream.fill(gathered, 0)?;
    gpu.stream.fill(&shared.arrivals, 0)?;
    gpu.stream.fill(&shared.reports, 0xff)?;
    shared.exchanges.values().try_for_each(|exchange| gpu.stream.fill(exchange.message(), 0))?;
    for id in plan.graph.ids() {
        if let Op::Constant(constant) = &plan.graph.node(id).op {
            gpu.stream.upload(&constant_bytes(constant), &memory.value(plan, Value { node: id, output: 0 })?)?;
        }
    }
    Ok(())
}

/// The content of memory, with as many bytes as fill whole words.
fn download(gpu: &Gpu, block: &Block) -> Result<Vec<u64>, GpuError> {
    let mut words = vec![0u64; block.bytes().div_ceil(8)];
    gpu.stream.download(block, &mut bytemuck::cast_slice_mut(&mut words)[..block.bytes()])?;
    Ok(words)
}

impl Executor for CudaExecutor {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn state(&self) -> &Arc<dyn StateStore> {
        &self.state
    }

    fn kernels(&self) -> Vec<KernelInfo> {
        let info = |call: &Call| {
            let (name, flops) = (call.lowered.name_of(call.fused), call.lowered.flops);
            let name = match call.nodes.len() {
                1 => name,
                launched => format!("{name}, one of {launched} in a launch"),
            };
            call.nodes.iter().map(|&node| KernelInfo { node, name: name.clone(), flops }).collect::<Vec<_>>()
        };
        self.calls.iter().flat_map(info).collect()
    }

    fn algorithms(&self) -> BTreeMap<String, String> {
        let calls = || self.calls.iter().chain(&self.once_calls);
        let steps = || calls().map(|call| call.lowered.steps_of(call.fused));
        let mut all = self.gpu.engines.of(steps().flat_map(|steps| convolutions_of(steps, self.plan.tf32)));
        all.extend(self.gpu.algorithms.of(steps().flat_map(|steps| Multiplication::all(steps, self.plan.tf32))));
        all
    }

    fn near_misses(&self) -> BTreeMap<String, String> {
        let lowered = || self.calls.iter().chain(&self.once_calls).map(|call| &call.lowered);
        let steps =
            || lowered().flat_map(|one| iter::once(&one.steps).chain(one.fused.iter().map(|fused| &fused.steps)));
        let mut all = self.gpu.engines.reasons(steps().flat_map(|steps| convolutions_of(steps, self.plan.tf32)));
        all.extend(self.gpu.algorithms.reasons(steps().flat_map(|steps| Multiplication::all(steps, self.plan.tf32))));
        all
    }

    fn has_feed(&self, name: &str) -> bool {
        self.feeds.has(name)
    }

    fn feed(&mut self, feeds: &[(&str, &[u8])]) -> Result<(), RunError> {
        self.gpu.context.is_alive()?;
        let gpu = Arc::clone(&self.gpu);
        gpu.with_ranks(|| feeds.iter().try_for_each(|(name, bytes)| self.feeds.send(name, bytes)))
    }

    fn computes_in_background(&self) -> bool {
        true
    }

    fn compute_invariants(&mut self) -> Result<(), RunError> {
        self.running(|_| Ok(()))
    }

    fn accumulate(&mut self) -> Result<(), RunError> {
        self.gpu.context.is_alive()?;
        self.check_phase(Phase::Accumulate)?;
        self.running_fed(|this| this.run(Phase::Accumulate).map_err(failed))
    }

    fn submit(&mut self) -> Result<Ticket, RunError> {
        self.running_fed(|this| this.run(Phase::Update).map_err(failed))?;
        let slot = &mut self.slots[(self.steps % KEPT_RESULTS) as usize];
        let stream = &self.gpu.stream;
        let _order = self.gpu.lock();
        let gather = self.scalars.iter().try_for_each(|(from, to)| stream.copy(from, to));
        let sent = gather.and_then(|()| stream.copy_out(&self.gathered, &mut slot.memory));
        sent.and_then(|()| stream.record(&slot.arrived)).map_err(failed)?;
        self.steps += 1;
        Ok(Ticket(self.steps - 1))
    }

    fn collect(&mut self, ticket: Ticket) -> Result<&StepResults, RunError> {
        self.gpu.context.is_alive()?;
        let (number, step) = (ticket.place(self.steps)?, ticket.0);
        let slot = &mut self.slots[number];
        if let Err(error) = self.gpu.waiting_for_ranks(|| slot.arrived.synchronize()) {
            self.gpu.has_ranks()?;
            return Err(failed(error));
        }
        self.over = self.over.max(step + 1);
        match self.over < self.steps {
            true => self.note_steps(self.steps - 1),
            false => self.gpu.context.note(String::new()),
        }
        let slot = &mut self.slots[number];
        if let Some(sums) = self.gpu.sums.as_ref().filter(|_| step + 1 == self.steps) {
            sums.peers().done();
        }
        let mut gathered = vec![0; slot.memory.bytes()];
        slot.memory.read(0, &mut gathered).map_err(failed)?;
        let (reports, rest) = gathered.split_at(self.reports.len() * REPORT_BYTES);
        let (halt, scalars) = rest.split_at(HALT_BYTES);
        let word = |bytes: &[u8]| -> [u8; 4] { bytes.try_into().expect("four bytes") };
        for ((_, value), bytes) in slot.results.scalars.iter_mut().zip(scalars.chunks_exact(4)) {
            *value = f32::from_ne_bytes(word(bytes));
        }
        let halted_at = u64::from(u32::from_ne_bytes(word(&halt[..4])));
        // A step whose sums were all there is whole, even if a rank was lost behind them.
        if (1..=step + 1).contains(&halted_at) {
            self.gpu.has_ranks()?;
        }
        let outcome = match halted_at.checked_sub(1) {
            Some(failed) if failed < step => Err(RunError::Halted { step, failed }),
            _ => self.check_reports(reports),
        };
        let is_over = halted_at != 0 && halted_at == self.resumed_behind;
        if !is_over && (halted_at != 0 || outcome.is_err()) {
            self.resume().map_err(failed)?;
            self.resumed_behind = halted_at;
        }
        outcome?;
        Ok(&self.slots[number].results)
    }

    fn output(&self, name: &str) -> Result<&[u8], RunError> {
        self.gpu.context.is_alive()?;
        let known = || self.outputs.keys().map(String::as_str);
        let output = self.outputs.get(name).ok_or_else(|| RunError::no_such_name("output", name, known()))?;
        if output.read.get().is_none() {
            let _order = self.gpu.lock();
            let _ = output.read.set(download(&self.gpu, &output.block).map_err(failed)?);
        }
        let words = output.read.get().expect("it was just read");
        Ok(&bytemuck::cast_slice(words)[..output.block.bytes()])
    }

    fn profile(&mut self) -> Result<Vec<KernelTime>, RunError> {
        self.running_fed(|this| {
            let timed = || {
                let timer = this.gpu.context.timer()?;
                let time = |call| timer.time(&this.gpu.stream, || this.launch(call));
                let mut times = Vec::new();
                for call in &this.calls {
                    let of_nodes = shares(&this.plan, &call.nodes, time(call)?);
                    times.extend(of_nodes.map(|(node, time)| KernelTime { node, time }));
                }
                this.replace_state(Phase::Update)?;
                Ok(times)
            };
            timed().map_err(failed)
        })
    }

    fn find_non_finite(&mut self, phase: Phase) -> Result<Option<NonFinite>, RunError> {
        self.gpu.context.is_alive()?;
        self.check_phase(phase)?;
        self.running_fed(|this| match this.find_in_inputs()? {
            Some(found) => Ok(Some(found)),
            None => this.find_in_calls(phase),
        })
    }
}
