/* The system refuses address space or memory. glibc serves the requests that the arena can't, as far as possible. */
#include "check.h"

#include <sys/resource.h>

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct rlimit limit = {(rlim_t)atol(argv[1]) << 20, (rlim_t)atol(argv[1]) << 20};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    void *kept[64];
    int count = 0;
    while (count < 64 && (kept[count] = malloc(4 << 20))) {
        fill(kept[count], 4 << 20, count);
        count++;
    }
    CHECK(count < 64 && errno == ENOMEM && count > 4);
    /* Shrinking never fails. */
    kept[0] = hidden(realloc(kept[0], 3 << 20));
    CHECK(kept[0]);
    for (int i = 1; i < count; i++) CHECK(is_filled(kept[i], 4 << 20, i));
    for (int i = 0; i < count; i++) free(kept[i]);
    CHECK((kept[0] = hidden(malloc(8 << 20))));
    free(kept[0]);
    puts("ok");
}
