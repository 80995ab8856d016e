#include "tailwatch/base/shared_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

const char *tw_group_problem_text(tw_group_problem problem) {
    static const char *const texts[TW_GROUP_PROBLEMS] = {
        [TW_GROUP_FINE] = "nothing",
        [TW_GROUP_SYSTEM] = "the system refused",
        [TW_GROUP_NOT_OURS] = "it belongs to another user",
        [TW_GROUP_LINK] = "it is a symbolic link, or a file in it has a second name",
        [TW_GROUP_OPEN] = "others may write to it, or could put another in its place",
        [TW_GROUP_NO_DIR] = "it is no directory",
        [TW_GROUP_FOREIGN] = "it is of another version of tailwatch, or from before a reboot",
        [TW_GROUP_FULL] = "it has no room",
        [TW_GROUP_BUSY] = "another process is joining",
    };
    return (unsigned)problem < TW_GROUP_PROBLEMS ? texts[problem] : "unknown";
}

tw_group_problem tw_file_problem(void) {
    switch (errno) {
    case ELOOP: case EMLINK: return TW_GROUP_LINK;
    case ENOTDIR: return TW_GROUP_NO_DIR;
    case ENOSPC: case EDQUOT: case EFBIG: return TW_GROUP_FULL;
    default: return TW_GROUP_SYSTEM;
    }
}

tw_group_problem tw_file_check(int file, struct stat *s) {
    if (fstat(file, s) != 0) return tw_file_problem();
    if (!S_ISREG(s->st_mode)) return TW_GROUP_FOREIGN;
    if (s->st_nlink > 1) return TW_GROUP_LINK; /* 0: it was replaced or removed since it was opened, and holds what it held */
    if (s->st_uid != geteuid()) return TW_GROUP_NOT_OURS;
    return (s->st_mode & 077) != 0 ? TW_GROUP_OPEN : TW_GROUP_FINE;
}

static bool write_whole(int file, const void *bytes, size_t len) {
    while (len > 0) {
        const ssize_t n = write(file, bytes, len);
        if (n <= 0) return false;
        bytes = (const char *)bytes + n, len -= (size_t)n;
    }
    return true;
}

tw_group_problem tw_file_write(int dir, const char *name, const void *first, size_t first_len, const void *second,
                               size_t second_len) {
    const int file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) return tw_file_problem();
    const bool done = write_whole(file, first, first_len) && write_whole(file, second, second_len);
    const tw_group_problem problem = done ? TW_GROUP_FINE : tw_file_problem();
    close(file);
    if (!done) unlinkat(dir, name, 0);
    return problem;
}

/* A full file system would keep what the dead left there for ever: merging them takes room, and gives back more. */
bool tw_file_fits(int dir, size_t bytes) {
    struct statvfs s;
    if (fstatvfs(dir, &s) != 0 || s.f_blocks == 0) return true; /* no limit, or an unknown one */
    return (uint64_t)s.f_bavail * s.f_frsize >= bytes + TW_GROUP_ROOM;
}
