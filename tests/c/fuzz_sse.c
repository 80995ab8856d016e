/* libFuzzer entry for the scanner, with clang:
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -Icsrc/include -Icsrc \
 *         tests/c/fuzz_sse.c csrc/sse.c csrc/sse_event.c csrc/sse_whole.c -o fuzz_sse && ./fuzz_sse tests/unit/frames
 *
 * The last two bytes of the input choose the framing and the length of the messages.
 */
#include <stdlib.h>
#include <string.h>

#include "tailwatch/sse.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void feed(tw_scan *scan, const uint8_t *bytes, size_t len) {
    tw_scan_result seen;
    char *copy = malloc(len), model[64];
    if (copy == NULL) return;
    memcpy(copy, bytes, len);
    tw_scan_feed(scan, copy, len, &seen);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < seen.events; i++) sum += seen.n[i];
    if (sum != seen.tokens) abort();
    if (seen.model != NULL && tw_json_unescape(seen.model, seen.model_len, model, sizeof model) > sizeof model) abort();
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (size < 3) return 0;
    const size_t length = (size_t)bytes[size - 1] + 1;
    tw_scan scan;
    tw_scan_result rest;
    tw_scan_init(&scan, (tw_framing)(bytes[size - 2] % (TW_FRAMING_WHOLE + 1)));
    size -= 2;
    for (size_t at = 0; at < size; at += length) feed(&scan, bytes + at, size - at < length ? size - at : length);
    tw_scan_finish(&scan, &rest);
    return 0;
}
