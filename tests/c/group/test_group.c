/* The directory that processes share: which may, which are refused, which live, and what readers make of what they
 * find. */
#include "tailwatch/group/group.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/base/clock.h"
#include "tailwatch/base/process.h"
#include "tailwatch/group/member_lock.h"
#include "group_tools.h"
#include "tw_test.h"

/* ---- a scratch directory for each test ---- */

static char root[64], dir[96], other[96];

static void begin(void) {
    strcpy(root, "/tmp/tw_group_XXXXXX");
    if (mkdtemp(root) == NULL) abort();
    snprintf(dir, sizeof dir, "%s/group", root);
    snprintf(other, sizeof other, "%s/other", root);
}

static void end(void) { remove_group(root, dir); }

TW_AROUND(begin, end)

static const char *in(const char *name) {
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static tw_group joined(void) {
    tw_group group;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_join(&group, dir));
    return group;
}

/* A member whose segment is shared. */
static tw_group member(const char *role) {
    tw_group group = joined();
    TW_CHECK_EQ(TW_GROUP_FINE, share_segment(&group, role, 4));
    return group;
}

static void leave(tw_group *group) {
    tw_segment *segment = group->segment;
    tw_group_leave(group);
    tw_segment_destroy(segment);
}

/* The file that a member would make is there already. */
static void plant_its_file(const tw_group *group) { close(open(in(group->name), O_CREAT | O_WRONLY | O_EXCL, 0600)); }

static tw_group_problem refusal(void) {
    tw_group group;
    const tw_group_problem problem = tw_group_join(&group, dir);
    TW_CHECK(problem != TW_GROUP_FINE);
    TW_CHECK(group.segment == NULL && group.dir == -1);
    return problem;
}

/* Runs what in a child; its exit status. */
static int in_child(int (*what)(void)) {
    const pid_t pid = fork();
    if (pid == 0) _exit(what());
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- what is in it ---- */

TW_TEST(the_first_makes_it) {
    tw_group group = joined();
    struct stat s;
    TW_CHECK(stat(dir, &s) == 0 && (s.st_mode & 07777) == 0700);
    tw_group_leave(&group);
    TW_CHECK_EQ(-1, group.dir);
}

TW_TEST(each_has_a_file) {
    tw_group a = member("api"), b = joined();
    struct stat s;
    TW_CHECK(stat(in(a.name), &s) == 0 && (s.st_mode & 07777) == 0600);
    TW_CHECK(s.st_blocks * 512 <= 8192); /* a copy comes with the first save */
    tw_group_save(&a);
    TW_CHECK(stat(in(a.name), &s) == 0 && s.st_blocks * 512 > 8192);
    TW_CHECK(s.st_blocks * 512 < (off_t)tw_segment_used(a.segment) / 8); /* what it has not counted yet takes nothing */
    plant_its_file(&b);
    TW_CHECK_EQ(TW_GROUP_SYSTEM, share_segment(&b, "api", 1));
    TW_CHECK(b.segment == NULL);
    char name[sizeof a.name];
    strcpy(name, a.name);
    leave(&a);
    TW_CHECK(access(in(name), F_OK) != 0);
    tw_group_leave(&b);
}

static bool count(void *to, const char *name, const void *bytes, size_t len, bool live) {
    (void)name, (void)bytes, (void)len, (void)live;
    *(int *)to += 1;
    return false;
}

static int segments(const tw_group *group) {
    int found = 0;
    uint64_t refused = 0;
    tw_group_each(group->dir, NULL, count, &found, &refused);
    return found;
}

static bool count_invalid(void *to, const char *name, const void *bytes, size_t len, bool live) {
    (void)name, (void)live;
    *(int *)to += !tw_segment_valid(bytes, len);
    return false;
}

static int come_and_go(void) {
    for (int i = 0; i < 500; i++) {
        tw_group group = member("engine");
        leave(&group);
    }
    return 0;
}

TW_TEST(a_member_that_leaves_is_there_or_gone) {
    tw_group own = member("engine");
    int status, invalid = 0;
    uint64_t refused = 0;
    const pid_t child = fork();
    if (child == 0) _exit(come_and_go());
    while (waitpid(child, &status, WNOHANG) == 0) tw_group_each(own.dir, NULL, count_invalid, &invalid, &refused);
    TW_CHECK_EQ(0, status);
    TW_CHECK_EQ(0, refused);
    TW_CHECK_EQ(0, invalid);
    TW_CHECK_EQ(1, segments(&own));
    leave(&own);
}

/* ---- memory that is shared where it is, and back ---- */

static bool memory_is_there(const tw_shared *shared) {
    void *const at = tw_shared_map(shared, -1, NULL, false);
    if (at != NULL) munmap(at, shared->bytes);
    return at != NULL;
}

TW_TEST(memory_is_shared_where_it_is) {
    tw_group group = joined();
    tw_segment *segment;
    TW_REQUIRE(tw_segment_create(&segment, "api", 4, false, NULL, 0) == 0);
    segment->opened = 42;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, segment));
    tw_segment *const other = segment_of(group.dir, group.name);
    TW_REQUIRE(other != NULL);
    TW_CHECK(segment->opened == 42 && other->opened == 42);
    segment->opened++;
    TW_CHECK_EQ(43, other->opened);
    TW_CHECK_EQ(1, tw_segment_label(segment, "m", 1, "/", 1)); /* all that it may become is there */
    TW_CHECK_EQ(2, other->series_count);
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK(segment->opened == 43 && segment->series_count == 2);
    segment->opened++;
    TW_CHECK_EQ(43, other->opened); /* it is no other's any more */
    const tw_shared shared = group.shared;
    tw_group_leave(&group);
    tw_segment_destroy(other);
    TW_CHECK(!memory_is_there(&shared));
    group = joined(); /* once more */
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, segment));
    TW_CHECK_EQ(44, segment->opened);
    leave(&group);
}

