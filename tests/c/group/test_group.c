/* The directory that processes share: who may, who is refused, who lives, and what readers make of what they find. */
#include "tailwatch/group/group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/base/clock.h"
#include "tailwatch/base/process.h"
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

static void end(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    if (system(command) != 0) abort();
}

TW_AROUND(begin, end)

static const char *in(const char *name) {
    static char path[192];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Others who join are waited for, however long a loaded machine lets them take. */
static tw_group_problem join(tw_group *group, uint64_t id) {
    tw_group_problem problem = TW_GROUP_BUSY;
    for (int tries = 0; problem == TW_GROUP_BUSY && tries < 1000; tries++) problem = tw_group_join(group, dir, id);
    return problem;
}

static tw_group joined(uint64_t id) {
    tw_group group;
    TW_CHECK_EQ(TW_GROUP_FINE, join(&group, id));
    return group;
}

static const char *in(const char *name);

/* The file that a member would make is there already. */
static void plant_its_file(const tw_group *group) {
    char name[TW_GROUP_NAME];
    tw_group_file(name, &group->page->line[group->at]);
    close(open(in(name), O_CREAT | O_WRONLY | O_EXCL, 0600));
}

static tw_group_problem refusal(void) {
    tw_group group;
    const tw_group_problem problem = tw_group_join(&group, dir, 0);
    TW_CHECK(problem != TW_GROUP_FINE);
    TW_CHECK(group.page == NULL && group.dir == -1);
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

/* ---- who is in it ---- */

TW_TEST(the_first_makes_it) {
    tw_group group = joined(0);
    struct stat s;
    TW_CHECK(stat(dir, &s) == 0 && (s.st_mode & 07777) == 0700);
    TW_CHECK(stat(in("page"), &s) == 0 && (s.st_mode & 07777) == 0600);
    TW_CHECK_EQ(sizeof(tw_group_page), s.st_size);
    TW_CHECK(s.st_blocks * 512 >= (off_t)sizeof(tw_group_page)); /* allocated: no SIGBUS later */
    TW_CHECK_EQ(0, group.at);
    TW_CHECK_EQ(1, group.page->lines);
    tw_group_leave(&group);
    TW_CHECK_EQ(-1, group.dir);
}

TW_TEST(a_line_is_a_cache_line) {
    TW_CHECK_EQ(64, sizeof(tw_group_line));
    TW_CHECK_EQ(64, offsetof(tw_group_page, line));
}

TW_TEST(each_has_a_line_and_a_file) {
    tw_group a = joined(0), b = joined(1);
    TW_CHECK(a.at != b.at);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&a, 1 << 20));
    struct stat s;
    TW_CHECK(stat(in(a.name), &s) == 0 && s.st_size == 1 << 20 && (s.st_mode & 07777) == 0600);
    TW_CHECK(s.st_blocks * 512 >= 1 << 20);
    TW_CHECK_EQ(0, *(uint64_t *)a.segment);
    plant_its_file(&b);
    TW_CHECK(share_zeros(&b, 1 << 20) != TW_GROUP_FINE);
    TW_CHECK(b.segment == NULL);
    char name[sizeof a.name];
    strcpy(name, a.name);
    tw_group_leave(&a);
    TW_CHECK(access(in(name), F_OK) != 0);
    tw_group_leave(&b);
}

TW_TEST(a_line_given_back_is_taken_again) {
    tw_group a = joined(0), b = joined(0);
    tw_group_leave(&a);
    tw_group c = joined(0);
    TW_CHECK_EQ(0, c.at);
    TW_CHECK_EQ(2, c.page->lines);
    tw_group_leave(&b);
    tw_group_leave(&c);
}

static int join_and_die(void) {
    tw_group group;
    if (tw_group_join(&group, dir, 1) != TW_GROUP_FINE) return 1;
    return share_zeros(&group, 4096) == TW_GROUP_FINE ? 0 : 2; /* _exit: nobody leaves */
}

static bool count(void *to, const char *name, const void *bytes, size_t len) {
    (void)name, (void)bytes, (void)len;
    *(int *)to += 1;
    return false;
}

