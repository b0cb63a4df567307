//! Two-dimensional pooling of `[N, H, W, C]`, its gradients, and upsampling.

use super::conv::{Window, indices, sizes4};
use super::{Cost, GradArgs, Gradient, LowOperands, LowResult, MixedPrecision, OpError, OpRule, float_inputs};
use crate::graph::{Graph, GraphError, Value};
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// Sizes of a pooling, the same for the pooling and its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Batch items, `N`.
    pub batch: usize,
    /// The window along the height.
    pub height: Window,
    /// The window along the width.
    pub width: Window,
    /// Number of channels, `C`.
    pub channels: usize,
}

impl Geometry {
    /// Pads must be smaller than the window, so that no window lies in the padding alone.
    fn new(x: &Shape, window: [usize; 2], stride: [usize; 2], pad: [[usize; 2]; 2]) -> Result<Geometry, OpError> {
        let [batch, h, w, channels] = sizes4(x, "input", "[N, H, W, C]")?;
        let height = Window::new("height", h, window[0], stride[0], 1, pad[0])?;
        let width = Window::new("width", w, window[1], stride[1], 1, pad[1])?;
        if (0..2).any(|axis| pad[axis].iter().any(|&p| p >= window[axis])) {
            let problem = format!("the padding {pad:?} must be smaller than the window {window:?}");
            return Err(OpError::Attribute(problem));
        }
        Ok(Geometry { batch, height, width, channels })
    }

    /// Shape of the input, `[N, H, W, C]`.
    pub fn x_shape(&self) -> Shape {
        [self.batch, self.height.input, self.width.input, self.channels].into()
    }

    /// Shape of the output, `[N, OH, OW, C]`.
    pub fn y_shape(&self) -> Shape {
        [self.batch, self.height.output, self.width.output, self.channels].into()
    }

    /// Elements of the window, padding included.
    pub fn window_area(&self) -> usize {
        self.height.kernel * self.width.kernel
    }

    /// Calls `f` with each position of the output and the positions of the input under its window, row by row, the
    /// padding left out.
    fn for_each_window(&self, mut f: impl FnMut(usize, &[usize])) {
        let (h, w) = (&self.height, &self.width);
        let mut elements = Vec::with_capacity(self.window_area());
        let sizes = [self.batch, h.output, w.output, self.channels];
        for (y, [n, oh, ow, c]) in indices(sizes).enumerate() {
            elements.clear();
            for [kh, kw] in indices([h.kernel, w.kernel]) {
                if let (Some(ih), Some(iw)) = (h.element(oh, kh), w.element(ow, kw)) {
                    elements.push(((n * h.input + ih) * w.input + iw) * self.channels + c);
                }
            }
            f(y, &elements);
        }
    }

    /// One arithmetic operation for each element of each window.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming((self.y_shape().elements() * self.window_area()) as u64, inputs, outputs)
    }
}

fn verified(geometry: Result<Geometry, OpError>) -> Geometry {
    geometry.expect("the node was accepted with these shapes")
}

fn describe(window: [usize; 2], stride: [usize; 2], pad: [[usize; 2]; 2]) -> String {
    format!("window={window:?}, stride={stride:?}, pad={pad:?}")
}

/// Maximum of each window. Input `[N, H, W, C]`, output `[N, OH, OW, C]`. The padding is minus infinity; a window with a
/// NaN gives NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool2d {
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Step of the window along height and width.
    pub stride: [usize; 2],
    /// `[[top, bottom], [left, right]]`, each smaller than the window.
    pub pad: [[usize; 2]; 2],
}

impl MaxPool2d {
    /// Sizes for an input of this shape.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, x: &Shape) -> Result<Geometry, OpError> {
        Geometry::new(x, self.window, self.stride, self.pad)
    }
}

