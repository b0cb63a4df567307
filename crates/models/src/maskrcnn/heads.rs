//! The heads on features of regions: one for classes and boxes, one for masks.

use super::config::{BOX_SIZE, Flavour, MASK_FEATURE_SIZE, MaskRcnnOptions};
use bessemer_ir::{DType, Value};
use bessemer_nn::{
    Builder, Conv, ConvOptions, ConvTranspose, ConvTransposeOptions, Fan, Init, Linear, LinearOptions, Result,
};

/// Regions of all images.
#[derive(Clone, Copy)]
pub(super) struct Boxes {
    /// `f32[R, 4]`
    pub boxes: Value,
    /// The image of each one, `i32[R]`.
    pub image: Value,
}

/// Features of regions, `[R, size, size, C]`.
fn features(b: &mut Builder, maps: &[Value], regions: Boxes, size: usize, flavour: Flavour) -> Result<Value> {
    let rule = flavour.roi_align(size);
    let operands = [&maps[..rule.strides.len()], &[regions.boxes, regions.image]].concat();
    b.graph.push1(rule, &operands)
}

/// What the network says of regions.
pub(super) struct Classified {
    /// `f32[R, K]`
    pub logits: Value,
    /// `f32[R, K, 4]`
    pub deltas: Value,
}

/// The head for classes and boxes.
pub(super) fn classify(
    b: &mut Builder,
    maps: &[Value],
    regions: Boxes,
    options: &MaskRcnnOptions,
) -> Result<Classified> {
    let (width, classes) = (options.box_width, options.num_classes);
    let linear = |inputs: usize, outputs: usize, init: Init| match options.flavour {
        Flavour::Torchvision => LinearOptions::uniform(inputs, outputs),
        Flavour::Nvidia => LinearOptions { outputs, weight: init, bias: Init::Zeros },
    };
    b.scope("roi_heads", |b| {
        let x = b.scope("box_roi_pool", |b| features(b, maps, regions, BOX_SIZE, options.flavour))?;
        let rows = b.graph.shape(x)[0];
        let inputs = BOX_SIZE * BOX_SIZE * options.width;
        let x = b.scope("box_head", |b| {
            let x = b.graph.reshape(x, [rows, inputs])?;
            let image = [BOX_SIZE, BOX_SIZE, options.width];
            let x = Linear::of_image(b, "fc6", image, linear(inputs, width, Init::GlorotUniform))?.apply(b, x)?;
            let x = b.graph.relu(x)?;
            let x = Linear::new(b, "fc7", width, linear(width, width, Init::GlorotUniform))?.apply(b, x)?;
            b.graph.relu(x)
        })?;
        b.scope("box_predictor", |b| {
            let logits = linear(width, classes, Init::Normal { std: 0.01 });
            let logits = Linear::new(b, "cls_score", width, logits)?.apply(b, x)?;
            let deltas = linear(width, 4 * classes, Init::Normal { std: 0.001 });
            let deltas = Linear::new(b, "bbox_pred", width, deltas)?.apply(b, x)?;
            let g = &mut b.graph;
            let [logits, deltas] = [g.cast(logits, DType::F32)?, g.cast(deltas, DType::F32)?];
            Ok(Classified { logits, deltas: g.reshape(deltas, [rows, classes, 4])? })
        })
    })
}

/// The head for masks: logits of all classes `f32[R, M, M, K]`. Those of regions behind the first `count i32[]` are not computed.
pub(super) fn masks(
    b: &mut Builder,
    maps: &[Value],
    regions: Boxes,
    count: Value,
    options: &MaskRcnnOptions,
) -> Result<Value> {
    let init = Init::KaimingNormal(Fan::Out);
    b.scope("roi_heads", |b| {
        let mut x = b.scope("mask_roi_pool", |b| features(b, maps, regions, MASK_FEATURE_SIZE, options.flavour))?;
        let mut inputs = options.width;
        for (index, &channels) in options.mask_widths.iter().enumerate() {
            let conv = ConvOptions { bias: Some(Init::Zeros), ..ConvOptions::new(channels, 3, init) };
            x = b.scope(&format!("mask_head.{index}"), |b| {
                Conv::new(b, "0", inputs, conv)?.apply_to_first(b, x, count)
            })?;
            x = b.graph.relu(x)?;
            inputs = channels;
        }
        b.scope("mask_predictor", |b| {
            let bias = Some(Init::Zeros);
            let conv = ConvTransposeOptions { channels: inputs, kernel: 2, stride: 2, padding: 0, init, bias };
            let x = ConvTranspose::new(b, "conv5_mask", inputs, conv)?.apply_to_first(b, x, count)?;
            let x = b.graph.relu(x)?;
            let conv = ConvOptions { bias, ..ConvOptions::new(options.num_classes, 1, init) };
            let logits = Conv::new(b, "mask_fcn_logits", inputs, conv)?.apply_to_first(b, x, count)?;
            b.graph.cast(logits, DType::F32)
        })
    })
}

/// The logits of one class of each region, `f32[R, M, M]`, from those of all classes.
pub(super) fn of_class(b: &mut Builder, masks: Value, classes: Value) -> Result<Value> {
    b.graph.gather(masks, classes, 1, 3)
}
