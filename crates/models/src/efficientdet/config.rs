//! Sizes and variants of EfficientDets.

use crate::ModelError;
use crate::efficientnet::Scaling;
use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::detection::anchors::{AnchorLevel, AnchorPlacement, Anchors};
use bessemer_nn::{BatchNormOptions, Init, Padding, PixelScale};
use serde::{Deserialize, Serialize};

/// The finest feature map that detects: its stride is `2^FIRST_LEVEL` pixels.
pub(super) const FIRST_LEVEL: usize = 3;
/// Feature maps that detect, each with twice the stride of the one before.
pub(super) const LEVELS: usize = 5;
/// Sides of a canvas are multiples of the coarsest stride.
pub const CANVAS_MULTIPLE: usize = 1 << (FIRST_LEVEL + LEVELS - 1);

/// How a node of the pyramid sums its inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeWeights {
    /// Weights `relu(w_i) / (sum of relu(w_j) + 1e-4)`: fast normalised fusion (equation 3.3 of the paper).
    #[default]
    Positive,
    /// Weights `w_i / (sum of w_j + 1e-4)`: NVIDIA's implementation.
    Signed,
    /// All weights 1: D6 and D7.
    One,
}

/// Sizes of a network (table 1 of the paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Height and width of the canvas in pixels.
    pub canvas: usize,
    /// Factors of the backbone.
    pub backbone: Scaling,
    /// Channels of the pyramid and the heads.
    pub width: usize,
    /// Times that features go down and up the pyramid.
    pub cells: usize,
    /// Layers of a head before its prediction.
    pub head_depth: usize,
}

impl Size {
    /// D0 to D7.
    pub const D: [Size; 8] = [
        size(512, 0, 64, 3, 3),
        size(640, 1, 88, 4, 3),
        size(768, 2, 112, 5, 3),
        size(896, 3, 160, 6, 4),
        size(1024, 4, 224, 7, 4),
        size(1280, 5, 288, 7, 4),
        size(1280, 6, 384, 8, 5),
        size(1536, 6, 384, 8, 5),
    ];
}

const fn size(canvas: usize, backbone: usize, width: usize, cells: usize, head_depth: usize) -> Size {
    Size { canvas, backbone: Scaling::B[backbone], width, cells, head_depth }
}

/// Reference boxes at each position of a feature map.
#[derive(Clone, Debug, PartialEq)]
pub struct AnchorOptions {
    /// Side of the smallest box, in strides of its feature map.
    pub scale: f64,
    /// Boxes of one shape at each position; each is larger than the one before by the same factor, and twice the first would
    /// follow the last.
    pub octaves: usize,
    /// Factors of width and height, `[x, y]`.
    pub aspects: Vec<[f64; 2]>,
}

impl Default for AnchorOptions {
    fn default() -> Self {
        AnchorOptions { scale: 4.0, octaves: 3, aspects: vec![[1.0, 1.0], [1.4, 0.7], [0.7, 1.4]] }
    }
}

impl AnchorOptions {
    /// Boxes at each position.
    pub fn count(&self) -> usize {
        self.octaves * self.aspects.len()
    }

    /// The boxes of a canvas `[H, W]`: by level, row, column, octave and aspect.
    pub(super) fn on(&self, canvas: [usize; 2]) -> Anchors {
        let level = |level: usize| {
            let stride = (1usize << (FIRST_LEVEL + level)) as f64;
            let shapes = (0..self.octaves).flat_map(|octave| {
                let side = self.scale * stride * (octave as f64 / self.octaves as f64).exp2();
                self.aspects.iter().map(move |[x, y]| [side * x / 2.0, side * y / 2.0])
            });
            AnchorLevel {
                grid: grid(canvas, level),
                stride: [Scalar(stride); 2],
                boxes: shapes.map(|[x, y]| [-x, -y, x, y].map(Scalar)).collect(),
            }
        };
        Anchors { levels: (0..LEVELS).map(level).collect(), placement: AnchorPlacement::Centre }
    }
}

/// Rows and columns of a level of a canvas `[H, W]`.
pub(super) fn grid(canvas: [usize; 2], level: usize) -> [usize; 2] {
    canvas.map(|side| side >> (FIRST_LEVEL + level))
}

/// How the candidates of a class thin each other out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuppressionKind {
    /// Drops boxes that overlap a better one.
    #[default]
    Hard,
    /// Lowers the scores of boxes the more they overlap a better one (Bodla et al. 2017, arXiv:1704.04503), with sides counted
    /// in pixels, `x2 - x1 + 1`: NVIDIA's evaluation.
    Soft,
}

/// From the outputs of the network to detections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DetectionOptions {
    /// Pairs of box and class of the largest logits that are looked at, for each image.
    pub candidates: usize,
    /// How they thin each other out.
    pub suppression: SuppressionKind,
    /// `Hard`: the largest IoU of two detections of a class. `Soft`: scores are multiplied by `exp(-IoU^2 / this)`.
    pub overlap: f64,
    /// Scores of detections are above it; for `Soft`, those that suppression has lowered.
    pub score_floor: f64,
    /// Detections of an image, at most.
    pub detections: usize,
    /// Whether boxes are cut off at the borders of the image.
    pub clip: bool,
}

impl Default for DetectionOptions {
    /// Those of the `effdet` package.
    fn default() -> Self {
        DetectionOptions {
            candidates: 5000,
            suppression: SuppressionKind::Hard,
            overlap: 0.5,
            score_floor: 0.0,
            detections: 100,
            clip: true,
        }
    }
}

