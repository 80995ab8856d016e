#include "stamp/stream_parts.h"

#include <string.h>

#include "tailwatch/attribute/engine_id.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/record/event_recorder.h"
#include "tailwatch/stall/cgroup_cpu.h"
#include "tailwatch/stall/watchdog.h"

/* ---- its events ---- */

static inline void record(const tw_stream *s, tw_kind kind, uint64_t now_ns, uint64_t a, uint64_t n, uint64_t value) {
    const uint64_t tokens = least(n, UINT32_MAX), choice = least(a, UINT8_MAX);
    tw_record(s->trace, now_ns, tw_what(kind, (uint32_t)choice, s->series_index, (uint32_t)tokens), s->number, value);
}

static void record_delay(const tw_stream *s, uint64_t now_ns, tw_phase phase, const tw_charge *d) {
    if (s->trace == NULL || d->by_source.total_ns == 0) return;
    const uint32_t overlap_us = (uint32_t)least(d->by_source.total_ns / 1000, UINT32_MAX);
    tw_record(s->trace, now_ns, tw_what(TW_KIND_DELAY, phase, tw_engine_tag(s->engine), overlap_us), s->number, d->delay_ns);
}

static RARE void record_message(const tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice, bool first, uint64_t gap) {
    record(s, first ? TW_KIND_FIRST : TW_KIND_TOKEN, now_ns, choice, n, first ? s->arrival_ns : gap);
}

void tw_stream_trace(tw_stream *s, tw_recorder *trace) {
    s->trace = trace;
    s->number = tw_load(&s->segment->opened); /* also where recording began anew, with this one still open */
    record(s, TW_KIND_OPEN, s->entry_ns, (uint64_t)s->source, 0, s->arrival_ns);
}

/* ---- exemplars ---- */

/* After the sample, and only where the path is slow already. */
static RARE void exemplar_add(const tw_stream *s, tw_exemplar_metric metric, const tw_layout *layout, uint64_t value_ns,
                              uint64_t now_ns) {
    const uint64_t key = tw_exemplar_key(s->series_index, metric, tw_bound_of(layout, value_ns));
    tw_exemplar_put(s->segment->exemplars, key, value_ns, now_ns, s->trace_id);
}

/* Not inlined: a process without a group pays for no loop. */
static __attribute__((noinline)) bool peers_idle(const tw_stream *s, uint64_t from) {
    return tw_peers_idle_since(s->peer_set, s->engine, from);
}

static tw_served_by served_by(const tw_stream *s) { return (tw_served_by){s->peer_set, s->engine}; }

static void add_up(tw_stream *s, const tw_charge *d) {
    s->overlap_ns += d->by_source.total_ns;
    s->delay_ns += d->delay_ns;
}

/* ---- what is known of a token before it is sent ---- */

void tw_stream_received(tw_stream *s, uint64_t key_ns, uint64_t recv_ns, uint64_t processed_ns) {
    const tw_token_chain token = {key_ns, recv_ns, processed_ns};
    if (s->closed) return;
    if (s->chained == 0 || s->chained_at != s->messages) { /* the first since the last stamp */
        s->chain_before = s->chain_last;
        s->chain_first = token;
        s->chained_before = s->chained != 0 && s->messages - s->chained_at <= s->chained; /* each in a message */
        s->chained = s->held = 0;
    } else if (s->messages != 0 && s->held < s->interval) {
        s->chain_first = token;
    }
    s->held++;
    s->chain_last = token;
    s->chained_at = s->messages;
    s->chained++;
}

void tw_stream_worked(tw_stream *s, uint32_t track, uint64_t from_ns, uint64_t to_ns) {
    if (s->messages != 0 || s->closed) return;
    tw_own_work_add(&s->own, &s->segment->host, track, &s->segment->pause, most(from_ns, s->entry_ns), to_ns,
                    s->ordinal);
}

/* The token that is stamped now, if it was received; the one before it, if that was. */
static void chain_of(const tw_stream *s, tw_wait *w) {
    if (s->chained == 0 || s->chained_at != s->messages) return;
    w->token = &s->chain_first;
    w->before = s->chained_before ? &s->chain_before : NULL;
    const bool kept = w->before != NULL && w->before->key_ns == s->kept_key_ns;
    const uint64_t from = w->before == NULL ? w->from_ns : kept ? w->before->recv_ns : w->before->key_ns;
    w->ready = (tw_ready){.known = true, .by_engine = w->before != NULL, .lo_ns = w->token->key_ns,
                          .hi_ns = w->token->key_ns, .engine_from_ns = from, .recv_ns = w->token->recv_ns};
    if (w->before != NULL) w->ready.way_ns = since(w->before->recv_ns, w->before->key_ns);
}

