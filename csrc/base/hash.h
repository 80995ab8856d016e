/* A hash of text: FNV-1a. Private. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline uint64_t tw_text_hash(const char *text, size_t len) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}
