"""What a snapshot is made of: plain values, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from tailwatch.snapshots.histogram import Histogram


class ReadOnly:
    """Attributes that are computed on first use and never change."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is read-only: {name}")


class Bounds(NamedTuple):
    """The SLO in force: seconds, None where there is no such bound; attainment is the share asked for."""

    ttft: float | None
    tpot: float | None
    itl: float | None
    e2e: float | None
    attainment: float


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that finished in the last seconds.

    attainment: good / (good + miss), None when nothing was judged. within: per bound the share of judged requests
    that kept it, None where there is no such bound or nothing was judged. fluidity: share of token deadlines met,
    None without any. seconds: what the window really covers.
    """

    good: int
    miss: int
    excluded: int
    finished: int
    attainment: float | None
    within: dict[str, float | None]
    fluidity: float | None
    seconds: float


class Second(NamedTuple):
    """Requests that finished in one second of the monotonic clock, which ``at`` is the number of."""

    at: int
    good: int
    miss: int
    finished: int


@dataclass(frozen=True, slots=True)
class GC:
    """Collections and our own passes. Every mapping but pauses is by cause, summed over the processes.

    pauses: lengths, under 0, 1, 2 (the generations), "gc_full", "gc_increment", "gc_own". collections: pauses that
    ended. collected, uncollectable: objects. cpu: CPU seconds of the collecting thread, where measured. callbacks:
    seconds in gc.callbacks of other code. short, short_seconds: the pauses below 50 us, which are charged to no
    gap. max: the longest, seconds.
    """

    pauses: dict[int | str, Histogram]
    collections: dict[str, int]
    collected: dict[str, int]
    uncollectable: dict[str, int]
    cpu: dict[str, float]
    callbacks: dict[str, float]
    short: dict[str, int]
    short_seconds: dict[str, float]
    max: dict[str, float]


@dataclass(frozen=True, slots=True)
class Policy:
    """The collector's policy of one process: state and sizes of the running one, counts of all that had its name.

    Attributes:
        kind: "off", "observe", "freeze", "idle"; "unknown": not published, or the process has exited.
        mode: with idle: "slices", or "full collections" (why: "version", "lists", "proof"); "" before the freeze.
            why, with gc="auto": the reason for the policy (a name in tailwatch.gc.capabilities.CHOICES).
        slices: by idle slot. collections: of any generation, outside slices: tailwatch's own full ones, by the same;
            "automatic" (thresholds), "external" (gc.collect() by other code), "unknown" (one of these two).
        moved: objects found unreachable and moved to generation 0 by slices; freed: of these. seconds,
            predicted_seconds: duration of all slices, measured and predicted.
        full_seconds, full_freed: of tailwatch's own full collections. cycles: passes over the whole old heap in slices.
        freezes: tailwatch's own. interference: gc.* calls by other code, by name; "freeze_blind": of "freeze", those
            not right after a full collection. memory_limits: episodes above one, "rss" and "objects".
        unfrozen, frozen: objects, None: not known. backlog: object visits that the idle-time collector has still to
            make, about 10 per object. cost: predicted seconds of a visit, 0.0: not known.
        ignored: contents of the command file that were no command. answered, answer: number of the last command of
            `tailwatch gc`, and its result (CommandResult of gc/remote_commands.py).
        early_full: collections of all generations before the first request; early_external: of "external", those
            before it. They delayed no request.
    """

    kind: str = "unknown"
    mode: str = ""
    why: str = ""
    slices: dict[str, int] = field(default_factory=dict)
    collections: dict[str, int] = field(default_factory=dict)
    moved: int = 0
    freed: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0
    full_seconds: float = 0.0
    full_freed: int = 0
    cycles: int = 0
    freezes: int = 0
    interference: dict[str, int] = field(default_factory=dict)
    memory_limits: dict[str, int] = field(default_factory=dict)
    unfrozen: int | None = None
    frozen: int | None = None
    backlog: int = 0
    cost: float = 0.0
    ignored: int = 0
    early_full: int = 0
    early_external: int = 0
    answered: int = 0
    answer: int = 0


@dataclass(frozen=True, slots=True)
class GCStatus(Policy):
    """The policy of this process, now: ``kind`` is the policy in force, ``why`` a sentence.

    Attributes:
        option: the option ``gc``: the same, or "auto".
        measured: with gc="auto", for each policy that was tried, the mean time for which a token that becomes ready at
            a random moment waits for a pause of this process, seconds.
        sentences: interference in sentences, with changes of the thresholds that are in force.
        processes: the policy of each running process of the group, with this one, by name ("api-0").
    """

    option: str = ""
    measured: dict[str, float] = field(default_factory=dict)
    sentences: tuple[str, ...] = ()
    processes: dict[str, Policy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Process:
    """One process, with the numbers of dead processes that had its name. index: its number among the processes of its
    role, for life. pid: 0: not known any more. paused: seconds by cause, an open pause included. lost: pauses that
    never reported an end. bytes: memory of its segment, and of those of the dead. collections, longest: pauses that
    ended, and the longest in seconds (of a difference: to the edge of its bucket, 2 %), by cause. lives: when the
    snapshot was taken; False where all of that name are dead. age: seconds since the first of them began to count until
    then. standing: the seconds since its open pause began, and standing_cause; 0.0: none was open. policy: the
    collector's."""

    role: str
    index: int
    name: str
    pid: int
    paused: dict[str, float]
    lost: int
    bytes: int
    collections: dict[str, int]
    longest: dict[str, float]
    lives: bool
    age: float
    standing: float
    standing_cause: str
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class StepPart:
    """The steps themselves, or the host gaps before them.

    time: their lengths. overlap: seconds that coincided with pauses of their process, by cause: an upper bound of their
    blame. requests: the same, each second times the requests that it may have delayed: those in the step's batch, or
    left waiting at the gap.
    """

    time: Histogram
    overlap: dict[str, float]
    requests: dict[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """An engine's steps of one name, in one process; see tailwatch.step().

    process: its name, such as "engine-0". steps: the steps. host_gaps: from the end of a step to the begin of one of
    these, where that end left requests with work to do. requests: in the batches, summed. unknown_gap: seconds before
    steps, after an end that did not give whether it left work.
    """

    process: str
    role: str
    name: str
    steps: StepPart
    host_gaps: StepPart
    requests: int
    unknown_gap: float

    @property
    def batch(self) -> float | None:
        """Requests in a step, on average; None without steps."""
        return self.requests / self.steps.time.count if self.steps.time.count else None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: from the end of one update of the scheduler to the end of the next. None: not known.

    Attributes:
        key: monotonic seconds, the stamp that the engine put on its outputs; 0.0: it had none.
        done: monotonic seconds at which its update ended.
        parts: seconds, by name ("input", "schedule", "dispatch", "grammar", "wait",
            "update"); they and ``paused`` sum to its length.
        paused: seconds of pauses of the engine's process.
        prefill_of: id of the request with the most prefill tokens, which are ``prefill_most``; "" where none has any.
        kv_use: of the KV cache, 0 to 1.
        after_idle: nothing was left to do before it.
    """

    number: int
    key: float
    done: float
    parts: dict[str, float]
    paused: float
    requests: int | None
    decode_requests: int | None
    prefill_requests: int | None
    prefill_tokens: int | None
    decode_tokens: int | None
    recompute_tokens: int | None
    prefill_of: str
    prefill_most: int
    preempted: int | None
    running: int | None
    waiting: int | None
    kv_use: float | None
    spec_proposed: int
    spec_accepted: int | None
    graph: str | None
    after_idle: bool

    @property
    def seconds(self) -> float:
        """Its length."""
        return sum(self.parts.values()) + self.paused


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a step costs on this machine, seconds: a model that is learned from each step, an estimate. None: not known.

    decode_step: a step of decoding alone, of late on average. decode_request: what one more decoding request adds to
    it. prefill_token: what a token of a prompt adds to the step that computes it, on average.
    """

    decode_step: float | None
    decode_request: float | None
    prefill_token: float | None


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """An engine whose steps are read off its scheduler one by one (vLLM, SGLang, transformers).

    Attributes:
        process: its name, such as "engine-0".
        steps: lengths, from the end of one step to the end of the next, by what it computed: "decode" alone, or
            "prefill" too (a prompt, or a part of one, for the first time or again).
        parts: the same seconds by part of the step, and "paused" (collections of the process); they sum to ``steps``.
        requests: summed over the steps. preempted: requests that lost their place.
        tokens: computed, by "prefill", "decode", "recompute".
        draft_tokens: of speculative decoding, "proposed" and "accepted".
        graphs: steps by CUDA graph mode, "full", "piecewise", "eager", "unknown".
        cost: the model of step time.
        last: the latest 256 steps, oldest first; of a difference, those in between.
    """

    process: str
    role: str
    steps: dict[str, Histogram]
    parts: dict[str, float]
    requests: int
    preempted: int
    tokens: dict[str, int]
    draft_tokens: dict[str, int]
    graphs: dict[str, int]
    cost: StepCost
    last: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What the pauses of one cause, of one role's processes, did to one gap. overlap, delay: as in SlowGap, seconds."""

    source: str
    cause: str
    overlap: float
    delay: float


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of a slow gap, and its share of what exceeds the typical gap.

    seconds: its share; the causes of a gap add up. cause: a name of the label ``cause`` (docs/why.md). certainty:
    "measured", "sampled", "estimated". source: the role of the process it happened in. name: the function, the request
    or the part of a step, "" where none is known. detail: by ``kind``: "holder" (name of what held the
    interpreter lock, in ``holder``), "syscall", "tokens", "steps", "faults", "step_part"; "" none.
    """

    seconds: float
    cause: str
    certainty: str
    source: str
    name: str = ""
    kind: str = ""
    detail: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class SlowGap:
    """One slow gap, or wait for a first token. Times in seconds.

    overlap: how long it coincided with pauses, an upper bound of their blame. delay: what they cost it, an estimate
    where it is not known when the token was ready. client: waiting for a slow client. accept: waited before the app was
    entered. unexplained: the rest of what exceeds the typical gap, what came before the token reached this process
    (upstream) too. causes: all of them, the largest first; they sum to what exceeds the typical gap. complete: False
    where the pauses were overwritten: overlap is then a lower bound, delay unknown. token: which of its stream, 1 is
    the first. others: what of overlap and delay is the doing of other processes than the stream's own, the largest
    four shares.
    """

    when: datetime
    phase: str
    gap: float
    typical: float
    overlap: dict[str, float]
    delay: dict[str, float]
    client: float
    accept: float
    unexplained: float
    complete: bool
    request_id: str
    trace_id: str
    model_name: str
    route: str
    token: int
    others: tuple[Share, ...] = ()
    causes: tuple[Cause, ...] = ()


@dataclass(frozen=True, slots=True)
class Octave:
    """Gaps longer than usual, of [lower, upper) seconds (the last octave is open), and where their time went: to pauses
    by cause (delay), clients, the wait before the app, other causes in the host and in the engine, and the rest."""

    lower: float
    upper: float
    count: int
    time: float
    delay: dict[str, float]
    client: float
    accept: float
    unexplained: float
    host: float = 0.0
    engine: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """One recorded pause of this process, at least 50 us long. Times in seconds.

    streams: gaps that it was charged to so far; overlap and delay: theirs, summed. cpu: 0 where not measured.
    start_ns and stop_ns are monotonic.
    """

    when: datetime
    start_ns: int
    stop_ns: int
    cause: str
    seconds: float
    collected: int
    uncollectable: int
    cpu: float
    callbacks: float
    streams: int
    overlap: float
    delay: float


class Point(NamedTuple):
    """The median TTFT, seconds, of requests that found about so many streams in flight, themselves included."""

    streams: float
    ttft: float
    samples: int
