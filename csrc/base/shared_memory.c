#include "tailwatch/base/shared_memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"

#define YOUNG_S 60 /* its file may be about to be made */
#define FORGOTTEN_S (24 * 3600)

/* Behind the memory, in the segment: by which tw_shared_remove_dead() finds it. */
typedef struct label {
    uint64_t magic, mount_namespace;
    char path[PATH_MAX - 2 * sizeof(uint64_t)]; /* of the file */
} label;

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static uint64_t namespace(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (uint64_t)s.st_ino : 0;
}

static uint64_t ipc_namespace(void) { return namespace("/proc/self/ns/ipc"); }

static uint64_t mount_namespace(void) { return namespace("/proc/self/ns/mnt"); }

/* ---- the segment ---- */

static int id_of(const tw_shared *shared) { return (int)(shared->id - 1); }

static bool is_own(int id, struct shmid_ds *s) { return shmctl(id, IPC_STAT, s) == 0 && s->shm_perm.uid == geteuid(); }

static bool is_segment_of(const tw_shared *shared) {
    struct shmid_ds s;
    if (shared->id == 0 || shared->id > INT_MAX || shared->ipc_namespace != ipc_namespace()) return false;
    return is_own(id_of(shared), &s) && (uint64_t)s.shm_ctime == shared->made_s && s.shm_segsz == shared->bytes + sizeof(label);
}

/* In a mapping's place: the thread sanitizer follows mmap() and not shmat(), and would take an address that is used again
 * for the same memory. -1: it cannot be. */
static void *map_segment(int id, size_t bytes, int flags) {
    void *const room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return (void *)-1;
    void *const at = shmat(id, room, flags | SHM_REMAP);
    if (at == (void *)-1) munmap(room, bytes);
    return at;
}

/* Without its label, which marks it as one of ours. */
static void *attach(const tw_shared *shared, bool to_write) {
    if (!is_segment_of(shared)) return NULL;
    char *const at = map_segment(id_of(shared), shared->bytes + sizeof(label), to_write ? 0 : SHM_RDONLY);
    if (at == (char *)-1) return NULL;
    const bool ours = tw_load_acquire(&((const label *)(const void *)(at + shared->bytes))->magic) == TW_SHARED_MAGIC;
    munmap(at + shared->bytes, sizeof(label));
    if (ours) return at;
    munmap(at, shared->bytes);
    return NULL;
}

static void put_label(label *to, int dir, const char *name) {
    char link[32], path[sizeof to->path] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    const ssize_t len = readlink(link, path, sizeof path - TW_GROUP_NAME - 1);
    const bool known = len > 0 && snprintf(path + len, sizeof path - (size_t)len, "/%s", name) > 0;
    if (known) memcpy(to->path, path, sizeof path);
    to->mount_namespace = known ? mount_namespace() : 0;
    tw_store_release(&to->magic, TW_SHARED_MAGIC);
}

static bool fill(int dir, const char *name, const void *content, size_t used, const tw_shared *shared) {
    char *const at = map_segment(id_of(shared), shared->bytes + sizeof(label), 0);
    if (at == (char *)-1) return false;
    put_label((void *)(at + shared->bytes), dir, name);
    if (used > 0) memcpy(at, content, used);
    munmap(at, shared->bytes + sizeof(label));
    return true;
}

/* Pages are taken as they are written: it can be as large as it may ever become. */
static bool make_segment(int dir, const char *name, const void *content, size_t used, tw_shared *shared) {
    struct shmid_ds s;
    const int id = shmget(IPC_PRIVATE, shared->bytes + sizeof(label), IPC_CREAT | IPC_EXCL | SHM_NORESERVE | 0600);
    if (id < 0) return false;
    shared->id = (uint64_t)id + 1;
    if (fill(dir, name, content, used, shared) && is_own(id, &s)) {
        shared->made_s = (uint64_t)s.shm_ctime;
        return true;
    }
    shmctl(id, IPC_RMID, NULL);
    shared->id = 0;
    return false;
}

/* ---- the file ---- */

static bool is_shared(const tw_shared *shared, off_t size) {
    return shared->magic == TW_SHARED_MAGIC && shared->bytes > 0 && shared->bytes < (uint64_t)size &&
           (uint64_t)size - shared->bytes == sizeof *shared;
}

