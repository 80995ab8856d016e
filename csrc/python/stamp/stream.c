/* tailwatch._hot.Stream: one request's tokens, stamped by hand or by Send. */
#include "python/stamp/stream.h"

#include "python/group.h"
#include "python/membership.h"
#include "python/stall/host.h"

#include "tailwatch/attribute/engine_id.h"

#include <string.h>

StreamObject *stream_new(CoreObject *core) {
    StreamObject *self = (StreamObject *)PyType_GenericAlloc(core->streams.type, 0);
    if (self == NULL) return NULL;
    self->core = (CoreObject *)Py_NewRef((PyObject *)core);
    self->epoch = UINT64_MAX; /* until it is opened it has none */
    return self;
}

void stream_open(StreamObject *self, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns, tw_arrival source) {
    if (__builtin_expect(*self->core->epoch == 0, 0)) core_reborn(self->core);
    if (self->core->group != NULL && __builtin_expect(self->core->group->orphan, 0)) core_rejoin(self->core);
    tw_stream_open(&self->stream, self->core->segment, arrival_ns, entry_ns, proxy_ns, source);
    self->stream.read_context = own_context;
    core_wake_watchdog(self->core);
    self->stream.concurrency += core_others_in_flight(self->core);
    if (tw_recorder_on(&self->core->trace.recorder)) tw_stream_trace(&self->stream, &self->core->trace.recorder);
    const uint64_t id = self->bound != 0 ? self->bound : self->core->streams.serves;
    tw_stream_join(&self->stream, core_peer_set(self->core), self->parts == PARTS_DIFFER ? 0 : id);
    self->open = 1;
    self->epoch = *self->core->epoch;
    self->number = tw_load(&self->core->segment->opened);
    self->marked = 0;
    if (nvtx_on(self->core)) nvtx_request_begin(self->core, &self->range, self->number);
}

/* A stamp that was dropped made no message. */
void stream_mark(StreamObject *self) {
    const uint64_t messages = self->stream.messages;
    if (messages == self->marked) return;
    self->marked = messages;
    nvtx_message(self->core, self->number, messages, self->stream.series_index);
}

void stream_shut(StreamObject *self, uint64_t now_ns, tw_end end) {
    tw_stream_close(&self->stream, now_ns, end);
    if (__builtin_expect(self->range.begun != 0, 0)) nvtx_end(&self->range);
}

static void stream_dealloc(PyObject *self) {
    StreamObject *s = (StreamObject *)self;
    if (stream_counts(s) && !s->stream.closed) stream_shut(s, tw_now_ns(), TW_END_ABORT);
    if (s->range.begun != 0) nvtx_end(&s->range); /* of before an uninstall() */
    Py_XDECREF((PyObject *)s->core);
    hot_free(self);
}

/* By type name: asyncio's, anyio's and the frameworks' classes are found without importing any of them. */
static tw_end end_of_type(PyObject *type) {
    static const char *const aborts[] = {"CancelledError", "GeneratorExit", "ClientDisconnect", "ClientDisconnected",
                                         "WebSocketDisconnect"};
    if (PyErr_GivenExceptionMatches(type, PyExc_TimeoutError)) return TW_END_TIMEOUT;
    PyObject *name = PyObject_GetAttrString(type, "__name__");
    tw_end end = TW_END_ERROR;
    if (name != NULL && PyUnicode_Check(name)) {
        if (PyUnicode_CompareWithASCIIString(name, "TimeoutError") == 0) end = TW_END_TIMEOUT;
        for (size_t i = 0; i < sizeof aborts / sizeof *aborts; i++)
            if (PyUnicode_CompareWithASCIIString(name, aborts[i]) == 0) end = TW_END_ABORT;
    }
    PyErr_Clear();
    Py_XDECREF(name);
    return end;
}

