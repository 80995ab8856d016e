/* Whose trace id stands beside what a stream measures. Once a request, before its first stamp. */
#include "python/module.h"

/* exemplify(on, trace_of): for streams that open from now on. */
PyObject *core_exemplify(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    PyObject *trace_of, *old = self->trace_of;
    int on;
    if (!PyArg_ParseTuple(args, "pO", &on, &trace_of)) return NULL;
    self->exemplars = on;
    self->trace_of = trace_of == Py_None ? NULL : Py_NewRef(trace_of);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

void stream_exemplify(StreamObject *self, int sampled) {
    if (self->core->exemplars && sampled) tw_stream_exemplify(&self->stream);
}

/* A parent that is not sampled is no word on this process's own spans. */
int stream_find_trace(StreamObject *self) {
    Py_ssize_t len = 0;
    if (!self->core->exemplars || self->core->trace_of == NULL || self->stream.exemplary) return 0;
    PyObject *id = PyObject_CallFunctionObjArgs(self->core->trace_of, NULL);
    const char *text = id != NULL && PyUnicode_Check(id) ? PyUnicode_AsUTF8AndSize(id, &len) : NULL;
    if (text != NULL) {
        tw_words_set(self->stream.trace_id, TW_TRACE_WORDS, text, (size_t)len);
        tw_stream_exemplify(&self->stream);
    }
    Py_XDECREF(id);
    return PyErr_Occurred() == NULL ? 0 : -1;
}
