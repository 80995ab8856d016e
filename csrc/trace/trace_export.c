/* Trace files as a timeline: first the pauses of all processes, then what each process did, then the pauses again, with
 * the arrows that lead from them. */
#include "tailwatch/trace/trace_export.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "base/yield.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/attribute/engine_id.h"
#include "trace/exporter.h"
#include "base/tw_malloc.h"

#define GIVE_WAY_EVENTS 4096 /* a core is offered to others no more rarely than after so many */

#define TEXT_OF(name, text) text,
static const char *const texts[] = {TEXTS(TEXT_OF)};

static bool is_pause(const tw_ring_event *e) {
    return tw_what_kind(e->what) == TW_KIND_PAUSE && tw_what_a(e->what) < TW_CAUSES && e->id <= e->time_ns && fine(e->time_ns);
}

/* Whether it is one of those that x->pauses has. */
static bool is_long(const tw_ring_event *e, uint64_t shortest_ns) {
    return (tw_what_b(e->what) & TW_PAUSE_INNER) == 0 && e->time_ns - e->id >= shortest_ns;
}

/* ---- the pauses of all ---- */

/* Whether a role is this one, maybe with something after it: "engine-1", "worker_tp0". As
 * tailwatch/integrations/process_roles.py. */
static bool role_is(const char *role, const char *name) {
    const size_t len = strlen(name);
    return strncasecmp(role, name, len) == 0 && !isalpha((unsigned char)role[len]);
}

static bool is_engine(const char *role) { return role_is(role, "engine") || role_is(role, "scheduler"); }

static bool streams_wait_for(const char *role) {
    return is_engine(role) || role_is(role, "worker") || role_is(role, "detokenizer");
}

static void remember(exporter *x, uint32_t process, const tw_ring_event *e) {
    const tw_long_pause pause = {.start_ns = e->id, .stop_ns = e->time_ns, .collected = e->value,
                                 .uncollectable = tw_what_c(e->what), .process = (uint16_t)process,
                                 .cause = (uint8_t)tw_what_a(e->what)};
    const int error = tw_pauses_add(&x->pauses, &pause);
    if (error != 0) x->error = error;
}

/* One that is open: its start, unless it ended before the rings' ends were looked at. */
static void remember_open(exporter *x, uint32_t process, uint64_t start_ns, uint64_t cause) {
    if (start_ns == 0 || !fine(start_ns) || cause >= TW_CAUSES || start_ns > x->until_ns) return;
    for (uint32_t i = 0; i < x->pauses.n; i++)
        if (x->pauses.pause[i].process == process && x->pauses.pause[i].stop_ns > start_ns) return;
    const tw_long_pause pause = {.start_ns = start_ns, .stop_ns = UINT64_MAX, .process = (uint16_t)process, .cause = (uint8_t)cause};
    const int error = tw_pauses_add(&x->pauses, &pause);
    if (error != 0) x->error = error;
    else x->account->open_pauses++;
}

/* Reads a file's rings one after the other: the order does not matter here. */
static void collect(exporter *x, uint32_t process) {
    const tw_trace *file = x->files[process];
    const uint64_t open_ns = tw_load_acquire(&file->head->pause_open_ns), cause = tw_load(&file->head->pause_open_cause);
    tw_ends_take(file, &x->ends[process]);
    tw_ring_event *events = x->reader.cursor[0].event;
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) {
        uint64_t next = 0;
        while (x->error == 0) {
            const size_t n = tw_ring_read(file, ring, &next, x->ends[process].end[ring], events, TW_READ_AHEAD, NULL);
            for (size_t i = 0; i < n; i++)
                if (is_pause(&events[i]) && is_long(&events[i], TW_PAUSE_SHORT_NS) && in_range(x, events[i].time_ns))
                    remember(x, process, &events[i]);
            if (n == 0) break;
            tw_give_way(&x->gave_way_ns);
        }
    }
    remember_open(x, process, open_ns, cause);
    x->waited[process] = streams_wait_for(file->role);
    x->engines += is_engine(file->role);
}

