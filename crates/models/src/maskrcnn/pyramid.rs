//! The feature pyramid (Lin et al. 2017, arXiv:1612.03144), with a coarsest map P6 of every second pixel of P5.

use super::config::{Flavour, MaskRcnnOptions};
use crate::resnet::Features;
use bessemer_ir::Value;
use bessemer_nn::{Builder, Conv, ConvOptions, Init, Result};

/// P2 to P6, each `[B, H, W, width]`, from the maps of the backbone.
pub(super) fn pyramid(b: &mut Builder, features: Features, options: &MaskRcnnOptions) -> Result<Vec<Value>> {
    b.scope("fpn", |b| {
        let inputs = [features.c2, features.c3, features.c4, features.c5];
        let lateral = inputs.iter().enumerate().map(|(level, &map)| conv(b, "inner_blocks", level, map, 1, options));
        let mut sums = lateral.collect::<Result<Vec<_>>>()?;
        for level in (0..sums.len() - 1).rev() {
            let above = b.graph.upsample(sums[level + 1], [2; 2])?;
            sums[level] = b.graph.add(sums[level], above)?;
        }
        let outputs = sums.iter().enumerate().map(|(level, &sum)| conv(b, "layer_blocks", level, sum, 3, options));
        let mut maps = outputs.collect::<Result<Vec<_>>>()?;
        let coarsest = maps[maps.len() - 1];
        let shape = b.graph.shape(coarsest).clone();
        maps.push(b.graph.slice(coarsest, &[0; 4], &shape, &[1, 2, 2, 1])?);
        Ok(maps)
    })
}

/// A convolution to the width of the pyramid.
fn conv(
    b: &mut Builder,
    blocks: &str,
    level: usize,
    map: Value,
    kernel: usize,
    options: &MaskRcnnOptions,
) -> Result<Value> {
    let inputs = b.graph.shape(map).cols();
    let init = match options.flavour {
        Flavour::Torchvision => Init::Uniform { bound: (3.0 / (kernel * kernel * inputs) as f64).sqrt() },
        Flavour::Nvidia => Init::GlorotUniform,
    };
    let conv = ConvOptions { bias: Some(Init::Zeros), ..ConvOptions::new(options.width, kernel, init) };
    b.scope(&format!("{blocks}.{level}"), |b| Conv::new(b, "0", inputs, conv)?.apply(b, map))
}
