//! What the program of a fusion computes, as algebra: each register as a function of the product, of tensors with all elements and of
//! vectors by columns, so that the order of its instructions does not matter. Roundings are not followed.

use bessemer_ir::ops::Scalar;
use bessemer_ir::ops::fusion::{Fusion, Instr, Reg};
use bessemer_ir::ops::pointwise::{BinaryKind, UnaryKind};
use bessemer_ir::{DType, TensorType};
use std::collections::BTreeMap;

/// What has an element at each position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tensor {
    Product,
    /// An input of the program, by number.
    Load(u16),
}

/// A number for each column: a sum of products of inputs, by their numbers in order, each with a constant factor that is not 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vector(BTreeMap<Vec<u16>, f64>);

/// A sum of tensors, each with a factor for each column, which is not 0, and of a vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Linear {
    pub(super) terms: BTreeMap<Tensor, Vector>,
    pub(super) offset: Vector,
}

/// What a register holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Linear(Linear),
    Relu(Linear),
    Sigmoid(Linear),
    Swish(Linear),
    /// 1 where this is positive, 0 elsewhere.
    Positive(Linear),
    /// `value` where `mask` is positive, 0 elsewhere.
    Masked {
        mask: Linear,
        value: Linear,
    },
    /// The product of both.
    Times(Box<Form>, Linear),
    /// Anything else.
    Other,
}

impl Vector {
    pub(super) fn constant(number: f64) -> Vector {
        Vector(BTreeMap::from([(Vec::new(), number)])).without_zeros()
    }

    fn load(input: u16) -> Vector {
        Vector(BTreeMap::from([(vec![input], 1.0)]))
    }

    fn without_zeros(mut self) -> Vector {
        self.0.retain(|_, factor| *factor != 0.0);
        self
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_one(&self) -> bool {
        *self == Vector::constant(1.0)
    }

    /// The input that it is, if it is one.
    pub(super) fn as_load(&self) -> Option<u16> {
        match self.0.iter().next() {
            Some((inputs, 1.0)) if self.0.len() == 1 && inputs.len() == 1 => Some(inputs[0]),
            _ => None,
        }
    }

    pub(super) fn plus(&self, other: &Vector) -> Vector {
        let mut sum = self.clone();
        for (inputs, factor) in &other.0 {
            *sum.0.entry(inputs.clone()).or_default() += factor;
        }
        sum.without_zeros()
    }

    pub(super) fn times(&self, other: &Vector) -> Vector {
        let mut product = Vector::default();
        for ((a, x), (b, y)) in self.0.iter().flat_map(|one| other.0.iter().map(move |other| (one, other))) {
            let mut inputs = [&a[..], b].concat();
            inputs.sort_unstable();
            *product.0.entry(inputs).or_default() += x * y;
        }
        product.without_zeros()
    }

    pub(super) fn negative(&self) -> Vector {
        self.times(&Vector::constant(-1.0))
    }

    /// What this is `divisor` times, where the divisor is one product that all of this has as a factor.
    pub(super) fn divided_by(&self, divisor: &Vector) -> Option<Vector> {
        let (1, Some((factors, number))) = (divisor.0.len(), divisor.0.iter().next()) else { return None };
        let without = |(inputs, factor): (&Vec<u16>, &f64)| {
            let mut rest = inputs.clone();
            for input in factors {
                rest.remove(rest.iter().position(|other| other == input)?);
            }
            Some((rest, factor / number))
        };
        Some(Vector(self.0.iter().map(without).collect::<Option<_>>()?))
    }

    /// Instructions behind those of a program that compute it, whose inputs have numbers from `first` on there: the register that holds
    /// it.
    pub(super) fn write(&self, program: &mut Vec<Instr>, first: u16) -> Reg {
        let mut push = |instr| {
            program.push(instr);
            (program.len() - 1) as Reg
        };
        let mut sum = None;
        for (inputs, &factor) in &self.0 {
            let mut product = None;
            // A factor of 1 is left out unless it is all there is.
            let constant = (factor != 1.0 || inputs.is_empty()).then_some(Instr::Const(Scalar(factor)));
            for instr in inputs.iter().map(|&input| Instr::Load(first + input)).chain(constant) {
                let own = push(instr);
                product = Some(product.map_or(own, |before| push(Instr::Binary(BinaryKind::Mul, before, own))));
            }
            let own = product.expect("an input or a constant");
            sum = Some(sum.map_or(own, |before| push(Instr::Binary(BinaryKind::Add, before, own))));
        }
        sum.unwrap_or_else(|| push(Instr::Const(Scalar(0.0))))
    }
}

impl Linear {
    fn of(tensor: Tensor) -> Linear {
        Linear { terms: BTreeMap::from([(tensor, Vector::constant(1.0))]), offset: Vector::default() }
    }

    fn vector(offset: Vector) -> Linear {
        Linear { terms: BTreeMap::new(), offset }
    }

    fn is_zero(&self) -> bool {
        self.as_vector().is_some_and(Vector::is_zero)
    }

    /// The vector that it is, where no tensor enters.
    fn as_vector(&self) -> Option<&Vector> {
        self.terms.is_empty().then_some(&self.offset)
    }

    fn plus(&self, other: &Linear) -> Linear {
        let mut sum = self.clone();
        for (tensor, factor) in &other.terms {
            let own = sum.terms.entry(*tensor).or_default();
            *own = own.plus(factor);
        }
        sum.terms.retain(|_, factor| !factor.is_zero());
        sum.offset = sum.offset.plus(&other.offset);
        sum
    }

