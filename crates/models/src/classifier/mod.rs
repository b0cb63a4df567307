//! Image classifiers: options, and the graphs of a step around any network of the zoo.

mod names;
mod zoo;

pub(crate) use names::of_tensorflow;
pub use names::{EFFICIENTNET_NAMES, NAMES};
pub use zoo::{Architecture, ModelSpec, ZOO, find};

use crate::efficientnet::Scaling;
use crate::model::Model;
use crate::{ModelError, efficientnet, resnet, resnet_cifar};
use bessemer_ir::ops::index::Gather;
use bessemer_ir::{DType, Value};
use bessemer_nn::loss::cross_entropy;
use bessemer_nn::preprocess::{mix, normalise};
use bessemer_nn::train_step::build_train_step;
use bessemer_nn::{
    Builder, Init, Linear, LinearOptions, Mixup, Mode, PixelScale, Ranks, Result, Streams, Targets, TrainConfig,
};
use serde::{Deserialize, Serialize};

/// What the feed `images` holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputFormat {
    /// `u8[N, H, W, 3]`, normalised in the graph.
    Bytes(PixelScale),
    /// `f32[N, H, W, 3]`, normalised already.
    Normalised,
}

/// Whose initial distributions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitScheme {
    /// Convolutions normal of variance `2 / fan`; classifier of a ResNet uniform in `±1 / sqrt(inputs)`, with its bias, of an
    /// EfficientNet in `±1 / sqrt(classes)`, without.
    #[default]
    Torch,
    /// Convolutions truncated normal of variance `2 / fan`; classifier of a ResNet likewise, of an EfficientNet uniform in
    /// `±1 / sqrt(classes)`; no bias at first.
    #[serde(rename = "variance_scaling")]
    TensorFlow,
}

/// Variants of the network below the classifier, by the kind of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BackboneOptions {
    /// Of ResNets, for ImageNet and for CIFAR.
    ResNet(resnet::Backbone),
    /// Of EfficientNets.
    EfficientNet(efficientnet::Backbone),
}

/// Variants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOptions {
    /// `[H, W]`
    pub image_size: [usize; 2],
    /// What the feed `images` holds.
    pub input: InputFormat,
    /// Outputs of the classifier.
    pub num_classes: usize,
    /// The network below the classifier, of the architecture's kind.
    pub backbone: BackboneOptions,
    /// Share of the classifier's inputs that training leaves out, in `[0, 1)`.
    pub dropout: f64,
    /// Seed of dropout and stochastic depth.
    pub seed: u64,
}

impl ModelOptions {
    fn classifier(&self, inputs: usize) -> LinearOptions {
        let outputs = self.num_classes;
        match &self.backbone {
            BackboneOptions::ResNet(backbone) => match backbone.init {
                InitScheme::Torch => LinearOptions::uniform(inputs, outputs),
                InitScheme::TensorFlow => {
                    LinearOptions { outputs, weight: Init::TruncatedNormal(backbone.fan), bias: Init::Zeros }
                }
            },
            BackboneOptions::EfficientNet(_) => {
                let weight = Init::Uniform { bound: 1.0 / (outputs as f64).sqrt() };
                LinearOptions { outputs, weight, bias: Init::Zeros }
            }
        }
    }
}

/// What samples are mixed by, and how their shares are fed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixupWeight {
    /// One share for the batch, `f32[]`, each sample with another one at random (NVIDIA, PyTorch).
    #[default]
    Batch,
    /// One for each sample, `f32[N]`, each with the one as far from the end (NVIDIA, TensorFlow 1).
    Sample,
}

/// The loss of a training step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossOptions {
    /// Share of each target that is spread evenly over all classes, in `[0, 1)`.
    pub label_smoothing: f64,
    /// Adds the feeds `mixup_order`, `i32[N]`, and `mixup_weight`. Sample `i`, image and label, becomes `weight` of itself and
    /// `1 - weight` of sample `mixup_order[i]`.
    pub mixup: Option<MixupWeight>,
}

