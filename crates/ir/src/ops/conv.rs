//! Two-dimensional convolution and its two gradients. Activations are `[N, H, W, C]`, weights `[KH, KW, C / groups, O]` or
//! `[O, KH, KW, C / groups]`.
//! Operands of 16 bits are multiplied exactly and accumulated in `f32`, which is the type of every result but of gradients of weights that
//! are asked for in the operands' type.

use super::limited::Limited;
use super::{
    Cost, GradArgs, Gradient, LowResult, MixedPrecision, Op, OpError, OpRule, Producer, float_inputs, product_like,
};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// A window that slides along one spatial axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Elements of the axis, without padding.
    pub input: usize,
    /// Positions of the window.
    pub output: usize,
    /// Elements of the window.
    pub kernel: usize,
    /// Distance between neighbouring positions of the window, in elements.
    pub stride: usize,
    /// Distance between neighbouring elements of the window; 1 is a dense window.
    pub dilation: usize,
    /// Padding before the first element.
    pub low: usize,
}

impl Window {
    /// `pad` is the padding before and after. `axis` names the axis in errors.
    ///
    /// # Errors
    /// When a size is zero or the window is longer than the padded axis.
    pub fn new(
        axis: &str,
        input: usize,
        kernel: usize,
        stride: usize,
        dilation: usize,
        pad: [usize; 2],
    ) -> Result<Window, OpError> {
        if kernel == 0 || stride == 0 || dilation == 0 {
            return Err(OpError::Attribute(format!("window, stride and dilation along the {axis} must be at least 1")));
        }
        if input == 0 {
            return Err(OpError::Sizes(format!("the input has no elements along the {axis}")));
        }
        let extent = (kernel - 1) * dilation + 1;
        let padded = input + pad[0] + pad[1];
        if extent > padded {
            let problem = format!("the window extends over {extent} along the {axis}, the padded input has {padded}");
            return Err(OpError::Sizes(problem));
        }
        let output = (padded - extent) / stride + 1;
        Ok(Window { input, output, kernel, stride, dilation, low: pad[0] })
    }

    /// The element under element `tap` of the window at position `output`, or `None` in the padding.
    pub fn element(&self, output: usize, tap: usize) -> Option<usize> {
        let padded = output * self.stride + tap * self.dilation;
        padded.checked_sub(self.low).filter(|&element| element < self.input)
    }
}

/// In what order the axes of weights lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Filter {
    /// `[KH, KW, C / groups, O]`
    #[default]
    Hwio,
    /// `[O, KH, KW, C / groups]`
    Ohwi,
}

impl Filter {
    /// The axes of `[KH, KW, C / groups, O]` in the order of [`Filter::Ohwi`].
    pub const TO_OHWI: [usize; 4] = [3, 0, 1, 2];
    /// The axes of `[O, KH, KW, C / groups]` in the order of [`Filter::Hwio`].
    pub const TO_HWIO: [usize; 4] = [1, 2, 3, 0];

    /// The axes in words.
    pub const fn axes(self) -> &'static str {
        match self {
            Filter::Hwio => "[KH, KW, C / groups, O]",
            Filter::Ohwi => "[O, KH, KW, C / groups]",
        }
    }

    /// The shape of weights whose sizes are `[KH, KW, C / groups, O]`.
    fn shape(self, [kh, kw, channels, out_channels]: [usize; 4]) -> Shape {
        match self {
            Filter::Hwio => [kh, kw, channels, out_channels].into(),
            Filter::Ohwi => [out_channels, kh, kw, channels].into(),
        }
    }

    /// `[KH, KW, C / groups, O]` of weights.
    fn sizes(self, shape: &Shape) -> Result<[usize; 4], OpError> {
        let sizes = sizes4(shape, "weights", self.axes())?;
        Ok(match self {
            Filter::Hwio => sizes,
            Filter::Ohwi => Filter::TO_HWIO.map(|axis| sizes[axis]),
        })
    }
}

