"""Results: what is written is read back, parts add up to the whole, and garbage is refused in one sentence."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import tracemalloc
from array import array
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import results
from tailwatch.loadtest.censored_percentiles import Quantile
from tailwatch.loadtest.client_health import SelfWatch, judge
from tailwatch.loadtest.exchange import Ending, Exchange
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.histogram import LatencyHistogram
from tailwatch.loadtest.merging import merged
from tailwatch.loadtest.outcomes import CODE, FAULTS, MISSES, REASONS, fault_of, reason_of
from tailwatch.loadtest.recorder import Recorder, throughput_of
from tailwatch.loadtest.report import table
from tailwatch.loadtest.requests import COLUMNS, Requests, samples
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.schedule import Planned
from tailwatch.loadtest.series import Series
from tailwatch.loadtest.validity import ClientHealth, Validity
from tailwatch.options.slo import SLO

pytestmark = pytest.mark.integration

MS = 1_000_000
SECOND = 1_000_000_000
TIMES = st.lists(st.integers(0, 10**13), max_size=60)


def filled(values: list[int], layout: str = "ttft") -> LatencyHistogram:
    """A histogram of these nanoseconds."""
    found = LatencyHistogram(layout)
    found.record_all(array("q", values))
    return found


def exchange(
    planned: int, *, sent: int | None = None, first: int = 0, gaps: tuple[int, ...] = (), **more: Any
) -> Exchange:
    """A finished one: first content `first` ns after the plan, then messages after these gaps."""
    found = Exchange(planned)
    found.sent_ns = planned if sent is None else sent
    found.status, found.ending = 200, Ending.FINISHED
    stamps = array("Q", [planned + first] if first else [])
    for gap in gaps:
        stamps.append(stamps[-1] + gap)
    if stamps:
        found.first_byte_ns = found.first_chunk_ns = found.first_content_ns = stamps[0]
        found.last_content_ns = stamps[-1]
        found.messages = found.tokens = len(stamps)
        found.choices = ((stamps[0], stamps[-1], len(stamps)),)
        found.largest_gap_ns = max(gaps, default=0)
        found.largest_gap_at_ns = stamps[gaps.index(max(gaps))] if gaps else 0
    found.stamps = stamps.tobytes()
    found.end_ns = stamps[-1] if stamps else planned + MS
    for name, value in more.items():
        setattr(found, name, value)
    return found


def recorded(exchanges: list[Exchange], slo: SLO | None = None, duration: float = 10.0) -> Result:
    """A result of these, counted from moment 0."""
    watch = SelfWatch()
    watch._alive = 10**18  # never away
    recorder = Recorder(0, slo, watch)
    for index, one in enumerate(exchanges):
        recorder.note(one, Planned(one.planned_ns / 1e9, 8, 8, index))
    client = ClientHealth()
    outcomes = recorder.finish(client)
    verdict = goodput_of(
        outcomes,
        slo,
        duration=duration,
        throughput=recorder.throughput(duration),
        tokens=recorder.tokens / duration,
        broken=recorder.broken,
        windows=recorder.series.windows,
    )
    return Result(
        target="http://127.0.0.1:1",
        duration=duration,
        elapsed=duration,
        goodput=verdict,
        slo=slo,
        outcomes=outcomes,
        latencies=recorder.latencies,
        tokens=recorder.tokens,
        series=recorder.series,
        client=client,
        requests=recorder.requests,
        examples=recorder.examples,
    )


def many(seed: int, count: int = 40) -> Result:
    """Of random exchanges, all kinds of outcomes among them."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        planned = rng.randrange(10 * SECOND)
        gaps = tuple(rng.randrange(50 * MS) for _ in range(rng.randrange(6)))
        one = exchange(planned, first=rng.randrange(1, 800 * MS), gaps=gaps)
        one.status = rng.choice([200, 200, 200, 429, 503, 404])
        one.ending = Ending(rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 9]))
        found.append(one)
    return recorded(found, SLO.parse("ttft<=500ms,itl<=40ms"))


# Histograms


@given(TIMES, TIMES)
def test_a_merged_histogram_is_that_of_all_samples(one: list[int], two: list[int]) -> None:
    """Adding is exact: counts, sum, extremes and every bucket."""
    both = filled(one)
    both.add(filled(two))
    assert both == filled(one + two)
    assert both.count == len(one) + len(two)
    assert both.sum == pytest.approx(sum(one + two) / 1e9)


