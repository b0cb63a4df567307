//! What the kinds of detectors have in common, and where they differ.

use crate::error::TrainError;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::setup::RunShape;
use crate::tasks::classification::recipe::ClassifierRecipe;
use crate::tasks::family::{Benchmark, BuildStep, ModelInfo, SampleInfo};
use crate::tasks::{MetricSchema, WeightOrigin};
use crate::workload::{ComparedWork, DetectorOutputs, Fill, Work, Workload};
use bessemer_data::coco::CategoryIds;
use bessemer_data::detection::{Framing, ObjectLayout};
use bessemer_data::{Exif, Split};
use bessemer_models::{Model, ModelError, Summary, WeightNames};
use bessemer_nn::Padding;
use bessemer_weights::NamedTensor;

/// A kind of detectors: what sets one network apart from another in training, evaluation and use.
pub(super) trait DetectorKind: Sync {
    /// All models, in the order of lists.
    fn models(&self) -> Vec<ModelInfo>;

    /// See [`Family::representatives`](crate::tasks::family::Family::representatives).
    fn representatives(&self) -> &'static [&'static str];

    /// What a model costs.
    ///
    /// # Errors
    /// A model of another kind.
    fn summary(&self, model: &str) -> Result<Summary, ModelError>;

    /// What a sample of a model is.
    ///
    /// # Errors
    /// As [`DetectorKind::summary`].
    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError>;

    /// What logs and tables call things.
    fn metric_schema(&self) -> &'static MetricSchema;

    /// The name and the text of each recipe.
    fn recipes(&self) -> &'static [(&'static str, &'static str)];

    /// The recipe that trains a model.
    fn default_recipe(&self, model: &str) -> &'static str;

    /// What a recipe is to say of data for the step of [`DetectorKind::workload`], so that they have its sizes.
    fn fields_of_step(&self, _model: &str) -> Vec<Override> {
        Vec::new()
    }

    /// The fields of recipes that are the kind's own.
    fn recipe(&self) -> RecipePart;

    /// What a recipe says of samples and of detections.
    ///
    /// # Errors
    /// A model that the zoo does not have; the same holds for the steps of a recipe.
    fn settings(&self, recipe: &Recipe) -> Result<DetectorSettings, TrainError>;

    /// The graph of a whole training step as a recipe asks for it.
    ///
    /// # Errors
    /// A size that is not possible; a precision that the device does not train in.
    fn training_step(&self, recipe: &Recipe, shape: RunShape) -> Result<Model, TrainError>;

    /// From images on a canvas of this height and width to detections: `boxes f32[B, D, 4]`, `scores f32[B, D]`, `labels i32[B, D]`, `count i32[B]`, and with masks
    /// `masks f32[B, D, M, M]`.
    ///
    /// # Errors
    /// A size that is not possible.
    fn detection_step(&self, recipe: &Recipe, canvas: [usize; 2], batch_size: usize) -> Result<Model, TrainError>;

    /// The same for images with known objects; with [`DetectorSettings::box_weight`] also the sums of losses of each image
    /// `cls_loss_sum f32[B]` and `box_loss_sum f32[B]` over `positives i32[B]` matches.
    ///
    /// # Errors
    /// As [`DetectorKind::detection_step`].
    fn evaluation_step(&self, recipe: &Recipe, canvas: [usize; 2], batch_size: usize) -> Result<Model, TrainError> {
        self.detection_step(recipe, canvas, batch_size)
    }

    /// Inference up to the suppression of boxes.
    ///
    /// # Errors
    /// A kind that cannot end there; else as [`DetectorKind::detection_step`].
    fn network(&self, recipe: &Recipe, _batch_size: usize) -> Result<Model, TrainError> {
        let allowed =
            format!("{} has detections alone: its masks are those of boxes after suppression", recipe.model.name);
        Err(TrainError::setting("the kind of outputs", DetectorOutputs::Network.name(), allowed))
    }

    /// How weights are named, and what may be missing of them.
    fn weights(&self) -> &'static DetectorWeights;

    /// Where the network of a recipe does not compute as the one did whose weights its backbone begins with. Checkpoints of
    /// TensorFlow are taken for NVIDIA's.
    ///
    /// # Errors
    /// A recipe of another family.
    fn backbone_notes(&self, recipe: &Recipe, origin: &WeightOrigin<'_>) -> Result<Vec<String>, TrainError>;

    /// Padding of the strided windows of a recipe's backbone.
    ///
    /// # Errors
    /// A recipe of another family.
    fn padding(&self, recipe: &Recipe) -> Result<Padding, TrainError>;

    /// What a recipe leaves untrained, in words; `None` for nothing.
    fn frozen_parts(&self, recipe: &Recipe) -> Option<String>;

    /// The recipe of a model whose weights come as a file alone, which TensorFlow may have written.
    ///
    /// # Errors
    /// A model of another kind.
    fn recipe_of_file(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        is_tensorflow: bool,
    ) -> Result<Recipe, TrainError>;

    /// The published form of a model, with as many classes as its weights have; `None` where they are not of the kind.
    fn model_for(&self, model: &str, tensors: &[NamedTensor<'_>]) -> Option<Model>;

    /// What inference can end with, where there is a choice.
    fn outputs(&self) -> &'static [DetectorOutputs];

    /// A step to measure.
    ///
    /// # Errors
    /// A size that is not possible; the same holds for all steps to measure.
    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError>;

    /// The step of an evaluation, where that is another graph than inference.
    fn measured_evaluation(&self) -> Option<BuildStep> {
        None
    }

    /// See [`Family::benchmark`](crate::tasks::family::Family::benchmark).
    fn benchmark(&self) -> Benchmark;

    /// See [`Family::compared`](crate::tasks::family::Family::compared).
    fn compared(&self) -> Option<(&'static str, &'static str)> {
        None
    }

    /// See [`Family::settling_step`](crate::tasks::family::Family::settling_step).
    fn settling_step(&self, _work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        Ok(None)
    }

    /// See [`Family::compared_work`](crate::tasks::family::Family::compared_work).
    fn compared_work(&self, _work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        Ok(None)
    }
}

/// What a recipe says of samples and of detections.
#[derive(Clone, Debug)]
pub(super) struct DetectorSettings {
    /// Height and width of the canvas of training in pixels.
    pub canvas: [usize; 2],
    /// Classes of objects, without the background.
    pub classes: usize,
    /// The arrays of a batch.
    pub layout: ObjectLayout,
    /// How images are put on the canvas in training, and in evaluation.
    pub framings: [Framing; 2],
    /// What is done with the EXIF orientation of images in files.
    pub exif: Exif,
    /// How the ids of categories become classes.
    pub category_ids: CategoryIds,
    /// Images that each evaluation draws.
    pub pictures: usize,
    /// Whether what depends on the number of classes may be drawn at random.
    pub new_heads: bool,
    /// Scores of detections are above it.
    pub score_floor: f64,
    /// Weight of the loss of boxes, where evaluation has losses.
    pub box_weight: Option<f64>,
    /// Whether a detection with a mask counts as small or large by its box, and not by its mask.
    pub sized_by_box: bool,
}

impl DetectorSettings {
    /// Whether detections have masks.
    pub(super) fn has_masks(&self) -> bool {
        self.layout.crop.is_some()
    }

    /// How images of a split are put on the canvas.
    pub(super) fn framing(&self, split: Split) -> Framing {
        let [training, evaluation] = &self.framings;
        match split {
            Split::Train => training.clone(),
            Split::Val => evaluation.clone(),
        }
    }
}

/// How weights are named, and what may be missing of them.
pub(super) struct DetectorWeights {
    /// Names in other files.
    pub names: &'static WeightNames,
    /// The scope of the backbone.
    pub backbone: &'static str,
    /// What a classifier calls the first tensor of the backbone.
    pub stem: &'static str,
    /// What the tensors of a detector, but not of a classifier, begin with.
    pub detector: &'static str,
    /// What tensors of a classifier begin with that are not of its backbone.
    pub classifier: &'static [&'static str],
    /// Tensors whose shapes follow from the number of classes; the first one is the bias of the layer that predicts them.
    pub of_classes: &'static [&'static str],
    /// What is drawn at random beside the backbone of a classifier, in words.
    pub rest: &'static str,
}

