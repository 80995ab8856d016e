/* Trace files (event_ring.h) as a timeline (track_writer.h): what the processes of a server did, and which pause
 * delayed which request.
 *
 * For each file one process with
 *   GC         a slice for each pause, named by its cause, with the objects it collected. From one of at least
 *              TW_PAUSE_SHORT_NS an arrow leads to each token that it delayed
 *   requests   a row for each request in flight: slice "request" [arrival, end] with model, route and outcome, in it
 *              "queue" [arrival, entry], "until first token", "answer", and the instants "first token" and "token".
 *              Model and route are known from the answer on: "answer" shows them too, of requests that have not ended
 *   steps      of each thread: engine steps by name; and on a row "host gaps" beside it from a step's end to the begin of
 *              the next where work was waiting (engine_step.h)
 *   stalls     of each thread that tokens wait for, and of the process: what was measured, and on a row of its own what the
 *              watchdog sampled, named by the function or else the cause, with cause, certainty, function, file, caller,
 *              call, and of samples the stack ("frame 0": the innermost)
 *   counters   tw_counter
 *   lost       an instant for each ring that had to overwrite events: how many
 *
 * Delayed: the wait that a token ended ([arrival, first token], or the gap before it) coincides for at least
 * TW_PAUSE_SHORT_NS with a pause of its own process, or of one that streams wait for (role engine, worker, scheduler,
 * detokenizer); where there are several engines, of another process only if the token's own process wrote of a delay
 * (TW_KIND_DELAY), and if that is of the engine that serves the stream, where the delay has which one does. An upper
 * bound, as overlap is everywhere: a pause inside the wait for the model delays nothing. The event TW_KIND_DELAY of a
 * token adds what it cost (delay_us), an estimate.
 *
 * What is not there is marked: events overwritten, requests whose beginning is lost (argument "beginning lost"), arrows left out.
 *
 * Memory: the pauses (at most TW_TRACE_PAUSES of them, the longest), the arrows (TW_TRACE_ARROWS), the requests in flight.
 * Never the events. Cold path, without the GIL; the files may be written meanwhile, what comes after the call began is
 * not exported.
 */
#pragma once

#include "tailwatch/base/extern_c.h"
#include "tailwatch/record/event_ring.h"
#include "tailwatch/trace/track_writer.h"

TW_BEGIN_C

#define TW_TRACE_PAUSES (1U << 17)
#define TW_TRACE_ARROWS (1U << 21)
#define TW_TRACE_STALL_THREADS 16
#define TW_TRACE_ARROWS_EACH 32 /* of one token, from the latest pauses */

/* What an export saw and left out. */
typedef struct tw_trace_account {
    uint64_t events;            /* read, within the time asked for */
    uint64_t kind[TW_KINDS];    /* of them, by kind; [0]: of no known kind, passed over */
    uint64_t requests;          /* slices of requests */
    uint64_t unfinished;        /* of them: without an end */
    uint64_t beginless;         /* of them: whose beginning is lost */
    uint64_t host_gaps;
    uint64_t open_pauses;       /* that have no end yet: their process stands still, or died in them */
    uint64_t lost;              /* events that rings had overwritten, or overwrote meanwhile */
    uint64_t stalls;            /* slices of stalls */
    uint64_t stalls_left_out;   /* of more threads of a process than TW_TRACE_STALL_THREADS */
    uint64_t stalls_lost;       /* spans of stalls, or of less, that were overwritten before they could be recorded */
    uint64_t arrows;
    uint64_t arrows_left_out;   /* more than there is room for, or from pauses shorter than shortest_ns */
    uint64_t shortest_ns;       /* pauses at least this long have arrows */
} tw_trace_account;

/* Writes events with a time in [from_ns, until_ns], of n files, n <= TW_TRACE_FILES. The clock snapshots of all of them
 * come first, so this comes before anything else on the timeline. 0, EINVAL or ENOMEM; what the timeline's writing came
 * to is returned by tw_timeline_finish. */
#define TW_TRACE_FILES 1024
int tw_trace_export(tw_timeline *t, const tw_trace *const *files, size_t n, uint64_t from_ns, uint64_t until_ns,
                    tw_trace_account *account);

/* The clock snapshots of several files in one order, at least 0.5 s apart but where a clock was stepped: those that a
 * conversion of times near these files uses. out: room for room of them. Returns how many. */
size_t tw_trace_clocks_merged(const tw_trace *const *files, size_t n, tw_clock_snapshot *out, size_t room);

TW_END_C
