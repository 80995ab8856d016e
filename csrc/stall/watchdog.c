#include "tailwatch/stall/watchdog.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/arithmetic.h"
#include "base/tw_malloc.h"
#include "tailwatch/base/atomic.h"
#include "tailwatch/base/clock.h"
#include "tailwatch/record/step_stats.h"
#include "tailwatch/stall/cgroup_cpu.h"
#include "tailwatch/stall/thread_state.h"

#define STACK_BYTES (256 * 1024)
#define QUIET_NS TW_NS_PER_SECOND     /* without a stream for so long it sleeps */
#define BASELINE_NS TW_NS_PER_SECOND  /* the cgroup's counter is read so often */

/* What it keeps of a thread. */
typedef struct followed {
    uint64_t thread;           /* 0: not followed */
    uintptr_t state;
    int syscall;
    uint64_t stall_since_ns;   /* of the stall that was seen last */
    uint64_t next_ns;          /* when the next sample of it is due */
    uint64_t open;             /* number of the span that grows, + 1; 0: none */
    uint64_t argument;         /* of the system call that the latest sample shows */
    uint64_t left_ns;          /* when it was seen to be over; 0: it was not */
    tw_host_span span;
} followed;

struct tw_watchdog {
    pthread_t thread;
    tw_host *host;
    const uint64_t *in_flight;
    uint64_t works;            /* not 0: for streams of other processes */
    tw_interpreter interpreter;
    tw_reader reader;
    bool reads;
    int cgroup;
    uint32_t signal;           /* futex: one more with each call */
    uint32_t stopping;
    uint64_t sleeps;           /* not 0: until it is called */
    pthread_mutex_t changes;   /* of `of`: the GIL's holder against the watchdog */
    followed of[TW_TRACKS];
    /* its thread's own */
    uint64_t budget_ns, budget_at_ns, cpu_ns, woke_ns, run_delay_ns, busy_ns;
    uint64_t stopped_from_ns, stopped_until_ns; /* the latest stop of the process that it noted */
    int schedstat;
};

/* ---- stops ---- */

#define RUNNABLE_SHARE 4 /* of a time: a thread that was runnable for so much of it was not stopped */

/* Whether the quota of CPU time held the process back since the watchdog's latest turn: that looks like a stop. */
static bool was_throttled(tw_host *host, tw_span_ring *ring, uint64_t now_ns) {
    tw_throttled_note(host, ring, now_ns);
    const uint64_t throttled = since(tw_load(&host->throttled_ns), tw_load(&host->watchdog_throttled_ns));
    return throttled > since(now_ns, tw_load(&host->watchdog_turn_ns)) / RUNNABLE_SHARE;
}

uint64_t tw_stop_note(tw_host *host, uint64_t now_ns) {
    const uint64_t turn = tw_load(&host->watchdog_turn_ns);
    const uint64_t from = most(turn, tw_watch_silent_from(tw_load(&host->watchdog_due_ns)));
    if (!tw_host_stood_still(host, now_ns) || was_throttled(host, &host->by_loop, now_ns)) return 0;
    if (__atomic_exchange_n(&host->stop_noted_ns, from, __ATOMIC_RELAXED) == from) return from;
    const tw_host_span span = {0, from, now_ns, tw_span_what(TW_SPAN_SILENCE, TW_ALL_TRACKS, TW_MEASURED), 0,
                               TW_SILENCE_STOPPED, {0, 0}};
    tw_span_add(&host->by_loop, &span);
    return from;
}

/* A loop waited for events as the process began to stand still, at stopped_ns or before: nothing of the process ran since
 * then, or since the watchdog's turn. */
static void note_waiting(tw_host *host, tw_span_ring *ring, uint32_t track, uint64_t idle_since_ns, uint64_t stopped_ns) {
    const uint64_t from = idle_since_ns + since(tw_process_cpu_ns(), tw_load(&host->watchdog_process_cpu_ns));
    const tw_host_span span = {0, from, stopped_ns, tw_span_what(TW_SPAN_SILENCE, track, TW_ESTIMATED), 0,
                               TW_SILENCE_STOPPED, {0, 0}};
    if (from < stopped_ns) tw_span_add(ring, &span);
}

