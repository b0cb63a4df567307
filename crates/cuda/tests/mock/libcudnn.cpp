// Stands in for libcudnn's backend interface: keeps what descriptors are given, refuses what is of a wrong type or
// missing, and runs graphs on the host, one operation after the other. Written from NVIDIA's header and documentation,
// which a real device must confirm. All state belongs to the calling thread.

#include "calls.h"
#include "floats.h"
#include "streams.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { HANDLE, DATA_TYPE, BOOLEAN, INT64, FLOAT, POINTER = 6, CONV_MODE, HEUR_MODE, NAN_PROPAGATION = 10, NUMERICS = 11, PW_MODE = 14, DESCRIPTOR, STATS_MODE, NOTE = 19, CHAR = 24, NORM_MODE = 27, NORM_PHASE = 28 };
enum { F32 = 0, F16 = 2, BF16 = 9 };
enum { TENSOR_CORES = 0 };
enum {
    PW = 0, CONV = 1, ENGINE = 2, CONFIG = 3, HEUR = 4, PLAN = 5, FORWARD = 10, WEIGHTS = 11, DATA = 12, POINTWISE = 13, STATS = 14,
    GRAPH = 15, PACK = 16, TENSOR = 17, NORM = 23, BATCH_NORM = 29, BATCH_NORM_BACK = 30, DEVICE = 38
};

struct data;
typedef std::shared_ptr<data> part;
struct attribute {
    int type;
    std::vector<char> bytes;
    std::vector<part> parts;
};
struct data {
    int kind;
    bool finalized = false;
    // Of a configuration, and of its engine: how many are better, and whether the graph has several operations.
    int number = 0;
    bool fuses = false;
    std::map<int, attribute> attributes;
    bool has(int name) const { return attributes.count(name); }
    template <class T> T get(int name, size_t index = 0) const {
        T value;
        memcpy(&value, attributes.at(name).bytes.data() + index * sizeof(T), sizeof(T));
        return value;
    }
    size_t count(int name, size_t size) const { return attributes.at(name).bytes.size() / size; }
    part of(int name, size_t index = 0) const { return attributes.at(name).parts[index]; }
};
struct descriptor { part p; };
struct handle { void* stream = nullptr; };

struct everything : counted {
    std::string details;
    std::set<descriptor*> descriptors;
    std::set<handle*> handles;
};

thread_local everything mock;

int refuse(int code, const std::string& why) {
    mock.details = why;
    return code;
}

const std::map<int, size_t> SIZES = {{HANDLE, 8}, {DATA_TYPE, 4}, {BOOLEAN, 1}, {INT64, 8}, {FLOAT, 4}, {POINTER, 8}, {CONV_MODE, 4},
    {HEUR_MODE, 4}, {NAN_PROPAGATION, 4}, {PW_MODE, 4}, {DESCRIPTOR, 8}, {STATS_MODE, 4}, {NUMERICS, 4}, {NOTE, 4}, {CHAR, 1}, {NORM_MODE, 4}, {NORM_PHASE, 4}};

