//! How fast a data set is loaded as training would load it, beside what the model takes.

use crate::explain;
use crate::measure::{MeasureError, Repeat, Request};
use bessemer_cuda::sheet::Sheet;
use bessemer_data::{BatchRange, Stage};
use bessemer_ir::passes::CompileOptions;
use bessemer_ir::{DType, GraphError};
use bessemer_models::ModelError;
use bessemer_train::recipe::Recipe;
use bessemer_train::tasks::{next_of, registry};
use bessemer_train::workload::Mode;
use bessemer_train::{
    ComputeOptions, DeviceKind, DeviceOptions, Group, INPUT_BOUND, StopSignal, TrainError, TrainSession,
};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What [`loading`] measured.
#[derive(Clone, Debug, Serialize)]
pub struct Loading {
    /// The model whose training batches were loaded.
    pub model: String,
    /// What identifies the data.
    pub data: String,
    /// What samples are, such as `images`.
    pub unit: &'static str,
    /// Threads that prepared batches.
    pub workers: u64,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Samples in the batches that were timed.
    pub samples: u64,
    /// Wall time from the first batch on.
    pub seconds: f64,
    /// Samples a second of all threads together.
    pub samples_per_second: f64,
    /// The same of one thread.
    pub samples_per_second_per_worker: f64,
    /// Milliseconds of a thread in each stage for a sample; stages that take none are left out.
    pub stage_ms_per_sample: Vec<(Stage, f64)>,
}

/// Samples that a model trains on in a second, and where.
#[derive(Clone, Debug, Serialize)]
pub struct Consumption {
    /// Samples a second.
    pub samples_per_second: f64,
    /// Samples of the step that was measured.
    pub batch_size: usize,
    /// Threads of the loader that give as many.
    pub workers_needed: f64,
}

/// What a model is predicted to take in training on a GPU, by its sheet.
#[derive(Clone, Debug, Serialize)]
pub struct PredictedConsumption {
    /// Name of the product.
    pub product: String,
    /// Type of tensors in memory and of the operands of products.
    pub precision: &'static str,
    /// What it takes.
    #[serde(flatten)]
    pub consumption: Consumption,
}

/// Training on data that are loaded meanwhile.
#[derive(Clone, Debug, Serialize)]
pub struct Together {
    /// Samples a second.
    pub samples_per_second: f64,
    /// Samples of a step.
    pub batch_size: u64,
    /// Steps that were timed.
    pub steps: u64,
    /// Share of the time in which the step waited for its batch.
    pub waiting: f64,
}

impl Together {
    /// Whether loading decides how fast training is: steps wait for their batches, and loading alone is not clearly faster than the model,
    /// where it is known what that takes. Steps may wait although it is, as threads that load and threads that compute share processors.
    pub fn is_input_bound(&self, loading: &Loading, model: Option<&Consumption>) -> bool {
        let is_faster = |model: &Consumption| loading.samples_per_second >= CLEARLY_FASTER * model.samples_per_second;
        self.waiting >= INPUT_BOUND && !model.is_some_and(is_faster)
    }

    /// Trains by a recipe, from random weights, for about `time` after the first step, while the recipe's threads load the next batches.
    ///
    /// # Errors
    /// A recipe or data that cannot be used, a step that does not fit; an interruption.
    pub fn measure(
        recipe: &Recipe,
        time: Duration,
        device: DeviceOptions,
        stop: &StopSignal,
    ) -> Result<Together, TrainError> {
        let task = registry::find(&recipe.model.name)?.family().open(recipe, None)?;
        let compute = ComputeOptions { device, ..ComputeOptions::default() };
        let mut session = TrainSession::new(&*task, recipe, task.batches_per_epoch(), &compute, &Group::alone())?;
        session.initialise()?;
        let mut batches = task.training_batches(BatchRange::epochs(u32::MAX))?;
        let (mut steps, mut waited, mut start) = (0, Duration::ZERO, None);
        loop {
            if stop.is_raised() {
                return Err(TrainError::Interrupted { step: 0, checkpoint: None });
            }
            let asked = Instant::now();
            let batch = next_of(&mut *batches, steps)?;
            waited += asked.elapsed();
            session.feed(&batch.feeds)?;
            let ticket = session.submit()?;
            session.collect(ticket)?;
            batches.recycle(batch.feeds);
            // The first step takes the start of the threads and of the page cache.
            let Some(begun) = start else {
                (start, waited) = (Some(Instant::now()), Duration::ZERO);
                continue;
            };
            steps += 1;
            let elapsed = begun.elapsed();
            if elapsed >= time {
                let (seconds, batch_size) = (elapsed.as_secs_f64(), recipe.train.batch_size);
                return Ok(Together {
                    samples_per_second: (steps * batch_size) as f64 / seconds,
                    batch_size,
                    steps,
                    waiting: waited.as_secs_f64() / seconds,
                });
            }
        }
    }
}