impl DetectorWeights {
    /// What a tensor of the backbone is called in a classifier.
    pub(super) fn in_backbone<'a>(&self, canonical: &'a str) -> &'a str {
        canonical.strip_prefix(self.backbone).and_then(|rest| rest.strip_prefix('.')).unwrap_or(canonical)
    }
}

/// Objects of an image that is measured, at most: half of them, the mean, is about as many as an image of COCO has.
const OBJECTS: i32 = 15;
/// Width of the smallest object, in sides of the smallest reference box.
const LEAST_OBJECT: f64 = 1.25;

/// Images that fill at least three quarters of each side of the canvas, and objects within them. No object is so small or so narrow
/// that it lies within several reference boxes, of which the smallest has sides of `smallest` pixels: of these equally good ones
/// rounding would choose the match.
pub(super) fn object_fills(canvas: [usize; 2], smallest: f64) -> Vec<(&'static str, Fill)> {
    let boxes = Fill::Boxes { canvas: canvas.map(|side| side * 3 / 4), least: (LEAST_OBJECT * smallest) as f32 };
    vec![
        ("images", Fill::Blots(canvas)),
        ("sizes", Fill::Sizes { canvas }),
        ("boxes", boxes),
        ("count", Fill::Between(0, OBJECTS)),
    ]
}

