//! A kernel with its inputs and the results that it must give.

use crate::kgen::{KernelError, Launch, Launches, fusion};
use bessemer_ir::DType;
use bessemer_ir::ops::OpRule;
use bessemer_ir::ops::fusion::Fusion;
use bessemer_ir::reference::Tensor;
use bessemer_ir::shape::TensorType;
use half::{bf16, f16};

/// An output: what it holds before, if that matters, and what it must hold after.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Elements in row-major order; `None` if the kernel does not read the memory that it writes.
    pub before: Option<Vec<f64>>,
    /// The elements that the reference gives.
    pub after: Tensor,
    /// Largest error allowed, relative to the number and to the root mean square of all.
    pub tolerance: f64,
}

/// Kernels with operands and expected results.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name in reports.
    pub name: String,
    /// The kernels to run, with their operands.
    pub work: Launches,
    /// Tensors that the kernels read, by [`Operand::Input`](crate::kgen::Operand::Input).
    pub inputs: Vec<Tensor>,
    /// Tensors that the kernels write, by [`Operand::Output`](crate::kgen::Operand::Output).
    pub outputs: Vec<Expected>,
}

impl Case {
    /// A fusion, with the results of its reference in `f64` if it is to be checked.
    ///
    /// # Errors
    /// There is no kernel for it.
    pub fn fusion(name: &str, fused: &Fusion, inputs: Vec<Tensor>, checked: bool) -> Result<Case, KernelError> {
        let inputs: Vec<Tensor> = inputs.into_iter().map(rounded).collect();
        let types: Vec<DType> = inputs.iter().map(|input| input.ty.dtype).collect();
        let work = fusion(name, fused, &types)?;
        let outputs: Vec<TensorType> = fused.outputs.iter().flat_map(|output| output.types()).collect();
        let after = if checked {
            fused.evaluate(&inputs.iter().collect::<Vec<_>>(), &outputs)
        } else {
            outputs.into_iter().map(Tensor::zeros).collect()
        };
        let outputs = after
            .into_iter()
            .map(|after| Expected { before: None, tolerance: tolerance(after.ty.dtype), after })
            .collect();
        Ok(Case { name: name.to_owned(), work, inputs, outputs })
    }

    /// One launch that takes outputs and inputs in its own order.
    pub fn launch(name: &str, launch: Launch, inputs: Vec<Tensor>, outputs: Vec<Expected>) -> Case {
        let work = Launches { launches: vec![launch], scratch: Vec::new() };
        Case { name: name.to_owned(), work, inputs: inputs.into_iter().map(rounded).collect(), outputs }
    }

    /// Bytes that must be read and written at least.
    pub fn bytes(&self) -> usize {
        let read: usize = self.inputs.iter().map(|input| input.ty.bytes()).sum();
        let output = |output: &Expected| output.after.ty.bytes() * if output.before.is_some() { 2 } else { 1 };
        read + self.outputs.iter().map(output).sum::<usize>()
    }

    /// The largest error among all outputs, in units of what is allowed, and its words where it is more than 1.
    pub fn error(&self, outputs: &[Vec<f64>]) -> (f64, Option<String>) {
        let errors = self.outputs.iter().zip(outputs).enumerate().map(|(index, (expected, got))| {
            let (error, at) = expected.error(got);
            let wanted = expected.after.data[at];
            (error, format!("output {index} at {at} is {}, not {wanted}", got[at]))
        });
        let (worst, words) =
            errors.fold((0.0, String::new()), |worst, error| if error.0 > worst.0 { error } else { worst });
        (worst, (worst > 1.0).then_some(words))
    }
}

