#include "tailwatch/group/member_lock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tailwatch/base/atomic.h"
#include "tailwatch/base/process.h"
#include "tailwatch/base/shared_memory.h"

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
    void *bytes;
    size_t len;
    bool live;
    if (tw_shared_open(dir, name, &bytes, &len, &live) != TW_GROUP_FINE) return TW_MEMBER_LIVES;
    const tw_header *h = bytes;
    const bool known = len >= sizeof *h && tw_load_acquire(&h->magic) == TW_SEGMENT_MAGIC && h->version == TW_SEGMENT_VERSION;
    const int file = known ? openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC) : -1;
    const tw_member_end end = file >= 0 ? tw_member_end_of(h, file) : TW_MEMBER_LIVES;
    if (file >= 0) close(file);
    munmap(bytes, len);
    return end;
}