TW_TEST(a_dead_member_keeps_its_line_while_its_file_stands) {
    tw_group a = joined(0);
    TW_CHECK_EQ(0, in_child(join_and_die));
    tw_group b = joined(0);
    TW_CHECK_EQ(2, b.at);
    int found = 0;
    uint64_t refused = 0;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_each(a.dir, NULL, count, &found, &refused));
    TW_CHECK_EQ(1, found);
    char dead[TW_GROUP_NAME];
    tw_group_file(dead, &a.page->line[1]);
    TW_CHECK(unlink(in(dead)) == 0);
    tw_group c = joined(0);
    TW_CHECK_EQ(1, c.at);
    tw_group_leave(&a), tw_group_leave(&b), tw_group_leave(&c);
}

TW_TEST(it_is_full_when_all_lines_are_taken) {
    tw_group group[TW_GROUP_LINES];
    for (int i = 0; i < TW_GROUP_LINES; i++) group[i] = joined(0);
    TW_CHECK_EQ(TW_GROUP_FULL, refusal());
    for (int i = 0; i < TW_GROUP_LINES; i++) tw_group_leave(&group[i]);
}

static int join_eight(void) {
    tw_group group[8];
    for (int i = 0; i < 8; i++)
        if (join(&group[i], 0) != TW_GROUP_FINE) return 1;
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < i; k++)
            if (group[i].at == group[k].at) return 2;
    pause(); /* alive until all have looked */
    return 0;
}

TW_TEST(many_at_once_get_a_line_each) {
    pid_t children[8];
    for (int i = 0; i < 8; i++)
        if ((children[i] = fork()) == 0) _exit(join_eight());
    tw_group group = joined(0);
    uint32_t taken = 0;
    for (int tries = 0; taken < 65 && tries < 10000; tries++) {
        taken = 0;
        for (uint64_t i = 0; i < group.page->lines; i++) taken += __atomic_load_n(&group.page->line[i].pid, __ATOMIC_ACQUIRE) != 0;
        usleep(1000);
    }
    TW_CHECK_EQ(65, taken);
    TW_CHECK_EQ(65, group.page->lines);
    for (int i = 0; i < 8; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    tw_group_leave(&group);
}

/* ---- memory that becomes a file, and back ---- */

static uint64_t *private_page(void) {
    void *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

TW_TEST(memory_becomes_a_file_where_it_is) {
    tw_group group = joined(0);
    uint64_t *memory = private_page(), found = 0;
    memory[0] = 42, memory[1023] = 43;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, memory, 8192));
    TW_CHECK(memory[0] == 42 && memory[1023] == 43);
    memory[1] = 44;
    const int file = open(in(group.name), O_RDONLY);
    TW_CHECK(pread(file, &found, 8, 8) == 8 && found == 44);
    TW_CHECK(pread(file, &found, 8, 8184) == 8 && found == 43);
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK(memory[0] == 42 && memory[1] == 44 && memory[1023] == 43);
    memory[1] = 45;
    TW_CHECK(pread(file, &found, 8, 8) == 8 && found == 44); /* it is nobody else's any more */
    close(file);
    tw_group_leave(&group);
    TW_CHECK(group.page == NULL);
    TW_CHECK(access(in("page"), F_OK) == 0);
    group = joined(0); /* once more, where pages of the old file still stand */
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, memory, 8192));
    TW_CHECK(memory[0] == 42 && memory[1] == 45 && memory[1023] == 43);
    tw_group_leave(&group);
    munmap(memory, 8192);
}

static off_t size_of(const tw_group *group) {
    struct stat s;
    return fstatat(group->dir, group->name, &s, AT_SYMLINK_NOFOLLOW) == 0 ? s.st_size : -1;
}

TW_TEST(the_file_grows_under_its_memory) {
    tw_group group = joined(0);
    uint64_t *memory = private_page(), found = 0;
    memory[0] = 42;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, memory, 100)); /* in whole pages */
    TW_CHECK_EQ(4096, size_of(&group));
    const int file = open(in(group.name), O_RDONLY);
    const uint64_t *reader = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0); /* beyond its end, as readers do */
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_grow(&group, 4096));
    TW_CHECK_EQ(4096, size_of(&group));
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_grow(&group, 4097));
    TW_CHECK(size_of(&group) == 8192 && group.segment_bytes == 8192);
    TW_CHECK(memory[0] == 42 && memory[512] == 0);
    memory[512] = 43;
    TW_CHECK_EQ(43, reader[512]);
    TW_CHECK(pread(file, &found, 8, 4096) == 8 && found == 43);
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    memory[512]++;
    TW_CHECK(memory[0] == 42 && memory[512] == 44 && reader[512] == 43);
    close(file);
    tw_group_leave(&group);
    munmap((void *)(uintptr_t)reader, 8192), munmap(memory, 8192);
}

