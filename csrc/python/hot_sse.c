/* tailwatch._hot.Template: bytes with holes, filled by one allocation, and Encoder: the hot method of the encoders.
 *
 * A frame is one bytes object; nothing that the collector tracks is made. A text that is not ASCII also keeps its UTF-8
 * in the string, as CPython does.
 */
#include "hot_sse.h"

#include "short_text.h"

#include <string.h>
#include <structmember.h>

/* ---- the frames made last ----
 *
 * Found by their address, and held, so that the address is theirs. An encoder's frame is sent next, as a rule: few
 * places do, and each is free again once its frame is sent. What is not found is scanned. One table for the process,
 * under the GIL: a frame does not say whose core will send it.
 *
 * What a scan cannot find out (how many tokens the text is) has a larger table of its own. */

#define NOTED 64
#define NOTED_BYTES 16384 /* longer frames are not held */
#define TOLD 4096
#define TOLD_PLACES 16    /* where one frame may stand */
#define TOLD_BYTES (4u << 20) /* of all of them; what finds no room is scanned */

static struct { PyObject *frame, *owner; const tw_facts *facts; } noted[NOTED];
static struct { PyObject *frame; tw_facts facts; } told[TOLD]; /* facts.model is held */
static size_t tellings;   /* entries of told[] in use */
static size_t told_bytes; /* of their frames */
static bool noting;
size_t frames_held;

void frame_noting(void) { noting = true; }

static size_t place_of(const PyObject *frame) {
    const uintptr_t address = (uintptr_t)frame;
    return address >> 4 ^ address >> 10;
}

/* facts live as long as owner. */
static inline void note(PyObject *frame, const tw_facts *facts, PyObject *owner) {
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
static size_t told_place(const PyObject *frame) {
    const size_t first = place_of(frame) % TOLD;
    size_t empty = first;
    for (size_t i = 0; i < TOLD_PLACES; i++) {
        const size_t at = (first + i) % TOLD;
        if (told[at].frame == frame) return at;
        if (told[at].frame == NULL && told[empty].frame != NULL) empty = at;
    }
    return empty;
}

/* The entry's frame is let go; its model becomes the caller's to release, and stays readable until then. */
static PyObject *told_clear(size_t at) {
    PyObject *frame = told[at].frame;
    if (frame == NULL) return NULL;
    told[at].frame = NULL;
    tellings--;
    frames_held--;
    told_bytes -= (size_t)PyBytes_Size(frame);
    Py_DECREF(frame);
    return told[at].facts.model;
}

static void tell(PyObject *frame, const tw_facts *facts) {
    const size_t at = told_place(frame), bytes = (size_t)PyBytes_Size(frame);
    if (told_bytes + bytes > TOLD_BYTES) return;
    PyObject *model = facts->model == NULL ? NULL : Py_NewRef(facts->model);
    Py_INCREF(frame);
    PyObject *old_model = told_clear(at);
    told[at].frame = frame;
    told[at].facts = *facts;
    told[at].facts.model = model;
    tellings++;
    frames_held++;
    told_bytes += bytes;
    Py_XDECREF(old_model);
}

static const tw_facts *take_told(PyObject *object, PyObject **owner) {
    const size_t at = told_place(object);
    if (told[at].frame != object) return NULL;
    *owner = told_clear(at);
    return &told[at].facts;
}

const tw_facts *frame_take(PyObject *object, PyObject **owner) {
    const size_t at = place_of(object) % NOTED;
    if (__builtin_expect(tellings > 0, 0)) {
        const tw_facts *facts = take_told(object, owner);
        if (facts != NULL) return facts;
    }
    if (noted[at].frame != object) return NULL;
    *owner = noted[at].owner;
    noted[at].frame = noted[at].owner = NULL;
    frames_held--;
    Py_DECREF(object); /* the caller's message holds it too */
    return noted[at].facts;
}

/* forget_frames(): nobody is left to send them. */
PyObject *hot_forget_frames(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    noting = false;
    for (size_t at = 0; at < TOLD; at++) {
        PyObject *model = told_clear(at);
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
    const tw_facts *known = frame_take(args[0], &owner); /* its template knows the model */
    if (known != NULL) facts.model = known->model;
    if (noting) tell(args[0], &facts);
    Py_XDECREF(owner);
    return Py_NewRef(args[0]);
}

PyObject *hot_copy(PyObject *module, PyObject *frame) {
    (void)module;
    char *bytes;
    Py_ssize_t len;
    if (PyBytes_AsStringAndSize(frame, &bytes, &len) < 0) return NULL;
    return PyBytes_FromStringAndSize(bytes, len);
}

/* ---- Template ---- */

#define DIGITS 21 /* of a 64-bit number with its sign */

typedef struct TemplateObject {
    PyObject_HEAD
    tw_frame frame;
    PyObject *literal;  /* bytes: what the frame points into */
    PyObject *original; /* called with a text that has no UTF-8: raises what the imitated serialiser raises */
    size_t inside;      /* where in a bytes object its bytes begin */
    uint32_t numbers;   /* bit i: hole i holds a number */
    bool known;         /* facts hold for each of its frames */
    tw_facts facts;
} TemplateObject;

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

static inline int take_text(TemplateObject *self, PyObject *text, tw_filling *filling, PyObject **kept) {
    Py_ssize_t len;
    if (__builtin_expect(!PyUnicode_CheckExact(text), 0) && !PyUnicode_Check(text)) return bad_text("text", text);
    const char *utf8 = PyUnicode_AsUTF8AndSize(text, &len);
    if (__builtin_expect(utf8 == NULL, 0)) return lone_surrogates(self, text, filling, kept);
    *filling = (tw_filling){utf8, (size_t)len, 0, false};
    return 0;
}

static int take_number(PyObject *number, tw_filling *filling, char *digits) {
    if (!PyLong_CheckExact(number)) {
        PyErr_SetString(PyExc_TypeError, "number: expected int");
        return -1;
    }
    const long long value = PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) return -1;
    unsigned long long left = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    char *at = digits + DIGITS;
    do *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0) *--at = '-';
    *filling = (tw_filling){at, (size_t)(digits + DIGITS - at), 0, true};
    return 0;
}

