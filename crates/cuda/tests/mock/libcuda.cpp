// Stands in for libcuda.so.1: the device's memory is the host's, kernels are what the mock of NVRTC compiled. All state
// but the number of devices belongs to the calling thread, so that tests run beside each other; a context that one thread took may
// be made current by others, which then see nothing of it.
//
// Work is done when it is given, unless the setting `seed` is not 0: then it waits in its stream, the nodes of a graph in that graph,
// and is done in a random order of those that streams and events allow, some of it at any call, unless the setting `lazy` is not 0,
// the rest when it is waited for.
//
// Environment: MOCK_DEVICES (1), MOCK_INIT_CODE (0), MOCK_DRIVER_VERSION (13000), MOCK_MEMORY (150754820096), MOCK_LOST_AT (0),
// MOCK_FAIL_AT (0) and MOCK_FAIL_CODE (0) as the settings of these names; MOCK_KILL_AT (0), the number of the call at which the
// process ends as if it were killed; MOCK_CALLS, a file that gets the names of all calls.

#include <dlfcn.h>
#include <elf.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNJOINED = 904,
};

const size_t GUARD = 64;
const unsigned char GUARD_BYTE = 0xa5;

struct node { std::function<int()> work; std::set<size_t> after; };
typedef std::vector<node> nodes;
struct graph { nodes work; bool valid = true; };
// What waits in a stream: work, once what another stream did has happened.
struct item { std::function<int()> work; std::shared_ptr<bool> after; };
struct stream {
    graph* recording = nullptr;
    bool origin = false, unjoined = false;
    std::set<size_t> tails;  // nodes that the next one recorded comes after
    std::deque<item> queue;
};
struct event {
    double seconds = 0;
    bool recorded = false;
    stream* from = nullptr;
    graph* of = nullptr;
    std::set<size_t> tails;
    std::shared_ptr<bool> happened;
};
struct module { void* library; };
struct function {
    int (*launch)(const unsigned*, const unsigned*, void**, int, int (*is_known)(const void*), char* (*memory)(size_t),
                  int (*guard)(int (*)(void*), void*));
    int (*take)(void**, uint64_t*);
};
struct executable { std::shared_ptr<nodes> work; };

long setting(const char* name, long otherwise) {
    const char* text = getenv(name);
    return text ? atol(text) : otherwise;
}

struct everything : counted {
    everything() {
        numbers["fail_at"] = setting("MOCK_FAIL_AT", 0);
        numbers["fail_code"] = setting("MOCK_FAIL_CODE", 0);
    }

    // 0, or the code that the call is to answer.
    int enter(const char* call) {
        static const long kill_at = setting("MOCK_KILL_AT", 0);
        static FILE* const names = getenv("MOCK_CALLS") ? fopen(getenv("MOCK_CALLS"), "w") : nullptr;
        int code = counted::enter(call);
        if (names) fprintf(names, "%s\n", call);
        if ((long)calls.size() == kill_at) raise(SIGKILL);
        return code;
    }

    int current = 0;
    std::map<uint64_t, size_t> memory;
    std::map<void*, size_t> host;
    std::set<stream*> streams;
    std::set<event*> events;
    std::set<module*> modules;
    std::map<module*, std::vector<function*>> functions;
    std::set<graph*> graphs;
    std::set<executable*> executables;
    std::vector<stream*> capturing;
    uint64_t random = 0;
    int broken = 0;  // what failed while it waited; every wait answers it from then on
    int lost = 0;    // what a kernel broke the device with; every call answers it from then on
};

thread_local everything mock;
std::atomic<long> contexts{0};  // of all threads

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

