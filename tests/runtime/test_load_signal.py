"""tailwatch.load_signal(): counts of the moment, what they are compared with, and the forms it takes for others."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import tailwatch
from tailwatch import _hot, snapshots
from tailwatch.errors import NotInstalledError, OptionError
from tailwatch.export import orca
from tailwatch.options.config import Config
from tailwatch.runtime.load_signal import LoadSignal, bands
from tailwatch.snapshots import Point

MS, SECOND = 1_000_000, 1_000_000_000
ENVOY_KEYS = re.compile(r"cpu_utilization|application_utilization|rps_fractional|eps|named_metrics\.\w+")


@pytest.fixture
def watch() -> Iterator[tailwatch.Watch]:
    """A process with an SLO of 100 ms to the first token."""
    yield tailwatch.install(gc="off", role="engine", slo="ttft<=100ms")
    tailwatch.uninstall()


def serve_curve(watch: tailwatch.Watch, knee: int, most: int) -> None:
    """Requests at each concurrency up to most: 50 ms to the first token, and 20 ms more for each stream above knee."""
    base = _hot.now() - 20 * SECOND
    for again in range(8):
        open_ones = []
        for streams in range(1, most + 1):
            arrival = base + again * 2 * SECOND
            stream = watch.core.stream("m", "/r", arrival, "", "")
            wait = (50 + 20 * max(0, streams - knee)) * MS + (again % 4) * MS
            stream.token(at=arrival + wait)
            open_ones.append((stream, arrival + wait))
        for stream, end in open_ones:
            stream.close(at=end)


# ---- what it reports ----


def test_it_counts_waiting_and_running_requests(watch: tailwatch.Watch) -> None:
    """A request waits until its first token, runs until its end, and counts as neither afterwards."""
    with watch.stream(), watch.stream() as one:
        assert (tailwatch.load_signal().running, tailwatch.load_signal().waiting) == (0, 2)
        one.token()
        one.token()
        now = tailwatch.load_signal()
        assert (now.running, now.waiting, now.in_flight, now.processes) == (1, 1, 2, 1)
    assert tailwatch.load_signal().in_flight == 0


def test_without_data_there_is_no_number(watch: tailwatch.Watch) -> None:
    """No number is made up."""
    now = tailwatch.load_signal()
    assert now.verdict == "few_data"
    assert (now.healthy, now.ratio, now.utilization, now.headroom) == (None, None, None, None)
    assert (now.predicted_ttft, now.within_slo) == (None, None)
    assert (now.confidence, now.curve, now.scope) == (0.0, (), "process")


def test_the_load_is_measured_against_the_healthy_concurrency(watch: tailwatch.Watch) -> None:
    """Ratio, headroom and the prediction follow the streams in flight at the call."""
    serve_curve(watch, knee=20, most=50)
    watch.load.refresh()
    idle = watch.load_signal()
    assert idle.verdict == "found"
    assert idle.healthy == pytest.approx(20, rel=0.1)
    assert idle.confidence > 0.5
    assert (idle.ratio, idle.headroom, idle.within_slo) == (0, idle.healthy, True)
    assert idle.predicted_ttft == pytest.approx(0.05, rel=0.2)
    assert 0 <= idle.age < 60
    held = [watch.core.stream("m", "/r", None, "", "") for _ in range(40)]
    busy = watch.load_signal()
    assert busy.ratio == pytest.approx(40 / idle.healthy)
    assert (busy.utilization, busy.headroom, busy.within_slo) == (1.0, 0.0, False)
    assert busy.predicted_ttft == pytest.approx(0.05 + 0.02 * (41 - 20), rel=0.2)
    for stream in held:
        stream.close()


def test_a_line_has_no_inflection(watch: tailwatch.Watch) -> None:
    """`no inflection`, up to the most that was seen; a prediction there is all the same."""
    serve_curve(watch, knee=0, most=50)
    watch.load.refresh()
    now = watch.load_signal()
    assert (now.verdict, now.healthy, now.highest) == ("no_inflection", None, 50)
    assert now.predicted_ttft == pytest.approx(0.07, rel=0.2)


def test_without_a_bound_nothing_is_within_it() -> None:
    """An SLO without TTFT: whether a request would meet it is not known."""
    watch = tailwatch.install(gc="off", slo="itl<=100ms")
    try:
        serve_curve(watch, knee=20, most=50)
        watch.load.refresh()
        assert watch.load_signal().within_slo is None
        assert watch.load_signal().predicted_ttft is not None
    finally:
        tailwatch.uninstall()


def test_it_is_frozen_and_needs_an_install(watch: tailwatch.Watch) -> None:
    """Nothing changes what others read; without install() the error has what to call."""
    with pytest.raises(AttributeError):
        tailwatch.load_signal().running = 7  # type: ignore[misc]
    tailwatch.uninstall()
    with pytest.raises(NotInstalledError, match="install"):
        tailwatch.load_signal()


def test_a_reset_forgets(watch: tailwatch.Watch) -> None:
    """What a fork child does: it has nothing of its parent's load."""
    serve_curve(watch, knee=20, most=50)
    watch.load.refresh()
    held = watch.core.stream("m", "/r", None, "", "")
    assert watch.load_signal().verdict == "found"
    watch.core.reset()
    watch.load.forget()
    now = watch.load_signal()
    assert (now.verdict, now.in_flight, now.curve) == ("few_data", 0, ())
    held.close()
    assert watch.load_signal().in_flight == 0


