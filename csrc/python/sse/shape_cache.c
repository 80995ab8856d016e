/* tailwatch._hot.Plans: the plans of one class, by the arguments of the call and most recently used first. It stands in
 * the class, where the interpreter calls it like a function of Python's: without a bound method or a dict of arguments.
 *
 * What no plan fits goes to `learn`, what is due for a check to `check`, what went wrong to `failed`: Python callables
 * that each return the text. What has no text of ours goes to the original. The GIL is the lock: no plan is freed
 * while it is read, and the table is looked at anew after each call out. The plans are those of one serialiser of the
 * class: where it has got another (model_rebuild) they are dropped.
 */
#include "python/sse/shape_writer.h"

#include <string.h>
#include <structmember.h>

#define SHAPES 16
#define CALLS 8          /* sets of arguments */
#define ARGUMENTS 16     /* of one call */
#define PATIENCE 4096    /* misses of a full table until its least used plan makes room */
#define TIRED 32
#define LOOK_EVERY 16

typedef struct plan_call {
    Py_ssize_t n;
    PyObject *keys[ARGUMENTS], *values[ARGUMENTS];
    uint32_t shapes, misses, in_a_row; /* misses: since it became full, or made room */
    PlanObject *plans[SHAPES];
} plan_call;

/* The limited API names these from 3.12 on; the interpreter has had them since 3.8. */
#define HAVE_VECTORCALL (1UL << 11)
#define METHOD_DESCRIPTOR (1UL << 17)
#define ARGUMENTS_OFFSET ((size_t)1 << (8 * sizeof(size_t) - 1))
typedef PyObject *(*vectorcall)(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *names);

/* The keyword arguments of one call: as names and values, and as a dict from when one is needed. */
typedef struct plan_given {
    PyObject *kwargs, *names;
    PyObject *const *values;
} plan_given;

typedef struct PlansObject {
    PyObject_HEAD
    vectorcall call_fast;
    PyObject *attributes; /* __dict__ */
    PyTypeObject *model, *plan_type;
    PyObject *original, *learn, *check, *failed;
    PyObject *method_type; /* types.MethodType */
    PyObject *attribute, *serializer; /* "__pydantic_serializer__", and whose plans these are; NULL before the first */
    uint64_t check_first, check_every;
    bool closed;
    uint32_t calls;
    plan_call *call[CALLS];
} PlansObject;

/* ---- the arguments ---- */

/* Plain values only: None, True, False, int, str. True is not 1. */
static bool is_plain(PyObject *value) {
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyUnicode_CheckExact(value);
}

static bool same_plain(PyObject *a, PyObject *b) {
    if (a == b) return true;
    return Py_IS_TYPE(a, Py_TYPE(b)) && is_plain(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

static bool same_call(const plan_call *call, PyObject *kwargs) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    if (PyDict_Size(kwargs) != call->n) return false;
    for (Py_ssize_t i = 0; i < call->n; i++) {
        if (!PyDict_Next(kwargs, &position, &key, &value)) return false;
        if (!same_plain(key, call->keys[i]) || !same_plain(value, call->values[i])) return false;
    }
    return true;
}

static bool same_names(const plan_call *call, const plan_given *given) {
    if ((given->names == NULL ? 0 : PyTuple_Size(given->names)) != call->n) return false;
    for (Py_ssize_t i = 0; i < call->n; i++) {
        if (!same_plain(PyTuple_GetItem(given->names, i), call->keys[i])) return false;
        if (!same_plain(given->values[i], call->values[i])) return false;
    }
    return true;
}

static plan_call *find_given(PlansObject *self, const plan_given *given) {
    for (uint32_t i = 0; i < self->calls; i++)
        if (given->kwargs == NULL ? same_names(self->call[i], given) : same_call(self->call[i], given->kwargs))
            return self->call[i];
    return NULL;
}

/* Borrowed. NULL: an exception is set. */
static PyObject *dict_of(plan_given *given) {
    if (given->kwargs != NULL) return given->kwargs;
    const Py_ssize_t n = given->names == NULL ? 0 : PyTuple_Size(given->names);
    PyObject *kwargs = PyDict_New();
    for (Py_ssize_t i = 0; i < n && kwargs != NULL; i++)
        if (PyDict_SetItem(kwargs, PyTuple_GetItem(given->names, i), given->values[i]) < 0) Py_CLEAR(kwargs);
    return given->kwargs = kwargs;
}

static plan_call *find_call(PlansObject *self, PyObject *kwargs) {
    for (uint32_t i = 0; i < self->calls; i++)
        if (same_call(self->call[i], kwargs)) return self->call[i];
    return NULL;
}

static bool has_plain_arguments(PyObject *kwargs) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    if (PyDict_Size(kwargs) > ARGUMENTS) return false;
    while (PyDict_Next(kwargs, &position, &key, &value))
        if (!PyUnicode_CheckExact(key) || !is_plain(value)) return false;
    return true;
}

