/* Processes: their pauses, their collector, their engine steps. */
#include "aggregate/snapshot_parts.h"

#include "tailwatch/base/atomic.h"
#include "base/arithmetic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- engine steps ---- */

static bool step_in_use(const tw_step_stats *stats) { return tw_load_acquire(&stats->name[0]) != 0; }

static int step_keep(tw_snapshot_step *to, const tw_step_stats *from) {
    tw_words_get(from->name, TW_STEP_NAME_WORDS, to->name);
#define LOAD(field, dims) tw_words_load(&to->field, &from->field, sizeof to->field);
    TW_STEP_COUNTERS(LOAD)
#undef LOAD
    const int error = tw_snapshot_histogram_keep(&to->spent[TW_STEP_INSIDE], &from->duration);
    return error ? error : tw_snapshot_histogram_keep(&to->spent[TW_STEP_GAP], &from->gap);
}

static int steps_take(tw_snapshot_process *to, const tw_steps *steps) {
    uint32_t used = 0;
    for (int i = 0; i < TW_STEPS; i++) used += step_in_use(&steps->of[i]);
    if (used == 0) return 0;
    to->steps = tw_calloc(TW_STEPS, sizeof *to->steps);
    if (!to->steps) return ENOMEM;
    int error = 0;
    for (int i = 0; i < TW_STEPS && !error; i++)
        if (step_in_use(&steps->of[i])) error = step_keep(&to->steps[to->step_count++], &steps->of[i]);
    return error;
}

static void steps_free(tw_snapshot_process *process) {
    for (uint32_t i = 0; i < process->step_count; i++) tw_snapshot_counts_free(process->steps[i].spent, TW_STEP_PHASES);
    tw_free(process->steps);
}

static tw_snapshot_step *step_find(const tw_snapshot_process *process, const char *name) {
    for (uint32_t i = 0; i < process->step_count; i++)
        if (strcmp(process->steps[i].name, name) == 0) return &process->steps[i];
    return NULL;
}

static void step_join(tw_snapshot_step *to, tw_snapshot_step *from) {
#define ADD(field, dims) tw_words_add(&to->field, &from->field, sizeof to->field);
    TW_STEP_COUNTERS(ADD)
#undef ADD
    for (int i = 0; i < TW_STEP_PHASES; i++) tw_snapshot_counts_join(&to->spent[i], from->spent[i]);
}

/* from has none afterwards, whatever comes of it. */
static int steps_join(tw_snapshot_process *to, tw_snapshot_process *from) {
    tw_snapshot_step *all = from->step_count == 0 ? NULL : tw_calloc(to->step_count + from->step_count, sizeof *all);
    const int error = all == NULL && from->step_count > 0 ? ENOMEM : 0;
    if (all != NULL) {
        if (to->step_count > 0) memcpy(all, to->steps, to->step_count * sizeof *all);
        tw_free(to->steps);
        to->steps = all;
        for (uint32_t i = 0; i < from->step_count; i++) {
            tw_snapshot_step *same = step_find(to, from->steps[i].name);
            if (same) step_join(same, &from->steps[i]);
            else to->steps[to->step_count++] = from->steps[i];
        }
        from->step_count = 0;
    }
    steps_free(from);
    return error;
}

static int one_step_subtract(tw_snapshot_step *out, const tw_snapshot_step *later, const tw_snapshot_step *earlier) {
    static const tw_snapshot_step nothing = {.batch = 0};
    *out = *later;
    memset(out->spent, 0, sizeof out->spent);
    if (!earlier) earlier = &nothing;
#define SUBTRACT(field, dims) tw_words_subtract(&out->field, &earlier->field, sizeof out->field);
    TW_STEP_COUNTERS(SUBTRACT)
#undef SUBTRACT
    int error = 0;
    for (int i = 0; i < TW_STEP_PHASES && !error; i++)
        error = tw_snapshot_counts_rest(&out->spent[i], later->spent[i], earlier->spent[i], tw_step_layout(i));
    return error;
}

/* out is a copy of later. */
static int steps_subtract(tw_snapshot_process *out, const tw_snapshot_process *later,
                          const tw_snapshot_process *earlier) {
    out->steps = NULL;
    out->step_count = 0;
    if (later->step_count == 0) return 0;
    out->steps = tw_calloc(later->step_count, sizeof *out->steps);
    if (!out->steps) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->step_count && !error; i++) {
        out->step_count = i + 1;
        error = one_step_subtract(&out->steps[i], &later->steps[i], step_find(earlier, later->steps[i].name));
    }
    return error;
}

