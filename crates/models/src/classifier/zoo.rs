//! The classifiers there are.

use super::{BackboneOptions, EFFICIENTNET_NAMES, InputFormat, ModelOptions, NAMES};
use crate::ModelError;
use crate::efficientnet::{self, Scaling};
use crate::model::{Model, Summary, find_in};
use crate::resnet::{Backbone, Block};
use crate::weights::WeightNames;
use bessemer_nn::PixelScale;

/// A network up to its options.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Architecture {
    /// For ImageNet.
    ResNet {
        /// The kind of all blocks.
        block: Block,
        /// Blocks of each of the four stages.
        depths: [usize; 4],
    },
    /// For CIFAR.
    ResNetCifar {
        /// Blocks of each of the three stages.
        depth: usize,
    },
    /// Inverted residuals with squeeze-and-excitation, for ImageNet.
    EfficientNet(Scaling),
}

/// A classifier of the zoo.
#[derive(Clone, Copy, Debug)]
pub struct ModelSpec {
    /// Name in commands and recipes.
    pub name: &'static str,
    /// One line for lists of models.
    pub description: &'static str,
    /// The network up to its options.
    pub architecture: Architecture,
    /// Height and width of the images that the published form is for.
    pub image_size: usize,
    /// Outputs of the published form.
    pub num_classes: usize,
    /// Settings of recipes that make another variant of it, as `--set` takes them.
    pub variants: &'static [&'static str],
}

const RESNET: &[&str] = &["model.padding=same", "model.zero_init_last_gamma=true", "model.num_classes=10"];
const RESNET_BOTTLENECK: &[&str] =
    &["model.stride_in=1x1", "model.padding=same", "model.zero_init_last_gamma=true", "model.num_classes=10"];
const RESNET_CIFAR: &[&str] = &["model.zero_init_last_gamma=true", "model.num_classes=4"];

const EFFICIENTNET: &[&str] = &[
    "model.padding=same",
    "model.bn_eps=1e-3",
    "model.bn_momentum=0.01",
    "model.dropout=0.2",
    "model.drop_path=0.2",
    "model.num_classes=10",
];

const fn basic(name: &'static str, description: &'static str, depths: [usize; 4]) -> ModelSpec {
    for_imagenet(name, description, Architecture::ResNet { block: Block::Basic, depths }, RESNET)
}

const fn bottleneck(name: &'static str, description: &'static str, depths: [usize; 4]) -> ModelSpec {
    for_imagenet(name, description, Architecture::ResNet { block: Block::Bottleneck, depths }, RESNET_BOTTLENECK)
}

const fn for_imagenet(
    name: &'static str,
    description: &'static str,
    architecture: Architecture,
    variants: &'static [&'static str],
) -> ModelSpec {
    ModelSpec { name, description, architecture, image_size: 224, num_classes: 1000, variants }
}

const fn cifar(name: &'static str, description: &'static str, depth: usize) -> ModelSpec {
    let architecture = Architecture::ResNetCifar { depth };
    ModelSpec { name, description, architecture, image_size: 32, num_classes: 10, variants: RESNET_CIFAR }
}

const EFFICIENTNET_B0: ModelSpec = for_imagenet(
    "efficientnet-b0",
    "EfficientNet-B0 for ImageNet",
    Architecture::EfficientNet(Scaling::B[0]),
    EFFICIENTNET,
);

const EFFICIENTNET_TINY: ModelSpec = ModelSpec {
    name: "efficientnet-tiny",
    description: "EfficientNet of a quarter of B0's width",
    architecture: Architecture::EfficientNet(Scaling { width: 0.25, depth: 0.5 }),
    image_size: 64,
    num_classes: 10,
    variants: EFFICIENTNET,
};

/// All classifiers.
pub const ZOO: &[ModelSpec] = &[
    basic("resnet18", "ResNet-18 for ImageNet", [2, 2, 2, 2]),
    basic("resnet34", "ResNet-34 for ImageNet", [3, 4, 6, 3]),
    bottleneck("resnet50", "ResNet-50 v1.5 for ImageNet", [3, 4, 6, 3]),
    bottleneck("resnet101", "ResNet-101 v1.5 for ImageNet", [3, 4, 23, 3]),
    bottleneck("resnet152", "ResNet-152 v1.5 for ImageNet", [3, 8, 36, 3]),
    EFFICIENTNET_B0,
    EFFICIENTNET_TINY,
    cifar("resnet20-cifar", "ResNet-20 for CIFAR-10", 3),
    cifar("resnet32-cifar", "ResNet-32 for CIFAR-10", 5),
    cifar("resnet44-cifar", "ResNet-44 for CIFAR-10", 7),
    cifar("resnet56-cifar", "ResNet-56 for CIFAR-10", 9),
    cifar("resnet110-cifar", "ResNet-110 for CIFAR-10", 18),
];

/// The classifier named `name`.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find(name: &str) -> Result<&'static ModelSpec, ModelError> {
    find_in(ZOO, name, |spec| spec.name)
}

impl Architecture {
    /// How files of weights name the tensors.
    pub fn names(self) -> &'static WeightNames {
        match self {
            Architecture::ResNet { .. } | Architecture::ResNetCifar { .. } => &NAMES,
            Architecture::EfficientNet(_) => &EFFICIENTNET_NAMES,
        }
    }
}

impl ModelSpec {
    /// The published form of the network.
    pub fn options(&self) -> ModelOptions {
        let backbone = match self.architecture {
            Architecture::ResNet { .. } => BackboneOptions::ResNet(Backbone::new(64)),
            Architecture::ResNetCifar { .. } => BackboneOptions::ResNet(Backbone::new(16)),
            Architecture::EfficientNet(_) => BackboneOptions::EfficientNet(efficientnet::Backbone::default()),
        };
        ModelOptions {
            image_size: [self.image_size; 2],
            input: InputFormat::Bytes(PixelScale::IMAGENET),
            num_classes: self.num_classes,
            backbone,
            dropout: 0.0,
            seed: 0,
        }
    }

    /// # Errors
    /// As [`Model::infer`]; none for the published forms.
    pub fn summary(&self) -> Result<Summary, ModelError> {
        Ok(Summary::of(&Model::infer(self.architecture, &self.options(), 1)?))
    }
}