static bool read_shared(int file, off_t size, tw_shared *out) {
    const off_t at = size - (off_t)sizeof *out;
    return at > 0 && pread(file, out, sizeof *out, at) == (ssize_t)sizeof *out && is_shared(out, size);
}

static bool write_whole(int file, const void *bytes, size_t len, off_t at) {
    while (len > 0) {
        const ssize_t n = pwrite(file, bytes, len, at);
        if (n <= 0) return false;
        bytes = (const char *)bytes + n, at += n, len -= (size_t)n;
    }
    return true;
}

static bool read_whole(int file, void *bytes, size_t len, off_t at) {
    while (len > 0) {
        const ssize_t n = pread(file, bytes, len, at);
        if (n <= 0) return false;
        bytes = (char *)bytes + n, at += n, len -= (size_t)n;
    }
    return true;
}

static bool write_shared(int file, const tw_shared *shared) {
    return write_whole(file, shared, sizeof *shared, (off_t)shared->bytes);
}

/* Its blocks are allocated before it is mapped, so that a full file system is an error here. */
static bool fill_file(int file, const void *content, size_t used, const tw_shared *shared) {
    const int failed = posix_fallocate(file, 0, (off_t)shared->bytes);
    if (failed != 0) errno = failed;
    const size_t first = sizeof(uint64_t), rest = used < first ? 0 : used - first;
    return failed == 0 && write_whole(file, (const char *)content + first, rest, (off_t)first) && write_shared(file, shared) &&
           (used < first || write_whole(file, content, first, 0));
}

/* Without a name until it is whole, where the file system can do that. */
static int begin_file(int dir, const char *name, bool *nameless) {
    const int file = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *nameless = file >= 0;
    return *nameless ? file : openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

static bool give_name(int file, int dir, const char *name) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) == 0;
}

static tw_group_problem make_file(int dir, const char *name, const void *content, size_t used, const tw_shared *shared,
                                  int *out) {
    bool nameless;
    const int file = begin_file(dir, name, &nameless);
    if (file < 0) return tw_file_problem();
    const bool whole = shared->id != 0 ? write_shared(file, shared) : fill_file(file, content, used, shared);
    if (whole && (!nameless || give_name(file, dir, name))) {
        *out = file;
        return TW_GROUP_FINE;
    }
    const tw_group_problem problem = tw_file_problem();
    const int saved = errno;
    close(file);
    if (!nameless) unlinkat(dir, name, 0);
    errno = saved;
    return problem;
}

int tw_shared_name(int dir, const char *name, const tw_shared *shared) {
    int file;
    return shared->id != 0 && make_file(dir, name, NULL, 0, shared, &file) == TW_GROUP_FINE ? file : -1;
}

tw_group_problem tw_shared_make(int dir, const char *name, const void *content, size_t used, size_t bytes,
                                tw_shared *out, int *file) {
    *out = (tw_shared){.magic = TW_SHARED_MAGIC, .bytes = whole_pages(bytes), .ipc_namespace = ipc_namespace()};
    if (!make_segment(dir, name, content, used, out) && !tw_file_fits(dir, out->bytes)) return TW_GROUP_FULL;
    const tw_group_problem problem = make_file(dir, name, content, used, out, file);
    const int saved = errno;
    if (problem != TW_GROUP_FINE && out->id != 0) shmctl(id_of(out), IPC_RMID, NULL);
    errno = saved;
    return problem;
}

void *tw_shared_map(const tw_shared *shared, int file, void *at, bool to_write) {
    const int access = to_write ? PROT_READ | PROT_WRITE : PROT_READ;
    if (shared->id == 0) {
        void *const mapped = mmap(at, shared->bytes, access, MAP_SHARED | (at != NULL ? MAP_FIXED : 0), file, 0);
        return mapped == MAP_FAILED ? NULL : mapped;
    }
    void *const found = attach(shared, to_write);
    if (found == NULL || at == NULL) return found;
    void *const moved = mremap(found, shared->bytes, shared->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at);
    if (moved == MAP_FAILED) munmap(found, shared->bytes);
    return moved == MAP_FAILED ? NULL : moved;
}

