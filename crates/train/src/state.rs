//! The tensors of a state that belong together in one file, in the order and the names of files.

use crate::error::TrainError;
use bessemer_ir::DType;
use bessemer_ir::run::{StateStore, read_f32, read_i32, write_f32, write_i32};
use bessemer_models::{ExternalTensor, Model, WeightNames, load_into};
use bessemer_nn::optim::is_reset_by_phase;
use bessemer_nn::{ParamKind, ParamSpec};
use bessemer_weights::NamedTensor;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// State tensors of a compiled step and what files call them.
#[derive(Debug)]
pub(crate) struct TensorGroup {
    /// Under the names of files.
    specs: Vec<ParamSpec>,
    /// The same tensors in the state.
    inputs: Vec<String>,
    /// How files name them.
    names: &'static WeightNames,
}

impl TensorGroup {
    /// Parameters and running statistics.
    pub(crate) fn model(specs: &[ParamSpec], names: &'static WeightNames) -> Self {
        Self::select(specs, names, |spec| spec.kind.is_model().then(|| spec.name.clone()))
    }

    /// Momenta and the loss scale.
    pub(crate) fn optimizer(specs: &[ParamSpec], names: &'static WeightNames) -> Self {
        let is_kept = |spec: &ParamSpec| spec.kind == ParamKind::Optimizer && spec.name != STEP_INPUT;
        Self::select(specs, names, |spec| is_kept(spec).then(|| spec.name.clone()))
    }

    /// What of the optimizer goes on from one phase of training to the next.
    pub(crate) fn moments(specs: &[ParamSpec], names: &'static WeightNames) -> Self {
        let is_kept = |spec: &ParamSpec| spec.kind == ParamKind::Optimizer && !is_reset_by_phase(spec);
        Self::select(specs, names, |spec| is_kept(spec).then(|| spec.name.clone()))
    }

    /// Averages, under the names of what they average; `None` if there are none.
    pub(crate) fn averages(specs: &[ParamSpec], names: &'static WeightNames) -> Option<Self> {
        let group = Self::select(specs, names, |spec| {
            spec.name.strip_prefix(AVERAGE_PREFIX).filter(|_| spec.kind == ParamKind::Average).map(str::to_owned)
        });
        (!group.specs.is_empty()).then_some(group)
    }

    fn select(
        specs: &[ParamSpec],
        names: &'static WeightNames,
        name_in_files: impl Fn(&ParamSpec) -> Option<String>,
    ) -> Self {
        let chosen = specs.iter().filter_map(|spec| Some((spec, name_in_files(spec)?)));
        let (specs, inputs) = chosen
            // What it is to the model is settled; strict loading takes tensors of the model alone.
            .map(|(spec, name)| (ParamSpec { name, kind: ParamKind::Weight, ..spec.clone() }, spec.name.clone()))
            .unzip();
        Self { specs, inputs, names }
    }

    /// Copies the tensors out of the state. Counters become `f32`, which holds them exactly: none passes 2^24.
    pub(crate) fn read(&self, state: &dyn StateStore) -> Result<Vec<NamedTensor<'static>>, TrainError> {
        let elements = |spec: &ParamSpec, input: &str| -> Result<Vec<f32>, TrainError> {
            Ok(match is_counter(spec) {
                true => read_i32(state, input)?.into_iter().map(|n| n as f32).collect(),
                false => read_f32(state, input)?,
            })
        };
        self.specs.iter().zip(&self.inputs).map(|(spec, input)| Ok(named(spec, &elements(spec, input)?))).collect()
    }

    /// Writes tensors into the state: all of them, no others, each of its shape. `origin` names them in errors.
    pub(crate) fn write(
        &self,
        state: &dyn StateStore,
        tensors: &[NamedTensor<'_>],
        origin: &str,
    ) -> Result<(), TrainError> {
        let loaded = load_strictly(&self.specs, self.names, tensors, origin)?;
        for (input, (spec, data)) in self.inputs.iter().zip(loaded) {
            match is_counter(spec) {
                true => write_i32(state, input, &data.iter().map(|&x| x as i32).collect::<Vec<_>>())?,
                false => write_f32(state, input, &data)?,
            }
        }
        Ok(())
    }
}

