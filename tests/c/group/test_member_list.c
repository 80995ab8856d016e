/* What is found in a group's directory, what a reader makes of files that lie, and whose pauses count for which. */
#include "tailwatch/group/member_list.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/group/merge_dead.h"
#include "segment_tools.h"
#include "group_tools.h"
#include "tw_test.h"

static char root[64], dir[96];

static void begin(void) {
    strcpy(root, "/tmp/tw_members_XXXXXX");
    if (mkdtemp(root) == NULL) abort();
    snprintf(dir, sizeof dir, "%s/group", root);
}

static void end(void) { remove_group(root, dir); }

TW_AROUND(begin, end)

static tw_segment *member(tw_group *group, const char *role, uint64_t engine) {
    if (tw_group_join(group, dir) != TW_GROUP_FINE) return NULL;
    if (share_segment(group, role, 1) != TW_GROUP_FINE) return NULL;
    group->segment->header.engine = engine;
    return group->segment;
}

/* A child that joins, reports it, and lives until it is to go; it dies without leaving. */
typedef struct child { pid_t pid; int go; } child;

static child start(const char *role, uint64_t engine, uint64_t pause_ns) {
    int ready[2], go[2];
    char byte = 0;
    if (pipe(ready) != 0 || pipe(go) != 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
        tw_group group;
        tw_segment *segment = member(&group, role, engine);
        if (segment == NULL) _exit(1);
        tw_pause_begin(&segment->pause, TW_CAUSE_GC2, 1000000);
        tw_segment_pause_end(segment, 1000000 + pause_ns, NULL);
        close(go[1]);
        if (write(ready[1], "r", 1) != 1 || read(go[0], &byte, 1) < 0) _exit(2);
        _exit(0);
    }
    close(ready[1]), close(go[0]);
    TW_CHECK_EQ(1, read(ready[0], &byte, 1));
    close(ready[0]);
    return (child){pid, go[1]};
}

static void reap(child c) {
    close(c.go);
    waitpid(c.pid, NULL, 0);
}

static void stop(child c) {
    if (write(c.go, "g", 1) != 1) abort(); /* later children hold copies of this end: closing it sends nothing */
    reap(c);
}

static tw_members *list(void) {
    tw_members *members = calloc(1, sizeof *members);
    TW_REQUIRE(members != NULL);
    return members;
}

TW_TEST(all_are_found_but_oneself) {
    tw_group own;
    TW_CHECK(member(&own, "api", 0) != NULL);
    child a = start("engine", 1, 300000), b = start("worker", 1, 400000);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(2, members->n);
    TW_CHECK_EQ(0, members->refused);
    const tw_segment *first = members->member[0].segment;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK(first == members->member[0].segment); /* mapped once */
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, NULL));
    TW_CHECK_EQ(3, members->n);
    tw_members_clear(members);
    free(members);
    stop(a), stop(b);
    tw_group_leave(&own);
}

TW_TEST(the_dead_are_found_until_their_file_is_gone) {
    tw_group own;
    TW_CHECK(member(&own, "api", 0) != NULL);
    child a = start("engine", 1, 300000);
    stop(a);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(1, members->n);
    TW_CHECK_EQ(300000, tw_pause_total_ns(&members->member[0].segment->pause, TW_CAUSE_GC2, 1));
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, members->member[0].name);
    TW_CHECK(unlink(path) == 0);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(0, members->n);
    free(members);
    tw_group_leave(&own);
}

TW_TEST(a_pause_of_the_engine_s_process_reaches_the_stream) {
    tw_group own;
    tw_segment *segment = member(&own, "api", 0);
    TW_CHECK(segment != NULL);
    child engine = start("engine", 1, 500000), api = start("api", 0, 900000);
    tw_members *members = list();
    tw_peer_set *peer_set = calloc(1, sizeof *peer_set);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    tw_members_peers(members, segment, peer_set);
    TW_CHECK_EQ(1, peer_set->n);
    TW_CHECK_EQ(1, peer_set->peer[0].engine);
    tw_overlap_by_source overlap;
    TW_CHECK(!tw_peers_idle_since(peer_set, 0, 1000000));
    TW_CHECK(tw_peers_idle_since(peer_set, 0, 1500000));
    tw_gap_overlap(&segment->pause, peer_set->peer, peer_set->n, 0, 1200000, 9000000, &overlap);
    TW_CHECK_EQ(300000, overlap.overlap_ns[peer_set->peer[0].source][TW_CAUSE_GC2]);
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(segment->lost[peer_set->peer[0].source].role, TW_ROLE_WORDS, role);
    TW_CHECK_STR("engine", role);
    tw_members_clear(members);
    free(members), free(peer_set);
    stop(engine), stop(api);
    tw_group_leave(&own);
}