/// Loads training batches as a recipe asks for them, for about `time` after the first one, and does nothing with them. The recipe
/// states the number of threads.
///
/// # Errors
/// A recipe or data that cannot be used; an interruption.
pub fn loading(recipe: &Recipe, time: Duration, stop: &StopSignal) -> Result<Loading, TrainError> {
    let family = registry::find(&recipe.model.name)?.family();
    let task = family.open(recipe, None)?;
    let mut batches = task.training_batches(BatchRange::epochs(u32::MAX))?;
    let mut start = None;
    let mut samples = 0;
    loop {
        if stop.is_raised() {
            return Err(TrainError::Interrupted { step: 0, checkpoint: None });
        }
        let batch = next_of(&mut *batches, 0)?;
        let loaded = batch.samples as u64;
        batches.recycle(batch.feeds);
        // The first batch takes the start of the threads and of the page cache.
        let Some((begun, stages)) = start else {
            start = Some((Instant::now(), batches.stages()));
            continue;
        };
        samples += loaded;
        let elapsed = begun.elapsed();
        if elapsed < time {
            continue;
        }
        let seconds = elapsed.as_secs_f64();
        let stages = batches.stages() - stages;
        let workers = recipe.loader.workers.max(1);
        let per_sample = |stage: Stage| stages.of(stage).as_secs_f64() * 1e3 / samples as f64;
        let times = Stage::ALL.into_iter().map(|stage| (stage, per_sample(stage)));
        let all = stages.sum().as_secs_f64() * 1e3 / samples as f64;
        return Ok(Loading {
            model: recipe.model.name.clone(),
            data: task.data_identity(),
            unit: task.metric_schema().samples,
            workers,
            batch_size: recipe.train.batch_size,
            samples,
            seconds,
            samples_per_second: samples as f64 / seconds,
            samples_per_second_per_worker: samples as f64 / seconds / workers as f64,
            stage_ms_per_sample: times.filter(|(_, time)| *time >= LEAST_SHARE * all).collect(),
        });
    }
}

/// How many times as fast as the model loading is where training cannot be bound by it.
const CLEARLY_FASTER: f64 = 1.25;

/// Share of the time below which a stage is left out.
const LEAST_SHARE: f64 = 1e-3;

/// Warm-up and timed steps of [`consumption`].
const STEPS: (usize, usize) = (1, 3);

impl Loading {
    /// What the model takes on this machine in training with random inputs, by a few steps of `batch_size` samples.
    ///
    /// # Errors
    /// A step that does not fit or cannot be measured.
    pub fn consumption(
        &self,
        recipe: &Recipe,
        batch_size: usize,
        device: DeviceOptions,
    ) -> Result<Consumption, MeasureError> {
        let (warmup, steps) = STEPS;
        let usual = registry::find(&self.model).map_err(TrainError::from)?.family().usual_step(None);
        let request = Request {
            precision: recipe.precision.compute,
            settings: usual,
            warmup,
            steps,
            repeat: 1,
            device,
            ..Request::of(&self.model, Mode::Train, batch_size)
        };
        let samples_per_second = Repeat::here(&request)?.throughput(&request);
        Ok(self.consumed(samples_per_second, batch_size))
    }

    /// What the model is predicted to take in training in bf16, in batches as they were loaded, on a GPU that need not be there; `None`
    /// if GPUs have no kernels for it.
    ///
    /// # Errors
    /// A step that is not possible.
    pub fn predicted(&self, sheet: &Sheet) -> Result<Option<PredictedConsumption>, MeasureError> {
        let usual = registry::find(&self.model).map_err(TrainError::from)?.family().usual_step(None);
        let request = explain::Request {
            model: self.model.clone(),
            mode: Mode::Train,
            batch_size: self.batch_size as usize,
            settings: usual,
            compile: CompileOptions { precision: DType::Bf16, ..CompileOptions::default() },
            device: DeviceOptions { kind: DeviceKind::Cuda { index: 0 }, ..DeviceOptions::default() },
            sheet: Some(sheet.clone()),
            memory_bytes: sheet.free_bytes(),
        };
        let predicted = match explain::predict(&request) {
            Err(ModelError::Graph(GraphError::Unsupported(_))) => None,
            predicted => predicted?,
        };
        Ok(predicted.map(|prediction| PredictedConsumption {
            product: prediction.product,
            precision: "bf16",
            consumption: self.consumed(self.batch_size as f64 / prediction.all.seconds, self.batch_size as usize),
        }))
    }

    fn consumed(&self, samples_per_second: f64, batch_size: usize) -> Consumption {
        let workers_needed = samples_per_second / self.samples_per_second_per_worker;
        Consumption { samples_per_second, batch_size, workers_needed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_is_bound_by_input_where_steps_wait_and_loading_is_not_clearly_faster() {
        let is_bound = |waiting: f64, loaded: f64, taken: Option<f64>| {
            let loading = Loading {
                model: String::new(),
                data: String::new(),
                unit: "images",
                workers: 1,
                batch_size: 1,
                samples: 1,
                seconds: 1.0,
                samples_per_second: loaded,
                samples_per_second_per_worker: loaded,
                stage_ms_per_sample: Vec::new(),
            };
            let model = taken.map(|taken| loading.consumed(taken, 1));
            Together { samples_per_second: 1.0, batch_size: 1, steps: 1, waiting }
                .is_input_bound(&loading, model.as_ref())
        };
        assert!(!is_bound(0.08, 78_459.0, Some(338.0)));
        assert!(!is_bound(0.08, 125.0, Some(100.0)));
        assert!(is_bound(0.08, 124.0, Some(100.0)));
        assert!(is_bound(0.08, 124.0, None));
        assert!(!is_bound(0.04, 50.0, Some(100.0)));
    }
}
