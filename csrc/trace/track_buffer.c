/* The bytes of a timeline on their way out. */
#include "trace/track_parts.h"

#include <errno.h>
#include <unistd.h>

#include "base/tw_malloc.h"

void tw_timeline_fail(tw_timeline *t, int error) {
    if (t->error == 0) t->error = error;
}

void tw_timeline_flush(tw_timeline *t) {
    const size_t len = (size_t)(t->at - t->bytes);
    if (len != 0 && t->error == 0 && !t->write(t->to, t->bytes, len))
        tw_timeline_fail(t, t->fd >= 0 && errno != 0 ? errno : EIO);
    t->written += len;
    t->at = t->bytes;
}

uint8_t *tw_timeline_room(tw_timeline *t, size_t bytes) {
    if (__builtin_expect((size_t)(t->end - t->at) >= bytes, 1)) return t->error == 0 ? t->at : NULL;
    tw_timeline_flush(t);
    if (t->error != 0) return NULL;
    if ((size_t)(t->end - t->bytes) < bytes) {
        uint8_t *larger = tw_realloc(t->bytes, bytes);
        if (larger == NULL) return tw_timeline_fail(t, ENOMEM), NULL;
        t->bytes = t->at = larger;
        t->end = larger + bytes;
    }
    return t->at;
}

bool tw_timeline_write_fd(void *to, const void *bytes, size_t len) {
    const int fd = ((tw_timeline *)to)->fd;
    const char *at = bytes;
    while (len > 0) {
        const ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

uint64_t tw_timeline_bytes(const tw_timeline *t) { return t->written + (uint64_t)(t->at - t->bytes); }