/* A group ends a request as all of its members do; as an error where they differ. */
static tw_end end_of_group(PyObject *members, int depth) {
    const Py_ssize_t n = PyTuple_Size(members);
    tw_end all = TW_END_ERROR;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *member = PyTuple_GetItem(members, i);
        PyObject *inner = depth > 0 ? PyObject_GetAttrString(member, "exceptions") : NULL;
        const tw_end end = inner != NULL && PyTuple_Check(inner) ? end_of_group(inner, depth - 1) : end_of_type((PyObject *)Py_TYPE(member));
        PyErr_Clear();
        Py_XDECREF(inner);
        if (i > 0 && end != all) return TW_END_ERROR;
        all = end;
    }
    return all;
}

tw_end end_of_exception(PyObject *error) {
    if (error == NULL || error == Py_None) return TW_END_FINISHED;
    if (PyExceptionClass_Check(error)) return end_of_type(error);
    PyObject *members = PyObject_GetAttrString(error, "exceptions");
    const tw_end end = members != NULL && PyTuple_Check(members) ? end_of_group(members, 8) : end_of_type((PyObject *)Py_TYPE(error));
    PyErr_Clear();
    Py_XDECREF(members);
    return end;
}

/* A monotonic time an hour ahead or more was read off another clock: it would stand for ever before all others. */
#define FUTURE_NS (3600 * TW_NS_PER_SECOND)

static uint64_t plausible(StreamObject *self, uint64_t given_ns, uint64_t now_ns) {
    if (given_ns < now_ns + FUTURE_NS) return given_ns;
    tw_add(&self->core->segment->drops[TW_DROP_OUT_OF_ORDER_STAMP], 1);
    return now_ns;
}

/* A time given by the caller; now when absent. -1: an exception is set. */
static int read_time(PyObject *value, uint64_t *out) {
    if (value == NULL || value == Py_None) return 0;
    PyObject *index = PyNumber_Index(value); /* numpy's integers too */
    if (index == NULL) return -1;
    const unsigned long long t = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
    if (t == (unsigned long long)-1 && PyErr_Occurred()) return -1;
    *out = (uint64_t)t;
    return 0;
}

static int read_count(PyObject *value, const char *what, uint32_t *out) {
    uint64_t n = 0;
    if (value == Py_None || read_time(value, &n) < 0 || n > UINT32_MAX) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Format(PyExc_ValueError, "%s: expected a whole number from 0 to 2**32 - 1, found %R", what, value);
        return -1;
    }
    *out = (uint32_t)n;
    return 0;
}

/* Any label or id as UTF-8 in new bytes: None is empty, what is no text is str() of it, lone surrogates are '?'. */
static PyObject *utf8_of(PyObject *value) {
    PyObject *text = value == Py_None ? PyUnicode_FromString("") : PyObject_Str(value);
    PyObject *bytes = text == NULL ? NULL : PyUnicode_AsEncodedString(text, "utf-8", "replace");
    Py_XDECREF(text);
    return bytes;
}

/* token(n=1, *, at=None, choice=0) with anything given. */
static PyObject *token_with_arguments(StreamObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, uint64_t now) {
    uint32_t n = 1, choice = 0;
    uint64_t at = now;
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError, "token() takes at most 1 positional argument, found %zd", nargs);
        return NULL;
    }
    if (nargs == 1 && read_count(args[0], "token(n)", &n) < 0) return NULL;
    const Py_ssize_t keywords = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i), *value = args[nargs + i];
        int bad;
        if (PyUnicode_CompareWithASCIIString(name, "at") == 0) bad = read_time(value, &at);
        else if (PyUnicode_CompareWithASCIIString(name, "choice") == 0) bad = read_count(value, "token(choice)", &choice);
        else if (nargs == 0 && PyUnicode_CompareWithASCIIString(name, "n") == 0) bad = read_count(value, "token(n)", &n);
        else {
            PyErr_Format(PyExc_TypeError, "token() got an unexpected argument %R: expected n, at, choice", name);
            return NULL;
        }
        if (bad) return NULL;
    }
    if (n > 0) stream_stamp(self, plausible(self, at, now), n, choice); /* a step that made none is no message */
    Py_RETURN_NONE;
}

/* The first stamp by hand: from now on the app's stamps count, and only they. */
static void take_over(StreamObject *self) {
    self->by_hand = 1;
    if (self->claim != NULL) self->claim(self->sender);
}