/* ---- engines ---- */

static uint64_t engine_of_pid(const void *of, uint64_t pid) {
    const exporter *x = of;
    for (size_t i = 0; i < x->n; i++)
        if (x->files[i]->pid == pid) return tw_load(&x->files[i]->head->engine);
    return 0;
}

/* 0 where the files alone do not determine a process's engine. */
static void name_engines(exporter *x) {
    for (size_t i = 0; i < x->n; i++)
        x->pauses.engine[i] = tw_engine_tag(tw_engine_follow(tw_load(&x->files[i]->head->engine), engine_of_pid, x));
}

/* ---- tracks of a process ---- */

static void name_causes(exporter *x) {
    for (int i = 0; i < T_TEXTS; i++) x->text[i] = name_of(x, texts[i]);
    for (int i = 0; i < TW_CAUSES; i++) x->cause[i] = name_of(x, tw_cause_name(i));
    for (int i = 0; i < TW_REASONS; i++) x->reason[i] = name_of(x, tw_reason_name(i));
    for (int i = 0; i < TW_OUTCOMES; i++) x->outcome[i] = name_of(x, tw_outcome_name(i));
    for (int i = 0; i < TW_ARRIVALS; i++) x->arrival[i] = name_of(x, tw_arrival_name(i));
}

static void describe_process(exporter *x) {
    char name[48];
    tw_trace_process(x->file, name);
    x->sequence = tw_timeline_sequence(x->timeline);
    x->process_track[x->process] = track(x, TW_TRACK_PROCESS, 0, name_of(x, name), 0, 0);
    const uint32_t own = x->sequence;
    x->sequence = tw_timeline_sequence(x->timeline); /* its pauses come at the end of the file */
    x->gc_track[x->process] = track(x, TW_TRACK_SLICES, x->process_track[x->process], x->text[T_GC], 1, 0);
    x->sequence = own;
}

static uint32_t rows(exporter *x) {
    if (x->requests_track == 0)
        x->requests_track = track(x, TW_TRACK_SLICES, x->process_track[x->process], x->text[T_REQUESTS], 2, 0);
    return x->requests_track;
}

static uint32_t counter(exporter *x, uint32_t which) {
    if (x->counter_track[which] == 0) {
        const char *unit = which == TW_COUNTER_GOODPUT ? "requests/s" : tw_counter_unit((int)which);
        const tw_track described = {.kind = TW_TRACK_COUNTER, .sequence = x->sequence, .rank = 4 + which,
                                    .parent = x->process_track[x->process], .pid = (int32_t)x->file->pid,
                                    .name = name_of(x, tw_counter_name((int)which)), .unit = name_of(x, unit)};
        x->counter_track[which] = tw_timeline_track(x->timeline, &described);
    }
    return x->counter_track[which];
}

static void start_process(exporter *x, uint32_t process) {
    x->process = process;
    x->file = x->files[process];
    x->requests_track = 0;
    x->first_ns = 0;
    x->stall_threads = 0;
    memset(x->stalls, 0, sizeof x->stalls);
    memset(x->counter_track, 0, sizeof x->counter_track);
    memset(x->lane, 0, sizeof x->lane);
    memset(x->step_name, 0, sizeof x->step_name);
    memset(x->delay, 0, sizeof x->delay);
    x->label = tw_calloc(x->file->label_sets, sizeof *x->label);
    if (x->label == NULL && x->file->label_sets != 0) x->error = ENOMEM;
    const int error = tw_pauses_for(&x->pauses, process, x->waited);
    if (error != 0) x->error = error;
    describe_process(x);
}

/* ---- requests ---- */

static const uint32_t *labels(exporter *x, uint32_t set) {
    if (set >= x->file->label_sets) set = 0;
    if (x->label[set][0] == 0) {
        char model[TW_NAME_BYTES], route[TW_NAME_BYTES];
        tw_trace_label(x->file, set, model, route);
        x->label[set][0] = name_of(x, model);
        x->label[set][1] = name_of(x, route);
    }
    return x->label[set];
}

