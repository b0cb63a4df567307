//! Steps of detectors that are measured, with the hyper-parameters of a reference recipe.

use super::model;
use crate::recipe::{Override, Recipe};
use crate::setup::optimizer;
use crate::workload::{Fill, Mode, Work, Workload};
use bessemer_models::efficientdet::{self, DetectionOptions, LossOptions};
use bessemer_models::{Model, ModelError};

/// Learning rate of steps that are measured: so low that no number of steps on one batch diverges.
const RATE: f64 = 1e-4;
/// Objects of an image: about as many as an image of COCO has.
const OBJECTS: i32 = 8;

pub(super) fn build(work: &Work<'_>) -> Result<Workload, ModelError> {
    let options = efficientdet::find(work.model)?.options();
    let model = match work.mode {
        Mode::Infer => efficientdet::detect(&options, &DetectionOptions::default(), work.batch_size)?,
        Mode::Train => {
            let recipe = reference(work.model)?;
            let config = work.train_config(optimizer(&recipe.optimizer), RATE);
            let loss = model::loss(&recipe).expect("a recipe of this family");
            efficientdet::train(&options, &loss, &config, work.batch_size)?
        }
    };
    Ok(filled(model, options.canvas, options.num_classes))
}

/// The step of an evaluation.
pub(super) fn evaluation(work: &Work<'_>) -> Result<Model, ModelError> {
    let options = efficientdet::find(work.model)?.options();
    efficientdet::evaluate(&options, &DetectionOptions::default(), &LossOptions::default(), work.batch_size)
}

fn reference(model: &str) -> Result<Recipe, ModelError> {
    let recipe = efficientdet::find(model)?.recipe;
    Ok(Recipe::load(recipe, &[Override::new("model.name", model)]).expect("a recipe of this program"))
}

/// With images that fill the canvas, and objects within them.
fn filled(model: Model, canvas: [usize; 2], classes: usize) -> Workload {
    let fills = vec![
        ("sizes", Fill::Number(canvas[0] as i32)),
        ("boxes", Fill::Boxes(canvas)),
        ("count", Fill::Number(OBJECTS)),
    ];
    Workload::new(model, Fill::Below(classes), fills)
}
