/* tailwatch._hot.SchedulerSteps: the steps of one engine, from calls of methods of its scheduler.
 *
 * around(what, method, view) makes a callable that calls the method, with all arguments, and returns what it returns. It
 * is to be set as an attribute of the instance. Each call divides the time since the last update; an update that answers
 * a batch writes a record. view: of an engine that is not vLLM, gives what is read in place of arguments and result.
 * That of a send is called before it, within an update: a step is recorded before its tokens leave the process.
 */
#include "python/core.h"
#include "python/membership.h"
#include "python/stamp/engine_streams.h"

#include <string.h>

#include "base/arithmetic.h"

#define SCHEDULED 8 /* batches that are scheduled and not answered */

typedef struct AroundObject AroundObject;

typedef struct SchedulerStepsObject {
    PyObject_HEAD
    CoreObject *core;
    PyObject *scheduler;
    step_reader reader;
    engine_streams streams;
    uint64_t epoch;           /* the core's */
    uint64_t part_ns[TW_STEP_PARTS], paused_ns; /* since the last update */
    uint64_t begin_ns, mark_ns; /* of the step that goes on; until when it is divided. 0: it has not begun */
    tw_step_part next;        /* what goes on since the mark */
    bool idle, after_idle;    /* nothing is left to do; nothing was, before the step that goes on */
    bool stopped;             /* calls are only handed on */
    uint32_t next_scheduled;
    uint64_t answered;        /* requests, since that was asked */
    AroundObject *updating;   /* around the update that goes on; NULL: none does, or its record is written. Borrowed */
    uint64_t update_ns;       /* when it began */
    PyObject *update_args, *update_kwargs; /* of its call. Borrowed */
    uint32_t sent;            /* of the record that is written: tw_sent_mark() */
    const void *dispatched;   /* the latest batch that was, in the step that goes on; NULL: none was. Compared only */
    tw_step_record begun;     /* of that one: what it has to prefill */
    struct { const void *output; uint64_t at_ns; } scheduled[SCHEDULED]; /* compared, never followed */
} SchedulerStepsObject;

typedef enum {
    AROUND_SCHEDULE,
    AROUND_DISPATCH,          /* the batch is handed to the device; where no schedule is seen, it begins a step */
    AROUND_GRAMMAR,
    AROUND_UPDATE,
    AROUND_PROCESS,           /* an update that waits for the device itself, */
    AROUND_RESULT,            /* and what waits in it; where that is not seen, all of the update counts as the wait */
    AROUND_PREPARE,           /* within a schedule: its batch is handed to the device from there on */
    AROUND_ADD,
    AROUND_FINISH,
    AROUND_KV_MATCHED,        /* of its KV connector */
    AROUND_KV_LOADS,
    AROUND_SEND,              /* tokens of the update that goes on leave the process */
    AROUNDS
} around_what;
static const char *const around_names[] = {"schedule", "dispatch", "get_grammar_bitmask", "update_from_output",
                                           "process_result", "await_result", "prepare", "add_request", "finish_requests",
                                           "get_num_new_matched_tokens", "update_state_after_alloc", "send"};
/* What goes on once it is entered, of parts of a step. */
static const tw_step_part around_parts[] = {TW_PART_SCHEDULE, TW_PART_DISPATCH, TW_PART_GRAMMAR, TW_PART_UPDATE,
                                            TW_PART_WAIT, TW_PART_WAIT, TW_PART_DISPATCH};
/* Whether a method is a part of a step. */
static bool is_part(around_what what) { return what < AROUND_ADD; }
static bool is_of_kv(around_what what) { return what == AROUND_KV_MATCHED || what == AROUND_KV_LOADS; }
static bool is_update(around_what what) { return what == AROUND_UPDATE || what == AROUND_PROCESS; }

struct AroundObject {
    PyObject_HEAD
    SchedulerStepsObject *steps;
    PyObject *method, *view;  /* view: NULL: the objects are vLLM's */
    around_what what;
};

/* ---- the time since the last update ---- */

static void begin_step(SchedulerStepsObject *self, uint64_t now) {
    memset(self->part_ns, 0, sizeof self->part_ns);
    self->paused_ns = 0;
    self->begin_ns = self->mark_ns = now;
    self->next = TW_PART_INPUT;
}

