//! Files of questions and vocabularies by the names that commands and recipes give them.

use super::recipe::QuestionRecipe;
use crate::device::cache_folder;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::text::vocabulary_beside;
use bessemer_data::squad::{Features, SquadSet, WindowOptions};
use bessemer_data::text::{TextTokenizer, VOCABULARY_FILE, Vocabulary};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a file of questions is for, which is how its name begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    Train,
    Dev,
}

impl Half {
    fn name(self) -> &'static str {
        match self {
            Half::Train => "train",
            Half::Dev => "dev",
        }
    }

    /// How a recipe names the file.
    fn field(self) -> &'static str {
        match self {
            Half::Train => "--set squad.train_file=FILE",
            Half::Dev => "--set squad.dev_file=FILE",
        }
    }
}

/// The files of a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Files {
    pub train: PathBuf,
    /// `None` without validation data.
    pub dev: Option<PathBuf>,
}

impl Files {
    /// # Errors
    /// No data; a folder that does not say which file is meant.
    pub(super) fn of(recipe: &Recipe) -> Result<Self, TrainError> {
        let QuestionRecipe { squad, .. } = recipe.own()?;
        let source = recipe.data.source.as_deref().map(Path::new);
        let given = |file: &Option<String>| file.as_ref().map(|file| named(source, Path::new(file)));
        let (train, dev) = (given(&squad.train_file), given(&squad.dev_file));
        let Some(source) = source else {
            let allowed = "expected a folder with train-*.json and dev-*.json of SQuAD (--data), or squad.train_file";
            let train = train.ok_or_else(|| TrainError::setting("data.source", "not given", allowed))?;
            return Ok(Self { train, dev });
        };
        if source.is_file() {
            return Ok(Self { train: train.unwrap_or_else(|| source.to_owned()), dev });
        }
        let missing = || {
            let allowed = format!("it holds no train-*.json; name the file: {}", Half::Train.field());
            TrainError::setting("data.source", source.display(), allowed)
        };
        let train = match train {
            Some(train) => train,
            None => only(source, Half::Train, Half::Train.field())?.ok_or_else(missing)?,
        };
        let dev = match dev {
            Some(dev) => Some(dev),
            None => only(source, Half::Dev, Half::Dev.field())?,
        };
        Ok(Self { train, dev })
    }
}

/// A file in the folder of the data, or of any other path.
fn named(folder: Option<&Path>, file: &Path) -> PathBuf {
    let inside = folder.map(|folder| folder.join(file)).filter(|path| path.is_file());
    inside.unwrap_or_else(|| file.to_owned())
}

/// The questions to evaluate on: a file, or the only one of a folder.
pub(super) fn dev_file(data: &Path) -> Result<PathBuf, TrainError> {
    if data.is_file() {
        return Ok(data.to_owned());
    }
    only(data, Half::Dev, "--data FILE")?.ok_or_else(|| {
        TrainError::setting("the data", data.display(), "it holds no dev-*.json; name the file: --data FILE")
    })
}

/// The only file of its half in a folder; `choice` is how to name one.
fn only(folder: &Path, half: Half, choice: &str) -> Result<Option<PathBuf>, TrainError> {
    let refuse = |allowed: String| TrainError::setting("the data", folder.display(), allowed);
    let entries = fs::read_dir(folder).map_err(|error| refuse(format!("no file or folder of questions: {error}")))?;
    let prefix = format!("{}-", half.name());
    let is_ours = |name: &String| name.starts_with(&prefix) && name.ends_with(".json");
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(is_ours).collect();
    names.sort_unstable();
    match names.as_slice() {
        [] => Ok(None),
        [name] => Ok(Some(folder.join(name))),
        several => Err(refuse(format!("it holds {}; choose one: {choice}", several.join(", ")))),
    }
}

/// The tokenizer of a vocabulary that is given, or that lies beside weights or in a run; `option` is how to give it.
///
/// # Errors
/// No vocabulary, or one that cannot be read.
pub(super) fn tokenizer(
    given: Option<&Path>,
    beside: Option<&Path>,
    option: &str,
) -> Result<Arc<TextTokenizer>, TrainError> {
    let found = given.map(Path::to_owned).or_else(|| beside.and_then(vocabulary_beside));
    let path = found.ok_or_else(|| {
        let place = beside.map_or_else(
            || "random weights have none beside them".to_owned(),
            |weights| format!("there is no {VOCABULARY_FILE} beside {}", weights.display()),
        );
        TrainError::setting("the vocabulary", "not given", format!("{place} ({option})"))
    })?;
    Ok(Arc::new(TextTokenizer::new(Arc::new(Vocabulary::open(&path)?))))
}

/// Questions and their windows.
pub(super) struct Questions {
    pub set: SquadSet,
    pub features: Arc<Features>,
    pub tokenizer: Arc<TextTokenizer>,
}

impl Questions {
    /// Those of a set. With `cache`, windows are kept in this program's cache where that is possible.
    ///
    /// # Errors
    /// Lengths that do not go together.
    pub(super) fn of(
        set: SquadSet,
        tokenizer: &Arc<TextTokenizer>,
        options: WindowOptions,
        cache: bool,
    ) -> Result<Self, TrainError> {
        let folder = cache.then(|| cache_folder().join("squad"));
        let kept = folder.and_then(|folder| Features::cached(&folder, &set, tokenizer, options, threads()).ok());
        let features = match kept {
            Some((features, _)) => features,
            None => Features::build(&set, tokenizer, options, threads())?,
        };
        Ok(Self { set, features: Arc::new(features), tokenizer: Arc::clone(tokenizer) })
    }

    /// Those of a person about a text.
    ///
    /// # Errors
    /// Lengths that do not go together.
    pub(super) fn ask(
        context: &str,
        questions: &[&str],
        tokenizer: &Arc<TextTokenizer>,
        options: WindowOptions,
    ) -> Result<Self, TrainError> {
        let set = SquadSet::ask(context, questions);
        let features = Features::build(&set, tokenizer, options, 1)?;
        Ok(Self { set, features: Arc::new(features), tokenizer: Arc::clone(tokenizer) })
    }

    /// What a person should know about a file that is trained on.
    pub(super) fn notes(&self, path: &Path) -> Vec<String> {
        let (path, left_out) = (path.display(), self.features.left_out());
        let misplaced = self.set.misplaced();
        let mut notes = Vec::new();
        if let Some(&first) = left_out.first() {
            let (count, id) = (left_out.len(), &self.set.questions()[first as usize].id);
            notes.push(format!("{path}: {count} questions whose answer is not in their text are left out, first {id}"));
        }
        if let Some(first) = misplaced.first() {
            let (count, place) = (misplaced.len(), &first.place);
            notes.push(format!("{path}: {count} answers are not at their answer_start, first {place}"));
        }
        notes
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(16)
}
