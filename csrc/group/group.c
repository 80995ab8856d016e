#include "tailwatch/group/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/base/process.h"
#include "tailwatch/group/member_lock.h"
#include "record/word_sums.h"

static const char SEGMENT[] = ".seg";
static const char GONE[] = ".gone";
static const char INDEX_LOCK[] = "index.lock";

#define LOCK_TRIES 100
#define LOCK_TURN_NS 2000000

/* ---- the directory ---- */

static bool writable_by_others(const struct stat *s) { return (s->st_mode & (S_IWGRP | S_IWOTH)) != 0; }

/* A user that may rename entries of the parent could put another directory in this one's place; a sticky one lets
 * owners only. */
static tw_group_problem check_parent(int dir) {
    struct stat parent;
    if (fstatat(dir, "..", &parent, 0) != 0) return tw_file_problem();
    const bool trusted = parent.st_uid == 0 || parent.st_uid == geteuid();
    if (!trusted || (writable_by_others(&parent) && !(parent.st_mode & S_ISVTX))) return TW_GROUP_OPEN;
    return TW_GROUP_FINE;
}

static tw_group_problem check_dir(int dir) {
    struct stat s;
    if (fstat(dir, &s) != 0) return tw_file_problem();
    if (!S_ISDIR(s.st_mode)) return TW_GROUP_NO_DIR;
    if (s.st_uid != geteuid()) return TW_GROUP_NOT_OURS;
    if ((s.st_mode & 077) != 0) return TW_GROUP_OPEN;
    return check_parent(dir);
}

int tw_group_open_dir(const char *path, tw_group_problem *problem) {
    struct stat s;
    if (lstat(path, &s) == 0 && S_ISLNK(s.st_mode)) { /* O_DIRECTORY | O_NOFOLLOW gives ENOTDIR of a link */
        *problem = TW_GROUP_LINK;
        return -1;
    }
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *problem = dir < 0 ? tw_file_problem() : check_dir(dir);
    if (*problem == TW_GROUP_FINE) return dir;
    if (dir >= 0) close(dir);
    return -1;
}

/* ---- whether the descriptor is still what it was ---- */

static bool is_dir_of(const tw_group *group, const struct stat *s) {
    return S_ISDIR(s->st_mode) && s->st_dev == (dev_t)group->dir_dev && s->st_ino == (ino_t)group->dir_ino;
}

tw_group_hold tw_group_holds(const tw_group *group, uint64_t *changed) {
    struct stat s;
    if (group->dir < 0 || fstat(group->dir, &s) != 0 || !is_dir_of(group, &s)) return TW_GROUP_LOST;
    if (changed != NULL) *changed = (uint64_t)s.st_mtim.tv_sec * TW_NS_PER_SECOND + (uint64_t)s.st_mtim.tv_nsec;
    return s.st_nlink == 0 ? TW_GROUP_REMOVED : TW_GROUP_HELD;
}

/* -1 where it is lost: what is called with it fails. */
static int dir_of(const tw_group *group) { return tw_group_holds(group, NULL) == TW_GROUP_LOST ? -1 : group->dir; }

bool tw_group_find_again(tw_group *group, const char *path) {
    tw_group_problem problem;
    struct stat s;
    const int dir = tw_group_open_dir(path, &problem);
    if (dir < 0) return false;
    const bool same = fstat(dir, &s) == 0 && is_dir_of(group, &s);
    if (same) group->dir = dir;
    else close(dir);
    return same;
}

/* ---- names ---- */

void tw_group_file(char *out, const tw_group_id *id) {
    snprintf(out, TW_GROUP_NAME, "%llu-%llu-%llu%s", (unsigned long long)id->pid, (unsigned long long)id->start_time,
             (unsigned long long)id->joined_ns, SEGMENT);
}

/* Reads digits, at most as many as 64 bits have, and what must follow them. NULL: it is not so. */
static const char *number_then(const char *at, const char *then, uint64_t *out) {
    const size_t digits = strspn(at, "0123456789"), len = strlen(then);
    if (digits == 0 || digits > 20 || strncmp(at + digits, then, len) != 0) return NULL;
    *out = strtoull(at, NULL, 10);
    return at + digits + len;
}

bool tw_group_id_of(const char *name, tw_group_id *out) {
    const char *at = number_then(name, "-", &out->pid);
    if (at != NULL) at = number_then(at, "-", &out->start_time);
    if (at != NULL) at = number_then(at, SEGMENT, &out->joined_ns);
    return at != NULL && *at == '\0';
}

bool tw_group_names(const char *name, uint64_t pid, uint64_t start_time) {
    tw_group_id id;
    return tw_group_id_of(name, &id) && id.pid == pid && id.start_time == start_time;
}

/* ---- joining ---- */

static tw_group_problem note_dir(tw_group *group) {
    struct stat s;
    if (fstat(group->dir, &s) != 0) return tw_file_problem();
    group->dir_dev = (uint64_t)s.st_dev;
    group->dir_ino = (uint64_t)s.st_ino;
    return TW_GROUP_FINE;
}

