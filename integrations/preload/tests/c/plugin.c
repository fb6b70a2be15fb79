/* A library that frees memory of other code, and allocates memory that other code frees. */
#include <stdlib.h>
#include <string.h>

void *plugin_make(size_t size) {
    void *at = malloc(size);
    memset(at, 5, size);
    return at;
}

void plugin_free(void *at) { free(at); }

void *plugin_grow(void *at, size_t size) { return realloc(at, size); }
