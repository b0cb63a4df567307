// Stands in for libnccl: ranks are threads of one process that meet in memory. What a call asks for is done when all
// ranks have asked, or at the end of its group. Each thread sets for itself which calls fail.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum { U8 = 1, I32 = 2, F16 = 6, F32 = 7, BF16 = 9 };
enum { SUM = 0, MAX = 2, MIN = 3, MEAN = 4 };

struct id { char bytes[128]; };

// One operation as one rank asks for it.
struct asked {
    bool is_broadcast;
    const void* from;
    void* to;
    size_t count;
    int type, what;  // reduction or root
};
struct meeting {
    std::map<int, asked> ranks;
    int code = -1;  // -1 until it is done
};
struct world {
    int ranks;
    std::map<int, bool> joined;
    std::map<long, meeting> meetings;
};
struct communicator { std::shared_ptr<world> all; int rank; long number = 0; };

std::mutex lock;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<world>> worlds;
std::atomic<long> live{0}, made_ids{0};

struct everything : counted {
    std::string details;
    int depth = 0;
    std::vector<std::pair<communicator*, asked>> group;
};
thread_local everything mock;

int refuse(int code, const char* why) { mock.details = why; return code; }

size_t size_of(int type) { return type == U8 ? 1 : type == I32 || type == F32 ? 4 : type == BF16 ? 2 : 0; }

double read(const asked& a, size_t i) {
    if (a.type == U8) return ((const uint8_t*)a.from)[i];
    if (a.type == I32) return ((const int*)a.from)[i];
    if (a.type == F32) return ((const float*)a.from)[i];
    uint32_t bits = (uint32_t)((const uint16_t*)a.from)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
void write(const asked& a, size_t i, double value) {
    if (a.type == U8) ((uint8_t*)a.to)[i] = (uint8_t)value;
    else if (a.type == I32) ((int*)a.to)[i] = (int)value;
    else if (a.type == F32) ((float*)a.to)[i] = (float)value;
    else {
        float x = (float)value;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        ((uint16_t*)a.to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

// Does what all ranks asked for.
int perform(const meeting& m, int ranks) {
    const asked& first = m.ranks.begin()->second;
    for (auto& r : m.ranks)
        if (r.second.count != first.count || r.second.type != first.type || r.second.what != first.what || r.second.is_broadcast != first.is_broadcast)
            return INVALID_USAGE;
    if (!size_of(first.type)) return INVALID_ARGUMENT;
    for (size_t i = 0; i < first.count; ++i) {
        double result = first.is_broadcast ? read(m.ranks.at(first.what), i) : read(first, i);
        if (!first.is_broadcast)
            for (auto r = ++m.ranks.begin(); r != m.ranks.end(); ++r) {
                double x = read(r->second, i);
                result = first.what == MAX ? (x > result ? x : result) : first.what == MIN ? (x < result ? x : result) : result + x;
            }
        if (!first.is_broadcast && first.what == MEAN) result /= ranks;
        for (auto& r : m.ranks) write(r.second, i, result);
    }
    return SUCCESS;
}

// Says what each communicator asks for, then waits until all ranks have said it.
int meet(const std::vector<std::pair<communicator*, asked>>& all) {
    std::unique_lock<std::mutex> held(lock);
    std::vector<std::pair<world*, long>> waiting;
    for (auto& one : all) {
        world* w = one.first->all.get();
        long number = one.first->number++;
        meeting& m = w->meetings[number];
        m.ranks[one.first->rank] = one.second;
        if ((int)m.ranks.size() == w->ranks) m.code = perform(m, w->ranks);
        waiting.push_back({w, number});
    }
    changed.notify_all();
    int code = SUCCESS;
    for (auto& one : waiting) {
        changed.wait(held, [&] { return one.first->meetings[one.second].code >= 0; });
        int own = one.first->meetings[one.second].code;
        if (own) code = refuse(own, "ranks ask for different things");
    }
    return code;
}

int ask(communicator* c, const asked& a, void* stream) {
    if (!c || !stream || (a.count && (!a.from || !a.to))) return INVALID_ARGUMENT;
    if (mock.depth) { mock.group.push_back({c, a}); return SUCCESS; }
    return meet({{c, a}});
}

}  // namespace

#define ENTER if (int code = mock.enter(__func__)) return code

extern "C" {

void mock_set(const char* name, long value) {
    if (!strcmp(name, "reset")) mock = everything();
    else if (!strcmp(name, "forget")) live = 0;
    else mock.numbers[name] = value;
}
long mock_get(const char* name) { return strcmp(name, "communicators") ? mock.number(name) : live.load(); }
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }

int ncclGetVersion(int* version) { ENTER; *version = 22809; return SUCCESS; }
const char* ncclGetErrorString(int code) {
    return code == SYSTEM_ERROR ? "unhandled system error" : code == INVALID_ARGUMENT ? "invalid argument" : code == INVALID_USAGE ? "invalid usage"
        : code == 6 ? "remote process exited or there was a network error" : nullptr;
}
const char* ncclGetLastError(void*) {
    thread_local std::string details;
    details = mock.details;
    mock.details.clear();
    return details.c_str();
}
int ncclGetUniqueId(id* made) {
    ENTER;
    memset(made, 0, sizeof *made);
    long number = ++made_ids;
    memcpy(made->bytes + 60, &number, sizeof number);
    return SUCCESS;
}
int ncclCommInitRank(communicator** made, int ranks, id shared, int rank) {
    ENTER;
    std::unique_lock<std::mutex> held(lock);
    auto& w = worlds[std::string(shared.bytes, sizeof shared.bytes)];
    if (!w) w = std::make_shared<world>(world{ranks});
    if (w->ranks != ranks) return refuse(INVALID_USAGE, "ranks disagree on their number");
    if (w->joined[rank]) return refuse(INVALID_USAGE, "a rank joins twice");
    w->joined[rank] = true;
    changed.notify_all();
    auto all = w;
    changed.wait(held, [&] { return (int)all->joined.size() == all->ranks; });
    *made = new communicator{all, rank};
    ++live;
    return SUCCESS;
}
int ncclCommDestroy(communicator* c) { ENTER; delete c; --live; return SUCCESS; }
int ncclCommAbort(communicator* c) { ENTER; ++mock.numbers["aborted"]; delete c; --live; return SUCCESS; }
int ncclCommGetAsyncError(communicator*, int* code) { ENTER; *code = (int)mock.numbers["state"]; return SUCCESS; }

int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, communicator* c, void* stream) {
    ENTER;
    return ask(c, asked{false, from, to, count, type, reduction}, stream);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, communicator* c, void* stream) {
    ENTER;
    return ask(c, asked{true, from, to, count, type, root}, stream);
}
int ncclGroupStart() { ENTER; ++mock.depth; return SUCCESS; }
int ncclGroupEnd() {
    // A group whose end is refused is closed all the same.
    int code = mock.enter(__func__);
    if (mock.depth == 0) return INVALID_USAGE;
    auto all = mock.group;
    if (--mock.depth == 0) mock.group.clear();
    return code ? code : mock.depth ? SUCCESS : meet(all);
}

}
