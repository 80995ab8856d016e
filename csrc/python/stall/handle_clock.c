#include "python/stall/handle_clock.h"

#include <string.h>

#include "base/text.h"
#include "python/stamp/requests.h"

#define LINKS 16
#define LONGEST 8 /* links from a handle to its code: handle, partial, task's wakeup, task, coroutine */

/* Where an object of a type has the next one on the way to a handle's code: found by looking at one whose next is known. */
typedef struct code_link {
    PyTypeObject *type;
    Py_ssize_t offset, context_at; /* context_at: of a handle; 0: it has none */
    int is_task;
    struct code_link *then; /* of what came next the last time; or NULL */
} code_link;

/* One for the process: written under the GIL. */
static struct {
    handle_clock *first;
    PyTypeObject *queue_type[HANDLE_LOOPS]; /* of a deque that is timed; made once */
    PyCFunction popleft;      /* a deque's */
    lenfunc length;           /* a deque's */
    PyTypeObject *code_type;
    PyObject *request, *by_hand; /* the context variables that have the request; NULL: none is set */
    code_link begin, link[LINKS]; /* begin: before a handle */
    int links;
} handles;

/* ---- from a handle to its code ---- */

/* Not inlined: its loop would be unrolled into the path of each handle. */
static __attribute__((noinline)) code_link *link_of(const PyTypeObject *type) {
    for (int i = 0; i < handles.links; i++)
        if (handles.link[i].type == type) return &handles.link[i];
    return NULL;
}

static code_link *link_after(code_link *l, const PyTypeObject *type) {
    if (l->then == NULL || l->then->type != type) l->then = link_of(type);
    return l->then;
}

/* On the path of each handle. */
#define INLINE static inline __attribute__((always_inline))

/* A borrowed reference; NULL: it is not known. *task: what identifies the task whose step it is; 0: of none. */
INLINE PyObject *code_of(PyObject *op, uint64_t *task) {
    code_link *l = &handles.begin;
    *task = 0;
    for (int i = 0; i <= LONGEST && op != NULL; i++) {
        const PyTypeObject *type = Py_TYPE(op);
        if (type == handles.code_type) return op;
        if ((l = link_after(l, type)) == NULL) return NULL;
        if (l->is_task) *task = (uint64_t)(uintptr_t)op;
        op = *(PyObject **)(void *)((char *)op + l->offset);
    }
    return NULL;
}

/* A borrowed reference; NULL: it is not known. After code_of(). */
static PyObject *context_of(PyObject *handle) {
    const code_link *l = handles.begin.then;
    return l == NULL || l->context_at == 0 ? NULL : *(PyObject **)(void *)((char *)handle + l->context_at);
}

/* Where in an object the other one stands; -1: nowhere. */
static Py_ssize_t offset_of(PyObject *object, PyObject *next) {
    PyObject *size = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__basicsize__");
    const Py_ssize_t bytes = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof next <= bytes; at += sizeof next)
        if (*(PyObject **)(void *)((char *)object + at) == next) return at;
    return -1;
}

static int add_link(PyObject *sample) {
    PyObject *object, *next, *context = Py_None;
    int is_task;
    if (!PyArg_ParseTuple(sample, "OOp|O", &object, &next, &is_task, &context)) return -1;
    const Py_ssize_t offset = offset_of(object, next);
    const Py_ssize_t context_at = context == Py_None || PyErr_Occurred() ? 0 : offset_of(object, context);
    if (PyErr_Occurred()) return -1;
    if (offset < 0 || handles.links == LINKS || link_of(Py_TYPE(object)) != NULL) return 0;
    handles.link[handles.links++] = (code_link){(PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(object)), offset,
        context_at > 0 ? context_at : 0, is_task, NULL};
    return 0;
}

static void set_variable(PyObject **place, PyObject *variable) {
    PyObject *before = *place;
    *place = variable == Py_None ? NULL : Py_NewRef(variable);
    Py_XDECREF(before);
}

/* handle_links(samples, code, request=None, by_hand=None): [(object, next, is_task[, context])]: on the way from a handle
 * to the code that it runs, an object of each type that has the next one; a handle has its context too. request, by_hand:
 * the context variables whose values have a Send as .sender, a Stream as .stream. How many types are known. */
