typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct boolean { u8 value; };

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(int x) { return (float)x; }
__device__ __forceinline__ float to_f32(u8 x) { return (float)x; }
__device__ __forceinline__ float to_f32(boolean x) { return x.value ? 1.0f : 0.0f; }
__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
// Of two numbers, one of them zero: conversions of one run at a quarter of the rate.
__device__ __forceinline__ u16 bf16_bits(float x) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (u16)pair;
}
__device__ __forceinline__ u16 f16_bits(float x) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
    return (u16)pair;
}
#else
__device__ __forceinline__ float to_f32(f16 x) {
    u32 sign = (u32)(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff;
    if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    float y = __uint_as_float(magnitude << 13) * __uint_as_float(0x77800000u);
    return __uint_as_float(sign | __float_as_uint(y));
}
__device__ __forceinline__ u16 bf16_bits(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
__device__ __forceinline__ u16 f16_bits(float x) {
    u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (u16)(sign | 0x7c00);
    if (magnitude < 0x38800000u) {
        float shifted = __uint_as_float(magnitude) + 0.5f;
        return (u16)(sign | (__float_as_uint(shifted) - 0x3f000000u));
    }
    return (u16)(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13);
}
#endif

// Towards zero, to the nearest number that the type holds; 0 for NaN.
__device__ __forceinline__ int to_int(float x) {
    if (x != x) return 0;
    return x >= 2147483648.0f ? 0x7fffffff : x < -2147483648.0f ? -0x7fffffff - 1 : (int)x;
}

template <class T> struct from_f32;
template <> struct from_f32<float> { static __device__ __forceinline__ float of(float x) { return x; } };
template <> struct from_f32<int> { static __device__ __forceinline__ int of(float x) { return to_int(x); } };
template <> struct from_f32<u8> { static __device__ __forceinline__ u8 of(float x) { return (u8)(int)x; } };
template <> struct from_f32<boolean> { static __device__ __forceinline__ boolean of(float x) { return {(u8)(x != 0.0f)}; } };
template <> struct from_f32<bf16> { static __device__ __forceinline__ bf16 of(float x) { return {bf16_bits(x)}; } };
template <> struct from_f32<f16> { static __device__ __forceinline__ f16 of(float x) { return {f16_bits(x)}; } };

// Later reads are of memory, not of what registers hold of earlier writes.
__device__ __forceinline__ void memory_is_written() { asm volatile("" ::: "memory"); }

// What one access moves: 16 bytes where there are as many.
template <int BYTES> struct access { typedef uint4 type; static const int count = BYTES / 16; };
template <> struct access<8> { typedef uint2 type; static const int count = 1; };
template <> struct access<4> { typedef u32 type; static const int count = 1; };
template <> struct access<2> { typedef u16 type; static const int count = 1; };
template <> struct access<1> { typedef u8 type; static const int count = 1; };

template <class T, int N> __device__ __forceinline__ void load(const T* from, float* x) {
    typedef access<N * (int)sizeof(T)> words;
    union { typename words::type word[words::count]; T element[N]; } moved;
#pragma unroll
    for (int i = 0; i < words::count; ++i) moved.word[i] = ((const typename words::type*)from)[i];
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = to_f32(moved.element[i]);
}

template <class T, int N> __device__ __forceinline__ void store(T* to, const float* x) {
    typedef access<N * (int)sizeof(T)> words;
    union { typename words::type word[words::count]; T element[N]; } moved;
#pragma unroll
    for (int i = 0; i < N; ++i) moved.element[i] = from_f32<T>::of(x[i]);
#pragma unroll
    for (int i = 0; i < words::count; ++i) ((typename words::type*)to)[i] = moved.word[i];
}

// A NaN on either side gives NaN.
struct sum_of {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    static __device__ __forceinline__ float combine(float a, float b) { return a + b; }
};
struct max_of {
    static __device__ __forceinline__ float identity() { return __uint_as_float(0xff800000u); }
    static __device__ __forceinline__ float combine(float a, float b) { return b > a || b != b ? b : a; }
};
struct min_of {
    static __device__ __forceinline__ float identity() { return __uint_as_float(0x7f800000u); }
    static __device__ __forceinline__ float combine(float a, float b) { return b < a || b != b ? b : a; }
};

// One number of each thread of a row, combined in a fixed order; all threads get the result. `scratch` has a float for
// each warp; rows of one warp do not use it.
template <class KIND, int THREADS> __device__ __forceinline__ float reduce_row(float x, float* scratch) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x = KIND::combine(x, __shfl_xor_sync(0xffffffffu, x, distance));
    if (THREADS > 32) {
        __syncthreads();
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
        __syncthreads();
        x = scratch[0];
#pragma unroll
        for (int warp = 1; warp < THREADS / 32; ++warp) x = KIND::combine(x, scratch[warp]);
    }
    return x;
}

// Moments of numbers: their count n, their mean, and the sum of the squares of their distances from it (Chan, Golub,
// LeVeque: "Algorithms for computing the sample variance", 1983). `share` is 1 / count with the new number.
__device__ __forceinline__ void add_to_moments(float& mean, float& squares, float share, float x) {
    const float distance = x - mean;
    mean += distance * share;
    squares += distance * (x - mean);
}
__device__ __forceinline__ void merge_moments(float& n, float& mean, float& squares, float n2, float mean2, float squares2) {
    if (n2 == 0.0f) return;
    const float all = n + n2, distance = mean2 - mean, share = n2 / all;
    mean += distance * share;
    squares += squares2 + distance * distance * (n * share);
    n = all;
}

// Philox4x32-10: block `block` of the stream, four words.
__device__ __forceinline__ void random_words(u64 seed, u32 step, u32 stream, u64 block, u32 (&c)[4]) {
    c[0] = (u32)block, c[1] = (u32)(block >> 32), c[2] = step, c[3] = stream;
    u32 k[2] = {(u32)seed, (u32)(seed >> 32)};
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        // The compiler makes one instruction of both halves, which it follows with an addition of 0 where the product is one of 64 bits.
        const u32 m0 = 0xD2511F53u, m1 = 0xCD9E8D57u;
        u32 next[4] = {__umulhi(m1, c[2]) ^ c[1] ^ k[0], m1 * c[2], __umulhi(m0, c[0]) ^ c[3] ^ k[1], m0 * c[0]};
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] = next[i];
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
}
// A word as a number in [0, 1).
__device__ __forceinline__ float unit(u32 word) { return (float)(word >> 8) * (1.0f / 16777216.0f); }
// Number `index` of the stream, in [0, 1).
__device__ __forceinline__ float uniform(u64 seed, u32 step, u32 stream, u64 index) {
    u32 c[4];
    random_words(seed, step, stream, index / 4, c);
    return unit(index % 4 == 0 ? c[0] : index % 4 == 1 ? c[1] : index % 4 == 2 ? c[2] : c[3]);
}
// `N` numbers of the stream from number `index` on; both are multiples of 4.
template <int N> __device__ __forceinline__ void uniforms(u64 seed, u32 step, u32 stream, u64 index, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        u32 c[4];
        random_words(seed, step, stream, (index + i) / 4, c);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i + j] = unit(c[j]);
    }
}

