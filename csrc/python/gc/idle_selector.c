#include "python/gc/idle_selector.h"
#include "python/gc/idle_slots.h"
#include "python/stall/handle_clock.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <time.h>

#define EVENTS 64 /* of one wait, without an allocation */

typedef struct IdleSelectObject {
    PyObject_HEAD
    SlicerObject *slicer;
    PyObject *selector;        /* a weak reference: we are an attribute of it */
    PyObject *select;          /* its class's */
    PyObject *before;          /* the attribute that stood there, or NULL */
    PyObject *keys;            /* of a plain EpollSelector: its dict from descriptor to key, and we do its select(); or NULL */
    int fd;
    loop_clock clock;
    handle_clock handles;
    uint64_t now_ns;           /* read on the way to a wait; 0: it was not */
} IdleSelectObject;

/* What stands in the way of its class's select(), a new reference, or NULL: nothing does. */
static PyObject *attribute_of(PyObject *selector) {
    PyObject *attributes = PyObject_GetAttrString(selector, "__dict__");
    PyObject *before = attributes == NULL ? NULL : PyMapping_GetItemString(attributes, "select");
    PyErr_Clear();
    Py_XDECREF(attributes);
    return before;
}

/* Whether two functions are of one file: one that was put into the class by other code is not. */
static int of_one_file(PyObject *a, PyObject *b) {
    PyObject *code[2] = {PyObject_GetAttrString(a, "__code__"), PyObject_GetAttrString(b, "__code__")};
    PyObject *file[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) file[i] = code[i] == NULL ? NULL : PyObject_GetAttrString(code[i], "co_filename");
    const int same = file[0] != NULL && file[1] != NULL && PyObject_RichCompareBool(file[0], file[1], Py_EQ) == 1;
    for (int i = 0; i < 2; i++) Py_XDECREF(code[i]), Py_XDECREF(file[i]);
    return same;
}

/* The dict of an EpollSelector as the standard library has it; NULL: another selector, or another select(). */
static PyObject *keys_of(PyObject *selector, PyObject *select) {
    PyObject *module = PyImport_ImportModule("selectors");
    PyObject *plain = module == NULL ? NULL : PyObject_GetAttrString(module, "EpollSelector");
    PyObject *base = module == NULL ? NULL : PyObject_GetAttrString(module, "SelectSelector");
    PyObject *other = base == NULL ? NULL : PyObject_GetAttrString(base, "select");
    PyObject *keys = NULL;
    if (other != NULL && (PyObject *)Py_TYPE(selector) == plain && of_one_file(select, other))
        keys = PyObject_GetAttrString(selector, "_fd_to_key");
    if (keys != NULL && !PyDict_CheckExact(keys)) Py_CLEAR(keys);
    PyErr_Clear();
    Py_XDECREF(module);
    Py_XDECREF(plain);
    Py_XDECREF(base);
    Py_XDECREF(other);
    return keys;
}

PyObject *idle_select_new(SlicerObject *slicer, PyObject *selector, int calls_fd) {
    const int fd = PyObject_AsFileDescriptor(selector);
    IdleSelectObject *self = fd < 0 ? NULL : (IdleSelectObject *)PyType_GenericAlloc(slicer->idle_type, 0);
    if (self == NULL) return NULL;
    self->slicer = (SlicerObject *)Py_NewRef((PyObject *)slicer);
    self->fd = fd;
    self->before = attribute_of(selector);
    if ((self->selector = PyWeakref_NewRef(selector, NULL)) != NULL &&
        (self->select = PyObject_GetAttrString((PyObject *)Py_TYPE(selector), "select")) != NULL) {
        self->keys = self->before == NULL ? keys_of(selector, self->select) : NULL;
        loop_clock_begin(&self->clock, slicer->core);
        self->clock.calls_fd = calls_fd;
        return (PyObject *)self;
    }
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* select(timeout=None), one argument however it was given: None, for ever; none of it for 0 and less. */
static PyObject *timeout_of(PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O:select", names, &timeout) ? timeout : NULL;
}

/* One positional argument, as asyncio gives it, is taken as it is. */
static PyObject *timeout_given(PyObject *args, PyObject *kwargs) {
    if (kwargs == NULL && PyTuple_Size(args) == 1) return PyTuple_GetItem(args, 0);
    return timeout_of(args, kwargs);
}

static uint64_t wait_of(PyObject *timeout) {
    if (timeout == Py_None) return UINT64_MAX;
    const double seconds = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) PyErr_Clear();
    return seconds <= 0 ? 0 : seconds > 1e6 ? UINT64_MAX : (uint64_t)(seconds * 1e9);
}

/* ---- an EpollSelector's select() ---- */

