//! Names and layouts of TensorFlow: what its checkpoints call the tensors of the models here.
//!
//! | family | names |
//! |---|---|
//! | ResNet | `resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel`: NVIDIA's sample for TensorFlow 1 |
//! | EfficientNet, and the backbone of an EfficientDet | `stack_1/block_0/expand_conv2d/kernel`: NVIDIA's samples for TensorFlow 2 |
//! | EfficientDet | `fpn_cells/cell_0/fnode0/WSM`, `class_net/class-0/depthwise_kernel`: NVIDIA's sample for TensorFlow 2 |
//! | Mask R-CNN | `mrcnn/resnet50/bottleneck_group/...`, `mrcnn/fpn/l2/kernel`: NVIDIA's sample for TensorFlow 2 |
//! | BERT, ELECTRA | `bert/encoder/layer_0/...`, `electra/encoder/layer_0/...`, `generator/...`: Google's; `layer_._0`: those of Keras |
//!
//! Other parts may stand before a name, such as that of a model around it.

use crate::{bert, classifier, efficientdet, electra, maskrcnn};

/// How the elements of a tensor are ordered in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As in PyTorch and in the files written here: matrices `[out, in]`, convolutions `[CO, CI, KH, KW]`. Vectors and tables of
    /// embeddings have it in TensorFlow, too.
    Torch,
    /// The kernel of a layer of TensorFlow: matrices `[in, out]`, convolutions `[KH, KW, CI, CO]`.
    Kernel,
    /// The kernel of a depthwise convolution in TensorFlow, `[KH, KW, C, M]` for `M` results of each channel, which is
    /// `[C * M, 1, KH, KW]` in PyTorch.
    DepthwiseKernel,
    /// The kernel of a dense layer whose inputs are those of an image of this height and width, `[H * W * C, out]`: in PyTorch, whose images
    /// are `[C, H, W]`, it is `[out, C * H * W]`.
    KernelOfImage([usize; 2]),
    /// One number, which is this element of a vector in PyTorch.
    Element(usize),
}

impl Layout {
    /// Sizes of the axes to put into another order, that order, and the sizes that the tensor then has in PyTorch; a tensor with another
    /// number of axes than the layout is about, or of other sizes, has [`Layout::Torch`].
    fn axes(self, shape: &[usize]) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
        let axes: &[usize] = match (self, shape.len()) {
            (Self::Kernel, 2) => &[1, 0],
            (Self::Kernel, 4) => &[3, 2, 0, 1],
            (Self::DepthwiseKernel, 4) if shape[2].checked_mul(shape[3]).is_some() => &[2, 3, 0, 1],
            (Self::KernelOfImage([height, width]), 2)
                if height * width > 0 && shape[0].is_multiple_of(height * width) =>
            {
                let channels = shape[0] / (height * width);
                return (vec![height, width, channels, shape[1]], vec![3, 2, 0, 1], vec![shape[1], shape[0]]);
            }
            _ => return (shape.to_vec(), (0..shape.len()).collect(), shape.to_vec()),
        };
        let mut sizes: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
        if self == Self::DepthwiseKernel {
            sizes[0] = shape[2] * shape[3];
            sizes[1] = 1;
        }
        (shape.to_vec(), axes.to_vec(), sizes)
    }

    /// Brings a tensor of this layout into PyTorch's: the sizes of its axes, and its elements in row-major order. An element is
    /// `width` neighbours in `data`. `None` if the data do not fill the shape, or the number of elements overflows.
    pub fn to_torch<T: Copy>(self, shape: &[usize], width: usize, data: &[T]) -> Option<(Vec<usize>, Vec<T>)> {
        let (filled, (shape, axes, sizes)) = (elements(shape)?.checked_mul(width)?, self.axes(shape));
        if width == 0 || filled != data.len() || elements(&sizes).is_none() {
            return None;
        }
        if data.is_empty() {
            return Some((sizes, Vec::new()));
        }
        // No axis is empty, so that no stride exceeds the data.
        let mut strides = vec![width; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        let mut ordered = Vec::with_capacity(data.len());
        let mut index = vec![0; axes.len()];
        let mut offset = 0;
        while ordered.len() < data.len() {
            ordered.extend_from_slice(&data[offset..offset + width]);
            for (place, &axis) in axes.iter().enumerate().rev() {
                index[place] += 1;
                offset += strides[axis];
                if index[place] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis];
                index[place] = 0;
            }
        }
        Some((sizes, ordered))
    }
}

