"""tailwatch.stream(): requests stamped by hand, against numbers worked out by hand."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tailwatch
from tailwatch import _hot

MS = 1_000_000
START = 1_000_000 * MS  # any monotonic time: these tests run in virtual time


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """Installed, looking only, without collections of its own accord."""
    gc.disable()
    yield tailwatch.install(gc="observe", slo="ttft<=100ms,tpot<=20ms,itl<=50ms,e2e<=1s")
    tailwatch.uninstall()
    gc.enable()


def seen() -> Any:
    return tailwatch.snapshot()


def only(reason: str) -> dict[str, int]:
    """Every request by reason, all zero but one."""
    return {**dict.fromkeys(seen().requests, 0), reason: 1}


# ---- numbers ----


def test_the_four_latencies_by_hand(watch: tailwatch.Watch) -> None:
    """TTFT, gaps, TPOT and E2E of one request are what its times give."""
    with tailwatch.stream(model="m", route="/r", arrival=START) as stream:
        stream.token(at=START + 80 * MS)
        stream.token(at=START + 90 * MS)
        stream.token(3, at=START + 120 * MS)
        stream.close(at=START + 200 * MS)
    now = seen()
    assert (now.ttft.count, now.ttft.sum) == (1, 0.080)
    assert (now.itl.count, now.itl.sum, now.itl.min, now.itl.max) == (2, 0.040, 0.010, 0.030)
    assert (now.tpot.count, now.tpot.sum) == (1, 0.010)
    assert (now.e2e.count, now.e2e.sum) == (1, 0.200)
    assert now.tokens == 5
    assert now.requests == only("good")
    assert now.arrivals["explicit"] == 1
    assert (stream.ttft_ns, stream.worst_gap_ns, stream.tokens, stream.arrival_ns) == (80 * MS, 30 * MS, 5, START)
    assert stream.closed


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([100, 120], "good"),
        ([101, 120], "late"),
        ([100, 121], "late"),
        ([10, 20, 30, 40, 90], "good"),
        ([10, 11, 12, 13, 64], "late"),
    ],
    ids=["at the bounds", "first token late", "tpot late", "gap at the bound", "gap late"],
)
def test_bounds_include_their_value(watch: tailwatch.Watch, times: list[int], reason: str) -> None:
    """A request exactly at a bound is good, one beyond it late."""
    with tailwatch.stream(arrival=START) as stream:
        for at in times:
            stream.token(at=START + at * MS)
        stream.close(at=START + times[-1] * MS)
    assert seen().requests == only(reason)


def test_choices_have_their_own_tpot(watch: tailwatch.Watch) -> None:
    """Two interleaved choices: gaps are the stream's, TPOT is each choice's own."""
    with tailwatch.stream(arrival=START) as stream:
        for i in range(4):
            stream.token(at=START + (10 + 10 * i) * MS, choice=i % 2)
        stream.close(at=START + 40 * MS)
    now = seen()
    assert (now.itl.count, now.itl.sum) == (3, 0.030)
    assert (now.tpot.count, now.tpot.sum) == (2, 0.040)


def test_choices_past_the_tracked_ones_are_counted(watch: tailwatch.Watch) -> None:
    """Their tokens count, their TPOT does not, and the drop is reported once."""
    with tailwatch.stream(arrival=START) as stream:
        for choice in (0, 8, 2**32 - 1):
            stream.token(at=START + MS, choice=choice)
            stream.token(at=START + 2 * MS, choice=choice)
        stream.close(at=START + 2 * MS)
    assert (seen().tokens, seen().drops["choice"], seen().tpot.count) == (6, 1, 1)


def test_usage_raises_the_count_and_never_lowers_it(watch: tailwatch.Watch) -> None:
    """The server's own count is booked at the end, and TPOT follows it."""
    for usage, tokens in ((11, 11), (1, 2)):
        before = seen().tokens
        with tailwatch.stream(arrival=START) as stream:
            stream.token(at=START + MS)
            stream.token(at=START + 11 * MS)
            stream.usage(usage)
            assert stream.tokens == tokens
            stream.close(at=START + 20 * MS)
        assert seen().tokens - before == tokens
    assert (seen().tpot.min, seen().tpot.max) == (0.001, 0.010)


