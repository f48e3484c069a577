/* Strict UTF-8. Most text is ASCII, so that is looked at eight bytes at a time. Any thread; no state. */
#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

static bool is_tail(unsigned char byte) {
    return (byte & 0xC0u) == 0x80u;
}

size_t rk_utf8_char(const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text;
    if (bytes == 0)
        return 0;
    unsigned char first = at[0];
    if (first < 0x80)
        return 1;
    if (first < 0xC2) /* a tail byte, or an overlong form of ASCII */
        return 0;
    if (first < 0xE0)
        return bytes >= 2 && is_tail(at[1]) ? 2 : 0;
    if (first < 0xF0) {
        if (bytes < 3 || !is_tail(at[1]) || !is_tail(at[2]))
            return 0;
        if (first == 0xE0 && at[1] < 0xA0) /* overlong */
            return 0;
        if (first == 0xED && at[1] >= 0xA0) /* a surrogate */
            return 0;
        return 3;
    }
    if (first > 0xF4 || bytes < 4 || !is_tail(at[1]) || !is_tail(at[2]) || !is_tail(at[3]))
        return 0;
    if (first == 0xF0 && at[1] < 0x90) /* overlong */
        return 0;
    if (first == 0xF4 && at[1] >= 0x90) /* past U+10FFFF */
        return 0;
    return 4;
}

bool rk_utf8_valid(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t length = rk_utf8_char(text + at, bytes - at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

size_t rk_utf8_clean(char *out, size_t out_size, const char *text, size_t bytes) {
    size_t length = 0;
    if (out_size == 0)
        return 0;
    for (size_t at = 0; at < bytes;) {
        size_t whole = rk_utf8_char(text + at, bytes - at);
        size_t take = whole ? whole : 1;
        if (length + take > out_size - 1)
            break;
        unsigned char first = (unsigned char)text[at];
        if (whole == 0)
            out[length] = '?';
        else if (first < 0x20 || first == 0x7F)
            out[length] = ' ';
        else
            memcpy(out + length, text + at, whole);
        length += take;
        at += take;
    }
    out[length] = '\0';
    return length;
}
