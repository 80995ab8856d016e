/* Tokens that came from an engine: which streams of this process they belong to, and when they were ready to be sent.
 */
#include "python/stamp/received.h"

#include "python/group.h"
#include "python/stamp/stream.h"

#include "tailwatch/record/step_ring.h"

static StreamObject *as_stream(CoreObject *core, PyObject *value) {
    return value != NULL && Py_TYPE(value) == core->streams.type ? (StreamObject *)value : NULL;
}

/* expect(stream, request_id, interval=0): the id by which the engine has the stream's request, shown where the client gave
 * none; tokens that its messages wait for. */
PyObject *core_expect(PyObject *op, PyObject *args) {
    PyObject *value;
    const char *id;
    Py_ssize_t len;
    unsigned int interval = 0;
    if (!PyArg_ParseTuple(args, "Os#|I", &value, &id, &len, &interval)) return NULL;
    StreamObject *stream = as_stream((CoreObject *)op, value);
    if (stream == NULL) return PyErr_Format(PyExc_TypeError, "expect: expected a stream");
    stream->stream.interval = stream->expected ? 0 : interval; /* of several choices each waits for its own */
    stream->expected = 1;
    stream->stream.request = tw_request_hash(id, (size_t)len);
    if (stream->stream.request_id[0] == 0) tw_words_set(stream->stream.request_id, TW_ID_WORDS, id, (size_t)len);
    Py_RETURN_NONE;
}

typedef struct receipt {
    CoreObject *core;
    PyObject *streams, *ended; /* {request id: stream}; ids of those that came to their end, NULL: none did */
    uint64_t key_ns, received_ns, processed_ns;
} receipt;

/* Tokens of an output beyond one: speculative decoding. */
static uint32_t tokens_beyond_one(const receipt *r, PyObject *output) {
    PyObject *tokens = PyObject_GetAttr(output, r->core->requests.keys.new_token_ids);
    const Py_ssize_t n = tokens == NULL ? -1 : PyObject_Size(tokens);
    Py_XDECREF(tokens);
    if (n < 0) PyErr_Clear();
    return n > 1 ? (uint32_t)n - 1 : 0;
}

/* Whether the stream has ended. A stream of before a fork gets none. */
static bool receive(const receipt *r, StreamObject *stream) {
    if (!stream_counts(stream) || stream->stream.closed) return stream->open;
    tw_stream_received(&stream->stream, r->key_ns, r->received_ns, r->processed_ns);
    return false;
}

/* The stream of a request; NULL: there is none, or an exception is set. */
static StreamObject *stream_of(const receipt *r, PyObject *id) {
    return id == NULL ? NULL : as_stream(r->core, PyDict_GetItemWithError(r->streams, id));
}

static void note_ended(receipt *r, PyObject *id) {
    if (r->ended == NULL) r->ended = PyList_New(0);
    if (r->ended != NULL) (void)PyList_Append(r->ended, id);
}

static bool is_last(const receipt *r, PyObject *output) {
    PyObject *reason = PyObject_GetAttr(output, r->core->requests.keys.finish_reason);
    const bool last = reason != NULL && reason != Py_None;
    Py_XDECREF(reason);
    return last;
}

/* false: an exception is set. */
static bool receive_one(receipt *r, PyObject *output) {
    PyObject *id = PyObject_GetAttr(output, r->core->requests.keys.request_id);
    StreamObject *stream = stream_of(r, id);
    if (stream != NULL && (receive(r, stream) || is_last(r, output))) note_ended(r, id);
    if (stream != NULL && stream->stream.interval > 1 && PyErr_Occurred() == NULL)
        stream->stream.held += tokens_beyond_one(r, output);
    Py_XDECREF(id);
    return PyErr_Occurred() == NULL;
}

static PyObject *ended_of(receipt *r, bool good) {
    if (!good) Py_CLEAR(r->ended);
    if (good && r->ended == NULL) Py_RETURN_NONE;
    return r->ended;
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
    return ended_of(&r, good);
}

/* ---- messages that have no stamp ---- */

#define LATE_MISSES 8
#define LATE_AGAIN_NS TW_NS_PER_SECOND

static uint64_t key_in(const tw_peer_set *peers, uint64_t request, uint32_t made, uint32_t steps) {
    uint64_t key = 0;
    for (uint32_t i = 0; peers != NULL && i < peers->n && key == 0; i++)
        if (peers->segment[i] != NULL) key = tw_step_sent(&peers->segment[i]->step_ring, request, made, steps);
    return key;
}

/* One that waited behind many is further back. Where it is not there either, no step sent it (an abort's); where some in a
 * row are not, next ones may be like that: they are not looked for so far for a while. */
static uint64_t late_key_in(CoreObject *core, uint64_t request, uint32_t made, uint64_t now) {
    if (now < core->requests.late_from_ns) return 0;
    const uint64_t key = key_in(core_peer_set(core), request, made, TW_SENT_STEPS_LATE);
    core->requests.late_misses = key != 0 ? 0 : core->requests.late_misses + 1;
    if (core->requests.late_misses < LATE_MISSES) return key;
    core->requests.late_misses = 0;
    core->requests.late_from_ns = now + LATE_AGAIN_NS;
    return 0;
}

/* The stamp of the step that sent a message, by its first request; 0: not known, or an exception is set. */
static uint64_t key_of_message(CoreObject *core, PyObject *id, PyObject *tokens, uint64_t now) {
    Py_ssize_t len;
    const char *text = PyUnicode_Check(id) ? PyUnicode_AsUTF8AndSize(id, &len) : NULL;
    const unsigned long made = text != NULL && PyLong_Check(tokens) ? PyLong_AsUnsignedLong(tokens) : 0;
    if (text == NULL || PyErr_Occurred() != NULL) return 0;
    const uint64_t request = tw_request_hash(text, (size_t)len);
    const uint64_t key = key_in(core_peer_set(core), request, (uint32_t)made, TW_SENT_STEPS);
    return key != 0 ? key : late_key_in(core, request, (uint32_t)made, now);
}

/* received_message(streams, ids, finish_reasons, tokens, received_ns): outputs of one step came in a message: lists of
 * as many; tokens: how many each request has made by then. Returns as received(). Where its step is not found, the wait
 * in the engine stays unknown. */
PyObject *core_received_message(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    receipt r = {.core = (CoreObject *)op, .processed_ns = tw_now_ns()};
    const bool lists = nargs == 5 && PyList_Check(args[1]) && PyList_Check(args[2]) && PyList_Check(args[3]);
    if (!lists || !PyDict_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "received_message: expected a dict and three lists");
    const Py_ssize_t n = PyList_Size(args[1]);
    r.streams = args[0];
    r.received_ns = PyLong_AsUnsignedLongLong(args[4]);
    if (PyErr_Occurred()) return NULL;
    if (n == 0 || PyList_Size(args[2]) != n || PyList_Size(args[3]) != n) Py_RETURN_NONE;
    r.key_ns = key_of_message(r.core, PyList_GetItem(args[1], 0), PyList_GetItem(args[3], 0), r.processed_ns);
    bool good = PyErr_Occurred() == NULL;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        PyObject *id = PyList_GetItem(args[1], i);
        StreamObject *stream = stream_of(&r, id);
        const bool over = stream != NULL && r.key_ns != 0 && receive(&r, stream);
        if (over || (stream != NULL && PyList_GetItem(args[2], i) != Py_None)) note_ended(&r, id);
        good = PyErr_Occurred() == NULL;
    }
    return ended_of(&r, good);
}
