/* What all requests of a core share. */
#pragma once

#include "python/stamp/stream.h"

/* -1: an exception is set. What is there is freed by the second. */
int core_init_requests(CoreObject *core, PyTypeObject *type, PyObject *route_of, PyObject *timed_send);
void core_free_requests(CoreObject *core);

/* The stream of a Send of this core that was opened and counts, a new reference; NULL: it is none. */
StreamObject *sent_stream(const CoreObject *core, PyObject *sender);

/* methods of Core; request() is that of stamp/send.c */
PyObject *core_request(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_on_request_end(PyObject *op, PyObject *ended);
PyObject *core_streamed(PyObject *op, PyObject *args);
