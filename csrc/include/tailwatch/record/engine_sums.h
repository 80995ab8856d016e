/* What the records of an engine's steps (record/step_ring.h) add up to: of one process, since it began.
 *
 * Thread rule: one writer, the engine's loop under its GIL; any readers.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/record/histogram.h"
#include "tailwatch/record/step_ring.h"

TW_BEGIN_C

/* What a step computed: tokens of decoding requests alone, or prompts too (the first time, or again). */
typedef enum tw_step_work { TW_WORK_DECODE, TW_WORK_PREFILL, TW_STEP_WORKS } tw_step_work;

enum { TW_STEP_LENGTH_PARTS = TW_STEP_PARTS + 1 }; /* the last: pauses of the process */

/* FIELD(name, dims), as TW_PROCESS_COUNTERS of segment.h; the snapshot has fields of the same names. A count that a
 * record does not have adds nothing. */
#define TW_ENGINE_COUNTERS(FIELD)                                                                        \
    FIELD(requests, )               /* summed over the steps */                                         \
    FIELD(prefill_tokens, )                                                                             \
    FIELD(decode_tokens, )                                                                              \
    FIELD(recompute_tokens, )                                                                           \
    FIELD(preempted, )                                                                                  \
    FIELD(spec_proposed, )                                                                              \
    FIELD(spec_accepted, )                                                                              \
    FIELD(part_ns, [TW_STEP_LENGTH_PARTS])                                                              \
    FIELD(graph, [TW_GRAPHS])       /* steps */
#define TW_ENGINE_FIELD(name, dims) uint64_t name dims;

typedef struct tw_engine_sums {
    uint64_t steps;                 /* 0: the rest is not in use; release-stored after it was made */
    tw_histogram length[TW_STEP_WORKS]; /* TW_LAYOUT_ITL: from the end of one step to the end of the next */
    TW_ENGINE_COUNTERS(TW_ENGINE_FIELD)
} tw_engine_sums;

/* "decode", "prefill"; "input" .. "update", "paused"; "unknown", "full", ...; "unknown" out of range. */
const char *tw_step_work_name(int work);
const char *tw_step_length_part_name(int part);
const char *tw_graph_name(int graph);

/* The work of a step. */
tw_step_work tw_step_work_of(const tw_step_record *step);

/* Its length, ns. */
uint64_t tw_step_length_ns(const tw_step_record *step);

/* Adds a step: some 30 ns. */
void tw_engine_sums_count(tw_engine_sums *sums, const tw_step_record *step);

/* to += from. For a merge of the dead; from may be any segment's. */
void tw_engine_sums_add(tw_engine_sums *to, const tw_engine_sums *from);

TW_END_C
