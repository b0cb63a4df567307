// Stands in for libnvrtc: compiles the text of kernels with the host's compiler. The "cubin" is a header and a shared
// library, which the mock of the driver knows how to load.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"

#include <atomic>
#include <mutex>
#include <string>

namespace {

struct program { std::string text, log, cubin; };

enum { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6, INTERNAL = 11 };

// Of all threads together: kernels are compiled beside each other.
struct everything : counted {
    std::mutex lock;
    std::atomic<long> programs{0};
    int enter(const char* call) { std::lock_guard<std::mutex> held(lock); return counted::enter(call); }
};

everything mock;

std::string read_all(const std::string& path) {
    std::string all;
    if (FILE* file = fopen(path.c_str(), "rb")) {
        char buffer[1 << 16];
        for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;) all.append(buffer, n);
        fclose(file);
    }
    return all;
}

// A line SHIM_ENTRY(name, waits) for each kernel: whether its threads ever wait for each other.
std::string entries(const std::string& text) {
    const std::string head = "extern \"C\" __global__ void ", bounds = "__launch_bounds__(";
    std::string lines;
    for (size_t at = 0; (at = text.find(head, at)) != std::string::npos;) {
        at += head.size();
        if (text.compare(at, bounds.size(), bounds) == 0) at = text.find(") ", at) + 2;
        std::string own = text.substr(at, text.find(head, at) - at);
        bool waits = false;
        for (const char* word : {"__syncthreads", "__shfl", "reduce_row"}) waits |= own.find(word) != std::string::npos;
        lines += "SHIM_ENTRY(" + own.substr(0, own.find('(')) + (waits ? ", true)\n" : ", false)\n");
    }
    return lines;
}

}  // namespace

#define ENTER if (int code = mock.enter(__func__)) return code

extern "C" {

void mock_set(const char* name, long value) {
    std::lock_guard<std::mutex> held(mock.lock);
    if (!strcmp(name, "reset")) (counted&)mock = counted(), mock.programs = 0;
    else mock.numbers[name] = value;
}
long mock_get(const char* name) { return !strcmp(name, "programs") ? mock.programs.load() : mock.number(name); }
const char* mock_failed() { return mock.failed; }
const char* mock_call(long number) { return mock.name_of(number); }

int nvrtcVersion(int* major, int* minor) { ENTER; *major = 13; *minor = 0; return SUCCESS; }

const char* nvrtcGetErrorString(int code) {
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : code == SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR";
}

int nvrtcCreateProgram(program** made, const char* text, const char*, int headers, const char* const*, const char* const*) {
    ENTER;
    if (headers != 0) return INVALID_INPUT;
    *made = new program{text, "", ""};
    ++mock.programs;
    return SUCCESS;
}

int nvrtcCompileProgram(program* p, int count, const char* const* options) {
    ENTER;
    bool named = false;
    for (int i = 0; i < count; ++i) named |= strncmp(options[i], "--gpu-architecture=sm_", 22) == 0;
    if (!named) return INVALID_INPUT;
    char folder[] = "/tmp/mock-nvrtc-XXXXXX";
    if (!mkdtemp(folder)) return INTERNAL;
    std::string at = folder;
    FILE* file = fopen((at + "/kernel.cpp").c_str(), "wb");
    if (!file) return INTERNAL;
    std::string whole = p->text + "\n" + entries(p->text);
    fwrite(whole.data(), 1, whole.size(), file);
    fclose(file);
    std::string command = std::string(COMPILER) + " -std=c++17 -Og -w -fno-strict-aliasing -U_FORTIFY_SOURCE -shared -fPIC -include " SHIM " -o " +
                          at + "/kernel.so " + at + "/kernel.cpp 2> " + at + "/log";
    int failed = system(command.c_str());
    p->log = read_all(at + "/log");
    std::string library = read_all(at + "/kernel.so");
    for (const char* name : {"/kernel.cpp", "/kernel.so", "/log"}) unlink((at + name).c_str());
    rmdir(folder);
    if (failed || library.empty()) return COMPILATION;
    p->cubin = library;
    return SUCCESS;
}

int nvrtcGetProgramLogSize(program* p, size_t* size) { ENTER; *size = p->log.size() + 1; return SUCCESS; }
int nvrtcGetProgramLog(program* p, char* log) { ENTER; memcpy(log, p->log.c_str(), p->log.size() + 1); return SUCCESS; }
int nvrtcGetCUBINSize(program* p, size_t* size) { ENTER; *size = p->cubin.size(); return SUCCESS; }
int nvrtcGetCUBIN(program* p, char* cubin) { ENTER; memcpy(cubin, p->cubin.data(), p->cubin.size()); return SUCCESS; }
int nvrtcDestroyProgram(program** p) { ENTER; delete *p; --mock.programs; *p = nullptr; return SUCCESS; }

}