static plan_call *add_call(PlansObject *self, PyObject *kwargs) {
    Py_ssize_t position = 0;
    PyObject *key, *value;
    if (self->calls == CALLS || !has_plain_arguments(kwargs)) return NULL;
    plan_call *call = PyMem_Calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    while (PyDict_Next(kwargs, &position, &key, &value)) {
        call->keys[call->n] = Py_NewRef(key);
        call->values[call->n++] = Py_NewRef(value);
    }
    return self->call[self->calls++] = call;
}

/* ---- a table of shapes ---- */

/* The least recently used, unless it is retired: that must not be learned again. */
static bool make_room(plan_call *call) {
    for (uint32_t i = SHAPES; i-- > 0;) {
        PlanObject *plan = call->plans[i];
        if (plan->retired) continue;
        memmove(&call->plans[i], &call->plans[i + 1], (SHAPES - 1 - i) * sizeof plan);
        call->shapes--;
        call->misses = call->in_a_row = 0;
        Py_DECREF((PyObject *)plan);
        return true;
    }
    return false;
}

static void to_front(plan_call *call, PlanObject *plan) {
    uint32_t i = 0;
    while (i < call->shapes && call->plans[i] != plan) i++;
    if (i == call->shapes) return;
    memmove(&call->plans[1], &call->plans[0], i * sizeof plan);
    call->plans[0] = plan;
}

/* *found: the plan whose shape the object has, held for the caller, with its reading. 0: none has. */
static int find_plan(plan_call *call, PyObject *object, PlanObject **found, tw_plan_reading *reading) {
    for (uint32_t i = 0; i < call->shapes; i++) {
        PlanObject *plan = (PlanObject *)Py_NewRef((PyObject *)call->plans[i]);
        const int fits = plan_read(plan, object, reading);
        if (fits == 1) {
            if (i > 0) to_front(call, plan);
            call->in_a_row = 0;
            *found = plan;
            return 1;
        }
        plan_forget(reading);
        Py_DECREF((PyObject *)plan);
        if (fits < 0) return -1;
    }
    return 0;
}

/* ---- whose plans they are ---- */

/* The calls stay: another call may be reading one of them. */
static void drop_plans_of(plan_call *call) {
    PlanObject *dropped[SHAPES];
    const uint32_t n = call->shapes;
    memcpy(dropped, call->plans, n * sizeof *dropped);
    call->shapes = call->misses = call->in_a_row = 0;
    for (uint32_t i = 0; i < n; i++) Py_DECREF((PyObject *)dropped[i]);
}

static void drop_plans(PlansObject *self) {
    for (uint32_t i = 0; i < self->calls; i++) drop_plans_of(self->call[i]);
}

static void keep_up(PlansObject *self) {
    PyObject *serializer = PyObject_GetAttr((PyObject *)self->model, self->attribute);
    if (serializer == NULL) PyErr_Clear();
    if (serializer != self->serializer) drop_plans(self);
    Py_XDECREF(serializer);
}

/* ---- one object ---- */

static PyObject *call_original(PlansObject *self, PyObject *object, plan_given *given) {
    PyObject *args = dict_of(given) == NULL ? NULL : PyTuple_Pack(1, object);
    PyObject *text = args == NULL ? NULL : PyObject_Call(self->original, args, given->kwargs);
    Py_XDECREF(args);
    return text;
}

