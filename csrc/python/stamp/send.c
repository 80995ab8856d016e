/* tailwatch._hot.Send: stands before an ASGI `send`, looks at each message and hands it on unchanged.
 *
 * It returns what the inner send returns: no coroutine of its own, exceptions and warnings as without it. The
 * stamp is the moment of the hand-over. Nothing it does can raise into the app.
 */
#include "python/stamp/requests.h"

#include "python/group.h"
#include "python/stamp/headers.h"
#include "python/stamp/recent_frames.h"
#include "python/stamp/stream.h"

#include "tailwatch/attribute/engine_id.h"
#include "tailwatch/wire/body_scan.h"

/* PROBE: a route not known to generate, watched for a streaming content type. QUIET: it does not stream, and
 * counts only if the app stamps it by hand. PIECES: likewise, and named where its body comes in several pieces. */
typedef enum { SEND_PROBE, SEND_QUIET, SEND_PIECES, SEND_WATCH, SEND_DONE } send_state;

typedef struct SendObject {
    PyObject_HEAD
    CoreObject *core;
    StreamObject *stream;
    PyObject *inner, *scope, *flow;
    PyObject *raised[3];      /* SystemExit and its like that came up in Python code of ours: for the app, not for us */
    uint64_t arrival_ns, entry_ns, proxy_ns;
    uint64_t done_ns;         /* when the stream's own end marker passed, 0 = not yet */
    int source, websocket, accepted, labelled, stamping;
    uint32_t status;
    send_state state;
    uint32_t sent;
    size_t model_len;
    char model[TW_NAME_BYTES];
    tw_scan *scan;            /* made when a body begins: most requests have none that is read */
} SendObject;

#define PIECES_OF_A_STREAM 3
#define SAMPLED_SENDS 16 /* servers whose flow control we cannot see: one send in so many is timed */

/* What our own Python code raised is ours to drop; what a signal handler raised inside it is the app's to see. */
static void drop_error(SendObject *self) {
    if (PyErr_Occurred() == NULL) return;
    if (PyErr_ExceptionMatches(PyExc_Exception) || self->raised[0] != NULL) PyErr_Clear();
    else PyErr_Fetch(&self->raised[0], &self->raised[1], &self->raised[2]);
}

/* Puts such an exception back; whether there was one. */
static int raise_on(SendObject *self) {
    if (self->raised[0] == NULL) return 0;
    PyErr_Restore(self->raised[0], self->raised[1], self->raised[2]);
    self->raised[0] = self->raised[1] = self->raised[2] = NULL;
    return 1;
}

static int ascii_is(PyObject *text, const char *expected) { return PyUnicode_CompareWithASCIIString(text, expected) == 0; }

/* ---- a request becomes a stream: open, identify, label ---- */

/* A client may name one of the engines that there are, where nothing better is known. */
static void bind_by_header(SendObject *self, const request_identity *id) {
    const uint64_t named = id->engine != 0 ? id->engine : id->rank;
    tw_stream *stream = &self->stream->stream;
    if (named == 0 || stream->engine != 0 || self->stream->parts == PARTS_DIFFER || stream->peer_set == NULL) return;
    if (tw_engine_has_peer(stream->peer_set, named)) stream->engine = named;
}

/* One borrowed item of the scope or a message; never raises. */
static PyObject *item(PyObject *mapping, PyObject *key) {
    PyObject *value = PyDict_GetItemWithError(mapping, key);
    if (value == NULL) PyErr_Clear();
    return value;
}

static void open_at(SendObject *self, uint64_t arrival_ns, uint64_t entry_ns, tw_arrival source) {
    request_identity id;
    headers_identity(item(self->scope, self->core->requests.keys.headers), &id);
    stream_open(self->stream, arrival_ns, entry_ns, self->proxy_ns, source);
    tw_stream_identify(&self->stream->stream, id.request, id.request_len, id.trace, id.trace_len);
    stream_exemplify(self->stream, id.sampled);
    bind_by_header(self, &id);
    self->stream->stream.status = self->status;
    self->state = SEND_WATCH;
    self->labelled = 0;
    stream_is_served_here(self->stream);
}