/* The time since the mark was that part's, but for pauses of this process. */
static void divide(SchedulerStepsObject *self, uint64_t now) {
    const tw_pause_clock *pauses = &self->core->segment->pause;
    uint64_t paused = 0;
    if (__builtin_expect(!tw_pause_quiet_since(pauses, self->mark_ns), 0)) {
        tw_overlap overlap;
        tw_pause_overlap(pauses, self->mark_ns, now, &overlap);
        for (int cause = 0; cause < TW_CAUSES; cause++) paused += overlap.by_cause[cause];
    }
    self->part_ns[self->next] += since(now - self->mark_ns, paused);
    self->paused_ns += paused;
    self->mark_ns = now;
}

/* A fork child has no engine. */
static bool goes_on(SchedulerStepsObject *self) {
    if (__builtin_expect(*self->core->epoch != self->epoch, 0)) self->stopped = true;
    return !self->stopped;
}

static void enter(SchedulerStepsObject *self, around_what what, uint64_t now) {
    if (what <= AROUND_DISPATCH && (self->begin_ns == 0 || self->idle)) {
        begin_step(self, now);
        self->after_idle = true;
        self->idle = false;
    }
    if (self->begin_ns == 0 || !is_part(what)) return;
    /* a batch that waits behind another one: the time since it was dispatched is the loop's */
    if (what == AROUND_SCHEDULE) self->next = TW_PART_INPUT;
    if (is_update(what) && self->next == TW_PART_DISPATCH) self->next = TW_PART_WAIT;
    divide(self, now);
    self->next = around_parts[what];
}

/* output: None where there is nothing to run. at_ns: from when on it does not wait any more. */
static void leave_schedule(SchedulerStepsObject *self, PyObject *output, uint64_t at_ns, uint64_t now) {
    divide(self, now);
    self->next = TW_PART_DISPATCH;
    if (__builtin_expect(output == Py_None, 0)) {
        self->idle = true;
        return;
    }
    self->scheduled[self->next_scheduled % SCHEDULED].output = output;
    self->scheduled[self->next_scheduled++ % SCHEDULED].at_ns = at_ns;
}

/* When a batch was scheduled; its update's begin where that is not known. */
static uint64_t scheduled_at(SchedulerStepsObject *self, PyObject *output, uint64_t otherwise) {
    for (int i = 0; i < SCHEDULED; i++)
        if (self->scheduled[i].output == output) {
            self->scheduled[i].output = NULL;
            return self->scheduled[i].at_ns;
        }
    return otherwise;
}

/* ---- a record ---- */

static uint32_t units(uint64_t ns) { return (uint32_t)least(ns / TW_OFFSET_UNIT_NS, UINT32_MAX); }

/* Argument number at of a call, or the one of that name; NULL: not given. Borrowed. */
static PyObject *argument(PyObject *args, PyObject *kwargs, Py_ssize_t at, const char *name) {
    if (PyTuple_Size(args) > at) return PyTuple_GetItem(args, at);
    return kwargs == NULL ? NULL : PyDict_GetItemString(kwargs, name);
}

/* What an update had and gave, as vLLM has it; NULL: not known. Borrowed. */
typedef struct answered {
    PyObject *output, *model_output, *outputs;
    uint64_t key_ns;          /* where the outputs have no stamp */
} answered;

/* What only engines with views have: what was sent, and what was begun and is not answered. */
static __attribute__((noinline)) void add_viewed(const SchedulerStepsObject *self, const PyObject *output,
                                                 tw_step_record *step) {
    step->sent = self->sent;
    if (self->dispatched == NULL || self->dispatched == output) return;
    step->next_prefill_tokens = self->begun.next_prefill_tokens;
    step->next_prefill_name = self->begun.next_prefill_name;
}

