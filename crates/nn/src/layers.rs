//! Layers, as methods of the builder. Images are `[N, H, W, C]`.

use crate::Result;
use crate::builder::{Builder, Mode};
use crate::init::Init;
use bessemer_ir::Value;
use bessemer_ir::ops::conv::{Conv2d, same_padding};
use bessemer_ir::ops::matmul::Matmul;
use bessemer_ir::ops::pool::MaxPool2d;
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

/// A square convolution without bias.
#[derive(Clone, Copy, Debug)]
pub struct Conv {
    /// Output channels.
    pub channels: usize,
    /// Height and width of the kernel.
    pub kernel: usize,
    /// Pixels from one window to the next, in both directions.
    pub stride: usize,
    /// How windows are placed at the borders.
    pub padding: Padding,
    /// Initial weights.
    pub init: Init,
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

/// Batch normalisation (Ioffe, Szegedy: "Batch normalization", 2015).
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm {
    /// Added to the variance before its root is taken.
    pub eps: f64,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// Initial scale.
    pub gamma: Init,
}

impl Default for BatchNorm {
    fn default() -> Self {
        BatchNorm { eps: 1e-5, momentum: 0.1, gamma: Init::Ones }
    }
}

/// A fully connected layer with bias.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Output features.
    pub outputs: usize,
    /// Initial weight matrix.
    pub weight: Init,
    /// Initial bias of each output.
    pub bias: Init,
}

impl Linear {
    /// PyTorch's default: weight and bias uniform in `±1 / sqrt(inputs)`.
    pub fn uniform(inputs: usize, outputs: usize) -> Self {
        let init = Init::Uniform { bound: 1.0 / (inputs as f64).sqrt() };
        Linear { outputs, weight: init, bias: init }
    }
}

impl Builder {
    /// Convolution of `[N, H, W, CI]` with `name.weight`.
    pub fn conv2d(&mut self, name: &str, x: Value, conv: Conv) -> Result<Value> {
        let [height, width, inputs] = self.image_axes(x);
        let pad = conv.padding.amounts([height, width], conv.kernel, conv.stride);
        self.scope(name, |b| {
            let shape = [conv.kernel, conv.kernel, inputs, conv.channels];
            let weight = b.kernel("weight", shape, conv.init)?;
            b.graph.add1(Conv2d::new([conv.stride; 2], pad), &[x, weight])
        })
    }

    /// Normalises over all axes but the channels: `(x - mean) * (weight * rsqrt(var + eps)) + bias`. In training mean and
    /// biased variance are those of the batch, and the running statistics move by `momentum` towards the mean and the
    /// unbiased variance; a batch of one pixel counts as two there.
    pub fn batch_norm(&mut self, name: &str, x: Value, norm: BatchNorm) -> Result<Value> {
        let channels = self.graph.shape(x).cols();
        self.scope(name, |b| {
            let gamma = b.norm("weight", channels, norm.gamma)?;
            let beta = b.norm("bias", channels, Init::Zeros)?;
            let running_mean = b.statistic("running_mean", channels, Init::Zeros)?;
            let running_var = b.statistic("running_var", channels, Init::Ones)?;
            let (mean, var) = match b.mode() {
                Mode::Infer => (running_mean, running_var),
                Mode::Train => {
                    let rows = b.graph.shape(x).rows();
                    let axes: Vec<usize> = (0..b.graph.shape(x).rank() - 1).collect();
                    let (mean, var) = b.graph.moments(x, &axes)?;
                    let unbiased = b.graph.scale(var, rows as f64 / (rows.max(2) - 1) as f64)?;
                    b.move_towards(running_mean, mean, norm.momentum)?;
                    b.move_towards(running_var, unbiased, norm.momentum)?;
                    (mean, var)
                }
            };
            let g = &mut b.graph;
            let stable = g.offset(var, norm.eps)?;
            let inverse = g.rsqrt(stable)?;
            let scale = g.mul(gamma, inverse)?;
            let centred = g.sub(x, mean)?;
            let scaled = g.mul(centred, scale)?;
            g.add_(scaled, beta)
        })
    }

    /// Replaces `state` by `(1 - weight) * state + weight * target`.
    fn move_towards(&mut self, state: Value, target: Value, weight: f64) -> Result<()> {
        let old = self.graph.scale(state, 1.0 - weight)?;
        let new = self.graph.scale(target, weight)?;
        let moved = self.graph.add_(old, new)?;
        self.graph.update(state, moved)
    }

