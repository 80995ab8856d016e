/* What makes up a snapshot, one file a part: each is taken from segments, and subtracted. Private.
 *
 * Functions that return int return 0 or ENOMEM; what is made by then, tw_snapshot_free() gives back.
 */
#pragma once

#include "tailwatch/aggregate/snapshot.h"

/* ---- counts, which are kept only where there are any ---- */

int tw_snapshot_counts_keep(tw_counts **sum, const tw_counts *more);
int tw_snapshot_histogram_keep(tw_counts **sum, const tw_histogram *h);
/* *counts becomes a copy of later less earlier. Both may be NULL. */
int tw_snapshot_counts_rest(tw_counts **counts, const tw_counts *later, const tw_counts *earlier,
                            const tw_layout *layout);
void tw_snapshot_counts_free(tw_counts **counts, size_t n);

/* ---- label sets (snapshot_series.c) ---- */

int tw_snapshot_names_compare(const char *a_model, const char *a_route, const char *b_model, const char *b_route);
/* Those of a segment that are in use: beyond them there may be no memory. */
size_t tw_snapshot_sets_in_use(const tw_segment *g);
/* Those of a snapshot are sorted by their names. NULL: it has none of these. */
const tw_snapshot_series *tw_snapshot_find_series(const tw_snapshot *s, const char *model, const char *route);
int tw_snapshot_take_series(tw_snapshot *s, const tw_segment *const *segments, size_t n);
int tw_snapshot_subtract_series(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier);
void tw_snapshot_free_series(tw_snapshot *s);

/* ---- label sets of the past (label_sets.c) ---- */

#define TW_LABEL_SETS_KEPT 64 /* of a snapshot with more none are kept */

typedef struct tw_label_sets tw_label_sets;
/* NULL: too many, or no memory. */
tw_label_sets *tw_label_sets_keep(const tw_snapshot *s);
size_t tw_label_sets_bytes(const tw_label_sets *kept);
void tw_label_sets_free(tw_label_sets *kept);
/* Into s->series, which tw_snapshot_free_series() gives back; also after ENOMEM. */
int tw_label_sets_show(const tw_label_sets *kept, tw_snapshot *s);

/* ---- processes (snapshot_processes.c) ---- */

int tw_snapshot_take_processes(tw_snapshot *s, const tw_segment *const *segments, size_t n);
/* Adds what a process has counted; what is allocated stays as it is. */
void tw_snapshot_add_process(tw_snapshot_process *to, const tw_snapshot_process *from);
int tw_snapshot_subtract_processes(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier);
void tw_snapshot_free_processes(tw_snapshot *s);

/* ---- engines (snapshot_engines.c) ---- */

/* *out: NULL where no step was read. */
int tw_snapshot_take_engine(tw_snapshot_engine **out, const tw_segment *g);
/* Of one name, the older first. from is *to's, or freed. */
void tw_snapshot_join_engine(tw_snapshot_engine **to, tw_snapshot_engine *from);
/* earlier may be NULL. The last steps are those that ended after a time. */
int tw_snapshot_subtract_engine(tw_snapshot_engine **out, const tw_snapshot_engine *later,
                                const tw_snapshot_engine *earlier, uint64_t after_ns);
void tw_snapshot_free_engine(tw_snapshot_engine *engine);
/* *to += from, where both may be NULL; from is *to's, or freed. */
void tw_snapshot_counts_join(tw_counts **to, tw_counts *from);

/* ---- stream time by role, and slow gaps (snapshot_delays.c) ---- */

/* A process's own role is there from the start; others once they cost something. */
void tw_snapshot_take_lost(tw_snapshot *s, const tw_segment *g);
void tw_snapshot_subtract_lost(tw_snapshot *out, const tw_snapshot *earlier);
/* After tw_snapshot_take_lost of all segments. */
int tw_snapshot_take_slow_gaps(tw_snapshot *s, const tw_segment *const *segments, size_t n);
/* Those that ended after a time. */
int tw_snapshot_copy_slow_gaps(tw_snapshot *out, const tw_snapshot *from, uint64_t after_ns);

/* ---- the last hour (snapshot_seconds.c) ---- */

int tw_snapshot_take_seconds(tw_snapshot *s, const tw_segment *const *segments, size_t n);
int tw_snapshot_copy_seconds(tw_snapshot *out, const tw_snapshot *from);

/* ---- fallbacks (snapshot_fallbacks.c) ---- */

/* A kind that a writer adds meanwhile is the next snapshot's. */
int tw_snapshot_take_fallbacks(tw_snapshot *s, const tw_segment *const *segments, size_t n);
int tw_snapshot_subtract_fallbacks(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier);

/* ---- exemplars (snapshot_exemplars.c) ---- */

/* After the label sets. A difference has none. */
int tw_snapshot_take_exemplars(tw_snapshot *s, const tw_segment *const *segments, size_t n);