impl Model {
    /// Forward pass of a batch. Feed: `images`. Output: `logits`, `f32[N, num_classes]`.
    ///
    /// # Errors
    /// [`ModelError::Setting`] where an option is out of range or of another architecture, [`ModelError::Graph`] where the image is too small.
    pub fn infer(
        architecture: Architecture,
        options: &ModelOptions,
        batch: usize,
    ) -> std::result::Result<Model, ModelError> {
        check(architecture, options, batch)?;
        let mut b = Builder::new(Mode::Infer);
        let images = feed_images(&mut b, options, batch)?;
        let images = normalised(&mut b, images, options)?;
        logits(&mut b, images, architecture, options)?;
        let (graph, specs) = b.finish();
        Ok(Model { graph, specs, names: architecture.names() })
    }

    /// A whole training step. Feeds: `images`, `labels` (`i32[N]`) and those of mixup. Outputs: `logits`, `loss`, `lr` and,
    /// if asked for, `grad_norm`.
    ///
    /// # Errors
    /// As [`Model::infer`].
    pub fn train(
        architecture: Architecture,
        options: &ModelOptions,
        loss: &LossOptions,
        train: &TrainConfig,
        batch: usize,
    ) -> std::result::Result<Model, ModelError> {
        let (mut b, loss) = forward_loss(architecture, options, loss, batch, train.ranks)?;
        build_train_step(&mut b, loss, train)?;
        let (graph, specs) = b.finish();
        Ok(Model { graph, specs, names: architecture.names() })
    }
}

/// The part of a training step before the backward pass, and its loss `f32[]`.
///
/// # Errors
/// As [`Model::infer`].
pub fn forward_loss(
    architecture: Architecture,
    options: &ModelOptions,
    loss: &LossOptions,
    batch: usize,
    ranks: Ranks,
) -> std::result::Result<(Builder, Value), ModelError> {
    check(architecture, options, batch)?;
    let mut b = Builder::training(ranks);
    let mut images = feed_images(&mut b, options, batch)?;
    let mut targets = Targets::new(b.feed("labels", DType::I32, [batch])?);
    if let Some(weight) = loss.mixup {
        (images, targets) = mixed(&mut b, images, targets.labels, weight)?;
    }
    let images = normalised(&mut b, images, options)?;
    let logits = logits(&mut b, images, architecture, options)?;
    let loss = b.scope("loss", |b| cross_entropy(&mut b.graph, logits, &targets, loss.label_smoothing))?;
    Ok((b, loss))
}

fn check(architecture: Architecture, options: &ModelOptions, batch: usize) -> std::result::Result<(), ModelError> {
    let [height, width] = options.image_size;
    for (setting, value) in
        [("batch_size", batch), ("num_classes", options.num_classes), ("image height", height), ("image width", width)]
    {
        at_least_1(setting, value)?;
    }
    check_rate("dropout", options.dropout)?;
    match (architecture, &options.backbone) {
        (Architecture::ResNet { .. } | Architecture::ResNetCifar { .. }, BackboneOptions::ResNet(backbone)) => {
            check_resnet(architecture, backbone)
        }
        (Architecture::EfficientNet(scaling), BackboneOptions::EfficientNet(backbone)) => {
            check_efficientnet(scaling, backbone)
        }
        (_, backbone) => Err(ModelError::Setting {
            setting: "backbone",
            value: format!("{backbone:?}"),
            allowed: "it must be of the kind of the architecture".into(),
        }),
    }
}

fn check_resnet(architecture: Architecture, backbone: &resnet::Backbone) -> std::result::Result<(), ModelError> {
    at_least_1("base_width", backbone.base_width)?;
    let (is_cifar, parts, allowed) = match architecture {
        Architecture::ResNetCifar { .. } => (true, 4, "it must be at most 4, the stem and three stages"),
        _ => (false, 5, "it must be at most 5, the stem and four stages"),
    };
    if is_cifar && !backbone.base_width.is_multiple_of(2) {
        let value = backbone.base_width.to_string();
        return Err(ModelError::Setting { setting: "base_width", value, allowed: "it must be even here".into() });
    }
    check_frozen(backbone.freeze_at, parts, allowed)
}