def test_times_that_run_backwards_are_counted(watch: tailwatch.Watch) -> None:
    """A stamp before the last one, and an end before it, count as that one; nothing becomes negative."""
    with tailwatch.stream(arrival=START) as stream:
        stream.token(at=START - 5)
        stream.token(at=START + 10 * MS)
        stream.token(at=START + 5 * MS)
        stream.close(at=START)
    now = seen()
    assert (now.ttft.max, now.itl.min, now.itl.max, now.e2e.max) == (0.0, 0.0, 0.010, 0.010)
    assert now.drops["out_of_order_stamp"] == 3


def test_stamps_after_the_end_are_counted_and_dropped(watch: tailwatch.Watch) -> None:
    """They change no number, and a second end is no second request."""
    with tailwatch.stream(arrival=START) as stream:
        stream.close(at=START + MS)
        stream.token()
        stream.fail()
        stream.abort()
    assert (seen().tokens, seen().drops["out_of_order_stamp"]) == (0, 1)
    assert seen().requests == only("good")


def test_labels_are_kept_apart(watch: tailwatch.Watch) -> None:
    """model and route are label sets; label() moves what comes after it."""
    with tailwatch.stream(model="a", route="/x") as stream:
        stream.token()
    with tailwatch.stream(model="b") as stream:
        stream.token()
        stream.label("c", "/y")
        stream.token()
    with tailwatch.stream() as stream:
        stream.token()
    assert set(seen().labels) == {("a", "/x"), ("b", "stream"), ("c", "/y"), ("unknown", "stream")}
    assert seen().where(model_name="b").ttft.count == 1
    assert seen().where(model_name="c").requests["good"] == 1


def test_past_the_limit_labels_become_other() -> None:
    """The limit holds whatever the number of models, and the overflow is counted."""
    watch = tailwatch.install(gc="off", max_label_sets=4)
    try:
        before = watch.memory_bytes
        for i in range(1000):
            with tailwatch.stream(model=f"model {i}"):
                pass
        assert len(seen().labels) <= 4
        assert seen().label_overflow == 1000 - 3
        assert seen().where(model_name="other").requests["good"] == 1000 - 3
        assert watch.memory_bytes == before
    finally:
        tailwatch.uninstall()


def test_ids_reach_the_slow_gap(watch: tailwatch.Watch) -> None:
    """A slow wait carries the request id and trace id it was opened with, cut to what fits."""
    with tailwatch.stream(model="m", route="/r", arrival=START, request_id="r" * 100, trace_id="t" * 32) as stream:
        stream.token(at=START + 500 * MS)
        stream.close(at=START + 500 * MS)
    (slow,) = seen().slowest
    assert (slow.request_id, slow.trace_id, slow.model_name, slow.route) == ("r" * 63, "t" * 32, "m", "/r")
    assert (slow.phase, slow.gap, slow.token) == ("ttft", 0.5, 1)


def test_an_arrival_in_the_past_counts(watch: tailwatch.Watch) -> None:
    """What waited before it was opened is part of its TTFT."""
    arrival = time.monotonic_ns() - 300 * MS
    with tailwatch.stream(arrival=arrival) as stream:
        stream.token()
    assert 0.3 <= seen().ttft.max < 0.3 + 10


# ---- how it ends ----


class CancelledElsewhere(BaseException):
    """Named like the one of another framework."""


CancelledElsewhere.__name__ = "CancelledError"


class OtherTimeout(Exception):
    """Named like the one of another library."""


