"""How many replicas, and what fan-out makes of a tail; as functions and as a command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailwatch.cli import main
from tailwatch.errors import OptionError
from tailwatch.loadtest import results
from tailwatch.loadtest.capacity import all_good, fleet, part_quantile
from tailwatch.loadtest.capacity_main import fanout_lines, replica_lines
from tailwatch.loadtest.histogram import LatencyHistogram
from tailwatch.loadtest.saturation_point import Knee

from .made_runs import stalled

pytestmark = pytest.mark.integration

Start = Callable[..., Any]


def test_the_known_fleet() -> None:
    """9000/s at a knee of 450 is 20 replicas; 9000/500 = 18 is the cliff; 21 survive the loss of one."""
    found = fleet(9000, 450, 500)
    assert (found.replicas, found.each, found.cliff, found.at_cliff, found.spare) == (20, 450.0, 18, 500.0, 21)
    assert found.one_down == pytest.approx(473.68, abs=0.01)


@given(st.floats(0.01, 1e6), st.floats(0.1, 1e4))
def test_the_fewest_that_stay_below_the_knee(expect: float, knee: float) -> None:
    """So many are enough, one fewer is not, and with the spare one may go."""
    if expect / knee > 1e6:
        with pytest.raises(OptionError):
            fleet(expect, knee)
        return
    found = fleet(expect, knee)
    assert found.each <= knee * (1 + 1e-9)
    assert found.replicas == 1 or expect / (found.replicas - 1) > knee * (1 - 1e-9)
    assert expect / (found.spare - 1) <= knee * (1 + 1e-9)


@pytest.mark.parametrize(("expect", "knee", "replicas"), [(0.3, 0.1, 3), (4.35, 1.45, 3), (450, 450, 1), (1, 450, 1)])
def test_rounding_makes_no_replica(expect: float, knee: float, replicas: int) -> None:
    """A quotient that is whole but for a float's rounding is whole."""
    assert fleet(expect, knee).replicas == replicas


@pytest.mark.parametrize(
    "wrong",
    [
        (0, 450, None),
        (9000, 0, None),
        (9000, -1, None),
        (9000, 450, 0),
        (math.nan, 1, None),
        (9000, 450, 449),
        (1e9, 1, 1),
    ],
)
def test_rates_that_mean_nothing(wrong: tuple[float, float, float | None]) -> None:
    """They are refused, and so is a capacity below the knee."""
    with pytest.raises(OptionError):
        fleet(*wrong)


def test_a_request_that_waits_for_a_hundred() -> None:
    """Its median is a part's p99.31; where 99 % of the parts are in time, 36.6 % of such requests are."""
    assert part_quantile(0.5, 100) == pytest.approx(0.99309, abs=1e-5)
    assert all_good(0.99, 100) == pytest.approx(0.366, abs=1e-3)
    assert part_quantile(all_good(0.99, 7), 7) == pytest.approx(0.99)
    assert part_quantile(0.9, 1) == 0.9
    for wrong in ((0.0, 5), (1.5, 5), (0.5, 0)):
        with pytest.raises(OptionError):
            part_quantile(*wrong)
        with pytest.raises(OptionError):
            all_good(*wrong)


@pytest.mark.parametrize("parts", [1, 2, 100, 10**6, 10**9])
def test_a_quantile_is_never_printed_as_all(parts: int) -> None:
    """However many parts, what must hold reads as less than 100 %."""
    assert "p100" not in "".join(fanout_lines(parts, 99.0)) and " 100%" not in fanout_lines(parts, 99.0)[1]


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It prints the fleet, the cliff, the loss of one, and the fan-out; --json holds the numbers."""
    file = tmp_path / "size.json"
    asked = [
        "capacity",
        "--knee",
        "450",
        "--capacity",
        "500",
        "--expect",
        "9000",
        "--fanout",
        "100",
        "--json",
        str(file),
    ]
    assert main(asked) == 0
    text = capsys.readouterr().out
    assert text.startswith("20 replicas: ")
    assert "18 replicas = 9000/500" in text and "473.7/s" in text and "p99.309" in text
    data = json.loads(file.read_text())
    assert data["fleet"]["replicas"] == 20 and data["fanout"]["whole"] == pytest.approx(0.366, abs=1e-3)


def saved(tmp_path: Path, **changes: object) -> str:
    """A search's file."""
    values: dict[str, object] = {"objective": "goodput", "resolved": True, "reason": "", **changes}
    values = {"rate": 477.0, "low": 470.0, "high": 481.0, **values}
    knee = Knee(attainment=0.99, basis="fit", ceiling=500.0, tried=(), **values)  # type: ignore[arg-type]
    file = tmp_path / "knee.json"
    file.write_text(json.dumps({"tailwatch": "0", "format": 1, "knee": knee.as_dict()}))
    return str(file)