static void add_labels(exporter *x, tw_arg *args, uint32_t *n, uint32_t set) {
    const uint32_t *names = labels(x, set);
    add_arg(x, args, n, T_MODEL, TW_ARG_NAME, names[0]);
    add_arg(x, args, n, T_ROUTE, TW_ARG_NAME, names[1]);
}

static uint32_t row_of(const exporter *x, const tw_request *r) { return x->requests.lane[r->lane].track; }

/* Begins the slice of a request at from_ns. set UINT32_MAX: its labels are not known. */
static tw_request *open_request(exporter *x, uint64_t id, uint64_t from_ns, uint32_t set, uint32_t arrival, bool whole) {
    bool made = false;
    tw_request *r = tw_requests_open(&x->requests, id, from_ns, &made);
    if (r == NULL) return x->error = ENOMEM, NULL;
    if (made) x->requests.lane[r->lane].track = track(x, TW_TRACK_SLICES, rows(x), x->text[T_REQUESTS], r->lane, 0);
    tw_arg args[6];
    uint32_t n = 0;
    add_arg(x, args, &n, T_NUMBER, TW_ARG_UINT, id);
    r->labelled = set != UINT32_MAX;
    if (r->labelled) add_labels(x, args, &n, set);
    if (arrival < TW_ARRIVALS) add_arg(x, args, &n, T_ARRIVAL, TW_ARG_NAME, x->arrival[arrival]);
    if (!whole) add_arg(x, args, &n, T_BEGINNING_LOST, TW_ARG_BOOL, 1);
    point(x, from_ns, row_of(x, r), TW_POINT_BEGIN, x->text[T_REQUEST], x->text[T_REQUEST], args, n);
    x->account->requests++;
    x->account->beginless += !whole;
    return r;
}

/* set: the labels that the phase shows, for a request that shows none itself until it has ended; UINT32_MAX: none. */
static void enter_phase(exporter *x, tw_request *r, phase next, uint64_t at_ns, uint32_t set) {
    const uint32_t row = row_of(x, r);
    tw_arg args[2];
    uint32_t n = 0;
    if (at_ns < r->last_ns) at_ns = r->last_ns;
    if (r->phase != PHASE_NONE) end(x, at_ns, row);
    if (set != UINT32_MAX && !r->labelled) add_labels(x, args, &n, set);
    if (next != PHASE_NONE)
        point(x, at_ns, row, TW_POINT_BEGIN, x->text[next == PHASE_WAIT ? T_WAIT : T_ANSWER], 0, args, n);
    r->phase = next;
    r->last_ns = at_ns;
}

static void on_open(exporter *x, const tw_ring_event *e) {
    if (tw_requests_find(&x->requests, e->id) != NULL) return;
    const uint64_t arrival_ns = e->value <= e->time_ns ? e->value : e->time_ns;
    const uint32_t set = tw_what_b(e->what); /* 0: its answer shows which */
    tw_request *r = open_request(x, e->id, arrival_ns, set != 0 ? set : UINT32_MAX, tw_what_a(e->what), true);
    if (r == NULL) return;
    if (arrival_ns < e->time_ns) {
        begin(x, arrival_ns, row_of(x, r), x->text[T_QUEUE], 0);
        end(x, e->time_ns, row_of(x, r));
    }
    enter_phase(x, r, PHASE_WAIT, e->time_ns, UINT32_MAX);
}

static bool belongs_to(const tw_ring_event *delay, const tw_ring_event *token) {
    return delay != NULL && tw_what_kind(delay->what) == TW_KIND_DELAY && delay->id == token->id &&
           delay->time_ns == token->time_ns;
}

