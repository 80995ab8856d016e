/* The methods of Core that are about NVTX: switching it on and off, the user's ranges, and what a range costs. */
#include "python/nvtx/ranges.h"

#include <string.h>

/* nvtx(tokens) */
PyObject *core_nvtx_on(PyObject *op, PyObject *tokens) {
    const int each = PyObject_IsTrue(tokens);
    return each < 0 ? NULL : PyBool_FromLong(nvtx_attach((CoreObject *)op, each));
}

PyObject *core_nvtx_off(PyObject *op, PyObject *unused) {
    (void)unused;
    nvtx_detach((CoreObject *)op);
    Py_RETURN_NONE;
}

PyObject *core_nvtx_told(PyObject *op, void *unused) {
    (void)unused;
    return PyBool_FromLong(nvtx_on((CoreObject *)op));
}

PyObject *core_nvtx_anchor(PyObject *op, PyObject *unused) {
    (void)unused;
    if (nvtx_on((CoreObject *)op)) nvtx_anchor((CoreObject *)op);
    Py_RETURN_NONE;
}

/* ---- the user's own ---- */

/* Lone surrogates become '?'. Without a tool every name is 0. */
PyObject *core_nvtx_name(PyObject *op, PyObject *text) {
    CoreObject *core = (CoreObject *)op;
    if (!PyUnicode_Check(text)) return PyErr_Format(PyExc_TypeError, "name: expected a text, found %R", text);
    if (!nvtx_on(core)) return PyLong_FromLong(0);
    PyObject *bytes = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (bytes == NULL) return NULL;
    const uint32_t name = nvtx_name(core, PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    Py_DECREF(bytes);
    return PyLong_FromUnsignedLong(name);
}

/* nvtx_begin(name, payload) -> (id, forks); (0, 0) where no tool is told */
PyObject *core_nvtx_begin(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    unsigned int name;
    unsigned long long payload; /* "K": of a number that has more, the low 64 bits */
    tw_nvtx_range range = {0, 0};
    if (!PyArg_ParseTuple(args, "IK", &name, &payload)) return NULL;
    if (nvtx_on(core)) nvtx_user_begin(core, &range, name, (int64_t)payload);
    return Py_BuildValue("KK", (unsigned long long)range.id, (unsigned long long)range.forks);
}

PyObject *core_nvtx_end(PyObject *op, PyObject *args) {
    unsigned long long id, forks;
    (void)op;
    if (!PyArg_ParseTuple(args, "KK", &id, &forks)) return NULL;
    tw_nvtx_range range = {id, forks};
    if (id != 0) nvtx_end(&range);
    Py_RETURN_NONE;
}

PyObject *core_nvtx_mark(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    unsigned int name;
    unsigned long long payload; /* "K": of a number that has more, the low 64 bits */
    if (!PyArg_ParseTuple(args, "IK", &name, &payload)) return NULL;
    if (nvtx_on(core)) nvtx_user_mark(core, name, (int64_t)payload);
    Py_RETURN_NONE;
}

/* ---- what a range costs ---- */

/* As at the places that emit: the pointer is looked at anew each time. */
#define AGAIN() __asm__ volatile("" ::: "memory")

static void time_pushes(CoreObject *core, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) nvtx_gc_push(core, TW_CAUSE_GC0);
        AGAIN();
        if (core->nvtx_gc) nvtx_gc_pop(core);
        AGAIN();
    }
}

static void time_starts(CoreObject *core, tw_nvtx_range *range, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) nvtx_user_begin(core, range, 0, i);
        AGAIN();
        if (__builtin_expect(range->id != 0, 0)) nvtx_end(range);
        AGAIN();
    }
}

static void time_marks(CoreObject *core, long n) {
    for (long i = 0; i < n; i++) {
        if (nvtx_on(core)) nvtx_user_mark(core, 0, i);
        AGAIN();
    }
}

/* nvtx_timed(kind, n): kind 0 push and pop, 1 start and end, 2 mark, 3 the loop alone. */
PyObject *core_nvtx_timed(PyObject *op, PyObject *args) {
    CoreObject *core = (CoreObject *)op;
    tw_nvtx_range range = {0, 0};
    int kind;
    long n;
    if (!PyArg_ParseTuple(args, "il", &kind, &n)) return NULL;
    const uint64_t start = tw_now_ns();
    if (kind == 0) time_pushes(core, n);
    else if (kind == 1) time_starts(core, &range, n);
    else if (kind == 2) time_marks(core, n);
    else for (long i = 0; i < n; i++) AGAIN();
    return PyLong_FromUnsignedLongLong(tw_now_ns() - start);
}
