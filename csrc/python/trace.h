/* The events of a core: begun, ended, and what the daemon does for them. */
#pragma once

#include "python/core.h"

/* In a fork child: its parent's file is let go of. Nothing where it is this process's own. */
void core_forget_trace(CoreObject *core);

void core_free_trace(CoreObject *core);

PyObject *core_trace_start(PyObject *op, PyObject *events);
PyObject *core_trace_stop(PyObject *op, PyObject *unused);
PyObject *core_trace_turn(PyObject *op, PyObject *whole);
PyObject *core_tracing(PyObject *op, void *unused);
PyObject *core_trace_file(PyObject *op, void *unused);
PyObject *core_trace_memory(PyObject *op, void *unused);
