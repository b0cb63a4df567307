//! A compiled step with its state: what trainers, evaluations and benchmarks run.

use crate::checkpoint::hashing::sha256_hex;
use crate::checkpoint::{Checkpoint, TrainingState};
use crate::device::{DeviceKind, DeviceOptions};
use crate::error::TrainError;
use crate::events::PlanInfo;
use crate::memory::{Batch, plan_bytes};
use crate::ranks::Group;
use crate::recipe::{Compute, Recipe};
use crate::setup::{RunShape, compile_options};
use crate::state::{AVERAGE_PREFIX, STEP_INPUT, TensorGroup, is_counter};
use crate::tasks::{Evaluation, Feeds, Task};
use bessemer_ir::Graph;
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_ir::plan::{StateTensor, print_plan};
use bessemer_ir::run::{
    Device, Executor, NonFinite, Phase, RunError, StateBinding, StateLayout, StateSnapshot, StateStore, Ticket,
    read_i32, write_f32, write_i32,
};
use bessemer_models::{Model, WeightNames};
use bessemer_nn::builder::MICRO_STEP;
use bessemer_nn::{ParamKind, ParamSpec, STOP, initialise};
use bessemer_weights::NamedTensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Steps that a device which computes in the background is given before the results of the first of them are waited for.
const STEPS_UNDER_WAY: usize = 2;

/// Where and how steps run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComputeOptions {
    /// Where steps run.
    pub device: DeviceOptions,
    /// Which passes run on the graph, and with which options.
    pub compile: CompileOptions,
}

/// What a training step reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Mean over the batch, before the update.
    pub loss: f32,
    /// Learning rate of the update.
    pub lr: f32,
    /// Norm of the whole gradient, before clipping.
    pub grad_norm: f32,
    /// What the loss was multiplied with, where it is scaled.
    pub loss_scale: Option<f32>,
    /// What else the task reports, by name.
    pub parts: BTreeMap<String, f64>,
    /// Whether any rank of several wishes to stop behind this step.
    pub stop_is_wished: bool,
}

impl StepOutput {
    /// Whether the loss and the norm of the gradient are finite.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }

    /// Whether the gradient overflowed under a loss scale that can still be lowered: the step changed nothing, and the
    /// next one goes on with a smaller scale.
    pub fn is_overflow(&self) -> bool {
        self.loss.is_finite() && !self.grad_norm.is_finite() && self.loss_scale.is_some_and(|scale| scale > 1.0)
    }
}

/// A training step of a recipe, with parameters, optimizer and averages.
pub struct TrainSession {
    device: Arc<dyn Device>,
    executor: Box<dyn Executor>,
    specs: Vec<ParamSpec>,
    /// How files of weights name the parameters.
    names: &'static WeightNames,
    model: TensorGroup,
    optimizer: TensorGroup,
    averages: Option<TensorGroup>,
    /// Of what changes within a step, and even in one that is left out: one for each step that may be under way, in turn.
    snapshots: Vec<Box<dyn StateSnapshot>>,
    seed: u64,
    batch_size: usize,
    scales_loss: bool,
    parts: &'static [&'static str],
}

