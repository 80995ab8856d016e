#include "tailwatch/attribute/engine_split.h"

#include <stdio.h>
#include <string.h>

#include "base/arithmetic.h"
#include "tailwatch/base/clock.h"
#include "record/word_sums.h"

#define SPLIT_EVENTS TW_STEP_EVENTS
#define EVENTS_LATE_NS (2 * TW_NS_PER_SECOND) /* events end in order, but for so much */

void tw_engine_name_copy(const tw_step_ring *ring, const tw_host *host, uint32_t name, char *to, size_t size) {
    if (name & TW_NAME_IS_REQUEST) tw_request_name_copy(ring, name & ~TW_NAME_IS_REQUEST, to, size);
    else if (name & TW_NAME_IS_STEP_PART)
        snprintf(to, size, "%s", tw_step_part_name((int)(name & ~TW_NAME_IS_STEP_PART)));
    else tw_name_copy(&host->names, name, to, size);
}

uint32_t tw_engine_name_put(tw_step_ring *ring, tw_host *host, uint32_t like, const char *name) {
    if (like & TW_NAME_IS_REQUEST) return tw_request_name_write(ring, name, strlen(name)) | TW_NAME_IS_REQUEST;
    return tw_name_intern(&host->names, name, strlen(name));
}

/* ---- the steps between two stamps ---- */

bool tw_engine_join(const tw_step_ring *ring, uint64_t key_ns, uint64_t *number) {
    tw_step_record step;
    *number = tw_step_find(ring, key_ns);
    return tw_step_read(ring, *number, &step) && step.update_ns <= key_ns && key_ns <= step.done_ns;
}

typedef struct split {
    const tw_step_ring *ring;
    uint64_t k0, k1, request;
    uint64_t left;           /* of the excess */
    uint64_t device_ns;      /* beyond what is usual for such batches */
    uint64_t usual_ns, usual_device_ns, steps; /* of so many steps, what is usual; of that, on the device */
    uint64_t compiled_ns;    /* of kernels, meanwhile: from there on, it was looked at */
    uint64_t compiled_from;
    tw_parts *out;
} split;

/* At most what is left. */
static void add(split *s, uint64_t ns, tw_delay_cause cause, tw_certainty certainty, uint32_t name, tw_detail kind,
                uint64_t detail) {
    const tw_part part = {.ns = least(ns, s->left), .name = name, .cause = (uint8_t)cause,
                          .certainty = (uint8_t)certainty, .detail_kind = (uint8_t)kind, .detail = detail};
    if (part.ns == 0) return;
    s->left -= part.ns;
    tw_parts_add(s->out, &part);
}

/* ---- events: of the engine, and the request's own ---- */

typedef struct own_events {
    bool preempted, queued;
    uint64_t queued_ns, scheduled_ns, preempted_ns;
    uint64_t kv_queued_ns, kv_ns; /* for remote KV: before its first step; since then */
} own_events;

/* Newest first: what two have in common counts once. */
static void add_compiled(split *s, const tw_step_event *event) {
    const uint64_t from = most(event->from_ns, s->k0), ns = since(least(event->to_ns, s->compiled_from), from);
    s->compiled_from = least(s->compiled_from, from);
    s->compiled_ns += ns;
    add(s, ns, TW_DELAY_JIT, TW_MEASURED, (uint32_t)event->detail | TW_NAME_IS_REQUEST, TW_DETAIL_NONE, 0);
}

/* Newest first, until those before k0. */
static own_events find_events(split *s) {
    own_events own = {false, false, 0, 0, 0, 0, 0};
    tw_step_event event;
    const uint64_t head = tw_load_acquire(&s->ring->event_head);
    for (uint64_t n = head; n > since(head, SPLIT_EVENTS); --n) {
        if (!tw_step_event_read(s->ring, n - 1, &event) || event.to_ns + EVENTS_LATE_NS < s->k0) break;
        if (event.to_ns < s->k0) continue;
        if (event.what == TW_EVENT_COMPILED) add_compiled(s, &event);
        if (event.request == 0 || event.request != s->request || event.from_ns > s->k1) continue;
        if (event.what == TW_EVENT_PREEMPTED || event.what == TW_EVENT_RESUMED) {
            own.preempted = true;
            own.preempted_ns = most(event.from_ns, s->k0);
        }
        if (event.what == TW_EVENT_KV_WAIT) {
            const uint64_t ns = since(least(event.to_ns, s->k1), most(event.from_ns, s->k0));
            *(own.queued ? &own.kv_queued_ns : &own.kv_ns) += ns;
        }
        if (event.what == TW_EVENT_QUEUED) {
            own.queued = true;
            own.queued_ns = event.from_ns;
            own.scheduled_ns = event.to_ns;
        }
    }
    return own;
}

