/* Giving large files back without delaying other work.
 *
 * The last close of a file in memory frees all of it inside the kernel, 0.15 ms a MiB, and keeps its core for a whole time
 * slice against a thread that wakes on it (see yield.h). A thread of the lowest priority is made way for at once.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stddef.h>

TW_BEGIN_C

/* Closes a descriptor in a thread of the lowest priority, and waits for it; here, where no thread can be had. Cold path,
 * never with the GIL. */
void tw_close_aside(int fd);

/* munmap() in pieces of a MiB, offering the core between them: the lock on the address space is held for each only. */
void tw_unmap_aside(void *memory, size_t bytes);

TW_END_C
