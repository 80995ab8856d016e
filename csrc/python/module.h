/* What the three types of tailwatch._hot share. Limited API of CPython 3.10: one wheel for every later version.
 *
 * Everything runs under the GIL, which makes this process the single writer of its segment. On the token,
 * message and collection paths nothing is allocated, no lock is taken and no Python code is called.
 */
#ifndef TAILWATCH_PYTHON_MODULE_H
#define TAILWATCH_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "python/gc/gc_state.h"

#include "tailwatch/base/atomic.h"
#include "tailwatch/record/event_recorder.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/wire/body_scan.h"
#include "tailwatch/stamp/stream.h"
#include "tailwatch/attribute/engine_id.h"

#ifdef Py_GIL_DISABLED
#error "tailwatch: free-threaded CPython is not supported: its collector stops the world differently and counters here have one writer"
#endif

/* PyType_Slot holds functions in void pointers: CPython's own convention, which ISO C does not know. */
#pragma GCC diagnostic ignored "-Wpedantic"

/* Interned once: a lookup by one of these compares pointers and never allocates, also inside a collection. */
typedef struct tw_keys {
    PyObject *type, *body, *more_body, *status, *headers, *method, *text, *bytes, *write_paused;
} tw_keys;

typedef struct tw_hot_state {
    PyTypeObject *core_type, *stream_type, *send_type, *template_type, *encoder_type, *plan_type, *plans_type;
    PyTypeObject *step_type, *answer_type, *sweep_type, *idle_type, *uv_type;
} tw_hot_state;

typedef struct core_group core_group;
typedef struct core_nvtx core_nvtx;

/* A range of a tool that may end on another thread. id 0: none is open. */
typedef struct tw_nvtx_range {
    uint64_t id;
    uint64_t forks;           /* of the process that began it, see python/nvtx/ranges.c */
} tw_nvtx_range;

#define STEPS_FREE 8          /* Step objects that wait to be used again */

/* What the steps of a core share, see python/stamp/engine_step.h. */
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
} core_steps;

/* The trace file of a core, see python/trace.h. */
typedef struct core_trace {
    char name[TW_GROUP_NAME]; /* "": it has no file, and is read at its address */
    uint64_t stops;           /* how often it was ended: who makes a file without the GIL looks whether it is still wanted */
    int dir;                  /* a descriptor of the directory while one of our threads makes the file */
    pid_t maker;              /* whose thread that is: not a fork child's; 0: none does */
} core_trace;

/* Never 0; in a fork child that of the thread that forked is the same. */
static inline uintptr_t this_thread(void) { return (uintptr_t)pthread_self(); }

typedef struct CoreObject {
    PyObject_HEAD
    tw_segment *segment;      /* mapped for as long as the process lives */
    tw_keys keys;
    PyTypeObject *stream_type, *send_type;
    PyObject *route_of, *timed_send, *streamed;
    PyObject *ended;          /* called with each request that Send has ended, and its scope; NULL: nobody asks */
    PyObject *body_type;      /* the message type object last seen to say "http.response.body" */
    /* hooks/gc */
    PyObject *callbacks;      /* gc.callbacks, to see whether a pause can still be closed */
    const PyObject *closer;   /* compared, never followed */
    int gc_mode, gc_open, gc_generation, policy_depth;
    const heap_books *heap;   /* NULL: not known, or nobody watches the collector */
    Py_ssize_t stop_callbacks; /* how many there were when the first was called at the stop */
    uint64_t *epoch;          /* one more after each reset: a fork child does not end its parent's streams. On a page that
                                 a fork wipes: 0 where nobody has told us of it */
    uint64_t last_epoch;
    struct core_group *group; /* NULL until it is asked to join one */
    uint64_t *stop, own_stop; /* where others read when this process last stood still; nowhere outside a group */
    uint64_t others_start_ns; /* when others' callbacks began to be called at the start of the collection */
    uint64_t inner_start_ns, inner_stop_ns, cpu_start_ns;
    core_steps steps;
    struct SweepObject *sweep; /* borrowed: who uses the moments between steps; NULL: nobody */
    core_nvtx *nvtx;          /* what a tool is told with; NULL: none listens, or is to be told */
    uint64_t nvtx_policy;     /* bit d: the pass at depth d + 1 has a range */
    int nvtx_gc;              /* the collection that is open has one */
    uint64_t serves;          /* the engine of streams that nobody binds; 0: not known */
    int exemplars;            /* whether streams that open from now on are exemplars of what they measure */
    PyObject *trace_of;       /* () -> trace id of the span around the caller, sampled; else None. NULL: not asked */
    tw_recorder recorder;     /* of events; records nothing until it is begun */
    core_trace trace;
    uint64_t gc_start_ns, policy_start_ns; /* of the collection, and of the pass of ours, that is open */
    uint64_t policy_cpu_start_ns; /* of the thread that began that pass */
    uintptr_t policy_thread;      /* which one that is; 0: another one began one meanwhile */
} CoreObject;

typedef struct SendObject SendObject;

typedef struct StreamObject {
    PyObject_HEAD
    CoreObject *core;
    SendObject *sender;       /* borrowed: the ASGI wrapper that made it, NULL by hand or once that is gone */
    tw_stream stream;
    int open;                 /* tw_stream_open was called: it is counted */
    uint64_t epoch;           /* the core's when it was opened */
    int by_hand;              /* the app stamps it itself: Send no longer does */
    uint64_t number;          /* which request of this process it is, from 1 */
    tw_nvtx_range range;
    uint64_t marked;          /* messages of it that a tool was told of */
    uint64_t bound;           /* the engine that it was bound to; 0: none */
    enum { PARTS_NONE, PARTS_AGREE, PARTS_DIFFER } parts; /* whether it was bound by its parts, and they go to one engine */
} StreamObject;