    fn times(&self, factor: &Vector) -> Linear {
        let mut product = self.clone();
        product.terms.values_mut().for_each(|own| *own = own.times(factor));
        product.terms.retain(|_, factor| !factor.is_zero());
        product.offset = product.offset.times(factor);
        product
    }

    /// The factor of the product, and the rest.
    pub(super) fn split(&self) -> (Vector, Linear) {
        let mut rest = self.clone();
        (rest.terms.remove(&Tensor::Product).unwrap_or_default(), rest)
    }

    /// The only tensor that enters, with its factor.
    pub(super) fn single(&self) -> Option<(Tensor, &Vector)> {
        let (tensor, factor) = self.terms.iter().next().filter(|_| self.terms.len() == 1)?;
        Some((*tensor, factor))
    }

    /// The input that it is, with all elements, if it is one alone.
    pub(super) fn as_input(&self) -> Option<u16> {
        match self.single()? {
            (Tensor::Load(input), factor) if factor.is_one() && self.offset.is_zero() => Some(input),
            _ => None,
        }
    }
}

/// What each register of a fusion's program holds, whose inputs have these types.
pub(super) fn forms(fusion: &Fusion, types: &[&TensorType]) -> Vec<Form> {
    let mut forms: Vec<Form> = Vec::with_capacity(fusion.program.len());
    for instr in &fusion.program {
        let form = form(fusion, types, &forms, instr);
        forms.push(form);
    }
    forms
}

fn form(fusion: &Fusion, types: &[&TensorType], forms: &[Form], instr: &Instr) -> Form {
    let at = |reg: Reg| &forms[usize::from(reg)];
    match *instr {
        Instr::Producer => Form::Linear(Linear::of(Tensor::Product)),
        Instr::Const(Scalar(number)) => Form::Linear(Linear::vector(Vector::constant(number))),
        Instr::Load(input) => {
            let (map, ty) = (fusion.loads[usize::from(input)], types[usize::from(input)].dtype);
            match (map.row_mod, map.is_full(fusion.rows)) {
                _ if !ty.is_float() => Form::Other,
                (_, true) => Form::Linear(Linear::of(Tensor::Load(input))),
                (1, false) => Form::Linear(Linear::vector(Vector::load(input))),
                _ => Form::Other,
            }
        }
        Instr::Cast(DType::F32 | DType::F16 | DType::Bf16, a) => at(a).clone(),
        Instr::Unary(kind, a) => unary(kind, at(a)),
        Instr::Binary(kind, a, b) => binary(kind, at(a), at(b)),
        Instr::Select(condition, a, b) => match (at(condition), at(a), at(b)) {
            (Form::Positive(mask), Form::Linear(value), Form::Linear(zero)) if zero.is_zero() => {
                Form::Masked { mask: mask.clone(), value: value.clone() }
            }
            _ => Form::Other,
        },
        _ => Form::Other,
    }
}

fn unary(kind: UnaryKind, a: &Form) -> Form {
    match (kind, a) {
        (UnaryKind::Neg, Form::Linear(a)) => Form::Linear(a.times(&Vector::constant(-1.0))),
        (UnaryKind::Relu, Form::Linear(a)) => Form::Relu(a.clone()),
        (UnaryKind::Sigmoid, Form::Linear(a)) => Form::Sigmoid(a.clone()),
        _ => Form::Other,
    }
}

fn binary(kind: BinaryKind, a: &Form, b: &Form) -> Form {
    match (kind, a, b) {
        (BinaryKind::Add, Form::Linear(a), Form::Linear(b)) => Form::Linear(a.plus(b)),
        (BinaryKind::Sub, Form::Linear(a), Form::Linear(b)) => Form::Linear(a.plus(&b.times(&Vector::constant(-1.0)))),
        (BinaryKind::Max, Form::Linear(a), Form::Linear(zero)) if zero.is_zero() => Form::Relu(a.clone()),
        (BinaryKind::Max, Form::Linear(zero), Form::Linear(a)) if zero.is_zero() => Form::Relu(a.clone()),
        (BinaryKind::Gt, Form::Linear(a) | Form::Relu(a), Form::Linear(zero)) if zero.is_zero() => {
            Form::Positive(a.clone())
        }
        (BinaryKind::Lt, Form::Linear(zero), Form::Linear(a) | Form::Relu(a)) if zero.is_zero() => {
            Form::Positive(a.clone())
        }
        (BinaryKind::Mul, Form::Sigmoid(a), Form::Linear(b)) | (BinaryKind::Mul, Form::Linear(b), Form::Sigmoid(a))
            if a == b =>
        {
            Form::Swish(a.clone())
        }
        (BinaryKind::Mul, Form::Linear(a), Form::Linear(b)) => match (a.as_vector(), b.as_vector()) {
            (_, Some(factor)) => Form::Linear(a.times(factor)),
            (Some(factor), _) => Form::Linear(b.times(factor)),
            _ => Form::Other,
        },
        (BinaryKind::Mul, masked @ Form::Masked { .. }, Form::Linear(factor))
        | (BinaryKind::Mul, Form::Linear(factor), masked @ Form::Masked { .. }) => {
            Form::Times(Box::new(masked.clone()), factor.clone())
        }
        _ => Form::Other,
    }
}