/* ---- the context in which it is stamped ---- */

static uint64_t context_now(const tw_stream *s) { return s->read_context == NULL ? 0 : s->read_context(); }

/* An address that another context had before is no evidence: one that lives since the first token is. */
static uint64_t lasting_context(const tw_stream *s) {
    return s->context != 0 && s->context == context_now(s) ? s->context : 0;
}

/* ---- what a wait was ---- */

static tw_wait wait_of(const tw_stream *s, tw_phase phase, uint64_t from_ns, uint64_t to_ns, uint64_t typical_ns) {
    tw_wait w = {.phase = phase, .from_ns = from_ns, .to_ns = to_ns, .typical_ns = typical_ns,
                 .client_ns = least(s->client_ns, to_ns - from_ns), .client_until_ns = s->client_until_ns,
                 .client_before_ns = s->client_before_ns, .request = s->request, .interval = s->interval,
                 .ordinal = s->ordinal, .context = lasting_context(s), .track = -1};
    w.ready = tw_ready_by_loop(s->segment, from_ns, &w.track);
    chain_of(s, &w);
    return w;
}

/* Whether the log asks for a wait of that length, whatever is slow. */
static bool is_logged(const tw_stream *s, uint64_t ns) {
    const uint64_t least_ns = tw_load(&s->segment->slow_ns);
    return least_ns != 0 && ns >= least_ns;
}

/* Explains a wait and keeps it. slow: else it is for the log, and in no sum. */
static RARE void keep(tw_stream *s, const tw_wait *w, const tw_charge *d, bool slow) {
    tw_segment *g = s->segment;
    tw_parts parts = {0};
    if (w->track >= 0 && tw_load(&g->host.track[w->track].point_head) != 0) {
        tw_host_point_now(&g->host, (uint32_t)w->track);
        const uint64_t now = tw_now_ns();
        tw_throttled_note(&g->host, &g->host.by_loop, now);
        tw_stop_note_of(&g->host, (uint32_t)w->track, now); /* the loop may go on before the watchdog does */
    }
    const bool joined = tw_wait_explain(g, served_by(s), w, d, true, &parts);
    if (slow && !joined) tw_add(&g->drops[TW_DROP_UNJOINED], 1);
    if (slow) tw_tail_add(g, w, d, &parts);
    if (slow) tw_wait_book(g, w, &parts);
    tw_slow_add(s, w, d, &parts);
}

/* A wait that was looked at. */
static RARE void explain(tw_stream *s, const tw_wait *w, const tw_charge *d, bool slow) {
    tw_parts parts = {0};
    if (slow || is_logged(s, tw_wait_length(w))) keep(s, w, d, slow);
    if (slow || d->delay_ns == 0) return;
    (void)tw_wait_explain(s->segment, served_by(s), w, d, false, &parts);
    tw_tail_add(s->segment, w, d, &parts);
}

/* The pause that kept a token from leaving its engine is none of the next one's. */
static void note_leaving(tw_stream *s, const tw_wait *w, const tw_charge *d) {
    if (d->leaving_ns > 0) s->kept_key_ns = w->token->key_ns;
}

/* ---- one gap ---- */

/* A gap over the alert, or one that a pause may have touched. Returns its delay part. */
static RARE uint64_t gap_examine(tw_stream *s, uint64_t now_ns) {
    tw_charge d;
    const uint64_t from = s->last_ns, gap = now_ns - from, typical = tw_stream_typical_ns(s);
    const tw_wait w = wait_of(s, TW_PHASE_ITL, from, now_ns, typical);
    tw_charge_gap(s->segment, served_by(s), from, now_ns, typical, &w.ready, &d);
    add_up(s, &d);
    note_leaving(s, &w, &d);
    const uint64_t delay_ns = least(d.delay_ns, gap);
    if (delay_ns > 0) tw_histogram_move(&s->series->itl_shift, s->itl_layout, gap, gap - delay_ns);
    const bool paused = d.by_source.total_ns > 0, seen = paused || gap > tw_slow_limit(s->typical_ns, true);
    explain(s, &w, &d, seen && gap > tw_slow_limit(typical, paused)); /* seen: also without the log's bound */
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_ITL, s->itl_layout, gap, now_ns);
    record_delay(s, now_ns, TW_PHASE_ITL, &d);
    return delay_ns;
}