PyObject *core_handle_links(PyObject *op, PyObject *args) {
    PyObject *samples, *code, *request = Py_None, *by_hand = Py_None;
    (void)op;
    if (!PyArg_ParseTuple(args, "O!O|OO", &PyList_Type, &samples, &code, &request, &by_hand)) return NULL;
    set_variable(&handles.request, request);
    set_variable(&handles.by_hand, by_hand);
    handles.code_type = Py_TYPE(code);
    for (Py_ssize_t i = 0; i < PyList_Size(samples); i++)
        if (add_link(PyList_GetItem(samples, i)) < 0) return NULL;
    return PyLong_FromLong(handles.links);
}

/* ---- its name ---- */

static const char *text_of(PyObject *text) { return text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL); }

/* "function  file.py:12" of a code object; 0: it has none. */
static uint32_t name_of(tw_name_table *names, PyObject *code) {
    char name[TW_NAME_TEXT];
    PyObject *function = PyObject_GetAttrString(code, "co_qualname"); /* since 3.11 */
    if (function == NULL) PyErr_Clear(), function = PyObject_GetAttrString(code, "co_name");
    PyObject *file = PyObject_GetAttrString(code, "co_filename");
    PyObject *line = PyObject_GetAttrString(code, "co_firstlineno");
    const char *function_text = text_of(function), *file_text = text_of(file);
    const long number = line == NULL ? 0 : PyLong_AsLong(line);
    const int n = function_text == NULL || file_text == NULL ? 0 : snprintf(name, sizeof name, "%s  %s:%ld",
        function_text, tw_path_end(file_text), number);
    PyErr_Clear();
    Py_XDECREF(function);
    Py_XDECREF(file);
    Py_XDECREF(line);
    return n <= 0 ? 0 : tw_name_intern(names, name, strlen(name));
}

/* ---- its request ---- */

/* An attribute of what a variable has in the context in which the handle ran, a new reference; NULL: it has none. */
static PyObject *held_in(const handle_clock *c, PyObject *variable, const char *attribute) {
    if (variable == NULL || c->context == NULL) return NULL;
    PyObject *value = PyObject_CallMethod(c->context, "get", "O", variable);
    PyObject *held = value == NULL || value == Py_None ? NULL : PyObject_GetAttrString(value, attribute);
    PyErr_Clear();
    Py_XDECREF(value);
    return held;
}

/* The stream of the request for which the handle ran, a new reference; NULL: of none of this core's that counts. */
static StreamObject *stream_of(const handle_clock *c) {
    if (c->opened != NULL) return (StreamObject *)Py_NewRef((PyObject *)c->opened);
    PyObject *sender = held_in(c, handles.request, "sender");
    StreamObject *stream = sender == NULL ? NULL : sent_stream(c->loop->core, sender);
    Py_XDECREF(sender);
    if (stream != NULL) return stream;
    PyObject *by_hand = held_in(c, handles.by_hand, "stream");
    stream = by_hand == NULL ? NULL : counted_stream(c->loop->core, by_hand);
    Py_XDECREF(by_hand);
    return stream;
}

/* ---- the clock ---- */

/* A handle that ran for long: a span with its name, task and request, and a point at its end, which divides what it used
 * from what others used. At most one point a millisecond, but one after each slow handle. */
static __attribute__((noinline)) void note(const handle_clock *c, uint64_t now_ns) {
    tw_host *host = &c->loop->core->segment->host;
    const uint32_t name = c->code == NULL ? 0 : name_of(&host->names, c->code), track = c->loop->number;
    StreamObject *stream = stream_of(c);
    const tw_host_span span = {0, c->since_ns, now_ns, tw_span_what(TW_SPAN_HANDLE, track, TW_MEASURED), name,
        tw_load(&c->loop->track->handle_task), {0, stream == NULL ? 0 : stream->stream.ordinal}};
    tw_span_add(&host->by_handle, &span);
    if (now_ns - c->since_ns > TW_SLOW_NS || now_ns - tw_load(&c->loop->track->point_ns) >= TW_POINT_EVERY_NS)
        tw_host_point_now(host, track);
    if (stream != NULL && now_ns - c->since_ns >= TW_POINT_EVERY_NS)
        tw_stream_worked(&stream->stream, track, c->since_ns, now_ns);
    Py_XDECREF((PyObject *)stream);
}

/* Tasks that take turns run the same code. */
static inline void hold(PyObject **held, PyObject *next) {
    PyObject *before = *held;
    if (before == next) return;
    Py_XINCREF(next);
    *held = next;
    Py_XDECREF(before);
}

INLINE void run_next(handle_clock *c, uint64_t now_ns, PyObject *code, PyObject *context) {
    if (c->since_ns != 0 && now_ns - c->since_ns >= TW_SPAN_LEAST_NS) note(c, now_ns);
    hold(&c->code, code);
    hold(&c->context, context);
}

