//! Published weights: names and strict loading.

use bessemer_ir::Shape;
use bessemer_nn::ParamSpec;
use std::collections::HashMap;
use std::fmt::Write as _;

/// A tensor of a file of weights, in PyTorch's layouts (convolutions `[CO, CI, KH, KW]`, linear layers `[out, in]`);
/// [`crate::tensorflow`] brings those of TensorFlow into them.
#[derive(Clone, Copy, Debug)]
pub struct ExternalTensor<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Sizes of the axes in the file.
    pub shape: &'a [usize],
    /// Elements in row-major order.
    pub data: &'a [f32],
}

/// All that keeps a file of weights from fitting a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("the weights do not fit the model:{}", describe(self))]
pub struct WeightsError {
    /// Tensors of the model that the file lacks.
    pub missing: Vec<String>,
    /// Tensors of the file that the model lacks, as the file names them.
    pub unknown: Vec<String>,
    /// Tensors that the file has twice, under two names.
    pub repeated: Vec<String>,
    /// Name, shape in the file, shape in the model.
    pub misshapen: Vec<(String, Shape, Shape)>,
}

impl WeightsError {
    /// How many tensors do not fit.
    pub fn problems(&self) -> usize {
        self.missing.len() + self.unknown.len() + self.repeated.len() + self.misshapen.len()
    }
}

/// Names, or shapes, of one kind that a message lists; of more it gives the number.
const MOST_LISTED: usize = 6;

fn describe(error: &WeightsError) -> String {
    let mut text = String::new();
    let more =
        |count: usize| if count > MOST_LISTED { format!(" and {} more", count - MOST_LISTED) } else { String::new() };
    let lists = [("missing", &error.missing), ("unknown", &error.unknown), ("there twice", &error.repeated)];
    for (what, names) in lists {
        if !names.is_empty() {
            let reported = &names[..names.len().min(MOST_LISTED)];
            let _ = write!(text, "\n  {what}: {}{}", reported.join(", "), more(names.len()));
        }
    }
    for (name, found, wanted) in error.misshapen.iter().take(MOST_LISTED) {
        let _ = write!(text, "\n  `{name}` is {found} in the file and {wanted} in the model");
    }
    if error.misshapen.len() > MOST_LISTED {
        let _ = write!(text, "\n {} of other shapes", more(error.misshapen.len()));
    }
    text
}

/// How a family of models names the tensors of its files.
#[derive(Clone, Copy, Debug)]
pub struct WeightNames {
    /// The canonical name of a tensor in a file of any suite of PyTorch's that the family knows.
    pub read: fn(&str) -> String,
    /// Whether a file may hold a tensor of this canonical name although no model wants it, such as copies and counts.
    pub is_ignored: fn(&str) -> bool,
    /// The name that torchvision gives to a canonical name; `None` where it has no such models.
    pub torchvision: Option<fn(&str) -> String>,
    /// The name that NVIDIA DeepLearningExamples (PyTorch) gives to a canonical name; `None` where it has no such models.
    pub deep_learning_examples: Option<fn(&str) -> String>,
}

impl WeightNames {
    /// Names that are the same in every file.
    pub const PLAIN: WeightNames = WeightNames {
        read: |name| without_module(name).to_owned(),
        is_ignored: |_| false,
        torchvision: None,
        deep_learning_examples: None,
    };

    /// Whether a file may hold a tensor under this name although no model wants it.
    pub fn ignores(&self, name: &str) -> bool {
        (self.is_ignored)(&self.canonical(name))
    }

    /// The canonical name of a tensor in a file.
    pub fn canonical(&self, name: &str) -> String {
        (self.read)(name)
    }
}

/// A name without the `module.` that PyTorch's data-parallel training puts before it.
pub fn without_module(name: &str) -> &str {
    name.strip_prefix("module.").unwrap_or(name)
}

