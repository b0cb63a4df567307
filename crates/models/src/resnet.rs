//! ResNets for ImageNet.
//!
//! He, Zhang, Ren, Sun: "Deep residual learning for image recognition", 2015 (v1). In v1.5 the stride of a bottleneck is in
//! its 3x3 convolution. The zero start of the last scale is from Goyal et al.: "Accurate, large minibatch SGD", 2017.
//! Parameters are named as in torchvision.

use crate::classifier::InitScheme;
use bessemer_ir::Value;
use bessemer_nn::{BatchNorm, BatchNormOptions, Builder, Conv, ConvOptions, Fan, Init, MaxPool, Padding, Result};
use serde::{Deserialize, Serialize};

/// Residual block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// 3x3, 3x3.
    Basic,
    /// 1x1, 3x3, 1x1 to four times the width.
    Bottleneck,
}

impl Block {
    /// Output channels divided by the width of the block.
    pub fn expansion(self) -> usize {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

/// The convolution of a bottleneck that has the stride.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StrideIn {
    /// The first 1x1: v1.
    #[serde(rename = "1x1")]
    Conv1,
    /// The 3x3: v1.5.
    #[default]
    #[serde(rename = "3x3")]
    Conv2,
}

/// Variants of a residual network without its classifier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backbone {
    /// Channels of the first convolution.
    pub base_width: usize,
    /// How windows are placed at the borders.
    pub padding: Padding,
    /// The convolution of a bottleneck that has the stride.
    pub stride_in: StrideIn,
    /// Distributions of initial weights.
    pub init: InitScheme,
    /// What the variance of initial weights is divided by.
    pub fan: Fan,
    /// Whether the last scale of each residual branch starts at 0.
    pub zero_init_last_gamma: bool,
    /// Epsilon and momentum of all norms, and whether all are frozen. The initial scale is that of all norms but the last ones of
    /// branches that start at 0.
    pub norm: BatchNormOptions,
    /// How many parts are not trained: 0 for none, 1 for the stem, 2 for the stem and the first stage (C2), and so on.
    pub freeze_at: usize,
}

impl Backbone {
    /// The published form with a first convolution of `base_width` channels.
    pub fn new(base_width: usize) -> Self {
        Backbone {
            base_width,
            padding: Padding::Symmetric,
            stride_in: StrideIn::Conv2,
            init: InitScheme::Torch,
            fan: Fan::In,
            zero_init_last_gamma: false,
            norm: BatchNormOptions::default(),
            freeze_at: 0,
        }
    }

    pub(crate) fn conv(&self, channels: usize, kernel: usize, stride: usize) -> ConvOptions {
        let init = match self.init {
            InitScheme::Torch => Init::KaimingNormal(self.fan),
            InitScheme::TensorFlow => Init::TruncatedNormal(self.fan),
        };
        ConvOptions { stride, padding: self.padding, ..ConvOptions::new(channels, kernel, init) }
    }

    /// Options of the last norm of a residual branch.
    fn last_norm(&self) -> BatchNormOptions {
        if self.zero_init_last_gamma { BatchNormOptions { gamma: Init::Zeros, ..self.norm } } else { self.norm }
    }
}

/// Feature maps of a ResNet, `[N, H / s, W / s, C]` with the stride `s` of each stage.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Stride 4, from `layer1`.
    pub c2: Value,
    /// Stride 8, from `layer2`.
    pub c3: Value,
    /// Stride 16, from `layer3`.
    pub c4: Value,
    /// Stride 32, from `layer4`.
    pub c5: Value,
}

/// The stem and the four stages of `depths` blocks on `images [N, H, W, 3]`.
///
/// # Errors
/// An image that is too small.
pub fn features(
    b: &mut Builder,
    images: Value,
    block: Block,
    depths: [usize; 4],
    backbone: &Backbone,
) -> Result<Features> {
    let width = backbone.base_width;
    let mut x = b.frozen_if(backbone.freeze_at > 0, |b| {
        let x = stem(b, images, backbone.conv(width, 7, 2), backbone.norm)?;
        let pool = MaxPool { window: 3, stride: 2, padding: backbone.padding };
        b.scope("maxpool", |b| b.max_pool(x, pool))
    })?;
    let mut stages = Vec::with_capacity(depths.len());
    for (stage, depth) in depths.into_iter().enumerate() {
        let stride = if stage == 0 { 1 } else { 2 };
        let name = format!("layer{}", stage + 1);
        x = b.frozen_if(stage + 1 < backbone.freeze_at, |b| {
            b.scope(&name, |b| layer(b, x, block, depth, width << stage, stride, backbone))
        })?;
        stages.push(x);
    }
    Ok(Features { c2: stages[0], c3: stages[1], c4: stages[2], c5: stages[3] })
}

