/* Types of unusual makings for the tests of the slicer: all hold any number of objects, and differ in what they show
 * the collector of these.
 *
 * Each instance has add(object), drop() (all that it holds), items(), untrack() and track(); weak references may point to it.
 * living() counts the instances that there are, of all types: one that is never freed may have no weak reference left.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject **items;
    Py_ssize_t n, room;
    size_t calls; /* of its traverse, where it counts them */
    int plain;    /* was made without what the collector puts before its objects */
    PyObject *weak;
} Odd;

static Py_ssize_t living;

/* ---- what they show ---- */

static int visit_from(Odd *self, Py_ssize_t from, Py_ssize_t step, visitproc visit, void *arg) {
    for (Py_ssize_t i = from; i < self->n; i += step) Py_VISIT(self->items[i]);
    return 0;
}

/* As it should be. */
static int fair_traverse(PyObject *op, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(op));
    return visit_from((Odd *)op, 0, 1, visit, arg);
}

/* Nothing, not even its type. */
static int blind_traverse(PyObject *op, visitproc visit, void *arg) {
    (void)op, (void)visit, (void)arg;
    return 0;
}

/* Each second one: the first, the third. */
static int half_traverse(PyObject *op, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(op));
    return visit_from((Odd *)op, 0, 2, visit, arg);
}

/* Whatever the visitor returns: it is called on, and its result dropped. */
static int deaf_traverse(PyObject *op, visitproc visit, void *arg) {
    const Odd *self = (const Odd *)op;
    (void)visit((PyObject *)Py_TYPE(op), arg);
    for (Py_ssize_t i = 0; i < self->n; i++) (void)visit(self->items[i], arg);
    return 0;
}

/* Goes on although visit() returns that it stop, and returns at last what visit() returned first that was not 0. */
static int late_traverse(PyObject *op, visitproc visit, void *arg) {
    const Odd *self = (const Odd *)op;
    int first = visit((PyObject *)Py_TYPE(op), arg);
    for (Py_ssize_t i = self->n; i-- > 0;) {
        const int now = visit(self->items[i], arg);
        first = first != 0 ? first : now;
    }
    return first;
}

/* Begins elsewhere each time, and goes the other way each second time. */
static int restless_traverse(PyObject *op, visitproc visit, void *arg) {
    Odd *self = (Odd *)op;
    const size_t turn = self->calls++ * 7;
    Py_VISIT(Py_TYPE(op));
    for (Py_ssize_t i = 0; i < self->n; i++) {
        const Py_ssize_t at = (Py_ssize_t)(((size_t)i + turn) % (size_t)self->n);
        Py_VISIT(self->items[turn % 2 == 0 ? at : self->n - 1 - at]);
    }
    return 0;
}

static int odd_drop(PyObject *op) {
    Odd *self = (Odd *)op;
    PyObject **items = self->items;
    const Py_ssize_t n = self->n;
    self->items = NULL;
    self->n = self->room = 0;
    for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(items[i]);
    PyMem_Free(items);
    return 0;
}

/* A legacy finalizer: what has one in a dead cycle goes to gc.garbage. */
static void legacy_del(PyObject *op) { (void)op; }

static int maybe_is_gc(PyObject *op) { return !((Odd *)op)->plain; }

/* ---- what all have ---- */

static PyObject *put_into(Odd *self, PyObject *object) {
    if (self->n == self->room) {
        const Py_ssize_t room = self->room == 0 ? 4 : 2 * self->room;
        PyObject **items = PyMem_Realloc(self->items, (size_t)room * sizeof *items);
        if (items == NULL) return PyErr_NoMemory();
        self->items = items;
        self->room = room;
    }
    self->items[self->n++] = Py_NewRef(object);
    Py_RETURN_NONE;
}

static PyObject *fill(PyObject *op, PyObject *args) {
    living++;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) {
        PyObject *done = put_into((Odd *)op, PyTuple_GET_ITEM(args, i));
        if (done == NULL) {
            Py_DECREF(op);
            return NULL;
        }
        Py_DECREF(done);
    }
    return op;
}

static PyObject *odd_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    PyObject *op = type->tp_alloc(type, 0);
    return op == NULL ? NULL : fill(op, args);
}

static void odd_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_IS_GC(op)) PyObject_GC_UnTrack(op);
    if (((Odd *)op)->weak != NULL) PyObject_ClearWeakRefs(op);
    odd_drop(op);
    living--;
    if (PyObject_IS_GC(op)) PyObject_GC_Del(op);
    else PyObject_Free(op);
    Py_DECREF(type);
}

static PyObject *odd_add(PyObject *op, PyObject *object) { return put_into((Odd *)op, object); }

