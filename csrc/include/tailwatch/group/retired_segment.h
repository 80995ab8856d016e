/* What dead processes of one name measured, summed: a segment without a process, and after it a list of those it holds.
 *
 * To a reader it is one more segment: valid, of no pid, nothing in flight, nothing that stands still, no pauses one by
 * one. Counts and sums are exact. The list has which files it holds: while one of them still stands, it must not be
 * counted beside it.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/segment.h"
#include "tailwatch/group/group.h"

TW_BEGIN_C

#define TW_RETIRED_MAGIC UINT64_C(0x314d4f5457544721) /* "!GTWTOM1" */
#define TW_RETIRED_NAMES 256
#define TW_RETIRED_SETS 256 /* label sets, of all that it holds together; more become ("other", "other") */

/* Behind the segment, at its header.bytes; the file ends with it. */
typedef struct tw_retired_list {
    uint64_t magic;
    uint64_t count;                       /* segments ever merged in; the last TW_RETIRED_NAMES of them are listed */
    tw_group_id file[TW_RETIRED_NAMES]; /* number n, from 0, at n % TW_RETIRED_NAMES */
} tw_retired_list;

/* Name of the retired segment of a role and an index (from 0), also of a role that is no file name. out: TW_GROUP_NAME bytes. */
void tw_retired_name(char *out, const uint64_t role[TW_ROLE_WORDS], uint64_t index);

/* Index of the process whose segment it is; 0 where it was given none. */
uint64_t tw_retired_index(const tw_segment *g);

/* The list of a retired segment of so many bytes, in a file of that name; NULL: it is none. */
const tw_retired_list *tw_retired_of(const void *bytes, size_t len, const char *name);

/* Whether that file was merged into it, as far as it remembers. */
bool tw_retired_holds(const tw_retired_list *list, const tw_group_id *file);

/* A retired segment in the making, in private memory: of a role and an index, empty. served: with a tw_served for each label
 * set, which is kept if it is asked for. NULL: no memory. */
tw_segment *tw_retired_begin(const uint64_t role[TW_ROLE_WORDS], uint64_t place, bool served);

/* Adds all that a segment holds; nothing writes to it any more. Label sets are matched by name, roles too; the slow
 * records are the newest of both. Its options (bounds, that of the log) become the retired segment's. Returns 0 or ENOMEM. */
int tw_retired_add(tw_segment *sum, const tw_segment *from);

/* Makes it as large as what is in it. Returns the bytes of its file, the list included. */
size_t tw_retired_close(tw_segment *sum);

/* Gives the memory back. */
void tw_retired_free(tw_segment *sum);

TW_END_C
