#include "python/stamp/step_reader.h"

#include <string.h>

#include "base/arithmetic.h"

#define QUEUED_MOST 4096  /* ids kept before those of gone requests are looked for */
#define RESUMED_STEPS 256 /* a prompt is computed again within so many */
#define KV_EVERY 16       /* steps between two looks at the use of the KV cache: that calls Python */

#define STEP_ATTRIBUTE_TEXT(name) #name,
static const char *const attribute_names[] = {STEP_ATTRIBUTES(STEP_ATTRIBUTE_TEXT)};

int step_reader_init(step_reader *r, tw_step_ring *ring) {
    r->ring = ring;
    r->kv_use = TW_COUNT_UNKNOWN;
    r->zero = PyLong_FromLong(0);
    r->queued = PyDict_New();
    r->preempted = PySet_New(NULL);
    r->kv_waits = PyDict_New();
    r->kv_asked = NULL;
    r->kv_any = false;
    for (int i = 0; i < STEP_ATTRIBUTES_READ; i++)
        if ((r->attribute[i].name = PyUnicode_InternFromString(attribute_names[i])) == NULL) return -1;
    return r->zero == NULL || r->queued == NULL || r->preempted == NULL || r->kv_waits == NULL ? -1 : 0;
}

void step_reader_free(step_reader *r) {
    Py_CLEAR(r->zero);
    Py_CLEAR(r->queued);
    Py_CLEAR(r->preempted);
    Py_CLEAR(r->kv_waits);
    Py_CLEAR(r->kv_asked);
    for (int i = 0; i < 3; i++) Py_CLEAR(r->raised[i]);
    for (int i = 0; i < STEP_ATTRIBUTES_READ; i++) {
        Py_CLEAR(r->attribute[i].name);
        Py_CLEAR(r->attribute[i].absent_in);
    }
}

/* ---- values ---- */

/* What is no Exception (a signal handler raised it) is kept: it is the engine's to see. */
__attribute__((noinline, cold)) void step_drop_error(step_reader *r) {
    if (PyErr_Occurred() == NULL) return;
    if (PyErr_ExceptionMatches(PyExc_Exception) || r->raised[0] != NULL) PyErr_Clear();
    else PyErr_Fetch(&r->raised[0], &r->raised[1], &r->raised[2]);
}

bool step_reader_raises(step_reader *r) {
    if (r->raised[0] == NULL) return false;
    PyErr_Restore(r->raised[0], r->raised[1], r->raised[2]);
    r->raised[0] = r->raised[1] = r->raised[2] = NULL;
    return true;
}

static __attribute__((noinline, cold)) PyObject *absent(step_reader *r, PyObject *of, step_attribute attribute) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyObject *before = r->attribute[attribute].absent_in;
        r->attribute[attribute].absent_in = Py_NewRef((PyObject *)Py_TYPE(of));
        Py_XDECREF(before);
    }
    step_drop_error(r);
    return NULL;
}

PyObject *step_read(step_reader *r, PyObject *of, step_attribute attribute) {
    if (of == NULL || of == Py_None || r->attribute[attribute].absent_in == (PyObject *)Py_TYPE(of)) return NULL;
    PyObject *value = PyObject_GetAttr(of, r->attribute[attribute].name);
    return value != NULL ? value : absent(r, of, attribute);
}

/* Of an int; -1: it is none, or negative, or too large. */
static int64_t number(step_reader *r, PyObject *value) {
    const int64_t n = value != NULL && PyLong_Check(value) ? PyLong_AsLongLong(value) : -1;
    if (__builtin_expect(n == -1, 0)) step_drop_error(r);
    return n;
}

/* -1: it has none. */
static Py_ssize_t size_of(step_reader *r, PyObject *value) {
    if (value == NULL || value == Py_None) return -1;
    const Py_ssize_t n = PyObject_Size(value);
    if (__builtin_expect(n == -1, 0)) step_drop_error(r);
    return n;
}

