"""The search for the knee, in virtual time against servers whose knee is known."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwatch import cli
from tailwatch.errors import OptionError
from tailwatch.loadtest.capacity import fleet
from tailwatch.loadtest.capacity_main import replica_range
from tailwatch.loadtest.knee_search import saturate
from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.report import sweep
from tailwatch.loadtest.saturation_point import Knee
from tailwatch.loadtest.search import ClosedLoopCeiling, Limits, find
from tailwatch.loadtest.trial import Probe, ProbeFunction

from .virtual_servers import database, database_closed, probe_of

pytestmark = pytest.mark.integration

PROOF = Path(__file__).parents[2] / "benchmarks" / "load"


def ceiling(rate: float, high: float = math.inf) -> ClosedLoopCeiling:
    """Of a closed loop; without an upper end where none is given."""
    return ClosedLoopCeiling(rate, 8, (), high, math.isfinite(high))


@pytest.fixture(scope="module")
def proof() -> Any:
    """benchmarks/load/knee_proof.py: the command's own code and defaults, on a simulated server and clock."""
    sys.path.insert(0, str(PROOF))
    try:
        yield importlib.import_module("knee_proof")
    finally:
        sys.path.remove(str(PROOF))


def proved(proof: Any, number: int, seeds: range) -> dict[str, Any]:
    """The table's row of a server."""
    case = proof.CASES[number]
    row: dict[str, Any] = proof.summary(case, [proof.search(case, seed) for seed in seeds])
    return row


def test_a_knee_is_found_at_the_defaults(proof: Any) -> None:
    """M/M/1, 500/s, 20 ms at 95 %: resolved within 20 virtual minutes, by the command as it stands."""
    row = proved(proof, 1, range(3))
    assert row["resolved"] == 3 and row["resolved_hold"] >= 2 and row["median_seconds"] <= 1200
    assert row["median_error"] <= 0.02


