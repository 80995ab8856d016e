"""Snapshots of a real core, fed in virtual time: every number is known beforehand."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tailwatch import _hot, snapshots
from tailwatch.errors import OptionError
from tailwatch.export.prometheus.render import KINDS, render
from tailwatch.snapshots.serialization import from_dict

MS, SECOND = 1_000_000, 1_000_000_000
SLO = (2 * SECOND, 200 * MS, 0, 10 * SECOND, 990_000)
HISTOGRAMS = ("ttft", "itl", "itl_without_gc", "tpot", "e2e", "abandoned_wait", "send_wait")


def make_core(role: str = "api", slow_ns: int = 0) -> Any:
    """A core with room for 8 label sets."""
    return _hot.Core(role, 8, SLO, slow_ns, lambda scope: "", lambda waiting, stream: waiting)


@pytest.fixture
def core() -> Any:
    """One core."""
    return make_core()


def serve(
    core: Any,
    *,
    start: int,
    gaps: list[int],
    model: str = "m",
    route: str = "/r",
    ttft: int = 50 * MS,
    request: str = "",
) -> int:
    """One request from a monotonic time on: its first token after ttft, the others after these gaps. Its end."""
    stream = core.stream(model, route, start, request, "ab" * 16)
    at = start + ttft
    stream.token(at=at)
    for gap in gaps:
        at += gap
        stream.token(at=at)
    stream.close(at=at)
    return at


def ago(seconds: float) -> int:
    """A monotonic time; tests reach back no further than a machine has been up."""
    return int(_hot.now() - seconds * SECOND)


def take(*cores: Any) -> snapshots.Snapshot:
    """All of these cores, merged."""
    return snapshots.take([core.address for core in cores])


# Histograms ------------------------------------------------------------------------------------------------


def test_times_are_in_seconds(core: Any) -> None:
    """Counts, sums, extremes and percentiles of a known request."""
    serve(core, start=ago(30), gaps=[20 * MS] * 99 + [400 * MS])
    snap = take(core)
    assert (snap.itl.count, len(snap.itl)) == (100, 100)
    assert snap.itl.sum == pytest.approx(2.38)
    assert snap.itl.mean == pytest.approx(0.0238)
    assert (snap.itl.min, snap.itl.max) == (0.02, 0.4)
    assert snap.itl.p(50) == pytest.approx(0.02, rel=0.011)
    assert (snap.itl.p(0), snap.itl.p(100)) == (0.02, 0.4)
    assert snap.ttft.p(99) == pytest.approx(0.05)
    assert snap.tpot.sum == pytest.approx(0.0238)
    assert snap.e2e.max == pytest.approx(2.43)
    assert snap.tokens == 101
    assert "count=100" in repr(snap.itl) and "p99=" in repr(snap.itl)


def test_an_empty_histogram_has_no_numbers(core: Any) -> None:
    """No sample: no percentile, no extremes, no mean, no share; a sum of 0."""
    for name in HISTOGRAMS:
        empty = getattr(take(core), name)
        assert (empty.count, empty.sum, empty.min, empty.max, empty.mean) == (0, 0.0, None, None, None)
        assert empty.p(99) is None and empty.below(1) is None
        assert repr(empty) == "Histogram(empty)"


@pytest.mark.parametrize("percent", [-0.1, 100.1, math.nan, "99", None, True])
def test_a_percentage_is_a_number_from_0_to_100(core: Any, percent: Any) -> None:
    """Anything else is refused by name, whether or not there are samples."""
    with pytest.raises(OptionError, match="percent"):
        take(core).itl.p(percent)


def test_the_share_below_a_time(core: Any) -> None:
    """Exact at classic bounds, at the ends and outside; monotone in between."""
    serve(core, start=ago(30), gaps=[10 * MS] * 60 + [50 * MS] * 30 + [500 * MS] * 10)
    itl = take(core).itl
    times = (0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.4, 0.5, 7)
    assert [itl.below(seconds) for seconds in times] == [0, 0, 0.6, 0.6, 0.9, 0.9, 0.9, 1, 1]
    shares = [itl.below(ms / 1000) for ms in range(1, 600)]
    assert shares == sorted(shares)
    for refused in (math.nan, "1"):
        with pytest.raises(OptionError, match="seconds"):
            itl.below(refused)


def test_nothing_can_be_changed(core: Any) -> None:
    """Snapshots and histograms are read-only."""
    snap = take(core)
    for owner, name in ((snap, "tokens"), (snap, "taken"), (snap.itl, "count")):
        with pytest.raises(AttributeError, match="read-only"):
            setattr(owner, name, 1)
        with pytest.raises(AttributeError, match="read-only"):
            delattr(owner, name)


# Requests, labels, windows ---------------------------------------------------------------------------------


def end_good(core: Any) -> None:
    """A request within its bounds."""
    serve(core, start=ago(30), gaps=[20 * MS])


def end_late(core: Any) -> None:
    """A first token after the bound."""
    serve(core, start=ago(30), gaps=[20 * MS], ttft=3 * SECOND)


def end_refused(core: Any) -> None:
    """Too many requests."""
    stream = core.stream("m", "/r", ago(30), "", "")
    stream.status(429)
    stream.close(at=ago(29))


def end_early(core: Any) -> None:
    """A client that went away in time."""
    core.stream("m", "/r", ago(30), "", "").abort(at=ago(29.5))


@pytest.mark.parametrize(
    ("end", "reason", "outcome"),
    [
        (end_good, "good", "good"),
        (end_late, "late", "miss"),
        (end_refused, "429", "miss"),
        (end_early, "abort_early", "excluded"),
    ],
)
def test_every_ending_is_counted(core: Any, end: Callable[[Any], None], reason: str, outcome: str) -> None:
    """Each ending is one reason and one outcome; the other keys are there and 0."""
    end(core)
    snap = take(core)
    assert {name: count for name, count in snap.requests.items() if count} == {reason: 1}
    assert {name: count for name, count in snap.outcomes.items() if count} == {outcome: 1}
    assert tuple(snap.requests) == snapshots.REASONS
    assert snap.attainment == {"good": 1.0, "miss": 0.0, "excluded": None}[outcome]
    assert (snap.opened, snap.in_flight) == (1, 0)


def test_requests_can_be_asked_for_by_label(core: Any) -> None:
    """where() keeps the label sets of a model, a route or both; a stranger's name gives nothing."""
    serve(core, start=ago(30), gaps=[20 * MS] * 3, model="a", route="/x")
    serve(core, start=ago(30), gaps=[20 * MS] * 5, model="a", route="/y")
    serve(core, start=ago(30), gaps=[20 * MS] * 7, model="b", route="/x")
    snap = take(core)
    assert snap.labels == [("a", "/x"), ("a", "/y"), ("b", "/x")]
    assert (snap.itl.count, snap.where(model_name="a").itl.count, snap.where(route="/x").itl.count) == (15, 8, 10)
    both = snap.where(model_name="a").where(route="/y")
    assert (both.itl.count, both.requests["good"], both.tokens, both.labels) == (5, 1, 6, [("a", "/y")])
    none = snap.where(model_name="c")
    assert (none.itl.count, none.tokens, none.labels, none.attainment) == (0, 0, [], None)