/// Elements of a shape, unless their number overflows on the way.
fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
}

/// What the name of a tensor in a checkpoint of TensorFlow says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The name used here.
    pub canonical: String,
    /// How the checkpoint orders the elements.
    pub layout: Layout,
}

/// Reads the names of all variables of a checkpoint; `None` for names that are no model's of the zoo.
pub fn read_all<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Option<FileName>> {
    let mut names: Vec<Option<FileName>> = names.into_iter().map(read).collect();
    efficientdet::complete(names.iter_mut().flatten());
    names
}

/// Reads the name of a variable, whatever others there are; `None` for names that are no model's of the zoo.
pub fn read(name: &str) -> Option<FileName> {
    let families = [
        classifier::of_tensorflow,
        efficientdet::of_tensorflow,
        maskrcnn::of_tensorflow,
        bert::of_tensorflow,
        electra::of_tensorflow,
    ];
    let mut starts = std::iter::once(0).chain(name.match_indices('/').map(|(slash, _)| slash + 1));
    starts.find_map(|start| {
        let (before, rest) = name.split_at(start);
        families.iter().find_map(|read| read(before, rest))
    })
}

/// The tensor of a layer that is called so in Keras: its name here, and its layout.
const VARIABLES: [(&str, &str, Layout); 9] = [
    ("kernel", "weight", Layout::Kernel),
    ("pointwise_kernel", "weight", Layout::Kernel),
    ("depthwise_kernel", "weight", Layout::DepthwiseKernel),
    ("bias", "bias", Layout::Torch),
    ("gamma", "weight", Layout::Torch),
    ("beta", "bias", Layout::Torch),
    ("moving_mean", "running_mean", Layout::Torch),
    ("moving_variance", "running_var", Layout::Torch),
    ("embeddings", "weight", Layout::Torch),
];

/// The variable `variable` of the layer `module`.
pub(crate) fn of_layer(module: &str, variable: &str) -> Option<FileName> {
    let (_, tensor, layout) = VARIABLES.iter().find(|(name, _, _)| *name == variable)?;
    Some(FileName { canonical: format!("{module}.{tensor}"), layout: *layout })
}

/// A tensor of a transformer as Google and Hugging Face name it, its scopes joined by dots.
pub(crate) fn of_transformer(name: &str) -> Option<FileName> {
    let (scopes, variable) = name.rsplit_once('/')?;
    let module: Vec<String> = scopes.split('/').map(scope).collect();
    let module = module.join(".");
    match variable {
        "output_weights" | "weight" => Some(FileName { canonical: format!("{module}.weight"), layout: Layout::Torch }),
        "output_bias" => Some(FileName { canonical: format!("{module}.bias"), layout: Layout::Torch }),
        table if table.ends_with("_embeddings") => {
            Some(FileName { canonical: format!("{module}.{table}.weight"), layout: Layout::Torch })
        }
        variable => of_layer(&module, variable),
    }
}

