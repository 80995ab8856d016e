#include "tailwatch/group/member_list.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/group/member_lock.h"
#include "tailwatch/attribute/engine_id.h"

#define HALF_MADE_NS (10 * TW_NS_PER_SECOND)

static void unmap(tw_member *member) {
    munmap((void *)(uintptr_t)member->segment, member->bytes);
    member->segment = NULL;
}

void tw_members_clear(tw_members *members) {
    for (uint32_t i = 0; i < members->n; i++) unmap(&members->member[i]);
    members->n = members->n_known = 0;
}

void tw_members_retry(tw_members *members) { members->n_known = 0; }

static const tw_member *find(const tw_members *members, uint32_t n, const char *name) {
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(members->member[i].name, name) == 0) return &members->member[i];
    return NULL;
}

/* The name has whose it is: a copy under another name would count twice. */
static bool is_named_after_its_owner(const tw_segment *segment, const char *name) {
    return tw_group_names(name, tw_load(&segment->header.pid), tw_load(&segment->header.start_time));
}

typedef struct renewal {
    tw_members *members;
    int dir;
    struct stat file; /* the one that is looked at */
    const char *except;
    uint32_t before; /* members there were: those found again are marked */
    bool seen[TW_MEMBERS];
    uint64_t refused;
    bool pending; /* whether the file is kept is not known yet */
    uint32_t n_before_pending;
} renewal;

/* ---- files that were refused ---- */

static uint64_t changed_ns(const struct stat *s) {
    return (uint64_t)s->st_mtim.tv_sec * TW_NS_PER_SECOND + (uint64_t)s->st_mtim.tv_nsec;
}

static bool is_known_refused(const tw_members *members, const struct stat *s) {
    for (uint32_t i = 0; i < members->n_known; i++)
        if (members->known[i].ino == (uint64_t)s->st_ino && members->known[i].dev == (uint64_t)s->st_dev &&
            members->known[i].changed_ns == changed_ns(s)) return true;
    return false;
}

static bool is_younger(const struct stat *s, uint64_t ns) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    return changed_ns(s) + ns > (uint64_t)now.tv_sec * TW_NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

static bool may_be_half_made(const struct stat *s) { return is_younger(s, HALF_MADE_NS); }

/* Whether a copy read now is that of a file which holds the same later: what comes within one tick of the kernel's clock has
 * one time, and another file may have the same inode. */
static uint64_t copied_ns(const struct stat *s) { return is_younger(s, TW_NS_PER_SECOND) ? UINT64_MAX : changed_ns(s); }

static void note_refused(tw_members *members, const struct stat *s) {
    if (members->n_known == TW_MEMBERS_REFUSED || may_be_half_made(s)) return; /* opened each time */
    const uint32_t at = members->n_known++;
    members->known[at].dev = (uint64_t)s->st_dev;
    members->known[at].ino = (uint64_t)s->st_ino;
    members->known[at].changed_ns = changed_ns(s);
}

/* ---- the list ---- */

static bool refuse(renewal *r) {
    r->refused++;
    return false;
}

static tw_member *add(renewal *r, const char *name, const tw_segment *segment, size_t bytes) {
    tw_member *member = &r->members->member[r->members->n++];
    memset(member, 0, sizeof *member);
    member->segment = segment;
    member->bytes = bytes;
    member->dev = (uint64_t)r->file.st_dev;
    member->ino = (uint64_t)r->file.st_ino;
    snprintf(member->name, sizeof member->name, "%s", name);
    return member;
}

static bool keep_segment(renewal *r, const char *name, const tw_segment *segment, size_t len, bool live) {
    if (r->members->n == TW_MEMBERS || !tw_segment_valid(segment, len) || !is_named_after_its_owner(segment, name)) return refuse(r);
    if (live && len < segment->header.bytes) return refuse(r); /* it may come to use all of them */
    tw_member *member = add(r, name, segment, len);
    member->copied_ns = live ? 0 : copied_ns(&r->file);
    return tw_group_id_of(name, &member->id);
}

static bool keep_retired(renewal *r, const char *name, const void *bytes, size_t len) {
    const tw_retired_list *list = r->members->n < TW_MEMBERS ? tw_retired_of(bytes, len, name) : NULL;
    if (list == NULL) return refuse(r);
    tw_member *member = add(r, name, bytes, len);
    member->list = list;
    member->copied_ns = copied_ns(&r->file);
    return true;
}

/* What became of the file before, if it was not kept. */
static void settle(renewal *r) {
    if (r->pending && r->n_before_pending == r->members->n) note_refused(r->members, &r->file);
    r->pending = false;
}

/* Memory that is shared stays what it is, whatever becomes of its file. A copy may have become old. */
static bool is_current(const tw_member *member, const struct stat *s) {
    return member->ino == (uint64_t)s->st_ino && member->dev == (uint64_t)s->st_dev &&
           (member->copied_ns == 0 || member->copied_ns == changed_ns(s)) &&
           tw_segment_valid(member->segment, member->bytes);
}

