//! Attention and its gradient on tensor cores.

pub(crate) mod tensor_cores;

use crate::kgen::Parameter;
use bessemer_ir::DType;
use bessemer_ir::ops::attention::{Attention, Geometry};

/// An attention of operands of some type.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub attention: &'a Attention,
    pub sizes: Geometry,
    pub ty: DType,
}

impl Operands<'_> {
    fn q_elements(&self) -> usize {
        self.sizes.q_shape().elements()
    }

    fn k_elements(&self) -> usize {
        self.sizes.k_shape().elements()
    }

    fn rows(&self) -> usize {
        self.sizes.row_shape().elements()
    }

    /// q, k, v and bias.
    fn common(&self) -> Vec<Parameter> {
        let Geometry { batch, keys, .. } = self.sizes;
        let input = |name: &str, elements| Parameter::input(name, self.ty, elements);
        vec![
            input("q", self.q_elements()),
            input("k", self.k_elements()),
            input("v", self.k_elements()),
            Parameter::input("bias", DType::F32, batch * keys),
        ]
    }

    /// The output, or what is of its type: its gradient and those of q, k and v.
    fn of_output(&self, name: &str, elements: usize, written: bool) -> Parameter {
        Parameter::Memory { name: name.into(), ty: self.attention.output, elements, written }
    }

    /// The mask of dropout, if it is kept.
    fn mask(&self, written: bool) -> Option<Parameter> {
        let (name, elements) = ("mask".to_owned(), self.sizes.mask_shape().elements());
        let mask = Parameter::Memory { name, ty: DType::I32, elements, written };
        self.attention.keeps_mask().then_some(mask)
    }

    fn counter(&self) -> Option<Parameter> {
        self.attention.dropout.map(|_| Parameter::input("counter", DType::I32, 1))
    }
}

fn floats(name: &str, elements: usize, written: bool) -> Parameter {
    Parameter::Memory { name: name.into(), ty: DType::F32, elements, written }
}
