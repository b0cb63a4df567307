// Stands in for libnccl: ranks are threads or processes that meet in a file of shared memory, which the id of a communicator names.
// What a call asks for is given to the stream, waits there for the other ranks, and is done by each of them: results are sums in the
// order of ranks. An operation that was aborted leaves numbers without meaning. Calls that fail are set for the process.
//
// Environment: MOCK_NCCL_ERROR_AT, the number of the operation, from 1, that never comes, with an error that is told later;
// MOCK_NCCL_VARIABLES, a file to which NCCL_ALGO, NCCL_PROTO and NCCL_SOCKET_IFNAME are written as a communicator sees them.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "floats.h"
#include "streams.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6 };
enum { U8 = 1, I32 = 2, F16 = 6, F32 = 7, BF16 = 9 };
enum { SUM = 0, MAX = 2, MIN = 3, MEAN = 4 };
enum { MOST_RANKS = 8, CHUNK = 1 << 18 };

struct id { char bytes[128]; };

// One operation as one rank asks for it.
struct asked {
    bool is_broadcast;
    uint64_t count;
    int type, what;  // reduction or root
    bool fits(const asked& other) const {
        return is_broadcast == other.is_broadcast && count == other.count && type == other.type && what == other.what;
    }
};

// What a rank shows the others: how often it has shown and read something, and a piece of its tensor.
struct shown {
    std::atomic<int> joined;
    std::atomic<long> given, taken;
    asked what;
    char piece[CHUNK];
};
struct world { std::atomic<int> ranks; shown of[MOST_RANKS]; };

struct communicator {
    world* all;
    int rank, ranks;
    long number = 0, turn = 0;
    std::atomic<bool> aborted{false};
    std::atomic<int> error{0};
    ~communicator() { munmap(all, sizeof(world)); }
};
// Operations that wait keep their communicator.
typedef std::shared_ptr<communicator> kept;

std::atomic<long> live{0};
std::mutex lock;
struct everything : counted { std::string details; } mock;
thread_local int depth = 0;

int enter(const char* call) { std::lock_guard<std::mutex> held(lock); return mock.enter(call); }
int refuse(int code, const char* why) {
    std::lock_guard<std::mutex> held(lock);
    mock.details = why;
    return code;
}

size_t size_of(int type) { return type == U8 ? 1 : type == I32 || type == F32 ? 4 : type == BF16 || type == F16 ? 2 : 0; }

double read(int type, const char* at, size_t i) {
    if (type == U8) return ((const uint8_t*)at)[i];
    if (type == I32) return ((const int*)at)[i];
    if (type == F32) return ((const float*)at)[i];
    return type == BF16 ? bf16_value(((const uint16_t*)at)[i]) : half_value(((const uint16_t*)at)[i]);
}
void write(int type, char* at, size_t i, double value) {
    if (type == U8) ((uint8_t*)at)[i] = (uint8_t)value;
    else if (type == I32) ((int*)at)[i] = (int)value;
    else if (type == F32) ((float*)at)[i] = (float)value;
    else ((uint16_t*)at)[i] = type == BF16 ? bf16_bits(value) : half_bits(value);
}

// False where the operation was aborted.
template <class F> bool wait_for(communicator& c, F done) {
    while (!done()) {
        if (c.aborted) return false;
        usleep(20);
    }
    return true;
}

// Until every rank has given, or taken, as often as this one.
bool wait_for_all(communicator& c, std::atomic<long> shown::*count) {
    return wait_for(c, [&] {
        for (int r = 0; r < c.ranks; ++r) if ((c.all->of[r].*count) < c.turn) return false;
        return true;
    });
}

int perform(communicator& c, const asked& a, const char* from, char* to) {
    size_t size = size_of(a.type), bytes = a.count * size;
    long error_at = getenv("MOCK_NCCL_ERROR_AT") ? atol(getenv("MOCK_NCCL_ERROR_AT")) : 0;
    if (++c.number == error_at) {
        c.error = REMOTE_ERROR;
        wait_for(c, [] { return false; });
    }
    shown& own = c.all->of[c.rank];
    for (size_t begin = 0; begin < bytes || begin == 0; begin += CHUNK) {
        size_t some = bytes - begin < CHUNK ? bytes - begin : CHUNK;
        bool whole = wait_for_all(c, &shown::taken);
        if (whole) {
            memcpy(own.piece, from + begin, some);
            own.what = a;
            own.given = ++c.turn;
            whole = wait_for_all(c, &shown::given);
        }
        if (!whole) {
            memset(to, 0xff, bytes);
            return SUCCESS;
        }
        int code = SUCCESS;
        for (int r = 0; r < c.ranks; ++r) if (!c.all->of[r].what.fits(a)) code = INVALID_USAGE;
        for (size_t i = 0; i < some / size && !code; ++i) {
            double result = read(a.type, c.all->of[a.is_broadcast ? a.what : 0].piece, i);
            for (int r = 1; r < c.ranks && !a.is_broadcast; ++r) {
                double x = read(a.type, c.all->of[r].piece, i);
                result = a.what == MAX ? (x > result ? x : result) : a.what == MIN ? (x < result ? x : result) : result + x;
                if (a.type == F32) result = (float)result;
            }
            if (!a.is_broadcast && a.what == MEAN) result /= c.ranks;
            write(a.type, to + begin, i, result);
        }
        own.taken = c.turn;
        if (code) return refuse(code, "ranks ask for different things");
    }
    return SUCCESS;
}