/* rest: the gap without its delay part. */
static inline void gap_record(tw_stream *s, uint64_t gap, uint64_t rest) {
    tw_histogram_record(&s->series->itl, s->itl_layout, gap);
    if (gap > s->worst_gap_ns) s->worst_gap_ns = gap;
    uint64_t units = rest >> RECENT_SHIFT, gaps = s->messages;
    s->recent64[(gaps - 1) % TW_RECENT] = (uint32_t)(units < INT32_MAX ? units : INT32_MAX);
    s->messages = gaps + 1;
    s->client_ns = 0;
    s->client_before_ns = s->client_until_ns;
    if (UNLIKELY(gaps % TYPICAL_EVERY == 0)) tw_typical_refresh(s, gaps);
}

/* ---- tokens ---- */

static void first_token_examine(tw_stream *s, uint64_t now_ns, uint64_t ttft) {
    tw_charge d;
    uint64_t entry = least(s->entry_ns, now_ns);
    tw_wait w = wait_of(s, TW_PHASE_TTFT, s->arrival_ns, now_ns, 0);
    tw_charge_first_token(s->segment, served_by(s), s->arrival_ns, entry, now_ns, tw_load(&s->series->typical_ttft_ns),
                          &w.ready, &d);
    add_up(s, &d);
    note_leaving(s, &w, &d);
    w.accept_ns = since(entry - s->arrival_ns, d.before_entry_ns);
    w.own = &s->own;
    explain(s, &w, &d, tw_ttft_is_slow(s, ttft, since(ttft, d.delay_ns)));
    record_delay(s, now_ns, TW_PHASE_TTFT, &d);
}

/* It waits no more. */
static void run(tw_stream *s) {
    if (s->running) return;
    s->running = 1;
    tw_add(&s->segment->ttft_by_concurrency.running, 1);
}

static void first_token(tw_stream *s, uint64_t now_ns) {
    uint64_t ttft = now_ns - s->arrival_ns;
    tw_histogram_record(&s->series->ttft, tw_layout_of(TW_LAYOUT_TTFT), ttft);
    first_token_examine(s, now_ns, ttft);
    s->context = context_now(s);
    tw_ttft_note(&s->segment->ttft_by_concurrency, s->concurrency, ttft, now_ns);
    run(s);
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_TTFT, tw_layout_of(TW_LAYOUT_TTFT), ttft, now_ns);
    s->first_ns = now_ns;
    s->messages = 1;
    s->client_ns = 0;
}

static void choice_open(tw_stream *s, uint64_t now_ns, uint32_t choice) {
    if (choice < TW_CHOICES) {
        s->choice[choice].first_ns = now_ns;
        if (s->choices <= TW_CHOICES) ++s->choices;
    } else if (s->choices <= TW_CHOICES) {
        s->choices = TW_CHOICES + 1;
        tw_add(&s->segment->drops[TW_DROP_CHOICE], 1);
    }
}

static void choice_count(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (choice < TW_CHOICES) {
        s->choice[choice].last_ns = now_ns;
        s->choice[choice].tokens += n;
    } else {
        s->other_tokens += n;
    }
    tw_add(&s->series->output_tokens, n);
    s->last_ns = now_ns;
}

/* The first token of a stream or of a choice, a choice that is not tracked, a time before the last, no stamp at all. */
static RARE void irregular_token(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (n == 0 || (s->opaque && !s->closed)) return;
    if (s->closed || now_ns < s->last_ns) tw_add(&s->segment->drops[TW_DROP_OUT_OF_ORDER_STAMP], 1);
    if (s->closed) return;
    now_ns = most(now_ns, s->last_ns);
    const bool first = s->messages == 0;
    const uint64_t waited = now_ns - s->last_ns;
    if (first) {
        first_token(s, now_ns);
    } else {
        uint64_t gap = now_ns - s->last_ns;
        gap_record(s, gap, gap - gap_examine(s, now_ns));
    }
    bool fresh = choice >= TW_CHOICES || s->choice[choice].tokens == 0;
    if (choice == 0)
        tw_deadlines_judge(s, now_ns - (fresh ? s->arrival_ns : s->choice[0].last_ns),
                        fresh ? least(s->slo.ttft_ns, SLACK_MAX) : s->deadline_ns, n);
    if (fresh) choice_open(s, now_ns, choice);
    choice_count(s, now_ns, n, choice);
    if (s->trace != NULL) record_message(s, now_ns, n, choice, first, waited);
}

