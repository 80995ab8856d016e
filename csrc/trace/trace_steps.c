/* The engine steps of a process, and the host gaps between them. */
#include "trace/exporter.h"

uint32_t tw_export_thread_track(exporter *x, uint64_t tid, const char *name) {
    if (tid == 0) return x->process_track[x->process];
    const uint32_t known = tw_timeline_find(x->timeline, TW_TRACK_THREAD, (int32_t)x->file->pid, (int64_t)tid);
    if (known > x->process_track[x->process]) return known; /* it had a ring before */
    return track(x, TW_TRACK_THREAD, x->process_track[x->process], name[0] != 0 ? name_of(x, name) : 0, 3, (int64_t)tid);
}

/* On a row beside the steps: it is known only after the step behind it, which begins where it ends. */
static void draw_gap(exporter *x, step_lane *lane, const host_gap *gap) {
    if (lane->gap_track == 0) lane->gap_track = track(x, TW_TRACK_SLICES, lane->thread, x->text[T_HOST_GAPS], 4, 0);
    const tw_arg arg = {x->text[T_WAITING], TW_ARG_UINT, gap->waiting};
    point(x, gap->from_ns, lane->gap_track, TW_POINT_BEGIN, x->text[T_HOST_GAP], x->text[T_HOST_GAP], &arg, 1);
    end(x, gap->to_ns, lane->gap_track);
    x->account->host_gaps++;
}

static void flush_gaps(exporter *x, step_lane *lane, uint32_t keep) {
    const uint32_t gone = lane->pending_n > keep ? lane->pending_n - keep : 0;
    for (uint32_t i = 0; i < gone; i++) draw_gap(x, lane, &lane->pending[i]);
    memmove(lane->pending, lane->pending + gone, (lane->pending_n - gone) * sizeof *lane->pending);
    lane->pending_n -= gone;
}

/* Another thread has the ring from now on. */
static void switch_thread(exporter *x, uint32_t ring, uint64_t tid, const char *name) {
    step_lane *lane = &x->lane[ring];
    flush_gaps(x, lane, 0);
    *lane = (step_lane){.tid = tid, .thread = tw_export_thread_track(x, tid, name)};
    lane->track = track(x, TW_TRACK_SLICES, lane->thread, x->text[T_STEPS], 3, 0);
}

void tw_export_thread(exporter *x, const tw_ring_event *e) {
    char name[9] = {0};
    memcpy(name, &e->value, 8);
    if (x->lane[x->reader.ring].track != 0 && x->lane[x->reader.ring].tid == e->id) return;
    switch_thread(x, x->reader.ring, e->id >> 31 == 0 ? e->id : 0, name);
}

static step_lane *lane_of(exporter *x, uint32_t ring) {
    if (x->lane[ring].track == 0) {
        char name[TW_THREAD_NAME_WORDS * 8] = {0};
        const uint64_t tid = tw_ring_thread(x->file, ring, name);
        switch_thread(x, ring, tid >> 31 == 0 ? tid : 0, name);
    }
    return &x->lane[ring];
}

static uint32_t step_name(exporter *x, uint32_t step) {
    if (step >= TW_STEPS) step = TW_STEP_OTHER;
    if (x->step_name[step] == 0) {
        char name[TW_STEP_NAME_WORDS * 8];
        tw_trace_step(x->file, step, name);
        x->step_name[step] = name_of(x, name);
    }
    return x->step_name[step];
}

/* The gap before a step, and what was taken for gaps inside it. */
static void gap_before(step_lane *lane, uint64_t start_ns) {
    while (lane->pending_n > 0 && lane->pending[lane->pending_n - 1].from_ns >= start_ns) lane->pending_n--;
    const bool gap = lane->end_ns != 0 && lane->end_ns < start_ns && lane->waiting != 0 && lane->waiting != TW_STEP_UNKNOWN;
    if (gap) lane->pending[lane->pending_n++] = (host_gap){lane->end_ns, start_ns, lane->waiting};
}

void tw_export_step(exporter *x, const tw_ring_event *e) {
    const uint32_t batch = tw_what_c(e->what);
    if (e->id > e->time_ns) return;
    step_lane *lane = lane_of(x, x->reader.ring);
    if (batch != 0) { /* one of batch 0 ran nothing: its time belongs to the gap that it stands in */
        tw_arg args[2];
        uint32_t n = 0;
        add_arg(x, args, &n, T_BATCH, TW_ARG_UINT, batch);
        if (e->value != TW_STEP_UNKNOWN) add_arg(x, args, &n, T_WAITING, TW_ARG_UINT, e->value);
        flush_gaps(x, lane, PENDING_GAPS - 1);
        gap_before(lane, e->id);
        point(x, e->id, lane->track, TW_POINT_BEGIN, step_name(x, tw_what_a(e->what)), x->text[T_STEPS], args, n);
        end(x, e->time_ns, lane->track);
        lane->end_ns = e->time_ns;
        lane->waiting = e->value;
    } else if (lane->waiting == 0 || lane->end_ns == 0) { /* but it may show that there is work now */
        lane->end_ns = e->time_ns;
        lane->waiting = e->value;
    }
}

void tw_export_steps_end(exporter *x) {
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) flush_gaps(x, &x->lane[ring], 0);
}