@given(TIMES)
def test_a_histogram_survives_json_and_pickle(values: list[int]) -> None:
    """What is written is read back, bit for bit."""
    one = filled(values)
    assert LatencyHistogram.from_dict(json.loads(json.dumps(one.as_dict()))) == one
    assert pickle.loads(pickle.dumps(one)) == one


@given(st.lists(st.integers(1_000, 10**12), min_size=1, max_size=60), st.floats(0, 100))
def test_a_percentile_is_that_rank_within_a_bucket(values: list[int], percent: float) -> None:
    """At most 1.1 % off the sample of its rank, as on the server side."""
    rank = max(1, math.ceil(percent / 100 * len(values)))
    assert filled(values).p(percent) == pytest.approx(sorted(values)[rank - 1] / 1e9, rel=0.011)


@given(st.lists(st.integers(0, 10**12), max_size=40))
def test_gaps_are_those_between_stamps(stamps: list[int]) -> None:
    """One sample less than stamps; recorded in C from the bytes that an exchange has."""
    stamps.sort()
    found = LatencyHistogram("itl")
    found.record_gaps(array("Q", stamps).tobytes())
    assert found == filled([b - a for a, b in pairwise(stamps)], "itl")


def test_histograms_of_other_buckets_do_not_merge() -> None:
    """Their classic bounds differ."""
    with pytest.raises(OptionError, match="layout"):
        filled([1]).add(filled([1], "itl"))


# Outcomes


@pytest.mark.parametrize(
    ("changes", "reason", "fault"),
    [
        ({}, "good", ""),
        ({"status": 429}, "429", ""),
        ({"status": 503}, "5xx", ""),
        ({"status": 404}, "4xx", ""),
        ({"status": 302}, "3xx", ""),
        ({"failed": True}, "error", "error_event"),
        ({"ending": Ending.TRUNCATED}, "error", "truncated"),
        ({"ending": Ending.RESET, "status": 0}, "error", "reset"),
        ({"ending": Ending.REFUSED, "status": 0}, "error", "refused"),
        ({"ending": Ending.GARBAGE, "status": 0}, "error", "garbage"),
        ({"ending": Ending.TLS, "status": 0}, "error", "tls"),
        ({"ending": Ending.LIMIT, "status": 0}, "error", "client_limit"),
        ({"ending": Ending.TIMEOUT}, "timeout", "timeout"),
        ({"ending": Ending.ABANDONED}, "abandoned", "abandoned"),
        ({"first": 300 * MS}, "late", ""),
        ({"gaps": (5 * MS, 90 * MS)}, "late", ""),
    ],
)  # fmt: skip
def test_the_table_of_outcomes(changes: dict[str, Any], reason: str, fault: str) -> None:
    """One outcome for each exchange; what the tester ended itself is a miss."""
    one = exchange(SECOND, **{"first": MS, "gaps": (5 * MS,), **changes})
    assert REASONS[reason_of(one, SLO.parse("ttft<=200ms,itl<=50ms"))] == reason
    assert FAULTS[fault_of(one)] == fault


def test_every_ending_has_a_name() -> None:
    """A new ending cannot become another one's."""
    for ending in Ending:
        one = exchange(SECOND, first=MS, ending=ending)
        assert fault_of(one) == 0 or FAULTS[fault_of(one)].split("_")[-1] == ending.name.lower()
    assert {"abandoned", "never_sent", "timeout"} <= set(MISSES)


def test_bounds_count_from_the_planned_start() -> None:
    """An answer that was quick once it was sent is late all the same."""
    one = exchange(SECOND, sent=SECOND + 500 * MS, first=505 * MS)
    assert REASONS[reason_of(one, SLO.parse("ttft<=200ms"))] == "late"
    result = recorded([one], SLO.parse("ttft<=200ms"))
    assert result.percentile("ttft", 50) == pytest.approx(0.505)
    assert result.percentile("ttft_naive", 50) == pytest.approx(0.005)


# Rows, series, goodput


def test_the_four_request_timeline() -> None:
    """Planned each 500 ms from 0 on, 10 ms of service, a stall of a second: 10, 10, 810 and 1010 ms from the plan."""
    waits = {0: 10, 1000: 10, 2000: 810, 3000: 1010}
    found = recorded([exchange(at * MS, first=wait * MS) for at, wait in waits.items()])
    assert [found.percentile("ttft", p) for p in (25, 50, 75, 99)] == [0.01, 0.01, 0.81, 1.01]