Py_ssize_t step_size(step_reader *r, PyObject *of, step_attribute attribute) {
    PyObject *value = step_read(r, of, attribute);
    const Py_ssize_t n = size_of(r, value);
    Py_XDECREF(value);
    return n;
}

static int64_t not_negative(int64_t n) { return n > 0 ? n : 0; }
static uint16_t count16(int64_t n) {
    return n < 0 ? TW_COUNT_UNKNOWN : (uint16_t)least((uint64_t)n, TW_COUNT_UNKNOWN - 1);
}
static uint32_t count32(int64_t n) {
    return n < 0 ? TW_TOKENS_UNKNOWN : (uint32_t)least((uint64_t)n, TW_TOKENS_UNKNOWN - 1);
}

static const char *text_of(step_reader *r, PyObject *id, Py_ssize_t *len) {
    const char *text = id != NULL && PyUnicode_Check(id) ? PyUnicode_AsUTF8AndSize(id, len) : NULL;
    if (text == NULL) step_drop_error(r);
    return text;
}

/* Tokens of a request in {id: tokens}; 0: it is not in it. */
static int64_t tokens_of(step_reader *r, PyObject *scheduled, PyObject *id) {
    PyObject *tokens = id == NULL ? NULL : PyDict_GetItemWithError(scheduled, id);
    if (tokens == NULL) step_drop_error(r);
    return tokens == NULL ? 0 : not_negative(number(r, tokens));
}

/* ---- events ---- */

static void note_event(step_reader *r, tw_step_event_kind kind, PyObject *id, uint64_t from_ns, uint64_t to_ns,
                       uint64_t detail) {
    Py_ssize_t len;
    const char *text = text_of(r, id, &len);
    if (text != NULL) tw_step_event_write(r->ring, kind, tw_request_hash(text, (size_t)len), from_ns, to_ns, detail);
}

/* Whether that request waited, and since when: in {id: ns}, from which it is taken. */
static inline __attribute__((always_inline)) bool take_since(step_reader *r, PyObject *waits, PyObject *id,
                                                             uint64_t *since_ns) {
    PyObject *since = PyDict_GetItemWithError(waits, id);
    if (since == NULL) {
        step_drop_error(r);
        return false;
    }
    *since_ns = (uint64_t)number(r, since);
    if (PyDict_DelItem(waits, id) < 0) step_drop_error(r);
    return true;
}

static __attribute__((noinline)) void end_kv_wait(step_reader *r, PyObject *id, uint64_t at_ns) {
    uint64_t since_ns;
    if (take_since(r, r->kv_waits, id, &since_ns) && since_ns < at_ns)
        note_event(r, TW_EVENT_KV_WAIT, id, since_ns, at_ns, 0);
    r->kv_any = PyDict_Size(r->kv_waits) > 0;
}

static void note_resumed(step_reader *r, PyObject *id, uint64_t at_ns) {
    if (__builtin_expect(r->kv_any, 0)) end_kv_wait(r, id, at_ns);
    note_event(r, TW_EVENT_RESUMED, id, at_ns, at_ns, 0);
    PySet_Discard(r->preempted, id);
    step_drop_error(r);
    r->resumed_step = r->steps + 1;
}

typedef void (*note_id)(step_reader *r, PyObject *id, uint64_t at_ns);

/* Calls note with each member of a set of ids. */
static void each_of(step_reader *r, PyObject *ids, uint64_t at_ns, note_id note) {
    PyObject *iterator = PyObject_GetIter(ids), *id;
    while (iterator != NULL && (id = PyIter_Next(iterator)) != NULL) {
        note(r, id, at_ns);
        Py_DECREF(id);
    }
    step_drop_error(r);
    Py_XDECREF(iterator);
}

static void note_preempted(step_reader *r, PyObject *id, uint64_t at_ns) {
    note_event(r, TW_EVENT_PREEMPTED, id, at_ns, at_ns, 0);
    if (PySet_Add(r->preempted, id) < 0) step_drop_error(r);
}

