//! A compiled step with its state: what trainers, evaluations and benchmarks run.

use crate::checkpoint::{Checkpoint, NamedTensor, TrainingState};
use crate::error::TrainError;
use crate::events::PlanInfo;
use crate::recipe::{Compute, Recipe};
use crate::setup::precision;
use crate::state::{STEP_INPUT, TensorGroup, is_counter};
use crate::tasks::{Feeds, Task};
use bessemer_cpu::executor::NonFinite;
use bessemer_cpu::{CpuOptions, Executor, ExecutorError};
use bessemer_ir::passes::{CompileOptions, compile};
use bessemer_models::{Model, WeightNames};
use bessemer_nn::{Kind, ParamSpec, initialise};
use std::collections::BTreeMap;

/// Where and how steps run. Nothing here but the instruction set changes a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ComputeOptions {
    pub cpu: CpuOptions,
    pub compile: CompileOptions,
}

/// What a training step reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Mean over the batch, before the update.
    pub loss: f32,
    pub lr: f32,
    /// Norm of the whole gradient, before clipping.
    pub grad_norm: f32,
    /// What the loss was multiplied with, where it is scaled.
    pub loss_scale: Option<f32>,
    /// What else the task reports, by name.
    pub parts: BTreeMap<String, f64>,
}

impl StepOutput {
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
    executor: Executor,
    specs: Vec<ParamSpec>,
    /// How files of weights name the parameters.
    names: &'static WeightNames,
    model: TensorGroup,
    optimizer: TensorGroup,
    averages: Option<TensorGroup>,
    /// What changes within a step, and even in one that is left out.
    unsteady: Vec<String>,
    /// The content of [`TrainSession::unsteady`] at the last mark.
    marked: Vec<Vec<u8>>,
    seed: u64,
    batch_size: usize,
    scales_loss: bool,
    parts: &'static [&'static str],
}

impl TrainSession {
    /// Compiles the step. All state is zero until [`TrainSession::initialise`] or [`TrainSession::restore`].
    ///
    /// # Errors
    /// A recipe that cannot be built or run on this machine.
    pub fn new(
        task: &dyn Task,
        recipe: &Recipe,
        steps_per_epoch: u64,
        compute: &ComputeOptions,
    ) -> Result<Self, TrainError> {
        let Model { graph, specs, names } = task.training_step(steps_per_epoch)?;
        let options = CompileOptions { precision: precision(recipe)?, ..compute.compile.clone() };
        let plan = compile(&graph, &compute.cpu, &options)?;
        let unsteady: Vec<String> =
            specs.iter().filter(|spec| is_unsteady(spec)).map(|spec| spec.name.clone()).collect();
        Ok(Self {
            executor: Executor::new(plan, compute.cpu)?,
            model: TensorGroup::model(&specs, names),
            optimizer: TensorGroup::optimizer(&specs, names),
            averages: TensorGroup::averages(&specs, names),
            marked: vec![Vec::new(); unsteady.len()],
            unsteady,
            specs,
            names,
            seed: recipe.train.seed,
            batch_size: recipe.train.batch_size as usize,
            scales_loss: recipe.precision.compute == Compute::Fp16,
            parts: task.terms().parts,
        })
    }

    /// Sets all state to that of a new run: parameters drawn from the recipe's seed, nothing trained.
    ///
    /// # Errors
    /// None, for a session as it was compiled.
    pub fn initialise(&mut self) -> Result<(), TrainError> {
        for spec in &self.specs {
            match is_counter(spec) {
                true => self.executor.write(&spec.name, &0_i32.to_ne_bytes())?,
                false => self.executor.write_f32(&spec.name, &initialise(spec, self.seed))?,
            }
        }
        Ok(())
    }

    /// Replaces a parameter by elements in the order of the graph.
    ///
    /// # Errors
    /// A name that the model does not have; another number of elements.
    pub fn set(&mut self, name: &str, values: &[f32]) -> Result<(), TrainError> {
        Ok(self.executor.write_f32(name, values)?)
    }

    /// Replaces parameters and running statistics, by the names and shapes of torchvision. `origin` names them in errors.
    ///
    /// # Errors
    /// Any tensor missing, unknown or of another shape; all are listed.
    pub fn load_weights(&mut self, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
        self.model.write(&mut self.executor, tensors, origin)
    }