static int die_with_a_segment(void) {
    tw_group group = member("engine");
    group.segment->opened = 7;
    kill(getpid(), SIGKILL);
    return 0;
}

TW_TEST(it_outlives_its_process_until_its_file_is_removed) {
    TW_CHECK_EQ(-1, in_child(die_with_a_segment));
    tw_group group = joined();
    TW_CHECK_EQ(1, segments(&group));
    tw_shared_remove_all(group.dir);
    TW_CHECK_EQ(1, segments(&group)); /* an empty copy */
    tw_group_leave(&group);
}

TW_TEST(what_no_file_names_is_swept_when_it_is_old) {
    tw_group group = member("api");
    const tw_shared shared = group.shared;
    TW_CHECK(unlinkat(group.dir, group.name, 0) == 0);
    (void)tw_shared_remove_dead();
    TW_CHECK(memory_is_there(&shared)); /* it is mapped; and it is young */
    tw_segment_destroy(group.segment);
    (void)tw_shared_remove_dead();
    TW_CHECK(memory_is_there(&shared));
    TW_CHECK(shmctl((int)shared.id - 1, IPC_RMID, NULL) == 0);
    tw_group_forget(&group);
}

TW_TEST(a_file_that_was_removed_or_overwritten_is_made_again) {
    tw_group group = member("api");
    TW_CHECK(unlinkat(group.dir, group.name, 0) == 0);
    TW_CHECK_EQ(0, segments(&group));
    tw_group_save(&group);
    TW_CHECK_EQ(1, segments(&group));
    TW_CHECK(unlinkat(group.dir, group.name, 0) == 0);
    plant_its_file(&group);
    tw_group_save(&group);
    tw_segment *const other = segment_of(group.dir, group.name);
    TW_CHECK(other != NULL && tw_segment_valid(other, group.shared.bytes));
    tw_segment_destroy(other);
    leave(&group);
}

