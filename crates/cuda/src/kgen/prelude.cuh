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
__device__ __forceinline__ u16 bf16_bits(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ u16 f16_bits(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
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
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 next[4] = {(u32)(p1 >> 32) ^ c[1] ^ k[0], (u32)p1, (u32)(p0 >> 32) ^ c[3] ^ k[1], (u32)p0};
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
