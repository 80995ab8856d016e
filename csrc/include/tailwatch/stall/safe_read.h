/* Memory that may not be there any more, read without a fault: of other threads' frames while these run.
 *
 * The address is given to write(), which answers EFAULT where a load would fault; its file is memory of our own. The
 * faster process_vm_readv() is used only where the process has no seccomp filter: one may answer it by killing the
 * process.
 *
 * Thread rule: one thread a reader.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

typedef struct tw_reader {
    int file;        /* of memory; -1: process_vm_readv() */
    int process;     /* which one this is */
} tw_reader;

/* false: none of the ways works here; errno is set. */
bool tw_reader_open(tw_reader *r);

void tw_reader_close(tw_reader *r);

/* Copies size bytes, at most 4096, from an address of this process. false: not all of them are there. 0.5 to 2 us. */
bool tw_read(const tw_reader *r, uintptr_t from, void *to, size_t size);

#define TW_PIECES 32
typedef struct tw_piece {
    uintptr_t from;
    size_t size;
} tw_piece;

/* The same of several places, one behind the other, by one system call: what other threads do meanwhile is seen at next
 * to one instant. n: at most TW_PIECES; their sizes sum to at most 4096. */
bool tw_read_all(const tw_reader *r, const tw_piece *pieces, size_t n, void *to);

TW_END_C