static void leave_update(SchedulerStepsObject *self, const answered *a, uint64_t update_ns, uint64_t now) {
    PyObject *output = a->output;
    tw_step_record step = {.update_ns = update_ns, .done_ns = now};
    step.key_ns = step_read_key(&self->reader, a->outputs);
    if (__builtin_expect(step.key_ns == 0, 0)) step.key_ns = a->key_ns;
    step_read_scheduled(&self->reader, output, scheduled_at(self, output, update_ns), &step);
    step_read_model_output(&self->reader, a->model_output, &step);
    step_read_scheduler(&self->reader, self->scheduler, &step);
    divide(self, now);
    const bool ran = step.requests != 0;
    if (ran) {
        for (int i = 0; i < TW_STEP_PARTS; i++) step.part[i] = units(self->part_ns[i]);
        step.paused = units(self->paused_ns);
        if (self->after_idle) step.flags |= TW_STEP_AFTER_IDLE;
        if (__builtin_expect(a->key_ns != 0, 0)) add_viewed(self, output, &step);
        tw_step_write(self->reader.ring, &step);
        tw_engine_sums_count(&self->core->segment->engine, &step);
        self->answered += step.requests == TW_COUNT_UNKNOWN ? 1 : step.requests;
        begin_step(self, now);
        self->after_idle = false;
    }
    engine_streams_answered(&self->streams, &self->reader, a->outputs, step.key_ns, now);
    self->next = TW_PART_INPUT;
    self->idle = step.running == 0 && step.waiting == 0;
}

/* ---- calls ---- */

static void note_added(SchedulerStepsObject *self, PyObject *request, uint64_t now) {
    step_note_queued(&self->reader, self->scheduler, request, now);
    engine_streams_queued(&self->streams, &self->reader, self->scheduler, request, now);
}

static void leave_rest(AroundObject *self, PyObject *batch, uint64_t entered, uint64_t now) {
    SchedulerStepsObject *steps = self->steps;
    if (self->what <= AROUND_DISPATCH) {
        leave_schedule(steps, batch, self->what == AROUND_DISPATCH ? entered : now, now);
        return;
    }
    divide(steps, now);
    if (self->what != AROUND_PREPARE) steps->next = self->what == AROUND_GRAMMAR ? TW_PART_WAIT : TW_PART_UPDATE;
}

/* Whether the call hands a batch to the device, by itself or by what was prepared in it. */
static bool dispatches(const AroundObject *self) {
    return self->what == AROUND_DISPATCH || (self->what == AROUND_SCHEDULE && self->steps->next == TW_PART_DISPATCH);
}

static void leave_request(AroundObject *self, PyObject *seen, uint64_t now) {
    SchedulerStepsObject *steps = self->steps;
    if (self->what == AROUND_ADD) note_added(steps, seen, now);
    else engine_streams_finished(&steps->streams, &steps->reader, seen, now);
}

/* What its KV connector has of a request; blocks for that. */
static __attribute__((noinline)) void leave_kv(AroundObject *self, PyObject *args, PyObject *kwargs, PyObject *result,
                                               uint64_t now) {
    step_reader *r = &self->steps->reader;
    PyObject *const scheduler = self->steps->scheduler, *const request = argument(args, kwargs, 0, "request");
    if (self->what == AROUND_KV_MATCHED) step_note_kv_matched(r, scheduler, request, result, now);
    else step_note_kv_loads(r, scheduler, request, argument(args, kwargs, 2, "num_external_tokens"), now);
}

/* The objects are vLLM's. */
static void leave(AroundObject *self, PyObject *args, PyObject *kwargs, PyObject *result, uint64_t entered,
                  uint64_t now) {
    if (is_update(self->what)) {
        const answered a = {argument(args, kwargs, 0, "scheduler_output"),
                            argument(args, kwargs, 1, "model_runner_output"), result, 0};
        leave_update(self->steps, &a, entered, now);
    } else if (is_part(self->what)) {
        leave_rest(self, result, entered, now);
    } else if (is_of_kv(self->what)) {
        leave_kv(self, args, kwargs, result, now);
    } else {
        leave_request(self, argument(args, kwargs, 0, self->what == AROUND_ADD ? "request" : "request_ids"), now);
    }
}

