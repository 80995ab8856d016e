"""tailwatch compare: which runs are compared with which, what is called shown, and what is printed where nothing is."""

from __future__ import annotations

import json
import random
import re
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tailwatch.errors import OptionError
from tailwatch.loadtest import results
from tailwatch.loadtest.compare import (
    CENSORED,
    NO_NUMBER,
    NOT_SHOWN,
    PAIR,
    SHOWN,
    TOO_FEW,
    Comparison,
    ComparisonRow,
    VariantRuns,
    compare,
    merge,
)
from tailwatch.loadtest.comparison_text import show
from tailwatch.loadtest.goodput import goodput_of
from tailwatch.loadtest.latencies import Latencies
from tailwatch.loadtest.metrics import NAMES, measures
from tailwatch.loadtest.outcomes import Outcomes
from tailwatch.loadtest.results import Result
from tailwatch.loadtest.validity import Validity
from tailwatch.options.slo import SLO

pytestmark = pytest.mark.integration

MS = 1_000_000
Command = Callable[..., tuple[int, str, str]]


def run(
    number: int, *, ms: float = 20.0, noise: float = 0.05, seed: int = 0, rate: float = 40.0, paired: bool = True,
    good: int = 2000, errors: int = 0, verdict: str = "valid", slo: str = "ttft<=500ms", lag_ms: float = 0.01,
    workers: int = 0, started: float | None = None, n: int = 2000, apart: bool = False, dropped: int = 0,
) -> Result:  # fmt: skip
    """A run of n requests whose latencies are ms and more, times a factor of the run's own; apart: one each."""
    draw = random.Random(f"{seed} {number}")
    factor = draw.lognormvariate(0, noise)
    latencies = Latencies()
    for name, scale in (("ttft", 1.0), ("tpot", 0.1), ("largest_gap", 0.3), ("e2e", 10.0), ("itl", 0.1)):
        factor = draw.lognormvariate(0, noise) if apart else factor
        values = array("q", [round(ms * factor * scale * (1 + 2 * i / n) * MS) for i in range(n)])
        getattr(latencies, name).record_all(values)
    for name in ("ttft", "e2e"):
        getattr(latencies, f"{name}_censored").record_all(array("q", [60_000 * MS] * dropped))
    latencies.send_lag.record_all(array("q", [round(lag_ms * MS)] * 2000))
    outcomes = Outcomes()
    outcomes.by_reason["good"], outcomes.by_reason["error"] = good, errors
    bounds = SLO.parse(slo)
    goodput = goodput_of(outcomes, bounds, duration=50.0, throughput=good / 50, tokens=1000.0, broken={})
    return Result(
        target="http://127.0.0.1:8000/v1/completions", duration=50.0, goodput=goodput, slo=bounds, outcomes=outcomes,
        latencies=latencies, validity=Validity(verdict), closed=bool(workers),
        started=1000.0 + 60 * number if started is None else started, settings={"workers": workers} if workers else {},
        schedule={"digest": f"{number:016x}" if paired else f"{seed}{number}", "target": f"poisson at {rate:g}/s"},
    )  # fmt: skip


def arm(name: str, runs: int = 6, make: Callable[..., Result] = run, **how: object) -> VariantRuns:
    """So many runs, one a schedule."""
    return VariantRuns(name, [make(number, **how) for number in range(runs)])


def rows(comparison: Comparison, table: int = 0) -> dict[str, ComparisonRow]:
    """By label."""
    return {row.measure.label: row for row in comparison.tables[table].rows}


def test_a_large_effect_is_shown_with_its_sign() -> None:
    """Half the latency in each of six pairs: lower, better, by about half, in every latency; not in what is equal."""
    found = compare([arm("default"), arm("freeze", ms=10.0, seed=1)])
    table, by_label = found.tables[0], rows(found)
    assert (table.a, table.b, table.runs, table.paired) == ("default", "freeze", (6, 6), True)
    row = by_label["ttft p99"]
    assert row.verdict == SHOWN and row.better is True
    assert row.difference is not None and -0.6 < row.difference.estimate < -0.4
    assert row.difference.exact == 2 / 64 and row.difference.holds(-0.5)
    assert by_label["goodput"].verdict == NOT_SHOWN and by_label["goodput"].better is None
    assert {row.measure.name for _, row in found.shown} == {"ttft", "tpot", "largest_gap", "e2e"}