/* One that lost its place is late by its whole absence; of a first token, by what came after. */
static void add_own(split *s, const own_events *own, uint64_t steps) {
    add(s, own->kv_queued_ns + own->kv_ns, TW_DELAY_KV_WAIT, TW_MEASURED, 0, TW_DETAIL_STEPS, steps);
    const uint64_t absent = own->queued ? since(s->k1 - own->preempted_ns, own->kv_ns) : s->left;
    if (own->preempted) add(s, absent, TW_DELAY_PREEMPTED, TW_MEASURED, 0, TW_DETAIL_STEPS, steps);
    if (!own->queued) return;
    const uint64_t from = most(own->queued_ns, s->k0), to = least(most(own->scheduled_ns, from), s->k1);
    add(s, since(to - from, own->kv_queued_ns), TW_DELAY_QUEUED, TW_MEASURED, 0, TW_DETAIL_STEPS, steps);
    add(s, s->k1 - to, TW_DELAY_OWN_PREFILL, TW_MEASURED, 0, TW_DETAIL_NONE, 0);
    add(s, s->left, TW_DELAY_TRANSPORT, TW_MEASURED, 0, TW_DETAIL_NONE, 0);
}

/* ---- one step ---- */

static uint64_t part_ns(const tw_step_record *step, int part) { return (uint64_t)step->part[part] * TW_OFFSET_UNIT_NS; }

/* By how much its dispatch was longer than usual, where that was of a batch with prefill that another step answers. */
static uint64_t begun_ns(const tw_step_model *model, const tw_step_record *step) {
    if (step->next_prefill_tokens == 0) return 0;
    return since(part_ns(step, TW_PART_DISPATCH), tw_load(&model->part_ns[TW_PART_DISPATCH]));
}

static uint64_t computed_ns(const tw_step_model *model, const tw_step_record *step) {
    return part_ns(step, TW_PART_DISPATCH) - begun_ns(model, step) + part_ns(step, TW_PART_WAIT);
}

static void add_host_parts(split *s, const tw_step_record *step) {
    add(s, begun_ns(&s->ring->model, step), TW_DELAY_PREFILL, TW_MEASURED,
        step->next_prefill_name == 0 ? 0 : step->next_prefill_name | TW_NAME_IS_REQUEST, TW_DETAIL_TOKENS,
        step->next_prefill_tokens);
    for (int part = 0; part < TW_STEP_PARTS; ++part) {
        if (part == TW_PART_DISPATCH || part == TW_PART_WAIT) continue;
        const uint64_t beyond = since(part_ns(step, part), tw_load(&s->ring->model.part_ns[part]));
        add(s, beyond, TW_DELAY_ENGINE_HOST, TW_MEASURED, TW_NAME_IS_STEP_PART | (uint32_t)part, TW_DETAIL_STEP_PART,
            (uint64_t)part);
    }
}

static uint32_t prefill_tokens(const tw_step_record *step) {
    return step->prefill_tokens == TW_TOKENS_UNKNOWN ? 0 : step->prefill_tokens;
}

static uint32_t tokens_to_compute(const tw_step_record *step) { return prefill_tokens(step) + step->recompute_tokens; }

/* It has prefill and nothing else: a request that decodes was left out of it. */
static bool is_prefill_alone(const tw_step_record *step) {
    return prefill_tokens(step) > 0 && step->decode_requests == 0;
}

static uint32_t name_of(const tw_step_record *step) {
    return step->prefill_name == 0 ? 0 : step->prefill_name | TW_NAME_IS_REQUEST;
}

/* What the device usually takes for the requests that decode. */
static uint64_t usual_ns(const tw_step_model *model, const tw_step_record *step) {
    const double usual = tw_step_usual_ns(model, step->decode_requests);
    if (usual >= 0) return (uint64_t)usual;
    return tw_load(&model->part_ns[TW_PART_DISPATCH]) + tw_load(&model->part_ns[TW_PART_WAIT]);
}

/* What prefill and recompute add to a step, as learned; all that it took beyond decoding while that is not known. */
static void add_prefill(split *s, const tw_step_record *step, uint64_t beyond) {
    const uint64_t tokens = tokens_to_compute(step);
    const double learned = tw_step_prefill_ns(&s->ring->model, (double)tokens);
    const uint64_t share = least(learned >= 0 ? (uint64_t)learned : beyond, beyond);
    const uint64_t prefill = (uint64_t)((double)share * prefill_tokens(step) / (double)tokens);
    add(s, prefill, TW_DELAY_PREFILL, TW_ESTIMATED, name_of(step), TW_DETAIL_TOKENS, prefill_tokens(step));
    add(s, share - prefill, TW_DELAY_PREEMPTED, TW_ESTIMATED, 0, TW_DETAIL_TOKENS, step->recompute_tokens);
}

