/* What spans show of an interval, added up by kind, name and detail: a table of few places that loses no time. Waits for the
 * interpreter lock are one by their holder, wherever the thread waited: a long one gives the name.
 *
 * Thread rule: one user at a time.
 */
#pragma once

#include "tailwatch/record/host_track.h"

#include <stdbool.h>

/* Kinds beside tw_span_kind: a handle of the request, a sample in the context of the code that runs now. */
#define TW_OWN_HANDLE TW_SPAN_KINDS
#define TW_OWN_RUN (TW_SPAN_KINDS + 1)
#define TW_EVIDENCE_KINDS (TW_SPAN_KINDS + 2)

#define TW_EVIDENCE 12

typedef struct tw_evidence {
    uint64_t ns, name, detail;
    tw_span_kind kind; /* or TW_OWN_HANDLE, TW_OWN_RUN */
    tw_certainty certainty;
} tw_evidence;

typedef struct tw_evidence_table {
    uint32_t n;
    tw_evidence of[TW_EVIDENCE];
} tw_evidence_table;

/* Samples of code. */
static inline bool tw_evidence_is_sample(tw_span_kind kind) { return kind == TW_SPAN_RUN || kind == TW_OWN_RUN; }

/* Adds it to what is the same, or as one more. Where no place is left it joins the smallest of its kind; the first of a
 * kind takes the smallest place of those that have another of their own kind, which what was there joins. */
void tw_evidence_add(tw_evidence_table *t, const tw_evidence *e);

/* The sum of the kinds from first to last, ns. */
uint64_t tw_evidence_sum(const tw_evidence_table *t, tw_span_kind first, tw_span_kind last);