static inline PyObject *make(TemplateObject *self, tw_filling *fillings) {
    const size_t len = tw_frame_len(&self->frame, fillings);
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (frame != NULL) tw_frame_write(&self->frame, fillings, (char *)frame + self->inside);
    return frame;
}

/* An empty text is no token, whatever the template's frames hold otherwise. */
static inline void note_made(TemplateObject *self, PyObject *frame) { note(frame, &self->facts, (PyObject *)self); }

static inline bool notable(const TemplateObject *self, size_t len) { return noting && self->known && len <= NOTED_BYTES; }

static inline PyObject *noted_frame(TemplateObject *self, PyObject *frame, size_t text_len, size_t len) {
    if (frame != NULL && text_len > 0 && notable(self, len)) note_made(self, frame);
    return frame;
}

__attribute__((noinline)) static PyObject *splice_any(TemplateObject *self, PyObject *text) {
    tw_filling filling;
    PyObject *kept = NULL;
    if (take_text(self, text, &filling, &kept) < 0) return NULL;
    PyObject *frame = make(self, &filling);
    noted_frame(self, frame, filling.len, frame == NULL ? 0 : (size_t)PyBytes_Size(frame));
    Py_XDECREF(kept);
    return frame;
}

/* What fill() does, for the one hole that nearly every template has and the few plain bytes that nearly every token is. */
static inline PyObject *splice(TemplateObject *self, PyObject *text) {
    Py_ssize_t text_len;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &text_len) : NULL;
    if (__builtin_expect(utf8 == NULL || !is_short_and_plain(utf8, (size_t)text_len), 0)) {
        PyErr_Clear();
        return splice_any(self, text);
    }
    const size_t head = self->frame.cut[0], tail = self->frame.cut[1] - head, len = head + tail + (size_t)text_len;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (frame == NULL) return NULL;
    char *out = (char *)frame + self->inside;
    memcpy(out, self->frame.bytes, head);
    copy_short(out + head, utf8, (size_t)text_len);
    memcpy(out + head + text_len, self->frame.bytes + head, tail);
    return noted_frame(self, frame, (size_t)text_len, len);
}

