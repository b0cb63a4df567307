//! Scaled dot-product attention over several heads, and its gradient (Vaswani et al., "Attention is all you need", 2017,
//! section 3.2). Neither keeps the probabilities: they are computed again in the backward pass (Dao et al.,
//! "FlashAttention", 2022, section 3.1).

use super::{Cost, GradArgs, Gradient, LowResult, MixedPrecision, Op, OpError, OpRule, Scalar};
use crate::dtype::DType;
use crate::graph::{Graph, GraphError};
use crate::philox;
use crate::reference::Tensor;
use crate::rules::Rules;
use crate::shape::{Shape, TensorType};

/// For each batch item and head, `out = dropout(softmax(scale * q k^T + bias)) v`. Inputs: q `[B, Sq, heads * D]`, k and v
/// `[B, Sk, heads * D]`, of one float type; bias `f32[B, Sk]`, added to the scores of every query and head; with dropout the
/// counter, `i32[]`. Outputs: out `[B, Sq, heads * D]`, and the logarithm of the sum that each row of the softmax is divided by,
/// `f32[B, heads, Sq]`, which the gradient reads; where dropout keeps its mask, that too, `i32[B, heads, Sq, W]`. There is no gradient with
/// respect to the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Number of heads; the innermost axis of q, k and v is divided evenly among them.
    pub heads: usize,
    /// Factor of the scores before the softmax, usually `1 / sqrt(D)`.
    pub scale: Scalar,
    /// `None` keeps every probability.
    pub dropout: Option<AttentionDropout>,
    /// Element type of the output and of all gradients: `f32`, or that of q, k and v.
    pub output: DType,
}

/// Dropout of probabilities: where the uniform number of (seed, counter, stream) at the element's row-major position in
/// `[B, heads, Sq, Sk]` is below `rate`, as an `f32`, they become 0, elsewhere they are divided by `1 - rate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDropout {
    /// Probability of dropping an element, in `[0, 1)`.
    pub rate: Scalar,
    /// Seed of the random generator.
    pub seed: u64,
    /// Distinguishes the random nodes of one step.
    pub stream: u32,
    /// Whether the mask is an output, which the gradient reads instead of drawing it again: bit `k % 32` of word `k / 32` of a row says
    /// whether the probability of key `k` is kept. Rows have an even number of words; bits behind the last key are 0.
    pub keeps_mask: bool,
}

impl AttentionDropout {
    /// Words of a row of the mask for so many keys.
    pub fn mask_words(keys: usize) -> usize {
        2 * keys.div_ceil(64)
    }

    /// The mask's word that begins with these uniform numbers, of 32 keys at most.
    pub fn mask_word(&self, uniforms: &[f32]) -> i32 {
        let keeps = |&u: &f32| u >= self.rate.0 as f32;
        uniforms.iter().rev().fold(0, |word, u| word << 1 | u32::from(keeps(u))) as i32
    }

    /// The factor of a probability whose uniform number is `u`.
    fn factor(&self, u: f32) -> f64 {
        if u >= self.rate.0 as f32 { 1.0 / (1.0 - self.rate.0) } else { 0.0 }
    }
}

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Batch items, `B`.
    pub batch: usize,
    /// Number of heads.
    pub heads: usize,
    /// Positions of the queries, `Sq`.
    pub queries: usize,
    /// Positions of keys and values, `Sk`.
    pub keys: usize,
    /// Elements of one head, `D`.
    pub depth: usize,
}

impl Geometry {
    /// Shape of the queries and of the output, `[B, Sq, heads * D]`.
    pub fn q_shape(&self) -> Shape {
        [self.batch, self.queries, self.heads * self.depth].into()
    }

    /// Shape of keys and values, `[B, Sk, heads * D]`.
    pub fn k_shape(&self) -> Shape {
        [self.batch, self.keys, self.heads * self.depth].into()
    }

    /// Shape of statistics that each row of the softmax has one of, `[B, heads, Sq]`.
    pub fn row_shape(&self) -> Shape {
        [self.batch, self.heads, self.queries].into()
    }

    /// Shape of the mask of dropout, `[B, heads, Sq, W]`.
    pub fn mask_shape(&self) -> Shape {
        [self.batch, self.heads, self.queries, AttentionDropout::mask_words(self.keys)].into()
    }

    /// Arithmetic of `count` products of the size of `q k^T`.
    fn product_flops(&self, count: usize) -> u64 {
        (2 * count * self.batch * self.heads * self.queries * self.keys * self.depth) as u64
    }
}

/// The inputs of both operations that come first: q, k, v, bias.
const COMMON: usize = 4;

