// A program that is linked with the library of this source. Like sloppy programs, it passes memory from C++'s operators to free(3), and the
// reverse. It also asks for the usable size of such memory. Memory from the other library's own functions stays with that library. With
// LIBRARY defined, this file is the library.
#ifdef LIBRARY
// A library with an allocator, like libjemalloc. It has all of C's functions, glibc's second names for them, and C++'s operators. It
// recognises its own memory, and ends a program that passes it any other memory.
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <atomic>
#include <new>

static unsigned char memory[256 << 20];
static std::atomic<size_t> used{64};

static void *handed_out(size_t size, size_t align) {
    if (size > sizeof memory / 2) {
        errno = ENOMEM;
        return nullptr;
    }
    size_t room = size + align + 16, end = used.fetch_add(room) + room;
    if (end > sizeof memory) {
        errno = ENOMEM;
        return nullptr;
    }
    uintptr_t at = (reinterpret_cast<uintptr_t>(memory) + end - size) & ~(align - 1);
    memcpy(reinterpret_cast<void *>(at - 8), &size, 8);
    return reinterpret_cast<void *>(at);
}

static size_t length(void *at) {
    unsigned char *byte = static_cast<unsigned char *>(at);
    if (byte < memory || byte >= memory + sizeof memory) {
        static const char said[] = "the other allocator was given memory that is not its own\n";
        (void)!write(2, said, sizeof said - 1);
        _exit(98);
    }
    size_t size;
    memcpy(&size, byte - 8, 8);
    return size;
}

static void taken_back(void *at) {
    if (at) length(at);
}

static void *aligned(size_t align, size_t size) { return handed_out(size, align < 16 ? 16 : align); }

// These functions do not call each other by names that another library may define.
extern "C" {
void *malloc(size_t size) { return handed_out(size, 16); }
void free(void *at) { taken_back(at); }
void *calloc(size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? nullptr : handed_out(bytes, 16);
}
void *realloc(void *at, size_t size) {
    void *grown = handed_out(size, 16);
    if (at && grown) memcpy(grown, at, length(at) < size ? length(at) : size);
    return grown;
}
void *memalign(size_t align, size_t size) { return aligned(align, size); }
void *aligned_alloc(size_t align, size_t size) { return aligned(align, size); }
int posix_memalign(void **place, size_t align, size_t size) {
    *place = aligned(align, size);
    return *place ? 0 : ENOMEM;
}
size_t malloc_usable_size(void *at) { return at ? length(at) : 0; }
int malloc_trim(size_t) {
    static const char said[] = "the other allocator was asked to trim its heap\n";
    (void)!write(2, said, sizeof said - 1);
    _exit(97);
}
// Some builds of jemalloc have these functions.
void *__libc_malloc(size_t size) { return handed_out(size, 16); }
void __libc_free(void *at) { taken_back(at); }
void *__libc_calloc(size_t count, size_t size) { return handed_out(count * size, 16); }
void *__libc_memalign(size_t align, size_t size) { return aligned(align, size); }

// Functions that no other library has, like jemalloc's mallocx and sdallocx.
void *other_malloc(size_t size) { return handed_out(size, 16); }
void other_free(void *at) { length(at); }
}

static void *found(void *at) { return at ? at : throw std::bad_alloc(); }
using std::align_val_t;
void *operator new(size_t size) { return found(handed_out(size, 16)); }
void *operator new[](size_t size) { return found(handed_out(size, 16)); }
void *operator new(size_t size, const std::nothrow_t &) noexcept { return handed_out(size, 16); }
void *operator new[](size_t size, const std::nothrow_t &) noexcept { return handed_out(size, 16); }
void *operator new(size_t size, align_val_t align) { return found(aligned(size_t(align), size)); }
void *operator new[](size_t size, align_val_t align) { return found(aligned(size_t(align), size)); }
void *operator new(size_t size, align_val_t align, const std::nothrow_t &) noexcept { return aligned(size_t(align), size); }
void *operator new[](size_t size, align_val_t align, const std::nothrow_t &) noexcept { return aligned(size_t(align), size); }
void operator delete(void *at) noexcept { taken_back(at); }
void operator delete[](void *at) noexcept { taken_back(at); }
void operator delete(void *at, size_t) noexcept { taken_back(at); }
void operator delete[](void *at, size_t) noexcept { taken_back(at); }
void operator delete(void *at, const std::nothrow_t &) noexcept { taken_back(at); }
void operator delete[](void *at, const std::nothrow_t &) noexcept { taken_back(at); }
void operator delete(void *at, align_val_t) noexcept { taken_back(at); }
void operator delete[](void *at, align_val_t) noexcept { taken_back(at); }
void operator delete(void *at, size_t, align_val_t) noexcept { taken_back(at); }
void operator delete[](void *at, size_t, align_val_t) noexcept { taken_back(at); }
void operator delete(void *at, align_val_t, const std::nothrow_t &) noexcept { taken_back(at); }
void operator delete[](void *at, align_val_t, const std::nothrow_t &) noexcept { taken_back(at); }
#else
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
#endif
