// A program that is linked with other_lib.cc. Like sloppy programs, it frees memory of C++'s operators by free(3), and
// the reverse. It asks for the length of such memory. Memory of the other library's own functions stays with that
// library.
#include "check.h"

#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

extern "C" void *other_malloc(size_t size);
extern "C" void other_free(void *at);

static void use() {
    for (size_t i = 0; i < SIZE_COUNT - 1; i++) {
        size_t size = SIZES[i];
        char *plain = static_cast<char *>(malloc(size));
        CHECK(plain && malloc_usable_size(plain) >= size);
        fill(plain, size, i);
        plain = static_cast<char *>(realloc(plain, size + 100));
        CHECK(plain && malloc_usable_size(plain) >= size + 100 && is_filled(plain, size < 64 ? size : 64, i));
        free(plain);
        free(hidden(::operator new(size)));
        ::operator delete(hidden(malloc(size)));
        ::operator delete[](hidden(::operator new[](size, std::nothrow)), size);
        void *aligned = ::operator new(size, std::align_val_t(256));
        CHECK(reinterpret_cast<uintptr_t>(aligned) % 256 == 0 && malloc_usable_size(aligned) >= size);
        ::operator delete(aligned, size, std::align_val_t(256));
        ::operator delete[](hidden(::operator new[](size, std::align_val_t(64), std::nothrow)), std::align_val_t(64));
        CHECK(posix_memalign(&aligned, 64, size) == 0 && malloc_usable_size(aligned) >= size);
        free(aligned);
        void *others = other_malloc(size);
        CHECK(others);
        fill(others, size, i);
        other_free(others);
    }
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < 2000; i++) map[std::to_string(i % 97) + std::string(40, 'x')].push_back(i);
    char *copy = strdup(map.begin()->first.c_str());
    CHECK(malloc_usable_size(copy) >= 41 && malloc_usable_size(nullptr) == 0);
    free(copy);
}

int main(int argc, char **) {
    use();
    std::thread(use).join();
    if (argc > 1) malloc_trim(0);
    puts("ok");
}
