// Work of libraries in the order of the driver's streams, so that graphs record it.

#include <dlfcn.h>

#include <functional>
#include <string>

static inline int give(void* stream, std::function<int()> work) {
    typedef int give_to(void*, int (*)(void*), void*, void (*)(void*));
    // The driver that lies beside this library: a process may have opened several.
    Dl_info own;
    dladdr((void*)give, &own);
    std::string path = own.dli_fname;
    void* driver = dlopen((path.substr(0, path.rfind('/')) + "/libcuda.so.1").c_str(), RTLD_NOW | RTLD_NOLOAD);
    give_to* to = driver ? (give_to*)dlsym(driver, "mock_give") : nullptr;
    if (driver) dlclose(driver);
    if (!to) return work();
    auto run = [](void* work) { return (*(std::function<int()>*)work)(); };
    auto drop = [](void* work) { delete (std::function<int()>*)work; };
    return to(stream, run, new std::function<int()>(work), drop);
}