static void open_request(SendObject *self) { open_at(self, self->arrival_ns, self->entry_ns, (tw_arrival)self->source); }

/* The route's template, as the Python side reads it off the scope. A new reference, or NULL. */
static PyObject *route_of(SendObject *self) {
    PyObject *route = PyObject_CallFunctionObjArgs(self->core->requests.route_of, self->scope, NULL);
    if (route != NULL && PyUnicode_Check(route)) return route;
    drop_error(self);
    Py_XDECREF(route);
    return NULL;
}

static void label(SendObject *self) {
    if (!stream_counts(self->stream)) return;
    PyObject *route = route_of(self);
    Py_ssize_t len = 0;
    const char *text = route == NULL ? NULL : PyUnicode_AsUTF8AndSize(route, &len);
    if (text == NULL) text = "unmatched", len = 9;
    PyErr_Clear();
    const char *model = self->model_len > 0 ? self->model : "unknown";
    const size_t model_len = self->model_len > 0 ? self->model_len : 7;
    tw_stream_label(&self->stream->stream, core_label(self->core, model, model_len, text, (size_t)len));
    self->labelled = 1;
    Py_XDECREF(route);
    if (stream_find_trace(self->stream) < 0) drop_error(self); /* in the app's context: this is inside its send */
}

/* Opens and labels a stream that was made but not yet counted: the app stamps it by hand. */
static void claim(void *sender) {
    SendObject *self = sender;
    const int waiting = self->state == SEND_WATCH && !self->stream->open; /* a WebSocket before its first turn */
    if (self->state < SEND_WATCH || waiting) open_request(self);
    if (self->state == SEND_WATCH && !self->labelled) label(self);
}

/* ---- what a message holds ---- */

static void remember_streaming_route(SendObject *self) {
    PyObject *route = route_of(self);
    if (route != NULL && PyList_Append(self->core->requests.streamed, route) < 0) PyErr_Clear();
    Py_XDECREF(route);
}

static uint32_t status_of(SendObject *self, PyObject *message) {
    PyObject *status = item(message, self->core->requests.keys.status);
    const long code = status == NULL ? 0 : PyLong_AsLong(status);
    PyErr_Clear();
    return code > 0 && code < 1000 ? (uint32_t)code : 0;
}

static int has_method(SendObject *self, const char *expected) {
    PyObject *method = item(self->scope, self->core->requests.keys.method);
    return method != NULL && PyUnicode_Check(method) && ascii_is(method, expected);
}

/* It streams and is not counted: by its scope, in the list where others are by their route. */
static void remember_uncounted(SendObject *self) {
    if (self->core->requests.uncounted_full) return;
    if (PyList_Append(self->core->requests.streamed, self->scope) < 0) PyErr_Clear();
}

/* A stream that answers a request without a body is mostly an event feed: routes= alone makes it count. */
static void see_unknown_route(SendObject *self, const response_kind *kind) {
    const int post = has_method(self, "POST"), asked = post || has_method(self, "GET");
    self->state = SEND_QUIET;
    if (kind->streams && post) {
        remember_streaming_route(self);
        open_request(self);
    } else if (kind->streams && asked) {
        remember_uncounted(self);
    } else if (asked && kind->plain && !kind->sized && self->status < 300) {
        self->state = SEND_PIECES;
    }
}

static void see_piece(SendObject *self, PyObject *message) {
    PyObject *body = item(message, self->core->requests.keys.body);
    if (body == NULL || !PyBytes_Check(body) || PyBytes_Size(body) == 0 || ++self->sent < PIECES_OF_A_STREAM) return;
    remember_uncounted(self);
    self->state = SEND_QUIET;
}

