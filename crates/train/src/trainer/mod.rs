//! Training runs: data, steps, evaluations, checkpoints and logs.

mod files;
mod prepare;

use crate::checkpoint::{BestMetric, Checkpoint, SamplerPosition, TrainingState};
use crate::error::{ErrorKind, FirstNonFinite, NonFiniteStep, TrainError};
use crate::evaluate::{EvalReport, run as run_evaluation};
use crate::events::{EndInfo, EvalInfo, RankTimes, RanksInfo, Status, StepInfo};
use crate::progress::ProgressMode;
use crate::ranks::{Group, Pace};
use crate::recipe::{Recipe, StartRecipe};
use crate::session::{ComputeOptions, EvalSession, StepOutput, TrainSession};
use crate::setup::compile_options;
use crate::signals::StopSignal;
use crate::stats::{published_style, step_times};
use crate::tasks::{Batch, Batches, Evaluation, MetricSchema, Task, next_of};
use bessemer_comm::control::Phase;
use bessemer_data::{BatchRange, Position};
use bessemer_ir::run::{NonFinite, Ticket};
use bessemer_weights::NamedTensor;
use files::RunFiles;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where a run is kept, and whether it is a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFolder {
    /// A new run in this folder.
    New(PathBuf),
    /// A new run in a folder of its own, named by model and time, within this one.
    NewIn(PathBuf),
    /// The run in this folder, continued from its latest whole checkpoint.
    Resume(PathBuf),
}

/// What [`train`] is asked to do.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// Resolved, with the data source in it.
    pub recipe: Recipe,
    /// Where the run's folder is: a new one, or one to resume.
    pub folder: RunFolder,
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// How progress is shown.
    pub progress: ProgressMode,
    /// When raised, the run saves after the present step and ends as [`TrainError::Interrupted`]. Of a step of several
    /// micro-batches only the present one is completed, and the state before the step is saved.
    pub stop: StopSignal,
    /// Stop in the same way after this many steps of this process.
    pub run_steps: Option<u64>,
    /// For the log: the command line.
    pub command: Vec<String>,
    /// For the log: the commit that the program was built from; `None` if it is not known.
    pub commit: Option<String>,
}

impl TrainOptions {
    /// With the best instruction set, all processors and nothing shown.
    pub fn new(recipe: Recipe, folder: RunFolder) -> Self {
        Self {
            recipe,
            folder,
            compute: ComputeOptions::default(),
            progress: ProgressMode::Silent,
            stop: StopSignal::new(),
            run_steps: None,
            command: Vec::new(),
            commit: None,
        }
    }

    /// These options with another start.
    pub fn with_start(mut self, start: StartRecipe) -> Self {
        self.recipe.start = start;
        self
    }
}

/// What a finished run came to, steps before a resume included.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// Folder of the run; nothing on ranks other than 0.
    pub run: PathBuf,
    /// Updates done.
    pub steps: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Seconds in steps, and samples in each of them.
    pub train_s: f64,
    /// Samples over `train_s`.
    pub throughput: f64,
    /// What the numbers are called.
    pub metric_schema: &'static MetricSchema,
    /// The last evaluation.
    pub metrics: BTreeMap<String, f64>,
    /// The best evaluation; `None` if there was none.
    pub best: Option<BestMetric>,
    /// Different samples that were left out because they are bad.
    pub skipped: usize,
    /// Whether the run was finished before: nothing was done, and the figures are those of its end.
    pub was_finished: bool,
}

impl TrainReport {
    /// On a rank that knows no more of a finished run than that it is one.
    fn of_other_rank(metric_schema: &'static MetricSchema) -> Self {
        Self {
            run: PathBuf::new(),
            steps: 0,
            samples: 0,
            train_s: 0.0,
            throughput: 0.0,
            metric_schema,
            metrics: BTreeMap::new(),
            best: None,
            skipped: 0,
            was_finished: true,
        }
    }
}

