//! From this program's graphs to cuDNN's.

use super::api::{
    BATCH_NORM, CROSS_CORRELATION, DATA_GRADIENT, DescriptorKind, FORWARD, INFERENCE, PROPAGATE_NAN, SUM_AND_SQUARES,
    TRAINING, WEIGHT_GRADIENT, attribute, kind_of,
};
use super::descriptor::Descriptor;
use super::graph::Role;
use super::{Cudnn, Geometry, Graph, GraphTensor, Node, Pass, PlanTarget, Pointwise, TensorId};
use crate::error::GpuError;
use bessemer_ir::DType;
use std::sync::Arc;

/// Bytes to which every tensor in memory is aligned.
pub(super) const ALIGNMENT: usize = 16;

impl TensorId {
    /// The number by which cuDNN knows the tensor.
    pub(super) fn unique_id(self) -> i64 {
        self.0 as i64 + 1
    }
}

impl Pointwise {
    /// `cudnnPointwiseMode_t`
    fn mode(self) -> i32 {
        match self {
            Pointwise::Add => 0,
            Pointwise::Mul => 1,
            Pointwise::Sub => 9,
            Pointwise::Relu => 100,
            Pointwise::Swish => 106,
            Pointwise::ReluGradient => 200,
        }
    }
}

/// A graph of cuDNN's with all that it is made of.
pub(super) struct Built {
    pub graph: Descriptor,
    _parts: Vec<Descriptor>,
}

struct Builder<'a> {
    library: &'a Arc<Cudnn>,
    tensors: Vec<Descriptor>,
    parts: Vec<Descriptor>,
}

/// Describes the graph.
///
/// # Errors
/// cuDNN refuses a tensor or an operation.
pub(super) fn build(library: &Arc<Cudnn>, graph: &Graph) -> Result<Built, GpuError> {
    let tensors = graph.tensors.iter().enumerate().map(|(index, tensor)| describe(library, TensorId(index), tensor));
    let mut builder = Builder { library, tensors: tensors.collect::<Result<_, _>>()?, parts: Vec::new() };
    let operations = graph.nodes.iter().map(|node| builder.operation(*node)).collect::<Result<Vec<_>, _>>()?;
    let whole = Descriptor::new(library, DescriptorKind::OperationGraph)?;
    if let PlanTarget::Device { .. } = library.target {
        let (_, handle) = library.device("cudnnBackendFinalize")?;
        whole.library_handle(attribute::GRAPH_HANDLE, *handle)?;
    }
    let handles: Vec<_> = operations.iter().map(|operation| operation.handle).collect();
    whole.descriptors(attribute::GRAPH_OPERATIONS, &handles)?;
    let graph = whole.finalize()?;
    let parts = operations.into_iter().chain(builder.tensors).chain(builder.parts).collect();
    Ok(Built { graph, _parts: parts })
}

