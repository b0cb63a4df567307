// Runs the text of a CUDA kernel on the host: every thread of a block is a fiber. A fiber runs until it waits for its
// warp (shuffles) or for its block (barriers). Warps run one after the other, each as far as it comes, so that what one
// warp reads of another without a barrier between them is wrong. Shared memory is poisoned before each block. Threads of
// kernels that never wait run one after the other. Fibers change places by `_longjmp`, which asks the system for nothing, unlike
// `swapcontext`.

// Headers that compile fast: those of C++ and those that it wraps take longer than a kernel.
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

extern "C" {
float expf(float), exp2f(float), logf(float), sqrtf(float), tanhf(float), erff(float), sinf(float), cosf(float), floorf(float);
float truncf(float), fabsf(float), powf(float, float), fmaxf(float, float), fminf(float, float);
double log(double), log2(double), sqrt(double), sin(double), cos(double), floor(double), ceil(double);
double fmax(double, double), fmin(double, double);
}

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shim_shared")))

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct uint3 { unsigned x, y, z; };

static uint3 threadIdx, blockIdx, blockDim, gridDim;

static inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((uint64_t)x * y >> 32); }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

namespace shim {

enum state { READY, AT_WARP, AT_BLOCK, DONE };
const unsigned MOST = 1024;
const size_t STACK = 64 << 10;

// A copy that has begun: its destination holds poison until the thread waits for it.
struct copy { void* to; const void* from; size_t bytes, room; };
const unsigned MOST_COPIES = 64;

struct fiber {
    jmp_buf context;
    bool has_begun;
    state at;
    uint3 thread;
    uint64_t slot;
    // What the thread gives to its warp, in turns: a thread that is one ahead disturbs no other.
    uint64_t given[2][4];
    unsigned turn;
    copy copies[MOST_COPIES];
    unsigned begun;
};

static fiber fibers[MOST];
static jmp_buf scheduler;
static unsigned current;
static char* stacks;
static void** parameters;
static void (*body)();
static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;

extern "C" char __start_shim_shared __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shim_shared __attribute__((weak, visibility("hidden")));

inline void wait(state at) {
    fibers[current].at = at;
    if (!_setjmp(fibers[current].context)) _longjmp(scheduler, 1);
}

// A fiber runs the same thread of block after block.
static void run() {
    for (;;) {
        body();
        wait(DONE);
    }
}

inline void begin(unsigned id) {
    ucontext_t begin;
    getcontext(&begin);
    begin.uc_stack.ss_sp = stacks + id * STACK;
    begin.uc_stack.ss_size = STACK;
    begin.uc_link = 0;
    makecontext(&begin, run, 0);
    fibers[id].has_begun = true;
    setcontext(&begin);
}

inline void resume(unsigned id) {
    current = id;
    threadIdx = fibers[id].thread;
    if (_setjmp(scheduler)) return;
    if (fibers[id].has_begun) _longjmp(fibers[id].context, 1);
    begin(id);
}

// Runs a warp until all its lanes are done or wait for the block. 0 where lanes wait for different things for ever.
inline int run_warp(unsigned first, unsigned lanes, bool reverse) {
    for (;;) {
        for (unsigned i = 0; i < lanes; ++i) {
            unsigned id = first + (reverse ? lanes - 1 - i : i);
            if (fibers[id].at == READY) resume(id);
        }
        unsigned at_warp = 0, at_block = 0;
        for (unsigned i = 0; i < lanes; ++i) {
            at_warp += fibers[first + i].at == AT_WARP;
            at_block += fibers[first + i].at == AT_BLOCK;
        }
        if (at_warp == 0) return 1;
        if (at_block != 0) return 0;
        for (unsigned i = 0; i < lanes; ++i)
            if (fibers[first + i].at == AT_WARP) fibers[first + i].at = READY;
    }
}

inline int run_block(unsigned threads, bool reverse) {
    if (&__start_shim_shared) memset(&__start_shim_shared, 0xff, &__stop_shim_shared - &__start_shim_shared);
    for (unsigned id = 0; id < threads; ++id) {
        fiber& f = fibers[id];
        f.at = READY;
        f.turn = f.begun = 0;
        f.thread = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
    }
    unsigned warps = (threads + 31) / 32;
    for (;;) {
        for (unsigned i = 0; i < warps; ++i) {
            unsigned warp = reverse ? warps - 1 - i : i, first = warp * 32;
            if (!run_warp(first, threads - first < 32 ? threads - first : 32, reverse)) return 0;
        }
        unsigned done = 0;
        for (unsigned id = 0; id < threads; ++id) done += fibers[id].at == DONE;
        if (done == threads) return 1;
        for (unsigned id = 0; id < threads; ++id)
            if (fibers[id].at == AT_BLOCK) fibers[id].at = READY;
    }
}

inline void run_alone(unsigned threads, bool reverse) {
    for (unsigned i = 0; i < threads; ++i) {
        unsigned id = reverse ? threads - 1 - i : i;
        threadIdx = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
        body();
    }
}

// The driver's codes: illegal address, launch failure.
enum { ILLEGAL_ADDRESS = 700, FAILED = 719 };

// What the driver gives to a launch: whether it knows an address, memory that the thread keeps from launch to launch, and a call of `work` that answers `ILLEGAL_ADDRESS` where it reads or
// writes what is no memory.
typedef int is_known_to(const void*);
typedef char* memory_of(size_t bytes);
typedef int guard_to(int (*work)(void*), void* data);

struct order { bool reverse, waits; };

static int run_blocks(void* data) {
    order how = *(order*)data;
    unsigned blocks = gridDim.x * gridDim.y * gridDim.z, threads = blockDim.x * blockDim.y * blockDim.z;
    int good = 1;
    for (unsigned i = 0; good && i < blocks; ++i) {
        unsigned number = how.reverse ? blocks - 1 - i : i;
        blockIdx = {number % gridDim.x, number / gridDim.x % gridDim.y, number / gridDim.x / gridDim.y};
        if (how.waits) good = run_block(threads, how.reverse);
        else run_alone(threads, how.reverse);
    }
    return good ? 0 : FAILED;
}

inline int launch(const unsigned* grid, const unsigned* block, void** values, order how, memory_of* memory, guard_to* guard) {
    pthread_mutex_lock(&one_launch);
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    parameters = values;
    if (how.waits) {
        stacks = memory(MOST * STACK);
        for (fiber& f : fibers) f.has_begun = false;
    }
    int code = guard(run_blocks, &how);
    pthread_mutex_unlock(&one_launch);
    return code;
}

template <size_t... I> struct numbers {};
template <size_t N, size_t... I> struct count : count<N - 1, N - 1, I...> {};
template <size_t... I> struct count<0, I...> { typedef numbers<I...> to; };

template <class T> int known(T* const& pointer, is_known_to* is_known) { return is_known(pointer); }
inline int known(unsigned, is_known_to*) { return 1; }

template <auto KERNEL> struct entry;
template <class... A, void (*KERNEL)(A...)> struct entry<KERNEL> {
    template <size_t... I> static void call(numbers<I...>) { KERNEL(*(A*)parameters[I]...); }
    static void call_all() { call(typename count<sizeof...(A)>::to()); }

    template <size_t... I> static int all_known(void** values, is_known_to* is_known, numbers<I...>) {
        return (known(*(A*)values[I], is_known) & ... & 1);
    }

    static int run(const unsigned* grid, const unsigned* block, void** values, order how, is_known_to* is_known, memory_of* memory,
                   guard_to* guard) {
        if (!all_known(values, is_known, typename count<sizeof...(A)>::to())) return ILLEGAL_ADDRESS;
        body = call_all;
        return launch(grid, block, values, how, memory, guard);
    }

    template <size_t... I> static void copy(void** values, uint64_t* to, numbers<I...>) {
        (memcpy(to + I, values[I], sizeof(A)), ...);
    }
    // Copies the values of the parameters, each into eight bytes. Returns their number.
    static int take(void** values, uint64_t* to) {
        copy(values, to, typename count<sizeof...(A)>::to());
        return sizeof...(A);
    }
};

}  // namespace shim