/* Whether the file is to be opened: it is not, where it is already. */
static bool wanted(void *to, const char *name) {
    renewal *r = to;
    settle(r);
    if (r->except != NULL && strcmp(name, r->except) == 0) return false;
    if (fstatat(r->dir, name, &r->file, AT_SYMLINK_NOFOLLOW) != 0) return false; /* gone meanwhile */
    const tw_member *known = find(r->members, r->before, name);
    if (known != NULL && is_current(known, &r->file)) {
        r->seen[known - r->members->member] = true;
        return false;
    }
    if (is_known_refused(r->members, &r->file)) {
        r->refused++;
        return false;
    }
    r->pending = true;
    r->n_before_pending = r->members->n;
    return true;
}

static bool visit(void *to, const char *name, const void *bytes, size_t len, bool live) { return keep_segment(to, name, bytes, len, live); }

static bool visit_gone(void *to, const char *name, const void *bytes, size_t len, bool live) {
    (void)live;
    return keep_retired(to, name, bytes, len);
}

static void drop_gone(renewal *r) {
    tw_members *members = r->members;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < members->n; i++) {
        if (i < r->before && !r->seen[i]) unmap(&members->member[i]);
        else members->member[kept++] = members->member[i];
    }
    members->n = kept;
}

static const tw_member *retired_of(const tw_members *members, const tw_segment *segment) {
    char name[TW_GROUP_NAME];
    tw_retired_name(name, segment->header.role, tw_retired_index(segment));
    const tw_member *member = find(members, members->n, name);
    return member != NULL && member->list != NULL ? member : NULL;
}

/* The process that merged it died before it removed the file. */
static void drop_merged(tw_members *members) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < members->n; i++) {
        tw_member *member = &members->member[i];
        const tw_member *retired = member->list == NULL ? retired_of(members, member->segment) : NULL;
        if (retired != NULL && tw_retired_holds(retired->list, &member->id)) unmap(member);
        else members->member[kept++] = *member;
    }
    members->n = kept;
}

/* The order of the two looks is merge_dead.h's. */
static tw_group_problem look(renewal *r) {
    const tw_group_problem problem = tw_group_each(r->dir, wanted, visit, r, &r->refused);
    settle(r);
    if (problem != TW_GROUP_FINE) return problem;
    const tw_group_problem of_the_gone = tw_group_each_gone(r->dir, wanted, visit_gone, r, &r->refused);
    settle(r);
    return of_the_gone;
}

tw_group_problem tw_members_renew(tw_members *members, int dir, const char *except) {
    renewal r = {.members = members, .dir = dir, .except = except, .before = members->n};
    const tw_group_problem problem = look(&r);
    if (problem != TW_GROUP_FINE) return problem;
    drop_gone(&r);
    drop_merged(members);
    tw_members_note_ended(members, dir);
    members->refused = r.refused;
    return TW_GROUP_FINE;
}

/* ---- members that ended in another PID namespace ---- */

static bool may_end_unseen(const tw_member *member) {
    const tw_header *h = &member->segment->header;
    return member->list == NULL && tw_load(&h->locked) != 0 && tw_load(&h->ended) == 0 && tw_segment_is_elsewhere(h);
}

/* Nothing writes to it any more: the first page of what the reader has mapped becomes private, and takes the mark. */
static void mark_ended(tw_member *member) {
    void *const at = (void *)(uintptr_t)member->segment;
    tw_segment *const page = mmap(NULL, sizeof(tw_header), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (page == MAP_FAILED) return;
    memcpy(page, at, bytes);
    page->header.ended = 1;
    if (mremap(page, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED) munmap(page, bytes);
}

static void note_ended(tw_member *member, int file) {
    struct stat s;
    const bool same = fstat(file, &s) == 0 && member->ino == (uint64_t)s.st_ino && member->dev == (uint64_t)s.st_dev;
    if (same && tw_member_end_of(&member->segment->header, file) != TW_MEMBER_LIVES) mark_ended(member);
}

void tw_members_note_ended(tw_members *members, int dir) {
    for (uint32_t i = 0; i < members->n; i++) {
        tw_member *member = &members->member[i];
        if (!may_end_unseen(member)) continue;
        const int file = openat(dir, member->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (file < 0) continue;
        note_ended(member, file);
        close(file);
    }
}

/* ---- whose pauses count ---- */

static void admit(tw_peer_set *peer_set, const tw_segment *segment, tw_segment *own) {
    char role[TW_ROLE_WORDS * 8];
    tw_words_get(segment->header.role, TW_ROLE_WORDS, role);
    peer_set->segment[peer_set->n] = segment;
    peer_set->stop_ns[peer_set->n] = &segment->pause.last_stop_ns;
    peer_set->peer[peer_set->n++] = (tw_peer){&segment->pause, tw_load(&segment->header.engine), tw_segment_source(own, role)};
}

void tw_members_peers(const tw_members *members, tw_segment *own, tw_peer_set *peer_set) {
    uint64_t pids[TW_PEERS];
    const bool makes_tokens = tw_load(&own->step_ring.head) != 0;
    peer_set->n = 0;
    for (uint32_t i = 0; i < members->n && peer_set->n < TW_PEERS; i++) {
        const tw_segment *segment = members->member[i].segment;
        const uint64_t engine = tw_load(&segment->header.engine);
        if (engine == 0 || (engine == TW_ENGINE_SHARED && makes_tokens) || !tw_segment_lives(segment)) continue;
        pids[peer_set->n] = tw_load(&segment->header.pid);
        admit(peer_set, segment, own);
    }
    tw_engines_resolve(peer_set, pids, tw_load(&own->header.pid), tw_load(&own->header.engine));
}
