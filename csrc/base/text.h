/* Characters and hashes of text. Private. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline bool tw_utf8_continues(unsigned char c) { return (c & 0xC0) == 0x80; }

/* Bytes of the UTF-8 character at text, 0 when it is none (overlong, surrogate, above U+10FFFF, cut). */
static inline size_t tw_utf8_length(const unsigned char *text, size_t len) {
    unsigned char c = text[0];
    if (c < 0x80) return 1;
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (c < 0xC2 || c > 0xF4 || n > len) return 0;
    for (size_t i = 1; i < n; ++i)
        if (!tw_utf8_continues(text[i])) return 0;
    if (c == 0xE0 && text[1] < 0xA0) return 0;
    if (c == 0xED && text[1] > 0x9F) return 0;
    if (c == 0xF0 && text[1] < 0x90) return 0;
    if (c == 0xF4 && text[1] > 0x8F) return 0;
    return n;
}

/* -1: not a hexadecimal digit. */
static inline int tw_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* FNV-1a. */
static inline uint64_t tw_text_hash(const char *text, size_t len) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++) hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* The last part of a path, the last two of an __init__.py. */
static inline const char *tw_path_end(const char *path) {
    const char *last = strrchr(path, '/');
    if (last == NULL) return path;
    if (last == path || strcmp(last, "/__init__.py") != 0) return last + 1;
    while (--last > path && *last != '/') {}
    return *last == '/' ? last + 1 : last;
}
