//! EfficientDets.

mod model;
mod recipe;
mod workload;

use super::family::Detectors;
use super::kind::{DetectorKind, DetectorSettings, DetectorWeights, frozen, padding_note, padding_of};
use super::score::{BOX_METRICS, box_metric};
use crate::error::TrainError;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::setup::RunShape;
use crate::tasks::family::{Benchmark, BuildStep, ModelInfo, SampleInfo};
use crate::tasks::{Better, Metric, MetricSchema, ReferenceName, ReferenceNames, WeightOrigin};
use crate::workload::{ComparedWork, DetectorOutputs, Work, Workload};
use bessemer_data::detection::{Framing, ObjectLayout};
use bessemer_models::efficientdet::{self, BACKBONE, DetectorOptions, DetectorSpec, NAMES, ZOO};
use bessemer_models::{Model, ModelError, Summary};
use bessemer_nn::Mode;
use bessemer_nn::Padding;
use bessemer_weights::NamedTensor;
use recipe::DetectorRecipe;

/// The family.
pub static FAMILY: Detectors = Detectors(&EfficientDet);

const RECIPES: [(&str, &str); 3] = [
    ("efficientdet-d0", include_str!("recipes/efficientdet-d0.toml")),
    ("efficientdet-coco-small", include_str!("recipes/efficientdet-coco-small.toml")),
    ("detection-quick", include_str!("recipes/detection-quick.toml")),
];

/// Average precision and recall are fractions. Losses are sums over all images divided by the matched boxes; `loss` is the
/// weighted sum of those of classes and boxes, without the squares of weights.
static TERMS: MetricSchema = MetricSchema {
    samples: "images",
    unit: "images/s",
    parts: &["cls_loss", "box_loss", "l2_loss"],
    metrics: &[
        box_metric(0),
        box_metric(1),
        box_metric(2),
        box_metric(3),
        box_metric(4),
        box_metric(5),
        box_metric(6),
        box_metric(7),
        box_metric(8),
        box_metric(9),
        box_metric(10),
        box_metric(11),
        Metric::plain("loss", "loss", Some("validation loss")),
        Metric::plain("cls_loss", "  of classes", None),
        Metric::plain("box_loss", "  of boxes", None),
    ],
    best: (BOX_METRICS[0].0, Better::Higher),
    reference: ReferenceNames {
        always: &[],
        summary: &[
            ReferenceName::new("train.total_ips", "avg_fps_training"),
            ReferenceName::new("train.rank_ips", "avg_fps_training_per_GPU"),
            ReferenceName::new("train.step_time", "avg_latency_training"),
            ReferenceName::new("train.final_loss", "training_loss"),
            ReferenceName::new("run.time", "e2e_training_time"),
            ReferenceName::new("val.bbox_ap", "validation_accuracy_mAP"),
        ],
    },
};

/// The bias of the layer that predicts classes: as many elements as classes times boxes of a position.
const CLASS_BIAS: &str = "class_net.predict.conv_pw.bias";

static WEIGHTS: DetectorWeights = DetectorWeights {
    names: &NAMES,
    backbone: BACKBONE,
    stem: "conv_stem.weight",
    detector: "class_net.",
    classifier: &["conv_head.", "bn2.", "classifier."],
    of_classes: &[CLASS_BIAS, "class_net.predict.conv_pw.weight"],
    rest: "the feature pyramid and both heads",
};

/// EfficientDets.
struct EfficientDet;

impl DetectorKind for EfficientDet {
    fn models(&self) -> Vec<ModelInfo> {
        let info = |spec: &DetectorSpec| ModelInfo {
            name: spec.name,
            description: spec.description,
            variants: &["model.edge_weights=signed", "model.padding=symmetric", "model.normalise_twice=true"],
        };
        ZOO.iter().map(info).collect()
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["efficientdet-tiny"]
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        let options = efficientdet::find(model)?.options();
        Ok(Summary::of(&efficientdet::raw_outputs(&options, 1, Mode::Infer)?))
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        let options = efficientdet::find(model)?.options();
        Ok(SampleInfo::of_image(options.canvas, options.num_classes))
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        &RECIPES
    }