/* What the file holds, for readers that cannot reach the memory. */
static bool is_copied(const tw_group *group) {
    const size_t used = tw_segment_used(group->segment);
    char *const copy = malloc(used);
    const int file = openat(group->dir, group->name, O_RDONLY);
    const bool same = pread(file, copy, used, 0) == (ssize_t)used && memcmp(copy, group->segment, used) == 0;
    close(file);
    free(copy);
    return same;
}

TW_TEST(a_copy_is_whole_and_what_became_zero_is_zero_there) {
    tw_group group = member("api");
    uint64_t *const words = (void *)group.segment->seconds;
    const size_t bytes = sizeof group.segment->seconds, n = bytes / sizeof *words;
    for (int i = 0; i < 50; i++) {
        const size_t from = (size_t)rand() % n, len = (size_t)rand() % (n - from);
        for (size_t at = from; at < from + len; at++) words[at] = i % 2 == 0 ? at + 1 : 0;
        TW_CHECK(tw_group_save(&group));
        TW_CHECK(is_copied(&group));
    }
    leave(&group);
}

static tw_group inherited;

static int write_as_a_child(void) {
    tw_segment *segment = inherited.segment;
    if (tw_group_unshare(&inherited, false) != 0) return 1;
    if (segment->opened != 0 || segment->header.magic != 0) return 2;
    if (tw_segment_create_in(segment, "api", 4, false, NULL, 0) != 0) return 3;
    segment->opened = 7;
    tw_group_forget(&inherited);
    tw_group own = joined();
    if (tw_group_share(&own, segment) != TW_GROUP_FINE) return 4;
    return segment->opened == 7 ? 0 : 5;
}

TW_TEST(a_fork_child_has_memory_of_its_own) {
    inherited = member("api");
    inherited.segment->opened = 42;
    TW_CHECK_EQ(0, in_child(write_as_a_child));
    TW_CHECK_EQ(42, inherited.segment->opened);
    TW_CHECK_EQ(2, segments(&inherited));
    leave(&inherited);
}

TW_TEST(memory_that_cannot_be_shared_stays_as_it_is) {
    tw_group group = joined();
    tw_segment *segment;
    TW_REQUIRE(tw_segment_create(&segment, "api", 4, false, NULL, 0) == 0);
    segment->opened = 42;
    plant_its_file(&group);
    TW_CHECK_EQ(TW_GROUP_SYSTEM, tw_group_share(&group, segment));
    TW_CHECK(group.segment == NULL && segment->opened == 42);
    tw_group_leave(&group);
    tw_segment_destroy(segment);
}

/* Where the system refuses such memory. */
static int share_files(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_shmget, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) return 1;
    tw_group group = member("api"), other = joined();
    if (!tw_group_is_file(&group) || segments(&other) != 1) return 2;
    tw_segment *const read = segment_of(other.dir, group.name);
    group.segment->opened = 7;
    if (read == NULL || read->opened != 7 || tw_segment_label(group.segment, "m", 1, "/", 1) != 1) return 3;
    if (tw_member_end_in(group.dir, group.name) != TW_MEMBER_LIVES) return 4;
    tw_group_save(&group);
    if (tw_group_unshare(&group, true) != 0) return 5;
    tw_group_leave(&group), tw_group_leave(&other);
    return 0;
}

TW_TEST(without_such_memory_files_are_mapped) { TW_CHECK_EQ(0, in_child(share_files)); }

/* ---- names for life ---- */

static uint32_t index_of(tw_group *group, const char *role) {
    tw_segment_set_role(group->segment, role);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_place(group, role, true));
    return (uint32_t)group->segment->header.place - 1;
}

static int be_placed(void) {
    tw_group group = member("engine");
    return (int)index_of(&group, "engine");
}

