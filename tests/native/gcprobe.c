/* An independent witness for the tests: C callables for gc.callbacks that log when they were called.
 *
 * Log(capacity) keeps (tag, is_start, monotonic ns, ticks, allocations) in memory taken at the start. probe(tag) gives
 * a callable to put into gc.callbacks; tick() counts up, so that a log line shows whether another thread
 * ran in between; entries() returns the lines. Allocations are read from the interposed allocator where it is loaded.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef struct { uint64_t tag, is_start, time_ns, ticks, allocations; } entry;

typedef struct {
    PyObject_HEAD
    entry *entries;
    size_t used, capacity, lost;
    volatile uint64_t ticks;
    uint64_t (*allocations)(void);
} Log;

typedef struct { PyObject_HEAD Log *log; uint64_t tag; vectorcallfunc call; } Probe;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static PyObject *probe_call(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *names) {
    Probe *probe = (Probe *)op;
    Log *log = probe->log;
    (void)names;
    if (PyVectorcall_NARGS(nargsf) != 2) Py_RETURN_NONE;
    if (log->used == log->capacity) {
        log->lost++;
        Py_RETURN_NONE;
    }
    entry *e = &log->entries[log->used++];
    e->tag = probe->tag;
    e->is_start = PyUnicode_GetLength(args[0]) == 5; /* "start" against "stop" */
    e->ticks = log->ticks;
    e->allocations = log->allocations ? log->allocations() : 0;
    e->time_ns = now_ns();
    Py_RETURN_NONE;
}

static void probe_dealloc(PyObject *op) {
    Py_DECREF(((Probe *)op)->log);
    PyObject_Free(op);
}

static PyTypeObject ProbeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gcprobe.Probe", .tp_basicsize = sizeof(Probe),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, .tp_vectorcall_offset = offsetof(Probe, call),
    .tp_call = PyVectorcall_Call, .tp_dealloc = probe_dealloc};

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t capacity;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "n", &capacity)) return NULL;
    Log *log = (Log *)type->tp_alloc(type, 0);
    if (log == NULL) return NULL;
    log->entries = calloc((size_t)capacity, sizeof(entry));
    log->capacity = log->entries == NULL ? 0 : (size_t)capacity;
    log->allocations = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "allocation_count");
    return (PyObject *)log;
}

static void log_dealloc(PyObject *op) {
    free(((Log *)op)->entries);
    Py_TYPE(op)->tp_free(op);
}

static PyObject *log_probe(PyObject *op, PyObject *tag) {
    Probe *probe = PyObject_New(Probe, &ProbeType);
    if (probe == NULL) return NULL;
    probe->log = (Log *)Py_NewRef(op);
    probe->tag = PyLong_AsUnsignedLongLong(tag);
    probe->call = probe_call;
    return (PyObject *)probe;
}

static PyObject *log_tick(PyObject *op, PyObject *unused) {
    (void)unused;
    ((Log *)op)->ticks++;
    Py_RETURN_NONE;
}

static PyObject *log_allocations(PyObject *op, PyObject *unused) {
    Log *log = (Log *)op;
    (void)unused;
    if (log->allocations == NULL) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(log->allocations());
}

static PyObject *log_entries(PyObject *op, PyObject *unused) {
    Log *log = (Log *)op;
    (void)unused;
    const size_t used = log->used;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < used; i++) {
        const entry e = log->entries[i];
        PyObject *row = Py_BuildValue("(KOKKK)", e.tag, e.is_start ? Py_True : Py_False, e.time_ns, e.ticks, e.allocations);
        if (row == NULL || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

static PyObject *log_lost(PyObject *op, void *unused) { (void)unused; return PyLong_FromSize_t(((Log *)op)->lost); }

static PyMethodDef log_methods[] = {
    {"probe", log_probe, METH_O, NULL}, {"tick", log_tick, METH_NOARGS, NULL},
    {"allocations", log_allocations, METH_NOARGS, NULL}, {"entries", log_entries, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef log_getters[] = {{"lost", log_lost, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyTypeObject LogType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gcprobe.Log", .tp_basicsize = sizeof(Log), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = log_new, .tp_dealloc = log_dealloc, .tp_methods = log_methods, .tp_getset = log_getters};

/* A callback that does nothing: what CPython itself spends on one. */
static PyObject *noop(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module, (void)args, (void)nargs;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"noop", (PyCFunction)(void (*)(void))noop, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "gcprobe", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_gcprobe(void) {
    if (PyType_Ready(&ProbeType) < 0 || PyType_Ready(&LogType) < 0) return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m != NULL && PyModule_AddObjectRef(m, "Log", (PyObject *)&LogType) < 0) Py_CLEAR(m);
    return m;
}
