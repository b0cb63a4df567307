// A block has 64 queries of a list, 16 a warp, and goes over the keys by 64: the largest score and the sum of a row are kept up to
// date (Dao et al., "FlashAttention", 2022, section 3.1), scores are times log2(e).
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
copies_are_done();
__syncthreads();
u32 of_q[DEPTH / 16][4];
#pragma unroll
for (u32 d = 0; d < DEPTH / 16; ++d) load_matrices(of_q[d], first_tiles + warp * 16 * WIDE + corner + d * 16);
if (STAGES == 1) {
    __syncthreads();
    fetch(0, 0);
}

const u32 query = first_query + warp * 16 + g;
float most[2] = {max_of::identity(), max_of::identity()}, sum[2] = {0.0f, 0.0f};
float o[DEPTH / 8][4] = {};
#pragma unroll 1
for (u32 block = 0; block < KEY_BLOCKS; ++block) {
    const u32 stage = block % STAGES;
    copies_are_done();
    __syncthreads();
    if (STAGES > 1 && block + 1 < KEY_BLOCKS) fetch(block + 1, (block + 1) % STAGES);
    const element* const of_k = tiles + stage * 2 * TILE;
    const element* const of_v = of_k + TILE;

    // The lane's part of the mask: 16 bits of each half, four of them for every 16 keys. It is drawn while there are no scores.
    u32 kept = 0;
    if (DROPS) {
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            const position first = (position)(list * QUERIES + query + half * 8) * KEYS + block * 64 + quad * 4;
#pragma unroll
            for (u32 n = 0; n < 4; ++n)
                kept |= kept_of_four<KEYS % 4 == 0>(SEED, step, stream, first + n * 16, LEAST) << (half * 16 + n * 4);
        }
    }
    float s[8][4];
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_matrices(x, of_k + n * 16 * WIDE + turned_corner + d * 16);
            add_or_set(d, s[2 * n], of_q[d], x[0], x[1]);
            add_or_set(d, s[2 * n + 1], of_q[d], x[2], x[3]);
        }
    }

    float above[2] = {max_of::identity(), max_of::identity()};
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        float added[4];
        load<float, 4>(numbers + stage * 128 + n * 16 + quad * 4, added);
#pragma unroll
        for (u32 j = 0; j < 4; ++j) {
            added[j] *= LOG2_E;
            if (KEYS % 64 != 0 && block * 64 + n * 16 + quad * 4 + j >= KEYS) added[j] = max_of::identity();
#pragma unroll
            for (u32 half = 0; half < 2; ++half) {
                float& score = s[2 * n + j / 2][2 * half + j % 2];
                score = score * SCALE_2 + added[j];
                above[half] = fmaxf(above[half], score);
            }
        }
    }
    float base[2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        above[half] = fmaxf(above[half], __shfl_xor_sync(0xffffffffu, above[half], 1));
        above[half] = fmaxf(above[half], __shfl_xor_sync(0xffffffffu, above[half], 2));
        const float next = fmaxf(most[half], above[half]);
        base[half] = next == max_of::identity() ? 0.0f : next;
        const float shrunk = exp2_of(most[half] - base[half]);
        most[half] = next;
        sum[half] *= shrunk;
#pragma unroll
        for (u32 d = 0; d < DEPTH / 8; ++d) {
            o[d][2 * half] *= shrunk;
            o[d][2 * half + 1] *= shrunk;
        }
    }

#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        u32 p[4];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            float shares[4];
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                shares[j] = exp2_of(s[2 * n + j / 2][2 * half + j % 2] - base[half]);
                sum[half] += shares[j];
                if (DROPS && (kept >> (half * 16 + n * 4 + j) & 1) == 0) shares[j] = 0.0f;
            }
            p[half] = pair_of<element>::of(shares[0], shares[1]);
            p[half + 2] = pair_of<element>::of(shares[2], shares[3]);
        }
#pragma unroll
        for (u32 d = 0; d < DEPTH / 16; ++d) {
            u32 x[4];
            load_transposed(x, of_v + n * 16 * WIDE + corner + d * 16);
            product_of<element>::add(o[2 * d], p, x[0], x[1]);
            product_of<element>::add(o[2 * d + 1], p, x[2], x[3]);
        }
    }
    if (KEEPS) {
        u32 words[4];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            u32& word = words[i];
            word = ((kept >> i * 8 & 15) | (kept >> (i * 8 + 4) & 15) << 16) << quad * 4;
            word |= __shfl_xor_sync(0xffffffffu, word, 1);
            word |= __shfl_xor_sync(0xffffffffu, word, 2);
            const u32 first = block * 64 + i % 2 * 32;
            if (KEYS % 64 != 0 && first + 32 > KEYS) word = first < KEYS ? word & ((1u << (KEYS - first)) - 1) : 0;
        }
        const u32 low = quad < 2 ? words[0] : words[2], high = quad < 2 ? words[1] : words[3];
        const u32 own = query + quad / 2 * 8, at = (list * QUERIES + own) * 2 * KEY_BLOCKS + block * 2 + quad % 2;
        if (own < QUERIES) mask[at] = (int)(quad % 2 == 0 ? low : high);
    }
    if (STAGES == 1) {
        __syncthreads();
        if (block + 1 < KEY_BLOCKS) fetch(block + 1, 0);
    }
}

#pragma unroll
for (u32 half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
    const u32 own = query + half * 8;
    if (own >= QUERIES) continue;
    if (quad == 0) log_sums[list * QUERIES + own] = most[half] * LN_2 + logf(sum[half]);
    const float factor = GAIN / sum[half];
    result* const to = y + ((b * QUERIES + own) * HEADS + h) * DEPTH + quad * 2;
#pragma unroll
    for (u32 d = 0; d < DEPTH / 8; ++d) {
        const float both[2] = {o[d][2 * half] * factor, o[d][2 * half + 1] * factor};
        store<result, 2>(to + d * 8, both);
    }
}