/* Milliseconds, rounded up as epoll counts; -1: for ever. false: an exception is set. */
static bool milliseconds_of(PyObject *timeout, int *ms) {
    *ms = -1;
    if (timeout == Py_None) return true;
    const double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1 && PyErr_Occurred()) return false;
    *ms = seconds <= 0 ? 0 : seconds > INT_MAX / 1000 ? INT_MAX : (int)ceil(seconds * 1e3);
    return true;
}

static PyObject *ready_one(PyObject *key, uint32_t event) {
    const long wanted = PyLong_AsLong(PyTuple_GetItem(key, 2));
    const long events = (event & ~(uint32_t)EPOLLIN ? 2 : 0) | (event & ~(uint32_t)EPOLLOUT ? 1 : 0);
    PyObject *number = PyLong_FromLong(events & wanted);
    PyObject *pair = number == NULL ? NULL : PyTuple_Pack(2, key, number);
    Py_XDECREF(number);
    return pair;
}

/* [(key, events), ...], of the descriptors that are registered. */
static PyObject *ready_list(PyObject *keys, const struct epoll_event *events, int n) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < n; i++) {
        PyObject *fd = PyLong_FromLong(events[i].data.fd);
        PyObject *key = fd == NULL ? NULL : PyDict_GetItemWithError(keys, fd);
        PyObject *pair = key == NULL || !PyTuple_Check(key) ? NULL : ready_one(key, events[i].events);
        Py_XDECREF(fd);
        if (PyErr_Occurred() || (pair != NULL && PyList_Append(list, pair) < 0)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    return list;
}

/* One wait, without the GIL. Its clock stops as an event is there: what follows is a wait for the interpreter. */
static int wait_once(IdleSelectObject *self, struct epoll_event *events, int most, int ms, int *error) {
    const loop_clock clock = self->clock; /* another thread may end it meanwhile */
    const int runs = loop_clock_runs(&clock);
    uint64_t woke = 0;
    int n;
    Py_BEGIN_ALLOW_THREADS
    if (runs) loop_clock_waits(&clock, self->now_ns != 0 ? self->now_ns : tw_now_ns());
    self->now_ns = 0;
    n = epoll_wait(self->fd, events, most, ms);
    *error = errno;
    if (runs) {
        loop_clock_wakes(&clock, woke = tw_now_ns());
        loop_clock_events(&clock, events, n, woke);
    }
    Py_END_ALLOW_THREADS
    if (runs) loop_clock_has_gil(&clock, woke, tw_now_ns());
    return n;
}

/* As select.epoll.poll() does: a signal's handler runs, and the rest is waited for. -1: an exception is set. */
static int wait_for_events(IdleSelectObject *self, struct epoll_event *events, int most, int ms) {
    const uint64_t until = ms > 0 ? tw_now_ns() + (uint64_t)ms * TW_NS_PER_MS : 0;
    for (;;) {
        int error;
        const int n = wait_once(self, events, most, ms, &error);
        if (n >= 0) return n;
        errno = error;
        if (error != EINTR) return PyErr_SetFromErrno(PyExc_OSError), -1;
        if (PyErr_CheckSignals() < 0) return -1;
        if (ms <= 0) continue;
        const uint64_t now = tw_now_ns();
        if (now >= until) return 0;
        ms = (int)((until - now + TW_NS_PER_MS - 1) / TW_NS_PER_MS);
    }
}

static PyObject *select_epoll(IdleSelectObject *self, PyObject *timeout) {
    struct epoll_event few[EVENTS], *events = few;
    const Py_ssize_t most = PyDict_Size(self->keys);
    int ms;
    if (!milliseconds_of(timeout, &ms)) return NULL;
    if (most > EVENTS && (events = PyMem_Malloc((size_t)most * sizeof *events)) == NULL) return PyErr_NoMemory();
    const int n = wait_for_events(self, events, (int)most, ms);
    PyObject *ready = n < 0 ? NULL : ready_list(self->keys, events, n);
    if (events != few) PyMem_Free(events);
    return ready;
}

/* ---- any selector's ---- */

static PyObject *select_any(IdleSelectObject *self, PyObject *timeout) {
    if (self->before != NULL) return PyObject_CallFunctionObjArgs(self->before, timeout, NULL);
    PyObject *selector = PyObject_CallNoArgs(self->selector);
    PyObject *events = selector == NULL ? NULL : PyObject_CallFunctionObjArgs(self->select, selector, timeout, NULL);
    Py_XDECREF(selector);
    return events;
}

/* One that is closed has no keys: its descriptor may be another file's. */
static PyObject *ask(IdleSelectObject *self, PyObject *timeout) {
    if (self->keys != NULL && PyDict_Size(self->keys) > 0) return select_epoll(self, timeout);
    const loop_clock clock = self->clock;
    if (!loop_clock_runs(&clock)) return select_any(self, timeout);
    loop_clock_waits(&clock, tw_now_ns());
    PyObject *events = select_any(self, timeout);
    loop_clock_wakes(&clock, tw_now_ns());
    return events;
}

/* Until an event is there, or the time is up: to the nanosecond. What is left after a slice is no whole number of the
 * milliseconds in which epoll counts, and epoll.poll() rounds up. */
static void wait_for(const IdleSelectObject *self, uint64_t left_ns) {
    struct pollfd one = {self->fd, POLLIN, 0};
    const struct timespec left = {(time_t)(left_ns / TW_NS_PER_SECOND), (long)(left_ns % TW_NS_PER_SECOND)};
    const loop_clock clock = self->clock;
    const int runs = loop_clock_runs(&clock);
    Py_BEGIN_ALLOW_THREADS
    if (runs) loop_clock_waits(&clock, tw_now_ns());
    ppoll(&one, 1, &left, NULL);
    if (runs) loop_clock_wakes(&clock, tw_now_ns());
    Py_END_ALLOW_THREADS
}

/* After slices: until when the loop meant to wait. */
static PyObject *wait_on(IdleSelectObject *self, uint64_t until_ns) {
    const uint64_t now_ns = tw_now_ns();
    if (now_ns < until_ns) wait_for(self, until_ns - now_ns);
    PyObject *none = PyLong_FromLong(0);
    PyObject *events = none == NULL ? NULL : ask(self, none);
    Py_XDECREF(none);
    return events;
}

static PyObject *idle_select(PyObject *op, PyObject *args, PyObject *kwargs) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyObject *timeout = timeout_given(args, kwargs);
    if (timeout == NULL) return NULL;
    self->now_ns = self->handles.since_ns != 0 ? tw_now_ns() : 0;
    handle_clock_ended(&self->handles, self->now_ns);
    if (!self->slicer->on) return ask(self, timeout);
    const uint64_t wait_ns = wait_of(timeout), since = tw_now_ns();
    const int swept = idle_slots_wait(self->slicer, self->fd, wait_ns);
    self->now_ns = 0;
    if (wait_ns == 0) return ask(self, timeout);
    PyObject *events = wait_ns == UINT64_MAX || !swept ? ask(self, timeout) : wait_on(self, since + wait_ns);
    tw_pace_wait(&self->slicer->pace, tw_now_ns() - since);
    return events;
}

