//! What happens to rows of scores between the products.

use super::Dropout;
use crate::gemm::MAX_DEPTH;
use crate::random::fill_uniform;
use crate::vector;

/// Independent partial results of a reduction; the same on every instruction set.
pub(super) const LANES: usize = 32;

/// Folds halves of the lanes.
#[inline(always)]
pub(super) fn fold_lanes(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub(super) fn greater(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The sum of products of at most [`MAX_DEPTH`] elements.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut products = [0.0; MAX_DEPTH];
    for ((product, a), b) in products[..a.len()].iter_mut().zip(a).zip(b) {
        *product = a * b;
    }
    let mut lanes = [0.0; LANES];
    for block in products.as_chunks::<LANES>().0.iter().take(a.len().div_ceil(LANES)) {
        for i in 0..LANES {
            lanes[i] += block[i];
        }
    }
    fold_lanes(lanes, |a, b| a + b)
}

/// `scores = scores * scale + bias`, fused; `tops` become the greatest scores of their lanes.
#[inline(always)]
pub(super) fn scale_and_bias(scores: &mut [f32], scale: f32, bias: &[f32], tops: &mut [f32; LANES]) {
    let mut block = |scores: &mut [f32; LANES], bias: &[f32; LANES]| {
        for i in 0..LANES {
            scores[i] = scores[i].mul_add(scale, bias[i]);
            tops[i] = greater(tops[i], scores[i]);
        }
    };
    let (biases, last_bias) = bias.as_chunks::<LANES>();
    let (blocks, last) = scores.as_chunks_mut::<LANES>();
    for (scores, bias) in blocks.iter_mut().zip(biases) {
        block(scores, bias);
    }
    if !last.is_empty() {
        let (mut padded, mut padded_bias) = ([0.0; LANES], [f32::NEG_INFINITY; LANES]);
        padded[..last.len()].copy_from_slice(last);
        padded_bias[..last.len()].copy_from_slice(last_bias);
        block(&mut padded, &padded_bias);
        last.copy_from_slice(&padded[..last.len()]);
    }
}

/// `scores = exp(scores - top)`, of which the lanes are added to `sums`.
#[inline(always)]
pub(super) fn exponentials(scores: &mut [f32], top: f32, sums: &mut [f32; LANES]) {
    let mut block = |scores: &mut [f32; LANES]| {
        for i in 0..LANES {
            scores[i] = vector::exp_nonpositive(scores[i] - top);
            sums[i] += scores[i];
        }
    };
    let (blocks, last) = scores.as_chunks_mut::<LANES>();
    for scores in blocks {
        block(scores);
    }
    if !last.is_empty() {
        let mut padded = [f32::NEG_INFINITY; LANES];
        padded[..last.len()].copy_from_slice(last);
        block(&mut padded);
        last.copy_from_slice(&padded[..last.len()]);
    }
}

/// What turns the scores of a query, and the gradients of its probabilities, into probabilities and gradients of the scores.
#[derive(Clone, Copy)]
pub(super) struct RowGradient {
    pub scale: f32,
    pub log_sum: f32,
    /// The gradients of the probabilities, weighted by these.
    pub expected: f32,
}

impl RowGradient {
    /// Probabilities of scores, fused, and the gradients of the scores.
    #[inline(always)]
    pub(super) fn apply(self, scores: &mut [f32], dscores: &mut [f32], bias: &[f32]) {
        let RowGradient { scale, log_sum, expected } = self;
        for ((s, d), &b) in scores.iter_mut().zip(dscores).zip(bias) {
            let p = vector::exp_nonpositive(s.mul_add(scale, b) - log_sum);
            *d = p * ((*d - expected) * scale);
            *s = p;
        }
    }

    /// As [`apply`](Self::apply) with dropout; the probabilities become what multiplied the values.
    #[inline(always)]
    pub(super) fn apply_with_dropout(
        self,
        scores: &mut [f32],
        dscores: &mut [f32],
        bias: &[f32],
        dropout: &Dropout,
        uniforms: &[f32],
    ) {
        let RowGradient { scale, log_sum, expected } = self;
        for (((s, d), &b), &u) in scores.iter_mut().zip(dscores).zip(bias).zip(uniforms) {
            let p = vector::exp_nonpositive(s.mul_add(scale, b) - log_sum);
            let factor = if u >= dropout.rate { dropout.gain } else { 0.0 };
            *d = p * (d.mul_add(factor, -expected) * scale);
            *s = p * factor;
        }
    }
}

/// `x = x * factor`
#[inline(always)]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

impl Dropout {
    /// The uniform random numbers of the probabilities from position `first` on.
    #[inline(always)]
    pub(super) fn uniforms(&self, counter: u32, first: u64, uniforms: &mut [f32]) {
        fill_uniform(self.seed, counter, self.stream, first, uniforms);
    }

    /// Replaces the probabilities that are dropped by 0; the others are not multiplied yet.
    #[inline(always)]
    pub(super) fn drop(&self, p: &mut [f32], uniforms: &[f32]) {
        for (p, &u) in p.iter_mut().zip(uniforms) {
            *p = if u >= self.rate { *p } else { 0.0 };
        }
    }
}