OtherTimeout.__name__ = "TimeoutError"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError(), "error"),
        (KeyboardInterrupt(), "error"),
        (SystemExit(), "error"),
        (TimeoutError(), "timeout"),
        (asyncio.TimeoutError(), "timeout"),
        (concurrent.futures.TimeoutError(), "timeout"),
        (OtherTimeout(), "timeout"),
        (asyncio.CancelledError(), "abort_early"),
        (GeneratorExit(), "abort_early"),
        (CancelledElsewhere(), "abort_early"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["with", "async with"])
def test_an_exception_ends_it_and_goes_on(
    watch: tailwatch.Watch, error: BaseException, reason: str, asynchronous: bool
) -> None:
    """The exception is the verdict, and it is not swallowed."""

    async def body() -> None:
        async with tailwatch.stream() as stream:
            stream.token()
            raise error

    def drive() -> None:
        if asynchronous:
            body().send(None)
            return
        with tailwatch.stream() as stream:
            stream.token()
            raise error

    with pytest.raises(BaseException) as caught:
        drive()
    assert caught.value is error
    assert seen().requests == only(reason)
    assert seen().in_flight == 0


def test_a_late_abort_is_a_miss(watch: tailwatch.Watch) -> None:
    """A client that leaves after a bound has passed was not served."""
    with tailwatch.stream(arrival=START) as stream:
        stream.abort(at=START + 100 * MS)
    with tailwatch.stream(arrival=START) as stream:
        stream.abort(at=START + 101 * MS)
    assert (seen().requests["abort_early"], seen().requests["abort_late"]) == (1, 1)
    assert seen().outcomes == {"good": 0, "miss": 1, "excluded": 1}
    assert (seen().abandoned_wait.count, seen().abandoned_wait.max) == (2, 0.101)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (200, "good"),
        (429, "429"),
        (500, "5xx"),
        (503, "5xx"),
        (504, "timeout"),
        (408, "timeout"),
        (400, "4xx"),
        (404, "4xx"),
    ],
)
def test_the_status_decides(watch: tailwatch.Watch, status: int, reason: str) -> None:
    """Refusals land where the definition puts them."""
    with tailwatch.stream() as stream:
        stream.status(status)
    assert seen().requests == only(reason)


@pytest.mark.parametrize(("method", "reason"), [("fail", "error"), ("timeout", "timeout"), ("abort", "abort_early")])
def test_it_can_be_ended_by_name(watch: tailwatch.Watch, method: str, reason: str) -> None:
    """fail(), timeout() and abort() inside the block win over its clean end."""
    with tailwatch.stream() as stream:
        getattr(stream, method)()
    assert seen().requests == only(reason)


def test_end_takes_exceptions_and_their_classes(watch: tailwatch.Watch) -> None:
    """end() is what with does: an exception, its class, or None."""
    for error in (None, TimeoutError, TimeoutError()):
        watch.core.stream("m", "r", None, "", "").end(error)
    assert (seen().requests["good"], seen().requests["timeout"]) == (1, 2)


def test_a_stream_that_is_dropped_is_an_abort(watch: tailwatch.Watch) -> None:
    """Without an end it counts as abandoned, not as never there."""
    context = tailwatch.stream()
    stream = context.__enter__()
    stream.token()
    del stream, context
    assert (seen().requests, seen().in_flight) == (only("abort_early"), 0)


# ---- bad arguments ----