impl Attention {
    /// Sizes for queries and keys of these shapes.
    ///
    /// # Errors
    /// Which dimension does not fit.
    pub fn geometry(&self, q: &Shape, k: &Shape) -> Result<Geometry, OpError> {
        let (&[batch, queries, width], &[k_batch, keys, k_width]) = (&q[..], &k[..]) else {
            return Err(OpError::Sizes("queries and keys must be [B, S, heads * D]".to_string()));
        };
        if batch != k_batch || width != k_width {
            return Err(OpError::Sizes(format!("queries {q} and keys {k} differ in batch or width")));
        }
        if self.heads == 0 || !width.is_multiple_of(self.heads) || width == 0 {
            return Err(OpError::Sizes(format!("a width of {width} is not that of {} heads", self.heads)));
        }
        if queries == 0 || keys == 0 {
            return Err(OpError::Sizes("there must be at least one query and one key".to_string()));
        }
        Ok(Geometry { batch, heads: self.heads, queries, keys, depth: width / self.heads })
    }

    /// Whether the mask of dropout is an output.
    pub fn keeps_mask(&self) -> bool {
        self.dropout.is_some_and(|dropout| dropout.keeps_mask)
    }

    /// Arithmetic of the two products alone.
    pub fn product_flops(&self, inputs: &[&TensorType]) -> u64 {
        verified(self.geometry(&inputs[0].shape, &inputs[1].shape)).product_flops(2)
    }

    /// Checks q, k, v, bias and the counter, of which the `extra` inputs between bias and counter are left out.
    fn check(&self, inputs: &[&TensorType], extra: usize, names: &str) -> Result<Geometry, OpError> {
        let counters = usize::from(self.dropout.is_some());
        if inputs.len() != COMMON + extra + counters {
            let counter = if counters == 1 { " and the counter" } else { "" };
            return Err(OpError::operands(format!("{names}{counter}")));
        }
        let [q, k, v, bias] = [inputs[0], inputs[1], inputs[2], inputs[3]];
        if !q.dtype.is_float() || k.dtype != q.dtype || v.dtype != q.dtype {
            return Err(OpError::operands("queries, keys and values of one float element type"));
        }
        if self.output != DType::F32 && self.output != q.dtype {
            return Err(OpError::Attribute(format!("an output of {} is neither f32 nor {}", self.output, q.dtype)));
        }
        let geometry = self.geometry(&q.shape, &k.shape)?;
        if v.shape != k.shape {
            return Err(OpError::Sizes(format!("values {v} and keys {k} must have one shape")));
        }
        let wanted = TensorType::f32([geometry.batch, geometry.keys]);
        if *bias != wanted {
            return Err(OpError::Type { operand: "bias", expected: wanted, actual: bias.clone() });
        }
        if let Some(dropout) = &self.dropout {
            if !(0.0..1.0).contains(&dropout.rate.0) {
                return Err(OpError::Attribute(format!("a dropout rate of {} is not in 0..1", dropout.rate.0)));
            }
            let (counter, expected) = (inputs[inputs.len() - 1], TensorType::new(DType::I32, []));
            if *counter != expected {
                return Err(OpError::Type { operand: "counter", expected, actual: counter.clone() });
            }
        }
        Ok(geometry)
    }

    fn describe(&self) -> String {
        let dropout = match &self.dropout {
            Some(AttentionDropout { rate, seed, stream, keeps_mask }) => {
                let mask = if *keeps_mask { ", mask kept" } else { "" };
                format!(", dropout={}, seed={seed}, stream={stream}{mask}", rate.0)
            }
            None => String::new(),
        };
        let output = if self.output == DType::F32 { String::new() } else { format!(", output={}", self.output) };
        format!("heads={}, scale={}{dropout}{output}", self.heads, self.scale.0)
    }

    /// With what it gives in 16 bits, by targets whose products do that.
    fn giving(&self, rules: &Rules, to: DType) -> Option<Attention> {
        rules.products_give_16_bits.then_some(Attention { output: to, ..*self })
    }