static void begin_scan(SendObject *self, tw_framing framing) {
    if (self->scan == NULL) self->scan = PyMem_Malloc(sizeof *self->scan);
    if (self->scan != NULL) tw_scan_init(self->scan, framing);
    else self->stamping = 0;
}

static void see_start(SendObject *self, PyObject *message) {
    const tw_keys *keys = &self->core->requests.keys;
    response_kind kind;
    self->status = status_of(self, message);
    headers_response(item(message, keys->headers), &kind);
    if (self->state == SEND_PROBE) see_unknown_route(self, &kind);
    if (self->state != SEND_WATCH) return;
    self->stream->stream.status = self->status;
    self->stamping = self->status < 300 && !kind.opaque;
    if (kind.opaque) tw_stream_opaque(&self->stream->stream);
    if (self->stamping) begin_scan(self, kind.framing);
}

static void see_model(SendObject *self, const tw_scan_result *seen) {
    if (self->model_len > 0) return;
    self->model_len = tw_json_unescape(seen->model, seen->model_len, self->model, sizeof self->model);
}

static void book(SendObject *self, const tw_scan_result *seen, uint64_t now) {
    tw_stream *stream = &self->stream->stream;
    if (seen->model != NULL) see_model(self, seen);
    if (seen->error) stream->failed = 1;
    if (seen->cut) tw_add(&self->core->segment->drops[TW_DROP_EVENT_TRUNCATED], 1);
    if (seen->done) self->done_ns = now;
    if (seen->usage_tokens > 0) tw_stream_usage(stream, seen->usage_tokens);
    if (seen->tokens == 0 || self->stream->by_hand) return;
    if (!self->labelled) label(self);
    stream_stamp(self->stream, now, seen->n[0], seen->choice[0]);
    for (uint32_t i = 1; i < seen->events; i++) tw_stream_token_also(stream, seen->n[i], seen->choice[i]);
}

static void see_bytes(SendObject *self, const char *data, Py_ssize_t len, uint64_t now) {
    tw_scan_result seen;
    tw_scan_feed(self->scan, data, (size_t)len, &seen);
    const int plain = seen.tokens == 1 && seen.model == NULL && seen.usage_tokens == 0 && !(seen.error | seen.cut | seen.done);
    if (len > 0 && self->stream->stream.body_ns == 0) tw_stream_body(&self->stream->stream, now);
    if (__builtin_expect(plain && self->labelled && !self->stream->by_hand, 1))
        stream_stamp(self->stream, now, 1, seen.choice[0]);
    else book(self, &seen, now);
}

/* What was not noted and a label needs: read off the frame itself. */
static void see_model_of(SendObject *self, PyObject *frame) {
    tw_scan_result seen;
    tw_scan_feed_rarely(self->scan, PyBytes_AsString(frame), (size_t)PyBytes_Size(frame), &seen);
    if (seen.model != NULL) see_model(self, &seen);
}

/* A frame that one of our encoders made: what it holds is known. */
static void see_frame(SendObject *self, PyObject *frame, const tw_facts *facts, uint64_t now) {
    const bool plain = facts->tokens > 0 && facts->usage_tokens == 0 && !(facts->error | facts->done);
    if (self->stream->stream.body_ns == 0) tw_stream_body(&self->stream->stream, now);
    if (__builtin_expect(plain && self->labelled && !self->stream->by_hand, 1)) {
        stream_stamp(self->stream, now, facts->tokens, facts->choice);
        return;
    }
    tw_scan_result seen = {.tokens = facts->tokens, .events = facts->tokens > 0, .choice = {facts->choice}, .n = {facts->tokens},
                           .done = facts->done, .error = facts->error, .usage_tokens = facts->usage_tokens};
    if (facts->model != NULL) {
        seen.model = PyBytes_AsString(facts->model);
        seen.model_len = (size_t)PyBytes_Size(facts->model);
    } else if (self->model_len == 0 && !self->labelled) {
        see_model_of(self, frame);
    }
    book(self, &seen, now);
}