impl TrainSession {
    /// Compiles the step of one rank of a group. All state is zero until [`TrainSession::initialise`] or [`TrainSession::restore`].
    ///
    /// # Errors
    /// A recipe that cannot be built or run on this machine; [`TrainError::Batch`] for a batch that does not fit into the memory of a GPU;
    /// [`TrainError::RanksDiffer`] for plans that are not the same on all ranks, before
    /// memory is taken.
    pub fn new(
        task: &dyn Task,
        recipe: &Recipe,
        steps_per_epoch: u64,
        compute: &ComputeOptions,
        group: &Group,
    ) -> Result<Self, TrainError> {
        let options = compile_options(recipe, compute)?;
        let batch_size = recipe.train.batch_size as usize;
        let shape = RunShape { steps_per_epoch, ranks: group.ranks(), batch_size };
        let Model { graph, specs, names } = task.training_step(shape)?;
        let device = compute.device.open_rank(group.link())?;
        let plan = compile(&graph, device.target(), &options)?;
        if group.size() > 1 {
            group.compare("the hash of the compiled step", &sha256_hex(print_plan(&plan).as_bytes()))?;
        }
        let loaded = || -> Result<_, RunError> {
            let state = new_state(&*device, &specs)?;
            let executor = device.load(plan, &state, &StateBinding::default())?;
            Ok((state, executor))
        };
        let (state, executor) = loaded().map_err(|error| {
            let batch = Batch { size: batch_size, setting: "train.batch_size" };
            batch.explain(error.into(), &*device, |batch_size| {
                let model = task.training_step(RunShape { batch_size, ..shape }).ok()?;
                Some(plan_bytes(&compile(&model.graph, device.target(), &options).ok()?))
            })
        })?;
        let unsteady = specs.iter().filter(|spec| is_unsteady(spec)).map(|spec| state.layout().number(&spec.name));
        let unsteady = unsteady.collect::<Result<Vec<_>, _>>()?;
        let under_way = if executor.computes_in_background() { STEPS_UNDER_WAY } else { 1 };
        let snapshots = (0..under_way).map(|_| Arc::clone(&state).snapshot(&unsteady)).collect::<Result<_, _>>()?;
        Ok(Self {
            device,
            executor,
            model: TensorGroup::model(&specs, names),
            optimizer: TensorGroup::optimizer(&specs, names),
            averages: TensorGroup::averages(&specs, names),
            snapshots,
            specs,
            names,
            seed: recipe.train.seed,
            batch_size,
            scales_loss: recipe.precision.compute == Compute::Fp16,
            parts: task.metric_schema().parts,
        })
    }

    /// Sets all state to that of a new run: parameters drawn from the recipe's seed, nothing trained.
    ///
    /// # Errors
    /// None, for a session as it was compiled.
    pub fn initialise(&mut self) -> Result<(), TrainError> {
        for spec in &self.specs {
            match is_counter(spec) {
                true => write_i32(self.state(), &spec.name, &[0])?,
                false => write_f32(self.state(), &spec.name, &initialise(spec, self.seed))?,
            }
        }
        Ok(())
    }