    /// Parameters and running statistics.
    ///
    /// # Errors
    /// None, for a session as it was compiled; the same holds for the other readers.
    pub fn weights(&self) -> Result<Vec<NamedTensor<'static>>, TrainError> {
        self.model.read(&self.executor)
    }

    /// The whole state, with `state` for what is not in tensors.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn checkpoint(&self, state: TrainingState) -> Result<Checkpoint<'static>, TrainError> {
        Ok(Checkpoint {
            state: TrainingState { schedule_step: self.step_count()?, ..state },
            model: self.weights()?,
            optimizer: self.optimizer.read(&self.executor)?,
            ema: self.averages.as_ref().map(|group| group.read(&self.executor)).transpose()?,
        })
    }

    /// Continues from a checkpoint. `origin` names it in errors.
    ///
    /// # Errors
    /// A checkpoint of another model or another optimizer.
    pub fn restore(&mut self, checkpoint: &Checkpoint<'_>, origin: &str) -> Result<(), TrainError> {
        self.model.write(&mut self.executor, &checkpoint.model, origin)?;
        self.optimizer.write(&mut self.executor, &checkpoint.optimizer, origin)?;
        if let Some(averages) = &self.averages {
            averages.write(&mut self.executor, checkpoint.ema.as_deref().unwrap_or_default(), origin)?;
        }
        self.set_step(checkpoint.state.schedule_step)
    }

    /// Begins a run that takes weights, moments and averages from another one, as the second phase of a pre-training does. The
    /// schedule and the scale of the loss start anew. `origin` names the other one in errors.
    ///
    /// # Errors
    /// As [`TrainSession::restore`].
    pub fn continue_from(&mut self, checkpoint: &Checkpoint<'_>, origin: &str) -> Result<(), TrainError> {
        self.initialise()?;
        self.model.write(&mut self.executor, &checkpoint.model, origin)?;
        let moments: Vec<NamedTensor<'_>> =
            checkpoint.optimizer.iter().filter(|tensor| !tensor.shape.is_empty()).cloned().collect();
        TensorGroup::moments(&self.specs, self.names).write(&mut self.executor, &moments, origin)?;
        match (&self.averages, &checkpoint.ema) {
            (Some(averages), Some(tensors)) => averages.write(&mut self.executor, tensors, origin),
            _ => Ok(()),
        }
    }

    /// Steps that the schedule has seen.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn step_count(&self) -> Result<u64, TrainError> {
        let bytes = self.executor.input(STEP_INPUT)?;
        Ok(bytemuck::pod_read_unaligned::<i32>(bytes).unsigned_abs().into())
    }

    fn set_step(&mut self, step: u64) -> Result<(), TrainError> {
        Ok(self.executor.write(STEP_INPUT, &(step as i32).to_ne_bytes())?)
    }

    /// Runs a micro-batch that is not the last of its step, on what was fed.
    ///
    /// # Errors
    /// As [`TrainSession::run`].
    pub fn accumulate(&mut self) -> Result<(), TrainError> {
        Ok(self.executor.accumulate()?)
    }

    /// Remembers the state between two steps.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn mark(&mut self) -> Result<(), TrainError> {
        for (name, content) in self.unsteady.iter().zip(&mut self.marked) {
            content.clear();
            content.extend_from_slice(self.executor.input(name)?);
        }
        Ok(())
    }

    /// Returns to the mark, after some micro-batches of a step or after a step that was left out.
    ///
    /// # Errors
    /// As [`TrainSession::weights`].
    pub fn rewind(&mut self) -> Result<(), TrainError> {
        let marked = self.unsteady.iter().zip(&self.marked);
        Ok(marked.into_iter().try_for_each(|(name, content)| self.executor.write(name, content))?)
    }

    /// Copies those of the feeds that the step has into its memory.
    ///
    /// # Errors
    /// A batch of another size.
    pub fn feed(&mut self, feeds: &Feeds) -> Result<(), TrainError> {
        write_feeds(&mut self.executor, feeds)
    }

    /// Runs one step, or the last micro-batch of one, on what was fed.
    ///
    /// # Errors
    /// A label outside the classes.
    pub fn run(&mut self) -> Result<StepOutput, TrainError> {
        self.executor.run()?;
        let scalar = |name: &str| self.executor.scalar(name);
        let loss_scale = if self.scales_loss { Some(scalar("loss_scale")?) } else { None };
        let part = |name: &&str| Ok(((*name).to_owned(), scalar(name)?.into()));
        let parts = self.parts.iter().map(part).collect::<Result<_, ExecutorError>>()?;
        Ok(StepOutput { loss: scalar("loss")?, lr: scalar("lr")?, grad_norm: scalar("grad_norm")?, loss_scale, parts })
    }

    /// Does what [`TrainSession::run`] does, or, for a micro-batch that is not the last of its step, what
    /// [`TrainSession::accumulate`] does, up to the first node whose value is not finite. If there is one, the state is spoilt
    /// afterwards.
    ///
    /// # Errors
    /// As [`TrainSession::run`].
    pub fn find_non_finite(&mut self, is_last: bool) -> Result<Option<NonFinite>, TrainError> {
        Ok(if is_last { self.executor.find_non_finite()? } else { self.executor.find_non_finite_accumulating()? })
    }

    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Cost of a step.
    pub fn plan_info(&self) -> PlanInfo {
        plan_info(&self.executor, "train", self.batch_size)
    }
}