// Where `bytes` from `address` lie in one live allocation.
bool lives(uint64_t address, size_t bytes) {
    auto after = mock.memory.upper_bound(address);
    if (after == mock.memory.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second;
}

int is_known(const void* pointer) { return lives((uint64_t)pointer, 1) || mock.host.count((void*)pointer); }

// Where a thread goes on whose kernel reads or writes what is no memory.
thread_local sigjmp_buf* landing = nullptr;
struct sigaction before_segv, before_bus;

void on_fault(int number, siginfo_t*, void*) {
    if (landing) siglongjmp(*landing, 1);
    // Not a kernel's: the instruction faults again, where it is reported as ever.
    sigaction(number, number == SIGSEGV ? &before_segv : &before_bus, nullptr);
}

// At least so much memory, which the thread keeps.
char* memory_of_thread(size_t bytes) {
    static thread_local std::unique_ptr<char[]> kept;
    static thread_local size_t room;
    if (room < bytes) kept.reset(new char[room = bytes]);
    return kept.get();
}

// Runs a kernel. An access to what is no memory ends it, as on a GPU.
int guard(int (*work)(void*), void* data) {
    static const bool installed = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
        return true;
    }();
    (void)installed;
    sigjmp_buf here;
    if (sigsetjmp(here, 1)) {
        landing = nullptr;
        return ILLEGAL_ADDRESS;
    }
    landing = &here;
    int code = work(data);
    landing = nullptr;
    return code;
}

// Bytes of the device's memory.
size_t total() { return setting("MOCK_MEMORY", 150754820096); }

size_t used() {
    size_t sum = 0;
    for (auto& block : mock.memory) sum += block.second;
    return sum;
}

size_t random_below(size_t limit) {
    mock.random = mock.random * 6364136223846793005 + 1442695040888963407;
    return (mock.random >> 33) % limit;
}

// Does one of the things that may be done next. False where there is none.
bool advance() {
    std::vector<stream*> ready;
    for (stream* s : mock.streams)
        if (!s->queue.empty() && (!s->queue.front().after || *s->queue.front().after)) ready.push_back(s);
    if (ready.empty()) return false;
    stream* s = ready[random_below(ready.size())];
    item first = s->queue.front();
    s->queue.pop_front();
    int code = mock.broken ? SUCCESS : first.work();
    if (code) mock.broken = code;
    return true;
}

int wait_until(std::function<bool()> done) {
    while (!done())
        if (!advance()) return LAUNCH_FAILED;
    return mock.broken;
}

int wait_for_all() {
    return wait_until([] {
        for (stream* s : mock.streams) if (!s->queue.empty()) return false;
        return true;
    });
}

int enqueue(stream* s, item one) {
    s->queue.push_back(one);
    for (size_t some = mock.number("lazy") ? 0 : random_below(4); some > 0; --some) advance();
    return mock.broken;
}

// Runs a graph: in the order in which it was recorded, or any other that its nodes allow.
int run_all(const nodes& all) {
    std::vector<bool> done(all.size());
    for (size_t left = all.size(); left > 0; --left) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < all.size() && (ready.empty() || mock.random); ++i) {
            bool free = !done[i];
            for (size_t before : all[i].after) free = free && done[before];
            if (free) ready.push_back(i);
        }
        size_t next = ready[mock.random ? random_below(ready.size()) : 0];
        done[next] = true;
        if (int code = all[next].work()) return code;
    }
    return SUCCESS;
}

// Runs now, or some time, or when the graph that the stream records is launched.
int give(stream* s, std::function<int()> work) {
    if (s && !mock.streams.count(s)) return INVALID_HANDLE;
    if (s && s->recording) {
        s->recording->work.push_back({work, s->tails});
        s->tails = {s->recording->work.size() - 1};
        s->unjoined = !s->origin;
        return SUCCESS;
    }
    if (s && mock.random) return enqueue(s, {work, nullptr});
    return work();
}

// Runs a kernel. Of those that run, number `lost_at` breaks the device, which is asynchronous: the launch itself succeeds; number
// `idle_at` does nothing; number `stray_at` also changes the byte in front of the memory that it takes last.
int run_kernel(const std::function<int()>& work, uint64_t last) {
    static const long lost_at = setting("MOCK_LOST_AT", 0);
    long number = ++mock.numbers["ran"];
    if (number == (mock.numbers["lost_at"] ? mock.numbers["lost_at"] : lost_at)) mock.lost = ILLEGAL_ADDRESS;
    if (mock.lost || number == mock.numbers["idle_at"]) return SUCCESS;
    int code = work();
    if (number == mock.numbers["stray_at"] && lives(last - 1, 1)) ++*(unsigned char*)(last - 1);
    return code;
}