def test_the_other_way_round_is_worse() -> None:
    """Exchanged, the same rows are higher and worse; for goodput higher is better."""
    found = compare([arm("freeze", ms=10.0, seed=1), arm("default")])
    assert rows(found)["ttft p99"].better is False
    more = compare([arm("a", good=1000), arm("b", good=2000)], of=measures(["goodput", "throughput"]))
    assert [row.better for _, row in more.shown] == [True, True]


def test_equal_variants_show_nothing() -> None:
    """A/A: no row is called different, and the text has that, with the smallest effect that would have shown."""
    found = compare([arm("a"), arm("b", seed=1)])
    assert found.shown == () and found.looked_at > 10
    text = show(found)
    assert "no difference shown" in text and f"of {found.looked_at} rows none" in text.splitlines()[-1]
    assert "Negative: B is lower" in text
    detectable = rows(found)["ttft p99"].difference
    assert detectable is not None and detectable.detectable is not None and 0.05 < detectable.detectable < 0.5


@pytest.mark.parametrize(("tables", "most"), [(50, 8), pytest.param(200, 14, marks=pytest.mark.slow)])
def test_tables_of_equal_arms_seldom_show_anything(tables: int, most: int) -> None:
    """Of 200 whole tables of equal arms at most 7 % show a row: that many rows are looked at is counted. Of 50, at
    most eight: chance has more in one of a thousand."""
    shown, how = 0, {"noise": 0.3, "n": 20, "apart": True}
    of = measures(["ttft", "tpot", "largest_gap", "e2e", "itl"], [50.0])
    for seed in range(tables):
        found = compare([arm("a", seed=2 * seed, **how), arm("b", seed=2 * seed + 1, **how)], of=of)
        shown += bool(found.shown)
        assert found.looked_at == 5
    assert shown <= most


def test_fewer_than_six_runs_have_no_interval() -> None:
    """Five runs: the change, but neither interval nor verdict."""
    found = compare([arm("a", 5), arm("b", 5, ms=1.0)])
    row = rows(found)["ttft p50"]
    assert row.verdict == TOO_FEW and row.difference is not None and row.difference.low is None
    assert found.looked_at == 0 and found.shown == ()
    assert "fewer than 6 runs" in show(found) and "needs 6 runs" in show(found)


def test_pairs_are_found_by_their_schedule() -> None:
    """The order of a file does not matter; runs without a partner are left out, and listed as such."""
    a, b = arm("a"), arm("b", ms=10.0)
    turned = VariantRuns("b", [*b.runs[::-1], run(77, ms=10.0)])
    found = compare([a, turned])
    assert found.tables[0].paired and found.tables[0].runs == (6, 6)
    assert any("1 runs left out" in note and "pair" in note for note in found.tables[0].notes)
    row = rows(found)["ttft p50"].difference
    assert row is not None and row.spread is not None and row.spread < 0.02  # the same factor in both runs of a pair


def test_pairs_of_an_ablation_are_found_by_their_number() -> None:
    """One schedule in all runs, or none at all (closed loop): the pair's number decides."""
    sides = arm("a", workers=8), arm("b", workers=8, ms=10.0)
    for side in sides:
        for number, one in enumerate(side.runs):
            one.settings[PAIR] = number
            one.schedule = {}
    found = compare(sides)
    assert found.tables[0].paired and found.tables[0].load == "closed loop, 8 in flight"