/// Running statistics and counts follow micro-batches, and the scale of the loss the steps that are left out. The sums of a
/// step are begun anew in each, and all else is replaced at the end of a step, if at all.
fn is_unsteady(spec: &ParamSpec) -> bool {
    match spec.kind {
        Kind::Statistic => true,
        Kind::Optimizer | Kind::Accumulator => spec.ty.shape.rank() == 0,
        Kind::Weight | Kind::Bias | Kind::Norm | Kind::Average => false,
    }
}

/// The forward pass of a model.
pub struct EvalSession {
    executor: Executor,
    model: TensorGroup,
    batch_size: usize,
}

impl EvalSession {
    /// Compiles the forward pass. All weights are zero until they are loaded.
    ///
    /// # Errors
    /// A plan that cannot run on this machine.
    pub fn new(model: Model, batch_size: usize, compute: &ComputeOptions) -> Result<Self, TrainError> {
        let Model { graph, specs, names } = model;
        let plan = compile(&graph, &compute.cpu, &compute.compile)?;
        Ok(Self { executor: Executor::new(plan, compute.cpu)?, model: TensorGroup::model(&specs, names), batch_size })
    }

    /// As [`TrainSession::load_weights`].
    ///
    /// # Errors
    /// Any tensor missing, unknown or of another shape; all are listed.
    pub fn load_weights(&mut self, tensors: &[NamedTensor<'_>], origin: &str) -> Result<(), TrainError> {
        self.model.write(&mut self.executor, tensors, origin)
    }

    /// Takes the weights of a training session of the same model: the averages if it keeps them and has taken a step,
    /// else the last ones.
    ///
    /// # Errors
    /// A session of another model.
    pub fn copy_weights(&mut self, train: &TrainSession) -> Result<(), TrainError> {
        let averages = train.averages.as_ref().filter(|_| train.step_count().is_ok_and(|step| step > 0));
        averages.unwrap_or(&train.model).copy(&train.executor, &self.model, &mut self.executor)
    }

    /// Runs the forward pass on those of the feeds that it has.
    ///
    /// # Errors
    /// A batch of another size.
    pub fn run(&mut self, feeds: &Feeds) -> Result<(), TrainError> {
        write_feeds(&mut self.executor, feeds)?;
        Ok(self.executor.run()?)
    }

    /// A result of the last run.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn output(&self, name: &str) -> Result<&[f32], TrainError> {
        Ok(self.executor.output_f32(name)?)
    }

    /// A result of the last run that is made of places in a sequence.
    ///
    /// # Errors
    /// An output that the model does not have.
    pub fn output_indices(&self, name: &str) -> Result<&[u32], TrainError> {
        Ok(bytemuck::cast_slice(self.executor.output(name)?))
    }

    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    pub fn executor_mut(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Cost of a step.
    pub fn plan_info(&self) -> PlanInfo {
        plan_info(&self.executor, "eval", self.batch_size)
    }
}

fn write_feeds(executor: &mut Executor, feeds: &Feeds) -> Result<(), TrainError> {
    for (name, array) in feeds.iter() {
        if executor.has_input(name) {
            executor.write(name, array.bytes())?;
        }
    }
    Ok(())
}

fn plan_info(executor: &Executor, mode: &str, batch_size: usize) -> PlanInfo {
    let plan = executor.plan();
    let cost = plan.cost();
    PlanInfo {
        mode: mode.to_owned(),
        batch_size: batch_size as u64,
        kernels: plan.steps.len() as u64,
        flops: cost.flops,
        bytes: cost.bytes,
        peak_bytes: plan.arena_bytes as u64,
    }
}