static void read_preempted(step_reader *r, PyObject *scheduler_output, uint64_t at_ns, tw_step_record *out) {
    PyObject *ids = step_read(r, scheduler_output, READ_preempted_req_ids);
    const Py_ssize_t n = ids == Py_None ? 0 : size_of(r, ids);
    out->preempted = count16(n);
    if (n > 0) each_of(r, ids, at_ns, note_preempted);
    Py_XDECREF(ids);
}

/* Requests that never come into a step are let go, and all of them where as many are there: none has a time. */
static void let_gone_go(step_reader *r, PyObject *scheduler, PyObject *waits) {
    if (PyDict_Size(waits) < QUEUED_MOST) return;
    PyObject *here = step_read(r, scheduler, READ_requests), *ids = PyDict_Keys(waits);
    for (Py_ssize_t i = 0; here != NULL && ids != NULL && i < PyList_Size(ids); i++) {
        PyObject *id = PyList_GetItem(ids, i);
        if (PySequence_Contains(here, id) == 0) (void)PyDict_DelItem(waits, id);
        step_drop_error(r);
    }
    if (PyDict_Size(waits) >= QUEUED_MOST) PyDict_Clear(waits);
    Py_XDECREF(here);
    Py_XDECREF(ids);
}

static void note_since(step_reader *r, PyObject *scheduler, PyObject *waits, PyObject *id, uint64_t now_ns) {
    PyObject *at = PyLong_FromUnsignedLongLong(now_ns);
    if (id != NULL && at != NULL && PyDict_SetItem(waits, id, at) < 0) step_drop_error(r);
    Py_XDECREF(at);
    let_gone_go(r, scheduler, waits);
}

void step_note_queued(step_reader *r, PyObject *scheduler, PyObject *request, uint64_t now_ns) {
    PyObject *id = step_read(r, request, READ_request_id);
    note_since(r, scheduler, r->queued, id, now_ns);
    Py_XDECREF(id);
}

/* The wait of a new request ends. */
static void note_scheduled(step_reader *r, PyObject *id, uint64_t at_ns) {
    uint64_t since_ns;
    if (__builtin_expect(r->kv_any, 0)) end_kv_wait(r, id, at_ns);
    if (take_since(r, r->queued, id, &since_ns))
        note_event(r, TW_EVENT_QUEUED, id, since_ns, at_ns, (uint64_t)PyDict_Size(r->queued));
}

/* ---- remote KV ---- */

static void begin_kv_wait(step_reader *r, PyObject *scheduler, PyObject *id, uint64_t now_ns) {
    note_since(r, scheduler, r->kv_waits, id, now_ns);
    r->kv_any = true;
}

void step_note_kv_matched(step_reader *r, PyObject *scheduler, PyObject *request, PyObject *matched, uint64_t now_ns) {
    Py_CLEAR(r->kv_asked);
    if (!PyTuple_Check(matched) || PyTuple_Size(matched) != 2) return;
    PyObject *tokens = PyTuple_GetItem(matched, 0), *id = step_read(r, request, READ_request_id);
    if (id == NULL) return;
    if (tokens != Py_None) {
        if (r->kv_any) end_kv_wait(r, id, now_ns);
        if (PyObject_IsTrue(PyTuple_GetItem(matched, 1)) == 1) r->kv_asked = Py_NewRef(id);
        step_drop_error(r);
    } else if (PyDict_GetItemWithError(r->kv_waits, id) == NULL) {
        step_drop_error(r);
        begin_kv_wait(r, scheduler, id, now_ns);
    }
    Py_DECREF(id);
}

void step_note_kv_loads(step_reader *r, PyObject *scheduler, PyObject *request, PyObject *tokens, uint64_t now_ns) {
    if (r->kv_asked == NULL) return;
    PyObject *id = step_read(r, request, READ_request_id);
    const bool loads = id != NULL && number(r, tokens) > 0 && PyObject_RichCompareBool(id, r->kv_asked, Py_EQ) == 1;
    step_drop_error(r);
    if (loads) begin_kv_wait(r, scheduler, id, now_ns);
    Py_CLEAR(r->kv_asked);
    Py_XDECREF(id);
}