static bool misses_graph(const tw_step_model *model, const tw_step_record *step) {
    if (step->graph != TW_GRAPH_EAGER && step->graph != TW_GRAPH_PIECEWISE) return false;
    return tw_load(&model->graph[TW_GRAPH_FULL]) > tw_load(&model->graph[step->graph]);
}

static void add_estimates(split *s, const tw_step_record *step) {
    const uint64_t beyond = since(computed_ns(&s->ring->model, step), usual_ns(&s->ring->model, step)), left = s->left;
    if (tokens_to_compute(step) > 0) add_prefill(s, step, beyond);
    else if (misses_graph(&s->ring->model, step))
        add(s, beyond, TW_DELAY_GRAPH_MISS, TW_ESTIMATED, 0, TW_DETAIL_NONE, 0);
    s->device_ns += since(beyond, left - s->left);
}

/* What is usual now may be more than what is typical for the stream: it decodes in larger batches than it did, or all
 * steps have been slow for a while. */
static void add_usual(split *s, const tw_step_record *step) {
    ++s->steps;
    const uint64_t device_ns = least(computed_ns(&s->ring->model, step), usual_ns(&s->ring->model, step));
    s->usual_device_ns += device_ns;
    s->usual_ns += device_ns;
    for (int part = 0; part < TW_STEP_PARTS; ++part)
        if (part != TW_PART_DISPATCH && part != TW_PART_WAIT)
            s->usual_ns += least(part_ns(step, part), tw_load(&s->ring->model.part_ns[part]));
}

/* Of as many steps as a gap of the stream typically has: where it has more, the request was left out of some, and it is
 * not known why. */
static uint64_t slower_ns(const split *s, uint64_t typical_ns, uint64_t least_steps) {
    if (typical_ns == 0 || s->steps == 0) return 0;
    const uint64_t each_ns = most(s->usual_ns / s->steps, 1), steps = (typical_ns + each_ns / 2) / each_ns;
    const uint64_t n = least(most(steps, most(least_steps, 1)), s->steps);
    return least(since(each_ns * n, typical_ns), s->usual_device_ns / s->steps * n);
}

/* ---- all of them ---- */

/* The first step that counts: the one after the step of k0, and not too many before the last. */
static uint64_t first_step(const split *s, uint64_t last) {
    uint64_t before;
    const uint64_t first = tw_engine_join(s->ring, s->k0, &before) ? before + 1 : before;
    return most(least(first, last), since(last + 1, TW_SPLIT_STEPS));
}

/* Certain parts of all steps before the estimates of any. */
static void add_steps(split *s, uint64_t first, uint64_t last) {
    tw_step_record step;
    uint64_t before_ns = s->k0;
    for (uint64_t n = first; n <= last && s->left > 0; ++n) {
        if (!tw_step_read(s->ring, n, &step)) continue;
        const uint64_t length = since(least(step.done_ns, s->k1), before_ns);
        before_ns = step.done_ns;
        if (n < last && is_prefill_alone(&step))
            add(s, length, TW_DELAY_PREFILL, TW_MEASURED, name_of(&step), TW_DETAIL_TOKENS, step.prefill_tokens);
        else add_host_parts(s, &step);
    }
    for (uint64_t n = first; n <= last && s->left > 0; ++n) {
        if (!tw_step_read(s->ring, n, &step) || (n < last && is_prefill_alone(&step))) continue;
        add_estimates(s, &step);
        add_usual(s, &step);
    }
}

bool tw_engine_split(const tw_step_ring *ring, uint64_t k0, uint64_t k1, uint64_t request, uint64_t typical_ns,
                     uint64_t least_steps, uint64_t accounted_ns, tw_parts *out) {
    split s = {.ring = ring, .k0 = k0, .k1 = k1, .request = request, .left = since(since(k1, k0), accounted_ns),
               .compiled_from = k1, .out = out};
    uint64_t last;
    if (!tw_engine_join(ring, k1, &last)) return false;
    if (s.left == 0) return true;
    const uint64_t first = first_step(&s, last);
    const own_events own = find_events(&s);
    add_own(&s, &own, last - first);
    add_steps(&s, first, last);
    add(&s, since(s.device_ns + slower_ns(&s, typical_ns, least_steps), s.compiled_ns), TW_DELAY_DEVICE, TW_ESTIMATED, 0,
        TW_DETAIL_NONE, 0);
    add(&s, s.left, TW_DELAY_UNEXPLAINED, TW_MEASURED, 0, TW_DETAIL_STEPS, last - first);
    return true;
}
