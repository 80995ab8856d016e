/* A timeline as Chrome's JSON: opens everywhere, and other JSON can be laid beside it.
 *
 * A row of slices is a thread with a number no kernel gives (from TW_JSON_ROWS on), so that begin and end nest and arrows
 * find their slices in every viewer. ts is CLOCK_MONOTONIC in us with three decimals. */
#include "trace/track_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define TW_JSON_ROWS (INT64_C(1) << 22) /* pid_max is at most this */
#define ESCAPED_MOST 6
#define LINE_ROOM 256

static uint8_t *put(uint8_t *p, const char *text) {
    const size_t len = strlen(text);
    memcpy(p, text, len);
    return p + len;
}

static uint8_t *put_number(uint8_t *p, uint64_t value) {
    char digits[20];
    size_t i = sizeof digits;
    do digits[--i] = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    memcpy(p, digits + i, sizeof digits - i);
    return p + (sizeof digits - i);
}

static uint8_t *put_hex(uint8_t *p, uint64_t value) {
    int shift = 60;
    while (shift > 0 && value >> shift == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) *p++ = (uint8_t)"0123456789abcdef"[value >> shift & 15];
    return p;
}

static uint8_t *put_signed(uint8_t *p, int64_t value) {
    if (value < 0) *p++ = '-';
    return put_number(p, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

static uint8_t *put_double(uint8_t *p, uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    char text[40];
    snprintf(text, sizeof text, "%.17g", isfinite(value) ? value : 0.0);
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.'; /* a host may have set a locale */
    return put(p, text);
}

/* ns as us with three decimals. */
static uint8_t *put_us(uint8_t *p, uint64_t ns) {
    p = put_number(p, ns / 1000);
    *p++ = '.';
    const uint64_t rest = ns % 1000;
    *p++ = (uint8_t)('0' + rest / 100);
    *p++ = (uint8_t)('0' + rest / 10 % 10);
    *p++ = (uint8_t)('0' + rest % 10);
    return p;
}

static uint8_t *put_text(uint8_t *p, const char *text, size_t len) {
    static const char hex[] = "0123456789abcdef";
    *p++ = '"';
    for (size_t i = 0; i < len; i++) {
        const uint8_t c = (uint8_t)text[i];
        if (c == '"' || c == '\\') {
            *p++ = '\\';
            *p++ = c;
        } else if (c < 0x20) {
            p = put(p, "\\u00");
            *p++ = (uint8_t)hex[c >> 4];
            *p++ = (uint8_t)hex[c & 15];
        } else *p++ = c;
    }
    *p++ = '"';
    return p;
}

static uint8_t *put_name(const tw_timeline *t, uint8_t *p, uint32_t name) {
    size_t len;
    const char *text = tw_timeline_text_of(t, name, &len);
    return put_text(p, text, len);
}

static size_t name_room(const tw_timeline *t, uint32_t name) {
    size_t len = 0;
    if (name != 0) tw_timeline_text_of(t, name, &len);
    return len * ESCAPED_MOST + 2;
}

/* ---- lines ---- */

/* Begins an event: what every one of them has. */
static uint8_t *begin(tw_timeline *t, uint8_t *p, const char *phase, const tw_timeline_row *row) {
    p = put(p, t->begun ? ",\n{\"ph\":\"" : "\n{\"ph\":\"");
    t->begun = true;
    p = put(p, phase);
    p = put(p, "\",\"pid\":");
    p = put_signed(p, row->pid);
    p = put(p, ",\"tid\":");
    const bool ours = row->kind == TW_TRACK_SLICES || row->kind == TW_TRACK_COUNTER;
    return put_signed(p, ours ? TW_JSON_ROWS + row->tid : row->tid);
}

static uint8_t *put_ts(uint8_t *p, uint64_t at_ns) { return put_us(put(p, ",\"ts\":"), at_ns); }

void tw_json_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n) {
    if (n == 0) return;
    const tw_clock_snapshot *last = &snapshots[n - 1];
    if (last->at[TW_CLOCK_REALTIME] >= last->at[TW_CLOCK_MONOTONIC])
        t->base_ns = last->at[TW_CLOCK_REALTIME] - last->at[TW_CLOCK_MONOTONIC];
}

/* The head is written with the first track, when the clocks are known. */
static uint8_t *head(tw_timeline *t, uint8_t *p) {
    p = put(p, "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":");
    p = put_number(p, t->base_ns);
    p = put(p, ",\"viztracer_metadata\":{\"version\":\"tailwatch\",\"overflow\":false,\"baseTimeNanoseconds\":");
    p = put_number(p, t->base_ns);
    return put(p, "},\"traceEvents\":[");
}

static uint8_t *describe(tw_timeline *t, uint8_t *p, const tw_timeline_row *row, const char *what) {
    p = begin(t, p, "M", row);
    p = put(p, ",\"name\":\"");
    return put(put(p, what), "\",\"args\":{");
}

void tw_json_track(tw_timeline *t, uint32_t number, const tw_track *track) {
    const tw_timeline_row *row = &t->row[number];
    uint8_t *p = tw_timeline_room(t, 4 * LINE_ROOM + name_room(t, track->name));
    if (p == NULL) return;
    if (tw_timeline_bytes(t) == 0) p = head(t, p);
    if (row->kind != TW_TRACK_COUNTER && track->name != 0) {
        p = describe(t, p, row, row->kind == TW_TRACK_PROCESS ? "process_name" : "thread_name");
        p = put_name(t, put(p, "\"name\":"), track->name);
        p = put(p, "}}");
    }
    if (row->kind == TW_TRACK_SLICES) {
        p = describe(t, p, row, "thread_sort_index");
        p = put_number(put(p, "\"sort_index\":"), track->rank);
        p = put(p, "}}");
    }
    t->at = p;
}

static uint8_t *put_args(const tw_timeline *t, uint8_t *p, const tw_arg *args, size_t n) {
    p = put(p, ",\"args\":{");
    for (size_t i = 0; i < n; i++) {
        if (i != 0) *p++ = ',';
        p = put(put_name(t, p, args[i].name), ":");
        switch (args[i].kind) {
        case TW_ARG_INT: p = put_signed(p, (int64_t)args[i].value); break;
        case TW_ARG_DOUBLE: p = put_double(p, args[i].value); break;
        case TW_ARG_BOOL: p = put(p, args[i].value != 0 ? "true" : "false"); break;
        case TW_ARG_NAME: p = put_name(t, p, (uint32_t)args[i].value); break;
        default: p = put_number(p, args[i].value);
        }
    }
    return put(p, "}");
}

static uint8_t *put_flow(tw_timeline *t, uint8_t *p, const tw_timeline_row *row, uint64_t at_ns, uint64_t id, bool ends) {
    p = put_ts(begin(t, p, ends ? "f" : "s", row), at_ns);
    p = put_hex(put(p, ",\"cat\":\"flow\",\"name\":\"flow\",\"id\":\"0x"), id);
    return put(p, ends ? "\",\"bp\":\"e\"}" : "\"}");
}

static uint8_t *put_counter(tw_timeline *t, uint8_t *p, const tw_timeline_row *row, const tw_point *point) {
    p = put_ts(begin(t, p, "C", row), point->at_ns);
    if (row->name != 0) p = put_name(t, put(p, ",\"name\":"), row->name);
    p = put(p, ",\"args\":{\"value\":");
    if (point->type == TW_POINT_COUNTER) p = put_signed(p, (int64_t)point->value);
    else p = put_double(p, point->value);
    return put(p, "}}");
}

static size_t point_room(const tw_timeline *t, const tw_timeline_row *row, const tw_point *point, const tw_arg *args) {
    size_t bytes = 2 * LINE_ROOM + name_room(t, point->name) + name_room(t, point->category) + name_room(t, row->name) +
                   ((size_t)point->starts + point->ends) * LINE_ROOM;
    for (uint32_t i = 0; i < point->args; i++)
        bytes += 64 + name_room(t, args[i].name) + (args[i].kind == TW_ARG_NAME ? name_room(t, (uint32_t)args[i].value) : 0);
    return bytes;
}

void tw_json_point(tw_timeline *t, const tw_point *point, const tw_arg *args, const uint64_t *flows) {
    static const char *const phase[] = {"", "B", "E", "i"};
    const tw_timeline_row *row = &t->row[point->track];
    uint8_t *p = tw_timeline_room(t, point_room(t, row, point, args));
    if (p == NULL) return;
    if (point->type >= TW_POINT_COUNTER) {
        t->at = put_counter(t, p, row, point);
        return;
    }
    p = put_ts(begin(t, p, phase[point->type], row), point->at_ns);
    if (point->name != 0) p = put_name(t, put(p, ",\"name\":"), point->name);
    if (point->category != 0) p = put_name(t, put(p, ",\"cat\":"), point->category);
    if (point->type == TW_POINT_INSTANT) p = put(p, ",\"s\":\"t\"");
    if (point->args != 0) p = put_args(t, p, args, point->args);
    *p++ = '}';
    for (uint32_t i = 0; i < (uint32_t)point->starts + point->ends; i++)
        p = put_flow(t, p, row, point->at_ns, flows[i], i >= point->starts);
    t->at = p;
}

void tw_json_finish(tw_timeline *t) {
    uint8_t *p = tw_timeline_room(t, 2 * LINE_ROOM);
    if (p == NULL) return;
    if (tw_timeline_bytes(t) == 0) p = head(t, p);
    t->at = put(p, "\n]}\n");
}
