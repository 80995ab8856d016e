/* The pauses of all processes, and which gaps they fell into. */
#include "trace/trace_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/grow.h"
#include "base/tw_malloc.h"

#define ARROW_IDS (UINT64_C(0x5457) << 48) /* so that arrows of other traces beside these are others */

uint64_t tw_arrow_id(uint32_t arrow) { return ARROW_IDS + arrow + 1; }

static uint64_t length(const tw_long_pause *p) { return p->stop_ns - p->start_ns; }

/* Too many: keeps those of twice the length. */
static void thin(tw_pauses *p) {
    while (p->n >= TW_TRACE_PAUSES) {
        p->shortest_ns *= 2;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < p->n; i++)
            if (length(&p->pause[i]) >= p->shortest_ns) p->pause[kept++] = p->pause[i];
        p->left_out += p->n - kept;
        if (p->shortest_ns >> 62 != 0 && kept == p->n) p->n = kept / 2; /* lies, all of one length */
        else p->n = kept;
    }
}

int tw_pauses_add(tw_pauses *p, const tw_long_pause *pause) {
    if (length(pause) < p->shortest_ns) return 0;
    if (p->n >= TW_TRACE_PAUSES) thin(p);
    if (length(pause) < p->shortest_ns) return 0;
    if (!tw_grow(&p->pause, p->n, &p->room, sizeof *p->pause)) return ENOMEM;
    p->pause[p->n++] = *pause;
    return 0;
}

static int by_process_and_start(const void *a, const void *b) {
    const tw_long_pause *x = a, *y = b;
    if (x->process != y->process) return x->process < y->process ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    return x->stop_ns < y->stop_ns ? -1 : x->stop_ns > y->stop_ns;
}

/* One process pauses once at a time: where a file has it otherwise, the later one begins at the earlier one's end, so that
 * ends are in order too; what is too short then goes. */
static void untangle(tw_pauses *p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        tw_long_pause now = p->pause[i];
        const tw_long_pause *before = kept != 0 ? &p->pause[kept - 1] : NULL;
        if (before != NULL && before->process == now.process && now.start_ns < before->stop_ns)
            now.start_ns = before->stop_ns;
        if (now.stop_ns > now.start_ns && length(&now) >= TW_PAUSE_SHORT_NS) p->pause[kept++] = now;
    }
    p->n = kept;
}

int tw_pauses_sort(tw_pauses *p, uint32_t processes) {
    if (p->n > 1) qsort(p->pause, p->n, sizeof *p->pause, by_process_and_start);
    untangle(p);
    p->first = tw_calloc(processes + 1, sizeof *p->first);
    p->waited = tw_calloc(processes, sizeof *p->waited);
    p->engine = tw_calloc(processes, sizeof *p->engine);
    if (p->first == NULL || p->waited == NULL || p->engine == NULL) return ENOMEM;
    p->processes = processes;
    uint32_t at = 0;
    for (uint32_t process = 0; process <= processes; process++) {
        while (at < p->n && p->pause[at].process < process) at++;
        p->first[process] = at;
    }
    return 0;
}

void tw_pauses_free(tw_pauses *p) {
    tw_free(p->pause);
    tw_free(p->first);
    tw_free(p->waited);
    tw_free(p->engine);
    tw_free(p->still);
    tw_free(p->arrow);
}

/* ---- whose pauses count ---- */

static int by_start(const void *a, const void *b) {
    const tw_stretch *x = a, *y = b;
    return x->from_ns < y->from_ns ? -1 : x->from_ns > y->from_ns;
}

static uint32_t join(tw_stretch *s, uint32_t n) {
    uint32_t joined = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (joined != 0 && s[i].from_ns <= s[joined - 1].to_ns) {
            if (s[i].to_ns > s[joined - 1].to_ns) s[joined - 1].to_ns = s[i].to_ns;
        } else s[joined++] = s[i];
    }
    return joined;
}

int tw_pauses_for(tw_pauses *p, uint32_t process, const bool *waits) {
    p->waited_n = p->still_n = p->hint = 0;
    p->own = (uint16_t)process;
    if (p->still_room < p->n) {
        tw_free(p->still);
        p->still = tw_malloc(p->n * sizeof *p->still);
        p->still_room = p->still != NULL ? p->n : 0;
        if (p->still == NULL) return ENOMEM;
    }
    for (uint32_t other = 0; other < p->processes; other++) {
        if (other != process && !waits[other]) continue;
        p->waited[p->waited_n++] = (uint16_t)other;
        for (uint32_t i = p->first[other]; i < p->first[other + 1]; i++)
            p->still[p->still_n++] = (tw_stretch){p->pause[i].start_ns, p->pause[i].stop_ns};
    }
    if (p->still_n > 1) qsort(p->still, p->still_n, sizeof *p->still, by_start);
    p->still_n = join(p->still, p->still_n);
    return 0;
}

