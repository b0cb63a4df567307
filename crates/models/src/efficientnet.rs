//! EfficientNets: image classifiers, and the backbones of EfficientDets.
//!
//! Tan, Le: "EfficientNet: rethinking model scaling for convolutional neural networks", 2019 (arXiv:1905.11946). Blocks are
//! inverted residuals (Sandler et al. 2018, arXiv:1801.04381) with squeeze-and-excitation. Parameters are named as in timm.

use crate::classifier::InitScheme;
use bessemer_ir::Value;
use bessemer_nn::{
    BatchNorm, BatchNormOptions, Builder, Conv, ConvOptions, Fan, Init, Padding, Result, SqueezeExcite,
    SqueezeExciteOptions, Streams,
};

/// What the widths and depths of B0 are multiplied with (section 3.3 of the paper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Factor of all channel counts.
    pub width: f64,
    /// Factor of the number of blocks of each stage.
    pub depth: f64,
}

impl Scaling {
    /// B0 to B7.
    pub const B: [Scaling; 8] = [
        Scaling { width: 1.0, depth: 1.0 },
        Scaling { width: 1.0, depth: 1.1 },
        Scaling { width: 1.1, depth: 1.2 },
        Scaling { width: 1.2, depth: 1.4 },
        Scaling { width: 1.4, depth: 1.8 },
        Scaling { width: 1.6, depth: 2.2 },
        Scaling { width: 1.8, depth: 2.6 },
        Scaling { width: 2.0, depth: 3.1 },
    ];

    /// `width * channels` as the nearest multiple of 8 that is at least 8 and not more than a tenth below.
    pub fn channels(self, channels: usize) -> usize {
        let scaled = self.width * channels as f64;
        let rounded = ((scaled + 4.0) as usize / 8 * 8).max(8);
        if (rounded as f64) < 0.9 * scaled { rounded + 8 } else { rounded }
    }

    /// `depth * blocks`, rounded up.
    pub fn blocks(self, blocks: usize) -> usize {
        (self.depth * blocks as f64).ceil() as usize
    }

    /// Blocks of all stages.
    pub fn depth(self) -> usize {
        STAGES.iter().map(|stage| self.blocks(stage.blocks)).sum()
    }
}

/// Blocks of one kind, the first of which has the stride.
struct Stage {
    kernel: usize,
    /// Channels of the depthwise convolution divided by those of the block's input.
    expansion: usize,
    stride: usize,
    channels: usize,
    blocks: usize,
}

const fn stage(kernel: usize, expansion: usize, stride: usize, channels: usize, blocks: usize) -> Stage {
    Stage { kernel, expansion, stride, channels, blocks }
}

/// Table 1 of the paper.
const STAGES: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 6, 2, 24, 2),
    stage(5, 6, 2, 40, 2),
    stage(3, 6, 2, 80, 3),
    stage(5, 6, 1, 112, 3),
    stage(5, 6, 2, 192, 4),
    stage(3, 6, 1, 320, 1),
];

/// Channels of the first convolution.
const STEM: usize = 32;
/// Channels of the last convolution.
const HEAD: usize = 1280;
/// Channels of a block's input divided by those within its squeeze-and-excitation.
const SQUEEZE: usize = 4;

/// The largest factor of widths and depths.
pub(crate) const MAX_FACTOR: f64 = 16.0;

/// Parts that can be frozen: the stem and the stages.
pub(crate) const PARTS: usize = 1 + STAGES.len();

/// Variants of an EfficientNet without its classifier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backbone {
    /// How windows are placed at the borders: `Same` in the paper and in weights that come from TensorFlow.
    pub padding: Padding,
    /// Distributions of initial weights.
    pub init: InitScheme,
    /// Epsilon and momentum of all norms, and whether all are frozen. The initial scale is that of all norms but the last ones of
    /// branches that start at 0.
    pub norm: BatchNormOptions,
    /// Whether the last scale of each residual branch starts at 0.
    pub zero_init_last_gamma: bool,
    /// Share of the samples for which the last block with a shortcut would be left out in training; in earlier blocks the share
    /// is smaller in proportion to their number (Huang et al. 2016, arXiv:1603.09382).
    pub drop_path: f64,
    /// How many parts are not trained: 0 for none, 1 for the stem, 2 for the stem and the first stage, and so on.
    pub freeze_at: usize,
}