    /// Replaces a parameter by elements in the order of the graph.
    ///
    /// # Errors
    /// A name that the model does not have; another number of elements.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<(), TrainError> {
        Ok(write_f32(self.state(), name, values)?)
    }

    /// The state over which the step runs, which evaluations share.
    pub fn state(&self) -> &dyn StateStore {
        &**self.executor.state()
    }

    /// Replaces parameters and running statistics, by the names and shapes of torchvision. `origin` names them in errors.
    ///
    /// # Errors
    /// Any tensor missing, unknown or of another shape; all are listed.
    pub fn load_weights(&mut self, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
        self.model.write(self.state(), tensors, origin)
    }

    /// Parameters and running statistics.
    ///
    /// # Errors
    /// None, for a session as it was compiled; the same holds for the other readers.
    pub fn weights(&self) -> Result<Vec<NamedTensor<'static>>, TrainError> {
        self.model.read(self.state())
    }

    /// The whole state, with `state` for what is not in tensors.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn checkpoint(&self, state: TrainingState) -> Result<Checkpoint<'static>, TrainError> {
        Ok(Checkpoint {
            state: TrainingState { schedule_step: self.step_count()?, ..state },
            model: self.weights()?,
            optimizer: self.optimizer.read(self.state())?,
            ema: self.averages.as_ref().map(|group| group.read(self.state())).transpose()?,
        })
    }

    /// Continues from a checkpoint. `origin` names it in errors.
    ///
    /// # Errors
    /// A checkpoint of another model or another optimizer.
    pub fn restore(&mut self, checkpoint: &Checkpoint<'_>, origin: &str) -> Result<(), TrainError> {
        self.model.write(self.state(), &checkpoint.model, origin)?;
        self.optimizer.write(self.state(), &checkpoint.optimizer, origin)?;
        if let Some(averages) = &self.averages {
            averages.write(self.state(), checkpoint.ema.as_deref().unwrap_or_default(), origin)?;
        }
        self.set_step(checkpoint.state.schedule_step)
    }

    /// Begins a run that takes weights, moments and averages from another one, as the second phase of a pre-training does. The
    /// schedule and the scale of the loss start over. `origin` names the other one in errors.
    ///
    /// # Errors
    /// As [`TrainSession::restore`].
    pub fn continue_from(&mut self, checkpoint: &Checkpoint<'_>, origin: &str) -> Result<(), TrainError> {
        self.initialise()?;
        self.model.write(self.state(), &checkpoint.model, origin)?;
        let moments: Vec<NamedTensor<'_>> =
            checkpoint.optimizer.iter().filter(|tensor| !tensor.shape.is_empty()).cloned().collect();
        TensorGroup::moments(&self.specs, self.names).write(self.state(), &moments, origin)?;
        match (&self.averages, &checkpoint.ema) {
            (Some(averages), Some(tensors)) => averages.write(self.state(), tensors, origin),
            _ => Ok(()),
        }
    }

    /// Steps that the schedule has seen.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn step_count(&self) -> Result<u64, TrainError> {
        Ok(read_i32(self.state(), STEP_INPUT)?[0].unsigned_abs().into())
    }

    fn set_step(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(write_i32(self.state(), STEP_INPUT, &[step as i32])?)
    }

    /// Runs a micro-batch that is not the last of its step, on what was fed.
    ///
    /// # Errors
    /// As [`TrainSession::submit`].
    pub fn accumulate(&mut self) -> Result<(), TrainError> {
        Ok(self.executor.accumulate()?)
    }

    /// Keeps the state before the step with this number, beside that before the last one where the device
    /// [computes in the background](TrainSession::computes_in_background).
    ///
    /// # Errors
    /// A device that is lost.
    pub fn take_snapshot(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(self.snapshot_of(step).take()?)
    }

    /// Returns to the state that was kept before the step with this number, after some of its micro-batches or after it was left out.
    ///
    /// # Errors
    /// As [`TrainSession::take_snapshot`].
    pub fn restore_snapshot(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(self.snapshot_of(step).restore()?)
    }

    fn snapshot_of(&mut self, step: u64) -> &mut dyn StateSnapshot {
        let number = step % self.snapshots.len() as u64;
        &mut *self.snapshots[number as usize]
    }

    /// Gives the first micro-batch of this rank its number in the run, from that of rank 0, which all ranks have.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn number_micro_batches(&mut self, rank: usize) -> Result<(), TrainError> {
        if self.state().layout().number(MICRO_STEP).is_err() {
            return Ok(());
        }
        let number = read_i32(self.state(), MICRO_STEP)?[0] + rank as i32;
        Ok(write_i32(self.state(), MICRO_STEP, &[number])?)
    }

    /// What the device tells of the plans that were loaded since the last call, those of [evaluations](EvalSession::of_training) included.
    pub fn take_warnings(&self) -> Vec<String> {
        self.device.take_warnings()
    }

    /// Whether a tensor of the state is the same on all ranks after each step.
    pub fn is_shared(&self, name: &str) -> bool {
        let is_own = |spec: &ParamSpec| spec.kind == ParamKind::Accumulator || spec.name == MICRO_STEP;
        !self.specs.iter().any(|spec| spec.name == name && is_own(spec))
    }

    /// Tells the other ranks, by the next step, whether this one wishes to stop.
    ///
    /// # Errors
    /// None, for a session as it was compiled.
    pub fn wish_stop(&mut self, wishes: bool) -> Result<(), TrainError> {
        let wish = f32::from(u8::from(wishes));
        match self.executor.has_feed(STOP) {
            true => Ok(self.executor.feed(&[(STOP, &wish.to_ne_bytes())])?),
            false => Ok(()),
        }
    }

    /// Copies those of the feeds that the step has into its memory.
    ///
    /// # Errors
    /// A batch of another size.
    pub fn feed(&mut self, feeds: &Feeds) -> Result<(), TrainError> {
        feed(&mut *self.executor, feeds)
    }

    /// Whether a step may still be computed when [`TrainSession::submit`] returns. What is fed then is of the next one.
    pub fn computes_in_background(&self) -> bool {
        self.executor.computes_in_background()
    }

    /// Starts one step, or the last micro-batch of one, on what was fed.
    ///
    /// # Errors
    /// A label outside the classes.
    pub fn submit(&mut self) -> Result<Ticket, TrainError> {
        Ok(self.executor.submit()?)
    }

    /// Waits for a step.
    ///
    /// # Errors
    /// As [`TrainSession::submit`].
    pub fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, TrainError> {
        let results = self.executor.collect(ticket)?;
        let scalar = |name: &str| results.scalar(name);
        let loss_scale = if self.scales_loss { Some(scalar("loss_scale")?) } else { None };
        let part = |name: &&str| Ok(((*name).to_owned(), scalar(name)?.into()));
        let parts = self.parts.iter().map(part).collect::<Result<_, RunError>>()?;
        let stop_is_wished = results.scalar(STOP).is_ok_and(|wishes| wishes > 0.0);
        let (loss, lr, grad_norm) = (scalar("loss")?, scalar("lr")?, scalar("grad_norm")?);
        Ok(StepOutput { loss, lr, grad_norm, loss_scale, parts, stop_is_wished })
    }

    /// Does what [`TrainSession::submit`] does, or, for a micro-batch that is not the last of its step, what
    /// [`TrainSession::accumulate`] does, up to the first node whose value is not finite. If there is one, the state is left inconsistent
    /// afterwards.
    ///
    /// # Errors
    /// As [`TrainSession::submit`].
    pub fn find_non_finite(&mut self, is_last: bool) -> Result<Option<NonFinite>, TrainError> {
        let phase = if is_last { Phase::Update } else { Phase::Accumulate };
        Ok(self.executor.find_non_finite(phase)?)
    }

    /// Whether the averages, rather than the last weights, are what the training came to: it keeps them and has taken a step.
    pub fn evaluates_averages(&self) -> bool {
        self.averages.is_some() && self.step_count().is_ok_and(|step| step > 0)
    }

    /// Samples of a micro-batch.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Cost of a step.
    pub fn plan_info(&self) -> PlanInfo {
        plan_info(&*self.executor, "train", self.batch_size, self.state().layout().bytes())
    }
}

