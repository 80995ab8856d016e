/* What becomes of the files of the dead: nothing is lost and nothing counts twice, wherever a merger stops. */
#include "tailwatch/group/merge_dead.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/group/member_list.h"
#include "tailwatch/base/process.h"
#include "segment_tools.h"
#include "group_tools.h"
#include "tw_test.h"

static char root[64], dir[96];

static void begin(void) {
    strcpy(root, "/tmp/tw_merge_XXXXXX");
    if (mkdtemp(root) == NULL) abort();
    snprintf(dir, sizeof dir, "%s/group", root);
}

static void end(void) { remove_group(root, dir); }

TW_AROUND(begin, end)

static const char *in(const char *name) {
    static char path[2][256];
    static int turn;
    snprintf(path[turn ^= 1], sizeof path[0], "%s/%s", dir, name);
    return path[turn];
}

static bool stands(const char *name) { return access(in(name), F_OK) == 0; }

/* A member with one request and 300 us of pauses. */
static tw_segment *member(tw_group *group, const char *role) {
    if (tw_group_join(group, dir) != TW_GROUP_FINE || share_segment(group, role, 1) != TW_GROUP_FINE) return NULL;
    tw_segment *segment = group->segment;
    tw_group_problem problem = TW_GROUP_BUSY;
    for (int tries = 0; problem == TW_GROUP_BUSY && tries < 1000; tries++) problem = tw_group_place(group, role, true);
    if (problem != TW_GROUP_FINE) return NULL;
    segment->opened = segment->in_flight = 1;
    tw_pause_begin(&segment->pause, TW_CAUSE_GC2, 1000000);
    tw_segment_pause_end(segment, 1300000, NULL);
    tw_group_save(group);
    return segment;
}

/* One that was killed; *name: of its file, unless it is NULL. */
static void killed(const char *role, char *name) {
    int ends[2];
    char received[TW_GROUP_NAME] = "";
    if (pipe(ends) != 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
        tw_group group;
        if (member(&group, role) == NULL || write(ends[1], group.name, sizeof group.name) < 0) _exit(1);
        for (;;) pause();
    }
    TW_CHECK_EQ(TW_GROUP_NAME, read(ends[0], received, sizeof received));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(ends[0]), close(ends[1]);
    if (name != NULL) strcpy(name, received);
}

static int directory(void) {
    tw_group_problem problem;
    const int fd = tw_group_open_dir(dir, &problem);
    TW_REQUIRE(fd >= 0);
    return fd;
}

static uint32_t merge(uint32_t most) {
    const int fd = directory();
    const uint32_t merged = tw_merge_dead(fd, most);
    close(fd);
    return merged;
}

static uint32_t merge_all(void) {
    uint32_t all = 0;
    for (uint32_t now; (now = merge(4)) > 0;) all += now;
    return all;
}

/* What a reader makes of the directory. */
typedef struct seen { uint64_t opened, refused, paused_ns; uint32_t segments, retired; } seen;

static seen look(void) {
    tw_members *members = calloc(1, sizeof *members);
    const int fd = directory();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(members, fd, NULL));
    seen s = {.refused = members->refused};
    for (uint32_t i = 0; i < members->n; i++) {
        s.opened += members->member[i].segment->opened;
        s.paused_ns += tw_pause_total_ns(&members->member[i].segment->pause, TW_CAUSE_GC2, 0);
        if (members->member[i].list != NULL) s.retired++;
        else s.segments++;
    }
    tw_members_clear(members);
    free(members);
    close(fd);
    return s;
}

static void check_sum(uint64_t processes) {
    const seen s = look();
    TW_CHECK_EQ(processes, s.opened);
    TW_CHECK_EQ(300000 * processes, s.paused_ns);
}

TW_TEST(the_dead_are_merged_and_count) {
    char name[TW_GROUP_NAME];
    killed("engine", name);
    check_sum(1);
    TW_CHECK_EQ(1, merge(4));
    TW_CHECK(!stands(name) && stands("engine-0.gone") && !stands("merge.tmp"));
    check_sum(1);
    for (int i = 0; i < 3; i++) killed("engine", NULL);
    killed("api", NULL);
    check_sum(5);
    TW_CHECK_EQ(4, merge_all());
    const seen s = look();
    TW_CHECK(s.segments == 0 && s.retired == 2 && s.refused == 0);
    check_sum(5);
    TW_CHECK_EQ(0, merge(4));
    struct stat file;
    TW_CHECK(stat(in("engine-0.gone"), &file) == 0 && (file.st_mode & 0777) == 0600 && file.st_nlink == 1);
}

TW_TEST(the_living_are_left_alone) {
    tw_group own;
    TW_CHECK(member(&own, "api") != NULL);
    killed("engine", NULL);
    TW_CHECK_EQ(1, merge(4));
    TW_CHECK(stands(own.name));
    TW_CHECK_EQ(0, merge(4));
    check_sum(2);
    tw_group_leave(&own);
}