// Attributes that a descriptor may have, with their types, and those that it must have.
struct form { std::map<int, int> may; std::vector<int> must; };
const std::map<int, form> FORMS = {
    {PW, {{{0, PW_MODE}, {1, DATA_TYPE}, {2, NAN_PROPAGATION}}, {0, 1}}},
    {CONV, {{{100, DATA_TYPE}, {101, CONV_MODE}, {102, INT64}, {103, INT64}, {104, INT64}, {105, INT64}, {106, INT64}}, {100, 101, 102, 103, 104, 105, 106}}},
    {ENGINE, {{}, {}}},
    {CONFIG, {{}, {}}},
    {HEUR, {{{200, HEUR_MODE}, {201, DESCRIPTOR}, {204, DESCRIPTOR}}, {200, 201}}},
    {PLAN, {{{400, HANDLE}, {401, DESCRIPTOR}, {407, DESCRIPTOR}}, {401}}},
    {FORWARD, {{{700, FLOAT}, {701, FLOAT}, {702, DESCRIPTOR}, {703, DESCRIPTOR}, {704, DESCRIPTOR}, {705, DESCRIPTOR}}, {700, 701, 702, 703, 704, 705}}},
    {DATA, {{{706, FLOAT}, {707, FLOAT}, {708, DESCRIPTOR}, {709, DESCRIPTOR}, {710, DESCRIPTOR}, {711, DESCRIPTOR}}, {706, 707, 708, 709, 710, 711}}},
    {WEIGHTS, {{{712, FLOAT}, {713, FLOAT}, {714, DESCRIPTOR}, {715, DESCRIPTOR}, {716, DESCRIPTOR}, {717, DESCRIPTOR}}, {712, 713, 714, 715, 716, 717}}},
    {POINTWISE, {{{750, DESCRIPTOR}, {751, DESCRIPTOR}, {752, DESCRIPTOR}, {753, DESCRIPTOR}, {756, DESCRIPTOR}, {757, DESCRIPTOR}}, {750}}},
    {STATS, {{{770, STATS_MODE}, {771, DATA_TYPE}, {772, DESCRIPTOR}, {773, DESCRIPTOR}, {774, DESCRIPTOR}}, {770, 771, 772, 773, 774}}},
    {GRAPH, {{{800, HANDLE}, {801, DESCRIPTOR}}, {801}}},
    {PACK, {{{1000, INT64}, {1001, POINTER}, {1003, POINTER}}, {1000, 1001, 1003}}},
    {TENSOR, {{{900, INT64}, {901, DATA_TYPE}, {902, INT64}, {903, INT64}, {906, INT64}, {907, BOOLEAN}, {908, BOOLEAN}}, {900, 901, 902, 903, 906}}},
    {NORM, {{{1620, DATA_TYPE}, {1621, DESCRIPTOR}, {1622, DESCRIPTOR}, {1623, DESCRIPTOR}, {1624, DESCRIPTOR}, {1625, DESCRIPTOR}, {1626, DESCRIPTOR},
        {1627, DESCRIPTOR}, {1628, DESCRIPTOR}, {1629, DESCRIPTOR}, {1630, DESCRIPTOR}}, {1620, 1621, 1622, 1623, 1624, 1625, 1626, 1627, 1628, 1629, 1630}}},
    {BATCH_NORM, {{{2000, NORM_MODE}, {2001, NORM_PHASE}, {2002, DESCRIPTOR}, {2003, DESCRIPTOR}, {2004, DESCRIPTOR}, {2005, DESCRIPTOR},
        {2006, DESCRIPTOR}, {2007, DESCRIPTOR}, {2013, DESCRIPTOR}}, {2000, 2001, 2002, 2003, 2004, 2005, 2006, 2013}}},
    {BATCH_NORM_BACK, {{{2100, NORM_MODE}, {2101, DESCRIPTOR}, {2102, DESCRIPTOR}, {2103, DESCRIPTOR}, {2104, DESCRIPTOR}, {2105, DESCRIPTOR},
        {2107, DESCRIPTOR}, {2108, DESCRIPTOR}, {2109, DESCRIPTOR}}, {2100, 2101, 2102, 2103, 2104, 2105, 2107, 2108, 2109}}},
    {DEVICE, {{{2701, HANDLE}, {2702, CHAR}}, {}}},
};
const char* SHEET = "{\"deviceName\":\"NVIDIA H200 (mock)\",\"deviceVer\":900}";
const int64_t WORKSPACE = 1000;
// Attribute of a configuration in this mock.
const int GRAPH_OF = -1;

double read(int type, const void* from, size_t at) {
    if (type == F32) return ((const float*)from)[at];
    uint16_t half = ((const uint16_t*)from)[at];
    return type == BF16 ? bf16_value(half) : half_value(half);
}
void write(int type, void* to, size_t at, double value) {
    if (type == F32) ((float*)to)[at] = (float)value;
    else ((uint16_t*)to)[at] = type == BF16 ? bf16_bits(value) : half_bits(value);
}

