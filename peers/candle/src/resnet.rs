//! ResNet with bottlenecks, by torchvision's names; pictures `[N, C, H, W]`.

use crate::Model;
use crate::parameters::{Parameters, indices, tensor};
use candle_core::{Device, Module, ModuleT, Result, Tensor};
use candle_nn::ops::log_softmax;
use candle_nn::{BatchNorm, Conv2d, Conv2dConfig, Linear};

const EPS: f64 = 1e-5;

/// The network with its batches.
pub(crate) struct Work {
    network: Network,
    /// Pictures `[N, 3, H, W]`, and labels `[N]`.
    batches: Vec<(Tensor, Tensor)>,
    smoothing: f64,
}

impl Work {
    pub(crate) fn new(work: &peer::Work, parameters: &Parameters) -> peer::Result<Self> {
        let peer::Sizes::ResNet(sizes) = &work.sizes else { unreachable!("the family is ResNet") };
        let batches = work.images()?.into_iter().zip(work.integers("labels")?);
        let batches = batches.map(|(images, labels)| Ok((tensor(images)?, indices(labels)?)));
        Ok(Self {
            network: Network::new(parameters, &sizes.layers)?,
            batches: batches.collect::<Result<_>>()?,
            smoothing: work.training.label_smoothing,
        })
    }
}

impl Model for Work {
    /// Cross-entropy with smoothed labels.
    fn loss(&self, batch: usize) -> Result<Tensor> {
        let (images, labels) = &self.batches[batch];
        let scores = log_softmax(&self.network.logits(images, true)?, 1)?;
        let right = scores.gather(&labels.unsqueeze(1)?, 1)?.mean_all()?;
        (right * (self.smoothing - 1.0))? - (scores.mean_all()? * self.smoothing)?
    }

    fn outputs(&self, batch: usize) -> Result<Vec<Tensor>> {
        Ok(vec![self.network.logits(&self.batches[batch].0, false)?])
    }
}

struct Network {
    stem: Convolution,
    blocks: Vec<Bottleneck>,
    head: Linear,
}

impl Network {
    fn new(parameters: &Parameters, layers: &[usize]) -> Result<Self> {
        let mut blocks = Vec::new();
        for (stage, &count) in layers.iter().enumerate() {
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                blocks.push(Bottleneck::new(parameters, &format!("layer{}.{block}", stage + 1), stride)?);
            }
        }
        let head = Linear::new(parameters.get("fc.weight")?, Some(parameters.get("fc.bias")?));
        Ok(Self { stem: Convolution::new(parameters, "conv1", "bn1", 2)?, blocks, head })
    }

    /// `[N, 3, H, W]` to `[N, classes]`
    fn logits(&self, images: &Tensor, trains: bool) -> Result<Tensor> {
        let x = self.stem.forward_t(images, trains)?.relu()?;
        let mut x = if trains { max_pool_by_parts(&x)? } else { max_pool(&x)? };
        for block in &self.blocks {
            x = block.forward_t(&x, trains)?;
        }
        self.head.forward(&x.mean((2, 3))?)
    }
}

/// A convolution and its batch norm, which it has absorbed for inference.
struct Convolution {
    convolution: Conv2d,
    norm: Option<BatchNorm>,
}

impl Convolution {
    fn new(parameters: &Parameters, name: &str, norm: &str, stride: usize) -> Result<Self> {
        let weight = parameters.get(&format!("{name}.weight"))?;
        let padding = weight.dim(2)? / 2;
        let convolution = Conv2d::new(weight, None, Conv2dConfig { padding, stride, ..Conv2dConfig::default() });
        let part = |kind: &str| parameters.get(&format!("{norm}.{kind}"));
        let norm = BatchNorm::new(
            part("weight")?.dim(0)?,
            part("running_mean")?,
            part("running_var")?,
            part("weight")?,
            part("bias")?,
            EPS,
        )?;
        if !parameters.trained().is_empty() {
            return Ok(Self { convolution, norm: Some(norm) });
        }
        let absorbed = convolution.absorb_bn(&norm)?;
        // Running statistics are variables: what comes of them would be kept for a backward pass.
        let (weight, bias) = (absorbed.weight().detach(), absorbed.bias().map(Tensor::detach));
        Ok(Self { convolution: Conv2d::new(weight, bias, *absorbed.config()), norm: None })
    }
}

impl ModuleT for Convolution {
    fn forward_t(&self, x: &Tensor, trains: bool) -> Result<Tensor> {
        let x = self.convolution.forward(x)?;
        match &self.norm {
            Some(norm) => norm.forward_t(&x, trains),
            None => Ok(x),
        }
    }
}

struct Bottleneck {
    convolutions: [Convolution; 3],
    shortcut: Option<Convolution>,
}

impl Bottleneck {
    fn new(parameters: &Parameters, name: &str, stride: usize) -> Result<Self> {
        let convolution = |index: usize, stride| {
            Convolution::new(parameters, &format!("{name}.conv{index}"), &format!("{name}.bn{index}"), stride)
        };
        let shortcut = format!("{name}.downsample.0");
        let shortcut = if parameters.has(&format!("{shortcut}.weight")) {
            Some(Convolution::new(parameters, &shortcut, &format!("{name}.downsample.1"), stride)?)
        } else {
            None
        };
        Ok(Self { convolutions: [convolution(1, 1)?, convolution(2, stride)?, convolution(3, 1)?], shortcut })
    }
}

impl ModuleT for Bottleneck {
    fn forward_t(&self, x: &Tensor, trains: bool) -> Result<Tensor> {
        let [first, second, third] = &self.convolutions;
        let inner = first.forward_t(x, trains)?.relu()?;
        let inner = second.forward_t(&inner, trains)?.relu()?;
        let inner = third.forward_t(&inner, trains)?;
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward_t(x, trains)?,
            None => x.clone(),
        };
        (inner + shortcut)?.relu()
    }
}

/// 3 × 3, every second row and column; what is above zero already can be padded with zeros.
fn max_pool(x: &Tensor) -> Result<Tensor> {
    padded(x)?.max_pool2d_with_stride(3, 2)
}

/// The same of operations that have a backward pass: Candle's pooling has none where windows overlap.
fn max_pool_by_parts(x: &Tensor) -> Result<Tensor> {
    max_of_every_second(&max_of_every_second(&padded(x)?, 3)?, 2)
}

fn padded(x: &Tensor) -> Result<Tensor> {
    x.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 1, 1)
}

/// The largest of three neighbours along an axis, around every second.
fn max_of_every_second(x: &Tensor, axis: usize) -> Result<Tensor> {
    let count = (x.dim(axis)? - 3) / 2 + 1;
    let part = |first: usize| {
        let rows: Vec<i64> = (0..count).map(|row| (2 * row + first) as i64).collect();
        x.index_select(&Tensor::from_vec(rows, count, &Device::Cpu)?, axis)
    };
    part(0)?.maximum(&part(1)?)?.maximum(&part(2)?)
}
