// Stands in for libcublasLt: does what a description says, on the host, in doubles. Written from NVIDIA's documentation,
// which a real device must confirm.

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "floats.h"
#include "streams.h"

#include <algorithm>
#include <map>
#include <vector>

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { POINTER_MODE = 2, TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS = 8, AUX = 11, AUX_STRIDE = 12, BIAS_TYPE = 26 };
enum { F32 = 0, F16 = 2, BF16 = 14, COMPUTE_F32 = 68, COMPUTE_TF32 = 77 };
// How an algorithm puts parts of the sum together: cublasLtReductionScheme_t. Parts that are kept in the type of the result are rounded to it.
enum { IN_COMPUTE_TYPE = 2, IN_OUTPUT_TYPE = 4, ALL_SCHEMES = 7 };
// Algorithms for each product, numbered from 1, with their schemes; the last one is proposed first where it is allowed.
enum { ALGORITHMS = 3, ROUNDS_PARTS = 3 };
const uint32_t SCHEMES[ALGORITHMS] = {0, IN_COMPUTE_TYPE, IN_OUTPUT_TYPE};
// cublasLtMatmulPreferenceAttributes_t
enum { MAX_WORKSPACE = 1, SCHEME_MASK = 3 };
// CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME
enum { CONFIG_SCHEME = 3 };
enum { BATCHES = 5, BATCH_STRIDE = 6 };

struct description { int compute; std::map<int, int64_t> attributes; };
struct layout { int type; uint64_t rows, cols; int64_t stride; int batches = 1; int64_t batch_stride = 0; };
struct preference { uint64_t workspace = 0; uint32_t schemes = ALL_SCHEMES; };
struct heuristic { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

// What belongs to the calling thread.
struct everything : counted { long objects = 0; };

thread_local everything mock;

double get(int type, const void* from, size_t at) {
    if (type == F32) return ((const float*)from)[at];
    uint16_t half = ((const uint16_t*)from)[at];
    if (type == F16) return half_value(half);
    return bf16_value(half);
}

void put(int type, void* to, size_t at, double value) {
    if (type == F32) ((float*)to)[at] = (float)value;
    else ((uint16_t*)to)[at] = type == F16 ? half_bits(value) : bf16_bits(value);
}

double rounded(int type, double value) {
    float room;
    put(type, &room, 0, value);
    return get(type, &room, 0);
}

std::vector<double> numbers(const description* d, const layout* l, const void* from, int batch) {
    std::vector<double> all(l->stride * l->cols);
    for (uint64_t j = 0; j < l->cols; ++j)
        for (uint64_t i = 0; i < l->rows; ++i) all[i + j * l->stride] = get(l->type, from, batch * l->batch_stride + i + j * l->stride);
    if (d->compute == COMPUTE_TF32 && l->type == F32)
        for (double& one : all) one = tf32(one);
    return all;
}

// The numbers of a matrix column by column, without gaps; it is transposed where asked.
std::vector<double> columns(const std::vector<double>& from, uint64_t stride, uint64_t rows, uint64_t cols, bool transposed) {
    std::vector<double> all(rows * cols);
    for (uint64_t j = 0; j < cols; ++j)
        for (uint64_t i = 0; i < rows; ++i) all[i + j * rows] = from[transposed ? j + i * stride : i + j * stride];
    return all;
}

double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

bool is_known(const uint64_t* algorithm) { return algorithm[0] >= 1 && algorithm[0] <= ALGORITHMS; }

bool described(const description* d, const layout* a, const layout* b, const layout* out) {
    auto set = [&](int name) { auto at = d->attributes.find(name); return at == d->attributes.end() ? 0 : at->second; };
    uint64_t rows = set(TRANSPOSE_A) ? a->cols : a->rows, inner = set(TRANSPOSE_A) ? a->rows : a->cols;
    uint64_t cols = set(TRANSPOSE_B) ? b->rows : b->cols, other = set(TRANSPOSE_B) ? b->cols : b->rows;
    auto is_float = [](int type) { return type == F32 || type == F16 || type == BF16; };
    bool types = is_float(a->type) && b->type == a->type && (out->type == a->type || out->type == F32);
    bool batches = a->batches == b->batches && b->batches == out->batches && (out->batches == 1 || set(EPILOGUE) == 1);
    bool computes = d->compute == COMPUTE_F32 || a->type == F32;
    return computes && types && batches && inner == other && out->rows == rows && out->cols == cols;
}

int multiply(const description* d, uint64_t algorithm, const float* alpha, const float* beta, const void* c, const void* a, const layout* la, const void* b, const layout* lb, void* out, const layout* lo) {
    auto set = [&](int name) { auto at = d->attributes.find(name); return at == d->attributes.end() ? 0 : at->second; };
    bool ta = set(TRANSPOSE_A), tb = set(TRANSPOSE_B);
    uint64_t rows = lo->rows, cols = lo->cols, inner = ta ? la->rows : la->cols;
    int epilogue = (int)set(EPILOGUE), type = lo->type;
    bool uses_aux = epilogue == 164 || epilogue == 192 || epilogue == 208, uses_bias = epilogue != 1 && epilogue != 192;
    if ((uses_aux && (!set(AUX) || set(AUX_STRIDE) < (int64_t)rows || set(AUX_STRIDE) % 8)) || (uses_bias && (!set(BIAS) || set(BIAS_TYPE) != type)))
        return INVALID_VALUE;
    void* bias = (void*)set(BIAS);
    void* aux = (void*)set(AUX);
    for (int batch = 0; batch < lo->batches; ++batch) {
        std::vector<double> va = columns(numbers(d, la, a, batch), la->stride, rows, inner, ta);
        std::vector<double> vb = columns(numbers(d, lb, b, batch), lb->stride, inner, cols, tb), column(rows), sums(rows);
        for (uint64_t j = 0; j < cols; ++j) {
            std::vector<double> part(rows);
            std::fill(column.begin(), column.end(), 0.0);
            for (uint64_t k = 0; k < inner; ++k) {
                if (algorithm == ROUNDS_PARTS && k == (inner + 1) / 2) part.swap(column);
                for (uint64_t i = 0; i < rows; ++i) column[i] += va[i + k * rows] * vb[k + j * inner];
            }
            if (algorithm == ROUNDS_PARTS)
                for (uint64_t i = 0; i < rows; ++i) column[i] = rounded(type, part[i]) + rounded(type, column[i]);
            for (uint64_t i = 0; i < rows; ++i) {
                size_t at = batch * lo->batch_stride + i + j * lo->stride;
                double y = column[i] * *alpha + (*beta == 0 ? 0 : *beta * get(type, c, at));
                size_t kept = i + j * set(AUX_STRIDE);
                if (epilogue == 4 || epilogue == 36 || epilogue == 164) y += get(type, bias, i);
                if (epilogue == 36) y = gelu(y);
                if (epilogue == 164) {
                    put(type, aux, kept, y);
                    y = gelu(y);
                }
                if (epilogue == 192 || epilogue == 208) y *= gelu_slope(get(type, aux, kept));
                sums[i] += y;
                put(type, out, at, y);
            }
        }
        if (epilogue == 256)
            for (uint64_t i = 0; i < rows; ++i) {
                sums[i] = 0;
                for (uint64_t k = 0; k < inner; ++k) sums[i] += va[i + k * rows];
            }
        if (epilogue == 208 || epilogue == 256)
            for (uint64_t i = 0; i < rows; ++i) put(type, bias, i, sums[i]);
    }
    return SUCCESS;
}

}  // namespace