/* PROBE: a route not known to generate, watched for a streaming content type. QUIET: it does not stream, and
 * counts only if the app stamps it by hand. */
typedef enum { SEND_PROBE, SEND_QUIET, SEND_WATCH, SEND_DONE } send_state;

struct SendObject {
    PyObject_HEAD
    CoreObject *core;
    StreamObject *stream;
    PyObject *inner, *scope, *flow;
    PyObject *raised[3];      /* SystemExit and its like that came up in Python code of ours: for the app, not for us */
    uint64_t arrival_ns, entry_ns, proxy_ns;
    uint64_t done_ns;         /* when the stream's own end marker passed, 0 = not yet */
    int source, websocket, accepted, labelled, stamping;
    uint32_t status;
    send_state state;
    uint32_t sent;
    size_t model_len;
    char model[TW_NAME_BYTES];
    tw_scan *scan;            /* made when a body begins: most requests have none that is read */
};

extern PyType_Spec tw_core_spec, tw_stream_spec, tw_send_spec;

/* core */
/* Number of the label set with these names, as tw_segment_label_growing says; a group's file grows with it. */
uint32_t core_label(CoreObject *core, const char *model, size_t model_len, const char *route, size_t route_len);
static inline tw_segment *core_segment(const CoreObject *core) { return core->segment; }
/* Says to the group when this process last stood still, or that it does. */
static inline void core_tell(CoreObject *core) { tw_store(core->stop, tw_load(&core->segment->pause.last_stop_ns)); }
/* A pause that is open although nobody is left to close it is forgotten, so that it charges no stream. */
void core_verify_pause(CoreObject *core);
/* A pass of our own begins and ends: collections inside it are booked as policy. The end returns its length in ns, 0 where
 * an outer one is still open. */
void core_policy_open(CoreObject *core);
uint64_t core_policy_close(CoreObject *core);

/* stream */
StreamObject *stream_new(CoreObject *core);
/* Whether it was opened, in this process: else it is not ours to end. */
static inline int stream_counts(const StreamObject *self) { return self->open && self->epoch == *self->core->epoch; }
void stream_open(StreamObject *self, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns, tw_arrival source);
/* The engine that an object names, see engine_id.h; 0 for None and "". -1: an exception is set. */
int engine_named(PyObject *engine, uint64_t *unit);
/* Puts it under labels given as any objects. -1: an exception is set. */
int stream_name(StreamObject *self, PyObject *model, PyObject *route);
/* Opens one that the app stamps itself; arrival_ns is its own (given) or now. -1: an exception is set. */
int stream_open_by_hand(StreamObject *self, uint64_t arrival_ns, int given, PyObject *request_id, PyObject *trace_id);
/* A monotonic ns given by the caller, any integer; *out stays for None. -1: an exception is set. */
int stream_time(PyObject *value, uint64_t *out);
/* How the request ended, read off the exception that ended it (NULL: none). */
tw_end end_of_exception(PyObject *error);

/* Opens and labels a stream that Send has made but not yet counted: the app stamps it by hand. */
void send_claim(SendObject *self);

/* Ends it, unless that has happened. */
void stream_shut(StreamObject *self, uint64_t now_ns, tw_end end);

/* Whether a tool is told, see python/nvtx/ranges.h; then, of the message that was stamped last. */
static inline int nvtx_on(const CoreObject *core) { return __builtin_expect(core->nvtx != NULL, 0); }
void nvtx_stamped(StreamObject *self);

/* One stamp: what both token() and the ASGI wrapper do. A fork child does not go on with its parent's streams. */
static inline void stream_stamp(StreamObject *self, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (__builtin_expect(self->epoch != *self->core->epoch, 0)) return;
    if (__builtin_expect(tw_load(&self->core->segment->pause.last_stop_ns) == TW_PAUSE_OPEN, 0)) core_verify_pause(self->core);
    tw_stream_token(&self->stream, now_ns, n, choice);
    if (nvtx_on(self->core)) nvtx_stamped(self);
}

/* Stream.story() */
PyObject *stream_story(PyObject *self, PyObject *unused);

/* Core.set_serves() */
PyObject *core_set_serves(PyObject *op, PyObject *unit);

/* exemplars: Core.exemplify(). The stream has its identity; sampled: whether that trace is kept, as far as is known */
PyObject *core_exemplify(PyObject *op, PyObject *args);
void stream_exemplify(StreamObject *self, int sampled);
/* The trace of the span around the caller becomes the stream's, unless it is an exemplar already. -1: asking raised, and
 * the exception is set. */
int stream_find_trace(StreamObject *self);

/* policy: methods of Core */
PyObject *core_policy_is(PyObject *op, PyObject *args);
PyObject *core_policy_pass(PyObject *op, PyObject *args);
PyObject *core_count_drift(PyObject *op, PyObject *drift);
PyObject *core_count_ceiling(PyObject *op, PyObject *ceiling);
PyObject *core_count_ignored(PyObject *op, PyObject *unused);
PyObject *core_policy_answer(PyObject *op, PyObject *args);
PyObject *core_count_freeze(PyObject *op, PyObject *unused);
PyObject *core_last_was_full(PyObject *op, void *unused);

/* gc: methods of Core */
PyObject *core_gc_first(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_gc_last(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* send: Core.request() */
PyObject *core_request(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
