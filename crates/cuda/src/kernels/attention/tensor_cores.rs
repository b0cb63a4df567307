//! Attention of 16-bit operands and its gradient on tensor cores. Products take operands of 16 bits, probabilities and gradients
//! rounded to that type among them, and add in `f32`; all else is `f32`. Probabilities stay in registers. Each output element is
//! summed by one warp, in a fixed order.

use super::{Operands, floats};
use crate::kgen::{Kernel, Parameter, c_type, constant, indented};
use bessemer_ir::DType;
use bessemer_ir::ops::attention::Geometry;
use std::f64::consts::{LN_2, LOG2_E};

const THREADS: usize = 128;
/// Queries, or keys, of a block, and of a step of its loop.
const ROWS: usize = 64;
/// Elements of a head: a multiple of what a product takes, and no more than what registers hold.
pub(crate) const DEPTH_STEP: usize = 16;
pub(crate) const MOST_DEPTH: usize = 128;
/// Depth up to which the next tiles are copied while the present ones are worked on.
const MOST_DEPTH_OF_TWO_STAGES: usize = 64;

/// Its kernels.
pub(crate) struct Kernels<'a>(Operands<'a>);

impl<'a> Kernels<'a> {
    /// `None` where operands are of another type or depth.
    pub(crate) fn new(operands: Operands<'a>) -> Option<Kernels<'a>> {
        let depth = operands.sizes.depth;
        let fits = matches!(operands.ty, DType::Bf16 | DType::F16) && depth.is_multiple_of(DEPTH_STEP);
        (fits && depth <= MOST_DEPTH).then_some(Kernels(operands))
    }

    /// Those of the gradient, which read the mask of dropout: `None`, too, where it is not kept.
    pub(crate) fn of_gradient(operands: Operands<'a>) -> Option<Kernels<'a>> {
        let has_mask = operands.attention.dropout.is_none() || operands.attention.keeps_mask();
        Kernels::new(operands).filter(|_| has_mask)
    }

    /// Constants, shared memory and the lane's places that all bodies begin with.
    fn head(&self) -> String {
        let Geometry { heads, queries, keys, depth, .. } = self.0.sizes;
        let stages = if depth <= MOST_DEPTH_OF_TWO_STAGES { 2 } else { 1 };
        let scale = self.0.attention.scale.0;
        let gain = self.0.attention.dropout.map_or(1.0, |dropout| 1.0 / (1.0 - dropout.rate.0));
        let all = self.0.rows() as u64 * keys as u64;
        let (keeps, position) = (self.0.attention.keeps_mask(), if all < 1 << 32 { "u32" } else { "u64" });
        let no_mask = if keeps { "" } else { "int* const mask = nullptr;\n" };
        format!(
            "typedef {element} element;\n\
             typedef {result} result;\n\
             constexpr u32 THREADS = {THREADS}, HEADS = {heads}, QUERIES = {queries}, KEYS = {keys}, DEPTH = {depth};\n\
             constexpr u32 QUERY_BLOCKS = {query_blocks}, KEY_BLOCKS = {key_blocks}, STAGES = {stages};\n\
             constexpr u32 PITCH = HEADS * DEPTH, WIDE = DEPTH + 8, TILE = {ROWS} * WIDE;\n\
             typedef {position} position;\n\
             constexpr bool ALL_QUERIES = QUERIES % 64 == 0, ALL_KEYS = KEYS % 64 == 0;\n\
             constexpr bool DROPS = {drops}, KEEPS = {keeps};\n\
             const float GAIN = {gain}, SCALE = {scale}, SCALE_2 = {scale_2}, LOG2_E = {log2_e}, LN_2 = {ln_2};\n\
             {no_mask}\
             __shared__ uint4 tile_memory[STAGES * 2 * TILE / 8];\n\
             __shared__ uint4 number_memory[STAGES * 64];\n\
             element* const tiles = (element*)tile_memory;\n\
             float* const numbers = (float*)number_memory;\n\
             const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, quad = lane % 4;\n\
             const u32 corner = lane % 16 * WIDE + lane / 16 * 8;\n\
             const u32 turned_corner = (lane / 16 * 8 + lane % 8) * WIDE + lane / 8 % 2 * 8;\n\
             const auto add_or_set = [](u32 step, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {{\n    \
             if (step == 0) product_of<element>::set(c, a, b0, b1);\n    \
             else product_of<element>::add(c, a, b0, b1);\n}};\n",
            element = c_type(self.0.ty),
            result = c_type(self.0.attention.output),
            query_blocks = queries.div_ceil(ROWS),
            key_blocks = keys.div_ceil(ROWS),
            drops = self.0.attention.dropout.is_some(),
            gain = constant(gain as f32),
            scale_2 = constant((scale * LOG2_E) as f32),
            scale = constant(scale as f32),
            log2_e = constant(LOG2_E as f32),
            ln_2 = constant(LN_2 as f32),
        )
    }

    /// A kernel of which so many blocks fit on a multiprocessor at usual depths.
    fn kernel(&self, name: &str, own: Vec<Parameter>, rows: usize, beside: u32, body: &str) -> Kernel {
        let Geometry { batch, heads, depth, .. } = self.0.sizes;
        let parameters = self.0.common().into_iter().chain(own).collect();
        let blocks = [(batch * heads * rows.div_ceil(ROWS)) as u32, 1, 1];
        let body = indented(&(self.head() + body));
        let beside = if depth <= MOST_DEPTH_OF_TWO_STAGES { beside } else { 2 };
        Kernel::new(name, parameters, blocks, [THREADS as u32, 1, 1], &body).beside(beside).named_by_content()
    }

    /// From q, k, v, bias to the output, the log-sums and, if it is kept, the mask of dropout; then the counter.
    pub(crate) fn forward(&self) -> Kernel {
        let own = [self.0.of_output("y", self.0.q_elements(), true), floats("log_sums", self.0.rows(), true)];
        let mut own: Vec<Parameter> = own.into_iter().chain(self.0.mask(true)).chain(self.0.counter()).collect();
        let drawn_by = match self.0.attention.dropout {
            // A number is kept from `rate` on, as an `f32`; numbers are multiples of 2^-24.
            Some(dropout) => {
                own.push(Parameter::Number { name: "stream".into(), value: dropout.stream });
                let least = (f64::from(dropout.rate.0 as f32) * f64::from(1 << 24)).ceil() as u32;
                let seed = dropout.seed;
                format!("constexpr u64 SEED = {seed}ull;\nconst u32 LEAST = {least}u, step = (u32)counter[0];\n")
            }
            None => "constexpr u64 SEED = 0;\nconst u32 LEAST = 0, step = 0, stream = 0;\n".to_owned(),
        };
        let body = drawn_by + include_str!("forward.cuh");
        self.kernel("attention_16", own, self.0.sizes.queries, 3, &body)
    }

    /// Whether [`Kernels::of_queries`] rounds the output's gradient for [`Kernels::of_keys`], which has the operands' type otherwise.
    pub(crate) fn rounds_gradient(&self) -> bool {
        self.0.attention.output != self.0.ty
    }

    /// From q, k, v, bias, the output, log-sums, the mask of dropout and the output's gradient to the gradient of q, for each row the sum of
    /// probabilities times their gradients, and, if it is rounded, the output's gradient in the operands' type.
    pub(crate) fn of_queries(&self) -> Kernel {
        let mut own = vec![self.0.of_output("y", self.0.q_elements(), false), floats("log_sums", self.0.rows(), false)];
        own.extend(self.0.mask(false));
        own.extend([
            self.0.of_output("dy", self.0.q_elements(), false),
            self.0.of_output("dq", self.0.q_elements(), true),
            floats("means", self.0.rows(), true),
        ]);
        let keep = if self.rounds_gradient() {
            own.push(Parameter::output("rounded", self.0.ty, self.0.q_elements()));
            "store<element, 4>(rounded + at, gradient);"
        } else {
            ""
        };
        let body = format!(
            "const auto keep = [&](u32 at, const float* gradient) {{ {keep} }};\n{}",
            include_str!("of_queries.cuh")
        );
        self.kernel("attention_16_of_queries", own, self.0.sizes.queries, 4, &body)
    }

    /// From q, k, v, bias, log-sums, the mask of dropout, the sums of [`Kernels::of_queries`] and the output's gradient in the operands' type
    /// to the gradients of k and v.
    pub(crate) fn of_keys(&self) -> Kernel {
        let mut own = vec![floats("log_sums", self.0.rows(), false)];
        own.extend(self.0.mask(false));
        own.extend([
            floats("means", self.0.rows(), false),
            Parameter::input("dy", self.0.ty, self.0.q_elements()),
            self.0.of_output("dk", self.0.k_elements(), true),
            self.0.of_output("dv", self.0.k_elements(), true),
        ]);
        self.kernel("attention_16_of_keys", own, self.0.sizes.keys, 3, include_str!("of_keys.cuh"))
    }
}