// Calls that a thread may not make while it captures.
int forbidden_in_capture() {
    for (stream* s : mock.capturing) s->recording->valid = false;
    return mock.capturing.empty() ? SUCCESS : CAPTURE_UNSUPPORTED;
}

const std::map<int, std::pair<const char*, const char*>> MEANINGS = {
    {1, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {2, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {100, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {200, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {201, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {400, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
    {500, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {700, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
    {719, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
    {803, {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"}},
    {900, {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"}},
    {901, {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"}},
    {904, {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"}},
};

}  // namespace

#define ENTER if (int code = mock.enter(__func__)) return code
#define ENTER_ALIVE ENTER; if (mock.lost) return mock.lost
#define IN_CONTEXT ENTER_ALIVE; if (!mock.current) return INVALID_CONTEXT

extern "C" {

// For tests: settings (fail_at, fail_code, lost_at, idle_at, stray_at, reverse, seed, lazy) and counts. `reset` clears all counts, `forget` those of memory.
void mock_set(const char* name, long value) {
    if (!strcmp(name, "reset")) mock = everything();
    else if (!strcmp(name, "forget")) mock.memory.clear();
    else if (!strcmp(name, "seed")) mock.random = value;
    else mock.numbers[name] = value;
}
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }
long mock_get(const char* name) {
    std::string n = name;
    if (n == "memory") return mock.memory.size();
    if (n == "host") return mock.host.size();
    if (n == "streams") return mock.streams.size();
    if (n == "events") return mock.events.size();
    if (n == "modules") return mock.modules.size();
    if (n == "graphs") return mock.graphs.size();
    if (n == "executables") return mock.executables.size();
    return mock.number(n);
}

int cuInit(unsigned) {
    ENTER;
    if (long code = setting("MOCK_INIT_CODE", 0)) return code;
    return setting("MOCK_DEVICES", 1) ? SUCCESS : NO_DEVICE;
}
int cuDriverGetVersion(int* version) { ENTER; *version = setting("MOCK_DRIVER_VERSION", 13000); return SUCCESS; }
int cuGetErrorName(int code, const char** text) {
    auto found = MEANINGS.find(code);
    *text = found == MEANINGS.end() ? nullptr : found->second.first;
    return *text ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorString(int code, const char** text) {
    auto found = MEANINGS.find(code);
    *text = found == MEANINGS.end() ? nullptr : found->second.second;
    return *text ? SUCCESS : INVALID_VALUE;
}
int cuDeviceGetCount(int* count) { ENTER; *count = setting("MOCK_DEVICES", 1); return SUCCESS; }
int cuDeviceGet(int* device, int ordinal) {
    ENTER;
    *device = ordinal;
    return ordinal < setting("MOCK_DEVICES", 1) ? SUCCESS : INVALID_DEVICE;
}
int cuDeviceGetName(char* name, int size, int) { ENTER; snprintf(name, size, "NVIDIA H200 (mock)"); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { ENTER; *bytes = total(); return SUCCESS; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    ENTER;
    const std::map<int, int> values = {
        {13, 1980000}, {16, 132}, {36, 3201000}, {37, 6144}, {38, 62914560}, {75, 9}, {76, 0}};
    auto found = values.find(attribute);
    if (found == values.end()) return INVALID_VALUE;
    *value = found->second;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    ENTER;
    ++mock.numbers["contexts"];
    ++contexts;
    *context = (void*)(uintptr_t)(device + 1);
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    ENTER_ALIVE;
    --contexts;
    if (--mock.numbers["contexts"] == 0) mock.current = 0;
    return SUCCESS;
}
int cuCtxSetCurrent(void* context) {
    ENTER_ALIVE;
    if (!mock.numbers["contexts"] && !contexts) return INVALID_CONTEXT;
    mock.current = (int)(uintptr_t)context;
    return SUCCESS;
}
int cuCtxSynchronize() {
    IN_CONTEXT;
    int code = forbidden_in_capture();
    return code ? code : wait_for_all();
}
int cuMemGetInfo_v2(size_t* free, size_t* all) { IN_CONTEXT; *all = total(); *free = *all - used(); return SUCCESS; }

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    IN_CONTEXT;
    if (int code = forbidden_in_capture()) return code;
    if (bytes == 0) return INVALID_VALUE;
    if (bytes > total() - used()) return OUT_OF_MEMORY;
    char* whole = (char*)aligned_alloc(256, (bytes + 256 + GUARD + 255) / 256 * 256);
    if (!whole) return OUT_OF_MEMORY;
    memset(whole, GUARD_BYTE, 256);
    memset(whole + 256, 0xff, bytes);
    memset(whole + 256 + bytes, GUARD_BYTE, GUARD);
    *address = (uint64_t)(whole + 256);
    mock.memory[*address] = bytes;
    return SUCCESS;
}
int cuMemFree_v2(uint64_t address) {
    IN_CONTEXT;
    wait_for_all();
    auto found = mock.memory.find(address);
    if (found == mock.memory.end()) return INVALID_VALUE;
    const unsigned char* at = (const unsigned char*)address;
    bool whole = true;
    for (size_t i = 0; i < GUARD; ++i) whole &= at[found->second + i] == GUARD_BYTE && at[-1 - (long)i] == GUARD_BYTE;
    mock.numbers["damaged"] += !whole;
    free((char*)address - 256);
    mock.memory.erase(found);
    return SUCCESS;
}
int cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
    IN_CONTEXT;
    if (int code = forbidden_in_capture()) return code;
    *pointer = malloc(bytes);
    memset(*pointer, 0xff, bytes);
    mock.host[*pointer] = bytes;
    return SUCCESS;
}
int cuMemFreeHost(void* pointer) {
    IN_CONTEXT;
    wait_for_all();
    if (!mock.host.erase(pointer)) return INVALID_VALUE;
    free(pointer);
    return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, stream* s) {
    IN_CONTEXT;
    if (s->recording && !mock.host.count((void*)from)) return CAPTURE_UNSUPPORTED;
    return give(s, [=] { return lives(to, bytes) ? memcpy((void*)to, from, bytes), SUCCESS : INVALID_VALUE; });
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, stream* s) {
    IN_CONTEXT;
    if (s->recording && !mock.host.count(to)) return CAPTURE_UNSUPPORTED;
    return give(s, [=] { return lives(from, bytes) ? memcpy(to, (void*)from, bytes), SUCCESS : INVALID_VALUE; });
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, stream* s) {
    IN_CONTEXT;
    return give(s, [=] {
        if (!lives(to, bytes) || !lives(from, bytes)) return INVALID_VALUE;
        memmove((void*)to, (void*)from, bytes);
        return SUCCESS;
    });
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, stream* s) {
    IN_CONTEXT;
    return give(s, [=] { return lives(to, bytes) ? memset((void*)to, byte, bytes), SUCCESS : INVALID_VALUE; });
}

int cuStreamCreate(stream** made, unsigned) { IN_CONTEXT; mock.streams.insert(*made = new stream); return SUCCESS; }
int cuStreamDestroy_v2(stream* s) {
    IN_CONTEXT;
    wait_for_all();
    if (!mock.streams.erase(s)) return INVALID_HANDLE;
    delete s;
    return SUCCESS;
}
int cuStreamSynchronize(stream* s) {
    IN_CONTEXT;
    if (!mock.streams.count(s)) return INVALID_HANDLE;
    return s->recording ? forbidden_in_capture() : wait_until([=] { return s->queue.empty(); });
}
int cuStreamBeginCapture_v2(stream* s, int) {
    IN_CONTEXT;
    if (!mock.streams.count(s) || s->recording) return INVALID_HANDLE;
    mock.graphs.insert(s->recording = new graph);
    s->origin = true;
    s->tails.clear();
    mock.capturing.push_back(s);
    return SUCCESS;
}
int cuStreamEndCapture(stream* s, graph** made) {
    int code = mock.enter(__func__);
    if (!s->recording || !s->origin) return INVALID_HANDLE;
    graph* g = s->recording;
    for (stream* other : mock.capturing)
        if (other != s && other->recording == g && other->unjoined && !code) code = CAPTURE_UNJOINED;
    if (!g->valid && !code) code = CAPTURE_INVALIDATED;
    std::vector<stream*> left;
    for (stream* other : mock.capturing) {
        if (other->recording != g) left.push_back(other);
        else {
            other->recording = nullptr;
            other->origin = other->unjoined = false;
        }
    }
    mock.capturing = left;
    if (code) {
        mock.graphs.erase(g);
        delete g;
        g = nullptr;
    }
    *made = g;
    return code;
}
int cuGraphGetNodes(graph* g, void**, size_t* count) {
    ENTER;
    *count = g->work.size();
    return mock.graphs.count(g) ? SUCCESS : INVALID_HANDLE;
}
int cuGraphInstantiateWithFlags(executable** made, graph* g, unsigned long long) {
    IN_CONTEXT;
    if (!mock.graphs.count(g)) return INVALID_HANDLE;
    mock.executables.insert(*made = new executable{std::make_shared<nodes>(g->work)});
    return SUCCESS;
}
int cuGraphLaunch(executable* e, stream* s) {
    IN_CONTEXT;
    if (!mock.executables.count(e)) return INVALID_HANDLE;
    auto kept = e->work;
    return give(s, [=] { return run_all(*kept); });
}
int cuGraphExecDestroy(executable* e) {
    IN_CONTEXT;
    if (!mock.executables.erase(e)) return INVALID_HANDLE;
    delete e;
    return SUCCESS;
}
int cuGraphDestroy(graph* g) {
    IN_CONTEXT;
    if (!mock.graphs.erase(g)) return INVALID_HANDLE;
    delete g;
    return SUCCESS;
}

int cuEventCreate(event** made, unsigned) { IN_CONTEXT; mock.events.insert(*made = new event); return SUCCESS; }
int cuEventDestroy_v2(event* e) {
    IN_CONTEXT;
    if (!mock.events.erase(e)) return INVALID_HANDLE;
    delete e;
    return SUCCESS;
}
int cuEventRecord(event* e, stream* s) {
    IN_CONTEXT;
    if (!mock.events.count(e) || !mock.streams.count(s)) return INVALID_HANDLE;
    e->seconds = now();
    e->recorded = true;
    e->from = s;
    e->of = s->recording;
    e->tails = s->tails;
    if (s->recording || !mock.random) return SUCCESS;
    auto happened = e->happened = std::make_shared<bool>(false);
    return enqueue(s, {[=] { *happened = true; return (int)SUCCESS; }, nullptr});
}
int cuStreamWaitEvent(stream* s, event* e, unsigned) {
    IN_CONTEXT;
    if (!mock.events.count(e) || !mock.streams.count(s)) return INVALID_HANDLE;
    if (!e->of) return e->happened ? enqueue(s, {[] { return (int)SUCCESS; }, e->happened}) : SUCCESS;
    if (s->recording && s->recording == e->of) s->tails.insert(e->tails.begin(), e->tails.end());
    if (s->recording) {
        if (s->recording == e->of && mock.streams.count(e->from)) e->from->unjoined = false;
        return s->recording == e->of ? SUCCESS : INVALID_VALUE;
    }
    s->recording = e->of;
    s->tails = e->tails;
    s->unjoined = true;
    mock.capturing.push_back(s);
    return SUCCESS;
}
int cuEventSynchronize(event* e) {
    IN_CONTEXT;
    if (!mock.events.count(e)) return INVALID_HANDLE;
    int code = forbidden_in_capture();
    return code ? code : wait_until([=] { return !e->happened || *e->happened; });
}
int cuEventElapsedTime(float* milliseconds, event* from, event* to) {
    ENTER_ALIVE;
    if (!from->recorded || !to->recorded || from->of || to->of) return INVALID_HANDLE;
    *milliseconds = (float)((to->seconds - from->seconds) * 1e3);
    return SUCCESS;
}

int cuModuleLoadData(module** made, const void* image) {
    IN_CONTEXT;
    // A shared library, whose sections end with the table of them.
    const Elf64_Ehdr* header = (const Elf64_Ehdr*)image;
    if (memcmp(image, ELFMAG, SELFMAG)) return INVALID_IMAGE;
    uint64_t size = header->e_shoff + (uint64_t)header->e_shnum * header->e_shentsize;
    char path[] = "/tmp/mock-module-XXXXXX";
    int file = mkstemp(path);
    bool written = write(file, image, size) == (ssize_t)size;
    close(file);
    void* library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    unlink(path);
    if (!library) return INVALID_IMAGE;
    mock.modules.insert(*made = new module{library});
    return SUCCESS;
}
int cuModuleUnload(module* m) {
    IN_CONTEXT;
    wait_for_all();
    if (!mock.modules.erase(m)) return INVALID_HANDLE;
    for (function* f : mock.functions[m]) delete f;
    mock.functions.erase(m);
    dlclose(m->library);
    delete m;
    return SUCCESS;
}
int cuModuleGetFunction(function** made, module* m, const char* name) {
    IN_CONTEXT;
    if (!mock.modules.count(m)) return INVALID_HANDLE;
    function f;
    *(void**)&f.launch = dlsym(m->library, (std::string("shim_launch_") + name).c_str());
    *(void**)&f.take = dlsym(m->library, (std::string("shim_take_") + name).c_str());
    if (!f.launch || !f.take) return NOT_FOUND;
    mock.functions[m].push_back(*made = new function(f));
    return SUCCESS;
}
int cuFuncGetAttribute(int* value, int attribute, function*) {
    IN_CONTEXT;
    *value = attribute == 4 ? 32 : 0;
    return SUCCESS;
}
int cuLaunchKernel(function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, stream* s, void** values, void**) {
    IN_CONTEXT;
    unsigned long threads = (unsigned long)bx * by * bz;
    if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535 || threads == 0 || threads > 1024 || shared) return INVALID_VALUE;
    // A kernel has 4 KB of parameters.
    uint64_t taken[8 * 512];
    int count = f->take(values, taken);
    if (count > 512) return INVALID_VALUE;
    std::vector<uint64_t> kept(taken, taken + count);
    int reverse = (int)mock.numbers["reverse"];
    ++mock.numbers["launches"];
    return give(s, [=]() mutable {
        std::vector<void*> pointers;
        for (uint64_t& value : kept) pointers.push_back(&value);
        unsigned grid[] = {gx, gy, gz}, block[] = {bx, by, bz};
        auto launch = [&] { return f->launch(grid, block, pointers.data(), reverse, is_known, memory_of_thread, guard); };
        return run_kernel(launch, kept.back());
    });
}

// For the mocks of libraries: gives their work to a stream.
int mock_give(stream* s, int (*work)(void*), void* data, void (*drop)(void*)) {
    std::shared_ptr<void> kept(data, drop);
    if (mock.lost) return mock.lost;
    return give(s, [=] { return work(kept.get()); });
}

// For NVIDIA's libraries, which look for functions of the driver when they start. They succeed and do nothing, but for
// handles and sizes that must not be zero.
#define NOTHING(name) int name() { return SUCCESS; }
#define A_HANDLE(name) int name(void** made) { *made = (void*)1; return SUCCESS; }
NOTHING(cuCtxGetCurrent) NOTHING(cuCtxGetLimit) NOTHING(cuCtxPopCurrent) NOTHING(cuCtxPushCurrent)
NOTHING(cuKernelGetAttribute) NOTHING(cuKernelSetAttribute) NOTHING(cuLaunchCooperativeKernel) NOTHING(cuLaunchKernelEx)
NOTHING(cuLibraryUnload) NOTHING(cuLinkAddData) NOTHING(cuLinkComplete) NOTHING(cuLinkCreate) NOTHING(cuLinkDestroy)
NOTHING(cuStreamGetCtx)
A_HANDLE(cuKernelGetFunction) A_HANDLE(cuLibraryGetKernel) A_HANDLE(cuLibraryLoadData) A_HANDLE(cuLibraryLoadFromFile)
int cuOccupancyMaxPotentialClusterSize(int* blocks) { *blocks = 8; return SUCCESS; }
int cuOccupancyMaxActiveClusters(int* clusters) { *clusters = 16; return SUCCESS; }

int cuGetExportTable(const void**, const void*) { return NOT_FOUND; }
// CUDA's runtime inside of those libraries takes every function by its name.
int cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
    Dl_info own;
    dladdr((void*)cuStreamGetCtx, &own);
    void* library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = dlsym(library, (std::string(name) + "_v2").c_str());
    if (!*function) *function = dlsym(library, name);
    if (!*function) *function = (void*)cuStreamGetCtx;
    dlclose(library);
    if (status) *status = 0;
    return SUCCESS;
}

}