static inline unsigned long long atomicMin(unsigned long long* at, unsigned long long x) {
    unsigned long long before = *at;
    if (x < before) *at = x;
    return before;
}

static inline unsigned long long atomicMax(unsigned long long* at, unsigned long long x) {
    unsigned long long before = *at;
    if (x > before) *at = x;
    return before;
}
static inline int atomicAdd(int* at, int x) {
    int before = *at;
    *at = before + x;
    return before;
}

static inline unsigned atomicInc(unsigned* at, unsigned most) {
    unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}
static inline void __threadfence() {}

static inline void __syncthreads() { shim::wait(shim::AT_BLOCK); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> static inline T __shfl_xor_sync(unsigned, T x, int distance) {
    unsigned id = shim::current;
    memcpy(&shim::fibers[id].slot, &x, sizeof(T));
    shim::wait(shim::AT_WARP);
    T y;
    memcpy(&y, &shim::fibers[id ^ distance].slot, sizeof(T));
    shim::wait(shim::AT_WARP);
    return y;
}

static inline float exp2_of(float x) { return exp2f(x); }

template <int BYTES> static inline void copy_async(void* to, const void* from, bool there) {
    shim::fiber& f = shim::fibers[shim::current];
    memset(to, 0xff, BYTES);
    if (f.begun == shim::MOST_COPIES) __builtin_trap();
    f.copies[f.begun++] = {to, from, there ? (size_t)BYTES : 0, (size_t)BYTES};
}

static inline void copies_are_done() {
    shim::fiber& f = shim::fibers[shim::current];
    for (unsigned i = 0; i < f.begun; ++i) {
        memset(f.copies[i].to, 0, f.copies[i].room);
        memcpy(f.copies[i].to, f.copies[i].from, f.copies[i].bytes);
    }
    f.begun = 0;
}

namespace shim {

// Gives bytes to the warp and waits until every lane has done so. Which turn it was.
inline unsigned give(const void* bytes, size_t count) {
    fiber& f = fibers[current];
    unsigned turn = f.turn++ & 1;
    memcpy(f.given[turn], bytes, count);
    wait(AT_WARP);
    return turn;
}

template <class T> inline const T* given(unsigned lane, unsigned turn) {
    return (const T*)fibers[(current & ~31u) + lane].given[turn];
}

// Four matrices of 8 x 8 elements, each row where a lane says, and each lane's pairs of them.
inline void load_pairs(unsigned (&x)[4], const void* row, bool transposed) {
    if ((uintptr_t)row % 16) __builtin_trap();
    unsigned turn = give(&row, sizeof row), lane = current % 32, g = lane / 4, q = lane % 4;
    for (unsigned m = 0; m < 4; ++m) {
        unsigned pair = 0;
        for (unsigned e = 0; e < 2; ++e) {
            unsigned r = transposed ? 2 * q + e : g, c = transposed ? g : 2 * q + e;
            pair |= (unsigned)(*given<const uint16_t*>(8 * m + r, turn))[c] << 16 * e;
        }
        x[m] = pair;
    }
}

}  // namespace shim

static inline void load_matrices(unsigned (&x)[4], const void* row) { shim::load_pairs(x, row, false); }
static inline void load_transposed(unsigned (&x)[4], const void* row) { shim::load_pairs(x, row, true); }

// C [16, 8] += A [16, 16] B [16, 8], whose elements `value` makes of their bits, all of them spread over the warp as those of
// `mma.m16n8k16`.
static inline void add_product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float (*value)(uint16_t)) {
    unsigned words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    unsigned turn = shim::give(words, sizeof words), lane = shim::current % 32, g = lane / 4, q = lane % 4;
    for (unsigned i = 0; i < 4; ++i) {
        unsigned row_half = i / 2, column = 2 * q + i % 2;
        float sum = 0;
        for (unsigned k = 0; k < 16; ++k) {
            unsigned k_half = k / 8, of_pair = k % 8 / 2, shift = 16 * (k % 2);
            unsigned x = shim::given<unsigned>(4 * g + of_pair, turn)[2 * k_half + row_half] >> shift;
            unsigned y = shim::given<unsigned>(4 * column + of_pair, turn)[4 + k_half] >> shift;
            sum += value((uint16_t)x) * value((uint16_t)y);
        }
        c[i] += sum;
    }
}

#define SHIM_ENTRY(name, waits)                                                                                      \
    extern "C" int shim_launch_##name(const unsigned* grid, const unsigned* block, void** values, int reverse,       \
                                      shim::is_known_to* is_known, shim::memory_of* memory, shim::guard_to* guard) { \
        return shim::entry<name>::run(grid, block, values, {reverse != 0, waits}, is_known, memory, guard);          \
    }                                                                                                                \
    extern "C" int shim_take_##name(void** values, uint64_t* to) { return shim::entry<name>::take(values, to); }
