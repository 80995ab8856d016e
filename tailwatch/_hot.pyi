"""What runs per token, per message and per collection (C, csrc/python/module.c). Times are CLOCK_MONOTONIC ns."""

import selectors
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, final

ABI_VERSION: int
ENGINE_ITSELF: int
"""The id of an engine without a name, without its pid."""
ENGINE_LIKE: int
"""The id of "the engine of another process", without that process's pid."""
ENGINE_SHARED: int
"""The id of a process that works for all engines."""

def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""

def tcp_wait_ns(fd: int) -> int:
    """How long ago the last data segment of a TCP socket arrived, in ns; -1: not known, or no descriptor."""

def engine_id(engine: str | int | None, /) -> int:
    """The id of an engine's number or name, see csrc/include/tailwatch/attribute/engine_id.h; 0 for None and "".

    Raises ValueError for anything else."""

def jiffy_ns() -> int:
    """Length of a kernel timer tick in nanoseconds."""

def forget_frames() -> None:
    """Drops the frames that were made and not sent, and keeps none until a Core exists again."""

def note(frame: bytes, tokens: int, choice: int, usage_tokens: int, done: bool, error: bool, /) -> bytes:
    """Records the content of the frame that is sent next, so that Send does not scan it; returns the frame."""

@final
class Answer:
    """Measures the responses of one connection, one after the other, for a load client; see
    csrc/include/tailwatch/wire/client_response.h."""

    now_ns: int
    byte_ns: int
    @property
    def head(self) -> bytes: ...
    def begin(self, planned_ns: int, ttft_ns: int, step_ns: int, /) -> None:
        """Starts a response: the deadline of its first token, and of each next one; 0: none."""
    def framing(self, kind: int, objects_only: bool, /) -> None:
        """Sets how the body is cut into events: a tw_framing of body_scan.h. Without it the body is not scanned.
        objects_only: an event that is no JSON object is no token."""
    def decoder(self, decode: Callable[[bytes], Iterable[bytes]], /) -> None:
        """Passes the parts of this response's body through decode first. It must not refer to this object."""
    def stamp(self) -> None:
        """Stamps the return of a read."""
    def feed(self, body: bytes, /) -> None:
        """Takes a part of the body that the read returned."""
    def finish(self) -> None:
        """Ends the body in that read."""
    def result(
        self,
    ) -> tuple[
        int, int, int, int, int, int, int, int, int, int, int, int, int, bool, bool,
        tuple[tuple[int, int, int], ...], bytes,
    ]:  # fmt: skip
        """Byte, chunk, first and last content ns; messages, tokens, usage tokens; largest gap and when it began;
        deadlines due and met; idle ns; bytes; end marker, error; choices; stamps."""

@final
class Template:
    """Bytes with holes for texts and numbers. Each hole is (offset in the literal, whether it takes a number)."""

    def __init__(
        self,
        literal: bytes,
        holes: tuple[tuple[int, bool], ...],
        ascii: bool = False,
        original: Callable[[str], object] | None = None,
    ) -> None:
        """ascii: write texts as json.dumps does; original: called with a text that UTF-8 cannot encode, to raise."""
    def splice(self, text: str, /) -> bytes:
        """The frame with text, escaped, in its one hole."""
    def fill(self, *values: str | int) -> bytes:
        """The frame with a text or a number in each hole."""
    @property
    def literal(self) -> bytes: ...
    @property
    def holes(self) -> int: ...
    @property
    def known(self) -> bool:
        """Whether its frames are sent without being scanned."""

class Encoder:
    """Base of the encoders: content(text) without a step through Python."""

    _template: Template | None
    _sequence: int
    def content(self, *args: Any, **options: Any) -> bytes:
        """content(text): the frame of generated text, ready to send; anything more is given to self._content()."""