impl DetectionOptions {
    /// Those of NVIDIA's evaluation.
    pub fn soft() -> Self {
        DetectionOptions {
            suppression: SuppressionKind::Soft,
            score_floor: 0.001,
            clip: false,
            ..DetectionOptions::default()
        }
    }
}

/// The loss of a training step: `focal / N + box_weight * huber / (4 N) + l2 * sum of w^2 / 2` with `N` one more than the
/// matched boxes of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossOptions {
    /// Weight of the class losses of matched boxes; that of the others is one minus it.
    pub alpha: f64,
    /// Exponent of the focal loss.
    pub gamma: f64,
    /// Error of a coordinate from which its loss grows in a straight line.
    pub delta: f64,
    /// Weight of the loss of boxes.
    pub box_weight: f64,
    /// Weight of half the squares of all kernels.
    pub l2: f64,
}

impl Default for LossOptions {
    fn default() -> Self {
        LossOptions { alpha: 0.25, gamma: 1.5, delta: 0.1, box_weight: 50.0, l2: 4e-5 }
    }
}

/// Variants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectorOptions {
    /// Height and width of the canvas in pixels, multiples of [`CANVAS_MULTIPLE`].
    pub canvas: [usize; 2],
    /// Factors of the backbone.
    pub backbone: Scaling,
    /// Channels of the pyramid and the heads.
    pub width: usize,
    /// Times that features go down and up the pyramid.
    pub cells: usize,
    /// Layers of a head before its prediction.
    pub head_depth: usize,
    /// Classes.
    pub num_classes: usize,
    /// Objects of an image, at most.
    pub max_objects: usize,
    /// How pixels are normalised.
    pub scale: PixelScale,
    /// Whether the backbone normalises once more what is normalised already, which NVIDIA's weights need.
    pub normalise_twice: bool,
    /// Padding of the backbone's strided windows.
    pub padding: Padding,
    /// How nodes of the pyramid sum their inputs.
    pub edges: EdgeWeights,
    /// Epsilon and momentum of all norms.
    pub norm: BatchNormOptions,
    /// Share of the samples for which training leaves out the last block of the backbone.
    pub drop_path: f64,
    /// Parts of the backbone that are not trained: 0 for none, 1 for the stem, 2 for the stem and the first stage, and so on.
    pub freeze_at: usize,
    /// Seed of random numbers of the network.
    pub seed: u64,
    /// Reference boxes.
    pub anchors: AnchorOptions,
}

impl DetectorOptions {
    /// A published size with COCO's 90 classes in the form of the `effdet` package.
    pub fn new(size: Size) -> Self {
        DetectorOptions {
            canvas: [size.canvas; 2],
            backbone: size.backbone,
            width: size.width,
            cells: size.cells,
            head_depth: size.head_depth,
            num_classes: 90,
            max_objects: 100,
            scale: PixelScale::IMAGENET,
            normalise_twice: false,
            padding: Padding::Same,
            edges: if size.width < 384 { EdgeWeights::Positive } else { EdgeWeights::One },
            norm: BatchNormOptions { eps: 1e-3, momentum: 0.01, gamma: Init::Ones, frozen: false },
            drop_path: 0.0,
            freeze_at: 0,
            seed: 0,
            anchors: AnchorOptions::default(),
        }
    }

    /// Reference boxes of the canvas.
    pub fn num_anchors(&self) -> usize {
        self.anchors.on(self.canvas).count()
    }

    pub(super) fn check(&self, batch: usize) -> Result<(), ModelError> {
        let error = |setting, value: usize, allowed: &'static str| {
            Err(ModelError::Setting { setting, value: value.to_string(), allowed: allowed.into() })
        };
        for (setting, value) in [
            ("batch_size", batch),
            ("num_classes", self.num_classes),
            ("width", self.width),
            ("cells", self.cells),
            ("head_depth", self.head_depth),
            ("max_objects", self.max_objects),
            ("the number of anchors of a position", self.anchors.count()),
        ] {
            if value == 0 {
                return error(setting, value, "it must be at least 1");
            }
        }
        for (setting, side) in [("canvas height", self.canvas[0]), ("canvas width", self.canvas[1])] {
            if side == 0 || !side.is_multiple_of(CANVAS_MULTIPLE) {
                return error(setting, side, "it must be a multiple of 128, the coarsest stride");
            }
        }
        if self.freeze_at > crate::efficientnet::PARTS {
            return error("freeze_at", self.freeze_at, "it must be at most 8, the stem and seven stages");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_ordered_by_level_position_octave_and_aspect() {
        let options = DetectorOptions::new(Size::D[0]);
        assert_eq!(options.num_anchors(), 49_104);
        let boxes: Vec<[f64; 4]> = options.anchors.on(options.canvas).boxes().take(10).collect();
        assert_eq!(boxes[0], [4.0 - 16.0, 4.0 - 16.0, 4.0 + 16.0, 4.0 + 16.0]);
        let [x1, y1, x2, y2] = boxes[1];
        assert!((x2 - x1 - 32.0 * 1.4).abs() < 1e-12 && (y2 - y1 - 32.0 * 0.7).abs() < 1e-12);
        assert!((boxes[3][2] - boxes[3][0] - 32.0 * 2f64.cbrt()).abs() < 1e-12);
        assert_eq!(boxes[9], [12.0 - 16.0, 4.0 - 16.0, 12.0 + 16.0, 4.0 + 16.0]);
    }

    #[test]
    fn a_canvas_must_fit_the_pyramid() {
        let options = DetectorOptions { canvas: [512, 500], ..DetectorOptions::new(Size::D[0]) };
        let error = options.check(1).unwrap_err().to_string();
        assert_eq!(error, "canvas width is 500; it must be a multiple of 128, the coarsest stride");
    }
}
