//! The folder of a run, which rank 0 keeps.

use crate::checkpoint::{Checkpoint, CheckpointStore};
use crate::error::TrainError;
use crate::events::{CheckpointInfo, EndInfo, EvalInfo, EventError, PlanInfo, RanksInfo, RunInfo, StepInfo};
use crate::progress::{Progress, ProgressMode};
use crate::rundir::RunDir;
use crate::runlog::RunLog;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The folder, the checkpoints and the log of a run; or, on a rank that keeps none, where its warnings go.
pub(super) enum RunFiles {
    Kept(Box<Files>),
    OfRankZero { rank: usize, progress: Progress },
}

pub(super) struct Files {
    pub run: RunDir,
    pub store: CheckpointStore,
    pub log: RunLog,
}

impl RunFiles {
    pub(super) fn kept(run: RunDir, store: CheckpointStore, log: RunLog) -> Self {
        Self::Kept(Box::new(Files { run, store, log }))
    }

    pub(super) fn of_rank_zero(rank: usize, mode: ProgressMode) -> Self {
        Self::OfRankZero { rank, progress: Progress::new(mode) }
    }

    fn files(&mut self) -> Option<&mut Files> {
        match self {
            Self::Kept(files) => Some(files),
            Self::OfRankZero { .. } => None,
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
            Self::OfRankZero { .. } => Path::new(""),
        }
    }

    pub(super) fn event_log(&self) -> Option<PathBuf> {
        match self {
            Self::Kept(files) => Some(files.run.events()),
            Self::OfRankZero { .. } => None,
        }
    }

    pub(super) fn predictions(&self) -> Option<PathBuf> {
        match self {
            Self::Kept(files) => Some(files.run.predictions()),
            Self::OfRankZero { .. } => None,
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
        if let Self::OfRankZero { rank, progress } = self {
            progress.warning(&format!("rank {rank}: {message}"));
        }
        self.log(|log| log.warning(message))
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

    /// Writes a checkpoint, begun at `started`, where there is a folder for it.
    pub(super) fn save(&mut self, checkpoint: &Checkpoint<'_>, best: bool, started: Instant) -> Result<(), TrainError> {
        let Some(Files { store, log, .. }) = self.files() else { return Ok(()) };
        let saved = store.save(checkpoint, best)?;
        let (path, save_s) = (saved.path.display().to_string(), started.elapsed().as_secs_f64());
        log.checkpoint(checkpoint.state.step, CheckpointInfo { path, bytes: saved.bytes, save_s, best })?;
        Ok(saved.warning.map_or(Ok(()), |warning| log.warning(&warning))?)
    }
}
