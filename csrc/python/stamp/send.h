/* Send: stands before an ASGI `send`. */
#pragma once

#include "python/core.h"

extern PyType_Spec tw_send_spec;

/* Core.request() */
PyObject *core_request(PyObject *op, PyObject *const *args, Py_ssize_t nargs);