uint64_t tw_stop_note_waiting(tw_host *host, uint32_t track, uint64_t waits_since_ns, uint64_t now_ns) {
    const uint64_t turn = tw_load(&host->watchdog_turn_ns), stopped = tw_stop_note(host, now_ns);
    if (stopped == 0) return 0;
    if (turn != 0) note_waiting(host, &host->by_loop, track, most(turn, waits_since_ns), stopped);
    return most(stopped, waits_since_ns);
}

void tw_stop_note_of(tw_host *host, uint32_t track, uint64_t now_ns) {
    const tw_host_track *t = &host->track[track];
    const uint64_t head = tw_load_acquire(&t->point_head);
    tw_host_point p, q;
    if (head < 2 || !tw_host_track_read(t, head - 2, &p) || !tw_host_track_read(t, head - 1, &q)) return;
    if (tw_host_delay_between(&p, &q) > (q.at_ns - p.at_ns) / RUNNABLE_SHARE) return;
    (void)tw_stop_note(host, now_ns);
}

/* ---- sleeping ---- */

static void futex_wait(const uint32_t *word, uint32_t value, const struct timespec *timeout) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout, NULL, 0);
}

static void futex_wake(const uint32_t *word) { (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL,
    0); }

static uint32_t load32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

bool tw_watchdog_sleeps(const tw_watchdog *w) { return tw_load(&w->sleeps) != 0; }

void tw_watchdog_call(tw_watchdog *w) {
    __atomic_fetch_add(&w->signal, 1, __ATOMIC_SEQ_CST);
    futex_wake(&w->signal);
}

static bool is_needed(const tw_watchdog *w) { return tw_load(w->in_flight) != 0 || tw_load(&w->works) != 0; }

/* Until it is called. */
static void sleep_long(tw_watchdog *w) {
    const uint32_t seen = load32(&w->signal);
    tw_store(&w->host->watchdog_turn_ns, 0);
    __atomic_store_n(&w->sleeps, 1, __ATOMIC_SEQ_CST);
    if (!is_needed(w) && load32(&w->stopping) == 0) futex_wait(&w->signal, seen, NULL);
    tw_store(&w->sleeps, 0);
}

void tw_watchdog_works(tw_watchdog *w, bool works) {
    tw_store(&w->works, works);
    if (works && tw_watchdog_sleeps(w)) tw_watchdog_call(w);
}

/* ---- the thread's own counters: what it costs, and why it was late ---- */

static uint64_t own_run_delay_ns(const tw_watchdog *w) {
    tw_host_track own = {.schedstat = w->schedstat < 0 ? 0 : (uint64_t)w->schedstat + 1};
    tw_host_point point;
    tw_host_point_read(&own, &point);
    return point.run_delay_ns;
}

static void note_cost(tw_watchdog *w, uint64_t now) {
    const uint64_t cpu = tw_thread_cpu_ns(), used = since(cpu, w->cpu_ns);
    const uint64_t earned = since(now, w->budget_at_ns) / (1000000 / TW_WATCH_BUDGET_PPM);
    w->budget_ns = least(w->budget_ns + earned, TW_WATCH_BURST_NS);
    w->budget_ns = since(w->budget_ns, used);
    w->budget_at_ns = now;
    w->cpu_ns = cpu;
    tw_store(&w->host->watchdog_cpu_ns, cpu);
}

/* ---- spans of the whole process ---- */

static void add_span(tw_watchdog *w, tw_span_kind kind, tw_certainty certainty, uint64_t from, uint64_t to,
                     uint64_t detail) {
    const tw_host_span span = {0, from, to, tw_span_what(kind, TW_ALL_TRACKS, certainty), 0, detail, {0, 0}};
    tw_span_add(&w->host->by_watchdog, &span);
}

static void note_throttled(tw_watchdog *w, uint64_t now) { tw_throttled_note(w->host, &w->host->by_watchdog, now); }

/* now: it runs again, and was runnable for delayed_ns before. */
static bool was_stopped(const tw_watchdog *w, uint64_t due, uint64_t delayed_ns, uint64_t now) {
    const uint64_t used = since(tw_process_cpu_ns(), tw_load(&w->host->watchdog_process_cpu_ns));
    if (now - delayed_ns <= due + TW_SILENCE_NS) return false;
    if (tw_host_stood_still(w->host, now)) return true;
    return tw_load(&w->host->facts.knowledge[TW_HOST_SCHEDSTAT]) == TW_KNOWN + 1 &&
           tw_watch_was_stopped(since(due, w->woke_ns), since(now - delayed_ns, most(due, w->woke_ns)), delayed_ns, used);
}

