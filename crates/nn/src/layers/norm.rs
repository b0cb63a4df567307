//! Normalisation of batches and of rows.

use crate::Result;
use crate::builder::{Builder, Mode};
use crate::init::Init;
use crate::ranks::merged_moments;
use bessemer_ir::ops::reduce::ReduceKind;
use bessemer_ir::{Graph, Value};

/// Settings of a [`BatchNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNormOptions {
    /// Added to the variance before its root is taken.
    pub eps: f64,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// Initial scale.
    pub gamma: Init,
    /// Whether training, too, normalises by the running statistics and leaves all four tensors as they are.
    pub frozen: bool,
}

impl Default for BatchNormOptions {
    /// PyTorch's: epsilon 1e-5, momentum 0.1, scale 1.
    fn default() -> Self {
        BatchNormOptions { eps: 1e-5, momentum: 0.1, gamma: Init::Ones, frozen: false }
    }
}

/// Batch normalisation (Ioffe, Szegedy 2015, arXiv:1502.03167) of the innermost axis. Each application in training moves the
/// running statistics, so that a norm that is not frozen is applied once in a training step.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    name: String,
    /// `f32[C]`, as all of the following.
    gamma: Value,
    beta: Value,
    running_mean: Value,
    running_var: Value,
    options: BatchNormOptions,
}

impl BatchNorm {
    /// Declares `name.weight`, `name.bias`, `name.running_mean` and `name.running_var`, `f32[channels]` each. The norm is
    /// frozen as well where the builder is.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, channels: usize, options: BatchNormOptions) -> Result<Self> {
        let options = BatchNormOptions { frozen: options.frozen || b.is_frozen(), ..options };
        let declare = |b: &mut Builder| {
            let gamma = b.norm("weight", channels, options.gamma)?;
            let beta = b.norm("bias", channels, Init::Zeros)?;
            let running_mean = b.statistic("running_mean", channels, Init::Zeros)?;
            let running_var = b.statistic("running_var", channels, Init::Ones)?;
            Ok(BatchNorm { name: name.to_string(), gamma, beta, running_mean, running_var, options })
        };
        b.scope(name, |b| if options.frozen { b.frozen(declare) } else { declare(b) })
    }

    /// Whether training leaves the norm as it is.
    pub fn is_frozen(&self) -> bool {
        self.options.frozen
    }

    /// `(x - mean) * (weight * rsqrt(var + eps)) + bias` of `x [..., C]`. In training mean and biased variance are those of
    /// the batch, over all ranks if the builder's norms are, and the running statistics move by `momentum` towards the mean and the unbiased variance; a batch of one
    /// pixel counts as two there. A frozen norm uses the running statistics always.
    ///
    /// # Errors
    /// Channels that do not fit the norm; a second application of a norm that is not frozen in a training step.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        b.scope(&self.name, |b| {
            let (mean, var) = if b.mode() == Mode::Train && !self.options.frozen {
                self.track(b, x)?
            } else {
                (self.running_mean, self.running_var)
            };
            let g = &mut b.graph;
            let stable = g.add_scalar(var, self.options.eps)?;
            let inverse = g.rsqrt(stable)?;
            let scale = g.mul(self.gamma, inverse)?;
            let centred = g.sub(x, mean)?;
            let scaled = g.mul(centred, scale)?;
            g.add(scaled, self.beta)
        })
    }

    /// Mean and biased variance of the batch, towards which the running statistics are moved.
    fn track(&self, b: &mut Builder, x: Value) -> Result<(Value, Value)> {
        let ranks = b.ranks_of_norms();
        let g = &mut b.graph;
        let rows = ranks * g.shape(x).rows();
        let axes: Vec<usize> = (0..g.shape(x).rank() - 1).collect();
        let (mean, var) = g.moments(x, &axes)?;
        let (mean, var) = merged_moments(g, ranks, mean, var)?;
        let unbiased = g.mul_scalar(var, rows as f64 / (rows.max(2) - 1) as f64)?;
        move_towards(g, self.running_mean, mean, self.options.momentum)?;
        move_towards(g, self.running_var, unbiased, self.options.momentum)?;
        Ok((mean, var))
    }
}

/// Replaces `state` by `(1 - weight) * state + weight * target`.
fn move_towards(g: &mut Graph, state: Value, target: Value, weight: f64) -> Result<()> {
    let old = g.mul_scalar(state, 1.0 - weight)?;
    let new = g.mul_scalar(target, weight)?;
    let moved = g.add(old, new)?;
    g.update(state, moved)
}

/// Normalisation over the innermost axis of `[..., C]`: `(x - mean) * rsqrt(var + eps) * weight + bias`, with the biased
/// variance (Ba, Kiros, Hinton 2016, arXiv:1607.06450).
#[derive(Clone, Debug)]
pub struct LayerNorm {
    name: String,
    /// `f32[C]`
    weight: Value,
    /// `f32[C]`
    bias: Value,
    eps: f64,
}

impl LayerNorm {
    /// Declares `name.weight` and `name.bias`, `f32[channels]` each.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, channels: usize, eps: f64) -> Result<Self> {
        b.scope(name, |b| {
            let weight = b.norm("weight", channels, Init::Ones)?;
            let bias = b.norm("bias", channels, Init::Zeros)?;
            Ok(LayerNorm { name: name.to_string(), weight, bias, eps })
        })
    }

    /// The normalised tensor, of the shape of `x [..., C]`.
    ///
    /// # Errors
    /// Channels that do not fit the norm.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        b.scope(&self.name, |b| {
            let g = &mut b.graph;
            let mean = row_mean(g, x)?;
            let centred = g.sub(x, mean)?;
            let squares = g.square(centred)?;
            let variance = row_mean(g, squares)?;
            let stable = g.add_scalar(variance, self.eps)?;
            let factor = g.rsqrt(stable)?;
            let normalised = g.mul(centred, factor)?;
            let scaled = g.mul(normalised, self.weight)?;
            g.add(scaled, self.bias)
        })
    }
}

/// Mean over the innermost axis, which is kept with size 1.
fn row_mean(g: &mut Graph, x: Value) -> Result<Value> {
    let (axis, cols) = (g.shape(x).rank() - 1, g.shape(x).cols());
    let sum = g.reduce(ReduceKind::Sum, x, &[axis], true)?;
    g.mul_scalar(sum, 1.0 / cols as f64)
}