#define ENTER if (int code = mock.enter(__func__)) return code

extern "C" {

void mock_set(const char* name, long value) {
    if (!strcmp(name, "reset")) mock = everything();
    else mock.numbers[name] = value;
}
long mock_get(const char* name) { return !strcmp(name, "objects") ? mock.objects : mock.number(name); }
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }

size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(int code) {
    return code == INVALID_VALUE ? "an unsupported value or parameter was passed" : code == NOT_SUPPORTED ? "the functionality requested is not supported" : "an error";
}
int cublasLtCreate(void** made) { ENTER; *made = (void*)1; ++mock.objects; return SUCCESS; }
int cublasLtDestroy(void*) { ENTER; --mock.objects; return SUCCESS; }
int cublasLtMatmulDescCreate(description** made, int compute, int scale) {
    ENTER;
    if ((compute != COMPUTE_F32 && compute != COMPUTE_TF32) || scale != 0) return NOT_SUPPORTED;
    *made = new description{compute, {}};
    ++mock.objects;
    return SUCCESS;
}
int cublasLtMatmulDescSetAttribute(description* d, int name, const void* value, size_t size) {
    ENTER;
    const std::map<int, size_t> sizes = {{POINTER_MODE, 4}, {TRANSPOSE_A, 4}, {TRANSPOSE_B, 4}, {EPILOGUE, 4}, {BIAS, 8}, {AUX, 8}, {AUX_STRIDE, 8}, {BIAS_TYPE, 4}};
    auto known = sizes.find(name);
    if (known == sizes.end() || known->second != size) return INVALID_VALUE;
    int64_t number = 0;
    memcpy(&number, value, size);
    d->attributes[name] = number;
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(description* d) { ENTER; delete d; --mock.objects; return SUCCESS; }
int cublasLtMatrixLayoutCreate(layout** made, int type, uint64_t rows, uint64_t cols, int64_t stride) {
    ENTER;
    if (stride < (int64_t)rows) return INVALID_VALUE;
    *made = new layout{type, rows, cols, stride};
    ++mock.objects;
    return SUCCESS;
}
int cublasLtMatrixLayoutSetAttribute(layout* l, int name, const void* value, size_t size) {
    ENTER;
    if (name == BATCHES && size == 4) memcpy(&l->batches, value, 4);
    else if (name == BATCH_STRIDE && size == 8) memcpy(&l->batch_stride, value, 8);
    else return INVALID_VALUE;
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(layout* l) { ENTER; delete l; --mock.objects; return SUCCESS; }
int cublasLtMatmulPreferenceCreate(preference** made) { ENTER; *made = new preference; ++mock.objects; return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(preference* p, int name, const void* value, size_t size) {
    ENTER;
    if (name == MAX_WORKSPACE && size == 8) memcpy(&p->workspace, value, 8);
    else if (name == SCHEME_MASK && size == 4) memcpy(&p->schemes, value, 4);
    else return INVALID_VALUE;
    return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(preference* p) { ENTER; delete p; --mock.objects; return SUCCESS; }
int cublasLtMatmulAlgoGetHeuristic(void*, const description* d, const layout* a, const layout* b, const layout*,
                                   const layout* out, const preference* p, int most, heuristic* found, int* count) {
    ENTER;
    if (most < 1 || !described(d, a, b, out)) return INVALID_VALUE;
    // Setting `no_epilogues` is of a library that has none.
    auto epilogue = d->attributes.find(EPILOGUE);
    if (epilogue != d->attributes.end() && epilogue->second != 1 && (mock.numbers["no_epilogues"] || !d->attributes.count(epilogue->second == 192 ? AUX : BIAS))) return NOT_SUPPORTED;
    // Setting `no_second` is of a library that has the first algorithm alone.
    *count = 0;
    for (uint64_t number : std::vector<uint64_t>{ROUNDS_PARTS, 1, 2}) {
        uint32_t scheme = SCHEMES[number - 1];
        bool is_left = number == 1 || !mock.numbers["no_second"];
        if (is_left && (scheme & ~p->schemes) == 0 && *count < most) found[(*count)++] = heuristic{{number}};
    }
    return SUCCESS;
}
int cublasLtMatmulAlgoCheck(void*, const description* d, const layout* a, const layout* b, const layout*, const layout* out,
                            const uint64_t* algorithm, heuristic* found) {
    ENTER;
    if (!described(d, a, b, out) || !is_known(algorithm) || (algorithm[0] > 1 && mock.numbers["no_second"])) return INVALID_VALUE;
    *found = heuristic{};
    return SUCCESS;
}
int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t* algorithm, int name, void* to, size_t size, size_t* written) {
    ENTER;
    if (!is_known(algorithm) || name != CONFIG_SCHEME || size != 4) return INVALID_VALUE;
    memcpy(to, &SCHEMES[algorithm[0] - 1], 4);
    *written = 4;
    return SUCCESS;
}

int cublasLtMatmul(void*, const description* d, const float* alpha, const void* a, const layout* la, const void* b,
                   const layout* lb, const float* beta, const void* c, const layout* lc, void* out, const layout* lo,
                   const uint64_t* algorithm, void*, size_t, void* stream) {
    ENTER;
    auto mode = d->attributes.find(POINTER_MODE);
    bool in_memory = mode != d->attributes.end() && mode->second == 1;
    if (!is_known(algorithm) || !described(d, la, lb, lo) || (!in_memory && *beta != 0) || lc->type != lo->type || lc->rows != lo->rows || lc->cols != lo->cols)
        return INVALID_VALUE;
    description of = *d;
    layout of_a = *la, of_b = *lb, of_out = *lo;
    // Setting `slow_first` makes the first algorithm wait, `slow_others` all others; `slow_fusions` and `slow_plain` make products wait
    // with what is done in their pass, or without; `slow_gelu_gradients` and `slow_bias_gradients` those with a gradient of GELU, alone
    // or with that of a bias. Setting `fails_all` makes all products fail.
    auto set = d->attributes.find(EPILOGUE);
    auto epilogue = set == d->attributes.end() ? 1 : set->second;
    bool fuses = in_memory || epilogue != 1;
    long waits = !!mock.numbers[algorithm[0] == 1 ? "slow_first" : "slow_others"] + !!mock.numbers[fuses ? "slow_fusions" : "slow_plain"];
    if (epilogue == 192 || epilogue == 208) waits += !!mock.numbers[epilogue == 192 ? "slow_gelu_gradients" : "slow_bias_gradients"];
    if (mock.numbers["fails_all"]) return EXECUTION_FAILED;
    ++mock.numbers[algorithm[0] == 1 ? "by_first" : "by_second"];
    float now[2] = {in_memory ? 0 : *alpha, in_memory ? 0 : *beta};
    uint64_t number = algorithm[0];
    // What lies in the device's memory is read when the product runs.
    return give(stream, [=] {
        if (waits) usleep(2000 * waits);
        const float *factor = in_memory ? alpha : &now[0], *kept = in_memory ? beta : &now[1];
        return multiply(&of, number, factor, kept, c, a, &of_a, b, &of_b, out, &of_out);
    });
}

}
