#include "hot_idle.h"

#include <poll.h>
#include <time.h>

typedef struct IdlePollObject {
    PyObject_HEAD
    SweepObject *sweep;
    PyObject *epoll, *poll;    /* the real one, and its bound poll() */
    int fd;
} IdlePollObject;

PyObject *idle_poll_new(SweepObject *sweep, PyObject *epoll) {
    PyObject *poll = PyObject_GetAttrString(epoll, "poll");
    const int fd = poll == NULL ? -1 : PyObject_AsFileDescriptor(epoll);
    IdlePollObject *self = fd < 0 ? NULL : (IdlePollObject *)PyType_GenericAlloc(sweep->idle_type, 0);
    if (self == NULL) {
        Py_XDECREF(poll);
        return NULL;
    }
    self->sweep = (SweepObject *)Py_NewRef((PyObject *)sweep);
    self->epoll = Py_NewRef(epoll);
    self->poll = poll;
    self->fd = fd;
    return (PyObject *)self;
}

/* Seconds as epoll.poll() takes them: None and negative ones are for ever. */
static uint64_t wait_of(PyObject *timeout) {
    if (timeout == NULL || timeout == Py_None) return UINT64_MAX;
    const double seconds = PyFloat_AsDouble(timeout);
    if (PyErr_Occurred()) PyErr_Clear();
    return seconds < 0 || seconds > 1e6 ? UINT64_MAX : (uint64_t)(seconds * 1e9);
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

/* What is there now. */
static PyObject *ask(IdlePollObject *self, PyObject *args) {
    PyObject *most = PyTuple_Size(args) > 1 ? PyTuple_GetItem(args, 1) : NULL; /* borrowed */
    PyObject *none = PyFloat_FromDouble(0.0);
    PyObject *events = none == NULL ? NULL : PyObject_CallFunctionObjArgs(self->poll, none, most, NULL);
    Py_XDECREF(none);
    return events;
}

/* After slices: until when the loop meant to wait. */
static PyObject *wait_on(IdlePollObject *self, PyObject *args, uint64_t until_ns) {
    const uint64_t now_ns = tw_now_ns();
    if (now_ns < until_ns) wait_for(self->fd, until_ns - now_ns);
    return ask(self, args);
}

/* poll(timeout=None, maxevents=-1) */
static PyObject *idle_poll(PyObject *op, PyObject *args, PyObject *kwargs) {
    IdlePollObject *self = (IdlePollObject *)op;
    const uint64_t wait_ns = wait_of(PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : NULL);
    const uint64_t since = tw_now_ns();
    const int swept = sweep_idle(self->sweep, self->fd, wait_ns);
    if (wait_ns == 0 || kwargs != NULL) return PyObject_Call(self->poll, args, kwargs);
    PyObject *events = wait_ns == UINT64_MAX || !swept ? PyObject_Call(self->poll, args, NULL) : wait_on(self, args, since + wait_ns);
    tw_pace_wait(&self->sweep->pace, tw_now_ns() - since);
    return events;
}

static PyObject *idle_getattro(PyObject *op, PyObject *name) {
    PyObject *found = PyObject_GenericGetAttr(op, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(((IdlePollObject *)op)->epoll, name);
}

static int idle_traverse(PyObject *op, visitproc visit, void *arg) {
    IdlePollObject *self = (IdlePollObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->sweep);
    Py_VISIT(self->epoll);
    Py_VISIT(self->poll);
    return 0;
}

static void idle_dealloc(PyObject *op) {
    IdlePollObject *self = (IdlePollObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_XDECREF((PyObject *)self->sweep);
    Py_XDECREF(self->epoll);
    Py_XDECREF(self->poll);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF((PyObject *)type);
}

static PyObject *get_epoll(PyObject *op, void *unused) { (void)unused; return Py_NewRef(((IdlePollObject *)op)->epoll); }

static PyMethodDef methods[] = {
    {"poll", (PyCFunction)(void (*)(void))idle_poll, METH_VARARGS | METH_KEYWORDS, "epoll.poll(), and a sweep while nothing comes."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef getters[] = {{"epoll", get_epoll, NULL, "The real one.", NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "An epoll object whose waiting is used. Made by Sweep.poll()."},
    {Py_tp_dealloc, idle_dealloc},
    {Py_tp_traverse, idle_traverse},
    {Py_tp_getattro, idle_getattro},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {0, NULL}};
PyType_Spec tw_idle_poll_spec = {"tailwatch._hot.IdlePoll", sizeof(IdlePollObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
