/* The frames made last, which Send finds again without looking at their bytes. */
#pragma once

#include "python/module.h"

#include <stdbool.h>
#include <stdint.h>

/* What a frame holds: what tw_scan_feed would find in it. */
typedef struct tw_facts {
    uint32_t tokens, choice;
    uint64_t usage_tokens;
    bool done, error;
    PyObject *model; /* bytes as they stand in the frame, or NULL */
} tw_facts;

#define FRAME_NOTED_BYTES 16384 /* longer frames are not held */

/* From now on frames are kept: there is a Send for them. */
void frame_noting(void);
extern bool frames_noting;

/* How many are kept: with none, as in an app without our encoders, nothing is looked for. */
extern size_t frames_held;

/* Keeps a frame and what it holds; the facts live as long as owner, which is held with it. */
void frame_note(PyObject *frame, const tw_facts *facts, PyObject *owner);

/* What the object holds, if it is a frame made lately; it is forgotten with this. The facts live until *owner (which may
 * be NULL) is released, and no longer than until the next frame is made. */
const tw_facts *frame_take(PyObject *object, PyObject **owner);

/* forget_frames(): keeps none from now on, until there is a core again. */
PyObject *hot_forget_frames(PyObject *module, PyObject *unused);
/* note(frame, tokens, choice, usage_tokens, done, error, /) -> frame: for frames that were not made from a template. */
PyObject *hot_note(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
