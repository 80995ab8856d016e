#include "tailwatch/base/deferred_free.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tw_test.h"

TW_TEST(a_descriptor_is_closed_when_it_returns) {
    const int fd = (int)syscall(SYS_memfd_create, "aside", 0);
    TW_CHECK(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
    tw_close_aside(fd);
    TW_CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
}

/* All of it, whatever is left for the last piece; what stands beside it stays. */
TW_TEST(a_mapping_is_gone_and_its_neighbour_is_not) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (3 << 20) + page;
    char *memory = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TW_CHECK(memory != MAP_FAILED);
    memory[bytes] = 7;
    tw_unmap_aside(memory, bytes);
    unsigned char in_core;
    TW_CHECK(mincore(memory, page, &in_core) == -1 && errno == ENOMEM);
    TW_CHECK(mincore(memory + bytes - page, page, &in_core) == -1 && errno == ENOMEM);
    TW_CHECK_EQ(7, memory[bytes]);
    munmap(memory + bytes, page);
}
