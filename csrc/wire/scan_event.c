/* Is this event a token? Known frames without content are named here; everything else counts. */
#include "wire/scan_event.h"

typedef enum { TEXT_NONE, TEXT_EMPTY, TEXT_FULL } text_seen;

typedef struct event_walk {
    tw_json json;
    tw_scan_result *out;
    bool want_model;
    bool has_choices, has_meta_info, has_error, is_done;
    text_seen seen;    /* outside choices[]: was there a text, and did it hold something? */
    uint64_t index;    /* at the top: SGLang's choice, but a token's number elsewhere (TGI) */
    tw_slice type;     /* "type" at the top */
    tw_event_marks *marks;
} event_walk;

static uint32_t entry_of(tw_scan_result *out, uint32_t choice) {
    for (uint32_t i = 0; i < out->events; i++)
        if (out->choice[i] == choice) return i;
    if (out->events == TW_SCAN_EVENTS) return choice == 0 ? 0 : entry_of(out, 0);
    out->choice[out->events] = choice;
    out->n[out->events] = 0;
    return out->events++;
}

void tw_event_count(tw_scan_result *out, uint64_t choice, uint64_t n) {
    if (n > UINT32_MAX - out->tokens) n = UINT32_MAX - out->tokens;
    uint32_t entry = entry_of(out, choice > UINT32_MAX ? UINT32_MAX : (uint32_t)choice);
    out->n[entry] += (uint32_t)n;
    out->tokens += (uint32_t)n;
}

/* ---- parts of a frame; each passes over exactly one value ---- */

static void mark_text(event_walk *walk, tw_slice text) {
    tw_event_marks *marks = walk->marks;
    if (marks->texts < TW_SCAN_TEXTS) marks->text[marks->texts] = text;
    marks->texts++;
}

static bool see_text(event_walk *walk) {
    tw_slice text = {NULL, 0};
    if (tw_json_is_empty(&walk->json, &text)) return false;
    if (text.at != NULL) mark_text(walk, text);
    return true;
}

static void note_text(event_walk *walk, bool holds) {
    if (holds) walk->seen = TEXT_FULL;
    else if (walk->seen == TEXT_NONE) walk->seen = TEXT_EMPTY;
}

static void see_model(event_walk *walk) {
    if (tw_json_peek(&walk->json) != '"') {
        tw_json_skip(&walk->json);
        return;
    }
    tw_slice name = tw_json_string(&walk->json);
    if (!walk->want_model || name.len == 0 || walk->json.bad) return;
    walk->out->model = name.at;
    walk->out->model_len = name.len;
    walk->want_model = false;
}

static void see_output_count(event_walk *walk) {
    uint64_t count = tw_json_count(&walk->json);
    if (count > walk->out->usage_tokens) walk->out->usage_tokens = count;
}

static void see_usage(event_walk *walk) {
    tw_slice key;
    if (!tw_json_enter(&walk->json, '{')) return;
    while (tw_json_key(&walk->json, &key)) {
        if (TW_IS(key, "completion_tokens") || TW_IS(key, "output_tokens")) see_output_count(walk);
        else tw_json_skip(&walk->json);
    }
}

static uint64_t see_ids(event_walk *walk) {
    uint64_t n = 0;
    if (!tw_json_enter(&walk->json, '[')) return 0;
    while (tw_json_element(&walk->json)) {
        tw_json_skip(&walk->json);
        n++;
    }
    return n;
}

/* What a delta has about itself rather than about the text. */
static bool is_delta_frame(tw_slice key) {
    return TW_IS(key, "role") || TW_IS(key, "type") || TW_IS(key, "name") || TW_IS(key, "signature") ||
           TW_IS(key, "hidden_states");
}

/* A delta, or a message in its place: does it hold content? */
static bool see_delta(event_walk *walk) {
    tw_slice key;
    bool holds = false;
    if (tw_json_peek(&walk->json) != '{') return see_text(walk);
    tw_json_enter(&walk->json, '{');
    while (tw_json_key(&walk->json, &key)) {
        if (is_delta_frame(key)) tw_json_skip(&walk->json);
        else if (see_text(walk)) holds = true;
    }
    return holds;
}

static void see_choice(event_walk *walk) {
    tw_slice key;
    uint64_t index = 0, n = 0;
    bool holds = false;
    if (!tw_json_enter(&walk->json, '{')) return;
    while (tw_json_key(&walk->json, &key)) {
        if (TW_IS(key, "index")) index = tw_json_count(&walk->json);
        else if (TW_IS(key, "delta") || TW_IS(key, "text") || TW_IS(key, "message")) holds |= see_delta(walk);
        else if (TW_IS(key, "token_ids")) n = see_ids(walk);
        else tw_json_skip(&walk->json);
    }
    if (n == 0 && holds) n = 1;
    if (n > 0) tw_event_count(walk->out, index, n);
}

