//! Elements moved from one arrangement to another.

use super::{converted, coordinates, for_each, position};
use crate::kgen::{Kernel, Parameter};
use bessemer_ir::{DType, Shape};

/// Where the elements of an array of some sizes lie in a tensor: at `first` plus each coordinate times its stride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrangement {
    pub ty: DType,
    pub first: usize,
    pub strides: Vec<usize>,
    /// Elements of the tensor.
    pub elements: usize,
}

impl Arrangement {
    /// All of a row-major tensor.
    pub(crate) fn dense(ty: DType, shape: &Shape) -> Arrangement {
        Arrangement { ty, first: 0, strides: shape.strides(), elements: shape.elements() }
    }
}

/// Copies the elements of an array of these sizes, converted to the type of `to`.
pub(crate) fn copy(sizes: &[usize], from: &Arrangement, to: &Arrangement) -> Kernel {
    let (sizes, strides) = merged(sizes, &from.strides, &to.strides);
    let [from_strides, to_strides] = strides;
    let text = coordinates("i", &sizes)
        + &format!(
            "y[{}] = {};\n",
            position(to.first, &to_strides),
            converted(&format!("x[{}]", position(from.first, &from_strides)), from.ty, to.ty)
        );
    let parameters = vec![Parameter::input("x", from.ty, from.elements), Parameter::output("y", to.ty, to.elements)];
    for_each("copy", parameters, sizes.iter().product(), &text)
}

/// Neighbouring axes that lie alike in both tensors, as one; without those of one element.
pub(super) fn merged(sizes: &[usize], from: &[usize], to: &[usize]) -> (Vec<usize>, [Vec<usize>; 2]) {
    let (mut merged, mut strides): (Vec<usize>, [Vec<usize>; 2]) = (Vec::new(), [Vec::new(), Vec::new()]);
    for axis in (0..sizes.len()).filter(|&axis| sizes[axis] != 1) {
        let size = sizes[axis];
        let own = [from[axis], to[axis]];
        let continues = (0..2).all(|side| strides[side].last().is_some_and(|&outer| outer == size * own[side]));
        if continues {
            *merged.last_mut().expect("an axis before") *= size;
            (0..2).for_each(|side| *strides[side].last_mut().expect("an axis before") = own[side]);
        } else {
            merged.push(size);
            (0..2).for_each(|side| strides[side].push(own[side]));
        }
    }
    (merged, strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_lie_alike_are_merged() {
        assert_eq!(merged(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), (vec![24], [vec![1], vec![1]]));
        assert_eq!(merged(&[2, 1, 4], &[4, 9, 1], &[1, 7, 2]), (vec![2, 4], [vec![4, 1], vec![1, 2]]));
        assert_eq!(merged(&[2, 3, 4], &[12, 4, 1], &[24, 4, 1]), (vec![2, 12], [vec![12, 1], vec![24, 1]]));
        assert_eq!(merged(&[1], &[1], &[1]).0, Vec::<usize>::new());
    }
}
