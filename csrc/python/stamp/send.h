/* Send: stands before an ASGI `send`. */
#ifndef TAILWATCH_PYTHON_STAMP_SEND_H
#define TAILWATCH_PYTHON_STAMP_SEND_H

#include "python/core.h"

extern PyType_Spec tw_send_spec;

/* Core.request() */
PyObject *core_request(PyObject *op, PyObject *const *args, Py_ssize_t nargs);

#endif