/* Requests whose KV is there. */
static void read_kv_received(step_reader *r, PyObject *model_output, uint64_t at_ns) {
    PyObject *connector = step_read(r, model_output, READ_kv_connector_output);
    PyObject *ids = step_read(r, connector, READ_finished_recving);
    if (ids != NULL && ids != Py_None) each_of(r, ids, at_ns, end_kv_wait);
    Py_XDECREF(connector);
    Py_XDECREF(ids);
}

/* ---- prefill ---- */

typedef struct prefill {
    int64_t requests, tokens, most;
    PyObject *longest;       /* the id of the one with the most, a new reference */
} prefill;

static void add_prefill(prefill *p, PyObject *id, int64_t tokens) {
    p->requests++;
    p->tokens += tokens;
    if (tokens <= p->most) return;
    p->most = tokens;
    Py_XDECREF(p->longest);
    p->longest = Py_NewRef(id);
}

/* New requests; one that was preempted is computed again: vLLM's second model runner hands it over as a new one. */
static void read_new(step_reader *r, PyObject *new, PyObject *scheduled, uint64_t at_ns, prefill *p) {
    for (Py_ssize_t i = 0; i < PyList_Size(new); i++) {
        PyObject *id = step_read(r, PyList_GetItem(new, i), READ_req_id);
        const int was_preempted = id != NULL && PySet_Contains(r->preempted, id) > 0;
        step_drop_error(r);
        if (was_preempted) note_resumed(r, id, at_ns);
        else if (id != NULL) {
            note_scheduled(r, id, at_ns);
            add_prefill(p, id, tokens_of(r, scheduled, id));
        }
        Py_XDECREF(id);
    }
}

/* Requests that have not made a token go on with their prefill: only those are looked up. false: it is not known. */
static bool read_continued(step_reader *r, PyObject *cached, PyObject *scheduled, prefill *p) {
    PyObject *made = step_read(r, cached, READ_num_output_tokens), *ids = step_read(r, cached, READ_req_ids);
    const bool known = made != NULL && ids != NULL && PyList_Check(made) && PyList_Check(ids);
    const Py_ssize_t n = known ? (Py_ssize_t)least((uint64_t)PyList_Size(made), (uint64_t)PyList_Size(ids)) : 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyList_GetItem(made, i) != r->zero) continue; /* small ints are single objects */
        PyObject *id = PyList_GetItem(ids, i);
        add_prefill(p, id, tokens_of(r, scheduled, id));
    }
    Py_XDECREF(made);
    Py_XDECREF(ids);
    return known;
}

/* Versions that do not give how many tokens a request has made: one with more than one token in a step is in prefill,
 * or is computed again. */
static void read_longer(step_reader *r, PyObject *scheduled, prefill *p) {
    PyObject *id, *tokens;
    Py_ssize_t at = 0;
    while (PyDict_Next(scheduled, &at, &id, &tokens))
        if (number(r, tokens) > 1) add_prefill(p, id, number(r, tokens));
}

static void read_resumed(step_reader *r, PyObject *cached, uint64_t at_ns) {
    PyObject *resumed = step_read(r, cached, READ_resumed_req_ids), *ids = NULL;
    if (resumed != NULL) {
        if (size_of(r, resumed) > 0) each_of(r, resumed, at_ns, note_resumed);
    } else if ((resumed = step_read(r, cached, READ_resumed_from_preemption)) != NULL && PyList_Check(resumed)) {
        ids = step_read(r, cached, READ_req_ids);
        const bool known = ids != NULL && PyList_Check(ids) && PyList_Size(ids) >= PyList_Size(resumed);
        for (Py_ssize_t i = 0; known && i < PyList_Size(resumed); i++)
            if (PyList_GetItem(resumed, i) == Py_True) note_resumed(r, PyList_GetItem(ids, i), at_ns);
    }
    Py_XDECREF(resumed);
    Py_XDECREF(ids);
}

