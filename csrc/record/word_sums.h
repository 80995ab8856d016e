/* Fields of 64-bit words, counted together. Each word is read whole, so that a writer may go on meanwhile. Private. */
#pragma once

#include "tailwatch/base/atomic.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline uint64_t tw_minus(uint64_t later, uint64_t earlier) { return later > earlier ? later - earlier : 0; }

static inline bool tw_words_equal(const uint64_t *a, const uint64_t *b, size_t n) {
    size_t i = 0;
    while (i < n && tw_load(&a[i]) == tw_load(&b[i])) i++;
    return i == n;
}

/* What is loaded after the last of them is loaded later. */
static inline void tw_words_load(void *out, const void *from, size_t bytes) {
    uint64_t *to = out;
    const uint64_t *words = from;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = tw_load_acquire(&words[i]);
}

static inline void tw_words_add(void *sum, const void *from, size_t bytes) {
    uint64_t *to = sum;
    const uint64_t *words = from;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] += tw_load(&words[i]);
}

/* Word by word, 0 where earlier is larger. */
static inline void tw_words_subtract(void *later, const void *earlier, size_t bytes) {
    uint64_t *to = later;
    const uint64_t *words = earlier;
    for (size_t i = 0; i < bytes / sizeof *to; i++) to[i] = tw_minus(to[i], words[i]);
}
