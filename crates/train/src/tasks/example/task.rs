//! What a recipe of the example trains, and how it is evaluated.

use super::graph::{self, CLASSES, LABELS};
use super::points::{BATCHES, Points};
use super::{PerceptronRecipe, TERMS};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::session::EvalSession;
use crate::setup::train_config;
use crate::tasks::{Batch, Batches, Evaluation, MetricSchema, Score, Task};
use bessemer_data::Position;
use bessemer_models::Model;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) struct Quadrants {
    pub recipe: Recipe,
    pub own: PerceptronRecipe,
}

impl Quadrants {
    fn points(&self, seed: u64, position: Position, end_epoch: u32) -> Points {
        let batch_size = self.recipe.train.batch_size as usize;
        Points { seed, batch_size, margin: self.own.points.margin, position, end_epoch }
    }
}

impl Task for Quadrants {
    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn training_step(&self, steps_per_epoch: u64) -> Result<Model, TrainError> {
        let (train, hidden) = (&self.recipe.train, self.own.model.hidden as usize);
        Ok(graph::train(hidden, train.batch_size as usize, &train_config(&self.recipe, steps_per_epoch)?)?)
    }

    fn data_identity(&self) -> String {
        format!("quadrants:margin={}", self.own.points.margin)
    }

    fn batches_per_epoch(&self) -> u64 {
        BATCHES as u64
    }

    fn training_batches(&self, start: Position, end_epoch: u32) -> Result<Box<dyn Batches>, TrainError> {
        Ok(Box::new(self.points(self.recipe.train.seed, start, end_epoch)))
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

    fn models(&self) -> Result<Vec<Model>, TrainError> {
        Ok(vec![graph::infer(self.0.own.model.hidden as usize, self.batch_size())?])
    }

    fn batch_size(&self) -> usize {
        self.0.recipe.train.batch_size as usize
    }

    fn batches(&self, _part: usize) -> Result<Box<dyn Batches>, TrainError> {
        Ok(Box::new(self.0.points(self.0.recipe.train.seed + 1, Position::default(), 1)))
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
    fn add(&mut self, batch: &Batch, session: &EvalSession) -> Result<(), TrainError> {
        let rows = session.output("logits")?.chunks_exact(CLASSES);
        for (row, &label) in rows.zip(&batch.feeds.i32(LABELS)[..batch.samples]) {
            self.correct += u64::from(i32::from(row[1] > row[0]) == label);
            self.total += 1;
        }
        Ok(())
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        [("accuracy".to_owned(), self.correct as f64 / self.total as f64)].into()
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        [("correct".to_owned(), self.correct), ("total".to_owned(), self.total)].into()
    }
}