/* Another engine's: what its view gives stands for them. None, also where it raised: there is nothing to read. */
static __attribute__((noinline)) void leave_viewed(AroundObject *self, PyObject *args, PyObject *kwargs,
                                                   PyObject *result, uint64_t entered, uint64_t now) {
    PyObject *seen = PyObject_CallFunctionObjArgs(self->view, args, kwargs == NULL ? Py_None : kwargs, result, NULL);
    if (seen == NULL) {
        step_drop_error(&self->steps->reader);
        seen = Py_NewRef(Py_None);
    }
    if (is_update(self->what)) {
        answered a = {.key_ns = now};
        if (PyTuple_Check(seen) && PyTuple_Size(seen) == 3)
            a = (answered){PyTuple_GetItem(seen, 0), PyTuple_GetItem(seen, 1), PyTuple_GetItem(seen, 2), now};
        leave_update(self->steps, &a, entered, now);
        self->steps->dispatched = NULL;
    } else if (is_part(self->what)) {
        const bool is_dispatched = dispatches(self);
        leave_rest(self, seen, entered, now);
        if (is_dispatched) {
            self->steps->dispatched = seen;
            step_read_next(&self->steps->reader, seen, &self->steps->begun);
        }
    } else if (seen != Py_None) {
        leave_request(self, seen, now);
    }
    Py_DECREF(seen);
}

static bool is_before_its_first(const AroundObject *self) { return is_part(self->what) && self->steps->begin_ns == 0; }

/* Before a send: what is in it, of the update that goes on. */
static PyObject *call_send(AroundObject *self, PyObject *args, PyObject *kwargs, bool counts) {
    step_reader *reader = &self->steps->reader;
    if (counts && self->steps->updating != NULL) {
        PyObject *given = kwargs == NULL ? Py_None : kwargs;
        PyObject *seen = PyObject_CallFunctionObjArgs(self->view, args, given, Py_None, NULL);
        if (seen == NULL) step_drop_error(reader);
        Py_XDECREF(seen);
    }
    PyObject *result = PyObject_Call(self->method, args, kwargs);
    if (result != NULL && step_reader_raises(reader)) Py_CLEAR(result);
    return result;
}

/* The method of another engine. Where end_update() is called in an update, its step is recorded by then. */
static __attribute__((noinline)) PyObject *call_viewed(AroundObject *self, PyObject *args, PyObject *kwargs, bool counts,
                                                       uint64_t entered) {
    SchedulerStepsObject *steps = self->steps;
    AroundObject *const outer = steps->updating;
    PyObject *const outer_args = steps->update_args, *const outer_kwargs = steps->update_kwargs;
    if (self->what == AROUND_SEND) return call_send(self, args, kwargs, counts);
    if (counts && is_update(self->what)) {
        steps->updating = self;
        steps->update_ns = entered;
        steps->update_args = args;
        steps->update_kwargs = kwargs;
    }
    PyObject *result = PyObject_Call(self->method, args, kwargs);
    const bool ended = counts && is_update(self->what) && steps->updating != self;
    steps->updating = outer;
    steps->update_args = outer_args;
    steps->update_kwargs = outer_kwargs;
    if (result == NULL || !counts || is_before_its_first(self)) return result;
    if (!ended) leave_viewed(self, args, kwargs, result, entered, tw_now_ns());
    if (step_reader_raises(&steps->reader)) Py_CLEAR(result);
    return result;
}

/* What a signal handler raised while we read is the caller's to see. */
static PyObject *around_call(PyObject *op, PyObject *args, PyObject *kwargs) {
    AroundObject *self = (AroundObject *)op;
    const bool counts = goes_on(self->steps);
    const uint64_t entered = counts ? tw_now_ns() : 0;
    if (counts) enter(self->steps, self->what, entered);
    if (__builtin_expect(self->view != NULL, 0)) return call_viewed(self, args, kwargs, counts, entered);
    PyObject *result = PyObject_Call(self->method, args, kwargs);
    if (result == NULL || !counts || is_before_its_first(self)) return result;
    leave(self, args, kwargs, result, entered, tw_now_ns());
    if (__builtin_expect(step_reader_raises(&self->steps->reader), 0)) Py_CLEAR(result);
    return result;
}

