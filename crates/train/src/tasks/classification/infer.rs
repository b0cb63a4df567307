//! Classes of pictures.

use super::classifier::Classifier;
use crate::error::TrainError;
use crate::loaded_weights::WhichWeights;
use crate::session::ComputeOptions;
use crate::tasks::infer::{self, Part, PredictOptions, Predictor, Shown, TOP_K, cell, given_labels, lossy_path};
use crate::tasks::pictures::picture_files;
use crate::tasks::softmax::log_sum_exp;
use crate::tasks::{Array, EachInput, Feeds};
use bessemer_data::{Exif, Image};
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Settings of [`infer()`].
#[derive(Clone, Debug)]
pub struct InferOptions {
    /// Device and passes to compute with.
    pub compute: ComputeOptions,
    /// What is done with the EXIF orientation of pictures.
    pub exif: Exif,
    /// Classes a picture, best first.
    pub top_k: usize,
    /// A file with the name of a class in each line. Otherwise names are those of the run, of ImageNet for 1000 classes, or numbers.
    pub labels: Option<PathBuf>,
    /// Pictures in one pass.
    pub batch_size: usize,
    /// Which weights of a run are used.
    pub weights: WhichWeights,
}

impl Default for InferOptions {
    fn default() -> Self {
        Self {
            compute: ComputeOptions::default(),
            exif: Exif::Apply,
            top_k: TOP_K,
            labels: None,
            batch_size: 8,
            weights: WhichWeights::default(),
        }
    }
}

/// Classifies files of images.
pub(super) struct ClassPredictor {
    model: &'static str,
    weights: PathBuf,
    options: InferOptions,
}

impl ClassPredictor {
    pub(super) fn new(model: &'static str, weights: &Path, options: &PredictOptions) -> Self {
        let exif = options.orientation();
        let PredictOptions { compute, top_k, labels, weights: which, .. } = options.clone();
        let top_k = top_k.unwrap_or(TOP_K);
        let options = InferOptions { compute, exif, top_k, labels, weights: which, ..InferOptions::default() };
        Self { model, weights: weights.to_owned(), options }
    }
}

impl Predictor for ClassPredictor {
    fn predict(
        &mut self,
        inputs: &[String],
        notify: &dyn Fn(usize, usize),
    ) -> Result<EachInput<infer::Prediction>, TrainError> {
        Ok(infer::predictions(infer(self.model, &self.weights, inputs, &self.options, notify)?))
    }
}

/// What a picture shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// File of the image.
    #[serde(serialize_with = "lossy_path")]
    pub path: PathBuf,
    /// Best first.
    pub classes: Vec<ClassScore>,
}

impl Shown for Prediction {
    const COLUMNS: &'static [&'static str] = &["picture", "rank", "class_id", "name", "probability"];

    fn parts(&self) -> Vec<Part> {
        let classes = self.classes.iter().map(|score| (score.name.clone(), Some(score.probability)));
        vec![Part::Line(self.path.display().to_string()), Part::Table(classes.collect())]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let picture = self.path.display().to_string();
        let row = |(rank, score): (usize, &ClassScore)| {
            vec![
                picture.clone(),
                rank.to_string(),
                score.class.to_string(),
                score.name.clone(),
                cell(score.probability),
            ]
        };
        (1..).zip(&self.classes).map(row).collect()
    }
}

/// A class and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassScore {
    /// Label as in the data set.
    pub class: usize,
    /// Name of the class, or its number as text.
    pub name: String,
    /// Softmax probability in `[0, 1]`.
    pub probability: f64,
}

/// Classifies pictures with model `name` and `weights`, prepared as in evaluation, and turned before as the options ask.
/// Inputs are files, folders, and patterns of files. A picture that cannot be read is an error in its place. `notify` is
/// called with the pictures done and those in all.
///
/// # Errors
/// Weights or labels that cannot be read or do not fit the model.
pub fn infer(
    name: &str,
    weights: &Path,
    inputs: &[String],
    options: &InferOptions,
    notify: &dyn Fn(usize, usize),
) -> Result<EachInput<Prediction>, TrainError> {
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let classifier = Classifier::load(name, weights, options.weights)?;
    let names = class_names(&classifier, options.labels.as_deref())?;
    let files = picture_files(inputs);
    let (all, batch_size) = (files.len(), options.batch_size.clamp(1, files.len()));
    let mut session = classifier.session(batch_size, &options.compute)?;
    let transform = classifier.transform();
    let mut predictions = Vec::with_capacity(all);
    let mut files = files.into_iter();
    while predictions.len() < all {
        notify(predictions.len(), all);
        let read = |path: Result<PathBuf, TrainError>| {
            let path = path?;
            let pixels = transform.apply(&Image::read_oriented(&path, options.exif)?).pixels;
            Ok((path, pixels))
        };
        let batch: EachInput<(PathBuf, Vec<u8>)> = files.by_ref().take(batch_size).map(read).collect();
        let pixels = || batch.iter().flatten().map(|(_, pixels)| pixels);
        let Some(size) = pixels().map(Vec::len).next() else {
            predictions.extend(batch.into_iter().filter_map(Result::err).map(Err));
            continue;
        };
        let mut images: Vec<u8> = pixels().flatten().copied().collect();
        images.resize(size * batch_size, 0);
        session.run(&Feeds::from([("images", Array::U8(images))]))?;
        let mut rows = session.output("logits")?.chunks_exact(classifier.options.num_classes);
        let prediction = |read: Result<(PathBuf, Vec<u8>), TrainError>| {
            read.map(|(path, _)| {
                let logits = rows.next().expect("there is a row for each picture that was read");
                let classes = best_classes(logits, &classifier.outputs, options.top_k, &names);
                Prediction { path, classes }
            })
        };
        predictions.extend(batch.into_iter().map(prediction));
    }
    Ok(predictions)
}

/// Names in the order of labels; empty where numbers have to do.
fn class_names(classifier: &Classifier, labels: Option<&Path>) -> Result<Vec<String>, TrainError> {
    let Some(path) = labels else {
        return Ok(classifier.class_names());
    };
    given_labels(path, classifier.num_classes(), &classifier.trained.origin)
}

/// Classes, those of these outputs, by falling probability; equal ones by number.
pub(super) fn best_classes(logits: &[f32], outputs: &Range<usize>, top_k: usize, names: &[String]) -> Vec<ClassScore> {
    let total = log_sum_exp(logits);
    let mut order: Vec<usize> = outputs.clone().collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let score = |output: usize| {
        let class = output - outputs.start;
        let name = names.get(class).cloned().unwrap_or_else(|| class.to_string());
        ClassScore { class, name, probability: (f64::from(logits[output]) - total).exp() }
    };
    order.into_iter().take(top_k).map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_under_their_names() {
        let names = ["cat".to_owned(), "dog".to_owned()];
        let best = best_classes(&[9.0, 1.0, 2.0, 8.0], &(1..3), 5, &names);
        let shown: Vec<(usize, &str)> = best.iter().map(|score| (score.class, score.name.as_str())).collect();
        assert_eq!(shown, [(1, "dog"), (0, "cat")]);
        let total: f64 = [9.0_f64, 1.0, 2.0, 8.0].map(f64::exp).iter().sum();
        assert!((best[0].probability - 2.0_f64.exp() / total).abs() < 1e-12);
        assert_eq!(best_classes(&[0.0, 1.0], &(0..2), 1, &[])[0].name, "1");
    }
}