impl OpRule for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn attributes(&self) -> String {
        describe(self.window, self.stride, self.pad)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = float_inputs(inputs, "one tensor")?;
        Ok(vec![TensorType::new(x.dtype, self.geometry(&x.shape)?.y_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let dx = g.push1(MaxPool2dGrad { pool: *self }, &[args.inputs[0], args.outputs[0], dy])?;
        Ok(Gradient::Inputs(vec![Some(dx)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        verified(self.geometry(&inputs[0].shape)).cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let mut y = Tensor::zeros(outputs[0].clone());
        verified(self.geometry(&x.ty.shape)).for_each_window(|output, elements| {
            let larger = |max: f64, &i: &usize| if x.data[i] > max || x.data[i].is_nan() { x.data[i] } else { max };
            y.data[output] = elements.iter().fold(f64::NEG_INFINITY, larger);
        });
        vec![y]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision { operands: LowOperands::AsTheyAre, result: LowResult::MovedAndRounded }
    }
}

/// Gradient of [`MaxPool2d`]: the first maximum of each window, row by row, takes the window's gradient. Inputs: x
/// `[N, H, W, C]`, y and dy `[N, OH, OW, C]`; output `[N, H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool2dGrad {
    /// The forward pooling.
    pub pool: MaxPool2d,
}

impl OpRule for MaxPool2dGrad {
    fn name(&self) -> &'static str {
        "max_pool2d_grad"
    }

    fn attributes(&self) -> String {
        self.pool.attributes()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x, y, dy] = float_inputs(inputs, "input, output and output gradient")?;
        let expected = TensorType::new(x.dtype, self.pool.geometry(&x.shape)?.y_shape());
        for (operand, actual) in [("output", y), ("output gradient", dy)] {
            if *actual != expected {
                return Err(OpError::Type { operand, expected, actual: actual.clone() });
            }
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        verified(self.pool.geometry(&inputs[0].shape)).cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let (x, y, dy) = (inputs[0], inputs[1], inputs[2]);
        let mut dx = Tensor::zeros(outputs[0].clone());
        verified(self.pool.geometry(&x.ty.shape)).for_each_window(|output, elements| {
            let max = y.data[output];
            let is_max = |&&i: &&usize| x.data[i] == max || (x.data[i].is_nan() && max.is_nan());
            if let Some(&first) = elements.iter().find(is_max) {
                dx.data[first] += dy.data[output];
            }
        });
        vec![dx]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision::reading(3, LowResult::OfOperands)
    }
}

/// Mean of each window. Input `[N, H, W, C]`, output `[N, OH, OW, C]`. The padding is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool2d {
    /// Height and width of the window.
    pub window: [usize; 2],
    /// Step of the window along height and width.
    pub stride: [usize; 2],
    /// `[[top, bottom], [left, right]]`, each smaller than the window.
    pub pad: [[usize; 2]; 2],
    /// Whether the sum is divided by the elements of the window, and not by those of them outside the padding.
    pub count_include_pad: bool,
}

impl AvgPool2d {
    /// Sizes for an input of this shape.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, x: &Shape) -> Result<Geometry, OpError> {
        Geometry::new(x, self.window, self.stride, self.pad)
    }

    /// What the sum over a window with `present` elements outside the padding is divided by.
    fn divisor(&self, present: usize) -> f64 {
        (if self.count_include_pad { self.window[0] * self.window[1] } else { present }) as f64
    }
}

impl OpRule for AvgPool2d {
    fn name(&self) -> &'static str {
        "avg_pool2d"
    }

