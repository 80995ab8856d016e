/* A trace being written: tracks, and points on them, as the bytes of a Perfetto file or of Chrome JSON.
 *
 * Nothing in it is about what is traced (that is trace_export.h). Memory is bounded by the names and tracks, never by the
 * points: bytes leave in chunks of at most TW_TIMELINE_CHUNK (a single larger point makes one larger chunk).
 *
 * Times are CLOCK_MONOTONIC, ns. Points of a track may come in any order; in the order of time they are smallest: a point
 * that is older than the newest of its sequence costs eight bytes more. Begin and end must nest on each track, in the
 * order of time; of points at one instant the order in which they come counts.
 *
 * Perfetto: trace time is CLOCK_MONOTONIC. Names are sent once for each sequence; a point carries its number. JSON: ts is
 * CLOCK_MONOTONIC in us, and baseTimeNanoseconds what CLOCK_REALTIME was ahead, the convention of viztracer and torch.
 *
 * Thread rule: one thread at a time. Cold path: allocates. Once it failed (no memory, or write returned false) every call does
 * nothing and tw_timeline_finish returns why.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_TIMELINE_CHUNK (256U << 10)

typedef enum tw_timeline_format { TW_TIMELINE_PERFETTO, TW_TIMELINE_JSON, TW_TIMELINE_FORMATS } tw_timeline_format;

/* Takes the next bytes of the file; false: no more are wanted. */
typedef bool (*tw_timeline_write)(void *to, const void *bytes, size_t len);

typedef struct tw_timeline tw_timeline;

/* 0, EINVAL or ENOMEM. */
int tw_timeline_create(tw_timeline **out, int format, tw_timeline_write write, void *to);

/* The same into a file descriptor, which stays the caller's. Short writes and EINTR are handled. */
int tw_timeline_create_fd(tw_timeline **out, int format, int fd);

/* Writes what is left; again: nothing more. Nothing may be added then. 0, ENOMEM, or why the writing failed (EIO where
 * the caller's function returned false). */
int tw_timeline_finish(tw_timeline *t);

/* Also of one that is not finished. NULL does nothing. */
void tw_timeline_free(tw_timeline *t);

/* Bytes so far, those not yet handed out included. */
uint64_t tw_timeline_bytes(const tw_timeline *t);

/* The clocks beside each other; before all else, the oldest first. In JSON the last one gives baseTimeNanoseconds. */
void tw_timeline_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n);

/* The number of a text, from 1, the same for the same text. 0: failed. Any bytes; those that are no UTF-8 become '?'. */
uint32_t tw_timeline_name(tw_timeline *t, const char *text, size_t len);

/* A new sequence: points of one are written together and mostly in the order of time. 0: failed. */
uint32_t tw_timeline_sequence(tw_timeline *t);

typedef enum tw_track_kind {
    TW_TRACK_PROCESS,
    TW_TRACK_THREAD,
    TW_TRACK_SLICES,  /* a row of its own below its parent; rows of one name and parent are shown as one */
    TW_TRACK_COUNTER,
    TW_TRACK_KINDS
} tw_track_kind;

typedef struct tw_track {
    uint32_t kind, sequence;
    uint32_t parent;          /* a track, or 0 */
    uint32_t rank;            /* among the children of its parent: smaller stands higher */
    uint32_t name, unit;      /* names; unit of a counter, or 0 */
    int32_t pid;              /* of a process or thread, as the kernel has it */
    int64_t tid;
} tw_track;

/* Describes a track and gives its number, from 1. 0: failed, or a parent or sequence that does not exist. */
uint32_t tw_timeline_track(tw_timeline *t, const tw_track *track);

/* The last track of a process or thread with these numbers; 0: there is none. A second one would be taken for another
 * process that was given the same pid. */
uint32_t tw_timeline_find(const tw_timeline *t, tw_track_kind kind, int32_t pid, int64_t tid);

typedef enum tw_point_type {
    TW_POINT_BEGIN = 1,
    TW_POINT_END,
    TW_POINT_INSTANT,
    TW_POINT_COUNTER,         /* value: int64_t */
    TW_POINT_COUNTER_DOUBLE,  /* value: bits of a double; one that is not finite is written as 0 */
    TW_POINT_TYPES
} tw_point_type;

typedef enum tw_arg_kind { TW_ARG_UINT, TW_ARG_INT, TW_ARG_DOUBLE, TW_ARG_BOOL, TW_ARG_NAME, TW_ARG_KINDS } tw_arg_kind;

/* One argument of a point. value: a number, bits of a double, or the number of a name. */
typedef struct tw_arg {
    uint32_t name, kind;
    uint64_t value;
} tw_arg;

/* 48 bytes. Arguments and flows stand in arrays beside the points. A flow is an arrow from the point that starts its id
 * to the one that ends it; each id is started once and ended once. */
typedef struct tw_point {
    uint64_t at_ns;
    uint64_t value;           /* of a counter */
    uint32_t track, name;     /* name 0: none */
    uint32_t category, type;  /* category: a name, or 0 */
    uint32_t arg_at, flow_at; /* the first of its args, and of its flows: those it starts, then those it ends */
    uint16_t args, starts, ends, spare;
} tw_point;

/* Writes n points. Returns how many were written: all but those that refer to a track, name, arg or flow that does not
 * exist, are of no type, or begin or end on a counter, or count on another track. */
size_t tw_timeline_points(tw_timeline *t, const tw_point *points, size_t n, const tw_arg *args, size_t n_args,
                          const uint64_t *flows, size_t n_flows);

TW_END_C
