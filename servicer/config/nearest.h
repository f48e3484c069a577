/* The word somebody probably meant. Any thread: nothing is kept. */
#ifndef RK_CONFIG_NEAREST_H
#define RK_CONFIG_NEAREST_H

#include <stddef.h>

/* Changes of one letter (added, left out, replaced, swapped with its neighbour) from one word to the other.
 * Upper and lower case are the same, as are '-' and '_'. Only the first 48 bytes of each count. */
size_t rk_word_distance(const char *one, const char *other);

#endif
