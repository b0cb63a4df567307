//! Which checkpoint of a run is meant.

use super::MANIFEST_FILE;
use super::error::CheckpointError;
use super::manifest::BestMetric;
use super::store::{CheckpointStore, read_manifest};
use bessemer_weights::FileError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointChoice {
    /// The one with the best evaluation.
    Best,
    /// The newest one.
    Latest,
    /// The one after this step.
    Step(u64),
}

impl FromStr for CheckpointChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Best),
            "latest" => Ok(Self::Latest),
            step => {
                step.parse().map(Self::Step).map_err(|_| "expected best, latest or the number of a step".to_owned())
            }
        }
    }
}

/// A checkpoint of a run, and why it was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenCheckpoint {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Number of updates after which it was written.
    pub step: u64,
    /// Why this checkpoint was chosen among those of the run.
    pub reason: ChoiceReason,
}

/// Why a checkpoint was chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum ChoiceReason {
    /// It has the best evaluation of the run, with this result where its manifest has it.
    Best(Option<BestMetric>),
    /// It is the newest one.
    Latest,
    /// It is the newest one, and nothing else was asked for; the run has no best one, as it was not evaluated.
    NotEvaluated,
    /// Its step was asked for.
    Step,
}

impl ChoiceReason {
    /// `best`, `latest` or `step`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Best(_) => "best",
            Self::Latest | Self::NotEvaluated => "latest",
            Self::Step => "step",
        }
    }
}

impl fmt::Display for ChosenCheckpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: the checkpoint of step {}", self.path.display(), self.step)?;
        match &self.reason {
            ChoiceReason::Best(Some(best)) => {
                write!(f, ", the best one of the run ({} {:.4})", best.metric, best.value)
            }
            ChoiceReason::Best(None) => write!(f, ", the best one of the run"),
            ChoiceReason::Latest => write!(f, ", the latest one of the run"),
            ChoiceReason::NotEvaluated => write!(f, ", the latest one of the run, which was not evaluated"),
            ChoiceReason::Step => Ok(()),
        }
    }
}

/// The checkpoint of a run folder that is asked for; by default the best one, or the latest one of a run that was not
/// evaluated. `None` for everything else than a run folder, such as a file or a checkpoint.
///
/// # Errors
/// A choice where there is nothing to choose from; a step without a checkpoint, with the steps that have one; a run without
/// checkpoints.
pub fn find_checkpoint(
    path: &Path,
    choice: Option<CheckpointChoice>,
) -> Result<Option<ChosenCheckpoint>, CheckpointError> {
    let not_found = |expected: String| FileError::not_found(path, expected);
    let folder = path.join("checkpoints");
    if path.join(MANIFEST_FILE).exists() || !folder.is_dir() {
        return match choice {
            None => Ok(None),
            Some(_) => Err(not_found("is no run folder; only of a run can a checkpoint be chosen".to_owned()).into()),
        };
    }
    let store = CheckpointStore::for_reading(folder);
    let steps = store.steps()?;
    let latest = || store.latest().or_else(|| steps.last().map(|&step| store.path_of(step)));
    let listed = || match steps.as_slice() {
        [] => "it has none".to_owned(),
        steps => format!("it has those of steps {}", steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    let (found, reason) = match choice {
        Some(CheckpointChoice::Step(step)) => {
            let path = steps.contains(&step).then(|| store.path_of(step));
            (path.ok_or_else(|| not_found(format!("no checkpoint of step {step}; {}", listed())))?, ChoiceReason::Step)
        }
        Some(CheckpointChoice::Best) => {
            let missing = || not_found(format!("no best checkpoint, as the run was not evaluated; {}", listed()));
            (store.best().ok_or_else(missing)?, ChoiceReason::Best(None))
        }
        Some(CheckpointChoice::Latest) => {
            (latest().ok_or_else(|| not_found("the run has no checkpoint yet".to_owned()))?, ChoiceReason::Latest)
        }
        None => match (store.best(), latest()) {
            (Some(best), _) => (best, ChoiceReason::Best(None)),
            (None, Some(latest)) => (latest, ChoiceReason::NotEvaluated),
            (None, None) => return Err(not_found("the run has no checkpoint yet".to_owned()).into()),
        },
    };
    let step = CheckpointStore::step_in(&found).expect("the store names checkpoints by their steps");
    let reason = match reason {
        // A manifest that is damaged is reported by the loading of the checkpoint.
        ChoiceReason::Best(_) => {
            ChoiceReason::Best(read_manifest(&found).ok().and_then(|manifest| manifest.state.best))
        }
        reason => reason,
    };
    Ok(Some(ChosenCheckpoint { path: found, step, reason }))
}
