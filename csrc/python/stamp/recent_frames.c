/* The frames made last, which Send finds again without looking at their bytes.
 *
 * Found by their address, and held, so that the address is theirs. An encoder's frame is sent next, as a rule: few
 * places do, and each is free again once its frame is sent. What is not found is scanned. One table for the process,
 * under the GIL: a frame does not show whose core will send it.
 *
 * What a scan cannot find out (how many tokens the text is) has a larger table of its own. */
#include "python/stamp/recent_frames.h"

#define NOTED 64
#define GIVEN 4096
#define GIVEN_PLACES 16         /* where one frame may stand */
#define GIVEN_BYTES (4u << 20)  /* of all of them; what finds no room is scanned */

static struct { PyObject *frame, *owner; const tw_facts *facts; } noted[NOTED];
static struct { PyObject *frame; tw_facts facts; } given[GIVEN]; /* facts.model is held */
static size_t n_given;     /* entries of given[] in use */
static size_t given_bytes; /* of their frames */
bool frames_noting;
size_t frames_held;

void frame_noting(void) { frames_noting = true; }

static size_t place_of(const PyObject *frame) {
    const uintptr_t address = (uintptr_t)frame;
    return address >> 4 ^ address >> 10;
}

void frame_note(PyObject *frame, const tw_facts *facts, PyObject *owner) {
    const size_t at = place_of(frame) % NOTED;
    PyObject *old_frame = noted[at].frame, *old_owner = noted[at].owner;
    noted[at].facts = facts;
    noted[at].owner = owner;
    noted[at].frame = frame;
    Py_INCREF(owner);
    Py_INCREF(frame);
    if (__builtin_expect(old_frame == NULL, 1)) {
        frames_held++;
        return;
    }
    Py_DECREF(old_frame);
    Py_DECREF(old_owner);
}

/* Where the frame stands, or may: an empty place, else the first of its places. */
static size_t given_place(const PyObject *frame) {
    const size_t first = place_of(frame) % GIVEN;
    size_t empty = first;
    for (size_t i = 0; i < GIVEN_PLACES; i++) {
        const size_t at = (first + i) % GIVEN;
        if (given[at].frame == frame) return at;
        if (given[at].frame == NULL && given[empty].frame != NULL) empty = at;
    }
    return empty;
}

/* The entry's frame is let go; its model becomes the caller's to release, and stays readable until then. */
static PyObject *given_clear(size_t at) {
    PyObject *frame = given[at].frame;
    if (frame == NULL) return NULL;
    given[at].frame = NULL;
    n_given--;
    frames_held--;
    given_bytes -= (size_t)PyBytes_Size(frame);
    Py_DECREF(frame);
    return given[at].facts.model;
}

static void keep_given(PyObject *frame, const tw_facts *facts) {
    const size_t at = given_place(frame), bytes = (size_t)PyBytes_Size(frame);
    if (given_bytes + bytes > GIVEN_BYTES) return;
    PyObject *model = facts->model == NULL ? NULL : Py_NewRef(facts->model);
    Py_INCREF(frame);
    PyObject *old_model = given_clear(at);
    given[at].frame = frame;
    given[at].facts = *facts;
    given[at].facts.model = model;
    n_given++;
    frames_held++;
    given_bytes += bytes;
    Py_XDECREF(old_model);
}

static const tw_facts *take_given(PyObject *object, PyObject **owner) {
    const size_t at = given_place(object);
    if (given[at].frame != object) return NULL;
    *owner = given_clear(at);
    return &given[at].facts;
}

const tw_facts *frame_take(PyObject *object, PyObject **owner) {
    const size_t at = place_of(object) % NOTED;
    if (__builtin_expect(n_given > 0, 0)) {
        const tw_facts *facts = take_given(object, owner);
        if (facts != NULL) return facts;
    }
    if (noted[at].frame != object) return NULL;
    *owner = noted[at].owner;
    noted[at].frame = noted[at].owner = NULL;
    frames_held--;
    Py_DECREF(object); /* the caller's message holds it too */
    return noted[at].facts;
}

/* forget_frames(): no Send is left for them. */
PyObject *hot_forget_frames(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    frames_noting = false;
    for (size_t at = 0; at < GIVEN; at++) {
        PyObject *model = given_clear(at);
        Py_XDECREF(model);
    }
    for (size_t at = 0; at < NOTED; at++) {
        PyObject *frame = noted[at].frame, *owner = noted[at].owner;
        noted[at].frame = noted[at].owner = NULL;
        frames_held -= frame != NULL;
        Py_XDECREF(frame);
        Py_XDECREF(owner);
    }
    Py_RETURN_NONE;
}

/* 0 to 2^32 - 1. -1: an exception is set. */
static int take_count(PyObject *value, uint32_t *out) {
    const unsigned long long count = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return -1;
    if (count > UINT32_MAX) return PyErr_SetString(PyExc_OverflowError, "note(): expected counts below 2**32"), -1;
    *out = (uint32_t)count;
    return 0;
}

static int take_truth(PyObject *value, bool *out) {
    const int truth = PyObject_IsTrue(value);
    *out = truth == 1;
    return truth < 0 ? -1 : 0;
}

PyObject *hot_note(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 6 || !PyBytes_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "note() takes bytes, tokens, choice, usage_tokens, done and error");
        return NULL;
    }
    tw_facts facts = {0, 0, 0, false, false, NULL};
    uint32_t usage = 0;
    if (take_count(args[1], &facts.tokens) < 0 || take_count(args[2], &facts.choice) < 0 || take_count(args[3], &usage) < 0 ||
        take_truth(args[4], &facts.done) < 0 || take_truth(args[5], &facts.error) < 0) return NULL;
    facts.usage_tokens = usage;
    PyObject *owner = NULL;
    const tw_facts *known = frame_take(args[0], &owner); /* its template has the model */
    if (known != NULL) facts.model = known->model;
    if (frames_noting) keep_given(args[0], &facts);
    Py_XDECREF(owner);
    return Py_NewRef(args[0]);
}
