//! ResNets for ImageNet.
//!
//! He, Zhang, Ren, Sun: "Deep residual learning for image recognition", 2015 (v1). In v1.5 the stride of a bottleneck is in
//! its 3x3 convolution. The zero start of the last scale is from Goyal et al.: "Accurate, large minibatch SGD", 2017.
//! Parameters are named as in torchvision.

use crate::classifier::ModelOptions;
use bessemer_ir::Value;
use bessemer_nn::{BatchNorm, Builder, Conv, Init, MaxPool, Result};
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

/// Everything below the classifier: `[N, H, W, 3]` to `[N, C]`.
pub(crate) fn features(
    b: &mut Builder,
    images: Value,
    block: Block,
    depths: [usize; 4],
    options: &ModelOptions,
) -> Result<Value> {
    let width = options.base_width;
    let x = b.conv2d("conv1", images, options.conv(width, 7, 2))?;
    let x = b.batch_norm("bn1", x, BatchNorm::default())?;
    let x = b.graph.relu(x)?;
    let pool = MaxPool { window: 3, stride: 2, padding: options.padding };
    let mut x = b.scope("maxpool", |b| b.max_pool(x, pool))?;
    for (stage, depth) in depths.into_iter().enumerate() {
        let stride = if stage == 0 { 1 } else { 2 };
        let name = format!("layer{}", stage + 1);
        x = b.scope(&name, |b| layer(b, x, block, depth, width << stage, stride, options))?;
    }
    b.scope("avgpool", |b| b.global_avg_pool(x))
}

/// Blocks of one width, the first with the stride.
fn layer(
    b: &mut Builder,
    mut x: Value,
    block: Block,
    depth: usize,
    width: usize,
    stride: usize,
    options: &ModelOptions,
) -> Result<Value> {
    for index in 0..depth {
        let stride = if index == 0 { stride } else { 1 };
        x = b.scope(&index.to_string(), |b| residual(b, x, block, width, stride, options))?;
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
    options: &ModelOptions,
) -> Result<Value> {
    let branch = match block {
        Block::Basic => basic_branch(b, x, width, stride, options)?,
        Block::Bottleneck => bottleneck_branch(b, x, width, stride, options)?,
    };
    let channels = width * block.expansion();
    let shortcut = if stride == 1 && b.graph.shape(x).cols() == channels {
        x
    } else {
        b.scope("downsample", |b| {
            let projected = b.conv2d("0", x, options.conv(channels, 1, stride))?;
            b.batch_norm("1", projected, BatchNorm::default())
        })?
    };
    let sum = b.graph.add_(branch, shortcut)?;
    b.graph.relu(sum)
}

pub(crate) fn basic_branch(
    b: &mut Builder,
    x: Value,
    width: usize,
    stride: usize,
    options: &ModelOptions,
) -> Result<Value> {
    let x = conv_bn(b, 1, x, options.conv(width, 3, stride), Init::Ones)?;
    let x = b.graph.relu(x)?;
    conv_bn(b, 2, x, options.conv(width, 3, 1), options.last_gamma())
}

fn bottleneck_branch(b: &mut Builder, x: Value, width: usize, stride: usize, options: &ModelOptions) -> Result<Value> {
    let (stride1, stride2) = match options.stride_in {
        StrideIn::Conv1 => (stride, 1),
        StrideIn::Conv2 => (1, stride),
    };
    let x = conv_bn(b, 1, x, options.conv(width, 1, stride1), Init::Ones)?;
    let x = b.graph.relu(x)?;
    let x = conv_bn(b, 2, x, options.conv(width, 3, stride2), Init::Ones)?;
    let x = b.graph.relu(x)?;
    conv_bn(b, 3, x, options.conv(width * Block::Bottleneck.expansion(), 1, 1), options.last_gamma())
}

/// `conv{index}` and `bn{index}`.
fn conv_bn(b: &mut Builder, index: usize, x: Value, conv: Conv, gamma: Init) -> Result<Value> {
    let x = b.conv2d(&format!("conv{index}"), x, conv)?;
    b.batch_norm(&format!("bn{index}"), x, BatchNorm { gamma, ..BatchNorm::default() })
}
