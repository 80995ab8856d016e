#include "tailwatch/record/engine_sums.h"

#include "base/names.h"
#include "record/word_sums.h"
#include "tailwatch/base/atomic.h"

TW_NAMES(tw_step_work_name, TW_STEP_WORKS, "decode", "prefill")
TW_NAMES(tw_graph_name, TW_GRAPHS, "unknown", "full", "piecewise", "eager")

const char *tw_step_length_part_name(int part) { return part == TW_STEP_PARTS ? "paused" : tw_step_part_name(part); }

static uint64_t known32(uint32_t tokens) { return tokens == TW_TOKENS_UNKNOWN ? 0 : tokens; }
static uint64_t known16(uint16_t count) { return count == TW_COUNT_UNKNOWN ? 0 : count; }

tw_step_work tw_step_work_of(const tw_step_record *step) {
    return known32(step->prefill_tokens) + known32(step->recompute_tokens) > 0 ? TW_WORK_PREFILL : TW_WORK_DECODE;
}

static uint64_t part_ns(const tw_step_record *step, int part) {
    return (uint64_t)(part == TW_STEP_PARTS ? step->paused : step->part[part]) * TW_OFFSET_UNIT_NS;
}

uint64_t tw_step_length_ns(const tw_step_record *step) {
    uint64_t ns = 0;
    for (int part = 0; part < TW_STEP_LENGTH_PARTS; part++) ns += part_ns(step, part);
    return ns;
}

static void begin(tw_engine_sums *sums) {
    for (int work = 0; work < TW_STEP_WORKS; work++) tw_histogram_init(&sums->length[work]);
    tw_store_release(&sums->steps, 1);
}

void tw_engine_sums_count(tw_engine_sums *sums, const tw_step_record *step) {
    if (__builtin_expect(tw_load(&sums->steps) == 0, 0)) begin(sums);
    else tw_add(&sums->steps, 1);
    tw_histogram_record(&sums->length[tw_step_work_of(step)], tw_layout_of(TW_LAYOUT_ITL), tw_step_length_ns(step));
    tw_add(&sums->requests, known16(step->requests));
    tw_add(&sums->prefill_tokens, known32(step->prefill_tokens));
    tw_add(&sums->decode_tokens, known32(step->decode_tokens));
    tw_add(&sums->recompute_tokens, known32(step->recompute_tokens));
    tw_add(&sums->preempted, known16(step->preempted));
    tw_add(&sums->spec_proposed, known16(step->spec_proposed));
    tw_add(&sums->spec_accepted, known16(step->spec_accepted));
    for (int part = 0; part < TW_STEP_LENGTH_PARTS; part++) tw_add(&sums->part_ns[part], part_ns(step, part));
    if (step->graph < TW_GRAPHS) tw_add(&sums->graph[step->graph], 1);
}

void tw_engine_sums_add(tw_engine_sums *to, const tw_engine_sums *from) {
    const uint64_t steps = tw_load_acquire(&from->steps);
    if (steps == 0) return;
    if (tw_load(&to->steps) == 0) begin(to), tw_store(&to->steps, 0);
    tw_add(&to->steps, steps);
    for (int work = 0; work < TW_STEP_WORKS; work++) tw_histogram_add(&to->length[work], &from->length[work]);
#define ADD(field, dims) tw_words_add(&to->field, &from->field, sizeof to->field);
    TW_ENGINE_COUNTERS(ADD)
#undef ADD
}