@final
class Stream:
    """One request's tokens. Made by Core.stream() or found as scope["tailwatch"] in an ASGI app."""

    def token(self, n: int = 1, *, at: int | None = None, choice: int = 0) -> None:
        """Stamps a message with n tokens, now or at a given monotonic ns."""
    def usage(self, tokens: int) -> None:
        """Sets the true number of output tokens: raises the count, never lowers it."""
    def fail(self, *, at: int | None = None) -> None:
        """Ends it as an error."""
    def timeout(self, *, at: int | None = None) -> None:
        """Ends it as timed out."""
    def abort(self, *, at: int | None = None) -> None:
        """Ends it as aborted by the client."""
    def close(self, *, at: int | None = None) -> None:
        """Ends it as finished; a second end does nothing."""
    def status(self, code: int) -> None:
        """Sets the HTTP status, which the verdict depends on."""
    def label(self, model: str, route: str) -> None:
        """Sets other labels."""
    def bind(self, engine: str | int | None, *, part: bool = False) -> None:
        """Sets the engine that serves it, by number or name, before the first token or later: gaps that end from now
        on are charged with that engine's pauses only. None or "": unknown. part: if parts go to different engines none
        is bound, and if set_serves() has named one nothing changes. Raises ValueError for an invalid name."""
    def received(self, key: int, received: int, processed: int, /) -> None:
        """A token came to this process that is not sent yet: the stamp that the engine put on its step's outputs, when
        this process received it, when it had processed it. Monotonic ns."""
    def record_send_wait(self, since: int, until: int) -> None:
        """Records that the client blocked a send from one time to another."""
    def end(self, error: BaseException | type[BaseException] | None, /) -> None:
        """Ends it by the outcome of an exception (or its class); None is a clean end."""
    def summary(self) -> tuple[Any, ...] | None:
        """The request once it has ended: see export/otel/spans.py. None before, and in a fork child."""
    @property
    def closed(self) -> bool: ...
    @property
    def tokens(self) -> int: ...
    @property
    def arrival_ns(self) -> int: ...
    @property
    def ttft_ns(self) -> int | None: ...
    @property
    def last_ns(self) -> int: ...
    @property
    def worst_gap_ns(self) -> int: ...
    @property
    def overlap_ns(self) -> int: ...
    @property
    def delay_ns(self) -> int: ...

@final
class Step:
    """One iteration of an engine: ``with`` begins and ends it. Made by Core.step(); may be entered again."""

    batch: int
    """Requests in it; 0: it ran nothing and is not counted."""
    waiting: int | None
    """Requests that still have work after it; None: unknown."""
    @property
    def name(self) -> str: ...
    def __enter__(self) -> Step: ...
    def __exit__(self, *exc_info: object) -> None: ...

@final
class SchedulerSteps:
    """The steps of one engine, recorded from calls of methods of its scheduler; see
    csrc/python/stamp/scheduler_steps.c."""

    def __new__(cls, core: Core, scheduler: object, model: str, /) -> SchedulerSteps: ...
    @property
    def stamped(self) -> int:
        """Requests that were stamped here, for want of a front end that does."""
    def around(self, what: str, method: Callable[..., Any], view: Callable[..., Any] | None = None, /) -> Any:
        """A callable that stands for a method of the scheduler: "schedule", "dispatch", "get_grammar_bitmask",
        "update_from_output", "process_result", "await_result", "prepare", "add_request", "finish_requests" or "send".
        Raises ValueError for another. view(args, kwargs, result), where the objects are not vLLM's: of a schedule or a
        dispatch the batch, None for none; of an update (batch, model output, {0: outputs}); of add_request the
        request, None for none; of finish_requests the ids; that of a send is called before it, within an update."""
    def answered(self) -> int:
        """Requests in steps recorded since the last call."""
    def compiled(self, kernel: str, from_ns: int, to_ns: int, /) -> None:
        """The engine compiled a kernel for its device, from one monotonic time to another; its steps waited for it."""
    def end_update(self, request_id: str = ..., tokens: int = 0, /) -> int:
        """Records the step whose update goes on, of an engine with views, before what it answers reaches another
        thread or process. request_id: the first request of the message that it sends; tokens: how many that has made
        by then. Returns its stamp, monotonic ns; 0: no update goes on."""
    def stop(self) -> None:
        """From now on those callables only hand on."""

