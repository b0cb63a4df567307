//! ResNet with bottlenecks, by torchvision's names; pictures `[N, C, H, W]`.

use crate::parameters::{Parameters, floats, integers};
use crate::{Model, array};
use burn_tensor::activation::{log_softmax, relu};
use burn_tensor::module::{adaptive_avg_pool2d, batch_norm, batch_norm_train, conv2d, linear, max_pool2d};
use burn_tensor::ops::{ConvOptions, MaxPoolOptions};
use burn_tensor::{Device, Int, Tensor};
use peer::{Array, Result};

const EPS: f64 = 1e-5;
/// Share of a running statistic that a step keeps.
const KEPT: f64 = 0.9;

/// The network with its batches.
pub(crate) struct Work {
    parameters: Parameters,
    /// Blocks of each stage.
    layers: Vec<usize>,
    trains: bool,
    /// Pictures `[N, 3, H, W]`, and labels `[N, 1]`.
    batches: Vec<(Tensor<4>, Tensor<2, Int>)>,
    smoothing: f64,
}

impl Work {
    pub(crate) fn new(work: &peer::Work, parameters: Parameters, device: &Device) -> Result<Self> {
        let peer::Sizes::ResNet(sizes) = &work.sizes else { unreachable!("the family is ResNet") };
        let batches = work.images()?.into_iter().zip(work.integers("labels")?);
        let batch = |(images, labels)| (floats(images, device), integers::<1>(labels, device).unsqueeze_dim(1));
        Ok(Self {
            parameters,
            layers: sizes.layers.clone(),
            trains: device.is_autodiff(),
            batches: batches.map(batch).collect(),
            smoothing: work.training.label_smoothing,
        })
    }

    /// `[N, classes]`
    fn logits(&mut self, batch: usize) -> Tensor<2> {
        let x = relu(self.convolve("conv1", "bn1", self.batches[batch].0.clone(), 2));
        let mut x = max_pool2d(x, MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]));
        for stage in 0..self.layers.len() {
            for block in 0..self.layers[stage] {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                x = self.bottleneck(&format!("layer{}.{block}", stage + 1), x, stride);
            }
        }
        let pooled = adaptive_avg_pool2d(x, [1, 1]).flatten::<2>(1, 3);
        linear(pooled, self.parameters.matrix("fc.weight"), Some(self.parameters.vector("fc.bias")))
    }

    fn bottleneck(&mut self, name: &str, x: Tensor<4>, stride: usize) -> Tensor<4> {
        let mut part = |index: usize, x, stride| {
            self.convolve(&format!("{name}.conv{index}"), &format!("{name}.bn{index}"), x, stride)
        };
        let inner = relu(part(1, x.clone(), 1));
        let inner = relu(part(2, inner, stride));
        let inner = part(3, inner, 1);
        let shortcut = format!("{name}.downsample.0");
        let shortcut = if self.parameters.has_kernel(&format!("{shortcut}.weight")) {
            self.convolve(&shortcut, &format!("{name}.downsample.1"), x, stride)
        } else {
            x
        };
        relu(inner + shortcut)
    }

    /// A convolution and its batch norm.
    fn convolve(&mut self, name: &str, norm: &str, x: Tensor<4>, stride: usize) -> Tensor<4> {
        let kernel = self.parameters.kernel(&format!("{name}.weight"));
        let padding = kernel.dims()[2] / 2;
        let x = conv2d(x, kernel, None, ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1));
        let [scale, shift] = ["weight", "bias"].map(|kind| self.parameters.vector(&format!("{norm}.{kind}")));
        let [mean, variance] = ["mean", "var"].map(|kind| format!("{norm}.running_{kind}"));
        if !self.trains {
            let [mean, variance] = [mean, variance].map(|name| self.parameters.statistic(&name));
            return batch_norm(x, scale, shift, mean, variance, EPS);
        }
        let [samples, _, height, width] = x.dims();
        let count = (samples * height * width) as f64;
        let normal = batch_norm_train(x, scale, shift, EPS);
        self.move_statistic(&mean, normal.mean);
        self.move_statistic(&variance, normal.variance * (count / (count - 1.0)));
        normal.output
    }

    fn move_statistic(&mut self, name: &str, now: Tensor<1>) {
        let moved = self.parameters.statistic(name) * KEPT + now * (1.0 - KEPT);
        self.parameters.move_statistic(name, moved.detach());
    }
}

impl Model for Work {
    fn parameters(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// Cross-entropy with smoothed labels.
    fn loss(&mut self, batch: usize) -> Tensor<1> {
        let scores = log_softmax(self.logits(batch), 1);
        let right = scores.clone().gather(1, self.batches[batch].1.clone()).mean();
        right * (self.smoothing - 1.0) - scores.mean() * self.smoothing
    }

    fn outputs(&mut self, batch: usize) -> Result<Vec<Array>> {
        Ok(vec![array(self.logits(batch))?])
    }
}