TW_TEST(at_most_so_many_in_a_turn) {
    for (int i = 0; i < 3; i++) killed("engine", NULL);
    TW_CHECK_EQ(2, merge(2));
    check_sum(3);
    TW_CHECK_EQ(1, merge(2));
    check_sum(3);
}

TW_TEST(a_process_that_ended_its_segment_is_merged_alive) {
    tw_group own;
    TW_CHECK(member(&own, "api") != NULL);
    char name[TW_GROUP_NAME];
    strcpy(name, own.name);
    TW_CHECK_EQ(0, merge(4));
    tw_mark_ended(&own);
    tw_group_forget(&own);
    check_sum(1);
    TW_CHECK(stands(name));
    TW_CHECK_EQ(1, merge(4));
    TW_CHECK(!stands(name));
    check_sum(1);
}

TW_TEST(what_was_before_an_exec_is_dead) {
    tw_group own;
    tw_segment *segment = member(&own, "api");
    TW_REQUIRE(segment != NULL);
    segment->header.image++; /* as of another program */
    TW_CHECK_EQ(1, merge(4));
    check_sum(1);
    tw_group_forget(&own);
}

/* What lives in another pid namespace, or lived before the boot, cannot be seen from here. */
TW_TEST(what_cannot_be_judged_stays) {
    char name[TW_GROUP_NAME];
    killed("engine", name);
    const int fd = directory();
    tw_segment *segment = segment_of(fd, name);
    TW_REQUIRE(segment != NULL);
    segment->header.locked = 0;
    uint64_t *const words[] = {&segment->header.pid_namespace, &segment->header.boot_id[0], &segment->header.boot_id[1]};
    for (size_t i = 0; i < 3; i++) {
        *words[i] += 1;
        TW_CHECK_EQ(0, merge(4));
        TW_CHECK(stands(name));
        check_sum(1);
        *words[i] -= 1;
    }
    tw_segment_destroy(segment);
    close(fd);
    TW_CHECK_EQ(1, merge(4));
}

/* The two instants at which a merger may die. */
TW_TEST(a_file_that_was_merged_and_still_stands_counts_once) {
    char name[TW_GROUP_NAME];
    killed("engine", name);
    char copy[320];
    snprintf(copy, sizeof copy, "cp -p %s %s/kept", in(name), root);
    TW_CHECK(system(copy) == 0);
    TW_CHECK_EQ(1, merge(4));
    snprintf(copy, sizeof copy, "cp -p %s/kept %s", root, in(name)); /* as if it had not been removed */
    TW_CHECK(system(copy) == 0);
    check_sum(1);
    TW_CHECK_EQ(0, look().segments);
    killed("engine", NULL);
    check_sum(2);
    TW_CHECK_EQ(2, merge_all()); /* one is only removed */
    TW_CHECK(!stands(name));
    check_sum(2);
}

TW_TEST(a_retired_that_was_never_finished_is_removed) {
    killed("engine", NULL);
    const int file = open(in("merge.tmp"), O_CREAT | O_WRONLY, 0600);
    TW_CHECK(write(file, "half", 4) == 4);
    close(file);
    check_sum(1);
    TW_CHECK_EQ(0, look().refused);
    TW_CHECK_EQ(1, merge(4));
    TW_CHECK(!stands("merge.tmp"));
    check_sum(1);
}