/// The step counter's input. Checkpoints keep it as a number beside the tensors.
pub(crate) const STEP_INPUT: &str = "step";

/// Whether a tensor of a step is a count.
pub(crate) fn is_counter(spec: &ParamSpec) -> bool {
    spec.ty.dtype == DType::I32
}

pub(crate) const AVERAGE_PREFIX: &str = "ema.";

/// Whether tensors have the names and shapes of a model's, by which a file without a recipe is recognised.
pub(crate) fn has_shapes(model: &Model, tensors: &[NamedTensor<'_>]) -> bool {
    let Model { specs, names, .. } = model;
    let wanted = specs.iter().filter(|spec| spec.kind.is_model());
    let wanted: BTreeMap<String, Vec<usize>> =
        wanted.map(|spec| (spec.name.clone(), spec.external_shape().dims().to_vec())).collect();
    let given = tensors.iter().filter(|tensor| !names.ignores(&tensor.name));
    wanted == given.map(|tensor| (names.canonical(&tensor.name), tensor.shape.clone())).collect()
}

/// [`load_into`] for tensors of any floating-point type.
pub(crate) fn load_strictly<'a>(
    specs: &'a [ParamSpec],
    names: &WeightNames,
    tensors: &[NamedTensor<'_>],
    origin: &str,
) -> Result<Vec<(&'a ParamSpec, Vec<f32>)>, TrainError> {
    // What is ignored may be of a type that is no float.
    let wanted = tensors.iter().filter(|tensor| !names.ignores(&tensor.name));
    let unfit = |source| TrainError::Tensor { origin: origin.to_owned(), source };
    let data = wanted.map(|tensor| Ok((tensor, tensor.to_f32().map_err(unfit)?)));
    let data = data.collect::<Result<Vec<_>, TrainError>>()?;
    let external: Vec<ExternalTensor<'_>> =
        data.iter().map(|(tensor, data)| ExternalTensor { name: &tensor.name, shape: &tensor.shape, data }).collect();
    load_into(specs, names, &external).map_err(|source| TrainError::Weights { origin: origin.to_owned(), source })
}

/// A tensor under its name and in the order of files.
pub(crate) fn named(spec: &ParamSpec, data: &[f32]) -> NamedTensor<'static> {
    let data = spec.to_external(data);
    let tensor = NamedTensor::from_f32(&spec.name, spec.external_shape().dims(), &data);
    let tensor = tensor.expect("the elements are those of the shape");
    NamedTensor { data: Cow::Owned(tensor.data.into_owned()), ..tensor }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOptions;
    use bessemer_ir::passes::{CompileOptions, compile};
    use bessemer_nn::{Builder, Mode};

    #[test]
    fn counters_pass_through_files() {
        let mut b = Builder::new(Mode::Train);
        let counter = b.micro_step().unwrap();
        let next = b.graph.add_scalar(counter, 1.0).unwrap();
        b.graph.update(counter, next).unwrap();
        let (graph, specs) = b.finish();
        let device = DeviceOptions { threads: 1, ..DeviceOptions::default() }.open().unwrap();
        let executor = || {
            let plan = compile(&graph, device.target(), &CompileOptions::default()).unwrap();
            device.load_alone(plan).unwrap()
        };
        let (mut first, mut second, group) =
            (executor(), executor(), TensorGroup::optimizer(&specs, &WeightNames::PLAIN));
        for _ in 0..3 {
            first.run().unwrap();
        }
        let tensors = group.read(&**first.state()).unwrap();
        assert_eq!((tensors[0].name.as_str(), tensors[0].to_f32().unwrap()), ("micro_step", vec![3.0]));
        group.write(&**second.state(), &tensors, "a file").unwrap();
        second.run().unwrap();
        assert_eq!(read_i32(&**second.state(), "micro_step").unwrap(), [4]);
    }
}
