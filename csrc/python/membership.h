/* How a core comes into a group, and begins anew. */
#pragma once

#include "python/core.h"

/* Makes the page on which the epoch stands. -1: an exception is set. */
int core_make_epoch(CoreObject *core);

/* In a fork child, however it was made: what the parent measured is forgotten, and the group is left. */
void core_reborn(CoreObject *core);

/* Joins its parent's group, if it has not: before its first request or step, so that nothing is lost by a kill. */
void core_rejoin(CoreObject *core);

/* Leaves, and frees what is left of it. */
void core_free_group(CoreObject *core);

PyObject *core_join(PyObject *op, PyObject *args);