/// A note where a backbone was trained with other padding of strided windows than a detector has.
pub(super) fn padding_note(origin: &WeightOrigin<'_>, trained: Option<Padding>, wanted: Padding) -> Option<String> {
    let trained = trained.filter(|trained| *trained != wanted)?;
    let name = |padding| match padding {
        Padding::Symmetric => "symmetric",
        Padding::Same => "same",
    };
    let (origin, trained, wanted) = (origin.name, name(trained), name(wanted));
    Some(format!(
        "{origin} was trained with {trained} padding, and the detector has model.padding = \"{wanted}\", which shifts features by a \
         pixel: --set model.padding={trained} fits it"
    ))
}

/// The padding that a classifier's recipe had.
pub(super) fn padding_of(recipe: &Recipe) -> Option<Padding> {
    recipe.own::<ClassifierRecipe>().ok().map(|own| own.model.padding)
}

/// The stem and the first stages that a detector leaves untrained, and its norms.
pub(super) fn frozen(freeze_at: u64, frozen_norms: bool) -> Option<String> {
    let parts = match freeze_at {
        0 => None,
        1 => Some("the stem".to_owned()),
        2 => Some("the stem and the first stage".to_owned()),
        more => Some(format!("the stem and the first {} stages", more - 1)),
    };
    let norms = frozen_norms.then(|| "all norms".to_owned());
    match (parts, norms) {
        (Some(parts), Some(norms)) => Some(format!("{parts} and {norms}")),
        (parts, norms) => parts.or(norms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backbones_of_other_padding_get_a_note() {
        let origin = WeightOrigin { name: "W", recipe: None, is_tensorflow: false };
        let note = |trained, wanted| padding_note(&origin, trained, wanted);
        assert_eq!(note(Some(Padding::Same), Padding::Same), None);
        assert_eq!(note(None, Padding::Same), None);
        let text = note(Some(Padding::Symmetric), Padding::Same).unwrap();
        assert!(
            text.starts_with("W was trained with symmetric padding") && text.contains("model.padding=symmetric"),
            "{text}"
        );
        let recipe = |name: &str| Recipe::load(name, &[]).unwrap();
        let found = ["resnet50-90e", "resnet50-90e-tf1", "efficientnet-b0"].map(|name| padding_of(&recipe(name)));
        assert_eq!(found, [Padding::Symmetric, Padding::Same, Padding::Symmetric].map(Some));
        assert_eq!(padding_of(&recipe("mask-rcnn")), None);
    }

    #[test]
    fn what_is_not_trained_is_named() {
        assert_eq!(frozen(0, false), None);
        assert_eq!(frozen(2, true).unwrap(), "the stem and the first stage and all norms");
        assert_eq!(frozen(3, false).unwrap(), "the stem and the first 2 stages");
    }
}
