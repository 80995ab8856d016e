/* The engine's steps, one record each, and events of requests: what a late token's wait in the engine is split by.
 *
 * A step is the interval from the end of one update of the scheduler to the end of the next. It is partitioned: its
 * parts, and the pauses of the engine's own process (`paused`), sum to its length. A part's length is without pauses.
 *
 * Thread rule: one writer, the engine's loop under its GIL. Readers, of any process: tw_step_read() and its like give a
 * whole record or none. A 16-bit or 32-bit count with all bits set is unknown; one that is too large is the largest.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_STEP_RECORDS 4096   /* a power of two: 40 s at 10 ms */
#define TW_STEP_EVENTS 1024    /* a power of two */
#define TW_REQUEST_NAMES 1024  /* a power of two */
#define TW_REQUEST_NAME_WORDS 7
#define TW_OFFSET_UNIT_NS 16   /* of lengths below: 68 s */
#define TW_COUNT_UNKNOWN UINT16_MAX
#define TW_TOKENS_UNKNOWN UINT32_MAX
#define TW_KV_WHOLE 65534      /* kv_use of a full cache */

/* Parts of a step, in the order they happen. With a queue of batches, dispatch is that of the next one. */
typedef enum tw_step_part {
    TW_PART_INPUT,    /* since the last update: outputs handed on, new requests taken */
    TW_PART_SCHEDULE,
    TW_PART_DISPATCH, /* from the schedule to the grammar; where no grammar is asked for, it is part of the wait */
    TW_PART_GRAMMAR,
    TW_PART_WAIT,     /* for the device, until the update begins */
    TW_PART_UPDATE,
    TW_STEP_PARTS
} tw_step_part;

enum { TW_GRAPH_UNKNOWN, TW_GRAPH_FULL, TW_GRAPH_PIECEWISE, TW_GRAPH_EAGER, TW_GRAPHS };

enum { /* tw_step_record.flags */
    TW_STEP_AFTER_IDLE = 1   /* nothing was left to do before it: it begins where it was scheduled */
};

typedef struct tw_step_record {
    uint64_t seq;            /* running number + 1 */
    uint64_t key_ns;         /* monotonic: the stamp that the engine put on this step's first outputs; 0: it had none */
    uint64_t update_ns;      /* begin of its update: the stamps of all its outputs lie in [update_ns, done_ns] */
    uint64_t done_ns;        /* end of its update */
    uint32_t part[TW_STEP_PARTS]; /* TW_OFFSET_UNIT_NS */
    uint32_t paused;         /* TW_OFFSET_UNIT_NS */
    uint32_t prefill_tokens, decode_tokens, recompute_tokens; /* recompute: of preempted requests */
    uint32_t prefill_most;   /* tokens of the request that has the most prefill tokens, */
    uint32_t prefill_name;   /* and its id: tw_request_name_copy(); 0: none, or not known */
    uint16_t requests, decode_requests, prefill_requests; /* one whose prompt is computed again decodes */
    uint16_t running, waiting; /* as it ended */
    uint16_t kv_use, preempted;
    uint16_t spec_proposed, spec_accepted;
    uint16_t flags;
    uint8_t graph, unused[1];
    uint16_t next_prefill_tokens; /* of a batch that was dispatched in it, and that a later step answers, */
    uint32_t next_prefill_name;   /* and the request that has the most of them */
    uint32_t sent;           /* tw_sent_mark() of the message that left in its update; 0: none was seen */
} tw_step_record;

typedef enum tw_step_event_kind {
    TW_EVENT_QUEUED,         /* a request waited for its first step */
    TW_EVENT_PREEMPTED,      /* at from_ns a request lost its place */
    TW_EVENT_RESUMED,        /* at from_ns a preempted request was scheduled again */
    TW_EVENT_COMPILED,       /* the engine compiled a kernel for its device; it belongs to no request */
    TW_EVENT_KV_WAIT,        /* a request that was in no step waited for a KV connector: to load, or to be decided */
    TW_EVENT_RANK            /* a rank of an engine elsewhere was in a step: tw_rank_enters() */
} tw_step_event_kind;

typedef struct tw_step_event {
    uint64_t seq;            /* running number + 1 */
    uint64_t request;        /* tw_request_hash() of its id; 0: the engine. RANK: what the step is known by */
    uint64_t from_ns, to_ns; /* events are ordered by to_ns. RANK: by from_ns; to_ns is stored as the rank leaves */
    uint64_t what;           /* tw_step_event_kind */
    uint64_t detail;         /* QUEUED: requests that waited as well. COMPILED: name of the kernel, tw_request_name_copy().
                              * RANK: tw_rank_detail() */
} tw_step_event;

typedef struct tw_request_name {
    uint64_t seq;            /* its number + 1 */
    uint64_t text[TW_REQUEST_NAME_WORDS];
} tw_request_name;

/* A straight line y = a + b x through what was seen, the latest weighing most. Sums, as the bits of doubles. */
typedef struct tw_line_fit {
    uint64_t n, x, y, xx, xy;
} tw_line_fit;