/* The event of what pauses cost a token: before or behind it in its ring. NULL: there is none. */
static const tw_ring_event *delay_of(const exporter *x, const tw_ring_event *e) {
    const tw_ring_event *before = &x->delay[x->reader.ring], *behind = tw_reader_peek(&x->reader);
    return belongs_to(before, e) ? before : belongs_to(behind, e) ? behind : NULL;
}

/* A token that pauses may have delayed, with the arrows that end here. */
static void delayed_token(exporter *x, const tw_ring_event *e, tw_point *p, tw_arg *args, uint32_t n, uint64_t from_ns) {
    uint64_t arrows[TW_TRACE_ARROWS_EACH], overlap_ns = 0;
    const tw_ring_event *delay = delay_of(x, e);
    /* Of several engines one serves the stream. Its process may have known which, and wrote of no delay by another one. */
    const uint32_t engine = delay != NULL ? tw_what_b(delay->what) : x->engines > 1 ? TW_ENGINE_NONE : 0;
    p->ends = (uint16_t)tw_pauses_hit(&x->pauses, from_ns, e->time_ns, engine, arrows, &overlap_ns);
    x->account->arrows += p->ends;
    if (overlap_ns != 0) add_arg(x, args, &n, T_OVERLAP, TW_ARG_UINT, overlap_ns / 1000);
    if (delay != NULL && delay->value != 0) add_arg(x, args, &n, T_LATE, TW_ARG_UINT, delay->value / 1000);
    p->args = (uint16_t)n;
    tw_timeline_points(x->timeline, p, 1, args, n, arrows, p->ends);
}

/* A token on its row: from_ns is when the wait that it ended began. */
static void draw_token(exporter *x, const tw_ring_event *e, uint32_t row, uint32_t name, uint64_t from_ns) {
    tw_arg args[6];
    uint32_t n = 0;
    const uint32_t tokens = tw_what_c(e->what), choice = tw_what_a(e->what);
    if (tokens != 1) add_arg(x, args, &n, T_TOKENS, TW_ARG_UINT, tokens);
    if (choice != 0) add_arg(x, args, &n, T_CHOICE, TW_ARG_UINT, choice);
    tw_point p = {.at_ns = e->time_ns, .track = row, .type = TW_POINT_INSTANT, .name = name, .args = (uint16_t)n};
    if (__builtin_expect(tw_pauses_touch(&x->pauses, from_ns, e->time_ns) || delay_of(x, e) != NULL, 0))
        delayed_token(x, e, &p, args, n, from_ns);
    else tw_timeline_points(x->timeline, &p, 1, args, n, NULL, 0);
}

static void on_first(exporter *x, const tw_ring_event *e) {
    const uint64_t arrival_ns = e->value <= e->time_ns ? e->value : e->time_ns;
    tw_request *r = tw_requests_find(&x->requests, e->id);
    if (r == NULL) {
        if ((r = open_request(x, e->id, arrival_ns, tw_what_b(e->what), TW_ARRIVALS, true)) == NULL) return;
        enter_phase(x, r, PHASE_WAIT, arrival_ns, UINT32_MAX);
    }
    enter_phase(x, r, PHASE_ANSWER, e->time_ns, tw_what_b(e->what));
    draw_token(x, e, row_of(x, r), x->text[T_FIRST], arrival_ns);
}

static void on_token(exporter *x, const tw_ring_event *e) {
    const uint64_t from_ns = e->value <= e->time_ns ? e->time_ns - e->value : e->time_ns;
    tw_request *r = tw_requests_find(&x->requests, e->id);
    if (__builtin_expect(r == NULL, 0)) {
        if ((r = open_request(x, e->id, from_ns, UINT32_MAX, TW_ARRIVALS, false)) == NULL) return;
        enter_phase(x, r, PHASE_ANSWER, from_ns, UINT32_MAX);
    }
    if (e->time_ns > r->last_ns) r->last_ns = e->time_ns;
    draw_token(x, e, row_of(x, r), x->text[T_TOKEN], from_ns);
}

