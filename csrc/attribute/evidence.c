#include "attribute/evidence.h"

#include <stdbool.h>
#include <stddef.h>

_Static_assert(TW_EVIDENCE > TW_EVIDENCE_KINDS, "a kind has two places where another has none");

static bool is_same(const tw_evidence *a, const tw_evidence *b) {
    return a->kind == b->kind && a->detail == b->detail && (a->kind == TW_SPAN_GIL || a->name == b->name);
}

static tw_evidence *find(tw_evidence_table *t, const tw_evidence *like) {
    for (uint32_t i = 0; i < t->n; i++)
        if (is_same(&t->of[i], like)) return &t->of[i];
    return NULL;
}

/* NULL: there is none. */
static tw_evidence *smallest_of(tw_evidence_table *t, tw_span_kind kind) {
    tw_evidence *found = NULL;
    for (tw_evidence *e = t->of; e < t->of + t->n; e++)
        if (e->kind == kind && (found == NULL || e->ns < found->ns)) found = e;
    return found;
}

static bool has_another(const tw_evidence_table *t, tw_span_kind kind) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) n += t->of[i].kind == kind;
    return n > 1;
}

/* Of a full table: the smallest place whose kind has another one. */
static tw_evidence *place_in(tw_evidence_table *t) {
    tw_evidence *found = NULL;
    for (tw_evidence *e = t->of; e < t->of + t->n; e++)
        if (has_another(t, e->kind) && (found == NULL || e->ns < found->ns)) found = e;
    return found;
}

/* Two of one kind become one. What is longer than all that is there gives the name; an unknown holder gives none. */
static void unite(tw_evidence *to, const tw_evidence *e) {
    const uint64_t ns = to->ns + e->ns;
    const bool is_known = e->kind != TW_SPAN_GIL || e->detail != 0 || to->detail == 0;
    if (e->ns > to->ns && is_known) *to = *e;
    to->ns = ns;
}

static void squeeze(tw_evidence_table *t, const tw_evidence *e) {
    tw_evidence *to = smallest_of(t, e->kind);
    if (to != NULL) {
        unite(to, e);
        return;
    }
    tw_evidence *place = place_in(t);
    const tw_evidence gone = *place;
    *place = *e;
    unite(smallest_of(t, gone.kind), &gone);
}

void tw_evidence_add(tw_evidence_table *t, const tw_evidence *e) {
    tw_evidence *found = find(t, e);
    if (found != NULL) unite(found, e);
    else if (t->n < TW_EVIDENCE) t->of[t->n++] = *e;
    else squeeze(t, e);
}

uint64_t tw_evidence_sum(const tw_evidence_table *t, tw_span_kind first, tw_span_kind last) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->of[i].kind >= first && t->of[i].kind <= last) ns += t->of[i].ns;
    return ns;
}
