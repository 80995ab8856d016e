/* Tokens that came from an engine: which streams of this process they belong to, and when they were ready to be sent.
 */
#include "python/stamp/received.h"

#include "python/stamp/stream.h"

#include "tailwatch/record/step_ring.h"

static StreamObject *as_stream(CoreObject *core, PyObject *value) {
    return value != NULL && Py_TYPE(value) == core->streams.type ? (StreamObject *)value : NULL;
}

/* expect(stream, request_id): the id by which the engine has the stream's request. It is shown where the client gave
 * none. */
PyObject *core_expect(PyObject *op, PyObject *args) {
    PyObject *value;
    const char *id;
    Py_ssize_t len;
    if (!PyArg_ParseTuple(args, "Os#", &value, &id, &len)) return NULL;
    StreamObject *stream = as_stream((CoreObject *)op, value);
    if (stream == NULL) return PyErr_Format(PyExc_TypeError, "expect: expected a stream");
    stream->stream.request = tw_request_hash(id, (size_t)len);
    if (stream->stream.request_id[0] == 0) tw_words_set(stream->stream.request_id, TW_ID_WORDS, id, (size_t)len);
    Py_RETURN_NONE;
}

typedef struct receipt {
    CoreObject *core;
    PyObject *streams, *ended; /* {request id: stream}; ids of those that came to their end, NULL: none did */
    uint64_t key_ns, received_ns, processed_ns;
} receipt;

/* Whether it is the last output of its request. A stream of before a fork gets none. */
static bool receive(const receipt *r, StreamObject *stream, PyObject *output) {
    if (!stream_counts(stream) || stream->stream.closed) return stream->open;
    tw_stream_received(&stream->stream, r->key_ns, r->received_ns, r->processed_ns);
    PyObject *reason = PyObject_GetAttr(output, r->core->requests.keys.finish_reason);
    const bool last = reason != NULL && reason != Py_None;
    Py_XDECREF(reason);
    return last;
}

/* false: an exception is set. */
static bool receive_one(receipt *r, PyObject *output) {
    PyObject *id = PyObject_GetAttr(output, r->core->requests.keys.request_id);
    StreamObject *stream = id == NULL ? NULL : as_stream(r->core, PyDict_GetItemWithError(r->streams, id));
    if (stream != NULL && receive(r, stream, output)) {
        if (r->ended == NULL) r->ended = PyList_New(0);
        if (r->ended != NULL) (void)PyList_Append(r->ended, id);
    }
    Py_XDECREF(id);
    return PyErr_Occurred() == NULL;
}

/* received(streams, outputs, key_s, received_ns): outputs of one step that were processed just now. Returns the ids of
 * requests that had their last one, or None. */
PyObject *core_received(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    receipt r = {.core = (CoreObject *)op, .processed_ns = tw_now_ns()};
    if (nargs != 4 || !PyDict_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "received: expected a dict and a list");
    const double key_s = PyFloat_AsDouble(args[2]);
    r.streams = args[0];
    r.received_ns = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (!(key_s > 0 && key_s < 1e10)) Py_RETURN_NONE;
    r.key_ns = (uint64_t)(key_s * 1e9 + 0.5);
    bool good = true;
    for (Py_ssize_t i = 0; good && i < PyList_Size(args[1]); i++) good = receive_one(&r, PyList_GetItem(args[1], i));
    if (!good) Py_CLEAR(r.ended);
    if (good && r.ended == NULL) Py_RETURN_NONE;
    return r.ended;
}
