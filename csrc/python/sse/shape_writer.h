/* Plan: how one shape of an object becomes JSON, learned elsewhere. Plans: those of one class, tried in turn. */
#pragma once

#include "python/module.h"

#include "tailwatch/wire/sse_encode.h"

#define TW_PLAN_HOLES 64
#define TW_PLAN_NODES 1024
#define TW_PLAN_DEPTH 32 /* nodes within nodes: the match recurses */

typedef struct tw_plan_node tw_plan_node;

typedef struct PlanObject {
    PyObject_HEAD
    tw_plan_node *nodes;
    uint32_t count;
    PyObject *name;
    PyObject *fields_set, *extra;        /* descriptors of pydantic's slots, and what reads them */
    descrgetfunc get_fields_set, get_extra;
    PyObject *literal;                   /* bytes; NULL: objects of this shape are left to the original */
    uint32_t holes, cut[TW_PLAN_HOLES + 1];
    uint64_t uses, check_at;             /* kept by Plans */
    bool retired;                        /* its text was once not the original's: left to the original for good */
} PlanObject;

typedef struct tw_plan_value {
    tw_filling filling;
    PyObject *held;
    char digits[21];                     /* of a 64-bit number with its sign */
} tw_plan_value;

/* What an object holds for the plan's holes. Not cleared: only values[0, held) are set. */
typedef struct tw_plan_reading {
    uint32_t held;
    uint32_t order[TW_PLAN_HOLES];
    tw_plan_value values[TW_PLAN_HOLES];
} tw_plan_reading;

/* 1: the object has the plan's shape, and the reading holds its values until plan_forget(). 0: it has not. -1: an
 * exception is set. In every case plan_forget() is due. */
int plan_read(PlanObject *plan, PyObject *object, tw_plan_reading *reading);
void plan_forget(tw_plan_reading *reading);

/* The text made of the reading: a new str. */
PyObject *plan_text(PlanObject *plan, tw_plan_reading *reading);
