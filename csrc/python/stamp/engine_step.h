/* The engine steps of a core: what a `with tailwatch.step(...)` enters and leaves. */
#ifndef TAILWATCH_PYTHON_STAMP_ENGINE_STEP_H
#define TAILWATCH_PYTHON_STAMP_ENGINE_STEP_H

#include "python/group.h"

typedef struct StepObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *name;
    tw_step step;            /* while it is open */
    uint64_t batch, waiting;
    uint64_t epoch;          /* the core's when it was entered; 0: it never was */
    uint64_t depth;          /* how often it was entered and not left */
    uint32_t index;          /* of its name, as of that epoch */
    tw_nvtx_range range;
} StepObject;

extern PyType_Spec tw_step_spec;

/* At the start, and again when the segment has begun anew: steps that are open are nobody's. */
void core_init_steps(CoreObject *core);

/* Frees what waits to be used again. */
void core_free_steps(CoreObject *core);

/* Core.step() */
PyObject *core_step(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
