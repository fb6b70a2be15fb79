/* Checks that each function behaves as its manual page says: sizes, alignments, contents, errors. */
#include "check.h"

#include <stdalign.h>

extern void cfree(void *) __attribute__((weak));
extern void free_sized(void *, size_t) __attribute__((weak));
extern void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));

static int is_aligned(const void *at, size_t align) { return ((uintptr_t)at & (align - 1)) == 0; }

static void lengths(void) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        size_t size = SIZES[i];
        errno = 77;
        unsigned char *at = malloc(size);
        CHECK(at && is_aligned(at, alignof(max_align_t)) && malloc_usable_size(at) >= size);
        /* All of the usable size can be written. */
        size_t usable = malloc_usable_size(at);
        memset(at, 1, usable < 4 * size + 100 ? usable : size);
        free(at);
        at = calloc(size, 1);
        CHECK(at && is_zero(at, size));
        memset(at, 0xff, size);
        free(at);
        /* calloc must zero memory that was used before. */
        at = calloc(1, size);
        CHECK(at && is_zero(at, size));
        free(at);
        for (size_t align = 8; align <= 4 << 20; align *= 8) {
            void *aligned = NULL;
            CHECK(posix_memalign(&aligned, align, size) == 0 && is_aligned(aligned, align));
            fill(aligned, size, i);
            CHECK(malloc_usable_size(aligned) >= size && is_filled(aligned, size, i));
            aligned = hidden(realloc(aligned, size + size / 2 + 1));
            CHECK(aligned && is_filled(aligned, size < 64 ? size : 64, i));
            free(aligned);
            aligned = memalign(align, size);
            CHECK(is_aligned(aligned, align));
            if (free_aligned_sized) free_aligned_sized(aligned, align, size); else free(aligned);
            aligned = aligned_alloc(align, size);
            CHECK(is_aligned(aligned, align));
            if (free_sized) free_sized(aligned, size); else free(aligned);
        }
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        void *paged = valloc(size);
        CHECK(is_aligned(paged, page));
        if (cfree) cfree(paged); else free(paged);
        paged = pvalloc(size);
        CHECK(is_aligned(paged, page) && malloc_usable_size(paged) >= (size + page - 1) / page * page);
        free(paged);
        CHECK(errno == 77);
    }
}

static void nothing(void) {
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    void *a = malloc(0), *b = malloc(0);
    CHECK(a && b && a != b);
    free(a);
    free(b);
    a = calloc(0, 8);
    CHECK(a);
    free(a);
    a = hidden(realloc(NULL, 100000));
    CHECK(a);
    CHECK(hidden(realloc(a, 0)) == NULL);
    CHECK(posix_memalign(&a, 64, 0) == 0);
    free(a);
}

static void errors(void) {
    size_t huge = (size_t)PTRDIFF_MAX - 100;
    void *place = &place;
    errno = 0;
    CHECK(!hidden(malloc(hidden_size(huge))) && errno == ENOMEM);
    errno = 0;
    CHECK(!hidden(malloc(hidden_size(huge * 2))) && errno == ENOMEM);
    errno = 0;
    CHECK(!hidden(calloc(hidden_size(huge), 4)) && errno == ENOMEM);
    errno = 0;
    CHECK(!hidden(reallocarray(NULL, hidden_size(huge), 4)) && errno == ENOMEM);
    errno = 0;
    CHECK(!hidden(memalign(1 << 20, hidden_size(huge))) && errno == ENOMEM);
    errno = 0;
    CHECK(!hidden(pvalloc(hidden_size(huge * 2))) && errno == ENOMEM);
    CHECK(posix_memalign(&place, 64, hidden_size(huge)) == ENOMEM && place == &place);
    /* Requests sizes that overflow when they are rounded up, while the thread caches blocks of the smallest class. */
    free(hidden(malloc(1)));
    for (size_t less = 0; less < 40; less++) {
        size_t most = hidden_size(SIZE_MAX - less);
        errno = 0;
        CHECK(!hidden(malloc(most)) && errno == ENOMEM);
        void *at = malloc(1000);
        fill(at, 1000, less);
        CHECK(!hidden(realloc(at, most)) && is_filled(at, 1000, less));
        CHECK(!hidden(reallocarray(hidden(at), 1, most)) && is_filled(at, 1000, less));
        free(at);
        CHECK(!hidden(calloc(1, most)) && !hidden(memalign(64, most)) && !hidden(aligned_alloc(64, most)));
    }
    errno = 77;
    CHECK(posix_memalign(&place, 3, 100000) == EINVAL && errno == 77 && place == &place);
    CHECK(posix_memalign(&place, 4, 100000) == EINVAL && errno == 77);
    /* An allocation that can't grow stays unchanged. */
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        void *at = malloc(SIZES[i]);
        fill(at, SIZES[i], i);
        errno = 0;
        CHECK(!hidden(realloc(at, hidden_size(huge))) && errno == ENOMEM);
        CHECK(is_filled(at, SIZES[i], i));
        free(at);
    }
}

