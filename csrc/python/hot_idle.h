/* A selector's epoll object with idle moments: between the loop's last callback and the next event. */
#ifndef TAILWATCH_HOT_IDLE_H
#define TAILWATCH_HOT_IDLE_H

#include "hot_sweep.h"

extern PyType_Spec tw_idle_poll_spec;

/* Stands for an epoll object: everything that it has, and a poll() that sweeps while it would wait. NULL: an exception is
 * set. */
PyObject *idle_poll_new(SweepObject *sweep, PyObject *epoll);

#endif