/// Matches the tensors of a file with those of a model, all of them, and brings them into the order of the graph.
///
/// # Errors
/// Lists every tensor that is missing, unknown, there twice or of another shape.
///
/// # Panics
/// If the data of a tensor does not fill its shape.
pub fn load_into<'a>(
    specs: &'a [ParamSpec],
    names: &WeightNames,
    tensors: &[ExternalTensor<'_>],
) -> Result<Vec<(&'a ParamSpec, Vec<f32>)>, WeightsError> {
    let wanted: Vec<&ParamSpec> = specs.iter().filter(|spec| spec.kind.is_model()).collect();
    let positions: HashMap<&str, usize> = wanted.iter().enumerate().map(|(i, spec)| (spec.name.as_str(), i)).collect();
    let mut loaded: Vec<Option<Vec<f32>>> = vec![None; wanted.len()];
    let mut seen = vec![false; wanted.len()];
    let mut error = WeightsError::default();
    for tensor in tensors {
        let canonical = names.canonical(tensor.name);
        if (names.is_ignored)(&canonical) {
            continue;
        }
        let Some(&position) = positions.get(canonical.as_str()) else {
            error.unknown.push(tensor.name.to_string());
            continue;
        };
        let spec = wanted[position];
        if seen[position] {
            error.repeated.push(spec.name.clone());
            continue;
        }
        seen[position] = true;
        let shape = spec.external_shape();
        if shape.dims() == tensor.shape {
            loaded[position] = Some(spec.from_external(tensor.data));
        } else {
            error.misshapen.push((spec.name.clone(), tensor.shape.into(), shape));
        }
    }
    error.missing = wanted.iter().zip(&seen).filter(|&(_, &seen)| !seen).map(|(spec, _)| spec.name.clone()).collect();
    if error != WeightsError::default() {
        return Err(error);
    }
    Ok(wanted.into_iter().zip(loaded.into_iter().flatten()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::NAMES;
    use bessemer_nn::{Builder, Init, Mode};

    fn specs() -> Vec<ParamSpec> {
        let mut b = Builder::new(Mode::Infer);
        b.kernel("layer1.0.conv1.weight", [1, 1, 2, 3], Init::Zeros).expect("a new name");
        b.bias("fc.bias", 2, Init::Zeros).expect("a new name");
        b.specs().to_vec()
    }

    const CONV: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

    fn tensor<'a>(name: &'a str, shape: &'a [usize], data: &'a [f32]) -> ExternalTensor<'a> {
        ExternalTensor { name, shape, data }
    }

    #[test]
    fn tensors_come_in_the_order_of_the_graph() {
        let specs = specs();
        let loaded = load_into(
            &specs,
            &NAMES,
            &[
                tensor("module.fc.bias", &[2], &[7.0, 8.0]),
                tensor("bn1.num_batches_tracked", &[], &[3.0]),
                tensor("module.layers.0.0.conv1.weight", &[3, 2, 1, 1], &CONV),
            ],
        )
        .expect("all tensors are there");
        assert_eq!(loaded[0].0.name, "layer1.0.conv1.weight");
        assert_eq!(loaded[0].1, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
        assert_eq!(loaded[1].1, [7.0, 8.0]);
    }

    #[test]
    fn of_many_problems_some_are_told() {
        let error =
            WeightsError { missing: (0..MOST_LISTED + 3).map(|i| format!("w{i}")).collect(), ..Default::default() };
        let text = error.to_string();
        assert!(text.contains("missing: w0, w1") && text.ends_with(", w5 and 3 more"), "{text}");
    }

    #[test]
    fn all_problems_are_listed_at_once() {
        let specs = specs();
        let error = load_into(
            &specs,
            &NAMES,
            &[tensor("layer1.0.conv1.weight", &[2, 3, 1, 1], &CONV), tensor("head.bias", &[2], &[7.0, 8.0])],
        )
        .expect_err("nothing fits");
        assert_eq!(error.missing, ["fc.bias"]);
        assert_eq!(error.unknown, ["head.bias"]);
        assert_eq!(error.misshapen, [("layer1.0.conv1.weight".to_string(), [2, 3, 1, 1].into(), [3, 2, 1, 1].into())]);
        let text = error.to_string();
        for part in ["missing: fc.bias", "unknown: head.bias", "is [2, 3, 1, 1] in the file and [3, 2, 1, 1] in"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn one_tensor_under_two_names() {
        let specs = specs();
        let bias = tensor("fc.bias", &[2], &[7.0, 8.0]);
        let conv = tensor("layer1.0.conv1.weight", &[3, 2, 1, 1], &CONV);
        let twice = ExternalTensor { name: "module.fc.bias", ..bias };
        let error = load_into(&specs, &NAMES, &[bias, conv, twice]).expect_err("one tensor is there twice");
        assert_eq!(error, WeightsError { repeated: vec!["fc.bias".to_string()], ..WeightsError::default() });
    }
}
