//! Squeeze-and-excitation: channels weighted by what the whole image holds.

use super::{Conv, ConvOptions, image_axes};
use crate::Result;
use crate::builder::Builder;
use crate::init::Init;
use bessemer_ir::Value;
use bessemer_ir::ops::pointwise::UnaryKind;

/// Settings of a [`SqueezeExcite`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SqueezeExciteOptions {
    /// Channels of the image.
    pub channels: usize,
    /// Channels between both layers.
    pub reduced: usize,
    /// Initial weights of both layers; their biases are 0 at first.
    pub init: Init,
}

/// Squeeze-and-excitation with swish (Hu et al. 2018, arXiv:1709.01507, section 3; Tan and Le 2019, arXiv:1905.11946).
#[derive(Clone, Debug)]
pub struct SqueezeExcite {
    name: String,
    reduce: Conv,
    expand: Conv,
}

impl SqueezeExcite {
    /// Declares weight and bias of `name.conv_reduce` and `name.conv_expand`, 1x1 convolutions.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, options: SqueezeExciteOptions) -> Result<Self> {
        let SqueezeExciteOptions { channels, reduced, init } = options;
        let conv = |channels| ConvOptions { bias: Some(Init::Zeros), ..ConvOptions::new(channels, 1, init) };
        b.scope(name, |b| {
            let reduce = Conv::new(b, "conv_reduce", channels, conv(reduced))?;
            let expand = Conv::new(b, "conv_expand", reduced, conv(channels))?;
            Ok(SqueezeExcite { name: name.to_string(), reduce, expand })
        })
    }

    /// `x * sigmoid(expand(swish(reduce(mean of x over H and W))))` of `x [N, H, W, C]`.
    ///
    /// # Errors
    /// Channels that do not fit the layers.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        let [_, _, channels] = image_axes(&b.graph, x);
        let batch = b.graph.shape(x)[0];
        b.scope(&self.name, |b| {
            let mean = b.global_avg_pool(x)?;
            let mean = b.graph.reshape(mean, [batch, 1, 1, channels])?;
            let reduced = self.reduce.apply(b, mean)?;
            let reduced = b.swish(reduced)?;
            let expanded = self.expand.apply(b, reduced)?;
            let gate = b.graph.unary(UnaryKind::Sigmoid, expanded)?;
            b.graph.mul(x, gate)
        })
    }
}