/* Whether it was one, at a place where an event begins. */
__attribute__((noinline)) static bool saw_frame(SendObject *self, PyObject *body, uint64_t now) {
    PyObject *maker;
    if (self->scan == NULL || self->scan->framing != TW_FRAMING_SSE || !tw_scan_between(self->scan)) return false;
    const tw_facts *facts = frame_take(body, &maker);
    if (facts == NULL) return false;
    see_frame(self, body, facts, now);
    Py_XDECREF(maker);
    return true;
}

/* Bytes of any object a server would take as a body; others are left alone. */
static void see_body_object(SendObject *self, PyObject *body, uint64_t now) {
    char *data;
    Py_ssize_t len;
    if (__builtin_expect(frames_held > 0, 0) && saw_frame(self, body, now)) return;
    if (PyBytes_Check(body)) {
        PyBytes_AsStringAndSize(body, &data, &len);
        see_bytes(self, data, len, now);
    } else if (PyByteArray_Check(body)) {
        see_bytes(self, PyByteArray_AsString(body), PyByteArray_Size(body), now);
    } else if (PyMemoryView_Check(body)) {
        PyObject *copy = PyBytes_FromObject(body);
        if (copy != NULL && PyBytes_AsStringAndSize(copy, &data, &len) == 0) see_bytes(self, data, len, now);
        Py_XDECREF(copy);
        PyErr_Clear();
    }
}

/* Once a request, in the context of the app's task. */
static __attribute__((noinline)) void report_end(SendObject *self) {
    PyObject *result = PyObject_CallFunctionObjArgs(self->core->requests.ended, (PyObject *)self->stream, self->scope, NULL);
    if (result == NULL) drop_error(self);
    Py_XDECREF(result);
}

static void close_stream(SendObject *self, uint64_t now, tw_end end) {
    tw_scan_result rest;
    self->state = SEND_DONE;
    if (!stream_counts(self->stream)) return;
    if (end != TW_END_FINISHED && self->done_ns != 0) { /* all was sent: a client that leaves now has its answer */
        end = TW_END_FINISHED;
        now = self->done_ns;
    }
    if (self->scan != NULL) tw_scan_finish(self->scan, &rest);
    if (self->scan != NULL && end == TW_END_FINISHED) book(self, &rest, now);
    if (!self->labelled) label(self);
    stream_shut(self->stream, now, end);
    if (self->core->requests.ended != NULL) report_end(self);
}

/* Whether this is the last message. A message without the key is: ASGI's default. */
static int is_last(SendObject *self, PyObject *message) {
    PyObject *more = item(message, self->core->requests.keys.more_body);
    if (more == Py_True || more == Py_False || more == NULL) return more != Py_True;
    Py_INCREF(more);
    const int truth = PyObject_IsTrue(more);
    drop_error(self);
    Py_DECREF(more);
    return truth == 0;
}

/* The body is held: a look-up in a hostile message may run Python that drops it. */
static void see_body(SendObject *self, PyObject *message, uint64_t now) {
    const int last = is_last(self, message);
    PyObject *body = item(message, self->core->requests.keys.body);
    if (body != NULL) {
        Py_INCREF(body);
        if (self->stamping) see_body_object(self, body, now);
        else if (self->stream->stream.body_ns == 0 && PyObject_Size(body) > 0) tw_stream_body(&self->stream->stream, now);
        PyErr_Clear();
        Py_DECREF(body);
    }
    if (last && self->state == SEND_WATCH) close_stream(self, now, TW_END_FINISHED);
}

static void see_websocket_data(SendObject *self, PyObject *data, int text, uint64_t now) {
    Py_ssize_t len = 0;
    if (self->scan == NULL) begin_scan(self, TW_FRAMING_MESSAGE);
    if (self->scan == NULL) return;
    const char *utf8 = text ? PyUnicode_AsUTF8AndSize(data, &len) : NULL;
    if (utf8 != NULL) see_bytes(self, utf8, len, now);
    else if (!text) see_body_object(self, data, now);
    PyErr_Clear();
}

