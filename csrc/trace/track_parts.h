/* What the two formats of a timeline share. Private. */
#pragma once

#include "tailwatch/trace/track_writer.h"

#define TW_TIMELINE_HEADROOM 256 /* the largest point without arguments, flows and new names, and then some */

typedef enum tw_intern { TW_INTERN_CATEGORY, TW_INTERN_NAME, TW_INTERN_ARG, TW_INTERN_TEXT, TW_INTERNS } tw_intern;

typedef struct tw_timeline_text {
    uint32_t at, len; /* in the texts' bytes */
    uint32_t next;    /* of the same hash */
} tw_timeline_text;

typedef struct tw_timeline_sequence_state {
    uint64_t last_ns;
    bool started;
    uint64_t *known[TW_INTERNS]; /* bitmaps: names that were sent */
    uint32_t words[TW_INTERNS];
} tw_timeline_sequence_state;

typedef struct tw_timeline_row {
    uint32_t kind, sequence;
    uint32_t name;
    int32_t pid;
    int64_t tid;
} tw_timeline_row;

struct tw_timeline {
    int format;
    int error;
    tw_timeline_write write;
    void *to;
    int fd;                       /* of tw_timeline_create_fd */
    uint64_t written;
    uint8_t *bytes, *at, *end;

    char *texts;
    size_t texts_len, texts_room;
    tw_timeline_text *text;       /* [0] is not used */
    uint32_t text_count, text_room;
    uint32_t *bucket;
    uint32_t buckets;             /* a power of two */

    tw_timeline_row *row;         /* [0] is not used */
    uint32_t row_count, row_room;
    tw_timeline_sequence_state *sequence; /* [0]: clocks */
    uint32_t sequence_count, sequence_room;

    bool finished;
    bool begun;                   /* JSON: an event stands before */
    uint64_t base_ns;             /* JSON: REALTIME - MONOTONIC */
};

/* The first error stays. */
void tw_timeline_fail(tw_timeline *t, int error);

void tw_timeline_flush(tw_timeline *t);

/* A tw_timeline_write: to is the timeline itself, which has a descriptor. */
bool tw_timeline_write_fd(void *to, const void *bytes, size_t len);

/* Room for so many bytes at t->at: NULL, and t->error, where there is none. */
uint8_t *tw_timeline_room(tw_timeline *t, size_t bytes);

static inline const char *tw_timeline_text_of(const tw_timeline *t, uint32_t name, size_t *len) {
    *len = t->text[name].len;
    return t->texts + t->text[name].at;
}

void tw_packets_start(tw_timeline *t);
void tw_packets_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n);
void tw_packets_track(tw_timeline *t, uint32_t number, const tw_track *track);
void tw_packets_point(tw_timeline *t, const tw_point *point, const tw_arg *args, const uint64_t *flows);

void tw_json_clocks(tw_timeline *t, const tw_clock_snapshot *snapshots, size_t n);
void tw_json_track(tw_timeline *t, uint32_t number, const tw_track *track);
void tw_json_point(tw_timeline *t, const tw_point *point, const tw_arg *args, const uint64_t *flows);
void tw_json_finish(tw_timeline *t);
