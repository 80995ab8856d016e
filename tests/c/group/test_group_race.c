/* Members that stamp and stand still, readers of all of them, and others that come and go, all at once. Meant for
 * ThreadSanitizer; sound without it.
 *
 * It follows addresses, and a second mapping of a file has others. So members are threads with a handle and a segment of
 * their own, and readers have mappings of their own; those that come and go map what they find. */
#include <pthread.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/group/member_list.h"
#include "tailwatch/aggregate/snapshot.h"
#include "tailwatch/stamp/stream.h"
#include "group_tools.h"
#include "tw_test.h"

enum { MEMBERS = 4, ROUNDS = 1500, TOKENS = 20, LABEL_SETS = 4, PAUSE_NS = 60000 };

static char root[64], dir[96];

typedef struct member {
    tw_group group;
    tw_segment *segment;
    tw_peer_set peer_set; /* the others */
    uint64_t charged_ns; /* to its streams */
} member;

typedef struct race {
    member member[MEMBERS];
    uint64_t left; /* writers that are not done; 0 is released */
    uint64_t visits, seen; /* of those that come and go, and the segments of others that they found */
} race;

/* ---- members ---- */

static tw_segment *enter(tw_group *group, const char *role, uint64_t engine) {
    tw_segment *segment;
    if (tw_group_join(group, dir) != TW_GROUP_FINE || tw_segment_create(&segment, role, LABEL_SETS, false, NULL, 0) != 0) return NULL;
    segment->header.engine = engine;
    return tw_group_share(group, segment) == TW_GROUP_FINE ? segment : NULL;
}

static void leave(tw_group *group) {
    tw_segment *segment = group->segment;
    tw_group_leave(group);
    tw_segment_destroy(segment);
}

/* Two engines: one of two ranks, and one alone. */
static uint64_t engine_of(int at) { return at < 2 ? 1 : 2; }

static void list_the_others(race *r, int at) {
    tw_peer_set *peer_set = &r->member[at].peer_set;
    for (int i = 0; i < MEMBERS; i++) {
        if (i == at) continue;
        peer_set->stop_ns[peer_set->n] = &r->member[i].segment->pause.last_stop_ns;
        peer_set->peer[peer_set->n++] = (tw_peer){&r->member[i].segment->pause, engine_of(i), 1};
    }
}

static void stand_still(member *m) {
    tw_pause_begin(&m->segment->pause, TW_CAUSE_GC1, tw_now_ns());
    const uint64_t until = tw_now_ns() + PAUSE_NS;
    while (tw_now_ns() < until) {}
    tw_segment_pause_end(m->segment, tw_now_ns(), NULL);
}

static void one_request(member *m, uint64_t round) {
    tw_stream s;
    char model[16];
    const int len = snprintf(model, sizeof model, "model-%d", (int)(round % (2 * LABEL_SETS)));
    const uint64_t now = tw_now_ns();
    tw_stream_open(&s, m->segment, now, now, 0, TW_ARRIVAL_ASGI);
    tw_stream_join(&s, &m->peer_set, round % 3);
    tw_stream_label(&s, tw_segment_label(m->segment, model, (size_t)len, "/v1", 3));
    for (int i = 0; i < TOKENS; i++) {
        tw_stream_token(&s, tw_now_ns(), 1, 0);
        if (i == TOKENS / 2) stand_still(m);
    }
    tw_stream_close(&s, tw_now_ns(), TW_END_FINISHED);
    TW_CHECK(s.delay_ns <= s.overlap_ns && s.overlap_ns <= s.last_ns - s.arrival_ns);
    m->charged_ns += s.overlap_ns;
}

typedef struct task {
    race *race;
    int at;
} task;

static void *write_all(void *context) {
    const task *t = context;
    for (uint64_t round = 0; round < ROUNDS; round++) one_request(&t->race->member[t->at], round);
    __atomic_sub_fetch(&t->race->left, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* ---- readers ---- */

static bool done(const race *r) { return tw_load_acquire(&r->left) == 0; }

static uint64_t tokens_of(const tw_snapshot *s) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < s->series_count; i++) tokens += s->series[i].output_tokens;
    return tokens;
}