/* The loops that wait for events, as far as they have not woken up before it. */
static void note_waiting_loops(tw_watchdog *w) {
    for (uint32_t i = 0; i < TW_TRACKS; i++) {
        const tw_host_track *t = &w->host->track[i];
        const uint64_t since_ns = tw_load(&t->waiting_since_ns);
        if (tw_host_is_of_loop(t) && since_ns != 0)
            note_waiting(w->host, &w->host->by_watchdog, i, most(w->woke_ns, since_ns), w->stopped_from_ns);
    }
}

/* It was to wake at due, and was silent since a usual period before, or since the end of its last turn. What it was
 * runnable for stands at the end. */
static void note_silence(tw_watchdog *w, uint64_t due, uint64_t now) {
    const uint64_t from = most(w->woke_ns, tw_watch_silent_from(due));
    const uint64_t delayed = least(since(own_run_delay_ns(w), w->run_delay_ns), now - from);
    const uint64_t until = now - delayed;
    const bool stopped = was_stopped(w, due, delayed, now) && !was_throttled(w->host, &w->host->by_watchdog, now);
    if (stopped) {
        add_span(w, TW_SPAN_SILENCE, TW_MEASURED, from, until, TW_SILENCE_STOPPED);
        w->stopped_from_ns = from;
        w->stopped_until_ns = until;
        note_waiting_loops(w);
    }
    if (delayed < TW_SILENCE_NS) return;
    add_span(w, TW_SPAN_SILENCE, TW_MEASURED, stopped ? until : from, now, TW_SILENCE_STARVED);
    note_throttled(w, now);
}

/* ---- a sample ---- */

/* "  [read /path]" behind the function. */
static size_t name_call(const tw_thread_state *s, char *to, size_t size) {
    char call[32], path[32], target[48] = "";
    tw_syscall_name(s->number, call, sizeof call);
    if (tw_syscall_has_descriptor(s->number)) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", (int)s->argument);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
    }
    const int n = snprintf(to, size, "  [%s%s%s]", call, *target ? " " : "", target);
    return n < 0 ? 0 : least((uint64_t)n, size - 1);
}

static void keep_frames(tw_host *host, const tw_python_frame *frames, uint32_t n, uint64_t to[2]) {
    char name[TW_NAME_TEXT];
    for (uint32_t k = 0; k < n && k < TW_STACK; k++) {
        const size_t length = tw_frames_name(&frames[k], 1, name, sizeof name);
        tw_span_frame_set(to, k, tw_name_intern(&host->frames, name, length));
    }
}

/* stack: where its frames go, if they are wanted; or NULL. */
static size_t name_stack(tw_watchdog *w, uintptr_t state, char *to, size_t size, uint64_t *stack) {
    tw_python_frame frames[TW_FRAMES];
    if (!w->reads || state == 0) return 0;
    const bool wanted = stack != NULL && tw_load(&w->host->stacks_wanted) != 0;
    const uint32_t n = tw_frames_read(&w->interpreter, &w->reader, state, frames, wanted ? TW_STACK : TW_FRAMES_NAME);
    if (n == 0) tw_add(&w->host->stacks_refused, 1);
    if (wanted) keep_frames(w->host, frames, n, stack);
    return tw_frames_name(frames, n, to, size);
}

static uint64_t name_of(tw_watchdog *w, uintptr_t state, const tw_thread_state *call, uint64_t *stack) {
    char name[TW_NAME_TEXT];
    const size_t room = call == NULL ? sizeof name : sizeof name - 40; /* a call's own name is never cut off */
    size_t n = name_stack(w, state, name, room, stack);
    if (call != NULL) n += name_call(call, name + n, sizeof name - n);
    return tw_name_intern(&w->host->names, name, n);
}

