//! Images as feeds.

use super::mixup::Mix;
use super::sources::training_sampler;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::tasks::{Array, Batch, Batches, Feeds, LoadOptions};
use bessemer_data::{DataError, Dataset, Loader, Pictures, Position, Sampler, SamplerOptions, SkippedSample};
use std::sync::Arc;
use std::time::Duration;

/// The feeds `images u8[N, H, W, 3]` and `labels i32[N]`, and those of mixup where the recipe asks for it.
pub(super) struct ImageBatches {
    loader: Loader<dyn Dataset>,
    /// Added to every label.
    label_offset: i32,
    mixup: Option<Mixup>,
}

struct Mixup {
    seed: u64,
    alpha: f64,
    batch_size: usize,
}

impl ImageBatches {
    /// Shuffled batches of a training set, whole ones only, from a position up to an epoch.
    pub fn training(
        set: Arc<dyn Dataset>,
        recipe: &Recipe,
        start: Position,
        end_epoch: u32,
    ) -> Result<Self, TrainError> {
        let (load, seed, alpha) = (LoadOptions::of(recipe), recipe.train.seed, recipe.train.mixup_alpha);
        let sampler = training_sampler(&*set, recipe)?;
        let options = load.loader(seed, start, end_epoch);
        let batch_size = recipe.train.batch_size as usize;
        let mixup = (alpha > 0.0).then_some(Mixup { seed, alpha, batch_size });
        Ok(Self { loader: Loader::new(set, sampler, options)?, label_offset: recipe.data.label_offset as i32, mixup })
    }

    /// Every sample of a set once, in order; the last batch is filled up with zeros.
    pub fn evaluation(
        set: Arc<dyn Dataset>,
        load: &LoadOptions,
        batch_size: usize,
        label_offset: i32,
    ) -> Result<Self, DataError> {
        let sampler = Sampler::new(set.len(), SamplerOptions::eval(batch_size))?;
        let options = load.loader(0, Position::default(), 1);
        Ok(Self { loader: Loader::new(set, sampler, options)?, label_offset, mixup: None })
    }

    fn fed(&self, batch: bessemer_data::Batch<Pictures>, updates: u64) -> Batch {
        let bessemer_data::Batch { content: Pictures { images, mut labels }, real, epoch, index, skipped } = batch;
        labels.iter_mut().for_each(|label| *label += self.label_offset);
        let mut feeds = Feeds::from([("images", Array::U8(images)), ("labels", Array::I32(labels))]);
        if let Some(Mixup { seed, alpha, batch_size }) = &self.mixup {
            let Mix { weight, order } = Mix::draw(*seed, updates, *alpha, *batch_size);
            feeds.push("mixup_order", Array::I32(order));
            feeds.push("mixup_weight", Array::F32(vec![weight]));
        }
        Batch { feeds, samples: real, epoch, index, skipped }
    }
}

impl Batches for ImageBatches {
    fn next(&mut self, updates: u64) -> Option<Result<Batch, TrainError>> {
        let batch = self.loader.next_batch()?;
        Some(batch.map(|batch| self.fed(batch, updates)).map_err(TrainError::from))
    }

    fn recycle(&mut self, batch: Batch) {
        let mut pictures = Pictures::default();
        for feed in batch.feeds {
            match feed {
                ("images", Array::U8(images)) => pictures.images = images,
                ("labels", Array::I32(labels)) => pictures.labels = labels,
                _ => {}
            }
        }
        self.loader.recycle(pictures);
    }

    fn position(&self) -> Position {
        self.loader.position()
    }

    fn waited(&self) -> Duration {
        self.loader.stats().waited
    }

    fn skipped(&self) -> Vec<SkippedSample> {
        self.loader.skipped().cloned().collect()
    }
}
