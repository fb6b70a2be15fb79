/* A program without a C++ library that still calls C++'s operators, which the preloaded library defines. */
#include "check.h"

__attribute__((weak)) void *_Znwm(size_t size);
__attribute__((weak)) void *_ZnwmRKSt9nothrow_t(size_t size, const void *tag);
__attribute__((weak)) void _ZdlPv(void *at);

int main(void) {
    CHECK(_Znwm && _ZdlPv && _ZnwmRKSt9nothrow_t);
    size_t huge = hidden_size((size_t)PTRDIFF_MAX - 4096);
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        _ZdlPv(hidden(_Znwm(SIZES[i])));
        free(hidden(_ZnwmRKSt9nothrow_t(SIZES[i], "")));
    }
    CHECK(_ZnwmRKSt9nothrow_t(huge, "") == NULL);
    puts("ok");
    fflush(stdout);
    CHECK(_Znwm(huge));
}