TW_TEST(an_index_is_kept_for_life) {
    tw_group a = member("engine"), b = member("engine"), c = member("api"), d = member("engine");
    TW_CHECK_EQ(0, index_of(&a, "engine"));
    TW_CHECK_EQ(1, index_of(&b, "engine"));
    TW_CHECK_EQ(0, index_of(&c, "api")); /* each role counts for itself */
    TW_CHECK_EQ(1, index_of(&b, "engine"));
    leave(&a);
    TW_CHECK_EQ(1, index_of(&b, "engine")); /* the older one went: it keeps its index */
    TW_CHECK_EQ(0, index_of(&d, "engine")); /* the smallest that no living one has */
    TW_CHECK_EQ(2, in_child(be_placed));    /* it ends there, without leaving */
    TW_CHECK_EQ(2, in_child(be_placed));
    TW_CHECK_EQ(2, index_of(&c, "engine")); /* another role, another index */
    TW_CHECK_EQ(0, index_of(&c, "api"));
    leave(&b), leave(&c), leave(&d);
}

TW_TEST(an_index_waits_for_the_lock_or_not) {
    tw_group group = member("engine");
    const int held = open(in("index.lock"), O_CREAT | O_RDWR, 0600);
    TW_CHECK(flock(held, LOCK_EX) == 0);
    TW_CHECK_EQ(TW_GROUP_BUSY, tw_group_place(&group, "engine", false));
    const uint64_t before = tw_now_ns();
    TW_CHECK_EQ(0, group.segment->header.place);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_place(&group, "engine", true)); /* its holder may be stopped */
    TW_CHECK(tw_now_ns() - before >= 100 * TW_NS_PER_MS);
    TW_CHECK_EQ(1, group.segment->header.place);
    tw_group late = member("api"); /* joining, and what it counts, needs no lock */
    late.segment->opened = 1;
    TW_CHECK_EQ(2, segments(&group));
    close(held);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_place(&group, "api", false));
    TW_CHECK_EQ(1, group.segment->header.place);
    leave(&group), leave(&late);
}

TW_TEST(an_index_that_is_none_is_not_used) {
    tw_group liar = member("engine"), own = member("engine");
    const uint64_t lies[] = {0, TW_GROUP_INDEXES + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        liar.segment->header.place = lies[i];
        own.placed[0] = '\0';
        TW_CHECK_EQ(0, index_of(&own, "engine"));
    }
    leave(&own), leave(&liar);
}

TW_TEST(a_member_of_another_pid_namespace_keeps_what_it_has) {
    tw_group theirs = member("engine"), own = member("engine");
    TW_CHECK_EQ(0, index_of(&theirs, "engine"));
    theirs.segment->header.pid = 4000000, theirs.segment->header.pid_namespace++; /* no such process here */
    TW_CHECK_EQ(1, index_of(&own, "engine"));
    leave(&own), leave(&theirs);
}

static int take_an_index_each(void) {
    tw_group group[8];
    bool taken[65] = {false};
    for (int i = 0; i < 8; i++) {
        group[i] = member("engine");
        /* Not patient: one that was, and waited for 200 ms in vain, may take the index of another. */
        while (tw_group_place(&group[i], "engine", false) == TW_GROUP_BUSY) usleep(1000);
    }
    for (int i = 0; i < 8; i++) {
        const uint64_t place = group[i].segment->header.place;
        if (place < 1 || place > 64 || taken[place]) return 1;
        taken[place] = true;
    }
    pause(); /* alive until all have looked */
    return 0;
}

static bool note_place(void *to, const char *name, const void *bytes, size_t len, bool live) {
    (void)name, (void)len, (void)live;
    const uint64_t place = ((const tw_segment *)bytes)->header.place;
    if (place >= 1 && place <= 64) ((bool *)to)[place - 1] = true;
    return false;
}

