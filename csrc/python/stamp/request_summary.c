/* What became of one request, given once as it ended: for spans. Under the GIL, off the token path; bounded. */
#include "python/stall/host.h"
#include "python/stamp/stream.h"

#include <string.h>

#define PAUSES_LOOKED 64 /* back in the ring: the latest are given */

static PyObject *causes(const uint64_t *ns) {
    PyObject *tuple = PyTuple_New(TW_CAUSES);
    for (int i = 0; tuple != NULL && i < TW_CAUSES; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(ns[i]);
        if (value == NULL) Py_CLEAR(tuple);
        else PyTuple_SetItem(tuple, i, value);
    }
    return tuple;
}

static int append(PyObject *list, PyObject *item) {
    const int failed = item == NULL || PyList_Append(list, item) < 0;
    Py_XDECREF(item);
    return failed ? -1 : 0;
}

/* (end_ns, phase, gap_ns, typical_ns, overlap_ns by cause, parts, token); parts: those of parts_list(). */
static PyObject *slow_gap(const tw_segment *g, const tw_slow_record *r) {
    return Py_BuildValue("KiKKNNK", (unsigned long long)r->end_ns, (int)r->phase, (unsigned long long)r->gap_ns,
                         (unsigned long long)r->typical_ns, causes(r->overlap_ns), parts_list(&g->host, &r->parts),
                         (unsigned long long)r->token);
}

static PyObject *slow_gaps(const tw_stream *s) {
    PyObject *list = PyList_New(0);
    const uint32_t first = s->slow > TW_STREAM_SLOW ? s->slow - TW_STREAM_SLOW : 0;
    tw_slow_record record;
    for (uint32_t i = first; list != NULL && i < s->slow; i++)
        if (tw_segment_slow_read(s->segment, s->slow_number[i % TW_STREAM_SLOW], &record) &&
            append(list, slow_gap(s->segment, &record)) < 0)
            Py_CLEAR(list);
    return list;
}

/* [(start_ns, stop_ns, cause), ...] of this process, the latest first. */
static PyObject *pauses(const tw_stream *s) {
    const tw_pause_clock *clock = &s->segment->pause;
    PyObject *list = PyList_New(0);
    const uint64_t head = tw_load_acquire(&clock->head);
    tw_pause_record record;
    for (uint64_t back = 1; list != NULL && back <= head && back <= PAUSES_LOOKED; back++) {
        if (!tw_pause_read(clock, head - back, &record) || record.stop_ns <= s->arrival_ns) break;
        if (record.start_ns >= s->end_ns) continue;
        if (append(list, Py_BuildValue("KKi", (unsigned long long)record.start_ns, (unsigned long long)record.stop_ns, (int)record.cause)) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *text(const uint64_t *words, uint32_t n) {
    char out[TW_NAME_BYTES];
    tw_words_get(words, n, out);
    return PyUnicode_DecodeUTF8(out, (Py_ssize_t)strlen(out), "replace");
}

PyObject *stream_summary(PyObject *self, PyObject *unused) {
    const StreamObject *stream = (StreamObject *)self;
    const tw_stream *s = &stream->stream;
    (void)unused;
    if (!stream_counts(stream) || !s->closed) Py_RETURN_NONE;
    return Py_BuildValue("KKKKKKIiNNNNKKKINN", (unsigned long long)s->arrival_ns, (unsigned long long)s->entry_ns,
                         (unsigned long long)(s->messages > 0 ? s->first_ns : 0), (unsigned long long)s->last_ns,
                         (unsigned long long)s->end_ns, (unsigned long long)tw_stream_tokens(s), (unsigned)s->status,
                         (int)s->reason, text(s->series->model.word, TW_NAME_WORDS), text(s->series->route.word, TW_NAME_WORDS),
                         text(s->request_id, TW_ID_WORDS), text(s->trace_id, TW_TRACE_WORDS),
                         (unsigned long long)s->worst_gap_ns, (unsigned long long)s->overlap_ns,
                         (unsigned long long)s->delay_ns, (unsigned)s->slow, slow_gaps(s), pauses(s));
}
