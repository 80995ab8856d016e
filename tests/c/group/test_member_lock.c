/* How long a member's lock lasts, and what a process of another PID namespace reads off it. */
#include "tailwatch/group/member_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tailwatch/group/member_list.h"
#include "tailwatch/group/merge_dead.h"
#include "group_tools.h"
#include "tw_test.h"

static char root[64], dir[96];

static void begin(void) {
    strcpy(root, "/tmp/tw_lock_XXXXXX");
    if (mkdtemp(root) == NULL) abort();
    snprintf(dir, sizeof dir, "%s/group", root);
}

static void end(void) { remove_group(root, dir); }

TW_AROUND(begin, end)

/* A member whose header names another PID namespace, as one of another container has it. */
static tw_segment *elsewhere(tw_group *group) {
    TW_REQUIRE(tw_group_join(group, dir) == TW_GROUP_FINE);
    TW_REQUIRE(share_segment(group, "engine", 1) == TW_GROUP_FINE);
    group->segment->header.pid_namespace++;
    return group->segment;
}

TW_TEST(it_lasts_as_long_as_it_is_shared) {
    tw_group group;
    tw_segment *segment = elsewhere(&group);
    TW_CHECK_EQ(1, segment->header.locked);
    TW_CHECK(tw_segment_is_elsewhere(&segment->header) && tw_segment_lives(segment));
    for (int i = 0; i < 3; i++) { /* asking, opening and closing the file takes nothing away */
        TW_CHECK_EQ(TW_MEMBER_LIVES, tw_member_end_in(group.dir, group.name));
        close(openat(group.dir, group.name, O_RDWR));
    }
    tw_group_save(&group);
    TW_CHECK(unlinkat(group.dir, group.name, 0) == 0);
    tw_group_save(&group); /* another file, another lock */
    TW_CHECK_EQ(TW_MEMBER_LIVES, tw_member_end_in(group.dir, group.name));
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK_EQ(TW_MEMBER_ENDED_ELSEWHERE, tw_member_end_in(group.dir, group.name));
    tw_segment_destroy(segment);
    tw_group_forget(&group);
}

TW_TEST(without_a_lock_it_may_live) {
    tw_group group;
    tw_segment *segment = elsewhere(&group);
    segment->header.locked = 0;
    TW_CHECK_EQ(0, tw_group_unshare(&group, true));
    TW_CHECK_EQ(TW_MEMBER_LIVES, tw_member_end_in(group.dir, group.name));
    tw_segment *shared = segment_of(group.dir, group.name);
    TW_REQUIRE(shared != NULL);
    shared->header.ended = 1;
    TW_CHECK_EQ(TW_MEMBER_ENDED, tw_member_end_in(group.dir, group.name));
    tw_segment_destroy(shared), tw_segment_destroy(segment);
    tw_group_forget(&group);
}

/* A killed member of another namespace, beside a living one: a reader's list distinguishes them, and one is folded. */
TW_TEST(it_ends_with_its_process) {
    const pid_t pid = fork();
    if (pid == 0) {
        tw_group dead;
        (void)elsewhere(&dead);
        kill(getpid(), SIGKILL);
    }
    TW_CHECK_EQ(pid, waitpid(pid, NULL, 0));
    tw_group group;
    (void)elsewhere(&group);
    static tw_members members;
    TW_CHECK_EQ(TW_GROUP_FINE, tw_members_renew(&members, group.dir, NULL));
    TW_CHECK_EQ(2, members.n);
    for (uint32_t i = 0; i < members.n; i++) {
        const bool own = strcmp(members.member[i].name, group.name) == 0;
        TW_CHECK_EQ(own, tw_segment_lives(members.member[i].segment));
        TW_CHECK_EQ(!own, members.member[i].segment->header.ended);
    }
    TW_CHECK_EQ(1, tw_merge_dead(group.dir, 4));
    TW_CHECK_EQ(TW_MEMBER_LIVES, tw_member_end_in(group.dir, group.name));
    tw_members_clear(&members);
    tw_group_leave(&group);
}
