#include "tailwatch/group/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/base/process.h"
#include "tailwatch/group/member_lock.h"

static const char PAGE[] = "page";
static const char SEGMENT[] = ".seg";
static const char GONE[] = ".gone";

#define LOCK_TRIES 10
#define LOCK_TURN_NS 2000000
#define JOINED_LONG_AGO_NS (60 * TW_NS_PER_SECOND)

/* ---- the directory ---- */

static bool writable_by_others(const struct stat *s) { return (s->st_mode & (S_IWGRP | S_IWOTH)) != 0; }

/* Who may rename entries of the parent could put another directory in this one's place; a sticky one lets owners only. */
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
    if (lstat(path, &s) == 0 && S_ISLNK(s.st_mode)) { /* O_DIRECTORY | O_NOFOLLOW says ENOTDIR of a link */
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

/* ---- the page ---- */

static bool page_is_ours(const tw_group_page *page, size_t bytes) {
    uint64_t boot[2];
    tw_boot_id(boot);
    return bytes == sizeof *page && tw_load_acquire(&page->magic) == TW_GROUP_MAGIC &&
           tw_load(&page->version) == TW_GROUP_VERSION && tw_load(&page->bytes) == bytes &&
           tw_load(&page->boot_id[0]) == boot[0] && tw_load(&page->boot_id[1]) == boot[1];
}

static void begin_page(tw_group_page *page) {
    tw_boot_id(page->boot_id);
    page->version = TW_GROUP_VERSION;
    page->bytes = sizeof *page;
    tw_store_release(&page->magic, TW_GROUP_MAGIC);
}

/* Its maker died before it had said that it is whole: nobody has ever used it. Under the lock. */
static bool page_is_half_made(int dir) {
    struct stat s;
    uint64_t magic = 0;
    const int file = openat(dir, PAGE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool trusted = file >= 0 && tw_file_check(file, &s) == TW_GROUP_FINE;
    const bool empty = trusted && pread(file, &magic, sizeof magic, 0) >= 0 && magic == 0;
    if (file >= 0) close(file);
    return empty;
}

/* Under the lock: whoever comes first makes it, whole, before anybody else sees it. */
static tw_group_problem open_page(tw_group *group) {
    void *page = NULL;
    size_t bytes = 0;
    if (page_is_half_made(group->dir)) unlinkat(group->dir, PAGE, 0);
    tw_group_problem problem = tw_file_open(group->dir, PAGE, true, &page, &bytes);
    if (problem == TW_GROUP_SYSTEM && errno == ENOENT) {
        problem = tw_file_make(group->dir, PAGE, bytes = sizeof *group->page, &page);
        if (problem == TW_GROUP_FINE) begin_page(page);
    }
    if (problem != TW_GROUP_FINE) return problem;
    if (page_is_ours(page, bytes)) {
        group->page = page;
        return TW_GROUP_FINE;
    }
    munmap(page, bytes);
    return TW_GROUP_FOREIGN;
}

void tw_group_file(char *out, const tw_group_line *line) {
    const unsigned long long pid = tw_load(&line->pid), start_time = tw_load(&line->start_time);
    snprintf(out, TW_GROUP_NAME, "%llu-%llu-%llu%s", pid, start_time, (unsigned long long)tw_load(&line->joined_ns), SEGMENT);
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

static bool has_segment(int dir, const tw_group_line *line) {
    char name[TW_GROUP_NAME];
    tw_group_file(name, line);
    return faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static bool is_here(const tw_group_line *line) {
    const uint64_t theirs = tw_load(&line->pid_namespace);
    return theirs != 0 && theirs == tw_process_namespace();
}

/* Its pid says nothing here, but the lock of its file does. Whoever takes a line makes its file at once, so that one
 * without a file has been folded. */
static bool has_ended_elsewhere(int dir, const tw_group_line *line) {
    char name[TW_GROUP_NAME];
    tw_group_file(name, line);
    if (has_segment(dir, line)) return tw_member_end_in(dir, name) != TW_MEMBER_LIVES;
    return tw_load(&line->joined_ns) + JOINED_LONG_AGO_NS < tw_now_ns();
}

/* What this process was before an exec() does not come back; its file stays, as that of the dead does. */
static bool was_ours(const tw_group_line *line) {
    const uint64_t self = (uint64_t)getpid();
    return is_here(line) && tw_load(&line->pid) == self && tw_load(&line->start_time) == tw_process_start_time(self) &&
           tw_load(&line->image) != tw_process_image();
}

/* A dead process's line stays its own until what it measured has been merged and its file removed. */
static bool is_free(int dir, const tw_group_line *line) {
    const uint64_t pid = tw_load(&line->pid);
    if (pid == 0 || was_ours(line)) return true;
    if (has_segment(dir, line)) return false;
    return is_here(line) ? !tw_process_lives(pid, tw_load(&line->start_time)) : has_ended_elsewhere(dir, line);
}

static void take(tw_group *group, uint32_t at, uint64_t engine) {
    tw_group_line *line = &group->page->line[at];
    tw_store(&line->stop_ns, 0);
    tw_store(&line->engine, engine);
    tw_store(&line->joined_ns, tw_now_ns());
    tw_store(&line->image, tw_process_image());
    tw_store(&line->place, 0);
    tw_store(&line->pid_namespace, tw_process_namespace());
    tw_store(&line->start_time, tw_process_start_time((uint64_t)getpid()));
    tw_store_release(&line->pid, (uint64_t)getpid());
    if (at >= tw_load(&group->page->lines)) tw_store_release(&group->page->lines, at + 1);
    group->at = at;
}

static tw_group_problem take_line(tw_group *group, uint64_t engine) {
    for (uint32_t at = 0; at < TW_GROUP_LINES; at++) {
        if (!is_free(group->dir, &group->page->line[at])) continue;
        take(group, at, engine);
        return TW_GROUP_FINE;
    }
    return TW_GROUP_FULL;
}

/* ---- members ---- */

/* Who holds the lock may be stopped: it is not waited for. */
static tw_group_problem lock(int dir) {
    const struct timespec turn = {0, LOCK_TURN_NS};
    for (int tries = 0; flock(dir, LOCK_EX | LOCK_NB) != 0; tries++) {
        if (errno != EWOULDBLOCK && errno != EINTR) return tw_file_problem();
        if (tries == LOCK_TRIES) return TW_GROUP_BUSY;
        nanosleep(&turn, NULL);
    }
    return TW_GROUP_FINE;
}

static tw_group_problem join_locked(tw_group *group, uint64_t engine) {
    tw_group_problem problem = lock(group->dir);
    if (problem != TW_GROUP_FINE) return problem;
    problem = open_page(group);
    if (problem == TW_GROUP_FINE) problem = take_line(group, engine);
    const int saved = errno;
    flock(group->dir, LOCK_UN);
    errno = saved;
    return problem;
}

/* ---- indexes ---- */

#define PLACES 256 /* more than there are lines */

/* Upper bits: of the role. Lower: 1 + the index. Roles that look alike here only leave an index out. */
static uint64_t place_of(const char *role, uint32_t index) {
    return tw_text_hash(role, strlen(role)) << 16 | (index + 1);
}

static bool is_of_role(uint64_t place, const char *role) {
    const uint64_t number = place & UINT16_MAX;
    return number >= 1 && number <= PLACES && place >> 16 == place_of(role, 0) >> 16;
}

static bool may_live(int dir, const tw_group_line *line) {
    const uint64_t pid = tw_load_acquire(&line->pid);
    if (pid == 0) return false;
    return is_here(line) ? tw_process_lives(pid, tw_load(&line->start_time)) : !has_ended_elsewhere(dir, line);
}

static uint32_t smallest_free(const tw_group *group, const char *role) {
    bool used[PLACES + 1] = {false};
    for (uint32_t at = 0; at < tw_group_lines(group); at++) {
        const tw_group_line *line = &group->page->line[at];
        const uint64_t place = tw_load(&line->place);
        if (at != group->at && is_of_role(place, role) && may_live(group->dir, line)) used[(place & UINT16_MAX) - 1] = true;
    }
    uint32_t index = 0;
    while (used[index]) index++;
    return index;
}

tw_group_problem tw_group_place(tw_group *group, const char *role, bool patient, uint32_t *index) {
    tw_group_line *line = &group->page->line[group->at];
    if (!is_of_role(tw_load(&line->place), role)) {
        const int dir = dir_of(group);
        const tw_group_problem problem = patient ? lock(dir) : flock(dir, LOCK_EX | LOCK_NB) == 0 ? TW_GROUP_FINE : TW_GROUP_BUSY;
        if (problem != TW_GROUP_FINE) return problem;
        tw_store(&line->place, place_of(role, smallest_free(group, role)));
        flock(dir, LOCK_UN);
    }
    *index = (uint32_t)(tw_load(&line->place) & UINT16_MAX) - 1;
    return TW_GROUP_FINE;
}

static tw_group_problem note_dir(tw_group *group) {
    struct stat s;
    if (fstat(group->dir, &s) != 0) return tw_file_problem();
    group->dir_dev = (uint64_t)s.st_dev;
    group->dir_ino = (uint64_t)s.st_ino;
    return TW_GROUP_FINE;
}

tw_group_problem tw_group_join(tw_group *group, const char *path, uint64_t engine) {
    tw_group_problem problem;
    memset(group, 0, sizeof *group);
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        group->dir = -1;
        return tw_file_problem();
    }
    group->dir = tw_group_open_dir(path, &problem);
    if (group->dir < 0) return problem;
    problem = note_dir(group);
    if (problem == TW_GROUP_FINE) problem = join_locked(group, engine);
    const int saved = errno;
    if (problem != TW_GROUP_FINE) tw_group_forget(group);
    errno = saved;
    return problem;
}

/* The memory becomes the file, which is locked from then on, as long as it is mapped. */
static tw_group_problem map_over(int file, void *memory, size_t bytes, tw_group *group) {
    struct stat s;
    const tw_group_problem problem = tw_file_check(file, &s);
    if (problem != TW_GROUP_FINE) return problem;
    if ((size_t)s.st_size != bytes) return TW_GROUP_FOREIGN;
    group->segment_ino = (uint64_t)s.st_ino;
    group->locked = tw_member_lock(file);
    const void *at = mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    return at == MAP_FAILED ? tw_file_problem() : TW_GROUP_FINE;
}

/* The first word, without which no file is read, comes last: who dies before it has made none. */
static void copy_first_word_last(void *to, const void *from, size_t bytes) {
    memcpy((uint64_t *)to + 1, (const uint64_t *)from + 1, bytes - sizeof(uint64_t));
    tw_store_release((uint64_t *)to, *(const uint64_t *)from);
}

/* The file gets the content first, through a mapping elsewhere: at no instant is the address without it. */
static tw_group_problem move_into_file(tw_group *group, void *memory, size_t bytes) {
    void *copy;
    const int dir = group->dir;
    const char *name = group->name;
    tw_group_problem problem = tw_file_make(dir, name, bytes, &copy);
    if (problem != TW_GROUP_FINE) return problem;
    copy_first_word_last(copy, memory, bytes);
    munmap(copy, bytes);
    const int file = openat(dir, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    problem = file < 0 ? tw_file_problem() : map_over(file, memory, bytes, group);
    if (file >= 0) close(file);
    if (problem != TW_GROUP_FINE) unlinkat(dir, name, 0);
    return problem;
}

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

tw_group_problem tw_group_share(tw_group *group, void *memory, size_t bytes) {
    bytes = whole_pages(bytes);
    tw_group_file(group->name, &group->page->line[group->at]);
    if (!tw_file_fits(group->dir, bytes)) return TW_GROUP_FULL;
    const tw_group_problem problem = move_into_file(group, memory, bytes);
    if (problem != TW_GROUP_FINE) return problem;
    group->segment = memory;
    group->segment_bytes = bytes;
    return TW_GROUP_FINE;
}

/* A file that is longer already was lengthened by a call whose mapping failed. */
static bool is_its_file(const tw_group *group, int file) {
    struct stat s;
    return tw_file_check(file, &s) == TW_GROUP_FINE && (uint64_t)s.st_ino == group->segment_ino &&
           (size_t)s.st_size >= group->segment_bytes;
}

static tw_group_problem append(const tw_group *group, int file, size_t more) {
    const off_t end = (off_t)group->segment_bytes;
    if (!is_its_file(group, file)) return TW_GROUP_FOREIGN;
    const int failed = posix_fallocate(file, end, (off_t)more);
    if (failed != 0) {
        errno = failed;
        return tw_file_problem();
    }
    void *const at = (char *)group->segment + group->segment_bytes;
    const void *mapped = mmap(at, more, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, end);
    return mapped == MAP_FAILED ? tw_file_problem() : TW_GROUP_FINE;
}

static int open_own_file(const tw_group *group) {
    return openat(dir_of(group), group->name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

tw_group_problem tw_group_grow(tw_group *group, size_t bytes) {
    bytes = whole_pages(bytes);
    if (bytes <= group->segment_bytes) return TW_GROUP_FINE;
    const int file = open_own_file(group);
    if (file < 0) return tw_file_problem();
    if (!tw_file_fits(file, bytes - group->segment_bytes)) {
        close(file);
        return TW_GROUP_FULL;
    }
    const tw_group_problem problem = append(group, file, bytes - group->segment_bytes);
    close(file);
    if (problem == TW_GROUP_FINE) group->segment_bytes = bytes;
    return problem;
}

/* ---- memory of one's own again ---- */

static bool map_in_place(const tw_group *group, int flags, int file) {
    const int access = PROT_READ | PROT_WRITE;
    return mmap(group->segment, group->segment_bytes, access, flags | MAP_FIXED, file, 0) != MAP_FAILED;
}

/* The same pages of the file, each of which becomes the process's own with its first write: needs no memory now. */
static bool map_file_in_place(const tw_group *group) {
    const int file = open_own_file(group);
    if (file < 0) return false;
    const bool done = is_its_file(group, file) && map_in_place(group, MAP_PRIVATE, file);
    close(file);
    return done;
}

static bool keep_by_copy(const tw_group *group) {
    void *copy = mmap(NULL, group->segment_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, group->segment, group->segment_bytes);
    const bool done = map_in_place(group, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (done) memcpy(group->segment, copy, group->segment_bytes);
    munmap(copy, group->segment_bytes);
    return done;
}

/* Where the system promises no memory: pages that are taken as they are written. */
static bool map_pages_taken_late(const tw_group *group) {
    const int file = memfd_create("tailwatch", MFD_CLOEXEC);
    const bool sized = file >= 0 && ftruncate(file, (off_t)group->segment_bytes) == 0;
    const bool done = sized && map_in_place(group, MAP_SHARED, file);
    if (file >= 0) close(file);
    return done;
}

static bool wipe(const tw_group *group) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (map_in_place(group, flags, -1) || map_in_place(group, flags | MAP_NORESERVE, -1)) return true;
    if (map_file_in_place(group)) memset(group->segment, 0, group->segment_bytes);
    else return map_pages_taken_late(group);
    return true;
}

int tw_group_unshare(tw_group *group, bool kept) {
    return (kept ? map_file_in_place(group) || keep_by_copy(group) : wipe(group)) ? 0 : ENOMEM;
}

/* ---- leaving ---- */

void tw_group_forget(tw_group *group) {
    const int dir = dir_of(group);
    if (dir >= 0) close(dir);
    if (group->page != NULL) munmap(group->page, sizeof *group->page);
    memset(group, 0, sizeof *group);
    group->dir = -1;
}

void tw_group_leave(tw_group *group) {
    if (group->page != NULL && group->segment != NULL) unlinkat(dir_of(group), group->name, 0);
    tw_group_part(group);
}

void tw_group_part(tw_group *group) {
    if (group->page == NULL) return;
    tw_group_publish(group, 0);
    tw_store_release(&group->page->line[group->at].pid, 0);
    tw_group_forget(group);
}

/* ---- reading all segments ---- */

uint32_t tw_group_lines(const tw_group *group) {
    const uint64_t said = tw_load_acquire(&group->page->lines);
    return said < TW_GROUP_LINES ? (uint32_t)said : TW_GROUP_LINES;
}

static bool ends_in(const char *name, const char *suffix) {
    const size_t len = strlen(name), end = strlen(suffix);
    return len > end && len < TW_GROUP_NAME && strcmp(name + len - end, suffix) == 0;
}

static void visit_file(int dir, const char *name, tw_group_visit visit, void *to, uint64_t *refused) {
    void *bytes;
    size_t len;
    errno = 0;
    if (tw_file_open(dir, name, false, &bytes, &len) == TW_GROUP_FINE) {
        if (!visit(to, name, bytes, len)) munmap(bytes, len);
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