fn check_efficientnet(scaling: Scaling, backbone: &efficientnet::Backbone) -> std::result::Result<(), ModelError> {
    for (setting, factor) in [("width", scaling.width), ("depth", scaling.depth)] {
        if !(factor > 0.0 && factor <= efficientnet::MAX_FACTOR) {
            let allowed = "it must be above 0 and at most 16";
            return Err(ModelError::Setting { setting, value: factor.to_string(), allowed: allowed.into() });
        }
    }
    check_rate("drop_path", backbone.drop_path)?;
    check_frozen(backbone.freeze_at, efficientnet::PARTS, "it must be at most 8, the stem and seven stages")
}

fn at_least_1(setting: &'static str, value: usize) -> std::result::Result<(), ModelError> {
    if value > 0 {
        return Ok(());
    }
    Err(ModelError::Setting { setting, value: value.to_string(), allowed: "it must be at least 1".into() })
}

fn check_rate(setting: &'static str, rate: f64) -> std::result::Result<(), ModelError> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(ModelError::Setting { setting, value: rate.to_string(), allowed: "it must be at least 0 and below 1".into() })
}

fn check_frozen(freeze_at: usize, parts: usize, allowed: &'static str) -> std::result::Result<(), ModelError> {
    if freeze_at <= parts {
        return Ok(());
    }
    Err(ModelError::Setting { setting: "freeze_at", value: freeze_at.to_string(), allowed: allowed.into() })
}

fn feed_images(b: &mut Builder, options: &ModelOptions, batch: usize) -> Result<Value> {
    let [height, width] = options.image_size;
    let dtype = match options.input {
        InputFormat::Bytes(_) => DType::U8,
        InputFormat::Normalised => DType::F32,
    };
    b.feed("images", dtype, [batch, height, width, 3])
}

/// Mixes images and labels as the order says. The images are `f32` then.
fn mixed(b: &mut Builder, images: Value, labels: Value, weight: MixupWeight) -> Result<(Value, Targets)> {
    let batch = b.graph.shape(labels).elements();
    let order = b.feed("mixup_order", DType::I32, [batch])?;
    let weight = match weight {
        MixupWeight::Batch => b.feed("mixup_weight", DType::F32, [])?,
        MixupWeight::Sample => b.feed("mixup_weight", DType::F32, [batch])?,
    };
    b.scope("mixup", |b| {
        let g = &mut b.graph;
        let others = g.push1(Gather::ROWS, &[images, order])?;
        let second = g.push1(Gather::ROWS, &[labels, order])?;
        let (first, others) = (g.cast(images, DType::F32)?, g.cast(others, DType::F32)?);
        let images = mix(g, first, others, weight)?;
        Ok((images, Targets { labels, mixup: Some(Mixup { labels: second, weight }) }))
    })
}

fn normalised(b: &mut Builder, images: Value, options: &ModelOptions) -> Result<Value> {
    match options.input {
        InputFormat::Bytes(scale) => b.scope("normalise", |b| normalise(&mut b.graph, images, &scale)),
        InputFormat::Normalised => Ok(images),
    }
}

/// The network; its result is the output `logits`.
fn logits(b: &mut Builder, images: Value, architecture: Architecture, options: &ModelOptions) -> Result<Value> {
    let mut streams = Streams::new(options.seed);
    let (features, name) = match (architecture, &options.backbone) {
        (Architecture::ResNet { block, depths }, BackboneOptions::ResNet(backbone)) => {
            let features = resnet::features(b, images, block, depths, backbone)?;
            (b.scope("avgpool", |b| b.global_avg_pool(features.c5))?, "fc")
        }
        (Architecture::ResNetCifar { depth }, BackboneOptions::ResNet(backbone)) => {
            (resnet_cifar::features(b, images, depth, backbone)?, "linear")
        }
        (Architecture::EfficientNet(scaling), BackboneOptions::EfficientNet(backbone)) => {
            let features = efficientnet::features(b, images, scaling, backbone, &mut streams)?;
            (efficientnet::head(b, features.p5, scaling, backbone)?, "classifier")
        }
        _ => unreachable!("options are checked before"),
    };
    let inputs = b.graph.shape(features).cols();
    let features = b.scope("dropout", |b| b.dropout(features, options.dropout, streams.next_stream()))?;
    let logits = Linear::new(b, name, inputs, options.classifier(inputs))?.apply(b, features)?;
    b.graph.output("logits", logits);
    Ok(logits)
}