static int grow_beyond_a_limit(void) {
    tw_group group;
    uint64_t *memory = private_page();
    const struct rlimit limit = {4096, 4096};
    if (tw_group_join(&group, dir, 0) != TW_GROUP_FINE || tw_group_share(&group, memory, 4096) != TW_GROUP_FINE) return 1;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    if (tw_group_grow(&group, 8192) != TW_GROUP_FULL) return 3;
    if (size_of(&group) != 4096 || group.segment_bytes != 4096) return 4;
    memory[0] = 42;
    memory[512] = 43; /* nobody else's, and no reason to die */
    return 0;
}

TW_TEST(a_file_that_cannot_grow_stays_as_it_is) {
    TW_CHECK_EQ(0, in_child(grow_beyond_a_limit));
}

TW_TEST(another_file_of_its_name_is_not_grown) {
    tw_group group = joined(0);
    uint64_t *memory = private_page();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, memory, 4096));
    TW_CHECK(unlinkat(group.dir, group.name, 0) == 0);
    TW_CHECK_EQ(TW_GROUP_SYSTEM, tw_group_grow(&group, 8192));
    plant_its_file(&group);
    TW_CHECK_EQ(TW_GROUP_FOREIGN, tw_group_grow(&group, 8192));
    TW_CHECK_EQ(0, size_of(&group));
    tw_group_leave(&group);
    munmap(memory, 8192);
}

static tw_group inherited;
static uint64_t *shared;

static int write_as_a_child(void) {
    if (tw_group_unshare(&inherited, false) != 0) return 1;
    if (shared[0] != 0) return 2;
    shared[0] = 7;
    tw_group_forget(&inherited);
    tw_group own;
    if (tw_group_join(&own, dir, 0) != TW_GROUP_FINE || tw_group_share(&own, shared, 8192) != TW_GROUP_FINE) return 3;
    return shared[0] == 7 ? 0 : 4;
}

TW_TEST(a_fork_child_has_memory_of_its_own) {
    inherited = joined(0);
    shared = private_page();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&inherited, shared, 8192));
    shared[0] = 42;
    TW_CHECK_EQ(0, in_child(write_as_a_child));
    TW_CHECK_EQ(42, shared[0]);
    int found = 0;
    uint64_t refused = 0;
    tw_group_each(inherited.dir, NULL, count, &found, &refused);
    TW_CHECK_EQ(2, found);
    tw_group_leave(&inherited);
    munmap(shared, 8192);
}

TW_TEST(memory_that_cannot_be_shared_stays_as_it_is) {
    tw_group a = joined(0), b = joined(0);
    uint64_t *memory = private_page(), *other = private_page();
    other[0] = 42;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&a, memory, 8192));
    plant_its_file(&b);
    TW_CHECK_EQ(TW_GROUP_SYSTEM, tw_group_share(&b, other, 8192));
    TW_CHECK(b.segment == NULL && other[0] == 42);
    TW_CHECK(access(in(a.name), F_OK) == 0);
    tw_group_leave(&b), tw_group_leave(&a);
    munmap(memory, 8192), munmap(other, 8192);
}

/* ---- names for life ---- */

static uint32_t index_of(tw_group *group, const char *role) {
    uint32_t index = 99;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_place(group, role, true, &index));
    return index;
}

static int be_placed(void) {
    tw_group group = joined(0);
    return (int)index_of(&group, "engine");
}