static void end_turn(SendObject *self, uint64_t now, tw_end unanswered) {
    tw_stream *stream = &self->stream->stream;
    if (!stream_counts(self->stream) || stream->closed) return;
    if (!self->labelled) label(self);
    if (stream->messages > 0) stream_shut(self->stream, stream->last_ns, TW_END_FINISHED);
    else stream_shut(self->stream, now, unanswered);
    if (self->core->requests.ended != NULL) report_end(self);
}

static void see_websocket(SendObject *self, PyObject *message, uint64_t now) {
    if (self->state != SEND_WATCH) return;
    if (!self->stream->open) open_request(self); /* the server sends first */
    PyObject *data = item(message, self->core->requests.keys.text);
    const int text = data != NULL && PyUnicode_Check(data);
    if (!text) data = item(message, self->core->requests.keys.bytes);
    if (data == NULL) return;
    Py_INCREF(data);
    see_websocket_data(self, data, text, now);
    Py_DECREF(data);
    if (self->done_ns == now) end_turn(self, now, TW_END_FINISHED);
}

/* A WebSocket that is not accepted is a request that was refused. */
static void see_refusal(SendObject *self, uint32_t status, uint64_t now) {
    if (self->accepted || self->stream->open || self->state != SEND_WATCH) return;
    self->status = status;
    open_request(self);
    label(self);
    stream_shut(self->stream, now, TW_END_FINISHED);
    self->state = SEND_DONE;
    if (self->core->requests.ended != NULL) report_end(self);
}

static void see_websocket_message(SendObject *self, PyObject *type, PyObject *message, uint64_t now) {
    if (ascii_is(type, "websocket.send")) see_websocket(self, message, now);
    else if (ascii_is(type, "websocket.accept")) self->accepted = 1;
    else if (ascii_is(type, "websocket.close")) see_refusal(self, 403, now);
    else if (ascii_is(type, "websocket.http.response.start")) see_refusal(self, status_of(self, message), now);
}

/* A type seen to name a body is remembered, so that the next one is found by its address. */
static void remember_body_type(CoreObject *core, PyObject *type) {
    if (!PyUnicode_CheckExact(type)) return;
    PyObject *old = core->requests.body_type;
    core->requests.body_type = Py_NewRef(type);
    Py_XDECREF(old);
}

static void see_http_message(SendObject *self, PyObject *type, PyObject *message, uint64_t now) {
    if (ascii_is(type, "http.response.start")) see_start(self, message);
    if (!ascii_is(type, "http.response.body")) return;
    remember_body_type(self->core, type);
    if (self->state == SEND_WATCH) see_body(self, message, now);
    else if (self->state == SEND_PIECES) see_piece(self, message);
}

static void see(SendObject *self, PyObject *message, uint64_t now) {
    if (self->state == SEND_DONE || !PyDict_Check(message)) return;
    PyObject *type = item(message, self->core->requests.keys.type);
    if (type == NULL || !PyUnicode_Check(type)) return;
    Py_INCREF(type);
    if (self->websocket) see_websocket_message(self, type, message, now);
    else if (type == self->core->requests.body_type && self->state == SEND_WATCH) see_body(self, message, now);
    else see_http_message(self, type, message, now);
    Py_DECREF(type);
}

/* ---- handing on ---- */

/* Whether the send about to be made will wait for the client (uvicorn shows it), or is a sample. */
static int worth_timing(SendObject *self) {
    self->sent++;
    if (self->flow == NULL) return self->sent % SAMPLED_SENDS == 0;
    PyObject *paused = PyObject_GetAttr(self->flow, self->core->requests.keys.write_paused);
    if (paused == NULL) drop_error(self);
    Py_XDECREF(paused); /* a bool: compared, never followed */
    return paused == Py_True;
}

