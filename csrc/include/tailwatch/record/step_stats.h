/* What engine steps measured, by name: the counters that stamp/engine_step.h writes, with its definitions. */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tailwatch/record/enums.h"
#include "tailwatch/record/histogram.h"

TW_BEGIN_C

#define TW_STEPS 8                   /* names kept apart; the last is "other" */
#define TW_STEP_OTHER (TW_STEPS - 1)
/* + the number of a step that has ended: what its thread does until its next step begins, where requests may wait for
 * that: a host gap, or a time that counts as unknown. For the watchdog only: it is recorded as no step. */
#define TW_STEP_BETWEEN TW_STEPS
#define TW_STEP_NAME_WORDS 4         /* 32 bytes, NUL-terminated, cut at a character */
#define TW_STEP_UNKNOWN UINT64_MAX   /* of waiting */

/* Which part of an engine's time a pause fell into. */
typedef enum tw_step_phase { TW_STEP_INSIDE, TW_STEP_GAP, TW_STEP_PHASES } tw_step_phase;

/* What the steps of one name count, FIELD(name, dims); the snapshot has fields of the same names. */
#define TW_STEP_COUNTERS(FIELD)                                                                          \
    FIELD(batch, )                  /* requests, summed over the steps */                               \
    FIELD(unknown_ns, )             /* between an end without waiting= and the next step */             \
    FIELD(overlap_ns, [TW_STEP_PHASES][TW_CAUSES])                                                      \
    FIELD(request_ns, [TW_STEP_PHASES][TW_CAUSES])
#define TW_COUNTER_FIELD(name, dims) uint64_t name dims;

/* What the steps of one name measured. Not in use while its name is empty. */
typedef struct tw_step_stats {
    uint64_t name[TW_STEP_NAME_WORDS]; /* word 0 is release-stored last */
    tw_histogram duration;             /* TW_LAYOUT_ITL */
    tw_histogram gap;                  /* TW_LAYOUT_PAUSE; before a step of this name */
    TW_STEP_COUNTERS(TW_COUNTER_FIELD)
} tw_step_stats;

typedef struct tw_steps { tw_step_stats of[TW_STEPS]; } tw_steps;

/* "step", "host_gap"; "unknown" out of range. Any thread. */
const char *tw_step_phase_name(int phase);

/* The layout of the durations, and of the gaps. */
const tw_layout *tw_step_layout(int phase);

/* Number of the step with these words (of a clean name), made if there is room; else TW_STEP_OTHER. */
uint32_t tw_steps_find(tw_steps *steps, const uint64_t name[TW_STEP_NAME_WORDS]);

/* to += from, name by name; what has no room becomes "other". For a merge of the dead; from may be any segment's. */
void tw_steps_add(tw_steps *to, const tw_steps *from);

TW_END_C