// A tensor's axes N, C, H, W and its elements in that order.
struct shape {
    int64_t dims[4], strides[4];
    explicit shape(const part& t) {
        for (int i = 0; i < 4; ++i) dims[i] = t->get<int64_t>(902, i), strides[i] = t->get<int64_t>(903, i);
    }
    int64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
    // Place in a list of all elements; axes of one element have it for all.
    int64_t at(int64_t n, int64_t c, int64_t h, int64_t w) const {
        auto own = [&](int axis, int64_t i) { return dims[axis] == 1 ? 0 : i; };
        return ((own(0, n) * dims[1] + own(1, c)) * dims[2] + own(2, h)) * dims[3] + own(3, w);
    }
    template <class F> void each(F f) const {
        for (int64_t n = 0; n < dims[0]; ++n) for (int64_t c = 0; c < dims[1]; ++c)
            for (int64_t h = 0; h < dims[2]; ++h) for (int64_t w = 0; w < dims[3]; ++w) f(n, c, h, w);
    }
};

typedef std::vector<double> numbers;

struct run {
    // Whether operands of f32 are rounded to TF32.
    bool rounds = false;
    std::map<int64_t, void*> memory;
    std::map<part, numbers> known;

    bool in_memory(const part& t) { return !(t->has(907) && t->get<char>(907)); }
    numbers& load(const part& t) {
        auto found = known.find(t);
        if (found != known.end()) return found->second;
        shape s(t);
        numbers& values = known[t];
        values.assign(s.elements(), NAN);
        const void* from = memory.count(t->get<int64_t>(906)) ? memory[t->get<int64_t>(906)] : nullptr;
        if (in_memory(t) && from)
            s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
                values[s.at(n, c, h, w)] = read(t->get<int>(901), from, n * s.strides[0] + c * s.strides[1] + h * s.strides[2] + w * s.strides[3]);
            });
        return values;
    }
    void store(const part& t, const numbers& values) {
        known[t] = values;
        void* to = memory.count(t->get<int64_t>(906)) ? memory[t->get<int64_t>(906)] : nullptr;
        shape s(t);
        if (in_memory(t) && to)
            s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
                write(t->get<int>(901), to, n * s.strides[0] + c * s.strides[1] + h * s.strides[2] + w * s.strides[3], values[s.at(n, c, h, w)]);
            });
    }

    void convolve(const part& op, int first) {
        part geometry = op->of(first + 2), tw = op->of(first + 3), tx = op->of(first + 4), ty = op->of(first + 5);
        shape w(tw), x(tx), y(ty);
        int64_t dilation[2], stride[2], padding[2];
        for (int axis = 0; axis < 2; ++axis) {
            dilation[axis] = geometry->get<int64_t>(102, axis);
            stride[axis] = geometry->get<int64_t>(103, axis);
            padding[axis] = geometry->get<int64_t>(105, axis);
        }
        const part& target = first == 700 ? ty : first == 706 ? tx : tw;
        numbers result(shape(target).elements()), none;
        auto operand = [&](const part& t) {
            numbers values = load(t);
            if (rounds && t->get<int>(901) == F32)
                for (double& one : values) one = tf32(one);
            return values;
        };
        const numbers vx = first == 706 ? none : operand(tx), vw = first == 712 ? none : operand(tw), vy = first == 700 ? none : operand(ty);
        int64_t groups = x.dims[1] / w.dims[1], of_group = w.dims[0] / groups;
        // A line of y, from ix, iy on, with one weight: the inner loop has no decisions.
        auto add = [&](int64_t ix, int64_t iy, int64_t iw, int64_t count) {
            int64_t step = stride[1];
            if (first == 700) for (int64_t q = 0; q < count; ++q) result[iy + q] += vx[ix + q * step] * vw[iw];
            if (first == 706) for (int64_t q = 0; q < count; ++q) result[ix + q * step] += vy[iy + q] * vw[iw];
            if (first == 712) for (int64_t q = 0; q < count; ++q) result[iw] += vy[iy + q] * vx[ix + q * step];
        };
        for (int64_t n = 0; n < y.dims[0]; ++n) w.each([&](int64_t k, int64_t c, int64_t r, int64_t s) {
            int64_t left = s * dilation[1] - padding[1], begin = 0, end = y.dims[3];
            while (begin < end && left + begin * stride[1] < 0) ++begin;
            while (begin < end && left + (end - 1) * stride[1] >= x.dims[3]) --end;
            for (int64_t p = 0; p < y.dims[2] && begin < end; ++p) {
                int64_t row = p * stride[0] + r * dilation[0] - padding[0];
                if (row < 0 || row >= x.dims[2]) continue;
                int64_t ix = x.at(n, k / of_group * w.dims[1] + c, row, left + begin * stride[1]);
                add(ix, y.at(n, k, p, begin), w.at(k, c, r, s), end - begin);
            }
        });
        store(target, result);
    }

    void pointwise(const part& op) {
        int mode = op->of(750)->get<int>(0);
        bool gradient = mode == 200;
        // Unless it is said, ReLU of NaN is 0.
        bool propagates = op->of(750)->has(2) && op->of(750)->get<int>(2) == 1;
        part ta = op->of(gradient ? 757 : 751), ty = op->of(gradient ? 756 : 753);
        part tb = gradient ? op->of(751) : op->has(752) ? op->of(752) : part();
        shape a(ta), b(tb ? tb : ta), y(ty);
        const numbers &va = load(ta), &vb = load(tb ? tb : ta);
        numbers result(y.elements());
        y.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
            double x = va[a.at(n, c, h, w)], z = vb[b.at(n, c, h, w)];
            result[y.at(n, c, h, w)] = mode == 0 ? x + z : mode == 1 ? x * z : mode == 9 ? x - z : mode == 100 ? (x > 0 || (propagates && x != x) ? x : 0)
                : mode == 106 ? x / (1 + exp(-x)) : mode == 200 ? (z > 0 ? x : 0) : NAN;
        });
        store(ty, result);
    }

    // Sums of f over all positions, for each channel.
    template <class F> numbers sums(const shape& s, F f) {
        numbers all(s.dims[1]);
        s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) { all[c] += f(s.at(n, c, h, w), c); });
        return all;
    }

    // Sums in f32, of each line, then of the lines: of results that are not rounded yet.
    void statistics(const part& op) {
        shape s(op->of(772));
        const numbers x = load(op->of(772));
        std::vector<float> line(2), all(2 * s.dims[1]);
        s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
            float one = (float)x[s.at(n, c, h, w)];
            line[0] += one, line[1] += one * one;
            if (w + 1 < s.dims[3]) return;
            all[2 * c] += line[0], all[2 * c + 1] += line[1];
            line = {0, 0};
        });
        for (int square = 0; square < 2; ++square) {
            numbers of(s.dims[1]);
            for (int64_t c = 0; c < s.dims[1]; ++c) of[c] = all[2 * c + square];
            store(op->of(773 + square), of);
        }
    }

    // Batch norm from its definition: with moments of its own, or with those that are given.
    void batch_norm(const part& op) {
        shape s(op->of(2002));
        const numbers x = load(op->of(2002)), scale = load(op->of(2005)), shift = load(op->of(2006));
        double count = (double)s.elements() / s.dims[1];
        bool training = op->get<int>(2001) == 1;
        numbers mean, inverse;
        if (training) {
            mean = sums(s, [&](int64_t i, int64_t) { return x[i] / count; });
            inverse = sums(s, [&](int64_t i, int64_t c) { return (x[i] - mean[c]) * (x[i] - mean[c]) / count; });
            double epsilon = load(op->of(2007))[0];
            for (double& one : inverse) one = 1 / sqrt(one + epsilon);
            store(op->of(2003), mean), store(op->of(2004), inverse);
        } else {
            mean = load(op->of(2003)), inverse = load(op->of(2004));
        }
        numbers y(x.size());
        s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
            int64_t i = s.at(n, c, h, w);
            y[i] = (x[i] - mean[c]) * inverse[c] * scale[c] + shift[c];
        });
        store(op->of(2013), y);
    }
    void batch_norm_back(const part& op) {
        shape s(op->of(2101));
        const numbers x = load(op->of(2101)), mean = load(op->of(2102)), inverse = load(op->of(2103)), dy = load(op->of(2104)), scale = load(op->of(2105));
        double count = (double)s.elements() / s.dims[1];
        auto normal = [&](int64_t i, int64_t c) { return (x[i] - mean[c]) * inverse[c]; };
        numbers dshift = sums(s, [&](int64_t i, int64_t) { return dy[i]; });
        numbers dscale = sums(s, [&](int64_t i, int64_t c) { return dy[i] * normal(i, c); });
        numbers dx(x.size());
        s.each([&](int64_t n, int64_t c, int64_t h, int64_t w) {
            int64_t i = s.at(n, c, h, w);
            dx[i] = scale[c] * inverse[c] * (dy[i] - dshift[c] / count - normal(i, c) * dscale[c] / count);
        });
        store(op->of(2107), dscale), store(op->of(2108), dshift), store(op->of(2109), dx);
    }

    void norm(const part& op) {
        shape s(op->of(1624));
        const numbers mean = load(op->of(1621)), inverse = load(op->of(1622)), scale = load(op->of(1623)), x = load(op->of(1624)), dy = load(op->of(1625));
        double count = (double)s.elements() / s.dims[1];
        numbers dbias = sums(s, [&](int64_t i, int64_t) { return dy[i]; });
        numbers dscale = sums(s, [&](int64_t i, int64_t c) { return dy[i] * (x[i] - mean[c]) * inverse[c]; });
        numbers a(s.dims[1]), b(s.dims[1]), rest(s.dims[1]);
        for (size_t c = 0; c < a.size(); ++c) {
            a[c] = scale[c] * inverse[c];
            b[c] = -a[c] * inverse[c] * dscale[c] / count;
            rest[c] = -a[c] * dbias[c] / count - b[c] * mean[c];
        }
        store(op->of(1626), dscale), store(op->of(1627), dbias), store(op->of(1628), a), store(op->of(1629), b), store(op->of(1630), rest);
    }
};