class Unspeakable:
    """Has no str()."""

    def __str__(self) -> str:
        raise ValueError("no name")


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((-1,), {}),
        ((None,), {}),
        ((2**32,), {}),
        (("1",), {}),
        ((1.5,), {}),
        ((1, 2), {}),
        ((), {"n": -1}),
        ((0,), {"at": -1}),
        ((1,), {"n": 1}),
        ((), {"at": -1}),
        ((), {"at": "now"}),
        ((), {"at": 1.5}),
        ((), {"at": 2**64}),
        ((), {"choice": -1}),
        ((), {"choice": 2**32}),
        ((), {"when": 1}),
    ],
    ids=repr,
)
def test_a_bad_token_is_refused(watch: tailwatch.Watch, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """It raises at once and stamps nothing."""
    with tailwatch.stream() as stream:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            stream.token(*arguments, **keywords)
        assert stream.tokens == 0
    assert seen().tokens == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda stream: stream.close(at=-1),
        lambda stream: stream.close(1),
        lambda stream: stream.fail(at="x"),
        lambda stream: stream.usage(-1),
        lambda stream: stream.usage("many"),
        lambda stream: stream.status(-1),
        lambda stream: stream.label("m"),
        lambda stream: stream.label("m", Unspeakable()),
        lambda stream: stream.record_send_wait(1),
    ],
)
def test_other_bad_calls_are_refused(watch: tailwatch.Watch, call: Callable[[Any], None]) -> None:
    """They raise, and the stream goes on."""
    with tailwatch.stream() as stream:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            call(stream)
        assert not stream.closed
    assert seen().requests == only("good")


@pytest.mark.parametrize(
    "options",
    [
        {"arrival": -1},
        {"arrival": 1.5},
        {"arrival": "now"},
        {"tier": "x"},
    ],
    ids=repr,
)
def test_a_bad_stream_is_refused(watch: tailwatch.Watch, options: dict[str, Any]) -> None:
    """It raises, and no request was opened."""
    with pytest.raises((TypeError, ValueError, OverflowError)):
        tailwatch.stream(**options)
    assert (seen().opened, seen().in_flight) == (0, 0)


@pytest.mark.parametrize("name", ["model", "route", "request_id", "trace_id"])
def test_a_name_without_a_text_is_refused(watch: tailwatch.Watch, name: str) -> None:
    """What str() raises comes out, and no request is left open."""
    options: dict[str, Any] = {name: Unspeakable()}
    with pytest.raises(ValueError, match="no name"):
        tailwatch.stream(**options)
    assert seen().in_flight == 0


@pytest.mark.parametrize(("arguments", "keywords"), [((0,), {}), ((), {"n": 0}), ((0,), {"at": 5, "choice": 3})])
def test_a_step_without_tokens_is_no_message(
    watch: tailwatch.Watch, arguments: tuple[int, ...], keywords: dict[str, int]
) -> None:
    """token(0) stamps nothing: no first token, no gap, no choice."""
    with tailwatch.stream(arrival=START) as stream:
        stream.token(*arguments, **keywords)
        assert (stream.ttft_ns, stream.tokens) == (None, 0)
        stream.token(at=START + 10 * MS)
        stream.token(*arguments, **keywords)
        stream.token(at=START + 30 * MS)
        stream.close(at=START + 30 * MS)
    now = seen()
    assert (now.tokens, now.itl.count, now.itl.max, now.tpot.count) == (2, 1, 0.020, 1)
    assert not any(now.drops.values())


def test_names_are_what_str_gives(watch: tailwatch.Watch) -> None:
    """Labels and ids of any type are str() of it, and None is empty."""
    options: dict[str, Any] = {"model": 7, "route": None, "request_id": 5, "trace_id": None}
    with tailwatch.stream(arrival=START, **options) as stream:
        stream.token(at=START + 500 * MS)
        stream.label(None, b"x")  # type: ignore[arg-type]
        stream.close(at=START + 500 * MS)
    now = seen()
    (slow,) = now.slowest
    assert (slow.model_name, slow.request_id, slow.trace_id) == ("7", "5", "")
    assert set(now.labels) == {("7", ""), ("", "b'x'")}


def test_lone_surrogates_in_names(watch: tailwatch.Watch) -> None:
    """They cannot be encoded: each is a question mark, wherever a name is given."""
    name = "a\ud800b"
    with tailwatch.stream(model=name, route=name, request_id=name, trace_id=name, arrival=START) as stream:
        stream.token(at=START + 500 * MS)
        stream.label("c\udfff", "/y")
        stream.close(at=START + 500 * MS)
    (slow,) = seen().slowest
    assert (slow.request_id, slow.trace_id) == ("a?b", "a?b")
    assert set(seen().labels) == {("a?b", "a?b"), ("c?", "/y")}


