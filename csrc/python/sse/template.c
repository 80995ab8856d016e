/* tailwatch._hot.Template: bytes with holes, filled by one allocation.
 *
 * A frame is one bytes object; nothing that the collector tracks is made. A text that is not ASCII also keeps its UTF-8
 * in the string, as CPython does.
 */
#include "python/sse/template.h"

#include "tailwatch/wire/body_scan.h"

#include <string.h>
#include <structmember.h>

static int bad_text(const char *where, PyObject *found) {
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(found), "__name__");
    if (type != NULL) PyErr_Format(PyExc_TypeError, "%s: expected str, found %U", where, type);
    Py_XDECREF(type);
    return -1;
}

/* The error for a text with half a surrogate pair in it is the imitated serialiser's own. */
static int refused(TemplateObject *self, PyObject *text) {
    if (self->original == Py_None || !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) return -1;
    PyErr_Clear();
    PyObject *result = PyObject_CallFunctionObjArgs(self->original, text, NULL);
    if (result != NULL) PyErr_SetString(PyExc_ValueError, "the text holds half a surrogate pair");
    Py_XDECREF(result);
    return -1;
}

/* Surrogates have an escape of their own in ASCII. *kept holds the bytes until the frame is written. */
static int lone_surrogates(TemplateObject *self, PyObject *text, tw_filling *filling, PyObject **kept) {
    if (self->frame.dialect != TW_DIALECT_ASCII || *kept != NULL) return refused(self, text);
    PyErr_Clear();
    if ((*kept = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass")) == NULL) return -1;
    char *bytes;
    Py_ssize_t len;
    PyBytes_AsStringAndSize(*kept, &bytes, &len);
    *filling = (tw_filling){bytes, (size_t)len, 0, false};
    return 0;
}

int template_text(TemplateObject *self, PyObject *text, tw_filling *filling, PyObject **kept) {
    Py_ssize_t len;
    if (__builtin_expect(!PyUnicode_CheckExact(text), 0) && !PyUnicode_Check(text)) return bad_text("text", text);
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &len);
    if (__builtin_expect(utf8 == NULL, 0)) return lone_surrogates(self, text, filling, kept);
    *filling = (tw_filling){utf8, (size_t)len, 0, false};
    return 0;
}

int template_number(PyObject *number, tw_filling *filling, char *digits) {
    if (!PyLong_CheckExact(number)) {
        PyErr_SetString(PyExc_TypeError, "number: expected int");
        return -1;
    }
    const long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) return -1;
    unsigned long long left = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    char *at = digits + TEMPLATE_DIGITS;
    do *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0) *--at = '-';
    *filling = (tw_filling){at, (size_t)(digits + TEMPLATE_DIGITS - at), 0, true};
    return 0;
}

PyObject *template_make(TemplateObject *self, tw_filling *fillings) {
    const size_t len = tw_frame_len(&self->frame, fillings);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (frame != NULL) tw_frame_write(&self->frame, fillings, (char *)frame + self->inside);
    return frame;
}

__attribute__((noinline)) PyObject *template_splice_any(TemplateObject *self, PyObject *text) {
    tw_filling filling;
    PyObject *kept = NULL;
    if (template_text(self, text, &filling, &kept) < 0) return NULL;
    PyObject *frame = template_make(self, &filling);
    template_noted(self, frame, filling.len, frame == NULL ? 0 : (size_t)PyBytes_Size(frame));
    Py_XDECREF(kept);
    return frame;
}

static PyObject *template_splice(PyObject *object, PyObject *text) {
    TemplateObject *self = (TemplateObject *)object;
    if (self->frame.holes == 1 && self->numbers == 0) return template_of_text(self, text);
    PyErr_Format(PyExc_TypeError, "splice() is for a template with one hole, for a text; this one has %u: use fill()",
                 (unsigned)self->frame.holes);
    return NULL;
}

static int take_values(TemplateObject *self, PyObject *const *values, tw_filling *fillings, char (*digits)[TEMPLATE_DIGITS],
                       PyObject **kept) {
    for (uint32_t i = 0; i < self->frame.holes; i++) {
        const int failed = self->numbers >> i & 1 ? template_number(values[i], &fillings[i], digits[i])
                                                  : template_text(self, values[i], &fillings[i], &kept[i]);
        if (failed) return -1;
    }
    return 0;
}