TW_TEST(an_index_is_kept_for_life) {
    tw_group a = joined(0), b = joined(0), c = joined(0), d = joined(0);
    TW_CHECK_EQ(0, index_of(&a, "engine"));
    TW_CHECK_EQ(1, index_of(&b, "engine"));
    TW_CHECK_EQ(0, index_of(&c, "api")); /* each role counts for itself */
    TW_CHECK_EQ(1, index_of(&b, "engine"));
    tw_group_leave(&a);
    TW_CHECK_EQ(1, index_of(&b, "engine")); /* the older one went: it stays who it is */
    TW_CHECK_EQ(0, index_of(&d, "engine")); /* the smallest that nobody living has */
    TW_CHECK_EQ(2, in_child(be_placed));    /* it ends there, without leaving */
    TW_CHECK_EQ(2, in_child(be_placed));
    TW_CHECK_EQ(2, index_of(&c, "engine")); /* another role, another index */
    TW_CHECK_EQ(0, index_of(&c, "api"));
    tw_group_leave(&b), tw_group_leave(&c), tw_group_leave(&d);
}

TW_TEST(an_index_waits_for_the_lock_or_not) {
    tw_group group = joined(0);
    const int held = open(dir, O_RDONLY | O_DIRECTORY);
    TW_CHECK(flock(held, LOCK_EX) == 0);
    uint32_t index = 99;
    TW_CHECK_EQ(TW_GROUP_BUSY, tw_group_place(&group, "engine", false, &index));
    TW_CHECK_EQ(TW_GROUP_BUSY, tw_group_place(&group, "engine", true, &index));
    TW_CHECK_EQ(99, index);
    close(held);
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_place(&group, "engine", false, &index));
    TW_CHECK_EQ(0, index);
    tw_group_leave(&group);
}

TW_TEST(an_index_that_is_none_is_not_believed) {
    tw_group liar = joined(0), own = joined(0);
    TW_CHECK_EQ(0, index_of(&liar, "engine"));
    own.page->line[liar.at].place -= 1; /* of that role, and before the first index */
    TW_CHECK_EQ(0, index_of(&own, "engine"));
    own.page->line[own.at].place -= 1;
    TW_CHECK_EQ(0, index_of(&own, "engine"));
    own.page->line[liar.at].place += 257; /* and past the last */
    TW_CHECK_EQ(0, index_of(&own, "engine"));
    tw_group_leave(&own), tw_group_leave(&liar);
}

TW_TEST(who_lives_in_another_pid_namespace_keeps_what_it_has) {
    tw_group theirs = joined(0), own = joined(0);
    TW_CHECK_EQ(0, index_of(&theirs, "engine"));
    tw_group_line *line = &own.page->line[theirs.at];
    line->pid = 4000000, line->pid_namespace++; /* no such process here */
    TW_CHECK_EQ(1, index_of(&own, "engine"));
    tw_group late = joined(0);
    TW_CHECK(late.at != theirs.at);
    tw_group_leave(&late), tw_group_leave(&own), tw_group_leave(&theirs);
}

TW_TEST(who_parts_leaves_its_file) {
    tw_group group = joined(0);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&group, 4096));
    char name[TW_GROUP_NAME];
    strcpy(name, group.name);
    tw_group_part(&group);
    TW_CHECK(access(in(name), F_OK) == 0 && group.page == NULL && group.dir == -1);
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

/* ---- who stood still ---- */

TW_TEST(a_page_that_lies_about_its_lines_is_not_followed) {
    tw_group group = joined(0);
    group.page->lines = UINT64_MAX;
    TW_CHECK_EQ(TW_GROUP_LINES, tw_group_lines(&group));
    tw_group_leave(&group);
}

TW_TEST(a_pause_is_told_on_the_page) {
    tw_group api = joined(0), engine = joined(1);
    TW_CHECK_EQ(0, api.page->line[engine.at].stop_ns); /* who joins has no past */
    tw_group_publish(&engine, 1000);
    TW_CHECK_EQ(1000, api.page->line[engine.at].stop_ns);
    TW_CHECK_EQ(1, api.page->line[engine.at].engine);
    tw_group_leave(&engine);
    TW_CHECK_EQ(0, api.page->line[1].stop_ns);
    tw_group_leave(&api);
}

/* ---- who is refused ---- */

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
    tw_group group = joined(0);
    tw_group_leave(&group);
}

