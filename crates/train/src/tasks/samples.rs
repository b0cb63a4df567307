//! Evaluation pictures of a run with what the model takes them for, kept as `predictions/samples.json` and PNG files beside it.

use crate::error::TrainError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// A picture, what it shows and what the model says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// File name within the folder of `samples.json`.
    pub picture: String,
    /// Name of the true class.
    pub label: String,
    /// Name of the class with the highest probability.
    pub predicted: String,
    /// Probability of the predicted class, in `[0, 1]`.
    pub probability: f64,
}

/// The list of samples in the folder of predictions.
pub const SAMPLES_FILE: &str = "samples.json";
/// What fails, for messages.
const WRITE: &str = "write the sample pictures";

impl Sample {
    /// Whether the predicted class is the true one.
    pub fn is_right(&self) -> bool {
        self.label == self.predicted
    }
}

/// Makes the folder that pictures and list are written to.
pub(crate) fn make_folder(predictions: &Path) -> Result<(), TrainError> {
    fs::create_dir_all(predictions).map_err(TrainError::io(predictions, WRITE))
}

/// Writes the list of samples into the folder of their pictures.
pub(crate) fn write(predictions: &Path, samples: &[Sample]) -> Result<(), TrainError> {
    let path = predictions.join(SAMPLES_FILE);
    let text = serde_json::to_string_pretty(samples).expect("samples have string keys and finite numbers");
    fs::write(&path, text).map_err(TrainError::io(&path, WRITE))
}

/// The samples of a run, if it has any, in the order in which they were written.
pub fn read(predictions: &Path) -> Vec<Sample> {
    let text = fs::read_to_string(predictions.join(SAMPLES_FILE)).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_samples_is_no_error() {
        assert_eq!(read(Path::new("no/such/folder")), []);
    }
}
