//! The functions and numbers of cuDNN's backend interface that are used (`cudnn_graph.h`).

use crate::library::functions;
use bessemer_ir::DType;
use std::ffi::{c_char, c_void};

/// A handle or a descriptor: a pointer that is never followed.
pub(super) type Handle = usize;

functions!(
    /// libcudnn.so
    CudnnApi {
        fn cudnnGetVersion() -> usize;
        fn cudnnGetErrorString(i32) -> *const c_char;
        fn cudnnGetLastErrorString(*mut c_char, usize) -> ();
        fn cudnnCreate(*mut Handle) -> i32;
        fn cudnnDestroy(Handle) -> i32;
        fn cudnnSetStream(Handle, Handle) -> i32;
        fn cudnnBackendCreateDescriptor(i32, *mut Handle) -> i32;
        fn cudnnBackendDestroyDescriptor(Handle) -> i32;
        fn cudnnBackendFinalize(Handle) -> i32;
        fn cudnnBackendSetAttribute(Handle, i32, i32, i64, *const c_void) -> i32;
        fn cudnnBackendGetAttribute(Handle, i32, i32, i64, *mut i64, *mut c_void) -> i32;
        fn cudnnBackendExecute(Handle, Handle, Handle) -> i32;
    }
);

/// What a descriptor describes: the numbers are those of `cudnnBackendDescriptorType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum DescriptorKind {
    Pointwise = 0,
    Convolution = 1,
    Engine = 2,
    EngineConfig = 3,
    Heuristics = 4,
    Plan = 5,
    ConvolutionForward = 10,
    ConvolutionWeightGradient = 11,
    ConvolutionDataGradient = 12,
    PointwiseOperation = 13,
    Statistics = 14,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
    NormGradients = 23,
    Norm = 29,
    NormBackward = 30,
    DeviceDescription = 38,
}

impl DescriptorKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            DescriptorKind::Pointwise => "a pointwise function",
            DescriptorKind::Convolution => "a convolution's geometry",
            DescriptorKind::Engine => "an engine",
            DescriptorKind::EngineConfig => "an engine's configuration",
            DescriptorKind::Heuristics => "the heuristics",
            DescriptorKind::Plan => "a plan",
            DescriptorKind::ConvolutionForward => "a convolution",
            DescriptorKind::ConvolutionWeightGradient => "the gradient of a convolution's weights",
            DescriptorKind::ConvolutionDataGradient => "the gradient of a convolution's input",
            DescriptorKind::PointwiseOperation => "a pointwise operation",
            DescriptorKind::Statistics => "statistics of channels",
            DescriptorKind::OperationGraph => "the graph",
            DescriptorKind::VariantPack => "the addresses of tensors",
            DescriptorKind::Tensor => "a tensor",
            DescriptorKind::NormGradients => "gradients of a batch norm",
            DescriptorKind::Norm => "a batch norm",
            DescriptorKind::NormBackward => "the gradient of a batch norm",
            DescriptorKind::DeviceDescription => "a device description",
        }
    }
}

/// `cudnnBackendAttributeType_t`
pub(super) mod kind_of {
    pub(crate) const HANDLE: i32 = 0;
    pub(crate) const DATA_TYPE: i32 = 1;
    pub(crate) const BOOLEAN: i32 = 2;
    pub(crate) const INT64: i32 = 3;
    pub(crate) const FLOAT: i32 = 4;
    pub(crate) const POINTER: i32 = 6;
    pub(crate) const CONVOLUTION_MODE: i32 = 7;
    pub(crate) const HEURISTICS_MODE: i32 = 8;
    pub(crate) const NAN_PROPAGATION: i32 = 10;
    pub(crate) const NUMERICAL_NOTE: i32 = 11;
    pub(crate) const POINTWISE_MODE: i32 = 14;
    pub(crate) const DESCRIPTOR: i32 = 15;
    pub(crate) const STATISTICS_MODE: i32 = 16;
    pub(crate) const BEHAVIOR_NOTE: i32 = 19;
    pub(crate) const CHAR: i32 = 24;
    pub(crate) const NORM_MODE: i32 = 27;
    pub(crate) const NORM_PHASE: i32 = 28;
}

