/* Edit distance with swaps of neighbours (the "optimal string alignment" kind), on three rows. Words are keys
 * of a configuration: short, so they are cut and nothing is allocated. Any thread. */
#include "config/nearest.h"

#include <string.h>

#define WORD_MAX 48u

static char folded(char c) {
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '-' ? '_' : c;
}

static size_t least(size_t a, size_t b, size_t c) {
    size_t smaller = a < b ? a : b;
    return smaller < c ? smaller : c;
}

size_t rk_word_distance(const char *one, const char *other) {
    size_t rows[3][WORD_MAX + 1]; /* rows[i % 3][j]: from the first i of `one` to the first j of `other` */
    size_t one_size = strnlen(one, WORD_MAX);
    size_t other_size = strnlen(other, WORD_MAX);
    for (size_t j = 0; j <= other_size; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= one_size; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i - 1) % 3];
        const size_t *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= other_size; j++) {
            char a = folded(one[i - 1]), b = folded(other[j - 1]);
            row[j] = least(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b));
            if (i > 1 && j > 1 && a == folded(other[j - 2]) && b == folded(one[i - 2]))
                row[j] = least(row[j], two_above[j - 2] + 1, row[j]);
        }
    }
    return rows[one_size % 3][other_size];
}