/* What is usual for this engine, learned from each step. */
#define TW_MEDIAN_ONE (1 << 20)
typedef struct tw_step_model {
    uint64_t part_ns[TW_STEP_PARTS]; /* running medians */
    tw_line_fit decode;      /* dispatch and wait of decode-only steps, ns, over their requests */
    uint64_t decode_median;  /* of them over that line, of which long ones raise the mean; parts of TW_MEDIAN_ONE, 0: none */
    tw_line_fit prefill;     /* what steps with prefill or recompute took beyond that, over those tokens */
    uint64_t prefill_line, prefill_off; /* sums, as in a line: what it gave for steps, and by how much these were off */
    uint64_t graph[TW_GRAPHS]; /* steps of late, by graph */
} tw_step_model;

typedef struct tw_step_ring {
    uint64_t head, event_head, name_head;
    tw_step_model model;
    tw_step_record step[TW_STEP_RECORDS];
    tw_step_event event[TW_STEP_EVENTS];
    tw_request_name name[TW_REQUEST_NAMES];
} tw_step_ring;

/* ---- The writer: some 50 ns a step ---- */

/* Appends a step (seq is set here) and learns from it. */
void tw_step_write(tw_step_ring *ring, const tw_step_record *step);

void tw_step_event_write(tw_step_ring *ring, tw_step_event_kind kind, uint64_t request, uint64_t from_ns,
                         uint64_t to_ns, uint64_t detail);

/* The number of a request's id, or of a kernel's name, cut to 55 bytes; that of the last one if it is the same. */
uint32_t tw_request_name_write(tw_step_ring *ring, const char *id, size_t len);

/* Which rank it is, and the group of those that it meets in each layer, by a number of their own. */
static inline uint64_t tw_rank_detail(uint32_t rank, uint32_t group) { return (uint64_t)group << 32 | rank; }
static inline uint32_t tw_rank_of(const tw_step_event *event) { return (uint32_t)event->detail; }
static inline uint32_t tw_rank_group(const tw_step_event *event) { return (uint32_t)(event->detail >> 32); }

/* A rank enters a step, and leaves it. mark: not 0, of that step in all ranks alike, and of no other near it. Returns
 * the event's number; its to_ns is its from_ns until the rank leaves. */
uint64_t tw_rank_enters(tw_step_ring *ring, uint64_t mark, uint64_t detail, uint64_t now_ns);
void tw_rank_leaves(tw_step_ring *ring, uint64_t number, uint64_t now_ns);

/* ---- Readers ---- */

/* "schedule", ...; "unknown" out of range. */
const char *tw_step_part_name(int part);

/* Copies step number n, event number n. false: it is overwritten, or not written yet. */
bool tw_step_read(const tw_step_ring *ring, uint64_t n, tw_step_record *out);
bool tw_step_event_read(const tw_step_ring *ring, uint64_t n, tw_step_event *out);

/* The first step whose done_ns is at least at_ns; ring->head where none is. */
uint64_t tw_step_find(const tw_step_ring *ring, uint64_t at_ns);

/* What a message is known by: its first request, tw_request_hash() of the id, and how many tokens that has by then.
 * Never 0 where it has any. */
uint32_t tw_sent_mark(uint64_t request, uint32_t tokens);

/* The stamp of the step that sent a message, for engines whose messages have none. steps: how many are looked at, the
 * latest. 0: none of them did, or it is not known what they sent: none is looked for behind TW_UNSENT_STEPS in a row of
 * which it is not. */
#define TW_SENT_STEPS 64         /* for each message */
#define TW_SENT_STEPS_LATE 2048  /* for one that is not among those: it waited behind others */
#define TW_UNSENT_STEPS 32
uint64_t tw_step_sent(const tw_step_ring *ring, uint64_t request, uint32_t tokens, uint32_t steps);

/* Copies a request's id, at most size bytes with its NUL. "": the number is 0, or its place was taken since. */
void tw_request_name_copy(const tw_step_ring *ring, uint32_t number, char *to, size_t size);

/* Never 0. */
uint64_t tw_request_hash(const char *id, size_t len);

/* The value of a line at x, never below 0; NaN until it has seen enough. */
double tw_line_at(const tw_line_fit *line, double x);

/* What dispatch and wait of a step that decodes so many requests usually take, ns: half of them took longer. NaN as
 * above. */
double tw_step_usual_ns(const tw_step_model *model, double requests);

/* What prefill or recompute of so many tokens adds to a step, ns, at most: the line, and twice what steps are off it on
 * average (a token costs more behind a long context). NaN: too few steps were seen of that size or above, eight for the
 * line and eight for what is off it. */
double tw_step_prefill_ns(const tw_step_model *model, double tokens);

/* What the model gives for a step on this machine, seconds: an estimate. NaN: not known yet. */
typedef struct tw_step_cost {
    double decode_step;      /* a step of decoding alone, as they were of late on average */
    double decode_request;   /* what one more decoding request adds; unknown while all had as many */
    double prefill_token;    /* what a token of a prompt adds to the step that computes it, on average */
} tw_step_cost;
tw_step_cost tw_step_cost_of(const tw_step_model *model);

TW_END_C
