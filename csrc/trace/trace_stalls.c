/* Stalls of a process: rows below the tracks of the threads that tokens wait for. */
#include "trace/exporter.h"

#include <stdio.h>

#include "base/arithmetic.h"

enum { MEASURED, SAMPLED, ROWS };

/* ---- where ---- */

static void thread_name(const exporter *x, uint64_t tid, char name[TW_THREAD_NAME_WORDS * 8]) {
    for (uint32_t ring = 0; ring < TW_RINGS; ring++)
        if (tw_ring_thread(x->file, ring, name) == tid && tid != 0) return;
    name[0] = '\0';
}

static stall_rows *rows_of(exporter *x, uint64_t tid) {
    for (uint32_t i = 0; i < x->stall_threads; i++)
        if (x->stalls[i].tid == tid) return &x->stalls[i];
    if (x->stall_threads == TW_TRACE_STALL_THREADS) return &x->stalls[TW_TRACE_STALL_THREADS];
    x->stalls[x->stall_threads] = (stall_rows){.tid = tid};
    return &x->stalls[x->stall_threads++];
}

static uint32_t row(exporter *x, stall_rows *rows, int which) {
    char name[TW_THREAD_NAME_WORDS * 8];
    if (rows->row[which].track != 0) return rows->row[which].track;
    thread_name(x, rows->tid, name);
    const uint32_t thread = tw_export_thread_track(x, rows->tid, name);
    const uint32_t text = x->text[which == SAMPLED ? T_SAMPLES : T_STALLS];
    return rows->row[which].track = track(x, TW_TRACK_SLICES, thread, text, 1 + (uint32_t)which, 0);
}

/* ---- what ---- */

static uint32_t text_of(exporter *x, const char *from, const char *to) {
    return tw_timeline_name(x->timeline, from, (size_t)(to - from));
}

/* The arguments of one part of a name: "function", "file.py:12", "<- caller", its "file.py:30", "[read /path]". */
static void add_part(exporter *x, tw_arg *args, uint32_t *n, uint32_t part, const char *from, const char *to) {
    static const uint32_t of_part[] = {T_FUNCTION, T_FILE};
    const bool is_caller = to - from > 3 && memcmp(from, "<- ", 3) == 0;
    if (from == to) return;
    if (is_caller) add_arg(x, args, n, T_CALLER, TW_ARG_NAME, text_of(x, from + 3, to));
    else if (*from == '[') add_arg(x, args, n, T_CALL, TW_ARG_NAME, text_of(x, from, to));
    else if (part < 2) add_arg(x, args, n, of_part[part], TW_ARG_NAME, text_of(x, from, to));
}

/* Returns the name of its slice: the function's, 0 where there is none. */
static uint32_t add_name(exporter *x, tw_arg *args, uint32_t *n, uint32_t number) {
    char name[TW_NAME_TEXT];
    const char *from = name;
    tw_trace_stall_name(x->file, number, name);
    for (uint32_t part = 0; part < 5; part++) { /* two spaces between them */
        const char *to = strstr(from, "  ");
        add_part(x, args, n, part, from, to == NULL ? from + strlen(from) : to);
        if (to == NULL) break;
        from = to + 2;
    }
    return *n > 0 && args[0].name == x->text[T_FUNCTION] ? (uint32_t)args[0].value : 0;
}

static void add_holder(exporter *x, tw_arg *args, uint32_t *n, uint32_t number) {
    char name[TW_NAME_TEXT];
    tw_trace_stall_name(x->file, number, name);
    if (name[0] != '\0') add_arg(x, args, n, T_HOLDER, TW_ARG_NAME, name_of(x, name));
}

/* e: all zeros where there are none. */
static void add_frames(exporter *x, tw_arg *args, uint32_t *n, const tw_ring_event *e) {
    const uint64_t frames[2] = {e->id, e->value};
    for (uint32_t k = 0; k < TW_STACK; k++) {
        char title[16], name[TW_NAME_TEXT];
        tw_trace_frame(x->file, tw_span_frame(frames, k), name);
        if (name[0] == '\0') return;
        snprintf(title, sizeof title, "frame %u", k);
        args[(*n)++] = (tw_arg){name_of(x, title), TW_ARG_NAME, name_of(x, name)};
    }
}

static void add_detail(exporter *x, tw_arg *args, uint32_t *n, uint32_t cause, uint64_t detail) {
    if (cause == TW_DELAY_GIL) add_holder(x, args, n, (uint32_t)detail);
    if (cause == TW_DELAY_THROTTLED) add_arg(x, args, n, T_THROTTLED, TW_ARG_UINT, detail / 1000);
}

static void draw(exporter *x, const stall_row *r, uint64_t from_ns, uint32_t on) {
    const tw_ring_event *e = &r->stall;
    tw_arg args[8 + TW_STACK];
    uint32_t n = 0;
    const uint32_t cause = tw_what_a(e->what);
    const uint32_t cause_name = name_of(x, tw_delay_cause_name((int)cause));
    const uint32_t function = add_name(x, args, &n, tw_what_b(e->what));
    add_arg(x, args, &n, T_CAUSE, TW_ARG_NAME, cause_name);
    add_arg(x, args, &n, T_CERTAINTY, TW_ARG_NAME, name_of(x, tw_certainty_name((int)(e->value & 255))));
    add_detail(x, args, &n, cause, e->value >> 8);
    add_frames(x, args, &n, &r->frames);
    point(x, from_ns, on, TW_POINT_BEGIN, function != 0 ? function : cause_name, x->text[T_STALL], args, n);
    end(x, e->time_ns, on);
    x->account->stalls++;
}

/* Draws what was read last for a row. Two rings may hold one stop. */
static void draw_last(exporter *x, stall_rows *rows, int which) {
    stall_row *r = &rows->row[which];
    const uint64_t from_ns = most(r->stall.id, r->end_ns), to_ns = r->stall.time_ns;
    if (to_ns == 0) return;
    if (rows == &x->stalls[TW_TRACE_STALL_THREADS]) x->account->stalls_left_out++;
    else if (from_ns < to_ns) {
        draw(x, r, from_ns, row(x, rows, which));
        r->end_ns = to_ns;
    }
}

static bool is_same(const tw_ring_event *a, const tw_ring_event *b) {
    return a->id == b->id && a->what == b->what && a->value == b->value;
}

void tw_export_stall(exporter *x, const tw_ring_event *e) {
    const int which = (e->value & 255) == TW_MEASURED ? MEASURED : SAMPLED;
    const uint64_t tid = tw_what_c(e->what);
    stall_rows *rows = rows_of(x, tid >> 31 == 0 ? tid : 0);
    stall_row *r = &rows->row[which];
    const tw_ring_event *behind = tw_reader_peek(&x->reader);
    if (is_same(&r->stall, e)) {
        r->stall.time_ns = most(r->stall.time_ns, e->time_ns);
        return;
    }
    draw_last(x, rows, which);
    r->stall = *e;
    r->frames = behind != NULL && tw_what_kind(behind->what) == TW_KIND_FRAMES ? *behind : (tw_ring_event){0};
}

void tw_export_stalls_end(exporter *x) {
    for (uint32_t i = 0; i <= TW_TRACE_STALL_THREADS; i++)
        for (int which = 0; which < ROWS; which++) draw_last(x, &x->stalls[i], which);
}