def test_runs_that_share_nothing_are_no_pairs() -> None:
    """Other schedules: compared all the same, by Welch; all of A before all of B is called a weakness."""
    late = VariantRuns(
        "b", [run(number, ms=10.0, seed=1, paired=False, started=9000.0 + number) for number in range(7)]
    )
    found = compare([arm("a", paired=False), late])
    table = found.tables[0]
    assert not table.paired and table.runs == (6, 7)
    assert rows(found)["ttft p99"].verdict == SHOWN
    assert any("on one side" in note for note in table.notes) and any("as no pairs" in note for note in table.notes)


def test_pairs_that_do_not_alternate_are_called_weak() -> None:
    """One schedule a pair, but all of A before all of B: a drift of the machine would look the same."""
    late = VariantRuns("b", [run(number, ms=10.0, started=9000.0 + number) for number in range(6)])
    table = compare([arm("a"), late]).tables[0]
    assert table.paired and any("on one side" in note for note in table.notes)
    assert compare([arm("a"), arm("b")]).tables[0].notes == ()


def test_invalid_and_capped_runs_are_left_out() -> None:
    """Invalid and capped runs take their pairs along, and each is counted."""
    bad = [run(0, ms=500.0, verdict="capped"), run(1, ms=500.0, verdict="invalid"), *arm("b", 8, ms=10.0).runs[2:]]
    found = compare([arm("a", 8), VariantRuns("b", bad)])
    notes = found.tables[0].notes
    assert found.tables[0].runs == (6, 6) and rows(found)["ttft p99"].verdict == SHOWN
    for verdict in ("capped", "invalid"):
        assert any(note.startswith("b: 1 of 8 runs ") and verdict in note for note in notes)


def test_each_load_has_its_table_and_counts() -> None:
    """Runs at two rates: two tables, a summary, and p adjusted for the rows of both."""
    sides = []
    for name, slow in (("a", 20.0), ("b", 10.0)):
        runs = [*arm("", rate=20.0).runs, *(run(10 + i, rate=80.0, ms=slow) for i in range(6))]
        sides.append(VariantRuns(name, runs))
    found = compare(sides, of=measures(["ttft"], [50.0, 99.0]))
    assert [table.load for table in found.tables] == ["poisson at 20/s", "poisson at 80/s"]
    assert {table.load for table, _ in found.shown} == {"poisson at 80/s"}
    text = show(found)
    assert re.search(r"ttft p99 +\(\+0\.0%\) +-50\.\d%", text)


def test_no_load_in_common_is_an_error() -> None:
    """The error has at which loads each was run."""
    with pytest.raises(OptionError, match=r": a .*poisson at 40/s; b .*50/s"):
        compare([arm("a"), arm("b", rate=50.0)])
    with pytest.raises(OptionError, match="two variants"):
        compare([arm("a")])


def test_the_floor_is_what_equal_arms_differ_by() -> None:
    """With A again the floor is A/A's; a difference below it is not shown, however small its p."""
    noisy = VariantRuns("again", [run(number, ms=20.0 * (1.5 if number % 2 else 0.7)) for number in range(6)])
    small = VariantRuns("b", [run(number, ms=19.0) for number in range(6)])
    found = compare([arm("a"), small], of=measures(["ttft"], [50.0]), again=noisy)
    row = rows(found)["ttft p50"]
    assert row.adjusted is not None and row.adjusted < 0.05
    assert row.verdict == NOT_SHOWN
    (note,) = row.notes
    assert "equal arms" in note
    assert row.floor is not None and row.floor > 0.05 and "A/A" in found.tables[0].floor_of
    assert rows(compare([arm("a"), small], of=measures(["ttft"], [50.0])))["ttft p50"].floor is not None


def test_equal_arms_that_differ_are_called_a_bias() -> None:
    """When A differs from itself as shown as can be, the table has that the setting is biased."""
    found = compare([arm("a"), arm("b")], again=arm("again", ms=10.0))
    assert any("biased" in note for note in found.tables[0].notes)


