// Stands in for libcublasLt: does what a description says, on the host, for bf16. Written from NVIDIA's documentation,
// which a real device must confirm.

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <map>
#include <vector>

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS = 8, AUX = 11, AUX_STRIDE = 12, BIAS_TYPE = 26 };
enum { BF16 = 14, COMPUTE_F32 = 68 };

struct description { std::map<int, int64_t> attributes; };
struct layout { int type; uint64_t rows, cols; int64_t stride; };
struct heuristic { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

double get(const uint16_t* from, size_t at) {
    uint32_t bits = (uint32_t)from[at] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

void put(uint16_t* to, size_t at, double value) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

bool described(const description* d, const layout* a, const layout* b, const layout* out) {
    auto set = [&](int name) { auto at = d->attributes.find(name); return at == d->attributes.end() ? 0 : at->second; };
    uint64_t rows = set(TRANSPOSE_A) ? a->cols : a->rows, inner = set(TRANSPOSE_A) ? a->rows : a->cols;
    uint64_t cols = set(TRANSPOSE_B) ? b->rows : b->cols, other = set(TRANSPOSE_B) ? b->cols : b->rows;
    return a->type == BF16 && b->type == BF16 && out->type == BF16 && inner == other && out->rows == rows && out->cols == cols;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusString(int code) {
    return code == INVALID_VALUE ? "an unsupported value or parameter was passed" : code == NOT_SUPPORTED ? "the functionality requested is not supported" : "an error";
}
int cublasLtCreate(void** made) { *made = (void*)1; return SUCCESS; }
int cublasLtDestroy(void*) { return SUCCESS; }
int cublasLtMatmulDescCreate(description** made, int compute, int scale) {
    if (compute != COMPUTE_F32 || scale != 0) return NOT_SUPPORTED;
    *made = new description;
    return SUCCESS;
}
int cublasLtMatmulDescSetAttribute(description* d, int name, const void* value, size_t size) {
    const std::map<int, size_t> sizes = {{TRANSPOSE_A, 4}, {TRANSPOSE_B, 4}, {EPILOGUE, 4}, {BIAS, 8}, {AUX, 8}, {AUX_STRIDE, 8}, {BIAS_TYPE, 4}};
    auto known = sizes.find(name);
    if (known == sizes.end() || known->second != size) return INVALID_VALUE;
    int64_t number = 0;
    memcpy(&number, value, size);
    d->attributes[name] = number;
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(description* d) { delete d; return SUCCESS; }
int cublasLtMatrixLayoutCreate(layout** made, int type, uint64_t rows, uint64_t cols, int64_t stride) {
    if (stride < (int64_t)rows) return INVALID_VALUE;
    *made = new layout{type, rows, cols, stride};
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(layout* l) { delete l; return SUCCESS; }
int cublasLtMatmulPreferenceCreate(uint64_t** made) { *made = new uint64_t(0); return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(uint64_t* p, int name, const void* value, size_t size) {
    if (name != 1 || size != 8) return INVALID_VALUE;
    memcpy(p, value, 8);
    return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(uint64_t* p) { delete p; return SUCCESS; }
int cublasLtMatmulAlgoGetHeuristic(void*, const description* d, const layout* a, const layout* b, const layout*,
                                   const layout* out, const uint64_t*, int most, heuristic* found, int* count) {
    if (most < 1 || !described(d, a, b, out)) return INVALID_VALUE;
    found[0] = heuristic{};
    *count = 1;
    return SUCCESS;
}

int cublasLtMatmul(void*, const description* d, const float* alpha, const uint16_t* a, const layout* la, const uint16_t* b,
                   const layout* lb, const float* beta, const uint16_t*, const layout*, uint16_t* out, const layout* lo,
                   const void*, void*, size_t, void*) {
    if (!described(d, la, lb, lo) || *beta != 0) return INVALID_VALUE;
    auto set = [&](int name) { auto at = d->attributes.find(name); return at == d->attributes.end() ? 0 : at->second; };
    bool ta = set(TRANSPOSE_A), tb = set(TRANSPOSE_B);
    uint64_t rows = lo->rows, cols = lo->cols, inner = ta ? la->rows : la->cols;
    int epilogue = (int)set(EPILOGUE);
    bool uses_aux = epilogue == 164 || epilogue == 208, uses_bias = epilogue != 1;
    if ((uses_aux && (!set(AUX) || set(AUX_STRIDE) < (int64_t)rows || set(AUX_STRIDE) % 8)) || (uses_bias && (!set(BIAS) || set(BIAS_TYPE) != BF16)))
        return INVALID_VALUE;
    uint16_t* bias = (uint16_t*)set(BIAS);
    uint16_t* aux = (uint16_t*)set(AUX);
    auto at_a = [&](uint64_t i, uint64_t k) { return get(a, ta ? k + i * la->stride : i + k * la->stride); };
    auto at_b = [&](uint64_t k, uint64_t j) { return get(b, tb ? j + k * lb->stride : k + j * lb->stride); };
    std::vector<double> sums(rows);
    for (uint64_t j = 0; j < cols; ++j)
        for (uint64_t i = 0; i < rows; ++i) {
            double y = 0;
            for (uint64_t k = 0; k < inner; ++k) y += at_a(i, k) * at_b(k, j);
            y *= *alpha;
            size_t kept = i + j * set(AUX_STRIDE);
            if (epilogue == 4 || epilogue == 164) y += get(bias, i);
            if (epilogue == 164) {
                put(aux, kept, y);
                y = gelu(y);
            }
            if (epilogue == 208) y *= gelu_slope(get(aux, kept));
            sums[i] += y;
            put(out, i + j * lo->stride, y);
        }
    if (epilogue == 256)
        for (uint64_t i = 0; i < rows; ++i) {
            sums[i] = 0;
            for (uint64_t k = 0; k < inner; ++k) sums[i] += at_a(i, k);
        }
    if (epilogue == 208 || epilogue == 256)
        for (uint64_t i = 0; i < rows; ++i) put(bias, i, sums[i]);
    return SUCCESS;
}

}