static uint64_t take(const tw_segment *const *segments, size_t n) {
    tw_snapshot *s = NULL;
    TW_REQUIRE(tw_snapshot_take(&s, segments, n) == 0);
    const uint64_t tokens = tokens_of(s);
    TW_CHECK_EQ(n, s->process_count);
    tw_snapshot_free(s);
    return tokens;
}

static void *read_all(void *context) {
    const race *r = ((task *)context)->race;
    const tw_segment *segments[MEMBERS];
    uint64_t last = 0, tokens;
    bool last_look;
    for (int i = 0; i < MEMBERS; i++) segments[i] = r->member[i].segment;
    do {
        last_look = done(r);
        tokens = take(segments, MEMBERS);
        TW_CHECK(tokens >= last);
        last = tokens;
    } while (!last_look);
    TW_CHECK_EQ((uint64_t)MEMBERS * ROUNDS * TOKENS, tokens);
    return NULL;
}

/* ---- those that come and go ---- */

static void look_around(race *r, tw_group *group, tw_segment *own, tw_members *members) {
    const tw_segment *segments[TW_MEMBERS + 1];
    tw_peer_set peer_set;
    uint32_t n = 0;
    if (tw_members_renew(members, group->dir, group->name) != TW_GROUP_FINE) return;
    tw_members_peers(members, own, &peer_set);
    segments[n++] = own;
    for (uint32_t i = 0; i < members->n; i++) segments[n++] = members->member[i].segment;
    TW_CHECK(n > MEMBERS && peer_set.n >= MEMBERS);
    take(segments, n);
    __atomic_add_fetch(&r->seen, n - 1, __ATOMIC_RELAXED);
}

static void visit(race *r, tw_members *members) {
    member self = {.charged_ns = 0};
    self.segment = enter(&self.group, "worker", 3);
    TW_REQUIRE(self.segment != NULL);
    one_request(&self, 0);
    look_around(r, &self.group, self.segment, members);
    leave(&self.group);
    __atomic_add_fetch(&r->visits, 1, __ATOMIC_RELAXED);
}

static void *come_and_go(void *context) {
    race *r = ((task *)context)->race;
    tw_members *members = calloc(1, sizeof *members);
    TW_REQUIRE(members != NULL);
    do visit(r, members);
    while (!done(r));
    tw_members_clear(members);
    free(members);
    return NULL;
}

/* ---- all at once ---- */

static void begin(race *r) {
    strcpy(root, "/tmp/tw_group_race_XXXXXX");
    TW_REQUIRE(mkdtemp(root) != NULL);
    snprintf(dir, sizeof dir, "%s/group", root);
    for (int i = 0; i < MEMBERS; i++) {
        r->member[i].segment = enter(&r->member[i].group, "engine", engine_of(i));
        TW_REQUIRE(r->member[i].segment != NULL);
    }
    for (int i = 0; i < MEMBERS; i++) list_the_others(r, i);
    r->left = MEMBERS;
}

static void end(race *r) {
    for (int i = 0; i < MEMBERS; i++) leave(&r->member[i].group);
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", root);
    TW_CHECK_EQ(0, system(command));
}

TW_TEST(members_and_readers_all_at_once) {
    race *r = calloc(1, sizeof *r);
    TW_REQUIRE(r != NULL);
    begin(r);
    void *(*const work[])(void *) = {write_all, write_all, write_all, write_all, read_all, come_and_go, come_and_go};
    enum { THREADS = sizeof work / sizeof *work };
    pthread_t thread[THREADS];
    task tasks[THREADS];
    for (int i = 0; i < THREADS; i++) {
        tasks[i] = (task){r, i};
        TW_REQUIRE(pthread_create(&thread[i], NULL, work[i], &tasks[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) TW_CHECK_EQ(0, pthread_join(thread[i], NULL));
    uint64_t charged_ns = 0;
    for (int i = 0; i < MEMBERS; i++) {
        TW_CHECK_EQ(ROUNDS, r->member[i].segment->opened);
        TW_CHECK_EQ(0, r->member[i].segment->in_flight);
        charged_ns += r->member[i].charged_ns;
    }
    TW_CHECK(charged_ns >= (uint64_t)MEMBERS * ROUNDS * PAUSE_NS); /* its own pauses at least */
    TW_CHECK(r->visits >= 2 && r->seen >= MEMBERS * r->visits);
    end(r);
    free(r);
}
