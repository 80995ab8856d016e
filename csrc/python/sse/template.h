/* Template: bytes with holes for texts and numbers, filled by one allocation. */
#pragma once

#include "python/stamp/recent_frames.h"
#include "python/sse/short_copy.h"

#include "tailwatch/wire/sse_encode.h"

#include <string.h>

#define TEMPLATE_DIGITS 21 /* of a 64-bit number with its sign */

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

bool is_template(PyObject *object);

/* What stands in a text hole. *kept holds its bytes, where they are not the string's own, until the frame is written.
 * -1: an exception is set. */
int template_text(TemplateObject *self, PyObject *text, tw_filling *filling, PyObject **kept);

/* What stands in a number hole; digits: TEMPLATE_DIGITS of them. -1: an exception is set. */
int template_number(PyObject *number, tw_filling *filling, char *digits);

/* A frame with the fillings in its holes; NULL: an exception is set. */
PyObject *template_make(TemplateObject *self, tw_filling *fillings);

/* A frame with any text in its one hole, escaped. */
PyObject *template_splice_any(TemplateObject *self, PyObject *text);

/* An empty text is no token, whatever the template's frames hold otherwise. */
static inline void template_note(TemplateObject *self, PyObject *frame) { frame_note(frame, &self->facts, (PyObject *)self); }

static inline bool template_is_notable(const TemplateObject *self, size_t len) {
    return frames_noting && self->known && len <= FRAME_NOTED_BYTES;
}

static inline PyObject *template_noted(TemplateObject *self, PyObject *frame, size_t text_len, size_t len) {
    if (frame != NULL && text_len > 0 && template_is_notable(self, len)) template_note(self, frame);
    return frame;
}

/* What fill() does, for the one hole that nearly every template has and the few plain bytes that nearly every token is. */
static inline PyObject *template_of_text(TemplateObject *self, PyObject *text) {
    Py_ssize_t text_len;
    const char *utf8 = PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &text_len) : NULL;
    if (__builtin_expect(utf8 == NULL || !is_short_and_plain(utf8, (size_t)text_len), 0)) {
        PyErr_Clear();
        return template_splice_any(self, text);
    }
    const size_t head = self->frame.cut[0], tail = self->frame.cut[1] - head, len = head + tail + (size_t)text_len;
    PyObject *frame = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)len);
    if (frame == NULL) return NULL;
    char *out = (char *)frame + self->inside;
    memcpy(out, self->frame.bytes, head);
    copy_short(out + head, utf8, (size_t)text_len);
    memcpy(out + head + text_len, self->frame.bytes + head, tail);
    return template_noted(self, frame, (size_t)text_len, len);
}