TW_TEST(many_at_once_get_an_index_each) {
    pid_t children[8];
    for (int i = 0; i < 8; i++)
        if ((children[i] = fork()) == 0) _exit(take_an_index_each());
    tw_group group = joined();
    int taken = 0;
    for (int tries = 0; taken < 64 && tries < 10000; tries++) {
        bool places[64] = {false};
        uint64_t refused = 0;
        taken = 0;
        tw_group_each(group.dir, NULL, note_place, places, &refused);
        for (int i = 0; i < 64; i++) taken += places[i];
        usleep(1000);
    }
    TW_CHECK_EQ(64, taken);
    for (int i = 0; i < 8; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    tw_group_leave(&group);
}

TW_TEST(a_member_that_is_forgotten_leaves_its_file) {
    tw_group group = member("api");
    char name[TW_GROUP_NAME];
    strcpy(name, group.name);
    tw_group_forget(&group);
    TW_CHECK(access(in(name), F_OK) == 0 && group.segment == NULL && group.dir == -1);
}

TW_TEST(only_what_has_certainly_ended_has) {
    TW_CHECK(!tw_process_ended((uint64_t)getpid(), tw_process_start_time((uint64_t)getpid())));
    TW_CHECK(tw_process_ended((uint64_t)getpid(), tw_process_start_time((uint64_t)getpid()) + 1)); /* its pid is used again */
    TW_CHECK(!tw_process_ended((uint64_t)getpid(), 0)); /* it did not know itself */
    TW_CHECK(!tw_process_ended(0, 1) && !tw_process_ended(UINT64_MAX, 1));
    const pid_t pid = fork();
    if (pid == 0) for (;;) pause();
    const uint64_t start = tw_process_start_time((uint64_t)pid);
    TW_CHECK(start != 0 && !tw_process_ended((uint64_t)pid, start));
    struct rlimit before;
    getrlimit(RLIMIT_NOFILE, &before);
    TW_CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}) == 0); /* /proc cannot be opened */
    TW_CHECK(!tw_process_ended((uint64_t)pid, start) && !tw_process_lives((uint64_t)pid, start));
    TW_CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    kill(pid, SIGKILL);
    siginfo_t info;
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    TW_CHECK(tw_process_ended((uint64_t)pid, start)); /* a zombie */
    waitpid(pid, NULL, 0);
    TW_CHECK(tw_process_ended((uint64_t)pid, start));
}

/* ---- what is refused ---- */

TW_TEST(a_link_is_refused) {
    TW_CHECK(mkdir(other, 0700) == 0 && symlink(other, dir) == 0);
    TW_CHECK_EQ(TW_GROUP_LINK, refusal());
}

TW_TEST(what_is_no_directory_is_refused) {
    close(open(dir, O_CREAT | O_WRONLY, 0600));
    TW_CHECK_EQ(TW_GROUP_NO_DIR, refusal());
}

TW_TEST(a_directory_that_others_may_enter_is_refused) {
    static const mode_t modes[] = {0701, 0710, 0750, 0770, 0777, 01777};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        TW_CHECK(mkdir(dir, 0700) == 0 && chmod(dir, modes[i]) == 0);
        TW_CHECK_EQ(TW_GROUP_OPEN, refusal());
        end();
        begin();
    }
}

TW_TEST(a_parent_in_which_others_may_rename_is_refused) {
    TW_CHECK(mkdir(dir, 0700) == 0 && chmod(root, 0777) == 0);
    TW_CHECK_EQ(TW_GROUP_OPEN, refusal());
    TW_CHECK(chmod(root, 01777) == 0); /* sticky, as /dev/shm and /tmp are */
    tw_group group = joined();
    tw_group_leave(&group);
}

TW_TEST(a_directory_of_another_user_is_refused) {
    if (geteuid() == 0) { /* only root can give one away */
        TW_CHECK(mkdir(dir, 0700) == 0 && chown(dir, 12345, 12345) == 0);
        TW_CHECK_EQ(TW_GROUP_NOT_OURS, refusal());
    } else {
        tw_group_problem problem;
        TW_CHECK_EQ(-1, tw_group_open_dir("/root", &problem));
    }
}