/// Trains as the recipe says, in a process that is alone.
///
/// # Errors
/// As [`train_in`].
pub fn train(options: &TrainOptions) -> Result<TrainReport, TrainError> {
    train_in(options, Group::alone())
}

/// Trains as the recipe says, as one rank of a group. Rank 0 keeps the run's folder.
///
/// A run that is stopped in whatever way and resumed ends with the same weights, bit for bit, as one that never stopped. A
/// finished run that is resumed is left as it is.
///
/// # Errors
/// [`TrainError::Interrupted`] after a stop on request; [`TrainError::NonFinite`] for a loss that is NaN or infinite, with
/// nothing saved over earlier checkpoints; anything wrong with recipe, data or folder; [`TrainError::Ranks`] when another rank
/// fails or is lost, after rank 0 saved the last whole step.
pub fn train_in(options: &TrainOptions, group: Group) -> Result<TrainReport, TrainError> {
    let result = Trainer::prepare(options, &group).and_then(|prepared| match prepared {
        Prepared::Finished(report) => Ok(report),
        Prepared::Ready(mut trainer) => {
            let result = trainer.run();
            trainer.end(result)
        }
    });
    let error = result.as_ref().err().filter(|error| error.kind() != ErrorKind::Interrupted);
    let left = group.leave(error);
    result.and_then(|report| left.map(|()| report))
}

/// A run before its first step.
enum Prepared<'a> {
    Ready(Box<Trainer<'a>>),
    /// A run with nothing left to do, and what it came to.
    Finished(TrainReport),
}

struct Trainer<'a> {
    options: &'a TrainOptions,
    group: &'a Group,
    files: RunFiles,
    session: TrainSession,
    task: Box<dyn Task>,
    batches: Box<dyn Batches>,
    /// The first batch after the last whole step.
    position: Position,
    /// Steps that the device was given, first those that were given first.
    under_way: VecDeque<Submitted>,
    /// The first batch of the next step, which was fed while the device computed.
    ahead: Option<Result<Batch, TrainError>>,
    clock: Clock,
    end_epoch: u32,
    evaluation: Option<Evaluator>,
    steps_per_epoch: u64,
    total_steps: u64,
    /// Steps done.
    step: u64,
    /// Steps begun: those done, those under way, and one whose micro-batches are not all given to the device.
    begun: u64,
    /// `step` when this process began.
    first_step: u64,
    saved_at: Option<u64>,
    evaluated_at: Option<u64>,
    samples: u64,
    train_s: f64,
    metrics: BTreeMap<String, f64>,
    best: Option<BestMetric>,
    skipped: BTreeSet<usize>,
    /// Steps in a row, up to the last one, that were left out because the gradient overflowed.
    overflows: u64,
    /// Whether ranks have agreed to stop behind the last step.
    stop_is_agreed: bool,
    pace: Pace,
    input_is_told: bool,
}

/// Steps in a row that may overflow at a loss scale that never changes. One that adapts is halved in each, down to 1, where an
/// overflow is an error at once.
const FIXED_SCALE_OVERFLOWS: u64 = 5;

/// A step that the device was given and whose results are not there yet.
struct Submitted {
    ticket: Ticket,
    /// On all ranks.
    samples: u64,
    /// The first batch behind it.
    end: Position,
}

/// What the time goes to from the end of one step to that of the next, or from the beginning of one that is under way alone.
struct Clock {
    started: Instant,
    /// Batches were waited for while the device had nothing to compute, in seconds.
    data_s: f64,
    /// Batches were waited for while the device computed, or may have.
    ahead_s: f64,
}

impl Clock {
    fn new() -> Clock {
        Clock { started: Instant::now(), data_s: 0.0, ahead_s: 0.0 }
    }
}

/// A step that is waited for no longer was over before its results were asked for.
const AT_ONCE: Duration = Duration::from_micros(200);