static void on_close(exporter *x, const tw_ring_event *e) {
    const uint64_t arrival_ns = e->value <= e->time_ns ? e->value : e->time_ns;
    tw_request *r = tw_requests_find(&x->requests, e->id);
    if (r == NULL && (r = open_request(x, e->id, arrival_ns, tw_what_b(e->what), TW_ARRIVALS, false)) == NULL) return;
    enter_phase(x, r, PHASE_NONE, e->time_ns, UINT32_MAX);
    tw_arg args[5];
    uint32_t n = 0;
    const uint32_t reason = tw_what_a(e->what);
    if (!r->labelled) add_labels(x, args, &n, tw_what_b(e->what));
    if (reason < TW_REASONS) {
        add_arg(x, args, &n, T_OUTCOME, TW_ARG_NAME, x->outcome[tw_reason_outcome((tw_reason)reason)]);
        add_arg(x, args, &n, T_REASON, TW_ARG_NAME, x->reason[reason]);
    }
    add_arg(x, args, &n, T_TOKENS, TW_ARG_UINT, tw_what_c(e->what));
    point(x, r->last_ns, row_of(x, r), TW_POINT_END, 0, 0, args, n);
    tw_requests_close(&x->requests, r, r->last_ns);
}

/* ---- pauses ---- */

static void draw_pause(exporter *x, uint32_t on, const tw_long_pause *p, bool inner, const uint64_t *arrows) {
    tw_arg args[4];
    uint32_t n = 0;
    if (p->stop_ns == UINT64_MAX) add_arg(x, args, &n, T_STANDS, TW_ARG_BOOL, 1);
    else add_arg(x, args, &n, T_COLLECTED, TW_ARG_UINT, p->collected);
    if (p->uncollectable != 0) add_arg(x, args, &n, T_UNCOLLECTABLE, TW_ARG_UINT, p->uncollectable);
    if (inner) add_arg(x, args, &n, T_INSIDE, TW_ARG_BOOL, 1);
    for (uint32_t done = 0;;) { /* the first point begins it; the arrows that it has no room for start at instants inside */
        const uint32_t starts = p->arrows - done < UINT16_MAX ? p->arrows - done : UINT16_MAX;
        const tw_point at = {.at_ns = p->start_ns, .track = on, .type = done == 0 ? TW_POINT_BEGIN : TW_POINT_INSTANT,
                             .name = x->cause[p->cause], .category = x->text[T_GC_KIND], .args = (uint16_t)(done == 0 ? n : 0),
                             .starts = (uint16_t)starts};
        tw_timeline_points(x->timeline, &at, 1, args, n, arrows + done, starts);
        done += starts;
        if (done >= p->arrows) break;
    }
    if (p->stop_ns != UINT64_MAX) end(x, p->stop_ns, on);
}

/* A short one, or one inside another; the long ones come at the end, when it is known what they delayed. */
static void on_pause(exporter *x, const tw_ring_event *e) {
    if (!is_pause(e) || is_long(e, x->pauses.shortest_ns)) return;
    const tw_long_pause pause = {.start_ns = e->id, .stop_ns = e->time_ns, .collected = e->value,
                                 .uncollectable = tw_what_c(e->what), .cause = (uint8_t)tw_what_a(e->what)};
    draw_pause(x, x->gc_track[x->process], &pause, (tw_what_b(e->what) & TW_PAUSE_INNER) != 0, NULL);
}

/* The arrows of each pause in a row: first[p] .. first[p] + arrows. */
static uint64_t *arrows_by_pause(const tw_pauses *p, uint32_t *first) {
    uint64_t *ids = tw_malloc((p->arrow_n + 1) * sizeof *ids);
    if (ids == NULL) return NULL;
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        first[i] = at;
        at += p->pause[i].arrows;
    }
    for (uint32_t i = 0; i < p->arrow_n; i++) ids[first[p->arrow[i]]++] = tw_arrow_id(i);
    for (uint32_t i = 0; i < p->n; i++) first[i] -= p->pause[i].arrows;
    return ids;
}

