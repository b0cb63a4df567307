//! The timed loop.

use crate::Result;
use std::time::Instant;

/// The ends of the warm-up and of each timed step.
pub(crate) struct Timing(Vec<Instant>);

impl Timing {
    /// Calls `step` with the numbers of `batches` in turn, `warmup` + `steps` times.
    pub(crate) fn of(
        batches: usize,
        warmup: usize,
        steps: usize,
        mut step: impl FnMut(usize) -> Result<()>,
    ) -> Result<Self> {
        let mut ends = vec![Instant::now()];
        for index in 0..warmup + steps {
            step(index % batches)?;
            if index < warmup {
                ends[0] = Instant::now();
            } else {
                ends.push(Instant::now());
            }
        }
        Ok(Self(ends))
    }

    pub(crate) fn step_ms(&self) -> Vec<f64> {
        self.0.windows(2).map(|ends| 1e3 * (ends[1] - ends[0]).as_secs_f64()).collect()
    }

    pub(crate) fn window_s(&self) -> f64 {
        (self.0[self.0.len() - 1] - self.0[0]).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_take_turns_and_the_warm_up_is_not_timed() {
        let mut called = Vec::new();
        let timing = Timing::of(2, 1, 3, |batch| {
            called.push(batch);
            std::thread::sleep(std::time::Duration::from_millis(if called.len() == 1 { 200 } else { 1 }));
            Ok(())
        });
        let timing = timing.unwrap();
        assert_eq!(called, [0, 1, 0, 1]);
        assert_eq!(timing.step_ms().len(), 3);
        assert!(
            timing.window_s() < 0.2 && (timing.step_ms().iter().sum::<f64>() / 1e3 - timing.window_s()).abs() < 1e-6
        );
    }
}
