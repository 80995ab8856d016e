/* A selector's select() with idle slots: between the loop's last callback and the next event. */
#ifndef TAILWATCH_PYTHON_GC_IDLE_SELECTOR_H
#define TAILWATCH_PYTHON_GC_IDLE_SELECTOR_H

#include "python/gc/idle_gc.h"

extern PyType_Spec tw_idle_select_spec;

/* What a selector with a descriptor has for its select(): slices run while it would wait. Here the wait is what the loop means
 * it to be: epoll's is rounded up to a millisecond, and a slice in that would be late. calls_fd: as in loop_clock.
 * NULL: an exception is set. */
PyObject *idle_select_new(SlicerObject *slicer, PyObject *selector, int calls_fd);

#endif