static void write_file(const char *name, const void *bytes, size_t len) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    TW_CHECK(file >= 0 && write(file, bytes, len) == (ssize_t)len);
    close(file);
}

TW_TEST(files_that_lie_are_counted) {
    tw_group own;
    tw_segment *segment = member(&own, "api", 0);
    const size_t bytes = segment_bytes(1);
    char *copy = malloc(bytes);
    memcpy(copy, segment, bytes);
    write_file("1-1.seg", copy, bytes);        /* another's name */
    write_file("2-2.seg", copy, bytes - 8);    /* torn */
    ((tw_segment *)(void *)copy)->header.layout_hash++;
    write_file("3-3.seg", copy, bytes);        /* another layout */
    write_file("4-4.seg", "short", 5);
    memset(copy, 0xff, bytes);
    write_file("5-5.seg", copy, bytes);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, NULL));
    TW_CHECK_EQ(1, members->n);
    TW_CHECK_EQ(5, members->refused);
    tw_members_clear(members);
    free(members), free(copy);
    tw_group_leave(&own);
}

TW_TEST(a_reader_sees_label_sets_that_come_into_use) {
    tw_group theirs;
    TW_REQUIRE(tw_group_join(&theirs, dir) == TW_GROUP_FINE && share_segment(&theirs, "api", 16) == TW_GROUP_FINE);
    tw_segment *segment = theirs.segment;
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, theirs.dir, NULL));
    TW_REQUIRE(members->n == 1);
    const tw_segment *read = members->member[0].segment;
    for (uint32_t set = 1; set < 16; set++) {
        const char name = (char)('a' + set);
        TW_CHECK_EQ(set, tw_segment_label(segment, &name, 1, "/", 1));
        tw_segment_series(segment, set)->output_tokens = set;
        TW_CHECK_EQ(set, tw_segment_series(read, (uint32_t)read->series_count - 1)->output_tokens);
    }
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, theirs.dir, NULL));
    TW_CHECK(members->n == 1 && members->member[0].segment == read); /* mapped once, whole */
    tw_members_clear(members);
    free(members);
    tw_group_leave(&theirs);
    tw_segment_destroy(segment);
}

TW_TEST(an_overwritten_segment_is_left_out_until_it_is_one_again) {
    tw_group own, theirs;
    TW_CHECK(member(&own, "api", 0) != NULL);
    tw_segment *segment = member(&theirs, "engine", 1);
    TW_REQUIRE(segment != NULL);
    tw_members *members = list();
    for (int turn = 0; turn < 2; turn++) {
        segment->series_count = UINT64_MAX;
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
        TW_CHECK(members->n == 0 && members->refused == 1);
        segment->series_count = 1;
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
        TW_CHECK(members->n == 1 && members->refused == 0);
    }
    tw_members_clear(members);
    free(members);
    tw_group_leave(&theirs), tw_group_leave(&own);
}

/* ---- readers that cannot reach the memory ---- */

/* The copy in its file is all that there is: as after a reboot, or in another IPC namespace. */
static void lose_memory(const tw_group *group) {
    const uint64_t none = UINT32_MAX;
    const int file = openat(group->dir, group->name, O_WRONLY);
    TW_CHECK_EQ(8, pwrite(file, &none, 8, (off_t)(group->shared.bytes + offsetof(tw_shared, id))));
    close(file);
}

TW_TEST(a_copy_is_read_again_when_it_has_changed) {
    tw_group own, theirs;
    TW_CHECK(member(&own, "api", 0) != NULL);
    tw_segment *segment = member(&theirs, "engine", 1);
    TW_REQUIRE(segment != NULL);
    tw_members *members = list();
    lose_memory(&theirs);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK(members->n == 0 && members->refused == 1); /* it was never saved */
    for (uint64_t opened = 7; opened < 10; opened++) {
        segment->opened = opened;
        usleep(20000); /* a file's time is as coarse as the kernel's tick */
        tw_group_save(&theirs);
        lose_memory(&theirs);
        segment->opened++;
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
        TW_REQUIRE(members->n == 1 && members->refused == 0);
        TW_CHECK(members->member[0].copied_ns != 0);
        TW_CHECK_EQ(opened, members->member[0].segment->opened);
        TW_CHECK(tw_segment_lives(members->member[0].segment));
    }
    tw_members_clear(members);
    free(members);
    tw_group_leave(&theirs), tw_group_leave(&own);
}