@final
class Slicer:
    """Idle-time collection: slices of the old heap, freed by the interpreter's collector."""

    on: bool
    """Whether idle slots of event loops and steps are used."""
    def __new__(cls, core: Core, collect: Callable[[int], int], /) -> Slicer: ...
    @property
    def frozen(self) -> int:
        """Objects known to be frozen."""
    @property
    def ordered(self) -> bool:
        """Whether new old objects are found by their place in the collector's lists, oldest first."""
    @property
    def bytes(self) -> int:
        """Memory used, in bytes."""
    def locate(self, thresholds: tuple[int, int, int], aged: object, older: object, most: int, /) -> bool:
        """Whether the collector's lists are where the interpreter's known layout has them. aged has survived one
        collection of the youngest generation, older two; at most `most` objects are visited."""
    def freeze(self, call: Callable[[], object], /) -> int:
        """Calls gc.freeze, as given, and sync_frozen() before any other thread runs."""
    def forget(self) -> None:
        """Forgets which objects are frozen."""
    def slice(
        self, budget: int, seeds: list[Any] | None = None, reason: int = 5, most_ns: int = 0, /
    ) -> tuple[int, int, int] | None:
        """Runs one slice: (objects moved, objects freed, ns). Empties seeds. None while a collection is under way. With
        most_ns a long walk leaves its collection to the next slice, which has these counts and does nothing else."""
    def run_idle(self, idle: bool = False, /) -> None:
        """Runs slices for at most 2 ms, after the last request has ended, or (idle) where there was none."""
    def whole(self, reason: int = 5, /) -> int | None:
        """Runs a full collection of what is not frozen: objects freed. None while a collection is under way."""
    @property
    def due(self) -> bool:
        """Whether a slice is due."""
    force: int
    """What the next idle slots run, even if it does not fit: 0 what is due, 1 a slice, 2 a full collection, once."""
    every: int
    """About one of so many engine steps is an idle slot: the first that ends in an interval of the clock."""
    @property
    def midway(self) -> bool:
        """Whether a cycle is under way: it holds the object that it continues at."""
    def abandon(self) -> None:
        """Gives up the cycle that is under way, and releases its object."""
    def sync_frozen(self) -> int:
        """Finds objects that other code froze, and returns how many. A cycle under way starts again."""
    def after_fork(self) -> None:
        """In a fork child: resets the counts; keeps what is frozen, and the measured costs."""
    def round(self) -> None:
        """Requests a cycle over the whole old heap, as soon as possible."""
    def counts(self) -> dict[str, int]:
        """Slices by idle slot, objects moved and freed, ns, and the backlog."""
    def uv(self, path: str, loop: object, /) -> LibuvIdleSlots:
        """Uses the waits of a libuv loop (an object of uvloop); path: the library that exports libuv.

        Raises:
            LookupError: the library lacks a function.
        """
    def select(self, selector: selectors.BaseSelector, calls_fd: int = -1, /) -> IdleSelector:
        """A replacement of a selector's select() that runs slices while it would wait. Needs a descriptor. calls_fd:
        the descriptor that a call from another thread makes readable; -1: it is not known."""

@final
class IdleSelector:
    """A selector's select() that runs slices while it waits. Made by Slicer.select()."""

    def __call__(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]: ...
    def restore(self, selector: selectors.BaseSelector, /) -> None:
        """Restores the selector's own select()."""
    def time_handles(self, queue: object, /) -> None:
        """Times what the loop takes from its queue, if that is a plain deque and the loop has a clock."""
    @staticmethod
    def untime_handles(queue: object, /) -> None:
        """A loop's queue is as before, whatever times it."""

@final
class LibuvIdleSlots:
    """Handles in a libuv loop. Made by Slicer.uv()."""

    def time_handles(self, queue: object, /) -> None:
        """Times what the loop takes from its queue, if that is a plain deque and the loop has a clock, while a request
        waits for its first token."""
    def close(self) -> None:
        """Closes the handles. Called before the loop is closed, on its thread."""