    fn attributes(&self) -> String {
        let suffix = if self.count_include_pad { ", count_include_pad" } else { "" };
        describe(self.window, self.stride, self.pad) + suffix
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = float_inputs(inputs, "one tensor")?;
        Ok(vec![TensorType::new(x.dtype, self.geometry(&x.shape)?.y_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let x = g.shape(args.inputs[0]);
        let input = [x[1], x[2]];
        Ok(Gradient::Inputs(vec![Some(g.push1(AvgPool2dGrad { pool: *self, input }, &[dy])?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        verified(self.geometry(&inputs[0].shape)).cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let mut y = Tensor::zeros(outputs[0].clone());
        verified(self.geometry(&x.ty.shape)).for_each_window(|output, elements| {
            let sum: f64 = elements.iter().map(|&i| x.data[i]).sum();
            y.data[output] = sum / self.divisor(elements.len());
        });
        vec![y]
    }
}

/// Gradient of [`AvgPool2d`]. Input: dy `[N, OH, OW, C]`; output `[N, H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool2dGrad {
    /// The forward pooling.
    pub pool: AvgPool2d,
    /// Height and width of the output, the pooling's input.
    pub input: [usize; 2],
}

impl AvgPool2dGrad {
    /// Sizes of the pooling for an output gradient of this shape.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, dy: &Shape) -> Result<Geometry, OpError> {
        let [batch, _, _, channels] = sizes4(dy, "output gradient", "[N, OH, OW, C]")?;
        let geometry = self.pool.geometry(&[batch, self.input[0], self.input[1], channels].into())?;
        let expected = geometry.y_shape();
        if *dy != expected {
            return Err(OpError::Sizes(format!("the output gradient must be {expected}, not {dy}")));
        }
        Ok(geometry)
    }
}

impl OpRule for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "avg_pool2d_grad"
    }

    fn attributes(&self) -> String {
        format!("{}, input={:?}", self.pool.attributes(), self.input)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [dy] = float_inputs(inputs, "one output gradient")?;
        Ok(vec![TensorType::new(dy.dtype, self.geometry(&dy.shape)?.x_shape())])
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(ddx) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        Ok(Gradient::Inputs(vec![Some(g.push1(self.pool, &[ddx])?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        verified(self.geometry(&inputs[0].shape)).cost(inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let dy = inputs[0];
        let mut dx = Tensor::zeros(outputs[0].clone());
        verified(self.geometry(&dy.ty.shape)).for_each_window(|output, elements| {
            let share = dy.data[output] / self.pool.divisor(elements.len());
            elements.iter().for_each(|&i| dx.data[i] += share);
        });
        vec![dx]
    }
}

/// Each pixel repeated (nearest neighbour). Input `[N, H, W, C]`, output `[N, F0 * H, F1 * W, C]` for factors `[F0, F1]`: pixel
/// `(y, x)` is pixel `(y / F0, x / F1)` of the input, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Upsample {
    /// Along height and width, at least 1.
    pub factors: [usize; 2],
}

impl OpRule for Upsample {
    fn name(&self) -> &'static str {
        "upsample"
    }

    fn attributes(&self) -> String {
        format!("factors={:?}", self.factors)
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let [x] = float_inputs(inputs, "one tensor")?;
        let [batch, height, width, channels] = sizes4(&x.shape, "input", "[N, H, W, C]")?;
        let [down, across] = self.factors;
        if down == 0 || across == 0 {
            return Err(OpError::Attribute(format!("the factors {:?} must be at least 1", self.factors)));
        }
        Ok(vec![TensorType::new(x.dtype, [batch, down * height, across * width, channels])])
    }

    /// The sum over the pixels that are copies of one.
    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        let Some(dy) = args.grads[0] else { return Ok(Gradient::Inputs(vec![None])) };
        let pool = AvgPool2d { window: self.factors, stride: self.factors, pad: [[0; 2]; 2], count_include_pad: true };
        let mean = g.push1(pool, &[dy])?;
        let area = self.factors[0] * self.factors[1];
        Ok(Gradient::Inputs(vec![Some(g.mul_scalar(mean, area as f64)?)]))
    }

    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        Cost::streaming(0, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let x = inputs[0];
        let [_, height, width, channels] = sizes4(&x.ty.shape, "input", "[N, H, W, C]").expect("accepted");
        let sizes = sizes4(&outputs[0].shape, "output", "[N, H, W, C]").expect("accepted");
        let source = |[n, y, x, c]: [usize; 4]| {
            ((n * height + y / self.factors[0]) * width + x / self.factors[1]) * channels + c
        };
        let data = indices(sizes).map(|position| x.data[source(position)]).collect();
        vec![Tensor::new(outputs[0].clone(), data)]
    }

    fn mixed_precision(&self, _rules: &Rules) -> MixedPrecision {
        MixedPrecision { operands: LowOperands::AsTheyAre, result: LowResult::MovedAndRounded }
    }

    fn simplify(&self, _graph: &mut Graph, inputs: &[Value]) -> Result<Option<Value>, GraphError> {
        Ok((self.factors == [1, 1]).then_some(inputs[0]))
    }
}
