/* What is known of each object of a heap while it is gone through: a count of references and some bits, by address.
 *
 * Two levels: a hash table of regions of 64 KiB, each with 8 KiB of marks once one of its objects was marked: a word for each,
 * so that one line of the cache has all of it. Objects that the collector tracks are at least 32 bytes apart. Thread rule: one
 * user at a time (the holder of the GIL). Nothing here fails but by memory.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_MARKS_UNIT 32
#define TW_MARKS_SLOTS 2048 /* of a region */

typedef enum tw_mark {
    TW_MARK_WALKED,  /* it was there as the heap was gone through */
    TW_MARK_REACHED, /* something that lives refers to it */
    TW_MARK_LOOKED,  /* and what it refers to is reached, too */
    TW_MARK_FOUND,   /* it is to be moved */
    TW_MARK_ORDERED, /* it was come upon as the dead were put in order */
    TW_MARK_KINDS
} tw_mark;

/* The marks in the lowest bits, the count above them. */
#define TW_MARKS_COUNT_SHIFT 5
#define TW_MARKS_COUNT_MOST (UINT32_MAX >> TW_MARKS_COUNT_SHIFT)

typedef struct tw_marks {
    struct tw_marks_region { uint64_t number, cycle; uint32_t *words; } *region; /* open addressing; words NULL: a free place */
    size_t places, regions;                                 /* places: 0 or a power of two, at most half of it in use */
    uint64_t last_number;
    uint32_t *last;                                         /* words of the region looked at last, NULL: none */
    uint64_t cycle;                                         /* marks of an earlier one are none */
    size_t tidied;                                          /* where tw_marks_tidy goes on */
} tw_marks;

/* All zeros is without any mark. */

/* The word of one object; NULL: it has none, or there is no memory for any. Good until the next cycle, or tidying. */
typedef uint32_t *tw_place;

/* The place of an object, if there is one; or, made where there is none. */
tw_place tw_marks_find(tw_marks *m, const void *object);
tw_place tw_marks_make(tw_marks *m, const void *object);

/* A new cycle: all marks and counts are gone. */
static inline void tw_marks_next_cycle(tw_marks *m) {
    m->cycle += 1;
    m->last = NULL;
}

static inline bool tw_place_has(tw_place p, tw_mark mark) { return p != NULL && (*p >> mark & 1) != 0; }

/* What there is no memory for is not marked, and counts as nothing. */
static inline void tw_place_set(tw_place p, tw_mark mark) {
    if (p != NULL) *p |= UINT32_C(1) << mark;
}
static inline void tw_place_clear(tw_place p, tw_mark mark) {
    if (p != NULL) *p &= ~(UINT32_C(1) << mark);
}

/* One more, up to TW_MARKS_COUNT_MOST. */
static inline void tw_place_count(tw_place p) {
    if (p != NULL && *p >> TW_MARKS_COUNT_SHIFT < TW_MARKS_COUNT_MOST) *p += UINT32_C(1) << TW_MARKS_COUNT_SHIFT;
}

/* What was counted; from now on it is so many, TW_MARKS_COUNT_MOST at most. */
static inline uint32_t tw_place_counted(tw_place p) { return p == NULL ? 0 : *p >> TW_MARKS_COUNT_SHIFT; }
static inline void tw_place_recount(tw_place p, uint32_t count) {
    if (p != NULL) *p = (*p & ((UINT32_C(1) << TW_MARKS_COUNT_SHIFT) - 1)) | count << TW_MARKS_COUNT_SHIFT;
}

/* Gives back regions that had no mark in the cycle before this one, nor in it: looks at `places` of the table, and goes on
 * from there with the next call. */
void tw_marks_tidy(tw_marks *m, size_t places);

/* Bytes that it takes beside itself. */
size_t tw_marks_bytes(const tw_marks *m);

/* Gives its memory back; the marks are gone. */
void tw_marks_clear(tw_marks *m);

TW_END_C