struct Evaluator {
    evaluation: Box<dyn Evaluation>,
    /// Whether it reads the averages, and the forward pass; compiled when first needed.
    session: Option<(bool, EvalSession)>,
}

impl Trainer<'_> {
    fn recipe(&self) -> &Recipe {
        &self.options.recipe
    }

    fn run(&mut self) -> Result<(), TrainError> {
        let result = self.run_steps();
        // The updates of a step come behind all of its sums over ranks, so that state is whole when one of them fails, and where data
        // cannot be read.
        let is_whole = |error: &TrainError| error.is_of_other_rank() || error.is_of_data();
        if result.as_ref().is_err_and(is_whole) && self.step > 0 && self.saved_at != Some(self.step) {
            if self.begun > self.step {
                self.session.restore_snapshot(self.step)?;
            }
            self.save(false)?;
        }
        result
    }

    fn run_steps(&mut self) -> Result<(), TrainError> {
        self.files.begin_steps(self.step, self.total_steps);
        self.keep_initial_weights()?;
        if self.step > 0 {
            self.evaluate_if_interrupted()?;
        }
        while self.step < self.total_steps {
            if self.under_way.is_empty() {
                self.stop_if_asked()?;
                self.begin_step()?;
                if self.under_way.is_empty() {
                    continue;
                }
            }
            let ahead = self.go_ahead();
            self.finish_step()?;
            ahead?;
            self.files.note_saved()?;
            if self.evaluation_is_due(self.step) {
                self.evaluate()?;
            }
            if self.checkpoint_is_due(self.step) {
                self.save(false)?;
            }
        }
        self.share_skipped()?;
        // The last evaluation is missing if a stop was asked for on its way.
        if self.evaluation_is_due(self.step) { self.stop_if_asked() } else { Ok(()) }
    }

    /// Evaluates a resumed run that was interrupted before an evaluation that was due, or between an evaluation and the
    /// checkpoint of its result.
    fn evaluate_if_interrupted(&mut self) -> Result<(), TrainError> {
        if self.evaluation_is_due(self.step) {
            return self.evaluate();
        }
        if self.evaluated_at == Some(self.step) { self.save_if_best() } else { Ok(()) }
    }

    /// Saves weights that a new run was given, so that it can be resumed before its first checkpoint.
    fn keep_initial_weights(&mut self) -> Result<(), TrainError> {
        let is_resumed = matches!(self.options.folder, RunFolder::Resume(_));
        if is_resumed || self.options.recipe.start.path().is_none() { Ok(()) } else { self.save(false) }
    }

    fn stop_if_asked(&mut self) -> Result<(), TrainError> {
        if !self.is_to_stop(self.step) {
            return Ok(());
        }
        if self.step > 0 && self.saved_at != Some(self.step) {
            self.save(false)?;
        }
        self.files.finish_save()?;
        Err(TrainError::Interrupted { step: self.step, checkpoint: self.files.latest_checkpoint() })
    }

    /// Whether the run stops when `step` steps are done, by what is known so far.
    fn is_to_stop(&self, step: u64) -> bool {
        let is_asked = if self.group.size() == 1 { self.options.stop.is_raised() } else { self.stop_is_agreed };
        is_asked || self.options.run_steps.is_some_and(|steps| step - self.first_step >= steps)
    }

    /// Gives the device the next step. In a process that is alone a stop that is asked for between two micro-batches takes the step back.
    fn begin_step(&mut self) -> Result<(), TrainError> {
        if self.under_way.is_empty() {
            self.clock = Clock::new();
            self.group.take_waited();
        }
        let own = self.own_micro_batches();
        let mut samples = 0;
        self.session.take_snapshot(self.begun)?;
        self.begun += 1;
        for number in 1..own {
            let batch = self.fed_batch(number - 1)?;
            self.session.accumulate()?;
            samples += batch.samples as u64;
            self.finish(batch)?;
            if self.group.size() == 1 && self.options.stop.is_raised() {
                self.begun -= 1;
                return self.session.restore_snapshot(self.begun);
            }
        }
        let batch = self.fed_batch(own - 1)?;
        self.session.wish_stop(self.options.stop.is_raised() || self.group.stop_is_wished())?;
        let ticket = self.session.submit()?;
        self.under_way.push_back(Submitted {
            ticket,
            samples: (samples + batch.samples as u64) * self.group.size() as u64,
            end: self.batches.position(),
        });
        self.finish(batch)
    }

    /// While the device computes a step, gives it the next one too, or, where something is to be done between the two, the first batch
    /// of that. Ranks of several wait for each step before they begin the next one: what is known of those that are lost is known by steps.
    fn go_ahead(&mut self) -> Result<(), TrainError> {
        if !self.session.computes_in_background() || self.begun >= self.total_steps {
            return Ok(());
        }
        let step = self.begun;
        let waits = self.group.size() > 1
            || self.is_to_stop(step)
            || self.evaluation_is_due(step)
            || self.checkpoint_is_due(step);
        if !waits {
            return self.begin_step();
        }
        if self.ahead.is_none() {
            let begun = Instant::now();
            self.ahead = Some(self.next_fed(step));
            self.clock.ahead_s += begun.elapsed().as_secs_f64();
        }
        Ok(())
    }

    /// Waits for the step that was begun first.
    fn finish_step(&mut self) -> Result<(), TrainError> {
        let Some(Submitted { ticket, samples, end }) = self.under_way.pop_front() else { return Ok(()) };
        let waiting = Instant::now();
        let output = self.session.collect(ticket)?;
        let Clock { started, mut data_s, ahead_s } = std::mem::replace(&mut self.clock, Clock::new());
        if waiting.elapsed() < AT_ONCE {
            data_s += ahead_s;
        }
        self.stop_is_agreed = output.stop_is_wished;
        let (step_s, comm_s) = (started.elapsed().as_secs_f64(), self.group.take_waited().as_secs_f64());
        if output.is_overflow() {
            self.report_overflow(output.loss_scale.unwrap_or_default())?;
        } else if !output.is_finite() {
            return Err(self.describe_non_finite(&output)?);
        }
        if output.is_finite() {
            self.overflows = 0;
        }
        self.step += 1;
        self.position = end;
        self.samples += samples;
        self.train_s += step_s;
        let info = StepInfo {
            epoch: self.epoch(),
            batch: (self.step - 1) % self.steps_per_epoch,
            loss: output.loss.into(),
            parts: output.parts,
            lr: output.lr.into(),
            grad_norm: Some(output.grad_norm.into()),
            loss_scale: output.loss_scale.map(f64::from),
            samples,
            step_s,
            data_s,
            compute_s: step_s - data_s - comm_s,
            comm_s,
        };
        let times = RankTimes { data_s: info.data_s, compute_s: info.compute_s, comm_s: info.comm_s };
        self.files.step(self.step, info)?;
        self.report_pace(times)?;
        self.group.verify_state(self.step, self.session.state(), |name| self.session.is_shared(name))
    }

    /// Each time that enough steps are done, rank 0 logs how long they took on each rank, and warns of a slow one, and the first time that
    /// steps waited for data.
    fn report_pace(&mut self, step: RankTimes) -> Result<(), TrainError> {
        let Some((steps, own)) = self.pace.add(step) else { return Ok(()) };
        let mut warnings = Vec::new();
        if self.group.size() > 1 {
            let info = RanksInfo { steps, ranks: self.group.all_gather(own)? };
            warnings.extend(info.warning(self.group.hosts()));
            self.files.ranks(self.step, info)?;
            self.log_of_others()?;
        }
        if !self.input_is_told
            && let Some(warning) = own.input_warning(self.options.compute.device.threads)
        {
            self.input_is_told = true;
            warnings.push(warning);
        }
        if self.group.leads() { warnings.iter().try_for_each(|warning| self.files.warning(warning)) } else { Ok(()) }
    }

    /// Rank 0 logs what the other ranks have warned of since.
    fn log_of_others(&mut self) -> Result<(), TrainError> {
        let warnings = self.group.gather(self.files.take_warnings())?;
        warnings.iter().flatten().try_for_each(|warning| self.files.log_warning(warning))
    }

    /// On rank 0 what all ranks left out.
    fn share_skipped(&mut self) -> Result<(), TrainError> {
        self.log_of_others()?;
        let of_all = self.group.gather(self.skipped.clone())?;
        self.skipped.extend(of_all.into_iter().flatten());
        Ok(())
    }

    /// Micro-batches of a step that this rank takes.
    fn own_micro_batches(&self) -> u64 {
        self.recipe().train.accumulation / self.group.size() as u64
    }

    /// The batches of this rank from the last whole step on.
    fn batch_range(&self) -> BatchRange {
        BatchRange { start: self.position, end_epoch: self.end_epoch, share: self.group.share() }
    }

    /// # Errors
    /// As many overflows in a row as a loss scale that never changes may have.
    fn report_overflow(&mut self, scale: f32) -> Result<(), TrainError> {
        let step = self.step + 1;
        self.files
            .warning(&format!("step {step}: the gradient overflowed at loss scale {scale}; the step was left out"))?;
        self.overflows += 1;
        let is_invariant = self.recipe().precision.loss_scale_growth_steps.is_none();
        match is_invariant && self.overflows >= FIXED_SCALE_OVERFLOWS {
            true => Err(TrainError::FixedLossScale { step, skipped: self.overflows, scale }),
            false => Ok(()),
        }
    }

    /// A micro-batch of the step that was begun last, in the memory of the step.
    fn fed_batch(&mut self, number: u64) -> Result<Batch, TrainError> {
        if let Some(ahead) = self.ahead.take() {
            self.group.report(self.begun, Phase::Compute, number);
            return ahead;
        }
        self.group.report(self.begun, Phase::Load, number);
        let started = Instant::now();
        let batch = self.next_fed(self.begun - 1)?;
        let seconds = started.elapsed().as_secs_f64();
        match self.under_way.is_empty() {
            true => self.clock.data_s += seconds,
            false => self.clock.ahead_s += seconds,
        }
        self.group.report(self.begun, Phase::Compute, number);
        Ok(batch)
    }

    fn finish(&mut self, batch: Batch) -> Result<(), TrainError> {
        self.report_skipped(&batch)?;
        self.batches.recycle(batch.feeds);
        Ok(())
    }

    /// The next batch, of the step with this number, fed.
    fn next_fed(&mut self, step: u64) -> Result<Batch, TrainError> {
        let batch = next_of(&mut *self.batches, step).map_err(|error| match error {
            TrainError::Data(error) if error.is_of_sample() => TrainError::Sample(error),
            error => error,
        })?;
        self.session.feed(&batch.feeds)?;
        Ok(batch)
    }

    fn report_skipped(&mut self, batch: &Batch) -> Result<(), TrainError> {
        for sample in &batch.skipped {
            if self.skipped.insert(sample.index) {
                self.files.warning(&format!("left out sample {}: {}", sample.index, sample.reason))?;
            }
        }
        Ok(())
    }

    fn describe_non_finite(&mut self, output: &StepOutput) -> Result<TrainError, TrainError> {
        let StepOutput { loss, lr, grad_norm, loss_scale, .. } = *output;
        Ok(TrainError::NonFinite(Box::new(NonFiniteStep {
            step: self.step + 1,
            loss,
            lr,
            grad_norm: (!grad_norm.is_finite()).then_some(grad_norm),
            loss_scale,
            found: self.find_non_finite()?,
        })))
    }

    /// What the rank finds whose micro-batch has the first value that is not finite.
    fn find_non_finite(&mut self) -> Result<Option<FirstNonFinite>, TrainError> {
        let own = self.find_own_non_finite()?.map(|FirstNonFinite { node, micro_batch }| {
            (micro_batch, node.op, node.path, node.input_ranges, node.is_input)
        });
        let first = self.group.all_gather(own)?.into_iter().flatten().min_by_key(|found| found.0);
        Ok(first.map(|(micro_batch, op, path, input_ranges, is_input)| FirstNonFinite {
            node: NonFinite { op, path, input_ranges, is_input },
            micro_batch,
        }))
    }

    /// Goes through the step that was left out once more, one micro-batch of this rank after another, up to the first value that is
    /// not finite. A request to stop ends the search.
    fn find_own_non_finite(&mut self) -> Result<Option<FirstNonFinite>, TrainError> {
        self.session.restore_snapshot(self.step)?;
        let mut batches = self.task.training_batches(self.batch_range())?;
        let (accumulation, own) = (self.recipe().train.accumulation, self.own_micro_batches());
        for round in 0..own {
            let batch = next_of(&mut *batches, self.step)?;
            self.session.feed(&batch.feeds)?;
            if let Some(node) = self.session.find_non_finite(round + 1 == own)? {
                let number = round * self.group.size() as u64 + self.group.rank() as u64 + 1;
                return Ok(Some(FirstNonFinite { node, micro_batch: (accumulation > 1).then_some(number) }));
            }
            if self.options.stop.is_raised() {
                break;
            }
            batches.recycle(batch.feeds);
        }
        Ok(None)
    }

    /// Whether an evaluation is due when `step` steps are done.
    fn evaluation_is_due(&self, step: u64) -> bool {
        let every = &self.recipe().eval;
        let is_early = step < every.from_epoch.unwrap_or(0).saturating_mul(self.steps_per_epoch);
        self.evaluation.is_some()
            && self.evaluated_at != Some(step)
            && (!is_early || step >= self.total_steps)
            && self.is_due(step, every.every_epochs, every.every_steps)
    }

    /// The same of a checkpoint.
    fn checkpoint_is_due(&self, step: u64) -> bool {
        let every = &self.recipe().checkpoint;
        self.saved_at != Some(step) && self.is_due(step, every.every_epochs, every.every_steps)
    }

    /// That of the last step, from 0.
    fn epoch(&self) -> u64 {
        self.step.saturating_sub(1) / self.steps_per_epoch
    }

    fn is_due(&self, step: u64, every_epochs: Option<u64>, every_steps: Option<u64>) -> bool {
        let every = every_steps.or_else(|| every_epochs.map(|epochs| epochs.saturating_mul(self.steps_per_epoch)));
        step >= self.total_steps || every.is_some_and(|every| step.is_multiple_of(every))
    }

    /// Evaluates, and saves if the result is the best so far. Does nothing where a stop is asked for on the way.
    fn evaluate(&mut self) -> Result<(), TrainError> {
        let Some(report) = self.run_evaluation()? else { return Ok(()) };
        self.evaluated_at = Some(self.step);
        self.metrics.clone_from(&report.metrics);
        let info = EvalInfo {
            epoch: self.epoch(),
            metrics: report.metrics,
            samples: report.samples,
            eval_s: report.seconds,
            data_s: report.data_s,
            compute_s: report.compute_s,
            batch_ms: Some(step_times(&report.batch_ms)),
            published_style: Some(published_style(&report.batch_ms)),
        };
        self.files.eval(self.step, info)?;
        report.notes.iter().try_for_each(|note| self.files.warning(note))?;
        self.save_if_best()
    }

    /// Saves the state of the last evaluation if its result is the best so far.
    fn save_if_best(&mut self) -> Result<(), TrainError> {
        let metric_schema = self.task.metric_schema();
        let result = metric_schema.result(&self.metrics, self.step);
        if self.best.as_ref().is_none_or(|best| metric_schema.improves(&result, best)) {
            self.best = Some(result);
            self.save(true)?;
        }
        Ok(())
    }

    fn run_evaluation(&mut self) -> Result<Option<EvalReport>, TrainError> {
        let Some(Evaluator { evaluation, session }) = &mut self.evaluation else { return Ok(None) };
        let averages = self.session.evaluates_averages();
        let session = match session {
            Some((of_averages, session)) if *of_averages == averages => session,
            other => {
                let options = compile_options(&self.options.recipe, &self.options.compute)?;
                let session = EvalSession::of_training(&self.session, averages, &**evaluation, &options)?;
                self.files.plan(session.plan_info())?;
                self.session.take_warnings().iter().try_for_each(|warning| self.files.warning(warning))?;
                &mut other.insert((averages, session)).1
            }
        };
        self.group.report(self.step, Phase::Evaluate, 0);
        let report = run_evaluation(
            session,
            &**evaluation,
            self.files.predictions().as_deref(),
            &self.options.stop,
            self.group,
        )?;
        self.stop_is_agreed |= report.is_none();
        Ok(report)
    }

    fn save(&mut self, best: bool) -> Result<(), TrainError> {
        self.saved_at = Some(self.step);
        if !self.group.leads() {
            return Ok(());
        }
        self.group.report(self.step, Phase::Save, 0);
        let (session, state) = (&self.session, self.training_state());
        self.files.begin_save(best, || {
            let checkpoint = session.checkpoint(state)?;
            refuse_non_finite(&checkpoint)?;
            Ok(checkpoint)
        })?;
        // The processors that write would be missing where they compute.
        if self.session.computes_in_background() { Ok(()) } else { self.files.finish_save() }
    }

    fn training_state(&self) -> TrainingState {
        let position = self.position;
        TrainingState {
            step: self.step,
            epoch: position.epoch.into(),
            sampler: SamplerPosition { epoch: position.epoch.into(), batch: position.batch as u64 },
            seed: self.recipe().train.seed,
            schedule_step: self.step,
            recipe: self.recipe().to_toml(),
            data: self.task.data_identity(),
            vocabulary: self.task.vocabulary(),
            metrics: self.metrics.clone(),
            best: self.best.clone(),
        }
    }

    /// Logs the end, behind the last checkpoint, and turns it into the report.
    fn end(mut self, result: Result<(), TrainError>) -> Result<TrainReport, TrainError> {
        let saved = self.files.finish_save();
        let result = result.and(saved);
        let status = match &result {
            Ok(()) => Status::Done,
            Err(TrainError::Interrupted { .. }) => Status::Interrupted,
            Err(_) => Status::Failed,
        };
        let throughput = if self.train_s > 0.0 { self.samples as f64 / self.train_s } else { 0.0 };
        let info = EndInfo {
            status,
            error: result.as_ref().err().filter(|_| status == Status::Failed).map(TrainError::to_string),
            steps: self.step,
            samples: self.samples,
            train_s: self.train_s,
            throughput,
            metrics: self.metrics.clone(),
        };
        let logged = self.files.end(self.step, info);
        result?;
        logged?;
        Ok(TrainReport {
            run: self.files.path().to_owned(),
            steps: self.step,
            samples: self.samples,
            train_s: self.train_s,
            throughput,
            metric_schema: self.task.metric_schema(),
            metrics: self.metrics,
            best: self.best,
            skipped: self.skipped.len(),
            was_finished: false,
        })
    }
}

/// A state that cannot be trained on is not worth a place among the checkpoints.
fn refuse_non_finite(checkpoint: &Checkpoint<'_>) -> Result<(), TrainError> {
    let groups: [&[NamedTensor<'_>]; 3] =
        [&checkpoint.model, &checkpoint.optimizer, checkpoint.ema.as_deref().unwrap_or_default()];
    match groups.into_iter().flatten().find(|tensor| tensor.first_non_finite().is_some()) {
        None => Ok(()),
        Some(tensor) => Err(TrainError::NonFiniteState { step: checkpoint.state.step, tensor: tensor.name.clone() }),
    }
}
