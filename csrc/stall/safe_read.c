#include "tailwatch/stall/safe_read.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4096
#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1u
#endif

/* Whether no filter of system calls is installed, as the kernel reports; a file that cannot be read means one is. */
static bool is_unfiltered(void) {
    char text[4096];
    const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    const char *line = strstr(text, "\nSeccomp:");
    return line != NULL && strncmp(line + 9, "\t0\n", 3) == 0;
}

static bool works(const tw_reader *r) {
    const uint64_t known = UINT64_C(0x7461696c77617463);
    uint64_t found = 0;
    return tw_read(r, (uintptr_t)&known, &found, sizeof found) && found == known;
}

bool tw_reader_open(tw_reader *r) {
    r->process = getpid();
    r->file = -1;
    if (is_unfiltered() && works(r)) return true;
    r->file = (int)syscall(SYS_memfd_create, "tailwatch", MFD_CLOEXEC); /* memfd_create() is of glibc 2.27 */
    if (r->file >= 0 && works(r)) return true;
    tw_reader_close(r);
    return false;
}

void tw_reader_close(tw_reader *r) {
    if (r->file >= 0) close(r->file);
    r->file = -1;
}

bool tw_read_all(const tw_reader *r, const tw_piece *pieces, size_t n, void *to) {
    struct iovec there[TW_PIECES];
    size_t size = 0;
    for (size_t i = 0; i < n && i < TW_PIECES; i++) {
        if (pieces[i].from == 0) return false;
        there[i] = (struct iovec){(void *)pieces[i].from, pieces[i].size};
        size += pieces[i].size;
    }
    if (n > TW_PIECES || size > MOST) return false;
    const struct iovec here = {to, size};
    if (r->file < 0) return process_vm_readv(r->process, &here, 1, there, n, 0) == (ssize_t)size;
    return pwritev(r->file, there, (int)n, 0) == (ssize_t)size && pread(r->file, to, size, 0) == (ssize_t)size;
}

bool tw_read(const tw_reader *r, uintptr_t from, void *to, size_t size) {
    const tw_piece piece = {from, size};
    return tw_read_all(r, &piece, 1, to);
}