    /// Calls `f` for each row of probabilities.
    fn for_each_row(&self, inputs: &[&Tensor], mut f: impl FnMut(&ReferenceRow)) {
        let [q, k, bias] = [inputs[0], inputs[1], inputs[3]];
        let geometry = verified(self.geometry(&q.ty.shape, &k.ty.shape));
        let Geometry { batch, heads, queries, keys, depth } = geometry;
        let counter = inputs[inputs.len() - 1].data.first().map_or(0, |&x| x as u32);
        for index in 0..batch * heads * queries {
            let (b, h, i) = (index / (heads * queries), index / queries % heads, index % queries);
            let query = ((b * queries + i) * heads + h) * depth;
            let first_key = (b * keys * heads + h) * depth;
            let scores: Vec<f64> = (0..keys)
                .map(|j| {
                    let key = first_key + j * heads * depth;
                    let product: f64 = (0..depth).map(|d| q.data[query + d] * k.data[key + d]).sum();
                    self.scale.0 * product + bias.data[b * keys + j]
                })
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            let (mut factors, mut mask) = (vec![1.0; keys], Vec::new());
            if let Some(dropout) = &self.dropout {
                let position = |j: usize| (index * keys + j) as u64;
                let uniform = |j: usize| philox::uniform(dropout.seed, counter, dropout.stream, position(j));
                let uniforms: Vec<f32> = (0..keys).map(uniform).collect();
                factors = uniforms.iter().map(|&u| dropout.factor(u)).collect();
                mask = uniforms.chunks(32).map(|uniforms| dropout.mask_word(uniforms)).collect();
                mask.resize(AttentionDropout::mask_words(keys), 0);
            }
            f(&ReferenceRow {
                index,
                query,
                first_key,
                key_pitch: heads * depth,
                depth,
                probabilities: scores.iter().map(|s| (s - top).exp() / sum).collect(),
                factors,
                mask,
                log_sum: top + sum.ln(),
            });
        }
    }
}

/// A row of the softmax in the reference kernels.
struct ReferenceRow {
    /// Its position in `[B, heads, Sq]`.
    index: usize,
    /// Positions of the first number of the query and of the first key, and the distance of the keys.
    query: usize,
    first_key: usize,
    key_pitch: usize,
    depth: usize,
    probabilities: Vec<f64>,
    /// What dropout multiplies them by.
    factors: Vec<f64>,
    /// The row of its mask.
    mask: Vec<i32>,
    log_sum: f64,
}

impl ReferenceRow {
    /// Positions of number `d` of each key.
    fn keys(&self, d: usize) -> impl Iterator<Item = usize> {
        (0..self.probabilities.len()).map(move |j| self.first_key + j * self.key_pitch + d)
    }
}

fn verified(geometry: Result<Geometry, OpError>) -> Geometry {
    geometry.expect("the node was accepted with these shapes")
}

impl OpRule for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attributes(&self) -> String {
        self.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let geometry = self.check(inputs, 0, "queries, keys, values, bias")?;
        let mask = self.keeps_mask().then(|| TensorType::new(DType::I32, geometry.mask_shape()));
        let outputs = [TensorType::new(self.output, geometry.q_shape()), TensorType::f32(geometry.row_shape())];
        Ok(outputs.into_iter().chain(mask).collect())
    }

    fn gradient(&self, g: &mut Graph, args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        if args.grads[1].is_some() || args.wanted[3] {
            return Ok(Gradient::NotDifferentiable);
        }
        let mut grads = vec![None; args.inputs.len()];
        let Some(dout) = args.grads[0] else { return Ok(Gradient::Inputs(grads)) };
        let (common, counter) = args.inputs.split_at(COMMON);
        let inputs = [common, args.outputs, &[dout], counter].concat();
        let outputs = g.push(AttentionGrad { attention: *self }, &inputs)?;
        for (index, grad) in outputs.into_iter().enumerate().filter(|&(index, _)| args.wanted[index]) {
            let dtype = g.dtype(args.inputs[index]);
            grads[index] = Some(g.cast(grad, dtype)?);
        }
        Ok(Gradient::Inputs(grads))
    }

    /// Two products; scale, bias, maximum, difference, exponential, sum and quotient of the scores.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let scores = (outputs[1].shape.elements() * inputs[1].shape[1]) as u64;
        Cost::streaming(self.product_flops(inputs) + 7 * scores, inputs, outputs)
    }

    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let v = inputs[2];
        let mut out = Tensor::zeros(outputs[0].clone());
        let mut log_sums = Tensor::zeros(outputs[1].clone());
        let mut masks = outputs.get(2).map(|ty| Tensor::zeros(ty.clone()));
        self.for_each_row(inputs, |row| {
            log_sums.data[row.index] = row.log_sum;
            if let Some(masks) = &mut masks {
                let first = row.index * row.mask.len();
                masks.data[first..].iter_mut().zip(&row.mask).for_each(|(word, &own)| *word = own.into());
            }
            let kept: Vec<f64> = row.probabilities.iter().zip(&row.factors).map(|(p, z)| p * z).collect();
            for d in 0..row.depth {
                out.data[row.query + d] = kept.iter().zip(row.keys(d)).map(|(p, at)| p * v.data[at]).sum();
            }
        });
        [out, log_sums].into_iter().chain(masks).collect()
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.product_flops(inputs)
    }

    fn mixed_precision(&self, rules: &Rules) -> MixedPrecision {
        let is_rounded = rules.products_give_16_bits;
        MixedPrecision::reading(3, if is_rounded { LowResult::OfOperands } else { LowResult::Unchanged })
    }

    fn in_16_bits(&self, rules: &Rules, to: DType) -> Option<Op> {
        self.giving(rules, to).map(Op::from)
    }
}