/// Running statistics and counts follow micro-batches, and the scale of the loss the steps that are left out. The sums of a
/// step are started over in each, and all else is replaced at the end of a step, if at all.
fn is_unsteady(spec: &ParamSpec) -> bool {
    match spec.kind {
        ParamKind::Statistic => true,
        ParamKind::Optimizer | ParamKind::Accumulator => spec.ty.shape.rank() == 0,
        ParamKind::Weight | ParamKind::Bias | ParamKind::Norm | ParamKind::Average => false,
    }
}

/// Memory for the state of a model and of its training, laid out once for all plans that use it: first what a snapshot has, so that
/// it is one run of bytes.
fn new_state(device: &dyn Device, specs: &[ParamSpec]) -> Result<Arc<dyn StateStore>, RunError> {
    let (unsteady, steady): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| is_unsteady(spec));
    let rules = device.target().rules();
    let tensors = unsteady.into_iter().chain(steady).map(|spec| StateTensor::new(&spec.name, &spec.ty, rules));
    device.new_state(StateLayout::new(tensors, rules.alignment))
}

/// Compiles a graph and makes it ready to run over state.
fn load(
    device: &dyn Device,
    graph: &Graph,
    options: &CompileOptions,
    state: &Arc<dyn StateStore>,
    binding: &StateBinding<'_>,
) -> Result<Box<dyn Executor>, TrainError> {
    let plan = compile(graph, device.target(), options)?;
    Ok(device.load(plan, state, binding)?)
}

