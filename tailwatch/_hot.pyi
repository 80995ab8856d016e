"""What runs per token, per message and per collection (C, csrc/python/module.c). Times are CLOCK_MONOTONIC ns."""

import selectors
from collections.abc import Awaitable, Callable
from typing import Any, final

ABI_VERSION: int
UNIT_ITSELF: int
"""Of an engine without a name: | its pid."""
UNIT_LIKE: int
"""Of who works for the engine of another process: | the pid of that."""
UNIT_SHARED: int
"""Of who works for all engines."""

def now() -> int:
    """CLOCK_MONOTONIC in nanoseconds."""

def tcp_wait_ns(fd: int) -> int:
    """How long ago the last data segment of a TCP socket arrived, in ns; -1: not known, or no descriptor."""

def unit_of(engine: str | int | None, /) -> int:
    """The word for an engine's number or name, see csrc/include/tailwatch/attribute/engine_id.h; 0 for None and "".

    Raises ValueError for what is neither."""

def jiffy_ns() -> int:
    """Length of a kernel timer tick in nanoseconds."""

def forget_frames() -> None:
    """Let go of the frames that were made and not sent, and keep none until there is a Core again."""

def note(frame: bytes, tokens: int, choice: int, usage_tokens: int, done: bool, error: bool, /) -> bytes:
    """Say what a frame holds that is sent next, so that Send does not scan it; gives the frame back."""

@final
class Answer:
    """What a load client sees of one answer after the other on one connection, see
    csrc/include/tailwatch/wire/client_response.h."""

    now_ns: int
    byte_ns: int
    @property
    def head(self) -> bytes: ...
    def begin(self, planned_ns: int, ttft_ns: int, step_ns: int, /) -> None:
        """A new answer is waited for: the first token's deadline, and that of each next one; 0: none."""
    def framing(self, kind: int, /) -> None:
        """How its body is cut into events: a tw_framing of scan.h. Without it the body is not looked into."""
    def stamp(self) -> None:
        """A read returned now."""
    def feed(self, body: bytes, /) -> None:
        """A part of the body was in that read."""
    def finish(self) -> None:
        """The body ended in that read."""
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
        """Stamp a message with n tokens, now or at a given monotonic ns."""
    def usage(self, tokens: int) -> None:
        """The true number of output tokens: raises the count, never lowers it."""
    def fail(self, *, at: int | None = None) -> None:
        """End it as an error."""
    def timeout(self, *, at: int | None = None) -> None:
        """End it as timed out."""
    def abort(self, *, at: int | None = None) -> None:
        """End it because the client went away."""
    def close(self, *, at: int | None = None) -> None:
        """End it as finished; a second end does nothing."""
    def status(self, code: int) -> None:
        """HTTP status, as far as it decides the verdict."""
    def label(self, model: str, route: str) -> None:
        """Put it under other labels."""
    def bind(self, engine: str | int | None, *, part: bool = False) -> None:
        """Say which engine serves it, by number or name, before the first token or later: the gaps that end from now
        on are charged with that engine's pauses only. None or "": it is not known. part: of several parts that go to
        different engines none is bound, and where set_serves() names one nothing changes. Raises ValueError
        for what is no name."""
    def record_send_wait(self, since: int, until: int) -> None:
        """A send was blocked by the client from one time to another."""
    def end(self, error: BaseException | type[BaseException] | None, /) -> None:
        """End it as an exception (or its class) says; None is a clean end."""
    def summary(self) -> tuple[Any, ...] | None:
        """What became of it, once it has ended: see export/otel/spans.py. None before, and in a fork child."""
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
    """Requests in it; 0: it ran nothing, and is no step."""
    waiting: int | None
    """Requests that it leaves with work to do; None: not known."""
    @property
    def name(self) -> str: ...
    def __enter__(self) -> Step: ...
    def __exit__(self, *exc_info: object) -> None: ...