def test_rolling_windows(core: Any) -> None:
    """Good, missed and finished requests of the last seconds, and shares per bound."""
    for second in range(20):
        serve(core, start=ago(40 - second), gaps=[20 * MS])
    serve(core, start=ago(15), gaps=[20 * MS], ttft=3 * SECOND)
    serve(core, start=ago(75), gaps=[20 * MS])
    snap = take(core)
    window = snap.window("1m")
    assert (window.good, window.miss, window.finished, window.seconds) == (20, 1, 21, 60.0)
    assert window.attainment == pytest.approx(20 / 21)
    assert window.within == {"ttft": pytest.approx(20 / 21), "tpot": 1.0, "itl": None, "e2e": 1.0}
    assert snap.goodput() == pytest.approx(20 / 60)
    assert snap.throughput(60) == pytest.approx(21 / 60)
    assert snap.window("5m").good == 21
    assert take(make_core()).window("5m").attainment is None


@pytest.mark.parametrize("window", ["", "1d", "2h", "-5m", 0, 3601, None, math.nan])
def test_a_bad_window_is_refused(core: Any, window: Any) -> None:
    """Windows are 1 s to 1 h."""
    with pytest.raises(OptionError, match="window"):
        take(core).window(window)


# Pauses, processes -----------------------------------------------------------------------------------------


def pause(core: Any) -> int:
    """One policy pass; its ns."""
    core.policy_begin()
    return int(core.policy_end())