@final
class Send:
    """Wraps an ASGI `send`: stamps messages and passes each on unchanged."""

    stream: Stream
    def send(self, message: Any) -> Awaitable[None]: ...
    def disconnected(self) -> None:
        """Records that the app received a disconnect."""
    def turn(self) -> None:
        """WebSocket: starts a new request, as the client sent a message."""
    def finish(self, error: BaseException | None, /) -> int:
        """Ends it: the app returned or raised. Bits: 1 streamed() is not empty, 2 no request is in flight."""

@final
class Core:
    """The writer of this process's segment."""

    def __init__(
        self,
        role: str,
        max_label_sets: int,
        slo: tuple[int, int, int, int, int],
        slow_ns: int,
        route_of: Callable[[Any], str],
        timed_send: Callable[[Awaitable[None], Stream], Awaitable[None]],
        served: bool = False,
    ) -> None:
        """served: also keep the counters of OTLP, see csrc/include/tailwatch/record/genai_counters.h."""
    def expect(self, stream: Stream, request_id: str, interval: int = 0, /) -> None:
        """Sets the id by which the engine has the stream's request, and for how many tokens its messages wait."""
    def received(
        self, streams: dict[str, Stream], outputs: list[Any], key: float, received_ns: int, /
    ) -> list[str] | None:
        """Outputs of one engine step, each with a request_id and a finish_reason, were processed just now; key: the
        engine's stamp of the step, monotonic seconds. Returns the ids of requests that had their last output."""
    def received_message(
        self,
        streams: dict[str, Stream],
        ids: list[str],
        finish_reasons: list[Any],
        tokens: list[int],
        received_ns: int,
        /,
    ) -> list[str] | None:
        """Outputs of one engine step came in a message that has no stamp: it gets that of the step by which its first
        request had made so many tokens, where an engine of the group has recorded it. Returns the ids of requests that
        had their last output."""
    def on_request_end(self, ended: Callable[[Stream, Any], object] | None, /) -> None:
        """Calls ended(stream, scope) in the task of each request that a Send has ended; None: no longer."""
    @property
    def address(self) -> int:
        """Address of the tw_segment, for tailwatch._cold."""
    @property
    def bytes(self) -> int:
        """Memory of the segment's label sets in use."""
    @property
    def reserved(self) -> int:
        """Memory of the segment once all label sets are in use."""
    @property
    def last_was_full(self) -> bool:
        """Whether the latest collection was a full one, and has ended."""
    @property
    def in_flight(self) -> int: ...
    @property
    def opened(self) -> int: ...
    def gc_first(self, phase: str, info: dict[str, int], /) -> None:
        """For the head of gc.callbacks."""
    def gc_last(self, phase: str, info: dict[str, int], /) -> None:
        """For the end of gc.callbacks."""
    def watch_gc(self, mode: int, callbacks: list[Any], closer: Callable[..., None], /) -> None:
        """Sets how generations map to causes (0 generational, 1 incremental, 2 always the whole heap), the list that
        holds the callables, and which of them closes a pause."""
    def heap_is_frozen(self, objects: int, /) -> None:
        """Takes so many of the objects in the collector's books for frozen; 0: none of them is."""
    def count_heap(self) -> None:
        """Counts the old objects, up to a thousand, in place of the collector's books; for more it does nothing."""
    def configure(self, slo: tuple[int, int, int, int, int], slow_ns: int, /) -> None:
        """Sets other bounds and another bound of the log, for requests that open from now on."""
    def exemplify(self, on: bool, trace_of: Callable[[], str | None] | None, /) -> None:
        """Sets whether streams that open from now on are kept as exemplars; trace_of: returns the trace id of the
        caller's span if that is sampled, for streams that arrived without one."""
    def set_serves(self, engine: int, /) -> None:
        """Sets the engine of streams that open from now on, if neither bind() nor a header names one; 0: unknown."""
    def rebind(
        self,
        role: str,
        route_of: Callable[[Any], str],
        timed_send: Callable[[Awaitable[None], Stream], Awaitable[None]],
        /,
    ) -> None:
        """Sets another role and other callables."""
    def policy_begin(self) -> None: ...
    def policy_end(self) -> int | None:
        """Returns its length in ns; None while an outer pause is open."""
    def policy_is(self, kind: int, mode: int, why: int, /) -> None:
        """Sets the GC policy: see csrc/include/tailwatch/record/gc_policy_counters.h."""
    def count_full_collection(self, reason: int, ns: int, freed: int, /) -> None:
        """Counts a full collection that tailwatch made; reason: a tw_slice_reason."""
    def count_interference(self, what: int, /) -> None:
        """Counts a call of gc.* by other code: a tw_interference."""
    def count_memory_limit(self, which: int, /) -> None:
        """Counts an exceeded memory limit: a tw_memory_limit."""
    def count_ignored(self) -> None:
        """Counts a file in place of an operator's command that was none."""
    def policy_answer(self, number: int, answer: int, /) -> None:
        """Publishes the result of an operator's command (gc/remote_commands.py); the number is written last."""
    def count_freeze(self) -> None:
        """Counts a freeze that tailwatch made."""
    def cancel_pause(self) -> None:
        """Closes or drops a collection whose end will not be reported; tailwatch's own pause goes on."""
    def paused_now(self) -> bool: ...
    def stream(self, model: str, route: str, arrival: int | None, request_id: str, trace_id: str) -> Stream: ...
    def request(
        self,
        scope: Any,
        send: Any,
        generation: bool,
        arrival_ns: int,
        entry_ns: int,
        proxy_ns: int,
        source: int,
        flow: Any,
        websocket: bool,
        /,
    ) -> Send:
        """A Send for one ASGI http or websocket scope. generation: the route is known to generate tokens (it is
        counted from now on); else it is only watched for a streaming content type."""
    def step(self, name: str, batch: int = 1, waiting: int | None = None, /) -> Step:
        """An iteration of an engine. ValueError, TypeError or OverflowError for what is no number of requests."""
    def rank_enters(self, mark: str, rank: int, group: int, /) -> int:
        """A rank of an engine elsewhere enters a step. mark: of that step in all its ranks alike, and of no other near
        it; group: of the ranks that meet in each layer. Returns what it leaves with; 0: nothing was recorded."""
    def rank_leaves(self, number: int, /) -> None:
        """It leaves the step that it entered."""
    def count_error(self, where: int) -> None: ...
    def count_drop(self, reason: int) -> None: ...
    def count_fallback(self, shape: str, reason: str, /) -> None:
        """Counts a frame that the fast SSE path left to the server. A full table counts it as ("other", "other")."""
    def join(self, dir: str, engine: int, /) -> str | None:
        """Shares the segment in a group's directory; engine: the id of the engine this process works for, 0: none.
        Returns None, or the reason why the segment stays private."""
    def leave(self) -> None:
        """Makes the segment private again. Its numbers stay, here and in the group, as those of an exited process.
        MemoryError: it is still shared."""
    def set_engine(self, engine: int, /) -> None:
        """Sets the engine this member works for, as in join(). Does nothing outside a group."""
    def renew(self) -> bool:
        """Looks for members that joined or left; returns whether the list may have changed. Leaves a group whose
        directory was removed, or is not found again after its descriptor was closed: ``joined`` is false then."""
    def save(self) -> bool:
        """Copies the segment into its file, for processes that cannot reach the memory; makes the file again where it
        was removed or overwritten. False: it has no room there. Drops the GIL: the caller keeps others from leave()."""
    def merge_dead(self) -> int:
        """Merges files of a few dead members into retired segments, unless another thread or process does. Drops the
        GIL. Returns how many."""
    def load(self) -> tuple[int, int]:
        """Requests in flight, and ever opened, in the whole group, as of the last renew(). Requests of killed processes
        are not in flight."""
    def peers(self) -> int:
        """How many other living members have the role of this process, as of the last renew()."""
    def set_front(self) -> None:
        """Requests are stamped in this process: its engine, and those of its group, do not stamp them."""
    def group_load(self) -> tuple[int, int, int]:
        """Requests past their first token, all requests in flight, and processes that have served any: of the group's
        members that lived at the last renew(). About 100 ns."""
    def members(self) -> list[int]:
        """Addresses of the other members' segments, valid until the next renew() or leave()."""
    @property
    def joined(self) -> bool: ...
    @property
    def file(self) -> str:
        """Name of the segment's file in the group's directory; "" outside a group."""
    @property
    def maps_file(self) -> bool:
        """Whether the segment is a mapped file, since the system refused System V shared memory."""
    @property
    def steps_ended(self) -> int:
        """Engine steps that ended in this process, of any name."""
    @property
    def shares_engine(self) -> bool:
        """Whether the concurrency of its streams is that of the whole group: there is an engine process."""
    @property
    def refused(self) -> int:
        """Files in the group's directory that are not segments of this version."""
    def streamed(self, full: bool = False, /) -> list[str | dict[str, Any]]:
        """What turned out to stream since the last call: routes, and scopes of requests that are not counted; of these
        no more from now on if full."""
    @property
    def nvtx_attached(self) -> bool:
        """Whether an NVTX tool is attached and receives ranges."""
    def nvtx(self, tokens: bool, /) -> bool:
        """Sends ranges to an NVTX tool from now on; tokens: also a mark for each message of tokens. Returns whether a
        tool is attached, which is determined once in a process."""
    def nvtx_off(self) -> None:
        """Stops sending ranges; open ranges still end."""
    def nvtx_anchor(self) -> None:
        """Sends a mark with this process's identity, then three whose payload is CLOCK_MONOTONIC."""
    def nvtx_name(self, text: str, /) -> int:
        """The number of a text, for the next three methods. 256 are kept apart, further ones are 0: "other"."""
    def nvtx_begin(self, name: int, payload: int, /) -> tuple[int, int]:
        """Begins a range: the arguments of nvtx_end(). (0, 0) without a tool."""
    def nvtx_end(self, number: int, begun: int, /) -> None:
        """Ends a range, on any thread; does nothing in a fork child of the process that began it."""
    def nvtx_mark(self, name: int, payload: int, /) -> None: ...
    def nvtx_timed(self, kind: int, n: int, /) -> int:
        """For benchmarks: ns that n ranges took. Kind 0: push and pop, 1: start and end, 2: marks, 3: only the loop."""
    def trace_start(self, events: int, /) -> str | None:
        """Starts recording events, with room for so many: in a file beside a shared segment, else in memory. Returns
        None, or the reason of a failure. Drops the GIL while memory is allocated. Does nothing while it records.

        Raises BlockingIOError while the group's directory is in use, ValueError for a number out of range."""
    def trace_stop(self) -> None:
        """Stops recording and removes the file. Called before leave()."""
    def trace_turn(self, whole: bool, /) -> None:
        """Samples the counters; whole: also the clocks and names, and frees the rings of threads that have ended."""
    @property
    def unfrozen(self) -> int | None:
        """Objects that a full collection would visit, an estimate: those that were counted, and by the collector's own
        counters those that grew old since, and the young. None: unknown here, or the collector is not watched."""
    @property
    def promoted(self) -> int | None:
        """Objects that grew old since the last full collection, garbage among them. None: as of ``unfrozen``."""
    @property
    def tracing(self) -> bool:
        """Whether events are recorded where the segment is now, not in a group that was left."""
    @property
    def trace_file(self) -> str:
        """Name of the file in the group's directory; "": none."""
    @property
    def trace_memory(self) -> tuple[int, int]:
        """Address and size of the recorded events, until trace_stop(); (0, 0): none."""
    def stalls(self, mode: int, minor: int, code: object, library: str, /) -> None:
        """Sets what is recorded of loops that are hooked from now on: 0 nothing, 1 their clocks, 2 and samples by the
        watchdog. minor: of Python's version; code: any code object; library: directory of the standard library."""
    def works(self, needed: bool, /) -> None:
        """Sets whether streams of other processes wait for this one: the watchdog runs then, too."""
    def state_words(self) -> list[int]:
        """The first words of the calling thread's state in the interpreter; none where memory cannot be read."""
    def contexts_at(self, word: int, /) -> None:
        """Sets which of them is the context in which the thread runs code; 0: it is not known."""
    def own_frames(self) -> tuple[list[tuple[str, str, int, int]], bool]:
        """The calling thread's innermost frames as the watchdog would read them: function, file, line, whether it is of
        the standard library; and whether this thread is seen to hold the GIL."""
    def handle_links(self, samples: list[Any], code: object, request: object = None, by_hand: object = None, /) -> int:
        """How the code of a loop's handle is found: objects with the next one on the way, whether they are tasks, and
        of handles their context. request, by_hand: the context variables whose values have the request's Send as
        ``sender``, a Stream as ``stream``. Returns how many types are known."""
    def trust_frames(self, how: int, /) -> None:
        """Sets whether stacks are read: 0 no, 1 yes, 2 and the GIL's holder is known."""
    def split_host(self, from_ns: int, to_ns: int, /) -> tuple[list[tuple[str, int, str, str, str]], int] | None:
        """What the calling thread did from one time to another: (cause, ns, certainty, name, what the GIL's holder ran)
        each, and ns in which it waited for events: they sum to the interval. None: it is not followed."""
    def host_status(self) -> dict[str, Any]:
        """What is known of the host (``sources``), and what the watchdog did."""
    def reset(self) -> None:
        """In a fork child: drops everything the parent measured."""

