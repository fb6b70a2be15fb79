// Checks that all of C++'s operators reach the library: plain, aligned, nothrow, sized, and array forms.
#include "check.h"

#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

struct alignas(256) Wide {
    char bytes[100000];
};

int main(int argc, char **) {
    size_t huge = static_cast<size_t>(PTRDIFF_MAX) - 4096 * argc;
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        void *plain = ::operator new(SIZES[i]);
        fill(plain, SIZES[i], i);
        void *nothrow = ::operator new[](SIZES[i], std::nothrow);
        CHECK(nothrow && nothrow != plain);
        for (size_t align = 32; align <= 1 << 21; align *= 4) {
            void *aligned = ::operator new(SIZES[i], std::align_val_t(align));
            CHECK(reinterpret_cast<uintptr_t>(aligned) % align == 0);
            fill(aligned, SIZES[i], align);
            CHECK(is_filled(aligned, SIZES[i], align) && is_filled(plain, SIZES[i], i));
            ::operator delete(aligned, SIZES[i], std::align_val_t(align));
            aligned = ::operator new[](SIZES[i], std::align_val_t(align), std::nothrow);
            CHECK(reinterpret_cast<uintptr_t>(aligned) % align == 0);
            ::operator delete[](aligned, std::align_val_t(align), std::nothrow);
        }
        ::operator delete(plain, SIZES[i]);
        ::operator delete[](nothrow, std::nothrow);
    }
    CHECK(hidden(::operator new(hidden_size(huge), std::nothrow)) == nullptr);
    CHECK(hidden(::operator new(hidden_size(huge), std::align_val_t(4096), std::nothrow)) == nullptr);
    bool thrown = false;
    try {
        ::operator delete(hidden(::operator new(hidden_size(huge))));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    std::map<std::string, std::vector<std::unique_ptr<Wide>>> all;
    for (int i = 0; i < 200; i++) {
        auto &wide = all[std::to_string(i % 17)];
        wide.push_back(std::make_unique<Wide>());
        CHECK(reinterpret_cast<uintptr_t>(wide.back().get()) % 256 == 0);
        fill(wide.back()->bytes, sizeof wide.back()->bytes, i);
    }
    for (int i = 0; i < 200; i++) CHECK(is_filled(all[std::to_string(i % 17)][i / 17]->bytes, sizeof(Wide::bytes), i));
    all.clear();
    puts("ok");
}