def test_pauses_by_cause(core: Any) -> None:
    """Process time, counts and lengths of the passes, and nothing for the other causes."""
    lengths = [pause(core) for _ in range(20)]
    snap = take(core)
    assert snap.paused["gc_own"] == pytest.approx(sum(lengths) / 1e9)
    assert snap.gc.collections == {**dict.fromkeys(snapshots.CAUSES, 0), "gc_own": 20}
    assert snap.gc.pauses["gc_own"].count == 20
    assert snap.gc.pauses["gc_own"].sum == pytest.approx(sum(lengths) / 1e9)
    assert snap.gc.max["gc_own"] == pytest.approx(max(lengths) / 1e9)
    assert set(snap.gc.pauses) == {0, 1, 2, "gc_full", "gc_increment", "gc_own"}
    assert snap.gc.pauses[2].count == 0
    assert snap.gc.short["gc_own"] == sum(length < 50_000 for length in lengths)


def test_a_process_has_its_pauses_and_whether_it_stands_still(core: Any) -> None:
    """Counts and the longest by cause; while one is open, since when, and of what cause."""
    lengths = [pause(core) for _ in range(5)]
    (ended,) = take(core).processes
    assert (ended.collections["gc_own"], ended.collections["gc2"]) == (5, 0)
    assert ended.longest["gc_own"] == pytest.approx(max(lengths) / 1e9)
    assert (ended.lives, ended.standing, ended.standing_cause) == (True, 0.0, "")
    core.policy_begin()
    first, second = take(core).processes[0], take(core).processes[0]
    core.policy_end()
    assert second.standing_cause == "gc_own"
    assert 0 < first.standing < second.standing < 60
    assert first.standing < first.age < second.age < 600
    assert take(core).processes[0].standing == 0.0


def test_processes_are_named_by_role_and_number() -> None:
    """The index counts within a role; totals are over all of them."""
    cores = [make_core("api"), make_core("engine"), make_core("api")]
    for one in cores:
        pause(one)
        serve(one, start=ago(30), gaps=[20 * MS])
    snap = take(*cores)
    assert [process.name for process in snap.processes] == ["api-0", "engine-0", "api-1"]
    assert snap.paused["gc_own"] == pytest.approx(sum(process.paused["gc_own"] for process in snap.processes))
    assert snap.itl.count == snap.requests["good"] == 3
    assert all(process.bytes == one.bytes for process, one in zip(snap.processes, cores, strict=True))


# Slow gaps and the tail ------------------------------------------------------------------------------------


def test_slow_gaps_have_their_request() -> None:
    """Newest first, with the time of day, the ids and the split."""
    core = make_core(slow_ns=100 * MS)
    start = ago(30)
    serve(core, start=start, gaps=[20 * MS] * 20 + [300 * MS], request="first")
    serve(core, start=start + SECOND, gaps=[20 * MS] * 20 + [500 * MS], request="second", model="n")
    snap = take(core)
    newest, oldest = snap.recent
    assert snap.slowest == [newest, oldest]
    assert (newest.request_id, newest.trace_id, newest.model_name, newest.route) == ("second", "ab" * 16, "n", "/r")
    assert (newest.phase, newest.gap, newest.token, newest.complete) == ("itl", 0.5, 22, True)
    assert newest.typical == pytest.approx(0.02, rel=0.01)
    assert newest.unexplained == pytest.approx(0.48, rel=0.01)
    assert sum(newest.overlap.values()) == sum(newest.delay.values()) == 0
    assert oldest.request_id == "first"
    age = datetime.now(timezone.utc) - oldest.when
    assert timedelta(seconds=20) < age < timedelta(seconds=60)
    [octave] = [one for one in snap.tail["itl"] if one.lower <= 0.5 < one.upper]
    assert (octave.count, octave.time) == (2, 0.8)
    assert octave.unexplained == pytest.approx(0.76, rel=0.01)


def test_the_longest_gaps_outlive_the_last_ones() -> None:
    """Beside the last 256, the longest of the minute and the run; a difference has those that ended in it."""
    core = make_core(slow_ns=100 * MS)
    start = serve(core, start=SECOND, gaps=[20 * MS] * 20 + [4 * SECOND], request="stall")
    for i in range(300):  # all of it is past where the machine started two minutes ago
        start = serve(core, start=start + MS, gaps=[20 * MS] * 8 + [120 * MS], request=str(i))
    before = take(core)
    assert len(before.recent) == 256 and "stall" not in {gap.request_id for gap in before.recent}
    assert (before.slowest[0].request_id, before.slowest[0].gap) == ("stall", 4.0)
    assert [gap.gap for gap in before.slowest] == sorted((gap.gap for gap in before.slowest), reverse=True)
    kept = [gap.request_id for gap in before.slow_gaps()]
    assert len(kept) == len(set(kept)) and set(kept) >= {gap.request_id for gap in before.slowest}
    serve(core, start=ago(-1), gaps=[20 * MS] * 8 + [200 * MS], request="later")
    assert [gap.request_id for gap in (take(core) - before).slow_gaps()] == ["later"]