/// Looks whether there are kernels for the forward passes of an evaluation, on a device that does not have those of all operations.
///
/// # Errors
/// Operations without a kernel.
pub(crate) fn check_kernels(evaluation: &dyn Evaluation, compute: &ComputeOptions) -> Result<(), TrainError> {
    match compute.device.kind {
        DeviceKind::Cpu => Ok(()),
        DeviceKind::Cuda { .. } => {
            let target = compute.device.target();
            evaluation
                .models(evaluation.batch_size())?
                .iter()
                .try_for_each(|model| Ok(compile(&model.graph, &*target, &compute.compile).map(drop)?))
        }
    }
}

/// Bytes of the state that the plans of an evaluation with another batch share, and of all else; none if there are no such plans.
fn bytes_of(
    evaluation: &dyn Evaluation,
    batch_size: usize,
    device: &dyn Device,
    options: &CompileOptions,
) -> Option<[u64; 2]> {
    let mut bytes = [0, 0];
    for model in evaluation.models(batch_size).ok()? {
        let plan = compile(&model.graph, device.target(), options).ok()?;
        bytes[0] = plan.state_bytes() as u64;
        bytes[1] += plan_bytes(&plan) - bytes[0];
    }
    Some(bytes)
}

/// The forward pass of a model, or several over one state, for samples of different shapes.
pub struct EvalSession {
    executors: Vec<Box<dyn Executor>>,
    /// Number of the one that ran last.
    current: usize,
    model: TensorGroup,
    batch_size: usize,
    /// Bytes of state that nobody else uses.
    own_state_bytes: usize,
}

impl EvalSession {
    /// Compiles the forward pass. All weights are zero until they are loaded.
    ///
    /// # Errors
    /// A plan that cannot run on this machine.
    pub fn new(model: Model, batch_size: usize, compute: &ComputeOptions) -> Result<Self, TrainError> {
        Self::of_parts(vec![model], batch_size, compute)
    }

    /// The same for several models, at least one, over the same tensors.
    ///
    /// # Errors
    /// As [`EvalSession::new`].
    pub fn of_parts(models: Vec<Model>, batch_size: usize, compute: &ComputeOptions) -> Result<Self, TrainError> {
        Self::on(&*compute.device.open()?, &models, batch_size, &compute.compile)
    }

    fn on(
        device: &dyn Device,
        models: &[Model],
        batch_size: usize,
        options: &CompileOptions,
    ) -> Result<Self, TrainError> {
        let Model { specs, names, .. } = &models[0];
        let state = new_state(device, specs)?;
        let plan = |model: &Model| load(device, &model.graph, options, &state, &StateBinding::default());
        let executors = models.iter().map(plan).collect::<Result<_, _>>()?;
        device.take_warnings().iter().for_each(|warning| eprintln!("warning: {warning}"));
        let own_state_bytes = state.layout().bytes();
        Ok(Self { executors, current: 0, model: TensorGroup::model(specs, names), batch_size, own_state_bytes })
    }

    /// The same for the forward passes of an evaluation.
    ///
    /// # Errors
    /// As [`EvalSession::new`]; [`TrainError::Batch`] for a batch that does not fit into the memory of a GPU.
    pub fn of_evaluation(evaluation: &dyn Evaluation, compute: &ComputeOptions) -> Result<Self, TrainError> {
        let (device, size) = (compute.device.open()?, evaluation.batch_size());
        let made = Self::on(&*device, &evaluation.models(size)?, size, &compute.compile);
        made.map_err(|error| {
            Batch { size, setting: "--batch-size" }.explain(error, &*device, |size| {
                bytes_of(evaluation, size, &*device, &compute.compile).map(|[state, others]| state + others)
            })
        })
    }

