//! Predictions for what a person gives to a model, in a form that every family has.

use super::EachInput;
use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::session::ComputeOptions;
use crate::signals::StopSignal;
use bessemer_data::{Exif, read_text};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Settings of predictions.
#[derive(Clone, Debug, Default)]
pub struct PredictOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// Results for an input, or for each place in it, the likeliest first; otherwise 5, and of detections all.
    pub top_k: Option<usize>,
    /// Detections with a lower score are left out; otherwise those below [`DRAWN_SCORE`] are neither drawn nor listed, and results
    /// files have all.
    pub score: Option<f64>,
    /// A folder for pictures with detections drawn in them, and a file of results.
    pub out: Option<PathBuf>,
    /// A folder for a picture of the mask of each detection.
    pub masks: Option<PathBuf>,
    /// What is done with the EXIF orientation of pictures; otherwise it is applied.
    pub exif: Option<Exif>,
    /// A file with the name of a class in each line. Otherwise names are those of the run, or numbers.
    pub labels: Option<PathBuf>,
    /// The vocabulary of a model of text; otherwise that of the folder of the weights.
    pub vocab: Option<PathBuf>,
    /// The text that questions are about.
    pub context: Option<String>,
    /// Which weights of a run are used.
    pub weights: WhichWeights,
    /// When raised, detections end after the pictures that are under way.
    pub stop: StopSignal,
}

impl PredictOptions {
    /// What is done with the EXIF orientation of pictures.
    pub fn orientation(&self) -> Exif {
        self.exif.unwrap_or(Exif::Apply)
    }
}

/// Detections with a lower score are not drawn, where nothing else is asked for.
pub const DRAWN_SCORE: f64 = 0.4;
/// File of all detections, in COCO's form of results.
pub(super) const RESULTS_FILE: &str = "results.json";
/// Quality of the pictures that are written as JPEG, of 100.
pub(super) const JPEG_QUALITY: u8 = 90;
/// Results for an input, where their number is not given.
pub(super) const TOP_K: usize = 5;

/// A model with trained weights.
pub trait Predictor {
    /// Predicts each input. While a long input runs, `notify` is called with the parts done and the parts in all.
    ///
    /// # Errors
    /// Weights that cannot be read or do not fit; the error of a wrong input is in its place in the result.
    fn predict(
        &mut self,
        inputs: &[String],
        notify: &dyn Fn(usize, usize),
    ) -> Result<EachInput<Prediction>, TrainError>;
}

/// What a model says of an input.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// For people.
    pub parts: Vec<Part>,
    /// For programs.
    pub json: Value,
    /// For tables of programs.
    pub rows: Rows,
}

/// Rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Names of the columns.
    pub columns: &'static [&'static str],
    /// A cell for each column.
    pub cells: Vec<Vec<String>>,
}

/// A part of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// A line of text.
    Line(String),
    /// Names with probabilities, or with nothing for a title between them.
    Table(Vec<(String, Option<f64>)>),
}

/// What a model says of an input, in each form in which it is shown.
pub trait Shown: Serialize {
    /// Names of the columns of its rows.
    const COLUMNS: &'static [&'static str];

    /// For people.
    fn parts(&self) -> Vec<Part>;

    /// A row for each result, with a cell for each column.
    fn rows(&self) -> Vec<Vec<String>>;
}

impl Prediction {
    /// A result in all its forms.
    ///
    /// # Panics
    /// For a result that has no JSON form.
    pub fn new<T: Shown>(result: &T) -> Self {
        let json = serde_json::to_value(result).expect("results have string keys");
        Self { parts: result.parts(), json, rows: Rows { columns: T::COLUMNS, cells: result.rows() } }
    }
}

/// A path in JSON, whatever its bytes are.
pub(super) fn lossy_path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Each result as a prediction.
pub(super) fn predictions<T: Shown>(results: EachInput<T>) -> EachInput<Prediction> {
    results.into_iter().map(|result| result.map(|result| Prediction::new(&result))).collect()
}

/// A number in a row, as JSON has it: as many digits as tell it from all others.
pub(super) fn cell(number: f64) -> String {
    format!("{number:?}")
}

/// Names of classes from a file with one in each line.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn read_labels(path: &Path) -> Result<Vec<String>, TrainError> {
    Ok(labels(&read_text(path)?))
}

/// Names of classes from a text with one in each line.
pub(super) fn labels(text: &str) -> Vec<String> {
    text.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The names that a person gives to the classes of weights from `origin`.
///
/// # Errors
/// As [`read_labels`]; another number of names than classes.
pub(super) fn given_labels(path: &Path, classes: usize, origin: &str) -> Result<Vec<String>, TrainError> {
    let names = read_labels(path)?;
    if names.len() == classes {
        return Ok(names);
    }
    let value = format!("{} in {}", names.len(), path.display());
    Err(TrainError::setting("the number of labels", value, format!("{origin} has {classes} classes")))
}
