/* Answer: what a load client sees of one answer after the other on one connection (answer.h). */
#ifndef TAILWATCH_HOT_ANSWER_H
#define TAILWATCH_HOT_ANSWER_H

#include "hot.h"

extern PyType_Spec tw_answer_spec;

/* record_gaps(stamps, histogram, layout, /): stamps are 8 bytes each, histogram the address of a tw_histogram. */
PyObject *hot_record_gaps(PyObject *module, PyObject *args);
/* mark_gaps(stamps, pauses, /) -> (marked, clear_ns): pauses are pairs of start and stop, see tw_gaps_mark. */
PyObject *hot_mark_gaps(PyObject *module, PyObject *args);

#endif