/* ---- files that are written to ---- */

static void overwrite(int dir_fd, const char *name, int how) {
    char random[4096];
    const int file = openat(dir_fd, name, O_RDWR);
    for (size_t i = 0; i < sizeof random; i++) random[i] = (char)rand();
    struct stat s;
    TW_CHECK(file >= 0 && fstat(file, &s) == 0);
    if (how == 0) TW_CHECK(ftruncate(file, 0) == 0);
    if (how == 1) TW_CHECK(ftruncate(file, s.st_size / 2) == 0);
    for (off_t at = 0; how == 2 && at < s.st_size; at += (off_t)sizeof random) TW_CHECK(pwrite(file, random, sizeof random, at) > 0);
    if (how == 3) TW_CHECK(unlinkat(dir_fd, name, 0) == 0);
    if (how == 4) TW_CHECK(ftruncate(file, (off_t)1 << 40) == 0);
    close(file);
}

static const tw_segment *retired_in(const tw_members *members) {
    uint32_t at = 0;
    while (at < members->n && members->member[at].list == NULL) at++;
    TW_REQUIRE(at < members->n);
    return members->member[at].segment;
}

/* The living, the dead and the retired; each of their files, while a reader has it and a new one comes. */
TW_TEST(nothing_done_to_a_file_ends_a_process) {
    tw_group own, theirs;
    TW_CHECK(member(&own, "api", 0) != NULL && member(&theirs, "engine", 1) != NULL);
    child killed = start("worker", 1, 300000);
    kill(killed.pid, SIGKILL);
    reap(killed);
    tw_members *old = list(), *new = list();
    for (int how = 0; how < 5; how++) {
        tw_group_save(&own), tw_group_save(&theirs);
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(old, own.dir, NULL));
        TW_CHECK(old->n >= 2);
        overwrite(own.dir, own.name, how), overwrite(own.dir, theirs.name, how);
        for (uint32_t i = 0; i < old->n; i++) {
            const tw_segment *segment = old->member[i].segment;
            TW_CHECK(tw_segment_valid(segment, old->member[i].bytes));
            (void)tw_load(&tw_segment_series(segment, 0)->output_tokens);
        }
        own.segment->opened++, theirs.segment->opened++;
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(new, own.dir, NULL)); /* a new list finds the dead one at least */
        TW_CHECK(new->n >= 1);
        (void)tw_merge_dead(own.dir, 1);
        tw_members_clear(new);
        tw_group_save(&own), tw_group_save(&theirs);
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(new, own.dir, NULL));
        TW_CHECK_EQ(3, new->n); /* files are mended */
        TW_CHECK_EQ(0, new->refused);
    }
    overwrite(own.dir, "worker-0.gone", 1);
    TW_CHECK_EQ(300000, tw_pause_total_ns(&retired_in(new)->pause, TW_CAUSE_GC2, 1));
    tw_members_clear(old);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(old, own.dir, NULL));
    TW_CHECK(old->n == 2 && old->refused == 1); /* its numbers, and no others */
    tw_members_clear(old), tw_members_clear(new);
    free(old), free(new);
    tw_group_leave(&theirs), tw_group_leave(&own);
}

TW_TEST(a_member_that_joins_again_is_mapped_anew) {
    tw_group own, theirs;
    TW_CHECK(member(&own, "api", 0) != NULL && member(&theirs, "engine", 1) != NULL);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    tw_group_leave(&theirs);
    tw_segment *anew = member(&theirs, "engine", 1);
    TW_CHECK(anew != NULL);
    anew->opened = 7;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(1, members->n);
    TW_CHECK_EQ(7, members->member[0].segment->opened);
    tw_members_clear(members);
    free(members);
    tw_group_leave(&theirs), tw_group_leave(&own);
}

