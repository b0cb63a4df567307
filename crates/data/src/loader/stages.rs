//! Where the time of loading goes.

use serde::Serialize;
use std::time::{Duration, Instant};

/// A part of making a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading a file or record.
    Read,
    /// Decoding an image.
    Decode,
    /// Cropping, mirroring, resizing and padding an image.
    Augment,
    /// Placing boxes and masks as their image is placed.
    Objects,
    /// All else before the sample is there, such as cutting and masking text, or drawing.
    Make,
    /// Copying the sample into the arrays of a batch.
    Copy,
}

impl Stage {
    /// All stages, in the order in which a sample passes them.
    pub const ALL: [Stage; 6] = [Stage::Read, Stage::Decode, Stage::Augment, Stage::Objects, Stage::Make, Stage::Copy];

    /// Name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Read => "read",
            Stage::Decode => "decode",
            Stage::Augment => "augment",
            Stage::Objects => "objects",
            Stage::Make => "make",
            Stage::Copy => "copy",
        }
    }
}

/// Time in each stage, of all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTimes([Duration; Stage::ALL.len()]);

impl StageTimes {
    /// Time in a stage.
    pub fn of(&self, stage: Stage) -> Duration {
        self.0[stage as usize]
    }

    /// Time in all stages.
    pub fn sum(&self) -> Duration {
        self.0.iter().sum()
    }

    pub(crate) fn add(&mut self, stage: Stage, time: Duration) {
        self.0[stage as usize] += time;
    }

    pub(crate) fn add_all(&mut self, other: &StageTimes) {
        for stage in Stage::ALL {
            self.add(stage, other.of(stage));
        }
    }
}

impl std::ops::Sub for StageTimes {
    type Output = StageTimes;

    /// What came between two readings, of which `other` is the earlier one.
    fn sub(self, other: StageTimes) -> StageTimes {
        StageTimes(std::array::from_fn(|stage| self.0[stage].saturating_sub(other.0[stage])))
    }
}

/// The stages of the sample that a worker makes.
#[derive(Debug)]
pub(crate) struct StageClock {
    times: StageTimes,
    last: Instant,
}

impl Default for StageClock {
    fn default() -> Self {
        StageClock { times: StageTimes::default(), last: Instant::now() }
    }
}

impl StageClock {
    /// The first stage begins.
    pub(crate) fn start(&mut self) {
        self.last = Instant::now();
    }

    /// A stage ends, and the next one begins.
    pub(crate) fn end(&mut self, stage: Stage) {
        let now = Instant::now();
        self.times.add(stage, now - self.last);
        self.last = now;
    }

    /// What was measured since this was last asked.
    pub(crate) fn take(&mut self) -> StageTimes {
        std::mem::take(&mut self.times)
    }
}
