//! Steps for measuring and explaining: a model of the zoo, a mode and a batch size, fed at random.

use crate::tasks::registry;
use bessemer_ir::ops::source::Input;
use bessemer_ir::{DType, Graph, philox};
use bessemer_models::{Model, ModelError};
pub use bessemer_nn::Over;
use bessemer_nn::{Clip, ClipForm, ClipOf, LossScale, Optimizer, ParamSpec, PixelScale, Ranks, Schedule, TrainConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::str::FromStr;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Forward pass, backward pass and update.
    Train,
    /// Forward pass alone.
    Infer,
}

impl Mode {
    /// Both of them.
    pub const ALL: [Mode; 2] = [Mode::Train, Mode::Infer];

    /// `train` or `infer`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Train => "train",
            Mode::Infer => "infer",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        match text {
            "train" => Ok(Mode::Train),
            "infer" => Ok(Mode::Infer),
            other => Err(format!("`{other}` is no mode; there are train and infer")),
        }
    }
}

/// What the inference of a detector ends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DetectorOutputs {
    /// Boxes with classes and scores, after suppression.
    #[default]
    Detections,
    /// Logits and deltas of all levels: what exported networks compute.
    Network,
}

impl DetectorOutputs {
    /// All of them.
    pub const ALL: [DetectorOutputs; 2] = [DetectorOutputs::Detections, DetectorOutputs::Network];

    /// `detections` or `network`.
    pub fn name(self) -> &'static str {
        match self {
            DetectorOutputs::Detections => "detections",
            DetectorOutputs::Network => "network",
        }
    }
}

impl FromStr for DetectorOutputs {
    type Err = String;

    fn from_str(text: &str) -> Result<DetectorOutputs, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == text);
        known.ok_or_else(|| format!("`{text}` is nothing that a detector gives; there are detections and network"))
    }
}

/// Settings of a step beside its batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSettings {
    /// Tokens of a sequence, and tokens of it that are predicted.
    pub sequence_length: usize,
    /// Masked positions of a sequence that are predicted.
    pub predictions: usize,
    /// Dropout of everything that has one, in training.
    pub dropout: f64,
    /// Whether gradients of a model of text are clipped to a global norm of 1.
    pub clip: bool,
    /// Micro-batches of a training step, of all ranks together.
    pub accumulation: u64,
    /// Ranks that share a training step; `accumulation` is a multiple of it.
    pub ranks: usize,
    /// Whose samples batch norms of a training step take mean and variance of.
    pub norms: Over,
    /// Whose weights the losses of a training step are divided by.
    pub means: Over,
    /// Whether answers to questions are found by one layer, and all layers trained at one rate, as other frameworks have it.
    pub plain_spans: bool,
    /// What the inference of a detector ends with.
    pub outputs: DetectorOutputs,
}

impl Default for StepSettings {
    fn default() -> Self {
        Self {
            sequence_length: 128,
            predictions: 20,
            dropout: 0.1,
            clip: true,
            accumulation: 1,
            ranks: 1,
            norms: Over::Rank,
            means: Over::Rank,
            plain_spans: false,
            outputs: DetectorOutputs::default(),
        }
    }
}

/// A setting by name, for events and tables.
pub type NamedSetting = (&'static str, Value);

/// Global norm of the gradients of a model of text that are clipped.
pub const CLIP_NORM: f64 = 1.0;

/// A step to be built.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Whether the step trains or infers.
    pub mode: Mode,
    /// Samples of a micro-batch.
    pub batch_size: usize,
    /// Element type of the operands of products.
    pub precision: DType,
    /// Sizes and options.
    pub settings: StepSettings,
}

/// What a feed is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// At random: whole numbers below this, or numbers of 0 to 1.
    Below(usize),
    /// Zeros.
    Zero,
    /// Ones.
    One,
    /// At random: whole numbers from the first to the second.
    Between(i32, i32),
    /// Pixels of pictures `[H, W, 3]` of this height and width: blots in a grid, and noise, so that features of all scales see
    /// something.
    Blots([usize; 2]),
    /// At random: numbers that are heights and widths of images `[2]` that fill at least three quarters of each side of a canvas.
    Sizes {
        /// Height and width in pixels.
        canvas: [usize; 2],
    },
    /// Numbers that are boxes `[x1, y1, x2, y2]` within a canvas.
    Boxes {
        /// Height and width in pixels.
        canvas: [usize; 2],
        /// The least width of a box in pixels; the largest is half of the canvas.
        least: f32,
    },
}

