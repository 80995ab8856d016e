/* The client's side of a stream: cut into messages, stamped, and measured as it comes. */
#include "tailwatch/wire/client_response.h"

#include <string.h>

#include "base/arithmetic.h"
#include "base/tw_malloc.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define FIRST_ROOM 64
#define TIME_MAX (UINT64_C(1) << 62) /* sums of two such stay below 2^64 */

/* n deadlines at once. */
static uint64_t times(uint64_t step_ns, uint64_t n) {
    const wide product = (wide)step_ns * n;
    return product < TIME_MAX ? (uint64_t)product : TIME_MAX;
}

void tw_answer_init(tw_answer *answer) {
    memset(answer, 0, offsetof(tw_answer, head));
    tw_scan_init(&answer->scan, TW_FRAMING_RAW);
    answer->opaque = true;
}

void tw_answer_free(tw_answer *answer) {
    tw_free(answer->stamp);
    tw_answer_init(answer);
}

void tw_answer_begin(tw_answer *answer, uint64_t planned_ns, uint64_t ttft_ns, uint64_t step_ns) {
    uint64_t *stamp = answer->stamp;
    const size_t room = answer->room;
    memset(answer, 0, offsetof(tw_answer, head));
    answer->stamp = stamp;
    answer->room = room;
    answer->planned_ns = planned_ns;
    answer->ttft_ns = least(ttft_ns, TIME_MAX);
    answer->step_ns = least(step_ns, TIME_MAX);
    answer->opaque = true;
}

void tw_answer_framing(tw_answer *answer, tw_framing framing, bool objects_only) {
    answer->opaque = false;
    tw_scan_init(&answer->scan, framing);
    answer->scan.objects_only = objects_only;
}

/* ---- deadlines ---- */

/* As deadlines_judge() of stream.c: a late token misses every deadline that passed meanwhile, and the slack is gone. */
static void judge(tw_answer *answer, uint64_t waited, uint64_t deadline, uint64_t n) {
    const uint64_t budget = least(answer->slack_ns, TIME_MAX) + deadline;
    if (UNLIKELY(waited > budget)) {
        answer->due += (waited - budget) / deadline + 1;
        answer->slack_ns = 0;
    } else {
        answer->slack_ns = least(budget - waited, TIME_MAX);
        answer->due++;
        answer->met++;
    }
    if (n == 1) return;
    answer->slack_ns = least(answer->slack_ns + times(answer->step_ns, n - 1), TIME_MAX);
    answer->due += n - 1;
    answer->met += n - 1;
}

static void read_on(tw_answer *answer, uint64_t now_ns, uint64_t n, bool first) {
    if (!first && now_ns > answer->read_until_ns) answer->idle_ns += now_ns - answer->read_until_ns;
    answer->read_until_ns = most(first ? now_ns : answer->read_until_ns, now_ns) + times(answer->step_ns, n);
}

/* Of choice 0, before its new stamp is taken. */
static void judge_reader(tw_answer *answer, uint64_t now_ns, uint64_t n) {
    const tw_answer_choice *choice = &answer->choice[0];
    const bool first = choice->tokens == 0;
    if (answer->step_ns == 0) return;
    read_on(answer, now_ns, n, first);
    if (answer->ttft_ns == 0) return;
    const uint64_t since = first ? answer->planned_ns : choice->last_ns;
    judge(answer, now_ns > since ? now_ns - since : 0, first ? answer->ttft_ns : answer->step_ns, n);
}

/* ---- messages ---- */

static bool make_room(tw_answer *answer) {
    if (answer->room == TW_ANSWER_STAMPS) return false;
    const size_t room = answer->room == 0 ? FIRST_ROOM : answer->room * 2;
    uint64_t *stamp = tw_realloc(answer->stamp, room * sizeof *stamp);
    if (stamp == NULL) return false;
    answer->stamp = stamp;
    answer->room = room;
    return true;
}

static void keep_stamp(tw_answer *answer, uint64_t now_ns) {
    if (answer->stamps != answer->messages) return; /* one is missing: later ones would make a gap that was not */
    if (UNLIKELY(answer->stamps == answer->room) && !make_room(answer)) return;
    answer->stamp[answer->stamps++] = now_ns;
}