static void plant(const char *name, size_t bytes, mode_t mode) {
    const int file = open(in(name), O_CREAT | O_WRONLY | O_EXCL, 0600);
    TW_CHECK(file >= 0 && ftruncate(file, (off_t)bytes) == 0 && fchmod(file, mode) == 0);
    close(file);
}

/* ---- a descriptor that the host closed ---- */

TW_TEST(a_number_given_away_is_left_alone) {
    tw_group group = member("api");
    tw_segment *segment = group.segment;
    TW_CHECK_EQ(TW_GROUP_HELD, tw_group_holds(&group, NULL));
    TW_CHECK(mkdir(other, 0700) == 0);
    const int theirs = open(other, O_RDONLY | O_DIRECTORY), number = group.dir;
    TW_CHECK(dup2(theirs, number) == number);
    TW_CHECK_EQ(TW_GROUP_LOST, tw_group_holds(&group, NULL));
    char name[TW_GROUP_NAME];
    strcpy(name, group.name);
    const int planted = openat(theirs, name, O_CREAT | O_WRONLY, 0600);
    TW_CHECK(planted >= 0);
    segment->opened = 42;
    tw_group_save(&group);
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK_EQ(42, segment->opened);
    tw_group_leave(&group);
    struct stat s;
    TW_CHECK(fstatat(theirs, name, &s, 0) == 0 && s.st_size == 0); /* theirs */
    TW_CHECK(fcntl(number, F_GETFD) >= 0);
    close(planted), close(theirs), close(number);
    tw_segment_destroy(segment);
}

TW_TEST(a_closed_directory_is_found_again_by_its_path) {
    tw_group group = joined();
    close(group.dir);
    TW_CHECK_EQ(TW_GROUP_LOST, tw_group_holds(&group, NULL));
    TW_CHECK(tw_group_find_again(&group, dir));
    TW_CHECK_EQ(TW_GROUP_HELD, tw_group_holds(&group, NULL));
    close(group.dir);
    char moved[128];
    snprintf(moved, sizeof moved, "%s.moved", dir);
    TW_CHECK(rename(dir, moved) == 0 && mkdir(dir, 0700) == 0);
    TW_CHECK(!tw_group_find_again(&group, dir)); /* another of the same name */
    tw_group_leave(&group);
}

/* ---- names ---- */

TW_TEST(a_file_is_named_after_its_owner) {
    char name[TW_GROUP_NAME];
    tw_group_file(name, &(tw_group_id){12, 34, UINT64_MAX});
    TW_CHECK_STR("12-34-18446744073709551615.seg", name);
    TW_CHECK(tw_group_names(name, 12, 34));
    TW_CHECK(!tw_group_names(name, 1, 34) && !tw_group_names(name, 12, 3));
    TW_CHECK(!tw_group_names("12-34-.seg", 12, 34) && !tw_group_names("12-34-5x.seg", 12, 34) && !tw_group_names("12-34.seg", 12, 34));
}

/* ---- memory that cannot be had ---- */

static rlim_t mapped_bytes(void) {
    char line[64] = "";
    const int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, line, sizeof line - 1) <= 0) abort();
    close(file);
    return (rlim_t)strtoull(line, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
}

static int unshare_under_a_limit(bool kept) {
    tw_group group = joined();
    if (share_segment(&group, "api", TW_LABEL_SETS_LIMIT) != TW_GROUP_FINE) return 1;
    tw_segment *segment = group.segment;
    const rlim_t limit = mapped_bytes() + ((rlim_t)1 << 20); /* nothing of that size can be mapped any more */
    const struct rlimit none = {limit, limit};
    if (setrlimit(RLIMIT_AS, &none) != 0) return 2;
    segment->opened = 42;
    const tw_shared shared = group.shared;
    if (tw_group_unshare(&group, kept) != 0 || segment->opened != (kept ? 42 : 0)) return 3;
    segment->opened = 7;
    const int file = openat(group.dir, group.name, O_RDONLY);
    uint64_t found = 0;
    if (pread(file, &found, 8, offsetof(tw_segment, opened)) != 8 || found != (kept ? 42 : 0)) return 4;
    return memory_is_there(&shared) ? 5 : 0;
}