static int64_t spec_tokens_of(step_reader *r, PyObject *spec) {
    PyObject *id, *tokens;
    Py_ssize_t at = 0;
    int64_t n = 0;
    while (PyDict_Next(spec, &at, &id, &tokens)) n += not_negative(size_of(r, tokens));
    return n;
}

/* What is neither prefill nor the one token of a decoding request was proposed, or is computed again. The proposed are
 * added up only where both may be. */
static void read_rest(step_reader *r, PyObject *spec, int64_t rest, tw_step_record *out) {
    const bool proposes = spec != NULL && PyDict_Check(spec) && PyDict_Size(spec) > 0;
    const bool resumed = r->resumed_step != 0 && r->steps + 1 - r->resumed_step < RESUMED_STEPS;
    const int64_t proposed = !proposes ? 0 : resumed ? spec_tokens_of(r, spec) : rest;
    out->spec_proposed = count16(not_negative(proposed));
    out->recompute_tokens = count32(not_negative(rest - proposed));
}

static void keep_prefill(step_reader *r, const prefill *p, tw_step_record *out) {
    Py_ssize_t len;
    const char *text = text_of(r, p->longest, &len);
    out->prefill_requests = count16(p->requests);
    out->prefill_tokens = count32(p->tokens);
    out->prefill_most = count32(p->most);
    if (text != NULL) out->prefill_name = tw_request_name_write(r->ring, text, (size_t)len);
}

/* A step that is not of decoding alone. */
static __attribute__((noinline)) void read_mixed(step_reader *r, PyObject *output, PyObject *new, PyObject *scheduled,
                                                 uint64_t at_ns, int64_t total, tw_step_record *out) {
    PyObject *cached = step_read(r, output, READ_scheduled_cached_reqs);
    PyObject *spec = step_read(r, output, READ_scheduled_spec_decode_tokens);
    prefill p = {0, 0, 0, NULL};
    read_resumed(r, cached, at_ns);
    if (new != NULL && PyList_Check(new)) read_new(r, new, scheduled, at_ns, &p);
    if (!read_continued(r, cached, scheduled, &p)) {
        Py_CLEAR(p.longest);
        p = (prefill){0, 0, 0, NULL};
        read_longer(r, scheduled, &p);
    }
    keep_prefill(r, &p, out);
    out->decode_requests = count16(out->requests - p.requests);
    read_rest(r, spec, total - p.tokens - (out->requests - p.requests), out);
    out->decode_tokens = count32(total - p.tokens - out->recompute_tokens);
    Py_XDECREF(p.longest);
    Py_XDECREF(cached);
    Py_XDECREF(spec);
}

static void read_unknown(tw_step_record *out) {
    out->requests = out->decode_requests = out->prefill_requests = TW_COUNT_UNKNOWN;
    out->prefill_tokens = out->decode_tokens = TW_TOKENS_UNKNOWN;
}

void step_read_scheduled(step_reader *r, PyObject *output, uint64_t scheduled_ns, tw_step_record *out) {
    PyObject *scheduled = step_read(r, output, READ_num_scheduled_tokens);
    PyObject *counted = step_read(r, output, READ_total_num_scheduled_tokens);
    PyObject *new = step_read(r, output, READ_scheduled_new_reqs);
    const int64_t total = number(r, counted);
    read_preempted(r, output, scheduled_ns, out);
    const bool by_id = scheduled != NULL && PyDict_Check(scheduled);
    const int64_t requests = by_id ? (int64_t)PyDict_Size(scheduled) : number(r, scheduled);
    if (requests < 0 || total < 0) {
        read_unknown(out);
    } else {
        out->requests = out->decode_requests = count16(requests);
        out->decode_tokens = count32(total);
        if (by_id && (total != requests || size_of(r, new) > 0))
            read_mixed(r, output, new, scheduled, scheduled_ns, total, out);
    }
    Py_XDECREF(scheduled);
    Py_XDECREF(counted);
    Py_XDECREF(new);
    r->steps++;
}