/* ---- gaps ---- */

bool tw_pauses_touch(tw_pauses *p, uint64_t from_ns, uint64_t to_ns) {
    while (p->hint < p->still_n && p->still[p->hint].from_ns < to_ns) p->hint++;
    uint32_t at = p->hint;
    if (__builtin_expect(at > 0 && p->still[at - 1].from_ns >= to_ns, 0)) { /* an older gap than the one before */
        uint32_t low = 0;
        while (low < at) {
            const uint32_t middle = low + (at - low) / 2;
            if (p->still[middle].from_ns < to_ns) low = middle + 1;
            else at = middle;
        }
    }
    return at > 0 && p->still[at - 1].to_ns > from_ns;
}

/* How many of [first, end) begin before to_ns. */
static uint32_t begun(const tw_pauses *p, uint32_t first, uint32_t end, uint64_t to_ns) {
    uint32_t low = first;
    while (low < end) {
        const uint32_t middle = low + (end - low) / 2;
        if (p->pause[middle].start_ns < to_ns) low = middle + 1;
        else end = middle;
    }
    return low;
}

static bool draw(tw_pauses *p, uint32_t pause, uint64_t *id) {
    if (p->arrow_n == TW_TRACE_ARROWS || !tw_grow(&p->arrow, p->arrow_n, &p->arrow_room, sizeof *p->arrow)) {
        p->arrows_left_out++;
        return false;
    }
    *id = tw_arrow_id(p->arrow_n);
    p->arrow[p->arrow_n++] = pause;
    p->pause[pause].arrows++;
    return true;
}

/* A stretch among others that do not overlap: what of it is new. */
static uint64_t new_part(tw_stretch *seen, uint32_t *n, tw_stretch s) {
    uint64_t covered = 0;
    for (uint32_t i = 0; i < *n; i++) {
        const uint64_t from = s.from_ns > seen[i].from_ns ? s.from_ns : seen[i].from_ns;
        const uint64_t to = s.to_ns < seen[i].to_ns ? s.to_ns : seen[i].to_ns;
        if (to > from) covered += to - from;
    }
    seen[(*n)++] = s;
    return s.to_ns - s.from_ns > covered ? s.to_ns - s.from_ns - covered : 0;
}

/* Whether a process may have delayed a token of the process at hand, which that engine served. */
static bool may_delay(const tw_pauses *p, uint32_t process, uint32_t engine) {
    if (process == p->own || engine == 0) return true;
    return engine != TW_ENGINE_NONE && (p->engine[process] == 0 || p->engine[process] == engine);
}

uint32_t tw_pauses_hit(tw_pauses *p, uint64_t from_ns, uint64_t to_ns, uint32_t engine, uint64_t ids[TW_TRACE_ARROWS_EACH],
                       uint64_t *overlap_ns) {
    tw_stretch seen[TW_TRACE_ARROWS_EACH];
    uint32_t drawn = 0, looked = 0;
    *overlap_ns = 0;
    for (uint32_t w = 0; w < p->waited_n; w++) {
        if (!may_delay(p, p->waited[w], engine)) continue;
        const uint32_t first = p->first[p->waited[w]];
        for (uint32_t i = begun(p, first, p->first[p->waited[w] + 1], to_ns); i-- > first && p->pause[i].stop_ns > from_ns;) {
            const tw_long_pause *pause = &p->pause[i];
            const tw_stretch s = {pause->start_ns > from_ns ? pause->start_ns : from_ns,
                                  pause->stop_ns < to_ns ? pause->stop_ns : to_ns};
            if (s.to_ns - s.from_ns < TW_PAUSE_SHORT_NS) continue;
            if (looked == TW_TRACE_ARROWS_EACH) return p->arrows_left_out++, drawn; /* that there are more, once */
            *overlap_ns += new_part(seen, &looked, s);
            if (draw(p, i, &ids[drawn])) drawn++;
        }
    }
    return drawn;
}