/// `cudnnBackendAttributeName_t`
pub(super) mod attribute {
    pub(crate) const POINTWISE_MODE: i32 = 0;
    pub(crate) const POINTWISE_PRECISION: i32 = 1;
    pub(crate) const POINTWISE_NAN_PROPAGATION: i32 = 2;
    pub(crate) const CONVOLUTION_PRECISION: i32 = 100;
    pub(crate) const CONVOLUTION_MODE: i32 = 101;
    pub(crate) const CONVOLUTION_DILATIONS: i32 = 102;
    pub(crate) const CONVOLUTION_STRIDES: i32 = 103;
    pub(crate) const CONVOLUTION_PADDING_AFTER: i32 = 104;
    pub(crate) const CONVOLUTION_PADDING_BEFORE: i32 = 105;
    pub(crate) const CONVOLUTION_SPATIAL_DIMS: i32 = 106;
    pub(crate) const HEURISTICS_MODE: i32 = 200;
    pub(crate) const HEURISTICS_GRAPH: i32 = 201;
    pub(crate) const HEURISTICS_RESULTS: i32 = 202;
    pub(crate) const HEURISTICS_DEVICE: i32 = 204;
    pub(crate) const CONFIG_ENGINE: i32 = 300;
    pub(crate) const PLAN_HANDLE: i32 = 400;
    pub(crate) const PLAN_CONFIG: i32 = 401;
    pub(crate) const PLAN_WORKSPACE: i32 = 402;
    pub(crate) const PLAN_DEVICE: i32 = 407;
    pub(crate) const POINTWISE_FUNCTION: i32 = 750;
    pub(crate) const POINTWISE_X: i32 = 751;
    pub(crate) const POINTWISE_B: i32 = 752;
    pub(crate) const POINTWISE_Y: i32 = 753;
    pub(crate) const POINTWISE_DX: i32 = 756;
    pub(crate) const POINTWISE_DY: i32 = 757;
    pub(crate) const STATISTICS_MODE: i32 = 770;
    pub(crate) const STATISTICS_PRECISION: i32 = 771;
    pub(crate) const STATISTICS_X: i32 = 772;
    pub(crate) const STATISTICS_SUM: i32 = 773;
    pub(crate) const STATISTICS_SQUARES: i32 = 774;
    pub(crate) const GRAPH_HANDLE: i32 = 800;
    pub(crate) const GRAPH_OPERATIONS: i32 = 801;
    pub(crate) const TENSOR_ALIGNMENT: i32 = 900;
    pub(crate) const TENSOR_TYPE: i32 = 901;
    pub(crate) const TENSOR_DIMENSIONS: i32 = 902;
    pub(crate) const TENSOR_STRIDES: i32 = 903;
    pub(crate) const TENSOR_ID: i32 = 906;
    pub(crate) const TENSOR_IS_VIRTUAL: i32 = 907;
    pub(crate) const TENSOR_IS_VALUE: i32 = 908;
    pub(crate) const PACK_IDS: i32 = 1000;
    pub(crate) const PACK_POINTERS: i32 = 1001;
    pub(crate) const PACK_WORKSPACE: i32 = 1003;
    pub(crate) const ENGINE_NUMBER: i32 = 1301;
    pub(crate) const ENGINE_NUMERICS: i32 = 1303;
    pub(crate) const ENGINE_BEHAVIOR: i32 = 1305;
    pub(crate) const NORM_GRADIENTS_PRECISION: i32 = 1620;
    pub(crate) const NORM_GRADIENTS_MEAN: i32 = 1621;
    pub(crate) const NORM_GRADIENTS_DEVIATION: i32 = 1622;
    pub(crate) const NORM_GRADIENTS_SCALE: i32 = 1623;
    pub(crate) const NORM_GRADIENTS_X: i32 = 1624;
    pub(crate) const NORM_GRADIENTS_DY: i32 = 1625;
    pub(crate) const NORM_GRADIENTS_DSCALE: i32 = 1626;
    pub(crate) const NORM_GRADIENTS_DSHIFT: i32 = 1627;
    pub(crate) const NORM_GRADIENTS_DY_FACTOR: i32 = 1628;
    pub(crate) const NORM_GRADIENTS_X_FACTOR: i32 = 1629;
    pub(crate) const NORM_GRADIENTS_OFFSET: i32 = 1630;
    pub(crate) const NORM_MODE: i32 = 2000;
    pub(crate) const NORM_PHASE: i32 = 2001;
    pub(crate) const NORM_X: i32 = 2002;
    pub(crate) const NORM_MEAN: i32 = 2003;
    pub(crate) const NORM_DEVIATION: i32 = 2004;
    pub(crate) const NORM_SCALE: i32 = 2005;
    pub(crate) const NORM_SHIFT: i32 = 2006;
    pub(crate) const NORM_EPSILON: i32 = 2007;
    pub(crate) const NORM_Y: i32 = 2013;
    pub(crate) const NORM_BACKWARD_MODE: i32 = 2100;
    pub(crate) const NORM_BACKWARD_X: i32 = 2101;
    pub(crate) const NORM_BACKWARD_MEAN: i32 = 2102;
    pub(crate) const NORM_BACKWARD_DEVIATION: i32 = 2103;
    pub(crate) const NORM_BACKWARD_DY: i32 = 2104;
    pub(crate) const NORM_BACKWARD_SCALE: i32 = 2105;
    pub(crate) const NORM_BACKWARD_DSCALE: i32 = 2107;
    pub(crate) const NORM_BACKWARD_DSHIFT: i32 = 2108;
    pub(crate) const NORM_BACKWARD_DX: i32 = 2109;
    pub(crate) const DEVICE_HANDLE: i32 = 2701;
    pub(crate) const DEVICE_JSON: i32 = 2702;
}