def test_records_come_one_by_one() -> None:
    """A cursor goes on where it stopped; what was overwritten is counted; a pause waits until it has settled."""
    core = make_core(slow_ns=100 * MS)
    records = snapshots.Records(core.address)
    start = SECOND
    for i in range(300):
        start = serve(core, start=start, gaps=[20 * MS] * 8 + [300 * MS], request=str(i))
    gaps, cursor, lost = records.slow_gaps(0)
    assert (len(gaps), cursor, lost) == (256, 300, 44)
    assert [gap.request_id for gap in gaps] == [str(i) for i in range(44, 300)]
    assert records.slow_gaps(cursor) == ([], 300, 0)
    lengths = [pause(core) for _ in range(30)]
    long = [length for length in lengths if length >= 50_000]
    count, seconds = records.short_pauses()
    assert count == len(lengths) - len(long)
    assert seconds == pytest.approx((sum(lengths) - sum(long)) / 1e9)
    assert records.pauses(0, before_ns=0) == ([], 0, 0)
    pauses, cursor, lost = records.pauses(0, before_ns=_hot.now())
    assert ([round(one.seconds * 1e9) for one in pauses], cursor, lost) == (long, len(long), 0)
    assert all(one.cause == "gc_own" and one.streams == 0 for one in pauses)


# Differences and history -----------------------------------------------------------------------------------


def test_a_difference_is_what_came_in_between(core: Any) -> None:
    """Counts, sums and label sets of the time between; gauges of the later one."""
    serve(core, start=ago(60), gaps=[900 * MS] * 4)
    earlier = take(core)
    serve(core, start=ago(30), gaps=[20 * MS] * 6)
    serve(core, start=ago(30), gaps=[30 * MS], model="new")
    open_stream = core.stream("m", "/r", ago(1), "", "")
    later = take(core)
    between = later - earlier
    assert between.itl.count == 7
    assert between.itl.sum == pytest.approx(0.15)
    assert between.itl.max == pytest.approx(0.03, rel=0.022)
    assert between.requests["good"] == 2
    assert (between.opened, between.in_flight) == (3, 1)
    assert between.where(model_name="new").tokens == 2
    assert between.seconds == pytest.approx(later.taken - earlier.taken, abs=0.05)
    assert (later - later).itl.count == 0
    with pytest.raises(OptionError, match="taken before"):
        earlier - later
    with pytest.raises(TypeError):
        later - 1  # type: ignore[operator]
    open_stream.close()


def test_the_past_can_be_asked_for(core: Any) -> None:
    """A window is the difference to the nearest mark, under one label set; with no mark it is everything."""
    history = snapshots.History()
    assert history.bytes < 2 << 20
    serve(core, start=ago(60), gaps=[20 * MS] * 4)
    first = take(core)
    assert history.window(first, 60).itl.count == 4
    history.push(first)
    serve(core, start=ago(30), gaps=[30 * MS] * 6, model="n")
    recent = history.window(take(core), 0)
    assert recent.labels == [("*", "*")]
    assert recent.itl.count == 6
    assert recent.itl.sum == pytest.approx(0.18)
    assert recent.requests["good"] == 1
    assert [process.name for process in recent.processes] == ["api-0"]


# Fallbacks of the fast SSE path ----------------------------------------------------------------------------


def test_fallbacks_are_kept_by_shape_and_reason(core: Any) -> None:
    """Of several processes, in a difference, and in a window of the past; nothing else is in the mapping."""
    history, other = snapshots.History(), make_core()
    assert take(core).sse_fallbacks == {}
    for _ in range(3):
        core.count_fallback("chat", "differs")
    first = take(core, other)
    history.push(first)
    other.count_fallback("chat", "differs")
    other.count_fallback("caf\u00e9", "unsupported")
    now = take(core, other)

    assert first.sse_fallbacks == {("chat", "differs"): 3}
    assert now.sse_fallbacks == {("chat", "differs"): 4, ("caf\u00e9", "unsupported"): 1}
    assert (now - first).sse_fallbacks == {("chat", "differs"): 1, ("caf\u00e9", "unsupported"): 1}
    assert (first - first).sse_fallbacks == {}
    assert history.window(now, 0).sse_fallbacks == (now - first).sse_fallbacks
    core.reset()
    assert take(core).sse_fallbacks == {}


