//! What attention does to rows of scores between products of matrices: the softmax, with dropout, and its gradient. A warp has a row.

use super::{Operands, floats};
use crate::kgen::{Kernel, Parameter, constant, indented};
use bessemer_ir::ops::attention::Geometry;

/// Rows of a block.
const ROWS: usize = 8;
const WARP: usize = 32;

/// Its kernels.
pub(crate) struct Kernels<'a>(pub Operands<'a>);

impl Kernels<'_> {
    /// Scores: `[B, heads, Sq, Sk]`.
    pub(crate) fn elements(&self) -> usize {
        self.0.rows() * self.0.sizes.keys
    }

    /// A kernel that goes along the row `row` of scores, whose products of queries and keys are `p`.
    fn kernel(&self, name: &str, own: Vec<Parameter>, body: &str) -> Kernel {
        let (Geometry { batch, heads, queries, keys, .. }, rows) = (self.0.sizes, self.0.rows());
        let factor = match &self.0.attention.dropout {
            Some(dropout) => format!(
                "uniform({}ull, (u32)counter[0], {}u, (u64)row * {keys}u + j) >= {} ? {} : 0.0f",
                dropout.seed,
                dropout.stream,
                constant(dropout.rate.0 as f32),
                constant((1.0 / (1.0 - dropout.rate.0)) as f32)
            ),
            None => "1.0f".to_owned(),
        };
        let guard = if rows.is_multiple_of(ROWS) { String::new() } else { format!("if (row >= {rows}u) return;\n") };
        let head = format!(
            "const u32 row = blockIdx.x * {ROWS}u + threadIdx.y;\n{guard}\
             const u32 first = threadIdx.x, first_of_row = row * {keys}u, first_bias = row / {of_item}u * {keys}u;\n\
             const float scale = {scale};\n\
             float* const p = products + first_of_row;\n\
             const auto score = [&](u32 j) {{ return p[j] * scale + bias[first_bias + j]; }};\n\
             const auto factor = [&](u32 j) {{ return {factor}; }};\n",
            of_item = heads * queries,
            scale = constant(self.0.attention.scale.0 as f32),
        );
        let common = [floats("products", self.elements(), true), floats("bias", batch * keys, false)];
        let parameters = common.into_iter().chain(own).chain(self.0.counter()).collect();
        let (blocks, threads) = ([rows.div_ceil(ROWS) as u32, 1, 1], [WARP as u32, ROWS as u32, 1]);
        Kernel::new(name, parameters, blocks, threads, &indented(&(head + body))).named_by_content()
    }

    /// Makes products of queries and keys the probabilities that values are multiplied by; takes the bias, gives the log-sums; then
    /// the counter.
    pub(crate) fn softmax(&self) -> Kernel {
        let keys = self.0.sizes.keys;
        let each = format!("for (u32 j = first; j < {keys}u; j += {WARP}u)");
        let body = format!(
            "float most = max_of::identity();\n\
             {each} most = max_of::combine(most, score(j));\n\
             most = reduce_row<max_of, {WARP}>(most, nullptr);\n\
             float sum = 0.0f;\n\
             {each} sum += expf(score(j) - most);\n\
             sum = reduce_row<sum_of, {WARP}>(sum, nullptr);\n\
             if (first == 0) log_sums[row] = most + logf(sum);\n\
             {each} p[j] = expf(score(j) - most) / sum * factor(j);\n"
        );
        self.kernel("attention_rows", vec![floats("log_sums", self.0.rows(), true)], &body)
    }

    /// The same of the log-sums, and makes the probabilities' gradients those of the products; then the counter.
    pub(crate) fn gradient(&self) -> Kernel {
        let keys = self.0.sizes.keys;
        let each = format!("for (u32 j = first; j < {keys}u; j += {WARP}u)");
        let body = format!(
            "float* const dp = gradients + first_of_row;\n\
             const float log_sum = log_sums[row];\n\
             float mean = 0.0f;\n\
             {each} mean += expf(score(j) - log_sum) * factor(j) * dp[j];\n\
             mean = reduce_row<sum_of, {WARP}>(mean, nullptr);\n\
             {each} {{\n    \
             const float share = expf(score(j) - log_sum), kept = factor(j);\n    \
             dp[j] = scale * share * (dp[j] * kept - mean);\n    \
             p[j] = share * kept;\n}}\n"
        );
        let own = vec![floats("log_sums", self.0.rows(), false), floats("gradients", self.elements(), true)];
        self.kernel("attention_rows_gradient", own, &body)
    }
}
