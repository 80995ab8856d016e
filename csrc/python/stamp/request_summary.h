/* What became of one request, for spans. */
#ifndef TAILWATCH_PYTHON_STAMP_REQUEST_SUMMARY_H
#define TAILWATCH_PYTHON_STAMP_REQUEST_SUMMARY_H

#include "python/stamp/stream.h"

/* Stream.summary() */
PyObject *stream_summary(PyObject *self, PyObject *unused);

#endif
