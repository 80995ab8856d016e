/* What became of one request, for spans. */
#ifndef TAILWATCH_PYTHON_STAMP_REQUEST_SUMMARY_H
#define TAILWATCH_PYTHON_STAMP_REQUEST_SUMMARY_H

#include "python/stamp/stream.h"

/* Stream.story() */
PyObject *stream_story(PyObject *self, PyObject *unused);

#endif
