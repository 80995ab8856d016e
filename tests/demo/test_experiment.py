"""The whole experiment: how it is planned and sized, what its runs show together, and once over real processes."""

from __future__ import annotations

import argparse
import functools
import io
import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tailwatch
from tailwatch.demo import engine
from tailwatch.demo.experiment import arms, excerpt, report, runs, summary
from tailwatch.demo.experiment.runs import SHORT, ArmRun, Experiment, Size
from tailwatch.demo.main import add_arguments
from tailwatch.demo.main import run as run_demo
from tailwatch.demo.pipe import ChildError
from tailwatch.errors import OptionError, TailwatchError
from tailwatch.loadtest import results, statistics
from tailwatch.loadtest.report import document

from ..loadtest import made_runs

pytestmark = pytest.mark.integration

SLO = "ttft<=200ms,tpot<=50ms@99%"


@pytest.fixture(scope="module")
def server() -> dict[str, Any]:
    """What a server of an arm returns at the end, of a window without a request."""
    tailwatch.install(gc="observe")
    try:
        snapshot = tailwatch.snapshot().as_dict()
    finally:
        tailwatch.uninstall()
    claimed = {"snapshot": snapshot, "longest": {"2": 0.18}}
    return {"collections": [90, 9, 4], "tailwatch": claimed}


@functools.cache
def kept(rate: float, seed: int, tokens: int) -> bytes:
    """A run, which is made once."""
    return pickle.dumps(made_runs.stalled(rate, seconds=20, seed=seed, tokens=tokens))


def made(server: dict[str, Any], blocks: int = 6, full: int = 4, rate: float = 10.0) -> Experiment:
    """Runs whose frozen servers answer 20 tokens sooner, and whose batch and fast SSE change nothing."""
    found = Experiment(Size(blocks=blocks), 1, SLO, capacity=40.0, rate=20.0, seconds=20.0, objects=720_000)
    for block in range(blocks):
        for arm in arms.order(block):
            tokens = 44 if arm.gc in ("freeze", "idle") else 64
            result = pickle.loads(kept(rate, block, tokens + block % 2))
            result.name = arm.key
            offline = 3000.0 + 10 * (block * 7 % 5) + len(arm.key)
            found.runs.append(ArmRun(arm.key, block, result, offline, {**server, "collections": [90, 9, full]}))
    return found


def test_each_block_has_every_server_and_turns_round() -> None:
    """A drift of the machine falls on all alike: every second block runs backwards, and all begin in turn."""
    for block in range(6):
        assert {arm.key for arm in arms.order(block)} == set(arms.BY_KEY)
    assert arms.order(1) == arms.order(0)[::-1]
    assert len({arms.order(block)[0].key for block in range(6)}) > 3


def test_the_batch_of_the_arms_is_that_of_the_engine() -> None:
    """Three arms have the engine's own batch, one a smaller one."""
    assert arms.BATCH == engine.MAX_BATCH
    assert Counter(arm.batch for arm in arms.ARMS)[arms.BATCH] == 4


def test_the_excerpt_is_what_the_model_takes_and_the_same_again() -> None:
    """Seeded, cut to the model's lengths, at a scale that gives the rate."""
    schedule = excerpt.replay(60.0, 15.0, 1)
    assert schedule.digest == excerpt.replay(60.0, 15.0, 1).digest != excerpt.replay(60.0, 15.0, 2).digest
    assert max(schedule.output_tokens) == excerpt.LONGEST_ANSWER
    assert max(schedule.prompt_tokens) == excerpt.LONGEST_PROMPT
    assert 0.5 * 15 < len(schedule) / 60 < 2 * 15
    assert "scale 0.36" in schedule.law.target
    assert "over" not in schedule.law.target


def test_a_closed_loop_begins_with_requests_of_every_length() -> None:
    """It ends before its schedule does, so sorted requests would make the measured capacity too high."""
    schedule = excerpt.closed(2_000, 1)
    assert len(schedule) == 2_000
    for lengths in (schedule.prompt_tokens, schedule.output_tokens):
        assert sum(lengths[:400]) / 400 == pytest.approx(sum(lengths) / 2_000, rel=0.2)