/* hot */
static PyObject *stream_token(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
    const uint64_t now = tw_now_ns();
    if (__builtin_expect(!((StreamObject *)self)->by_hand, 0)) take_over((StreamObject *)self);
    if (__builtin_expect(nargs != 0 || kwnames != NULL, 0))
        return token_with_arguments((StreamObject *)self, args, nargs, kwnames, now);
    stream_stamp((StreamObject *)self, now, 1, 0);
    Py_RETURN_NONE;
}
/* end hot */

static PyObject *end_stream(PyObject *self, PyObject *args, PyObject *kwargs, tw_end end) {
    static char *names[] = {"at", NULL};
    PyObject *at = NULL;
    const uint64_t now = tw_now_ns();
    uint64_t when = now;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$O", names, &at) || read_time(at, &when) < 0) return NULL;
    when = plausible((StreamObject *)self, when, now);
    if (stream_counts((StreamObject *)self)) stream_shut((StreamObject *)self, when, end);
    Py_RETURN_NONE;
}

static PyObject *stream_close(PyObject *self, PyObject *args, PyObject *kwargs) { return end_stream(self, args, kwargs, TW_END_FINISHED); }
static PyObject *stream_fail(PyObject *self, PyObject *args, PyObject *kwargs) { return end_stream(self, args, kwargs, TW_END_ERROR); }
static PyObject *stream_timeout(PyObject *self, PyObject *args, PyObject *kwargs) { return end_stream(self, args, kwargs, TW_END_TIMEOUT); }
static PyObject *stream_abort(PyObject *self, PyObject *args, PyObject *kwargs) { return end_stream(self, args, kwargs, TW_END_ABORT); }

/* end(error, /): ends it by the exception, None for a clean end. */
static PyObject *stream_end(PyObject *self, PyObject *error) {
    if (stream_counts((StreamObject *)self)) stream_shut((StreamObject *)self, tw_now_ns(), end_of_exception(error));
    Py_RETURN_NONE;
}

static PyObject *stream_usage(PyObject *self, PyObject *value) {
    uint64_t tokens = 0;
    if (read_time(value, &tokens) < 0) return NULL;
    if (stream_counts((StreamObject *)self)) tw_stream_usage(&((StreamObject *)self)->stream, tokens);
    Py_RETURN_NONE;
}

static PyObject *stream_status(PyObject *self, PyObject *value) {
    uint32_t status;
    if (read_count(value, "status", &status) < 0) return NULL;
    ((StreamObject *)self)->stream.status = status;
    Py_RETURN_NONE;
}

/* Two objects as UTF-8, held by bytes that the caller gives back. */
typedef struct { PyObject *held[2]; char *text[2]; Py_ssize_t len[2]; } two_texts;

static void texts_release(two_texts *t) {
    Py_XDECREF(t->held[0]);
    Py_XDECREF(t->held[1]);
}

static int texts_take(two_texts *t, PyObject *first, PyObject *second) {
    t->held[0] = utf8_of(first);
    t->held[1] = t->held[0] == NULL ? NULL : utf8_of(second);
    for (int i = 0; i < 2; i++)
        if (t->held[1] == NULL || PyBytes_AsStringAndSize(t->held[i], &t->text[i], &t->len[i]) < 0) {
            texts_release(t);
            return -1;
        }
    return 0;
}

/* Puts it under labels given as any objects. -1: an exception is set. */
static int stream_name(StreamObject *self, PyObject *model, PyObject *route) {
    two_texts t;
    if (texts_take(&t, model, route) < 0) return -1;
    tw_stream_label(&self->stream, core_label(self->core, t.text[0], (size_t)t.len[0], t.text[1], (size_t)t.len[1]));
    texts_release(&t);
    return 0;
}

/* ---- exemplars: whose trace id stands beside what a stream measures ---- */

