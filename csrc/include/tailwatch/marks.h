/* What is known of each object of a heap while it is gone through: a count of references and some bits, by address.
 *
 * Two levels: a hash table of regions of 64 KiB, each with 5 KB of marks once one of its objects was marked. Objects that
 * the collector knows are at least 32 bytes apart. Thread rule: one user at a time (the holder of the GIL). Nothing here
 * fails but by memory.
 */
#ifndef TAILWATCH_MARKS_H
#define TAILWATCH_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TW_MARKS_UNIT 32
#define TW_MARKS_SLOTS 2048 /* of a region */

typedef enum tw_mark {
    TW_MARK_WALKED,  /* it was there as the heap was gone through */
    TW_MARK_REACHED, /* something that lives refers to it */
    TW_MARK_LOOKED,  /* and what it refers to is reached, too */
    TW_MARK_CHUNK,   /* it is in the part that is looked at just now */
    TW_MARK_KINDS
} tw_mark;

typedef struct tw_marks_block {
    uint64_t round;
    uint64_t bits[TW_MARK_KINDS][TW_MARKS_SLOTS / 64];
    uint16_t count[TW_MARKS_SLOTS];
} tw_marks_block;

typedef struct tw_marks {
    struct tw_marks_region { uint64_t number; tw_marks_block *block; } *region; /* open addressing; NULL: a free place */
    size_t places, regions;                                 /* places: 0 or a power of two, at most half of it in use */
    uint64_t last_number;
    tw_marks_block *last;                                   /* the region looked at last, NULL: none */
    uint64_t round;                                         /* marks of an earlier one are none */
    size_t tidied;                                          /* where tw_marks_tidy goes on */
} tw_marks;

/* All zeros is without any mark. */

/* Where the marks of one object are; block NULL: it has none, or there is no memory for any. Good until the next call that
 * makes a place. */
typedef struct tw_place { tw_marks_block *block; uint32_t slot; } tw_place;

/* The place of an object, if there is one; or, made where there is none. */
tw_place tw_marks_find(tw_marks *m, const void *object);
tw_place tw_marks_make(tw_marks *m, const void *object);

/* A new round: all marks and counts are gone. */
static inline void tw_marks_next_round(tw_marks *m) { m->round += 1; }

static inline bool tw_place_has(tw_place p, tw_mark mark) {
    return p.block != NULL && (p.block->bits[mark][p.slot / 64] >> p.slot % 64 & 1) != 0;
}

/* What there is no memory for is not marked, and counts as nothing. */
static inline void tw_place_set(tw_place p, tw_mark mark) {
    if (p.block != NULL) p.block->bits[mark][p.slot / 64] |= UINT64_C(1) << p.slot % 64;
}
static inline void tw_place_clear(tw_place p, tw_mark mark) {
    if (p.block != NULL) p.block->bits[mark][p.slot / 64] &= ~(UINT64_C(1) << p.slot % 64);
}

/* The count is added up to 65535, and stays there. */
static inline void tw_place_count(tw_place p) {
    if (p.block != NULL) p.block->count[p.slot] += p.block->count[p.slot] < UINT16_MAX;
}

/* Gives back regions that had no mark in the round before this one, nor in it: looks at `places` of the table, and goes on
 * from there with the next call. */
void tw_marks_tidy(tw_marks *m, size_t places);

/* Bytes that it takes beside itself. */
size_t tw_marks_bytes(const tw_marks *m);

/* Gives its memory back; the marks are gone. */
void tw_marks_clear(tw_marks *m);

#ifdef __cplusplus
}
#endif
#endif