impl Expected {
    /// Largest error in units of what is allowed, and where.
    pub(super) fn error(&self, got: &[f64]) -> (f64, usize) {
        let wanted = &self.after.data;
        let finite = wanted.iter().filter(|x| x.is_finite());
        let scale = (finite.map(|x| x * x).sum::<f64>() / wanted.len() as f64).sqrt();
        let error = |(&wanted, &got): (&f64, &f64)| match wanted {
            _ if wanted == got || (wanted.is_nan() && got.is_nan()) => 0.0,
            _ if !(wanted - got).is_finite() || self.tolerance == 0.0 => f64::INFINITY,
            _ => (wanted - got).abs() / wanted.abs().max(scale) / self.tolerance,
        };
        let errors = wanted.iter().zip(got).map(error).enumerate();
        errors.fold((0.0, 0), |worst, (at, error)| if error > worst.0 { (error, at) } else { worst })
    }
}

/// What rounding to the type and a few operations in `f32` cost.
pub fn tolerance(ty: DType) -> f64 {
    match ty {
        DType::F32 => 2e-5,
        DType::Bf16 => 4.1e-3,
        DType::F16 => 5.2e-4,
        DType::I32 | DType::U8 | DType::Bool => 0.0,
    }
}

/// The tensor as the device holds it.
pub(super) fn rounded(tensor: Tensor) -> Tensor {
    let data = decode(tensor.ty.dtype, &encode(tensor.ty.dtype, &tensor.data));
    Tensor { data, ..tensor }
}

/// Numbers as bytes of this type.
pub fn encode(ty: DType, numbers: &[f64]) -> Vec<u8> {
    fn all<const N: usize>(numbers: &[f64], bytes: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
        numbers.iter().flat_map(|&x| bytes(x)).collect()
    }
    match ty {
        DType::F32 => all(numbers, |x| (x as f32).to_le_bytes()),
        DType::Bf16 => all(numbers, |x| bf16::from_f32(x as f32).to_le_bytes()),
        DType::F16 => all(numbers, |x| f16::from_f32(x as f32).to_le_bytes()),
        DType::I32 => all(numbers, |x| (x as i32).to_le_bytes()),
        DType::U8 => all(numbers, |x| [x as u8]),
        DType::Bool => all(numbers, |x| [u8::from(x != 0.0)]),
    }
}

/// Bytes of this type as numbers.
pub fn decode(ty: DType, bytes: &[u8]) -> Vec<f64> {
    fn all<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.chunks_exact(N).map(|chunk| number(chunk.try_into().expect("chunks of this size"))).collect()
    }
    match ty {
        DType::F32 => all(bytes, |b| f32::from_le_bytes(b).into()),
        DType::Bf16 => all(bytes, |b| bf16::from_le_bytes(b).into()),
        DType::F16 => all(bytes, |b| f16::from_le_bytes(b).into()),
        DType::I32 => all(bytes, |b| i32::from_le_bytes(b).into()),
        DType::U8 => all(bytes, |b: [u8; 1]| b[0].into()),
        DType::Bool => all(bytes, |b: [u8; 1]| b[0].into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_their_types() {
        for ty in [DType::F32, DType::Bf16, DType::F16, DType::I32, DType::U8] {
            assert_eq!(decode(ty, &encode(ty, &[0.0, 1.0, 96.0])), [0.0, 1.0, 96.0]);
        }
        assert_eq!(decode(DType::Bool, &encode(DType::Bool, &[0.0, 7.0])), [0.0, 1.0]);
    }

    #[test]
    fn poison_and_small_differences_are_errors() {
        let after = Tensor::new(TensorType::f32([3]), vec![1.0, 2.0, 0.0]);
        let expected = Expected { before: None, after, tolerance: 1e-3 };
        assert_eq!(expected.error(&[1.0, 2.0, 0.0]), (0.0, 0));
        assert_eq!(expected.error(&[1.0, f64::NAN, 0.0]), (f64::INFINITY, 1));
        let (error, at) = expected.error(&[1.0, 2.004, 0.0]);
        assert!((error - 2.0).abs() < 1e-9 && at == 1);
    }
}