static PyObject *template_splice(PyObject *object, PyObject *text) {
    TemplateObject *self = (TemplateObject *)object;
    if (self->frame.holes == 1 && self->numbers == 0) return splice(self, text);
    PyErr_Format(PyExc_TypeError, "splice() is for a template with one hole, for a text; this one has %u: use fill()",
                 (unsigned)self->frame.holes);
    return NULL;
}

static int take_values(TemplateObject *self, PyObject *const *values, tw_filling *fillings, char (*digits)[DIGITS],
                       PyObject **kept) {
    for (uint32_t i = 0; i < self->frame.holes; i++) {
        const int failed = self->numbers >> i & 1 ? take_number(values[i], &fillings[i], digits[i])
                                                  : take_text(self, values[i], &fillings[i], &kept[i]);
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
    char digits[TW_FRAME_HOLES][DIGITS];
    PyObject *kept[TW_FRAME_HOLES] = {NULL}, *frame = NULL;
    if (n != (Py_ssize_t)self->frame.holes) {
        return PyErr_Format(PyExc_TypeError, "fill() takes %u values, one for each hole; %zd given",
                            (unsigned)self->frame.holes, n);
    }
    if (take_values(self, values, fillings, digits, kept) == 0) frame = make(self, fillings);
    if (frame != NULL && notable(self, (size_t)PyBytes_Size(frame)) && !has_empty_text(self, fillings)) note_made(self, frame);
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
    if ((*frame = make(self, fillings)) == NULL) return false;
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
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    template_clear(object);
    Py_CLEAR(self->literal);
    Py_CLEAR(self->facts.model);
    PyObject_GC_Del(object);
    Py_DECREF((PyObject *)type);
}

#define FASTCALL(function) (PyCFunction)(void (*)(void))(function)
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

/* ---- Encoder ---- */

/* What one answer's encoder keeps: the template of its content frames, and, where those are numbered, the next number. */
typedef struct EncoderObject {
    PyObject_HEAD
    TemplateObject *content;
    unsigned long long sequence;
} EncoderObject;

static PyObject *numbered(EncoderObject *self, PyObject *text) {
    TemplateObject *template = self->content;
    tw_filling fillings[2];
    char digits[DIGITS];
    PyObject *kept = NULL, *number = PyLong_FromUnsignedLongLong(self->sequence), *frame = NULL;
    const uint32_t at = template->numbers & 1 ? 1 : 0; /* of the text */
    if (number != NULL && take_number(number, &fillings[1 - at], digits) == 0 && take_text(template, text, &fillings[at], &kept) == 0)
        frame = make(template, fillings);
    if (frame != NULL) self->sequence++;
    if (frame != NULL && notable(template, (size_t)PyBytes_Size(frame)) && fillings[at].len > 0) note_made(template, frame);
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
    if (self->content->numbers == 0) return splice(self->content, args[0]);
    return numbered(self, args[0]);
}

static int encoder_clear(PyObject *object);

/* Of one text hole, or of one and a number: what content() fills. None: nothing, the subclass's _content() is asked. */
static int set_template(PyObject *object, PyObject *value, void *unused) {
    (void)unused;
    EncoderObject *self = (EncoderObject *)object;
    if (value == Py_None) return encoder_clear(object);
    const int is_template = value != NULL && PyType_GetSlot(Py_TYPE(value), Py_tp_dealloc) == (void *)template_dealloc;
    const TemplateObject *template = (TemplateObject *)value;
    if (!is_template || !((template->frame.holes == 1 && template->numbers == 0) ||
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
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    encoder_clear(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF((PyObject *)type);
}

static const char content_text[] =
    "content($self, text, /, **options)\n--\n\n"
    "The frame of a piece of generated text: bytes, ready to send.\n\n"
    "index: its choice. tokens: how many tokens the text is, for tailwatch's counts. logprobs, usage: what goes there,\n"
    "where the stream has them. With text alone it is made by one allocation and a copy.";
static PyMethodDef content_method = {"content", FASTCALL(encoder_content), METH_FASTCALL | METH_KEYWORDS, content_text};

/* Whether what the subclass would inherit as content() is ours, a method made in C: somebody else's, in it or before us,
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
