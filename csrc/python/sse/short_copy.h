/* A token is a few bytes that need no escape: found and copied without a call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SHORT_TEXT 16

static inline uint64_t load8(const char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint64_t load4(const char *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* High bits: bytes below 0x20, from 0x7f on, or that are a quote or a backslash. */
static inline uint64_t unplain(uint64_t word) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    const uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\', delete = word ^ ones * 0x7f;
    return ((word - ones * 0x20) | (quote - ones) | (backslash - ones) | (delete - ones) | word) & high;
}

/* The text's bytes in one or two words, some of them twice; len 1 to SHORT_TEXT. */
static inline void words_of(const char *text, size_t len, uint64_t *first, uint64_t *last) {
    if (len >= 8) *first = load8(text), *last = load8(text + len - 8);
    else if (len >= 4) *first = *last = load4(text) | load4(text + len - 4) << 32;
    else {
        const uint64_t middle = (unsigned char)text[len / 2], end = (unsigned char)text[len - 1];
        *first = *last = (0x2020202020000000u | (unsigned char)text[0]) | middle << 8 | end << 16;
    }
}

/* Whether it is 1 to SHORT_TEXT bytes of plain ASCII, the same in every dialect. */
static inline bool is_short_and_plain(const char *text, size_t len) {
    uint64_t first, last;
    if (len - 1 >= SHORT_TEXT) return false;
    words_of(text, len, &first, &last);
    return (unplain(first) | unplain(last)) == 0;
}

/* memcpy of 1 to SHORT_TEXT bytes. */
static inline void copy_short(char *out, const char *text, size_t len) {
    if (len >= 8) {
        memcpy(out, text, 8);
        memcpy(out + len - 8, text + len - 8, 8);
    } else if (len >= 4) {
        memcpy(out, text, 4);
        memcpy(out + len - 4, text + len - 4, 4);
    } else {
        out[0] = text[0];
        out[len / 2] = text[len / 2];
        out[len - 1] = text[len - 1];
    }
}
