//! A depthwise convolution followed by a 1x1 convolution.

use bessemer_ir::Value;
use bessemer_nn::{Builder, Conv, ConvOptions, Init, Padding, Result};

/// A 3x3 depthwise convolution, `conv_dw`, and a 1x1 convolution with a bias, `conv_pw`.
pub(super) struct SeparableConv {
    depthwise: Conv,
    pointwise: Conv,
}

impl SeparableConv {
    /// Declares the parameters in the scope of the builder; `init` is of the depthwise and of the 1x1 kernel.
    pub(super) fn new(b: &mut Builder, inputs: usize, outputs: usize, init: [Init; 2], bias: Init) -> Result<Self> {
        let depthwise = ConvOptions { groups: inputs, padding: Padding::Same, ..ConvOptions::new(inputs, 3, init[0]) };
        let pointwise = ConvOptions { bias: Some(bias), ..ConvOptions::new(outputs, 1, init[1]) };
        Ok(SeparableConv {
            depthwise: Conv::new(b, "conv_dw", inputs, depthwise)?,
            pointwise: Conv::new(b, "conv_pw", inputs, pointwise)?,
        })
    }

    /// `[B, H, W, inputs]` to `[B, H, W, outputs]`.
    pub(super) fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        let x = self.depthwise.apply(b, x)?;
        self.pointwise.apply(b, x)
    }
}
