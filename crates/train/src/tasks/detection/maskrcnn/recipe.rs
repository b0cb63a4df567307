//! What recipes of Mask R-CNNs say beside those of all detectors.

use crate::recipe::{Problem, Range, Recipe, family_recipe, require, section};
use crate::tasks::detection::recipe::{EvalFields, ImageFields, PIXELS};
use bessemer_models::maskrcnn::{CANVAS_MULTIPLE, Flavour};
use bessemer_nn::Padding;

/// Most reference boxes, proposals or regions of an image.
const ROWS: f64 = 1e6;

section! {
    /// In `[model]`.
    pub(crate) struct ModelFields {
        /// Classes, the first of which is the background.
        pub num_classes: u64 => Range::closed(2.0, 10_000.0);
        /// Whose conventions the network follows where implementations differ.
        pub flavour: Flavour = Flavour::Torchvision;
        /// Padding of the backbone's strided windows; absent for that of `flavour`. NVIDIA's weights need `same`, those of
        /// torchvision and timm `symmetric`.
        pub padding: Option<Padding>;
        /// Whether no norm is trained: statistics, scales and shifts stay those of the first weights.
        pub frozen_norms: bool = true;
        /// Added to the variance in every norm.
        pub bn_eps: f64 = 1e-5 => Range::closed(0.0, 1.0);
        /// Weight of the newest batch in running statistics.
        pub bn_momentum: f64 = 0.1 => Range::above(0.0, 1.0);
        /// Parts of the backbone that are not trained: 0 for none, 1 for the stem, 2 for the stem and the first stage.
        pub freeze_at: u64 = 2 => Range::closed(0.0, 5.0);
        /// Draw the tensors that depend on the number of classes at random where given weights have another number.
        pub new_heads: bool = false;
    }
}

section! {
    /// In `[data]`.
    pub(crate) struct CanvasFields {
        /// Height and width of the canvas, pixels; multiples of 32.
        pub canvas: [u64; 2] = [800, 1344] => Range::closed(32.0, PIXELS);
        /// Height and width of the crop of each object's mask.
        pub crop: u64 = 112 => Range::closed(14.0, 512.0);
    }
}

section! {
    /// In `[eval]`.
    pub(crate) struct CanvasesFields {
        /// Heights and widths of the canvases of evaluation, such as one that is wide and one that is high: an image is put on the
        /// one on which it is the largest. None for that of training.
        pub canvases: Vec<[u64; 2]> = Vec::new() => Range::closed(32.0, PIXELS);
    }
}

section! {
    /// In `[proposals]`, of which there are two numbers: one in training and one in evaluation.
    pub(crate) struct ProposalFields {
        /// Reference boxes of the best scores that are looked at, for each level; 0 for all.
        pub candidates: [u64; 2] = [2000, 1000] => Range::closed(0.0, ROWS);
        /// Proposals of an image, at most.
        pub most: [u64; 2] = [2000, 1000] => Range::closed(1.0, 16_384.0);
        /// The largest IoU of two proposals of a level.
        pub overlap: f64 = 0.7 => Range::above(0.0, 1.0);
        /// Side of the reference boxes, in strides of their feature map.
        pub anchor_scale: f64 = 8.0 => Range::above(0.0, 100.0);
    }
}

section! {
    /// In `[samples]`: what enters the losses of training.
    pub(crate) struct SampleFields {
        /// IoU below which a reference box is background, and from which it is an object.
        pub anchor_overlaps: [f64; 2] = [0.3, 0.7] => Range::closed(0.0, 1.0);
        /// Reference boxes of an image, and objects among them at most.
        pub anchors: [u64; 2] = [256, 128] => Range::closed(1.0, ROWS);
        /// IoU that separates regions of objects from background.
        pub region_overlap: f64 = 0.5 => Range::above(0.0, 1.0);
        /// Regions of an image, and objects among them at most.
        pub regions: [u64; 2] = [512, 128] => Range::closed(1.0, 16_384.0);
    }
}

section! {
    /// In `[loss]`.
    pub(crate) struct LossFields {
        /// Weight of half the squares of all kernels: weight decay as a part of the loss.
        pub l2: f64 = 0.0 => Range::closed(0.0, 1.0);
    }
}

section! {
    /// In `[detection]`, from the outputs of the network to detections.
    pub(crate) struct DetectionFields {
        /// The largest IoU of two detections of a class.
        pub overlap: f64 = 0.5 => Range::above(0.0, 1.0), free;
        /// Scores of detections are above it.
        pub score_floor: f64 = 0.05 => Range::below(0.0, 1.0), free;
        /// Detections of an image, at most.
        pub max_detections: u64 = 100 => Range::closed(1.0, 1000.0), free;
    }
}

family_recipe! {
    /// The own part of a recipe.
    pub(crate) struct MaskRcnnRecipe {
        "model" => pub model: ModelFields,
        "data" => pub canvas: CanvasFields,
        "data" => pub images: ImageFields,
        "proposals" => pub proposals: ProposalFields,
        "samples" => pub samples: SampleFields,
        "loss" => pub loss: LossFields,
        "detection" => pub detection: DetectionFields,
        "eval" => pub evaluation: EvalFields,
        "eval" => pub canvases: CanvasesFields,
    }
    check check;
}

fn check(own: &MaskRcnnRecipe, _: &Recipe) -> Result<(), Problem> {
    let of_evaluation = own.canvases.canvases.iter().map(|canvas| ("eval.canvases", *canvas));
    for (name, [height, width]) in of_evaluation.chain([("data.canvas", own.canvas.canvas)]) {
        let is_legal = |side: u64| side.is_multiple_of(CANVAS_MULTIPLE as u64);
        require(is_legal(height) && is_legal(width), name, || {
            format!("[{height}, {width}] must be multiples of {CANVAS_MULTIPLE}, the coarsest stride of the backbone")
        })?;
    }
    for (name, [total, objects]) in [("samples.anchors", own.samples.anchors), ("samples.regions", own.samples.regions)]
    {
        require(objects <= total, name, || format!("[{total}, {objects}] has more objects than samples"))?;
    }
    let [low, high] = own.samples.anchor_overlaps;
    require(low <= high, "samples.anchor_overlaps", || format!("[{low}, {high}] must be in ascending order"))?;
    own.images.check()
}