/// Blots of a picture, down and across.
const BLOTS: usize = 8;

/// A model's step before compilation.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The step.
    pub graph: Graph,
    /// The parameters, in the order of the graph's inputs.
    pub specs: Vec<ParamSpec>,
    /// For all feeds of whole numbers that are not named in `fills`.
    fill: Fill,
    fills: Vec<(&'static str, Fill)>,
}

impl Workload {
    /// A step whose feeds are filled with `fill`, but for those that are named in `fills`.
    pub fn new(model: Model, fill: Fill, fills: Vec<(&'static str, Fill)>) -> Self {
        let Model { graph, specs, .. } = model;
        Self { graph, specs, fill, fills }
    }

    /// Random content of a feed, the same for the same seed.
    pub fn content(&self, feed: &Input, seed: u64) -> Vec<u8> {
        let count = feed.ty.shape.elements();
        let between = |low: i32, high: i32, share: f32| low + (share * (high - low + 1) as f32) as i32;
        let sample = |i: usize| philox::uniform(seed, 0, 0, i as u64);
        let fill = self.fills.iter().find(|(name, _)| *name == feed.name).map_or(self.fill, |known| known.1);
        let real = |i: usize| match fill {
            Fill::Below(_) | Fill::Blots(_) => sample(i),
            Fill::Zero => 0.0,
            Fill::One => 1.0,
            Fill::Between(low, high) => between(low, high, sample(i)) as f32,
            Fill::Sizes { canvas } => between(canvas[i % 2] as i32 * 3 / 4, canvas[i % 2] as i32, sample(i)) as f32,
            Fill::Boxes { canvas: [height, width], least } => {
                let place = |corner: usize| sample(i - i % 4 + corner);
                let (axis, half) = (i % 4 % 2, [width, height].map(|side| side as f32 / 2.0));
                let side = least + (half[0].min(half[1]) - least).max(0.0) * place(2);
                // A little lower than wide.
                let extent = [side, side * (0.8 + 0.2 * place(3))][axis];
                half[axis] * place(axis) + if i % 4 < 2 { 0.0 } else { extent }
            }
        };
        let whole = |i: usize| match fill {
            Fill::Below(bound) => (sample(i) * bound as f32) as i32,
            _ => real(i) as i32,
        };
        let pixel = |i: usize| match fill {
            Fill::Blots([height, width]) => {
                let (row, column) = (i / 3 / width, i / 3 % width);
                let (across, down) = (column * BLOTS / width, row % height * BLOTS / height);
                let blot = ((row / height * BLOTS + down) * BLOTS + across) * 3 + i % 3;
                0.75 * philox::uniform(seed, 0, 1, blot as u64) + 0.25 * sample(i)
            }
            _ => sample(i),
        };
        match feed.ty.dtype {
            DType::U8 => (0..count).map(|i| (pixel(i) * 256.0) as u8).collect(),
            DType::I32 => (0..count).flat_map(|i| whole(i).to_ne_bytes()).collect(),
            _ => (0..count).flat_map(|i| real(i).to_ne_bytes()).collect(),
        }
    }
}

/// A step with the usual settings.
///
/// # Errors
/// As [`Work::build`].
pub fn workload(model: &str, mode: Mode, batch_size: usize, precision: DType) -> Result<Workload, ModelError> {
    Work { model, mode, batch_size, precision, settings: StepSettings::default() }.build()
}

impl Work<'_> {
    /// The step of a model of the zoo at its default size; in `f16`, with the loss scaled.
    ///
    /// # Errors
    /// [`ModelError`] for an unknown model or a size that is not possible.
    pub fn build(&self) -> Result<Workload, ModelError> {
        let model = registry::find(self.model)?;
        model.family().workload(&Work { model: model.name(), ..*self })
    }

    /// How the step trains by an optimizer at a constant learning rate.
    pub(crate) fn train_config(&self, optimizer: Optimizer, rate: f64) -> TrainConfig {
        TrainConfig {
            loss_scale: (self.precision == DType::F16).then_some(LossScale { initial: 128.0, growth_steps: Some(100) }),
            accumulation: self.settings.accumulation,
            ranks: Ranks {
                count: self.settings.ranks,
                norms: self.settings.norms,
                means: self.settings.means,
                ..Ranks::default()
            },
            ..TrainConfig::new(optimizer, Schedule::constant(rate))
        }
    }