INLINE void handle_began(handle_clock *c, PyObject *handle) {
    const uint64_t now = tw_now_ns();
    uint64_t task;
    PyObject *code = code_of(handle, &task);
    run_next(c, now, code, context_of(handle));
    c->since_ns = now;
    tw_store(&c->loop->track->handle_task, task);
    tw_store_release(&c->loop->track->handle_since_ns, now);
}

void handle_clock_ended(handle_clock *c, uint64_t now_ns) {
    if (c->since_ns == 0) return;
    if (loop_clock_runs(c->loop)) {
        run_next(c, now_ns, NULL, NULL);
        tw_store(&c->loop->track->handle_since_ns, 0);
    }
    c->since_ns = 0;
}

/* ---- the queue ---- */

INLINE handle_clock *clock_of(const PyObject *queue) {
    handle_clock *c = handles.first;
    while (c != NULL && c->queue != queue) c = c->next;
    return c;
}

static PyObject *timed_popleft(PyObject *queue, PyObject *unused) {
    PyObject *handle = handles.popleft(queue, unused);
    handle_clock *c = handle == NULL ? NULL : clock_of(queue);
    if (c != NULL && loop_clock_runs(c->loop)) handle_began(c, handle);
    return handle;
}

/* ---- uvloop's queue ---- */

/* Whether a request of the process waits for its first token. */
static inline int is_awaited(const handle_clock *c) {
    const tw_segment *g = c->loop->core->segment;
    return tw_load(&g->in_flight) > tw_load(&g->ttft_by_concurrency.running);
}

static PyObject *uv_popleft(PyObject *queue, PyObject *unused) {
    PyObject *handle = handles.popleft(queue, unused);
    handle_clock *c = handle == NULL ? NULL : clock_of(queue);
    if (c == NULL || !loop_clock_runs(c->loop)) return handle;
    if (!c->inside) c->thread = this_thread(); /* the first of a batch: a loop may have run in another one before */
    c->inside = 1;
    if (is_awaited(c)) handle_began(c, handle);
    else if (c->since_ns != 0) handle_clock_ended(c, tw_now_ns());
    if (__builtin_expect(c->opened != NULL, 0)) Py_CLEAR(c->opened); /* by the handle before */
    return handle;
}

/* The last handle of a batch has ended. Where KeyboardInterrupt ended one, the length was not read, and the loop has
 * waited since: how long that one ran is not known. */
static void uv_ended(handle_clock *c) {
    c->inside = 0;
    if (c->since_ns == 0) return;
    const uint64_t now = tw_now_ns();
    if (loop_clock_runs(c->loop) && tw_load(&c->loop->track->wake_ns) > c->since_ns) c->since_ns = now;
    handle_clock_ended(c, now);
    Py_CLEAR(c->opened);
}

static Py_ssize_t uv_length(PyObject *queue) {
    handle_clock *c = clock_of(queue);
    if (c != NULL && c->inside && c->thread == this_thread()) uv_ended(c);
    return handles.length(queue);
}

/* The handle that runs in this thread, if one does and is not timed, is timed from now on: as the stream's own code, until
 * another one is opened in it. */
static void opened(PyObject *stream) {
    const CoreObject *core = ((StreamObject *)stream)->core;
    handle_clock *c = handles.first;
    while (c != NULL && !(c->inside && c->thread == this_thread() && c->loop->core == core)) c = c->next;
    if (c == NULL || (c->since_ns != 0 && c->opened == NULL) || !loop_clock_runs(c->loop)) return;
    const uint64_t now = tw_now_ns();
    StreamObject *before = c->opened;
    handle_clock_ended(c, now);
    c->opened = (StreamObject *)Py_NewRef(stream);
    c->since_ns = now;
    tw_store(&c->loop->track->handle_task, 0);
    tw_store_release(&c->loop->track->handle_since_ns, now);
    Py_XDECREF((PyObject *)before);
}

/* ---- the types of queues ---- */

#define POPLEFT_DOC "Remove and return the leftmost element."
static PyMethodDef methods[HANDLE_LOOPS][2] = {
    {{"popleft", timed_popleft, METH_NOARGS, POPLEFT_DOC}, {NULL, NULL, 0, NULL}},
    {{"popleft", uv_popleft, METH_NOARGS, POPLEFT_DOC}, {NULL, NULL, 0, NULL}}};