/* ---- taking ---- */

/* What a total counts beyond the pauses that had ended. One that ends meanwhile is not open any more. */
static void standing_take(tw_snapshot_process *to, const tw_pause_clock *pause, int cause) {
    const uint64_t open_ns = tw_minus(to->pause_ns[cause], tw_pause_total_ns(pause, (tw_cause)cause, 0));
    if (open_ns == 0) return;
    to->standing_ns = open_ns;
    to->standing_cause = (uint64_t)cause;
}

/* A pause that was open when its process was killed has no known end: it counts as not begun. */
static int process_take(tw_snapshot_process *to, const tw_segment *g, uint64_t taken_ns) {
    to->lives = tw_segment_lives(g);
    const uint64_t now_ns = to->lives ? taken_ns : 0;
    to->index = tw_load(&g->header.place) - 1;
    tw_words_get(g->header.role, TW_ROLE_WORDS, to->role);
    to->pid = g->header.pid;
    to->created_ns = g->header.created.monotonic_ns;
    to->created_unix_ns = g->header.created.realtime_ns;
    to->bytes = tw_segment_used(g);
    to->last_stop_ns = tw_load(&g->pause.last_stop_ns);
    to->pauses_lost = tw_load(&g->pause.lost);
    tw_words_load(to->pause, g->pause.totals, sizeof to->pause);
    tw_words_load(&to->policy, &g->policy, sizeof to->policy);
    if (!to->lives) memset(&to->policy.now, 0, sizeof to->policy.now);
    to->bytes += to->policy.now.bytes;
    int error = 0;
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        to->pause_ns[cause] = tw_pause_total_ns(&g->pause, (tw_cause)cause, now_ns);
        standing_take(to, &g->pause, cause);
    }
    for (int cause = 0; cause < TW_STALLS && !error; cause++)
        if (cause < TW_CAUSES || !tw_histogram_is_empty(&g->stalls[cause]))
            error = tw_snapshot_histogram_keep(&to->stalls[cause], &g->stalls[cause]);
    if (!error) error = steps_take(to, &g->steps);
    return error ? error : tw_snapshot_take_engine(&to->engine, g);
}

/* The oldest first. */
static int process_compare(const void *left, const void *right) {
    const tw_snapshot_process *a = left, *b = right;
    if (a->created_ns != b->created_ns) return a->created_ns < b->created_ns ? -1 : 1;
    return (a->pid > b->pid) - (a->pid < b->pid);
}

#define NO_INDEX UINT64_MAX /* of a process that has joined no group, until it gets the next that is free */

static tw_snapshot_process *process_named(tw_snapshot_process *all, uint32_t n, const char *role, uint64_t index) {
    for (uint32_t i = 0; i < n; i++)
        if (all[i].index == index && strcmp(all[i].role, role) == 0) return &all[i];
    return NULL;
}

void tw_snapshot_add_process(tw_snapshot_process *to, const tw_snapshot_process *from) {
    for (int cause = 0; cause < TW_CAUSES; cause++) {
        const uint64_t max_ns = most(to->pause[cause].max_ns, from->pause[cause].max_ns);
        tw_words_add(&to->pause[cause], &from->pause[cause], sizeof to->pause[cause]);
        to->pause[cause].max_ns = max_ns;
    }
    tw_words_add(to->pause_ns, from->pause_ns, sizeof to->pause_ns);
    tw_words_add(&to->policy.counts, &from->policy.counts, sizeof to->policy.counts);
    to->pauses_lost += from->pauses_lost;
    to->bytes += from->bytes;
    to->lives |= from->lives;
    to->last_stop_ns = most(to->last_stop_ns, from->last_stop_ns);
}

/* from had the same name; what is allocated of it is to's, or freed. The living one gives the pid. */
static int process_join(tw_snapshot_process *to, tw_snapshot_process *from) {
    for (int cause = 0; cause < TW_STALLS; cause++) tw_snapshot_counts_join(&to->stalls[cause], from->stalls[cause]);
    if (from->lives) to->policy.now = from->policy.now;
    if (from->pid != 0 && (from->lives || !to->lives)) to->pid = from->pid;
    tw_snapshot_add_process(to, from);
    if (from->standing_ns > to->standing_ns) {
        to->standing_ns = from->standing_ns;
        to->standing_cause = from->standing_cause;
    }
    tw_snapshot_join_engine(&to->engine, from->engine);
    return steps_join(to, from);
}