    fn default_recipe(&self, model: &str) -> &'static str {
        efficientdet::find(model).map_or(RECIPES[0].0, |spec| spec.recipe)
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<DetectorRecipe>()
    }

    fn settings(&self, recipe: &Recipe) -> Result<DetectorSettings, TrainError> {
        let DetectorRecipe { model, images, loss, detection, evaluation, canvas } = recipe.own()?;
        let side = canvas.image_size as u32;
        Ok(DetectorSettings {
            canvas: [side as usize; 2],
            classes: model.num_classes as usize,
            layout: ObjectLayout { max_objects: images.max_objects as usize, first_class: 0, crop: None },
            framings: images.framings(Framing::efficientdet_eval([side; 2], images.resampling)),
            exif: images.exif,
            category_ids: images.category_ids,
            pictures: evaluation.pictures as usize,
            new_heads: model.new_heads,
            score_floor: detection.score_floor,
            box_weight: Some(loss.box_weight),
            sized_by_box: true,
        })
    }

    fn training_step(&self, recipe: &Recipe, shape: RunShape) -> Result<Model, TrainError> {
        model::training_model(recipe, shape)
    }

    fn detection_step(&self, recipe: &Recipe, canvas: [usize; 2], batch_size: usize) -> Result<Model, TrainError> {
        let options = DetectorOptions { canvas, ..model::options(recipe)? };
        Ok(efficientdet::detect(&options, &model::detection(recipe)?, batch_size)?)
    }

    fn evaluation_step(&self, recipe: &Recipe, canvas: [usize; 2], batch_size: usize) -> Result<Model, TrainError> {
        let options = DetectorOptions { canvas, ..model::options(recipe)? };
        let (detection, loss) = (model::detection(recipe)?, model::loss(recipe)?);
        Ok(efficientdet::evaluate(&options, &detection, &loss, batch_size)?)
    }

    fn network(&self, recipe: &Recipe, batch_size: usize) -> Result<Model, TrainError> {
        Ok(efficientdet::raw_outputs(&model::options(recipe)?, batch_size, Mode::Infer)?)
    }

    fn weights(&self) -> &'static DetectorWeights {
        &WEIGHTS
    }

    /// NVIDIA's EfficientNets alone are normalised twice. What padding a file's network had, its names do not say.
    fn backbone_notes(&self, recipe: &Recipe, origin: &WeightOrigin<'_>) -> Result<Vec<String>, TrainError> {
        let DetectorRecipe { model, .. } = recipe.own()?;
        let padding = padding_note(origin, origin.recipe.and_then(padding_of), model.padding);
        let name = origin.name;
        let twice = (model.normalise_twice && !origin.is_tensorflow).then(|| {
            format!(
                "model.normalise_twice is for weights of NVIDIA's TensorFlow models, and {name} are others: --set \
                 model.normalise_twice=false fits them"
            )
        });
        Ok(padding.into_iter().chain(twice).collect())
    }

    fn padding(&self, recipe: &Recipe) -> Result<Padding, TrainError> {
        let DetectorRecipe { model, .. } = recipe.own()?;
        Ok(model.padding)
    }

    fn frozen_parts(&self, recipe: &Recipe) -> Option<String> {
        let DetectorRecipe { model, .. } = recipe.own().ok()?;
        frozen(model.freeze_at, false)
    }

    /// In the form of the package `effdet`, or for a checkpoint of TensorFlow in that of NVIDIA's recipe.
    fn recipe_of_file(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        is_tensorflow: bool,
    ) -> Result<Recipe, TrainError> {
        let spec = efficientdet::find(model)?;
        let classes = classes_of(spec, tensors).map(|classes| Override::new("model.num_classes", classes as i64));
        let mut overrides: Vec<Override> = classes.into_iter().chain([Override::new("model.name", model)]).collect();
        let (edges, resampling, suppression, score_floor) = match is_tensorflow {
            true => ("signed", "legacy", "soft", 0.001),
            false => ("positive", "antialias", "hard", 0.0),
        };
        overrides.extend([
            Override::new("model.edge_weights", edges),
            Override::new("model.normalise_twice", is_tensorflow),
            Override::new("data.resampling", resampling),
            Override::new("detection.suppression", suppression),
            Override::new("detection.score_floor", score_floor),
            Override::new("detection.clip", !is_tensorflow),
        ]);
        Ok(Recipe::load(spec.recipe, &overrides)?)
    }

    fn model_for(&self, model: &str, tensors: &[NamedTensor<'_>]) -> Option<Model> {
        let spec = efficientdet::find(model).ok()?;
        let mut options = spec.options();
        options.num_classes = classes_of(spec, tensors)?;
        efficientdet::raw_outputs(&options, 1, Mode::Infer).ok()
    }

    fn outputs(&self) -> &'static [DetectorOutputs] {
        &DetectorOutputs::ALL
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn measured_evaluation(&self) -> Option<BuildStep> {
        Some(workload::evaluation)
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "efficientdet-d0", train_batches: &[4, 8], infer_batches: &[1, 8] }
    }

    fn compared(&self) -> Option<(&'static str, &'static str)> {
        Some(("EfficientDets", "efficientdet"))
    }

    fn settling_step(&self, work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        workload::settling(work).map(Some)
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }
}

/// Classes of the layer that predicts them.
fn classes_of(spec: &DetectorSpec, tensors: &[NamedTensor<'_>]) -> Option<usize> {
    let bias = tensors.iter().find(|tensor| NAMES.canonical(&tensor.name) == CLASS_BIAS)?;
    bias.shape.first().map(|outputs| outputs / spec.options().anchors.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_models::efficientdet::{DetectionOptions, EdgeWeights};

    #[test]
    fn files_are_of_the_form_of_effdet() {
        for spec in &ZOO {
            let recipe = EfficientDet.recipe_of_file(spec.name, &[], false).unwrap();
            let of_tensorflow = EfficientDet.recipe_of_file(spec.name, &[], true).unwrap();
            let DetectorRecipe { model, .. } = of_tensorflow.own().unwrap();
            assert_eq!((model.edge_weights, model.normalise_twice), (EdgeWeights::Signed, true), "{}", spec.name);
            assert_eq!(model::detection(&recipe).unwrap(), DetectionOptions::default());
            let DetectorOptions { edges, normalise_twice, .. } = model::options(&recipe).unwrap();
            let published = spec.options();
            assert_eq!((edges, normalise_twice), (published.edges, published.normalise_twice));
        }
    }
}