#define QUEUE_DOC "A loop's queue of handles that are ready: how long each runs is noted."
static PyType_Slot asyncio_slots[] = {
    {Py_tp_doc, QUEUE_DOC}, {Py_tp_methods, methods[HANDLES_OF_ASYNCIO]}, {0, NULL}};
static PyType_Slot uv_slots[] = {
    {Py_tp_doc, QUEUE_DOC}, {Py_tp_methods, methods[HANDLES_OF_UVLOOP]}, {Py_sq_length, uv_length}, {0, NULL}};
/* As large as a deque, whatever that is: an object of the one is an object of the other. */
static PyType_Spec queue_spec[HANDLE_LOOPS] = {
    {"collections.deque", 0, 0, Py_TPFLAGS_DEFAULT, asyncio_slots},
    {"collections.deque", 0, 0, Py_TPFLAGS_DEFAULT, uv_slots}};

/* A deque's own popleft() as a C function; NULL: it is not one. */
static PyCFunction popleft_of(PyObject *queue) {
    PyObject *bound = PyObject_GetAttrString(queue, "popleft");
    const int is_plain = bound != NULL && PyCFunction_Check(bound) && PyCFunction_GetFlags(bound) == METH_NOARGS;
    const PyCFunction found = is_plain ? PyCFunction_GetFunction(bound) : NULL;
    Py_XDECREF(bound);
    PyErr_Clear();
    return found;
}

static int make_type(enum handle_loop kind, PyObject *queue) {
    PyTypeObject **type = &handles.queue_type[kind];
    if (*type != NULL) return 0;
    if ((handles.popleft = popleft_of(queue)) == NULL) return -1;
    handles.length = (lenfunc)PyType_GetSlot(Py_TYPE(queue), Py_sq_length);
    PyObject *bases = PyTuple_Pack(1, (PyObject *)Py_TYPE(queue));
    *type = bases == NULL ? NULL : (PyTypeObject *)PyType_FromSpecWithBases(&queue_spec[kind], bases);
    Py_XDECREF(bases);
    return *type == NULL ? -1 : 0;
}

/* An object of a type that is made at run time has a reference to it. */
static void set_type(PyObject *op, PyTypeObject *type) {
    PyTypeObject *before = Py_TYPE(op);
    if (PyType_GetFlags(type) & Py_TPFLAGS_HEAPTYPE) Py_INCREF((PyObject *)type);
    Py_SET_TYPE(op, type);
    if (PyType_GetFlags(before) & Py_TPFLAGS_HEAPTYPE) Py_DECREF((PyObject *)before);
}

static int is_deque(PyObject *queue) {
    PyObject *module = PyImport_ImportModule("collections");
    PyObject *deque = module == NULL ? NULL : PyObject_GetAttrString(module, "deque");
    const int is = (PyObject *)Py_TYPE(queue) == deque;
    Py_XDECREF(module);
    Py_XDECREF(deque);
    return deque == NULL ? -1 : is;
}

int handle_clock_begin(handle_clock *c, const loop_clock *loop, enum handle_loop kind, PyObject *queue) {
    const int is = c->queue != NULL || !loop_clock_runs(loop) ? 0 : is_deque(queue);
    if (is <= 0) return is;
    if (make_type(kind, queue) < 0) return PyErr_Occurred() ? -1 : 0;
    if (kind == HANDLES_OF_UVLOOP) loop->core->streams.opened = opened;
    c->loop = loop;
    c->thread = this_thread();
    c->type = Py_TYPE(queue);
    c->queue = Py_NewRef(queue);
    c->next = handles.first;
    handles.first = c;
    set_type(queue, handles.queue_type[kind]);
    tw_store(&loop->core->segment->host.facts.knowledge[TW_HOST_HANDLE_CLOCK], (uint64_t)TW_KNOWN + 1);
    return 0;
}

void handle_clock_end(handle_clock *c) {
    handle_clock **place = &handles.first;
    PyObject *queue = c->queue;
    if (queue == NULL) return;
    while (*place != c) place = &(*place)->next;
    *place = c->next;
    c->queue = NULL;
    c->since_ns = 0;
    c->inside = 0;
    for (int kind = 0; kind < HANDLE_LOOPS; kind++)
        if (Py_TYPE(queue) == handles.queue_type[kind]) set_type(queue, c->type);
    Py_CLEAR(c->code);
    Py_CLEAR(c->context);
    Py_CLEAR(c->opened);
    Py_DECREF(queue);
}

void handle_clock_end_of(PyObject *queue) {
    handle_clock *c = clock_of(queue);
    if (c != NULL) handle_clock_end(c);
}
