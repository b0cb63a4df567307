//! Mask R-CNNs.

mod model;
mod recipe;
mod workload;

use super::family::Detectors;
use super::kind::{DetectorKind, DetectorSettings, DetectorWeights, frozen, padding_note, padding_of};
use super::score::{BOX_METRICS, box_metric, mask_metric};
use crate::error::TrainError;
use crate::recipe::{Override, Recipe, RecipePart};
use crate::setup::{RunShape, train_config};
use crate::tasks::family::{Benchmark, ModelInfo, SampleInfo};
use crate::tasks::{Better, MetricSchema, ReferenceName, ReferenceNames, WeightOrigin};
use crate::workload::{ComparedWork, DetectorOutputs, Work, Workload};
use bessemer_data::detection::{Framing, ObjectLayout};
use bessemer_models::maskrcnn::{self, BACKBONE, DetectionOptions, Flavour, MaskRcnnOptions, MaskRcnnSpec, NAMES, ZOO};
use bessemer_models::{Model, ModelError, Summary};
use bessemer_nn::Padding;
use bessemer_weights::NamedTensor;
use recipe::MaskRcnnRecipe;

/// The family.
pub static FAMILY: Detectors = Detectors(&MaskRcnn);

const RECIPES: [(&str, &str); 3] = [
    ("mask-rcnn", include_str!("recipes/mask-rcnn.toml")),
    ("mask-rcnn-coco-small", include_str!("recipes/mask-rcnn-coco-small.toml")),
    ("mask-rcnn-quick", include_str!("recipes/mask-rcnn-quick.toml")),
];

/// Average precision and recall of boxes and of masks are fractions.
static TERMS: MetricSchema = MetricSchema {
    samples: "images",
    unit: "images/s",
    parts: &["rpn_score_loss", "rpn_box_loss", "cls_loss", "box_loss", "mask_loss", "l2_loss"],
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
        mask_metric(0),
        mask_metric(1),
        mask_metric(2),
        mask_metric(3),
        mask_metric(4),
        mask_metric(5),
        mask_metric(6),
        mask_metric(7),
        mask_metric(8),
        mask_metric(9),
        mask_metric(10),
        mask_metric(11),
    ],
    best: (BOX_METRICS[0].0, Better::Higher),
    reference: ReferenceNames {
        always: &[
            ReferenceName::new("train.loss", "loss"),
            ReferenceName::new("train.lr", "learning_rate"),
            ReferenceName::new("train.rpn_score_loss", "rpn_score_loss"),
            ReferenceName::new("train.rpn_box_loss", "rpn_box_loss"),
            ReferenceName::new("train.cls_loss", "fast_rcnn_class_loss"),
            ReferenceName::new("train.box_loss", "fast_rcnn_box_loss"),
            ReferenceName::new("train.mask_loss", "mask_rcnn_loss"),
            ReferenceName::new("train.l2_loss", "l2_regularization_loss"),
            ReferenceName::new("train.total_ips", "train_throughput"),
            ReferenceName::new("train.step_time", "train_latency"),
        ],
        summary: &[
            ReferenceName::new("train.time", "train_time"),
            ReferenceName::new("train.step_time_ci90", "train_latency_90"),
            ReferenceName::new("train.step_time_ci95", "train_latency_95"),
            ReferenceName::new("train.step_time_ci99", "train_latency_99"),
            ReferenceName::new("val.total_ips", "predict_throughput"),
            ReferenceName::new("val.compute_latency", "predict_latency"),
            ReferenceName::new("val.compute_latency_ci90", "predict_latency_90"),
            ReferenceName::new("val.compute_latency_ci95", "predict_latency_95"),
            ReferenceName::new("val.compute_latency_ci99", "predict_latency_99"),
            ReferenceName::new("val.time", "predict_time"),
            ReferenceName::new("val.bbox_ap", "AP").times(0.01),
            ReferenceName::new("val.bbox_ap50", "AP50").times(0.01),
            ReferenceName::new("val.bbox_ap75", "AP75").times(0.01),
            ReferenceName::new("val.bbox_ap_s", "APs").times(0.01),
            ReferenceName::new("val.bbox_ap_m", "APm").times(0.01),
            ReferenceName::new("val.bbox_ap_l", "APl").times(0.01),
            ReferenceName::new("val.bbox_ar1", "ARmax1").times(0.01),
            ReferenceName::new("val.bbox_ar10", "ARmax10").times(0.01),
            ReferenceName::new("val.bbox_ar100", "ARmax100").times(0.01),
            ReferenceName::new("val.bbox_ar_s", "ARs").times(0.01),
            ReferenceName::new("val.bbox_ar_m", "ARm").times(0.01),
            ReferenceName::new("val.bbox_ar_l", "ARl").times(0.01),
            ReferenceName::new("val.segm_ap", "mask_AP").times(0.01),
            ReferenceName::new("val.segm_ap50", "mask_AP50").times(0.01),
            ReferenceName::new("val.segm_ap75", "mask_AP75").times(0.01),
            ReferenceName::new("val.segm_ap_s", "mask_APs").times(0.01),
            ReferenceName::new("val.segm_ap_m", "mask_APm").times(0.01),
            ReferenceName::new("val.segm_ap_l", "mask_APl").times(0.01),
            ReferenceName::new("val.segm_ar1", "mask_ARmax1").times(0.01),
            ReferenceName::new("val.segm_ar10", "mask_ARmax10").times(0.01),
            ReferenceName::new("val.segm_ar100", "mask_ARmax100").times(0.01),
            ReferenceName::new("val.segm_ar_s", "mask_ARs").times(0.01),
            ReferenceName::new("val.segm_ar_m", "mask_ARm").times(0.01),
            ReferenceName::new("val.segm_ar_l", "mask_ARl").times(0.01),
        ],
    },
};