tw_group_problem tw_group_join(tw_group *group, const char *path) {
    tw_group_problem problem;
    memset(group, 0, sizeof *group);
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        group->dir = -1;
        return tw_file_problem();
    }
    group->dir = tw_group_open_dir(path, &problem);
    if (group->dir < 0) return problem;
    const uint64_t pid = (uint64_t)getpid();
    tw_group_file(group->name, &(tw_group_id){pid, tw_process_start_time(pid), tw_now_ns()});
    problem = note_dir(group);
    const int saved = errno;
    if (problem != TW_GROUP_FINE) tw_group_forget(group);
    errno = saved;
    return problem;
}

/* ---- memory that is shared ---- */

/* The lock lasts as long as the file is mapped: what is never accessed cannot be death. */
static bool take_hold(tw_group *group, int file) {
    struct stat s;
    if (group->hold != NULL) munmap(group->hold, 1);
    group->hold = NULL;
    if (fstat(file, &s) != 0) return false;
    group->segment_ino = (uint64_t)s.st_ino;
    if (!tw_member_lock(file)) return false;
    void *const at = mmap(NULL, 1, PROT_NONE, MAP_SHARED, file, 0);
    group->hold = at == MAP_FAILED ? NULL : at;
    return group->hold != NULL;
}

/* The segment gets the content first, through a mapping elsewhere: at no instant is the address without it. */
tw_group_problem tw_group_share(tw_group *group, tw_segment *segment) {
    int file;
    tw_group_problem problem =
        tw_shared_make(group->dir, group->name, segment, tw_segment_used(segment), segment->header.bytes, &group->shared, &file);
    if (problem != TW_GROUP_FINE) return problem;
    if (tw_shared_map(&group->shared, file, segment, true) != NULL) {
        group->segment = segment;
        tw_store_release(&segment->header.locked, take_hold(group, file));
    } else {
        problem = tw_file_problem();
        tw_shared_remove(group->dir, group->name);
    }
    close(file);
    return problem;
}

static bool is_its_file(const tw_group *group, int file) {
    struct stat s;
    return tw_file_check(file, &s) == TW_GROUP_FINE && (uint64_t)s.st_ino == group->segment_ino && s.st_nlink == 1;
}

static int open_own_file(const tw_group *group) {
    return openat(dir_of(group), group->name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* It was removed, or another was put in its place. */
static int name_again(tw_group *group) {
    const int dir = dir_of(group);
    if (unlinkat(dir, group->name, 0) != 0 && errno != ENOENT) return -1;
    const int file = tw_shared_name(dir, group->name, &group->shared);
    if (file >= 0) tw_store_release(&group->segment->header.locked, take_hold(group, file));
    return file;
}

static int own_file(tw_group *group) {
    if (group->segment == NULL || group->shared.id == 0 || tw_group_holds(group, NULL) != TW_GROUP_HELD) return -1;
    const int file = open_own_file(group);
    if (file >= 0 && is_its_file(group, file)) return file;
    if (file >= 0) close(file);
    return name_again(group);
}

bool tw_group_save(tw_group *group) {
    const int file = own_file(group);
    if (file < 0) return false;
    const bool done = tw_shared_save(file, &group->shared, group->segment, tw_segment_used(group->segment));
    close(file);
    return done;
}

/* ---- indexes ---- */

typedef struct placing {
    const tw_group *group;
    uint64_t role[TW_ROLE_WORDS];
    bool used[TW_GROUP_INDEXES + 1];
} placing;

static bool is_anothers(void *to, const char *name) { return strcmp(name, ((const placing *)to)->group->name) != 0; }

static bool lives(int dir, const char *name, const tw_segment *segment) {
    if (!tw_segment_is_elsewhere(&segment->header)) return tw_segment_lives(segment);
    return tw_member_end_in(dir, name) == TW_MEMBER_LIVES;
}

static bool note_index(void *to, const char *name, const void *bytes, size_t len, bool live) {
    placing *p = to;
    const tw_header *h = bytes;
    (void)live;
    if (!tw_segment_valid(bytes, len) || !tw_words_equal(h->role, p->role, TW_ROLE_WORDS)) return false;
    const uint64_t place = tw_load(&h->place);
    if (place >= 1 && place <= TW_GROUP_INDEXES && lives(p->group->dir, name, bytes)) p->used[place - 1] = true;
    return false;
}

static uint64_t smallest_free(const tw_group *group, const char *role) {
    placing p = {.group = group};
    uint64_t refused = 0, index = 0;
    tw_words_set(p.role, TW_ROLE_WORDS, role, strlen(role));
    (void)tw_group_each(group->dir, is_anothers, note_index, &p, &refused);
    while (p.used[index]) index++;
    return index;
}

/* The holder of the lock may be stopped: it is not waited for any longer. */
static tw_group_problem lock(int file, int tries) {
    const struct timespec turn = {0, LOCK_TURN_NS};
    while (flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return tw_file_problem();
        if (tries-- == 0) return TW_GROUP_BUSY;
        nanosleep(&turn, NULL);
    }
    return TW_GROUP_FINE;
}

tw_group_problem tw_group_place(tw_group *group, const char *role, bool patient) {
    if (strcmp(group->placed, role) == 0) return TW_GROUP_FINE;
    const int file = openat(dir_of(group), INDEX_LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file < 0) return tw_file_problem();
    tw_group_problem problem = lock(file, patient ? LOCK_TRIES : 0);
    /* An index that comes later would move to another name what counts until then. */
    if (patient && problem == TW_GROUP_BUSY) problem = TW_GROUP_FINE;
    if (problem == TW_GROUP_FINE) {
        const uint64_t index = smallest_free(group, role);
        tw_store(&group->segment->header.place, index < TW_GROUP_INDEXES ? index + 1 : 0);
        snprintf(group->placed, sizeof group->placed, "%s", role);
        flock(file, LOCK_UN); /* a fork child may have the descriptor, too */
    }
    close(file);
    return problem;
}

/* ---- memory of one's own again ---- */

static size_t bytes_of(const tw_group *group) { return group->shared.bytes; }

/* At no instant is the address without what it holds. */
static bool keep(const tw_group *group) {
    const size_t bytes = bytes_of(group);
    void *const copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, group->segment, tw_segment_used(group->segment));
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, group->segment) != MAP_FAILED) return true;
    munmap(copy, bytes);
    return false;
}

