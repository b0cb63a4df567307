//! Weights by name, and the batches.

use crate::optimizers::Rule;
use burn_tensor::{Device, Gradients, Int, Tensor, TensorData};
use peer::{Array, Result, Training, is_statistic};
use std::collections::BTreeMap;

/// Weights that gradients reach when training. Those of layers are `[inputs, outputs]`, which is how Burn multiplies.
pub(crate) struct Parameters {
    vectors: Group<1>,
    matrices: Group<2>,
    kernels: Group<4>,
    /// Running statistics of batch norms.
    statistics: BTreeMap<String, Tensor<1>>,
}

type Group<const D: usize> = BTreeMap<String, Weight<D>>;

pub(crate) struct Weight<const D: usize> {
    pub(crate) value: Tensor<D>,
    /// The velocity, or mean and mean square of gradients.
    pub(crate) moments: Vec<Tensor<D>>,
}

impl Parameters {
    pub(crate) fn new(weights: BTreeMap<String, Array>, device: &Device) -> Result<Self> {
        let (mut vectors, mut matrices, mut kernels) = (Group::new(), Group::new(), Group::new());
        let mut statistics = BTreeMap::new();
        for (name, array) in weights {
            match array.shape.len() {
                1 if is_statistic(&name) => drop(statistics.insert(name, floats(array, device))),
                1 => drop(vectors.insert(name, Weight::new(array, device))),
                2 if name.ends_with("embeddings.weight") => drop(matrices.insert(name, Weight::new(array, device))),
                2 => drop(matrices.insert(name, Weight::new(transposed(&array), device))),
                4 => drop(kernels.insert(name, Weight::new(array, device))),
                axes => return Err(format!("weight `{name}` has {axes} axes").into()),
            }
        }
        Ok(Self { vectors, matrices, kernels, statistics })
    }

    pub(crate) fn has_kernel(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    pub(crate) fn vector(&self, name: &str) -> Tensor<1> {
        of(&self.vectors, name)
    }

    pub(crate) fn matrix(&self, name: &str) -> Tensor<2> {
        of(&self.matrices, name)
    }

    pub(crate) fn kernel(&self, name: &str) -> Tensor<4> {
        of(&self.kernels, name)
    }

    pub(crate) fn statistic(&self, name: &str) -> Tensor<1> {
        self.statistics[name].clone()
    }

    pub(crate) fn move_statistic(&mut self, name: &str, value: Tensor<1>) {
        self.statistics.insert(name.to_owned(), value);
    }

    /// A step of the optimizer, whose number is `count`.
    pub(crate) fn update(&mut self, training: &Training, count: i32, mut gradients: Gradients) {
        let factor = match training.clip_norm {
            Some(limit) => (limit / self.norm(&gradients)).min(1.0),
            None => 1.0,
        };
        let rule = Rule::new(training, count, factor);
        update(&mut self.vectors, &rule, &mut gradients);
        update(&mut self.matrices, &rule, &mut gradients);
        update(&mut self.kernels, &rule, &mut gradients);
    }

    /// Of all gradients together.
    fn norm(&self, gradients: &Gradients) -> f64 {
        let of_layers = squares(&self.matrices, gradients) + squares(&self.kernels, gradients);
        (squares(&self.vectors, gradients) + of_layers).sqrt()
    }
}

impl<const D: usize> Weight<D> {
    fn new(array: Array, device: &Device) -> Self {
        let value: Tensor<D> = floats(array, device);
        let value = if device.is_autodiff() { value.require_grad() } else { value };
        Self { value, moments: Vec::new() }
    }
}

/// # Panics
/// There is no such weight.
fn of<const D: usize>(group: &Group<D>, name: &str) -> Tensor<D> {
    let weight = group.get(name).unwrap_or_else(|| panic!("there is no weight `{name}`"));
    weight.value.clone()
}

fn update<const D: usize>(group: &mut Group<D>, rule: &Rule<'_>, gradients: &mut Gradients) {
    for (name, weight) in group {
        if let Some(gradient) = weight.value.grad_remove(gradients) {
            rule.apply(name, weight, gradient);
        }
    }
}

fn squares<const D: usize>(group: &Group<D>, gradients: &Gradients) -> f64 {
    let found = group.values().filter_map(|weight| weight.value.grad(gradients));
    found.map(|gradient| f64::from(gradient.square().sum().into_scalar::<f32>())).sum()
}

pub(crate) fn floats<const D: usize>(array: Array, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(array.values, array.shape), device)
}

pub(crate) fn integers<const D: usize>(array: Array<i32>, device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(array.values, array.shape), device)
}

fn transposed(array: &Array) -> Array {
    let (rows, columns) = (array.shape[0], array.shape[1]);
    let column = |column| (0..rows).map(move |row| array.values[row * columns + column]);
    Array { shape: vec![columns, rows], values: (0..columns).flat_map(column).collect() }
}
