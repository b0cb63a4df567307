use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::DataError;
use crate::text::write_whole;

/// Answers to questions, in the order of the set.
#[derive(Debug, Clone, PartialEq)]
pub struct Predictions {
    /// One entry a question, in the order of the data.
    pub questions: Vec<Prediction>,
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The id of the question.
    pub id: String,
    /// Empty where there is none.
    pub text: String,
    /// What was considered, the likeliest first.
    pub n_best: Vec<Candidate>,
    /// What speaks for no answer, where there may be none; above the threshold none was given.
    pub null_score: Option<f64>,
}

/// An answer that was considered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// The answer, as it stands in the paragraph.
    pub text: String,
    /// Among the candidates.
    pub probability: f64,
    /// Logit of its first token as a start.
    pub start_logit: f32,
    /// Logit of its last token as an end.
    pub end_logit: f32,
}

impl Predictions {
    /// Official name of the file of answers, `{"id": "text"}`.
    pub const FILE: &str = "predictions.json";
    /// Official name of the file of candidates, `{"id": [{"text", "probability", "start_logit", "end_logit"}]}`.
    pub const N_BEST_FILE: &str = "nbest_predictions.json";
    /// Official name of the file of scores of no answer, `{"id": score}`, where there may be none.
    pub const NULL_FILE: &str = "null_odds.json";

    /// Ids and answers.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.questions.iter().map(|prediction| (prediction.id.as_str(), prediction.text.as_str()))
    }

    /// Writes the official files into a folder.
    ///
    /// Errors: a folder or file that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), DataError> {
        fs::create_dir_all(folder).map_err(DataError::writing(folder, "create the folder"))?;
        let of_all = |value: &dyn Fn(&Prediction) -> Option<Value>| {
            let entries = self.questions.iter().filter_map(|one| Some((one.id.clone(), value(one)?)));
            entries.collect::<Map<String, Value>>()
        };
        let write = |name: &str, object: Map<String, Value>| {
            let text = serde_json::to_string_pretty(&object).expect("JSON can be written");
            write_whole(&folder.join(name), (text + "\n").as_bytes())
        };
        write(Self::FILE, of_all(&|one| Some(json!(one.text))))?;
        write(Self::N_BEST_FILE, of_all(&|one| Some(json!(one.n_best))))?;
        let scores = of_all(&|one| one.null_score.map(Value::from));
        if scores.is_empty() { Ok(()) } else { write(Self::NULL_FILE, scores) }
    }
}