/* A text that has no UTF-8 is the original's to refuse. Else what was raised is reported; SystemExit and its like stay. */
static PyObject *recover(PlansObject *self, PyObject *object, plan_given *given) {
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    const int surrogate = PyErr_ExceptionMatches(PyExc_UnicodeEncodeError);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = surrogate ? call_original(self, object, given)
                     : dict_of(given) == NULL
                         ? NULL
                         : PyObject_CallFunctionObjArgs(self->failed, object, given->kwargs, value, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return text;
}

static bool due(const PlansObject *self, PlanObject *plan) {
    plan->uses++;
    if (plan->uses <= self->check_first) return true;
    if (plan->check_at == 0) plan->check_at = self->check_first + self->check_every;
    if (plan->uses < plan->check_at) return false;
    plan->check_at = plan->uses + self->check_every;
    return true;
}

static PyObject *checked(PlansObject *self, PyObject *object, plan_given *given, PlanObject *plan, PyObject *ours) {
    PyObject *kwargs = dict_of(given);
    PyObject *text = kwargs == NULL ? NULL
                                    : PyObject_CallFunctionObjArgs(self->check, object, kwargs, ours, (PyObject *)plan, NULL);
    Py_DECREF(ours);
    return text;
}

static PyObject *render(PlansObject *self, PyObject *object, plan_given *given, PlanObject *plan, tw_plan_reading *reading) {
    const bool written = plan->literal != NULL && !plan->retired;
    PyObject *text = written ? plan_text(plan, reading) : NULL;
    plan_forget(reading);
    if (!written) return call_original(self, object, given);
    if (text == NULL) return recover(self, object, given);
    return due(self, plan) ? checked(self, object, given, plan, text) : text;
}

static bool is_full(const plan_call *call) { return call != NULL && call->shapes == SHAPES; }

/* Sixteen plans that do not fit cost as much as the text: after many misses in a row only now and then one looks. */
static bool is_tired(plan_call *call) {
    if (!is_full(call) || call->in_a_row < TIRED) return false;
    call->misses++;
    return ++call->in_a_row % LOOK_EVERY != 0;
}

/* A full table is reported once, and makes room after much patience. */
static PyObject *miss(PlansObject *self, PyObject *object, plan_given *given, plan_call *call) {
    const bool full = is_full(call), learns = !full || call->misses == 0 || call->misses >= PATIENCE;
    if (full) call->misses++, call->in_a_row++;
    if (!learns) return call_original(self, object, given);
    return dict_of(given) == NULL ? NULL : PyObject_CallFunctionObjArgs(self->learn, object, given->kwargs, NULL);
}

static PyObject *dump(PlansObject *self, PyObject *object, plan_given *given) {
    tw_plan_reading reading;
    PlanObject *plan = NULL;
    if (self->closed || !Py_IS_TYPE(object, self->model)) return call_original(self, object, given);
    keep_up(self);
    plan_call *call = find_given(self, given);
    if (is_tired(call)) return call_original(self, object, given);
    const int found = call == NULL ? 0 : find_plan(call, object, &plan, &reading);
    if (found < 0) return recover(self, object, given);
    if (found == 0) return miss(self, object, given, call);
    PyObject *text = render(self, object, given, plan, &reading);
    Py_DECREF((PyObject *)plan);
    return text;
}

/* ---- as a method of the class ---- */

/* Other arguments by position than the object are the original's to take or to refuse. */
static PyObject *plans_call(PyObject *op, PyObject *args, PyObject *kwargs) {
    PlansObject *self = (PlansObject *)op;
    if (PyTuple_Size(args) != 1) return PyObject_Call(self->original, args, kwargs);
    plan_given given = {kwargs == NULL ? PyDict_New() : Py_NewRef(kwargs), NULL, NULL};
    PyObject *text = given.kwargs == NULL ? NULL : dump(self, PyTuple_GetItem(args, 0), &given);
    Py_XDECREF(given.kwargs);
    return text;
}

static PyObject *call_positional(PyObject *op, PyObject *const *args, Py_ssize_t n, plan_given *given) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; i < n && tuple != NULL; i++) PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    PyObject *text = tuple == NULL || dict_of(given) == NULL ? NULL : plans_call(op, tuple, given->kwargs);
    Py_XDECREF(tuple);
    return text;
}

