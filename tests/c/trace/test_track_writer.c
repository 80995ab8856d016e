/* Bytes of a timeline: sizes that are promised, names sent once, points that are refused, failures that are reported.
 * */
#include "tailwatch/trace/track_writer.h"

#include <errno.h>
#include <unistd.h>

#include "trace_tools.h"

#define SECOND UINT64_C(1000000000)
#define FIELD_EVENT 11
#define FIELD_INTERNED 12
#define FIELD_TRACK 60

typedef struct one_row {
    tw_timeline *timeline;
    kept_bytes out;
    uint32_t sequence, track, counter, name;
} one_row;

static uint32_t name_of(tw_timeline *t, const char *text) { return tw_timeline_name(t, text, strlen(text)); }

static void start(one_row *r, int format) {
    memset(r, 0, sizeof *r);
    TW_REQUIRE(tw_timeline_create(&r->timeline, format, keep_bytes, &r->out) == 0);
    r->sequence = tw_timeline_sequence(r->timeline);
    r->name = name_of(r->timeline, "token");
    const tw_track slices = {.kind = TW_TRACK_SLICES, .sequence = r->sequence, .name = name_of(r->timeline, "row")};
    const tw_track counter = {.kind = TW_TRACK_COUNTER, .sequence = r->sequence, .name = r->name};
    r->track = tw_timeline_track(r->timeline, &slices);
    r->counter = tw_timeline_track(r->timeline, &counter);
    TW_REQUIRE(r->track != 0 && r->counter != 0 && r->name != 0);
}

static void stop(one_row *r) {
    TW_CHECK_EQ(0, tw_timeline_finish(r->timeline));
    tw_timeline_free(r->timeline);
    free(r->out.bytes);
}

static size_t put(one_row *r, const tw_point *point, const tw_arg *args, size_t n_args, const uint64_t *flows, size_t n_flows) {
    const uint64_t before = tw_timeline_bytes(r->timeline);
    TW_CHECK_EQ(1, tw_timeline_points(r->timeline, point, 1, args, n_args, flows, n_flows));
    return (size_t)(tw_timeline_bytes(r->timeline) - before);
}

TW_TEST(points_take_no_more_bytes_than_promised) {
    one_row r;
    start(&r, TW_TIMELINE_PERFETTO);
    const tw_arg args[] = {{r.name, TW_ARG_UINT, 1}, {r.name, TW_ARG_UINT, 100000}};
    const uint64_t flow = 12345;
    tw_point p = {.at_ns = SECOND, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT, .args = 2};
    put(&r, &p, args, 2, NULL, 0); /* the names go out */
    p = (tw_point){.at_ns = 2 * SECOND, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT};
    TW_CHECK(put(&r, &p, NULL, 0, NULL, 0) <= 22);
    p.at_ns += 15000000;
    p.args = 2;
    TW_CHECK(put(&r, &p, args, 2, NULL, 0) <= 36);
    p = (tw_point){.at_ns = 3 * SECOND, .track = r.track, .name = r.name, .type = TW_POINT_BEGIN, .starts = 1};
    const size_t slice = put(&r, &p, NULL, 0, &flow, 1);
    p = (tw_point){.at_ns = 4 * SECOND, .track = r.track, .type = TW_POINT_END};
    TW_CHECK(slice + put(&r, &p, NULL, 0, NULL, 0) <= 64);
    stop(&r);
}

TW_TEST(a_name_is_sent_once_for_each_sequence) {
    one_row r;
    start(&r, TW_TIMELINE_PERFETTO);
    TW_CHECK_EQ(r.name, name_of(r.timeline, "token"));
    for (uint64_t i = 0; i < 100; i++) {
        const tw_point p = {.at_ns = SECOND + i, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT};
        put(&r, &p, NULL, 0, NULL, 0);
    }
    TW_CHECK_EQ(0, tw_timeline_finish(r.timeline));
    TW_CHECK_EQ(1, count_packets(&r.out, FIELD_INTERNED));
    TW_CHECK_EQ(100, count_packets(&r.out, FIELD_EVENT));
    TW_CHECK_EQ(2, count_packets(&r.out, FIELD_TRACK));
    tw_timeline_free(r.timeline);
    free(r.out.bytes);
}

TW_TEST(many_names_keep_their_numbers) {
    one_row r;
    start(&r, TW_TIMELINE_PERFETTO);
    uint32_t first[5000];
    char text[32];
    for (uint32_t turn = 0; turn < 2; turn++)
        for (uint32_t i = 0; i < 5000; i++) {
            snprintf(text, sizeof text, "name %u", i);
            const uint32_t number = name_of(r.timeline, text);
            if (turn == 0) first[i] = number;
            TW_CHECK_EQ(first[i], number);
        }
    TW_CHECK(first[4999] != first[0] && name_of(r.timeline, "") != 0);
    stop(&r);
}