/// One scope of a transformer.
fn scope(scope: &str) -> String {
    let number = scope.strip_prefix("layer_").map(|number| number.strip_prefix("._").unwrap_or(number));
    number.map_or_else(|| scope.to_owned(), |number| format!("layer.{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(canonical: &str) -> Option<FileName> {
        Some(FileName { canonical: canonical.to_owned(), layout: Layout::Kernel })
    }

    #[test]
    fn layouts_become_those_of_pytorch() {
        let to_torch =
            |layout: Layout, shape: &[usize], width, data: &[u8]| layout.to_torch(shape, width, data).unwrap();
        let numbers: Vec<u8> = (0..6).collect();
        assert_eq!(to_torch(Layout::Kernel, &[2, 3], 1, &numbers), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(to_torch(Layout::Torch, &[2, 3], 1, &numbers), (vec![2, 3], numbers.clone()));
        assert_eq!(to_torch(Layout::Kernel, &[6], 1, &numbers), (vec![6], numbers.clone()));
        assert_eq!(to_torch(Layout::Kernel, &[], 1, &[7]), (vec![], vec![7]));
        assert_eq!(to_torch(Layout::Kernel, &[0, 3], 1, &[]), (vec![3, 0], vec![]));
        assert_eq!(to_torch(Layout::Kernel, &[2, 1], 3, &numbers), (vec![1, 2], numbers.clone()));
        assert_eq!(to_torch(Layout::Kernel, &[1, 3], 2, &numbers), (vec![3, 1], numbers));

        // [KH, KW, CI, CO] = [1, 2, 3, 4]: the element of tap x, input i and output o is 12 x + 4 i + o.
        let convolution: Vec<u8> = (0..24).collect();
        let (shape, data) = to_torch(Layout::Kernel, &[1, 2, 3, 4], 1, &convolution);
        assert_eq!(shape, [4, 3, 1, 2]);
        assert_eq!(data[..12], [0, 12, 4, 16, 8, 20, 1, 13, 5, 17, 9, 21]);

        // [KH, KW, C, M] = [2, 3, 4, 1]: the element of tap t and channel c is 4 t + c.
        let (shape, data) = to_torch(Layout::DepthwiseKernel, &[2, 3, 4, 1], 1, &convolution);
        assert_eq!(shape, [4, 1, 2, 3]);
        assert_eq!(data[..12], [0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21]);
        let (shape, data) = to_torch(Layout::DepthwiseKernel, &[3, 2, 2, 2], 1, &convolution);
        assert_eq!(shape, [4, 1, 3, 2]);
        assert_eq!(data[6..12], [1, 5, 9, 13, 17, 21], "the second result of the first channel");

        // [H * W * C, out] = [2 * 3 * 2, 2]: the element of pixel p, channel c and output o is 4 p + 2 c + o.
        let (shape, data) = to_torch(Layout::KernelOfImage([2, 3]), &[12, 2], 1, &convolution);
        assert_eq!(shape, [2, 12]);
        assert_eq!(data[..12], [0, 4, 8, 12, 16, 20, 2, 6, 10, 14, 18, 22]);
        assert_eq!(to_torch(Layout::KernelOfImage([0, 3]), &[12, 2], 1, &convolution).0, [12, 2]);
        assert_eq!(
            to_torch(Layout::KernelOfImage([5, 3]), &[12, 2], 1, &convolution).0,
            [12, 2],
            "it is none of that image"
        );
    }

    #[test]
    fn shapes_that_data_do_not_fill_are_no_tensors() {
        let numbers: Vec<u8> = (0..6).collect();
        assert_eq!(Layout::Kernel.to_torch(&[2, 3], 0, &numbers), None);
        assert_eq!(Layout::Kernel.to_torch(&[2, 3], 2, &numbers), None);
        assert_eq!(Layout::Kernel.to_torch(&[2, 2], 1, &numbers), None);
        assert_eq!(Layout::Kernel.to_torch(&[1 << 40, 1 << 40], 1, &numbers), None);
        assert_eq!(Layout::Kernel.to_torch(&[1 << 40, 1 << 20], 1 << 40, &numbers), None);

        // Products of sizes may overflow beside an axis that is empty.
        let large = 1 << 40;
        let empty = |layout: Layout, shape: [usize; 4]| layout.to_torch(&shape, 4, &[0_u8; 0]).map(|(shape, _)| shape);
        assert_eq!(empty(Layout::Kernel, [0, large, large, 1]), Some(vec![1, large, 0, large]));
        assert_eq!(empty(Layout::Kernel, [0, 1, large, large]), None);
        assert_eq!(empty(Layout::DepthwiseKernel, [0, 1, large, large]), Some(vec![0, 1, large, large]));
    }

    #[test]
    fn parts_before_a_name_are_left_out() {
        let expected = kernel("layer1.0.conv1.weight");
        for before in ["", "model/", "a/b_1/"] {
            assert_eq!(read(&format!("{before}resnet50/btlnck_block_0_0/bottleneck_1/conv2d/kernel")), expected);
        }
        for unknown in ["", "/", "dense/kernel", "layer1.0.conv1.weight", "bert", "save_counter", "a//b/"] {
            assert_eq!(read(unknown), None, "{unknown}");
        }
    }
}