def test_the_clients_own_lag_is_held_against_a_difference() -> None:
    """A lag above 5 % of the difference is noted with a latency from the planned start, not with one between tokens."""
    found = compare([arm("a", lag_ms=5.0), arm("b", ms=17.0, lag_ms=5.0)])
    by_label = rows(found)
    assert any("5 ms late" in note for note in by_label["ttft p50"].notes)
    assert by_label["tpot p50"].notes == ()


def test_failures_are_a_row_of_their_own() -> None:
    """What was not answered has no latency: its share stands beside them, in points."""
    found = compare([arm("a"), VariantRuns("b", [run(i, good=1900 - i, errors=100 + i) for i in range(6)])])
    row = rows(found)["failed"]
    assert row.verdict == SHOWN and row.better is False and row.difference is not None
    assert not row.difference.ratio and row.difference.estimate == pytest.approx(0.05, abs=0.003)
    assert "points" in show(found)


def test_dropped_requests_are_no_improvement() -> None:
    """Half the latency of those that were answered, and a twentieth ended by the tester: p50 and p90 are lower, p99 is
    a lower bound and no improvement, whichever side drops; the bound of the change has its direction."""
    kept, drops = arm("kept", ms=20.0), arm("drops", ms=10.0, seed=1, dropped=110)
    found = compare([kept, drops])
    by_label = rows(found)
    assert by_label["ttft p50"].verdict == by_label["e2e p90"].verdict == SHOWN
    for label in ("ttft p99", "ttft p99.9", "e2e p99"):
        row = by_label[label]
        assert (row.verdict, row.better, row.censored, row.adjusted) == (CENSORED, None, (0, 6), None)
        assert row.difference is not None and row.difference.low is row.difference.p is row.difference.exact is None
    text = show(found)
    assert re.search(r"ttft p99\s+\S+\sms\s+≥60\ss\s+≥\S+x\s.*\scensored", text)
    assert "ttft p99:" not in text.rpartition("would show:")[2], "no conclusion from it"
    turned = rows(compare([drops, kept]))["ttft p99"]
    assert turned.verdict == CENSORED and turned.better is None and turned.censored == (6, 0)
    assert any("at most this" in note for note in turned.notes)
    both = compare([drops, arm("too", ms=5.0, seed=2, dropped=110)])
    assert rows(both)["ttft p99"].censored == (6, 6) and re.search(r"ttft p99\s+≥60\ss\s+≥60\ss\s+-\s", show(both))
    assert json.loads(json.dumps(found.as_dict()))["tables"][0]["rows"][2]["censored"] == [0, 6]


def test_a_goodput_of_nothing_is_compared_too() -> None:
    """A variant without one good request has no ratio: the difference is shown in requests per second."""
    none = VariantRuns("b", [run(i, good=0, errors=2000) for i in range(6)])
    row = rows(compare([VariantRuns("a", [run(i, good=2000 - i) for i in range(6)]), none]))["goodput"]
    assert row.verdict == SHOWN and row.difference is not None and not row.difference.ratio
    assert row.difference.estimate == pytest.approx(-40, abs=0.1)


def test_other_bounds_make_goodput_incomparable() -> None:
    """Runs with another SLO: latencies are compared, goodput is not, and that is noted."""
    found = compare([arm("a"), arm("b", slo="ttft<=1s")])
    assert "goodput" not in rows(found) and "ttft p50" in rows(found)
    assert any("SLOs differ" in note for note in found.tables[0].notes)


def test_a_percentile_beyond_the_last_sample_is_no_number() -> None:
    """p99.99 of 2000 requests would be the maximum."""
    found = compare([arm("a"), arm("b")], of=measures(["ttft"], [99.9, 99.99]))
    assert rows(found)["ttft p99.9"].verdict != NO_NUMBER and rows(found)["ttft p99.99"].verdict == NO_NUMBER
    assert "ttft p99.99" in show(found)


