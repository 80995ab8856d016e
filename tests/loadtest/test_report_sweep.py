"""Tables and pages of a search and of a comparison."""

from __future__ import annotations

import argparse
import random
from html import unescape
from pathlib import Path

import pytest

from tailwatch.loadtest import compare, compare_main, results, search
from tailwatch.loadtest.proportions import RunWindow
from tailwatch.loadtest.report import comparison, document, sweep
from tailwatch.loadtest.report.blocks import Chart, ReportPage, Table, Words
from tailwatch.loadtest.saturation_point import Knee
from tailwatch.loadtest.trial import Probe

from . import made_runs

pytestmark = pytest.mark.integration

KNEE = 100.0


def probe(rate: float, seconds: float, settle: float) -> Probe:
    """A server that keeps every bound up to KNEE, and TTFT of no request beyond."""
    each = round(rate * (seconds - settle) / 10)
    requests = 10 * each
    good = requests if rate <= KNEE else 0
    windows = tuple(RunWindow(each, each, each if good else 0, each) for _ in range(10))
    return Probe(rate, seconds - settle, requests, requests, good, requests, {"ttft": good, "tpot": requests}, windows)


def found() -> Knee:
    """The knee of that server."""
    return search.find(probe, search.ClosedLoopCeiling(120.0, 8, (), 124.0), limits=search.Limits(probes=60))


def test_the_sweep_shows_where_goodput_leaves_throughput() -> None:
    """A line a rate, ascending: what holds, then what fails, with the bound that gave way."""
    knee = found()
    lines = sweep.show(knee).split("\n")
    assert lines[0].split()[:2] == ["offered", "verdict"]
    verdicts = ["holds" if "holds" in line else "fails" for line in lines[2 : lines.index("")]]
    assert verdicts == sorted(verdicts, reverse=True)
    assert {"holds", "fails"} == set(verdicts)
    assert lines[0].endswith("tpot kept  ttft kept") or lines[0].endswith("ttft kept  tpot kept")
    assert "ttft gives way first: prefill" in sweep.show(knee)


def test_the_page_of_a_search_names_the_knee() -> None:
    """The answer first, then goodput and throughput over what was offered, with the knee drawn."""
    knee = found()
    assert knee.rate is not None
    page = sweep.page(knee, target="http://127.0.0.1:8000", slo="ttft<=200ms@99%")
    assert page.lead.startswith("This server keeps 99% ") and "`ttft<=200ms@99%` up to" in page.lead
    assert "TTFT gives way first" in page.lead
    chart = next(block for block in page.blocks if isinstance(block, Chart))
    rates = {curve.name: curve for curve in chart.views[0].curves}
    for rate, throughput, good in zip(rates["goodput"].xs, rates["throughput"].ys, rates["goodput"].ys, strict=True):
        assert throughput is not None and good is not None
        assert (good < throughput) == (rate > KNEE)
    assert chart.views[0].marks[0].at == knee.rate
    assert {curve.name for curve in chart.views[1].curves} == {"all bounds", "ttft alone", "tpot alone"}
    assert "resolved" in document.document(page)


def test_a_search_without_a_knee_gives_the_reason() -> None:
    """Unresolved is an answer, with its reason, and no curve is made up."""
    knee = search.find(
        lambda rate, seconds, _: Probe(rate, seconds, 50, 50, 0, 0, {}, (), "the client's own limit"),
        search.ClosedLoopCeiling(120.0, 8, (), 124.0),
    )
    page = sweep.page(knee)
    assert knee.rate is None
    assert page.bad and page.status == "unresolved"
    assert any(isinstance(block, Words) and block.warn for block in page.blocks)
    assert not any(isinstance(block, Chart) for block in page.blocks)
    assert "not measured" in sweep.show(knee)


def arms(runs: int, shorter: int) -> list[compare.VariantRuns]:
    """Two variants; the second answers so many tokens fewer, with the same schedules."""
    sides: list[list[made_runs.Result]] = [[], []]
    rng = random.Random(4)
    for number in range(runs):
        for side, tokens in zip(sides, (64, 64 - shorter), strict=True):
            run = made_runs.stalled(seed=number, seconds=20, tokens=tokens + rng.randint(0, 1))
            run.schedule["digest"], run.started = f"schedule {number}", 2.0 * number + len(sides[1])
            side.append(run)
    return [compare.VariantRuns("stock", sides[0]), compare.VariantRuns("shorter <b>", sides[1])]


def blocks(page: ReportPage, kind: type) -> list[object]:
    """Of that kind."""
    return [block for block in page.blocks if isinstance(block, kind)]


def test_the_page_of_a_comparison_shows_what_differs() -> None:
    """Better, worse and not shown are distinguished, each with its interval; the sign rule stands beside them."""
    page = comparison.page(compare.compare(arms(6, 16)))
    chart = blocks(page, Chart)[0]
    assert isinstance(chart, Chart)
    curves = {curve.name: curve for curve in chart.views[0].curves}
    names = chart.views[0].y.names
    better = {names[int(y)] for y in curves["better"].ys if y is not None}
    assert "e2e p50" in better
    assert "ttft p99" not in better
    for low, middle, high in zip(curves["better"].low, curves["better"].xs, curves["better"].high, strict=True):
        assert low is not None and high is not None and low <= middle <= high < 0
    text = unescape(document.document(page))
    assert comparison.SIGN in text
    assert "<b>" not in document.document(page)


def test_compare_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tailwatch compare A B --html FILE`: what was printed, as a page."""
    files = []
    for arm in arms(6, 16):
        files.append(str(tmp_path / f"{len(files)}.json"))
        results.save(files[-1], arm.runs)
    parser = argparse.ArgumentParser()
    compare_main.add_arguments(parser)
    assert compare_main.main(parser.parse_args([*files, "--html", str(tmp_path / "page.html")])) == 0
    assert "e2e p50" in capsys.readouterr().out
    assert "rows show a difference" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_comparison_of_too_few_runs_has_no_interval() -> None:
    """Fewer than six: the change is shown without one, and nothing is called a difference."""
    page = comparison.page(compare.compare(arms(3, 16)))
    assert page.status == "no difference shown"
    assert page.lead.startswith("No difference is shown.")
    table = blocks(page, Table)[0]
    assert isinstance(table, Table)
    assert all("fewer than 6 runs" in row[-1] for row in table.rows if row[-1] != "no number")