/* What is not ours is the method's. */
static PyObject *around_getattro(PyObject *op, PyObject *name) {
    PyObject *value = PyObject_GenericGetAttr(op, name);
    if (value != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return value;
    PyErr_Clear();
    return PyObject_GetAttr(((AroundObject *)op)->method, name);
}

static PyObject *around_wrapped(PyObject *op, void *unused) {
    (void)unused;
    return Py_NewRef(((AroundObject *)op)->method);
}

static int around_traverse(PyObject *op, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)((AroundObject *)op)->steps);
    Py_VISIT(((AroundObject *)op)->method);
    Py_VISIT(((AroundObject *)op)->view);
    return 0;
}

static int around_clear(PyObject *op) {
    Py_CLEAR(((AroundObject *)op)->method);
    Py_CLEAR(((AroundObject *)op)->view);
    return 0;
}

static void around_dealloc(PyObject *op) {
    AroundObject *self = (AroundObject *)op;
    PyObject_GC_UnTrack(op);
    Py_CLEAR(self->method);
    Py_CLEAR(self->view);
    Py_XDECREF((PyObject *)self->steps);
    hot_free(op);
}

/* ---- the type ---- */

/* SchedulerSteps(core, scheduler, model) */
static PyObject *steps_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    const tw_hot_state *state = PyType_GetModuleState(type);
    PyObject *core, *scheduler, *model;
    if (state == NULL || kwargs != NULL) return NULL;
    if (!PyArg_ParseTuple(args, "O!OU", state->core_type, &core, &scheduler, &model)) return NULL;
    SchedulerStepsObject *self = (SchedulerStepsObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    self->core = (CoreObject *)Py_NewRef(core);
    self->scheduler = Py_NewRef(scheduler);
    self->epoch = *self->core->epoch;
    if (step_reader_init(&self->reader, &self->core->segment->step_ring) < 0 ||
        engine_streams_init(&self->streams, self->core, model) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    engine_streams_adopt(&self->streams, &self->reader, self->scheduler, tw_now_ns());
    return (PyObject *)self;
}

/* around(what, method, view=None): what as in around_names. */
static PyObject *steps_around(PyObject *op, PyObject *args) {
    PyObject *method, *view = Py_None;
    const char *name;
    if (!PyArg_ParseTuple(args, "sO|O", &name, &method, &view)) return NULL;
    const tw_hot_state *state = PyType_GetModuleState(Py_TYPE(op));
    int what = 0;
    while (what < AROUNDS && strcmp(name, around_names[what]) != 0) what++;
    if (what == AROUNDS || !PyCallable_Check(method))
        return PyErr_Format(PyExc_ValueError, "around: found no method of a scheduler: %s", name);
    AroundObject *around = state == NULL ? NULL : (AroundObject *)PyType_GenericAlloc(state->around_type, 0);
    if (around == NULL) return NULL;
    around->steps = (SchedulerStepsObject *)Py_NewRef(op);
    around->method = Py_NewRef(method);
    around->view = view == Py_None ? NULL : Py_NewRef(view);
    around->what = (around_what)what;
    return (PyObject *)around;
}

/* compiled(kernel, from_ns, to_ns) */
static PyObject *steps_compiled(PyObject *op, PyObject *args) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    const char *kernel;
    Py_ssize_t len;
    unsigned long long from_ns, to_ns;
    if (!PyArg_ParseTuple(args, "s#KK", &kernel, &len, &from_ns, &to_ns)) return NULL;
    if (!goes_on(self)) Py_RETURN_NONE;
    tw_step_ring *ring = self->reader.ring;
    tw_step_event_write(ring, TW_EVENT_COMPILED, 0, from_ns, to_ns, tw_request_name_write(ring, kernel, (size_t)len));
    Py_RETURN_NONE;
}

static PyObject *steps_stop(PyObject *op, PyObject *unused) {
    (void)unused;
    ((SchedulerStepsObject *)op)->stopped = true;
    PyDict_Clear(((SchedulerStepsObject *)op)->streams.open);
    Py_RETURN_NONE;
}

/* What the update answers is known: its record is written now, and what follows in it is the next step's. request_id,
 * tokens: see tw_step_sent(). */
