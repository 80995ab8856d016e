#include "tailwatch/stamp/engine_step.h"

#include <string.h>

#include "tailwatch/base/atomic.h"

void tw_stepper_init(tw_stepper *s, tw_steps *steps, const tw_pause_clock *pauses, uint64_t *incomplete) {
    memset(s, 0, sizeof *s);
    s->steps = steps;
    s->pauses = pauses;
    s->incomplete = incomplete;
}

/* A new thread's: a free one, else that whose last end is the oldest. One with open steps is taken last. */
static uint32_t take_lane(tw_stepper *s, uint64_t thread) {
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < TW_STEP_LANES; ++i) {
        const tw_step_track *track = &s->lane[i].track, *than = &s->lane[oldest].track;
        if (s->lane[i].thread == thread) return i;
        if ((track->open != 0) == (than->open != 0) ? track->last.at_ns < than->last.at_ns : track->open == 0) oldest = i;
    }
    s->lane[oldest] = (tw_step_lane){.thread = thread};
    return oldest;
}

static uint32_t lane_of(tw_stepper *s, uint64_t thread) {
    if (__builtin_expect(s->lane[s->lane_last].thread != thread, 0)) s->lane_last = take_lane(s, thread);
    return s->lane_last;
}

/* The end after which nothing ran until now. */
static tw_step_mark mark_before(const tw_step_track *thread, const tw_step_track *name) {
    const tw_step_mark none = {0, TW_STEP_UNKNOWN};
    if (thread->open + name->open != 0) return none;
    return thread->last.at_ns > name->last.at_ns ? thread->last : name->last;
}

void tw_step_begin(tw_stepper *s, tw_step *step, uint32_t name, uint64_t thread, uint64_t now_ns) {
    step->start_ns = now_ns;
    step->name = name;
    step->thread = thread;
    step->lane = lane_of(s, thread);
    tw_step_track *of_thread = &s->lane[step->lane].track, *of_name = &s->name[name];
    step->before = mark_before(of_thread, of_name);
    ++of_thread->open;
    ++of_name->open;
}

/* A lane may have been given to another thread while this step was open. */
static void leave(tw_stepper *s, const tw_step *step, tw_step_mark mark) {
    tw_step_lane *lane = &s->lane[step->lane];
    s->name[step->name].last = mark;
    --s->name[step->name].open;
    if (lane->thread != step->thread || lane->track.open == 0) return;
    lane->track.last = mark;
    --lane->track.open;
}

static void book_overlap(tw_stepper *s, uint32_t name, tw_step_phase phase, uint64_t from_ns, uint64_t to_ns, uint64_t requests) {
    tw_step_stats *stats = &s->steps->of[name];
    tw_overlap overlap;
    tw_pause_overlap(s->pauses, from_ns, to_ns, &overlap);
    if (!overlap.complete) tw_add(s->incomplete, 1);
    for (int cause = 0; cause < TW_CAUSES; ++cause) {
        tw_add(&stats->overlap_ns[phase][cause], overlap.by_cause[cause]);
        tw_add(&stats->request_ns[phase][cause], overlap.by_cause[cause] * requests);
    }
}

/* The time before the step. Returns where the host gap began, or the step's start where there was none. */
static uint64_t book_gap(tw_stepper *s, const tw_step *step) {
    tw_step_stats *stats = &s->steps->of[step->name];
    const tw_step_mark before = step->before;
    if (before.at_ns == 0 || before.waiting == 0 || before.at_ns > step->start_ns) return step->start_ns;
    if (before.waiting == TW_STEP_UNKNOWN) {
        tw_add(&stats->unknown_ns, step->start_ns - before.at_ns);
        return step->start_ns;
    }
    tw_histogram_record(&stats->gap, tw_step_layout(TW_STEP_GAP), step->start_ns - before.at_ns);
    return before.at_ns;
}

static uint64_t bounded(uint64_t requests) { return requests < TW_STEP_BATCH_MOST ? requests : TW_STEP_BATCH_MOST; }

/* Nothing ran: a gap in which work waits goes on. */
static tw_step_mark mark_after_nothing(const tw_step *step, uint64_t end_ns, uint64_t waiting) {
    const tw_step_mark before = step->before, now = {end_ns, waiting};
    return before.at_ns != 0 && before.waiting != 0 && before.waiting != TW_STEP_UNKNOWN && waiting != 0 ? before : now;
}

void tw_step_end(tw_stepper *s, const tw_step *step, uint64_t now_ns, uint64_t batch, uint64_t waiting) {
    const uint64_t end_ns = now_ns > step->start_ns ? now_ns : step->start_ns;
    if (waiting != TW_STEP_UNKNOWN) waiting = bounded(waiting);
    batch = bounded(batch);
    if (batch == 0) {
        leave(s, step, mark_after_nothing(step, end_ns, waiting));
        return;
    }
    leave(s, step, (tw_step_mark){end_ns, waiting});
    tw_step_stats *stats = &s->steps->of[step->name];
    tw_histogram_record(&stats->duration, tw_step_layout(TW_STEP_INSIDE), end_ns - step->start_ns);
    tw_add(&stats->batch, batch);
    const uint64_t gap_ns = book_gap(s, step);
    if (__builtin_expect(tw_pause_quiet_since(s->pauses, gap_ns), 1)) return;
    book_overlap(s, step->name, TW_STEP_INSIDE, step->start_ns, end_ns, batch);
    if (gap_ns < step->start_ns)
        book_overlap(s, step->name, TW_STEP_GAP, gap_ns, step->start_ns, step->before.waiting);
}