@final
class Sweep:
    """The old heap collected in slices, by the collector itself."""

    on: bool
    """Whether the moments are used that a loop, or a step, gives."""
    def __new__(cls, core: Core, collect: Callable[[int], int], /) -> Sweep: ...
    @property
    def frozen(self) -> int:
        """Objects known to be frozen."""
    @property
    def ordered(self) -> bool:
        """Whether old objects are found by themselves, the oldest first."""
    @property
    def bytes(self) -> int:
        """Memory it takes."""
    def locate(self, thresholds: tuple[int, int, int], aged: object, older: object, most: int, /) -> bool:
        """Whether the collector's lists are where this layout has them: aged has survived one collection of the
        youngest, older two; at most so many objects are walked. For interpreters whose layout is known."""
    def freeze(self, call: Callable[[], object], /) -> int:
        """Calls gc.freeze, as given, and sync_frozen() before any other thread runs."""
    def forget(self) -> None:
        """Nothing is frozen any more."""
    def slice(
        self, budget: int, seeds: list[Any] | None = None, moment: int = 5, most_ns: int = 0, /
    ) -> tuple[int, int, int] | None:
        """One slice: objects moved, objects freed, ns. seeds is emptied. None while a collection is under way."""
    def run_idle(self, idle: bool = False, /) -> None:
        """The last request has ended, or (idle) none was there: slices, for two milliseconds at most."""
    def whole(self, moment: int = 5, /) -> int | None:
        """A whole pass of what is not frozen. Objects freed; None while a collection is under way."""
    @property
    def due(self) -> bool:
        """Whether there is anything to do, in a moment."""
    force: int
    """What moments are used for, whether it fits or not: 0 what is due, 1 a slice, 2 a whole pass, once."""
    every: int
    """Of so many engine steps, about, one gives a moment: the first that ends in a slot of the monotonic clock."""
    @property
    def midway(self) -> bool:
        """Whether a cycle is under way."""
    def abandon(self) -> None:
        """The cycle that is under way is given up, and the dead that it put in order are let go of."""
    def sync_frozen(self) -> int:
        """How many objects are frozen that were not known to be; now they are. What is under way is begun again."""
    def after_fork(self) -> None:
        """In a fork child: its counts begin at zero; what is frozen, and what things cost, is as it was."""
    def round(self) -> None:
        """The whole old heap is to be looked at, as soon as may be."""
    def counts(self) -> dict[str, int]:
        """Slices by what gave the moment, objects moved and freed, ns, and what is to be done."""
    def uv(self, path: str, loop: object, /) -> LibuvIdleSlots:
        """Use the waiting of a libuv loop, given as uvloop gives it; path of the library that exports libuv.

        Raises:
            LookupError: it does not export what is needed.
        """
    def select(self, selector: selectors.BaseSelector, /) -> IdleSelector:
        """What a selector may have for its select(): it sweeps while it would wait. For one with a descriptor."""

@final
class IdleSelector:
    """A selector's select(), whose waiting is used. Made by Sweep.select()."""

    def __call__(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]: ...
    def give_back(self, selector: selectors.BaseSelector, /) -> None:
        """The selector has its select() as before."""

@final
class LibuvIdleSlots:
    """Handles in a libuv loop. Made by Sweep.uv()."""

    def close(self) -> None:
        """Gives the handles back: before the loop is closed, on its thread."""

@final
class Send:
    """Stands before an ASGI `send`, and hands every message on unchanged."""

    stream: Stream
    def send(self, message: Any) -> Awaitable[None]: ...
    def disconnected(self) -> None:
        """The app was told that the client went away."""
    def turn(self) -> None:
        """WebSocket: the client sent a message, a new request begins."""
    def finish(self, error: BaseException | None, /) -> int:
        """The app returned, or raised. Bits: 1 streamed() has something, 2 no request is in flight."""