    /// How gradients are clipped, where they are.
    pub(crate) fn clip(&self) -> Option<Clip> {
        self.settings.clip.then_some(Clip { limit: CLIP_NORM, form: ClipForm::TensorFlow, of: ClipOf::Step })
    }
}

/// The constants by which pixels of 0 to 255 are normalised, by the names of `peers/PROTOCOL.md`.
pub(crate) fn in_bytes(scale: &PixelScale) -> Value {
    let bytes = |numbers: [f64; 3]| numbers.map(|number| number * 255.0);
    json!({ "mean": bytes(scale.mean), "std": bytes(scale.std) })
}

/// What other frameworks must know of a step to do the same work, by the names of `peers/PROTOCOL.md`.
#[derive(Clone, Debug)]
pub struct ComparedWork {
    /// Sizes of the model and its input, an object.
    pub sizes: Value,
    /// Constants by which pixels are normalised.
    pub normalise: Option<Value>,
    /// Optimizer, schedule and loss scaling of the step.
    pub training: TrainConfig,
    /// Share of the label's probability that is spread over all classes.
    pub label_smoothing: f64,
    /// Dropout rate in `[0, 1)`.
    pub dropout: f64,
    /// Numbers of the loss of a detector, an object.
    pub loss: Option<Value>,
    /// From the outputs of a detector's network to detections, an object; `None` where inference ends with the outputs.
    pub detection: Option<Value>,
}

impl ComparedWork {
    /// Without dropout and smoothed labels, on an input that is not normalised.
    pub fn new(sizes: Value, training: TrainConfig) -> Self {
        Self { sizes, normalise: None, training, label_smoothing: 0.0, dropout: 0.0, loss: None, detection: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::Role;

    #[test]
    fn detectors_see_blots_and_objects_within_their_images() {
        let workload = workload("efficientdet-tiny", Mode::Train, 64, DType::F32).unwrap();
        let content = |name: &str| {
            let feeds = workload.graph.inputs().map(|(_, input)| input).filter(|input| input.role == Role::Feed);
            let feed = feeds.into_iter().find(|feed| feed.name == name).unwrap();
            workload.content(feed, 3)
        };
        let reals = |name: &str| -> Vec<f32> {
            content(name).chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap())).collect()
        };
        let sizes = reals("sizes");
        assert!(sizes.iter().all(|size| (96.0..=128.0).contains(size) && size.fract() == 0.0), "{sizes:?}");
        assert!(sizes.contains(&128.0) && sizes.contains(&96.0), "{sizes:?}");
        for corners in reals("boxes").chunks_exact(4) {
            let [x1, y1, x2, y2] = corners else { unreachable!("four numbers") };
            assert!(
                *x1 >= 0.0 && *y1 >= 0.0 && x1 + 4.0 < *x2 && y1 + 4.0 < *y2 && *x2 <= 96.0 && *y2 <= 96.0,
                "{corners:?}"
            );
        }
        let pixels = content("images");
        let mean = |index: usize, row: usize, column: usize| {
            let place = |y: usize, x: usize| ((index * 128 + 16 * row + y) * 128 + 16 * column + x) * 3;
            let sum: f64 = (0..256).map(|k| f64::from(pixels[place(k / 16, k % 16)])).sum();
            sum / 256.0
        };
        let blots: Vec<f64> = (0..128).map(|k| mean(k / 64, k / 8 % 8, k % 8)).collect();
        let average = blots.iter().sum::<f64>() / 128.0;
        let deviation = (blots.iter().map(|blot| (blot - average).powi(2)).sum::<f64>() / 128.0).sqrt();
        // Of a uniform number of 0 to 192; blots of noise alone would differ by 5.
        assert!((average - 128.0).abs() < 20.0 && (deviation - 55.4).abs() < 10.0, "{average} and {deviation}");
        let counts: Vec<i32> =
            content("count").chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect();
        assert!(counts.iter().all(|count| (0..=15).contains(count)) && counts.iter().any(|count| *count != counts[0]));
    }
}