impl Default for Backbone {
    /// timm's `efficientnet_b0`. `tf_efficientnet_b0` has `Same` padding and an epsilon of 1e-3.
    fn default() -> Self {
        Backbone {
            padding: Padding::Symmetric,
            init: InitScheme::Torch,
            norm: BatchNormOptions::default(),
            zero_init_last_gamma: false,
            drop_path: 0.0,
            freeze_at: 0,
        }
    }
}

impl Backbone {
    /// Normal of variance 2 over the outputs that an input reaches (timm), or truncated normal of variance 2 over the inputs as
    /// Keras counts them, which for a depthwise convolution are those of all channels.
    fn init(&self, is_depthwise: bool) -> Init {
        match (self.init, is_depthwise) {
            (InitScheme::Torch, false) => Init::KaimingNormal(Fan::Out),
            (InitScheme::Torch, true) => Init::KaimingNormal(Fan::In),
            (InitScheme::TensorFlow, false) => Init::TruncatedNormal(Fan::In),
            (InitScheme::TensorFlow, true) => Init::TruncatedNormal(Fan::Out),
        }
    }

    fn conv(&self, channels: usize, kernel: usize, stride: usize) -> ConvOptions {
        ConvOptions { stride, padding: self.padding, ..ConvOptions::new(channels, kernel, self.init(false)) }
    }

    fn depthwise(&self, channels: usize, kernel: usize, stride: usize) -> ConvOptions {
        ConvOptions { groups: channels, init: self.init(true), ..self.conv(channels, kernel, stride) }
    }
}

/// Feature maps of an EfficientNet, `[N, H / s, W / s, C]` with the stride `s` of each level.
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Stride 8, from `blocks.2`.
    pub p3: Value,
    /// Stride 16, from `blocks.4`.
    pub p4: Value,
    /// Stride 32, from `blocks.6`.
    pub p5: Value,
}

/// The stem and the seven stages on `images [N, H, W, 3]`. Stochastic depth takes a stream for each block with a shortcut.
///
/// # Errors
/// An image that is too small.
pub fn features(
    b: &mut Builder,
    images: Value,
    scaling: Scaling,
    backbone: &Backbone,
    streams: &mut Streams,
) -> Result<Features> {
    let mut x = b.frozen_if(backbone.freeze_at > 0, |b| {
        let stem = backbone.conv(scaling.channels(STEM), 3, 2);
        let x = conv_bn(b, ["conv_stem", "bn1"], images, stem, backbone.norm)?;
        b.swish(x)
    })?;
    let (mut index, depth) = (0, scaling.depth());
    let mut maps = Vec::with_capacity(STAGES.len());
    for (number, stage) in STAGES.iter().enumerate() {
        let is_frozen = number + 1 < backbone.freeze_at;
        for repeat in 0..scaling.blocks(stage.blocks) {
            let block = Block {
                kernel: stage.kernel,
                expansion: stage.expansion,
                stride: if repeat == 0 { stage.stride } else { 1 },
                channels: scaling.channels(stage.channels),
                drop_path: backbone.drop_path * index as f64 / depth as f64,
            };
            let name = format!("blocks.{number}.{repeat}");
            x = b.frozen_if(is_frozen, |b| b.scope(&name, |b| block.apply(b, x, backbone, streams)))?;
            index += 1;
        }
        maps.push(x);
    }
    Ok(Features { p3: maps[2], p4: maps[4], p5: maps[6] })
}

