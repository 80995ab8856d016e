/* NVTX: what Nsight Systems, Nsight Compute and whatever else listens are shown of this process.
 *
 * Domain "tailwatch". All texts are registered once; what varies is a number in the payload, since tools keep each text
 * for ever. Names from outside (steps, models, ranges of the user) are texts too, NVTX_NAMES of them; further ones are
 * "other".
 *
 *   kind                       message          category            payload
 *   push/pop, on the thread    gc0, gc1, gc2,   1 + tw_cause, of    int64: how many collections and passes there were
 *   that collects              …, policy        the same name       before it
 *   mark inside that range,    collected        as the range        int64: objects collected
 *   just before its end
 *   start/end                  request          32 requests         int64: number of the request in its process, from 1
 *   start/end                  name of a step   33 steps            int64: its batch, as given when it began
 *   mark                       first token      64 + label set,     int64: number of the request
 *   mark, with nvtx_tokens     token            "MODEL ROUTE"       the same; one for each message of tokens
 *   mark                       tailwatch clock  34 clock            int64: CLOCK_MONOTONIC ns, read just before the call:
 *                                                                   the mark can only be late. NVTX_BURST at a time
 *   mark                       role of this     35 process          int64: its index + 1 among those of its role; 0: none
 *                              process
 *   start/end, mark            by the user      36 user             int64 by the user
 *
 * A tool is attached when nvtxDomainCreateA gave a domain: never ask nvtxDomainIsEnabled, which an older Nsight Systems
 * answers with no although it records. NVTX looks for a tool once in a process, so the answer is final, and without one
 * each place that could emit costs one branch on a pointer.
 *
 * A pause is recorded before the tool is called: each edge of its range is later than the recorded one, by what a call
 * of the tool takes.
 *
 * Start/end is for what may pass from thread to thread or lie across an await; push/pop only where both ends are on
 * one thread. A range ends in the process in which it began, and never in a fork child of that; also after uninstall().
 *
 * Thread rule: under the GIL. Nothing of ours is allocated after attaching; what the tool does is the tool's.
 */
#pragma once

#include "python/core.h"

#define NVTX_NAMES 256 /* texts from outside that are registered, of at most NVTX_NAME_BYTES - 1 bytes */
#define NVTX_NAME_BYTES 128
#define NVTX_BURST 3

enum {
    NVTX_CATEGORY_CAUSES = 1, NVTX_CATEGORY_REQUESTS = 32, NVTX_CATEGORY_STEPS, NVTX_CATEGORY_CLOCK,
    NVTX_CATEGORY_PROCESS, NVTX_CATEGORY_USER, NVTX_CATEGORY_LABELS = 64
};

/* A range of a tool that may end on another thread. */
typedef struct tw_nvtx_range {
    uint64_t id;              /* as the tool numbers it: Nsight Compute begins with 0 */
    uint64_t begun;           /* 0: none is open; else 1 + the forks of the process that began it */
} tw_nvtx_range;

/* Whether a tool is sent to. */
static inline int nvtx_on(const CoreObject *core) { return __builtin_expect(core->nvtx.tool != NULL, 0); }

/* A core that begins anew: its label sets and steps get other numbers. */
void nvtx_reborn(CoreObject *core);

/* The rest where a tool is sent to only: ask nvtx_on(core) first, or for ends, whether something was begun. */

/* What may end on another thread. What is still open in *range ends first. */
void nvtx_request_begin(CoreObject *core, tw_nvtx_range *range, uint64_t request);
void nvtx_step_begin(CoreObject *core, tw_nvtx_range *range, uint32_t step, uint64_t batch);
void nvtx_end(tw_nvtx_range *range);

/* A message of tokens of a request, so many there were with it, under this label set. */
void nvtx_message(const CoreObject *core, uint64_t request, uint64_t messages, uint32_t labels);

/* methods of Core, and of the module for benchmarks */
PyObject *core_nvtx_on(PyObject *self, PyObject *tokens);
PyObject *core_nvtx_off(PyObject *self, PyObject *unused);
PyObject *core_nvtx_anchor(PyObject *self, PyObject *unused);
PyObject *core_nvtx_name(PyObject *self, PyObject *text);
PyObject *core_nvtx_begin(PyObject *self, PyObject *args);
PyObject *core_nvtx_end(PyObject *self, PyObject *args);
PyObject *core_nvtx_mark(PyObject *self, PyObject *args);
PyObject *core_nvtx_timed(PyObject *self, PyObject *args);
PyObject *core_nvtx_attached(PyObject *self, void *unused);