def test_fallbacks_without_room_are_counted_as_other(core: Any) -> None:
    """31 kinds are kept apart in one process, and none is lost."""
    for i in range(100):
        core.count_fallback(f"shape {i}", "differs")
    kept = take(core).sse_fallbacks
    assert len(kept) == 32
    assert kept["other", "other"] == 69
    assert sum(kept.values()) == 100


def test_any_text_names_a_fallback(core: Any) -> None:
    """Cut to 63 and 31 bytes at a character; what no format can carry becomes a question mark."""
    core.count_fallback("\U0001f600" * 20, "\ud800\n\x00\x9f")
    core.count_fallback("", "r" * 1000)
    assert take(core).sse_fallbacks == {("\U0001f600" * 15, "????"): 1, ("", "r" * 31): 1}
    for wrong in ((), ("a",), ("a", 1), (b"a", "b"), ("a", "b", "c"), (None, "b")):
        with pytest.raises(TypeError):
            core.count_fallback(*wrong)


# As a whole ------------------------------------------------------------------------------------------------


def test_everything_is_json(core: Any) -> None:
    """as_dict() survives strict JSON and reads back as the same numbers."""
    serve(core, start=SECOND, gaps=[20 * MS] * 20 + [300 * SECOND], request="slow")
    pause(core)
    core.count_fallback("chat", "differs")
    snap = take(core)
    again = from_dict(json.loads(json.dumps(snap.as_dict(), allow_nan=False)))
    for name in HISTOGRAMS:
        live, saved = getattr(snap, name), getattr(again, name)
        assert (saved.count, saved.sum, saved.min, saved.max, saved.p(99)) == (
            live.count, live.sum, live.min, live.max, live.p(99)
        )  # fmt: skip
    for name in (
        "requests",
        "paused",
        "delay_by_phase",
        "labels",
        "tokens",
        "arrivals",
        "drops",
        "errors",
        "taken",
        "sse_fallbacks",
    ):
        assert getattr(again, name) == getattr(snap, name), name
    assert again.slowest[0].when == snap.slowest[0].when
    assert again.window("1h").good == snap.window("1h").good
    assert again.gc.max == snap.gc.max
    assert (again.slo.ttft, again.slo.itl, again.slo.attainment) == (snap.slo.ttft, None, 0.99) == (2.0, None, 0.99)
    assert repr(snap).startswith("<tailwatch.Snapshot of ")


def test_rows_are_a_list_in_json_without_any(core: Any) -> None:
    """What is counted by two names is a list of rows before the first count, too: a reader meets one type."""
    before = take(core).as_dict()
    core.count_fallback("chat", "differs")
    assert (before["sse_fallbacks"], take(core).as_dict()["sse_fallbacks"]) == ([], [["chat", "differs", 1]])
    assert from_dict(before).sse_fallbacks == {}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rendering_outlives_its_parts(core: Any, kind: str) -> None:
    """The bytes stay whole when the snapshot and every other reference are gone."""
    serve(core, start=ago(30), gaps=[20 * MS] * 4, model='a"b')
    info = {"version": "1.2.3", "python": "3.11", "slo": "ttft<=2s@99%", "kind": kind}
    view = render(take(core), **info)
    again = bytes(view[:])
    for _ in range(20):
        render(take(core), **info)
    assert bytes(view) == again
    assert (b'a"b' if "protobuf" in kind else b'model_name="a\\"b"') in again
    assert b"1.2.3" in again and b"# EOF" not in again


def test_what_is_no_address_is_refused() -> None:
    """Nothing at all, and memory that is no segment."""
    with pytest.raises(OptionError, match="addresses"):
        snapshots.take([])
    with pytest.raises(OptionError, match="addresses"):
        snapshots.take([0])


def test_snapshots_of_a_core_at_work(core: Any) -> None:
    """Counts only rise, and are whole in the end, while another thread stamps."""
    done = threading.Event()

    def work() -> None:
        for i in range(300):
            serve(core, start=ago(30), gaps=[(i % 50 + 1) * MS] * 20)
        done.set()

    worker, counts = threading.Thread(target=work), [0]
    worker.start()
    while not done.is_set():
        counts.append(take(core).itl.count)
    worker.join()
    assert counts == sorted(counts)
    assert take(core).itl.count == take(core).itl_without_gc.count == 6000