/* What a thread does now: kind, name, detail and frames of a span. */
static void look(tw_watchdog *w, followed *f, uint32_t track, tw_host_span *out) {
    tw_thread_state s;
    tw_thread_state_read(f->syscall, &s);
    f->argument = s.argument;
    tw_span_kind kind = TW_SPAN_RUN;
    if (s.known && !s.runs && s.number >= 0) {
        kind = tw_gil_has(&w->interpreter, s.argument) ? TW_SPAN_GIL : tw_syscall_kind(s.number, s.argument);
        out->detail = (uint64_t)s.number;
    } else if (w->reads && tw_load(&w->host->track[track].handle_since_ns) == 0) {
        out->detail = tw_thread_context(&w->interpreter, &w->reader, f->state);
    }
    out->what = tw_span_what(kind, track, TW_SAMPLED);
    out->name = name_of(w, f->state, kind == TW_SPAN_IO ? &s : NULL, out->frames);
    if (kind != TW_SPAN_GIL) return;
    const uintptr_t holder = w->reads ? tw_gil_holder(&w->interpreter, &w->reader) : 0;
    out->detail = holder == 0 || holder == f->state ? 0 : name_of(w, holder, NULL, NULL);
}

/* When what is seen now began, as far as is known: with the stall, half way after what was seen before, up to when that was
 * seen to be over, or after a stop, and not before the handle that runs. */
static uint64_t start_of(const tw_watchdog *w, const tw_host_track *t, const followed *f, uint64_t now) {
    const uint64_t before = most(f->span.to_ns, least(w->stopped_until_ns, now));
    const uint64_t after = f->left_ns > before ? f->left_ns : now;
    const uint64_t from = f->open == 0 ? most(f->stall_since_ns, w->stopped_until_ns) : before + (after - before) / 2;
    return least(most(from, tw_load(&t->handle_since_ns)), now);
}

static bool is_same(const tw_host_span *a, const tw_host_span *b) {
    return a->what == b->what && a->name == b->name && a->detail == b->detail;
}

static void grow(tw_watchdog *w, followed *f, uint64_t to_ns) {
    f->span.to_ns = to_ns;
    tw_span_replace(&w->host->by_watchdog, f->open - 1, &f->span);
}

/* The span of the last sample grows; another state begins another one. What goes on after a stop of the process is two:
 * before and after it. */
static void keep(tw_watchdog *w, followed *f, const tw_host_track *t, tw_host_span *seen) {
    const bool goes_on = f->open != 0 && f->left_ns == 0 && is_same(&f->span, seen), is_cut = f->span.to_ns < w->stopped_until_ns;
    seen->to_ns = tw_now_ns();
    if (goes_on) grow(w, f, is_cut ? most(f->span.to_ns, w->stopped_from_ns) : seen->to_ns);
    if (goes_on && !is_cut) return;
    seen->from_ns = goes_on ? most(w->stopped_until_ns, tw_load(&t->handle_since_ns)) : start_of(w, t, f, seen->to_ns);
    f->span = *seen;
    f->open = tw_span_add(&w->host->by_watchdog, seen) + 1;
}

/* Whether a thread is in the wait that its latest sample shows, in the same system call with the same first argument. */
static bool waits_still(const tw_watchdog *w, const followed *f) {
    tw_thread_state s;
    tw_thread_state_read(f->syscall, &s);
    if (!s.known || s.runs || s.number < 0) return false;
    if (tw_span_kind_of(&f->span) == TW_SPAN_GIL) return tw_gil_has(&w->interpreter, s.argument);
    return (uint64_t)s.number == f->span.detail && s.argument == f->argument;
}

/* A wait is looked at each turn, with one system call, and grows until it is seen to have ended. */
static void look_again(tw_watchdog *w, followed *f, const tw_host_track *t, uint64_t now) {
    const bool has_ended = f->left_ns != 0, is_cut = f->span.to_ns < w->stopped_until_ns;
    if (f->open == 0 || has_ended || is_cut || !tw_span_is_wait(tw_span_kind_of(&f->span))) return;
    if (tw_load(&t->handle_since_ns) <= f->span.to_ns && waits_still(w, f)) grow(w, f, now);
    else f->left_ns = now;
}

static void sample(tw_watchdog *w, followed *f, uint32_t track, uint64_t now) {
    tw_host_span seen = {0};
    look(w, f, track, &seen);
    keep(w, f, &w->host->track[track], &seen);
    f->left_ns = 0;
    f->next_ns = now + most(TW_WATCH_SAMPLE_NS, (now - f->stall_since_ns) / 8);
    tw_add(&w->host->samples, 1);
}