static void draw_long_pauses(exporter *x) {
    tw_pauses *p = &x->pauses;
    uint32_t *first = tw_malloc((p->n + 1) * sizeof *first);
    uint64_t *ids = first != NULL ? arrows_by_pause(p, first) : NULL;
    if (ids == NULL) x->error = ENOMEM;
    for (uint32_t i = 0; i < p->n && ids != NULL; i++)
        draw_pause(x, x->gc_track[p->pause[i].process], &p->pause[i], false, ids + first[i]);
    tw_free(ids);
    tw_free(first);
}

/* ---- the rest ---- */

static void on_counter(exporter *x, const tw_ring_event *e) {
    const uint32_t which = tw_what_a(e->what);
    if (which >= TW_COUNTERS) return;
    tw_point p = {.at_ns = e->time_ns, .track = counter(x, which), .type = TW_POINT_COUNTER, .value = e->value};
    if (which == TW_COUNTER_GOODPUT) {
        const double per_second = (double)e->value / 1000;
        p.type = TW_POINT_COUNTER_DOUBLE;
        memcpy(&p.value, &per_second, sizeof p.value);
    }
    tw_timeline_points(x->timeline, &p, 1, NULL, 0, NULL, 0);
}

static void on_event(exporter *x, const tw_ring_event *e) {
    const tw_kind kind = tw_what_kind(e->what);
    const bool of_request = kind >= TW_KIND_OPEN && kind <= TW_KIND_CLOSE;
    if (kind >= TW_KINDS || (of_request && e->id == 0)) {
        x->account->kind[TW_KIND_NONE]++;
        return;
    }
    x->account->kind[kind]++;
    switch (kind) {
    case TW_KIND_TOKEN: on_token(x, e); break;
    case TW_KIND_OPEN: on_open(x, e); break;
    case TW_KIND_FIRST: on_first(x, e); break;
    case TW_KIND_CLOSE: on_close(x, e); break;
    case TW_KIND_PAUSE: on_pause(x, e); break;
    case TW_KIND_STEP: tw_export_step(x, e); break;
    case TW_KIND_COUNTER: on_counter(x, e); break;
    case TW_KIND_THREAD: tw_export_thread(x, e); break;
    case TW_KIND_STALL: tw_export_stall(x, e); break;
    case TW_KIND_DELAY: x->delay[x->reader.ring] = *e; break;
    default: break;
    }
}

/* Writes on a track of its own what the rings have lost, and which stalls were in none. */
static void write_losses(exporter *x) {
    const uint64_t stalls_lost = tw_load(&x->file->head->stalls_lost);
    uint32_t on = 0;
    for (uint32_t ring = 0; ring < TW_RINGS; ring++) {
        const uint64_t lost = x->reader.cursor[ring].lost;
        if (lost == 0) continue;
        x->account->lost += lost;
        if (on == 0) on = track(x, TW_TRACK_SLICES, x->process_track[x->process], x->text[T_LOST], 9, 0);
        tw_ring_event oldest;
        uint64_t next = 0;
        const size_t n = tw_ring_read(x->file, ring, &next, x->ends[x->process].end[ring], &oldest, 1, NULL);
        const uint64_t at_ns = n != 0 && fine(oldest.time_ns) ? oldest.time_ns : x->first_ns;
        const tw_arg args[] = {{x->text[T_RING], TW_ARG_UINT, ring}, {x->text[T_HOW_MANY], TW_ARG_UINT, lost}};
        point(x, at_ns > x->from_ns ? at_ns : x->from_ns, on, TW_POINT_INSTANT, x->text[T_EVENTS_LOST], 0, args, 2);
    }
    if (stalls_lost == 0) return;
    x->account->stalls_lost += stalls_lost;
    if (on == 0) on = track(x, TW_TRACK_SLICES, x->process_track[x->process], x->text[T_LOST], 9, 0);
    const tw_arg how_many = {x->text[T_HOW_MANY], TW_ARG_UINT, stalls_lost};
    const uint64_t at_ns = x->first_ns > x->from_ns ? x->first_ns : x->from_ns;
    point(x, at_ns, on, TW_POINT_INSTANT, x->text[T_STALLS_LOST], 0, &how_many, 1);
}