/* ---- what the model runner and the scheduler give ---- */

static uint8_t graph_of(step_reader *r, PyObject *stats) {
    PyObject *mode = step_read(r, stats, READ_runtime_mode), *text = mode == NULL ? NULL : PyObject_Str(mode);
    Py_ssize_t len;
    const char *name = text_of(r, text, &len);
    uint8_t graph = TW_GRAPH_UNKNOWN;
    if (name != NULL)
        graph = strstr(name, "FULL") ? TW_GRAPH_FULL : strstr(name, "PIECEWISE") ? TW_GRAPH_PIECEWISE
                : strstr(name, "NONE") ? TW_GRAPH_EAGER : TW_GRAPH_UNKNOWN;
    step_drop_error(r);
    Py_XDECREF(text);
    Py_XDECREF(mode);
    return graph;
}

/* Tokens beyond one a request that were taken. */
static void read_accepted(step_reader *r, PyObject *model_output, tw_step_record *out) {
    PyObject *sampled = step_read(r, model_output, READ_sampled_token_ids);
    int64_t tokens = 0, requests = 0;
    for (Py_ssize_t i = 0; sampled != NULL && PyList_Check(sampled) && i < PyList_Size(sampled); i++) {
        const Py_ssize_t n = size_of(r, PyList_GetItem(sampled, i));
        if (n > 0) tokens += n, requests++;
    }
    out->spec_accepted = sampled != NULL && PyList_Check(sampled) ? count16(tokens - requests) : TW_COUNT_UNKNOWN;
    Py_XDECREF(sampled);
}

void step_read_model_output(step_reader *r, PyObject *model_output, tw_step_record *out) {
    PyObject *stats = step_read(r, model_output, READ_cudagraph_stats);
    if (stats != NULL && stats != Py_None) out->graph = graph_of(r, stats);
    if (out->spec_proposed > 0 && out->spec_proposed != TW_COUNT_UNKNOWN) read_accepted(r, model_output, out);
    if (__builtin_expect(r->kv_any, 0)) read_kv_received(r, model_output, out->done_ns);
    Py_XDECREF(stats);
}

static void read_kv_use(step_reader *r, PyObject *scheduler) {
    PyObject *manager = step_read(r, scheduler, READ_kv_cache_manager), *usage = step_read(r, manager, READ_usage);
    const double use = usage != NULL && PyFloat_Check(usage) ? PyFloat_AsDouble(usage) : -1;
    r->kv_use = use >= 0 && use <= 1 ? (uint16_t)(use * TW_KV_WHOLE) : TW_COUNT_UNKNOWN;
    step_drop_error(r);
    Py_XDECREF(manager);
    Py_XDECREF(usage);
}

void step_read_scheduler(step_reader *r, PyObject *scheduler, tw_step_record *out) {
    out->running = count16(step_size(r, scheduler, READ_running));
    out->waiting = count16(step_size(r, scheduler, READ_waiting));
    const bool preempts = out->preempted != 0 && out->preempted != TW_COUNT_UNKNOWN;
    if (r->steps % KV_EVERY == 0 || preempts) read_kv_use(r, scheduler);
    out->kv_use = r->kv_use;
}

uint64_t step_read_key(step_reader *r, PyObject *outputs) {
    PyObject *client, *first;
    Py_ssize_t at = 0;
    if (outputs == NULL || !PyDict_Check(outputs) || !PyDict_Next(outputs, &at, &client, &first)) return 0;
    PyObject *stamp = step_read(r, first, READ_timestamp);
    const double seconds = stamp != NULL && PyFloat_Check(stamp) ? PyFloat_AsDouble(stamp) : 0;
    Py_XDECREF(stamp);
    return seconds > 0 && seconds < 1e10 ? (uint64_t)(seconds * 1e9 + 0.5) : 0;
}
