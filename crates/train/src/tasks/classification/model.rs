//! The networks of recipes.

use super::recipe::{ClassifierRecipe, ModelFields};
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::setup::{RunShape, train_config};
use bessemer_models::{
    Architecture, BackboneOptions, InputFormat, LossOptions, Model, ModelOptions, efficientnet, find, resnet,
};
use bessemer_nn::{BatchNormOptions, PixelScale};

/// Options of the recipe's model for images of `image_size` pixels in height and width.
///
/// # Errors
/// A model that the zoo does not have.
pub(crate) fn model_options(recipe: &Recipe, image_size: u64) -> Result<(Architecture, ModelOptions), TrainError> {
    let spec = find(&recipe.model.name)?;
    let ClassifierRecipe { model, images, .. } = recipe.own()?;
    let published = spec.options();
    let ModelFields { padding, init, zero_init_last_gamma, .. } = *model;
    let norm = BatchNormOptions { eps: model.bn_eps, momentum: model.bn_momentum, ..BatchNormOptions::default() };
    let backbone = match published.backbone {
        BackboneOptions::ResNet(published) => BackboneOptions::ResNet(resnet::Backbone {
            padding,
            stride_in: model.stride_in,
            init,
            zero_init_last_gamma,
            norm,
            ..published
        }),
        BackboneOptions::EfficientNet(published) => BackboneOptions::EfficientNet(efficientnet::Backbone {
            padding,
            init,
            zero_init_last_gamma,
            norm,
            drop_path: model.drop_path,
            ..published
        }),
    };
    let options = ModelOptions {
        image_size: [image_size as usize; 2],
        input: InputFormat::Bytes(PixelScale { mean: images.mean, std: images.std }),
        num_classes: model.num_classes as usize,
        backbone,
        dropout: model.dropout,
        seed: recipe.train.seed,
    };
    Ok((spec.architecture, options))
}

/// The graph of a whole training step as the recipe asks for it.
///
/// # Errors
/// A model or a size that is not possible; a precision that CPUs do not train in.
pub(super) fn training_model(recipe: &Recipe, shape: RunShape) -> Result<Model, TrainError> {
    let ClassifierRecipe { images, labels, .. } = recipe.own()?;
    let (architecture, options) = model_options(recipe, images.image_size)?;
    let loss = LossOptions {
        label_smoothing: labels.label_smoothing,
        mixup: (labels.mixup_alpha > 0.0).then_some(labels.mixup_form),
    };
    let config = train_config(recipe, shape)?;
    Ok(Model::train(architecture, &options, &loss, &config, shape.batch_size)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_nn::Padding;

    #[test]
    fn recipes_name_models_of_the_zoo() {
        for name in ["resnet50-90e", "resnet50-90e-tf1", "efficientnet-b0", "imagenette-small", "shapes-quick", "cifar"]
        {
            let recipe = Recipe::load(name, &[]).unwrap();
            let own: &ClassifierRecipe = recipe.own().unwrap();
            let (_, options) = model_options(&recipe, own.images.image_size).unwrap();
            assert_eq!(options.num_classes as u64, own.model.num_classes);
        }
    }

    #[test]
    fn recipes_choose_the_variant_of_the_network() {
        let chosen = ["model.padding=same", "model.bn_eps=0.001", "model.bn_momentum=0.01", "model.drop_path=0.3"];
        let rest = ["model.dropout=0.4", "model.zero_init_last_gamma=true", "train.seed=9"];
        let overrides: Vec<_> = chosen.iter().chain(&rest).map(|text| text.parse().unwrap()).collect();
        let (_, options) = model_options(&Recipe::load("efficientnet-b0", &overrides).unwrap(), 224).unwrap();
        assert_eq!((options.dropout, options.seed), (0.4, 9));
        let norm = BatchNormOptions { eps: 1e-3, momentum: 0.01, ..BatchNormOptions::default() };
        let expected = efficientnet::Backbone {
            padding: Padding::Same,
            norm,
            zero_init_last_gamma: true,
            drop_path: 0.3,
            ..efficientnet::Backbone::default()
        };
        assert_eq!(options.backbone, BackboneOptions::EfficientNet(expected));

        let overrides: Vec<_> = chosen[..3].iter().map(|text| text.parse().unwrap()).collect();
        let (_, options) = model_options(&Recipe::load("cifar", &overrides).unwrap(), 32).unwrap();
        let BackboneOptions::ResNet(backbone) = options.backbone else { panic!("a ResNet has {options:?}") };
        assert_eq!((backbone.norm, backbone.padding), (norm, Padding::Same));
    }
}