def test_a_fork_child_starts_from_nothing(watch: tailwatch.Watch) -> None:
    """A real one."""
    serve_curve(watch, knee=20, most=50)
    watch.load.refresh()
    with watch.stream() as stream:
        stream.token()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            now = tailwatch.load_signal()
            os.write(write, json.dumps([now.verdict, now.in_flight]).encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(os.read(read, 1000)) == ["few_data", 0]
        assert watch.load_signal().running == 1


# ---- metrics ----


def gauges(watch: tailwatch.Watch) -> dict[str, Any]:
    """The unlabelled samples of a scrape, and those of the two labelled families."""
    text = watch.exposition.render()[1].decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    plain: dict[str, Any] = {s.name: s.value for s in samples if not s.labels}
    plain["verdict"] = [s.labels["verdict"] for s in samples if s.name.endswith("_verdict")]
    plain["curve"] = {
        float(s.labels["streams"]): s.value for s in samples if s.name == "tailwatch_ttft_by_concurrency_seconds"
    }
    return plain


def test_the_metrics_are_the_signal(watch: tailwatch.Watch) -> None:
    """Each number of load_signal() under its name; the curve bounded."""
    serve_curve(watch, knee=20, most=50)
    watch.load.refresh()
    with watch.stream():
        now, seen = watch.load_signal(), gauges(watch)
    assert seen["tailwatch_streams_running"] == 0
    assert seen["tailwatch_streams_waiting"] == 1
    assert seen["tailwatch_healthy_concurrency"] == pytest.approx(now.healthy)
    assert seen["tailwatch_healthy_concurrency_confidence_ratio"] == pytest.approx(now.confidence)
    assert seen["tailwatch_load_ratio"] == pytest.approx(now.ratio)
    assert seen["tailwatch_load_utilization_ratio"] == pytest.approx(now.utilization)
    assert seen["tailwatch_load_headroom_streams"] == pytest.approx(now.headroom)
    assert seen["tailwatch_predicted_ttft_seconds"] == pytest.approx(now.predicted_ttft)
    assert seen["tailwatch_admission_within_slo"] == 1
    assert seen["verdict"] == ["found"]
    assert 10 < len(seen["curve"]) <= 25
    assert max(seen["curve"]) <= 50
    assert seen["curve"][max(seen["curve"])] > 4 * seen["curve"][1]


def test_what_is_not_known_has_no_sample(watch: tailwatch.Watch) -> None:
    """Absent, not 0: a balancer must not take an unknown server for an idle one."""
    seen = gauges(watch)
    assert seen["verdict"] == ["few_data"]
    assert seen["curve"] == {}
    known = {name for name in seen if re.search("healthy|load|predicted|admission", name)}
    assert known == set()


@given(st.lists(st.tuples(st.floats(1, 4095), st.floats(0, 100), st.integers(1, 500)), max_size=256))
def test_bands_bound_the_curve(rows: list[tuple[float, float, int]]) -> None:
    """At most 8 and 4 an octave, ascending, every sample in one, no TTFT outside what there was."""
    made = bands([Point(*row) for row in sorted(rows)])
    assert len(made) <= 8 + 4 * 9 + 1
    assert sum(point.samples for point in made) == sum(samples for _, _, samples in rows)
    assert [point.streams for point in made] == sorted(point.streams for point in made)
    labels = [round(point.streams) for point in made]
    assert len(set(labels)) == len(labels)
    for point in made:
        assert min(ttft for _, ttft, _ in rows) <= point.ttft * 1.0001
        assert point.ttft <= max(ttft for _, ttft, _ in rows) * 1.0001


# ---- ORCA ----


def signal(**changed: Any) -> LoadSignal:
    """A load that is known."""
    return LoadSignal(
        **{
            "running": 30, "waiting": 3, "healthy": 24.0, "confidence": 0.9, "verdict": "found", "highest": 60,
            "ratio": 33 / 24, "utilization": 1.0, "headroom": 0.0, "predicted_ttft": 0.25, "within_slo": True,
            "requests_per_second": 12.5, "processes": 1, "scope": "process", "curve": (), "age": 0.1, **changed,
        }
    )  # fmt: skip


def test_orca_text_is_what_envoy_reads() -> None:
    """`TEXT key=value, ...`: known keys, each once, plain finite numbers; utilization may exceed 1."""
    value = orca.report(signal(), "TEXT")
    assert value is not None
    form, _, rest = value.decode().partition(" ")
    pairs = dict(pair.split("=") for pair in rest.split(", "))
    assert form == "TEXT"
    assert len(pairs) == rest.count("=")
    assert all(ENVOY_KEYS.fullmatch(key) for key in pairs)
    assert float(pairs["application_utilization"]) == 1.375
    assert float(pairs["rps_fractional"]) == 12.5
    assert float(pairs["named_metrics.num_requests_waiting"]) == 3
    assert float(pairs["named_metrics.num_requests_running"]) == 30


def test_orca_json_is_what_envoy_reads() -> None:
    """`JSON {...}` with the named metrics in a mapping of their own."""
    value = orca.report(signal(), "json")
    assert value is not None
    form, _, rest = value.decode().partition(" ")
    assert form == "JSON"
    assert json.loads(rest) == {
        "application_utilization": 1.375,
        "rps_fractional": 12.5,
        "named_metrics": {
            "num_requests_running": 30.0,
            "num_requests_waiting": 3.0,
            "healthy_concurrency": 24.0,
            "headroom_streams": 0.0,
            "predicted_ttft_seconds": 0.25,
        },
    }


def test_orca_leaves_out_what_is_not_known() -> None:
    """One value that Envoy cannot read costs the whole report."""
    value = orca.report(signal(healthy=None, ratio=None, headroom=None, predicted_ttft=None), "text")
    assert value == (
        b"TEXT rps_fractional=12.5, named_metrics.num_requests_running=30.0, named_metrics.num_requests_waiting=3.0"
    )
    assert orca.report(signal(), "BIN") is None


# ---- options ----


@pytest.mark.parametrize(
    ("given", "expected"),
    [(True, "request"), (False, "off"), ("off", "off"), ("request", "request"), ("TEXT", "text"), ("json", "json")],
)
def test_orca_option(given: object, expected: str) -> None:
    """True: the answer to requests that ask."""
    assert Config.read({"orca": given}, {}).orca == expected


def test_orca_variable_and_refusals() -> None:
    """The variable takes yes and no too; anything else is refused with the choices."""
    assert Config.read({}, {"TAILWATCH_ORCA": "1"}).orca == "request"
    assert Config.read({}, {"TAILWATCH_ORCA": "json", "TAILWATCH_SSE_TIMING": "yes"}).sse_timing
    for value in ("BIN", 7, None, "1"):
        if value is not None:
            with pytest.raises(OptionError, match="request"):
                Config.read({"orca": value}, {})


def test_healthy_of_bad_addresses_is_refused() -> None:
    """No address at all."""
    with pytest.raises(OptionError):
        snapshots.healthy([])