TW_TEST(a_directory_of_somebody_else_is_refused) {
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

TW_TEST(a_planted_page_is_refused) {
    static const struct { size_t bytes; mode_t mode; tw_group_problem problem; } planted[] = {
        {0, 0660, TW_GROUP_OPEN},
        {sizeof(tw_group_page), 0666, TW_GROUP_OPEN},
    };
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        TW_CHECK(mkdir(dir, 0700) == 0);
        plant("page", planted[i].bytes, planted[i].mode);
        TW_CHECK_EQ(planted[i].problem, refusal());
        end();
        begin();
    }
}

TW_TEST(a_page_of_something_else_is_refused) {
    TW_CHECK(mkdir(dir, 0700) == 0);
    plant("page", sizeof(tw_group_page), 0600);
    const int file = open(in("page"), O_WRONLY);
    TW_CHECK(pwrite(file, "something", 9, 0) == 9);
    close(file);
    TW_CHECK_EQ(TW_GROUP_FOREIGN, refusal());
    TW_CHECK(access(in("page"), F_OK) == 0);
}

TW_TEST(a_half_made_page_is_made_anew) {
    static const size_t sizes[] = {0, 100, sizeof(tw_group_page)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        TW_CHECK(mkdir(dir, 0700) == 0);
        plant("page", sizes[i], 0600);
        tw_group group = joined(0);
        struct stat s;
        TW_CHECK(stat(in("page"), &s) == 0 && s.st_size == sizeof(tw_group_page));
        tw_group_leave(&group);
        end();
        begin();
    }
}

TW_TEST(who_holds_the_lock_for_long_is_not_waited_for) {
    tw_group group = joined(0);
    const int held = open(dir, O_RDONLY | O_DIRECTORY);
    TW_CHECK(flock(held, LOCK_EX) == 0);
    const uint64_t before = tw_now_ns();
    TW_CHECK_EQ(TW_GROUP_BUSY, refusal());
    TW_CHECK(tw_now_ns() - before >= 10 * TW_NS_PER_MS);
    close(held);
    tw_group again = joined(0);
    tw_group_leave(&again), tw_group_leave(&group);
}

/* ---- a descriptor that the host closed ---- */

TW_TEST(a_number_given_away_is_left_alone) {
    tw_group group = joined(0);
    uint64_t *memory = private_page();
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_share(&group, memory, 8192));
    TW_CHECK_EQ(TW_GROUP_HELD, tw_group_holds(&group, NULL));
    TW_CHECK(mkdir(other, 0700) == 0);
    const int theirs = open(other, O_RDONLY | O_DIRECTORY), number = group.dir;
    TW_CHECK(dup2(theirs, number) == number);
    TW_CHECK_EQ(TW_GROUP_LOST, tw_group_holds(&group, NULL));
    char name[TW_GROUP_NAME];
    strcpy(name, group.name);
    const int planted = openat(theirs, name, O_CREAT | O_WRONLY, 0600);
    TW_CHECK(planted >= 0);
    memory[0] = 42;
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK_EQ(42, memory[0]);
    tw_group_leave(&group);
    TW_CHECK(faccessat(theirs, name, F_OK, 0) == 0); /* theirs */
    TW_CHECK(fcntl(number, F_GETFD) >= 0);
    close(planted), close(theirs), close(number);
    munmap(memory, 8192);
}

TW_TEST(a_closed_directory_is_found_again_by_its_path) {
    tw_group group = joined(0);
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

/* ---- a process that becomes another program ---- */

TW_TEST(what_this_process_was_before_an_exec_gives_its_line_up) {
    tw_group before = joined(0);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&before, 4096));
    char old[TW_GROUP_NAME];
    strcpy(old, before.name);
    before.page->line[before.at].image++; /* as of another program */
    tw_group after = joined(0);
    TW_CHECK_EQ(before.at, after.at);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&after, 4096));
    TW_CHECK(strcmp(old, after.name) != 0);
    TW_CHECK(access(in(old), F_OK) == 0); /* what it measured then */
    tw_group_leave(&after);
    tw_group_forget(&before);
}

