"""Wrong calls of `tailwatch demo`, and its table."""

from __future__ import annotations

import argparse
import importlib.util
import io
from pathlib import Path
from typing import Any

import pytest

from tailwatch.demo import add_arguments, main
from tailwatch.errors import OptionError, TailwatchError

rich = pytest.importorskip("rich")
pytest.importorskip("fastapi", reason="the demo's server needs it: pip install '.[demo]'")

from rich.console import Console  # noqa: E402

from tailwatch.demo import report  # noqa: E402


def options(*arguments: str) -> argparse.Namespace:
    """What the command line would hand to the demo."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--slo", "quick"], "slo='quick'"),
        (["--duration", "0"], "--duration=0.0"),
        (["--rate", "-3"], "--rate=-3.0"),
        (["--serve", "--port", "70000"], "--port=70000"),
        (["--stalls", "--serve"], "--stalls: expected without --serve"),
        (["--stalls", "--experiment"], "--stalls: expected without --experiment"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_option(arguments: list[str], named: str) -> None:
    """Before anything is started."""
    with pytest.raises(OptionError, match=named):
        main(options(*arguments))


def test_a_file_that_cannot_be_written_is_reported_at_once(tmp_path: Path) -> None:
    """Not after two minutes of measuring."""
    with pytest.raises(TailwatchError, match="--json"):
        main(options("--json", str(tmp_path / "missing" / "file.json")))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that installs it, and status 2."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else found(name))

    assert main(options()) == 2
    errors = capsys.readouterr().err
    assert "needs fastapi" in errors and "pip install '.[demo]'" in errors


def planted(*, pause: float, misses: int, lag: float = 0.001, full: int = 3, others: float = 0.0) -> dict[str, Any]:
    """One arm's part of a report."""
    spread = dict.fromkeys(("p50", "p90", "p99", "p99.9"), 0.012) | {"count": 10_000, "max": pause}
    client = {"ttft": spread, "tpot": spread, "itl": spread, "e2e": spread, "goodput": (100 - misses) / 2}
    client |= {"throughput": 50.0, "attainment": 1 - misses / 100, "unfinished": 0, "errors": {}}
    client |= {"client": {"loop_lag_max": lag, "send_lag": {"max": 0.001}}}
    numbers = {"itl_p99": 0.012, "itl_max": pause, "itl_without_gc_p99": None, "itl_without_gc_max": 0.02}
    numbers |= {"paused": {"gc2": pause}, "delay": {"gc2": 10 * pause}, "longest": {"2": pause}, "headline": "planted"}
    server = {"objects": 720_000, "collections": [900, 80, full], "tailwatch": numbers}
    return {"client": client, "server": server, "cores_of_others": others}


def printed(left: dict[str, Any], frozen: dict[str, Any], file: str | None = None, width: int = 200) -> str:
    """The report as text; idle was like the freeze."""
    arms = {"observe": left, "freeze": frozen, "idle": frozen}
    whole = {"slo": "ttft<=500ms@99%", "capacity": 80.0, "rate": 48.0, "arms": arms}
    whole |= {"schedule": {"requests": 2160, "mean_tokens": 40.0, "seconds": 45.0, "hash": "0123456789abcdef"}}
    whole |= {"machine": {"python": "3.11.7", "cpus": 2, "load_average": [0.5, 0.4, 0.3]}, "file": file}
    out = io.StringIO()
    report.show(whole, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize(("width", "limit"), [(200, 100), (80, 80)])
def test_the_report_fits_a_hundred_columns(width: int, limit: int) -> None:
    """Also where the terminal is wider; and on a narrow terminal no number is cut off."""
    text = printed(planted(pause=12.3456, misses=12), planted(pause=0.02, misses=0, full=12345), width=width)

    assert max(map(len, text.splitlines())) <= limit
    assert "900/80/12345" in text and "12346 ms" in text and "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_table_shows_what_is_better_by_how_much() -> None:
    """All numbers and the factor between them; collections per generation of each arm."""
    text = printed(planted(pause=0.3, misses=12), planted(pause=0.03, misses=0))

    words = " ".join(text.split())
    assert "from 300 ms to 30.0 ms" in words and words.count("30.0 ms (10.0x lower)") == 2
    assert "44.0 to 50.0 and 50.0 req/s" in words
    assert "900/80/3" in text and "14% higher" in text


def test_a_freeze_that_does_not_help_is_not_praised() -> None:
    """The words follow the numbers."""
    text = " ".join(printed(planted(pause=0.03, misses=0), planted(pause=0.3, misses=0)).split())

    assert "(10.0x higher)" in text and "lower" not in text


def test_doubts_are_printed() -> None:
    """A late client, unfinished requests, a busy machine, a window without a full collection: a sentence each."""
    clean = " ".join(printed(planted(pause=0.3, misses=1), planted(pause=0.03, misses=0)).split())
    left = planted(pause=0.3, misses=1, lag=0.2, full=0, others=0.8)
    left["client"]["unfinished"] = 3
    doubtful = " ".join(printed(left, planted(pause=0.03, misses=0)).split())

    for words in ("read the tails with care", "No full collection", "Other processes kept 0.8", "lower bounds"):
        assert words in doubtful and words not in clean


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1.0, 1.01, "the same"),
        (1.0, 0.1, "10.0x lower"),
        (1.0, 0.8, "20% lower"),
        (1.0, 1.2, "20% higher"),
        (1.0, 3.0, "3.0x higher"),
        (0.0, 1.0, "-"),
        (1.0, 0.0, "gone"),
        (None, 1.0, "-"),
    ],
)
def test_changes_in_words(before: float | None, after: float | None, expected: str) -> None:
    """Small differences of single runs are called the same, large ones a factor."""
    assert report.change(before, after) == expected


def test_where_to_look_further_names_the_file() -> None:
    """The last lines are commands that can be copied."""
    text = printed(planted(pause=0.3, misses=1), planted(pause=0.03, misses=0), file="r.json")

    assert "tailwatch doctor r.json --slow-gaps" in text and "tailwatch demo --serve" in text
