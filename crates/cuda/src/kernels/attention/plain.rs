//! Attention and its gradient, one row or column of the probabilities a block. Plain kernels: products in `f32`, no tensor cores.

use super::{Operands, floats};
use crate::kgen::{Kernel, Parameter, c_type, constant, indented};
use bessemer_ir::ops::attention::Geometry;

const THREADS: usize = 128;
/// Numbers of queries and keys whose row and column fit into the memory that the threads of a block share.
pub(crate) const MOST_POSITIONS: usize = 5 << 10;

/// Its kernels.
pub(crate) struct Kernels<'a>(pub Operands<'a>);

impl Kernels<'_> {
    /// The score of query row `row` at `query` and key `j` at `first_key`, and the factor of dropout.
    fn score(&self) -> String {
        let Geometry { heads, keys, depth, .. } = self.0.sizes;
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
        format!(
            "const u32 key = first_key + j * {pitch}u;\n\
             float score = 0.0f;\n\
             for (u32 d = 0; d < {depth}u; ++d) score += to_f32(q[query + d]) * to_f32(k[key + d]);\n\
             score = score * {scale} + bias[b * {keys}u + j];\n\
             const float factor = {factor};\n",
            pitch = heads * depth,
            scale = constant(self.0.attention.scale.0 as f32)
        )
    }

    /// `row` of the probabilities, with what it is of: batch item, head, query.
    fn of_row(&self) -> String {
        let Geometry { heads, queries, keys, depth, .. } = self.0.sizes;
        format!(
            "const u32 b = row / {}u, h = row / {queries}u % {heads}u;\n\
             const u32 query = ((b * {queries}u + row % {queries}u) * {heads}u + h) * {depth}u;\n\
             const u32 first_key = (b * {}u + h) * {depth}u;\n",
            heads * queries,
            keys * heads
        )
    }

    /// The conversion to the output's type.
    fn narrowed(&self) -> String {
        format!("from_f32<{}>", c_type(self.0.attention.output))
    }

    fn kernel(&self, name: &str, parameters: Vec<Parameter>, blocks: usize, body: &str) -> Kernel {
        let parameters = parameters.into_iter().chain(self.0.counter()).collect();
        Kernel::new(name, parameters, [blocks as u32, 1, 1], [THREADS as u32, 1, 1], &indented(body)).named_by_content()
    }

    /// From q, k, v, bias to the output and the log-sums; then the counter.
    pub(crate) fn forward(&self) -> Kernel {
        let Geometry { heads, keys, depth, .. } = self.0.sizes;
        let mut parameters = self.0.common();
        parameters.push(self.0.of_output("y", self.0.q_elements(), true));
        parameters.push(floats("log_sums", self.0.rows(), true));
        let body = format!(
            "__shared__ float p[{keys}], scratch[{warps}];\n\
             const u32 row = blockIdx.x;\n\
             {of_row}\
             float most = max_of::identity();\n\
             for (u32 j = threadIdx.x; j < {keys}u; j += {THREADS}u) {{\n{score}    \
             p[j] = score;\n    most = max_of::combine(most, score);\n}}\n\
             most = reduce_row<max_of, {THREADS}>(most, scratch);\n\
             float sum = 0.0f;\n\
             for (u32 j = threadIdx.x; j < {keys}u; j += {THREADS}u) sum += expf(p[j] - most);\n\
             sum = reduce_row<sum_of, {THREADS}>(sum, scratch);\n\
             if (threadIdx.x == 0) log_sums[row] = most + logf(sum);\n\
             for (u32 j = threadIdx.x; j < {keys}u; j += {THREADS}u) {{\n    \
             {factor}    p[j] = expf(p[j] - most) / sum * factor;\n}}\n\
             __syncthreads();\n\
             for (u32 d = threadIdx.x; d < {depth}u; d += {THREADS}u) {{\n    \
             float total = 0.0f;\n    \
             for (u32 j = 0; j < {keys}u; ++j) total += p[j] * to_f32(v[first_key + j * {pitch}u + d]);\n    \
             y[query + d] = {narrowed}::of(total);\n}}\n",
            warps = THREADS / 32,
            narrowed = self.narrowed(),
            of_row = self.of_row(),
            score = indented(&self.score()),
            factor = self.score().lines().last().map(|line| format!("{line}\n")).unwrap_or_default(),
            pitch = heads * depth,
        );
        self.kernel("attention", parameters, self.0.rows(), &body)
    }

    /// From q, k, v, bias, the output, log-sums and the output's gradient to the gradient of q and, for each row, the sum of
    /// probabilities times their gradients; then the counter.
    pub(crate) fn of_queries(&self) -> Kernel {
        let Geometry { heads, keys, depth, .. } = self.0.sizes;
        let mut parameters = self.0.common();
        parameters.push(self.0.of_output("y", self.0.q_elements(), false));
        parameters.push(floats("log_sums", self.0.rows(), false));
        parameters.push(self.0.of_output("dy", self.0.q_elements(), false));
        parameters.push(self.0.of_output("dq", self.0.q_elements(), true));
        parameters.push(floats("means", self.0.rows(), true));
        let body = format!(
            "__shared__ float ds[{keys}], scratch[{warps}];\n\
             const u32 row = blockIdx.x;\n\
             {of_row}\
             float mean = 0.0f;\n\
             for (u32 d = threadIdx.x; d < {depth}u; d += {THREADS}u) mean += to_f32(y[query + d]) * to_f32(dy[query + d]);\n\
             mean = reduce_row<sum_of, {THREADS}>(mean, scratch);\n\
             if (threadIdx.x == 0) means[row] = mean;\n\
             for (u32 j = threadIdx.x; j < {keys}u; j += {THREADS}u) {{\n{score}    \
             float dp = 0.0f;\n    \
             for (u32 d = 0; d < {depth}u; ++d) dp += to_f32(dy[query + d]) * to_f32(v[key + d]);\n    \
             ds[j] = {scale} * expf(score - log_sums[row]) * (dp * factor - mean);\n}}\n\
             __syncthreads();\n\
             for (u32 d = threadIdx.x; d < {depth}u; d += {THREADS}u) {{\n    \
             float total = 0.0f;\n    \
             for (u32 j = 0; j < {keys}u; ++j) total += ds[j] * to_f32(k[first_key + j * {pitch}u + d]);\n    \
             dq[query + d] = {narrowed}::of(total);\n}}\n",
            warps = THREADS / 32,
            narrowed = self.narrowed(),
            of_row = self.of_row(),
            score = indented(&self.score()),
            scale = constant(self.0.attention.scale.0 as f32),
            pitch = heads * depth,
        );
        self.kernel("attention_of_queries", parameters, self.0.rows(), &body)
    }

    /// From q, k, v, bias, log-sums, the output's gradient and the sums of [`Kernels::of_queries`] to the gradients of k and v;
    /// then the counter.
    pub(crate) fn of_keys(&self) -> Kernel {
        let Geometry { batch, heads, queries, keys, depth } = self.0.sizes;
        let mut parameters = self.0.common();
        parameters.push(floats("log_sums", self.0.rows(), false));
        parameters.push(self.0.of_output("dy", self.0.q_elements(), false));
        parameters.push(floats("means", self.0.rows(), false));
        parameters.push(self.0.of_output("dk", self.0.k_elements(), true));
        parameters.push(self.0.of_output("dv", self.0.k_elements(), true));
        let body = format!(
            "__shared__ float p[{queries}], ds[{queries}];\n\
             const u32 list = blockIdx.x / {keys}u, j = blockIdx.x % {keys}u;\n\
             for (u32 i = threadIdx.x; i < {queries}u; i += {THREADS}u) {{\n    \
             const u32 row = list * {queries}u + i;\n{of_row}{score}    \
             float dp = 0.0f;\n    \
             for (u32 d = 0; d < {depth}u; ++d) dp += to_f32(dy[query + d]) * to_f32(v[key + d]);\n    \
             const float share = expf(score - log_sums[row]);\n    \
             p[i] = share * factor;\n    \
             ds[i] = {scale} * share * (dp * factor - means[row]);\n}}\n\
             __syncthreads();\n\
             const u32 b = list / {heads}u, h = list % {heads}u;\n\
             for (u32 d = threadIdx.x; d < {depth}u; d += {THREADS}u) {{\n    \
             float of_k = 0.0f, of_v = 0.0f;\n    \
             for (u32 i = 0; i < {queries}u; ++i) {{\n        \
             const u32 at = ((b * {queries}u + i) * {heads}u + h) * {depth}u + d;\n        \
             of_k += ds[i] * to_f32(q[at]);\n        \
             of_v += p[i] * to_f32(dy[at]);\n    }}\n    \
             const u32 at = ((b * {keys}u + j) * {heads}u + h) * {depth}u + d;\n    \
             dk[at] = {narrowed}::of(of_k);\n    dv[at] = {narrowed}::of(of_v);\n}}\n",
            narrowed = self.narrowed(),
            of_row = indented(&self.of_row()),
            score = indented(&self.score()),
            scale = constant(self.0.attention.scale.0 as f32),
        );
        self.kernel("attention_of_keys", parameters, batch * heads * keys, &body)
    }
}