static PyObject *plans_vectorcall(PyObject *op, PyObject *const *args, size_t nargsf, PyObject *names) {
    const Py_ssize_t n = (Py_ssize_t)(nargsf & ~ARGUMENTS_OFFSET);
    plan_given given = {NULL, names, args + n};
    PyObject *text = n == 1 ? dump((PlansObject *)op, args[0], &given) : call_positional(op, args, n, &given);
    Py_XDECREF(given.kwargs);
    return text;
}

/* Where the method of an object is taken before it is called. */
static PyObject *plans_get(PyObject *op, PyObject *object, PyObject *type) {
    (void)type;
    if (object == NULL || object == Py_None) return Py_NewRef(op);
    return PyObject_CallFunctionObjArgs(((PlansObject *)op)->method_type, op, object, NULL);
}

/* ---- the type ---- */

static PyObject *plans_room(PyObject *op, PyObject *kwargs) {
    PlansObject *self = (PlansObject *)op;
    if (!PyDict_Check(kwargs)) return PyErr_SetString(PyExc_TypeError, "room() takes a dict"), NULL;
    plan_call *call = find_call(self, kwargs);
    if (call == NULL) return PyBool_FromLong(self->calls < CALLS && has_plain_arguments(kwargs));
    return PyBool_FromLong(call->shapes < SHAPES || (call->misses >= PATIENCE && make_room(call)));
}

static PyObject *plans_add(PyObject *op, PyObject *args) {
    PlansObject *self = (PlansObject *)op;
    PyObject *kwargs, *plan, *serializer, *before = self->serializer;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyDict_Type, &kwargs, self->plan_type, &plan, &serializer)) return NULL;
    if (serializer != before) {
        self->serializer = Py_NewRef(serializer);
        drop_plans(self);
        Py_XDECREF(before);
    }
    plan_call *call = find_call(self, kwargs);
    if (call == NULL) call = add_call(self, kwargs);
    if (call == NULL || call->shapes == SHAPES) Py_RETURN_FALSE;
    memmove(&call->plans[1], &call->plans[0], call->shapes * sizeof(PlanObject *));
    call->plans[0] = (PlanObject *)Py_NewRef(plan);
    call->shapes++;
    Py_RETURN_TRUE;
}

static PyObject *plans_close(PyObject *op, PyObject *unused) {
    (void)unused;
    ((PlansObject *)op)->closed = true;
    Py_RETURN_NONE;
}

static int list_plans(const PlansObject *self, PyObject *list) {
    for (uint32_t i = 0; i < self->calls; i++)
        for (uint32_t j = 0; j < self->call[i]->shapes; j++)
            if (PyList_Append(list, (PyObject *)self->call[i]->plans[j]) < 0) return -1;
    return 0;
}

