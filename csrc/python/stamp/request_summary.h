/* What became of one request, for spans. */
#pragma once

#include "python/stamp/stream.h"

/* Stream.summary() */
PyObject *stream_summary(PyObject *self, PyObject *unused);