@pytest.mark.parametrize("kind", [np.int64, np.uint32, np.uint64], ids=lambda kind: kind.__name__)
def test_integers_of_numpy(watch: tailwatch.Watch, kind: Callable[[int], Any]) -> None:
    """Counts, choices and times are anything that is an integer, at every place that takes one."""
    base = 2**31  # fits all of them
    with tailwatch.stream(arrival=kind(base)) as stream:
        stream.token(kind(3), at=kind(base + MS), choice=kind(1))
        stream.token(n=kind(2), at=kind(base + 11 * MS), choice=kind(1))
        stream.usage(kind(6))
        stream.status(kind(200))
        stream.close(at=kind(base + 20 * MS))
    now = seen()
    assert (now.ttft.max, now.itl.max, now.e2e.max, now.tokens) == (0.001, 0.010, 0.020, 6)
    assert now.requests == only("good")


def test_a_wall_clock_is_no_monotonic_time(watch: tailwatch.Watch) -> None:
    """Times an hour ahead or more are now, and counted: this request and those after it are in their windows."""
    wall = time.time_ns()
    assert wall > _hot.now() + 3600 * 1_000 * MS
    with tailwatch.stream(arrival=wall) as stream:
        stream.token(at=wall)
        stream.token(at=wall + MS)
        stream.close(at=wall + 2 * MS)
    assert stream.arrival_ns <= _hot.now()
    now = seen()
    assert now.drops["out_of_order_stamp"] == 4
    assert now.e2e.max < 1
    assert now.requests == only("good")
    for _ in range(3):
        with tailwatch.stream() as stream:
            stream.token()
    assert seen().window("1m").good == 4


def test_a_time_just_ahead_is_kept(watch: tailwatch.Watch) -> None:
    """Less than an hour ahead may be meant: it is taken as it is."""
    with tailwatch.stream() as stream:
        stream.token(at=_hot.now() + 3599 * 1_000 * MS)
        assert (stream.ttft_ns or 0) > 3590 * 1_000 * MS
        stream.token(at=_hot.now() + 3600 * 1_000 * MS + MS)  # now, so before the last: counted twice
    assert seen().drops["out_of_order_stamp"] == 3  # and so is the end


def test_names_of_any_kind_are_kept(watch: tailwatch.Watch) -> None:
    """Long, empty, with control characters and other alphabets: cut and cleaned, never an error."""
    for name in ("", "x" * 1000, "a\nb", "模型", "\x00"):
        with tailwatch.stream(model=name, route=name, request_id=name, trace_id=name):
            pass
    assert ("模型", "模型") in seen().labels
    assert ("x" * 127, "x" * 127) in seen().labels
    assert seen().requests["good"] == 5


# ---- threads ----


def test_streams_of_many_threads(watch: tailwatch.Watch) -> None:
    """Eight threads at once, a hundred streams each: every token is counted once."""
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(100):
            with tailwatch.stream(model=f"m{number % 3}") as stream:
                for _ in range(20):
                    stream.token()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    now = seen()
    assert (now.tokens, now.requests["good"], now.in_flight) == (16_000, 800, 0)
    assert (now.ttft.count, now.itl.count) == (800, 800 * 19)


