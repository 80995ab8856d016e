/* Engines whose steps are read off their scheduler. */
#include "aggregate/snapshot_parts.h"

#include "base/arithmetic.h"
#include "base/tw_malloc.h"
#include "record/word_sums.h"
#include "tailwatch/base/atomic.h"

#include <errno.h>
#include <string.h>

static const tw_layout *layout(void) { return tw_layout_of(TW_LAYOUT_ITL); }

void tw_snapshot_counts_join(tw_counts **to, tw_counts *from) {
    if (*to && from) tw_counts_add(*to, from);
    else if (from) *to = from;
    if (*to != from) tw_free(from);
}

void tw_snapshot_free_engine(tw_snapshot_engine *engine) {
    if (!engine) return;
    tw_snapshot_counts_free(engine->length, TW_STEP_WORKS);
    tw_free(engine->last);
    tw_free(engine);
}

/* ---- taking ---- */

static int last_take(tw_snapshot_engine *to, const tw_step_ring *ring) {
    const uint64_t head = tw_load_acquire(&ring->head), from = since(head, TW_SNAPSHOT_STEPS);
    if (head == 0) return 0; /* of the dead it is not kept */
    to->last = tw_calloc(head - from, sizeof *to->last);
    if (!to->last) return ENOMEM;
    for (uint64_t n = from; n < head; n++) {
        tw_snapshot_engine_step *step = &to->last[to->last_count];
        if (!tw_step_read(ring, n, &step->record)) continue;
        tw_request_name_copy(ring, step->record.prefill_name, step->prefill_of, sizeof step->prefill_of);
        to->last_count++;
    }
    return 0;
}

static int engine_take(tw_snapshot_engine *to, const tw_segment *g) {
    tw_step_model model;
    int error = 0;
#define LOAD(field, dims) tw_words_load(&to->field, &g->engine.field, sizeof to->field);
    TW_ENGINE_COUNTERS(LOAD)
#undef LOAD
    for (int work = 0; work < TW_STEP_WORKS && !error; work++)
        error = tw_snapshot_histogram_keep(&to->length[work], &g->engine.length[work]);
    tw_words_load(&model, &g->step_ring.model, sizeof model);
    to->cost = tw_step_cost_of(&model);
    return error ? error : last_take(to, &g->step_ring);
}

int tw_snapshot_take_engine(tw_snapshot_engine **out, const tw_segment *g) {
    const uint64_t steps = tw_load_acquire(&g->engine.steps);
    if (steps == 0) return 0;
    tw_snapshot_engine *engine = tw_calloc(1, sizeof *engine);
    if (!engine) return ENOMEM;
    *out = engine;
    engine->steps = steps;
    return engine_take(engine, g);
}

/* ---- adding and subtracting ---- */

static void swap_last(tw_snapshot_engine *a, tw_snapshot_engine *b) {
    const tw_snapshot_engine before = *a;
    a->cost = b->cost, a->last = b->last, a->last_count = b->last_count;
    b->last = before.last, b->last_count = before.last_count;
}

void tw_snapshot_join_engine(tw_snapshot_engine **to, tw_snapshot_engine *from) {
    if (*to == NULL || from == NULL) {
        if (from != NULL) *to = from;
        return;
    }
    (*to)->steps += from->steps;
#define ADD(field, dims) tw_words_add(&(*to)->field, &from->field, sizeof from->field);
    TW_ENGINE_COUNTERS(ADD)
#undef ADD
    for (int work = 0; work < TW_STEP_WORKS; work++) {
        tw_snapshot_counts_join(&(*to)->length[work], from->length[work]);
        from->length[work] = NULL;
    }
    if (from->last_count > 0) swap_last(*to, from);
    tw_snapshot_free_engine(from);
}

static int last_copy(tw_snapshot_engine *out, const tw_snapshot_engine *later, uint64_t after_ns) {
    uint32_t from = 0;
    while (from < later->last_count && later->last[from].record.done_ns <= after_ns) from++;
    const uint32_t n = later->last_count - from;
    if (n == 0) return 0;
    out->last = tw_malloc(n * sizeof *out->last);
    if (!out->last) return ENOMEM;
    memcpy(out->last, later->last + from, n * sizeof *out->last);
    out->last_count = n;
    return 0;
}

int tw_snapshot_subtract_engine(tw_snapshot_engine **out, const tw_snapshot_engine *later,
                                const tw_snapshot_engine *earlier, uint64_t after_ns) {
    static const tw_snapshot_engine nothing = {.steps = 0};
    if (!later) return 0;
    tw_snapshot_engine *engine = tw_malloc(sizeof *engine);
    if (!engine) return ENOMEM;
    *out = engine;
    *engine = *later;
    if (!earlier) earlier = &nothing;
    engine->last = NULL;
    engine->last_count = 0;
    memset(engine->length, 0, sizeof engine->length);
    engine->steps = tw_minus(later->steps, earlier->steps);
#define SUBTRACT(field, dims) tw_words_subtract(&engine->field, &earlier->field, sizeof engine->field);
    TW_ENGINE_COUNTERS(SUBTRACT)
#undef SUBTRACT
    int error = 0;
    for (int work = 0; work < TW_STEP_WORKS && !error; work++)
        error = tw_snapshot_counts_rest(&engine->length[work], later->length[work], earlier->length[work], layout());
    return error ? error : last_copy(engine, later, after_ns);
}