static void draw_process(exporter *x, uint32_t process) {
    start_process(x, process);
    tw_reader_start(&x->reader, x->file, &x->ends[process]);
    uint32_t since = 0;
    for (const tw_ring_event *e; x->error == 0 && (e = tw_reader_next(&x->reader)) != NULL;) {
        if (++since == GIVE_WAY_EVENTS) {
            tw_give_way(&x->gave_way_ns);
            since = 0;
        }
        if (!in_range(x, e->time_ns) || !fine(e->time_ns)) {
            if (tw_what_kind(e->what) == TW_KIND_THREAD) tw_export_thread(x, e); /* whose the ring is holds on */
            continue;
        }
        x->account->events++;
        if (x->first_ns == 0) x->first_ns = e->time_ns;
        on_event(x, e);
    }
    tw_export_steps_end(x);
    tw_export_stalls_end(x);
    if (x->first_ns == 0 && fine(x->file->joined_ns)) x->first_ns = x->file->joined_ns;
    write_losses(x);
    x->account->unfinished += x->requests.used;
    tw_requests_free(&x->requests);
    x->requests = (tw_requests){0};
    tw_free(x->label);
    x->label = NULL;
}

static void write_clocks(exporter *x) {
    const size_t room = 2 * TW_CLOCK_KEPT;
    tw_clock_snapshot *all = tw_malloc(room * sizeof *all);
    if (all == NULL) x->error = ENOMEM;
    else tw_timeline_clocks(x->timeline, all, tw_trace_clocks_merged(x->files, x->n, all, room));
    tw_free(all);
}

static void run(exporter *x) {
    for (uint32_t i = 0; i < x->n && x->error == 0; i++) collect(x, i);
    if (x->error == 0) x->error = tw_pauses_sort(&x->pauses, (uint32_t)x->n);
    if (x->error == 0) name_engines(x);
    if (x->error == 0) write_clocks(x);
    name_causes(x);
    for (uint32_t i = 0; i < x->n && x->error == 0; i++) draw_process(x, i);
    if (x->error == 0) draw_long_pauses(x);
    x->account->arrows_left_out = x->pauses.arrows_left_out + x->pauses.left_out;
    x->account->shortest_ns = x->pauses.shortest_ns;
}

int tw_trace_export(tw_timeline *t, const tw_trace *const *files, size_t n, uint64_t from_ns, uint64_t until_ns,
                    tw_trace_account *account) {
    if (n > TW_TRACE_FILES) return EINVAL;
    *account = (tw_trace_account){0};
    exporter *x = tw_calloc(1, sizeof *x);
    if (x == NULL) return ENOMEM;
    x->timeline = t;
    x->files = files;
    x->n = n;
    x->from_ns = from_ns;
    x->until_ns = until_ns;
    x->account = account;
    x->pauses.shortest_ns = TW_PAUSE_SHORT_NS;
    x->ends = tw_calloc(n + 1, sizeof *x->ends);
    x->waited = tw_calloc(n + 1, sizeof *x->waited);
    x->process_track = tw_calloc(n + 1, sizeof *x->process_track);
    x->gc_track = tw_calloc(n + 1, sizeof *x->gc_track);
    if (x->ends == NULL || x->waited == NULL || x->process_track == NULL || x->gc_track == NULL) x->error = ENOMEM;
    else run(x);
    const int error = x->error;
    tw_pauses_free(&x->pauses);
    tw_free(x->ends);
    tw_free(x->waited);
    tw_free(x->process_track);
    tw_free(x->gc_track);
    tw_free(x);
    return error;
}