/* Where there is no memory for another copy: no process comes to use this one, since its file is a copy by now. */
static bool disown(tw_group *group) {
    const int file = own_file(group);
    if (file < 0) return false;
    const bool done = tw_shared_save(file, &group->shared, group->segment, tw_segment_used(group->segment)) &&
                      tw_shared_unname(file, &group->shared);
    close(file);
    return done;
}

static bool map_in_place(const tw_group *group, int flags, int file) {
    const int access = PROT_READ | PROT_WRITE;
    return mmap(group->segment, bytes_of(group), access, flags | MAP_FIXED, file, 0) != MAP_FAILED;
}

/* Where the system promises no memory: pages that are taken as they are written. */
static bool map_pages_taken_late(const tw_group *group) {
    /* Not by memfd_create(): glibc has it since 2.27 only. */
    const int file = (int)syscall(SYS_memfd_create, "tailwatch", MFD_CLOEXEC);
    const bool sized = file >= 0 && ftruncate(file, (off_t)bytes_of(group)) == 0;
    const bool done = sized && map_in_place(group, MAP_SHARED, file);
    if (file >= 0) close(file);
    return done;
}

static bool wipe(const tw_group *group) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    return map_in_place(group, flags, -1) || map_in_place(group, flags | MAP_NORESERVE, -1) || map_pages_taken_late(group);
}

int tw_group_unshare(tw_group *group, bool kept) {
    if (!(kept ? keep(group) || disown(group) : wipe(group))) return ENOMEM;
    if (group->hold != NULL) munmap(group->hold, 1);
    group->hold = NULL;
    group->segment = NULL;
    return 0;
}

/* ---- leaving ---- */

void tw_group_forget(tw_group *group) {
    const int dir = dir_of(group);
    if (dir >= 0) close(dir);
    if (group->hold != NULL) munmap(group->hold, 1);
    memset(group, 0, sizeof *group);
    group->dir = -1;
}

void tw_group_leave(tw_group *group) {
    if (group->shared.magic != 0) (void)tw_shared_remove(dir_of(group), group->name);
    tw_group_forget(group);
}

/* ---- reading all segments ---- */

static bool ends_in(const char *name, const char *suffix) {
    const size_t len = strlen(name), end = strlen(suffix);
    return len > end && len < TW_GROUP_NAME && strcmp(name + len - end, suffix) == 0;
}

static void visit_file(int dir, const char *name, tw_group_visit visit, void *to, uint64_t *refused) {
    void *bytes;
    size_t len;
    bool live;
    errno = 0;
    if (tw_shared_open(dir, name, &bytes, &len, &live) == TW_GROUP_FINE) {
        if (!visit(to, name, bytes, len, live)) munmap(bytes, len);
    } else if (errno != ENOENT) { /* else it is gone meanwhile: its process ended */
        *refused += 1;
    }
}

static tw_group_problem each(int dir, const char *suffix, tw_group_wanted wanted, tw_group_visit visit, void *to,
                             uint64_t *refused) {
    const int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL) {
        const tw_group_problem problem = tw_file_problem();
        if (again >= 0) close(again);
        return problem;
    }
    for (const struct dirent *entry; (entry = readdir(entries)) != NULL;)
        if (ends_in(entry->d_name, suffix) && (wanted == NULL || wanted(to, entry->d_name)))
            visit_file(dir, entry->d_name, visit, to, refused);
    closedir(entries);
    return TW_GROUP_FINE;
}

tw_group_problem tw_group_each(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused) {
    return each(dir, SEGMENT, wanted, visit, to, refused);
}

tw_group_problem tw_group_each_gone(int dir, tw_group_wanted wanted, tw_group_visit visit, void *to, uint64_t *refused) {
    return each(dir, GONE, wanted, visit, to, refused);
}