/// Sizes of a convolution, the same for the convolution and its two gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Batch items, `N`.
    pub batch: usize,
    /// The window along the height.
    pub height: Window,
    /// The window along the width.
    pub width: Window,
    /// Input channels, of all groups together.
    pub channels: usize,
    /// Output channels, of all groups together.
    pub out_channels: usize,
    /// Channel groups that are convolved independently; divides both channel counts.
    pub groups: usize,
    /// How the weights lie.
    pub filter: Filter,
}

impl Geometry {
    /// Shape of the input, `[N, H, W, C]`.
    pub fn x_shape(&self) -> Shape {
        [self.batch, self.height.input, self.width.input, self.channels].into()
    }

    /// Shape of the weights.
    pub fn w_shape(&self) -> Shape {
        let taps = [self.height.kernel, self.width.kernel];
        self.filter.shape([taps[0], taps[1], self.channels / self.groups, self.out_channels])
    }

    /// Whether each channel is convolved alone, with one output channel.
    pub fn is_depthwise(&self) -> bool {
        self.groups == self.channels && self.channels == self.out_channels
    }

    /// Shape of the output, `[N, OH, OW, O]`.
    pub fn y_shape(&self) -> Shape {
        [self.batch, self.height.output, self.width.output, self.out_channels].into()
    }

    /// Multiply-adds, those with padding included.
    pub fn macs(&self) -> u64 {
        let taps = self.height.kernel * self.width.kernel * (self.channels / self.groups);
        self.y_shape().elements() as u64 * taps as u64
    }

    /// Calls `f` with the positions in input, weights and output of each product `x * w` that is added to a `y`.
    fn for_each_product(&self, mut f: impl FnMut(usize, usize, usize)) {
        let (h, w) = (&self.height, &self.width);
        let group_in = self.channels / self.groups;
        let group_out = self.out_channels / self.groups;
        let taps = h.kernel * w.kernel;
        for (y, [n, oh, ow]) in indices([self.batch, h.output, w.output]).enumerate() {
            for (tap, [kh, kw]) in indices([h.kernel, w.kernel]).enumerate() {
                let (Some(ih), Some(iw)) = (h.element(oh, kh), w.element(ow, kw)) else { continue };
                let x = (n * h.input + ih) * w.input + iw;
                for (o, c) in (0..self.out_channels).flat_map(|o| (0..group_in).map(move |c| (o, c))) {
                    let channel = o / group_out * group_in + c;
                    let weight = match self.filter {
                        Filter::Hwio => (tap * group_in + c) * self.out_channels + o,
                        Filter::Ohwi => (o * taps + tap) * group_in + c,
                    };
                    f(x * self.channels + channel, weight, y * self.out_channels + o);
                }
            }
        }
    }
}

/// All indices of a dense array, in row-major order.
pub(crate) fn indices<const N: usize>(sizes: [usize; N]) -> impl Iterator<Item = [usize; N]> {
    (0..sizes.iter().product()).map(move |mut position: usize| {
        let mut index = [0; N];
        for axis in (0..N).rev() {
            index[axis] = position % sizes[axis];
            position /= sizes[axis];
        }
        index
    })
}

/// Padding before and after one axis so that the output has `ceil(input / stride)` positions, the odd element after
/// (TensorFlow's `SAME`).
pub fn same_padding(input: usize, kernel: usize, stride: usize, dilation: usize) -> [usize; 2] {
    let extent = (kernel - 1) * dilation + 1;
    let total = ((input.div_ceil(stride) - 1) * stride + extent).saturating_sub(input);
    [total / 2, total - total / 2]
}

/// The same padding on all four sides.
pub fn symmetric(pad: usize) -> [[usize; 2]; 2] {
    [[pad; 2]; 2]
}

/// The four sizes of an operand whose axes are named in `axes`.
pub(super) fn sizes4(shape: &Shape, operand: &'static str, axes: &'static str) -> Result<[usize; 4], OpError> {
    shape.dims().try_into().map_err(|_| OpError::Axes { operand, axes, shape: shape.clone() })
}

