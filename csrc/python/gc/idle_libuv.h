/* The idle slots in which a libuv loop (uvloop's) waits. */
#ifndef TAILWATCH_PYTHON_GC_IDLE_LIBUV_H
#define TAILWATCH_PYTHON_GC_IDLE_LIBUV_H

#include "python/gc/idle_gc.h"

extern PyType_Spec tw_libuv_idle_slots_spec;

/* Slicer.uv(path, capsule): path of the shared object that exports libuv, its loop. The returned object's close() must be
 * called before the loop is closed. LookupError: it does not export what is needed. */
PyObject *libuv_idle_slots_new(SlicerObject *slicer, const char *path, PyObject *capsule);

#endif