/// The bias of the layer that predicts classes.
const CLASS_BIAS: &str = "roi_heads.box_predictor.cls_score.bias";
/// A tensor that torchvision's published file has under another name, which networks that it builds today do not use.
const OF_PUBLISHED_FILE: &str = "backbone.fpn.inner_blocks.0.weight";

static WEIGHTS: DetectorWeights = DetectorWeights {
    names: &NAMES,
    backbone: BACKBONE,
    stem: "conv1.weight",
    detector: "roi_heads.",
    classifier: &["fc."],
    of_classes: &[
        CLASS_BIAS,
        "roi_heads.box_predictor.cls_score.weight",
        "roi_heads.box_predictor.bbox_pred.bias",
        "roi_heads.box_predictor.bbox_pred.weight",
        "roi_heads.mask_predictor.mask_fcn_logits.bias",
        "roi_heads.mask_predictor.mask_fcn_logits.weight",
    ],
    rest: "the feature pyramid and all heads",
};

/// Mask R-CNNs.
struct MaskRcnn;

impl DetectorKind for MaskRcnn {
    fn models(&self) -> Vec<ModelInfo> {
        let info = |spec: &MaskRcnnSpec| ModelInfo {
            name: spec.name,
            description: spec.description,
            variants: &["model.flavour=nvidia", "model.padding=same", "model.frozen_norms=false", "model.freeze_at=0"],
        };
        ZOO.iter().map(info).collect()
    }