@final
class Core:
    """The one writer of one process's segment."""

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
        """served: keep what OTLP wants beside, see csrc/include/tailwatch/record/genai_counters.h."""
    def on_request_end(self, ended: Callable[[Stream, Any], object] | None, /) -> None:
        """Call ended(stream, scope) in the task of each request that a Send has ended; None: no longer."""
    @property
    def address(self) -> int:
        """Of the tw_segment: what tailwatch._cold takes."""
    @property
    def bytes(self) -> int:
        """Of the segment: what its label sets in use take."""
    @property
    def reserved(self) -> int:
        """The same once all of them are in use."""
    @property
    def last_was_full(self) -> bool:
        """Whether the latest collection was one of all that is not frozen, and is over."""
    @property
    def in_flight(self) -> int: ...
    @property
    def opened(self) -> int: ...
    def gc_first(self, phase: str, info: dict[str, int], /) -> None:
        """For the head of gc.callbacks."""
    def gc_last(self, phase: str, info: dict[str, int], /) -> None:
        """For the end of gc.callbacks."""
    def watch_gc(self, mode: int, callbacks: list[Any], closer: Callable[..., None], /) -> None:
        """How generations map to causes (0 generational, 1 incremental, 2 always the whole heap), the list the
        callables are kept in, and which of them closes a pause."""
    def configure(self, slo: tuple[int, int, int, int, int], slow_ns: int, /) -> None:
        """Other bounds and another slow threshold, for requests that open from now on."""
    def exemplify(self, on: bool, trace_of: Callable[[], str | None] | None, /) -> None:
        """Whether streams that open from now on are exemplars of what they measure; trace_of: gives the trace id of the
        span around its caller where that is sampled, for streams that came with none."""
    def set_serves(self, unit: int, /) -> None:
        """The engine of streams that open from now on, where neither bind() nor a header names one; 0: not known."""
    def rebind(
        self,
        role: str,
        route_of: Callable[[Any], str],
        timed_send: Callable[[Awaitable[None], Stream], Awaitable[None]],
        /,
    ) -> None:
        """Another role and other callables from now on."""
    def policy_begin(self) -> None: ...
    def policy_end(self) -> int | None:
        """Its length in ns; None when an outer pause is still open."""
    def policy_is(self, kind: int, mode: int, why: int, /) -> None:
        """What the collector's policy is from now on: see csrc/include/tailwatch/record/gc_policy_counters.h."""
    def policy_pass(self, moment: int, ns: int, freed: int, /) -> None:
        """A whole pass of ours was made; moment: a tw_moment."""
    def count_interference(self, what: int, /) -> None:
        """Somebody else did something to the collector: a tw_interference."""
    def count_memory_limit(self, which: int, /) -> None:
        """A memory limit was met: a tw_memory_limit."""
    def count_ignored(self) -> None:
        """A file stood where an operator's orders do, and was none."""
    def policy_answer(self, number: int, answer: int, /) -> None:
        """An operator's command was carried out or failed (gc/remote_commands.py). The number is written last."""
    def count_freeze(self) -> None:
        """A freeze of ours was made."""
    def cancel_pause(self) -> None:
        """Close or forget a collection whose end nobody is left to report; a pass of ours goes on."""
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
    def count_error(self, where: int) -> None: ...
    def count_drop(self, reason: int) -> None: ...
    def count_fallback(self, shape: str, reason: str, /) -> None:
        """Count a frame that the fast SSE path left to the server. A full table counts it as ("other", "other")."""
    def join(self, dir: str, unit: int, /) -> str | None:
        """Share the segment in a group's directory; unit: the engine this process works for, 0: none. None, or why
        not: the segment is then private, as before.

        Raises BlockingIOError while another process is joining: it is worth another try."""
    def leave(self) -> None:
        """Take it back: the numbers stay, here and in the group, which counts them as those of the dead. MemoryError:
        it is still shared."""
    def set_unit(self, unit: int, /) -> None:
        """What this member works for from now on, as in join(). Nothing where it is in no group."""
    def renew(self) -> bool:
        """Look for members that came or went. Whether the list may have changed. Leaves a group whose directory was
        removed, or cannot be found again after its descriptor was closed: ``joined`` is false then."""
    def fold(self) -> int:
        """Fold what a few of the dead left in the directory into their retired, where nobody else does. Drops the
        GIL. Returns how many."""
    def load(self) -> tuple[int, int]:
        """Requests in flight, and ever opened, here and in the rest of the group, as of the last renew(). Those of
        processes that were killed are not in flight."""
    def peers(self) -> int:
        """How many others of the group have the role of this process, and live, as of the last renew()."""
    def crowd(self) -> tuple[int, int, int]:
        """Requests whose first token was seen, and all in flight, here and in the rest of the group, and how many
        processes have served any; as of the last renew() those live. Some 100 ns."""
    def members(self) -> list[int]:
        """Addresses of the others' segments, good until the next renew() or leave()."""
    @property
    def joined(self) -> bool: ...
    @property
    def file(self) -> str:
        """Name of the segment's file in the group's directory; "": it is in no group."""
    @property
    def steps_ended(self) -> int:
        """Engine steps that are over, in this process, whatever their name."""
    @property
    def shares_engine(self) -> bool:
        """Whether the concurrency of its streams is that of the whole group: there is an engine process."""
    @property
    def refused(self) -> int:
        """Files in the group's directory that are no segments of this version."""
    def streamed(self) -> list[str]:
        """Routes that turned out to stream since the last call."""
    @property
    def nvtx_told(self) -> bool:
        """Whether an NVTX tool listens and is told."""
    def nvtx(self, tokens: bool, /) -> bool:
        """Tell an NVTX tool from now on; tokens: a mark for each message of them. Whether one listens, which is found
        out once in a process."""
    def nvtx_off(self) -> None:
        """No more; ranges that are open still end."""
    def nvtx_anchor(self) -> None:
        """Three marks whose payload is CLOCK_MONOTONIC, and before them one that says who this process is."""
    def nvtx_name(self, text: str, /) -> int:
        """The number of a text, for the next three. 256 are kept apart, further ones are 0: "other"."""
    def nvtx_begin(self, name: int, payload: int, /) -> tuple[int, int]:
        """Begin a range; what nvtx_end() takes. (0, 0) where no tool is told."""
    def nvtx_end(self, number: int, forks: int, /) -> None:
        """End it, on any thread; nothing in a fork child of the process that began it."""
    def nvtx_mark(self, name: int, payload: int, /) -> None: ...
    def nvtx_timed(self, kind: int, n: int, /) -> int:
        """For benchmarks: ns that n ranges took. Kind 0: push and pop, 1: start and end, 2: marks, 3: only the loop."""
    def trace_start(self, events: int, /) -> str | None:
        """Begin to record so many events: in a file beside the segment where it is shared, else in memory. None, or why
        not. Drops the GIL while the memory is taken. Where it records already nothing happens.

        Raises BlockingIOError while the group's directory cannot be had, ValueError for a number out of range."""
    def trace_stop(self) -> None:
        """Record no more, and remove the file: before leave()."""
    def trace_turn(self, whole: bool, /) -> None:
        """Sample the counters; whole: the clocks and names too, and free the rings of threads that have ended."""
    @property
    def unfrozen(self) -> int | None:
        """Objects that a full collection would look at, as the collector books them: those that survived the last
        one, those that grew old since, and the young. None: not known here, or the collector is not watched."""
    @property
    def tracing(self) -> bool:
        """Whether events are recorded, and where the segment is now: not in a group that was left."""
    @property
    def trace_file(self) -> str:
        """Name of the file in the group's directory; "": it has none."""
    @property
    def trace_memory(self) -> tuple[int, int]:
        """Address and bytes of what is recorded, until trace_stop(); (0, 0): nothing is."""
    def reset(self) -> None:
        """In a fork child: forget everything the parent measured."""

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
        """Its text; None where the object has another shape, or the plan has no literal."""
    def matches(self, object: object, /) -> bool:
        """Whether the object has this shape."""
    def retire(self) -> None:
        """Leave objects of this shape to the original for good."""
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
        """Try it from now on, while that is the class's serialiser: with another, all are dropped. False: no room."""
    def close(self) -> None:
        """Hand everything to the original from now on."""
    def plans(self) -> list[Plan]: ...
    @property
    def closed(self) -> bool: ...