    /// Compiles the forward passes of an evaluation of a model that is being trained. They read the weights of the training session where they
    /// are: the averages if `averages`, else the last ones.
    ///
    /// # Errors
    /// As [`EvalSession::of_evaluation`]; a session of another model.
    pub fn of_training(
        train: &TrainSession,
        averages: bool,
        evaluation: &dyn Evaluation,
        options: &CompileOptions,
    ) -> Result<Self, TrainError> {
        let (device, batch_size) = (&*train.device, evaluation.batch_size());
        let models = evaluation.models(batch_size)?;
        let Model { specs, names, .. } = &models[0];
        let state = train.executor.state();
        let average = |name: &str| {
            let average = format!("{AVERAGE_PREFIX}{name}");
            if state.layout().number(&average).is_ok() { average } else { name.to_owned() }
        };
        let binding = StateBinding { rename: if averages { Some(&average) } else { None } };
        let plan = |model: &Model| load(device, &model.graph, options, state, &binding);
        let executors = models.iter().map(plan).collect::<Result<_, _>>().map_err(|error| {
            Batch { size: batch_size, setting: "eval.batch_size" }
                .explain(error, device, |size| bytes_of(evaluation, size, device, options).map(|[_, others]| others))
        })?;
        Ok(Self { executors, current: 0, model: TensorGroup::model(specs, names), batch_size, own_state_bytes: 0 })
    }

    /// As [`TrainSession::load_weights`].
    ///
    /// # Errors
    /// Any tensor missing, unknown or of another shape; all are listed.
    pub fn load_weights(&mut self, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
        self.model.write(&**self.executors[0].state(), tensors, origin)
    }

    /// Runs the first forward pass on those of the feeds that it has.
    ///
    /// # Errors
    /// A batch of another size.
    pub fn run(&mut self, feeds: &Feeds) -> Result<(), TrainError> {
        self.run_part(0, feeds)
    }

    /// Runs one of the forward passes on those of the feeds that it has.
    ///
    /// # Errors
    /// As [`EvalSession::run`].
    pub fn run_part(&mut self, part: usize, feeds: &Feeds) -> Result<(), TrainError> {
        let executor = &mut *self.executors[part];
        feed(executor, feeds)?;
        executor.run()?;
        self.current = part;
        Ok(())
    }

    /// A result of the last run.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn output(&self, name: &str) -> Result<&[f32], TrainError> {
        Ok(self.executors[self.current].output_f32(name)?)
    }

    /// A result of the last run that is made of places in a sequence.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn output_indices(&self, name: &str) -> Result<&[u32], TrainError> {
        Ok(bytemuck::cast_slice(self.executors[self.current].output_i32(name)?))
    }

    /// Number of forward passes.
    pub fn parts(&self) -> usize {
        self.executors.len()
    }

    /// Samples of one forward pass.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Cost of a step of the first forward pass.
    pub fn plan_info(&self) -> PlanInfo {
        plan_info(&*self.executors[0], "eval", self.batch_size, self.own_state_bytes)
    }
}

/// Copies those of the feeds that the plan has.
///
/// # Errors
/// A batch of another size.
pub fn feed(executor: &mut dyn Executor, feeds: &Feeds) -> Result<(), TrainError> {
    for (name, array) in feeds.iter() {
        if executor.has_feed(name) {
            executor.feed(&[(name, array.bytes())])?;
        }
    }
    Ok(())
}

fn plan_info(executor: &dyn Executor, mode: &str, batch_size: usize, state_bytes: usize) -> PlanInfo {
    let plan = executor.plan();
    let cost = plan.cost();
    PlanInfo {
        mode: mode.to_owned(),
        batch_size: batch_size as u64,
        kernels: plan.calls.len() as u64,
        flops: cost.flops,
        bytes: cost.bytes,
        peak_bytes: (plan.arena_bytes + state_bytes) as u64,
        algorithms: executor.algorithms(),
        near_misses: executor.near_misses(),
    }
}