/* Reallocates from each size to every other. */
static void reallocations(void) {
    for (size_t i = 0; i < SIZE_COUNT; i++) {
        for (size_t j = 0; j < SIZE_COUNT; j++) {
            size_t from = SIZES[i], to = SIZES[j], both = from < to ? from : to;
            unsigned char *at = malloc(from);
            for (size_t k = 0; k < both; k += k < 5000 ? 1 : 1009) at[k] = (unsigned char)mix(k);
            errno = 77;
            at = hidden(reallocarray(at, 1, to));
            CHECK(at && malloc_usable_size(at) >= to && errno == 77);
            for (size_t k = 0; k < both; k += k < 5000 ? 1 : 1009) CHECK(at[k] == (unsigned char)mix(k));
            at[to - 1] = 1;
            free(at);
        }
    }
}

/* Runs random operations, and checks that live memory never changes. */
static void random_program(uint64_t seed) {
    enum { SLOTS = 400 };
    static struct { void *at; size_t size; uint64_t seed; } slots[SLOTS];
    for (uint64_t step = 0; step < 60000; step++) {
        uint64_t r = mix(seed * 1000003 + step);
        size_t s = r % SLOTS, size = (size_t)((r >> 20) % 1000) << ((r >> 40) % ((r >> 60) ? 8 : 14));
        if (slots[s].at && (r >> 9) % 3) {
            CHECK(is_filled(slots[s].at, slots[s].size, slots[s].seed));
            if ((r >> 11) % 4 == 0 && slots[s].size >= 64) {
                size_t both = 64;
                CHECK((slots[s].at = hidden(realloc(slots[s].at, size + 64))));
                for (size_t k = 0; k < both; k++) CHECK(((unsigned char *)slots[s].at)[k] == (unsigned char)mix(slots[s].seed + k));
                slots[s].size = size + 64;
                fill(slots[s].at, slots[s].size, slots[s].seed);
            } else {
                free(slots[s].at);
                slots[s].at = NULL;
            }
        } else if (!slots[s].at) {
            slots[s].at = (r >> 13) % 2 ? malloc(size) : (r >> 14) % 2 ? calloc(size, 1) : memalign((size_t)16 << (r >> 15) % 12, size);
            CHECK(slots[s].at);
            slots[s].size = size;
            slots[s].seed = r;
            fill(slots[s].at, size, r);
        }
    }
    for (size_t s = 0; s < SLOTS; s++) {
        if (slots[s].at) CHECK(is_filled(slots[s].at, slots[s].size, slots[s].seed));
        free(slots[s].at);
        slots[s].at = NULL;
    }
    malloc_trim(0);
}

/* glibc's second names of the functions, used with memory from the usual names, and the reverse. */
void *__libc_malloc(size_t size);
void __libc_free(void *at);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);
void *__libc_memalign(size_t align, size_t size);
void *__libc_valloc(size_t size);
void *__libc_pvalloc(size_t size);

static void second_names(void) {
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < SIZE_COUNT; i++) {
            size_t size = SIZES[i];
            __libc_free(hidden(malloc(size)));
            free(hidden(__libc_malloc(size)));
            char *at = malloc(size);
            fill(at, size, i);
            at = __libc_realloc(hidden(at), size * 2);
            CHECK(at && is_filled(at, size < 64 ? size : 64, i));
            at = realloc(hidden(at), size);
            __libc_free(at);
            at = __libc_calloc(size, 2);
            CHECK(at && is_zero(at, size * 2) && malloc_usable_size(at) >= size * 2);
            free(hidden(at));
            at = __libc_memalign(4096, size);
            CHECK(at && (uintptr_t)at % 4096 == 0);
            free(hidden(at));
            free(hidden(__libc_valloc(size)));
            __libc_free(hidden(__libc_pvalloc(size)));
            __libc_free(hidden(strdup("text")));
        }
    }
    __libc_free(NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "second names") == 0) {
        second_names();
        puts("ok");
        return 0;
    }
    lengths();
    nothing();
    errors();
    reallocations();
    for (uint64_t seed = 0; seed < 4; seed++) random_program(seed);
    puts("ok");
}