/// Gradient of [`Attention`]. Inputs: q, k, v, bias, then out, lse and, where it is kept, the mask as there, dout `[B, Sq, heads * D]`, with
/// dropout the counter; outputs: dq `[B, Sq, heads * D]`, dk and dv `[B, Sk, heads * D]`. All but q, k, v, bias and lse are of the type of out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGrad {
    /// The forward operation.
    pub attention: Attention,
}

impl AttentionGrad {
    /// The number of the input dout.
    pub fn dout(&self) -> usize {
        COMMON + 2 + usize::from(self.attention.keeps_mask())
    }

    /// Arithmetic of the five products alone.
    pub fn product_flops(&self, inputs: &[&TensorType]) -> u64 {
        verified(self.attention.geometry(&inputs[0].shape, &inputs[1].shape)).product_flops(5)
    }
}

impl OpRule for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn attributes(&self) -> String {
        self.attention.describe()
    }

    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, OpError> {
        let names = match self.attention.keeps_mask() {
            true => "queries, keys, values, bias, output, log-sums, mask, output gradient",
            false => "queries, keys, values, bias, output, log-sums, output gradient",
        };
        let geometry = self.attention.check(inputs, self.dout() + 1 - COMMON, names)?;
        let of_output = |shape| TensorType::new(self.attention.output, shape);
        let (out, rows) = (of_output(geometry.q_shape()), TensorType::f32(geometry.row_shape()));
        let mask = TensorType::new(DType::I32, geometry.mask_shape());
        let mask = self.attention.keeps_mask().then(|| ("mask", inputs[6], &mask));
        let computed = [("output", inputs[4], &out), ("log-sums", inputs[5], &rows)].into_iter().chain(mask);
        for (operand, actual, expected) in computed.chain([("output gradient", inputs[self.dout()], &out)]) {
            if actual != expected {
                return Err(OpError::Type { operand, expected: expected.clone(), actual: actual.clone() });
            }
        }
        let keys = of_output(geometry.k_shape());
        Ok(vec![out, keys.clone(), keys])
    }

    fn gradient(&self, _graph: &mut Graph, _args: &GradArgs<'_>) -> Result<Gradient, GraphError> {
        Ok(Gradient::NotDifferentiable)
    }

    /// Five products; the probabilities again and the gradient of the softmax.
    fn cost(&self, inputs: &[&TensorType], outputs: &[TensorType]) -> Cost {
        let scores = (inputs[5].shape.elements() * inputs[1].shape[1]) as u64;
        Cost::streaming(self.product_flops(inputs) + 8 * scores, inputs, outputs)
    }

    /// With `p` the probabilities, `z` the factors of dropout and `dp = z * (dout v^T)`: the gradient of the scores is
    /// `p * (dp - sum(p * dp))`.
    fn evaluate(&self, inputs: &[&Tensor], outputs: &[TensorType]) -> Vec<Tensor> {
        let [q, k, v, dout] = [0, 1, 2, self.dout()].map(|input| inputs[input]);
        let [mut dq, mut dk, mut dv] = [0, 1, 2].map(|i| Tensor::zeros(outputs[i].clone()));
        self.attention.for_each_row(inputs, |row| {
            let mut dp = vec![0.0; row.probabilities.len()];
            for d in 0..row.depth {
                let dout = dout.data[row.query + d];
                for (j, key) in row.keys(d).enumerate() {
                    dp[j] += row.factors[j] * dout * v.data[key];
                    dv.data[key] += row.probabilities[j] * row.factors[j] * dout;
                }
            }
            let expected: f64 = dp.iter().zip(&row.probabilities).map(|(dp, p)| dp * p).sum();
            for (j, p) in row.probabilities.iter().enumerate() {
                let dscore = self.attention.scale.0 * p * (dp[j] - expected);
                let key = row.first_key + j * row.key_pitch;
                for d in 0..row.depth {
                    dq.data[row.query + d] += dscore * k.data[key + d];
                    dk.data[key + d] += dscore * q.data[row.query + d];
                }
            }
        });
        vec![dq, dk, dv]
    }

    fn contraction_flops(&self, inputs: &[&TensorType]) -> u64 {
        self.product_flops(inputs)
    }

    fn mixed_precision(&self, rules: &Rules) -> MixedPrecision {
        match rules.products_give_16_bits {
            true => MixedPrecision::reading_these(&[0, 1, 2, 4, self.dout()], LowResult::OfOperands),
            false => MixedPrecision::reading(3, LowResult::Unchanged),
        }
    }

    fn in_16_bits(&self, rules: &Rules, to: DType) -> Option<Op> {
        self.attention.giving(rules, to).map(|attention| AttentionGrad { attention }.into())
    }
}
