/* The golden streams of tests/frames and what a test does with one. A stream NAME.txt is a body as a
 * server sent it; NAME.expect has what is in it, a field a line:
 *
 *     framing sse|lines|whole
 *     events  tokens in each event, in order
 *     tokens  their sum
 *     choices which choices had tokens
 *     usage   the largest output token count given, 0 for none
 *     model   its name, unescaped; empty for none
 *     done    1 if an end marker is in it
 *     error   1 if an error is in it
 */
#ifndef TAILWATCH_TESTS_C_SCAN_FRAMES_H
#define TAILWATCH_TESTS_C_SCAN_FRAMES_H

#include <dirent.h>

#include "tailwatch/wire/body_scan.h"
#include "tw_test.h"

#define FRAMES_MAX 128
#define FRAMES_EVENTS 64

typedef struct frames {
    char name[64];
    char *body;
    size_t len;
    tw_framing framing;
    uint32_t events[FRAMES_EVENTS], event_count;
    uint64_t choices;  /* a bit each */
    uint64_t tokens, usage;
    bool done, error;
    char model[128];
} frames;

/* What a body came to. */
typedef struct totals {
    uint64_t tokens, usage;
    uint64_t choice[64];  /* the last holds all from 63 on */
    bool done, error;
    char model[128];
} totals;

static inline uint64_t totals_choices(const totals *seen) {
    uint64_t bits = 0;
    for (int i = 0; i < 64; i++) bits |= (uint64_t)(seen->choice[i] > 0) << i;
    return bits;
}

static inline bool totals_equal(const totals *a, const totals *b) {
    return a->tokens == b->tokens && a->usage == b->usage && a->done == b->done && a->error == b->error &&
           memcmp(a->choice, b->choice, sizeof a->choice) == 0 && strcmp(a->model, b->model) == 0;
}

/* The choices of a result sum to its tokens, and its model lies in memory. */
static inline void totals_add(totals *seen, const tw_scan_result *result) {
    uint64_t sum = 0;
    TW_CHECK(result->events <= TW_SCAN_EVENTS);
    for (uint32_t i = 0; i < result->events; i++) {
        sum += result->n[i];
        seen->choice[result->choice[i] < 63 ? result->choice[i] : 63] += result->n[i];
    }
    TW_CHECK_EQ(result->tokens, sum);
    seen->tokens += result->tokens;
    if (result->usage_tokens > seen->usage) seen->usage = result->usage_tokens;
    seen->done |= result->done;
    seen->error |= result->error;
    if (result->model == NULL) return;
    TW_CHECK(result->model_len > 0);
    TW_CHECK_EQ(0, strlen(seen->model));
    seen->model[tw_json_unescape(result->model, result->model_len, seen->model, sizeof seen->model - 1)] = '\0';
}

/* One message in memory of exactly its size, so that a read past it is found. */
static inline void feed_into(tw_scan *scan, totals *seen, const char *data, size_t len) {
    tw_scan_result result;
    char *copy = malloc(len > 0 ? len : 1);
    TW_REQUIRE(copy != NULL);
    if (len > 0) memcpy(copy, data, len);
    memset(&result, 0xA5, sizeof result);
    tw_scan_feed(scan, len > 0 ? copy : NULL, len, &result);
    totals_add(seen, &result);
    free(copy);
}

static inline void finish_into(tw_scan *scan, totals *seen) {
    tw_scan_result result;
    memset(&result, 0xA5, sizeof result);
    tw_scan_finish(scan, &result);
    totals_add(seen, &result);
}

/* The length of the event at the start of body, by the plainest rule: up to an empty line, or a line. */
static inline size_t event_length(const char *body, size_t len, tw_framing framing) {
    if (framing == TW_FRAMING_WHOLE) return len;
    for (size_t i = 1; i <= len; i++) {
        if (framing == TW_FRAMING_LINES && body[i - 1] == '\n') return i;
        if (i >= 2 && memcmp(body + i - 2, "\n\n", 2) == 0) return i;
        if (i >= 4 && memcmp(body + i - 4, "\r\n\r\n", 4) == 0) return i;
    }
    return len;
}

static inline char *frames_read(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    TW_REQUIRE(file != NULL);
    char *bytes = malloc(1 << 16);
    TW_REQUIRE(bytes != NULL);
    *len = fread(bytes, 1, (1 << 16) - 1, file);
    bytes[*len] = '\0';
    fclose(file);
    return bytes;
}

static inline void frames_expect(frames *frame, char *line) {
    char *value = strchr(line, ' ');
    TW_REQUIRE(value != NULL);
    *value++ = '\0';
    if (strcmp(line, "framing") == 0)
        frame->framing = strcmp(value, "whole") == 0   ? TW_FRAMING_WHOLE
                         : strcmp(value, "lines") == 0 ? TW_FRAMING_LINES
                                                       : TW_FRAMING_SSE;
    else if (strcmp(line, "events") == 0)
        for (char *p = value; *p != '\0';) frame->events[frame->event_count++] = (uint32_t)strtoul(p, &p, 10);
    else if (strcmp(line, "choices") == 0)
        for (char *p = value; *p != '\0';) frame->choices |= UINT64_C(1) << strtoul(p, &p, 10);
    else if (strcmp(line, "tokens") == 0) frame->tokens = strtoull(value, NULL, 10);
    else if (strcmp(line, "usage") == 0) frame->usage = strtoull(value, NULL, 10);
    else if (strcmp(line, "model") == 0) snprintf(frame->model, sizeof frame->model, "%s", value);
    else if (strcmp(line, "done") == 0) frame->done = *value == '1';
    else if (strcmp(line, "error") == 0) frame->error = *value == '1';
    else TW_CHECK(!"a field of .expect that is not known");
}

static inline void frames_directory(char *path, size_t size) {
    snprintf(path, size, "%s", __FILE__);
    char *slash = strrchr(path, '/');
    snprintf(slash ? slash : path, size - (size_t)((slash ? slash : path) - path), "%s",
             slash ? "/../frames" : "../frames");
}

static inline void frames_load_one(frames *frame, const char *directory, const char *file) {
    char path[2048];
    size_t len;
    memset(frame, 0, sizeof *frame);
    snprintf(frame->name, sizeof frame->name, "%.*s", (int)(strlen(file) - 4), file);
    snprintf(path, sizeof path, "%.1500s/%.500s", directory, file);
    frame->body = frames_read(path, &frame->len);
    snprintf(path, sizeof path, "%.1500s/%.500s.expect", directory, frame->name);
    char *expect = frames_read(path, &len);
    for (char *rest = expect, *line; (line = strsep(&rest, "\n")) != NULL;)
        if (*line != '\0') frames_expect(frame, line);
    free(expect);
}

/* All of them; the caller frees each body. */
static inline size_t frames_load(frames all[FRAMES_MAX]) {
    char directory[512];
    size_t count = 0;
    frames_directory(directory, sizeof directory);
    DIR *dir = opendir(directory);
    TW_REQUIRE(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t len = strlen(entry->d_name);
        if (len > 4 && strcmp(entry->d_name + len - 4, ".txt") == 0) {
            TW_REQUIRE(count < FRAMES_MAX);
            frames_load_one(&all[count++], directory, entry->d_name);
        }
    }
    closedir(dir);
    return count;
}

static inline void frames_free(frames *all, size_t count) {
    for (size_t i = 0; i < count; i++) free(all[i].body);
}

#endif