static PyObject *plans_list(PyObject *op, PyObject *unused) {
    (void)unused;
    PyObject *list = PyList_New(0);
    if (list != NULL && list_plans((PlansObject *)op, list) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *find_method_type(void) {
    PyObject *types = PyImport_ImportModule("types");
    PyObject *found = types == NULL ? NULL : PyObject_GetAttrString(types, "MethodType");
    Py_XDECREF(types);
    return found;
}

/* Plans(model, original, learn, check, failed, check_first, check_every) */
static PyObject *plans_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"model", "original", "learn", "check", "failed", "check_first", "check_every", NULL};
    PyObject *model, *original, *learn, *check, *failed;
    unsigned long long first, every;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOOKK", names, &PyType_Type, &model, &original, &learn, &check, &failed,
                                     &first, &every)) return NULL;
    if (every == 0) return PyErr_SetString(PyExc_ValueError, "check_every: expected 1 or more"), NULL;
    const tw_hot_state *state = PyType_GetModuleState(type);
    PlansObject *self = state == NULL ? NULL : (PlansObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    self->plan_type = (PyTypeObject *)Py_NewRef((PyObject *)state->plan_type);
    self->model = (PyTypeObject *)Py_NewRef(model);
    self->original = Py_NewRef(original);
    self->learn = Py_NewRef(learn);
    self->check = Py_NewRef(check);
    self->failed = Py_NewRef(failed);
    self->check_first = first;
    self->check_every = every;
    self->call_fast = plans_vectorcall;
    self->attribute = PyUnicode_InternFromString("__pydantic_serializer__");
    self->method_type = find_method_type();
    if (self->attribute != NULL && self->method_type != NULL) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

/* No tp_clear: a cycle through it goes through a function or a dict too, and those let go. */
static int plans_traverse(PyObject *op, visitproc visit, void *arg) {
    PlansObject *self = (PlansObject *)op;
    Py_VISIT((PyObject *)Py_TYPE(op));
    Py_VISIT((PyObject *)self->model);
    Py_VISIT((PyObject *)self->plan_type);
    Py_VISIT(self->original);
    Py_VISIT(self->learn);
    Py_VISIT(self->check);
    Py_VISIT(self->failed);
    Py_VISIT(self->serializer);
    Py_VISIT(self->attributes);
    for (uint32_t i = 0; i < self->calls; i++)
        for (uint32_t j = 0; j < self->call[i]->shapes; j++) Py_VISIT((PyObject *)self->call[i]->plans[j]);
    return 0;
}

static void release_call(plan_call *call) {
    for (Py_ssize_t i = 0; i < call->n; i++) {
        Py_DECREF(call->keys[i]);
        Py_DECREF(call->values[i]);
    }
    for (uint32_t i = 0; i < call->shapes; i++) Py_DECREF((PyObject *)call->plans[i]);
    PyMem_Free(call);
}

static void plans_dealloc(PyObject *op) {
    PlansObject *self = (PlansObject *)op;
    PyObject_GC_UnTrack(op);
    for (uint32_t i = 0; i < self->calls; i++) release_call(self->call[i]);
    Py_XDECREF((PyObject *)self->model);
    Py_XDECREF((PyObject *)self->plan_type);
    Py_XDECREF(self->original);
    Py_XDECREF(self->learn);
    Py_XDECREF(self->check);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->attribute);
    Py_XDECREF(self->attributes);
    Py_XDECREF(self->method_type);
    Py_XDECREF(self->serializer);
    hot_free(op);
}

static PyMethodDef plans_methods[] = {
    {"room", plans_room, METH_O, "room(kwargs, /)\n--\n\nWhether a plan can be added for these arguments; makes room where it is time."},
    {"add", plans_add, METH_VARARGS, "add(kwargs, plan, serializer, /)\n--\n\nTry it from now on, while that is the class's serialiser. Returns whether there was room."},
    {"close", plans_close, METH_NOARGS, "close()\n--\n\nHand everything to the original from now on."},
    {"plans", plans_list, METH_NOARGS, "plans()\n--\n\nThose there are."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef plans_members[] = {
    {"closed", T_BOOL, offsetof(PlansObject, closed), READONLY, "Whether everything goes to the original."},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(PlansObject, call_fast), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(PlansObject, attributes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};
static PyGetSetDef plans_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot plans_slots[] = {
    {Py_tp_doc, "The plans of one class, tried in turn."},
    {Py_tp_new, plans_new},
    {Py_tp_call, plans_call},
    {Py_tp_descr_get, plans_get},
    {Py_tp_getset, plans_getset},
    {Py_tp_dealloc, plans_dealloc},
    {Py_tp_traverse, plans_traverse},
    {Py_tp_methods, plans_methods},
    {Py_tp_members, plans_members},
    {0, NULL}};
PyType_Spec tw_plans_spec = {"tailwatch._hot.Plans", sizeof(PlansObject), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | HAVE_VECTORCALL | METHOD_DESCRIPTOR, plans_slots};
