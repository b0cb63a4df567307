//! AdamW over all parameters of a model in one launch.

use super::lanes::constant;
use super::{Kernel, Parameter, indented};
use bessemer_ir::DType;

/// `m = beta1 m + (1 - beta1) g`, `v = beta2 v + (1 - beta2) g^2`,
/// `w -= lr * (m / c1 / (sqrt(v / c2) + eps) + decay * w)` (Loshchilov, Hutter: "Decoupled weight decay regularization",
/// 2019), with `c = 1 - beta^step`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AdamW {
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
}

/// A tensor in the flat memory of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Segment {
    /// Elements, of which the memory holds the next multiple of [`AdamW::ALIGNMENT`].
    pub elements: usize,
    pub decay: f32,
}

/// Numbers of a step in the device's memory: `[lr, 1 / c1, 1 / c2, scale]`, where gradients are multiplied by `scale`.
pub(crate) const STEP_NUMBERS: usize = 4;

const THREADS: usize = 256;
const LANES: usize = 4;

impl AdamW {
    /// Elements to whose multiples tensors are padded in flat memory: what one block updates.
    pub(crate) const ALIGNMENT: usize = THREADS * LANES;

    /// Elements of the flat memory of these tensors.
    pub(crate) fn flat_elements(segments: &[Segment]) -> usize {
        segments.iter().map(|segment| segment.elements.next_multiple_of(Self::ALIGNMENT)).sum()
    }

    /// The decay of each block.
    pub(crate) fn decays(segments: &[Segment]) -> Vec<f32> {
        let blocks = |segment: &Segment| std::iter::repeat_n(segment.decay, segment.elements.div_ceil(Self::ALIGNMENT));
        segments.iter().flat_map(blocks).collect()
    }

    /// The update of `flat_elements`: weights in `f32` and rounded to `low`, both moments; gradients are of type `grads`.
    /// Nothing is changed where `skip[0]` is not 0.
    pub(crate) fn kernel(&self, name: &str, flat_elements: usize, grads: DType, low: DType) -> Kernel {
        assert!(flat_elements.is_multiple_of(Self::ALIGNMENT), "flat memory is padded");
        let blocks = flat_elements / Self::ALIGNMENT;
        let memory =
            |name: &str, ty, written| Parameter::Memory { name: name.into(), ty, elements: flat_elements, written };
        let parameters = vec![
            memory("weights", DType::F32, true),
            memory("low", low, true),
            memory("first", DType::F32, true),
            memory("second", DType::F32, true),
            memory("grads", grads, false),
            Parameter::input("decays", DType::F32, blocks),
            Parameter::input("numbers", DType::F32, STEP_NUMBERS),
            Parameter::input("skip", DType::I32, 1),
        ];
        let types = |ty: DType| super::c_type(ty);
        let (rest1, rest2) = (constant(1.0 - self.beta1), constant(1.0 - self.beta2));
        let (beta1, beta2, eps) = (constant(self.beta1), constant(self.beta2), constant(self.eps));
        let body = format!(
            "if (skip[0] != 0) return;\n\
             const u32 at = (blockIdx.x * {THREADS}u + threadIdx.x) * {LANES}u;\n\
             const float lr = numbers[0], correct1 = numbers[1], correct2 = numbers[2], scale = numbers[3];\n\
             const float decay = decays[blockIdx.x];\n\
             float w[{LANES}], m[{LANES}], v[{LANES}], g[{LANES}];\n\
             load<float, {LANES}>(weights + at, w);\n\
             load<float, {LANES}>(first + at, m);\n\
             load<float, {LANES}>(second + at, v);\n\
             load<{grads}, {LANES}>(grads + at, g);\n\
             #pragma unroll\n\
             for (int k = 0; k < {LANES}; ++k) {{\n\
             \x20   const float grad = g[k] * scale;\n\
             \x20   m[k] = {beta1} * m[k] + {rest1} * grad;\n\
             \x20   v[k] = {beta2} * v[k] + {rest2} * grad * grad;\n\
             \x20   w[k] -= lr * (m[k] * correct1 / (sqrtf(v[k] * correct2) + {eps}) + decay * w[k]);\n\
             }}\n\
             store<float, {LANES}>(weights + at, w);\n\
             store<{low}, {LANES}>(low + at, w);\n\
             store<float, {LANES}>(first + at, m);\n\
             store<float, {LANES}>(second + at, v);\n",
            grads = types(grads),
            low = types(low),
        );
        Kernel::new(name, parameters, [blocks as u32, 1, 1], [THREADS as u32, 1, 1], &indented(&body))
    }
}