static bool is_zero(const char *bytes, size_t len) {
    for (size_t at = 0; at < len; at += sizeof(uint64_t))
        if (tw_load((const uint64_t *)(const void *)(bytes + at)) != 0) return false;
    return true;
}

/* Pages from there on that are all zero, or all not: their bytes. The memory is whole pages. */
static size_t alike(const char *memory, size_t from, size_t used, size_t page, bool zero) {
    size_t to = from + page;
    while (to < used && is_zero(memory + to, page) == zero) to += page;
    return (to < used ? to : used) - from;
}

/* What a file takes at most when it has been written sparsely, beyond what it takes. */
static size_t growth(int file, const char *memory, size_t used) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct stat s;
    size_t needed = 0;
    for (size_t at = 0; at < used; at += page) needed += is_zero(memory + at, page) ? 0 : page;
    const size_t taken = fstat(file, &s) == 0 ? (size_t)s.st_blocks * 512 : 0;
    return needed > taken ? needed - taken : 0;
}

/* Zeros become holes where the file system has them: most of what a process may count it never does. The first word is
 * left out. */
static bool write_sparsely(int file, const char *memory, size_t used) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0, len; at < used; at += len) {
        const bool zero = is_zero(memory + at, page);
        len = alike(memory, at, used, page, zero);
        if (zero && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)len) == 0) continue;
        const size_t skipped = at == 0 ? sizeof(uint64_t) : 0;
        if (!write_whole(file, memory + at + skipped, len - skipped, (off_t)(at + skipped))) return false;
    }
    return true;
}

bool tw_shared_save(int file, const tw_shared *shared, const void *memory, size_t used) {
    const size_t first = sizeof(uint64_t);
    if (shared->id == 0 || used <= first || used > shared->bytes) return false;
    if (ftruncate(file, (off_t)(shared->bytes + sizeof *shared)) != 0 || !write_shared(file, shared)) return false;
    return tw_file_fits(file, growth(file, memory, used)) && write_sparsely(file, memory, used) && write_whole(file, memory, first, 0);
}

bool tw_shared_unname(int file, const tw_shared *shared) {
    return ftruncate(file, (off_t)shared->bytes) == 0 && shmctl(id_of(shared), IPC_RMID, NULL) == 0;
}

/* ---- reading ---- */

/* Holes are not read: a sparse file takes no more memory here than it takes there. */
static bool read_extents(int file, char *to, off_t len) {
    off_t hole = 0;
    for (off_t data; (data = lseek(file, hole, SEEK_DATA)) >= 0 && data < len;) {
        hole = lseek(file, data, SEEK_HOLE);
        if (hole <= data) return false;
        if (!read_whole(file, to + data, (size_t)((hole < len ? hole : len) - data), data)) return false;
    }
    return true;
}

static tw_group_problem copy_file(int file, off_t size, void **out, size_t *bytes) {
    void *const to = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (to == MAP_FAILED) return tw_file_problem();
    *out = to;
    *bytes = (size_t)size;
    if (read_extents(file, to, size)) return TW_GROUP_FINE;
    munmap(to, (size_t)size);
    return TW_GROUP_FOREIGN;
}

/* The memory is not there, as the file was removed since it was opened: its copy is old, and no member's any more. */
static bool was_removed(int file) {
    struct stat s;
    return fstat(file, &s) == 0 && s.st_nlink == 0;
}

static tw_group_problem open_shared(int file, void **out, size_t *bytes, bool *live) {
    struct stat s;
    tw_shared shared;
    const tw_group_problem problem = tw_file_check(file, &s);
    if (problem != TW_GROUP_FINE) return problem;
    if (s.st_size <= 0) return TW_GROUP_FOREIGN;
    const bool named = read_shared(file, s.st_size, &shared);
    *out = named ? tw_shared_map(&shared, file, NULL, false) : NULL;
    *live = *out != NULL;
    if (*live) *bytes = shared.bytes;
    if (named && !*live && was_removed(file)) {
        errno = ENOENT;
        return TW_GROUP_SYSTEM;
    }
    return *live ? TW_GROUP_FINE : copy_file(file, named ? (off_t)shared.bytes : s.st_size, out, bytes);
}

