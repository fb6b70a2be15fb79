/* Preloaded before the library. It records the memory that jemalloc's own functions hand out. It counts frees of that
 * memory by other functions, and frees of other memory by jemalloc's functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))next(#name))
#define PLACES (1 << 20)
#define GONE ((void *)1)

void *mallocx(size_t size, int flags);
void *rallocx(void *at, size_t size, int flags);
size_t sallocx(const void *at, int flags);
void dallocx(void *at, int flags);
void sdallocx(void *at, size_t size, int flags);
size_t malloc_usable_size(void *at);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *places[PLACES];
static unsigned long made, freed, crossed;

static void *next(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

/* Returns the slot of an address in the table of jemalloc's memory, or the first free slot. */
static void **place_of(const void *at) {
    size_t i = ((uintptr_t)at >> 3) * 0x9e3779b97f4a7c15u >> 44;
    while (places[i] && places[i] != at) i = (i + 1) % PLACES;
    return &places[i];
}

static int is_jemallocs(const void *at) {
    pthread_mutex_lock(&lock);
    int is = at && *place_of(at) == at;
    pthread_mutex_unlock(&lock);
    return is;
}

static void replace(void *old, void *new) {
    pthread_mutex_lock(&lock);
    if (old) *place_of(old) = GONE;
    if (new) *place_of(new) = new;
    pthread_mutex_unlock(&lock);
    made += new != NULL;
    freed += old != NULL;
}

void free(void *at) {
    crossed += is_jemallocs(at);
    NEXT(free)(at);
}

void *realloc(void *at, size_t size) {
    crossed += is_jemallocs(at);
    return NEXT(realloc)(at, size);
}

size_t malloc_usable_size(void *at) {
    crossed += is_jemallocs(at);
    return NEXT(malloc_usable_size)(at);
}

void *mallocx(size_t size, int flags) {
    void *at = NEXT(mallocx)(size, flags);
    replace(NULL, at);
    return at;
}

void *rallocx(void *at, size_t size, int flags) {
    crossed += !is_jemallocs(at);
    void *new = NEXT(rallocx)(at, size, flags);
    if (new) replace(at, new);
    return new;
}

size_t sallocx(const void *at, int flags) {
    crossed += !is_jemallocs(at);
    return NEXT(sallocx)(at, flags);
}

void dallocx(void *at, int flags) {
    crossed += !is_jemallocs(at);
    replace(at, NULL);
    NEXT(dallocx)(at, flags);
}

void sdallocx(void *at, size_t size, int flags) {
    crossed += !is_jemallocs(at);
    replace(at, NULL);
    NEXT(sdallocx)(at, size, flags);
}

__attribute__((destructor)) static void say(void) {
    dprintf(2, "crossing: %s, %lu crossed\n", made && made == freed ? "used" : "unused", crossed);
}
