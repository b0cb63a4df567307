use crate::{DataError, Purpose};

/// Settings of a [`Sampler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerOptions {
    /// Samples of a batch.
    pub batch_size: usize,
    /// A new order for each epoch, from the seed; otherwise the order of the data set.
    pub shuffle: bool,
    /// Leave out the samples that do not fill a last batch.
    pub drop_last: bool,
    /// Seed of the run.
    pub seed: u64,
}

impl SamplerOptions {
    /// Shuffled, whole batches only.
    pub fn train(batch_size: usize, seed: u64) -> Self {
        Self { batch_size, shuffle: true, drop_last: true, seed }
    }

    /// In order, every sample once.
    pub fn eval(batch_size: usize) -> Self {
        Self { batch_size, shuffle: false, drop_last: false, seed: 0 }
    }
}

/// A place in the sequence of batches: batch `batch` of epoch `epoch` is the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u32,
    /// Batch in the epoch, from 0.
    pub batch: usize,
}

/// The batches of one rank of several: of the sequence of all batches those whose number leaves the remainder `index` when divided by
/// `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Number of the rank, below `count`.
    pub index: usize,
    /// Number of ranks.
    pub count: usize,
}

impl Share {
    /// All batches.
    pub const ALL: Share = Share { index: 0, count: 1 };
}

/// A run of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchRange {
    /// Where the sequence of all batches begins, whichever of them are taken. Nothing before it is loaded.
    pub start: Position,
    /// The epoch before which it ends.
    pub end_epoch: u32,
    /// Which of them are taken.
    pub share: Share,
}

impl BatchRange {
    /// Every batch of the epochs 0..`end_epoch`.
    pub fn epochs(end_epoch: u32) -> BatchRange {
        BatchRange { start: Position::default(), end_epoch, share: Share::ALL }
    }

    /// Every batch from a position on.
    pub fn from(start: Position, end_epoch: u32) -> BatchRange {
        BatchRange { start, end_epoch, share: Share::ALL }
    }
}

impl Position {
    /// The position `batches` later, in epochs of `per_epoch` batches; never at the end of an epoch.
    pub fn later(self, batches: usize, per_epoch: usize) -> Position {
        let batch = self.batch + batches;
        Position { epoch: self.epoch.saturating_add((batch / per_epoch) as u32), batch: batch % per_epoch }
    }
}

/// Decides which sample goes where in each epoch.
#[derive(Debug, Clone)]
pub struct Sampler {
    samples: u32,
    options: SamplerOptions,
}

impl Sampler {
    /// For a data set of `samples` samples. It is an error if an epoch would have no batch.
    pub fn new(samples: usize, options: SamplerOptions) -> Result<Self, DataError> {
        let count = u32::try_from(samples).ok().filter(|&count| count > 0);
        let count = count.ok_or_else(|| DataError::option("number of samples", samples, "1 to 2^32 - 1"))?;
        if options.batch_size == 0 {
            return Err(DataError::option("batch size", 0, "at least 1"));
        }
        if options.drop_last && options.batch_size > samples {
            let expected = format!(
                "at most the {samples} samples of the data set, as incomplete batches are dropped: --set train.batch_size={samples}"
            );
            return Err(DataError::option("batch size", options.batch_size, expected));
        }
        Ok(Self { samples: count, options })
    }

    /// The settings it was made with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Samples of the data set.
    pub fn samples(&self) -> usize {
        self.samples as usize
    }

    /// Batches in an epoch.
    pub fn batches(&self) -> usize {
        let samples = self.samples();
        match self.options.drop_last {
            true => samples / self.options.batch_size,
            false => samples.div_ceil(self.options.batch_size),
        }
    }

    /// Indices of the samples in the order of `epoch`.
    pub fn order(&self, epoch: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.samples).collect();
        if self.options.shuffle {
            Purpose::Shuffle.stream(self.options.seed, epoch, 0).shuffle(&mut order);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_batches() {
        let train = Sampler::new(10, SamplerOptions::train(4, 0)).unwrap();
        let eval = Sampler::new(10, SamplerOptions::eval(4)).unwrap();
        assert_eq!((train.batches(), eval.batches()), (2, 3));
        assert_eq!(eval.order(3), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn shuffles_anew_each_epoch() {
        let sampler = Sampler::new(50, SamplerOptions::train(4, 9)).unwrap();
        assert_eq!(sampler.order(1), sampler.order(1));
        assert_ne!(sampler.order(1), sampler.order(2));
        assert_ne!(sampler.order(1), Sampler::new(50, SamplerOptions::train(4, 8)).unwrap().order(1));
        let mut order = sampler.order(1);
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn epochs_without_batches_are_errors() {
        assert!(Sampler::new(3, SamplerOptions::eval(4)).is_ok());
        let error = Sampler::new(3, SamplerOptions::train(4, 0)).unwrap_err();
        assert!(error.to_string().starts_with("batch size is 4, expected at most the 3 samples"));
        assert!(error.to_string().ends_with("--set train.batch_size=3"));
        assert!(Sampler::new(3, SamplerOptions::train(0, 0)).is_err());
        assert!(Sampler::new(0, SamplerOptions::eval(1)).is_err());
    }
}
