/* Names of functions and requests that records refer to by number: text, written once, never changed or moved.
 *
 * A name is "function  file.py:line" with an optional "  <- caller" and "  [system call]", or a request's id. Number 0
 * is no name. When three quarters are taken, places in the code that are new lose line, caller and system call, as there
 * are fewer functions. When the table is full, new names become number 1, "other", and are counted.
 *
 * Thread rule: any thread may add, with or without the GIL: no lock, no allocation; two threads that add the same name
 * at the same time may get two numbers. Any process may read.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stddef.h>
#include <stdint.h>

TW_BEGIN_C

#define TW_NAME_ENTRIES 512
#define TW_NAME_WHOLE (TW_NAME_ENTRIES / 4 * 3) /* so many names are kept as they are */
#define TW_NAME_TEXT 120 /* bytes, UTF-8, cut at a character, NUL-terminated */

typedef struct tw_name_entry {
    uint64_t hash;       /* 0: not in use; 1: being written; release-stored after the text */
    uint64_t text[TW_NAME_TEXT / 8];
} tw_name_entry;

typedef struct tw_name_table {
    uint64_t claimed;    /* entries taken */
    uint64_t overflow;   /* names that found no room */
    tw_name_entry entry[TW_NAME_ENTRIES]; /* entry i holds number i, at a place by its hash; 0 and 1 are not written */
} tw_name_table;

/* The number of a name, added if new; 0 for "". Cut at a character; what is no UTF-8 or a control character becomes '?'.
 * About 0.1 us, for a new one 0.2 us; a full table is searched whole, twice, 1 us each. */
uint32_t tw_name_intern(tw_name_table *t, const char *text, size_t len);

/* The same, as it is, however many are taken: of a table that is read once and dropped. */
uint32_t tw_name_intern_whole(tw_name_table *t, const char *text, size_t len);

/* Puts a name of one table under its number into another, whose names all come from that one. One writer. */
void tw_name_share(tw_name_table *to, const tw_name_table *from, uint32_t number);

/* Copies a name, at most size bytes with its NUL. "" for 0, "other" for 1 and for what is not there. */
void tw_name_copy(const tw_name_table *t, uint32_t number, char *to, size_t size);

TW_END_C
