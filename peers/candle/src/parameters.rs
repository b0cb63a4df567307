//! Weights by name, and the batches.

use candle_core::{Device, Result, Tensor, Var, WithDType};
use peer::{Array, is_statistic};
use std::collections::BTreeMap;

/// Weights that gradients reach when training, and constants otherwise.
pub(crate) struct Parameters {
    tensors: BTreeMap<String, Tensor>,
    trained: Vec<(String, Var)>,
}

impl Parameters {
    pub(crate) fn new(weights: BTreeMap<String, Array>, trains: bool) -> Result<Self> {
        let (mut tensors, mut trained) = (BTreeMap::new(), Vec::new());
        for (name, array) in weights {
            let mut value = tensor(array)?;
            if trains && !is_statistic(&name) {
                let var = Var::from_tensor(&value)?;
                value = var.as_tensor().clone();
                trained.push((name.clone(), var));
            }
            tensors.insert(name, value);
        }
        Ok(Self { tensors, trained })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Result<Tensor> {
        let found = self.tensors.get(name).cloned();
        found.ok_or_else(|| candle_core::Error::Msg(format!("there is no weight `{name}`")))
    }

    pub(crate) fn trained(&self) -> &[(String, Var)] {
        &self.trained
    }
}

pub(crate) fn tensor<T: WithDType>(array: Array<T>) -> Result<Tensor> {
    Tensor::from_vec(array.values, array.shape, &Device::Cpu)
}

/// Numbers of rows, as Candle takes them.
pub(crate) fn indices(array: Array<i32>) -> Result<Tensor> {
    let values = array.values.into_iter().map(i64::from).collect();
    tensor(Array { shape: array.shape, values })
}