static int open_to_read(int dir, const char *name) {
    return openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

tw_group_problem tw_shared_open(int dir, const char *name, void **out, size_t *bytes, bool *live) {
    const int file = open_to_read(dir, name);
    if (file < 0) return tw_file_problem();
    errno = 0;
    const tw_group_problem problem = open_shared(file, out, bytes, live);
    close(file);
    return problem;
}

/* ---- removing ---- */

/* The file may have no name any more. */
static void remove_segment_of(int file) {
    struct stat s;
    tw_shared shared;
    void *at;
    if (tw_file_check(file, &s) != TW_GROUP_FINE || !read_shared(file, s.st_size, &shared) || shared.id == 0) return;
    if ((at = attach(&shared, false)) == NULL) return;
    shmctl(id_of(&shared), IPC_RMID, NULL);
    munmap(at, shared.bytes);
}

static void remove_segment(int dir, const char *name) {
    const int file = open_to_read(dir, name);
    if (file < 0) return;
    remove_segment_of(file);
    close(file);
}

/* The name goes first: a process that finds it finds the memory too, or a file without a name (open_shared). */
bool tw_shared_remove(int dir, const char *name) {
    const int file = open_to_read(dir, name);
    const bool gone = unlinkat(dir, name, 0) == 0 || errno == ENOENT;
    if (gone && file >= 0) remove_segment_of(file);
    if (file >= 0) close(file);
    return gone;
}

void tw_shared_remove_all(int dir) {
    const int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL && again >= 0) close(again);
    for (const struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;)
        remove_segment(dir, entry->d_name);
    if (entries != NULL) closedir(entries);
}

/* The memory stays where the file has no room for it. */
static void settle(int file) {
    struct stat s;
    tw_shared shared;
    void *at;
    if (tw_file_check(file, &s) != TW_GROUP_FINE || !read_shared(file, s.st_size, &shared) || shared.id == 0) return;
    if ((at = attach(&shared, false)) == NULL) return;
    if (tw_shared_save(file, &shared, at, shared.bytes)) (void)tw_shared_unname(file, &shared);
    munmap(at, shared.bytes);
}

void tw_shared_settle(int dir, const char *name) {
    const int file = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return;
    settle(file);
    close(file);
}

static bool names(const char *path, int id) {
    struct stat s;
    tw_shared shared;
    const int file = open_to_read(AT_FDCWD, path);
    if (file < 0) return errno != ENOENT && errno != ENOTDIR;
    const bool damaged = fstat(file, &s) != 0 || !read_shared(file, s.st_size, &shared);
    close(file);
    return damaged || id_of(&shared) == id;
}

/* Under its own label, which has where its file was. */
static bool is_nobodys(int id) {
    struct shmid_ds s;
    const time_t now = time(NULL);
    if (!is_own(id, &s) || s.shm_nattch != 0 || s.shm_segsz <= sizeof(label) || s.shm_ctime + YOUNG_S > now) return false;
    char *const at = map_segment(id, s.shm_segsz, SHM_RDONLY);
    if (at == (char *)-1) return false;
    const label *l = (const void *)(at + s.shm_segsz - sizeof(label));
    const bool ours = tw_load_acquire(&l->magic) == TW_SHARED_MAGIC && l->path[sizeof l->path - 1] == '\0';
    const bool seen_here = ours && l->mount_namespace == mount_namespace() && l->path[0] == '/';
    const bool left = seen_here ? !names(l->path, id) : ours && s.shm_atime + FORGOTTEN_S < now && s.shm_dtime + FORGOTTEN_S < now;
    shmdt(at);
    return left;
}

uint32_t tw_shared_remove_dead(void) {
    struct shm_info info;
    struct shmid_ds s;
    uint32_t removed = 0;
    const int last = shmctl(0, SHM_INFO, (struct shmid_ds *)(void *)&info);
    for (int at = 0; at <= last; at++) {
        const int id = shmctl(at, SHM_STAT, &s);
        if (id >= 0 && s.shm_perm.uid == geteuid() && is_nobodys(id)) removed += shmctl(id, IPC_RMID, NULL) == 0;
    }
    return removed;
}
