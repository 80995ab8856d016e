/* Requests stamped inside the engine, where no front end of the group stamps them (engine-only mode): each is a stream
 * that opens as the scheduler gets it, has its tokens as a step ends, and ends with its last output.
 *
 * Under the GIL. No function leaves an exception set: what cannot be read is not counted. A request that is not found
 * where its id leads has no stream.
 */
#pragma once

#include "python/stamp/step_reader.h"
#include "python/stamp/stream.h"

typedef struct engine_streams {
    CoreObject *core;         /* borrowed: of its owner */
    PyObject *open;           /* {request id: stream} */
    PyObject *model, *route;  /* labels */
    uint64_t opened;
} engine_streams;

/* -1: an exception is set. What is there is freed by the second. */
int engine_streams_init(engine_streams *s, CoreObject *core, PyObject *model);
void engine_streams_free(engine_streams *s);

/* The scheduler has got a request, unless a front end of the group stamps it. */
void engine_streams_queued(engine_streams *s, step_reader *r, PyObject *scheduler, PyObject *request, uint64_t now_ns);

/* Those that it had before it was followed, and that have no token yet. */
void engine_streams_adopt(engine_streams *s, step_reader *r, PyObject *scheduler, uint64_t now_ns);

/* A step has ended, and its record is written. outputs: {client: EngineCoreOutputs}; key_ns: its stamp, 0: none. */
void engine_streams_answered(engine_streams *s, step_reader *r, PyObject *outputs, uint64_t key_ns, uint64_t now_ns);

/* Requests were ended from outside: an id, several, or None for all. */
void engine_streams_finished(engine_streams *s, step_reader *r, PyObject *ids, uint64_t now_ns);
