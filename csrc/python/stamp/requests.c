#include "python/stamp/requests.h"

static const struct { const char *text; size_t offset; } key_table[] = {
    {"type", offsetof(tw_keys, type)},
    {"body", offsetof(tw_keys, body)}, {"more_body", offsetof(tw_keys, more_body)},
    {"status", offsetof(tw_keys, status)}, {"headers", offsetof(tw_keys, headers)},
    {"method", offsetof(tw_keys, method)},
    {"text", offsetof(tw_keys, text)}, {"bytes", offsetof(tw_keys, bytes)},
    {"write_paused", offsetof(tw_keys, write_paused)},
    {"request_id", offsetof(tw_keys, request_id)}, {"finish_reason", offsetof(tw_keys, finish_reason)},
    {"new_token_ids", offsetof(tw_keys, new_token_ids)}};

static PyObject **key_slot(tw_keys *keys, size_t i) { return (PyObject **)((char *)keys + key_table[i].offset); }

static int make_keys(tw_keys *keys) {
    for (size_t i = 0; i < sizeof key_table / sizeof *key_table; i++)
        if ((*key_slot(keys, i) = PyUnicode_InternFromString(key_table[i].text)) == NULL) return -1;
    return 0;
}

int core_init_requests(CoreObject *core, PyTypeObject *type, PyObject *route_of, PyObject *timed_send) {
    core_requests *r = &core->requests;
    r->type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    r->route_of = Py_NewRef(route_of);
    r->timed_send = Py_NewRef(timed_send);
    r->streamed = PyList_New(0);
    return r->streamed == NULL ? -1 : make_keys(&r->keys);
}

void core_free_requests(CoreObject *core) {
    core_requests *r = &core->requests;
    for (size_t i = 0; i < sizeof key_table / sizeof *key_table; i++) Py_XDECREF(*key_slot(&r->keys, i));
    Py_XDECREF((PyObject *)r->type);
    Py_XDECREF(r->route_of);
    Py_XDECREF(r->timed_send);
    Py_XDECREF(r->streamed);
    Py_XDECREF(r->body_type);
}

/* on_request_end(ended): called once for each request that a Send ends; None: no longer. */
PyObject *core_on_request_end(PyObject *op, PyObject *ended) {
    CoreObject *self = (CoreObject *)op;
    PyObject *old = self->requests.ended;
    self->requests.ended = ended == Py_None ? NULL : Py_NewRef(ended);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

PyObject *core_streamed(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    int full = 0;
    if (!PyArg_ParseTuple(args, "|p", &full)) return NULL;
    PyObject *fresh = PyList_New(0);
    if (fresh == NULL) return NULL;
    self->requests.uncounted_full = full;
    PyObject *old = self->requests.streamed;
    self->requests.streamed = fresh;
    return old;
}