/// Checks the shape of an output gradient.
fn check_output(dy: &Shape, expected: &Shape) -> Result<(), OpError> {
    const AXES: [&str; 4] = ["batch", "height", "width", "channels"];
    match (0..4).find(|&axis| dy[axis] != expected[axis]) {
        Some(axis) => {
            let (name, given, expected) = (AXES[axis], dy[axis], expected[axis]);
            Err(OpError::Sizes(format!(
                "the output gradient has size {given} along the {name}, the convolution gives {expected}"
            )))
        }
        None => Ok(()),
    }
}

/// Convolution (cross-correlation). Inputs: x `[N, H, W, C]`, w as `filter` says; output `[N, OH, OW, O]` with
/// `OH = (H + top + bottom - (KH - 1) * dilation - 1) / stride + 1`, rounded down. The padding is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Step of the window along height and width.
    pub stride: [usize; 2],
    /// Distance between neighbouring elements of the window along height and width; 1 is a dense window.
    pub dilation: [usize; 2],
    /// `[[top, bottom], [left, right]]`
    pub pad: [[usize; 2]; 2],
    /// Output channel `o` reads the input channels of group `o / (O / groups)`.
    pub groups: usize,
    /// How the weights lie, those of both gradients too.
    pub filter: Filter,
}

impl Conv2d {
    /// Without dilation and groups, with weights `[KH, KW, C, O]`.
    pub const fn new(stride: [usize; 2], pad: [[usize; 2]; 2]) -> Self {
        Conv2d { stride, dilation: [1, 1], pad, groups: 1, filter: Filter::Hwio }
    }

    /// Sizes for an input and weights of these shapes.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, x: &Shape, w: &Shape) -> Result<Geometry, OpError> {
        let [batch, h, width, channels] = sizes4(x, "input", "[N, H, W, C]")?;
        let [kh, kw, group_channels, out_channels] = self.filter.sizes(w)?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) || !out_channels.is_multiple_of(self.groups) {
            let groups = self.groups;
            return Err(OpError::Sizes(format!(
                "{channels} input and {out_channels} output channels do not split into {groups} groups"
            )));
        }
        if channels / self.groups != group_channels {
            let own = channels / self.groups;
            let problem = format!("the input has {own} channels a group, the weights are for {group_channels}");
            return Err(OpError::Sizes(problem));
        }
        Ok(Geometry {
            batch,
            height: Window::new("height", h, kh, self.stride[0], self.dilation[0], self.pad[0])?,
            width: Window::new("width", width, kw, self.stride[1], self.dilation[1], self.pad[1])?,
            channels,
            out_channels,
            groups: self.groups,
            filter: self.filter,
        })
    }

    fn data_grad(&self, x: &Shape) -> Conv2dDataGrad {
        Conv2dDataGrad { conv: *self, input: [x[1], x[2]] }
    }

    fn weight_grad(&self, w: &Shape) -> Conv2dWeightGrad {
        let [kh, kw, ..] = self.filter.sizes(w).expect("the node was accepted with these shapes");
        Conv2dWeightGrad::new(*self, [kh, kw])
    }

    fn describe(&self) -> String {
        let mut text = format!("stride={:?}, pad={:?}", self.stride, self.pad);
        if self.dilation != [1, 1] {
            text += &format!(", dilation={:?}", self.dilation);
        }
        if self.groups != 1 {
            text += &format!(", groups={}", self.groups);
        }
        if self.filter != Filter::Hwio {
            text += &format!(", weights={}", self.filter.axes());
        }
        text
    }
}

/// Cost of a convolution or one of its gradients, of `geometry`.
fn cost(geometry: Result<Geometry, OpError>, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
    Cost::streaming(2 * verified(geometry).macs(), inputs, outputs)
}

fn verified(geometry: Result<Geometry, OpError>) -> Geometry {
    geometry.expect("the node was accepted with these shapes")
}

