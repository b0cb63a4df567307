//! The heads for classes and boxes: one set of convolutions for all feature maps, and a norm of its own for each map.

use super::config::{DetectorOptions, LEVELS};
use super::separable::SeparableConv;
use bessemer_ir::Value;
use bessemer_nn::{BatchNorm, Builder, Fan, Init, Result};

/// Probability of a class at first, which keeps the loss of the many boxes without an object small (section 3.3 of
/// arXiv:1708.02002).
const PRIOR: f64 = 0.01;

/// What the network says of each reference box.
pub(super) struct Outputs {
    /// For each level, finest first, `f32[B, H, W, anchors * K]`.
    pub classes: Vec<Value>,
    /// For each level `f32[B, H, W, anchors * 4]`.
    pub boxes: Vec<Value>,
}

/// Both heads on the maps of the pyramid.
pub(super) fn heads(b: &mut Builder, maps: &[Value], options: &DetectorOptions) -> Result<Outputs> {
    let prior = Init::Constant((PRIOR / (1.0 - PRIOR)).ln());
    let anchors = options.anchors.count();
    Ok(Outputs {
        classes: b.scope("class_net", |b| head(b, maps, anchors * options.num_classes, prior, options))?,
        boxes: b.scope("box_net", |b| head(b, maps, anchors * 4, Init::Zeros, options))?,
    })
}

fn head(b: &mut Builder, maps: &[Value], outputs: usize, bias: Init, options: &DetectorOptions) -> Result<Vec<Value>> {
    // Keras counts the inputs of all channels of a depthwise kernel, which are the outputs that are reached here.
    let init = [Init::LecunNormal(Fan::Out), Init::LecunNormal(Fan::In)];
    let width = options.width;
    let layers = (0..options.head_depth).map(|layer| {
        let conv = b.scope(&format!("conv_rep.{layer}"), |b| SeparableConv::new(b, width, width, init, Init::Zeros))?;
        let norms = (0..LEVELS)
            .map(|level| b.scope(&format!("bn_rep.{layer}.{level}"), |b| BatchNorm::new(b, "bn", width, options.norm)));
        Ok((conv, norms.collect::<Result<Vec<_>>>()?))
    });
    let layers = layers.collect::<Result<Vec<_>>>()?;
    let predict = b.scope("predict", |b| SeparableConv::new(b, width, outputs, init, bias))?;
    let on_level = |(level, &map): (usize, &Value)| {
        b.scope(&format!("level.{level}"), |b| {
            let mut x = map;
            for (index, (conv, norms)) in layers.iter().enumerate() {
                x = b.scope(&format!("conv_rep.{index}"), |b| conv.apply(b, x))?;
                x = b.scope(&format!("bn_rep.{index}"), |b| norms[level].apply(b, x))?;
                x = b.swish(x)?;
            }
            b.scope("predict", |b| predict.apply(b, x))
        })
    };
    maps.iter().enumerate().map(on_level).collect()
}
