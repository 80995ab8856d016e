/* Stream: one request's tokens. */
#pragma once

#include "python/gc/callbacks.h"
#include "python/nvtx/ranges.h"

#include "tailwatch/stamp/stream.h"

typedef struct StreamObject {
    PyObject_HEAD
    CoreObject *core;
    void (*claim)(void *sender); /* called as the app stamps it itself from now on; NULL: nothing else does, or did */
    void *sender;             /* borrowed: the ASGI wrapper that made it, NULL by hand or once that is gone */
    tw_stream stream;
    int open;                 /* tw_stream_open was called: it is counted */
    uint64_t epoch;           /* the core's when it was opened */
    int by_hand;              /* the app stamps it itself: Send no longer does */
    uint64_t number;          /* which request of this process it is, from 1 */
    tw_nvtx_range range;
    uint64_t marked;          /* messages of it that were sent to a tool */
    int expected;             /* an engine has a request of it: core_expect() */
    uint64_t bound;           /* the engine that it was bound to; 0: none */
    enum { PARTS_NONE, PARTS_AGREE, PARTS_DIFFER } parts; /* whether it was bound by its parts, and they go to one engine */
} StreamObject;

StreamObject *stream_new(CoreObject *core);
/* Whether it was opened, in this process: else it is not ours to end. */
static inline int stream_counts(const StreamObject *self) { return self->open && self->epoch == *self->core->epoch; }
/* It was opened by what serves it, in the thread that serves it: not by an engine for its front end. */
static inline void stream_is_served_here(StreamObject *self) {
    if (self->core->streams.opened != NULL) self->core->streams.opened((PyObject *)self);
}
/* The object itself, a new reference, if it is a Stream of this core that counts; else NULL. */
static inline StreamObject *counted_stream(const CoreObject *core, PyObject *op) {
    StreamObject *stream = (StreamObject *)op;
    if (Py_TYPE(op) != core->streams.type || stream->core != core || !stream_counts(stream)) return NULL;
    return (StreamObject *)Py_NewRef(op);
}
/* Opened by C code of ours, which stamps it; a new reference. NULL: an exception is set. */
StreamObject *stream_open_named(CoreObject *core, PyObject *model, PyObject *route, uint64_t arrival_ns,
                                PyObject *request_id);
void stream_open(StreamObject *self, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns, tw_arrival source);
/* How the request ended, read off the exception that ended it (NULL: none). */
tw_end end_of_exception(PyObject *error);
/* Ends it, unless that has happened. */
void stream_shut(StreamObject *self, uint64_t now_ns, tw_end end);

/* The stream has its identity; sampled: whether that trace is kept, as far as is known. */
void stream_exemplify(StreamObject *self, int sampled);
/* The trace of the span around the caller becomes the stream's, unless it is an exemplar already. -1: asking raised, and
 * the exception is set. */
int stream_find_trace(StreamObject *self);

/* The message that was stamped last, for a tool. */
void stream_mark(StreamObject *self);

/* One stamp: what both token() and the ASGI wrapper do. A fork child does not go on with its parent's streams. */
static inline void stream_stamp(StreamObject *self, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (__builtin_expect(self->epoch != *self->core->epoch, 0)) return;
    if (__builtin_expect(tw_load(&self->core->segment->pause.last_stop_ns) == TW_PAUSE_OPEN, 0)) core_verify_pause(self->core);
    tw_stream_token(&self->stream, now_ns, n, choice);
    if (nvtx_on(self->core)) stream_mark(self);
}

/* Stream.summary(), of stamp/request_summary.c; methods of Core and of the module */
PyObject *stream_summary(PyObject *self, PyObject *unused);
PyObject *core_stream(PyObject *op, PyObject *args);
PyObject *core_set_serves(PyObject *op, PyObject *engine);
PyObject *core_exemplify(PyObject *op, PyObject *args);
PyObject *hot_engine_id(PyObject *module, PyObject *engine);
