/* A timeline's parts that both formats have: the names, the tracks, and which points are written at all. */
#include "trace/track_parts.h"

#include <errno.h>
#include <string.h>

#include "base/grow.h"
#include "base/text.h"
#include "base/tw_malloc.h"

#define NAMES_MOST (UINT32_C(1) << 26)
#define TEXTS_MOST (UINT32_C(1) << 31)
#define TEXT_MOST 65535 /* a longer name is cut */

/* ---- life ---- */

int tw_timeline_create(tw_timeline **out, int format, tw_timeline_write write, void *to) {
    if (format < 0 || format >= TW_TIMELINE_FORMATS || write == NULL) return EINVAL;
    tw_timeline *t = tw_calloc(1, sizeof *t);
    if (t == NULL) return ENOMEM;
    *t = (tw_timeline){.format = format, .write = write, .to = to, .fd = -1, .text_count = 1, .row_count = 1};
    t->bytes = t->at = tw_malloc(TW_TIMELINE_CHUNK);
    if (t->bytes == NULL) return tw_timeline_free(t), ENOMEM;
    t->end = t->bytes + TW_TIMELINE_CHUNK;
    tw_timeline_sequence(t); /* number 0: the file's own */
    if (t->error != 0) return tw_timeline_free(t), ENOMEM;
    *out = t;
    if (format == TW_TIMELINE_PERFETTO) tw_packets_start(t);
    return 0;
}

int tw_timeline_create_fd(tw_timeline **out, int format, int fd) {
    if (fd < 0) return EINVAL;
    const int problem = tw_timeline_create(out, format, tw_timeline_write_fd, NULL);
    if (problem != 0) return problem;
    (*out)->to = *out;
    (*out)->fd = fd;
    return 0;
}

int tw_timeline_finish(tw_timeline *t) {
    if (t->format == TW_TIMELINE_JSON && t->error == 0 && !t->finished) tw_json_finish(t);
    t->finished = true;
    tw_timeline_flush(t);
    return t->error;
}

void tw_timeline_free(tw_timeline *t) {
    if (t == NULL) return;
    for (uint32_t i = 0; i < t->sequence_count; i++)
        for (int kind = 0; kind < TW_INTERNS; kind++) tw_free(t->sequence[i].known[kind]);
    tw_free(t->sequence);
    tw_free(t->row);
    tw_free(t->bucket);
    tw_free(t->text);
    tw_free(t->texts);
    tw_free(t->bytes);
    tw_free(t);
}

static bool one_more(tw_timeline *t, void *array, uint32_t count, uint32_t *room, size_t size) {
    if (tw_grow(array, count, room, size)) return true;
    tw_timeline_fail(t, ENOMEM);
    return false;
}

/* ---- names ---- */

static uint32_t bucket_of(const char *text, size_t len, uint32_t buckets) {
    const uint64_t hash = tw_text_hash(text, len);
    return (uint32_t)(hash ^ hash >> 32) & (buckets - 1);
}

static bool rehash(tw_timeline *t) {
    const uint32_t buckets = t->buckets != 0 ? t->buckets * 2 : TW_GROW_START;
    uint32_t *bucket = tw_calloc(buckets, sizeof *bucket);
    if (bucket == NULL) return tw_timeline_fail(t, ENOMEM), false;
    for (uint32_t i = 1; i < t->text_count; i++) {
        uint32_t *slot = &bucket[bucket_of(t->texts + t->text[i].at, t->text[i].len, buckets)];
        t->text[i].next = *slot;
        *slot = i;
    }
    tw_free(t->bucket);
    t->bucket = bucket;
    t->buckets = buckets;
    return true;
}

static bool room_for_text(tw_timeline *t, size_t len) {
    if (t->texts_room - t->texts_len >= len) return true;
    size_t room = t->texts_room != 0 ? t->texts_room : 4096;
    while (room - t->texts_len < len) room *= 2;
    char *texts = room <= TEXTS_MOST ? tw_realloc(t->texts, room) : NULL;
    if (texts == NULL) return tw_timeline_fail(t, ENOMEM), false;
    t->texts = texts;
    t->texts_room = room;
    return true;
}

/* Copies it with '?' for what is no UTF-8, cut at a character. Returns its length. */
static size_t clean(char *to, const char *text, size_t len) {
    size_t done = 0;
    while (done < len && done < TEXT_MOST) {
        const size_t n = tw_utf8_length((const unsigned char *)text + done, len - done);
        if (done + n > TEXT_MOST) break;
        if (n == 0) to[done++] = '?';
        else {
            memcpy(to + done, text + done, n);
            done += n;
        }
    }
    return done;
}

