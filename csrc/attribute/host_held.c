#include "tailwatch/attribute/host_held.h"

#include "attribute/findings.h"
#include "base/arithmetic.h"

#define USUAL_SHARE 4 /* of an interval: what is usual is taken from so much beside it, at least */
#define STRETCHES 4        /* of the points of a thread, of which one at least is usual */
#define STRETCH_POINTS 16  /* of each, at least */

/* Its first thread with engine steps; TW_TRACKS: none is followed. */
static uint32_t step_track(const tw_host *host) {
    uint32_t i = 0;
    while (i < TW_TRACKS && !tw_host_is_of_steps(&host->track[i])) i++;
    return i;
}

/* What a thread was runnable for in so long of its steps, by its points from one to another. */
static uint64_t delay_in_steps(const tw_host_track *t, uint64_t first, uint64_t last, uint64_t length_ns) {
    tw_host_point p, q;
    uint64_t delay = 0, steps = 0;
    if (!tw_host_track_read(t, first, &p)) return UINT64_MAX;
    for (uint64_t n = first + 1; n <= last && tw_host_track_read(t, n, &q); n++, p = q) {
        delay += tw_host_delay_between(&p, &q);
        steps += since(q.at_ns, most(q.wake_ns, p.at_ns));
    }
    return steps == 0 ? UINT64_MAX : (uint64_t)((wide)delay * length_ns / steps);
}

/* The least of some stretches of its points before an interval: what goes on in others for a second is not usual yet. */
static uint64_t least_delay_in(const tw_host_track *t, uint64_t oldest, uint64_t head, uint64_t from_ns,
                               uint64_t length_ns) {
    tw_host_point last;
    uint64_t found = UINT64_MAX;
    const uint64_t step = (head - oldest) / STRETCHES;
    if (step < STRETCH_POINTS) return found;
    for (uint64_t n = oldest + step; n < head && tw_host_track_read(t, n, &last) && last.at_ns <= from_ns; n += step)
        found = least(found, delay_in_steps(t, n - step, n, length_ns));
    return found;
}

/* What a thread is usually runnable for in such a time as [from_ns, to_ns], in which its points have in_it_ns; UINT64_MAX:
 * not known. */
static uint64_t usual_delay(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns, uint64_t in_it_ns) {
    tw_host_point first, last;
    const uint64_t head = tw_load_acquire(&t->point_head), oldest = since(head, TW_POINTS - 1), length = to_ns - from_ns;
    if (head < 2 || !tw_host_track_read(t, oldest, &first) || !tw_host_track_read(t, head - 1, &last)) return UINT64_MAX;
    if (last.at_ns <= first.at_ns) return UINT64_MAX;
    const uint64_t rest = since(tw_host_delay_between(&first, &last), in_it_ns);
    const uint64_t others = since(last.at_ns - first.at_ns, length);
    if (others < length / USUAL_SHARE) return UINT64_MAX; /* not any more */
    const uint64_t by_steps = least_delay_in(t, oldest, head, from_ns, length);
    return by_steps != UINT64_MAX ? by_steps : (uint64_t)((wide)rest * length / others);
}

/* What it was runnable for in an interval beyond that. */
static uint64_t run_delay_beyond(const tw_host_track *t, const tw_findings *f) {
    tw_usage u;
    tw_host_track_usage(t, f->from_ns, f->to_ns, &u);
    return since(tw_findings_runnable(f, &u), usual_delay(t, f->from_ns, f->to_ns, u.run_delay_ns));
}

/* What was stolen of a thread in the segments between its points that an interval meets. */
static uint64_t stolen_in(const tw_host_track *t, uint64_t from_ns, uint64_t to_ns) {
    tw_host_point q, p;
    uint64_t ns = 0, n = tw_load_acquire(&t->point_head);
    if (n == 0 || !tw_host_track_read(t, --n, &q)) return 0;
    for (; n > 0 && q.at_ns > from_ns && tw_host_track_read(t, n - 1, &p); --n, q = p)
        if (p.at_ns < to_ns) ns += since(q.stolen_ns, p.stolen_ns);
    return ns;
}

/* What a thread waited for a CPU beyond the usual, and not while its whole process stood still: all CPUs may be stolen at
 * once. */
static uint64_t delayed_in(const tw_host_track *t, const tw_findings *f) {
    const uint64_t stolen = f->stopped_ns == 0 ? 0 : stolen_in(t, f->from_ns, f->to_ns);
    return since(run_delay_beyond(t, f), least(stolen, f->stopped_ns));
}

/* What a process paused in an interval: its threads waited for the interpreter lock then, or for a CPU. */
static uint64_t paused_in(const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns) {
    tw_overlap overlap;
    uint64_t paused = 0;
    if (tw_pause_quiet_since(pauses, from_ns)) return 0;
    tw_pause_overlap(pauses, from_ns, to_ns, &overlap);
    for (int cause = 0; cause < TW_CAUSES; cause++) paused += overlap.by_cause[cause];
    return paused;
}

