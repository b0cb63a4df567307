//! Fusions so simple that products do their work as they finish tiles.

use super::FusionIo;
use crate::gemm::{Activation, Addend, Store};
use bessemer_ir::ops::fusion::{Fusion, FusionOutput, IndexMap, Instr, Reg};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, TensorType};
use std::f32::consts::FRAC_1_SQRT_2;

/// A fusion that is a [`Store`]: what of that there is, by numbers of loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreFusion {
    bias: Option<u16>,
    addend: Option<LoadedAddend>,
    activation: Activation,
    output_type: DType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadedAddend {
    load: u16,
    dtype: DType,
    bias: Option<u16>,
}

impl StoreFusion {
    /// The fusion in this form, if its first output has it and others are sums of that. `input_types` are those of its loads.
    pub(crate) fn of(fusion: &Fusion, input_types: &[TensorType]) -> Option<StoreFusion> {
        let [FusionOutput::Store { reg, ref ty }, ref sums @ ..] = fusion.outputs[..] else { return None };
        let is_sum = |output: &FusionOutput| matches!(*output, FusionOutput::Sum { reg: summed, .. } if summed == reg);
        let fits = match ty.dtype {
            DType::F32 => sums.iter().all(is_sum),
            // Sums are of what is not rounded.
            DType::Bf16 => sums.is_empty(),
            _ => false,
        };
        if !fits {
            return None;
        }
        let reader = Reader { fusion, input_types };
        let value = match reader.instr(reg) {
            Instr::Cast(DType::Bf16, a) if ty.dtype == DType::Bf16 => a,
            _ => reg,
        };
        let (sum, activation) = reader.activation(value);
        let (bias, addend) = reader.sum(sum)?;
        let exists = addend.is_none() || !activation.is_function();
        exists.then_some(StoreFusion { bias, addend, activation, output_type: ty.dtype })
    }

    /// The sums of such a fusion, taken from its stored first output, which the program reads as the producer; `None` if there are
    /// none.
    pub(crate) fn sums(fusion: &Fusion) -> Option<Fusion> {
        let of_stored = |output: &FusionOutput| match output {
            FusionOutput::Sum { groups, shape, .. } => {
                Some(FusionOutput::Sum { reg: 0, groups: *groups, shape: shape.clone() })
            }
            _ => None,
        };
        let outputs: Vec<FusionOutput> = fusion.outputs.iter().filter_map(of_stored).collect();
        if outputs.is_empty() {
            return None;
        }
        Some(Fusion { loads: Vec::new(), program: vec![Instr::Producer], outputs, ..fusion.clone() })
    }

    /// The same with the places of its operands.
    pub(crate) fn at(&self, io: &FusionIo<'_>) -> Store {
        let bias = |load: Option<u16>| load.map(|load| io.loads[usize::from(load)].cast::<f32>());
        let addend = self.addend.map(|LoadedAddend { load, dtype, bias: own }| Addend {
            elements: io.loads[usize::from(load)],
            dtype,
            bias: bias(own),
        });
        Store {
            bias: bias(self.bias),
            addend,
            activation: self.activation,
            output: io.outputs[0],
            output_type: self.output_type,
        }
    }
}

/// Recognises parts of a program.
struct Reader<'a> {
    fusion: &'a Fusion,
    input_types: &'a [TensorType],
}

impl Reader<'_> {
    fn instr(&self, reg: Reg) -> Instr {
        self.fusion.program[usize::from(reg)]
    }

    /// What a value is a function of, and which one.
    fn activation(&self, value: Reg) -> (Reg, Activation) {
        if let Instr::Unary(UnaryKind::Relu, a) = self.instr(value) {
            return (a, Activation::Relu);
        }
        let function = self.either_way(BinaryKind::Mul, value, |a, b| match self.instr(b) {
            Instr::Unary(UnaryKind::Sigmoid, x) if x == a => Some((a, Activation::Swish)),
            _ => Some((self.gelu(a, b)?, Activation::Gelu)),
        });
        function.unwrap_or((value, Activation::None))
    }

    /// The `x` of `half = x * 0.5` and `above = 1 + erf(x / sqrt 2)`.
    fn gelu(&self, half: Reg, above: Reg) -> Option<Reg> {
        let x = self.times(half, 0.5)?;
        let erf = self.either_way(BinaryKind::Add, above, |a, b| self.is_constant(b, 1.0).then_some(a))?;
        let Instr::Unary(UnaryKind::Erf, scaled) = self.instr(erf) else { return None };
        (self.times(scaled, FRAC_1_SQRT_2)? == x).then_some(x)
    }

    /// What is multiplied by a constant.
    fn times(&self, product: Reg, factor: f32) -> Option<Reg> {
        self.either_way(BinaryKind::Mul, product, |a, b| self.is_constant(b, factor).then_some(a))
    }

    fn is_constant(&self, reg: Reg, value: f32) -> bool {
        matches!(self.instr(reg), Instr::Const(c) if c.0 as f32 == value)
    }

    /// The producer with or without a bias, and what is added to it.
    fn sum(&self, reg: Reg) -> Option<(Option<u16>, Option<LoadedAddend>)> {
        if let Some(bias) = self.producer(reg) {
            return Some((bias, None));
        }
        self.either_way(BinaryKind::Add, reg, |a, b| Some((self.producer(a)?, Some(self.addend(b)?))))
    }

    /// The bias of the producer.
    fn producer(&self, reg: Reg) -> Option<Option<u16>> {
        let is_producer = |reg| self.instr(reg) == Instr::Producer;
        if is_producer(reg) {
            return Some(None);
        }
        self.either_way(BinaryKind::Add, reg, |a, b| is_producer(a).then_some(Some(self.row(b)?)))
    }

    fn addend(&self, reg: Reg) -> Option<LoadedAddend> {
        self.matrix(reg).or_else(|| {
            self.either_way(BinaryKind::Add, reg, |a, b| {
                let matrix = self.matrix(a)?;
                Some(LoadedAddend { bias: Some(self.row(b)?), ..matrix })
            })
        })
    }

    /// Tries both orders of the operands of such an operation.
    fn either_way<T>(&self, kind: BinaryKind, reg: Reg, read: impl Fn(Reg, Reg) -> Option<T>) -> Option<T> {
        match self.instr(reg) {
            Instr::Binary(own, a, b) if own == kind => read(a, b).or_else(|| read(b, a)),
            _ => None,
        }
    }

    /// A load with an element for each position.
    fn matrix(&self, reg: Reg) -> Option<LoadedAddend> {
        let (load, index_map, dtype) = self.load(reg)?;
        let fits = index_map.is_full(self.fusion.rows) && matches!(dtype, DType::F32 | DType::Bf16);
        fits.then_some(LoadedAddend { load, dtype, bias: None })
    }

    /// A load with an element for each column.
    fn row(&self, reg: Reg) -> Option<u16> {
        let (load, index_map, dtype) = self.load(reg)?;
        (index_map.by_col && index_map.row_mod == 1 && dtype == DType::F32).then_some(load)
    }

    fn load(&self, reg: Reg) -> Option<(u16, IndexMap, DType)> {
        let Instr::Load(load) = self.instr(reg) else { return None };
        let index = usize::from(load);
        Some((load, self.fusion.loads[index], self.input_types[index].dtype))
    }
}