TW_TEST(a_file_is_named_after_its_owner) {
    char name[TW_GROUP_NAME];
    tw_group_line line = {.pid = 12, .start_time = 34, .joined_ns = UINT64_MAX};
    tw_group_file(name, &line);
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
    tw_group group;
    const size_t bytes = (size_t)64 << 20;
    if (tw_group_join(&group, dir, 0) != TW_GROUP_FINE) return 1;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tw_group_share(&group, memory, bytes) != TW_GROUP_FINE) return 2;
    memory[0] = 42, memory[bytes / 8 - 1] = 43;
    const rlim_t limit = mapped_bytes() + ((rlim_t)1 << 20); /* nothing of that size can be mapped any more */
    const struct rlimit none = {limit, limit};
    if (setrlimit(RLIMIT_AS, &none) != 0 || mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) return 3;
    if (tw_group_unshare(&group, kept) != 0) return 4;
    if (memory[0] != (kept ? 42 : 0) || memory[bytes / 8 - 1] != (kept ? 43 : 0)) return 5;
    memory[1] = 44;
    uint64_t found = 0;
    const int file = openat(group.dir, group.name, O_RDONLY);
    return file >= 0 && pread(file, &found, 8, 8) == 8 && found == 0 ? 0 : 6;
}

static int keep_under_a_limit(void) { return unshare_under_a_limit(true); }
static int wipe_under_a_limit(void) { return unshare_under_a_limit(false); }

TW_TEST(a_memory_limit_does_not_keep_it_shared) {
    TW_CHECK_EQ(0, in_child(keep_under_a_limit));
    TW_CHECK_EQ(0, in_child(wipe_under_a_limit));
}

TW_TEST(a_page_that_is_a_link_or_has_two_names_is_refused) {
    TW_CHECK(mkdir(dir, 0700) == 0 && mkdir(other, 0700) == 0);
    plant("elsewhere", sizeof(tw_group_page), 0600);
    TW_CHECK(symlink("elsewhere", in("page")) == 0);
    TW_CHECK_EQ(TW_GROUP_LINK, refusal());
    unlink(in("page"));
    char from[192];
    strcpy(from, in("elsewhere"));
    TW_CHECK(link(from, in("page")) == 0);
    TW_CHECK_EQ(TW_GROUP_LINK, refusal());
}

TW_TEST(a_page_of_another_version_or_boot_is_refused) {
    tw_group group = joined(0);
    tw_group_page *page = group.page;
    page->version++;
    TW_CHECK_EQ(TW_GROUP_FOREIGN, refusal());
    page->version--, page->boot_id[1]++;
    TW_CHECK_EQ(TW_GROUP_FOREIGN, refusal());
    page->boot_id[1]--;
    tw_group again = joined(0);
    tw_group_leave(&again), tw_group_leave(&group);
}

TW_TEST(readers_pass_over_what_they_cannot_trust) {
    tw_group group = joined(0);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&group, 4096));
    plant("1-1.seg", 0, 0600);
    plant("2-2.seg", 4096, 0644);
    TW_CHECK(symlink(group.name, in("3-3.seg")) == 0 && mkfifo(in("4-4.seg"), 0600) == 0 && mkdir(in("5-5.seg"), 0700) == 0);
    plant("notes.txt", 4096, 0600);
    int found = 0;
    uint64_t refused = 0;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_group_each(group.dir, NULL, count, &found, &refused));
    TW_CHECK_EQ(1, found);
    TW_CHECK_EQ(5, refused);
    tw_group_leave(&group);
}

TW_TEST(a_full_file_system_is_an_error_and_leaves_nothing) {
    tw_group group = joined(0);
    static uint64_t page[512];
    TW_CHECK_EQ(TW_GROUP_FULL, tw_group_share(&group, page, (size_t)1 << 50)); /* refused before anything is read */
    TW_CHECK(access(in(group.name), F_OK) != 0);
    TW_CHECK(group.segment == NULL && group.segment_bytes == 0);
    tw_group_leave(&group);
}

TW_TEST(a_directory_that_vanished_does_no_harm) {
    tw_group group = joined(0);
    TW_CHECK_EQ(TW_GROUP_FINE, share_zeros(&group, 4096));
    end();
    TW_CHECK_EQ(TW_GROUP_REMOVED, tw_group_holds(&group, NULL));
    tw_group_publish(&group, 1000);
    *(volatile uint64_t *)group.segment = 1;
    int found = 0;
    uint64_t refused = 0;
    tw_group_each(group.dir, NULL, count, &found, &refused);
    TW_CHECK_EQ(0, found);
    tw_group_leave(&group);
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