/* exemplify(on, trace_of): for streams that open from now on. */
PyObject *core_exemplify(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    PyObject *trace_of, *old = self->streams.trace_of;
    int on;
    if (!PyArg_ParseTuple(args, "pO", &on, &trace_of)) return NULL;
    self->streams.exemplars = on;
    self->streams.trace_of = trace_of == Py_None ? NULL : Py_NewRef(trace_of);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

void stream_exemplify(StreamObject *self, int sampled) {
    if (self->core->streams.exemplars && sampled) tw_stream_exemplify(&self->stream);
}

/* A parent that is not sampled is no word on this process's own spans. */
int stream_find_trace(StreamObject *self) {
    Py_ssize_t len = 0;
    if (!self->core->streams.exemplars || self->core->streams.trace_of == NULL || self->stream.exemplary) return 0;
    PyObject *id = PyObject_CallFunctionObjArgs(self->core->streams.trace_of, NULL);
    const char *text = id != NULL && PyUnicode_Check(id) ? PyUnicode_AsUTF8AndSize(id, &len) : NULL;
    if (text != NULL) {
        tw_words_set(self->stream.trace_id, TW_TRACE_WORDS, text, (size_t)len);
        tw_stream_exemplify(&self->stream);
    }
    Py_XDECREF(id);
    return PyErr_Occurred() == NULL ? 0 : -1;
}

/* ---- by hand ---- */

/* arrival_ns is its own (given) or now. -1: an exception is set. */
static int open_by_hand(StreamObject *self, uint64_t arrival_ns, int given, PyObject *request_id, PyObject *trace_id) {
    two_texts t;
    if (texts_take(&t, request_id, trace_id) < 0) return -1;
    arrival_ns = plausible(self, arrival_ns, tw_now_ns());
    stream_open(self, arrival_ns, arrival_ns, 0, given ? TW_ARRIVAL_EXPLICIT : TW_ARRIVAL_ASGI);
    tw_stream_identify(&self->stream, t.text[0], (size_t)t.len[0], t.text[1], (size_t)t.len[1]);
    stream_exemplify(self, 1);
    const int failed = t.len[1] == 0 && stream_find_trace(self) < 0;
    texts_release(&t);
    if (!failed) return 0;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear(); /* it is measured without */
    return 0;
}

StreamObject *stream_open_named(CoreObject *core, PyObject *model, PyObject *route, uint64_t arrival_ns,
                                PyObject *request_id) {
    Py_ssize_t len;
    const char *id = PyUnicode_AsUTF8AndSize(request_id, &len);
    StreamObject *stream = id == NULL ? NULL : stream_new(core);
    if (stream == NULL) return NULL;
    stream->by_hand = 1;
    stream->bound = tw_load(&core->segment->header.engine);
    if (open_by_hand(stream, arrival_ns, 1, request_id, Py_None) == 0 && stream_name(stream, model, route) == 0) {
        stream->stream.request = tw_request_hash(id, (size_t)len);
        return stream;
    }
    Py_DECREF((PyObject *)stream);
    return NULL;
}

/* stream(model, route, arrival | None, request_id, trace_id) */
PyObject *core_stream(PyObject *op, PyObject *args) {
    CoreObject *self = (CoreObject *)op;
    PyObject *model, *route, *given, *request, *trace;
    if (!PyArg_ParseTuple(args, "OOOOO", &model, &route, &given, &request, &trace)) return NULL;
    uint64_t entry = tw_now_ns();
    if (read_time(given, &entry) < 0) return NULL;
    StreamObject *stream = stream_new(self);
    if (stream == NULL) return NULL;
    stream->by_hand = 1;
    if (open_by_hand(stream, entry, given != Py_None, request, trace) == 0 && stream_name(stream, model, route) == 0) {
        stream_is_served_here(stream);
        return (PyObject *)stream;
    }
    Py_DECREF((PyObject *)stream);
    return NULL;
}

static PyObject *stream_label(PyObject *self, PyObject *args) {
    PyObject *model, *route;
    if (!PyArg_ParseTuple(args, "OO", &model, &route)) return NULL;
    if (stream_counts((StreamObject *)self) && stream_name((StreamObject *)self, model, route) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *stream_record_send_wait(PyObject *self, PyObject *args) {
    unsigned long long since, until;
    if (!PyArg_ParseTuple(args, "KK", &since, &until)) return NULL;
    if (stream_counts((StreamObject *)self)) tw_stream_send_wait(&((StreamObject *)self)->stream, since, until);
    Py_RETURN_NONE;
}

static PyObject *stream_received(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    uint64_t at[3];
    if (nargs != 3) return PyErr_Format(PyExc_TypeError, "received() takes 3 arguments (%zd given)", nargs);
    for (int i = 0; i < 3; i++)
        if (read_time(args[i], &at[i]) < 0) return NULL;
    if (stream_counts((StreamObject *)self)) tw_stream_received(&((StreamObject *)self)->stream, at[0], at[1], at[2]);
    Py_RETURN_NONE;
}

/* ---- the engine that serves it ---- */

/* The engine that an object names: a whole number or a text; "" and None name none. -1: an exception is set. */
static int engine_named(PyObject *engine, uint64_t *id) {
    *id = 0;
    if (engine == Py_None) return 0;
    const int plain = PyUnicode_Check(engine) || (PyIndex_Check(engine) && !PyBool_Check(engine));
    PyObject *text = plain ? PyObject_Str(engine) : NULL;
    PyObject *bytes = text == NULL ? NULL : PyUnicode_AsEncodedString(text, "utf-8", "replace");
    Py_XDECREF(text);
    if (bytes != NULL) *id = tw_engine_named(PyBytes_AsString(bytes), (size_t)PyBytes_Size(bytes));
    const int none = bytes != NULL && PyBytes_Size(bytes) == 0;
    Py_XDECREF(bytes);
    if (*id != 0 || none) return 0;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "engine: expected a number from 0 to 2**32 - 1, or a name of 1 to 31 letters, digits, '_', '.', '-', found %R", engine);
    return -1;
}

PyObject *hot_engine_id(PyObject *module, PyObject *engine) {
    uint64_t id;
    (void)module;
    return engine_named(engine, &id) < 0 ? NULL : PyLong_FromUnsignedLongLong(id);
}

/* Of several parts that differ none is the engine, for good: a later bind of the whole stands again. Where the user said
 * which engine this process serves, a server's own names for its ranks change nothing. */
static void bind_part(StreamObject *self, uint64_t id) {
    if (self->core->streams.serves != 0) return;
    if (self->parts == PARTS_NONE) self->bound = id, self->parts = PARTS_AGREE;
    else if (self->bound != id) self->bound = 0, self->parts = PARTS_DIFFER;
}

/* bind(engine, *, part=False) */
static PyObject *stream_bind(PyObject *op, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"engine", "part", NULL};
    StreamObject *self = (StreamObject *)op;
    PyObject *engine;
    uint64_t id;
    int part = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p", names, &engine, &part) || engine_named(engine, &id) < 0) return NULL;
    if (part) bind_part(self, id);
    else self->bound = id, self->parts = PARTS_NONE;
    if (!part || self->core->streams.serves == 0) self->stream.engine = self->bound; /* a stream that is not open yet takes it then */
    Py_RETURN_NONE;
}

/* set_serves(engine, /): the engine of streams that open from now on, where they are not bound. */
PyObject *core_set_serves(PyObject *op, PyObject *engine) {
    const unsigned long long value = PyLong_AsUnsignedLongLong(engine);
    if (value == (unsigned long long)-1 && PyErr_Occurred()) return NULL;
    ((CoreObject *)op)->streams.serves = value;
    Py_RETURN_NONE;
}

/* What an app does with its scope (copy, pickle it) works as without us. */
static PyObject *stream_copy(PyObject *self, PyObject *memo) { (void)memo; return Py_NewRef(self); }
static PyObject *stream_reduce(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return Py_BuildValue("(O())", (PyObject *)Py_TYPE(Py_None));
}

static PyObject *get_closed(PyObject *self, void *unused) { (void)unused; return PyBool_FromLong((long)((StreamObject *)self)->stream.closed); }
static PyObject *get_tokens(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(tw_stream_tokens(&((StreamObject *)self)->stream)); }
static PyObject *get_arrival(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StreamObject *)self)->stream.arrival_ns); }
static PyObject *get_last(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StreamObject *)self)->stream.last_ns); }
static PyObject *get_worst(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StreamObject *)self)->stream.worst_gap_ns); }
static PyObject *get_overlap(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StreamObject *)self)->stream.overlap_ns); }
static PyObject *get_late(PyObject *self, void *unused) { (void)unused; return PyLong_FromUnsignedLongLong(((StreamObject *)self)->stream.delay_ns); }
static PyObject *get_ttft(PyObject *self, void *unused) {
    (void)unused;
    const tw_stream *s = &((StreamObject *)self)->stream;
    if (s->messages == 0) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(s->first_ns - s->arrival_ns);
}