static PyObject *timed(SendObject *self, PyObject *awaitable) {
    PyObject *wrapped = PyObject_CallFunctionObjArgs(self->core->requests.timed_send, awaitable, (PyObject *)self->stream, NULL);
    if (wrapped == NULL) {
        drop_error(self);
        tw_add(&self->core->segment->errors[TW_ERROR_ASGI], 1);
        return awaitable;
    }
    Py_DECREF(awaitable);
    return wrapped;
}

static PyObject *hand_on_any(SendObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
    PyObject *positional = PyTuple_New(nargs), *named = PyDict_New(), *result = NULL;
    if (positional == NULL || named == NULL) goto finally;
    for (Py_ssize_t i = 0; i < nargs; i++) PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; i < keywords; i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(kwnames, i), args[nargs + i]) < 0) goto finally;
    result = PyObject_Call(self->inner, positional, named);
finally:
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

static PyObject *send_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    SendObject *self = (SendObject *)op;
    const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
    const uint64_t now = tw_now_ns();
    if (self->inner == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "send() was called on a wrapper that the garbage collector has taken apart");
        return NULL;
    }
    if (nargs + keywords != 1) return hand_on_any(self, args, nargs, kwnames);
    see(self, args[0], now);
    if (raise_on(self)) return NULL;
    PyObject *awaitable = keywords == 0 ? PyObject_CallFunctionObjArgs(self->inner, args[0], NULL) : hand_on_any(self, args, nargs, kwnames);
    if (awaitable != NULL && self->state == SEND_WATCH && worth_timing(self)) awaitable = timed(self, awaitable);
    if (awaitable == NULL || !raise_on(self)) return awaitable;
    Py_DECREF(awaitable);
    return NULL;
}

/* ---- the other ends of a request ---- */

