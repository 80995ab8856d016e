/* tailwatch._hot.Answer: the bytes of a load client's answers, without a Python object for any of their tokens.
 *
 * stamp() when a read returns, feed() for each part of the body in it: between the two stands an HTTP parser, which
 * calls feed() itself.
 */
#include "python/module.h"

#include "tailwatch/wire/client_response.h"
#include "tailwatch/base/clock.h"

#include <structmember.h>

typedef struct AnswerObject {
    PyObject_HEAD
    uint64_t now_ns, byte_ns; /* of the read that is being looked at; of the first one of this answer */
    PyObject *decode;         /* of the body's content encoding: bytes -> an iterable of bytes; NULL: there is none */
    tw_answer answer;
} AnswerObject;

static PyObject *answer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "")) return NULL;
    AnswerObject *self = (AnswerObject *)PyType_GenericAlloc(type, 0);
    if (self != NULL) tw_answer_init(&self->answer);
    return (PyObject *)self;
}

static void answer_dealloc(PyObject *op) {
    Py_CLEAR(((AnswerObject *)op)->decode);
    tw_answer_free(&((AnswerObject *)op)->answer);
    hot_free(op);
}

/* begin(planned_ns, ttft_ns, step_ns, /) */
static PyObject *answer_begin(PyObject *op, PyObject *args) {
    AnswerObject *self = (AnswerObject *)op;
    unsigned long long planned_ns, ttft_ns, step_ns;
    if (!PyArg_ParseTuple(args, "KKK", &planned_ns, &ttft_ns, &step_ns)) return NULL;
    tw_answer_begin(&self->answer, planned_ns, ttft_ns, step_ns);
    self->byte_ns = 0;
    Py_CLEAR(self->decode);
    Py_RETURN_NONE;
}

/* framing(kind, objects_only, /): a tw_framing. */
static PyObject *answer_framing(PyObject *op, PyObject *args) {
    long framing;
    int objects_only;
    if (!PyArg_ParseTuple(args, "lp", &framing, &objects_only)) return NULL;
    if (framing < TW_FRAMING_SSE || framing > TW_FRAMING_WHOLE) {
        PyErr_Format(PyExc_ValueError, "framing(): expected 0 to %d, found %ld", TW_FRAMING_WHOLE, framing);
        return NULL;
    }
    tw_answer_framing(&((AnswerObject *)op)->answer, (tw_framing)framing, objects_only != 0);
    Py_RETURN_NONE;
}

static PyObject *answer_stamp(PyObject *op, PyObject *unused) {
    AnswerObject *self = (AnswerObject *)op;
    (void)unused;
    self->now_ns = tw_now_ns();
    if (self->byte_ns == 0) self->byte_ns = self->now_ns;
    Py_RETURN_NONE;
}

