#include "tailwatch/group/member_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/process.h"
#include "tailwatch/base/shared_file.h"

static struct flock whole_file(void) { return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET}; }

bool tw_member_lock(int file) {
    struct flock lock = whole_file();
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

/* What cannot be asked may be locked. */
static bool may_be_locked(int file) {
    struct flock lock = whole_file();
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

tw_member_end tw_member_end_of(const tw_header *h, int file) {
    if (tw_load_acquire(&h->ended) != 0) return TW_MEMBER_ENDED;
    if (!tw_segment_is_elsewhere(h))
        return tw_process_ended(tw_load(&h->pid), tw_load(&h->start_time)) ? TW_MEMBER_ENDED : TW_MEMBER_LIVES;
    return tw_load_acquire(&h->locked) == 0 || may_be_locked(file) ? TW_MEMBER_LIVES : TW_MEMBER_ENDED_ELSEWHERE;
}

tw_member_end tw_member_end_in(int dir, const char *name) {
    struct stat s;
    tw_header h;
    const int file = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return TW_MEMBER_LIVES;
    tw_member_end end = TW_MEMBER_LIVES;
    if (tw_file_check(file, &s) == TW_GROUP_FINE) {
        const bool whole = pread(file, &h, sizeof h, 0) == (ssize_t)sizeof h;
        const bool known = whole && h.magic == TW_SEGMENT_MAGIC && h.version == TW_SEGMENT_VERSION;
        if (known) end = tw_member_end_of(&h, file);
    }
    close(file);
    return end;
}
