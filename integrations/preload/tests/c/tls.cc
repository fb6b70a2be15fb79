// When a thread first touches thread-local memory, the loader allocates (dtv). For destructors of thread-locals, the C library allocates.
// Both allocations may happen inside another one, and must not need the state that it is about to set up. A thread that ends frees this
// memory. With LIBRARY defined, this file is the library.
#ifdef LIBRARY
// A library with its own thread-local memory. The test builds many copies of it.
#include <stdlib.h>

static __thread char block[200];
static __thread void *kept;

extern "C" void *touch(void) {
    block[7]++;
    if (!kept) kept = malloc(100000);
    return kept;
}
#else
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <thread>
#include <vector>

struct Kept {
    std::vector<std::vector<char>> all;
    ~Kept() {
        // Allocates and frees while the thread ends.
        for (size_t size : {16, 1000, 70000, 300000}) all.emplace_back(size, 'x');
    }
};

static std::vector<void *(*)()> touches;

static void use() {
    thread_local Kept kept;
    for (size_t round = 0; round < 5; round++) {
        for (size_t size : {24, 900, 66000, 500000}) kept.all.emplace_back(size, 'y');
        for (auto touch : touches) CHECK(touch());
    }
    for (auto touch : touches) free(touch());
}

static pthread_key_t key;
static void on_end(void *at) {
    free(at);
    free(hidden(malloc(80000)));
}

int main(int argc, char **argv) {
    pthread_key_create(&key, on_end);
    std::vector<std::thread> waiting;
    for (int i = 1; i < argc; i++) {
        // No function has this name, so dlerror allocates a message.
        CHECK(!dlsym(RTLD_DEFAULT, "no_such_function_anywhere") && dlerror());
        void *library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        touches.push_back(reinterpret_cast<void *(*)()>(dlsym(library, "touch")));
        CHECK(touches.back());
        // A new thread touches the thread-local memory of all libraries loaded so far.
        std::thread([] {
            pthread_setspecific(key, malloc(90000));
            use();
        }).join();
    }
    std::vector<std::thread> threads;
    for (int i = 0; i < 32; i++) threads.emplace_back(use);
    for (auto &thread : threads) thread.join();
    puts("ok");
}
#endif
