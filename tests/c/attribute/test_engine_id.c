/* Which engine processes work for: what they publish, and what is made of it where they publish nothing. */
#include "tailwatch/attribute/engine_id.h"

#include "tw_test.h"

static uint64_t named(const char *name) { return tw_engine_named(name, strlen(name)); }

TW_TEST(a_name_is_an_engine) {
    TW_CHECK_EQ(TW_ENGINE_NUMBER, named("0"));
    TW_CHECK_EQ(TW_ENGINE_NUMBER | 7, named("7"));
    TW_CHECK_EQ(named("7"), named("007"));
    TW_CHECK_EQ(TW_ENGINE_NUMBER | UINT32_MAX, named("4294967295"));
    TW_CHECK_EQ(TW_ENGINE_NAME, named("prefill-1") & TW_ENGINE_KIND);
    TW_CHECK(named("prefill-1") != named("prefill-2"));
    TW_CHECK(named("7a") != named("7"));
    TW_CHECK_EQ(named("abcdefghijklmnopqrstuvwxyz01234"), named("abcdefghijklmnopqrstuvwxyz01234"));
}

TW_TEST(what_is_no_name_is_no_engine) {
    static const char *const bad[] = {"", " 1", "1 ", "-1", "+1", "_a", ".", "a b", "a/b", "4294967296", "99999999999999999999",
                                      "0000000000000000000000000000001x", "abcdefghijklmnopqrstuvwxyz012345", "\xc3\xa9"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) TW_CHECK_EQ(0, named(bad[i]));
    TW_CHECK_EQ(0, tw_engine_named("a\0b", 3));
    TW_CHECK_EQ(named("1"), tw_engine_named("12", 1));
}

/* Settles the ids of processes 101, 102, ... for one that is 100 and works for own. */
static tw_peer_set settled(uint64_t own, const uint64_t *ids, uint32_t n) {
    tw_peer_set peer_set = {.n = n};
    uint64_t pid[TW_PEERS];
    for (uint32_t i = 0; i < n; i++) pid[i] = 101 + i, peer_set.peer[i].engine = ids[i];
    tw_engines_resolve(&peer_set, pid, 100, own);
    return peer_set;
}
#define SETTLED(own, ...) settled(own, (uint64_t[]){__VA_ARGS__}, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
#define ITSELF(pid) (TW_ENGINE_ITSELF | (pid))
#define LIKE(pid) (TW_ENGINE_LIKE | (pid))

TW_TEST(workers_belong_to_the_engine_that_started_them) {
    tw_peer_set two = SETTLED(0, ITSELF(101), ITSELF(102), LIKE(101), LIKE(102), LIKE(102));
    TW_CHECK_EQ(ITSELF(101), two.peer[2].engine);
    TW_CHECK_EQ(ITSELF(102), two.peer[3].engine);
    TW_CHECK_EQ(ITSELF(102), two.peer[4].engine);
    TW_CHECK(two.peer[0].engine != two.peer[1].engine);
    tw_peer_set numbered = SETTLED(0, named("0"), named("1"), LIKE(102), LIKE(103));
    TW_CHECK_EQ(named("1"), numbered.peer[2].engine);
    TW_CHECK_EQ(named("1"), numbered.peer[3].engine); /* a worker of a worker */
}

TW_TEST(with_one_engine_there_is_no_doubt) {
    TW_CHECK_EQ(ITSELF(101), SETTLED(0, ITSELF(101), LIKE(100)).peer[1].engine);
    TW_CHECK_EQ(named("0"), SETTLED(0, named("0"), named("0"), LIKE(55)).peer[2].engine);
    TW_CHECK_EQ(named("a"), SETTLED(named("a"), LIKE(100)).peer[0].engine); /* the one that asks is it */
    TW_CHECK_EQ(named("a"), SETTLED(named("a"), LIKE(7)).peer[0].engine);
}

TW_TEST(where_there_is_doubt_each_is_a_unit_of_its_own) {
    tw_peer_set workers = SETTLED(0, LIKE(100), LIKE(100));
    TW_CHECK_EQ(ITSELF(101), workers.peer[0].engine);
    TW_CHECK_EQ(ITSELF(102), workers.peer[1].engine);
    TW_CHECK_EQ(ITSELF(103), SETTLED(0, ITSELF(101), ITSELF(102), LIKE(100)).peer[2].engine);
    TW_CHECK_EQ(ITSELF(102), SETTLED(named("a"), ITSELF(101), LIKE(7)).peer[1].engine);
}

TW_TEST(a_ring_of_processes_ends) {
    tw_peer_set ring = SETTLED(0, LIKE(102), LIKE(101), LIKE(103));
    TW_CHECK_EQ(ITSELF(101), ring.peer[0].engine);
    TW_CHECK_EQ(ITSELF(102), ring.peer[1].engine);
    TW_CHECK_EQ(ITSELF(103), ring.peer[2].engine);
}

TW_TEST(one_may_work_for_all_several_do_not) {
    TW_CHECK_EQ(TW_ENGINE_SHARED, SETTLED(0, ITSELF(101), TW_ENGINE_SHARED).peer[1].engine);
    tw_peer_set two = SETTLED(0, TW_ENGINE_SHARED, TW_ENGINE_SHARED, LIKE(9));
    TW_CHECK_EQ(ITSELF(101), two.peer[0].engine);
    TW_CHECK_EQ(ITSELF(102), two.peer[1].engine);
    TW_CHECK_EQ(ITSELF(103), two.peer[2].engine);
}

TW_TEST(an_engine_is_there_when_a_process_works_for_it) {
    const tw_peer_set peer_set = SETTLED(0, named("0"), LIKE(101), TW_ENGINE_SHARED);
    TW_CHECK(tw_engine_has_peer(&peer_set, named("0")));
    TW_CHECK(!tw_engine_has_peer(&peer_set, named("1")));
    TW_CHECK(!tw_engine_has_peer(&peer_set, 0));
}