def test_requests_ask_for_what_was_planned() -> None:
    """A token a letter, the planned answer, and no two prompts alike."""
    schedule = excerpt.replay(10.0, 15.0, 1)
    bodies = []
    for planned in schedule:
        head, _, body = excerpt.request(planned, 1).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        bodies.append(json.loads(body))
        assert len(bodies[-1]["prompt"]) == planned.prompt_tokens
        assert bodies[-1]["max_tokens"] == planned.output_tokens
    assert len({body["prompt"] for body in bodies}) == len(bodies)


def test_runs_are_sized_by_collections_within_the_budget() -> None:
    """As long as it takes for the collections that are wanted, if the time allows that."""
    size = Size(blocks=6, budget=1000.0)
    assert runs.window(size, 30.0, 10.0, 0.5) == pytest.approx(size.shortest)
    assert runs.window(size, 30.0, 10.0, 0.25) == 18.0
    assert runs.window(size, 30.0, 10.0, 0.05) == 22.0  # 970 s for 30 runs, 10 s of each are no window
    assert runs.window(size, 30.0, 10.0, 0.0) == 22.0
    assert runs.window(SHORT, 30.0, 10.0, 0.0) == 10.0


def test_no_block_begins_that_would_not_end_in_time() -> None:
    """Five runs took 150 s: another block ends at 300 s, after the limit of 280."""
    found = Experiment(Size(limit=280.0), 1, SLO)
    found.runs = [object()] * 5  # type: ignore[list-item]
    clock = runs.time.monotonic()
    assert runs._too_late(found, clock - 150)
    assert not runs._too_late(found, clock - 139)


def test_the_freeze_is_shown_and_the_batch_is_not(server: dict[str, Any]) -> None:
    """A difference has an interval without "none" in it; where nothing differs none is shown."""
    found = made(server, rate=40.0)
    freeze, band, sse, batch = (
        summary.difference(found, question, summary.METRIC["e2e_p90"]) for question in arms.QUESTIONS
    )
    assert freeze is not None and freeze.high is not None and freeze.high < 0
    claimed = summary.claims(found)
    shown = {question.name: claimed[question.name, "e2e_p90"].shown for question in arms.QUESTIONS}
    assert list(shown.values()) == [True, True, False, False]
    assert sse is not None and batch is not None and band is not None
    text = report.show(found)
    assert sentence(found, "Batch 32, unfrozen (") in " ".join(text.split())
    assert "no difference shown" in text
    assert "unresolved" not in text


def test_its_table_has_the_form_of_the_first_measurement(server: dict[str, Any]) -> None:
    """TTFT, TPOT and E2E at p90 and p99, the longest gap, and the offline throughput, a row a server, twice."""
    text = report.show(made(server))
    lines = text.split("\n")
    heads = next(line for line in lines if line.startswith("server "))
    measures = ["TTFT", "p90", "p99", "TPOT", "p90", "p99", "E2E", "p90", "p99", "ITL", "max"]
    assert heads.split() == ["server", *measures, "offline", "tok/s", "good"]
    at = lines.index(heads)
    assert [line.split("  ")[0] for line in lines[at + 2 : at + 7]] == [arm.row for arm in arms.ARMS]
    assert sum(line.startswith("freeze + fast SSE ") for line in lines) == 2
    assert max(map(len, lines)) <= 120


def test_too_few_collections_are_unresolved(server: dict[str, Any]) -> None:
    """Unfrozen runs with fewer than three show nothing about full collections; so do runs that are not valid."""
    found = made(server, full=2)
    text = " ".join(report.show(found).split())
    assert "6 of 6 runs" in text and "fewer than 3 full collections" in text
    claimed = summary.claims(found)
    assert not claimed["the freeze", "e2e_p99"].resolved and not claimed["the freeze", "e2e_p99"].shown
    freeze = sentence(found, "The freeze (frozen ")
    assert "unresolved: unfrozen" in freeze and "fewer than 3 full collections" in freeze
    assert claimed["fast SSE, frozen", "e2e_p99"].resolved, "no run of it is unfrozen"


