//! Steps of Mask R-CNNs that are measured, with the hyper-parameters of a reference recipe.

use super::model;
use crate::recipe::Recipe;
use crate::setup::optimizer;
use crate::workload::{Fill, Mode, Work, Workload};
use bessemer_models::maskrcnn::{self, DetectionOptions, Flavour, MaskRcnnOptions, TrainingOptions};
use bessemer_models::{Model, ModelError};

/// The recipe by whose optimizer Mask R-CNNs of all sizes are trained.
const REFERENCE: &str = "mask-rcnn";
/// The form of the published weights, and of other frameworks.
const FLAVOUR: Flavour = Flavour::Torchvision;

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges.
const RATE: f64 = 1e-5;
/// Objects of an image, at most: half of them, the mean, is about as many as an image of COCO has.
const OBJECTS: i32 = 15;
/// Width of the smallest object, in sides of the smallest reference box.
const LEAST_OBJECT: f64 = 1.25;
/// Pixels between reference boxes of the finest level.
const FINEST_STRIDE: f64 = 4.0;

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let options = maskrcnn::find(work.model)?.options(FLAVOUR);
    let model = match work.mode {
        Mode::Infer => maskrcnn::detect(&options, &DetectionOptions::new(FLAVOUR), work.batch_size)?,
        Mode::Train => {
            let recipe = Recipe::load(REFERENCE, &[]).expect("a recipe of this program");
            let training = model::training(&recipe).expect("a recipe of this family");
            let training = TrainingOptions { l2: training.l2, ..TrainingOptions::new(FLAVOUR) };
            let config = work.train_config(optimizer(&recipe.optimizer), RATE);
            maskrcnn::train(&options, &training, &config, work.batch_size)?
        }
    };
    Ok(filled(model, &options))
}

/// With images that fill at least three quarters of each side of the canvas, and objects within them.
fn filled(model: Model, options: &MaskRcnnOptions) -> Workload {
    let MaskRcnnOptions { canvas, anchors, num_classes, .. } = options;
    let least = canvas.map(|side| side * 3 / 4);
    let fills = vec![
        ("images", Fill::Blots(*canvas)),
        ("sizes", Fill::Sizes { canvas: *canvas }),
        ("boxes", Fill::Boxes { canvas: least, least: (LEAST_OBJECT * anchors.scale * FINEST_STRIDE) as f32 }),
        ("classes", Fill::Between(1, *num_classes as i32 - 1)),
        ("count", Fill::Between(0, OBJECTS)),
    ];
    Workload::new(model, Fill::Below(*num_classes), fills)
}