void tw_stream_token(tw_stream *s, uint64_t now_ns, uint32_t n, uint32_t choice) {
    if (UNLIKELY((s->opaque | s->closed) != 0 || choice >= TW_CHOICES || n == 0 || s->choice[choice].tokens == 0 ||
                 now_ns < s->last_ns)) {
        irregular_token(s, now_ns, n, choice);
        return;
    }
    uint64_t gap = now_ns - s->last_ns, delay_ns = 0;
    if (UNLIKELY(gap > s->alert_ns || !tw_pause_quiet_since(&s->segment->pause, s->last_ns) ||
                 (s->peer_set != NULL && !peers_idle(s, s->last_ns))))
        delay_ns = gap_examine(s, now_ns);
    gap_record(s, gap, gap - delay_ns);
    if (choice == 0) tw_deadlines_judge(s, now_ns - s->choice[0].last_ns, s->deadline_ns, n);
    s->choice[choice].last_ns = s->last_ns = now_ns;
    s->choice[choice].tokens += n;
    tw_add(&s->series->output_tokens, n);
    if (UNLIKELY(s->trace != NULL))
        tw_record(s->trace, now_ns, (uint64_t)TW_KIND_TOKEN | (uint64_t)choice << 8 | (uint64_t)n << 32, s->number, gap);
}

/* The message has its stamp: what it holds for another choice ends no gap. */
void tw_stream_token_also(tw_stream *s, uint32_t n, uint32_t choice) {
    if (n == 0 || s->closed || s->opaque || s->messages == 0) return;
    if (choice >= TW_CHOICES || s->choice[choice].tokens == 0) choice_open(s, s->last_ns, choice);
    choice_count(s, s->last_ns, n, choice);
    if (s->trace != NULL) record_message(s, s->last_ns, n, choice, false, 0);
}

/* ---- around the tokens ---- */

void tw_stream_open(tw_stream *s, tw_segment *g, uint64_t arrival_ns, uint64_t entry_ns, uint64_t proxy_ns,
                    tw_arrival source) {
    memset(s, 0, sizeof *s);
    s->segment = g;
    s->itl_layout = tw_layout_of(TW_LAYOUT_ITL);
    s->arrival_ns = s->last_ns = least(arrival_ns, entry_ns);
    s->entry_ns = entry_ns;
    s->source = (uint32_t)source;
    s->slo = (tw_slo){tw_load(&g->slo.ttft_ns), tw_load(&g->slo.tpot_ns), tw_load(&g->slo.itl_ns),
                      tw_load(&g->slo.e2e_ns), tw_load(&g->slo.attainment_ppm)};
    uint64_t step_ns = s->slo.tpot_ns != 0 ? s->slo.tpot_ns : s->slo.itl_ns;
    s->deadline_ns = s->slo.ttft_ns != 0 ? least(step_ns, SLACK_MAX) : 0;
    tw_stream_label(s, 0);
    const tw_layout *layout = tw_layout_of(TW_LAYOUT_TTFT);
    if (proxy_ns > 0) tw_histogram_record(&g->queue_proxy, layout, proxy_ns);
    tw_histogram_record(&g->queue_accept, layout, entry_ns - s->arrival_ns);
    if ((unsigned)source < TW_ARRIVALS) tw_add(&g->arrivals[source], 1);
    tw_add(&g->opened, 1);
    s->ordinal = tw_load(&g->opened);
    s->concurrency = tw_load(&g->in_flight) + 1;
    tw_store(&g->in_flight, s->concurrency);
}

void tw_stream_join(tw_stream *s, const tw_peer_set *peer_set, uint64_t engine) {
    s->peer_set = peer_set;
    s->engine = engine;
}

void tw_stream_label(tw_stream *s, uint32_t series_index) {
    if (series_index >= tw_load(&s->segment->series_count)) series_index = 0;
    s->series_index = series_index;
    s->series = tw_segment_series(s->segment, series_index);
    if (s->messages <= TYPICAL_EVERY) tw_typical_set(s, tw_typical_of_series(s->series));
}

void tw_stream_identify(tw_stream *s, const char *request_id, size_t request_len, const char *trace_id,
                        size_t trace_len) {
    tw_words_set(s->request_id, TW_ID_WORDS, request_id, request_len);
    s->request = request_len > 0 ? tw_request_hash(request_id, request_len) : 0;
    tw_words_set(s->trace_id, TW_TRACE_WORDS, trace_id, trace_len);
}

void tw_stream_exemplify(tw_stream *s) {
    char id[TW_TRACE_WORDS * 8];
    tw_words_get(s->trace_id, TW_TRACE_WORDS, id);
    s->exemplary = tw_exemplar_id_is_good(id);
}