static PyObject *send_disconnected(PyObject *op, PyObject *unused) {
    SendObject *self = (SendObject *)op;
    (void)unused;
    if (self->websocket) end_turn(self, tw_now_ns(), TW_END_ABORT);
    else if (self->state == SEND_WATCH) close_stream(self, tw_now_ns(), TW_END_ABORT);
    self->state = SEND_DONE;
    if (raise_on(self)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *send_turn(PyObject *op, PyObject *unused) {
    SendObject *self = (SendObject *)op;
    const uint64_t now = tw_now_ns();
    (void)unused;
    if (!self->websocket || self->state != SEND_WATCH) Py_RETURN_NONE;
    if (self->stream->open && !self->stream->stream.closed && self->stream->stream.messages == 0) Py_RETURN_NONE;
    end_turn(self, now, TW_END_ABORT);
    self->done_ns = 0;
    self->model_len = 0;
    if (self->stream->parts != PARTS_NONE) self->stream->bound = 0, self->stream->parts = PARTS_NONE; /* those of the last turn */
    begin_scan(self, TW_FRAMING_MESSAGE);
    open_at(self, now, now, TW_ARRIVAL_ASGI);
    if (self->stream->by_hand) label(self); /* else by its first token, which we see */
    if (raise_on(self)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *send_finish(PyObject *op, PyObject *error) {
    SendObject *self = (SendObject *)op;
    const uint64_t now = tw_now_ns();
    const tw_end end = end_of_exception(error);
    if (self->websocket) end_turn(self, now, end == TW_END_FINISHED ? TW_END_ABORT : end);
    else if (self->state == SEND_WATCH) close_stream(self, now, end == TW_END_FINISHED ? TW_END_ERROR : end);
    self->state = SEND_DONE;
    if (raise_on(self)) return NULL;
    /* What the caller has to see to: 1 routes turned out to stream, 2 no request is in flight. */
    const int streamed = PyList_Size(self->core->requests.streamed) > 0 ? 1 : 0;
    return PyLong_FromLong(streamed | (tw_load(&self->core->segment->in_flight) == 0 ? 2 : 0));
}

static PyObject *get_stream(PyObject *op, void *unused) { (void)unused; return Py_NewRef((PyObject *)((SendObject *)op)->stream); }

/* ---- life ---- */

static uint64_t as_ns(PyObject *value) {
    const unsigned long long t = PyLong_AsUnsignedLongLong(value);
    return PyErr_Occurred() ? 0 : (uint64_t)t;
}

/* request(scope, send, generation, arrival_ns, entry_ns, proxy_ns, source, flow, websocket) */
PyObject *core_request(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    CoreObject *core = (CoreObject *)op;
    if (nargs != 9 || !PyDict_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "request() takes a scope dict and 8 more arguments");
        return NULL;
    }
    SendObject *self = (SendObject *)PyType_GenericAlloc(core->requests.type, 0);
    if (self == NULL) return NULL;
    self->core = (CoreObject *)Py_NewRef(op);
    self->scope = Py_NewRef(args[0]);
    self->inner = Py_NewRef(args[1]);
    self->arrival_ns = as_ns(args[3]);
    self->entry_ns = as_ns(args[4]);
    self->proxy_ns = as_ns(args[5]);
    self->source = (int)as_ns(args[6]) % TW_ARRIVALS;
    self->flow = args[7] == Py_None ? NULL : Py_NewRef(args[7]);
    self->websocket = PyObject_IsTrue(args[8]) == 1;
    self->stream = PyErr_Occurred() ? NULL : stream_new(core);
    if (self->stream == NULL) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    self->stream->sender = self;
    self->stream->claim = claim;
    if (PyObject_IsTrue(args[2]) != 1) return (PyObject *)self;
    self->state = SEND_WATCH;
    if (!self->websocket) open_request(self);
    return (PyObject *)self;
}

StreamObject *sent_stream(const CoreObject *core, PyObject *sender) {
    if (Py_TYPE(sender) != core->requests.type) return NULL;
    StreamObject *stream = ((SendObject *)sender)->stream;
    return stream == NULL || stream->core != core || !stream_counts(stream) ? NULL
                                                                             : (StreamObject *)Py_NewRef((PyObject *)stream);
}

static int send_traverse(PyObject *op, visitproc visit, void *arg) {
    SendObject *self = (SendObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->core);
    Py_VISIT(self->inner);
    Py_VISIT(self->scope);
    Py_VISIT(self->flow);
    return 0;
}

static int send_clear(PyObject *op) {
    SendObject *self = (SendObject *)op;
    Py_CLEAR(self->inner);
    Py_CLEAR(self->flow);
    return 0;
}

static void send_dealloc(PyObject *op) {
    SendObject *self = (SendObject *)op;
    PyObject_GC_UnTrack(op);
    send_clear(op);
    if (self->stream != NULL) self->stream->claim = NULL;
    Py_XDECREF((PyObject *)self->stream);
    for (int i = 0; i < 3; i++) Py_XDECREF(self->raised[i]);
    PyMem_Free(self->scan);
    Py_XDECREF(self->scope);
    Py_XDECREF((PyObject *)self->core);
    hot_free(op);
}

static PyMethodDef methods[] = {
    {"send", FASTCALL(send_send), METH_FASTCALL | METH_KEYWORDS, "send(message)\n--\n\nLook at an ASGI message and hand it on."},
    {"disconnected", send_disconnected, METH_NOARGS, "disconnected()\n--\n\nThe app was notified that the client went away."},
    {"turn", send_turn, METH_NOARGS, "turn()\n--\n\nWebSocket: the client sent a message, a new request begins."},
    {"finish", send_finish, METH_O, "finish(error, /)\n--\n\nThe app returned (None) or raised. 1: see streamed(); 2: nothing is in flight."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {{"stream", get_stream, NULL, "The request's stream.", NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "Stands before an ASGI send and hands every message on unchanged."},
    {Py_tp_dealloc, send_dealloc},
    {Py_tp_traverse, send_traverse},
    {Py_tp_clear, send_clear},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_send_spec = {"tailwatch._hot.Send", sizeof(SendObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
