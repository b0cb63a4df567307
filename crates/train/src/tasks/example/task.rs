//! What a recipe of the example trains, and how it is evaluated.

use super::graph::{self, CLASSES, LABELS};
use super::points::{BATCHES, Points};
use super::{PerceptronRecipe, TERMS};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::session::EvalSession;
use crate::setup::{RunShape, train_config};
use crate::tasks::{Batch, Batches, Evaluation, MetricSchema, Record, Score, Task};
use bessemer_data::{BatchRange, Share};
use bessemer_models::Model;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) struct Quadrants {
    pub recipe: Recipe,
    pub own: PerceptronRecipe,
}

impl Quadrants {
    fn points(&self, seed: u64, range: BatchRange) -> Points {
        let batch_size = self.recipe.train.batch_size as usize;
        Points { seed, batch_size, margin: self.own.points.margin, position: range.start, range }
    }
}

impl Task for Quadrants {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn training_step(&self, shape: RunShape) -> Result<Model, TrainError> {
        let hidden = self.own.model.hidden as usize;
        Ok(graph::train(hidden, shape.batch_size, &train_config(&self.recipe, shape)?)?)
    }

    fn data_identity(&self) -> String {
        format!("quadrants:margin={}", self.own.points.margin)
    }

    fn batches_per_epoch(&self) -> u64 {
        BATCHES as u64
    }

    fn training_batches(&self, range: BatchRange) -> Result<Box<dyn Batches>, TrainError> {
        Ok(Box::new(self.points(self.recipe.train.seed, range)))
    }

    fn evaluation(&self) -> Result<Option<Box<dyn Evaluation>>, TrainError> {
        let (recipe, own) = (self.recipe.clone(), self.own.clone());
        Ok(Some(Box::new(HeldOut(Quadrants { recipe, own }))))
    }

    fn write_files(&self, _: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Points of another seed.
pub(super) struct HeldOut(pub Quadrants);

impl Evaluation for HeldOut {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn models(&self, batch_size: usize) -> Result<Vec<Model>, TrainError> {
        Ok(vec![graph::infer(self.0.own.model.hidden as usize, batch_size)?])
    }

    fn batch_size(&self) -> usize {
        self.0.recipe.train.batch_size as usize
    }

    fn batches(&self, _part: usize, share: Share) -> Result<Box<dyn Batches>, TrainError> {
        Ok(Box::new(self.0.points(self.0.recipe.train.seed + 1, BatchRange { share, ..BatchRange::epochs(1) })))
    }

    fn score(&self) -> Result<Box<dyn Score + '_>, TrainError> {
        Ok(Box::new(Accuracy::default()))
    }
}

#[derive(Default)]
struct Accuracy {
    correct: u64,
    total: u64,
}

impl Score for Accuracy {
    fn record(&self, batch: &Batch, session: &EvalSession) -> Result<Record, TrainError> {
        let rows = session.output("logits")?.chunks_exact(CLASSES).zip(&batch.feeds.i32(LABELS)[..batch.samples]);
        let correct = rows.filter(|(row, label)| i32::from(row[1] > row[0]) == **label).count();
        Ok(Record::of(&(correct as u64, batch.samples as u64)))
    }

    fn add(&mut self, record: &Record) -> Result<(), TrainError> {
        let (correct, total): (u64, u64) = record.read()?;
        (self.correct, self.total) = (self.correct + correct, self.total + total);
        Ok(())
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        [("accuracy".to_owned(), self.correct as f64 / self.total as f64)].into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        [("correct".to_owned(), self.correct), ("total".to_owned(), self.total)].into()
    }
}