def test_one_stream_from_two_threads(watch: tailwatch.Watch) -> None:
    """A stream may be stamped from anywhere; no stamp is lost."""
    with tailwatch.stream() as stream:
        threads = [threading.Thread(target=lambda: [stream.token() for _ in range(1000)]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen().tokens == 2000


def test_streams_of_many_tasks(watch: tailwatch.Watch) -> None:
    """async with, concurrently, one of them cancelled."""

    async def work() -> None:
        async with tailwatch.stream() as stream:
            for _ in range(10):
                stream.token()
                await asyncio.sleep(0)

    async def cancelled() -> None:
        async with tailwatch.stream():
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(cancelled())
        await asyncio.gather(*(work() for _ in range(50)))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (seen().requests["good"], seen().requests["abort_early"]) == (50, 1)


# ---- late is not overlap ----


def paused(milliseconds: int) -> tuple[int, int]:
    """A real collection that takes so long, and what the words give for it: its edges, outside and inside."""

    class Sleeper:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.sleep(milliseconds / 1e3)

    Sleeper()
    before = _hot.now()
    gc.collect(0)
    return before, _hot.now()


@pytest.fixture
def steady(watch: tailwatch.Watch) -> Callable[..., _hot.Stream]:
    """A stream whose typical gap is known: 16 gaps of so many ms, the last token now, or at a given time."""

    def make(gap_ms: int, now: int | None = None) -> _hot.Stream:
        now = _hot.now() if now is None else now
        stream = watch.core.stream("m", "r", now - 17 * gap_ms * MS, "", "")
        for i in range(17):
            stream.token(at=now - (16 - i) * gap_ms * MS)
        return stream

    return make


def test_a_pause_inside_the_wait_is_not_late(steady: Callable[..., _hot.Stream]) -> None:
    """The model takes 10 s a token anyway; a pause of 20 ms meanwhile overlaps and costs the 1 ms it came later."""
    last = _hot.now()
    stream = steady(10_000, last)
    paused(20)
    stream.token(at=last + 10_001 * MS)
    assert stream.overlap_ns >= 20 * MS
    assert stream.delay_ns == 10_001 * MS - stream_typical(10_000) < 1.1 * MS


def stream_typical(gap_ms: int) -> int:
    """The typical gap is kept in units of 64 ns."""
    return gap_ms * MS // 64 * 64


def test_a_pause_in_the_way_is_late(steady: Callable[..., _hot.Stream]) -> None:
    """Tokens come each 1 ms; a pause of 20 ms in the way of a ready one costs nearly all of its length."""
    stream = steady(1)
    before, after = paused(20)
    stream.token()
    now = seen()
    assert 20 * MS <= stream.overlap_ns <= after - before
    assert stream.delay_ns == min(stream.overlap_ns, stream.worst_gap_ns - stream_typical(1))
    assert stream.delay_ns >= 18 * MS
    assert now.delay_by_phase["itl"]["gc0"] * 1e9 == pytest.approx(stream.delay_ns, abs=2)
    assert now.itl.p(100) >= 0.020
    assert now.itl_without_gc.p(100) == pytest.approx((stream.worst_gap_ns - stream.delay_ns) / 1e9, rel=0.03)
    assert now.itl.sum - now.itl_without_gc.sum == pytest.approx(stream.delay_ns / 1e9, rel=1e-6)


def test_before_the_first_token_delay_is_an_estimate(watch: tailwatch.Watch) -> None:
    """A pause between arrival and the first token is charged where nothing is known of what is typical."""
    with tailwatch.stream() as stream:
        paused(5)
        stream.token()
        assert stream.overlap_ns >= 5 * MS
        assert stream.delay_ns == stream.overlap_ns
    assert seen().overlap_by_phase["ttft"]["gc0"] >= 0.005


def test_a_heap_in_the_way_of_a_token(steady: Callable[..., _hot.Stream]) -> None:
    """A real full collection of a real heap costs the ready token what the process stood still."""
    heap = [[[i]] for i in range(50_000)]
    stream = steady(1)
    gc.collect()
    stream.token()
    now = seen()
    cause = next(cause for cause in ("gc2", "gc_full") if now.gc.collections[cause])
    assert len(heap) == 50_000
    assert now.overlap["gc2"] + now.overlap["gc_full"] == pytest.approx(now.paused[cause], abs=1e-8)
    assert now.delay[cause] == pytest.approx(now.paused[cause], abs=0.0011)