def test_a_lower_bound_shows_nothing(server: dict[str, Any]) -> None:
    """Where a run dropped so many requests that its p99 is only a bound, p99 has no verdict; the others keep theirs."""
    found = made(server)
    spoilt = next(run for run in found.runs if run.arm == "freeze+sse").result
    spoilt.requests = None  # its histograms are used
    spoilt.latencies.lost["e2e"] = spoilt.latencies.e2e.count // 20
    claimed = summary.claims(found)
    claim, other = claimed["fast SSE, frozen", "e2e_p99"], claimed["fast SSE, frozen", "ttft_p99"]
    assert not claim.resolved and not claim.shown and not claim.unchanged and claim.pairs == 6
    assert other.resolved and claimed["the freeze", "e2e_p99"].resolved
    lower = sentence(found, "unresolved: E2E p99 ")
    assert "lower bound" in lower and " 1 of the runs" in lower and "dropped" in lower
    assert "unresolved" in sentence(found, "Fast SSE, frozen (") and "lower bound" in claim.why_not


@pytest.mark.parametrize("verdict", ["invalid", "capped", "interrupted"])
def test_a_run_that_is_not_valid_is_left_out_with_its_pair(server: dict[str, Any], verdict: str) -> None:
    """It is counted; the question has a pair less, and with five of them no answer; the others keep theirs."""
    found = made(server)
    spoilt = next(run for run in found.runs if run.arm == "freeze+sse")
    spoilt.result.validity.verdict = verdict
    claimed = summary.claims(found)
    assert claimed["fast SSE, frozen", "e2e_p99"].pairs == 5 and claimed["the freeze", "e2e_p99"].pairs == 6
    text = " ".join(report.show(found).split())
    assert "1 of 30 runs are not valid" in text and f"frozen, fast SSE ({verdict})" in text
    assert "unresolved: pairs of valid runs: 5," in sentence(found, "Fast SSE, frozen (")
    assert "longest gap no difference shown" in text
    assert report.page(found).bad
    rows = {row[0]: row for row in report.client_rows(found)}
    spoilt.result.latencies.e2e.record(10**13)  # what it has is in no number
    assert {row[0]: row for row in report.client_rows(found)} == rows


def test_many_differences_are_one_family(server: dict[str, Any]) -> None:
    """Holm over all that are printed: a p that alone would be below 0.05 is not, where two dozen were looked at."""
    claimed = summary.claims(made(server))
    assert len(claimed) == report.FAMILY == 24
    alone = [claim.difference.p for claim in claimed.values()]
    assert [claim.p for claim in claimed.values()] == statistics.holm(alone)
    text = " ".join(report.show(made(server)).split())
    assert f"{report.FAMILY} rows" in text and "(Holm)" in text


def sentence(found: Experiment, start: str) -> str:
    """The one of the report's sentences that begins so."""
    return next(line for line in report.sentences(found, summary.claims(found)) if line.startswith(start))


def offline(server: dict[str, Any], ratios: list[float]) -> str:
    """The sentence on it, where the frozen server's is so many times the other's."""
    found = made(server)
    found.runs = [
        replace(run, offline=3000.0 * (ratios[run.block] if run.arm == "freeze" else 1.0)) for run in found.runs
    ]
    return sentence(found, "Offline")


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ([1.01, 0.99, 1.0, 1.02, 0.98, 1.0], "unchanged within 5% (-1.5% to +1.5%)"),
        ([1.10, 0.92, 1.0, 1.06, 0.95, 1.02], "unresolved: "),
        ([0.80, 0.81, 0.79, 0.80, 0.81, 0.80], "changes it by -19.8%"),
        ([0.97, 0.971, 0.969, 0.97, 0.971, 0.97], "unchanged within 5%"),
    ],
)
def test_unchanged_is_more_than_no_difference_shown(server: dict[str, Any], ratios: list[float], wanted: str) -> None:
    """The whole interval must lie within the margin, which is printed."""
    freeze = offline(server, ratios).split("; ")[0]
    assert ": the freeze " in freeze and wanted in freeze


def test_two_blocks_have_no_interval(server: dict[str, Any]) -> None:
    """--short shows numbers, and a line that they are no proof."""
    found = made(server, blocks=2)
    assert "the freeze 2, idle 2" in sentence(found, "unresolved: pairs of valid runs: ")
    assert "unresolved: pairs of valid runs: 2," in sentence(found, "The freeze (frozen ")
    rows = report.difference_rows(summary.claims(found))
    assert {row[3:6] for row in rows} == {("-", "-", "-")}, "no interval, and no p either"