int finalize(const part& p) {
    const form& f = FORMS.at(p->kind);
    for (int name : f.must)
        if (!p->has(name)) return refuse(BAD_PARAM, "attribute " + std::to_string(name) + " is missing");
    for (auto& set : p->attributes)
        for (auto& child : set.second.parts)
            if (!child->finalized) return refuse(NOT_FINALIZED, "attribute " + std::to_string(set.first) + " is not finalized");
    if (p->kind == TENSOR)
        for (int i = 0; i < 4; ++i)
            if (p->get<int64_t>(902, i) < 1 || p->count(903, 8) != 4) return refuse(BAD_PARAM, "a tensor's size");
    if (p->kind == CONV && (p->get<int>(101) != 1 || p->get<int>(100) != F32)) return refuse(NOT_SUPPORTED, "the kind of convolution");
    if (p->kind == DEVICE && p->has(2702) && p->get<char>(2702) != '{') return refuse(BAD_PARAM, "json");
    if (p->kind == DEVICE && !p->has(2702) && !p->has(2701)) return refuse(BAD_PARAM, "neither handle nor json");
    if (p->kind == HEUR) {
        // As the library: what it has no engine for has no result, and that is no error.
        // Setting `no_fusions` leaves graphs of several operations without engines.
        attribute results{DESCRIPTOR, {}, {}};
        bool fuses = p->of(201)->attributes[801].parts.size() > 1;
        for (int number = 0; number < (fuses && mock.numbers["no_fusions"] ? 0 : 2); ++number) {
            part result = std::make_shared<data>(data{CONFIG, true});
            result->attributes[GRAPH_OF] = attribute{DESCRIPTOR, {}, {p->of(201)}};
            result->number = number;
            result->fuses = fuses;
            results.parts.push_back(result);
        }
        p->attributes[202] = results;
    }
    if (p->kind == PLAN) ++mock.numbers["plans"];
    if (p->kind == PLAN && !p->has(400) && !p->has(407)) return refuse(BAD_PARAM, "neither handle nor device");
    p->finalized = true;
    return SUCCESS;
}

