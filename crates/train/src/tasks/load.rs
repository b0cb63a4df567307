use crate::recipe::Recipe;
use bessemer_comm::launch::own_processors;
use bessemer_data::{BatchRange, LoaderOptions, OnBadSample};

/// How batches are made; nothing here changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads that prepare samples; 0 for half the processors.
    pub workers: usize,
    /// Batches that are prepared ahead of the one in use.
    pub prefetch: usize,
    /// What happens when a sample cannot be read.
    pub on_bad_sample: OnBadSample,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { workers: 0, prefetch: 2, on_bad_sample: OnBadSample::Stop }
    }
}

impl LoadOptions {
    /// The settings of the recipe's `loader` section.
    pub fn of(recipe: &Recipe) -> Self {
        let loader = &recipe.loader;
        Self {
            workers: loader.workers as usize,
            prefetch: loader.prefetch as usize,
            on_bad_sample: loader.on_bad_sample,
        }
    }

    /// Of a loader of some batches.
    pub(crate) fn loader(&self, seed: u64, range: BatchRange) -> LoaderOptions {
        let Self { prefetch, on_bad_sample, .. } = *self;
        LoaderOptions { workers: self.threads(), prefetch, seed, on_bad_sample, range }
    }

    fn threads(&self) -> usize {
        match self.workers {
            0 => own_processors().div_ceil(2).min(16),
            workers => workers,
        }
    }
}
