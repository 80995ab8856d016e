/* Exemplars: one request by name for a bucket of a histogram, so that a slow bucket leads to a trace.
 *
 * A fixed table in the segment, in which each bucket of each histogram has a few places that it shares with others. There
 * stands the newest of a bucket; where the places are taken by other buckets, the newest of all. So memory is fixed
 * whatever the number of label sets, and what is dropped is only ever an older exemplar.
 *
 * Thread rule: one writer, the segment's; any readers. An exemplar is never read torn: seq is odd while it is written.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_TRACE_WORDS 5            /* 40 bytes: a trace id of 32 hexadecimal digits and its NUL */
#define TW_EXEMPLARS 256            /* in a segment; a power of two */
#define TW_EXEMPLAR_WAYS 4          /* places of one bucket */

/* The histograms of a label set that have them. */
typedef enum tw_exemplar_metric {
    TW_EXEMPLAR_TTFT,
    TW_EXEMPLAR_ITL,                /* gaps that were examined: slow ones, and those that a pause touched */
    TW_EXEMPLAR_TPOT,
    TW_EXEMPLAR_E2E,
    TW_EXEMPLAR_METRICS
} tw_exemplar_metric;

/* Of which bucket, in one word: tw_exemplar_key(). 0 is no bucket. */
typedef struct tw_exemplar {
    uint64_t seq;                   /* 0: never used; odd: being written */
    uint64_t key;
    uint64_t value_ns, end_ns;      /* end_ns: monotonic, when it was recorded */
    uint64_t trace_id[TW_TRACE_WORDS];
} tw_exemplar;

/* bound: number of the classic bound it lies at or below; the layout's number of bounds where it lies above all. */
static inline uint64_t tw_exemplar_key(uint32_t series, tw_exemplar_metric metric, uint32_t bound) {
    return (uint64_t)1 << 63 | (uint64_t)series << 16 | (uint64_t)metric << 8 | bound;
}
static inline uint32_t tw_exemplar_series(uint64_t key) { return (uint32_t)(key >> 16); }
static inline uint32_t tw_exemplar_metric_of(uint64_t key) { return (uint32_t)(key >> 8) & 0xff; }
static inline uint32_t tw_exemplar_bound(uint64_t key) { return (uint32_t)key & 0xff; }

/* Whether a text may stand as a trace id: 1 to 39 letters, digits, '_', '.', ':' or '-', and of 32 hexadecimal digits not
 * all zeros. Anything else is no trace's id, and would have to be escaped. */
bool tw_exemplar_id_is_good(const char *text);

/* Remembers it. trace_id: a good one. Single writer; no allocation, no lock, about 20 ns. */
void tw_exemplar_put(tw_exemplar *table, uint64_t key, uint64_t value_ns, uint64_t end_ns, const uint64_t *trace_id);

/* Copies place i; false: there is none, or it was written meanwhile. Any thread. */
bool tw_exemplar_read(const tw_exemplar *table, uint32_t i, tw_exemplar *out);

TW_END_C