/// The gradient of `op(a, b)`, a convolution or one of its gradients: for each operand another one of them, on the first items of
/// the batch if a `count` is given.
pub(super) fn gradient_of_product(
    op: &Op,
    g: &mut Graph,
    args: &GradArgs<'_>,
    count: Option<Value>,
) -> Result<Gradient, GraphError> {
    let mut grads = vec![None; args.inputs.len()];
    let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(grads)) };
    let (a, b) = (args.inputs[0], args.inputs[1]);
    let products: [(Op, [Value; 2]); 2] = match op {
        Op::Conv2d(conv) => {
            [(conv.data_grad(g.shape(a)).into(), [dy, b]), (conv.weight_grad(g.shape(b)).into(), [a, dy])]
        }
        Op::Conv2dDataGrad(Conv2dDataGrad { conv, .. }) => {
            [((*conv).into(), [dy, b]), (conv.weight_grad(g.shape(b)).into(), [dy, a])]
        }
        Op::Conv2dWeightGrad(Conv2dWeightGrad { conv, .. }) => {
            [(conv.data_grad(g.shape(a)).into(), [b, dy]), ((*conv).into(), [a, dy])]
        }
        _ => return Ok(Gradient::NotDifferentiable),
    };
    for (operand, (product, factors)) in products.into_iter().enumerate().filter(|(operand, _)| args.wanted[*operand]) {
        let like = args.inputs[operand];
        grads[operand] = Some(match count {
            Some(count) => product_like(g, Limited::new(product), factors, &[count], like)?,
            None => product_like(g, product, factors, &[], like)?,
        });
    }
    Ok(Gradient::Inputs(grads))
}

impl OpRule for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn attributes(&self) -> String {
        self.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x, w] = float_inputs(inputs, "an input and weights")?;
        Ok(vec![TensorType::f32(self.geometry(&x.shape, &w.shape)?.y_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        gradient_of_product(&(*self).into(), g, args, None)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        cost(self.geometry(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (x, w) = (inputs[0], inputs[1]);
        let mut y = Tensor::zeros(outputs[0].clone());
        let geometry = verified(self.geometry(&x.ty.shape, &w.ty.shape));
        geometry.for_each_product(|xi, wi, yi| y.data[yi] += x.data[xi] * w.data[wi]);
        vec![y]
    }

    fn producer(&self, _inputs: &[&TensorType]) -> Producer {
        Producer::Yes
    }

    fn takes_prologue(&self) -> bool {
        self.groups == 1
    }

    fn scales_with_weight_columns(&self, _inputs: &[&TensorType]) -> bool {
        true
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.cost(inputs, &[]).flops
    }

    fn is_recomputed_in_blocks(&self) -> bool {
        true
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(2, LowResult::Rounded)
    }

    fn fused_kernel_name(&self) -> &'static str {
        "conv2d+fusion"
    }
}

/// Gradient of a convolution with respect to its input; by itself a transposed convolution. Inputs: dy
/// `[N, OH, OW, O]`, w as `conv.filter` says; output `[N, H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dDataGrad {
    /// The forward convolution.
    pub conv: Conv2d,
    /// Height and width of the output, the convolution's input.
    pub input: [usize; 2],
}

impl Conv2dDataGrad {
    /// Sizes of the convolution for an output gradient and weights of these shapes.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, dy: &Shape, w: &Shape) -> Result<Geometry, OpError> {
        let [batch, ..] = sizes4(dy, "output gradient", "[N, OH, OW, O]")?;
        let [_, _, group_channels, _] = self.conv.filter.sizes(w)?;
        let x = [batch, self.input[0], self.input[1], group_channels * self.conv.groups].into();
        let geometry = self.conv.geometry(&x, w)?;
        check_output(dy, &geometry.y_shape())?;
        Ok(geometry)
    }
}

