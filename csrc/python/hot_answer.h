/* Answer: what a load client sees of one answer after the other on one connection (answer.h). */
#ifndef TAILWATCH_HOT_ANSWER_H
#define TAILWATCH_HOT_ANSWER_H

#include "hot.h"

extern PyType_Spec tw_answer_spec;

#endif
