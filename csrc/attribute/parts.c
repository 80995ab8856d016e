#include "tailwatch/attribute/parts.h"

#include <stdbool.h>
#include <stddef.h>

#include "base/arithmetic.h"
#include "tailwatch/record/enums.h"

/* What ran, or who held the interpreter lock, wherever the thread waited for that. */
static bool is_same_name(const tw_part *a, const tw_part *b) {
    const bool held = a->detail_kind == TW_DETAIL_HOLDER && b->detail_kind == TW_DETAIL_HOLDER;
    return a->name == b->name || (held && a->detail != 0 && a->detail == b->detail);
}

static bool same(const tw_part *a, const tw_part *b) {
    return a->cause == b->cause && a->certainty == b->certainty && a->source == b->source && is_same_name(a, b);
}

static tw_part *find(tw_parts *to, const tw_part *part) {
    for (uint32_t i = 0; i < to->n; i++)
        if (same(&to->part[i], part)) return &to->part[i];
    return NULL;
}

/* The smallest part of a cause and source; NULL: none. */
static tw_part *smallest_of(tw_parts *to, const tw_part *like) {
    tw_part *found = NULL;
    for (uint32_t i = 0; i < to->n; i++) {
        tw_part *p = &to->part[i];
        if (p->cause == like->cause && p->source == like->source && (found == NULL || p->ns < found->ns)) found = p;
    }
    return found;
}

/* The smallest part but for one. */
static tw_part *smallest(tw_parts *to, const tw_part *except) {
    tw_part *found = NULL;
    for (uint32_t i = 0; i < to->n; i++)
        if (&to->part[i] != except && (found == NULL || to->part[i].ns < found->ns)) found = &to->part[i];
    return found;
}

/* Of two holders of the interpreter lock that of the larger part is kept, unless it is not known. */
static void join_holder(tw_part *to, const tw_part *part) {
    if (part->detail_kind != TW_DETAIL_HOLDER || part->detail == 0) return;
    if (to->detail == 0 || part->ns > to->ns) to->detail = part->detail;
}

static void join(tw_part *to, const tw_part *part) {
    if (to->detail_kind == TW_DETAIL_FAULTS || to->detail_kind == TW_DETAIL_TOKENS) to->detail += part->detail;
    if (to->detail_kind == TW_DETAIL_HOLDER) join_holder(to, part);
    to->ns += part->ns;
}

/* Two parts of one cause become one: the larger gives the name, the less certain the certainty. */
static void unite(tw_part *to, const tw_part *part) {
    const uint64_t ns = to->ns + part->ns;
    const uint8_t certainty = to->certainty > part->certainty ? to->certainty : part->certainty;
    if (part->ns > to->ns) *to = *part;
    to->ns = ns;
    to->certainty = certainty;
}

/* No place is left: the smallest of all parts makes room, its time is unexplained from then on. */
static void squeeze(tw_parts *to, const tw_part *part) {
    const tw_part none = {0, 0, TW_DELAY_UNEXPLAINED, TW_MEASURED, 0, TW_DETAIL_NONE, 0};
    tw_part *same_cause = smallest_of(to, part), *unexplained = smallest_of(to, &none), gone = *part;
    if (same_cause != NULL) {
        unite(same_cause, part);
        return;
    }
    tw_part *least_part = smallest(to, unexplained);
    if (least_part->ns < gone.ns) {
        gone = *least_part;
        *least_part = *part;
    }
    if (unexplained == NULL) {
        unexplained = smallest(to, NULL);
        gone.ns += unexplained->ns;
        *unexplained = none;
    }
    unexplained->ns += gone.ns;
}

void tw_parts_add(tw_parts *to, const tw_part *part) {
    if (part->ns == 0) return;
    tw_part *found = find(to, part);
    if (found != NULL) join(found, part);
    else if (to->n < TW_PARTS) to->part[to->n++] = *part;
    else squeeze(to, part);
}

void tw_parts_measured(tw_parts *to, int cause, uint64_t ns) {
    tw_parts_add(to, &(tw_part){.ns = ns, .cause = (uint8_t)cause, .certainty = TW_MEASURED});
}

uint64_t tw_parts_sum(const tw_parts *parts) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; i++) ns += parts->part[i].ns;
    return ns;
}

uint64_t tw_parts_sum_of(const tw_parts *parts, int first, int last) {
    uint64_t ns = 0;
    for (uint32_t i = 0; i < parts->n; i++)
        if (parts->part[i].cause >= first && parts->part[i].cause <= last) ns += parts->part[i].ns;
    return ns;
}

void tw_parts_clip(tw_parts *parts, uint64_t ns) {
    const uint64_t whole = tw_parts_sum(parts);
    uint64_t seen = 0, dealt = 0;
    if (whole <= ns) return;
    for (uint32_t i = 0; i < parts->n; i++) {
        seen += parts->part[i].ns;
        const uint64_t upto = (uint64_t)((wide)ns * seen / whole);
        parts->part[i].ns = upto - dealt;
        dealt = upto;
    }
}