    fn representatives(&self) -> &'static [&'static str] {
        &["mask-rcnn-tiny"]
    }

    fn summary(&self, model: &str) -> Result<Summary, ModelError> {
        let spec = maskrcnn::find(model)?;
        let flavour = Flavour::default();
        Ok(Summary::of(&maskrcnn::detect(&spec.options(flavour), &DetectionOptions::new(flavour), 1)?))
    }

    fn sample(&self, model: &str) -> Result<SampleInfo, ModelError> {
        let options = maskrcnn::find(model)?.options(Flavour::default());
        Ok(SampleInfo::of_image(options.canvas, options.num_classes))
    }

    fn metric_schema(&self) -> &'static MetricSchema {
        &TERMS
    }

    fn recipes(&self) -> &'static [(&'static str, &'static str)] {
        &RECIPES
    }

    fn default_recipe(&self, model: &str) -> &'static str {
        maskrcnn::find(model).map_or(RECIPES[0].0, |spec| spec.recipe)
    }

    fn fields_of_step(&self, model: &str) -> Vec<Override> {
        let canvas = workload::canvas(model).map(|sides| sides.map(|side| side as i64).to_vec());
        canvas.map(|canvas| Override::new("data.canvas", canvas)).into_iter().collect()
    }

    fn recipe(&self) -> RecipePart {
        RecipePart::of::<MaskRcnnRecipe>()
    }

    fn settings(&self, recipe: &Recipe) -> Result<DetectorSettings, TrainError> {
        let MaskRcnnRecipe { model, canvas, images, detection, evaluation, canvases, .. } = recipe.own()?;
        let layout =
            ObjectLayout { max_objects: images.max_objects as usize, first_class: 1, crop: Some(canvas.crop as usize) };
        let [training, whole] = images.framings(Framing::fit(canvas.canvas.map(|side| side as u32)));
        let canvases = match &canvases.canvases[..] {
            [] => whole.canvases.clone(),
            several => several.iter().map(|canvas| canvas.map(|side| side as u32)).collect(),
        };
        Ok(DetectorSettings {
            canvas: canvas.canvas.map(|side| side as usize),
            classes: model.num_classes as usize - 1,
            layout,
            framings: [training, Framing { canvases, ..whole }],
            exif: images.exif,
            category_ids: images.category_ids,
            pictures: evaluation.pictures as usize,
            new_heads: model.new_heads,
            score_floor: detection.score_floor,
            box_weight: None,
            sized_by_box: model.flavour == Flavour::Nvidia,
        })
    }

    fn training_step(&self, recipe: &Recipe, shape: RunShape) -> Result<Model, TrainError> {
        let config = train_config(recipe, shape)?;
        Ok(maskrcnn::train(&model::options(recipe)?, &model::training(recipe)?, &config, shape.batch_size)?)
    }

    fn detection_step(&self, recipe: &Recipe, canvas: [usize; 2], batch_size: usize) -> Result<Model, TrainError> {
        let options = MaskRcnnOptions { canvas, ..model::options(recipe)? };
        Ok(maskrcnn::detect(&options, &model::detection(recipe)?, batch_size)?)
    }

    fn weights(&self) -> &'static DetectorWeights {
        &WEIGHTS
    }

    /// Published ResNets of PyTorch pad symmetrically, NVIDIA's of TensorFlow at the end.
    fn backbone_notes(&self, recipe: &Recipe, origin: &WeightOrigin<'_>) -> Result<Vec<String>, TrainError> {
        let usual = if origin.is_tensorflow { Padding::Same } else { Padding::Symmetric };
        let trained = origin.recipe.map_or(Some(usual), padding_of);
        Ok(padding_note(origin, trained, model::options(recipe)?.backbone.padding).into_iter().collect())
    }

    fn padding(&self, recipe: &Recipe) -> Result<Padding, TrainError> {
        Ok(model::options(recipe)?.backbone.padding)
    }

    fn frozen_parts(&self, recipe: &Recipe) -> Option<String> {
        let MaskRcnnRecipe { model, .. } = recipe.own().ok()?;
        frozen(model.freeze_at, model.frozen_norms)
    }

    /// In the form of torchvision, whose published weights are used without an epsilon in the norms, or in NVIDIA's.
    fn recipe_of_file(
        &self,
        model: &str,
        tensors: &[NamedTensor<'_>],
        is_tensorflow: bool,
    ) -> Result<Recipe, TrainError> {
        let spec = maskrcnn::find(model)?;
        if is_tensorflow {
            let mut overrides = vec![Override::new("model.name", model), Override::new("model.flavour", "nvidia")];
            let classes = classes_of(tensors);
            overrides.extend(classes.map(|classes| Override::new("model.num_classes", classes as i64)));
            return Ok(Recipe::load(spec.recipe, &overrides)?);
        }
        let is_published = tensors.iter().any(|tensor| tensor.name == OF_PUBLISHED_FILE);
        let options = spec.options(Flavour::Torchvision);
        let detection = DetectionOptions::new(Flavour::Torchvision);
        let candidates = detection.proposals.candidates.unwrap_or(0) as i64;
        let [height, width] = options.canvas.map(|side| side as i64);
        let overrides = [
            Override::new("model.name", model),
            Override::new("model.flavour", "torchvision"),
            Override::new("model.num_classes", classes_of(tensors).unwrap_or(options.num_classes) as i64),
            Override::new("model.bn_eps", if is_published { 0.0 } else { options.backbone.norm.eps }),
            Override::new("data.resampling", "half_pixel"),
            Override::new("proposals.candidates", vec![candidates; 2]),
            Override::new("proposals.most", vec![detection.proposals.most as i64; 2]),
            Override::new("detection.score_floor", detection.score_floor),
            Override::new("data.canvas", vec![height, width]),
            Override::new("eval.canvases", vec![vec![height, width], vec![width, height]]),
        ];
        Ok(Recipe::load(spec.recipe, &overrides)?)
    }

    fn model_for(&self, model: &str, tensors: &[NamedTensor<'_>]) -> Option<Model> {
        let mut options = maskrcnn::find(model).ok()?.options(Flavour::Torchvision);
        options.num_classes = classes_of(tensors)?;
        maskrcnn::detect(&options, &DetectionOptions::new(Flavour::Torchvision), 1).ok()
    }

    fn outputs(&self) -> &'static [DetectorOutputs] {
        &[DetectorOutputs::Detections]
    }

    fn workload(&self, work: &Work<'_>) -> Result<Workload, ModelError> {
        workload::build(work)
    }

    fn benchmark(&self) -> Benchmark {
        Benchmark { model: "mask-rcnn", train_batches: &[2, 1], infer_batches: &[1, 2] }
    }

    fn compared(&self) -> Option<(&'static str, &'static str)> {
        Some(("Mask R-CNNs", "mask-rcnn"))
    }

    fn settling_step(&self, work: &Work<'_>) -> Result<Option<Workload>, ModelError> {
        workload::settling(work).map(Some)
    }

    fn compared_work(&self, work: &Work<'_>) -> Result<Option<ComparedWork>, ModelError> {
        workload::compared(work).map(Some)
    }
}

/// Classes of the layer that predicts them.
fn classes_of(tensors: &[NamedTensor<'_>]) -> Option<usize> {
    tensors.iter().find(|tensor| NAMES.canonical(&tensor.name) == CLASS_BIAS)?.shape.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_data::Split;

    #[test]
    fn files_are_taken_in_the_form_of_who_publishes_them() {
        let of = |is_tensorflow| {
            let bias = NamedTensor::from_f32(CLASS_BIAS, vec![7], &[0.0; 7]).unwrap();
            let recipe = MaskRcnn.recipe_of_file("mask-rcnn", &[bias], is_tensorflow).unwrap();
            let MaskRcnnRecipe { model, .. } = recipe.own().unwrap();
            let settings = MaskRcnn.settings(&recipe).unwrap();
            (model.flavour, model.num_classes, settings.framing(Split::Val).canvases)
        };
        assert_eq!(of(true), (Flavour::Nvidia, 7, vec![[832, 1344]]));
        assert_eq!(of(false), (Flavour::Torchvision, 7, vec![[800, 1344], [1344, 800]]));
    }
}
