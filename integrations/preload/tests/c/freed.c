/* Reads memory that it freed, for tools that find that. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    /* Opens the arena. */
    free(malloc(1 << 20));
    char *volatile at = malloc(100);
    at[8] = 1;
    free(at);
    if (at[8] == 77) puts("impossible");
    puts("ok");
}
