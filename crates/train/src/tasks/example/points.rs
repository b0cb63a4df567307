//! Points of a plane, drawn from a seed; their class is 1 in two opposite quadrants.

use super::graph::{LABELS, POINTS};
use crate::error::TrainError;
use crate::tasks::{Array, Batch, Batches, Feeds};
use bessemer_data::{BatchRange, Position, Purpose, StageTimes};
use std::time::Duration;

/// Batches of an epoch.
pub(super) const BATCHES: usize = 8;

pub(super) struct Points {
    pub seed: u64,
    pub batch_size: usize,
    /// Least distance from the axes.
    pub margin: f64,
    pub position: Position,
    pub range: BatchRange,
}

pub(super) fn class_of(point: [f32; 2]) -> i32 {
    i32::from(point[0] * point[1] > 0.0)
}

impl Points {
    fn batch(&self, Position { epoch, batch: index }: Position) -> Batch {
        let mut points = Vec::new();
        let mut labels = Vec::new();
        for sample in 0..self.batch_size {
            let mut rng = Purpose::Augment.stream(self.seed, epoch, (index * self.batch_size + sample) as u64);
            let mut side = || rng.uniform(self.margin, 1.0) as f32 * if rng.chance(0.5) { 1.0 } else { -1.0 };
            let point = [side(), side()];
            points.extend(point);
            labels.push(class_of(point));
        }
        let feeds = Feeds::from([(POINTS, Array::F32(points)), (LABELS, Array::I32(labels))]);
        Batch { feeds, samples: self.batch_size, epoch, index, skipped: Vec::new() }
    }
}

impl Batches for Points {
    fn next(&mut self) -> Option<Result<Batch, TrainError>> {
        if self.position.batch == BATCHES {
            self.position = Position { epoch: self.position.epoch + 1, batch: 0 };
            return None;
        }
        let BatchRange { end_epoch, share, .. } = self.range;
        let own = self.position.later(share.index, BATCHES);
        if own.epoch >= end_epoch {
            return None;
        }
        let last = self.position.later(share.count - 1, BATCHES);
        self.position = Position { batch: last.batch + 1, ..last };
        Some(Ok(self.batch(own)))
    }

    fn recycle(&mut self, _: Feeds) {}

    fn position(&self) -> Position {
        self.position
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }

    fn stages(&self) -> StageTimes {
        StageTimes::default()
    }
}
