//! Batches of a data set for measured training steps, loaded while the steps run.

use crate::measure::{MeasureError, Request};
use bessemer_data::{Batch, BatchRange};
use bessemer_ir::Role;
use bessemer_ir::run::Executor;
use bessemer_train::recipe::{Override, Recipe};
use bessemer_train::tasks::{Batches, next_of, registry};
use bessemer_train::{TrainError, feed};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Data as `train` would load them for the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// A folder, or `shapes`.
    pub source: String,
    /// Threads that prepare batches.
    pub workers: usize,
    /// Other values for fields of the recipe by which they are loaded, each `FIELD=VALUE`.
    pub set: Vec<String>,
}

impl Request {
    /// Looks whether the data can be loaded and suit the step, without the step.
    ///
    /// # Errors
    /// Data that cannot be used, or of other sizes than the step's.
    pub fn check_data(&self) -> Result<(), MeasureError> {
        let Some(data) = &self.data else { return Ok(()) };
        let batch = Inputs::open(data, self)?.next()?;
        let work = self.work().build()?;
        for (_, feed) in work.graph.inputs().filter(|(_, input)| input.role == Role::Feed) {
            let loaded = batch.feeds.iter().find(|(name, _)| *name == feed.name);
            let bytes = loaded.map_or(0, |(_, array)| array.bytes().len());
            if bytes != feed.ty.bytes() {
                let (name, value) = ("--data", data.source.clone());
                let allowed = format!(
                    "expected batches with the step's `{}`, {} of {} bytes; these have {bytes}",
                    feed.name,
                    feed.ty,
                    feed.ty.bytes()
                );
                return Err(TrainError::Setting { name, value, allowed }.into());
            }
        }
        Ok(())
    }
}

/// Micro-batches, one after the other.
pub(crate) struct Inputs {
    batches: Box<dyn Batches>,
    waited: Duration,
}

impl Inputs {
    /// By the recipe that suits the model and the data.
    ///
    /// # Errors
    /// Data that cannot be used.
    pub(crate) fn open(data: &Data, request: &Request) -> Result<Inputs, TrainError> {
        let family = registry::find(&request.model)?.family();
        let mut overrides = family.fields_of_data(&data.source);
        overrides.extend(family.fields_of_step(&request.model, &request.settings));
        for field in &data.set {
            overrides.push(field.parse()?);
        }
        overrides.extend([
            Override::new("model.name", request.model.as_str()),
            Override::new("data.source", data.source.as_str()),
            Override::new("loader.workers", data.workers as i64),
            Override::new("train.batch_size", request.batch_size as i64),
            Override::new("train.accumulation", 1),
            Override::new("train.seed", request.seed as i64),
        ]);
        let recipe = Recipe::load(family.default_recipe(&request.model, Some(&data.source)), &overrides)?;
        let task = family.open(&recipe, None)?;
        Ok(Inputs { batches: task.training_batches(BatchRange::epochs(u32::MAX))?, waited: Duration::ZERO })
    }

    /// Copies the next micro-batch into the step.
    ///
    /// # Errors
    /// A sample that cannot be read; a batch that is not of the step's sizes.
    pub(crate) fn feed(&mut self, executor: &mut dyn Executor) -> Result<(), TrainError> {
        let asked = Instant::now();
        let batch = self.next()?;
        self.waited += asked.elapsed();
        feed(executor, &batch.feeds)?;
        self.batches.recycle(batch.feeds);
        Ok(())
    }

    fn next(&mut self) -> Result<Batch, TrainError> {
        next_of(&mut *self.batches, 0)
    }

    /// Time that steps waited for their batches since the last call.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}