static PyObject *odd_drop_all(PyObject *op, PyObject *unused) {
    (void)unused;
    odd_drop(op);
    Py_RETURN_NONE;
}

static PyObject *odd_items(PyObject *op, PyObject *unused) {
    const Odd *self = (const Odd *)op;
    (void)unused;
    PyObject *items = PyTuple_New(self->n);
    for (Py_ssize_t i = 0; items != NULL && i < self->n; i++) PyTuple_SET_ITEM(items, i, Py_NewRef(self->items[i]));
    return items;
}

static PyObject *odd_untrack(PyObject *op, PyObject *unused) {
    (void)unused;
    if (PyObject_IS_GC(op)) PyObject_GC_UnTrack(op);
    Py_RETURN_NONE;
}

static PyObject *odd_track(PyObject *op, PyObject *unused) {
    (void)unused;
    if (PyObject_IS_GC(op) && !PyObject_GC_IsTracked(op)) PyObject_GC_Track(op);
    Py_RETURN_NONE;
}

/* Of a type whose objects are the collector's affair or not, one by one: one that is not. */
static PyObject *maybe_plain(PyObject *type, PyObject *args) {
    Odd *self = PyObject_Calloc(1, sizeof *self);
    if (self == NULL) return PyErr_NoMemory();
    PyObject_Init((PyObject *)self, (PyTypeObject *)type);
    self->plain = 1;
    return fill((PyObject *)self, args);
}

#define METHODS \
    {"add", odd_add, METH_O, NULL}, {"drop", odd_drop_all, METH_NOARGS, NULL}, {"items", odd_items, METH_NOARGS, NULL}, \
    {"untrack", odd_untrack, METH_NOARGS, NULL}, {"track", odd_track, METH_NOARGS, NULL}
static PyMethodDef methods[] = {METHODS, {NULL, NULL, 0, NULL}};
static PyMethodDef maybe_methods[] = {METHODS, {"plain", maybe_plain, METH_VARARGS | METH_CLASS, NULL}, {NULL, NULL, 0, NULL}};
static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Odd, weak), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};

/* ---- the types ---- */

#define SHARED {Py_tp_new, odd_new}, {Py_tp_dealloc, odd_dealloc}, {Py_tp_members, members}
#define WITH_METHODS SHARED, {Py_tp_methods, methods}
#define SPEC(name, slots) {"oddtypes." name, sizeof(Odd), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots}

static PyType_Slot fair[] = {WITH_METHODS, {Py_tp_traverse, fair_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot blind[] = {WITH_METHODS, {Py_tp_traverse, blind_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot half[] = {WITH_METHODS, {Py_tp_traverse, half_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot deaf[] = {WITH_METHODS, {Py_tp_traverse, deaf_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot late[] = {WITH_METHODS, {Py_tp_traverse, late_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot restless[] = {WITH_METHODS, {Py_tp_traverse, restless_traverse}, {Py_tp_clear, odd_drop}, {0, NULL}};
static PyType_Slot sticky[] = {WITH_METHODS, {Py_tp_traverse, fair_traverse}, {0, NULL}}; /* no clear */
static PyType_Slot legacy[] = {
    WITH_METHODS, {Py_tp_traverse, fair_traverse}, {Py_tp_clear, odd_drop}, {Py_tp_del, legacy_del}, {0, NULL}};
static PyType_Slot maybe[] = {
    SHARED, {Py_tp_methods, maybe_methods}, {Py_tp_traverse, fair_traverse}, {Py_tp_clear, odd_drop}, {Py_tp_is_gc, maybe_is_gc}, {0, NULL}};
static PyType_Spec specs[] = {
    SPEC("Fair", fair), SPEC("Blind", blind), SPEC("Half", half), SPEC("Deaf", deaf), SPEC("Late", late),
    SPEC("Restless", restless), SPEC("Sticky", sticky), SPEC("Legacy", legacy), SPEC("Maybe", maybe)};

static PyObject *count_living(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyLong_FromSsize_t(living);
}

static PyMethodDef functions[] = {{"living", count_living, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "oddtypes", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_oddtypes(void) {
    PyObject *m = PyModule_Create(&module);
    for (size_t i = 0; m != NULL && i < sizeof specs / sizeof *specs; i++) {
        PyObject *type = PyType_FromSpec(&specs[i]);
        const int failed = type == NULL || PyModule_AddObjectRef(m, specs[i].name + sizeof "oddtypes." - 1, type) < 0;
        Py_XDECREF(type);
        if (failed) Py_CLEAR(m);
    }
    return m;
}
