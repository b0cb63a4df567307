//! Attention and its gradient. They compute `f32`; where a plan has the output and the gradients in 16 bits, those are widened
//! before and rounded behind.

use super::rounded::{round, widen, widened_len};
use super::{CallError, Kernel, Operands, Unsupported};
use crate::attention::AttentionDesc;
use crate::gemm::Ctx;
use crate::random::fill_uniform;
use bessemer_ir::ops::attention::{Attention, AttentionDropout, AttentionGrad};
use bessemer_ir::{DType, TensorType};

/// # Errors
/// When heads are too deep.
pub(super) fn forward(attention: &Attention, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    let dropout = attention.dropout.filter(|dropout| dropout.keeps_mask);
    Ok(Box::new(Forward { desc: AttentionDesc::new(attention, types)?, output: attention.output, dropout }))
}

/// # Errors
/// When heads are too deep.
pub(super) fn backward(grad: &AttentionGrad, types: &[&TensorType]) -> Result<Box<dyn Kernel>, Unsupported> {
    let AttentionGrad { attention } = grad;
    let mask = attention.keeps_mask().then_some(MASK);
    Ok(Box::new(Backward { desc: AttentionDesc::new(attention, types)?, output: attention.output, mask }))
}

struct Forward {
    desc: AttentionDesc,
    output: DType,
    /// Where its mask is an output.
    dropout: Option<AttentionDropout>,
}

impl Forward {
    /// # Safety
    /// As for [`Kernel::run`].
    unsafe fn write_mask(&self, dropout: &AttentionDropout, operands: &Operands<'_>) {
        let (rows, keys) = (self.desc.rows_len(), self.desc.keys());
        let words = AttentionDropout::mask_words(keys);
        // SAFETY: the caller's promise: the counter is the last input, and this call alone writes the output, which has so many words.
        let (counter, mask) = unsafe {
            let counter = operands.input::<i32>(operands.inputs.len() - 1, 1)[0] as u32;
            (counter, std::slice::from_raw_parts_mut(operands.outputs[2].cast::<i32>(), rows * words))
        };
        let mut uniforms = vec![0.0; keys];
        for (row, to) in mask.chunks_exact_mut(words).enumerate() {
            fill_uniform(dropout.seed, counter, dropout.stream, (row * keys) as u64, &mut uniforms);
            to.fill(0);
            to.iter_mut().zip(uniforms.chunks(32)).for_each(|(word, uniforms)| *word = dropout.mask_word(uniforms));
        }
    }
}

impl Kernel for Forward {
    fn name(&self) -> String {
        "attention by blocks of queries".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.forward_scratch_len(threads) + widened_len(self.output, &[self.desc.q_len()])
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        if let Some(dropout) = &self.dropout {
            // SAFETY: the caller's promise.
            unsafe { self.write_mask(dropout, operands) };
        }
        if self.output == DType::F32 {
            // SAFETY: the caller's promise.
            unsafe { self.desc.run_forward(ctx, operands) };
            return Ok(());
        }
        // SAFETY: the caller's promise; the scratch is divided.
        unsafe {
            let (out, rest) = operands.scratch().split_at_mut(self.desc.q_len());
            let outputs = [out.as_mut_ptr().cast(), operands.outputs[1]];
            let (scratch, scratch_len) = (rest.as_mut_ptr(), rest.len());
            self.desc.run_forward(ctx, &Operands { outputs: &outputs, scratch, scratch_len, ..*operands });
            round(self.output, out, operands.outputs[0]);
        }
        Ok(())
    }
}

struct Backward {
    desc: AttentionDesc,
    output: DType,
    /// The input that is the mask of dropout, which is drawn here again.
    mask: Option<usize>,
}

impl Backward {
    /// Of the output, its gradient, and those of queries, keys and values.
    fn lengths(&self) -> [usize; 5] {
        let (of_queries, of_keys) = (self.desc.q_len(), self.desc.k_len());
        [of_queries, of_queries, of_queries, of_keys, of_keys]
    }
}

/// The inputs that hold the output and its gradient, without the mask.
const OF_OUTPUT: [usize; 2] = [4, 6];
/// The input that is the mask, where there is one.
const MASK: usize = 6;

impl Kernel for Backward {
    fn name(&self) -> String {
        "attention gradient by blocks of queries".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.backward_scratch_len(threads) + widened_len(self.output, &self.lengths())
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        let mut inputs = operands.inputs.to_vec();
        self.mask.map(|mask| inputs.remove(mask));
        let operands = &Operands { inputs: &inputs, ..*operands };
        if self.output == DType::F32 {
            // SAFETY: the caller's promise.
            unsafe { self.desc.run_backward(ctx, operands) };
            return Ok(());
        }
        // SAFETY: the caller's promise; the scratch is divided.
        unsafe {
            let mut rest = operands.scratch();
            let mut wide = self.lengths().map(|len| {
                let (tensor, behind) = std::mem::take(&mut rest).split_at_mut(len);
                rest = behind;
                tensor
            });
            let mut inputs = inputs.clone();
            for (input, tensor) in OF_OUTPUT.into_iter().zip(&mut wide) {
                widen(self.output, inputs[input], tensor);
                inputs[input] = tensor.as_ptr().cast();
            }
            let grads = &mut wide[OF_OUTPUT.len()..];
            let outputs: Vec<*mut u8> = grads.iter_mut().map(|tensor| tensor.as_mut_ptr().cast()).collect();
            let (scratch, scratch_len) = (rest.as_mut_ptr(), rest.len());
            self.desc
                .run_backward(ctx, &Operands { inputs: &inputs, outputs: &outputs, scratch, scratch_len, ..*operands });
            for (tensor, output) in grads.iter().zip(operands.outputs) {
                round(self.output, tensor, *output);
            }
        }
        Ok(())
    }
}
