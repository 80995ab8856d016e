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

/* PyType_Slot holds functions in void pointers: CPython's own convention, which ISO C does not know. */
#pragma GCC diagnostic ignored "-Wpedantic"

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function)

typedef struct tw_hot_state {
    PyTypeObject *core_type, *stream_type, *send_type, *template_type, *encoder_type, *plan_type, *plans_type;
    PyTypeObject *step_type, *answer_type, *sweep_type, *idle_type, *uv_type;
} tw_hot_state;