static void count_choice(tw_answer *answer, uint64_t now_ns, uint32_t at, uint32_t n) {
    if (at >= TW_ANSWER_CHOICES || n == 0) return;
    tw_answer_choice *choice = &answer->choice[at];
    if (at == 0) judge_reader(answer, now_ns, n);
    if (choice->tokens == 0) choice->first_ns = now_ns;
    if (answer->choices <= at) answer->choices = at + 1;
    choice->last_ns = now_ns;
    choice->tokens += n;
}

static void take_message(tw_answer *answer, const tw_scan_result *found, uint64_t now_ns) {
    if (answer->messages == 0) {
        answer->first_ns = now_ns;
    } else if (now_ns - answer->last_ns > answer->gap_ns) {
        answer->gap_ns = now_ns - answer->last_ns;
        answer->gap_at_ns = answer->last_ns;
    }
    for (uint32_t i = 0; i < found->events; i++) count_choice(answer, now_ns, found->choice[i], found->n[i]);
    keep_stamp(answer, now_ns);
    answer->messages++;
    answer->tokens += found->tokens;
    answer->last_ns = now_ns;
}

static void take(tw_answer *answer, const tw_scan_result *found, uint64_t now_ns) {
    if (found->tokens > 0) take_message(answer, found, now_ns);
    if (found->usage_tokens > answer->usage_tokens) answer->usage_tokens = found->usage_tokens;
    answer->done |= found->done;
    answer->error |= found->error;
}

/* Where the next event may begin: after an empty line, or a line of NDJSON; end where none ends before. The scanner
 * takes any cut; one too few only makes two messages one (bare CRs). */
static const char *event_end(uint32_t framing, const char *p, const char *end) {
    if (framing != TW_FRAMING_SSE && framing != TW_FRAMING_LINES) return end;
    if (*p == '\n') return p + 1; /* the empty line that the last read lacked */
    if (*p == '\r' && end - p > 1 && p[1] == '\n') return p + 2;
    for (;;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (stop == NULL || stop + 1 == end) return end;
        if (framing == TW_FRAMING_LINES) return stop + 1;
        if (stop[1] == '\n') return stop + 2;
        if (stop[1] == '\r' && end - stop > 2 && stop[2] == '\n') return stop + 3;
        p = stop + 1;
    }
}

static void keep_head(tw_answer *answer, const char *data, size_t len) {
    const size_t room = TW_ANSWER_HEAD - answer->head_len;
    if (len > room) len = room;
    if (len == 0) return;
    memcpy(answer->head + answer->head_len, data, len);
    answer->head_len += len;
}

static uint64_t stamp_of(tw_answer *answer, uint64_t now_ns) {
    now_ns = most(now_ns, most(answer->last_ns, 1));
    if (answer->chunk_ns == 0) answer->chunk_ns = now_ns;
    return now_ns;
}

/* The event that reports the error has more than what came before it. begun: bytes of it that earlier reads brought,
 * which the scanner's buffer still holds. */
static void keep_error(tw_answer *answer, size_t begun, const char *data, size_t len) {
    answer->head_len = 0;
    keep_head(answer, answer->scan.part, begun);
    keep_head(answer, data, len);
}

static bool first_error(const tw_answer *answer, const tw_scan_result *found) {
    return found->error && !answer->error && answer->messages > 0;
}

void tw_answer_feed(tw_answer *answer, const char *data, size_t len, uint64_t now_ns) {
    tw_scan_result found;
    if (len == 0) return;
    answer->bytes += len;
    if (answer->head_len < TW_ANSWER_HEAD) keep_head(answer, data, len);
    now_ns = stamp_of(answer, now_ns);
    if (answer->opaque) return;
    for (const char *p = data, *end = data + len; p < end;) {
        const char *stop = event_end(answer->scan.framing, p, end);
        const size_t begun = answer->scan.part_len;
        tw_scan_feed(&answer->scan, p, (size_t)(stop - p), &found);
        if (first_error(answer, &found)) keep_error(answer, begun, p, (size_t)(stop - p));
        take(answer, &found, now_ns);
        p = stop;
    }
}

void tw_answer_finish(tw_answer *answer, uint64_t now_ns) {
    tw_scan_result found;
    if (answer->opaque || answer->bytes == 0) return;
    const size_t begun = answer->scan.part_len;
    tw_scan_finish(&answer->scan, &found);
    if (first_error(answer, &found)) keep_error(answer, begun, NULL, 0);
    take(answer, &found, stamp_of(answer, now_ns));
}