TW_TEST(texts_become_utf8) {
    static const struct { const char *given, *expected; } cases[] = {
        {"caf\xc3\xa9", "caf\xc3\xa9"}, {"\xff", "?"}, {"a\xc3", "a?"}, {"\xed\xa0\x80", "???"}, {"\xc0\x80", "??"},
        {"\xf0\x9f\x8c\x8a", "\xf0\x9f\x8c\x8a"}, {"\xf4\x90\x80\x80", "????"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        one_row r;
        start(&r, TW_TIMELINE_JSON);
        TW_CHECK_EQ(name_of(r.timeline, cases[i].expected), name_of(r.timeline, cases[i].given));
        stop(&r);
    }
}

TW_TEST(what_refers_to_nothing_is_refused) {
    for (int format = 0; format < TW_TIMELINE_FORMATS; format++) {
        one_row r;
        start(&r, format);
        const tw_arg args[] = {{r.name, TW_ARG_NAME, 99}, {r.name, TW_ARG_KINDS, 1}, {0, TW_ARG_UINT, 1}};
        const uint64_t flows[1] = {1};
        const tw_point good = {.at_ns = SECOND, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT};
        tw_point bad[10];
        for (int i = 0; i < 10; i++) bad[i] = good;
        bad[0].track = 0;
        bad[1].track = 99;
        bad[2].name = 99;
        bad[3].category = 99;
        bad[4].type = 0;
        bad[5].type = TW_POINT_TYPES;
        bad[6].args = 1;
        bad[7].args = 4;
        bad[8].flow_at = UINT32_MAX, bad[8].ends = 1;
        bad[9].at_ns = UINT64_MAX;
        TW_CHECK_EQ(0, tw_timeline_points(r.timeline, bad, 10, args, 3, flows, 1));
        for (uint32_t at = 1; at < 3; at++) {
            tw_point p = good;
            p.args = 1, p.arg_at = at;
            TW_CHECK_EQ(0, tw_timeline_points(r.timeline, &p, 1, args, 3, flows, 1));
        }
        const tw_point crossed[] = {{.track = r.counter, .type = TW_POINT_INSTANT}, {.track = r.track, .type = TW_POINT_COUNTER}};
        TW_CHECK_EQ(0, tw_timeline_points(r.timeline, crossed, 2, NULL, 0, NULL, 0));
        const tw_track orphan = {.kind = TW_TRACK_SLICES, .parent = 99}, strange = {.kind = TW_TRACK_KINDS};
        TW_CHECK_EQ(0, tw_timeline_track(r.timeline, &orphan));
        TW_CHECK_EQ(0, tw_timeline_track(r.timeline, &strange));
        TW_CHECK_EQ(1, tw_timeline_points(r.timeline, &good, 1, NULL, 0, NULL, 0));
        stop(&r);
    }
}

TW_TEST(bytes_leave_in_bounded_chunks) {
    for (int format = 0; format < TW_TIMELINE_FORMATS; format++) {
        one_row r;
        start(&r, format);
        for (uint64_t i = 0; i < 100000; i++) {
            const tw_point p = {.at_ns = SECOND + i, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT};
            tw_timeline_points(r.timeline, &p, 1, NULL, 0, NULL, 0);
        }
        TW_CHECK_EQ(0, tw_timeline_finish(r.timeline));
        const size_t len = r.out.len;
        TW_CHECK_EQ(0, tw_timeline_finish(r.timeline));
        TW_CHECK_EQ(len, r.out.len);
        TW_CHECK(r.out.chunks > 1 && r.out.largest <= TW_TIMELINE_CHUNK);
        if (format == TW_TIMELINE_JSON) TW_CHECK(is_paired_json(&r.out));
        tw_timeline_free(r.timeline);
        free(r.out.bytes);
    }
}

TW_TEST(a_writer_that_refuses_is_reported) {
    one_row r;
    start(&r, TW_TIMELINE_PERFETTO);
    r.out.most = 1;
    for (uint64_t i = 0; i < 100000; i++) {
        const tw_point p = {.at_ns = SECOND + i, .track = r.track, .name = r.name, .type = TW_POINT_INSTANT};
        tw_timeline_points(r.timeline, &p, 1, NULL, 0, NULL, 0);
    }
    TW_CHECK_EQ(EIO, tw_timeline_finish(r.timeline));
    TW_CHECK_EQ(0, tw_timeline_name(r.timeline, "x", 1));
    tw_timeline_free(r.timeline);
    free(r.out.bytes);
}

TW_TEST(a_descriptor_that_takes_nothing_has_an_error) {
    int ends[2];
    TW_REQUIRE(pipe(ends) == 0);
    tw_timeline *t;
    TW_REQUIRE(tw_timeline_create_fd(&t, TW_TIMELINE_PERFETTO, ends[0]) == 0); /* the end that is read */
    TW_CHECK_EQ(EBADF, tw_timeline_finish(t));
    tw_timeline_free(t);
    close(ends[0]);
    close(ends[1]);
    TW_CHECK_EQ(EINVAL, tw_timeline_create_fd(&t, TW_TIMELINE_PERFETTO, -1));
    TW_CHECK_EQ(EINVAL, tw_timeline_create(&t, TW_TIMELINE_FORMATS, keep_bytes, NULL));
}
