#include "python/stamp/engine_streams.h"

#include <string.h>

#include "base/arithmetic.h"
#include "python/group.h"

#define ROUTE "engine"
#define OPEN_MOST 4096        /* streams before those whose requests are gone are looked for, */
#define LOOK_EVERY 1024       /* and how often then */
#define OLDEST_NS (3600 * TW_NS_PER_SECOND) /* an arrival before that was read off another clock */

int engine_streams_init(engine_streams *s, CoreObject *core, PyObject *model) {
    s->core = core;
    s->open = PyDict_New();
    s->model = Py_NewRef(model);
    s->route = PyUnicode_FromString(ROUTE);
    return s->open == NULL || s->route == NULL ? -1 : 0;
}

void engine_streams_free(engine_streams *s) {
    Py_CLEAR(s->open);
    Py_CLEAR(s->model);
    Py_CLEAR(s->route);
}

static StreamObject *stream_of(engine_streams *s, step_reader *r, PyObject *id) {
    PyObject *stream = id == NULL ? NULL : PyDict_GetItemWithError(s->open, id);
    if (stream == NULL) step_drop_error(r);
    return (StreamObject *)stream;
}

static void forget(engine_streams *s, step_reader *r, PyObject *id) {
    if (PyDict_DelItem(s->open, id) < 0) step_drop_error(r);
}

/* ---- a request comes ---- */

/* When the front end got it: it stamps the wall clock. */
static uint64_t arrival_of(step_reader *r, PyObject *request, uint64_t now_ns) {
    PyObject *value = step_read(r, request, READ_arrival_time);
    const double wall = value != NULL && PyFloat_Check(value) ? PyFloat_AsDouble(value) : 0;
    const tw_clock_pair clocks = tw_clock_pair_now();
    Py_XDECREF(value);
    if (!(wall > 0 && wall < 1e10)) return now_ns;
    const uint64_t ago_ns = since(clocks.realtime_ns, (uint64_t)(wall * 1e9));
    return ago_ns < OLDEST_NS ? since(now_ns, ago_ns) : now_ns;
}

/* Those whose requests the scheduler does not have any more ended in a way that is not known. */
static void look_for_gone(engine_streams *s, step_reader *r, PyObject *scheduler) {
    PyObject *here = step_read(r, scheduler, READ_requests), *ids = PyDict_Keys(s->open);
    for (Py_ssize_t i = 0; here != NULL && ids != NULL && i < PyList_Size(ids); i++)
        if (PySequence_Contains(here, PyList_GetItem(ids, i)) == 0) forget(s, r, PyList_GetItem(ids, i));
    step_drop_error(r);
    Py_XDECREF(here);
    Py_XDECREF(ids);
}

static void open_stream(engine_streams *s, step_reader *r, PyObject *request, PyObject *id, uint64_t now_ns) {
    StreamObject *stream = stream_open_named(s->core, s->model, s->route, arrival_of(r, request, now_ns), id);
    if (stream == NULL || PyDict_SetItem(s->open, id, (PyObject *)stream) < 0) step_drop_error(r);
    Py_XDECREF((PyObject *)stream);
    s->opened++;
}

void engine_streams_queued(engine_streams *s, step_reader *r, PyObject *scheduler, PyObject *request, uint64_t now_ns) {
    if (core_has_front(s->core)) return;
    PyObject *id = step_read(r, request, READ_request_id);
    if (id != NULL && PyUnicode_Check(id) && stream_of(s, r, id) == NULL) open_stream(s, r, request, id, now_ns);
    Py_XDECREF(id);
    const Py_ssize_t n = PyDict_Size(s->open);
    if (n >= OPEN_MOST && n % LOOK_EVERY == 0) look_for_gone(s, r, scheduler);
}

void engine_streams_adopt(engine_streams *s, step_reader *r, PyObject *scheduler, uint64_t now_ns) {
    PyObject *here = step_read(r, scheduler, READ_requests), *id, *request;
    Py_ssize_t at = 0;
    while (here != NULL && PyDict_Check(here) && PyDict_Next(here, &at, &id, &request)) {
        PyObject *made = step_read(r, request, READ_num_output_tokens);
        if (made == r->zero) {
            step_note_queued(r, scheduler, request, now_ns);
            engine_streams_queued(s, r, scheduler, request, now_ns);
        }
        Py_XDECREF(made);
    }
    Py_XDECREF(here);
}

/* ---- its tokens ---- */

/* By the name of the reason, which is a number of an enumeration, or a text. */
static tw_end end_of_reason(step_reader *r, PyObject *reason) {
    PyObject *text = PyObject_Str(reason);
    const char *name = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
    const tw_end end = name == NULL ? TW_END_FINISHED : strcmp(name, "abort") == 0 ? TW_END_ABORT
                       : strcmp(name, "error") == 0 ? TW_END_ERROR : TW_END_FINISHED;
    step_drop_error(r);
    Py_XDECREF(text);
    return end;
}

static void answer(engine_streams *s, step_reader *r, PyObject *output, uint64_t key_ns, uint64_t now_ns) {
    PyObject *id = step_read(r, output, READ_request_id);
    StreamObject *stream = stream_of(s, r, id);
    if (stream != NULL) {
        PyObject *reason = step_read(r, output, READ_finish_reason);
        const Py_ssize_t tokens = step_size(r, output, READ_new_token_ids);
        if (key_ns != 0) tw_stream_received(&stream->stream, key_ns, key_ns, key_ns);
        if (tokens > 0) stream_stamp(stream, now_ns, (uint32_t)tokens, 0);
        if (reason != NULL && reason != Py_None) {
            if (stream_counts(stream)) stream_shut(stream, now_ns, end_of_reason(r, reason));
            forget(s, r, id);
        }
        Py_XDECREF(reason);
    }
    Py_XDECREF(id);
}

void engine_streams_answered(engine_streams *s, step_reader *r, PyObject *outputs, uint64_t key_ns, uint64_t now_ns) {
    PyObject *client, *batch;
    Py_ssize_t at = 0;
    if (s->opened == 0 || outputs == NULL || !PyDict_Check(outputs)) return;
    while (PyDict_Next(outputs, &at, &client, &batch)) {
        PyObject *each = step_read(r, batch, READ_outputs);
        for (Py_ssize_t i = 0; each != NULL && PyList_Check(each) && i < PyList_Size(each); i++)
            answer(s, r, PyList_GetItem(each, i), key_ns, now_ns);
        Py_XDECREF(each);
    }
}

/* ---- its end from outside ---- */

static void finish(engine_streams *s, step_reader *r, PyObject *id, uint64_t now_ns) {
    StreamObject *stream = stream_of(s, r, id);
    if (stream == NULL) return;
    if (stream_counts(stream)) stream_shut(stream, now_ns, TW_END_ABORT);
    forget(s, r, id);
}

void engine_streams_finished(engine_streams *s, step_reader *r, PyObject *ids, uint64_t now_ns) {
    if (s->opened == 0 || ids == NULL) return;
    if (PyUnicode_Check(ids)) {
        finish(s, r, ids, now_ns);
        return;
    }
    PyObject *all = ids == Py_None ? PyDict_Keys(s->open) : PySequence_List(ids);
    for (Py_ssize_t i = 0; all != NULL && i < PyList_Size(all); i++) finish(s, r, PyList_GetItem(all, i), now_ns);
    step_drop_error(r);
    Py_XDECREF(all);
}
