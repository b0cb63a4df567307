// Work of libraries in the order of the driver's streams, so that graphs record it.

#include <dlfcn.h>

#include <functional>

static inline int give(void* stream, std::function<int()> work) {
    typedef int give_to(void*, int (*)(void*), void*, void (*)(void*));
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    give_to* to = driver ? (give_to*)dlsym(driver, "mock_give") : nullptr;
    if (driver) dlclose(driver);
    if (!to) return work();
    auto run = [](void* work) { return (*(std::function<int()>*)work)(); };
    auto drop = [](void* work) { delete (std::function<int()>*)work; };
    return to(stream, run, new std::function<int()>(work), drop);
}
