/* tailwatch._hot.Plans: the plans of one class, by the arguments of the call and most recently used first.
 *
 * What no plan fits goes to `learn`, what is due for a check to `check`, what went wrong to `failed`: Python callables
 * that each return the text. What has no text of ours goes to the original. The GIL is the lock: no plan is freed
 * while it is read, and the table is looked at anew after each call out.
 */
#include "hot_plan.h"

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

typedef struct PlansObject {
    PyObject_HEAD
    PyTypeObject *model, *plan_type;
    PyObject *original, *learn, *check, *failed;
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

/* ---- one object ---- */

static PyObject *call_original(PlansObject *self, PyObject *object, PyObject *kwargs) {
    PyObject *args = PyTuple_Pack(1, object);
    PyObject *text = args == NULL ? NULL : PyObject_Call(self->original, args, kwargs);
    Py_XDECREF(args);
    return text;
}

/* A text that has no UTF-8 is the original's to refuse. Else what was raised is reported; SystemExit and its like stay. */
static PyObject *recover(PlansObject *self, PyObject *object, PyObject *kwargs) {
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return NULL;
    const int surrogate = PyErr_ExceptionMatches(PyExc_UnicodeEncodeError);
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = surrogate ? call_original(self, object, kwargs)
                               : PyObject_CallFunctionObjArgs(self->failed, object, kwargs, value, NULL);
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

static PyObject *checked(PlansObject *self, PyObject *object, PyObject *kwargs, PlanObject *plan, PyObject *ours) {
    PyObject *text = PyObject_CallFunctionObjArgs(self->check, object, kwargs, ours, (PyObject *)plan, NULL);
    Py_DECREF(ours);
    return text;
}

static PyObject *render(PlansObject *self, PyObject *object, PyObject *kwargs, PlanObject *plan, tw_plan_reading *reading) {
    const bool written = plan->literal != NULL && !plan->retired;
    PyObject *text = written ? plan_text(plan, reading) : NULL;
    plan_forget(reading);
    if (!written) return call_original(self, object, kwargs);
    if (text == NULL) return recover(self, object, kwargs);
    return due(self, plan) ? checked(self, object, kwargs, plan, text) : text;
}

static bool is_full(const plan_call *call) { return call != NULL && call->shapes == SHAPES; }

/* Sixteen plans that do not fit cost as much as the text: after many misses in a row only now and then one looks. */
static bool is_tired(plan_call *call) {
    if (!is_full(call) || call->in_a_row < TIRED) return false;
    call->misses++;
    return ++call->in_a_row % LOOK_EVERY != 0;
}

/* A full table is said to be full once, and makes room after much patience. */
static PyObject *miss(PlansObject *self, PyObject *object, PyObject *kwargs, plan_call *call) {
    const bool full = is_full(call), learns = !full || call->misses == 0 || call->misses >= PATIENCE;
    if (full) call->misses++, call->in_a_row++;
    return learns ? PyObject_CallFunctionObjArgs(self->learn, object, kwargs, NULL) : call_original(self, object, kwargs);
}

static PyObject *plans_render(PyObject *op, PyObject *const *args, Py_ssize_t nargs) {
    PlansObject *self = (PlansObject *)op;
    tw_plan_reading reading;
    PlanObject *plan = NULL;
    if (nargs != 2 || !PyDict_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "render() takes an object and the dict of its keyword arguments");
        return NULL;
    }
    if (self->closed || !Py_IS_TYPE(args[0], self->model)) return call_original(self, args[0], args[1]);
    plan_call *call = find_call(self, args[1]);
    if (is_tired(call)) return call_original(self, args[0], args[1]);
    const int found = call == NULL ? 0 : find_plan(call, args[0], &plan, &reading);
    if (found < 0) return recover(self, args[0], args[1]);
    if (found == 0) return miss(self, args[0], args[1], call);
    PyObject *text = render(self, args[0], args[1], plan, &reading);
    Py_DECREF((PyObject *)plan);
    return text;
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
    PyObject *kwargs, *plan;
    if (!PyArg_ParseTuple(args, "O!O!", &PyDict_Type, &kwargs, self->plan_type, &plan)) return NULL;
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
    return (PyObject *)self;
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
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    for (uint32_t i = 0; i < self->calls; i++) release_call(self->call[i]);
    Py_XDECREF((PyObject *)self->model);
    Py_XDECREF((PyObject *)self->plan_type);
    Py_XDECREF(self->original);
    Py_XDECREF(self->learn);
    Py_XDECREF(self->check);
    Py_XDECREF(self->failed);
    PyObject_GC_Del(op);
    Py_DECREF((PyObject *)type);
}

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function)
static PyMethodDef plans_methods[] = {
    {"render", FASTCALL(plans_render), METH_FASTCALL, "render(object, kwargs, /)\n--\n\nThe text that the original would return."},
    {"room", plans_room, METH_O, "room(kwargs, /)\n--\n\nWhether a plan can be added for these arguments; makes room where it is time."},
    {"add", plans_add, METH_VARARGS, "add(kwargs, plan, /)\n--\n\nTry it from now on. Returns whether there was room."},
    {"close", plans_close, METH_NOARGS, "close()\n--\n\nHand everything to the original from now on."},
    {"plans", plans_list, METH_NOARGS, "plans()\n--\n\nThose there are."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef plans_members[] = {
    {"closed", T_BOOL, offsetof(PlansObject, closed), READONLY, "Whether everything goes to the original."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot plans_slots[] = {
    {Py_tp_doc, "The plans of one class, tried in turn."},
    {Py_tp_new, plans_new},
    {Py_tp_dealloc, plans_dealloc},
    {Py_tp_traverse, plans_traverse},
    {Py_tp_methods, plans_methods},
    {Py_tp_members, plans_members},
    {0, NULL}};
PyType_Spec tw_plans_spec = {"tailwatch._hot.Plans", sizeof(PlansObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plans_slots};