/* Whether the samples of the stall that began then show a wait for the interpreter lock, up to the latest. */
static bool waits_for_gil(const followed *f, uint64_t stall_since_ns) {
    return f->open != 0 && f->stall_since_ns == stall_since_ns && tw_span_kind_of(&f->span) == TW_SPAN_GIL;
}

/* Whether a thread does nothing, as far as is known: its latest step ended long ago, and may have left no work. */
static bool is_idle(const followed *f, const tw_host_track *t, uint64_t passed_ns, uint64_t stall_since_ns) {
    if (tw_load(&t->step) < TW_STEP_BETWEEN) return false;
    return f->syscall < 0 || (passed_ns > TW_WATCH_BETWEEN_NS && !waits_for_gil(f, stall_since_ns));
}

/* Since when a thread with steps stalls, of which the present one, or the time after one, began at since_ns; 0: it does
 * not. What is usual is no stall, and a thread that has ended does not stall. */
static uint64_t step_stalls_since(const followed *f, const tw_host_track *t, uint64_t limit, uint64_t since_ns,
                                  uint64_t now) {
    const uint64_t stall_since_ns = since_ns + tw_host_step_usual(limit);
    tw_thread_state s = {.known = true};
    if (is_idle(f, t, since(now, since_ns), stall_since_ns)) return 0;
    if (f->syscall >= 0) tw_thread_state_read(f->syscall, &s);
    return s.known ? stall_since_ns : 0;
}

/* Since when a thread stalls; 0: it does not. */
static uint64_t stalls_since(const followed *f, const tw_host_track *t, uint64_t now) {
    const uint64_t limit = tw_load_acquire(&t->step_limit_ns); /* stored while the thread is at rest */
    if (f->thread == 0 || tw_load_acquire(&t->waiting_since_ns) != 0) return 0;
    const uint64_t since_ns = tw_load(&t->wake_ns);
    if (since_ns == 0 || since(now, since_ns) < (limit != 0 ? limit : TW_WATCH_STALL_NS)) return 0;
    return limit == 0 ? since_ns : step_stalls_since(f, t, limit, since_ns, now);
}

/* Whether a thread stalls; then when it is to be looked at next. */
static bool look_at(tw_watchdog *w, uint32_t track, uint64_t now, uint64_t *next) {
    followed *f = &w->of[track];
    const uint64_t since_ns = stalls_since(f, &w->host->track[track], now);
    if (since_ns == 0) return false;
    if (f->stall_since_ns != since_ns) f->open = 0, f->left_ns = 0, f->next_ns = now, f->stall_since_ns = since_ns;
    look_again(w, f, &w->host->track[track], now);
    if (now < f->next_ns && f->span.to_ns >= w->stopped_until_ns) { /* one is due after a stop */
        *next = least(*next, f->next_ns);
        return true;
    }
    if (w->budget_ns == 0) {
        tw_add(&w->host->samples_skipped, 1);
        return false;
    }
    sample(w, f, track, now);
    *next = least(*next, f->next_ns);
    return true;
}

/* ---- its turns ---- */

/* One look at everything. Returns when the next one is due. */
static uint64_t turn(tw_watchdog *w, uint64_t now) {
    uint64_t next = now + tw_watch_period(w->budget_ns);
    tw_add(&w->host->watchdog_wakeups, 1);
    pthread_mutex_lock(&w->changes);
    for (uint32_t i = 0; i < TW_TRACKS; i++) (void)look_at(w, i, now, &next);
    pthread_mutex_unlock(&w->changes);
    if (since(now, tw_load(&w->host->throttled_at_ns)) > BASELINE_NS) note_throttled(w, now);
    if (is_needed(w)) w->busy_ns = now;
    return next;
}

/* What the next silence is compared with. */
static void take_marks(tw_watchdog *w, uint64_t due) {
    w->run_delay_ns = own_run_delay_ns(w);
    w->woke_ns = tw_now_ns();
    tw_store(&w->host->watchdog_process_cpu_ns, tw_process_cpu_ns());
    tw_store(&w->host->watchdog_throttled_ns, tw_load(&w->host->throttled_ns));
    tw_store(&w->host->watchdog_due_ns, due);
    tw_store_release(&w->host->watchdog_turn_ns, w->woke_ns);
}