/* The living and the dead of one name become one. */
static int processes_join(tw_snapshot *s) {
    uint32_t kept = 0;
    int error = 0;
    for (uint32_t i = 0; i < s->process_count; i++) {
        tw_snapshot_process one = s->process[i];
        tw_snapshot_process *same = one.index == NO_INDEX ? NULL : process_named(s->process, kept, one.role, one.index);
        if (!same) s->process[kept++] = one;
        else if (process_join(same, &one) != 0) error = ENOMEM;
    }
    s->process_count = kept;
    return error;
}

static void processes_number(tw_snapshot *s) {
    for (uint32_t i = 0; i < s->process_count; i++) {
        tw_snapshot_process *one = &s->process[i];
        if (one->index != NO_INDEX) continue;
        uint64_t index = 0;
        while (process_named(s->process, s->process_count, one->role, index)) index++;
        one->index = index;
    }
}

int tw_snapshot_take_processes(tw_snapshot *s, const tw_segment *const *segments, size_t n) {
    s->process = tw_calloc(n, sizeof *s->process);
    if (!s->process) return ENOMEM;
    s->process_count = (uint32_t)n;
    int error = 0;
    for (size_t i = 0; i < n && !error; i++)
        error = process_take(&s->process[i], segments[i], s->taken.monotonic_ns);
    if (error) return error;
    qsort(s->process, n, sizeof *s->process, process_compare);
    error = processes_join(s);
    processes_number(s);
    return error;
}

/* ---- subtracting ---- */

/* By its name, else by what stays as it is: a role may be settled later than the first pause. */
static const tw_snapshot_process *process_find(const tw_snapshot *s, const tw_snapshot_process *like) {
    const tw_snapshot_process *same = process_named(s->process, s->process_count, like->role, like->index);
    for (uint32_t i = 0; i < s->process_count && !same && like->pid != 0; i++)
        if (s->process[i].pid == like->pid && s->process[i].created_ns == like->created_ns) same = &s->process[i];
    return same;
}

static void pauses_subtract(tw_snapshot_process *later, const tw_snapshot_process *earlier) {
    tw_words_subtract(later->pause_ns, earlier->pause_ns, sizeof later->pause_ns);
    tw_words_subtract(later->pause, earlier->pause, sizeof later->pause);
    later->pauses_lost = tw_minus(later->pauses_lost, earlier->pauses_lost);
    tw_words_subtract(&later->policy.counts, &earlier->policy.counts, sizeof later->policy.counts);
}

static int one_process_subtract(tw_snapshot_process *out, const tw_snapshot_process *later,
                                const tw_snapshot_process *earlier, uint64_t earlier_ns) {
    static const tw_snapshot_process nothing = {.pid = 0};
    *out = *later;
    out->engine = NULL;
    memset(out->stalls, 0, sizeof out->stalls);
    if (!earlier) earlier = &nothing;
    pauses_subtract(out, earlier);
    int error = steps_subtract(out, later, earlier);
    if (!error) error = tw_snapshot_subtract_engine(&out->engine, later->engine, earlier->engine, earlier_ns);
    for (int i = 0; i < TW_STALLS && !error; i++)
        error = tw_snapshot_counts_rest(&out->stalls[i], later->stalls[i], earlier->stalls[i],
                                        tw_metric_layout(TW_METRIC_PAUSE + i));
    for (int i = 0; i < TW_CAUSES; i++)
        out->pause[i].max_ns = out->stalls[i] ? out->stalls[i]->max_ns : 0; /* a maximum has no difference */
    return error;
}

int tw_snapshot_subtract_processes(tw_snapshot *out, const tw_snapshot *later, const tw_snapshot *earlier) {
    out->process = tw_calloc(later->process_count ? later->process_count : 1, sizeof *out->process);
    if (!out->process) return ENOMEM;
    int error = 0;
    for (uint32_t i = 0; i < later->process_count && !error; i++) {
        out->process_count = i + 1;
        error = one_process_subtract(&out->process[i], &later->process[i], process_find(earlier, &later->process[i]),
                                     earlier->taken.monotonic_ns);
    }
    return error;
}

void tw_snapshot_free_processes(tw_snapshot *s) {
    for (uint32_t i = 0; i < s->process_count; i++) {
        tw_snapshot_counts_free(s->process[i].stalls, TW_STALLS);
        steps_free(&s->process[i]);
        tw_snapshot_free_engine(s->process[i].engine);
    }
    tw_free(s->process);
}
