/* How long first tokens took, by how many streams were in flight: what a router needs of one server.
 *
 * One small table in the segment. A row for each concurrency (single ones up to 64, then 32 to an octave, 3 % wide, up to
 * 4095; what is above counts there) keeps the newest TW_TTFT_KEPT first tokens seen at it, each with its time. So a
 * sample is forgotten when as many newer ones of its row have come, and counts no more once it is TW_TTFT_FORGET_S
 * old: a server that changes is followed as fast as it is used. A full row takes one sample in 2 s: requests that come
 * together met the same queue, and show little more than one of them. Rows of several processes merge by being read together.
 *
 * Concurrency is counted when a request arrives, itself included: the requests in flight in this process, or where the
 * processes of a group share an engine, in all of them (`shared`).
 *
 * Thread rule: single writer, any readers; a sample is one word, and whole. O(1) a request, nothing a token.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_TTFT_LEVELS 256
#define TW_TTFT_KEPT 15
#define TW_TTFT_FORGET_S 1800      /* an older sample does not count */
#define TW_TTFT_STREAMS_MAX 4095   /* more streams in flight count as so many */

/* A cache line. */
typedef struct tw_ttft_level {
    uint32_t seen;                  /* samples ever; the next one goes to seen % TW_TTFT_KEPT */
    uint32_t sample[TW_TTFT_KEPT]; /* see tw_ttft_sample(); 0 = none */
} tw_ttft_level;

typedef struct tw_ttft_by_concurrency {
    uint64_t running;               /* requests in flight whose first token was seen */
    uint64_t shared;                /* 1: concurrency is that of the whole group; 0: of this process */
    tw_ttft_level level[TW_TTFT_LEVELS];
} tw_ttft_by_concurrency;

/* Row of a concurrency; 0 counts as 1. */
uint32_t tw_ttft_level_of(uint64_t streams);

/* Lowest and highest concurrency of row i < TW_TTFT_LEVELS. */
void tw_ttft_level_edges(uint32_t i, uint64_t *lowest, uint64_t *highest);

/* A first token came at now_ns, ttft_ns after an arrival that found so many streams in flight, itself included. */
void tw_ttft_note(tw_ttft_by_concurrency *ttfts, uint64_t streams, uint64_t ttft_ns, uint64_t now_ns);

/* Whether concurrency is the group's from now on. What was noted under another meaning is forgotten. */
void tw_ttft_share(tw_ttft_by_concurrency *ttfts, int shared);

/* A TTFT and when it was, in a word that is not 0. From the top: 17 bits of monotonic time in steps of 2 s (one from 73 h
 * ago passes for new, if its row was not used since); the exponent of the microseconds + 1, 6 bits; 9 bits below its
 * leading one, 0.2 %. From 1 us to 4295 s, saturating. */
uint32_t tw_ttft_sample(uint64_t ttft_ns, uint64_t now_ns);

/* Of a sample: seconds, the middle of what it may stand for. */
double tw_ttft_seconds(uint32_t sample);

/* Seconds since then, in steps of 2; over a day for times ahead. */
uint64_t tw_ttft_age_s(uint32_t sample, uint64_t now_ns);

/* Adds what another kept: of each row the newest. For a retired segment: no writer, no other reader. */
void tw_ttft_add(tw_ttft_by_concurrency *sum, const tw_ttft_by_concurrency *from);

TW_END_C
