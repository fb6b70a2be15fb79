/* Runs no_memory.cc, which is linked in. With an argument, a program without a C++ library loads it with RTLD_LOCAL
   instead. */
#include "check.h"

#include <dlfcn.h>

#ifdef __cplusplus
extern "C"
#endif
__attribute__((weak)) void check_no_memory(void);

int main(int argc, char **argv) {
    void (*check)(void) = check_no_memory;
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        check = (void (*)(void))dlsym(library, "check_no_memory");
    }
    CHECK(check);
    check();
    puts("ok");
}
