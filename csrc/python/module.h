/* What every type of tailwatch._hot needs. Limited API of CPython 3.10: one wheel for every later version.
 *
 * Everything runs under the GIL, which makes this process the single writer of its segment. On the token,
 * message and collection paths nothing is allocated, no lock is taken and no Python code is called.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef Py_GIL_DISABLED
#error "tailwatch: free-threaded CPython is not supported: its collector stops the world differently and counters here have one writer"
#endif

/* The headers of 3.12 and later return these without a reference more, whatever the limited API is: they are immortal
 * there. Of a wheel that is built there, 3.10 and 3.11 would free them. */
#undef Py_RETURN_NONE
#undef Py_RETURN_TRUE
#undef Py_RETURN_FALSE
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_RETURN_TRUE return Py_NewRef(Py_True)
#define Py_RETURN_FALSE return Py_NewRef(Py_False)

/* PyType_Slot holds functions in void pointers: CPython's own convention, which ISO C does not have. */
#pragma GCC diagnostic ignored "-Wpedantic"

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function)

/* The end of each tp_dealloc: gives the object back, and its reference to its type. */
static inline void hot_free(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF((PyObject *)type);
}

/* The module's types, TYPE(field of tw_hot_state, spec, name in Python). */
#define HOT_TYPES(TYPE)                                            \
    TYPE(core_type, tw_core_spec, "Core")                          \
    TYPE(stream_type, tw_stream_spec, "Stream")                    \
    TYPE(send_type, tw_send_spec, "Send")                          \
    TYPE(step_type, tw_step_spec, "Step")                          \
    TYPE(steps_type, tw_scheduler_steps_spec, "SchedulerSteps")    \
    TYPE(around_type, tw_around_spec, "Around")                    \
    TYPE(answer_type, tw_answer_spec, "Answer")                    \
    TYPE(slicer_type, tw_slicer_spec, "Slicer")                       \
    TYPE(idle_type, tw_idle_select_spec, "IdleSelector")           \
    TYPE(uv_type, tw_libuv_idle_slots_spec, "LibuvIdleSlots")            \
    TYPE(template_type, tw_template_spec, "Template")              \
    TYPE(encoder_type, tw_encoder_spec, "Encoder")                 \
    TYPE(plan_type, tw_plan_spec, "Plan")                          \
    TYPE(plans_type, tw_plans_spec, "Plans")
#define HOT_TYPE_FIELD(field, spec, name) PyTypeObject *field;
#define HOT_TYPE_SPEC(field, spec, name) extern PyType_Spec spec;
HOT_TYPES(HOT_TYPE_SPEC)

typedef struct tw_hot_state {
    HOT_TYPES(HOT_TYPE_FIELD)
} tw_hot_state;