/// cuDNN names the axes N, C, H, W; their strides say that channels lie next to each other.
fn describe(library: &Arc<Cudnn>, id: TensorId, tensor: &GraphTensor) -> Result<Descriptor, GpuError> {
    let [n, h, w, c] = tensor.dims.map(|dim| dim as i64);
    let made = Descriptor::new(library, DescriptorKind::Tensor)?;
    made.data_type(attribute::TENSOR_TYPE, tensor.ty)?;
    made.int64s(attribute::TENSOR_DIMENSIONS, &[n, c, h, w])?;
    made.int64s(attribute::TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?;
    made.int64s(attribute::TENSOR_ID, &[id.unique_id()])?;
    made.int64s(attribute::TENSOR_ALIGNMENT, &[ALIGNMENT as i64])?;
    made.truth(attribute::TENSOR_IS_VIRTUAL, tensor.role == Role::Inner)?;
    made.truth(attribute::TENSOR_IS_VALUE, matches!(tensor.role, Role::Value(_)))?;
    made.finalize()
}

impl Builder<'_> {
    fn tensors(&self, operation: &Descriptor, attributes: &[(i32, TensorId)]) -> Result<(), GpuError> {
        attributes.iter().try_for_each(|(attribute, id)| operation.descriptor(*attribute, &self.tensors[id.0]))
    }

    fn operation(&mut self, node: Node) -> Result<Descriptor, GpuError> {
        match node {
            Node::Convolution { pass, x, w, y, geometry } => self.convolution(pass, [x, w, y], geometry),
            Node::Pointwise { function, a, b, y } => self.pointwise(function, a, b, y),
            Node::Statistics { x, sum, squares } => {
                let made = Descriptor::new(self.library, DescriptorKind::Statistics)?;
                made.code(attribute::STATISTICS_MODE, kind_of::STATISTICS_MODE, SUM_AND_SQUARES)?;
                made.data_type(attribute::STATISTICS_PRECISION, DType::F32)?;
                self.tensors(
                    &made,
                    &[
                        (attribute::STATISTICS_X, x),
                        (attribute::STATISTICS_SUM, sum),
                        (attribute::STATISTICS_SQUARES, squares),
                    ],
                )?;
                made.finalize()
            }
            Node::NormGradients { x, dy, mean, deviation, scale, dscale, dshift, dy_factor, x_factor, offset } => {
                let made = Descriptor::new(self.library, DescriptorKind::NormGradients)?;
                made.data_type(attribute::NORM_GRADIENTS_PRECISION, DType::F32)?;
                self.tensors(
                    &made,
                    &[
                        (attribute::NORM_GRADIENTS_X, x),
                        (attribute::NORM_GRADIENTS_DY, dy),
                        (attribute::NORM_GRADIENTS_MEAN, mean),
                        (attribute::NORM_GRADIENTS_DEVIATION, deviation),
                        (attribute::NORM_GRADIENTS_SCALE, scale),
                        (attribute::NORM_GRADIENTS_DSCALE, dscale),
                        (attribute::NORM_GRADIENTS_DSHIFT, dshift),
                        (attribute::NORM_GRADIENTS_DY_FACTOR, dy_factor),
                        (attribute::NORM_GRADIENTS_X_FACTOR, x_factor),
                        (attribute::NORM_GRADIENTS_OFFSET, offset),
                    ],
                )?;
                made.finalize()
            }
            Node::Norm { x, scale, shift, epsilon, mean, deviation, y } => {
                let made = Descriptor::new(self.library, DescriptorKind::Norm)?;
                made.code(attribute::NORM_MODE, kind_of::NORM_MODE, BATCH_NORM)?;
                let phase = if epsilon.is_some() { TRAINING } else { INFERENCE };
                made.code(attribute::NORM_PHASE, kind_of::NORM_PHASE, phase)?;
                self.tensors(
                    &made,
                    &[
                        (attribute::NORM_X, x),
                        (attribute::NORM_MEAN, mean),
                        (attribute::NORM_DEVIATION, deviation),
                        (attribute::NORM_SCALE, scale),
                        (attribute::NORM_SHIFT, shift),
                        (attribute::NORM_Y, y),
                    ],
                )?;
                if let Some(epsilon) = epsilon {
                    self.tensors(&made, &[(attribute::NORM_EPSILON, epsilon)])?;
                }
                made.finalize()
            }
            Node::NormBackward { x, dy, mean, deviation, scale, dscale, dshift, dx } => {
                let made = Descriptor::new(self.library, DescriptorKind::NormBackward)?;
                made.code(attribute::NORM_BACKWARD_MODE, kind_of::NORM_MODE, BATCH_NORM)?;
                self.tensors(
                    &made,
                    &[
                        (attribute::NORM_BACKWARD_X, x),
                        (attribute::NORM_BACKWARD_MEAN, mean),
                        (attribute::NORM_BACKWARD_DEVIATION, deviation),
                        (attribute::NORM_BACKWARD_DY, dy),
                        (attribute::NORM_BACKWARD_SCALE, scale),
                        (attribute::NORM_BACKWARD_DSCALE, dscale),
                        (attribute::NORM_BACKWARD_DSHIFT, dshift),
                        (attribute::NORM_BACKWARD_DX, dx),
                    ],
                )?;
                made.finalize()
            }
        }
    }

    fn convolution(
        &mut self,
        pass: Pass,
        [x, w, y]: [TensorId; 3],
        geometry: Geometry,
    ) -> Result<Descriptor, GpuError> {
        let pair = |numbers: [usize; 2]| numbers.map(|number| number as i64);
        let shape = Descriptor::new(self.library, DescriptorKind::Convolution)?;
        shape.data_type(attribute::CONVOLUTION_PRECISION, DType::F32)?;
        shape.code(attribute::CONVOLUTION_MODE, kind_of::CONVOLUTION_MODE, CROSS_CORRELATION)?;
        shape.int64s(attribute::CONVOLUTION_SPATIAL_DIMS, &[2])?;
        shape.int64s(attribute::CONVOLUTION_DILATIONS, &pair(geometry.dilation))?;
        shape.int64s(attribute::CONVOLUTION_STRIDES, &pair(geometry.stride))?;
        shape.int64s(attribute::CONVOLUTION_PADDING_BEFORE, &pair(geometry.padding))?;
        shape.int64s(attribute::CONVOLUTION_PADDING_AFTER, &pair(geometry.padding))?;
        let shape = shape.finalize()?;
        let (kind, names) = match pass {
            Pass::Forward => (DescriptorKind::ConvolutionForward, FORWARD),
            Pass::DataGradient => (DescriptorKind::ConvolutionDataGradient, DATA_GRADIENT),
            Pass::WeightGradient => (DescriptorKind::ConvolutionWeightGradient, WEIGHT_GRADIENT),
        };
        let made = Descriptor::new(self.library, kind)?;
        made.descriptor(names.geometry, &shape)?;
        self.tensors(&made, &[(names.x, x), (names.w, w), (names.y, y)])?;
        made.float(names.alpha, 1.0)?;
        made.float(names.beta, 0.0)?;
        self.parts.push(shape);
        made.finalize()
    }

    fn pointwise(
        &mut self,
        function: Pointwise,
        a: TensorId,
        b: Option<TensorId>,
        y: TensorId,
    ) -> Result<Descriptor, GpuError> {
        let kind = Descriptor::new(self.library, DescriptorKind::Pointwise)?;
        kind.code(attribute::POINTWISE_MODE, kind_of::POINTWISE_MODE, function.mode())?;
        kind.data_type(attribute::POINTWISE_PRECISION, DType::F32)?;
        if function == Pointwise::Relu {
            kind.code(attribute::POINTWISE_NAN_PROPAGATION, kind_of::NAN_PROPAGATION, PROPAGATE_NAN)?;
        }
        let kind = kind.finalize()?;
        let made = Descriptor::new(self.library, DescriptorKind::PointwiseOperation)?;
        made.descriptor(attribute::POINTWISE_FUNCTION, &kind)?;
        let (first, second, result) = match function {
            Pointwise::ReluGradient => (attribute::POINTWISE_DY, attribute::POINTWISE_X, attribute::POINTWISE_DX),
            _ => (attribute::POINTWISE_X, attribute::POINTWISE_B, attribute::POINTWISE_Y),
        };
        self.tensors(&made, &[(first, a), (result, y)])?;
        if let Some(b) = b {
            self.tensors(&made, &[(second, b)])?;
        }
        self.parts.push(kind);
        made.finalize()
    }
}
