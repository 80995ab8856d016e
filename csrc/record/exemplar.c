#include "tailwatch/record/exemplar.h"

#include <string.h>

#include "tailwatch/base/atomic.h"

bool tw_exemplar_id_is_good(const char *text) {
    const size_t n = strlen(text);
    if (n == 0 || n >= TW_TRACE_WORDS * 8 || (n == 32 && strspn(text, "0") == n)) return false;
    return strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.:-") == n;
}

/* The places of a bucket lie together. */
static uint32_t first_place(uint64_t key) {
    const uint64_t mixed = key * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mixed >> 32) % (TW_EXEMPLARS / TW_EXEMPLAR_WAYS) * TW_EXEMPLAR_WAYS;
}

/* Its own, else one that is free, else that of the oldest. */
static tw_exemplar *place_of(tw_exemplar *table, uint64_t key) {
    tw_exemplar *places = table + first_place(key), *best = places;
    for (int i = 0; i < TW_EXEMPLAR_WAYS; i++) {
        if (tw_load(&places[i].key) == key) return &places[i];
        if (tw_load(&places[i].end_ns) < tw_load(&best->end_ns)) best = &places[i];
    }
    return best;
}

/* Each word is released, so that a reader that saw a new one sees the odd number too. */
void tw_exemplar_put(tw_exemplar *table, uint64_t key, uint64_t value_ns, uint64_t end_ns, const uint64_t *trace_id) {
    tw_exemplar *place = place_of(table, key);
    const uint64_t seq = tw_load(&place->seq) | 1; /* odd already: its writer was forked away while it wrote */
    tw_store_release(&place->seq, seq);
    tw_store_release(&place->key, key);
    tw_store_release(&place->value_ns, value_ns);
    tw_store_release(&place->end_ns, end_ns);
    for (int i = 0; i < TW_TRACE_WORDS; i++) tw_store_release(&place->trace_id[i], trace_id[i]);
    tw_store_release(&place->seq, seq + 1);
}

bool tw_exemplar_read(const tw_exemplar *table, uint32_t i, tw_exemplar *out) {
    const tw_exemplar *place = &table[i];
    const uint64_t seq = tw_load_acquire(&place->seq);
    if (seq == 0 || (seq & 1) != 0) return false;
    out->seq = seq;
    out->key = tw_load_acquire(&place->key);
    out->value_ns = tw_load_acquire(&place->value_ns);
    out->end_ns = tw_load_acquire(&place->end_ns);
    for (int word = 0; word < TW_TRACE_WORDS; word++) out->trace_id[word] = tw_load_acquire(&place->trace_id[word]);
    return tw_load(&place->seq) == seq && out->key != 0;
}