/// Attributes of a convolution's descriptor: factors of the result and of what was there, the geometry, weights, the
/// tensor on the input's side, that on the output's.
pub(super) struct ConvolutionAttributes {
    pub alpha: i32,
    pub beta: i32,
    pub geometry: i32,
    pub w: i32,
    pub x: i32,
    pub y: i32,
}

pub(super) const FORWARD: ConvolutionAttributes =
    ConvolutionAttributes { alpha: 700, beta: 701, geometry: 702, w: 703, x: 704, y: 705 };
pub(super) const DATA_GRADIENT: ConvolutionAttributes =
    ConvolutionAttributes { alpha: 706, beta: 707, geometry: 708, w: 709, x: 710, y: 711 };
pub(super) const WEIGHT_GRADIENT: ConvolutionAttributes =
    ConvolutionAttributes { alpha: 712, beta: 713, geometry: 714, w: 715, x: 716, y: 717 };

/// `CUDNN_CROSS_CORRELATION`
pub(super) const CROSS_CORRELATION: i32 = 1;
/// `CUDNN_PROPAGATE_NAN`
pub(super) const PROPAGATE_NAN: i32 = 1;
/// `CUDNN_GENSTATS_SUM_SQSUM`
pub(super) const SUM_AND_SQUARES: i32 = 0;
/// `CUDNN_BATCH_NORM`
pub(super) const BATCH_NORM: i32 = 2;
/// `CUDNN_NORM_FWD_INFERENCE`
pub(super) const INFERENCE: i32 = 0;
/// `CUDNN_NORM_FWD_TRAINING`
pub(super) const TRAINING: i32 = 1;
/// `CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION`
pub(super) const COMPILED_AT_RUN_TIME: i32 = 0;
/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE`
pub(super) const TENSOR_CORES: i32 = 0;
/// `CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS`
pub(super) const CONVERTS_OPERANDS: i32 = 1;
/// `CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION`
pub(super) const ADDS_ROUGHLY: i32 = 2;
/// `CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC`
pub(super) const NOT_DETERMINISTIC: i32 = 4;
/// `cudnnDataType_t`
pub(super) fn data_type(ty: DType) -> i32 {
    match ty {
        DType::F32 => 0,
        DType::F16 => 2,
        DType::I32 => 4,
        DType::U8 => 6,
        DType::Bf16 => 9,
        DType::Bool => 11,
    }
}
