/* Prints the same under any allocator. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    char *volatile at = calloc(1, 1 << 20);
    at[5] = 'k';
    printf("o%c\n", at[5]);
    free(at);
}