/* decoder(decode, /): from now on, until begin(). decode must not refer to this object: nothing would find the cycle. */
static PyObject *answer_decoder(PyObject *op, PyObject *decode) {
    AnswerObject *self = (AnswerObject *)op;
    PyObject *old = self->decode;
    Py_INCREF(decode);
    self->decode = decode;
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static bool feed_bytes(AnswerObject *self, PyObject *body) {
    char *data;
    Py_ssize_t len;
    if (PyBytes_AsStringAndSize(body, &data, &len) < 0) return false;
    tw_answer_feed(&self->answer, data, (size_t)len, self->now_ns);
    return true;
}

static bool feed_decoded(AnswerObject *self, PyObject *body) {
    PyObject *parts = PyObject_CallFunctionObjArgs(self->decode, body, NULL);
    PyObject *each = parts == NULL ? NULL : PyObject_GetIter(parts);
    bool fed = each != NULL;
    for (PyObject *part; fed && (part = PyIter_Next(each)) != NULL;) {
        fed = feed_bytes(self, part);
        Py_DECREF(part);
    }
    Py_XDECREF(each);
    Py_XDECREF(parts);
    return fed && !PyErr_Occurred();
}

static PyObject *answer_feed(PyObject *op, PyObject *body) {
    AnswerObject *self = (AnswerObject *)op;
    if (!(self->decode == NULL ? feed_bytes(self, body) : feed_decoded(self, body))) return NULL;
    Py_RETURN_NONE;
}

static PyObject *answer_finish(PyObject *op, PyObject *unused) {
    AnswerObject *self = (AnswerObject *)op;
    (void)unused;
    tw_answer_finish(&self->answer, self->now_ns);
    Py_RETURN_NONE;
}

static PyObject *choice_of(const tw_answer_choice *choice) {
    return Py_BuildValue("(KKK)", (unsigned long long)choice->first_ns, (unsigned long long)choice->last_ns,
                         (unsigned long long)choice->tokens);
}

/* Those that were seen. */
static PyObject *choices_of(const tw_answer *answer) {
    uint32_t seen = 0;
    for (uint32_t i = 0; i < answer->choices; i++) seen += answer->choice[i].tokens > 0;
    PyObject *all = PyTuple_New((Py_ssize_t)seen);
    Py_ssize_t at = 0;
    for (uint32_t i = 0; all != NULL && i < answer->choices; i++) {
        if (answer->choice[i].tokens == 0) continue;
        PyObject *one = choice_of(&answer->choice[i]);
        if (one == NULL || PyTuple_SetItem(all, at++, one) < 0) Py_CLEAR(all);
    }
    return all;
}

/* result() -> what stands in tailwatch.load.exchange.Exchange, in the order that connection.py takes it in. */
static PyObject *answer_result(PyObject *op, PyObject *unused) {
    const AnswerObject *self = (AnswerObject *)op;
    const tw_answer *a = &self->answer;
    (void)unused;
    PyObject *choices = choices_of(a);
    PyObject *stamps = PyBytes_FromStringAndSize((const char *)a->stamp, (Py_ssize_t)(a->stamps * sizeof *a->stamp));
    if (choices != NULL && stamps != NULL)
        return Py_BuildValue("(KKKKKKKKKKKKKOONN)", (unsigned long long)self->byte_ns, (unsigned long long)a->chunk_ns,
                             (unsigned long long)a->first_ns, (unsigned long long)a->last_ns, (unsigned long long)a->messages,
                             (unsigned long long)a->tokens, (unsigned long long)a->usage_tokens, (unsigned long long)a->gap_ns,
                             (unsigned long long)a->gap_at_ns, (unsigned long long)a->due, (unsigned long long)a->met,
                             (unsigned long long)a->idle_ns, (unsigned long long)a->bytes, a->done ? Py_True : Py_False,
                             a->error ? Py_True : Py_False, choices, stamps);
    Py_XDECREF(choices);
    Py_XDECREF(stamps);
    return NULL;
}

static PyObject *answer_head(PyObject *op, void *unused) {
    const tw_answer *answer = &((AnswerObject *)op)->answer;
    (void)unused;
    return PyBytes_FromStringAndSize(answer->head, (Py_ssize_t)answer->head_len);
}

static PyMethodDef answer_methods[] = {
    {"begin", answer_begin, METH_VARARGS, "begin(planned_ns, ttft_ns, step_ns, /)\n--\n\nA new answer is waited for."},
    {"framing", answer_framing, METH_VARARGS, "framing(kind, objects_only, /)\n--\n\nHow its body is cut into events."},
    {"decoder", answer_decoder, METH_O, "decoder(decode, /)\n--\n\nWhat its body passes first."},
    {"stamp", answer_stamp, METH_NOARGS, "stamp()\n--\n\nA read returned."},
    {"feed", answer_feed, METH_O, "feed(body, /)\n--\n\nA part of the body was in it."},
    {"finish", answer_finish, METH_NOARGS, "finish()\n--\n\nThe body ended in it."},
    {"result", answer_result, METH_NOARGS, "result()\n--\n\nWhat was seen."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef answer_members[] = {
    {"now_ns", T_ULONGLONG, offsetof(AnswerObject, now_ns), READONLY, "When the last read returned, ns."},
    {"byte_ns", T_ULONGLONG, offsetof(AnswerObject, byte_ns), READONLY, "When the first one of this answer returned; 0: none yet."},
    {NULL, 0, 0, 0, NULL}};
static PyGetSetDef answer_getset[] = {
    {"head", answer_head, NULL, "The first bytes of the body.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot answer_slots[] = {
    {Py_tp_doc, "What is seen of one answer after the other."},
    {Py_tp_new, answer_new},
    {Py_tp_dealloc, answer_dealloc},
    {Py_tp_methods, answer_methods},
    {Py_tp_members, answer_members},
    {Py_tp_getset, answer_getset},
    {0, NULL}};
PyType_Spec tw_answer_spec = {"tailwatch._hot.Answer", sizeof(AnswerObject), 0, Py_TPFLAGS_DEFAULT, answer_slots};
