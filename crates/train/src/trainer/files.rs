//! The folder of a run, which rank 0 keeps.

use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, Saved};
use crate::error::TrainError;
use crate::events::{CheckpointInfo, EndInfo, EvalInfo, EventError, PlanInfo, RanksInfo, RunInfo, StepInfo};
use crate::progress::{Progress, ProgressMode};
use crate::rundir::RunDir;
use crate::runlog::RunLog;
use bessemer_weights::FileError;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

/// The folder, the checkpoints and the log of a run; or, on a rank that keeps none, where its warnings go.
pub(super) enum RunFiles {
    Kept(Box<Files>),
    OtherRank { rank: usize, progress: Progress, warnings: Vec<String> },
}

pub(super) struct Files {
    run: RunDir,
    store: CheckpointStore,
    log: RunLog,
    saving: Option<Saving>,
}

/// A checkpoint on its way to the disk.
struct Saving {
    step: u64,
    best: bool,
    started: Instant,
    writer: JoinHandle<Result<Saved, CheckpointError>>,
}

impl RunFiles {
    pub(super) fn kept(run: RunDir, store: CheckpointStore, log: RunLog) -> Self {
        Self::Kept(Box::new(Files { run, store, log, saving: None }))
    }

    pub(super) fn of_other_rank(rank: usize, mode: ProgressMode) -> Self {
        Self::OtherRank { rank, progress: Progress::new(mode), warnings: Vec::new() }
    }

    fn files(&mut self) -> Option<&mut Files> {
        match self {
            Self::Kept(files) => Some(files),
            Self::OtherRank { .. } => None,
        }
    }

    /// Writes to the log, where there is one.
    fn log(&mut self, write: impl FnOnce(&mut RunLog) -> Result<(), EventError>) -> Result<(), TrainError> {
        Ok(self.files().map_or(Ok(()), |files| write(&mut files.log))?)
    }

