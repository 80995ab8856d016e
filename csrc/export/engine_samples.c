/* Samples of engines whose steps are read. */
#include "export/sample_values.h"

/* The next process from p on that has one; NULL: there is none. */
static const tw_snapshot_engine *next_engine(const sampling *s, uint32_t *p, tw_sample *sample) {
    while (*p < s->snapshot->process_count && s->snapshot->process[*p].engine == NULL) ++*p;
    if (*p == s->snapshot->process_count) return NULL;
    *sample = of_process(s, *p);
    return s->snapshot->process[(*p)++].engine;
}

/* Its latest step; NULL: its process has ended, or it is not known. */
static const tw_step_record *latest_of(const tw_snapshot_engine *engine, const tw_sample *sample) {
    if (!sample->process->lives || engine->last_count == 0) return NULL;
    return &engine->last[engine->last_count - 1].record;
}

void tw_sample_engine_lengths(sampling *s, const instrument *m) {
    const tw_snapshot_engine *engine;
    tw_sample sample;
    (void)m;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;)
        for (int work = 0; work < TW_STEP_WORKS; work++) {
            sample.label[0] = (tw_label){"work", tw_step_work_name(work)};
            emit_counts(s, &sample, engine->length[work], tw_layout_of(TW_LAYOUT_ITL));
        }
}

/* of: offset of a word. */
void tw_sample_engine_word(sampling *s, const instrument *m) {
    const tw_snapshot_engine *engine;
    tw_sample sample;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;) emit_word_at(s, m, &sample, engine);
}

static const char *tokens_name(int i) { return (const char *const[]){"prefill", "decode", "recompute"}[i]; }
static const char *drafts_name(int i) { return (const char *const[]){"proposed", "accepted"}[i]; }

#define ENGINE(member) offsetof(tw_snapshot_engine, member)
_Static_assert(ENGINE(recompute_tokens) - ENGINE(prefill_tokens) == 2 * sizeof(uint64_t), "one list");
_Static_assert(ENGINE(spec_accepted) - ENGINE(spec_proposed) == sizeof(uint64_t), "one list");
static const named_list ENGINE_LISTS[] = {
    [TW_LIST_PARTS] = {"part", ENGINE(part_ns), TW_STEP_LENGTH_PARTS, tw_step_length_part_name, 0, TW_STEP_PARTS},
    [TW_LIST_TOKENS] = {"kind", ENGINE(prefill_tokens), 3, tokens_name, 0, 2},
    [TW_LIST_DRAFTS] = {"result", ENGINE(spec_proposed), 2, drafts_name, 0, 1},
    [TW_LIST_GRAPHS] = {"graph", ENGINE(graph), TW_GRAPHS, tw_graph_name, 1, 0},
};

/* of: the list. */
void tw_sample_engine_list(sampling *s, const instrument *m) {
    const tw_snapshot_engine *engine;
    tw_sample sample;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;)
        emit_list(s, m, &sample, engine, &ENGINE_LISTS[m->of]);
}

void tw_sample_engine_requests(sampling *s, const instrument *m) {
    const tw_snapshot_engine *engine;
    tw_sample sample;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;) {
        const tw_step_record *latest = latest_of(engine, &sample);
        for (int i = 0; latest != NULL && i < 2; i++) {
            const uint16_t requests = i == 0 ? latest->running : latest->waiting;
            sample.label[0] = (tw_label){"state", i == 0 ? "running" : "waiting"};
            if (requests != TW_COUNT_UNKNOWN) emit_word(s, m, &sample, requests);
        }
    }
}

void tw_sample_engine_kv_use(sampling *s, const instrument *m) {
    const tw_snapshot_engine *engine;
    tw_sample sample;
    (void)m;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;) {
        const tw_step_record *latest = latest_of(engine, &sample);
        if (latest != NULL && latest->kv_use != TW_COUNT_UNKNOWN)
            emit_real(s, &sample, (double)latest->kv_use / TW_KV_WHOLE);
    }
}

void tw_sample_engine_cost(sampling *s, const instrument *m) {
    static const char *const terms[] = {"decode_step", "decode_request", "prefill_token"};
    const tw_snapshot_engine *engine;
    tw_sample sample;
    (void)m;
    for (uint32_t p = 0; (engine = next_engine(s, &p, &sample)) != NULL;) {
        const double cost[] = {engine->cost.decode_step, engine->cost.decode_request, engine->cost.prefill_token};
        for (int i = 0; i < 3 && latest_of(engine, &sample) != NULL; i++) {
            sample.label[0] = (tw_label){"term", terms[i]};
            emit_real(s, &sample, cost[i]);
        }
    }
}
