//! Everything that happens before the first step. What can be wrong is found before a folder is made.

use super::files::RunFiles;
use super::{Clock, Evaluator, Prepared, RunFolder, TrainOptions, TrainReport, Trainer};
use crate::checkpoint::{CheckpointStore, Loaded, TrainingState, load_newest, load_weights};
use crate::error::{Difference, TrainError};
use crate::events::{EventBody, PlanInfo, RunInfo, Status, read_events};
use crate::loaded_weights::Training;
use crate::machine::describe_machine;
use crate::progress::Progress;
use crate::ranks::{Group, Pace};
use crate::recipe::{Recipe, StartRecipe, TrainRecipe};
use crate::resume::differences;
use crate::rundir::RunDir;
use crate::runlog::RunLog;
use crate::session::{ComputeOptions, TrainSession, check_kernels};
use crate::setup::{compile_options, steps_per_epoch, total_steps};
use crate::tasks::text::Weights;
use crate::tasks::{InitialWeights, MetricSchema, Task, WeightOrigin, registry};
use bessemer_comm::CommError;
use bessemer_data::{BatchRange, Position};
use bessemer_weights::WeightOptions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

impl<'a> Trainer<'a> {
    pub(super) fn prepare(options: &'a TrainOptions, group: &'a Group) -> Result<Prepared<'a>, TrainError> {
        let recipe = &options.recipe;
        check_division(options, group)?;
        if let RunFolder::New(path) = &options.folder
            && group.leads()
        {
            RunDir::check_free(path)?;
        }
        let task = registry::find(&recipe.model.name)?.family().open(recipe, origin(options))?;
        group.compare("the identity of the data", &task.data_identity())?;
        let evaluation = task.evaluation()?.map(|evaluation| Evaluator { evaluation, session: None });
        let (batches_per_epoch, accumulation) = (task.batches_per_epoch(), recipe.train.accumulation);
        let steps_per_epoch = steps_per_epoch(recipe, batches_per_epoch);
        let total_steps = total_steps(recipe, steps_per_epoch)?;
        let past = match &options.folder {
            RunFolder::Resume(path) if group.leads() => Some(Past::find(path, recipe, &*task)?),
            _ => None,
        };
        let finished = past.as_ref().and_then(|past| past.finished(total_steps, task.metric_schema()));
        if group.from_first(|| Ok(finished.is_some()))? {
            return Ok(Prepared::Finished(
                finished.unwrap_or_else(|| TrainReport::of_other_rank(task.metric_schema())),
            ));
        }
        if let Some(Evaluator { evaluation, .. }) = &evaluation {
            let compile = compile_options(recipe, &options.compute)?;
            check_kernels(&**evaluation, &ComputeOptions { compile, ..options.compute.clone() })?;
        }
        let mut session = TrainSession::new(&*task, recipe, steps_per_epoch, &options.compute, group)?;
        session.initialise()?;
        let is_new = group.leads() && past.as_ref().is_none_or(|past| past.loaded.is_none());
        let notes = if is_new { begin(&mut session, &*task, options)? } else { Vec::new() };
        let state = match past.as_ref().and_then(|past| past.loaded.as_ref()) {
            Some(loaded) => {
                session.restore(&loaded.checkpoint, &loaded.path.display().to_string())?;
                loaded.checkpoint.state.clone()
            }
            None => TrainingState::default(),
        };
        let state = shared(&state, group)?;
        group.share_state(session.state())?;
        session.number_micro_batches(group.rank())?;
        let start = Position { epoch: state.sampler.epoch as u32, batch: state.sampler.batch as usize };
        let end_epoch = total_steps.saturating_mul(accumulation).div_ceil(batches_per_epoch) as u32;
        let batches = task.training_batches(BatchRange { start, end_epoch, share: group.share() })?;
        let warnings = past.as_ref().map(|past| past.warnings(&session.plan_info()));
        let files = if group.leads() {
            open_folder(options, task.metric_schema(), past, state.step)?
        } else {
            RunFiles::of_other_rank(group.rank(), options.progress)
        };
        let mut trainer = Box::new(Self {
            options,
            group,
            files,
            session,
            task,
            batches,
            position: start,
            under_way: VecDeque::new(),
            ahead: None,
            clock: Clock::new(),
            end_epoch,
            evaluation,
            steps_per_epoch,
            total_steps,
            step: state.step,
            begun: state.step,
            first_step: state.step,
            saved_at: (state.step > 0).then_some(state.step),
            evaluated_at: None,
            samples: 0,
            train_s: 0.0,
            metrics: state.metrics,
            best: state.best,
            skipped: BTreeSet::new(),
            overflows: 0,
            stop_is_agreed: false,
            pace: Pace::default(),
            input_is_told: false,
        });
        if group.leads() {
            trainer.task.write_files(trainer.files.path())?;
            trainer.describe_run();
            trainer.log_start(warnings)?;
        }
        let evaluated = || Ok((trainer.evaluated_at, trainer.metrics.clone()));
        (trainer.evaluated_at, trainer.metrics) = group.from_first(evaluated)?;
        let of_device = trainer.session.take_warnings();
        notes.iter().chain(&of_device).try_for_each(|note| trainer.files.warning(note))?;
        Ok(Prepared::Ready(trainer))
    }

    /// `warnings` is there if the run goes on.
    fn log_start(&mut self, warnings: Option<Vec<String>>) -> Result<(), TrainError> {
        let device = &self.options.compute.device;
        self.files.started(RunInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: self.options.commit.clone(),
            command: self.options.command.clone(),
            recipe: serde_json::to_value(self.options.recipe.to_table())
                .expect("a recipe has string keys and finite numbers"),
            machine: describe_machine(device.instruction_set.name()),
            device: device.kind.to_string(),
            threads: device.threads as u64,
            data: self.task.data_identity(),
            hosts: self.group.hosts().to_vec(),
            resumed_from: None,
        })?;
        self.files.plan(self.session.plan_info())?;
        if let Some(warnings) = warnings {
            self.take_over_totals()?;
            warnings.iter().try_for_each(|warning| self.files.warning(warning))?;
        }
        let of_evaluation = self.evaluation.iter().flat_map(|evaluator| evaluator.evaluation.warnings());
        let warnings = self.task.warnings().into_iter().chain(of_evaluation);
        let mut warnings = warnings.chain(self.long_epochs());
        warnings.try_for_each(|warning| self.files.warning(&warning))
    }

    /// What is to be said where an epoch of the recipe is several passes over the data.
    fn long_epochs(&self) -> Option<String> {
        let TrainRecipe { epoch_samples, batch_size, .. } = self.options.recipe.train;
        let samples = epoch_samples?;
        let passes = samples.checked_div(self.task.batches_per_epoch().saturating_mul(batch_size))?;
        (passes >= 2).then(|| {
            format!(
                "an epoch is {passes} passes over the data: train.epoch_samples is {samples}; `--set train.epoch_samples=` makes it one"
            )
        })
    }

    /// Says in a line what is trained, and where ranks share a step, what it is made of.
    fn describe_run(&mut self) {
        let Recipe { name, model, data, precision, .. } = &self.options.recipe;
        let (step, all, compute) = (self.step, self.total_steps, precision.compute.name());
        let peak_lr = self.options.recipe.schedule.peak_lr(self.options.recipe.train.step_samples());
        let from = if step > 0 { format!(" from step {step}") } else { String::new() };
        let text = format!(
            "{}{from}: recipe {name} on {}, {all} steps of {} {} in {compute}, learning rate {peak_lr:.3e}; the run is in {}",
            model.name,
            data.source.as_deref().unwrap_or("no data"),
            self.options.recipe.train.step_samples(),
            self.task.metric_schema().samples,
            self.files.path().display(),
        );
        self.files.line(&text);
        let (ranks, own, train) = (self.group.size() as u64, self.own_micro_batches(), &self.options.recipe.train);
        if ranks > 1 {
            let (batch, all, samples) = (train.batch_size, train.step_samples(), self.task.metric_schema().samples);
            let plural = if own == 1 { "micro-batch" } else { "micro-batches" };
            self.files.line(&format!("a step is {ranks} ranks x {own} {plural} x {batch} = {all} {samples}"));
        }
    }

    /// Totals of the steps before the checkpoint, and the last evaluation.
    fn take_over_totals(&mut self) -> Result<(), TrainError> {
        let Some(event_log) = self.files.event_log() else { return Ok(()) };
        for event in read_events(&event_log)? {
            match event.body {
                EventBody::Step(info) => {
                    self.samples += info.samples;
                    self.train_s += info.step_s;
                }
                EventBody::Eval(info) => {
                    self.evaluated_at = event.header.step;
                    self.metrics = info.metrics;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// # Errors
/// Micro-batches that the ranks cannot share equally.
fn check_division(options: &TrainOptions, group: &Group) -> Result<(), TrainError> {
    let (accumulation, ranks) = (options.recipe.train.accumulation, group.size() as u64);
    if accumulation.is_multiple_of(ranks) {
        return Ok(());
    }
    let shared =
        format!("the {ranks} ranks share the micro-batches of a step, so that it must be a multiple of {ranks}");
    let allowed = match options.folder {
        RunFolder::Resume(_) => format!("{shared}: a resumed run keeps its step, and can have fewer ranks"),
        _ => format!(
            "{shared}: --set train.accumulation={}, or --split-batch to cut micro-batches, or --weak for a larger step",
            accumulation.next_multiple_of(ranks)
        ),
    };
    Err(TrainError::setting("train.accumulation", accumulation, allowed))
}

/// Where the run of rank 0 stands.
fn shared(state: &TrainingState, group: &Group) -> Result<TrainingState, TrainError> {
    let text = group.from_first(|| Ok(serde_json::to_string(state).expect("a state is plain data")))?;
    let malformed = |error: serde_json::Error| CommError::Malformed { reason: error.to_string() };
    Ok(serde_json::from_str(&text).map_err(malformed)?)
}

/// The weights that a run begins with, or the run that goes on from a checkpoint.
fn origin(options: &TrainOptions) -> Option<&Path> {
    match &options.folder {
        RunFolder::Resume(run) if RunDir::has_checkpoint(run) => Some(run),
        _ => options.recipe.start.path(),
    }
}

/// Fills a new session; what there is to say about the weights is returned.
fn begin(session: &mut TrainSession, task: &dyn Task, options: &TrainOptions) -> Result<Vec<String>, TrainError> {
    let model = registry::find(&options.recipe.model.name)?;
    let family = model.family();
    match &options.recipe.start {
        StartRecipe { weights: None, init_from: None } => {
            task.initial_values()?.iter().try_for_each(|(name, values)| session.set(name, values))?;
            Ok(task.warnings_of_random_weights())
        }
        StartRecipe { weights: Some(path), .. } => {
            let tensors = load_weights(path, WeightOptions { reject_non_finite: true, ..WeightOptions::default() })?;
            let origin = path.display().to_string();
            if !task.has_part(&tensors) {
                registry::check_weights(model, &tensors, &origin)?;
            }
            let Training { recipe, is_tensorflow, vocabulary } = Training::of(path)?;
            let (recipe, vocabulary) = (recipe.as_ref(), vocabulary.as_ref());
            check_vocabulary(task, &Weights { family, tensors: &tensors, origin: &origin, recipe, vocabulary })?;
            let weight_origin = WeightOrigin { name: &origin, recipe, is_tensorflow };
            let InitialWeights { tensors, notes } = task.initial_weights(tensors, &weight_origin, session)?;
            session.load_weights(&tensors, &origin)?;
            Ok(notes)
        }
        StartRecipe { init_from: Some(path), .. } => {
            let (checkpoint, origin) = (load_newest(path)?, path.display().to_string());
            registry::check_weights(model, &checkpoint.model, &origin)?;
            let vocabulary = checkpoint.state.vocabulary.as_ref();
            let training = Training::of(path)?;
            let recipe = training.recipe.as_ref();
            check_vocabulary(
                task,
                &Weights { family, tensors: &checkpoint.model, origin: &origin, recipe, vocabulary },
            )?;
            session.continue_from(&checkpoint, &origin)?;
            Ok(Vec::new())
        }
    }
}

/// # Errors
/// Weights of another vocabulary than that of the data.
fn check_vocabulary(task: &dyn Task, weights: &Weights<'_>) -> Result<(), TrainError> {
    task.vocabulary().map_or(Ok(()), |given| weights.check_vocabulary(&given, "that of the data"))
}

/// A run that is to go on.
struct Past {
    run: RunDir,
    store: CheckpointStore,
    loaded: Option<Loaded>,
}

impl Past {
    fn find(path: &Path, recipe: &Recipe, task: &dyn Task) -> Result<Self, TrainError> {
        let run = RunDir::open(path)?;
        let store = run.checkpoints(recipe.checkpoint.keep as usize)?;
        let loaded = store.load_latest()?;
        if let Some(loaded) = &loaded {
            let state = &loaded.checkpoint.state;
            let saved = Recipe::from_toml(&state.recipe, &loaded.path.display().to_string(), &[])?;
            let mut differences = differences((&saved, recipe), (&state.data, &task.data_identity()));
            if let (Some(known), Some(given)) = (&state.vocabulary, task.vocabulary())
                && *known != given
            {
                let (checkpoint, given) = (known.to_string(), given.to_string());
                differences.push(Difference { field: "vocabulary".to_owned(), checkpoint, given });
            }
            if !differences.is_empty() {
                return Err(TrainError::Resume { run: path.to_owned(), differences });
            }
        }
        Ok(Self { run, store, loaded })
    }

    /// What the run came to, if it has taken all of its steps and logged a good end after the last one.
    fn finished(&self, total_steps: u64, metric_schema: &'static MetricSchema) -> Option<TrainReport> {
        let state = &self.loaded.as_ref()?.checkpoint.state;
        // A log that cannot be read is repaired when the run goes on.
        let mut events = read_events(&self.run.events()).ok()?;
        let last = events.pop().filter(|last| state.step >= total_steps && last.header.step == Some(state.step))?;
        let EventBody::End(end) = last.body else { return None };
        let evaluated = events.into_iter().rev().find_map(|event| match event.body {
            EventBody::Eval(info) => Some(info.metrics),
            _ => None,
        });
        (end.status == Status::Done).then(|| TrainReport {
            run: self.run.path().to_owned(),
            steps: end.steps,
            samples: end.samples,
            train_s: end.train_s,
            throughput: end.throughput,
            metric_schema,
            metrics: evaluated.unwrap_or_default(),
            best: state.best.clone(),
            skipped: 0,
            was_finished: true,
        })
    }

    /// `plan` is that of the steps that follow.
    fn warnings(&self, plan: &PlanInfo) -> Vec<String> {
        match &self.loaded {
            None => vec!["the run has no checkpoint yet; it starts over".to_owned()],
            Some(loaded) => {
                let damaged = loaded.damaged.iter();
                let damaged = damaged.map(|damage| format!("passed over a damaged checkpoint: {damage}"));
                damaged.chain(self.other_algorithms(plan)).collect()
            }
        }
    }

    /// What is to be said where the steps before the checkpoint were done by other algorithms.
    fn other_algorithms(&self, plan: &PlanInfo) -> Option<String> {
        if plan.algorithms.is_empty() {
            return None;
        }
        // A log that cannot be read is repaired when the run goes on.
        let events = read_events(&self.run.events()).ok()?;
        let before = events.into_iter().rev().find_map(|event| match event.body {
            EventBody::Plan(before) if before.mode == plan.mode => Some(before.algorithms),
            _ => None,
        })?;
        // None are listed on processors.
        if before.is_empty() { None } else { other_algorithms(&before, &plan.algorithms) }
    }
}

/// What is to be said where algorithms, by what they compute, were others before. What was computed in one pass with something else, and is
/// now computed alone, is in one of both alone.
fn other_algorithms(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Option<String> {
    let all: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let mut different = all.iter().filter(|what| before.get(**what) != now.get(**what));
    let what = different.next()?;
    let of = |algorithms: &BTreeMap<String, String>| algorithms.get(*what).map_or("none", String::as_str).to_owned();
    Some(format!(
        "{} of {} algorithms are others than before, so that results differ in their last bits: {} until now, {} from now on, for {what}; \
         the same --tuning FILE gives the same ones",
        1 + different.count(),
        all.len(),
        of(before),
        of(now)
    ))
}

fn open_folder(
    options: &TrainOptions,
    metric_schema: &'static MetricSchema,
    past: Option<Past>,
    step: u64,
) -> Result<RunFiles, TrainError> {
    let recipe = &options.recipe;
    let progress = Progress::new(options.progress);
    if let Some(Past { mut run, store, .. }) = past {
        let log = RunLog::resume(&run, metric_schema, step, progress)?;
        run.set_recipe(recipe)?;
        return Ok(RunFiles::kept(run, store, log));
    }
    let run = match &options.folder {
        RunFolder::NewIn(parent) => RunDir::create_named(parent, recipe)?,
        RunFolder::New(path) | RunFolder::Resume(path) => RunDir::create(path, recipe)?,
    };
    let store = run.checkpoints(recipe.checkpoint.keep as usize)?;
    let log = RunLog::create(&run, metric_schema, progress)?;
    Ok(RunFiles::kept(run, store, log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_of_one_run_alone_are_others() {
        let of = |all: &[(&str, &str)]| all.iter().map(|(what, by)| ((*what).to_owned(), (*by).to_owned())).collect();
        let before: BTreeMap<String, String> = of(&[("convolution", "a"), ("product", "x")]);
        assert_eq!(other_algorithms(&before, &before), None);
        let said = |now: &[(&str, &str)]| other_algorithms(&before, &of(now)).unwrap();
        let text = said(&[("convolution", "b"), ("product", "x")]);
        assert!(
            text.starts_with("1 of 2 algorithms are others")
                && text.contains(": a until now, b from now on, for convolution;")
        );
        let text = said(&[("convolution", "a"), ("product with a bias", "x")]);
        assert!(
            text.starts_with("2 of 3 algorithms are others")
                && text.contains(": x until now, none from now on, for product;")
        );
        let text = said(&[("convolution", "a"), ("product", "x"), ("sum", "y")]);
        assert!(
            text.starts_with("1 of 3 algorithms are others")
                && text.contains(": none until now, y from now on, for sum;")
        );
    }
}
