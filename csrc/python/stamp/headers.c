/* What the headers of a request and of a response hold. */
#include "python/stamp/headers.h"

#include <string.h>
#include <strings.h>

#include "tailwatch/attribute/engine_id.h"

static int header_is(const char *name, Py_ssize_t len, const char *expected) {
    return (size_t)len == strlen(expected) && strncasecmp(name, expected, (size_t)len) == 0;
}

typedef void (*header_visitor)(void *to, const char *name, Py_ssize_t name_len, const char *value, Py_ssize_t value_len);

/* Calls visit(name, value) for each pair of byte strings in a list or tuple of headers. */
static void visit_headers(PyObject *headers, header_visitor visit, void *to) {
    const int list = headers != NULL && PyList_Check(headers);
    if (!list && (headers == NULL || !PyTuple_Check(headers))) return; /* an iterator is the app's to consume */
    const Py_ssize_t n = list ? PyList_Size(headers) : PyTuple_Size(headers);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *pair = list ? PyList_GetItem(headers, i) : PyTuple_GetItem(headers, i);
        const int tuple = PyTuple_Check(pair);
        if ((!tuple && !PyList_Check(pair)) || (tuple ? PyTuple_Size(pair) : PyList_Size(pair)) != 2) continue;
        PyObject *name = tuple ? PyTuple_GetItem(pair, 0) : PyList_GetItem(pair, 0);
        PyObject *value = tuple ? PyTuple_GetItem(pair, 1) : PyList_GetItem(pair, 1);
        char *name_text, *value_text;
        Py_ssize_t name_len, value_len;
        if (!PyBytes_Check(name) || !PyBytes_Check(value)) continue;
        PyBytes_AsStringAndSize(name, &name_text, &name_len);
        PyBytes_AsStringAndSize(value, &value_text, &value_len);
        visit(to, name_text, name_len, value_text, value_len);
    }
}

/* Lowercase hexadecimal digits, as W3C's trace context has them. */
static int is_hex(const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f'))) return 0;
    return 1;
}

static int is_id(const char *text, size_t len) {
    size_t zeros = 0;
    while (zeros < len && text[zeros] == '0') zeros++;
    return zeros < len && is_hex(text, len);
}

enum { VERSION = 0, TRACE_ID = 3, PARENT_ID = 36, FLAGS = 53, TRACEPARENT = 55, TRACE_DIGITS = 32 };

/* "00-TRACE-PARENT-FLAGS"; a later version may go on after another dash. Version ff is none. */
static int is_traceparent(const char *text, Py_ssize_t len) {
    if (len < TRACEPARENT || text[TRACE_ID - 1] != '-' || text[PARENT_ID - 1] != '-' || text[FLAGS - 1] != '-') return 0;
    if (!is_hex(text + VERSION, 2) || memcmp(text, "ff", 2) == 0) return 0;
    if (len > TRACEPARENT && (memcmp(text, "00", 2) == 0 || text[TRACEPARENT] != '-')) return 0;
    return is_id(text + TRACE_ID, TRACE_DIGITS) && is_id(text + PARENT_ID, 16) && is_hex(text + FLAGS, 2);
}

/* By the last digit of a traceparent's flags. */
static int is_sampled(char digit) { return strchr("13579bdf", digit) != NULL; }

static void see_identity(void *to, const char *name, Py_ssize_t name_len, const char *value, Py_ssize_t value_len) {
    request_identity *id = to;
    if (header_is(name, name_len, "x-request-id")) {
        id->request = value;
        id->request_len = (size_t)value_len;
    } else if (header_is(name, name_len, "traceparent") && is_traceparent(value, value_len)) {
        id->trace = value + TRACE_ID;
        id->trace_len = TRACE_DIGITS;
        id->sampled = is_sampled(value[TRACEPARENT - 1]);
    } else if (header_is(name, name_len, "x-tailwatch-engine") && id->engine == 0) {
        id->engine = tw_engine_named(value, (size_t)value_len);
    } else if (header_is(name, name_len, "x-data-parallel-rank") && id->rank == 0) { /* vLLM and SGLang obey it */
        id->rank = tw_engine_named(value, (size_t)value_len);
    }
}

void headers_identity(PyObject *headers, request_identity *out) {
    memset(out, 0, sizeof *out);
    visit_headers(headers, see_identity, out);
}

static void see_body_kind(void *to, const char *name, Py_ssize_t name_len, const char *value, Py_ssize_t value_len) {
    static const char *const lines[] = {"application/x-ndjson", "application/ndjson", "application/jsonl",
                                        "application/x-jsonlines", "application/json-lines", "application/stream+json"};
    response_kind *kind = to;
    if (header_is(name, name_len, "content-encoding") && !header_is(value, value_len, "identity")) kind->opaque = 1;
    if (header_is(name, name_len, "content-length")) kind->sized = 1;
    if (!header_is(name, name_len, "content-type")) return;
    Py_ssize_t type = 0;
    while (type < value_len && value[type] != ';' && value[type] != ' ') type++;
    kind->plain = header_is(value, type, "text/plain");
    if (header_is(value, type, "text/event-stream")) kind->framing = TW_FRAMING_SSE, kind->streams = 1;
    if (header_is(value, type, "application/json")) kind->framing = TW_FRAMING_WHOLE;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (header_is(value, type, lines[i])) kind->framing = TW_FRAMING_LINES, kind->streams = 1;
}

void headers_response(PyObject *headers, response_kind *out) {
    *out = (response_kind){.framing = TW_FRAMING_RAW, .plain = 1};
    visit_headers(headers, see_body_kind, out);
}
