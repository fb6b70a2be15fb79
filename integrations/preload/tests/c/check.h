/* Shared by all of these programs: a check that prints its line and ends the program if it fails, memory with known contents, and files
   that contain several programs. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            dprintf(2, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            _exit(99);                                                                     \
        }                                                                                  \
    } while (0)

static inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns the next byte to check: the first and last bytes of the memory, and one byte in each page. */
static inline size_t next_byte(size_t i, size_t size) {
    if (i < 64 || i + 64 >= size) return i + 1;
    return i + 4096 < size - 64 ? i + 4096 : size - 64;
}

static inline void fill(void *at, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i = next_byte(i, size)) ((unsigned char *)at)[i] = (unsigned char)mix(seed + i);
}

static inline int is_filled(const void *at, size_t size, uint64_t seed) {
    for (size_t i = 0; i < size; i = next_byte(i, size)) {
        if (((const unsigned char *)at)[i] != (unsigned char)mix(seed + i)) return 0;
    }
    return 1;
}

static inline int is_zero(const void *at, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (((const unsigned char *)at)[i]) return 0;
    }
    return 1;
}

/* Hides a value from the compiler, which knows what malloc and free do. */
static inline void *hidden(void *at) {
    void *volatile copy = at;
    return copy;
}

static inline size_t hidden_size(size_t size) {
    volatile size_t copy = size;
    return copy;
}

/* Sizes that take all paths: below and above the default threshold, blocks, and runs in each zone. */
static const size_t SIZES[] = {1, 16, 100, 1000, 5000, 32768, 40000, 65535, 65536, 100000, 262144, 1000000, 3000000, 70000000};
#define SIZE_COUNT (sizeof SIZES / sizeof *SIZES)

#define MIB ((size_t)1 << 20)

/* Defines one of the programs in a file. It gets the arguments of `main` without the one that selects it. */
#define PROGRAM(name) static int name(__attribute__((unused)) int argc, __attribute__((unused)) char **argv)

struct program {
    const char *name;
    int (*run)(int argc, char **argv);
};

/* Runs the program that the first argument names. The list ends with a null. */
static inline int run_program(const struct program *programs, int argc, char **argv) {
    CHECK(argc > 1);
    while (programs->name && strcmp(programs->name, argv[1]) != 0) programs++;
    CHECK(programs->name);
    argv[1] = argv[0];
    return programs->run(argc - 1, argv + 1);
}
