#include "python/gc/idle_selector.h"
#include "python/gc/idle_slots.h"

#include <poll.h>
#include <time.h>

typedef struct IdleSelectObject {
    PyObject_HEAD
    SweepObject *sweep;
    PyObject *selector;        /* a weak reference: we are an attribute of it */
    PyObject *select;          /* its class's */
    PyObject *before;          /* the attribute that stood there, or NULL */
    int fd;
} IdleSelectObject;

/* What stands in the way of its class's select(), a new reference, or NULL: nothing does. */
static PyObject *attribute_of(PyObject *selector) {
    PyObject *attributes = PyObject_GetAttrString(selector, "__dict__");
    PyObject *before = attributes == NULL ? NULL : PyMapping_GetItemString(attributes, "select");
    PyErr_Clear();
    Py_XDECREF(attributes);
    return before;
}

PyObject *idle_select_new(SweepObject *sweep, PyObject *selector) {
    const int fd = PyObject_AsFileDescriptor(selector);
    IdleSelectObject *self = fd < 0 ? NULL : (IdleSelectObject *)PyType_GenericAlloc(sweep->idle_type, 0);
    if (self == NULL) return NULL;
    self->sweep = (SweepObject *)Py_NewRef((PyObject *)sweep);
    self->fd = fd;
    self->before = attribute_of(selector);
    if ((self->selector = PyWeakref_NewRef(selector, NULL)) != NULL &&
        (self->select = PyObject_GetAttrString((PyObject *)Py_TYPE(selector), "select")) != NULL)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* select(timeout=None), one argument however it was given: None, for ever; none of it for 0 and less. */
static PyObject *timeout_of(PyObject *args, PyObject *kwargs) {
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, "|O:select", names, &timeout) ? timeout : NULL;
}

static uint64_t wait_of(PyObject *timeout) {
    if (timeout == Py_None) return UINT64_MAX;
    const double seconds = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) PyErr_Clear();
    return seconds <= 0 ? 0 : seconds > 1e6 ? UINT64_MAX : (uint64_t)(seconds * 1e9);
}

/* The real one. */
static PyObject *ask(IdleSelectObject *self, PyObject *timeout) {
    if (self->before != NULL) return PyObject_CallFunctionObjArgs(self->before, timeout, NULL);
    PyObject *selector = PyObject_CallNoArgs(self->selector);
    PyObject *events = selector == NULL ? NULL : PyObject_CallFunctionObjArgs(self->select, selector, timeout, NULL);
    Py_XDECREF(selector);
    return events;
}

/* Until an event is there, or the time is up: to the nanosecond. What is left after a slice is no whole number of the
 * milliseconds in which epoll counts, and epoll.poll() rounds up. */
static void wait_for(int fd, uint64_t left_ns) {
    struct pollfd one = {fd, POLLIN, 0};
    const struct timespec left = {(time_t)(left_ns / TW_NS_PER_SECOND), (long)(left_ns % TW_NS_PER_SECOND)};
    Py_BEGIN_ALLOW_THREADS
    ppoll(&one, 1, &left, NULL);
    Py_END_ALLOW_THREADS
}

/* After slices: until when the loop meant to wait. */
static PyObject *wait_on(IdleSelectObject *self, uint64_t until_ns) {
    const uint64_t now_ns = tw_now_ns();
    if (now_ns < until_ns) wait_for(self->fd, until_ns - now_ns);
    PyObject *none = PyLong_FromLong(0);
    PyObject *events = none == NULL ? NULL : ask(self, none);
    Py_XDECREF(none);
    return events;
}

static PyObject *idle_select(PyObject *op, PyObject *args, PyObject *kwargs) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyObject *timeout = timeout_of(args, kwargs);
    if (timeout == NULL) return NULL;
    const uint64_t wait_ns = wait_of(timeout), since = tw_now_ns();
    const int swept = moments_idle(self->sweep, self->fd, wait_ns);
    if (wait_ns == 0) return ask(self, timeout);
    PyObject *events = wait_ns == UINT64_MAX || !swept ? ask(self, timeout) : wait_on(self, since + wait_ns);
    tw_pace_wait(&self->sweep->pace, tw_now_ns() - since);
    return events;
}

static int idle_traverse(PyObject *op, visitproc visit, void *arg) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->sweep);
    Py_VISIT(self->select);
    Py_VISIT(self->before);
    return 0;
}

static int idle_clear(PyObject *op) {
    Py_CLEAR(((IdleSelectObject *)op)->before);
    return 0;
}

static void idle_dealloc(PyObject *op) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_XDECREF((PyObject *)self->sweep);
    Py_XDECREF(self->selector);
    Py_XDECREF(self->select);
    Py_XDECREF(self->before);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

/* give_back(selector): as it was before us. */
static PyObject *idle_give_back(PyObject *op, PyObject *selector) {
    IdleSelectObject *self = (IdleSelectObject *)op;
    PyObject *before = self->before; /* NULL: the attribute goes */
    if (PyObject_SetAttrString(selector, "select", before) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"give_back", idle_give_back, METH_O, "give_back(selector, /)\n--\n\nThe selector has its select() as before."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "A selector's select(), whose waiting is used. Made by Sweep.select()."},
    {Py_tp_call, idle_select},
    {Py_tp_dealloc, idle_dealloc},
    {Py_tp_traverse, idle_traverse},
    {Py_tp_clear, idle_clear},
    {Py_tp_methods, methods},
    {0, NULL}};
PyType_Spec tw_idle_select_spec = {"tailwatch._hot.IdleSelector", sizeof(IdleSelectObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
