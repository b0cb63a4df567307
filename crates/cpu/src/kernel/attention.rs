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
    let desc = AttentionDesc::new(attention, types)?;
    Ok(Box::new(Backward { desc, output: attention.output, dout: grad.dout() }))
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
    /// The number of the input that is the output's gradient. A mask of dropout before it is not read, but drawn again.
    dout: usize,
}

impl Backward {
    /// Of the output, its gradient, and those of queries, keys and values.
    fn lengths(&self) -> [usize; 5] {
        let (of_queries, of_keys) = (self.desc.q_len(), self.desc.k_len());
        [of_queries, of_queries, of_queries, of_keys, of_keys]
    }
}

/// The number of the input that is the output.
const OUT: usize = 4;

impl Kernel for Backward {
    fn name(&self) -> String {
        "attention gradient by blocks of queries".to_string()
    }

    fn scratch_len(&self, threads: usize) -> usize {
        self.desc.backward_scratch_len(threads) + widened_len(self.output, &self.lengths())
    }

    unsafe fn run(&self, ctx: Ctx<'_>, operands: &Operands<'_>) -> Result<(), CallError> {
        if self.output == DType::F32 {
            // SAFETY: the caller's promise.
            unsafe { self.desc.run_backward(ctx, operands, self.dout) };
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
            let mut inputs = operands.inputs.to_vec();
            let of_output = [OUT, self.dout];
            for (input, tensor) in of_output.into_iter().zip(&mut wide) {
                widen(self.output, inputs[input], tensor);
                inputs[input] = tensor.as_ptr().cast();
            }
            let grads = &mut wide[of_output.len()..];
            let outputs: Vec<*mut u8> = grads.iter_mut().map(|tensor| tensor.as_mut_ptr().cast()).collect();
            let (scratch, scratch_len) = (rest.as_mut_ptr(), rest.len());
            let results = operands.outputs;
            let operands = &Operands { inputs: &inputs, outputs: &outputs, scratch, scratch_len, ..*operands };
            self.desc.run_backward(ctx, operands, self.dout);
            for (tensor, output) in grads.iter().zip(results) {
                round(self.output, tensor, *output);
            }
        }
        Ok(())
    }
}
