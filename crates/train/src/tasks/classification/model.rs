//! The networks of recipes.

use crate::error::TrainError;
use crate::recipe::{Init, Padding, Recipe, StrideIn};
use crate::setup::{precision, train_config};
use bessemer_models::classifier::InitScheme;
use bessemer_models::resnet::{self, Backbone};
use bessemer_models::{Architecture, InputFormat, LossOptions, MixupWeight, Model, ModelOptions, find};
use bessemer_nn::PixelScale;

/// Options of the recipe's model for images of `image_size` pixels in height and width.
///
/// # Errors
/// A model that the zoo does not have.
pub(crate) fn model_options(recipe: &Recipe, image_size: u64) -> Result<(Architecture, ModelOptions), TrainError> {
    let spec = find(&recipe.model.name)?;
    let model = &recipe.model;
    let published = spec.options();
    let backbone = Backbone {
        padding: match model.padding {
            Padding::Symmetric => bessemer_nn::Padding::Symmetric,
            Padding::Same => bessemer_nn::Padding::Same,
        },
        stride_in: match model.stride_in {
            StrideIn::Conv3x3 => resnet::StrideIn::Conv2,
            StrideIn::Conv1x1 => resnet::StrideIn::Conv1,
        },
        init: match model.init {
            Some(Init::VarianceScaling) => InitScheme::TensorFlow,
            _ => InitScheme::Torch,
        },
        zero_init_last_gamma: model.zero_init_last_gamma,
        ..published.backbone
    };
    let options = ModelOptions {
        image_size: [image_size as usize; 2],
        input: InputFormat::Bytes(PixelScale { mean: recipe.data.mean, std: recipe.data.std }),
        num_classes: model.num_classes as usize,
        backbone,
    };
    Ok((spec.architecture, options))
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A model or a size that is not possible; a precision that CPUs do not train in.
pub(super) fn training_model(recipe: &Recipe, steps_per_epoch: u64) -> Result<Model, TrainError> {
    precision(recipe)?;
    let (architecture, options) = model_options(recipe, recipe.data.image_size)?;
    let loss = LossOptions {
        label_smoothing: recipe.train.label_smoothing,
        mixup: (recipe.train.mixup_alpha > 0.0).then_some(MixupWeight::Batch),
    };
    let config = train_config(recipe, steps_per_epoch)?;
    Ok(Model::train(architecture, &options, &loss, &config, recipe.train.batch_size as usize)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_name_models_of_the_zoo() {
        for name in ["resnet50-90e", "resnet50-90e-tf1", "imagenette-small", "shapes-quick", "cifar"] {
            let recipe = Recipe::load(name, &[]).unwrap();
            let (_, options) = model_options(&recipe, recipe.data.image_size).unwrap();
            assert_eq!(options.num_classes as u64, recipe.model.num_classes);
        }
        let recipe = Recipe::load("cifar", &["precision.compute=tf32".parse().unwrap()]).unwrap();
        let error = training_model(&recipe, 10).unwrap_err().to_string();
        assert_eq!(error, "precision.compute is tf32; on CPUs it must be fp32, bf16 or fp16");
    }
}