static void plant(const char *name, const void *bytes, size_t len) {
    const int file = open(in(name), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    TW_CHECK(write(file, bytes, len) == (ssize_t)len);
    close(file);
}

TW_TEST(a_planted_retired_is_refused_and_not_replaced) {
    static const char zeros[8192];
    for (int kind = 0; kind < 4; kind++) {
        char name[TW_GROUP_NAME];
        killed("engine", name);
        if (kind == 0) plant("engine-0.gone", "short", 5);
        if (kind == 1) plant("engine-0.gone", zeros, sizeof zeros);
        if (kind == 2) TW_CHECK(symlink(name, in("engine-0.gone")) == 0);
        if (kind == 3) TW_CHECK(mkdir(in("engine-0.gone"), 0700) == 0);
        TW_CHECK_EQ(0, merge(4));
        TW_CHECK(stands(name) && stands("engine-0.gone"));
        check_sum(1);
        TW_CHECK_EQ(1, look().refused);
        end();
        begin();
    }
}

TW_TEST(a_merge_under_way_is_not_waited_for) {
    killed("engine", NULL);
    const int held = open(dir, O_RDONLY | O_DIRECTORY);
    TW_CHECK(flock(held, LOCK_EX) == 0);
    TW_CHECK_EQ(0, merge(4));
    check_sum(1);
    close(held);
    TW_CHECK_EQ(1, merge(4));
}

/* Bounded by the size of files, as a full file system would. */
static int merge_without_room(void) {
    const struct rlimit limit = {4096, 4096};
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    return merge(4) == 0 && !stands("merge.tmp") ? 0 : 2;
}

TW_TEST(without_room_the_dead_stay_as_they_are) {
    char name[TW_GROUP_NAME];
    killed("engine", name);
    const pid_t pid = fork();
    if (pid == 0) _exit(merge_without_room());
    int status = -1;
    waitpid(pid, &status, 0);
    TW_CHECK_EQ(0, status);
    TW_CHECK(stands(name) && !stands("engine-0.gone"));
    check_sum(1);
}

/* Each joins, is killed, and is merged by the first that comes, while a reader looks. */
TW_TEST(many_that_merge_and_die_at_once_lose_nothing) {
    killed("engine", NULL);
    pid_t mergers[4];
    for (int i = 0; i < 4; i++)
        if ((mergers[i] = fork()) == 0)
            for (;;) (void)merge(2), usleep(200);
    uint64_t before = 1;
    for (int i = 2; i <= 60; i++) {
        killed(i % 3 ? "engine" : "api", NULL);
        if (i % 5 == 0) { /* mergers die too, wherever they are */
            kill(mergers[i % 4], SIGKILL), waitpid(mergers[i % 4], NULL, 0);
            if ((mergers[i % 4] = fork()) == 0)
                for (;;) (void)merge(2), usleep(200);
        }
        const uint64_t now = look().opened;
        TW_CHECK(now >= before);
        TW_CHECK_EQ(i, now);
        before = now;
    }
    for (int i = 0; i < 4; i++) kill(mergers[i], SIGKILL), waitpid(mergers[i], NULL, 0);
    (void)merge_all();
    const seen s = look();
    TW_CHECK(s.segments == 0 && s.refused == 0 && s.retired == 2);
    check_sum(60);
}

static void age(const char *name, time_t seconds) {
    const struct timespec then[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};
    TW_CHECK(utimensat(AT_FDCWD, in(name), then, 0) == 0);
}

TW_TEST(a_file_whose_maker_died_over_it_is_removed) {
    static const char zeros[8192];
    char name[TW_GROUP_NAME], living[TW_GROUP_NAME];
    for (size_t bytes = 0; bytes <= sizeof zeros; bytes += sizeof zeros) {
        killed("engine", name);
        plant(name, zeros, bytes);
        TW_CHECK_EQ(0, merge(4)); /* it may be being made */
        TW_CHECK_EQ(1, look().refused);
        age(name, 60);
        TW_CHECK_EQ(1, merge(4));
        TW_CHECK(!stands(name));
    }
    snprintf(living, sizeof living, "%d-%llu-1.seg", (int)getpid(), (unsigned long long)tw_process_start_time((uint64_t)getpid()));
    plant(living, zeros, 0);
    age(living, 60);
    plant("2-2-2.seg", "of another version", 18);
    age("2-2-2.seg", 60);
    TW_CHECK_EQ(0, merge(4));
    TW_CHECK(stands(living) && stands("2-2-2.seg"));
}

static bool file_of(pid_t pid, char *name) {
    DIR *entries = opendir(dir);
    bool found = false;
    for (const struct dirent *entry; entries != NULL && !found && (entry = readdir(entries)) != NULL;) {
        tw_group_id id;
        found = tw_group_id_of(entry->d_name, &id) && id.pid == (uint64_t)pid;
        if (found) strcpy(name, entry->d_name);
    }
    closedir(entries);
    return found;
}

/* Killed, by a page that cannot be read, while the shared memory gets the content of this memory. */
static void die_while_sharing(void) {
    const size_t bytes = segment_bytes(1);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    tw_segment *segment;
    tw_group group;
    signal(SIGSEGV, SIG_DFL);
    if (tw_segment_create(&segment, "engine", 1, false, NULL, 0) != 0) _exit(1);
    char *const middle = (char *)segment + bytes / 2 / page * page;
    if (mprotect(middle, page, PROT_NONE) != 0 || tw_group_join(&group, dir) != TW_GROUP_FINE) _exit(2);
    (void)tw_group_share(&group, segment);
    _exit(3);
}

/* Else its half would be merged. */
TW_TEST(a_process_that_dies_while_sharing_has_made_no_file) {
    const pid_t pid = fork();
    if (pid == 0) die_while_sharing();
    int status = 0;
    waitpid(pid, &status, 0);
    TW_CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    char name[TW_GROUP_NAME];
    TW_CHECK(!file_of(pid, name));
    TW_CHECK_EQ(0, merge(4));
}

TW_TEST(a_directory_that_vanished_does_no_harm) {
    killed("engine", NULL);
    const int fd = directory();
    end();
    TW_CHECK_EQ(0, tw_merge_dead(fd, 4));
    close(fd);
}
