/* What a step was, read by attribute off the objects that vLLM's scheduler makes: SchedulerOutput, ModelRunnerOutput,
 * EngineCoreOutputs; or by an integration that stands for another engine's in their shape, whose num_scheduled_tokens may
 * be the number of requests where each has one token. An attribute that is absent, or of another type than expected,
 * means unknown. Under the GIL.
 */
#pragma once

#include "python/module.h"

#include "tailwatch/record/step_ring.h"

/* The attributes that are read. A type in which one is absent is remembered, and not asked again. */
#define STEP_ATTRIBUTES(A)                                                                                     \
    A(scheduled_new_reqs) A(scheduled_cached_reqs) A(num_scheduled_tokens) A(total_num_scheduled_tokens)       \
    A(scheduled_spec_decode_tokens) A(preempted_req_ids)                                                       \
    A(req_ids) A(num_output_tokens) A(resumed_req_ids) A(resumed_from_preemption) A(req_id) A(request_id)      \
    A(sampled_token_ids) A(cudagraph_stats) A(runtime_mode) A(kv_connector_output) A(finished_recving)        \
    A(running) A(waiting) A(kv_cache_manager) A(usage) A(timestamp) A(requests)                                \
    A(arrival_time) A(outputs) A(new_token_ids) A(finish_reason)

#define STEP_ATTRIBUTE_NUMBER(name) READ_##name,
typedef enum { STEP_ATTRIBUTES(STEP_ATTRIBUTE_NUMBER) STEP_ATTRIBUTES_READ } step_attribute;

typedef struct step_reader {
    tw_step_ring *ring;
    PyObject *zero;          /* the int */
    PyObject *queued;        /* {request id: monotonic ns at which it was queued}, of requests in no step so far */
    PyObject *preempted;     /* ids of requests that were preempted and not scheduled again */
    PyObject *kv_waits;      /* {request id: monotonic ns since which it waits for the KV connector} */
    bool kv_any;             /* whether it may have any */
    PyObject *kv_asked;      /* id of the request that waits as soon as it has blocks; NULL: none */
    uint64_t steps;
    uint64_t resumed_step;   /* the latest step with a resumed request, + 1 */
    uint16_t kv_use;         /* as it was read last */
    PyObject *raised[3];     /* what came up while something was read and is no Exception */
    struct { PyObject *name, *absent_in; } attribute[STEP_ATTRIBUTES_READ];
} step_reader;

/* -1: an exception is set. What is there is freed by the second. */
int step_reader_init(step_reader *r, tw_step_ring *ring);
void step_reader_free(step_reader *r);

/* A new reference, or NULL. No function here leaves an exception set; one that is no Exception is kept meanwhile. */
PyObject *step_read(step_reader *r, PyObject *of, step_attribute attribute);

/* The size of what an attribute holds; -1: it has none. */
Py_ssize_t step_size(step_reader *r, PyObject *of, step_attribute attribute);

/* An exception that is set is dropped, or kept. */
void step_drop_error(step_reader *r);

/* Sets that exception: KeyboardInterrupt, SystemExit. false: there was none. */
bool step_reader_raises(step_reader *r);

/* Fills the counts of the step. scheduled_ns: when it was. */
void step_read_scheduled(step_reader *r, PyObject *scheduler_output, uint64_t scheduled_ns, tw_step_record *out);
void step_read_model_output(step_reader *r, PyObject *model_output, tw_step_record *out);
void step_read_scheduler(step_reader *r, PyObject *scheduler, tw_step_record *out);

/* The stamp of the first outputs in {client: EngineCoreOutputs}, ns; 0: none. */
uint64_t step_read_key(step_reader *r, PyObject *outputs);

/* The scheduler asked its KV connector what it has of a request: (tokens, whether they come while the request waits);
 * tokens None: it is not known yet. */
void step_note_kv_matched(step_reader *r, PyObject *scheduler, PyObject *request, PyObject *matched, uint64_t now_ns);

/* The request that it asked for last has blocks for so many tokens from elsewhere: where they come while it waits, that
 * begins. Its end is in the output of a model runner, or its first step. */
void step_note_kv_loads(step_reader *r, PyObject *scheduler, PyObject *request, PyObject *tokens, uint64_t now_ns);

/* A request was queued. scheduler: its `requests` bound the memory of those that never come into a step. */
void step_note_queued(step_reader *r, PyObject *scheduler, PyObject *request, uint64_t now_ns);