/* Else what a thread slept has its waits for a CPU, too. */
static bool has_schedstat(const tw_host *host) {
    return tw_load(&host->facts.knowledge[TW_HOST_SCHEDSTAT]) == TW_KNOWN + 1;
}

/* Per CPU of the process. */
static uint64_t throttled_evenly(const tw_host *host, const tw_findings *f) {
    return f->throttled_evenly_ns / most(tw_load(&host->facts.cpus), 1);
}

void tw_host_held(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns, tw_parts *out) {
    const uint32_t track = step_track(host);
    tw_findings f = {.from_ns = from_ns, .to_ns = to_ns, .track = track < TW_TRACKS ? track : TW_ALL_TRACKS,
                  .steps = track < TW_TRACKS ? &host->track[track] : NULL};
    if (from_ns >= to_ns) return;
    tw_findings_add(&f, &host->by_watchdog);
    tw_findings_add(&f, &host->by_loop);
    tw_parts_measured(out, TW_DELAY_STOPPED, f.stopped_ns);
    if (track == TW_TRACKS) return;
    const uint64_t paused = paused_in(pauses, from_ns, to_ns);
    const uint64_t delayed = since(delayed_in(&host->track[track], &f), paused);
    if (delayed >= TW_SPAN_LEAST_NS) tw_findings_run_delay(&f, out, delayed);
    const uint64_t unseen = has_schedstat(host) ? f.unseen_ns : 0;
    const uint64_t gil = since(tw_evidence_sum(&f.seen, TW_SPAN_GIL, TW_SPAN_GIL) + unseen, paused);
    const uint64_t others = since(throttled_evenly(host, &f), least(f.throttled_ns, delayed));
    const uint64_t rest = most(since(to_ns - from_ns, delayed), 1); /* the thread ran or slept */
    const uint64_t of_holder = (uint64_t)((wide)gil * least(others, rest) / rest);
    tw_parts_add(out, &(tw_part){.ns = of_holder, .cause = TW_DELAY_THROTTLED, .certainty = TW_ESTIMATED});
    tw_findings_deal(&f, out, TW_SPAN_GIL, TW_SPAN_GIL, gil - of_holder, 0);
}

uint64_t tw_host_held_ns(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns) {
    tw_parts parts = {0};
    tw_host_held(host, pauses, from_ns, to_ns, &parts);
    return least(most(paused_in(pauses, from_ns, to_ns), tw_parts_sum(&parts)), since(to_ns, from_ns));
}

uint64_t tw_host_step_thread(const tw_host *host) {
    const uint32_t track = step_track(host);
    return track == TW_TRACKS ? 0 : tw_load(&host->track[track].thread);
}

/* Between the newest point and a reading of the counter: of that, what lies in [from_ns, to_ns] in proportion. */
static uint64_t delay_since_newest(const tw_host_track *t, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns,
                                   const tw_delay_reading *now) {
    tw_host_point newest;
    const uint64_t head = tw_load_acquire(&t->point_head);
    if (head == 0 || !tw_host_track_read(t, head - 1, &newest) || newest.at_ns >= to_ns || now->at_ns < to_ns) return 0;
    if (newest.run_delay_ns == 0) return 0; /* the engine does not count it: since when the counter grew is not known */
    const uint64_t paused = paused_in(pauses, newest.at_ns, now->at_ns);
    const uint64_t delay = since(since(now->run_delay_ns, newest.run_delay_ns), paused);
    return (uint64_t)((wide)delay * (to_ns - most(from_ns, newest.at_ns)) / (now->at_ns - newest.at_ns));
}

uint64_t tw_host_delayed_since(const tw_host *host, const tw_pause_clock *pauses, uint64_t from_ns, uint64_t to_ns,
                               const tw_delay_reading *now) {
    const uint32_t track = step_track(host);
    tw_usage u;
    if (track == TW_TRACKS || from_ns >= to_ns) return 0;
    const tw_host_track *t = &host->track[track];
    tw_host_track_usage(t, from_ns, to_ns, &u);
    const uint64_t counted = since(u.run_delay_ns, paused_in(pauses, from_ns, to_ns));
    const uint64_t delay = counted + delay_since_newest(t, pauses, from_ns, to_ns, now);
    return since(delay, usual_delay(t, from_ns, to_ns, u.run_delay_ns));
}

uint64_t tw_host_throttled_ns(const tw_host *host, uint64_t from_ns, uint64_t to_ns) {
    tw_findings f = {.from_ns = from_ns, .to_ns = to_ns, .track = TW_ALL_TRACKS};
    if (tw_load(&host->throttled_ns) == 0 || from_ns >= to_ns) return 0;
    tw_findings_add(&f, &host->by_watchdog);
    tw_findings_add(&f, &host->by_loop);
    return throttled_evenly(host, &f);
}