static int idle_traverse(PyObject *op, visitproc visit, void *arg) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->slicer);
    Py_VISIT(self->select);
    Py_VISIT(self->before);
    Py_VISIT(self->keys);
    Py_VISIT(self->handles.queue);
    return 0;
}

static int idle_clear(PyObject *op) {
    handle_clock_end(&((IdleSelectObject *)op)->handles);
    Py_CLEAR(((IdleSelectObject *)op)->before);
    Py_CLEAR(((IdleSelectObject *)op)->keys);
    return 0;
}

static void idle_dealloc(PyObject *op) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    handle_clock_end(&self->handles);
    loop_clock_end(&self->clock);
    Py_XDECREF((PyObject *)self->slicer);
    Py_XDECREF(self->selector);
    Py_XDECREF(self->select);
    Py_XDECREF(self->before);
    Py_XDECREF(self->keys);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

/* restore(selector): as it was before us. */
static PyObject *idle_restore(PyObject *op, PyObject *selector) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyObject *before = self->before; /* NULL: the attribute goes */
    if (PyObject_SetAttrString(selector, "select", before) < 0) return NULL;
    handle_clock_end(&self->handles);
    loop_clock_end(&self->clock);
    Py_RETURN_NONE;
}

/* time_handles(queue): while the loop is timed. */
static PyObject *idle_time_handles(PyObject *op, PyObject *queue) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    if (handle_clock_begin(&self->handles, &self->clock, HANDLES_OF_ASYNCIO, queue) < 0) return NULL;
    Py_RETURN_NONE;
}

/* untime_handles(queue): of a loop whose selector is not found any more. */
static PyObject *idle_untime_handles(PyObject *unused, PyObject *queue) {
    (void)unused;
    handle_clock_end_of(queue);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"restore", idle_restore, METH_O, "restore(selector, /)\n--\n\nThe selector has its select() as before."},
    {"time_handles", idle_time_handles, METH_O, "time_handles(queue, /)\n--\n\nTimes what the loop takes from its queue, if that is a plain deque."},
    {"untime_handles", idle_untime_handles, METH_O | METH_STATIC, "untime_handles(queue, /)\n--\n\nA loop's queue is as before."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A selector's select(), whose waiting is used and timed. Made by Slicer.select()."},
    {Py_tp_call, idle_select},
    {Py_tp_dealloc, idle_dealloc},
    {Py_tp_traverse, idle_traverse},
    {Py_tp_clear, idle_clear},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec tw_idle_select_spec = {"tailwatch._hot.IdleSelector", sizeof(IdleSelectObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