static bool has_empty_text(const TemplateObject *self, const tw_filling *fillings) {
    for (uint32_t i = 0; i < self->frame.holes; i++)
        if (fillings[i].len == 0) return true;
    return false;
}

static PyObject *template_fill(PyObject *object, PyObject *const *values, Py_ssize_t n) {
    TemplateObject *self = (TemplateObject *)object;
    tw_filling fillings[TW_FRAME_HOLES];
    char digits[TW_FRAME_HOLES][TEMPLATE_DIGITS];
    PyObject *kept[TW_FRAME_HOLES] = {NULL}, *frame = NULL;
    if (n != (Py_ssize_t)self->frame.holes) {
        return PyErr_Format(PyExc_TypeError, "fill() takes %u values, one for each hole; %zd given",
                            (unsigned)self->frame.holes, n);
    }
    if (take_values(self, values, fillings, digits, kept) == 0) frame = template_make(self, fillings);
    if (frame != NULL && template_is_notable(self, (size_t)PyBytes_Size(frame)) && !has_empty_text(self, fillings)) template_note(self, frame);
    for (uint32_t i = 0; i < self->frame.holes; i++) Py_XDECREF(kept[i]);
    return frame;
}

/* What a scan finds in a frame whose texts are all the sample. false: out of memory. */
static bool scan_sample(TemplateObject *self, const char *sample, tw_scan *scan, PyObject **frame, tw_scan_result *seen) {
    tw_filling fillings[TW_FRAME_HOLES];
    for (uint32_t i = 0; i < self->frame.holes; i++) {
        const bool number = self->numbers >> i & 1;
        fillings[i] = (tw_filling){number ? "1" : sample, number ? 1 : strlen(sample), 0, number};
    }
    if ((*frame = template_make(self, fillings)) == NULL) return false;
    tw_scan_init(scan, TW_FRAMING_SSE);
    tw_scan_feed_rarely(scan, PyBytes_AsString(*frame), (size_t)PyBytes_Size(*frame), seen);
    return true;
}

static bool same_facts(const tw_scan_result *a, const tw_scan_result *b) {
    return a->tokens == b->tokens && a->events == b->events && a->choice[0] == b->choice[0] && a->done == b->done &&
           a->error == b->error && a->cut == b->cut && a->usage_tokens == b->usage_tokens && a->model_len == b->model_len &&
           (a->model_len == 0 || memcmp(a->model, b->model, a->model_len) == 0);
}

static uint32_t texts_in(const TemplateObject *self) {
    uint32_t texts = 0;
    for (uint32_t i = 0; i < self->frame.holes; i++) texts += !(self->numbers >> i & 1);
    return texts;
}

/* Two frames as they may come out, looked at once: what both hold, all of them do. Where the texts decide it, or numbers
 * may stand for usage, or n texts for n choices, a frame is scanned when it is sent. */
static int learn_with(TemplateObject *self, tw_scan *scans) {
    PyObject *frame = NULL, *other = NULL;
    tw_scan_result seen, also;
    int done = scan_sample(self, "x", &scans[0], &frame, &seen) && scan_sample(self, "message_stop", &scans[1], &other, &also);
    if (done) {
        self->known = tw_scan_between(&scans[0]) && tw_scan_between(&scans[1]) && same_facts(&seen, &also) && seen.events <= 1 &&
                      seen.tokens <= 1 && texts_in(self) <= 1 && !seen.cut && (seen.usage_tokens == 0 || self->numbers == 0);
        self->facts = (tw_facts){seen.tokens, seen.choice[0], seen.usage_tokens, seen.done, seen.error, NULL};
        if (seen.model != NULL) self->facts.model = PyBytes_FromStringAndSize(seen.model, (Py_ssize_t)seen.model_len);
        done = seen.model == NULL || self->facts.model != NULL;
    }
    Py_XDECREF(frame);
    Py_XDECREF(other);
    return done ? 0 : -1;
}

static int learn_facts(TemplateObject *self) {
    tw_scan *scans = PyMem_Calloc(2, sizeof *scans);
    if (scans == NULL) return PyErr_NoMemory(), -1;
    const int failed = learn_with(self, scans);
    PyMem_Free(scans);
    return failed;
}