def test_an_experiment_that_was_cut_short_is_reported(server: dict[str, Any]) -> None:
    """After Ctrl-C in the first block: what there is, and no crash."""
    found = made(server, blocks=1)
    for count in (0, 1, 3):
        found.runs = found.runs[:count] if count else []
        assert "unresolved" in report.show(found)
        assert document.document(report.page(found))
        found = made(server, blocks=1)


@pytest.mark.parametrize("error", [ChildError("the server ended"), ZeroDivisionError("ours"), KeyboardInterrupt()])
def test_what_was_measured_outlives_an_error(
    server: dict[str, Any], error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    """The table and the files of the runs there are, the reason, and an exit status that is not 0."""
    ready = made(server, blocks=2).runs[:7]

    def next_run(*_: Any) -> ArmRun:
        if not ready:
            raise error
        return ready.pop(0)

    def calibrated(found: Experiment, _: Any) -> tuple[float, float]:
        found.capacity = 40.0
        return 1.0, 0.1

    monkeypatch.setattr(runs, "_calibrate", calibrated)
    monkeypatch.setattr(runs, "_run", next_run)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(["--experiment", "--short", "--json", str(tmp_path / "f.json")])
    assert run_demo(options) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    wanted = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    assert f"7 of {2 * len(arms.ARMS)} runs" in " ".join(capsys.readouterr().out.split())
    assert len(results.load(tmp_path / "f.json")) == 7
    assert wanted in json.dumps(json.loads((tmp_path / "f.json").read_text())["experiment"])


def test_the_page_shows_every_server_at_a_glance(server: dict[str, Any]) -> None:
    """Each run a point, each server a mean, each question an interval."""
    page = report.page(made(server))
    text = document.document(page)
    assert page.status == "resolved" and not page.bad
    for arm in arms.ARMS:
        assert arm.name in text
    for title in ("At a glance", "What it changes", "The comb", "All requests, the tail magnified"):
        assert title in text
    assert page.lead.startswith("The freeze (")


def test_its_file_is_one_that_compare_reads(server: dict[str, Any], tmp_path: Path) -> None:
    """The runs are those of `tailwatch bench --json`, named by their server."""
    from tailwatch.demo.experiment.main import as_dict

    path = tmp_path / "experiment.json"
    path.write_text(json.dumps(as_dict(made(server, blocks=2), {})), encoding="utf-8")
    assert Counter(run.name for run in results.load(path)) == dict.fromkeys(arms.BY_KEY, 2)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--experiment", "--duration", "9"], "--duration"),
        (["--short"], "--short"),
        (["--html", "x.html"], "--html"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(arguments: list[str], what: str) -> None:
    """Before anything is started."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(OptionError, match=what):
        run_demo(parser.parse_args(arguments))


def test_a_file_that_cannot_be_written_is_reported_before(tmp_path: Path) -> None:
    """Not after twenty minutes."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(TailwatchError, match="--html"):
        run_demo(parser.parse_args(["--experiment", "--html", str(tmp_path / "no" / "x.html")]))


@pytest.mark.slow
def test_it_runs() -> None:
    """One block of short runs over real processes: every server answers every request, and the report stands."""
    wanted = io.StringIO()
    size = Size(blocks=1, budget=1.0, limit=600.0, shortest=2.0, longest=2.0, offline=1.0, objects=30_000)
    found = runs.measure(size, SLO, 1, lambda line: print(line, file=wanted), rate=4.0)
    assert {run.arm for run in found.runs} == set(arms.BY_KEY)
    for run in found.runs:
        assert run.result.outcomes.scheduled == len(excerpt.replay(2.0, 4.0, 1))
        assert run.result.outcomes.by_reason["error"] == 0
        assert run.offline > 0
    assert len({run.result.schedule["digest"] for run in found.runs}) == 1
    assert "block 1 of 1: idle" in wanted.getvalue()
    assert "unresolved" in report.show(found)
    assert document.document(report.page(found))
