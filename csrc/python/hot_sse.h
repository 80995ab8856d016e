/* Frames: bytes made from a template, and the few made last, which Send knows again without looking at their bytes. */
#ifndef TAILWATCH_HOT_SSE_H
#define TAILWATCH_HOT_SSE_H

#include "hot.h"

#include "tailwatch/sse.h"

/* What a frame holds: what tw_scan_feed would find in it. */
typedef struct tw_facts {
    uint32_t tokens, choice;
    uint64_t usage_tokens;
    bool done, error;
    PyObject *model; /* bytes as they stand in the frame, or NULL */
} tw_facts;

extern PyType_Spec tw_template_spec, tw_encoder_spec;

/* From now on frames are kept: there is somebody to send them. */
void frame_noting(void);

/* How many are kept: with none, as in an app without our encoders, nothing is looked for. */
extern size_t frames_held;

/* What the object holds, if it is a frame made lately; it is forgotten with this. The facts live until *owner (which may
 * be NULL) is released, and no longer than until the next frame is made. */
const tw_facts *frame_take(PyObject *object, PyObject **owner);

/* copy(frame, /): an allocation and a memcpy, the floor that benchmarks compare an encoder with. */
PyObject *hot_copy(PyObject *module, PyObject *frame);
/* forget_frames(): keeps none from now on, until there is a core again. */
PyObject *hot_forget_frames(PyObject *module, PyObject *unused);
/* note(frame, tokens, choice, usage_tokens, done, error, /) -> frame: for frames that were not made from a template. */
PyObject *hot_note(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