_Keyed = tuple[str, object, tuple[str, ...], frozenset[str] | None, int, bool]

@final
class Plan:
    """How one shape of an object becomes JSON.

    nodes: (kind, subject, keys, fields_set, number, falsy) in the order of the walk. Kinds of a shape: model, dict,
    list, constant, text, number; of a path to one value: field, extra, key, item, type, longer.
    slots: pydantic's descriptors of __pydantic_fields_set__ and __pydantic_extra__.
    literal: the bytes around the holes, None for a shape that is left to the original; cuts: where its holes are.
    """

    def __init__(
        self,
        name: str,
        nodes: tuple[_Keyed, ...],
        slots: tuple[object, object],
        literal: bytes | None,
        cuts: tuple[int, ...],
    ) -> None: ...
    def render(self, object: object, /) -> str | None:
        """The object's JSON; None if it has another shape, or the plan has no literal."""
    def matches(self, object: object, /) -> bool:
        """Whether the object has this shape."""
    def retire(self) -> None:
        """Leaves objects of this shape to the original from now on."""
    @property
    def name(self) -> str: ...
    @property
    def literal(self) -> bytes | None: ...
    @property
    def holes(self) -> int: ...
    @property
    def uses(self) -> int: ...
    @property
    def retired(self) -> bool: ...

@final
class Plans:
    """The plans of one class, by the arguments of the call and most recently used first: 16 for each of 8 sets."""

    def __init__(
        self,
        model: type,
        original: Callable[..., str],
        learn: Callable[[Any, dict[str, Any]], str],
        check: Callable[[Any, dict[str, Any], str, Plan], str],
        failed: Callable[[Any, dict[str, Any], Exception], str],
        check_first: int,
        check_every: int,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> str:
        """The text that original(object, **kwargs) would return. In a class it is a method, like a function."""
    def room(self, kwargs: dict[str, Any], /) -> bool:
        """Whether a plan can be added for these arguments. After long use of a full table the oldest makes room."""
    def add(self, kwargs: dict[str, Any], plan: Plan, serializer: object, /) -> bool:
        """Adds it for this serialiser of the class: with another one all are dropped. False: no room."""
    def close(self) -> None:
        """Leaves everything to the original from now on."""
    def plans(self) -> list[Plan]: ...
    @property
    def closed(self) -> bool: ...
