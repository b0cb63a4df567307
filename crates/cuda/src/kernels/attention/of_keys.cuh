// A block has 64 keys of a list, 16 a warp, whose rows g and g + 8 are the keys 2 g and 2 g + 1, and goes over the queries by 64.
// Scores are transposed: their rows are keys.
const u32 list = blockIdx.x / KEY_BLOCKS, first_key = blockIdx.x % KEY_BLOCKS * 64;
const u32 b = list / HEADS, h = list % HEADS;
const u32 first_of_queries = (b * QUERIES * HEADS + h) * DEPTH;
const auto fetch = [&](u32 block, u32 stage) {
    const u32 first = block * 64, there = QUERIES - first, at = first_of_queries + first * PITCH;
    copy_tile<THREADS, 64, DEPTH, IN_ORDER, ALL_QUERIES>(tiles + stage * 2 * TILE, q + at, PITCH, there);
    copy_tile<THREADS, 64, DEPTH, IN_ORDER, ALL_QUERIES>(tiles + (stage * 2 + 1) * TILE, dy + at, PITCH, there);
    const u32 i = threadIdx.x % 64;
    const bool is_there = i < there;
    const float* const from = threadIdx.x < 64 ? log_sums : means;
    const u32 row = list * QUERIES + first + (is_there ? i : 0), word = first_key / 32 + threadIdx.x / 64;
    copy_async<4>(numbers + stage * 256 + threadIdx.x, from + row, is_there);
    if (DROPS) copy_async<4>(numbers + stage * 256 + 128 + threadIdx.x, mask + row * 2 * KEY_BLOCKS + word, is_there);
};

element* const first_tiles = tiles + (STAGES - 1) * 2 * TILE;
const u32 at = ((b * KEYS + first_key) * HEADS + h) * DEPTH;
copy_tile<THREADS, 64, DEPTH, BY_PAIRS, ALL_KEYS>(first_tiles, k + at, PITCH, KEYS - first_key);
copy_tile<THREADS, 64, DEPTH, BY_PAIRS, ALL_KEYS>(first_tiles + TILE, v + at, PITCH, KEYS - first_key);
if (STAGES > 1) fetch(0, 0);
copies_are_done();
__syncthreads();
u32 of_k[DEPTH / 16][4], of_v[DEPTH / 16][4];
#pragma unroll
for (u32 d = 0; d < DEPTH / 16; ++d) {
    load_matrices(of_k[d], first_tiles + warp * 16 * WIDE + corner + d * 16);
    load_matrices(of_v[d], first_tiles + TILE + warp * 16 * WIDE + corner + d * 16);
}
if (STAGES == 1) {
    __syncthreads();
    fetch(0, 0);
}

const u32 key = first_key + warp * 16 + g * 2;
float added[2];
#pragma unroll
for (u32 half = 0; half < 2; ++half) added[half] = key + half < KEYS ? bias[b * KEYS + key + half] * LOG2_E : 0.0f;
float to_k[DEPTH / 8][4] = {}, to_v[DEPTH / 8][4] = {};
#pragma unroll 1
for (u32 block = 0; block < QUERY_BLOCKS; ++block) {
    const u32 stage = block % STAGES;
    copies_are_done();
    __syncthreads();
    if (STAGES > 1 && block + 1 < QUERY_BLOCKS) fetch(block + 1, (block + 1) % STAGES);
    const element* const of_q = tiles + stage * 2 * TILE;
    const element* const of_dy = of_q + TILE;
#pragma unroll(DEPTH > 64 ? 1 : 4)
    for (u32 n = 0; n < 4; ++n) {
        float s[2][4], dp[2][4];
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_matrices(x, of_q + n * 16 * WIDE + turned_corner + d * 16);
            add_or_set(d, s[0], of_k[d], x[0], x[1]);
            add_or_set(d, s[1], of_k[d], x[2], x[3]);
            load_matrices(x, of_dy + n * 16 * WIDE + turned_corner + d * 16);
            add_or_set(d, dp[0], of_v[d], x[0], x[1]);
            add_or_set(d, dp[1], of_v[d], x[2], x[3]);
        }
        u32 p[4], ds[4];
#pragma unroll
        for (u32 t = 0; t < 2; ++t) {
            float log_sum[2], mean[2];
            load<float, 2>(numbers + stage * 256 + n * 16 + t * 8 + quad * 2, log_sum);
            load<float, 2>(numbers + stage * 256 + 64 + n * 16 + t * 8 + quad * 2, mean);
            u32 kept[2] = {~0u, ~0u};
            if (DROPS) {
                const uint2 words = *(const uint2*)(numbers + stage * 256 + 128 + warp / 2 * 64 + n * 16 + t * 8 + quad * 2);
                kept[0] = words.x >> (warp % 2 * 16 + g * 2);
                kept[1] = words.y >> (warp % 2 * 16 + g * 2);
            }
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                float shares[2], of_scores[2];
#pragma unroll
                for (u32 e = 0; e < 2; ++e) {
                    const float score = s[t][2 * half + e] * SCALE_2 + added[half];
                    shares[e] = exp2_of(score - log_sum[e] * LOG2_E);
                    if (QUERIES % 64 != 0 && block * 64 + n * 16 + t * 8 + quad * 2 + e >= QUERIES) shares[e] = 0.0f;
                    const bool is_kept = (kept[e] >> half & 1) != 0;
                    of_scores[e] = shares[e] * ((is_kept ? dp[t][2 * half + e] * GAIN : 0.0f) - mean[e]);
                    if (DROPS && !is_kept) shares[e] = 0.0f;
                }
                p[2 * t + half] = pair_of<element>::of(shares[0], shares[1]);
                ds[2 * t + half] = pair_of<element>::of(of_scores[0], of_scores[1]);
            }
        }
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_transposed(x, of_dy + n * 16 * WIDE + corner + d * 16);
            product_of<element>::add(to_v[2 * d], p, x[0], x[1]);
            product_of<element>::add(to_v[2 * d + 1], p, x[2], x[3]);
            load_transposed(x, of_q + n * 16 * WIDE + corner + d * 16);
            product_of<element>::add(to_k[2 * d], ds, x[0], x[1]);
            product_of<element>::add(to_k[2 * d + 1], ds, x[2], x[3]);
        }
    }
    if (STAGES == 1) {
        __syncthreads();
        if (block + 1 < QUERY_BLOCKS) fetch(block + 1, 0);
    }
}

#pragma unroll
for (u32 half = 0; half < 2; ++half) {
    if (key + half >= KEYS) continue;
    const u32 to = ((b * KEYS + key + half) * HEADS + h) * DEPTH + quad * 2;
#pragma unroll
    for (u32 d = 0; d < DEPTH / 8; ++d) {
        const float of_key[2] = {to_k[d][2 * half] * SCALE, to_k[d][2 * half + 1] * SCALE};
        const float of_value[2] = {to_v[d][2 * half] * GAIN, to_v[d][2 * half + 1] * GAIN};
        store<result, 2>(dk + to + d * 8, of_key);
        store<result, 2>(dv + to + d * 8, of_value);
    }
}