static PyMethodDef methods[] = {
    {"token", FASTCALL(stream_token), METH_FASTCALL | METH_KEYWORDS,
     "token(n=1, *, at=None, choice=0)\n--\n\nStamp a message with n tokens of a choice, now or at a monotonic ns."},
    {"usage", stream_usage, METH_O, "usage(tokens, /)\n--\n\nThe true number of output tokens: raises the count, never lowers it."},
    {"close", FASTCALL(stream_close), METH_VARARGS | METH_KEYWORDS, "close(*, at=None)\n--\n\nEnd it as finished; a second end does nothing."},
    {"fail", FASTCALL(stream_fail), METH_VARARGS | METH_KEYWORDS, "fail(*, at=None)\n--\n\nEnd it as an error."},
    {"timeout", FASTCALL(stream_timeout), METH_VARARGS | METH_KEYWORDS, "timeout(*, at=None)\n--\n\nEnd it as timed out."},
    {"abort", FASTCALL(stream_abort), METH_VARARGS | METH_KEYWORDS, "abort(*, at=None)\n--\n\nEnd it because the client went away."},
    {"end", stream_end, METH_O, "end(error, /)\n--\n\nEnd it by an exception (or its class); None is a clean end."},
    {"status", stream_status, METH_O, "status(code, /)\n--\n\nHTTP status, as far as it decides the verdict."},
    {"label", stream_label, METH_VARARGS, "label(model, route, /)\n--\n\nPut it under other labels; what was recorded stays where it is."},
    {"bind", FASTCALL(stream_bind), METH_VARARGS | METH_KEYWORDS,
     "bind(engine, *, part=False)\n--\n\nSay which engine serves it, from this gap on; None: it is not known."},
    {"__copy__", stream_copy, METH_NOARGS, "A stream is one request: a copy is itself."},
    {"__deepcopy__", stream_copy, METH_O, "A stream is one request: a copy is itself."},
    {"__reduce__", stream_reduce, METH_NOARGS, "Elsewhere there is no such request: pickled as None."},
    {"summary", stream_summary, METH_NOARGS, "summary()\n--\n\nWhat became of it, once it has ended; None before, and in a fork child."},
    {"received", FASTCALL(stream_received), METH_FASTCALL,
     "received(key, received, processed, /)\n--\n\nA token came: the engine's stamp of its step, when it was received and "
     "processed here; monotonic ns."},
    {"record_send_wait", stream_record_send_wait, METH_VARARGS, "record_send_wait(since, until, /)\n--\n\nA send was blocked by the client from one monotonic ns to another."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {
    {"closed", get_closed, NULL, "Whether the request has ended.", NULL},
    {"tokens", get_tokens, NULL, "Output tokens so far.", NULL},
    {"arrival_ns", get_arrival, NULL, "Monotonic ns at which the request reached this host.", NULL},
    {"ttft_ns", get_ttft, NULL, "Time to first token in ns, None before it.", NULL},
    {"last_ns", get_last, NULL, "Monotonic ns of the last token-bearing message; the arrival before the first.", NULL},
    {"worst_gap_ns", get_worst, NULL, "Longest gap between token-bearing messages so far, ns.", NULL},
    {"overlap_ns", get_overlap, NULL, "How long its waits coincided with pauses, ns: an upper bound.", NULL},
    {"delay_ns", get_late, NULL, "What the pauses cost it, ns: an estimate.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "One request's tokens. Made by tailwatch.stream() or found as scope[\"tailwatch\"]."},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_stream_spec = {"tailwatch._hot.Stream", sizeof(StreamObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
