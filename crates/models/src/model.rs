//! A model as all families give it: a graph, the tensors it keeps, and how files name them.

use crate::ModelError;
use crate::weights::WeightNames;
use bessemer_ir::Graph;
use bessemer_nn::{ParamKind, ParamSpec};

/// A graph and the tensors it keeps.
#[derive(Clone, Debug)]
pub struct Model {
    /// The step, before compilation.
    pub graph: Graph,
    /// Parameters and state of the graph, in the order of their declaration.
    pub specs: Vec<ParamSpec>,
    /// How files of weights name the parameters.
    pub names: &'static WeightNames,
}

/// The one of a list of models that has this name.
///
/// # Errors
/// [`ModelError::Unknown`], which lists all.
pub(crate) fn find_in<T>(
    list: &'static [T],
    name: &str,
    name_of: fn(&T) -> &'static str,
) -> Result<&'static T, ModelError> {
    list.iter().find(|spec| name_of(spec) == name).ok_or_else(|| ModelError::Unknown {
        name: name.to_owned(),
        known: list.iter().map(name_of).collect::<Vec<_>>().join(", "),
    })
}

/// What a model costs at its default size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Numbers of weights, biases and norms, trained or frozen.
    pub parameters: u64,
    /// Tensors that hold them.
    pub tensors: usize,
    /// FLOPs of convolutions and matrix products in the forward pass of one sample.
    pub flops_per_sample: u64,
}

impl Summary {
    /// The cost of the forward pass of one sample.
    pub fn of(model: &Model) -> Self {
        let is_parameter = |kind| matches!(kind, ParamKind::Weight | ParamKind::Bias | ParamKind::Norm);
        let parameters = || model.specs.iter().filter(|spec| is_parameter(spec.kind));
        Self {
            parameters: parameters().map(|spec| spec.ty.shape.elements() as u64).sum(),
            tensors: parameters().count(),
            flops_per_sample: flops(&model.graph),
        }
    }
}

/// Arithmetic of convolutions and matrix products, those of attention included, a multiply-add counted as two: the number
/// that papers give as FLOPs.
pub fn flops(graph: &Graph) -> u64 {
    graph.ids().map(|id| graph.node(id).op.rule().contraction_flops(&graph.input_types(id))).sum()
}
