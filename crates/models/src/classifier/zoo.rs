//! The classifiers there are.

use super::{InputFormat, ModelOptions};
use crate::ModelError;
use crate::model::{Model, Summary};
use crate::resnet::{Backbone, Block};
use bessemer_nn::PixelScale;

/// A network up to its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Variants other than the default, by the options that choose them.
    pub variants: &'static [&'static str],
}

const RESNET: &[&str] = &["padding = same (TensorFlow)", "zero_init_last_gamma", "base_width", "num_classes"];
const RESNET_BOTTLENECK: &[&str] =
    &["stride_in = conv1 (v1)", "padding = same (TensorFlow)", "zero_init_last_gamma", "base_width", "num_classes"];
const RESNET_CIFAR: &[&str] = &["zero_init_last_gamma", "base_width", "num_classes"];

const fn basic(name: &'static str, description: &'static str, depths: [usize; 4]) -> ModelSpec {
    let architecture = Architecture::ResNet { block: Block::Basic, depths };
    ModelSpec { name, description, architecture, variants: RESNET }
}

const fn bottleneck(name: &'static str, description: &'static str, depths: [usize; 4]) -> ModelSpec {
    let architecture = Architecture::ResNet { block: Block::Bottleneck, depths };
    ModelSpec { name, description, architecture, variants: RESNET_BOTTLENECK }
}

const fn cifar(name: &'static str, description: &'static str, depth: usize) -> ModelSpec {
    ModelSpec { name, description, architecture: Architecture::ResNetCifar { depth }, variants: RESNET_CIFAR }
}

/// All classifiers.
pub const ZOO: &[ModelSpec] = &[
    basic("resnet18", "ResNet-18 for ImageNet", [2, 2, 2, 2]),
    basic("resnet34", "ResNet-34 for ImageNet", [3, 4, 6, 3]),
    bottleneck("resnet50", "ResNet-50 v1.5 for ImageNet", [3, 4, 6, 3]),
    bottleneck("resnet101", "ResNet-101 v1.5 for ImageNet", [3, 4, 23, 3]),
    bottleneck("resnet152", "ResNet-152 v1.5 for ImageNet", [3, 8, 36, 3]),
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
    ZOO.iter().find(|spec| spec.name == name).ok_or_else(|| ModelError::Unknown {
        name: name.to_string(),
        known: ZOO.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", "),
    })
}

impl Architecture {
    /// The published form of the network.
    pub fn options(self) -> ModelOptions {
        let (side, num_classes, base_width) = match self {
            Architecture::ResNet { .. } => (224, 1000, 64),
            Architecture::ResNetCifar { .. } => (32, 10, 16),
        };
        ModelOptions {
            image_size: [side; 2],
            input: InputFormat::Bytes(PixelScale::IMAGENET),
            num_classes,
            backbone: Backbone::new(base_width),
        }
    }
}

impl ModelSpec {
    /// The published form of the network.
    pub fn options(&self) -> ModelOptions {
        self.architecture.options()
    }

    /// # Errors
    /// As [`Model::infer`]; none for the published forms.
    pub fn summary(&self) -> Result<Summary, ModelError> {
        Ok(Summary::of(&Model::infer(self.architecture, &self.options(), 1)?))
    }
}