def test_what_a_bucket_rounds_is_no_certainty() -> None:
    """Values out of a histogram that fall into neighbouring buckets in every run are not taken for exact."""
    of, seen = measures(["ttft"], [45.0, 60.0, 65.0, 70.0]), []
    for ms in (20.02, 20.06, 20.1, 20.15):
        found = compare([arm("a", noise=0.0), arm("b", noise=0.0, ms=ms)], of=of)
        seen += [row.difference.estimate for row in rows(found).values() if row.difference is not None]
        assert found.shown == ()
    assert max(seen) > 0.015


@pytest.mark.parametrize("wrong", [["latency"], ["ttft", "p99"]])
def test_metrics_that_are_none(wrong: Sequence[str]) -> None:
    """The error lists those there are."""
    with pytest.raises(OptionError, match="expected some of ttft"):
        measures(wrong)
    assert [measure.name for measure in measures(["goodput", "failed"])] == ["goodput", "failed"]
    assert all(measures([name]) for name in NAMES)


def test_machines_that_drove_one_load_merge_run_by_run() -> None:
    """Counts add up and histograms merge; other numbers of runs are refused."""
    whole = merge([arm("one", 3).runs, arm("two", 3, seed=1).runs])
    assert [len(one.latencies.ttft) for one in whole] == [4000] * 3
    assert [one.goodput.scheduled for one in whole] == [4000] * 3
    with pytest.raises(OptionError, match="found 3, 2"):
        merge([arm("one", 3).runs, arm("two", 2).runs])


def test_the_command(command: Command, tmp_path: Path) -> None:
    """Two files: the table, and with --json what was printed as numbers."""
    results.save(tmp_path / "before.json", arm("before").runs)
    results.save(tmp_path / "after.json", arm("after", ms=10.0).runs)
    files = (tmp_path / "before.json", tmp_path / "after.json")
    code, out, err = command("compare", *files, "--json", tmp_path / "c.json")
    assert (code, err) == (0, "")
    heading = next(line for line in out.splitlines() if "6 pairs" in line)
    assert "after (B) against before (A)" in heading and "poisson at 40/s" in heading
    assert re.search(r"ttft p99( -\d\d\.\d%)?: after is lower", out)
    written = json.loads((tmp_path / "c.json").read_text())
    row = next(row for row in written["comparison"]["tables"][0]["rows"] if row["measure"]["label"] == "ttft p99")
    assert row["verdict"] == "shown" and row["better"] is True and row["difference"]["low"] < -0.4


def test_the_command_merges_machines(command: Command, tmp_path: Path) -> None:
    """--merge writes results that compare reads."""
    for name in ("one", "two"):
        results.save(tmp_path / f"{name}.json", arm(name).runs)
    files = (tmp_path / "one.json", tmp_path / "two.json")
    code, out, _ = command("compare", *files, "--merge", tmp_path / "all.json")
    assert code == 0 and "6 runs" in out and "2 machines" in out
    assert len(results.load(tmp_path / "all.json")) == 6


def test_wrong_calls(command: Command, tmp_path: Path) -> None:
    """One file, no file, no results, no such metric: exit status 2 and a sentence."""
    results.save(tmp_path / "a.json", arm("a").runs)
    (tmp_path / "none.json").write_text("[]")
    for arguments, error in (
        ([tmp_path / "a.json"], "two files"),
        ([tmp_path / "a.json", tmp_path / "nothing.json"], "No such file"),
        ([tmp_path / "a.json", tmp_path / "none.json"], "these are no results"),
        ([tmp_path / "a.json", tmp_path / "a.json", "--metrics", "speed"], "metrics='speed'"),
        ([tmp_path / "a.json", tmp_path / "a.json", "--percentiles", "x"], "percentiles='x'"),
        ([tmp_path / "a.json", tmp_path / "a.json", "--percentiles", "101"], "percentiles=101"),
        ([tmp_path / "a.json", tmp_path / "a.json", "--json", tmp_path / "no" / "c.json"], "No such file"),
    ):
        code, _, err = command("compare", *arguments)
        assert code == 2 and error in err, (arguments, err)