static void wait_until(tw_watchdog *w, uint64_t due) {
    const uint32_t seen = load32(&w->signal);
    const uint64_t left = since(due, tw_now_ns());
    const struct timespec timeout = {(time_t)(left / TW_NS_PER_SECOND), (long)(left % TW_NS_PER_SECOND)};
    if (left > 0 && load32(&w->stopping) == 0) futex_wait(&w->signal, seen, &timeout);
}

static void run(tw_watchdog *w) {
    uint64_t due = tw_now_ns(), now;
    w->busy_ns = due;
    while (load32(&w->stopping) == 0) {
        now = tw_now_ns();
        note_cost(w, now);
        due = turn(w, now);
        take_marks(w, due);
        if (now - w->busy_ns > QUIET_NS) {
            sleep_long(w);
            w->busy_ns = tw_now_ns();
            continue;
        }
        wait_until(w, due);
        now = tw_now_ns();
        if (now > due + TW_SILENCE_NS) note_silence(w, due, now);
    }
}

static void *thread_main(void *argument) {
    tw_watchdog *w = argument;
    w->schedstat = tw_thread_open((uint64_t)syscall(SYS_gettid), "schedstat");
    w->budget_ns = TW_WATCH_BURST_NS;
    w->budget_at_ns = tw_now_ns();
    run(w);
    tw_store(&w->host->watchdog_turn_ns, 0);
    if (w->schedstat >= 0) close(w->schedstat);
    w->schedstat = -1;
    return NULL;
}

/* ---- life ---- */

/* No signal of the host's is delivered here. */
static int start_thread(tw_watchdog *w) {
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&w->thread, &attributes, thread_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed == 0) pthread_setname_np(w->thread, "tailwatch-watch");
    return failed;
}

tw_watchdog *tw_watchdog_start(tw_host *host, const uint64_t *in_flight, const tw_interpreter *interpreter) {
    tw_watchdog *w = tw_calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    w->host = host;
    w->in_flight = in_flight;
    w->interpreter = *interpreter;
    w->reads = interpreter->known && tw_reader_open(&w->reader);
    if (!w->reads) w->reader.file = -1;
    w->cgroup = tw_cgroup_open();
    w->schedstat = -1;
    pthread_mutex_init(&w->changes, NULL);
    for (int i = 0; i < TW_TRACKS; i++) w->of[i].syscall = -1;
    tw_store(&host->throttled_at_ns, 0);
    tw_store(&host->cgroup_stat, (uint64_t)(w->cgroup + 1));
    if (start_thread(w) == 0) return w;
    tw_store(&host->cgroup_stat, 0);
    tw_watchdog_forget(w);
    return NULL;
}

static void clear(followed *f) {
    if (f->syscall >= 0) close(f->syscall);
    memset(f, 0, sizeof *f);
    f->syscall = -1;
}

void tw_watchdog_follow(tw_watchdog *w, uint32_t track, uintptr_t state, int syscall) {
    pthread_mutex_lock(&w->changes);
    clear(&w->of[track]);
    w->of[track].state = state;
    w->of[track].syscall = syscall;
    w->of[track].thread = tw_load(&w->host->track[track].thread);
    pthread_mutex_unlock(&w->changes);
}

void tw_watchdog_unfollow(tw_watchdog *w, uint32_t track) {
    pthread_mutex_lock(&w->changes);
    clear(&w->of[track]);
    pthread_mutex_unlock(&w->changes);
}

void tw_watchdog_forget(tw_watchdog *w) {
    for (int i = 0; i < TW_TRACKS; i++) clear(&w->of[i]);
    if (w->reads) tw_reader_close(&w->reader);
    if (w->cgroup >= 0) close(w->cgroup);
    if (w->schedstat >= 0) close(w->schedstat);
    tw_free(w);
}

void tw_watchdog_stop(tw_watchdog *w) {
    __atomic_store_n(&w->stopping, 1, __ATOMIC_SEQ_CST);
    tw_watchdog_call(w);
    pthread_join(w->thread, NULL);
    tw_store(&w->host->cgroup_stat, 0); /* not in a fork child, whose memory may still be its parent's */
    tw_watchdog_forget(w);
}