impl OpRule for Conv2dDataGrad {
    fn name(&self) -> &'static str {
        "conv2d_data_grad"
    }

    fn attributes(&self) -> String {
        format!("{}, input={:?}", self.conv.describe(), self.input)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [dy, w] = float_inputs(inputs, "an output gradient and weights")?;
        Ok(vec![TensorType::f32(self.geometry(&dy.shape, &w.shape)?.x_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        gradient_of_product(&(*self).into(), g, args, None)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        cost(self.geometry(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (dy, w) = (inputs[0], inputs[1]);
        let mut dx = Tensor::zeros(outputs[0].clone());
        let geometry = verified(self.geometry(&dy.ty.shape, &w.ty.shape));
        geometry.for_each_product(|xi, wi, yi| dx.data[xi] += dy.data[yi] * w.data[wi]);
        vec![dx]
    }

    fn producer(&self, _inputs: &[&TensorType]) -> Producer {
        Producer::Yes
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.cost(inputs, &[]).flops
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(2, LowResult::Rounded)
    }

    fn fused_kernel_name(&self) -> &'static str {
        "conv2d_data_grad+fusion"
    }
}

/// Gradient of a convolution with respect to its weights. Inputs: x `[N, H, W, C]`, dy `[N, OH, OW, O]`; the output lies as
/// `conv.filter` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dWeightGrad {
    /// The forward convolution.
    pub conv: Conv2d,
    /// Height and width of the weights.
    pub kernel: [usize; 2],
    /// Element type of the output: `f32`, or that of both operands.
    pub output: DType,
}

impl Conv2dWeightGrad {
    /// One that gives `f32`.
    pub fn new(conv: Conv2d, kernel: [usize; 2]) -> Conv2dWeightGrad {
        Conv2dWeightGrad { conv, kernel, output: DType::F32 }
    }

    /// Whether it gives what it has rounded, by the rules of a target.
    fn gives_16_bits(&self, rules: &Rules) -> bool {
        rules.products_give_16_bits && self.conv.groups == 1
    }

    /// Sizes of the convolution for an input and an output gradient of these shapes.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, x: &Shape, dy: &Shape) -> Result<Geometry, OpError> {
        let [_, _, _, channels] = sizes4(x, "input", "[N, H, W, C]")?;
        let [_, _, _, out_channels] = sizes4(dy, "output gradient", "[N, OH, OW, O]")?;
        let sizes = [self.kernel[0], self.kernel[1], channels / self.conv.groups.max(1), out_channels];
        let geometry = self.conv.geometry(x, &self.conv.filter.shape(sizes))?;
        check_output(dy, &geometry.y_shape())?;
        Ok(geometry)
    }
}

impl OpRule for Conv2dWeightGrad {
    fn name(&self) -> &'static str {
        "conv2d_weight_grad"
    }

    fn attributes(&self) -> String {
        let output = if self.output == DType::F32 { String::new() } else { format!(", output={}", self.output) };
        format!("{}, kernel={:?}{output}", self.conv.describe(), self.kernel)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x, dy] = float_inputs(inputs, "an input and an output gradient")?;
        if self.output != DType::F32 && self.output != x.dtype {
            return Err(OpError::Attribute(format!("an output of {} is neither f32 nor {}", self.output, x.dtype)));
        }
        Ok(vec![TensorType::new(self.output, self.geometry(&x.shape, &dy.shape)?.w_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        gradient_of_product(&(*self).into(), g, args, None)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        cost(self.geometry(&inputs[0].shape, &inputs[1].shape), inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (x, dy) = (inputs[0], inputs[1]);
        let mut dw = Tensor::zeros(outputs[0].clone());
        let geometry = verified(self.geometry(&x.ty.shape, &dy.ty.shape));
        geometry.for_each_product(|xi, wi, yi| dw.data[wi] += x.data[xi] * dy.data[yi]);
        vec![dw]
    }

    fn takes_prologue(&self) -> bool {
        self.conv.groups == 1
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.cost(inputs, &[]).flops
    }

    fn mixed_precision(&self, rules: &Rules) -> MixedPrecision {
        let result = match rules.products_give_16_bits {
            true if self.gives_16_bits(rules) => LowResult::OfOperands,
            true => LowResult::Rounded,
            false => LowResult::Unchanged,
        };
        MixedPrecision::reading(2, result)
    }

    fn in_16_bits(&self, rules: &Rules, to: DType) -> Option<Op> {
        self.gives_16_bits(rules).then(|| Conv2dWeightGrad { output: to, ..*self }.into())
    }
}
