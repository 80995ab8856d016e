/* libFuzzer entry for the scanner; fuzz.sh builds and runs it. Nothing is read past a message's end (each is copied
 * to its exact size), and three things hold whatever the bytes are: choices sum to tokens, the short way past a known
 * shape answers as the long way does, and a model's name is unescaped within its room.
 *
 * The last two bytes of the input choose the framing and the length of the messages.
 */
#include <stdlib.h>
#include <string.h>

#include "tailwatch/wire/body_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(bool held) {
    if (!held) abort();
}

static void check_choices(const tw_scan_result *seen) {
    uint64_t sum = 0;
    require(seen->events <= TW_SCAN_EVENTS);
    for (uint32_t i = 0; i < seen->events; i++) sum += seen->n[i];
    require(sum == seen->tokens);
}

static void check_model(const tw_scan_result *seen) {
    if (seen->model == NULL) return;
    const size_t cap = seen->model_len < 64 ? seen->model_len / 2 : 64;
    char *model = malloc(cap + 1);
    if (model == NULL) return;
    require(tw_json_unescape(seen->model, seen->model_len, model + 1, cap) <= cap);
    free(model);
}

static bool same_model(const tw_scan_result *a, const tw_scan_result *b) {
    if (a->model == NULL || b->model == NULL) return a->model == b->model;
    return a->model_len == b->model_len && memcmp(a->model, b->model, a->model_len) == 0;
}

static bool same_choices(const tw_scan_result *a, const tw_scan_result *b) {
    const size_t used = a->events * sizeof *a->choice;
    return a->events == b->events && memcmp(a->choice, b->choice, used) == 0 && memcmp(a->n, b->n, used) == 0;
}

static bool same(const tw_scan_result *a, const tw_scan_result *b) {
    return a->tokens == b->tokens && a->usage_tokens == b->usage_tokens && a->done == b->done && a->error == b->error &&
           a->cut == b->cut && same_model(a, b) && same_choices(a, b);
}

/* quick keeps its shapes, thorough has none. */
static void feed(tw_scan *quick, tw_scan *thorough, const uint8_t *bytes, size_t len) {
    tw_scan_result seen, looked;
    char *copy = malloc(len);
    if (copy == NULL) return;
    memcpy(copy, bytes, len);
    thorough->shapes = 0;
    tw_scan_feed(quick, copy, len, &seen);
    tw_scan_feed(thorough, copy, len, &looked);
    check_choices(&seen);
    check_model(&seen);
    require(same(&seen, &looked));
    require(quick->part_len == thorough->part_len && quick->line_state == thorough->line_state);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (size < 3) return 0;
    const tw_framing framing = (tw_framing)(bytes[size - 2] % (TW_FRAMING_WHOLE + 1));
    const size_t length = (size_t)bytes[size - 1] + 1;
    tw_scan quick, thorough;
    tw_scan_result seen, looked;
    tw_scan_init(&quick, framing);
    tw_scan_init(&thorough, framing);
    size -= 2;
    for (size_t at = 0; at < size; at += length)
        feed(&quick, &thorough, bytes + at, size - at < length ? size - at : length);
    tw_scan_finish(&quick, &seen);
    tw_scan_finish(&thorough, &looked);
    require(same(&seen, &looked));
    return 0;
}
