use crate::MetricError;

/// Mean of per-sample losses over batches of different sizes, accumulated in f64.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MeanLoss {
    sum: f64,
    samples: u64,
}

impl MeanLoss {
    /// A mean of no losses.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch by its mean loss and its number of samples.
    ///
    /// A loss that is not finite is an error and leaves the accumulator as it was.
    pub fn update(&mut self, batch_mean: f64, samples: usize) -> Result<(), MetricError> {
        if !batch_mean.is_finite() {
            return Err(MetricError::NonFiniteLoss { loss: batch_mean, samples });
        }
        self.sum += batch_mean * samples as f64;
        self.samples += samples as u64;
        Ok(())
    }

    /// Samples seen so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Mean over all samples, `None` before the first one.
    pub fn mean(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.sum / self.samples as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weighs_batches_by_their_size() {
        let mut loss = MeanLoss::new();
        assert_eq!(loss.mean(), None);
        loss.update(1.0, 3).unwrap();
        loss.update(5.0, 1).unwrap();
        assert_eq!(loss.mean(), Some(2.0));
        assert_eq!(loss.samples(), 4);
    }

    #[test]
    fn refuses_what_is_not_finite() {
        let mut loss = MeanLoss::new();
        loss.update(1.0, 2).unwrap();
        assert!(loss.update(f64::NAN, 2).is_err());
        assert!(loss.update(f64::INFINITY, 2).is_err());
        assert_eq!(loss.mean(), Some(1.0));
    }
}
