/* What the GenAI conventions want of requests beside what tailwatch counts: kept only where OTLP is exported.
 *
 * gen_ai.server.time_to_first_token and .time_per_output_token are of successful answers only, and the latter is
 * (duration - time to first token) / (tokens - 1) of a request; .request.duration also has how long failed ones
 * took, by error.type. One tw_served stands behind each tw_series of a segment that was made for it. Written once a
 * request, as it ends: a token costs nothing.
 *
 * Thread rule: the segment's single writer; any readers.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/enums.h"
#include "tailwatch/record/histogram.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

/* Why there was no answer, as error.type has it. */
typedef enum tw_failure {
    TW_FAILURE_OTHER,     /* the app raised, or an error event in the stream */
    TW_FAILURE_429,
    TW_FAILURE_5XX,
    TW_FAILURE_TIMEOUT,
    TW_FAILURE_CANCELLED, /* the client went away */
    TW_FAILURE_4XX,
    TW_FAILURES
} tw_failure;

/* error.type of a failure; an index out of range gives "_OTHER". */
const char *tw_failure_name(int failure);

/* The failure of a reason; TW_FAILURES where it is none: an answer, or a request sent elsewhere (3xx). */
tw_failure tw_failure_of(tw_reason reason);

#define TW_BRIEF_SCALE 1  /* exponential scale of a brief histogram: buckets a factor 1.41 wide */
#define TW_BRIEF_SLOTS 80

/* A small histogram in the E2E layout: the classic bounds are exact in it, and so are exponential buckets of
 * TW_BRIEF_SCALE and coarser. */
typedef struct tw_brief {
    uint64_t sum_ns, min_ns, max_ns; /* min_ns UINT64_MAX: empty */
    uint64_t slot[TW_BRIEF_SLOTS];
} tw_brief;

typedef struct tw_served {
    tw_histogram ttft;               /* layout TTFT */
    tw_histogram tpot;               /* layout ITL */
    tw_brief failed[TW_FAILURES];    /* end - arrival */
} tw_served;

/* Of zeroed memory. */
void tw_served_init(tw_served *served);

/* Slot of a value, 0 .. TW_BRIEF_SLOTS - 1; never falls as the value grows. */
uint32_t tw_brief_slot(uint64_t value_ns);

void tw_brief_record(tw_brief *brief, uint64_t value_ns);

/* As a histogram in the E2E layout: each sample in a slot that lies in the same brief one. Any thread. */
void tw_brief_read(const tw_brief *brief, tw_counts *out);

/* sum += from, of one that nothing writes to any more. */
void tw_brief_add(tw_brief *sum, const tw_brief *from);

TW_END_C
