//! Layers. A layer is built once, which declares its parameters in the scope of the builder, and may be applied many times:
//! a head that is applied to several feature maps has one set of weights. Images are `[N, H, W, C]`.
//!
//! Nodes of an application stand at the path of the scope it is applied in, followed by the name of the layer.

mod conv;
mod linear;
mod norm;
mod squeeze;
#[cfg(test)]
mod tests;

pub use conv::{Conv, ConvOptions, ConvTranspose, ConvTransposeOptions};
pub use linear::{Linear, LinearOptions};
pub use norm::{BatchNorm, BatchNormOptions, LayerNorm};
pub use squeeze::{SqueezeExcite, SqueezeExciteOptions};

use crate::Result;
use crate::builder::Builder;
use bessemer_ir::ops::conv::same_padding;
use bessemer_ir::ops::pointwise::UnaryKind;
use bessemer_ir::ops::pool::MaxPool2d;
use bessemer_ir::{Graph, Value};
use serde::{Deserialize, Serialize};

/// How a window is placed at the borders of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// `(k - 1) / 2` on both sides: PyTorch's usual choice for odd kernels.
    #[default]
    Symmetric,
    /// As much as makes the output `ceil(input / stride)`, the odd pixel at the end: TensorFlow's `SAME`.
    Same,
}

impl Padding {
    /// Pixels before and after rows and columns for an image of `[H, W]`.
    pub fn amounts(self, image: [usize; 2], kernel: usize, stride: usize) -> [[usize; 2]; 2] {
        match self {
            Padding::Symmetric => [[(kernel - 1) / 2; 2]; 2],
            Padding::Same => image.map(|size| same_padding(size, kernel, stride, 1)),
        }
    }
}

/// Square max pooling; what is padded never is the maximum.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool {
    /// Height and width of the window.
    pub window: usize,
    /// Pixels from one window to the next, in both directions.
    pub stride: usize,
    /// How windows are placed at the borders.
    pub padding: Padding,
}

impl Builder {
    /// Maximum of each window of `[N, H, W, C]`.
    ///
    /// # Errors
    /// A padded image smaller than the window.
    pub fn max_pool(&mut self, x: Value, pool: MaxPool) -> Result<Value> {
        let [height, width, _] = image_axes(&self.graph, x);
        let pad = pool.padding.amounts([height, width], pool.window, pool.stride);
        self.graph.push1(MaxPool2d { window: [pool.window; 2], stride: [pool.stride; 2], pad }, &[x])
    }

    /// `[N, H, W, C]` to `[N, C]`, the mean over H and W.
    ///
    /// # Errors
    /// None for an image.
    pub fn global_avg_pool(&mut self, x: Value) -> Result<Value> {
        self.graph.mean(x, &[1, 2])
    }

    /// `x * sigmoid(x)` (Ramachandran et al. 2017, arXiv:1710.05941); PyTorch's `SiLU`.
    ///
    /// # Errors
    /// For a tensor that is no float.
    pub fn swish(&mut self, x: Value) -> Result<Value> {
        let gate = self.graph.unary(UnaryKind::Sigmoid, x)?;
        self.graph.mul(x, gate)
    }
}

/// H, W and C of `[N, H, W, C]`.
///
/// # Panics
/// If `x` has not four axes: a bug of the model.
fn image_axes(g: &Graph, x: Value) -> [usize; 3] {
    let &[_, height, width, channels] = g.shape(x).dims() else {
        panic!("an image is [N, H, W, C], not {}", g.shape(x))
    };
    [height, width, channels]
}