def test_a_search_is_read_from_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The lower end of the interval is the knee, the closed-loop ceiling the capacity."""
    assert main(["capacity", "--knee", saved(tmp_path), "--expect", "9000"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("20 replicas: 9000/s ") and "knee of 470/s" in text and "9000/500" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["capacity"], "expected --knee and --expect"),
        (["capacity", "--expect", "5"], "--knee"),
        (["capacity", "http://127.0.0.1:1"], "--trace-replay FILE requires --slo"),
        (["capacity", "--trace-replay", "t", "--slo", "e2e<=1s", "http://a", "--knee", "5"], "leave out --knee"),
        (["capacity", "--expect", "5", "--knee", "/nowhere/knee.json"], "No such file"),
        (["capacity", "--expect", "5", "--knee", "0"], "above 0"),
        (["capacity", "--fanout", "0"], "at least 1"),
        (["capacity", "--fanout", "5", "--result", "/nowhere/run.json"], "No such file"),
        (["capacity", "--expect", "5", "--knee", "5", "--result", "run.json"], "requires --fanout"),
        (["capacity", "--fanout", "5", "--attainment", "0"], "above 0%"),
        (["capacity", "--fanout", "5", "--json", "/nowhere/size.json"], "No such file"),
    ],
)
def test_wrong_calls(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    """Exit status 2 and a sentence."""
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"knee": 5}', '{"knee": {"rate": 1}}', "[" * 100_000])
def test_a_file_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    """Exit status 2 and a sentence that names it."""
    file = tmp_path / "knee.json"
    file.write_text(text)
    assert main(["capacity", "--expect", "5", "--knee", str(file)]) == 2
    assert "not a result of" in capsys.readouterr().err


def test_a_search_that_found_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is reported."""
    assert main(["capacity", "--expect", "5", "--knee", saved(tmp_path, rate=None, low=None)]) == 2
    assert "found no knee" in capsys.readouterr().err


def test_what_is_no_knee_of_goodput_sizes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What a replica finishes is refused, with the reason and what to give."""
    assert main(["capacity", "--expect", "5", "--knee", saved(tmp_path, objective="throughput")]) == 2
    printed = capsys.readouterr()
    assert not printed.out and all(part in printed.err for part in ("--find throughput", "late requests", "--capacity"))


def test_an_unresolved_search_sizes_by_its_lower_bound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The number is one that is enough, and the caveat stands under it."""
    bounds = {"resolved": False, "reason": "the reason", "rate": 300.0, "low": 300.0, "high": 490.0}
    assert main(["capacity", "--expect", "9000", "--knee", saved(tmp_path, **bounds)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("30 replicas: ") and "ask for 19 to 30" in text
    assert "unresolved: the reason; the number is of its lower bound" in text


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        ((470.0, 481.0), "19 to 20 replicas for 9000/s: the ends of the knee's interval; plan with 20"),
        ((475.0, 476.0), "19 replicas for 9000/s"),
        ((None, 481.0), "at least 19 replicas for 9000/s; the search proved no rate that holds"),
    ],
)
def test_the_interval_is_carried_to_the_replicas(ends: tuple[float | None, float], sentence: str) -> None:
    """Its lower end asks for the most, its upper end for the fewest."""
    knee = Knee("goodput", 0.99, ends[0], *ends, "fit", True, "", 500.0, ())
    assert replica_lines(knee, 9000.0)[0].startswith(sentence)


@pytest.mark.slow  # it searches a knee on a real server
def test_replicas_for_recorded_traffic(fault_server: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command, from a trace and an SLO to replicas and a page; a budget this short may not resolve it."""
    trace = tmp_path / "t.csv"
    rows = "".join(f"{i / 5},4,2\n" for i in range(40))
    trace.write_text("timestamp,prompt_tokens,output_tokens\n" + rows)
    url = fault_server("--slots", "4", "--service", "0.05").url(tokens=1, first=0)
    files = {name: str(tmp_path / f"r.{name}") for name in ("json", "html")}
    words = ["--trace-replay", str(trace), "--slo", "ttft<=5s@90%", "--model", "m", "--budget", "4"]
    assert main(["capacity", *words, "--json", files["json"], "--html", files["html"], url]) in (0, 1)
    assert re.search(r"replicas? for 5/s|unknown: 5/s", capsys.readouterr().out)
    assert json.loads(Path(files["json"]).read_text())["expect"] == pytest.approx(5.0)
    assert "<svg" in Path(files["html"]).read_text() or "unresolved" in Path(files["html"]).read_text()


def run_of(milliseconds: list[int], path: Path) -> str:
    """A saved run with these times to the end."""
    result = stalled(seconds=2)
    histogram = LatencyHistogram("e2e")
    for value in milliseconds:
        histogram.record(value * 10**6)
    result.latencies.e2e = histogram
    results.save(path, [result])
    return str(path)


def test_the_tail_of_the_whole_as_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Where one part in a hundred takes a second, most requests that wait for a hundred do; what so few parts cannot
    tell is called a lower bound."""
    file = run_of(([10] * 99 + [1000]) * 10, tmp_path / "run.json")
    out = tmp_path / "hundred.json"
    assert main(["capacity", "--fanout", "100", "--result", file, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"e2e of a request .* 100 of these: p50 ", text)
    assert "p99 at least " in text and "run longer" in text
    times = json.loads(out.read_text())["fanout"]["e2e"]
    assert [time["seconds"] for time in times] == pytest.approx([1, 1, 1], rel=0.011)
    assert [time["reached"] for time in times] == [True, True, False]
    assert main(["capacity", "--fanout", "1", "--result", file, "--json", str(tmp_path / "size.json")]) == 0
    times = json.loads((tmp_path / "size.json").read_text())["fanout"]["e2e"]
    assert [time["share"] for time in times] == [0.5, 0.9, 0.99]
    assert times[0]["seconds"] == pytest.approx(0.01, rel=0.011) and times[0]["reached"]