int ask(kept* handle, const asked& a, const void* from, void* to, void* stream) {
    if (!handle || !stream || !size_of(a.type) || (a.count && (!from || !to))) return INVALID_ARGUMENT;
    kept c = *handle;
    return give(stream, [=] { return perform(*c, a, (const char*)from, (char*)to); });
}

void tell_variables() {
    const char* path = getenv("MOCK_NCCL_VARIABLES");
    if (!path) return;
    if (FILE* file = fopen(path, "a")) {
        for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_SOCKET_IFNAME"}) fprintf(file, "%s=%s\n", name, getenv(name) ? getenv(name) : "");
        fclose(file);
    }
}

}  // namespace

#define ENTER if (int code = enter(__func__)) return code

extern "C" {

void mock_set(const char* name, long value) {
    std::lock_guard<std::mutex> held(lock);
    if (!strcmp(name, "reset")) mock = everything();
    else if (!strcmp(name, "forget")) live = 0;
    else mock.numbers[name] = value;
}
long mock_get(const char* name) {
    std::lock_guard<std::mutex> held(lock);
    return strcmp(name, "communicators") ? mock.number(name) : live.load();
}
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }

int ncclGetVersion(int* version) { ENTER; *version = 22809; return SUCCESS; }
const char* ncclGetErrorString(int code) {
    return code == SYSTEM_ERROR ? "unhandled system error" : code == INVALID_ARGUMENT ? "invalid argument" : code == INVALID_USAGE ? "invalid usage"
        : code == REMOTE_ERROR ? "remote process exited or there was a network error" : nullptr;
}
const char* ncclGetLastError(void*) {
    std::lock_guard<std::mutex> held(lock);
    thread_local std::string details;
    details = mock.details;
    mock.details.clear();
    return details.c_str();
}
int ncclGetUniqueId(id* made) {
    ENTER;
    memset(made, 0, sizeof *made);
    strcpy(made->bytes, "/tmp/mock-nccl-XXXXXX");
    int file = mkstemp(made->bytes);
    if (file < 0) return SYSTEM_ERROR;
    bool is_long = ftruncate(file, sizeof(world)) == 0;
    close(file);
    return is_long ? SUCCESS : SYSTEM_ERROR;
}
int ncclCommInitRank(kept** made, int ranks, id shared, int rank) {
    ENTER;
    tell_variables();
    if (ranks > MOST_RANKS) return INVALID_ARGUMENT;
    int file = open(shared.bytes, O_RDWR);
    if (file < 0) return refuse(INVALID_ARGUMENT, "there is no such id");
    void* memory = mmap(nullptr, sizeof(world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return SYSTEM_ERROR;
    kept c = std::make_shared<communicator>();
    c->all = (world*)memory;
    c->rank = rank;
    c->ranks = ranks;
    int none = 0;
    if (!c->all->ranks.compare_exchange_strong(none, ranks) && none != ranks)
        return refuse(INVALID_USAGE, "ranks disagree on their number");
    if (c->all->of[rank].joined.exchange(1)) return refuse(INVALID_USAGE, "a rank joins twice");
    wait_for(*c, [&] {
        for (int r = 0; r < ranks; ++r) if (!c->all->of[r].joined) return false;
        return true;
    });
    unlink(shared.bytes);
    *made = new kept(c);
    ++live;
    return SUCCESS;
}
int ncclCommDestroy(kept* c) { ENTER; delete c; --live; return SUCCESS; }
int ncclCommAbort(kept* c) {
    ENTER;
    mock_set("aborted", mock_get("aborted") + 1);
    (*c)->aborted = true;
    delete c;
    --live;
    return SUCCESS;
}
int ncclCommGetAsyncError(kept* c, int* code) {
    ENTER;
    *code = (*c)->error ? (*c)->error.load() : (int)mock_get("state");
    return SUCCESS;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, kept* c, void* stream) {
    ENTER;
    return ask(c, asked{false, count, type, reduction}, from, to, stream);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, kept* c, void* stream) {
    ENTER;
    return ask(c, asked{true, count, type, root}, from, to, stream);
}
// Each operation of a group is given at once: ranks of one thread are beyond this mock.
int ncclGroupStart() { ENTER; ++depth; return SUCCESS; }
int ncclGroupEnd() {
    // A group whose end is refused is closed all the same.
    int code = enter(__func__);
    if (depth == 0) return INVALID_USAGE;
    --depth;
    return code;
}

}
