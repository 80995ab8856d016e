/* tailwatch._hot.Encoder: the hot method of the encoders, content(text). */
#include "python/module.h"

#include "python/sse/template.h"

#include <structmember.h>

/* What one answer's encoder keeps: the template of its content frames, and, where those are numbered, the next number. */
typedef struct EncoderObject {
    PyObject_HEAD
    TemplateObject *content;
    unsigned long long sequence;
} EncoderObject;

static PyObject *numbered(EncoderObject *self, PyObject *text) {
    TemplateObject *template = self->content;
    tw_filling fillings[2];
    char digits[TEMPLATE_DIGITS];
    PyObject *kept = NULL, *number = PyLong_FromUnsignedLongLong(self->sequence), *frame = NULL;
    const uint32_t at = template->numbers & 1 ? 1 : 0; /* of the text */
    if (number != NULL && template_number(number, &fillings[1 - at], digits) == 0 && template_text(template, text, &fillings[at], &kept) == 0)
        frame = template_make(template, fillings);
    if (frame != NULL) self->sequence++;
    if (frame != NULL && template_is_notable(template, (size_t)PyBytes_Size(frame)) && fillings[at].len > 0) template_note(template, frame);
    Py_XDECREF(number);
    Py_XDECREF(kept);
    return frame;
}

/* With anything beside the text it is the subclass's to do. */
static PyObject *delegate(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    PyObject *method = PyObject_GetAttrString(self, "_content"), *result = NULL;
    PyObject *positional = PyTuple_New(nargs), *named = PyDict_New();
    const Py_ssize_t n = names == NULL ? 0 : PyTuple_Size(names);
    int failed = method == NULL || positional == NULL || named == NULL;
    for (Py_ssize_t i = 0; !failed && i < nargs; i++) failed = PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; !failed && i < n; i++) failed = PyDict_SetItem(named, PyTuple_GetItem(names, i), args[nargs + i]);
    if (!failed) result = PyObject_Call(method, positional, named);
    Py_XDECREF(method);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return result;
}

static PyObject *encoder_content(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *names) {
    EncoderObject *self = (EncoderObject *)object;
    if (__builtin_expect(nargs != 1 || (names != NULL && PyTuple_Size(names) > 0) || self->content == NULL, 0))
        return delegate(object, args, nargs, names);
    if (self->content->numbers == 0) return template_of_text(self->content, args[0]);
    return numbered(self, args[0]);
}

static int encoder_clear(PyObject *object);

/* Of one text hole, or of one and a number: what content() fills. None: nothing, the subclass's _content() is asked. */
static int set_template(PyObject *object, PyObject *value, void *unused) {
    (void)unused;
    EncoderObject *self = (EncoderObject *)object;
    if (value == Py_None) return encoder_clear(object);
    const TemplateObject *template = (TemplateObject *)value;
    if (!is_template(value) || !((template->frame.holes == 1 && template->numbers == 0) ||
                          (template->frame.holes == 2 && (template->numbers == 1 || template->numbers == 2)))) {
        PyErr_SetString(PyExc_TypeError, "_template: expected a Template with a hole for a text, and at most one for a number");
        return -1;
    }
    PyObject *old = (PyObject *)self->content;
    self->content = (TemplateObject *)Py_NewRef(value);
    Py_XDECREF(old);
    return 0;
}

static PyObject *get_template(PyObject *object, void *unused) {
    (void)unused;
    EncoderObject *self = (EncoderObject *)object;
    return Py_NewRef(self->content == NULL ? Py_None : (PyObject *)self->content);
}

static int encoder_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE(object));
    Py_VISIT((PyObject *)((EncoderObject *)object)->content);
    return 0;
}

static int encoder_clear(PyObject *object) {
    Py_CLEAR(((EncoderObject *)object)->content);
    return 0;
}

static void encoder_dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    encoder_clear(object);
    hot_free(object);
}

static const char content_text[] =
    "content($self, text, /, **options)\n--\n\n"
    "The frame of a piece of generated text: bytes, ready to send.\n\n"
    "index: its choice. tokens: how many tokens the text is, for tailwatch's counts. logprobs, usage: what goes there,\n"
    "where the stream has them. With text alone it is made by one allocation and a copy.";
static PyMethodDef content_method = {"content", FASTCALL(encoder_content), METH_FASTCALL | METH_KEYWORDS, content_text};

/* Whether what the subclass would inherit as content() is ours, a method made in C: another's, in it or before us,
 * stays. */
static int inherits_ours(PyObject *encoder, PyObject *subclass) {
    PyObject *found = PyObject_GetAttrString(subclass, "content"), *ours = PyObject_GetAttrString(encoder, "content");
    const int same = found != NULL && ours != NULL && Py_TYPE(found) == Py_TYPE(ours);
    Py_XDECREF(found);
    Py_XDECREF(ours);
    PyErr_Clear();
    return same;
}

/* Each subclass gets the method as its own: CPython calls an inherited C method by its slow path. */
static int give_content(PyObject *encoder, PyObject *subclass) {
    if (!inherits_ours(encoder, subclass)) return 0;
    PyObject *method = PyDescr_NewMethod((PyTypeObject *)subclass, &content_method);
    const int failed = method == NULL || PyObject_SetAttrString(subclass, "content", method) < 0;
    Py_XDECREF(method);
    return failed ? -1 : 0;
}

/* super().__init_subclass__(**kwargs), then ours. The type before us in the subclass's order is Encoder itself, which
 * its own attribute names. */
static PyObject *encoder_init_subclass(PyObject *subclass, PyObject *args, PyObject *kwargs) {
    PyObject *encoder = PyObject_GetAttrString(subclass, "_encoder_type"), *above = NULL, *next = NULL, *result = NULL;
    if (encoder != NULL) above = PyObject_CallFunctionObjArgs((PyObject *)&PySuper_Type, encoder, subclass, NULL);
    if (above != NULL) next = PyObject_GetAttrString(above, "__init_subclass__");
    if (next != NULL) result = PyObject_Call(next, args, kwargs);
    if (result != NULL && give_content(encoder, subclass) < 0) Py_CLEAR(result);
    Py_XDECREF(encoder);
    Py_XDECREF(above);
    Py_XDECREF(next);
    return result;
}

static PyMethodDef encoder_methods[] = {
    {"content", FASTCALL(encoder_content), METH_FASTCALL | METH_KEYWORDS, content_text},
    {"__init_subclass__", (PyCFunction)(void (*)(void))encoder_init_subclass, METH_CLASS | METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL}};
static PyMemberDef encoder_members[] = {
    {"_sequence", T_ULONGLONG, offsetof(EncoderObject, sequence), 0, "Number of the next numbered frame."},
    {NULL, 0, 0, 0, NULL}};
static PyGetSetDef encoder_getters[] = {
    {"_template", get_template, set_template, "Of the content frames.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot encoder_slots[] = {
    {Py_tp_doc, "Base of the encoders: content(text) without a step through Python."},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_traverse, encoder_traverse},
    {Py_tp_clear, encoder_clear},
    {Py_tp_methods, encoder_methods},
    {Py_tp_members, encoder_members},
    {Py_tp_getset, encoder_getters},
    {0, NULL}};
PyType_Spec tw_encoder_spec = {"tailwatch._hot.Encoder", sizeof(EncoderObject), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, encoder_slots};