TW_TEST(another_file_of_the_same_name_is_another_member) {
    tw_group own, theirs;
    TW_CHECK(member(&own, "api", 0) != NULL);
    tw_segment *segment = member(&theirs, "engine", 1);
    const size_t bytes = segment_bytes(1);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    char *copy = malloc(bytes);
    memcpy(copy, segment, bytes);
    ((tw_segment *)(void *)copy)->opened = 7;
    write_file("copy", copy, bytes);
    TW_CHECK(renameat(own.dir, "copy", own.dir, theirs.name) == 0);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(1, members->n);
    TW_CHECK_EQ(7, members->member[0].segment->opened);
    tw_members_clear(members);
    free(members), free(copy);
    tw_group_leave(&theirs), tw_group_leave(&own);
}

TW_TEST(a_process_killed_while_it_collected_is_not_a_peer) {
    tw_group own;
    tw_segment *segment = member(&own, "api", 0);
    child engine = start("engine", 1, 500000);
    tw_members *members = list();
    tw_peer_set *peer_set = calloc(1, sizeof *peer_set);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    tw_segment *theirs = segment_of(own.dir, members->member[0].name);
    TW_REQUIRE(theirs != NULL);
    theirs->pause.last_stop_ns = TW_PAUSE_OPEN; /* it stands still */
    tw_segment_destroy(theirs);
    tw_members_peers(members, segment, peer_set);
    TW_CHECK_EQ(1, peer_set->n);
    TW_CHECK(!tw_peers_idle_since(peer_set, 0, tw_now_ns()));
    kill(engine.pid, SIGKILL);
    reap(engine); /* nothing is left to read what stop() writes */
    tw_members_peers(members, segment, peer_set);
    TW_CHECK_EQ(0, peer_set->n);
    TW_CHECK_EQ(1, members->n); /* what it measured counts */
    tw_members_clear(members);
    free(members), free(peer_set);
    tw_group_leave(&own);
}

/* An engine that stamps its own tokens does not wait for what they pass through later. */
TW_TEST(what_is_behind_the_engine_is_no_peer_of_it) {
    tw_group own;
    tw_segment *segment = member(&own, "engine", 1);
    TW_REQUIRE(segment != NULL);
    child detokenizer = start("detokenizer", TW_ENGINE_SHARED, 500000), worker = start("worker", 1, 900000);
    tw_members *members = list();
    tw_peer_set *peer_set = calloc(1, sizeof *peer_set);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    tw_members_peers(members, segment, peer_set);
    TW_CHECK_EQ(2, peer_set->n);
    tw_step_write(&segment->step_ring, &(tw_step_record){.done_ns = 1});
    tw_members_peers(members, segment, peer_set);
    TW_CHECK_EQ(1, peer_set->n);
    TW_CHECK_EQ(1, peer_set->peer[0].engine);
    stop(detokenizer), stop(worker);
    tw_members_clear(members);
    free(members), free(peer_set);
    tw_group_leave(&own);
}

static void age(const char *name, int dir_fd) {
    const struct timespec times[2] = {{1000, 0}, {1000, 0}};
    TW_CHECK(utimensat(dir_fd, name, times, 0) == 0);
}

TW_TEST(a_refused_file_is_opened_once_when_it_is_old) {
    tw_group own;
    TW_CHECK(member(&own, "api", 0) != NULL);
    write_file("1-1-1.seg", "short", 5);
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(1, members->refused);
    TW_CHECK_EQ(0, members->n_known); /* it may be half made */
    age("1-1-1.seg", own.dir);
    for (int i = 0; i < 2; i++) {
        TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
        TW_CHECK_EQ(1, members->refused);
        TW_CHECK_EQ(1, members->n_known);
    }
    char name[TW_GROUP_NAME];
    for (int i = 0; i < 2 * TW_MEMBERS_REFUSED; i++) {
        snprintf(name, sizeof name, "2-2-%d.seg", i);
        write_file(name, "short", 5);
        age(name, own.dir);
    }
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, own.dir, own.name));
    TW_CHECK_EQ(1 + 2 * TW_MEMBERS_REFUSED, members->refused);
    TW_CHECK_EQ(TW_MEMBERS_REFUSED, members->n_known);
    free(members);
    tw_group_leave(&own);
}

TW_TEST(a_list_of_no_directory_stays_as_it_was) {
    tw_members *members = list();
    TW_CHECK_EQ(TW_GROUP_SYSTEM, tw_members_renew(members, -1, NULL));
    TW_CHECK_EQ(0, members->n);
    free(members);
}
