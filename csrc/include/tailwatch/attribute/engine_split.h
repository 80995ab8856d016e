/* What a wait in the engine was made of: the part of (k0, k1] that exceeds what is usual, split by cause.
 *
 * k0, k1: the stamps that an engine put on the outputs of two consecutive tokens of a request (of its first token: k0
 * is when the request set out). Between them the engine made one step, or several where the request was left out.
 *
 * In this order, each at most what the ones before it leave, so that the parts never exceed the excess:
 *
 *     measured   jit (kernels that were compiled, their names); preempted, queued and own prefill (events of the
 *                request); whole steps of prefill alone before its own; parts of a step on the host beyond their
 *                medians (engine_host, its name: the part)
 *     estimated  prefill and recompute of others, graph miss: what the model of step time gives for them
 *     the rest   device, as far as the device took longer than is usual for such a batch, or is typical for the stream;
 *                else unexplained
 *
 * Pauses of the engine's own process are in no part. Thread rule: any thread or process; allocates nothing.
 */
#pragma once

#include "tailwatch/base/extern_c.h"

#include <stdbool.h>
#include <stdint.h>

#include "tailwatch/attribute/parts.h"
#include "tailwatch/record/host_track.h"
#include "tailwatch/record/step_ring.h"

TW_BEGIN_C

#define TW_SPLIT_STEPS 1024 /* steps between two tokens that are looked at; those before them are unexplained */

/* What tw_part.name is, of a part made here: with one of these bits it is no number of the name table. */
#define TW_NAME_IS_REQUEST UINT32_C(0x80000000)   /* of a request that prefills, a kernel: number of tw_request_name_copy() */
#define TW_NAME_IS_STEP_PART UINT32_C(0x40000000) /* tw_step_part: so that those of engine_host stay apart */

/* Copies the name of a part, of whichever kind, at most size bytes with its NUL. host, ring: of the process it is of. */
void tw_engine_name_copy(const tw_step_ring *ring, const tw_host *host, uint32_t name, char *to, size_t size);

/* Keeps a name that has such a number in another process: those of requests and kernels, of which there are ever more, in
 * the ring of these, others in the table of names. Returns its number here. The segment's single writer. */
uint32_t tw_engine_name_put(tw_step_ring *ring, tw_host *host, uint32_t like, const char *name);

/* The step whose outputs carry the stamp key_ns: its running number. false: no step that is kept does; the wait is
 * not joined. */
bool tw_engine_join(const tw_step_ring *ring, uint64_t key_ns, uint64_t *number);

/* Adds the parts of (k0, k1] beyond accounted_ns to out: they sum to k1 - k0 - accounted_ns, if that is positive.
 * accounted_ns: typical_ns, which is 0 of a first token, and what pauses took of the interval. request:
 * tw_request_hash() of its id, 0: not known. least_steps: that messages of it wait for, 0: none. Returns whether k1 was joined; else out stays as it is. */
bool tw_engine_split(const tw_step_ring *ring, uint64_t k0, uint64_t k1, uint64_t request, uint64_t typical_ns,
                     uint64_t least_steps, uint64_t accounted_ns, tw_parts *out);

TW_END_C
