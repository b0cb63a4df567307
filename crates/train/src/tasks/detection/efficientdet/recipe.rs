//! What recipes of EfficientDets say beside those of all detectors.

use crate::recipe::{Problem, Range, Recipe, family_recipe, require, section};
use crate::tasks::detection::recipe::{EvalFields, ImageFields, PIXELS};
use bessemer_models::efficientdet::{CANVAS_MULTIPLE, EdgeWeights, SuppressionKind};
use bessemer_nn::Padding;

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        pub num_classes: u64 => Range::closed(1.0, 10_000.0);
        /// How nodes of the feature pyramid sum their inputs.
        pub edge_weights: EdgeWeights = EdgeWeights::Positive;
        /// Padding of the backbone's strided windows; torchvision's EfficientNets need `symmetric`.
        pub padding: Padding = Padding::Same;
        /// Normalise once more what is normalised already, which NVIDIA's weights need.
        pub normalise_twice: bool = false;
        /// Added to the variance in every norm.
        pub bn_eps: f64 = 1e-3 => Range::above(0.0, 1.0);
        /// Weight of the newest batch in running statistics.
        pub bn_momentum: f64 = 0.01 => Range::above(0.0, 1.0);
        /// Share of the samples for which training leaves out the last block of the backbone.
        pub drop_path: f64 = 0.0 => Range::below(0.0, 1.0);
        /// Parts of the backbone that are not trained: 0 for none, 1 for the stem, 2 for the stem and the first stage.
        pub freeze_at: u64 = 0 => Range::closed(0.0, 8.0);
        /// Draw the tensors that depend on the number of classes at random where given weights have another number.
        pub new_heads: bool = false;
    }
}

section! {
    /// In `[data]`.
    pub(crate) struct CanvasFields {
        /// Height and width of the canvas, pixels; a multiple of 128.
        pub image_size: u64 = 512 => Range::closed(128.0, PIXELS);
    }
}

section! {
    /// In `[loss]`.
    pub(crate) struct LossFields {
        /// Weight of the class losses of matched boxes; that of the others is one minus it.
        pub alpha: f64 = 0.25 => Range::between(0.0, 1.0);
        /// Exponent of the focal loss.
        pub gamma: f64 = 1.5 => Range::closed(0.0, 10.0);
        /// Error of a coordinate from which its loss grows in a straight line.
        pub delta: f64 = 0.1 => Range::above(0.0, 100.0);
        /// Weight of the loss of boxes.
        pub box_weight: f64 = 50.0 => Range::closed(0.0, 1e4);
        /// Weight of half the squares of all kernels: weight decay as a part of the loss.
        pub l2: f64 = 4e-5 => Range::closed(0.0, 1.0);
    }
}

section! {
    /// In `[detection]`, from the outputs of the network to detections.
    pub(crate) struct DetectionFields {
        /// Pairs of box and class of the largest logits that are looked at, for each image.
        pub candidates: u64 = 5000 => Range::closed(1.0, 100_000.0), free;
        /// How they thin each other out.
        pub suppression: SuppressionKind = SuppressionKind::Hard, free;
        /// `hard`: the largest IoU of two detections of a class. `soft`: scores are multiplied by `exp(-IoU^2 / overlap)`.
        pub overlap: f64 = 0.5 => Range::above(0.0, 1.0), free;
        /// Scores of detections are above it; with `soft`, those that suppression has lowered.
        pub score_floor: f64 = 0.0 => Range::below(0.0, 1.0), free;
        /// Detections of an image, at most.
        pub max_detections: u64 = 100 => Range::closed(1.0, 1000.0), free;
        /// Cut boxes off at the borders of the image.
        pub clip: bool = true, free;
        /// Side of the smallest reference box, in strides of its feature map.
        pub anchor_scale: f64 = 4.0 => Range::above(0.0, 100.0);
    }
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct DetectorRecipe {
        "model" => pub model: ModelFields,
        "data" => pub canvas: CanvasFields,
        "data" => pub images: ImageFields,
        "loss" => pub loss: LossFields,
        "detection" => pub detection: DetectionFields,
        "eval" => pub evaluation: EvalFields,
    }
    check check;
}

fn check(own: &DetectorRecipe, _: &Recipe) -> Result<(), Problem> {
    let size = own.canvas.image_size;
    require(size.is_multiple_of(CANVAS_MULTIPLE as u64), "data.image_size", || {
        format!("{size} is no multiple of {CANVAS_MULTIPLE}, the coarsest stride")
    })?;
    own.images.check()
}
