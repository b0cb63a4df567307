//! Convolutions of images `[N, H, W, C]`.

use super::{Padding, image_axes};
use crate::Result;
use crate::builder::Builder;
use crate::init::Init;
use bessemer_ir::Value;
use bessemer_ir::ops::Op;
use bessemer_ir::ops::conv::{Conv2d, Conv2dDataGrad};
use bessemer_ir::ops::limited::Limited;

/// Settings of a [`Conv`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvOptions {
    /// Output channels.
    pub channels: usize,
    /// Height and width of the kernel.
    pub kernel: usize,
    /// Pixels from one window to the next, in both directions.
    pub stride: usize,
    /// How windows are placed at the borders.
    pub padding: Padding,
    /// Groups into which input and output channels are split; each output group reads one input group. As many groups as
    /// input channels make the convolution depthwise.
    pub groups: usize,
    /// Initial weights.
    pub init: Init,
    /// Initial bias; `None` leaves the bias out.
    pub bias: Option<Init>,
}

impl ConvOptions {
    /// Stride 1, symmetric padding, one group, no bias.
    pub fn new(channels: usize, kernel: usize, init: Init) -> Self {
        ConvOptions { channels, kernel, stride: 1, padding: Padding::Symmetric, groups: 1, init, bias: None }
    }
}

/// A square convolution. Each application may be to an image of another size.
#[derive(Clone, Debug)]
pub struct Conv {
    name: String,
    /// `f32[K, K, CI / groups, CO]`
    weight: Value,
    /// `f32[CO]`
    bias: Option<Value>,
    options: ConvOptions,
}

impl Conv {
    /// Declares `name.weight` and, with a bias, `name.bias` for inputs of `inputs` channels.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, inputs: usize, options: ConvOptions) -> Result<Self> {
        b.scope(name, |b| {
            let shape = [options.kernel, options.kernel, inputs / options.groups.max(1), options.channels];
            let weight = b.kernel("weight", shape, options.init)?;
            let bias = options.bias.map(|init| b.bias("bias", options.channels, init)).transpose()?;
            Ok(Conv { name: name.to_string(), weight, bias, options })
        })
    }

    /// `[N, H, W, CI]` to `[N, OH, OW, CO]`.
    ///
    /// # Errors
    /// Channels that do not fit the weights or do not split into the groups; a padded image smaller than the kernel.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        self.applied(b, x, None)
    }

    /// The same for the first `count i32[]` images of a batch that is filled to a part only. Behind them come images of the bias
    /// alone.
    ///
    /// # Errors
    /// As [`Conv::apply`]; several groups.
    pub fn apply_to_first(&self, b: &mut Builder, x: Value, count: Value) -> Result<Value> {
        self.applied(b, x, Some(count))
    }

    fn applied(&self, b: &mut Builder, x: Value, count: Option<Value>) -> Result<Value> {
        let ConvOptions { kernel, stride, padding, groups, .. } = self.options;
        let [height, width, _] = image_axes(&b.graph, x);
        let pad = padding.amounts([height, width], kernel, stride);
        b.scope(&self.name, |b| {
            let op = Conv2d { groups, ..Conv2d::new([stride; 2], pad) };
            let y = product(b, op, [x, self.weight], count)?;
            with_bias(b, y, self.bias)
        })
    }
}

/// Settings of a [`ConvTranspose`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTransposeOptions {
    /// Output channels.
    pub channels: usize,
    /// Height and width of the kernel.
    pub kernel: usize,
    /// Pixels of the output from one window to the next, in both directions.
    pub stride: usize,
    /// Pixels cut off on each side of the output.
    pub padding: usize,
    /// Initial weights.
    pub init: Init,
    /// Initial bias; `None` leaves the bias out.
    pub bias: Option<Init>,
}

/// A square transposed convolution: the transpose of the convolution with the same weights, stride and padding, and a bias
/// (PyTorch's `ConvTranspose2d`).
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    name: String,
    /// `f32[K, K, CO, CI]`; files hold `[CI, CO, K, K]`.
    weight: Value,
    /// `f32[CO]`
    bias: Option<Value>,
    options: ConvTransposeOptions,
}

impl ConvTranspose {
    /// Declares `name.weight` and, with a bias, `name.bias` for inputs of `inputs` channels.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, inputs: usize, options: ConvTransposeOptions) -> Result<Self> {
        b.scope(name, |b| {
            let shape = [options.kernel, options.kernel, options.channels, inputs];
            let weight = b.kernel("weight", shape, options.init)?;
            let bias = options.bias.map(|init| b.bias("bias", options.channels, init)).transpose()?;
            Ok(ConvTranspose { name: name.to_string(), weight, bias, options })
        })
    }

    /// `[N, H, W, CI]` to `[N, OH, OW, CO]` with `OH = (H - 1) * stride + kernel - 2 * padding`.
    ///
    /// # Errors
    /// Channels that do not fit the weights; a padding that leaves no output.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        self.applied(b, x, None)
    }

    /// As [`Conv::apply_to_first`].
    ///
    /// # Errors
    /// As [`ConvTranspose::apply`].
    pub fn apply_to_first(&self, b: &mut Builder, x: Value, count: Value) -> Result<Value> {
        self.applied(b, x, Some(count))
    }

    fn applied(&self, b: &mut Builder, x: Value, count: Option<Value>) -> Result<Value> {
        let ConvTransposeOptions { kernel, stride, padding, .. } = self.options;
        let [height, width, _] = image_axes(&b.graph, x);
        let input = [height, width].map(|size| ((size - 1) * stride + kernel).saturating_sub(2 * padding));
        b.scope(&self.name, |b| {
            let conv = Conv2d::new([stride; 2], [[padding; 2]; 2]);
            let y = product(b, Conv2dDataGrad { conv, input }, [x, self.weight], count)?;
            with_bias(b, y, self.bias)
        })
    }
}

/// `op(x, weight)`, of the first `count` images if there is a count.
fn product(b: &mut Builder, op: impl Into<Op>, [x, weight]: [Value; 2], count: Option<Value>) -> Result<Value> {
    match count {
        Some(count) => b.graph.push1(Limited::new(op), &[x, weight, count]),
        None => b.graph.push1(op, &[x, weight]),
    }
}

/// `y [..., C] + bias [C]`, if there is one.
fn with_bias(b: &mut Builder, y: Value, bias: Option<Value>) -> Result<Value> {
    match bias {
        Some(bias) => b.graph.add(y, bias),
        None => Ok(y),
    }
}
