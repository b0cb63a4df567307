//! Families of models and what they train. Commands know a family as a [`Family`](family::Family) of the [`registry`]; trainer,
//! sessions, checkpoints and logs know what it trains as a [`Task`], and its batches as [`Feeds`] of a compiled step.

pub mod class_scores;
pub mod classification;
pub mod detection;
pub mod electra;
#[cfg(test)]
mod example;
pub mod family;
mod feeds;
pub mod frames;
pub mod huggingface;
pub mod infer;
mod load;
mod loaded;
mod metric_schema;
mod pictures;
pub mod pretraining;
mod record;
pub mod registry;
pub mod samples;
mod softmax;
mod source;
pub mod squad;
pub(crate) mod text;

pub use bessemer_data::{Array, Batch, BatchRange, Feeds, Share};
pub use feeds::{Batches, next_of};
pub use load::LoadOptions;
pub use metric_schema::{Better, Metric, MetricSchema, ReferenceName, ReferenceNames, Scale};
pub use record::Record;
pub use registry::metric_schema;

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::session::{EvalSession, TrainSession};
use crate::setup::RunShape;
use bessemer_data::text::VocabularyIdentity;
use bessemer_models::Model;
use bessemer_weights::NamedTensor;
use class_scores::ClassTables;
use std::collections::BTreeMap;
use std::path::Path;

/// Of each of several inputs, in their order, what came of it, or why nothing did.
pub type EachInput<T> = Vec<Result<T, TrainError>>;

/// What a run trains: its graph, its data, and how it is evaluated.
pub trait Task {
    /// What logs and tables call things.
    fn metric_schema(&self) -> &'static MetricSchema;

    /// The graph of a whole training step, with a schedule of the given number of updates an epoch.
    ///
    /// # Errors
    /// A model or a size that is not possible.
    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError>;

    /// What identifies the training data.
    fn data_identity(&self) -> String;

    /// The vocabulary of a model of text; random words have none.
    fn vocabulary(&self) -> Option<VocabularyIdentity> {
        None
    }

    /// Batches of `train.batch_size` in an epoch, at least one.
    fn batches_per_epoch(&self) -> u64;

    /// A run of training batches.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError>;

    /// The evaluation that the recipe asks for; `None` without validation data.
    ///
    /// # Errors
    /// A model that is not possible.
    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError>;

    /// Parameters of a run from random weights whose first content comes from the data: names of the model, and elements in
    /// the order of the graph.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn initial_values(&self) -> Result<Vec<(&'static str, Vec<f32>)>, TrainError> {
        Ok(Vec::new())
    }

    /// Whether weights are those of a part of the model that a run may begin with, such as its backbone.
    fn has_part(&self, _given: &[NamedTensor<'_>]) -> bool {
        false
    }

    /// What a run begins with that is `given` weights, in a `session` with random ones.
    ///
    /// # Errors
    /// None, for a session as it was compiled.
    fn initial_weights(
        &self,
        given: Vec<NamedTensor<'static>>,
        _origin: &WeightOrigin<'_>,
        _session: &TrainSession,
    ) -> Result<InitialWeights, TrainError> {
        Ok(InitialWeights { tensors: given, notes: Vec::new() })
    }

    /// Writes what a run keeps beside its recipe, such as the names of classes.
    ///
    /// # Errors
    /// A folder that cannot be written.
    fn write_files(&self, run: &Path) -> Result<(), TrainError>;

    /// What a person should know before the first step.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// What a person should know of a run that begins with random weights.
    fn warnings_of_random_weights(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Where given weights come from.
#[derive(Clone, Copy, Debug)]
pub struct WeightOrigin<'a> {
    /// What messages call them.
    pub name: &'a str,
    /// What they were trained by, where they come from a run.
    pub recipe: Option<&'a Recipe>,
    /// Whether they come from a checkpoint of TensorFlow.
    pub is_tensorflow: bool,
}

/// The first weights of a run.
pub struct InitialWeights {
    /// All tensors of the model, and no others.
    pub tensors: Vec<NamedTensor<'static>>,
    /// What a person should know about them.
    pub notes: Vec<String>,
}

/// A data set on which a model is evaluated.
pub trait Evaluation {
    /// Names and labels of the metrics.
    fn metric_schema(&self) -> &'static MetricSchema;

    /// The forward pass of so many samples, one of each part into which the samples are split where their shapes
    /// differ. All are over the same tensors.
    ///
    /// # Errors
    /// A model or a size that is not possible.
    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError>;

    /// Samples of one forward pass.
    fn batch_size(&self) -> usize;

    /// Every sample of a part once, in order, or the share of one rank of that.
    ///
    /// # Errors
    /// Data that cannot be read.
    fn batches(&self, part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError>;

    /// What a person should know of the set that is evaluated on.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// # Errors
    /// Outputs that cannot be scored.
    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError>;
}

/// Metrics, summed up over batches. Several ranks share the batches: each makes the records of its own, and one adds those of all in
/// the order of batches, so that the metrics are those of one rank bit for bit.
pub trait Score {
    /// What counts of the real samples of a batch that `session` has just run.
    ///
    /// # Errors
    /// Outputs that are not numbers.
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError>;

    /// Adds a batch.
    ///
    /// # Errors
    /// A record of another kind of score; what cannot be scored.
    fn add(&mut self, record: &Record) -> Result<(), TrainError>;

    /// Called once, when every sample was added; before it there are no metrics. Answers in the official form of the task, if
    /// it has one, go to the folder `out`.
    ///
    /// # Errors
    /// A folder that cannot be written.
    fn finish(&mut self, _out: Option<&Path>) -> Result<(), TrainError> {
        Ok(())
    }

    /// What a person should know of the result, after [`Score::finish`].
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Those of [`MetricSchema::metrics`].
    fn metrics(&self) -> BTreeMap<String, f64>;

    /// What was counted for them.
    fn counts(&self) -> BTreeMap<String, u64>;

    /// The scores of each class of objects, after [`Score::finish`]; nothing where there are none.
    fn classes(&self) -> ClassTables {
        ClassTables::new()
    }
}
