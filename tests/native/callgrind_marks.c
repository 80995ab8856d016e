/* callgrind_marks.start() and .stop(name): what callgrind counts lies between the two. Outside callgrind nothing happens. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <valgrind/callgrind.h>

static PyObject *start(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *module, PyObject *name) {
    const char *text = PyUnicode_AsUTF8(name);
    (void)module;
    if (text == NULL) return NULL;
    CALLGRIND_DUMP_STATS_AT(text);
    CALLGRIND_STOP_INSTRUMENTATION;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"start", start, METH_NOARGS, NULL}, {"stop", stop, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "callgrind_marks", NULL, -1, functions, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_callgrind_marks(void) { return PyModule_Create(&module); }