void tw_stream_usage(tw_stream *s, uint64_t completion_tokens) {
    s->usage_tokens = most(s->usage_tokens, least(completion_tokens, UINT32_MAX));
}

void tw_stream_send_wait(tw_stream *s, uint64_t from_ns, uint64_t to_ns) {
    tw_histogram_record(&s->segment->send_wait, tw_layout_of(TW_LAYOUT_TTFT), since(to_ns, from_ns));
    s->client_ns += since(to_ns, most(from_ns, s->last_ns));
    s->client_until_ns = most(s->client_until_ns, to_ns);
}

void tw_stream_opaque(tw_stream *s) {
    if (s->opaque) return;
    s->opaque = 1;
    tw_add(&s->segment->drops[TW_DROP_UNREADABLE_BODY], 1);
}

void tw_stream_body(tw_stream *s, uint64_t now_ns) {
    if (s->body_ns != 0) return;
    s->body_ns = most(now_ns, s->arrival_ns);
    if (s->opaque && !s->closed) run(s);
}

uint64_t tw_stream_tokens(const tw_stream *s) { return most(tw_counted_tokens(s), s->usage_tokens); }

/* ---- the end ---- */

/* As the GenAI conventions have it: of a request, and only of one that was answered. */
static void served_answer(tw_stream *s, tw_served *served, uint64_t now_ns) {
    if (s->messages == 0 || s->opaque) return;
    const uint64_t tokens = tw_stream_tokens(s);
    tw_histogram_record(&served->ttft, tw_layout_of(TW_LAYOUT_TTFT), s->first_ns - s->arrival_ns);
    if (tokens > 1) tw_histogram_record(&served->tpot, s->itl_layout, (now_ns - s->first_ns) / (tokens - 1));
}

static void served_record(tw_stream *s, uint64_t now_ns, tw_end end, tw_reason reason) {
    tw_served *served = tw_segment_served(s->segment, s->series);
    const tw_failure failure = tw_failure_of(reason);
    if (served == NULL) return;
    if (tw_stream_answered(s, end)) served_answer(s, served, now_ns);
    else if (failure != TW_FAILURES) tw_brief_record(&served->failed[failure], now_ns - s->arrival_ns);
}

static void answer_record(tw_stream *s, uint64_t now_ns) {
    tw_histogram_record(&s->series->e2e, tw_layout_of(TW_LAYOUT_E2E), now_ns - s->arrival_ns);
    if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_E2E, tw_layout_of(TW_LAYOUT_E2E), now_ns - s->arrival_ns, now_ns);
    for (int i = 0; i < TW_CHOICES && !s->opaque; ++i) {
        tw_tpot t = tw_stream_tpot(s, i);
        if (t.steps == 0) continue;
        tw_histogram_record(&s->series->tpot, s->itl_layout, t.span_ns / t.steps);
        if (s->exemplary) exemplar_add(s, TW_EXEMPLAR_TPOT, s->itl_layout, t.span_ns / t.steps, now_ns);
    }
}

void tw_stream_close(tw_stream *s, uint64_t now_ns, tw_end end) {
    if (s->closed) return;
    tw_segment *g = s->segment;
    if (now_ns < s->last_ns) {
        tw_add(&g->drops[TW_DROP_OUT_OF_ORDER_STAMP], 1);
        now_ns = s->last_ns;
    }
    tw_reason reason = tw_stream_verdict(s, now_ns, end);
    tw_add(&s->series->reasons[reason], 1);
    tw_add(&s->series->output_tokens, since(s->usage_tokens, tw_counted_tokens(s)));
    if (tw_stream_answered(s, end)) answer_record(s, now_ns);
    served_record(s, now_ns, end, reason);
    if (end == TW_END_ABORT && s->messages == 0 && s->status < 300)
        tw_histogram_record(&g->abandoned_wait, tw_layout_of(TW_LAYOUT_TTFT), now_ns - s->arrival_ns);
    tw_window_add(s, now_ns, end, tw_reason_outcome(reason));
    uint64_t in_flight = tw_load(&g->in_flight);
    if (in_flight > 0) tw_store(&g->in_flight, in_flight - 1); /* a fork child started again from zero */
    uint64_t running = tw_load(&g->ttft_by_concurrency.running);
    if (s->running && running > 0) tw_store(&g->ttft_by_concurrency.running, running - 1);
    if (s->trace != NULL) record(s, TW_KIND_CLOSE, now_ns, (uint64_t)reason, tw_stream_tokens(s), s->arrival_ns);
    s->reason = (uint32_t)reason;
    s->end_ns = now_ns;
    s->closed = 1;
}