static PyObject *steps_end_update(PyObject *op, PyObject *args) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    AroundObject *around = self->updating;
    const char *request = NULL;
    Py_ssize_t len = 0;
    unsigned int tokens = 0;
    if (!PyArg_ParseTuple(args, "|s#I", &request, &len, &tokens)) return NULL;
    if (around == NULL || around->view == NULL || !goes_on(self) || self->begin_ns == 0) return PyLong_FromLong(0);
    const uint64_t now = tw_now_ns();
    self->updating = NULL;
    self->sent = request == NULL ? 0 : tw_sent_mark(tw_request_hash(request, (size_t)len), tokens);
    leave_viewed(around, self->update_args, self->update_kwargs, Py_None, self->update_ns, now);
    self->sent = 0;
    return PyLong_FromUnsignedLongLong(now);
}

static PyObject *steps_answered(PyObject *op, PyObject *unused) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    const uint64_t answered = self->answered;
    (void)unused;
    self->answered = 0;
    return PyLong_FromUnsignedLongLong(answered);
}

static int steps_traverse(PyObject *op, visitproc visit, void *arg) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->core);
    Py_VISIT(self->scheduler);
    return 0;
}

static int steps_clear(PyObject *op) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    self->stopped = true; /* a call that comes later finds no scheduler */
    Py_CLEAR(self->scheduler);
    return 0;
}

static void steps_dealloc(PyObject *op) {
    SchedulerStepsObject *self = (SchedulerStepsObject *)op;
    PyObject_GC_UnTrack(op);
    steps_clear(op);
    engine_streams_free(&self->streams);
    step_reader_free(&self->reader);
    Py_XDECREF((PyObject *)self->core);
    hot_free(op);
}

static PyObject *steps_stamped(PyObject *op, void *unused) {
    (void)unused;
    return PyLong_FromUnsignedLongLong(((SchedulerStepsObject *)op)->streams.opened);
}

static PyMethodDef steps_methods[] = {
    {"around", steps_around, METH_VARARGS,
     "around(what, method, view=None, /)\n--\n\nA callable that stands for a method of the scheduler."},
    {"answered", steps_answered, METH_NOARGS, "answered()\n--\n\nRequests in steps recorded since the last call."},
    {"compiled", steps_compiled, METH_VARARGS,
     "compiled(kernel, from_ns, to_ns, /)\n--\n\nThe engine compiled a kernel, from one monotonic ns to another."},
    {"end_update", steps_end_update, METH_VARARGS,
     "end_update(request_id=None, tokens=0, /)\n--\n\nRecords the step whose update goes on. Its stamp, ns; 0: none does."},
    {"stop", steps_stop, METH_NOARGS, "stop()\n--\n\nFrom now on the callables only hand on."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef steps_getters[] = {
    {"stamped", steps_stamped, NULL, "Requests that were stamped here, for want of a front end that does.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot steps_slots[] = {
    {Py_tp_doc, "The steps of one engine. SchedulerSteps(core, scheduler, model): the model's name, of requests stamped here."},
    {Py_tp_new, steps_new},
    {Py_tp_dealloc, steps_dealloc},
    {Py_tp_traverse, steps_traverse},
    {Py_tp_clear, steps_clear},
    {Py_tp_methods, steps_methods},
    {Py_tp_getset, steps_getters},
    {0, NULL}};
PyType_Spec tw_scheduler_steps_spec = {"tailwatch._hot.SchedulerSteps", sizeof(SchedulerStepsObject), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, steps_slots};

static PyGetSetDef around_getters[] = {
    {"__wrapped__", around_wrapped, NULL, "The method.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot around_slots[] = {
    {Py_tp_doc, "Stands for a method of a scheduler. Made by SchedulerSteps.around()."},
    {Py_tp_call, around_call},
    {Py_tp_getattro, around_getattro},
    {Py_tp_dealloc, around_dealloc},
    {Py_tp_traverse, around_traverse},
    {Py_tp_clear, around_clear},
    {Py_tp_getset, around_getters},
    {0, NULL}};
PyType_Spec tw_around_spec = {"tailwatch._hot.Around", sizeof(AroundObject), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              around_slots};
