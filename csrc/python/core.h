/* Core: the one writer of one process's segment, with a state for each file that works on it. */
#pragma once

#include "python/module.h"

#include <pthread.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/event_recorder.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/stall/watchdog.h"
#include "tailwatch/stamp/engine_step.h"

/* ---- gc/callbacks.h, gc/policy.h ---- */

typedef struct core_gc {
    PyObject *callbacks;      /* gc.callbacks, to see whether a pause can still be closed */
    const PyObject *closer;   /* compared, never followed */
    int mode, open, generation;
    int reads_heap;           /* the heap's size is read off the collector's books: not where slices count it */
    const struct heap_books *heap; /* NULL: not known, or the collector is not watched */
    uint64_t counted, booked; /* objects that were counted, and what the books showed then */
    Py_ssize_t stop_callbacks; /* how many there were when the first was called at the stop */
    uint64_t start_ns, cpu_start_ns;
    uint64_t others_start_ns; /* when others' callbacks began to be called at the start of the collection */
    uint64_t inner_start_ns, inner_stop_ns;
} core_gc;

/* The pass of our own that is open. */
typedef struct core_pass {
    int depth;
    uint64_t start_ns;
    uint64_t cpu_start_ns;    /* of the thread that began it */
    uintptr_t thread;         /* which one that is; 0: another one began one meanwhile */
} core_pass;

/* Called around each pause of this process, once that is recorded. Inside the collector: nothing here may call Python but
 * to let go of objects. generation: -1 for a pass of our own. */
typedef struct pause_hook {
    void *of;
    int (*begins)(void *of, tw_cause cause, int generation); /* whether it took longer than a clock is read in */
    void (*ends)(void *of, tw_cause cause, int generation, const uint64_t *collected); /* NULL: the end was not seen */
} pause_hook;

enum { ON_PAUSE_NVTX, ON_PAUSE_SLICER, ON_PAUSE }; /* what may have one, in the order in which they are called */

/* ---- stamp/requests.h, stamp/stream.h, stamp/engine_step.h ---- */

/* Interned once: a lookup by one of these compares pointers and never allocates, also inside a collection. */
typedef struct tw_keys {
    PyObject *type, *body, *more_body, *status, *headers, *method, *text, *bytes, *write_paused;
    PyObject *request_id, *finish_reason, *new_token_ids;
} tw_keys;

typedef struct core_requests {
    tw_keys keys;
    PyTypeObject *type;       /* Send */
    PyObject *route_of, *timed_send, *streamed;
    int uncounted_full; /* scopes of requests that are not counted are of no more use */
    PyObject *ended;          /* called with each request that Send has ended, and its scope; NULL: nothing is */
    PyObject *body_type;      /* the message type object last seen with "http.response.body" */
    uint64_t late_from_ns;    /* from then on, what is not among the last steps that sent is looked for further back */
    uint32_t late_misses;     /* that were looked for there in a row, and were not there either */
} core_requests;

typedef struct core_streams {
    PyTypeObject *type;
    uint64_t serves;          /* the engine of streams that are not bound; 0: not known */
    int exemplars;            /* whether streams that open from now on are exemplars of what they measure */
    PyObject *trace_of;       /* () -> trace id of the span around the caller, sampled; else None. NULL: not asked */
    void (*opened)(PyObject *stream); /* called with each that is opened where it is served, in its thread; NULL: nothing is */
} core_streams;

#define STEPS_FREE 8          /* Step objects that wait to be used again */

typedef struct core_steps {
    tw_stepper stepper;
    PyTypeObject *type;
    struct {
        PyObject *name;       /* the str itself: compared, not read */
        uint64_t epoch;
        uint32_t index;
    } known[TW_STEPS];
    uint32_t next_known, n_free;
    uint64_t ended;           /* steps, whatever their name */
    PyObject *free[STEPS_FREE]; /* memory of dead ones */
    void (*after)(void *of, uint64_t now_ns, uint64_t lasted_ns, uint64_t waiting); /* called at each end, or NULL */
    void *after_of;
} core_steps;

/* ---- trace.h, nvtx/ranges.h ---- */

typedef struct core_trace {
    tw_recorder recorder;     /* of events; records nothing until it is begun */
    char name[TW_GROUP_NAME]; /* of its file; "": it has none, and is read at its address */
    uint64_t stops;           /* how often it was ended: read by a maker of a file without the GIL */
    int dir;                  /* a descriptor of the directory while one of our threads makes the file */
    pid_t maker;              /* whose thread that is: not a fork child's; 0: none does */
} core_trace;

typedef struct core_nvtx {
    struct nvtx_tool *tool;   /* what sends to a tool; NULL: none listens, or is to be sent to */
    uint64_t passes;               /* bit d: the pass at depth d + 1 has a range */
    int collection;           /* the collection that is open has one */
} core_nvtx;

/* ---- stall/host.h ---- */

typedef struct core_host {
    int mode;                 /* what of the host is recorded: STALLS_... */
    long pid;                 /* whose descriptors and watchdog these are */
    tw_watchdog *watchdog;    /* NULL: none runs */
    tw_interpreter interpreter;
    uint32_t uses[TW_TRACKS]; /* loops of one thread */
    int schedstat[TW_TRACKS]; /* descriptor + 1 */
} core_host;

/* ---- the core ---- */

typedef struct CoreObject {
    PyObject_HEAD
    tw_segment *segment;      /* mapped for as long as the process lives */
    uint64_t *epoch;          /* one more after each reset: a fork child does not end its parent's streams. On a page that
                                 a fork wipes: 0 where it was not reported */
    uint64_t last_epoch;
    pause_hook on_pause[ON_PAUSE];
    core_gc gc;
    core_pass pass;
    core_requests requests;
    core_streams streams;
    core_steps steps;
    core_trace trace;
    core_nvtx nvtx;
    core_host host;
    struct core_group *group; /* NULL until it is asked to join one */
} CoreObject;

/* Never 0; in a fork child that of the thread that forked is the same. */
static inline uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }

/* One more of counter number index. NULL: an exception is set. */
static inline PyObject *core_count(uint64_t *counters, int n, PyObject *index) {
    const long i = PyLong_AsLong(index);
    if (i == -1 && PyErr_Occurred()) return NULL;
    if (i < 0 || i >= n) return PyErr_Format(PyExc_ValueError, "expected a counter from 0 to %d, found %ld", n - 1, i);
    tw_add(&counters[i], 1);
    Py_RETURN_NONE;
}

/* Whether there is anything to write, and this process may: a fork child whose fork was not reported may not. */
static inline int core_records(const CoreObject *core) {
    return __builtin_expect(tw_recorder_on(&core->trace.recorder), 0) && *core->epoch != 0;
}

/* The pause that begins or has ended was recorded: the hooks are called. begins: whether that took long. */
static inline int core_pause_begins(CoreObject *core, tw_cause cause, int generation) {
    int took = 0;
    for (int i = 0; i < ON_PAUSE; i++)
        if (core->on_pause[i].begins != NULL) took |= core->on_pause[i].begins(core->on_pause[i].of, cause, generation);
    return took;
}

static inline void core_pause_ends(CoreObject *core, tw_cause cause, int generation, const uint64_t *collected) {
    for (int i = 0; i < ON_PAUSE; i++)
        if (core->on_pause[i].ends != NULL) core->on_pause[i].ends(core->on_pause[i].of, cause, generation, collected);
}
