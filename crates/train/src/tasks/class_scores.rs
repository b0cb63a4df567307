//! What an evaluation says of classes: the scores of each class of objects, kept as `classes.json` beside the detections, and which classes it
//! cannot judge.

use crate::error::TrainError;
use bessemer_data::coco::listed;
use bessemer_metrics::coco::{CategoryScores, SCORE_NAMES, Scores};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The scores of the classes in the folder of predictions.
pub const CLASSES_FILE: &str = "classes.json";

/// Classes of what is compared with what is there: `bbox`, and of networks that give masks `segm`.
pub type ClassTables = BTreeMap<String, Vec<ClassScores>>;

/// The scores that tables show, of those that [`SCORE_NAMES`] lists.
const SHOWN: [usize; 7] = [0, 1, 2, 3, 4, 5, 8];

/// The scores of one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScores {
    /// Id of the category in files.
    pub id: i64,
    /// Name of the class.
    pub name: String,
    /// True objects without crowds.
    pub objects: usize,
    /// Detections, evaluated or not.
    pub detections: usize,
    /// In files by name, -1 where there is no object.
    #[serde(flatten, with = "by_name")]
    pub scores: Scores,
}

impl ClassScores {
    /// The scores of a category.
    pub fn of(id: i64, name: &str, category: &CategoryScores) -> Self {
        let CategoryScores { scores, objects, detections } = *category;
        Self { id, name: name.to_owned(), objects, detections, scores }
    }

    /// What the columns of a table are called.
    pub fn columns() -> Vec<&'static str> {
        ["class", "objects", "detections"].into_iter().chain(SHOWN.map(|index| SCORE_NAMES[index])).collect()
    }

    /// The row of a table; `-` where there is no object.
    pub fn cells(&self) -> Vec<String> {
        let values = self.scores.values();
        let counts = [self.name.clone(), self.objects.to_string(), self.detections.to_string()];
        let score = |index: usize| values[index].map_or_else(|| "-".to_owned(), |score| format!("{score:.3}"));
        counts.into_iter().chain(SHOWN.map(score)).collect()
    }
}

mod by_name {
    use super::{BTreeMap, Deserialize, SCORE_NAMES, Scores};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(scores: &Scores, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(SCORE_NAMES.iter().zip(scores.values().map(|value| value.unwrap_or(-1.0))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scores, D::Error> {
        let values = BTreeMap::<String, f64>::deserialize(deserializer)?;
        Ok(Scores::from_values(SCORE_NAMES.map(|name| values.get(name).copied().filter(|value| *value >= 0.0))))
    }
}

/// Writes `classes.json` into a folder.
pub(crate) fn write(folder: &Path, tables: &ClassTables) -> Result<(), TrainError> {
    let path = folder.join(CLASSES_FILE);
    let text = serde_json::to_string_pretty(tables).expect("tables have string keys and finite numbers") + "\n";
    fs::write(&path, text).map_err(TrainError::io(&path, "write the scores of the classes"))
}

/// The scores of the classes in the latest evaluation of a run; nothing where it has none.
pub fn read(predictions: &Path) -> ClassTables {
    let text = fs::read_to_string(predictions.join(CLASSES_FILE)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// What is to be said of trained classes of which the validation set has nothing, of `all`; `what` is what it would have of a class.
pub(super) fn classes_without(what: &str, absent: &[&str], all: usize) -> Option<String> {
    (!absent.is_empty()).then(|| {
        let (count, names) = (absent.len(), listed(absent.iter().copied()));
        format!(
            "trained classes without {what} in the validation set, about which scores say nothing, {count} of {all}: {names}"
        )
    })
}
