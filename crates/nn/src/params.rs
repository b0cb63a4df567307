//! Descriptions of the tensors a step keeps: parameters and state.

use crate::init::Init;
use bessemer_ir::{Role, Shape, TensorType, Value};

/// How a tensor lies in the graph compared with the files that people exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamLayout {
    /// The same in both.
    Plain,
    /// Convolution weights: `[KH, KW, CI, CO]` in the graph, `[CO, CI, KH, KW]` in files.
    ConvHwio,
    /// Weights of a linear layer that reads images of so many pixels: `[out, in]` in both, with inputs in the order `(H, W, C)` in
    /// the graph and `(C, H, W)` in files.
    LinearOfImage {
        /// `H * W`
        pixels: usize,
    },
}

/// What a tensor is to the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// Weight of a convolution or matrix product.
    Weight,
    /// Bias of a convolution or matrix product.
    Bias,
    /// Scale or offset of a normalisation.
    Norm,
    /// Running statistic of a normalisation.
    Statistic,
    /// Momenta, step counters.
    Optimizer,
    /// Sum over the micro-batches of a step: nothing of it outlives the step.
    Accumulator,
    /// Moving average of another tensor.
    Average,
}

impl ParamKind {
    /// Whether the tensor belongs to the model itself, and so to a file of weights.
    pub fn is_model(self) -> bool {
        matches!(self, ParamKind::Weight | ParamKind::Bias | ParamKind::Norm | ParamKind::Statistic)
    }
}

/// A tensor that lives from step to step.
#[derive(Clone, Debug)]
pub struct ParamSpec {
    /// Name in checkpoints, e.g. `layer1.0.conv1.weight`; also the name of the graph's input.
    pub name: String,
    /// Type in the graph.
    pub ty: TensorType,
    /// How files hold it.
    pub layout: ParamLayout,
    /// What it is to the model.
    pub kind: ParamKind,
    /// Whether the optimizer trains it (`Parameter`) or the step replaces it in another way (`State`).
    pub role: Role,
    /// Initial content.
    pub init: Init,
    /// The graph's input.
    pub value: Value,
}

impl ParamSpec {
    /// Whether the optimizer updates it.
    pub fn is_trainable(&self) -> bool {
        self.role == Role::Parameter
    }

    /// Shape in files.
    pub fn external_shape(&self) -> Shape {
        match self.layout {
            ParamLayout::Plain | ParamLayout::LinearOfImage { .. } => self.ty.shape.clone(),
            ParamLayout::ConvHwio => {
                let [kh, kw, ci, co] = hwio(&self.ty.shape);
                [co, ci, kh, kw].into()
            }
        }
    }

    /// Reorders data from the order of files to that of the graph.
    ///
    /// # Panics
    /// If `data` has not as many elements as the tensor.
    pub fn from_external<T: Copy>(&self, data: &[T]) -> Vec<T> {
        assert_eq!(data.len(), self.ty.shape.elements(), "size of {}", self.name);
        match self.layout {
            ParamLayout::Plain => data.to_vec(),
            ParamLayout::ConvHwio => {
                let [kh, kw, ci, co] = hwio(&self.ty.shape);
                reverse_axes(data, [co, ci, kh * kw])
            }
            ParamLayout::LinearOfImage { pixels } => self.transpose_rows(data, self.ty.shape.cols() / pixels),
        }
    }

    /// Reorders data from the order of the graph to that of files.
    ///
    /// # Panics
    /// If `data` has not as many elements as the tensor.
    pub fn to_external<T: Copy>(&self, data: &[T]) -> Vec<T> {
        assert_eq!(data.len(), self.ty.shape.elements(), "size of {}", self.name);
        match self.layout {
            ParamLayout::Plain => data.to_vec(),
            ParamLayout::ConvHwio => {
                let [kh, kw, ci, co] = hwio(&self.ty.shape);
                reverse_axes(data, [kh * kw, ci, co])
            }
            ParamLayout::LinearOfImage { pixels } => self.transpose_rows(data, pixels),
        }
    }

    /// Each row of the tensor, taken as a matrix of `rows` rows, transposed.
    fn transpose_rows<T: Copy>(&self, data: &[T], rows: usize) -> Vec<T> {
        let cols = self.ty.shape.cols();
        data.chunks_exact(cols).flat_map(|row| reverse_axes(row, [rows, 1, cols / rows])).collect()
    }
}

fn hwio(shape: &Shape) -> [usize; 4] {
    shape.dims().try_into().expect("convolution weights have four axes")
}

/// Transposes `[a, b, c]` to `[c, b, a]`.
fn reverse_axes<T: Copy>(data: &[T], [a, b, c]: [usize; 3]) -> Vec<T> {
    let mut reversed = Vec::with_capacity(data.len());
    for k in 0..c {
        for j in 0..b {
            reversed.extend((0..a).map(|i| data[(i * b + j) * c + k]));
        }
    }
    reversed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Mode};

    fn specs() -> Vec<ParamSpec> {
        let mut b = Builder::new(Mode::Infer);
        b.kernel("conv.weight", [2, 3, 4, 5], Init::Zeros).expect("a new name");
        b.weight("fc.weight", [5, 4], Init::Zeros).expect("a new name");
        b.weight_of_image("fc6.weight", [5, 6], 2, Init::Zeros).expect("a new name");
        b.specs().to_vec()
    }

    #[test]
    fn convolution_weights_are_oihw_outside() {
        let spec = &specs()[0];
        assert_eq!(spec.external_shape().dims(), [5, 4, 2, 3]);
        let oihw: Vec<usize> = (0..120).collect();
        let inside = spec.from_external(&oihw);
        for (h, w, i, o) in [(0, 0, 0, 0), (1, 2, 3, 4), (0, 1, 2, 3), (1, 0, 3, 1)] {
            assert_eq!(inside[((h * 3 + w) * 4 + i) * 5 + o], oihw[((o * 4 + i) * 2 + h) * 3 + w]);
        }
        assert_eq!(spec.to_external(&inside), oihw);
    }

    #[test]
    fn linear_weights_are_the_same_outside() {
        let spec = &specs()[1];
        let data: Vec<usize> = (0..20).collect();
        assert_eq!(spec.external_shape().dims(), [5, 4]);
        assert_eq!(spec.from_external(&data), data);
        assert_eq!(spec.to_external(&data), data);
    }
    #[test]
    fn linear_weights_of_images_have_channels_first_outside() {
        let spec = &specs()[2];
        assert_eq!(spec.external_shape().dims(), [5, 6]);
        let outside: Vec<usize> = (0..30).collect();
        let inside = spec.from_external(&outside);
        for (output, pixel, channel) in [(0, 0, 1), (0, 1, 0), (4, 1, 2)] {
            assert_eq!(inside[output * 6 + pixel * 3 + channel], outside[output * 6 + channel * 2 + pixel]);
        }
        assert_eq!(spec.to_external(&inside), outside);
    }
}