    /// Maximum of each window of `[N, H, W, C]`.
    pub fn max_pool(&mut self, x: Value, pool: MaxPool) -> Result<Value> {
        let [height, width, _] = self.image_axes(x);
        let pad = pool.padding.amounts([height, width], pool.window, pool.stride);
        self.graph.add1(MaxPool2d { window: [pool.window; 2], stride: [pool.stride; 2], pad }, &[x])
    }

    /// `[N, H, W, C]` to `[N, C]`, the mean over H and W.
    pub fn global_avg_pool(&mut self, x: Value) -> Result<Value> {
        self.graph.mean(x, &[1, 2])
    }

    /// `x [N, in]` times the transpose of `name.weight [out, in]`, plus `name.bias [out]`.
    pub fn linear(&mut self, name: &str, x: Value, linear: Linear) -> Result<Value> {
        let inputs = self.graph.shape(x).cols();
        self.scope(name, |b| {
            let weight = b.weight("weight", [linear.outputs, inputs], linear.weight)?;
            let bias = b.bias("bias", linear.outputs, linear.bias)?;
            let product = b.graph.add1(Matmul { trans_a: false, trans_b: true }, &[x, weight])?;
            b.graph.add_(product, bias)
        })
    }

    /// H, W and C of `[N, H, W, C]`.
    ///
    /// # Panics
    /// If `x` has not four axes: a bug of the model.
    fn image_axes(&self, x: Value) -> [usize; 3] {
        let &[_, height, width, channels] = self.graph.shape(x).dims() else {
            panic!("an image is [N, H, W, C], not {}", self.graph.shape(x))
        };
        [height, width, channels]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bessemer_ir::DType;
    use bessemer_ir::reference::Interpreter;

    /// Checked by hand: one channel, two pixels, 1 and 3.
    fn normalised(mode: Mode) -> Vec<(String, Vec<f64>)> {
        let mut b = Builder::new(mode);
        let x = b.feed("x", DType::F32, [2, 1, 1, 1]).expect("a new name");
        let y = b.batch_norm("bn", x, BatchNorm { eps: 3.0, ..BatchNorm::default() }).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", &[1.0, 3.0]);
        run.set("bn.weight", &[10.0]);
        run.set("bn.bias", &[0.5]);
        run.set("bn.running_mean", &[-1.0]);
        run.set("bn.running_var", &[13.0]);
        run.run();
        let mut results = vec![("y".to_string(), run.output("y").data.clone())];
        for name in ["bn.running_mean", "bn.running_var"] {
            results.push((name.to_string(), run.input(name).data.clone()));
        }
        results
    }

    fn close(a: &[f64], b: &[f64]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-12)
    }

    #[test]
    fn batch_norm_uses_the_batch_in_training() {
        let results = normalised(Mode::Train);
        assert!(close(&results[0].1, &[-4.5, 5.5]), "{results:?}");
        assert!(close(&results[1].1, &[-0.9 + 0.1 * 2.0]), "{results:?}");
        assert!(close(&results[2].1, &[0.9 * 13.0 + 0.1 * 2.0]), "{results:?}");
    }

    #[test]
    fn batch_norm_uses_running_statistics_in_inference() {
        let results = normalised(Mode::Infer);
        assert!(close(&results[0].1, &[5.5, 10.5]), "{results:?}");
        assert!(close(&results[1].1, &[-1.0]) && close(&results[2].1, &[13.0]), "{results:?}");
    }

    #[test]
    fn paddings() {
        assert_eq!(Padding::Symmetric.amounts([224, 224], 7, 2), [[3, 3], [3, 3]]);
        assert_eq!(Padding::Same.amounts([224, 224], 7, 2), [[2, 3], [2, 3]]);
        assert_eq!(Padding::Same.amounts([56, 55], 3, 2), [[0, 1], [1, 1]]);
        assert_eq!(Padding::Same.amounts([56, 56], 1, 2), [[0, 0], [0, 0]]);
    }

    #[test]
    fn linear_multiplies_by_rows_of_the_weight() {
        let mut b = Builder::new(Mode::Infer);
        let x = b.feed("x", DType::F32, [1, 2]).expect("a new name");
        let y = b.linear("fc", x, Linear::uniform(2, 3)).expect("a legal graph");
        b.graph.output("y", y);
        let mut run = Interpreter::new(&b.graph);
        run.set("x", &[1.0, 2.0]);
        run.set("fc.weight", &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        run.set("fc.bias", &[0.5, 0.0, 0.0]);
        run.run();
        assert_eq!(run.output("y").data, [1.5, 2.0, 3.0]);
    }
}
