//! The models there are.

use crate::ModelError;
use crate::bert::{BERTS, BertSpec};
use crate::classifier::{InputFormat, Model, ModelOptions, flops};
use crate::electra::{ELECTRA_SQUADS, ELECTRAS, ElectraSpec, ElectraSquadSpec};
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

/// A model of the zoo.
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

/// What a model costs at its default size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Numbers trained.
    pub parameters: u64,
    /// Tensors trained.
    pub tensors: usize,
    /// FLOPs of convolutions and matrix products in the forward pass of one sample.
    pub flops_per_sample: u64,
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

/// All models.
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

/// A model of any family.
#[derive(Clone, Copy, Debug)]
pub enum AnyModel {
    /// A ResNet.
    Classifier(&'static ModelSpec),
    /// A BERT, for pre-training.
    Bert(&'static BertSpec),
    /// An ELECTRA, for pre-training.
    Electra(&'static ElectraSpec),
    /// An ELECTRA that answers questions.
    ElectraSquad(&'static ElectraSquadSpec),
}

/// Short names of the reference models.
const SHORT_NAMES: [(&str, &str); 3] =
    [("bert", "bert-base"), ("electra", "electra-base"), ("electra-squad", "electra-base-squad")];

/// All models of all families.
pub fn all() -> impl Iterator<Item = AnyModel> {
    let text = BERTS.iter().map(AnyModel::Bert).chain(ELECTRAS.iter().map(AnyModel::Electra));
    ZOO.iter().map(AnyModel::Classifier).chain(text).chain(ELECTRA_SQUADS.iter().map(AnyModel::ElectraSquad))
}

/// The model named `name`, of any family; `bert`, `electra` and `electra-squad` are short for those of base size.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub fn find_any(name: &str) -> Result<AnyModel, ModelError> {
    let name = SHORT_NAMES.iter().find(|(short, _)| *short == name).map_or(name, |(_, full)| full);
    all().find(|model| model.name() == name).ok_or_else(|| ModelError::Unknown {
        name: name.to_string(),
        known: all().map(AnyModel::name).collect::<Vec<_>>().join(", "),
    })
}

/// The classifier named `name`.
///
/// # Errors
/// As [`find_any`]; [`ModelError::Setting`] for a model of another family.
pub fn find(name: &str) -> Result<&'static ModelSpec, ModelError> {
    match find_any(name)? {
        AnyModel::Classifier(spec) => Ok(spec),
        other => Err(ModelError::Setting {
            setting: "model",
            value: other.name().to_string(),
            allowed: "it must be a classifier of images here",
        }),
    }
}

impl AnyModel {
    /// Name in commands and recipes.
    pub fn name(self) -> &'static str {
        match self {
            AnyModel::Classifier(spec) => spec.name,
            AnyModel::Bert(spec) => spec.name,
            AnyModel::Electra(spec) => spec.name,
            AnyModel::ElectraSquad(spec) => spec.name,
        }
    }

    /// One line for lists of models.
    pub fn description(self) -> &'static str {
        match self {
            AnyModel::Classifier(spec) => spec.description,
            AnyModel::Bert(spec) => spec.description,
            AnyModel::Electra(spec) => spec.description,
            AnyModel::ElectraSquad(spec) => spec.description,
        }
    }

    /// Variants other than the default, by the options that choose them.
    pub fn variants(self) -> &'static [&'static str] {
        match self {
            AnyModel::Classifier(spec) => spec.variants,
            AnyModel::Bert(spec) => spec.variants,
            AnyModel::Electra(spec) => spec.variants,
            AnyModel::ElectraSquad(spec) => spec.variants,
        }
    }

    /// # Errors
    /// None for the published forms.
    pub fn summary(self) -> Result<Summary, ModelError> {
        match self {
            AnyModel::Classifier(spec) => spec.summary(),
            AnyModel::Bert(spec) => spec.summary(),
            AnyModel::Electra(spec) => spec.summary(),
            AnyModel::ElectraSquad(spec) => spec.summary(),
        }
    }
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
        Ok(summary(&Model::infer(self.architecture, &self.options(), 1)?))
    }
}

/// What the pass of one sample costs.
pub(crate) fn summary(model: &Model) -> Summary {
    let trained = || model.specs.iter().filter(|spec| spec.is_trainable());
    Summary {
        parameters: trained().map(|spec| spec.ty.shape.elements() as u64).sum(),
        tensors: trained().count(),
        flops_per_sample: flops(&model.graph),
    }
}
