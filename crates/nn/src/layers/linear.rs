//! Fully connected layers.

use crate::Result;
use crate::builder::Builder;
use crate::init::Init;
use bessemer_ir::Value;
use bessemer_ir::ops::matmul::Matmul;

/// Settings of a [`Linear`].
#[derive(Clone, Copy, Debug)]
pub struct LinearOptions {
    /// Output features.
    pub outputs: usize,
    /// Initial weight matrix.
    pub weight: Init,
    /// Initial bias of each output.
    pub bias: Init,
}

impl LinearOptions {
    /// PyTorch's default: weight and bias uniform in `±1 / sqrt(inputs)`.
    pub fn uniform(inputs: usize, outputs: usize) -> Self {
        let init = Init::Uniform { bound: 1.0 / (inputs as f64).sqrt() };
        LinearOptions { outputs, weight: init, bias: init }
    }
}

/// A fully connected layer with bias.
#[derive(Clone, Debug)]
pub struct Linear {
    name: String,
    /// `f32[out, in]`
    weight: Value,
    /// `f32[out]`
    bias: Value,
}

impl Linear {
    /// Declares `name.weight` and `name.bias` for inputs of `inputs` features.
    ///
    /// # Errors
    /// [`GraphError::DuplicateName`](bessemer_ir::GraphError) where the scope has such a layer already.
    pub fn new(b: &mut Builder, name: &str, inputs: usize, options: LinearOptions) -> Result<Self> {
        b.scope(name, |b| {
            let weight = b.weight("weight", [options.outputs, inputs], options.weight)?;
            Linear::with_bias(b, name, weight, options)
        })
    }

    /// The same for flattened images `[H, W, C]`: files have their inputs in the order `(C, H, W)`.
    ///
    /// # Errors
    /// As [`Linear::new`].
    pub fn of_image(
        b: &mut Builder,
        name: &str,
        [height, width, channels]: [usize; 3],
        options: LinearOptions,
    ) -> Result<Self> {
        let pixels = height * width;
        b.scope(name, |b| {
            let weight = b.weight_of_image("weight", [options.outputs, pixels * channels], pixels, options.weight)?;
            Linear::with_bias(b, name, weight, options)
        })
    }

    fn with_bias(b: &mut Builder, name: &str, weight: Value, options: LinearOptions) -> Result<Self> {
        let bias = b.bias("bias", options.outputs, options.bias)?;
        Ok(Linear { name: name.to_string(), weight, bias })
    }

    /// `x [..., in]` times the transpose of the weight, plus the bias: `[..., out]`.
    ///
    /// # Errors
    /// Features that do not fit the weight.
    pub fn apply(&self, b: &mut Builder, x: Value) -> Result<Value> {
        b.scope(&self.name, |b| {
            let product = b.graph.push1(Matmul { trans_a: false, trans_b: true }, &[x, self.weight])?;
            b.graph.add(product, self.bias)
        })
    }
}
