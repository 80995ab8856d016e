#include "tailwatch/group/merge_dead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/process.h"
#include "tailwatch/group/member_lock.h"
#include "tailwatch/group/retired_segment.h"
#include "tailwatch/record/event_ring.h"

static const char MAKING[] = "merge.tmp";

/* ---- which members are dead ---- */

static bool was_before_exec(const tw_header *h) {
    const uint64_t self = (uint64_t)getpid();
    return tw_load(&h->pid) == self && tw_load(&h->start_time) == tw_process_start_time(self) &&
           tw_load(&h->image) != tw_process_image();
}

static bool is_dead(int dir, const char *name, const tw_header *h) {
    if (!tw_segment_is_of_this_boot(h)) return false;
    if (!tw_segment_is_elsewhere(h) && was_before_exec(h)) return true;
    return tw_member_end_in(dir, name) != TW_MEMBER_LIVES;
}

/* ---- a file, mapped ---- */

typedef struct mapped {
    void *bytes;
    size_t len;
} mapped;

/* ---- one merge ---- */

typedef struct merging {
    int dir;
    const char *name; /* of the dead one's file */
    tw_group_id id;
    const tw_segment *dead;
    char retired[TW_GROUP_NAME];
    mapped before;    /* the retired segment as it was; no bytes: there is none */
    const tw_retired_list *list;
} merging;

/* false: a file of the retired segment's name stands there, and is none. It is not ours to replace. */
static bool find_retired(merging *f) {
    tw_retired_name(f->retired, f->dead->header.role, tw_retired_index(f->dead));
    errno = 0;
    bool live;
    if (tw_shared_open(f->dir, f->retired, &f->before.bytes, &f->before.len, &live) != TW_GROUP_FINE) {
        const bool missing = errno == ENOENT;
        f->before.bytes = NULL;
        return missing;
    }
    f->list = tw_retired_of(f->before.bytes, f->before.len, f->retired);
    return f->list != NULL;
}

static bool has_served(const tw_segment *g) { return tw_segment_served(g, tw_segment_series(g, 0)) != NULL; }

/* Whether the dead one or its retired segment has what OTLP needs. */
static bool keeps_served(const merging *f) { return has_served(f->dead) || (f->list != NULL && has_served(f->before.bytes)); }

static tw_segment *sum_up(const merging *f) {
    tw_segment *sum = tw_retired_begin(f->dead->header.role, tw_retired_index(f->dead) + 1, keeps_served(f));
    if (sum == NULL) return NULL;
    const bool done = (f->list == NULL || tw_retired_add(sum, f->before.bytes) == 0) && tw_retired_add(sum, f->dead) == 0;
    if (done) return sum;
    tw_retired_free(sum);
    return NULL;
}

static tw_retired_list list_of(const merging *f) {
    tw_retired_list list = f->list != NULL ? *f->list : (tw_retired_list){.magic = TW_RETIRED_MAGIC};
    list.file[list.count++ % TW_RETIRED_NAMES] = f->id;
    return list;
}

static bool write_retired(const merging *f, tw_segment *sum) {
    const tw_retired_list list = list_of(f);
    (void)tw_retired_close(sum);
    unlinkat(f->dir, MAKING, 0);
    const bool made = tw_file_write(f->dir, MAKING, sum, sum->header.bytes, &list, sizeof list) == TW_GROUP_FINE;
    if (made && renameat(f->dir, MAKING, f->dir, f->retired) == 0) return true;
    unlinkat(f->dir, MAKING, 0);
    return false;
}

/* The one that the list is about to forget: the process that merged it may have died before it removed the file. */
static void remove_forgotten(const merging *f) {
    char name[TW_GROUP_NAME];
    if (f->list == NULL || f->list->count < TW_RETIRED_NAMES) return;
    const tw_group_id *oldest = &f->list->file[f->list->count % TW_RETIRED_NAMES];
    tw_group_file(name, oldest);
    tw_shared_remove(f->dir, name);
}

