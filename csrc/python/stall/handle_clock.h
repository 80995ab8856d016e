/* How long each handle of an event loop runs: the type of the loop's queue is replaced by one whose popleft() notes the
 * time. The handle itself, its frames and its life are as without it: what is kept of it, until the next one or the next
 * wait, is the code object that it runs and its context, which has the request that it works for.
 *
 * Of asyncio each handle is timed, and the last one ends where select() begins. uvloop runs its handles in batches, and
 * reads the length of its queue after each, when it has written what was queued for its connections: there the last one
 * ends, so that these writes are part of it. Its handles are timed only while a request of the
 * process waits for its first token: one is timed from where a stream was opened in it, those after it whole.
 *
 * Under the GIL, on the loop's thread.
 */
#pragma once

#include "python/stall/host.h"
#include "python/stamp/stream.h"

typedef struct handle_clock {
    struct handle_clock *next; /* of those in use */
    const loop_clock *loop;
    PyObject *queue;           /* NULL: it times nothing */
    PyTypeObject *type;        /* that the queue had */
    PyObject *code, *context;  /* of the handle that runs, where they are known; or NULL */
    StreamObject *opened;      /* of uvloop: by it, which was not timed before; or NULL */
    uint64_t since_ns;         /* when it began; 0: none runs that is timed */
    uintptr_t thread;          /* that runs the loop */
    int inside;                /* of uvloop: a handle runs, timed or not */
} handle_clock;

enum handle_loop { HANDLES_OF_ASYNCIO, HANDLES_OF_UVLOOP, HANDLE_LOOPS };

/* Times what is taken from a loop's queue, a plain collections.deque, while its loop has a clock; else nothing. Negative:
 * an exception is set. */
int handle_clock_begin(handle_clock *clock, const loop_clock *loop, enum handle_loop kind, PyObject *queue);

/* The queue is as before. */
void handle_clock_end(handle_clock *clock);

/* The same of the clock that times a queue, if one does. */
void handle_clock_end_of(PyObject *queue);

/* The handle that runs, if one does, has ended: the loop is to wait. */
void handle_clock_ended(handle_clock *clock, uint64_t now_ns);

PyObject *core_handle_links(PyObject *op, PyObject *args);