    /// The folder; nothing on a rank that keeps none.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(files) => files.run.path(),
            Self::OtherRank { .. } => Path::new(""),
        }
    }

    pub(super) fn event_log(&self) -> Option<PathBuf> {
        match self {
            Self::Kept(files) => Some(files.run.events()),
            Self::OtherRank { .. } => None,
        }
    }

    pub(super) fn predictions(&self) -> Option<PathBuf> {
        match self {
            Self::Kept(files) => Some(files.run.predictions()),
            Self::OtherRank { .. } => None,
        }
    }

    pub(super) fn latest_checkpoint(&mut self) -> Option<PathBuf> {
        self.files().and_then(|files| files.store.latest())
    }

    pub(super) fn begin_steps(&mut self, step: u64, total: u64) {
        if let Some(files) = self.files() {
            files.log.begin_steps(step, total);
        }
    }

    pub(super) fn started(&mut self, info: RunInfo) -> Result<(), TrainError> {
        self.log(|log| log.run_started(info))
    }

    pub(super) fn plan(&mut self, info: PlanInfo) -> Result<(), TrainError> {
        self.log(|log| log.plan(info))
    }

    pub(super) fn step(&mut self, step: u64, info: StepInfo) -> Result<(), TrainError> {
        self.log(|log| log.step(step, info))
    }

    pub(super) fn ranks(&mut self, step: u64, info: RanksInfo) -> Result<(), TrainError> {
        self.log(|log| log.ranks(step, info))
    }

    pub(super) fn eval(&mut self, step: u64, info: EvalInfo) -> Result<(), TrainError> {
        self.log(|log| log.eval(step, info))
    }

    pub(super) fn warning(&mut self, message: &str) -> Result<(), TrainError> {
        if let Self::OtherRank { rank, progress, warnings } = self {
            let message = format!("rank {rank}: {message}");
            progress.warning(&message);
            warnings.push(message);
        }
        self.log(|log| log.warning(message))
    }

    /// Warnings of a rank that keeps no log, which are rank 0's to log.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        match self {
            Self::Kept(_) => Vec::new(),
            Self::OtherRank { warnings, .. } => std::mem::take(warnings),
        }
    }

    /// Logs what another rank showed.
    pub(super) fn log_warning(&mut self, message: &str) -> Result<(), TrainError> {
        self.log(|log| log.log_warning(message))
    }

    /// Shows a line that is no event.
    pub(super) fn line(&mut self, text: &str) {
        if let Some(files) = self.files() {
            files.log.progress().line(text);
        }
    }

    pub(super) fn end(&mut self, step: u64, info: EndInfo) -> Result<(), TrainError> {
        self.log(|log| log.end(step, info))
    }

    /// Waits until the last checkpoint is written, so that one copy of the state is in memory at a time, then makes the next one and starts a
    /// thread that writes it. Does nothing more where a run has no folder.
    pub(super) fn begin_save(
        &mut self,
        best: bool,
        make: impl FnOnce() -> Result<Checkpoint<'static>, TrainError>,
    ) -> Result<(), TrainError> {
        let started = Instant::now();
        self.finish_save()?;
        let Some(files) = self.files() else { return Ok(()) };
        let checkpoint = make()?;
        files.log.sync()?;
        let (step, store) = (checkpoint.state.step, files.store.clone());
        let path = files.run.path().to_owned();
        let writer = Builder::new().name("checkpoint".to_owned()).spawn(move || store.save(&checkpoint, best));
        let writer = writer.map_err(|source| CheckpointError::from(FileError::Io { path, source }))?;
        files.saving = Some(Saving { step, best, started, writer });
        Ok(())
    }

    /// Logs the checkpoint that was written meanwhile, if it is durable by now.
    pub(super) fn note_saved(&mut self) -> Result<(), TrainError> {
        let saving = self.files().and_then(|files| files.saving.as_ref());
        if saving.is_some_and(|saving| saving.writer.is_finished()) { self.finish_save() } else { Ok(()) }
    }

    /// Waits until no checkpoint is on its way.
    ///
    /// # Errors
    /// It could not be written; those before it are untouched.
    pub(super) fn finish_save(&mut self) -> Result<(), TrainError> {
        let Some(files) = self.files() else { return Ok(()) };
        let Some(Saving { step, best, started, writer }) = files.saving.take() else { return Ok(()) };
        let saved = writer.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let (path, save_s) = (saved.path.display().to_string(), started.elapsed().as_secs_f64());
        files.log.checkpoint(step, CheckpointInfo { path, bytes: saved.bytes, save_s, best })?;
        Ok(saved.warning.map_or(Ok(()), |warning| files.log.warning(&warning))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{SamplerPosition, TrainingState};
    use crate::events::{Event, EventBody, read_events};
    use crate::recipe::Recipe;
    use crate::tasks::classification::TERMS;
    use std::fs;
    use tempfile::TempDir;

    fn checkpoint(step: u64) -> Checkpoint<'static> {
        let sampler = SamplerPosition { epoch: 0, batch: step };
        let state = TrainingState { step, sampler, ..TrainingState::default() };
        Checkpoint { state, model: Vec::new(), optimizer: Vec::new(), ema: None }
    }

    #[test]
    fn checkpoints_are_written_while_steps_go_on() {
        let parent = TempDir::new().unwrap();
        let run = RunDir::create(parent.path().join("run"), &Recipe::load("cifar", &[]).unwrap()).unwrap();
        let (store, events) = (run.checkpoints(5).unwrap(), run.events());
        let log = RunLog::create(&run, &TERMS, Progress::new(ProgressMode::Silent)).unwrap();
        let mut files = RunFiles::kept(run, store.clone(), log);
        let save = |files: &mut RunFiles, step| files.begin_save(false, || Ok(checkpoint(step)));
        files.step(1, StepInfo::default()).unwrap();
        save(&mut files, 1).unwrap();
        files.step(2, StepInfo::default()).unwrap();
        save(&mut files, 2).unwrap();
        assert!(store.steps().unwrap().contains(&1), "one is on its way at a time");
        files.finish_save().unwrap();
        files.note_saved().unwrap();
        assert_eq!(store.steps().unwrap(), [1, 2]);
        let saved = |event: Event| match event.body {
            EventBody::Checkpoint(_) => event.header.step,
            _ => None,
        };
        assert_eq!(read_events(&events).unwrap().into_iter().filter_map(saved).collect::<Vec<_>>(), [1, 2]);

        // What cannot be written is known when it is asked for.
        fs::remove_dir_all(store.latest().unwrap().parent().unwrap()).unwrap();
        save(&mut files, 3).unwrap();
        let error = files.finish_save().unwrap_err().to_string();
        assert!(error.contains(".writing-step-000003"), "{error}");
        files.finish_save().unwrap();
    }
}
