/* Causes of delay, and how certain a share is. The names are the label values of the exported metrics.
 *
 * The first TW_CAUSES are those of pauses (enums.h), with the same numbers.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/enums.h"

#include <stdint.h>

TW_BEGIN_C

typedef enum tw_delay_cause {
    /* the thread that tokens wait for: event loop, engine loop, step */
    TW_DELAY_CALLBACK = TW_CAUSES, /* it ran other code than the request's */
    TW_DELAY_OWN_CODE,    /* the request's own task ran */
    TW_DELAY_GIL,         /* it waited for the interpreter lock */
    TW_DELAY_CPU,         /* it was runnable and did not run */
    TW_DELAY_THROTTLED,   /* likewise, by the cgroup's quota */
    TW_DELAY_IO,          /* it was blocked in read, write, fsync, ... */
    TW_DELAY_LOCK,        /* it was blocked on a lock other than the interpreter's */
    TW_DELAY_SLEEP,       /* it slept: sleep(), nanosleep() */
    TW_DELAY_MEMORY,      /* page faults */
    TW_DELAY_STOPPED,     /* the whole process stood still: SIGSTOP, freezer, suspended machine */
    /* between engine, API process and client */
    TW_DELAY_CLIENT,      /* a send waited for a client that does not read */
    TW_DELAY_ACCEPT,      /* TTFT: from the kernel's arrival to the app's entry, pauses not counted */
    TW_DELAY_TRANSPORT,   /* from the engine's step to the API process */
    TW_DELAY_OUTPUT,      /* output processing in the API process: slices, detokenising, stop strings */
    /* the engine */
    TW_DELAY_OWN_PREFILL, /* TTFT: this request's own prefill */
    TW_DELAY_QUEUED,      /* in no step: it waited for room */
    TW_DELAY_PREEMPTED,   /* in no step: preempted or recomputed */
    TW_DELAY_KV_WAIT,     /* in no step: remote KV */
    TW_DELAY_PREFILL,     /* another request's prefill, in or before the step */
    TW_DELAY_ENGINE_HOST, /* schedule, update, input, grammar beyond their medians */
    TW_DELAY_JIT,
    TW_DELAY_GRAPH_MISS,
    TW_DELAY_RANK,        /* the last rank of several to enter a step; its name: "rank 1" */
    TW_DELAY_DEVICE,      /* the residue: a slower device than the model of step time predicts */
    /* what is left */
    TW_DELAY_UPSTREAM,    /* before the token reached a process that records more */
    TW_DELAY_UNEXPLAINED,
    TW_DELAYS
} tw_delay_cause;

/* Kinds of stalls: the causes up to TW_DELAY_STOPPED by their numbers, then unexplained. */
#define TW_STALLS (TW_DELAY_STOPPED + 2)
#define TW_STALL_UNEXPLAINED (TW_STALLS - 1)

typedef enum tw_certainty { TW_MEASURED, TW_SAMPLED, TW_ESTIMATED, TW_CERTAINTIES } tw_certainty;

/* Why time is unexplained: the first source of knowledge that its process lacks. */
typedef enum tw_unexplained {
    TW_UNEXPLAINED_UNKNOWN,       /* none is missing */
    TW_UNEXPLAINED_NO_LOOP_CLOCK, /* the thread that stamped is not followed: when the token was ready is not known */
    TW_UNEXPLAINED_NO_SCHEDSTAT,
    TW_UNEXPLAINED_NO_SYSCALL,
    TW_UNEXPLAINED_NO_STACKS,
    TW_UNEXPLAINED_UNJOINED,      /* no step that is kept made this token */
    TW_UNEXPLAINED_REASONS
} tw_unexplained;

/* "callback", "gc2", ...; "measured", ...; "unknown" out of range. Any thread. */
const char *tw_delay_cause_name(int cause);
const char *tw_stall_name(int stall);
const char *tw_certainty_name(int certainty);
const char *tw_unexplained_name(int reason);

/* ---- what a wait was made of (attribute/parts.h) ---- */

#define TW_PARTS 12

typedef struct tw_part {
    uint64_t ns;
    uint32_t name;       /* of the name table of the process it happened in (record/name_table.h); 0: none */
    uint8_t cause;       /* tw_delay_cause */
    uint8_t certainty;   /* tw_certainty */
    uint8_t source;      /* of the segment's sources; 0: the process itself */
    uint8_t detail_kind; /* what detail is: tw_detail */
    uint64_t detail;
} tw_part;

/* What tw_part.detail holds. */
typedef enum tw_detail {
    TW_DETAIL_NONE,
    TW_DETAIL_HOLDER,   /* the name of what the thread that held the interpreter lock ran */
    TW_DETAIL_SYSCALL,  /* number of the system call */
    TW_DETAIL_TOKENS,   /* prefill tokens in the step (its largest other request's name stands in .name) */
    TW_DETAIL_STEPS,    /* steps that ran without the request */
    TW_DETAIL_FAULTS,   /* page faults */
    TW_DETAIL_STEP_PART /* which part of a step: tw_step_part of record/step_ring.h */
} tw_detail;

typedef struct tw_parts {
    uint32_t n;
    tw_part part[TW_PARTS];
} tw_parts;

TW_END_C
