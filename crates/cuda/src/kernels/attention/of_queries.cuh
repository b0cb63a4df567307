// A block has 64 queries of a list, 16 a warp, and goes over the keys by 64. It also rounds the output's gradient, which the kernel of
// the keys reads, if it is wider, and takes the sums of what is rounded with the output: where a probability is 1, its product and this sum are the
// same.
const u32 list = blockIdx.x / QUERY_BLOCKS, first_query = blockIdx.x % QUERY_BLOCKS * 64;
const u32 b = list / HEADS, h = list % HEADS;
const u32 first_of_keys = (b * KEYS * HEADS + h) * DEPTH;
const auto fetch = [&](u32 block, u32 stage) {
    const u32 first = block * 64, there = KEYS - first, at = first_of_keys + first * PITCH;
    copy_tile<THREADS, 64, DEPTH, BY_FOURS, ALL_KEYS>(tiles + stage * 2 * TILE, k + at, PITCH, there);
    copy_tile<THREADS, 64, DEPTH, BY_FOURS, ALL_KEYS>(tiles + (stage * 2 + 1) * TILE, v + at, PITCH, there);
    if (threadIdx.x < 64) {
        const bool is_there = threadIdx.x < there;
        copy_async<4>(numbers + stage * 128 + threadIdx.x, bias + b * KEYS + first + (is_there ? threadIdx.x : 0), is_there);
    }
};

element* const first_tiles = tiles + (STAGES - 1) * 2 * TILE;
copy_tile<THREADS, 64, DEPTH, IN_ORDER, ALL_QUERIES>(
    first_tiles, q + ((b * QUERIES + first_query) * HEADS + h) * DEPTH, PITCH, QUERIES - first_query);
if (STAGES > 1) fetch(0, 0);
#pragma unroll
for (u32 row = threadIdx.x / 4; row < 64; row += THREADS / 4) {
    const u32 own = first_query + row, part = threadIdx.x % 4 * 4;
    const u32 at = ((b * QUERIES + own) * HEADS + h) * DEPTH + part;
    float mean = 0.0f;
#pragma unroll
    for (u32 d = 0; d < DEPTH; d += 16) {
        float gradient[4] = {};
        if (own < QUERIES) {
            float output[4];
            load<result, 4>(y + at + d, output);
            load<result, 4>(dy + at + d, gradient);
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                gradient[i] = to_f32(from_f32<element>::of(gradient[i]));
                mean += output[i] * gradient[i];
            }
            keep(at + d, gradient);
        }
        store<element, 4>(first_tiles + TILE + row * WIDE + part + d, gradient);
    }
    mean += __shfl_xor_sync(0xffffffffu, mean, 1);
    mean += __shfl_xor_sync(0xffffffffu, mean, 2);
    if (part == 0) {
        numbers[(STAGES - 1) * 128 + 64 + row] = mean;
        if (own < QUERIES) means[list * QUERIES + own] = mean;
    }
}
copies_are_done();
__syncthreads();
u32 of_q[DEPTH / 16][4], of_dy[DEPTH / 16][4];
#pragma unroll
for (u32 d = 0; d < DEPTH / 16; ++d) {
    load_matrices(of_q[d], first_tiles + warp * 16 * WIDE + corner + d * 16);
    load_matrices(of_dy[d], first_tiles + TILE + warp * 16 * WIDE + corner + d * 16);
}
const u32 query = first_query + warp * 16 + g;
float mean[2], log_sum[2];
#pragma unroll
for (u32 half = 0; half < 2; ++half) {
    const u32 own = query + half * 8;
    mean[half] = numbers[(STAGES - 1) * 128 + 64 + warp * 16 + g + half * 8];
    log_sum[half] = own < QUERIES ? log_sums[list * QUERIES + own] * LOG2_E : 0.0f;
}
if (STAGES == 1) {
    __syncthreads();
    fetch(0, 0);
}

float o[DEPTH / 8][4] = {};
#pragma unroll 1
for (u32 block = 0; block < KEY_BLOCKS; ++block) {
    const u32 stage = block % STAGES;
    copies_are_done();
    __syncthreads();
    if (STAGES > 1 && block + 1 < KEY_BLOCKS) fetch(block + 1, (block + 1) % STAGES);
    const element* const of_k = tiles + stage * 2 * TILE;
    const element* const of_v = of_k + TILE;
    u64 words[2] = {};
    if (DROPS) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half)
            if (query + half * 8 < QUERIES) words[half] = ((const u64*)mask)[(list * QUERIES + query + half * 8) * KEY_BLOCKS + block];
    }
#pragma unroll(DEPTH > 64 ? 1 : 2)
    for (u32 n = 0; n < 4; ++n) {
        float s[2][4], dp[2][4];
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_matrices(x, of_k + n * 16 * WIDE + turned_corner + d * 16);
            add_or_set(d, s[0], of_q[d], x[0], x[1]);
            add_or_set(d, s[1], of_q[d], x[2], x[3]);
            load_matrices(x, of_v + n * 16 * WIDE + turned_corner + d * 16);
            add_or_set(d, dp[0], of_dy[d], x[0], x[1]);
            add_or_set(d, dp[1], of_dy[d], x[2], x[3]);
        }
        float added[4];
        load<float, 4>(numbers + stage * 128 + n * 16 + quad * 4, added);
        u32 ds[4];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const u32 kept = DROPS ? (u32)(words[half] >> (n * 16 + quad * 4)) : 15;
            float of_scores[4];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                float score = s[j / 2][2 * half + j % 2] * SCALE_2 + added[j] * LOG2_E;
                if (KEYS % 64 != 0 && block * 64 + n * 16 + quad * 4 + j >= KEYS) score = max_of::identity();
                const float share = exp2_of(score - log_sum[half]);
                const float factor = (kept >> j & 1) != 0 ? GAIN : 0.0f, of_share = dp[j / 2][2 * half + j % 2] * factor;
                of_scores[j] = share * (of_share - mean[half]);
            }
            ds[half] = pair_of<element>::of(of_scores[0], of_scores[1]);
            ds[half + 2] = pair_of<element>::of(of_scores[2], of_scores[3]);
        }
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_transposed(x, of_k + n * 16 * WIDE + corner + d * 16);
            product_of<element>::add(o[2 * d], ds, x[0], x[1]);
            product_of<element>::add(o[2 * d + 1], ds, x[2], x[3]);
        }
    }
    if (STAGES == 1) {
        __syncthreads();
        if (block + 1 < KEY_BLOCKS) fetch(block + 1, 0);
    }
}

#pragma unroll
for (u32 half = 0; half < 2; ++half) {
    const u32 own = query + half * 8;
    if (own >= QUERIES) continue;
    result* const to = dq + ((b * QUERIES + own) * HEADS + h) * DEPTH + quad * 2;
#pragma unroll
    for (u32 d = 0; d < DEPTH / 8; ++d) {
        const float both[2] = {o[d][2 * half] * SCALE, o[d][2 * half + 1] * SCALE};
        store<result, 2>(to + d * 8, both);
    }
}