// The only numerical note of an engine; -1 if it has none. Setting `numerics` is that of each engine, and `first_numerics` that of each
// graph's first one, from 1 on.
int numerical_note(int number) {
    int note = (int)mock.numbers["numerics"] - 1;
    return note < 0 && number == 0 ? (int)mock.numbers["first_numerics"] - 1 : note;
}

int execute(const part& plan, const part& pack, bool rounds) {
    memset(pack->get<void*>(1003), 0x5a, WORKSPACE);
    run r;
    r.rounds = rounds;
    for (size_t i = 0; i < pack->count(1000, 8); ++i) r.memory[pack->get<int64_t>(1000, i)] = pack->get<void*>(1001, i);
    for (const part& op : plan->of(401)->of(GRAPH_OF)->attributes[801].parts)
        switch (op->kind) {
            case FORWARD: r.convolve(op, 700); break;
            case DATA: r.convolve(op, 706); break;
            case WEIGHTS: r.convolve(op, 712); break;
            case POINTWISE: r.pointwise(op); break;
            case STATS: r.statistics(op); break;
            case NORM: r.norm(op); break;
            case BATCH_NORM: r.batch_norm(op); break;
            case BATCH_NORM_BACK: r.batch_norm_back(op); break;
            default: return NOT_SUPPORTED;
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
long mock_get(const char* name) {
    std::string n = name;
    return n == "descriptors" ? mock.descriptors.size() : n == "handles" ? mock.handles.size() : mock.number(n);
}
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }

// Setting `newer` makes it another version.
size_t cudnnGetVersion() { return 91900 + !!mock.numbers["newer"]; }
size_t cudnnGetCudartVersion() { return 13000; }
const char* cudnnGetErrorString(int code) {
    return code == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : code == NOT_FINALIZED ? "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"
        : code == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : code == EXECUTION_FAILED ? "CUDNN_STATUS_EXECUTION_FAILED" : nullptr;
}
void cudnnGetLastErrorString(char* text, size_t room) {
    snprintf(text, room, "%s", mock.details.c_str());
    mock.details.clear();
}
int cudnnCreate(handle** made) { ENTER; mock.handles.insert(*made = new handle); return SUCCESS; }
int cudnnDestroy(handle* h) { ENTER; mock.handles.erase(h); delete h; return SUCCESS; }
int cudnnSetStream(handle* h, void* stream) { ENTER; h->stream = stream; return SUCCESS; }

int cudnnBackendCreateDescriptor(int kind, descriptor** made) {
    ENTER;
    if (!FORMS.count(kind)) return refuse(NOT_SUPPORTED, "an unknown kind of descriptor");
    mock.descriptors.insert(*made = new descriptor{std::make_shared<data>(data{kind})});
    return SUCCESS;
}
int cudnnBackendDestroyDescriptor(descriptor* d) {
    ENTER;
    if (!mock.descriptors.erase(d)) return BAD_PARAM;
    delete d;
    return SUCCESS;
}
int cudnnBackendFinalize(descriptor* d) { ENTER; return mock.descriptors.count(d) ? finalize(d->p) : BAD_PARAM; }

int cudnnBackendSetAttribute(descriptor* d, int name, int type, int64_t count, const void* values) {
    ENTER;
    if (!mock.descriptors.count(d) || d->p->finalized) return refuse(BAD_PARAM, "finalized");
    const form& f = FORMS.at(d->p->kind);
    auto may = f.may.find(name);
    if (may == f.may.end() || may->second != type || count < 1) return refuse(BAD_PARAM, "attribute " + std::to_string(name));
    attribute a{type, {}, {}};
    a.bytes.assign((const char*)values, (const char*)values + count * SIZES.at(type));
    if (type == DESCRIPTOR)
        for (int64_t i = 0; i < count; ++i) {
            descriptor* child = ((descriptor* const*)values)[i];
            if (!mock.descriptors.count(child)) return refuse(BAD_PARAM, "no descriptor");
            a.parts.push_back(child->p);
        }
    d->p->attributes[name] = a;
    return SUCCESS;
}

int cudnnBackendGetAttribute(descriptor* d, int name, int type, int64_t room, int64_t* count, void* to) {
    ENTER;
    if (!mock.descriptors.count(d)) return BAD_PARAM;
    auto give = [&](const void* from, int64_t elements) {
        *count = elements;
        if (to) memcpy(to, from, SIZES.at(type) * (room < elements ? room : elements));
        return SUCCESS;
    };
    int kind = d->p->kind;
    if (kind == DEVICE && name == 2702 && type == CHAR) return give(SHEET, strlen(SHEET) + 1);
    if (kind == CONFIG && name == 300 && type == DESCRIPTOR) {
        part engine = std::make_shared<data>(data{ENGINE});
        engine->number = d->p->number;
        engine->fuses = d->p->fuses;
        if (room > 0) (*(descriptor**)to)->p = engine;
        *count = 1;
        return SUCCESS;
    }
    if (kind == ENGINE && name == 1301 && type == INT64) { int64_t number = 7 + d->p->number; return give(&number, 1); }
    // Setting `compiles` makes engines compile, `fusions_compile` those of graphs of several operations.
    if (kind == ENGINE && name == 1305 && type == NOTE) {
        int note = 0;
        return give(&note, mock.numbers["compiles"] || (d->p->fuses && mock.numbers["fusions_compile"]));
    }
    if (kind == ENGINE && name == 1303 && type == NUMERICS) {
        int note = numerical_note(d->p->number);
        return give(&note, note >= 0);
    }
    if (!d->p->finalized) return refuse(NOT_FINALIZED, "");
    if (kind == PLAN && name == 402 && type == INT64) return give(&WORKSPACE, 1);
    if (kind == HEUR && name == 202 && type == DESCRIPTOR) {
        const std::vector<part>& results = d->p->attributes[202].parts;
        *count = results.size();
        for (int64_t i = 0; to && i < room && i < *count; ++i) {
            descriptor* into = ((descriptor**)to)[i];
            if (!mock.descriptors.count(into)) return BAD_PARAM;
            into->p = results[i];
        }
        return SUCCESS;
    }
    return refuse(BAD_PARAM, "attribute " + std::to_string(name));
}

int cudnnBackendExecute(handle* h, descriptor* plan, descriptor* pack) {
    ENTER;
    if (!mock.handles.count(h) || !h->stream || !plan->p->finalized || !pack->p->finalized) return BAD_PARAM;
    if (!pack->p->get<void*>(1003)) return refuse(BAD_PARAM, "no workspace");
    part made = plan->p, bound = pack->p;
    bool is_first = made->of(401)->number == 0;
    // Setting `slow_first` makes the first engine of each graph wait, `slow_others` all others; `fails_first` makes the first fail,
    // `fails_all` each; `slow_fusions` and `slow_plain` make graphs of several operations wait, and those of one.
    if (is_first && mock.numbers["fails_first"]) return refuse(EXECUTION_FAILED, "the first engine fails");
    if (mock.numbers["fails_all"]) return refuse(EXECUTION_FAILED, "each engine fails");
    bool rounds = numerical_note(made->of(401)->number) == TENSOR_CORES;
    bool fuses = made->of(401)->fuses;
    bool is_slow = mock.numbers[is_first ? "slow_first" : "slow_others"] || mock.numbers[fuses ? "slow_fusions" : "slow_plain"];
    return give(h->stream, [=] {
        if (is_slow) usleep(3000);
        return execute(made, bound, rounds);
    });
}

}
