/* The writing half of a trace file (event_ring.h): which thread stamps, where the event goes.
 *
 * Thread rule: one writer at a time (the GIL), as for the segment; so each ring has one producer at any time, whatever
 * threads and streams do. Which ring is that of the calling thread, found by its thread pointer: a stream that moves to
 * another thread writes to that thread's ring. Nothing on the way allocates, locks or fails.
 *
 * A recorder that records nothing (zeroed memory, or one that was ended) takes events and drops them: streams keep its
 * address for as long as they live.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/event_ring.h"

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/shared_file.h"

#include <pthread.h>

TW_BEGIN_C

#define TW_STALL_RINGS 3 /* of a tw_host: by_handle, by_loop, by_watchdog */

/* Where one ring goes on. */
typedef struct tw_ring_writer {
    tw_ring_event *next, *begin, *end;
    uint64_t *head;
    uint64_t thread;     /* whose it is; 0: of none */
} tw_ring_writer;

/* The latest sample of a track, which may have grown since it was written. */
typedef struct tw_sample_writer {
    uint64_t number;     /* of its span, + 1; 0: there is none */
    uint64_t written_ns; /* up to when it was written */
    uint64_t thread;
} tw_sample_writer;

typedef struct tw_recorder {
    uint64_t thread;     /* that wrote last, */
    tw_ring_writer *ring; /* and where: never NULL while thread is not 0 */
    tw_trace_head *head; /* NULL: it records nothing */
    tw_trace_labels *labels;
    tw_clock_snapshot *clocks;
    tw_trace_stalls *stalls;
    tw_ring_writer of[TW_RINGS];
    uint64_t counted[TW_COUNTERS]; /* as last sampled, + 1 */
    uint64_t span[TW_STALL_RINGS]; /* the next one of each of the host's rings, + 1; 0: none was looked at */
    tw_sample_writer sample[TW_TRACKS];
    uint64_t pid;        /* whose memory it is: a fork child's is its parent's */
} tw_recorder;

/* The calling thread: any number but 0, the same for as long as it lives. */
static inline uint64_t tw_this_thread(void) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_thread_pointer)
    return (uint64_t)(uintptr_t)__builtin_thread_pointer();
#define TW_THREAD_POINTER
#endif
#endif
#ifndef TW_THREAD_POINTER
    return (uint64_t)pthread_self();
#endif
}

/* Ring of a thread that is not the one that wrote last: its own, else a free one that it takes, else the shared one.
 * NULL: nothing is recorded. */
tw_ring_writer *tw_recorder_find(tw_recorder *r, uint64_t thread);

/* The calling thread's own ring, else the shared one: a collection takes none. NULL: nothing is recorded. */
tw_ring_writer *tw_recorder_known(tw_recorder *r);

static inline void tw_ring_put(tw_ring_writer *ring, uint64_t time_ns, uint64_t what, uint64_t id, uint64_t value) {
    tw_ring_event *e = ring->next;
    tw_store_release(&e->time_ns, time_ns);
    tw_store_release(&e->what, what);
    tw_store_release(&e->id, id);
    tw_store_release(&e->value, value);
    ring->next = e + 1 == ring->end ? ring->begin : e + 1;
    tw_store_release(ring->head, tw_load(ring->head) + 1);
}

/* An event of the calling thread. */
static inline void tw_record(tw_recorder *r, uint64_t time_ns, uint64_t what, uint64_t id, uint64_t value) {
    const uint64_t thread = tw_this_thread();
    tw_ring_writer *ring = __builtin_expect(r->thread == thread, 1) ? r->ring : tw_recorder_find(r, thread);
    if (__builtin_expect(ring != NULL, 1)) tw_ring_put(ring, time_ns, what, id, value);
}

/* Makes a trace file of memory: tw_trace_bytes(events, label_sets) zeros, of a file or not, which stays the caller's and
 * mapped until tw_recorder_end. owner: the head of this process's segment. joined_ns: as in the file's name. Takes a
 * clock snapshot. false: out of range. */
bool tw_recorder_begin(tw_recorder *r, void *memory, uint64_t events, uint32_t label_sets, const tw_header *owner,
                       uint64_t joined_ns);

/* Nothing is recorded from now on; the file is marked. After a fork, in the child, nothing is written. Returns the memory
 * and its bytes, for the caller to unmap; NULL: it recorded nothing. */
void *tw_recorder_end(tw_recorder *r, size_t *bytes);

static inline bool tw_recorder_on(const tw_recorder *r) { return r->head != NULL; }

/* Writes down the names that came into use since, and what the process is called. To be called when a label set or step
 * name was made, and when the role changed. */
void tw_recorder_name(tw_recorder *r, const tw_segment *g);

/* What the process works for, see engine_id.h. */
void tw_recorder_engine(tw_recorder *r, uint64_t engine);

/* Once a second: a clock snapshot, and rings of threads that have ended become free. About 2 us. */
void tw_recorder_tick(tw_recorder *r);

/* A sample, written where it differs from the last. */
void tw_recorder_count(tw_recorder *r, uint64_t now_ns, tw_counter counter, uint64_t value);

/* The samples that a segment has: streams in flight, goodput, overlap, delay. At most 10 times a second. */
void tw_recorder_sample(tw_recorder *r, const tw_segment *g, uint64_t now_ns);

/* The stalls since, of those that the host's rings still hold, in the order of their ends: measured ones of at least
 * TW_SLOW_NS, and all others; a sample that has grown since it was written again, with the same start. From the first call
 * on the watchdog keeps stacks. */
void tw_recorder_stalls(tw_recorder *r, tw_host *host);

/* A pause opens, by the segment's clock, or has closed; both after tw_pause_begin and the end. */
void tw_recorder_pause(tw_recorder *r, const tw_pause_clock *p);
void tw_recorder_paused(tw_recorder *r, const tw_pause_clock *p, tw_cause cause, uint64_t start_ns, uint64_t stop_ns,
                        const tw_pause_result *result);

/* The memory that a file of a member names (base/shared_memory.h): zeros, mapped, its pages there already so that no stamp
 * faults. bytes: of whole pages. name: TW_GROUP_NAME bytes, of the file. dir: descriptor of its directory. Any thread.
 * TW_GROUP_FULL: a copy does not fit into the file, or would leave less than TW_GROUP_ROOM. */
tw_group_problem tw_recorder_file(int dir, const char *name, size_t bytes, void **out);

/* The same without a file. NULL: no memory. */
void *tw_recorder_memory(size_t bytes);

TW_END_C