static void see_choices(event_walk *walk) {
    const uint32_t before = walk->out->tokens;
    if (!tw_json_enter(&walk->json, '[')) {
        walk->has_choices = !walk->json.bad;
        return;
    }
    walk->has_choices = true;
    while (tw_json_element(&walk->json)) see_choice(walk);
    /* Not known to be without content. */
    if (walk->json.bad && walk->out->tokens == before) tw_event_count(walk->out, 0, 1);
}

/* "response" of Responses, "message" of Anthropic and Ollama. */
static void see_inner(event_walk *walk) {
    tw_slice key;
    if (!tw_json_enter(&walk->json, '{')) return;
    while (tw_json_key(&walk->json, &key)) {
        if (TW_IS(key, "model")) see_model(walk);
        else if (TW_IS(key, "usage")) see_usage(walk);
        else if (TW_IS(key, "content") || TW_IS(key, "thinking") || TW_IS(key, "tool_calls"))
            note_text(walk, see_text(walk));
        else tw_json_skip(&walk->json);
    }
}

static void see_string(event_walk *walk, tw_slice *to) {
    if (tw_json_peek(&walk->json) == '"') *to = tw_json_string(&walk->json);
    else tw_json_skip(&walk->json);
}

static void see_response(event_walk *walk) {
    if (tw_json_peek(&walk->json) == '"') note_text(walk, see_text(walk));
    else see_inner(walk);
}

static void see_error(event_walk *walk) {
    tw_slice text;
    if (!tw_json_is_empty(&walk->json, &text)) walk->has_error = true;
}

static void see_object(event_walk *walk) {
    tw_slice object = {NULL, 0};
    see_string(walk, &object);
    if (object.at != NULL && TW_IS(object, "error")) walk->has_error = true;
}

static void see_done(event_walk *walk) {
    if (tw_json_peek(&walk->json) == 't') walk->is_done = true;
    tw_json_skip(&walk->json);
}

static void see_meta_info(event_walk *walk) {
    walk->has_meta_info = true;
    see_usage(walk);
}

static void see_index(event_walk *walk) { walk->index = tw_json_count(&walk->json); }
static void see_type(event_walk *walk) { see_string(walk, &walk->type); }
static void see_top_text(event_walk *walk) { note_text(walk, see_text(walk)); }
static void see_top_delta(event_walk *walk) { note_text(walk, see_delta(walk)); }
static void see_top_ids(event_walk *walk) { note_text(walk, see_ids(walk) > 0); }
static void see_other(event_walk *walk) { tw_json_skip(&walk->json); }

/* Without content, and another in each event where a server numbers, names or times them. */
static void see_loose(event_walk *walk) {
    const char c = tw_json_peek(&walk->json);
    if (c == '"') walk->marks->loose = tw_json_string(&walk->json);
    else if (c >= '0' && c <= '9') walk->marks->loose = tw_json_scalar(&walk->json);
    else tw_json_skip(&walk->json);
}

/* Without content either, and of a length that hides the text's. */
static void see_padding(event_walk *walk) {
    tw_slice padding = {NULL, 0};
    see_string(walk, &padding);
    if (padding.len > 0) mark_text(walk, padding);
}

typedef void (*seer)(event_walk *);

static seer seer_of(tw_slice key) {
    switch (key.len) {
    case 2: return TW_IS(key, "id") ? see_loose : see_other;
    case 4:
        if (TW_IS(key, "type")) return see_type;
        if (TW_IS(key, "text")) return see_top_text;
        return TW_IS(key, "done") ? see_done : see_other;
    case 5:
        if (TW_IS(key, "model")) return see_model;
        if (TW_IS(key, "delta")) return see_top_delta;
        if (TW_IS(key, "usage")) return see_usage;
        if (TW_IS(key, "error")) return see_error;
        return TW_IS(key, "index") ? see_index : see_other;
    case 6: return TW_IS(key, "object") ? see_object : see_other;
    case 7:
        if (TW_IS(key, "choices")) return see_choices;
        return TW_IS(key, "message") ? see_inner : see_other;
    case 8:
        if (TW_IS(key, "response")) return see_response;
        return TW_IS(key, "thinking") ? see_top_text : see_other;
    case 9:
        if (TW_IS(key, "meta_info")) return see_meta_info;
        return TW_IS(key, "token_ids") ? see_top_ids : see_other;
    case 10:
        if (TW_IS(key, "eval_count")) return see_output_count;
        if (TW_IS(key, "created_at")) return see_loose;
        return TW_IS(key, "output_ids") ? see_top_ids : see_other;
    case 11: return TW_IS(key, "obfuscation") ? see_padding : see_other;
    case 15: return TW_IS(key, "sequence_number") ? see_loose : see_other;
    default: return see_other;
    }
}