// Functions that a warp, or a block, calls together. Pointers are to shared memory, aligned to 16 bytes, where nothing else is said.
#ifdef __CUDA_ARCH__
// The compiler adds to addresses of 32 bits where it knows of a conversion, which it does not where that is assembly.
__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }
// 2^x within 2 units in the last place; results below 2^-126 are 0.
__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// BYTES, 4 or 16, from the device's memory, or zeros where `there` is false; present behind `copies_are_done`.
template <int BYTES> __device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
    const u32 bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "n"(BYTES) : "memory");
}
// Waits for the copies of the calling thread; others see them behind a barrier.
__device__ __forceinline__ void copies_are_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Four matrices of 8 x 8 elements of 16 bits: lane 8 m + r says where row r of matrix m is. Lane 4 g + q gets the elements
// 2 q and 2 q + 1 of row g of each.
__device__ __forceinline__ void load_matrices(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
// The same with each matrix transposed: lane 4 g + q gets the elements g of rows 2 q and 2 q + 1.
__device__ __forceinline__ void load_transposed(u32 (&x)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
template <class T> struct pair_of;
template <> struct pair_of<bf16> {
    static __device__ __forceinline__ u32 of(float low, float high) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};
template <> struct pair_of<f16> {
    static __device__ __forceinline__ u32 of(float low, float high) {
        u32 pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};
// C [16, 8] = A [16, 16] B [16, 8], and C += A B (PTX ISA, "Matrix fragments for mma.m16n8k16"). Lane 4 g + q holds of C the columns 2 q and
// 2 q + 1 of the rows g and g + 8; of A the same columns of these rows, then of columns from 8 on; of B the rows 2 q and 2 q + 1 of
// column g, then of rows from 8 on.
template <class T> struct product_of;
#define PRODUCT_OF(TYPE)                                                                                                   \
    template <> struct product_of<TYPE> {                                                                                  \
        static __device__ __forceinline__ void set(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {                     \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                "{%10, %10, %10, %10};"                                                                                    \
                : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])                                                           \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));                                \
        }                                                                                                                  \
        static __device__ __forceinline__ void add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {                     \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." #TYPE "." #TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                "{%0, %1, %2, %3};"                                                                                        \
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                           \
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                           \
        }                                                                                                                  \
    };
PRODUCT_OF(bf16)
PRODUCT_OF(f16)
#undef PRODUCT_OF
#else
template <class T> struct pair_of {
    static u32 of(float low, float high) { return from_f32<T>::of(low).bits | (u32)from_f32<T>::of(high).bits << 16; }
};
template <class T> struct product_of {
    static float value(u16 bits) { return to_f32(T{bits}); }
    static void add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { add_product(c, a, b0, b1, value); }
    static void set(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        c[0] = c[1] = c[2] = c[3] = 0.0f;
        add(c, a, b0, b1);
    }
};
#endif

// Where a row of 16 goes in a tile: where it is; so that the columns 2 q and 2 q + 1 of both halves are the rows 4 q to 4 q + 3; so
// that g and g + 8 are the rows 2 g and 2 g + 1.
enum row_order { IN_ORDER, BY_FOURS, BY_PAIRS };
template <row_order ORDER> __device__ __forceinline__ u32 place_of(u32 row) {
    const u32 all = row & ~15u, i = row & 15;
    if (ORDER == BY_FOURS) return all + (i >> 1 & 1) * 8 + (i >> 2) * 2 + (i & 1);
    if (ORDER == BY_PAIRS) return all + (i & 1) * 8 + (i >> 1);
    return row;
}
// Copies ROWS rows of DEPTH elements of 16 bits, `pitch` elements apart in the device's memory, to rows DEPTH + 8 elements apart,
// which keeps eight of them in different banks. Rows from `rows` on, of which there is at least one before, are zeros, unless all are there.
template <int THREADS, int ROWS, int DEPTH, row_order ORDER, bool ALL, class T>
__device__ __forceinline__ void copy_tile(T* tile, const T* from, u32 pitch, u32 rows) {
    constexpr u32 vectors = DEPTH / 8;
    if constexpr (ALL && THREADS % (16 * vectors) == 0) {
        // Rows of a thread are a multiple of 16 apart, so that addresses are the first one's and a constant.
        const u32 row = threadIdx.x / vectors, d = threadIdx.x % vectors * 8;
        T* const to = tile + place_of<ORDER>(row) * (DEPTH + 8) + d;
        const T* const first = from + row * pitch + d;
#pragma unroll
        for (u32 i = 0; i < ROWS; i += THREADS / vectors) copy_async<16>(to + i * (DEPTH + 8), first + i * pitch, true);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < ROWS * vectors; i += THREADS) {
        const u32 vector = i + threadIdx.x, row = vector / vectors, d = vector % vectors * 8;
        const bool there = row < rows;
        copy_async<16>(tile + place_of<ORDER>(row) * (DEPTH + 8) + d, from + (there ? row : 0) * pitch + d, there);
    }
}

// For four numbers of the stream, of which `index` is the first, whether each is at least `least` / 2^24: a bit each.
template <bool ALIGNED> __device__ __forceinline__ u32 kept_of_four(u64 seed, u32 step, u32 stream, u64 index, u32 least) {
    u32 kept = 0, c[4];
    if (ALIGNED) random_words(seed, step, stream, index / 4, c);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const bool keeps = ALIGNED ? c[i] >> 8 >= least : uniform(seed, step, stream, index + i) * 16777216.0f >= (float)least;
        kept |= (u32)keeps << i;
    }
    return kept;
}