static bool into_retired(merging *f) {
    if (!find_retired(f)) return false;
    if (f->list != NULL && tw_retired_holds(f->list, &f->id)) return true;
    tw_segment *sum = sum_up(f);
    if (sum == NULL) return false;
    remove_forgotten(f);
    const bool done = write_retired(f, sum);
    tw_retired_free(sum);
    return done;
}

/* What an operator could ask of it: tailwatch/gc/remote_commands.py. */
static void remove_orders(int dir, const char *segment) {
    char name[TW_GROUP_NAME];
    snprintf(name, sizeof name, "%.*s.gc", (int)(strlen(segment) - strlen(".seg")), segment);
    unlinkat(dir, name, 0);
}

/* What it recorded: of itself, event_ring.h. */
static void settle_trace(int dir, const tw_group_id *id) {
    char name[TW_GROUP_NAME];
    tw_trace_name(name, id->pid, id->start_time, id->joined_ns);
    tw_shared_settle(dir, name);
}

/* Under the lock. */
static bool bury(int dir, const char *name, const tw_segment *dead) {
    merging f = {.dir = dir, .name = name, .dead = dead};
    const bool ours = tw_group_id_of(name, &f.id) && f.id.pid == tw_load(&dead->header.pid) &&
                      f.id.start_time == tw_load(&dead->header.start_time);
    const bool done = ours && into_retired(&f);
    if (f.before.bytes != NULL) munmap(f.before.bytes, f.before.len);
    if (!done || !tw_shared_remove(dir, name)) return false;
    remove_orders(dir, name);
    settle_trace(dir, &f.id);
    return true;
}

/* ---- files that were never made ---- */

#define HALF_MADE_S 10 /* its maker has long written its first word then */

/* Its maker died before it named anything, which is of no pid namespace then: it is also old. */
static bool was_never_made(int dir, const char *name) {
    struct stat s;
    void *bytes;
    size_t len;
    bool live;
    if (fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode) || s.st_mtim.tv_sec + HALF_MADE_S >= time(NULL)) return false;
    if (s.st_size == 0) return true;
    if (tw_shared_open(dir, name, &bytes, &len, &live) != TW_GROUP_FINE) return false;
    const bool empty = len < sizeof(uint64_t) || *(const uint64_t *)bytes == 0;
    munmap(bytes, len);
    return empty;
}

/* ---- all of them ---- */

typedef struct round {
    int dir;
    uint32_t most, found;
    bool locked; /* else it is asked whether there is anything to do; files of the living are not opened for that */
} round;

static bool wanted(void *to, const char *name) {
    round *r = to;
    tw_group_id id;
    if (r->found == r->most || !tw_group_id_of(name, &id)) return false;
    const bool ended = tw_process_ended(id.pid, id.start_time);
    if (!ended || !was_never_made(r->dir, name)) return ended || r->locked || id.pid == (uint64_t)getpid();
    r->found += !r->locked || unlinkat(r->dir, name, 0) == 0;
    return false;
}

static bool visit(void *to, const char *name, const void *bytes, size_t len, bool live) {
    round *r = to;
    (void)live;
    if (!tw_segment_valid(bytes, len) || !is_dead(r->dir, name, bytes)) return false;
    r->found += r->locked ? bury(r->dir, name, bytes) : 1;
    return false;
}

static uint32_t go_round(int dir, uint32_t most, bool locked) {
    uint64_t refused = 0;
    round r = {.dir = dir, .most = most, .locked = locked};
    (void)tw_group_each(dir, wanted, visit, &r, &refused);
    return r.found;
}

uint32_t tw_merge_dead(int dir, uint32_t most) {
    if (go_round(dir, 1, false) == 0 || flock(dir, LOCK_EX | LOCK_NB) != 0) return 0;
    const uint32_t merged = go_round(dir, most, true);
    flock(dir, LOCK_UN);
    return merged;
}

void tw_mark_ended(tw_group *group) {
    if (group->segment == NULL) return;
    tw_store_release(&group->segment->header.ended, 1);
    (void)tw_group_save(group);
}