static int keep_under_a_limit(void) { return unshare_under_a_limit(true); }
static int wipe_under_a_limit(void) { return unshare_under_a_limit(false); }

TW_TEST(a_memory_limit_does_not_keep_it_shared) {
    TW_CHECK_EQ(0, in_child(keep_under_a_limit));
    TW_CHECK_EQ(0, in_child(wipe_under_a_limit));
}

TW_TEST(readers_pass_over_what_they_cannot_trust) {
    tw_group group = member("api");
    plant("1-1.seg", 0, 0600);
    plant("2-2.seg", 4096, 0644);
    TW_CHECK(symlink(group.name, in("3-3.seg")) == 0 && mkfifo(in("4-4.seg"), 0600) == 0 && mkdir(in("5-5.seg"), 0700) == 0);
    plant("notes.txt", 4096, 0600);
    int found = 0;
    uint64_t refused = 0;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_each(group.dir, NULL, count, &found, &refused));
    TW_CHECK_EQ(1, found);
    TW_CHECK_EQ(5, refused);
    leave(&group);
}

/* As large as a file can be: what is not written takes no memory here. */
TW_TEST(a_huge_sparse_file_costs_a_reader_nothing) {
    tw_group group = member("api");
    plant("1-1.seg", (size_t)1 << 40, 0600);
    int found = 0;
    uint64_t refused = 0;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_each(group.dir, NULL, count, &found, &refused));
    TW_CHECK_EQ(2, found + (int)refused);
    leave(&group);
}

TW_TEST(a_directory_that_vanished_does_no_harm) {
    tw_group group = member("api");
    end();
    TW_CHECK_EQ(TW_GROUP_REMOVED, tw_group_holds(&group, NULL));
    group.segment->opened++;
    tw_group_save(&group);
    TW_CHECK_EQ(0, segments(&group));
    leave(&group);
}

TW_TEST(every_problem_has_its_sentence) {
    for (int a = 0; a < TW_GROUP_PROBLEMS; a++)
        for (int b = 0; b < a; b++)
            TW_CHECK(strcmp(tw_group_problem_text((tw_group_problem)a), tw_group_problem_text((tw_group_problem)b)) != 0);
}

/* ---- which process is which ---- */

static int start_times(void) {
    const uint64_t mine = tw_process_start_time((uint64_t)getpid()), parents = tw_process_start_time((uint64_t)getppid());
    return mine != 0 && parents != 0 && mine >= parents && tw_process_lives((uint64_t)getppid(), parents) &&
           !tw_process_lives((uint64_t)getppid(), parents + 1) ? 0 : 1;
}

TW_TEST(a_pid_lives_with_its_start_time_only) {
    TW_CHECK_EQ(0, in_child(start_times));
    TW_CHECK_EQ(0, tw_process_start_time(0));
    TW_CHECK_EQ(0, tw_process_start_time(UINT64_MAX));
    TW_CHECK(!tw_process_lives((uint64_t)getpid(), 0));
}

TW_TEST(a_zombie_is_dead) {
    const pid_t pid = fork();
    if (pid == 0) pause();
    const uint64_t start = tw_process_start_time((uint64_t)pid);
    TW_CHECK(tw_process_lives((uint64_t)pid, start));
    kill(pid, SIGKILL);
    siginfo_t info;
    TW_CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
    TW_CHECK(!tw_process_lives((uint64_t)pid, start));
    waitpid(pid, NULL, 0);
    TW_CHECK(!tw_process_lives((uint64_t)pid, start));
}

TW_TEST(the_boot_has_a_name) {
    uint64_t a[2], b[2];
    tw_boot_id(a);
    tw_boot_id(b);
    TW_CHECK((a[0] | a[1]) != 0 && a[0] == b[0] && a[1] == b[1]);
}