/// The last convolution with its norm and activation, and the mean over H and W: `p5 [N, H, W, C]` to `[N, C]`.
pub(crate) fn head(b: &mut Builder, p5: Value, scaling: Scaling, backbone: &Backbone) -> Result<Value> {
    let x = conv_bn(b, ["conv_head", "bn2"], p5, backbone.conv(scaling.channels(HEAD), 1, 1), backbone.norm)?;
    let x = b.swish(x)?;
    b.scope("global_pool", |b| b.global_avg_pool(x))
}

/// An inverted residual block.
struct Block {
    kernel: usize,
    expansion: usize,
    stride: usize,
    channels: usize,
    /// Share of the samples for which training leaves the block out.
    drop_path: f64,
}

impl Block {
    /// Expansion unless it is by 1, depthwise convolution, squeeze-and-excitation, projection; then `x` is added where it has
    /// the shape of the result.
    fn apply(&self, b: &mut Builder, x: Value, backbone: &Backbone, streams: &mut Streams) -> Result<Value> {
        let inputs = b.graph.shape(x).cols();
        let expanded = inputs * self.expansion;
        let has_shortcut = self.stride == 1 && inputs == self.channels;
        let (mut y, depthwise_bn, project) = if self.expansion == 1 {
            (x, "bn1", ["conv_pw", "bn2"])
        } else {
            let y = conv_bn(b, ["conv_pw", "bn1"], x, backbone.conv(expanded, 1, 1), backbone.norm)?;
            (b.swish(y)?, "bn2", ["conv_pwl", "bn3"])
        };
        let depthwise = backbone.depthwise(expanded, self.kernel, self.stride);
        y = conv_bn(b, ["conv_dw", depthwise_bn], y, depthwise, backbone.norm)?;
        y = b.swish(y)?;
        let reduced = (inputs / SQUEEZE).max(1);
        let squeeze = SqueezeExciteOptions { channels: expanded, reduced, init: backbone.init(false) };
        y = SqueezeExcite::new(b, "se", squeeze)?.apply(b, y)?;
        let zero = if has_shortcut && backbone.zero_init_last_gamma { Init::Zeros } else { backbone.norm.gamma };
        let norm = BatchNormOptions { gamma: zero, ..backbone.norm };
        y = conv_bn(b, project, y, backbone.conv(self.channels, 1, 1), norm)?;
        if !has_shortcut {
            return Ok(y);
        }
        let random = streams.next_stream();
        y = b.scope("drop_path", |b| b.drop_path(y, self.drop_path, random))?;
        b.graph.add(y, x)
    }
}

/// A convolution and a norm, by their names.
fn conv_bn(
    b: &mut Builder,
    [conv, bn]: [&str; 2],
    x: Value,
    options: ConvOptions,
    norm: BatchNormOptions,
) -> Result<Value> {
    let inputs = b.graph.shape(x).cols();
    let x = Conv::new(b, conv, inputs, options)?.apply(b, x)?;
    BatchNorm::new(b, bn, options.channels, norm)?.apply(b, x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_and_depths_are_rounded_as_in_the_paper() {
        let b0 = Scaling::B[0];
        assert!(STAGES.iter().all(|stage| b0.channels(stage.channels) == stage.channels));
        assert_eq!(b0.depth(), 16);
        // 44 and 28.8 are nearer to what is above them; 8 instead of 10 would be a fifth less.
        assert_eq!(Scaling::B[2].channels(40), 48);
        assert_eq!([Scaling::B[3].channels(24), Scaling::B[3].channels(32)], [32, 40]);
        assert_eq!([0.125, 0.25].map(|width| Scaling { width, depth: 1.0 }.channels(40)), [8, 16]);
        assert_eq!(Scaling { width: 0.125, depth: 1.0 }.channels(80), 16);
        assert_eq!([1, 2, 3, 4].map(|blocks| Scaling::B[1].blocks(blocks)), [2, 3, 4, 5]);
        assert_eq!(Scaling::B[7].depth(), 55);
    }
}
