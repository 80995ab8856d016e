/* Relaxed and ordered access to words that one thread writes and any thread or process reads.
 *
 * Every shared field of the core is a plain, naturally aligned integer that is touched only through these
 * functions, so the headers compile as C11 and as C++17 and the sanitizers understand the accesses.
 * "Single writer" means: at any time at most one thread calls tw_add()/tw_store() on the word (in CPython
 * builds with a GIL: the thread that holds it). Readers need no permission.
 */
#pragma once

#include <stdint.h>

/* No ordering: the value is whole, nothing else is promised. */
static inline uint64_t tw_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void tw_store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* Single writer only: a load and a store, not an atomic read-modify-write. */
static inline void tw_add(uint64_t *word, uint64_t delta) { tw_store(word, tw_load(word) + delta); }
static inline void tw_raise(uint64_t *word, uint64_t value) {
    if (value > tw_load(word)) tw_store(word, value);
}

/* Ordered: what was written before the release is visible after the acquire that saw it. */
static inline uint64_t tw_load_acquire(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void tw_store_release(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
