/* Enumerations of pauses, requests, drops and internal errors, and the label values they are exported with. */
#pragma once

#include "tailwatch/base/extern_c.h"

TW_BEGIN_C

/* Why a process was paused. gc0..gc2: the generation of a generational collector. gc_increment and gc_full:
 * the steps of CPython 3.14.0-3.14.4's incremental collector, and a full collection there.
 * policy: tailwatch's own pauses (freezes, slices, full collections); a collection inside one counts there only. */
typedef enum tw_cause {
    TW_CAUSE_GC0,
    TW_CAUSE_GC1,
    TW_CAUSE_GC2,
    TW_CAUSE_GC_FULL,
    TW_CAUSE_GC_INCREMENT,
    TW_CAUSE_GC_OWN,
    TW_CAUSES
} tw_cause;

/* Sources: the roles whose pauses are counted apart. 0 is the process itself; the last two are "other" (more roles than
 * fit) and "unbound" (one of several engines, unknown which). */
#define TW_SOURCES 8
#define TW_SOURCE_OTHER (TW_SOURCES - 2)
#define TW_SOURCE_UNBOUND (TW_SOURCES - 1)

/* What a stream was doing when it was delayed: waiting for its first token, or for the next one. */
typedef enum tw_phase { TW_PHASE_TTFT, TW_PHASE_ITL, TW_PHASES } tw_phase;

/* What became of a request. TW_REASON_GOOD is good; LATE..ABORT_LATE are misses; the rest is excluded from
 * attainment and counted. */
typedef enum tw_reason {
    TW_REASON_GOOD,
    TW_REASON_LATE,         /* finished, a bound broken */
    TW_REASON_ERROR,        /* the app raised, or an error event in the stream */
    TW_REASON_429,          /* refused: too many requests */
    TW_REASON_5XX,
    TW_REASON_TIMEOUT,      /* 408, 504, or a timeout raised by the app */
    TW_REASON_ABORT_LATE,   /* the client went away after a bound had passed */
    TW_REASON_4XX,          /* excluded: any other 4xx */
    TW_REASON_ABORT_EARLY,  /* excluded: the client went away before any bound had passed */
    TW_REASON_3XX,          /* excluded: sent elsewhere, or nothing new: no answer was generated */
    TW_REASONS
} tw_reason;

typedef enum tw_outcome { TW_OUTCOME_GOOD, TW_OUTCOME_MISS, TW_OUTCOME_EXCLUDED, TW_OUTCOMES } tw_outcome;

/* Where a request's arrival time came from. */
typedef enum tw_arrival { TW_ARRIVAL_TCP, TW_ARRIVAL_ASGI, TW_ARRIVAL_HEADER, TW_ARRIVAL_EXPLICIT, TW_ARRIVALS } tw_arrival;

/* What was dropped, counted in tailwatch_dropped_events_total{reason}. */
typedef enum tw_drop {
    TW_DROP_SLOW_LOG,    /* a slow gap was overwritten before it was logged */
    TW_DROP_PAUSE_LOG,   /* a pause was overwritten before it was logged */
    TW_DROP_CHOICE,      /* a choice beyond the tracked ones: no TPOT for it */
    TW_DROP_UNREADABLE_BODY, /* a compressed or unreadable body: no TTFT, ITL or TPOT for it */
    TW_DROP_OUT_OF_ORDER_STAMP, /* a stamp after the stream's end, or one older than the last */
    TW_DROP_PAUSE_RING_OVERFLOW, /* the pause ring wrapped inside a gap: its overlap is a lower bound */
    TW_DROP_EVENT_TRUNCATED, /* an event over several messages, longer than is kept: judged by its beginning */
    TW_DROP_PROTOBUF_FAMILY, /* a scrape was answered in text: a family of the app's registry has no protobuf form */
    TW_DROP_PROTOBUF_SLOW,   /* likewise: the app's registry takes too long */
    TW_DROP_TRIGGER,     /* trace_on: something to keep came too soon after the last, or its file could not be written */
    TW_DROP_EXPORT,      /* an OTLP export was not taken, or left out: the next one covers that time too */
    TW_DROP_SPAN,        /* a request's span was not made: its queue was full */
    TW_DROP_MEMBER,      /* a file of the group could not be read: the numbers of its processes are missing here */
    TW_DROP_UNJOINED,    /* a token's stamp of the engine was that of no step that is kept */
    TW_DROP_METRICS_APPEND, /* the app's own metrics went out without ours behind them: late, failed, or not readable */
    TW_DROPS
} tw_drop;

/* Places of errors inside tailwatch, counted in tailwatch_internal_errors_total{where}. */
typedef enum tw_error {
    TW_ERROR_ASGI,
    TW_ERROR_GC_HOOK, /* gc.callbacks was changed by other code, or a collection did not report its end */
    TW_ERROR_POLICY,
    TW_ERROR_DAEMON,
    TW_ERROR_RENDER,
    TW_ERROR_REGISTRY, /* the app's own Prometheus registry raised while it was rendered */
    TW_ERROR_GROUP,    /* a group was not joined, or was lost: the numbers of this process are not shared */
    TW_ERRORS
} tw_error;

/* The label values of the exported metrics. An index out of range gives "unknown". Any thread. */
const char *tw_cause_name(int cause);
const char *tw_phase_name(int phase);
const char *tw_reason_name(int reason);
const char *tw_outcome_name(int outcome);
const char *tw_arrival_name(int arrival);
const char *tw_drop_name(int drop);
const char *tw_error_name(int error);

/* Which of good, miss, excluded a reason belongs to. */
tw_outcome tw_reason_outcome(tw_reason reason);

TW_END_C