def test_goodput_counts_what_was_scheduled() -> None:
    """Excluded requests are no part of the denominator, misses of all kinds are."""
    slo = SLO.parse("ttft<=200ms@90%")
    good = [exchange(i * SECOND, first=MS) for i in range(6)]
    others = [exchange(6 * SECOND, status=429), exchange(7 * SECOND, ending=Ending.ABANDONED, status=0)]
    found = recorded([*good, *others, exchange(8 * SECOND, status=404)], slo).goodput
    assert (found.scheduled, found.good, found.miss, found.excluded, found.counted) == (9, 6, 2, 1, 8)
    assert found.attainment == 0.75 and not found.held
    assert found.rate == pytest.approx(0.6)
    assert found.low is not None and found.high is not None and found.low < 0.75 < found.high


@pytest.mark.parametrize(
    "changes",
    [
        {"ending": Ending.TIMEOUT},
        {"ending": Ending.ABANDONED},
        {"ending": Ending.TRUNCATED},
        {"failed": True},
        {"status": 503},
    ],
    ids=str,
)
def test_an_unfinished_request_has_no_tpot(changes: dict[str, Any]) -> None:
    """TPOT is of finished requests; its TTFT and its gaps happened, and are recorded."""
    gaps = (5 * MS, 900 * MS)
    found = recorded([exchange(0, first=MS, gaps=gaps), exchange(SECOND, first=MS, gaps=gaps, **changes)])
    assert found.tpot.count == found.e2e.count == 1
    assert found.requests is not None and list(found.requests.tpot) == [905 * MS // 2, -1]
    assert found.ttft.count == 2 and found.itl.count == 4


def test_an_answer_of_nothing_can_be_late() -> None:
    """A role chunk alone, or not even that: the bound of the first token is judged by what came, or by the end."""
    slo = SLO.parse("ttft<=200ms")
    role = exchange(0, first_chunk_ns=300 * MS, end_ns=310 * MS)
    nothing = exchange(SECOND, end_ns=SECOND + 300 * MS)
    quick = exchange(2 * SECOND, first_chunk_ns=2 * SECOND + MS, end_ns=2 * SECOND + 900 * MS)
    found = recorded([role, nothing, quick], slo)
    assert found.outcomes.by_reason["late"] == 2 and found.goodput.broken == {"ttft": 2}
    assert found.goodput.good == 1 and found.ttft.count == 0


# What never came


def dropping(good: int, dropped: int, *, after: int = 60 * SECOND, **changes: Any) -> Result:
    """So many answered in 1, 2, 3 … ms, the others ended so late without a token."""
    fast = [exchange(i * MS, first=(i + 1) * MS) for i in range(good)]
    how = {"ending": Ending.TIMEOUT, "status": 0} | changes
    return recorded([*fast, *(exchange(0, **how, end_ns=after) for _ in range(dropped))])


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_what_the_tester_ended_counts_as_old_as_it_was(metric: str, columns: bool) -> None:
    """Five of 100 timed out: p95 is known, p99 is at least their age, and the maximum too."""
    found = dropping(95, 5)
    found.requests = found.requests if columns else None
    about = pytest.approx(0.095, rel=0.011)
    assert found.quantile(metric, 95) == Quantile(about) and found.quantile(metric, 50) == Quantile(
        pytest.approx(0.05, rel=0.011)
    )
    for percent in (96, 99, 100):
        assert found.quantile(metric, percent) == Quantile(pytest.approx(60.0, rel=0.011), censored=True)
    assert found.percentile(metric, 99) == pytest.approx(60.0, rel=0.011)
    assert found.percentile(f"{metric}_naive", 99) == pytest.approx(0.094, rel=0.02), "the naive one forgets them"


def test_a_request_ended_early_makes_a_bound_of_all_that_it_may_move() -> None:
    """Ended after 10 ms: it is not known on which side of the median it would have come."""
    found = dropping(99, 1, after=10 * MS)
    below, median = found.quantile("ttft", 5), found.quantile("ttft", 50)
    assert below == Quantile(0.005) and median is not None
    assert median.censored and median.seconds == pytest.approx(0.049)


def test_what_failed_stands_behind_what_came() -> None:
    """Refused in no time: no fast request, and no bound of the ones that came."""
    found = dropping(95, 5, after=0, ending=Ending.REFUSED)
    assert found.quantile("e2e", 95) == Quantile(0.095)
    assert found.quantile("e2e", 99) == Quantile(0.095, censored=True)
    assert found.latencies.lost == {"ttft": 5, "e2e": 5} and found.latencies.e2e_censored.count == 0
    assert dropping(0, 5, ending=Ending.REFUSED).quantile("e2e", 50) is None


def test_a_request_with_a_token_lacks_only_the_end() -> None:
    """A stream that was timed out has its TTFT; one excluded or without any content lacks nothing."""
    cut = exchange(0, first=MS, gaps=(MS,), ending=Ending.TIMEOUT, end_ns=60 * SECOND)
    excluded, document = exchange(0, status=404), exchange(0)
    found = recorded([cut, excluded, document])
    assert found.latencies.ttft_censored.count == 0 and found.latencies.e2e_censored.count == 1
    assert found.latencies.lost == {"ttft": 0, "e2e": 0}
    assert found.quantile("ttft", 100) == Quantile(0.001)
    assert found.quantile("e2e", 100) == Quantile(60.0, censored=True)


def test_a_bound_is_printed_and_written_as_one(tmp_path: Path) -> None:
    """≥ in the table; in the file its percentiles are named."""
    found = dropping(95, 5)
    assert re.search(r"p99 +≥60 s", table.show(found)) and re.search(r"p95 +95 ms", table.show(found))
    written = json.loads(json.dumps(found.as_dict()))
    assert written["at_least_p"] == {"ttft": ["99", "99.9", "100"], "e2e": ["99", "99.9", "100"]}
    read = Result.from_dict(written)
    assert read.quantile("ttft", 99) == found.quantile("ttft", 99)


# The verdict on the SLO


def test_an_invalid_run_gives_no_verdict() -> None:
    """Neither that it held nor that it did not; nor does one in which nothing counted."""
    believed = recorded([exchange(0, first=MS)], SLO.parse("ttft<=1s")).goodput
    assert believed.held is True
    assert replace(believed, believed=False).held is None
    assert recorded([]).goodput.held is None


def test_an_interval_counts_a_stall_once() -> None:
    """Sixty seconds, every tenth of which all miss: as sure as of 60 tosses, not of 2400; none below 8 s."""
    found = recorded(
        [exchange(i * 25 * MS, first=MS if i * 25 % 10_000 >= 1000 else 900 * MS) for i in range(2400)],
        SLO.parse("ttft<=200ms"),
    ).goodput
    assert found.low is not None and found.high is not None
    assert found.attainment == 0.9 and found.low < 0.82 and found.high > 0.94
    clean = recorded([exchange(i * 25 * MS, first=MS) for i in range(2400)], SLO.parse("ttft<=200ms")).goodput
    assert clean.low is not None and 0.9 < clean.low < 0.96 and clean.high == 1.0
    assert recorded([exchange(i * SECOND, first=MS) for i in range(7)]).goodput.low is None


def test_tokens_belong_to_the_seconds_of_their_messages() -> None:
    """A stream of 40 messages over 4 s is 10 tokens a second, and its largest gap stands where it began."""
    gaps = (100 * MS,) * 19 + (150 * MS,) + (100 * MS,) * 19
    found = recorded([exchange(0, first=50 * MS, gaps=gaps)])
    assert sum(found.series.tokens) == 40
    assert found.series.tokens == [10, 10, 9, 10, 1]  # the long gap took one from the third
    assert found.series.largest_gap_ns[1] == 150 * MS


@given(st.integers(0, 30))
def test_columns_and_histograms_agree(seed: int) -> None:
    """Whatever comes back, each latency has one sample for each request that has it."""
    found = many(seed)
    assert found.requests is not None
    assert found.outcomes.scheduled == len(found.requests) == sum(found.series.scheduled)
    for name in ("ttft", "ttft_naive", "first_byte", "e2e", "e2e_naive", "largest_gap", "send_lag"):
        assert getattr(found.latencies, name).count == len(samples(found.requests, name)), name
    assert found.tokens == sum(found.series.tokens) == sum(found.requests.tokens)
    assert sum(found.series.good) == found.goodput.good


def test_idle_time_is_kept_merged_and_shown(tmp_path: Path) -> None:
    """Seconds in which a reader at the pace of the deadlines had nothing to read; over the answers, in the table."""
    one = recorded([exchange(0, first=MS, gaps=(MS,), due=2, met=1, idle_ns=300 * MS)], SLO.parse("ttft<=1s,tpot<=1ms"))
    one.fluidity, one.idle = 0.5, 0.3
    results.save(tmp_path / "r.json", [one])
    (again,) = results.load(tmp_path / "r.json")
    assert again.idle == 0.3
    both = merged([one, again])
    assert both.idle == 0.6
    assert "waited 300 ms an answer" in " ".join(table.show(both).split())


def test_a_row_is_small() -> None:
    """10^6 requests in less than 130 MB of columns."""
    assert sum(array(code).itemsize for code in COLUMNS.values()) <= 130


def test_throughput_takes_no_list_of_all_requests() -> None:
    """At the end of a run of 10^6 requests it would be the largest thing in it."""
    rows = Requests()
    values = dict.fromkeys(COLUMNS, 0) | {"status": 200}
    for end in range(20_000):
        rows.add(**values | {"end": end * 1_000_000})
    tracemalloc.start()
    assert throughput_of(rows, 10.0) == 1000.1
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000


# Files


@given(seed=st.integers(0, 10))
def test_a_result_survives_its_file(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All of it, its columns too."""
    path = tmp_path_factory.mktemp("results") / "r.json"
    one = many(seed)
    results.save(path, [one, one])
    first, second = results.load(path)
    assert first.as_dict() == second.as_dict() == one.as_dict()
    assert first.percentile("ttft", 99) == one.percentile("ttft", 99)


def test_a_file_without_columns_has_its_percentiles_from_buckets(tmp_path: Path) -> None:
    """At most 1.1 % off."""
    one = many(1)
    results.save(tmp_path / "r.json", [one], requests=False)
    (read,) = results.load(tmp_path / "r.json")
    assert read.requests is None
    assert read.percentile("e2e", 90) == pytest.approx(one.percentile("e2e", 90), rel=0.011)


@given(st.data())
def test_a_damaged_file_is_refused_in_a_sentence(data: st.DataObject) -> None:
    """Any value replaced by anything else gives a result or a TailwatchError, nothing else."""
    plain = json.loads(json.dumps(many(2, 6).as_dict()))
    holder: Any = plain
    while True:
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    rubbish = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.floats(), st.just([]), st.just({}))
    holder[key] = data.draw(rubbish)
    try:
        read = Result.from_dict(plain)
    except TailwatchError as error:
        assert str(error)
    else:
        assert isinstance(read, Result)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format":1}', '{"format":9,"runs":[]}', "[" * 5000, '{"format":1,"layout":"x","runs":[]}'],
    ids=["nothing", "list", "object", "no runs", "format 9", "deep", "other buckets"],
)
def test_a_file_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    """With its name."""
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(TailwatchError, match=r"r\.json"):
        results.load(tmp_path / "r.json")
    with pytest.raises(TailwatchError, match=r"missing\.json"):
        results.load(tmp_path / "missing.json")


# Merging


def test_parts_of_a_load_merge_into_the_whole() -> None:
    """Counts, histograms, rates and the series are those of one client that had sent it all."""
    rng = random.Random(5)
    slo = SLO.parse("ttft<=500ms")
    exchanges = [
        exchange(rng.randrange(10 * SECOND), first=rng.randrange(1, SECOND), gaps=(MS, 2 * MS)) for _ in range(60)
    ]
    whole = recorded(exchanges, slo)
    both = merged([recorded(exchanges[::2], slo), recorded(exchanges[1::2], slo)])
    assert both.latencies.as_dict() == whole.latencies.as_dict()
    assert both.outcomes == whole.outcomes
    assert both.goodput.attainment == whole.goodput.attainment and both.goodput.rate == whole.goodput.rate
    assert both.series.good == whole.series.good and both.series.tokens == whole.series.tokens
    assert both.percentile("ttft", 99) == whole.percentile("ttft", 99)
    assert both.goodput == replace(whole.goodput, tokens=both.goodput.tokens)
    assert both.client.processes == 2


def lagging(late: int, of: int = 100, **more: Any) -> Result:
    """A client that sent so many of its requests 50 ms late, and was judged."""
    sent = [i * 100 * MS + (50 * MS if i < late else 0) for i in range(of)]
    found = recorded([exchange(i * 100 * MS, sent=at, first=51 * MS) for i, at in enumerate(sent)])
    for name, value in more.items():
        setattr(found.client, name, value)
    found.validity = judge(found.outcomes, found.latencies, found.client, closed=False)
    return found


def test_the_verdict_is_judged_anew() -> None:
    """On the numbers of all: one client of four that sent 2 % late is no 1 % of the whole, and is noted; all are."""
    one, good = lagging(2), [lagging(0) for _ in range(3)]
    assert one.validity.verdict == "invalid"
    whole = merged([one, *good])
    assert whole.valid and whole.goodput.believed
    assert any("one client alone" in warning and "schedule" in warning for warning in whole.validity.warnings)
    worse = merged([lagging(2), lagging(2), lagging(2)])
    assert worse.validity.verdict == "invalid" and worse.goodput.held is None
    assert len(worse.validity.reasons) == 1 and "p99 of the send lag" in worse.validity.reasons[0]


def test_a_cap_that_bound_one_client_is_the_wholes_share() -> None:
    """10 of 100 of one are 5 % of 200; its own sentence with 10 % is gone."""
    whole = merged([lagging(0, cap=5, capped=10), lagging(0, cap=5)])
    assert whole.validity.verdict == "capped"
    assert len(whole.validity.reasons) == 1 and "cap of 10 requests" in whole.validity.reasons[0]
    assert "(5.0% of the schedule)" in whole.validity.reasons[0]


@pytest.mark.parametrize("verdict", ["interrupted", "invalid"])
def test_what_the_numbers_do_not_show_is_kept(verdict: str) -> None:
    """Ctrl-C, a server that ended: the worst verdict is the verdict, with its reasons."""
    one, two = lagging(0), lagging(0)
    two.validity = Validity(verdict, ["because"], ["beware"])
    whole = merged([one, two]).validity
    assert (whole.verdict, whole.reasons, whole.warnings) == (verdict, ["because"], ["beware"])


def test_all_of_a_later_start_is_shifted() -> None:
    """Machines do not begin at the same moment: rows, seconds and pauses count from the earliest."""
    one, two = recorded([exchange(0, first=MS)], duration=20.0), recorded([exchange(0, first=MS)], duration=20.0)
    one.started, two.started = 100.0, 101.25
    two.client.pauses = [(0, 20 * MS)]
    both = merged([two, one])
    assert both.started == 100.0 and both.duration == 21.25
    assert both.requests is not None and list(both.requests.planned) == [0, 1250 * MS]
    assert list(both.requests.first) == [MS, 1251 * MS]
    assert both.requests.reason[0] == CODE["good"]
    assert both.series.scheduled == both.series.good == [1, 1]
    assert both.client.pauses == [(1250 * MS, 20 * MS)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"started": 102.0}, "the same time"),
        ({"duration": 12.0}, "the same time"),
        ({"settings": {"model": "m", "timeout": 5.0, "rate": 10}}, "options .*: timeout"),
        ({"closed": True}, "one kind of loop"),
    ],
    ids=str,
)
def test_runs_that_were_no_one_load_do_not_merge(change: dict[str, Any], why: str) -> None:
    """Other spans, other clocks, other options; a client's own share of the rate is no such option."""
    one, two = many(1), many(2)
    one.started = two.started = 100.0
    one.settings, two.settings = ({"model": "m", "timeout": 60.0, "rate": rate, "seed": rate} for rate in (10, 20))
    assert merged([one, two]).outcomes.scheduled == 80
    with pytest.raises(OptionError, match=why):
        merged([one, replace(two, **change)])


def test_clients_that_sent_the_same_are_found() -> None:
    """Two machines with one seed send everything twice at the same moment; other seeds have a digest together."""
    one, two = many(1), many(2)
    law = {"target": "poisson at 20/s", "n": 40, "rate": 4.0, "cv": 1.0}
    one.schedule, two.schedule = {"digest": "a", **law}, {"digest": "a", **law}
    assert any("--seed" in warning for warning in merged([one, two]).validity.warnings)
    two.schedule = {"digest": "b", **law}
    whole = merged([one, two])
    assert not any("--seed" in warning for warning in whole.validity.warnings)
    assert whole.schedule["target"] == "2 x poisson at 20/s" and whole.schedule["n"] == 80
    assert whole.schedule["rate"] == 8.0 and whole.schedule["cv"] is None
    assert whole.schedule["digest"] not in ("a", "b") and merged([two, one]).schedule == whole.schedule


def test_other_loads_do_not_merge() -> None:
    """Another target, another SLO, or nothing at all."""
    one, two = many(1), many(1)
    two.target = "http://127.0.0.1:2"
    for wrong in ([one, two], []):
        with pytest.raises(OptionError):
            merged(wrong)


def test_empty_runs_are_results_too() -> None:
    """Nothing scheduled: no attainment, no percentile, and it can be written."""
    one = recorded([])
    assert one.goodput.attainment is None and one.percentile("ttft", 99) is None
    assert Result.from_dict(json.loads(json.dumps(one.as_dict()))).as_dict() == one.as_dict()
    assert len(Series().plus(one.series)) == 0 and len(Requests()) == 0
