// Checks what C++ guarantees when there is no memory. operator new calls the new-handler as long as one is installed.
// Then it throws std::bad_alloc through frames that are cleaned up. Forms that do not throw return null.
#include "check.h"

#include <new>

static int called;
static void *kept;

static void gives_up_at_the_third_call() {
    if (++called == 3) std::set_new_handler(nullptr);
}

static void throws() {
    called++;
    throw std::bad_alloc();
}

static int cleaned;
struct Cleaned {
    ~Cleaned() { cleaned++; }
};

template <class New> static bool is_thrown(New make) {
    try {
        Cleaned on_the_way;
        kept = hidden(make());
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

extern "C" void check_no_memory(void) {
    size_t huge = hidden_size(static_cast<size_t>(PTRDIFF_MAX) - 4096);
    auto plain = [=] { return ::operator new(huge); };
    auto array = [=] { return ::operator new[](huge); };
    auto aligned = [=] { return ::operator new(huge, std::align_val_t(4096)); };
    auto aligned_array = [=] { return ::operator new[](huge, std::align_val_t(64)); };
    for (int round = 0; round < 3; round++) {
        cleaned = 0;
        CHECK(is_thrown(plain) && is_thrown(array) && is_thrown(aligned) && is_thrown(aligned_array) && cleaned == 4);
        CHECK(called == 0);
        std::set_new_handler(gives_up_at_the_third_call);
        CHECK(is_thrown(plain) && called == 3 && std::get_new_handler() == nullptr);
        called = 0;
        std::set_new_handler(gives_up_at_the_third_call);
        CHECK(is_thrown(aligned_array) && called == 3);
        called = 0;
        std::set_new_handler(throws);
        CHECK(is_thrown(plain) && called == 1 && is_thrown(aligned) && called == 2);
        CHECK(::operator new(huge, std::nothrow) == nullptr && called == 3);
        CHECK(::operator new[](huge, std::nothrow) == nullptr && called == 4);
        CHECK(::operator new(huge, std::align_val_t(64), std::nothrow) == nullptr && called == 5);
        CHECK(::operator new[](huge, std::align_val_t(64), std::nothrow) == nullptr && called == 6);
        called = 0;
        std::set_new_handler(nullptr);
    }
    CHECK(::operator new(huge, std::nothrow) == nullptr);
    CHECK(::operator new[](huge, std::align_val_t(4096), std::nothrow) == nullptr);
}

#ifndef LIBRARY
int main() {
    check_no_memory();
    puts("ok");
}
#endif