uint32_t tw_timeline_name(tw_timeline *t, const char *text, size_t len) {
    if (len > TEXT_MOST) len = TEXT_MOST + 3; /* the cut is at a character */
    if (t->error != 0 || !room_for_text(t, len)) return 0;
    char *copy = t->texts + t->texts_len;
    len = clean(copy, text, len);
    if (t->text_count >= t->buckets && !rehash(t)) return 0;
    uint32_t *slot = &t->bucket[bucket_of(copy, len, t->buckets)];
    for (uint32_t i = *slot; i != 0; i = t->text[i].next)
        if (t->text[i].len == len && memcmp(t->texts + t->text[i].at, copy, len) == 0) return i;
    if (t->text_count >= NAMES_MOST) return tw_timeline_fail(t, ENOMEM), 0;
    if (!one_more(t, &t->text, t->text_count, &t->text_room, sizeof *t->text)) return 0;
    t->text[t->text_count] = (tw_timeline_text){(uint32_t)t->texts_len, (uint32_t)len, *slot};
    t->texts_len += len;
    return *slot = t->text_count++;
}

/* ---- tracks ---- */

uint32_t tw_timeline_sequence(tw_timeline *t) {
    if (t->error != 0) return 0;
    if (!one_more(t, &t->sequence, t->sequence_count, &t->sequence_room, sizeof *t->sequence)) return 0;
    t->sequence[t->sequence_count] = (tw_timeline_sequence_state){0};
    return t->sequence_count++;
}

uint32_t tw_timeline_track(tw_timeline *t, const tw_track *track) {
    if (t->error != 0 || track->kind >= TW_TRACK_KINDS || track->parent >= t->row_count ||
        track->sequence >= t->sequence_count || track->name >= t->text_count || track->unit >= t->text_count) return 0;
    if (!one_more(t, &t->row, t->row_count, &t->row_room, sizeof *t->row)) return 0;
    const tw_timeline_row *parent = track->parent != 0 ? &t->row[track->parent] : NULL;
    tw_timeline_row row = {track->kind, track->sequence, track->name, track->pid, track->tid};
    if (track->kind == TW_TRACK_PROCESS) row.tid = track->pid;
    if (track->kind == TW_TRACK_SLICES || track->kind == TW_TRACK_COUNTER) {
        row.pid = parent != NULL ? parent->pid : 0;
        row.tid = t->row_count; /* JSON: a row is a thread; those of the kernel are no smaller than real ones are */
    }
    const uint32_t number = t->row_count++;
    t->row[number] = row;
    if (t->format == TW_TIMELINE_JSON) tw_json_track(t, number, track);
    else tw_packets_track(t, number, track);
    return t->error == 0 ? number : 0;
}

uint32_t tw_timeline_find(const tw_timeline *t, tw_track_kind kind, int32_t pid, int64_t tid) {
    uint32_t at = t->row_count;
    while (--at > 0 && (t->row[at].kind != kind || t->row[at].pid != pid ||
                        (kind == TW_TRACK_THREAD && t->row[at].tid != tid)));
    return at;
}

void tw_timeline_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n) {
    if (t->error != 0) return;
    if (t->format == TW_TIMELINE_JSON) tw_json_clocks(t, snapshots, n);
    else tw_packets_clocks(t, snapshots, n);
}

/* ---- points ---- */

static bool args_fine(const tw_timeline *t, const tw_arg *args, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (args[i].name == 0 || args[i].name >= t->text_count || args[i].kind >= TW_ARG_KINDS ||
            (args[i].kind == TW_ARG_NAME && (args[i].value == 0 || args[i].value >= t->text_count))) return false;
    return true;
}

static bool point_fine(const tw_timeline *t, const tw_point *p, const tw_arg *args, size_t n_args, size_t n_flows) {
    if (p->track == 0 || p->track >= t->row_count || p->name >= t->text_count || p->category >= t->text_count ||
        p->type < TW_POINT_BEGIN || p->type >= TW_POINT_TYPES || p->at_ns >> 63 != 0) return false;
    if ((t->row[p->track].kind == TW_TRACK_COUNTER) != (p->type >= TW_POINT_COUNTER)) return false;
    const size_t flows = (size_t)p->starts + p->ends;
    if (p->args != 0 && (p->arg_at > n_args || p->args > n_args - p->arg_at)) return false;
    if (flows != 0 && (p->flow_at > n_flows || flows > n_flows - p->flow_at)) return false;
    return p->args == 0 || args_fine(t, args + p->arg_at, p->args);
}

size_t tw_timeline_points(tw_timeline *t, const tw_point *points, size_t n, const tw_arg *args, size_t n_args,
                          const uint64_t *flows, size_t n_flows) {
    size_t done = 0;
    for (const tw_point *p = points; p < points + n && t->error == 0; p++) {
        if (!point_fine(t, p, args, n_args, n_flows)) continue;
        const tw_arg *own = p->args != 0 ? args + p->arg_at : NULL;
        const uint64_t *arrows = p->starts + p->ends != 0 ? flows + p->flow_at : NULL;
        if (t->format == TW_TIMELINE_JSON) tw_json_point(t, p, own, arrows);
        else tw_packets_point(t, p, own, arrows);
        done++;
    }
    return done;
}
