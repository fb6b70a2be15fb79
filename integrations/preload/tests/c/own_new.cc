// A program that defines only the plainest `operator new` and `operator delete`. By the C++ standard, the other forms call these two. Their
// memory has 16 bytes in front, so the program detects code that mistakes it for malloc's memory.
#include "check.h"

#include <memory>
#include <new>
#include <string>
#include <vector>

static int made, freed;

void *operator new(size_t size) {
    char *at = static_cast<char *>(malloc(size + 16));
    if (!at || size > PTRDIFF_MAX / 2) {
        free(at);
        throw std::bad_alloc();
    }
    made++;
    memcpy(at, "made by this new", 16);
    return at + 16;
}

void operator delete(void *at) noexcept {
    if (!at) return;
    char *start = static_cast<char *>(at) - 16;
    CHECK(memcmp(start, "made by this new", 16) == 0);
    memset(start, 0, 16);
    freed++;
    free(start);
}

int main(int argc, char **) {
    size_t huge = static_cast<size_t>(PTRDIFF_MAX) - 4096 * argc;
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        size_t size = SIZES[i];
        ::operator delete(hidden(::operator new(size)), size);
        ::operator delete[](hidden(::operator new[](size)));
        ::operator delete[](hidden(::operator new[](size)), size);
        ::operator delete(hidden(::operator new(size, std::nothrow)), std::nothrow);
        ::operator delete[](hidden(::operator new[](size, std::nothrow)), std::nothrow);
        CHECK(made == freed && made == 5 * static_cast<int>(i + 1));
        // The aligned forms do not call the plain ones.
        ::operator delete(hidden(::operator new(size, std::align_val_t(64))), std::align_val_t(64));
    }
    CHECK(hidden(::operator new(hidden_size(huge), std::nothrow)) == nullptr);
    CHECK(hidden(::operator new[](hidden_size(huge), std::nothrow)) == nullptr);
    {
        std::vector<std::unique_ptr<std::string>> strings;
        for (int i = 0; i < 1000; i++) strings.push_back(std::make_unique<std::string>(100 + i, 'x'));
    }
    CHECK(made == freed && made > 2000);
    puts("ok");
}