/* ---- typed events ---- */

static bool is_silent_anthropic(tw_slice type) {
    return TW_IS(type, "message_start") || TW_IS(type, "content_block_start") || TW_IS(type, "content_block_stop") ||
           TW_IS(type, "message_delta") || TW_IS(type, "message_stop") || TW_IS(type, "ping") ||
           TW_IS(type, "keepalive");
}

/* Responses and realtime: what comes after the last dot is what happened. */
static bool is_silent_phase(tw_slice type) {
    const char *dot = memrchr(type.at, '.', type.len);
    if (dot == NULL) return false;
    tw_slice phase = {dot + 1, (size_t)(type.at + type.len - dot - 1)};
    if (TW_IS(phase, "delta")) return false;
    return TW_IS(phase, "created") || TW_IS(phase, "in_progress") || TW_IS(phase, "queued") || TW_IS(phase, "added") ||
           TW_IS(phase, "done") || TW_IS(phase, "completed") || TW_IS(phase, "incomplete") || TW_IS(phase, "failed") ||
           TW_IS(phase, "cancelled") || TW_IS(phase, "searching") || TW_IS(phase, "interpreting") ||
           TW_IS(phase, "generating") || TW_IS(phase, "updated") || TW_IS(phase, "committed");
}

static bool is_silent(tw_slice type) {
    return type.len > 0 && (is_silent_anthropic(type) || is_silent_phase(type));
}

static bool is_end(tw_slice type) {
    return TW_IS(type, "message_stop") || TW_IS(type, "response.completed") || TW_IS(type, "response.incomplete") ||
           TW_IS(type, "response.failed");
}

/* ---- the event ---- */

static void judge(event_walk *walk) {
    tw_scan_result *out = walk->out;
    const tw_slice type = walk->type.len > 0 ? walk->type : walk->json.event;
    if (type.len > 0) {
        if (TW_IS(type, "error") || TW_IS(type, "response.failed")) walk->has_error = true;
        if (is_end(type)) walk->is_done = true;
    }
    out->done |= walk->is_done;
    out->error |= walk->has_error;
    if (walk->has_choices || walk->has_error || is_silent(type)) return;
    if (walk->seen == TEXT_EMPTY || (walk->seen == TEXT_NONE && walk->is_done)) return;
    tw_event_count(out, walk->has_meta_info ? walk->index : 0, 1);
}

/* An `event:` field may come after the data. */
static void see_rest(tw_json *json) {
    while (json->sse && json->p < json->end) {
        json->p = tw_line_next(tw_line_end(json->p, json->end), json->end);
        tw_json_to_data(json);
    }
}

static bool is_done_mark(tw_json *json) {
    if (json->end - json->p < 6 || memcmp(json->p, "[DONE]", 6) != 0) return false;
    json->p += 6;
    return tw_json_peek(json) == '\0';
}

static void see_data(event_walk *walk) {
    tw_json *json = &walk->json;
    const char *start = json->p;
    if (*start == '{') {
        tw_slice key;
        json->p++;
        while (tw_json_key(json, &key)) seer_of(key)(walk);
        walk->marks->object = !json->bad;
    } else if (is_done_mark(json)) {
        walk->out->done = true;
        return;
    }
    if (json->bad) json->p = start;
    see_rest(json);
    judge(walk);
}

bool tw_event_look(const char *p, const char *end, bool sse, bool model_seen, tw_scan_result *out,
                   tw_event_marks *marks) {
    event_walk walk = {
        .json = {.p = p, .end = end, .sse = sse}, .out = out, .want_model = !model_seen, .marks = marks};
    marks->texts = 0;
    marks->object = false;
    marks->loose = (tw_slice){NULL, 0};
    if (end - p >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) walk.json.p += 3;
    if (sse) tw_json_to_data(&walk.json);
    if (tw_json_peek(&walk.json) == '\0') return false;
    see_data(&walk);
    return !walk.json.bad;
}