/// The first convolution, `conv1`, with its norm and activation.
pub(crate) fn stem(b: &mut Builder, images: Value, conv: ConvOptions, norm: BatchNormOptions) -> Result<Value> {
    let inputs = b.graph.shape(images).cols();
    let x = Conv::new(b, "conv1", inputs, conv)?.apply(b, images)?;
    let x = BatchNorm::new(b, "bn1", conv.channels, norm)?.apply(b, x)?;
    b.graph.relu(x)
}

/// Blocks of one width, the first with the stride.
fn layer(
    b: &mut Builder,
    mut x: Value,
    block: Block,
    depth: usize,
    width: usize,
    stride: usize,
    backbone: &Backbone,
) -> Result<Value> {
    for index in 0..depth {
        let stride = if index == 0 { stride } else { 1 };
        x = b.scope(&index.to_string(), |b| residual(b, x, block, width, stride, backbone))?;
    }
    Ok(x)
}

/// `relu(branch(x) + shortcut(x))`
fn residual(
    b: &mut Builder,
    x: Value,
    block: Block,
    width: usize,
    stride: usize,
    backbone: &Backbone,
) -> Result<Value> {
    let branch = match block {
        Block::Basic => basic_branch(b, x, width, stride, backbone)?,
        Block::Bottleneck => bottleneck_branch(b, x, width, stride, backbone)?,
    };
    let channels = width * block.expansion();
    let shortcut = if stride == 1 && b.graph.shape(x).cols() == channels {
        x
    } else {
        b.scope("downsample", |b| {
            let inputs = b.graph.shape(x).cols();
            let projected = Conv::new(b, "0", inputs, backbone.conv(channels, 1, stride))?.apply(b, x)?;
            BatchNorm::new(b, "1", channels, backbone.norm)?.apply(b, projected)
        })?
    };
    let sum = b.graph.add(branch, shortcut)?;
    b.graph.relu(sum)
}

pub(crate) fn basic_branch(
    b: &mut Builder,
    x: Value,
    width: usize,
    stride: usize,
    backbone: &Backbone,
) -> Result<Value> {
    let x = conv_bn(b, 1, x, backbone.conv(width, 3, stride), backbone.norm)?;
    let x = b.graph.relu(x)?;
    conv_bn(b, 2, x, backbone.conv(width, 3, 1), backbone.last_norm())
}

fn bottleneck_branch(b: &mut Builder, x: Value, width: usize, stride: usize, backbone: &Backbone) -> Result<Value> {
    let (stride1, stride2) = match backbone.stride_in {
        StrideIn::Conv1 => (stride, 1),
        StrideIn::Conv2 => (1, stride),
    };
    let x = conv_bn(b, 1, x, backbone.conv(width, 1, stride1), backbone.norm)?;
    let x = b.graph.relu(x)?;
    let x = conv_bn(b, 2, x, backbone.conv(width, 3, stride2), backbone.norm)?;
    let x = b.graph.relu(x)?;
    conv_bn(b, 3, x, backbone.conv(width * Block::Bottleneck.expansion(), 1, 1), backbone.last_norm())
}

/// `conv{index}` and `bn{index}`.
fn conv_bn(b: &mut Builder, index: usize, x: Value, conv: ConvOptions, norm: BatchNormOptions) -> Result<Value> {
    let inputs = b.graph.shape(x).cols();
    let x = Conv::new(b, &format!("conv{index}"), inputs, conv)?.apply(b, x)?;
    BatchNorm::new(b, &format!("bn{index}"), conv.channels, norm)?.apply(b, x)
}