/* One hole: (offset in the literal, whether it holds a number). */
static int take_hole(TemplateObject *self, uint32_t i, PyObject *hole) {
    unsigned at;
    int number;
    if (!PyTuple_Check(hole)) return PyErr_SetString(PyExc_TypeError, "hole: expected (offset, number)"), -1;
    if (!PyArg_ParseTuple(hole, "Ip", &at, &number)) return -1;
    if (at > PyBytes_Size(self->literal) || (i > 0 && at < self->frame.cut[i - 1]))
        return PyErr_Format(PyExc_ValueError, "hole %u: offset %u is outside the literal or before the last hole", (unsigned)i, at), -1;
    self->frame.cut[i] = at;
    self->numbers |= (uint32_t)(number != 0) << i;
    return 0;
}

static int take_holes(TemplateObject *self, PyObject *holes) {
    const Py_ssize_t n = PyTuple_Size(holes);
    if (n > TW_FRAME_HOLES) return PyErr_Format(PyExc_ValueError, "expected at most %d holes, found %zd", TW_FRAME_HOLES, n), -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (take_hole(self, (uint32_t)i, PyTuple_GetItem(holes, i)) < 0) return -1;
    self->frame.holes = (uint32_t)n;
    self->frame.cut[n] = (uint32_t)PyBytes_Size(self->literal);
    self->frame.bytes = PyBytes_AsString(self->literal);
    self->inside = (size_t)(self->frame.bytes - (const char *)self->literal);
    return 0;
}

/* Template(literal, holes, ascii, original) */
static PyObject *template_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"literal", "holes", "ascii", "original", NULL};
    PyObject *literal, *holes, *original = Py_None;
    int ascii = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SO!|pO", names, &literal, &PyTuple_Type, &holes, &ascii, &original)) return NULL;
    if (PyBytes_Size(literal) > UINT32_MAX / 2) return PyErr_SetString(PyExc_ValueError, "literal: longer than 2 GiB"), NULL;
    TemplateObject *self = (TemplateObject *)PyType_GenericAlloc(type, 0);
    if (self == NULL) return NULL;
    self->literal = Py_NewRef(literal);
    self->original = Py_NewRef(original);
    self->frame.dialect = ascii ? TW_DIALECT_ASCII : TW_DIALECT_UTF8;
    if (take_holes(self, holes) == 0 && learn_facts(self) == 0) return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return NULL;
}

static int template_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT((PyObject *)Py_TYPE(object));
    Py_VISIT(((TemplateObject *)object)->original);
    return 0;
}

static int template_clear(PyObject *object) {
    Py_CLEAR(((TemplateObject *)object)->original);
    return 0;
}

static void template_dealloc(PyObject *object) {
    TemplateObject *self = (TemplateObject *)object;
    PyObject_GC_UnTrack(object);
    template_clear(object);
    Py_CLEAR(self->literal);
    Py_CLEAR(self->facts.model);
    hot_free(object);
}

static PyMethodDef template_methods[] = {
    {"splice", template_splice, METH_O, "splice(text, /)\n--\n\nThe frame with text, escaped, in its one hole."},
    {"fill", FASTCALL(template_fill), METH_FASTCALL, "fill(*values)\n--\n\nThe frame with a text or a number in each hole."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef template_members[] = {
    {"literal", T_OBJECT_EX, offsetof(TemplateObject, literal), READONLY, "The bytes around the holes."},
    {"holes", T_UINT, offsetof(TemplateObject, frame.holes), READONLY, "How many holes there are."},
    {"known", T_BOOL, offsetof(TemplateObject, known), READONLY, "Whether its frames are sent without being scanned."},
    {NULL, 0, 0, 0, NULL}};
static PyType_Slot template_slots[] = {
    {Py_tp_doc, "Bytes with holes for texts and numbers."},
    {Py_tp_new, template_new},
    {Py_tp_dealloc, template_dealloc},
    {Py_tp_traverse, template_traverse},
    {Py_tp_clear, template_clear},
    {Py_tp_methods, template_methods},
    {Py_tp_members, template_members},
    {0, NULL}};
PyType_Spec tw_template_spec = {"tailwatch._hot.Template", sizeof(TemplateObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, template_slots};

bool is_template(PyObject *object) { return PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) == (void *)template_dealloc; }
