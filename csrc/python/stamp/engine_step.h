/* The engine steps of a core: what a `with tailwatch.step(...)` enters and leaves. */
#pragma once

#include "python/core.h"

/* At the start, and again when the segment has begun anew: steps that are open count no more. */
static inline void core_init_steps(CoreObject *core) {
    tw_segment *segment = core->segment;
    core->steps.ended = 0;
    tw_stepper_init(&core->steps.stepper, &segment->steps, &segment->pause, &segment->drops[TW_DROP_PAUSE_RING_OVERFLOW]);
}

/* Frees what waits to be used again. */
void core_free_steps(CoreObject *core);

/* Core.step() */
PyObject *core_step(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