def test_where_few_requests_take_very_long_no_interval_is_resolved(proof: Any) -> None:
    """A Pareto tail: this search saw too few of them, and its interval lay above the truth, "resolved"."""
    case = next(case for case in proof.CASES if case.name == "M/G/1 Pareto")
    knee, _ = proof.search(case, 13)
    assert not knee.resolved and "longest gaps between answers" in knee.reason
    assert proof.holds(case, knee)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_known_queue_needs_110_replicas(
    proof: Any, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """M/M/4 of 40 ms, e2e<=300ms@99%, has its knee at 82.2/s: 9000/s need 110, not what a knee found too high gives."""
    case = proof.CASES[2]
    file, sized = tmp_path / "knee.json", tmp_path / "sized.json"
    file.write_text(json.dumps({"knee": (knee := proof.search(case, seed)[0]).as_dict()}))
    assert cli.main(["capacity", "--knee", str(file), "--expect", "9000", "--json", str(sized)]) == 0
    fewest, most = replica_range(knee, 9000.0)
    assert case.truth == pytest.approx(82.2318) and fleet(9000, case.truth).replicas == 110
    assert json.loads(sized.read_text())["fleet"]["replicas"] == most and fewest <= 110 <= most, capsys.readouterr().out


def test_what_the_budget_cannot_show_is_a_bound(proof: Any) -> None:
    """M/M/8 of 1 s each: the queue forgets itself too slowly; the bound holds and the reason is there."""
    row = proved(proof, 4, range(100, 102))
    assert row["resolved"] == 0 and row["bounds_hold"] == row["bounds"] == 2 and all(row["reasons"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", (1, 3, 9))
def test_the_interval_covers_the_truth(proof: Any, number: int) -> None:
    """Other seeds than those of the committed table, which benchmarks/load/knee_proof.py makes of all twelve servers:
    hardly one interval or bound without the truth."""
    row = proved(proof, number, range(1000, 1003))
    assert row["resolved"] - row["resolved_hold"] <= 1 and row["bounds"] - row["bounds_hold"] <= 1


def test_the_committed_proof(proof: Any) -> None:
    """Of twelve servers, 40 searches each: nine in ten of all that resolve hold the truth, as do the bounds and wider
    intervals of each server, which all give their reason. Each reaches the bar."""
    table = json.loads(proof.RESULTS.read_text())
    assert set(table) == {case.name for case in proof.CASES}
    assert all(row["seeds"] == 40 and row["bar"] == proof.bar(row) for row in table.values())
    assert sum(row["resolved_hold"] for row in table.values()) >= 0.9 * sum(row["resolved"] for row in table.values())
    assert all(row["bounds_hold"] >= 0.9 * row["bounds"] for row in table.values())
    assert all(row["explained"] == row["bounds"] for row in table.values())
    assert [name for name, row in table.items() if row["bar"] == "missed"] == []


class Server:
    """Good up to a rate (to both shares above and below it), its seconds counted; `wrong`: of probes by number."""

    def __init__(self, at: float, above: float = 0.5, below: float = 1.0) -> None:
        self.at, self.above, self.below = at, above, below
        self.asked: list[float] = []
        self.seconds = 0.0

    def __call__(self, rate: float, seconds: float, settle: float) -> Probe:
        """A probe."""
        self.asked.append(rate)
        self.seconds += seconds
        n = max(1, round(rate * (seconds - settle) / 40))
        good = round(n * (self.below if rate <= self.at else self.above))
        windows = tuple(RunWindow(n, n, good, good) for _ in range(40))
        whole = 40 * n
        return Probe(rate, seconds - settle, whole, whole, 40 * good, 40 * good, {"ttft": 40 * good}, windows)

    def limits(self, budget: float = 1200.0) -> Limits:
        """So many seconds."""
        return Limits(budget=budget, left=lambda: budget - self.seconds)


def test_a_cliff_is_found() -> None:
    """Where nothing lies between all and half: its interval holds it, in less than the budget."""
    server = Server(73.0)
    knee = find(server, ceiling(100.0, 104.0), limits=server.limits())
    assert knee.resolved and (knee.low or 0) <= 73.0 <= (knee.high or 0), str(knee)
    assert knee.rate == pytest.approx(73.0, rel=0.03) and server.seconds < 1200


def test_nothing_lies_above_the_ceiling() -> None:
    """A server that is always good, with a ceiling: unresolved, and no end of it above the ceiling's interval."""
    server = Server(1e9)
    knee = find(server, ceiling(100.0, 104.0), limits=server.limits())
    assert not knee.resolved and max(server.asked) <= 104.0 and (knee.high, knee.low is not None) == (104.0, True)


def test_a_closed_loop_that_still_gains_is_no_ceiling() -> None:
    """One with too few workers measures too little: the search then looks upwards, and ends at eight times as much."""
    server = Server(250.0)
    knee = find(server, ceiling(100.0), limits=server.limits())
    assert (knee.low or 0) <= 250.0 <= (knee.high or math.inf) and max(server.asked) > 250
    server = Server(1e9)
    knee = find(server, ceiling(100.0), limits=server.limits())
    assert not knee.resolved and "still met" in knee.reason and max(server.asked) <= 800


def test_it_ends_where_nothing_holds() -> None:
    """A server that is never good is left at a hundredth of its ceiling, with a reason and no rate."""
    server = Server(0.0)
    knee = find(server, ceiling(100.0), limits=server.limits())
    assert knee.rate is None and not knee.resolved and "does not even hold" in knee.reason
    assert 1 <= min(server.asked) <= 2 and str(knee).startswith("unresolved: ")


def test_probes_and_time_are_bounded() -> None:
    """The search is over after its probes, and with its budget; it names which, and what it has."""
    server = Server(73.0)
    knee = find(server, ceiling(100.0), limits=Limits(probes=5))
    assert len(server.asked) == 5 and not knee.resolved and knee.reason.startswith("5 probes were made")
    server = Server(73.0, below=0.993, above=0.96)
    knee = find(server, ceiling(100.0), limits=server.limits(60.0))
    assert server.seconds <= 60 and not knee.resolved and knee.reason
    knee = find(server, ceiling(100.0), limits=Limits(left=lambda: 0.0))
    assert knee.tried == () and knee.rate is None and knee.reason.startswith("its time was over")


def test_what_the_client_cannot_offer_is_no_verdict() -> None:
    """Rates at which the client's own schedule was not kept never count as failing; the reason names the limit."""
    server = Server(1e9)

    def probe(rate: float, seconds: float, settle: float) -> Probe:
        return replace(server(rate, seconds, settle), invalid="send lag" if rate > 80 else "")

    knee = find(probe, ceiling(100.0), limits=server.limits())
    assert not knee.resolved and "could not offer" in knee.reason and "send lag" in knee.reason
    assert {row.verdict for row in knee.rows() if row.rate > 80} == {"invalid"}


def test_a_hundred_per_cent_is_never_proved() -> None:
    """With @100% one miss refutes; the rate without one is given, not as resolved."""
    server = Server(73.0)
    knee = find(server, ceiling(100.0), 1.0, limits=server.limits())
    assert not knee.resolved and knee.rate is not None and 70 < knee.rate <= 73 and "100%" in knee.reason


def test_a_knee_survives_its_file() -> None:
    """as_dict, through JSON, and back: equal, with the same rows."""
    server = Server(73.0)
    knee = find(server, ceiling(100.0), limits=server.limits())
    again = Knee.from_dict(json.loads(json.dumps(knee.as_dict())))
    assert again == knee and again.rows() == knee.rows()


@pytest.mark.parametrize("wrong", [{"ceiling": 0.0}, {"ceiling": math.inf}, {"attainment": 0.0}, {"attainment": 1.1}])
def test_wrong_calls_are_refused(wrong: dict[str, float]) -> None:
    """Rates and shares that mean nothing are refused before anything is sent."""
    with pytest.raises(OptionError):
        find(Server(1.0), ceiling(wrong.get("ceiling", 100.0)), wrong.get("attainment", 0.9))
    with pytest.raises(OptionError):
        find(Server(1.0), ceiling(100.0), objective="goodputs")
    with pytest.raises(OptionError):
        Limits(resolution=0.0)
    with pytest.raises(OptionError):
        Limits(probes=0)


def overloaded(ttft: float, tpot: float, failed: float) -> ProbeFunction:
    """Above 100/s these shares of the requests are late by a bound, or fail; below all are good."""

    def probe(rate: float, seconds: float, settle: float) -> Probe:
        requests = 10 * round(rate * (seconds - settle) / 10)
        late, slow, lost = (round(share * requests) if rate > 100 else 0 for share in (ttft, tpot, failed))
        good = requests - max(late, slow) - lost
        kept = {"ttft": requests - lost - late, "tpot": requests - lost - slow}
        windows = tuple(RunWindow(requests // 10, requests // 10, good // 10, good // 10) for _ in range(10))
        return Probe(rate, seconds - settle, requests, requests, good, good, kept, windows, failed=lost)

    return probe


@pytest.mark.parametrize(
    ("shares", "bound", "sentence"),
    [
        ((0.0, 0.0, 0.6), None, r"neither prefill nor decode .*: 60\.0% "),
        ((0.1, 0.02, 0.4), None, r"neither prefill nor decode .*: 40\.0% "),
        ((0.1, 0.4, 0.05), "tpot", r"tpot .*: decode"),
        ((0.4, 0.1, 0.3), "ttft", r"ttft .*: prefill"),
    ],
)
def test_a_failed_request_is_of_no_phase(shares: tuple[float, float, float], bound: str | None, sentence: str) -> None:
    """Prefill is judged against decode by what was answered too late; where more failed than that, by neither."""
    knee = find(overloaded(*shares), ceiling(120.0, 125.0), limits=Limits(probes=30))
    assert knee.rate is not None and 97 <= knee.rate <= 103
    assert knee.saturates == bound and re.search(sentence, str(knee))
    assert re.search(sentence.split(":")[0] + " first", sweep.page(knee).lead, re.IGNORECASE)


# ---- the database ----


def mean_of(rate: float, service: float, seconds: float = 10.0) -> float:
    """Over what completed in the time."""
    planned, ends = database(rate, service)
    times = [end - start for start, end in zip(planned, ends, strict=True) if end <= seconds]
    return sum(times) / len(times)


@pytest.mark.parametrize(
    ("service_ms", "found"),
    [(10.0, 496), (10.1, 488), (10.2, 488), (10.3, 480), (10.4, 480), (10.6, 464), (10.8, 456), (11.0, 448)],
)
def test_the_textbook_search_on_the_database(service_ms: float, found: float) -> None:
    """Doubling from 1, then halving to less than 10, mean at most 15 ms: 480 at 10.4 ms, 464 at 10.6, in 15 probes."""
    asked: list[float] = []

    def holds(rate: float) -> bool:
        asked.append(rate)
        return mean_of(rate, service_ms / 1000) <= 0.015

    high = 1.0
    while holds(high):
        high *= 2
    low = high / 2
    while high - low >= 10:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    assert low == found
    assert len(asked) == 15 and asked[:10] == [2.0**k for k in range(10)]


def test_the_means_behind_it() -> None:
    """14.96 ms at 480/s, 87 at 488, 314 at 512."""
    means = [mean_of(rate, 0.0104) for rate in (480, 488, 512)]
    assert means == pytest.approx([0.01496, 0.08716, 0.31376], rel=0.002)


@pytest.mark.parametrize(("service_ms", "rate"), [(10.4, 480.8), (10.6, 471.7)])
def test_the_closed_loop_is_flat_beyond_five_workers(service_ms: float, rate: float) -> None:
    """480.8/s at 10.4 ms, 471.7 at 10.6; more workers than the database has bring nothing."""
    ceiling = saturate(lambda workers: database_closed(workers, service_ms / 1000), first=5)
    assert ceiling.rate == pytest.approx(rate, abs=0.1)
    assert ceiling.workers == 5
    assert [tried for _, tried in ceiling.tried] == pytest.approx([rate] * 3, abs=0.1)


def test_fewer_workers_than_that_measure_less() -> None:
    """From one worker the rate doubles until five are busy."""
    ceiling = saturate(lambda workers: database_closed(workers, 0.0104))
    assert [workers for workers, _ in ceiling.tried] == [1, 2, 4, 8, 16, 32]
    assert ceiling.workers == 8 and ceiling.rate == pytest.approx(480.8, abs=0.1)


def test_the_throughput_that_is_kept_up_with() -> None:
    """In open loop the database keeps up with its closed-loop ceiling, within the resolution, and not with more."""

    def probe(rate: float, seconds: float, _: float) -> Probe:
        planned, ends = (np.array(times) for times in database(rate, 0.0104, seconds))
        return probe_of(rate, planned, ends, ends <= seconds, {}, 50)

    limits = Limits(resolution=0.01, seconds=20.0)
    knee = find(probe, ceiling(480.0, 481.0), 0.99, objective="throughput", limits=limits)
    assert knee.rate is not None and knee.rate == pytest.approx(480.8, rel=0.015)
    assert knee.most == pytest.approx(480.8, rel=0.01)
